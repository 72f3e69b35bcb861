//! What an outbox writes: an execution that is to be.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use stepfast::Key;

use crate::value::encode_arguments;

/// A fresh key as bytes and as text, its shard, the encoded arguments, and their fingerprint.
type Letter<'py> = (Bound<'py, PyBytes>, String, u16, Bound<'py, PyBytes>, i64);

/// The letter for these arguments.
#[pyfunction]
pub(crate) fn letter<'py>(args: &Bound<'py, PyTuple>, kwargs: &Bound<'py, PyDict>) -> PyResult<Letter<'py>> {
    let py = args.py();
    let (input, key) = (encode_arguments(args, Some(kwargs))?, Key::mint());
    let fingerprint = input.fingerprint().cast_signed();
    let bytes = PyBytes::new(py, input.as_bytes());
    Ok((PyBytes::new(py, key.as_bytes()), key.to_string(), key.shard(), bytes, fingerprint))
}

/// The channel on which workers of a schema of Postgres listen.
#[pyfunction]
pub(crate) fn hint_channel(schema: &str) -> String {
    stepfast::hint_channel(schema)
}
