//! Hooks that Python calls around a fork, passed on to every module with threads or locks.

use pyo3::prelude::*;

use crate::exit::without_interpreter;

/// Prepares a fork. Must be called right before the process forks.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    // a thread that holds one of these locks may wait for the interpreter
    without_interpreter(py, || {
        crate::runtime::before_fork();
        stepfast::fork::before_fork();
        // last, because the holders of the locks above may log
        crate::log::before_fork();
    });
}

/// Releases in the parent process the locks that [`before_fork`] took. Must be called after every fork.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    crate::log::after_fork_in_parent();
    stepfast::fork::after_fork_in_parent();
    crate::runtime::after_fork_in_parent();
}

/// Resets in the child process the state that does not survive a fork. Must be called before any other function of this
/// module.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    crate::fork::after_fork_in_child();
    crate::exit::after_fork_in_child();
    crate::log::after_fork_in_child();
    stepfast::fork::after_fork_in_child();
    crate::runtime::after_fork_in_child();
    crate::bridge::port::after_fork_in_child();
}
