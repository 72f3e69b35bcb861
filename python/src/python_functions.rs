//! [`Package`]: what the native side has of the package.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Found once: it is asked for at every step.
pub(crate) struct Package {
    pub(crate) here_var: Py<PyAny>,
    pub(crate) failed: Py<PyAny>,
    pub(crate) interrupted: Py<PyAny>,
    pub(crate) over: Py<PyAny>,
    /// Of code in a task of its own.
    pub(crate) ended: Py<PyAny>,
    /// Of code that its caller runs.
    pub(crate) thrown: Py<PyAny>,
    pub(crate) raised: Py<PyAny>,
    pub(crate) left: Py<PyAny>,
}

pub(crate) fn package(py: Python<'_>) -> PyResult<&'static Package> {
    static PACKAGE: PyOnceLock<Package> = PyOnceLock::new();
    PACKAGE.get_or_try_init(py, || {
        let found = |module: &str, name: &str| PyResult::Ok(py.import(module)?.getattr(name)?.unbind());
        Ok(Package {
            here_var: found("stepfast._runtime.branch", "here_var")?,
            failed: found("stepfast._runtime.event_loop.native_callbacks", "failed")?,
            interrupted: found("stepfast._runtime.event_loop.native_callbacks", "interrupted")?,
            over: found("stepfast._runtime.event_loop.native_callbacks", "error_of")?,
            ended: found("stepfast._runtime.event_loop.native_callbacks", "ended")?,
            thrown: found("stepfast._runtime.event_loop.native_callbacks", "thrown")?,
            raised: found("stepfast._runtime.event_loop.native_callbacks", "raised")?,
            left: found("stepfast._runtime.event_loop.native_callbacks", "left")?,
        })
    })
}
