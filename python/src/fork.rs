//! Forked processes.
//!
//! A child has its parent's memory, but none of its threads. An operation on the parent's engine would wait without
//! end, or use the parent's connections. So every object of the native module records the process in which it was
//! created. In another process, every use of the object is an error, and the object is never dropped.

use std::mem::forget;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::exit::InterpreterGuard;

/// The number of forks between the process that loaded this module and this one.
static FORK_COUNT: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the running process.
    pub(crate) fn current() -> Self {
        Self(FORK_COUNT.load(Relaxed))
    }

    /// Returns true if this is the running process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Fails if this is not the running process.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_current() { Ok(()) } else { Err(forked_process_error(py)) }
    }

    /// Drops `value`, unless it belongs to another process.
    pub(crate) fn drop_if_current<T>(self, value: T) {
        if self.is_current() {
            drop(value);
        } else {
            forget(value);
        }
    }
}

fn forked_process_error(py: Python<'_>) -> PyErr {
    let _guard = InterpreterGuard::enter(py);
    let error = py
        .import("stepfast._runtime.foreign_use")
        .and_then(|module| module.getattr("forked_process_error")?.call0());
    error.map_or_else(|error| error, PyErr::from_value)
}

/// Counts the fork, in the child.
pub(crate) fn after_fork_in_child() {
    FORK_COUNT.fetch_add(1, Relaxed);
}
