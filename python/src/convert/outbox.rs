//! Encodes the starts that an outbox writes.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use stepfast::Key;

use crate::convert::signature::Signature;
use crate::convert::value::encode_arguments;

/// A new key as bytes and as text, the encoded arguments, and their fingerprint.
type EncodedStart<'py> = (Bound<'py, PyBytes>, String, Bound<'py, PyBytes>, i64);

/// Encodes a start with these arguments, for a store with this shard number. Fails with `TypeError` if a function with
/// this signature does not take the arguments.
#[pyfunction]
#[pyo3(signature = (args, kwargs, shard, signature=None))]
pub(crate) fn encode_start<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    shard: u16,
    signature: Option<&Bound<'py, Signature>>,
) -> PyResult<EncodedStart<'py>> {
    let py = args.py();
    if let Some(signature) = signature {
        signature.get().check(args, kwargs)?;
    }
    let (input, key) = (encode_arguments(args, Some(kwargs))?, Key::mint(shard));
    let respelled = signature.and_then(|signature| signature.get().fingerprint_if_respelled(args, kwargs));
    let fingerprint = respelled.unwrap_or_else(|| input.fingerprint()).cast_signed();
    let bytes = PyBytes::new(py, input.as_bytes());
    Ok((PyBytes::new(py, key.as_bytes()), key.to_string(), bytes, fingerprint))
}

/// Returns the channel on which the workers of a Postgres schema listen.
#[pyfunction]
pub(crate) fn hint_channel(schema: &str) -> String {
    stepfast::hint_channel(schema)
}
