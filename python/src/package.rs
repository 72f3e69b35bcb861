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
            here_var: found("stepfast.branch", "here_var")?,
            failed: found("stepfast.carried", "failed")?,
            interrupted: found("stepfast.carried", "interrupted")?,
            over: found("stepfast.carried", "over")?,
            ended: found("stepfast.carried", "ended")?,
            thrown: found("stepfast.carried", "thrown")?,
            raised: found("stepfast.carried", "raised")?,
            left: found("stepfast.carried", "left")?,
        })
    })
}
