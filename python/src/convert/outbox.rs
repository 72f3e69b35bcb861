//! Encodes the starts and the messages that an outbox writes.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use stepfast::{Key, OutboxMessage, SEND_WORKFLOW};

use crate::convert::signature::Signature;
use crate::convert::value::{encode, encode_arguments};
use crate::error::to_exception;

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

/// The name of a workflow, a new key as bytes and as text, and the encoded arguments.
type EncodedMessage<'py> = (&'static str, Bound<'py, PyBytes>, String, Bound<'py, PyBytes>);

/// Encodes the start of the built-in workflow that sends a message, for a store with this shard number.
#[pyfunction]
pub(crate) fn encode_message<'py>(
    workflow_id: String,
    value: &Bound<'py, PyAny>,
    topic: String,
    message_id: Option<String>,
    keeps: bool,
    shard: u16,
) -> PyResult<EncodedMessage<'py>> {
    let py = value.py();
    let value = encode(value)?;
    let input = OutboxMessage::encode_input(workflow_id, topic, message_id, keeps, &value);
    let input = input.map_err(|error| to_exception(py, &error))?;
    let key = Key::mint(shard);
    let bytes = PyBytes::new(py, input.as_bytes());
    Ok((SEND_WORKFLOW, PyBytes::new(py, key.as_bytes()), key.to_string(), bytes))
}

/// Returns the channel on which the workers of a Postgres schema listen.
#[pyfunction]
pub(crate) fn hint_channel(schema: &str) -> String {
    stepfast::hint_channel(schema)
}
