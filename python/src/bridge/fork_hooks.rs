//! Calls of Python around a fork, passed on to all that has threads or locks.

use pyo3::prelude::*;

use crate::exit::without_interpreter;

/// To be called right before the process forks.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    // whoever has what is waited for here may wait for the interpreter itself
    without_interpreter(py, || {
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
    crate::fork::after_fork_in_child();
    crate::exit::after_fork_in_child();
    crate::log::after_fork_in_child();
    stepfast::fork::after_fork_in_child();
    crate::runtime::after_fork_in_child();
    crate::bridge::port::after_fork_in_child();
}
