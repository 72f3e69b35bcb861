//! Forked processes. A child has its parent's memory, but none of its threads: whatever it does with an engine of
//! its parent's would wait for ever, or speak on the parent's connections. So all that is made here knows in which
//! process it was made: elsewhere its use is an error, and it is never dropped.

use std::mem::forget;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::exit::InterpreterGuard;

/// How many forks lie between the process that loaded this module and the one that runs.
static FORK_COUNT: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that runs.
    pub(crate) fn current() -> Self {
        Self(FORK_COUNT.load(Relaxed))
    }

    /// True in the process in which it was made.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// An error in any other process.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_current() { Ok(()) } else { Err(forked_process_error(py)) }
    }

    /// Drops `it`, unless it belongs to another process.
    pub(crate) fn drop_if_current<T>(self, it: T) {
        if self.is_current() {
            drop(it);
        } else {
            forget(it);
        }
    }
}

fn forked_process_error(py: Python<'_>) -> PyErr {
    let _inside = InterpreterGuard::enter(py);
    let made = py.import("stepfast.errors").and_then(|errors| errors.getattr("forked")?.call0());
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Counts the fork, in the child.
pub(crate) fn after_fork_in_child() {
    FORK_COUNT.fetch_add(1, Relaxed);
}
