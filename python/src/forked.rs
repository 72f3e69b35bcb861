//! Forked processes. A child has its parent's memory, but none of its threads: whatever it does with an engine of
//! its parent's would wait for ever, or speak on the parent's connections. So all that is made here knows in which
//! process it was made: elsewhere its use is an error, and it is never dropped.

use std::mem::forget;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::exit::detached;

/// How many forks lie between the process that loaded this module and the one that runs.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The one that runs.
    pub(crate) fn current() -> Self {
        Self(DEPTH.load(Relaxed))
    }

    /// True in the process in which it was made.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// An error in any other process.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_current() { Ok(()) } else { Err(forked(py)) }
    }

    /// Drops `it`, unless it belongs to another process.
    pub(crate) fn drop_here<T>(self, it: T) {
        if self.is_current() {
            drop(it);
        } else {
            forget(it);
        }
    }
}

fn forked(py: Python<'_>) -> PyErr {
    let made = py.import("stepfast.errors").and_then(|errors| errors.getattr("forked")?.call0());
    made.map_or_else(|error| error, PyErr::from_value)
}

/// To be called right before the process forks.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    // whoever has what is waited for here may wait for the interpreter itself
    detached(py, || {
        crate::runtime::before_fork();
        stepfast::fork::before_fork();
        // last: who is waited for above may log
        crate::log::before_fork();
    });
}

/// To be called in the process that has forked.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    crate::log::after_fork_in_parent();
    stepfast::fork::after_fork_in_parent();
    crate::runtime::after_fork_in_parent();
}

/// To be called in the child, before anything else of this module.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    DEPTH.fetch_add(1, Relaxed);
    crate::exit::after_fork_in_child();
    crate::log::after_fork_in_child();
    stepfast::fork::after_fork_in_child();
    crate::runtime::after_fork_in_child();
    crate::port::after_fork_in_child();
}
