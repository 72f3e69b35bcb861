//! Operations of the interpreter that pyo3 offers only in several steps. Resuming a coroutine through a call is the
//! hottest path of the bridge. Only this file and `tests/src/crash/vfs.rs` contain `unsafe` code.

#![allow(unsafe_code)] // functions of the C API, each with live objects and the interpreter's lock held

use pyo3::exceptions::{PyBaseException, PyStopIteration};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The result of resuming a coroutine.
pub(crate) enum SendOutcome<'py> {
    /// The coroutine waits for this object.
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
}

/// Resumes a coroutine, or any other iterator.
pub(crate) fn send<'py>(code: &Bound<'py, PyAny>) -> PyResult<SendOutcome<'py>> {
    let py = code.py();
    let mut result = std::ptr::null_mut();
    // SAFETY: both objects live, and the lock is held; a result that is not an error is owned
    unsafe {
        match ffi::PyIter_Send(code.as_ptr(), ffi::Py_None(), &raw mut result) {
            ffi::PySendResult::PYGEN_NEXT => Ok(SendOutcome::Yielded(Bound::from_owned_ptr(py, result))),
            ffi::PySendResult::PYGEN_RETURN => Ok(SendOutcome::Returned(Bound::from_owned_ptr(py, result))),
            ffi::PySendResult::PYGEN_ERROR => Err(PyErr::fetch(py)),
        }
    }
}

/// Returns the exception that ends an iterator with a value, as `return` does.
fn stop_iteration(value: Bound<'_, PyAny>) -> PyErr {
    if is_unpacked_by_stop_iteration(&value) {
        return PyStopIteration::new_err((value.unbind(),));
    }
    PyStopIteration::new_err(value.unbind())
}

/// Returns true if `StopIteration` would take the value for its arguments, or for an exception.
fn is_unpacked_by_stop_iteration(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyBaseException>()
}

/// Throws an exception into a coroutine.
pub(crate) fn throw<'py>(
    code: &Bound<'py, PyAny>,
    raised: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<SendOutcome<'py>> {
    let py = code.py();
    match code.call_method1(pyo3::intern!(py, "throw"), raised) {
        Ok(awaited) => Ok(SendOutcome::Yielded(awaited)),
        Err(raised) if raised.is_instance_of::<PyStopIteration>(py) => {
            Ok(SendOutcome::Returned(raised.value(py).getattr(pyo3::intern!(py, "value"))?))
        }
        Err(raised) => Err(raised),
    }
}

impl<'py> SendOutcome<'py> {
    /// Returns the result in the form of an iterator's `__next__`.
    pub(crate) fn into_next(self) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            SendOutcome::Yielded(awaited) => Ok(Some(awaited)),
            SendOutcome::Returned(value) if is_unpacked_by_stop_iteration(&value) => {
                Err(stop_iteration(value))
            }
            SendOutcome::Returned(value) => {
                // no exception object is created, because it is rarely inspected
                // SAFETY: both objects live, and the lock is held
                unsafe { ffi::PyErr_SetObject(ffi::PyExc_StopIteration, value.as_ptr()) };
                Ok(None)
            }
        }
    }

    /// Returns the result in the form of a coroutine's `send`.
    pub(crate) fn into_sent(self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            SendOutcome::Yielded(awaited) => Ok(awaited),
            SendOutcome::Returned(value) => Err(stop_iteration(value)),
        }
    }
}

/// Sets a context variable; returns the token that resets it.
pub(crate) fn set_context_var<'py>(
    variable: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Py<PyAny>> {
    let py = variable.py();
    // SAFETY: both objects live, and the lock is held; a token is owned
    unsafe {
        let token = ffi::PyContextVar_Set(variable.as_ptr(), value.as_ptr());
        Bound::from_owned_ptr_or_err(py, token).map(Bound::unbind)
    }
}

/// Resets a context variable. Returns false if the variable was set in another context.
pub(crate) fn reset_context_var(variable: &Bound<'_, PyAny>, token: &Py<PyAny>) -> bool {
    // SAFETY: both objects live, and the lock is held
    let is_reset = unsafe { ffi::PyContextVar_Reset(variable.as_ptr(), token.as_ptr()) == 0 };
    if !is_reset {
        drop(PyErr::take(variable.py()));
    }
    is_reset
}

/// Creates an empty context.
pub(crate) fn new_context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the lock is held; a context is owned
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_New()) }
}

/// Runs code in a context, as `Context.run` does.
pub(crate) fn run_in_context<T>(
    context: &Bound<'_, PyAny>,
    code: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    let py = context.py();
    // SAFETY: the context lives, and the lock is held
    if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let result = code();
    // SAFETY: as above; this leaves the context that was entered
    if unsafe { ffi::PyContext_Exit(context.as_ptr()) } != 0 {
        let failed = PyErr::fetch(py);
        return result.and(Err(failed));
    }
    result
}

/// Returns the exception that the running code, or one of its callers, handles. Called at every durable call.
pub(crate) fn handled_exception(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the lock is held; the result is null, or owned
    unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyErr_GetHandledException()) }
}
