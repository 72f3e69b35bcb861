//! What is recorded of executions, as plain tuples for `stepfast.records`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stepfast::clock::Timestamp;
use stepfast::store::{RequestResult, Attempt, Checkpoint, CheckpointKind, Execution, Page, Record};
use stepfast::{Engine, Error, Failure, Payload, Status};

use crate::convert::value::decode;
use crate::error::{to_exception, failure_parts};

/// Everything recorded of an execution, with the values that are stored aside.
pub(crate) async fn shown(engine: &Engine, workflow_id: &str) -> Result<Record, Error> {
    let mut record = engine.show(workflow_id).await?;
    let key = record.execution.key;
    let values = [&mut record.execution.input, &mut record.execution.outcome]
        .into_iter()
        .chain(record.checkpoints.iter_mut().map(|checkpoint| &mut checkpoint.outcome));
    for value in values {
        *value = engine.value(key, std::mem::take(value)).await?;
    }
    Ok(record)
}

/// Outputs, or exceptions that are not raised.
pub(crate) fn ends(py: Python<'_>, ends: Vec<Result<Payload, Error>>) -> PyResult<Py<PyAny>> {
    let ended = |end: Result<Payload, Error>| {
        let value = match end {
            Ok(payload) => decode(py, &payload).map(Bound::unbind),
            Err(error) => Err(to_exception(py, &error)),
        };
        match value {
            Ok(value) => (true, value),
            Err(error) => (false, error.into_value(py).into_any()),
        }
    };
    let ended: Vec<_> = ends.into_iter().map(ended).collect();
    Ok(ended.into_pyobject(py)?.unbind())
}

/// False if the execution had ended before, or there was nothing to do.
pub(crate) fn answer(py: Python<'_>, answer: RequestResult) -> PyResult<Py<PyAny>> {
    let is_done = !matches!(answer, RequestResult::NotApplicable(_));
    Ok(is_done.into_pyobject(py)?.to_owned().into_any().unbind())
}

pub(crate) fn page(py: Python<'_>, page: &Page) -> PyResult<Py<PyAny>> {
    if let Some(total) = page.total {
        return Ok(total.into_pyobject(py)?.into_any().unbind());
    }
    let rows: PyResult<Vec<_>> = page.executions.iter().map(|row| execution(py, row)).collect();
    Ok(rows?.into_pyobject(py)?.unbind())
}

pub(crate) fn record(py: Python<'_>, record: &Record) -> PyResult<Py<PyAny>> {
    let row = execution(py, &record.execution)?;
    let input = bytes(py, &record.execution.input);
    let is_output = record.execution.status == Status::Completed;
    let outcome = outcome(py, &record.execution.outcome, is_output)?;
    let checkpoints: PyResult<Vec<_>> = record.checkpoints.iter().map(|it| checkpoint(py, it)).collect();
    let attempts: PyResult<Vec<_>> = record.attempts.iter().map(|it| attempt(py, it)).collect();
    let shown = (row, input, outcome, checkpoints?, attempts?);
    Ok(shown.into_pyobject(py)?.into_any().unbind())
}

/// Of an execution: workflow_id, workflow, status, whether it is parked, parent, and so on, in the order of the
/// fields of `stepfast.records.Execution`; instants in microseconds.
fn execution(py: Python<'_>, row: &Execution) -> PyResult<Py<PyAny>> {
    let is_parked = row.is_parked;
    let ticket = row.placement.as_deref();
    let standing = (
        ticket.map(|ticket| &*ticket.queue),
        ticket.map(|ticket| &*ticket.key).filter(|key| !key.is_empty()),
        ticket.map_or(0, |ticket| ticket.priority),
        row.given_dedup_id(),
        row.debounce_id(),
        row.run_timeout.map(|timeout| timeout.as_secs_f64()),
    );
    let attributes: BTreeMap<&str, &str> = row.attributes.iter().collect();
    let about = (
        row.workflow_id(),
        row.workflow.to_string(),
        row.status.as_str(),
        is_parked,
        row.parent.as_ref().map(|parent| parent.key.to_string()),
        row.run_no,
        row.recoveries,
        row.created_at.as_micros(),
        row.ended_at.map(Timestamp::as_micros),
        row.deadline_at.map(Timestamp::as_micros),
        row.wake_at.map(Timestamp::as_micros),
        (row.app_version.as_deref(), standing, attributes),
    );
    Ok(about.into_pyobject(py)?.into_any().unbind())
}

fn checkpoint(py: Python<'_>, checkpoint: &Checkpoint) -> PyResult<Py<PyAny>> {
    let kind = checkpoint.kind.as_str();
    let value = outcome(py, &checkpoint.outcome, checkpoint.kind != CheckpointKind::Failed)?;
    let (path, name) = (checkpoint.path.to_string(), checkpoint.name.to_string());
    let about = (path, name, kind, value, checkpoint.at.as_micros(), checkpoint.took_ms);
    Ok(about.into_pyobject(py)?.into_any().unbind())
}

fn attempt(py: Python<'_>, attempt: &Attempt) -> PyResult<Py<PyAny>> {
    let failure = outcome(py, &attempt.failure, false)?;
    let about = (attempt.path.to_string(), attempt.attempt, failure, attempt.at.as_micros());
    Ok(about.into_pyobject(py)?.into_any().unbind())
}

/// An encoded value, or the parts of a failure; `None` if there is neither.
fn outcome(py: Python<'_>, payload: &Payload, is_value: bool) -> PyResult<Py<PyAny>> {
    if payload.is_empty() {
        return Ok(py.None());
    }
    if is_value {
        return Ok(bytes(py, payload));
    }
    match payload.decode::<Failure>() {
        Ok(failure) => Ok(failure_parts(&failure).into_pyobject(py)?.into_any().unbind()),
        Err(_) => Ok(bytes(py, payload)),
    }
}

fn bytes(py: Python<'_>, payload: &Payload) -> Py<PyAny> {
    PyBytes::new(py, payload.as_message_pack().unwrap_or_default()).into_any().unbind()
}
