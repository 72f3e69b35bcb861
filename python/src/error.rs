//! The engine's errors as Python's exceptions: one table, from kind to class.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use stepfast::{Error, Failure};

const CLOSED: &str =
    "the engine is closed: open another one. What it had accepted is continued by the next one";

/// The exception for an error of the engine: made by `stepfast.failure`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let failure = match error {
        Error::Failed(failure) | Error::Cancelled(failure) | Error::Parked(failure) => {
            Some((failure.kind.clone(), failure.message.clone(), failure.detail.to_vec()))
        }
        _ => None,
    };
    let made = py.import("stepfast.failure").and_then(|errors| {
        let kind = format!("{:?}", error.kind());
        let message = match error {
            // as Python calls it
            Error::Shutdown => CLOSED.to_owned(),
            error => error.to_string(),
        };
        errors.getattr("made")?.call1((kind, error.code(), message, failure))
    });
    match made {
        Ok(made) => PyErr::from_value(made),
        Err(error) => error,
    }
}

/// The same for something that has no error of the engine.
pub(crate) fn unavailable(message: &str) -> PyErr {
    PyRuntimeError::new_err(message.to_owned())
}

/// A failure as Python knows it: kind, message, causes, what it was made of.
pub(crate) fn parts(failure: &Failure) -> (String, String, Vec<String>, Vec<u8>) {
    (failure.kind.clone(), failure.message.clone(), failure.causes.clone(), failure.detail.to_vec())
}
