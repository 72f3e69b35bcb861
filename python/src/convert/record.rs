//! Converts records of executions to plain tuples for `stepfast._engine.records`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stepfast::clock::Timestamp;
use stepfast::guest::Path;
use stepfast::store::{
    Attempt, Checkpoint, CheckpointKind, Event, Execution, Page, Record, RequestResult, StreamEntry, Wait,
};
use stepfast::{BatchCounts, Engine, Error, Failure, ItemResult, Payload, Status};

use crate::convert::value::decode;
use crate::error::{failure_parts, to_exception};

/// Loads the complete record of an execution, with the values that are stored in chunks.
pub(crate) async fn load_record(engine: &Engine, workflow_id: &str) -> Result<Record, Error> {
    let mut record = engine.show(workflow_id).await?;
    let key = record.execution.key;
    let values = [&mut record.execution.input, &mut record.execution.outcome]
        .into_iter()
        .chain(record.checkpoints.iter_mut().map(|checkpoint| &mut checkpoint.outcome));
    for value in values {
        *value = engine.load_value(key, std::mem::take(value)).await?;
    }
    Ok(record)
}

/// Returns the executions with these workflow_ids, with their outcomes, also those that are stored in chunks.
pub(crate) async fn load_outcomes(engine: &Engine, ids: &[String]) -> Result<Vec<Option<Execution>>, Error> {
    let mut found = engine.get_many(ids).await?;
    load_stored_outcomes(engine, found.iter_mut().flatten()).await?;
    Ok(found)
}

/// Returns the executions with each of these values of an attribute, with their outcomes, also those that are stored in
/// chunks.
pub(crate) async fn find_outcomes(
    engine: &Engine,
    name: &str,
    values: &[String],
    limit: usize,
) -> Result<Vec<Vec<Execution>>, Error> {
    let mut found = engine.find(name, values, limit).await?;
    load_stored_outcomes(engine, found.iter_mut().flatten()).await?;
    Ok(found)
}

/// Loads the outcomes that are stored in chunks.
async fn load_stored_outcomes(
    engine: &Engine,
    found: impl Iterator<Item = &mut Execution>,
) -> Result<(), Error> {
    for execution in found {
        let outcome = std::mem::take(&mut execution.outcome);
        execution.outcome = engine.load_value(execution.key, outcome).await?;
    }
    Ok(())
}

/// Returns a tuple for each execution that was found, `None` for each other one: the execution, and its outcome.
pub(crate) fn found_executions(py: Python<'_>, found: &[Option<Execution>]) -> PyResult<Py<PyAny>> {
    let to_tuple = |found: &Option<Execution>| found.as_ref().map(|it| found_execution(py, it)).transpose();
    let tuples: PyResult<Vec<_>> = found.iter().map(to_tuple).collect();
    Ok(tuples?.into_pyobject(py)?.unbind())
}

/// Returns a list of tuples for each value: the executions, and their outcomes.
pub(crate) fn executions_by_value(py: Python<'_>, found: &[Vec<Execution>]) -> PyResult<Py<PyAny>> {
    let to_tuples = |found: &Vec<Execution>| found.iter().map(|it| found_execution(py, it)).collect();
    let lists: PyResult<Vec<Vec<_>>> = found.iter().map(to_tuples).collect();
    Ok(lists?.into_pyobject(py)?.unbind())
}

/// Returns an execution, and its outcome.
fn found_execution(py: Python<'_>, found: &Execution) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let outcome = outcome(py, &found.outcome, found.status == Status::Completed)?;
    Ok((execution(py, found)?, outcome))
}

/// Returns a tuple for each outcome: true and the output, or false and the exception, which is not raised.
pub(crate) fn outcomes(py: Python<'_>, outcomes: Vec<Result<Payload, Error>>) -> PyResult<Py<PyAny>> {
    let tuples: Vec<_> = outcomes.into_iter().map(|outcome| output_or_exception(py, outcome)).collect();
    Ok(tuples.into_pyobject(py)?.unbind())
}

/// Returns true and the output, or false and the exception, which is not raised.
fn output_or_exception(py: Python<'_>, outcome: Result<Payload, Error>) -> (bool, Py<PyAny>) {
    let value = match outcome {
        Ok(payload) => decode(py, &payload).map(Bound::unbind),
        Err(error) => Err(to_exception(py, &error)),
    };
    match value {
        Ok(value) => (true, value),
        Err(error) => (false, error.into_value(py).into_any()),
    }
}

