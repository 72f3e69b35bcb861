//! Code that has to unwind, or that unwinds because the program ends.

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use stepfast::guest::{RunControl, StopReason};

use crate::exit::InterpreterGuard;
use crate::interpreter::handled_exception;

/// Returns the exception that ends the program, if the code of an execution handles such an exception now. The code may
/// then make no durable call, because a replay, which has no such exception, would not make the call.
pub(crate) fn exit_exception(py: Python<'_>) -> PyResult<Option<PyErr>> {
    let Some(handled) = handled_exception(py) else { return Ok(None) };
    if !handled.is_instance_of::<PyKeyboardInterrupt>() && !handled.is_instance_of::<PySystemExit>() {
        return Ok(None);
    }
    let _guard = InterpreterGuard::enter(py);
    // an exception that the caller handles does not concern this code
    let is_here =
        py.import("stepfast._runtime.code_exceptions")?.getattr("is_handled_here")?.call1((&handled,))?;
    Ok(is_here.is_truthy()?.then(|| PyErr::from_value(handled)))
}

/// Returns the reason why the code has to unwind: 1 if the execution is suspended, 2 if it is cancelled, 3 if it has
/// ended, 4 if another branch has won a race. Returns 0 if the code need not unwind.
pub(crate) fn stop_code(control: &RunControl) -> u8 {
    match control.stop_reason() {
        None => 0,
        Some(StopReason::Suspended) => 1,
        Some(StopReason::Cancelled) => 2,
        Some(StopReason::Ended) => 3,
        Some(StopReason::LostRace) => 4,
    }
}
