//! The outcomes of executions that have ended or are parked, as values and errors.

use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::run::chunks;
use crate::store::Status;

/// Returns the error for an execution that is parked, with its outcome as the reason.
pub(crate) fn parked_error(workflow_id: String, outcome: &Payload) -> Error {
    Error::Parked { workflow_id, failure: outcome.to_failure().into() }
}

/// Returns the output of an execution that has ended, or the error with which it ended.
pub(crate) async fn decode_outcome<O: FromPayload>(
    engine: &EngineInner,
    key: Key,
    status: Status,
    outcome: Payload,
) -> Result<O, Error> {
    if outcome.chunk_ref().is_none() {
        return decode_inline(status, &outcome);
    }
    decode_inline(status, &Box::pin(chunks::fetch(engine, key, outcome)).await?)
}

/// Does the same as [`decode_outcome`] for an outcome that is not stored in chunks.
pub(crate) fn decode_inline<O: FromPayload>(status: Status, outcome: &Payload) -> Result<O, Error> {
    match status {
        Status::Completed => {
            O::from_payload(outcome).map_err(|error| error.with_value(|| "the output".to_owned()))
        }
        Status::Cancelled => Err(Error::Cancelled(outcome.to_failure())),
        _ => Err(Error::Failed(outcome.to_failure())),
    }
}
