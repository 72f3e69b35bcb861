//! [`PythonFunctions`]: the objects of the Python package that the bridge uses.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Objects of the Python package, looked up once because every step needs them.
pub(crate) struct PythonFunctions {
    pub(crate) current_code: Py<PyAny>,
    pub(crate) body_raised: Py<PyAny>,
    pub(crate) call_interrupted: Py<PyAny>,
    pub(crate) error_of: Py<PyAny>,
    /// Called when code that runs in a task of its own raises an exception.
    pub(crate) code_raised_in_task: Py<PyAny>,
    /// Called when an exception is thrown into code that its caller runs.
    pub(crate) exception_thrown: Py<PyAny>,
    pub(crate) code_raised_in_caller: Py<PyAny>,
    pub(crate) caller_finished: Py<PyAny>,
    /// Returns the event loop that runs in this thread, or None.
    pub(crate) get_running_loop: Py<PyAny>,
    /// Warns of a call that blocks the event loop of this thread.
    pub(crate) warn_of_blocked_loop: Py<PyAny>,
}

pub(crate) fn python_functions(py: Python<'_>) -> PyResult<&'static PythonFunctions> {
    static FUNCTIONS: PyOnceLock<PythonFunctions> = PyOnceLock::new();
    FUNCTIONS.get_or_try_init(py, || {
        let find = |module: &str, name: &str| PyResult::Ok(py.import(module)?.getattr(name)?.unbind());
        Ok(PythonFunctions {
            current_code: find("stepfast._runtime.branch", "current_code")?,
            body_raised: find("stepfast._runtime.event_loop.native_callbacks", "body_raised")?,
            call_interrupted: find("stepfast._runtime.event_loop.native_callbacks", "call_interrupted")?,
            error_of: find("stepfast._runtime.event_loop.native_callbacks", "error_of")?,
            code_raised_in_task: find(
                "stepfast._runtime.event_loop.native_callbacks",
                "code_raised_in_task",
            )?,
            exception_thrown: find("stepfast._runtime.event_loop.native_callbacks", "exception_thrown")?,
            code_raised_in_caller: find(
                "stepfast._runtime.event_loop.native_callbacks",
                "code_raised_in_caller",
            )?,
            caller_finished: find("stepfast._runtime.event_loop.native_callbacks", "caller_finished")?,
            get_running_loop: find("asyncio", "_get_running_loop")?,
            warn_of_blocked_loop: find("stepfast._runtime.caller_warnings", "warn_of_blocked_loop")?,
        })
    })
}
