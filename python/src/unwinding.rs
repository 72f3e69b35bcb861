//! Code that is to unwind, or does so because the program is to end.

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use stepfast::guest::{Gate, Stopped};

use crate::exit::InterpreterGuard;
use crate::interpreter::handled;

/// What the code of an execution handles, if that ends the program: a durable call that it makes meanwhile is not
/// made. A replay, which has no reason to unwind, would not make it.
pub(crate) fn ending(py: Python<'_>) -> PyResult<Option<PyErr>> {
    let Some(handled) = handled(py) else { return Ok(None) };
    if !handled.is_instance_of::<PyKeyboardInterrupt>() && !handled.is_instance_of::<PySystemExit>() {
        return Ok(None);
    }
    let _inside = InterpreterGuard::enter(py);
    // what the caller handles meanwhile is none of this code's business
    let is_here =
        py.import("stepfast._runtime.exceptions_here")?.getattr("is_raised_here")?.call1((&handled,))?;
    Ok(is_here.is_truthy()?.then(|| PyErr::from_value(handled)))
}

/// 0 while code may go on, 1 if the execution is suspended, 2 if it is cancelled, 3 if it has ended.
pub(crate) fn stopped(gate: &Gate) -> u8 {
    match gate.stopped() {
        None => 0,
        Some(Stopped::Suspended) => 1,
        Some(Stopped::Cancelled) => 2,
        Some(Stopped::Ended) => 3,
    }
}