/// Returns a tuple for each result: the index, true and the output, or the index, false and the exception.
pub(crate) fn items(py: Python<'_>, items: Vec<ItemResult<Payload>>) -> PyResult<Py<PyAny>> {
    let to_tuple = |item: ItemResult<Payload>| {
        let (is_output, value) = output_or_exception(py, item.result);
        (item.index, is_output, value)
    };
    let tuples: Vec<_> = items.into_iter().map(to_tuple).collect();
    Ok(tuples.into_pyobject(py)?.unbind())
}

/// Returns the numbers in the order of the fields of `stepfast.BatchCounts`.
pub(crate) fn batch_counts(py: Python<'_>, counts: &BatchCounts) -> PyResult<Py<PyAny>> {
    let BatchCounts { submitted, queued, running, waiting, ended } = *counts;
    let tuple = (submitted, queued, running, waiting, ended.completed, ended.failed, ended.cancelled);
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

/// Returns false if the request was not applicable: the execution had ended before, or its status does not permit the
/// request.
pub(crate) fn request_result(py: Python<'_>, result: RequestResult) -> PyResult<Py<PyAny>> {
    let is_done = !matches!(result, RequestResult::NotApplicable(_));
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
    let checkpoints: PyResult<Vec<_>> = record.checkpoints.iter().map(|row| checkpoint(py, row)).collect();
    let attempts: PyResult<Vec<_>> = record.attempts.iter().map(|row| attempt(py, row)).collect();
    let waits: Vec<_> = record.waits.iter().map(wait).collect();
    let tuple = (row, input, outcome, checkpoints?, attempts?, waits);
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

/// Returns a tuple in the order of the fields of `stepfast.Execution`: workflow_id, workflow, status, whether it is
/// parked, parent, and so on. Instants are in microseconds since 1970.
fn execution(py: Python<'_>, row: &Execution) -> PyResult<Py<PyAny>> {
    let is_parked = row.is_parked;
    let placement = row.placement.as_deref();
    let placement_fields = (
        placement.map(|placement| &*placement.queue),
        placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
        placement.map_or(0, |placement| placement.priority),
        row.given_dedup_id(),
        row.debounce_id(),
        row.run_timeout.map(|timeout| timeout.as_secs_f64()),
    );
    let attributes: BTreeMap<&str, &str> = row.attributes.iter().collect();
    let tuple = (
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
        (row.app_version.as_deref(), placement_fields, attributes),
    );
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

fn checkpoint(py: Python<'_>, checkpoint: &Checkpoint) -> PyResult<Py<PyAny>> {
    let kind = checkpoint.kind.as_str();
    let value = outcome(py, &checkpoint.outcome, checkpoint.kind != CheckpointKind::Failed)?;
    let (path, name) = (checkpoint.path.to_string(), checkpoint.name.to_string());
    let tuple = (path, name, kind, value, checkpoint.at.as_micros(), checkpoint.duration_ms);
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

/// Returns a tuple for each event: the name, the encoded value, and the time.
pub(crate) fn events(py: Python<'_>, events: &[Event]) -> PyResult<Py<PyAny>> {
    let tuple = |event: &Event| (event.name.to_string(), bytes(py, &event.value), event.set_at.as_micros());
    Ok(events.iter().map(tuple).collect::<Vec<_>>().into_pyobject(py)?.unbind())
}

/// Returns a tuple for each value of a stream: its offset, the encoded value, the time of the writing, the path of the step, and
/// the offset of the first value of the attempt.
pub(crate) fn stream_entries(py: Python<'_>, entries: &[StreamEntry]) -> PyResult<Py<PyAny>> {
    let tuple = |entry: &StreamEntry| {
        let step = (entry.step != Path::root()).then(|| entry.step.to_string());
        let written_at = entry.written_at.as_micros();
        (entry.offset, bytes(py, &entry.value), written_at, step, entry.attempt_offset)
    };
    Ok(entries.iter().map(tuple).collect::<Vec<_>>().into_pyobject(py)?.unbind())
}

/// Returns the kind of a wait, the key of the other execution, and the name of the topic or event.
fn wait(wait: &Wait) -> (&'static str, Option<String>, Option<String>) {
    match wait {
        Wait::Child(child) => ("child", Some(child.to_string()), None),
        Wait::Message(topic) => ("message", None, Some(topic.to_string())),
        Wait::Event(setter, name) => ("event", Some(setter.to_string()), Some(name.to_string())),
    }
}

fn attempt(py: Python<'_>, attempt: &Attempt) -> PyResult<Py<PyAny>> {
    let failure = outcome(py, &attempt.failure, false)?;
    let tuple = (attempt.path.to_string(), attempt.attempt, failure, attempt.at.as_micros());
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

/// Returns the encoded value of a payload, or the parts of its failure; `None` if the payload is empty.
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
