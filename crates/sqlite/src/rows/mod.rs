//! Rows: converts columns to the types of the store contract, and back. A value that no version of Stepfast can have
//! written is `Corrupt`.

pub(crate) mod assignments;
pub(crate) mod batches;
pub(crate) mod payloads;
pub(crate) mod queues;
pub(crate) mod stripes;

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Row;
use rusqlite::types::ValueRef;
use stepfast_core::attributes::Attributes;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::Payload;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Attempt, Checkpoint, CheckpointKind, Execution, ExistingExecution, Parent, RequestKind, Status, WorkerId,
    decode_pending_sleeps,
};

use crate::error::{DbError, DbResult};

/// Returns the bytes of a key for binding.
pub(crate) fn key_bytes(key: &Key) -> &[u8] {
    key.as_bytes()
}

/// Reads a blob; `None` for NULL.
pub(crate) fn blob<'r>(row: &'r Row<'_>, i: usize) -> DbResult<Option<&'r [u8]>> {
    match row.get_ref(i)? {
        ValueRef::Null => Ok(None),
        ValueRef::Blob(bytes) => Ok(Some(bytes)),
        _ => Err(corrupt_column(row, i)),
    }
}

/// Reads a key.
pub(crate) fn key_of(row: &Row<'_>, i: usize) -> DbResult<Key> {
    blob(row, i)?.and_then(Key::from_slice).ok_or_else(|| corrupt_column(row, i))
}

/// Reads a text.
pub(crate) fn text(row: &Row<'_>, i: usize) -> DbResult<Arc<str>> {
    row.get_ref(i)?.as_str().map(Arc::from).map_err(|_| corrupt_column(row, i))
}

/// Reads a text; `None` for NULL.
pub(crate) fn optional_text(row: &Row<'_>, i: usize) -> DbResult<Option<Arc<str>>> {
    match row.get_ref(i)? {
        ValueRef::Null => Ok(None),
        _ => text(row, i).map(Some),
    }
}

/// Reads a text of a foreign program, with replacement characters for invalid UTF-8.
pub(crate) fn foreign_text(row: &Row<'_>, i: usize) -> DbResult<Option<String>> {
    let bytes = row.get_ref(i)?.as_bytes_or_null().map_err(|_| corrupt_column(row, i))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// Reads a status; `None` for a number that this version does not support.
pub(crate) fn status_of(row: &Row<'_>, i: usize) -> DbResult<Option<Status>> {
    Ok(Status::from_number(row.get(i)?))
}

/// Reads a time in microseconds.
pub(crate) fn time(row: &Row<'_>, i: usize) -> DbResult<Timestamp> {
    Ok(Timestamp::from_micros(row.get(i)?))
}

/// Reads a time in microseconds; `None` for NULL.
pub(crate) fn optional_time(row: &Row<'_>, i: usize) -> DbResult<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(i)?.map(Timestamp::from_micros))
}

/// Reads the payload in a column, which may be a reference to pieces; empty for NULL.
pub(crate) fn payload_of(row: &Row<'_>, i: usize) -> DbResult<Payload> {
    Ok(blob(row, i)?.map_or_else(Payload::empty, Payload::from_slice))
}

/// Reads a path; `None` if the bytes are not a path of this version.
pub(crate) fn path_of(row: &Row<'_>, i: usize) -> DbResult<Option<Path>> {
    Ok(blob(row, i)?.and_then(Path::from_bytes))
}

/// Reads a number within the range of `T`.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row<'_>, i: usize) -> DbResult<T> {
    T::try_from(row.get::<_, i64>(i)?).map_err(|_| corrupt_column(row, i))
}

fn fingerprint(row: &Row<'_>, i: usize) -> DbResult<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(i)?.map(|fingerprint| fingerprint as u64))
}

/// Reads a row of `queries/execution.sql` or `queries/list.sql`. The input is skipped unless `with_input`.
pub(crate) fn parse_execution(row: &Row<'_>, with_input: bool) -> DbResult<Execution> {
    let key = key_of(row, 0)?;
    let root = if blob(row, 1)?.is_some() { key_of(row, 1)? } else { key };
    let parent = match blob(row, 2)? {
        Some(_) => Some(Parent { key: key_of(row, 2)?, is_detached: row.get(3)? }),
        None => None,
    };
    let given_id = optional_text(row, 4)?;
    let status = status_of(row, 7)?;
    let pending_sleeps = decode_pending_sleeps(blob(row, 15)?.unwrap_or_default());
    let has_damaged_sleeps = pending_sleeps.is_none();
    let mut execution = Execution {
        key,
        root,
        parent,
        given_id,
        workflow: text(row, 5)?,
        fingerprint: fingerprint(row, 6)?,
        status: status.unwrap_or(Status::Queued),
        is_parked: row.get(8)?,
        input: if with_input { payload_of(row, 18)? } else { Payload::empty() },
        outcome: payload_of(row, 17)?,
        owner: row.get::<_, Option<i64>>(9)?.map(WorkerId),
        run_no: number(row, 10)?,
        recoveries: number(row, 11)?,
        created_at: time(row, 12)?,
        ended_at: optional_time(row, 13)?,
        deadline_at: optional_time(row, 14)?,
        wake_at: optional_time(row, 16)?,
        strikes: row.get::<_, Option<u32>>(19)?.unwrap_or_default(),
        app_version: optional_text(row, 20)?,
        placement: parse_placement(row, 21)?,
        dedup_id: optional_text(row, 24)?,
        run_timeout: row.get::<_, Option<i64>>(25)?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        attributes: Attributes::NONE,
        pending_sleeps: pending_sleeps.unwrap_or_default(),
        unreadable: None,
    };
    if status.is_none() {
        execution.note_unknown_status();
    }
    if has_damaged_sleeps {
        execution.note_unreadable("armed of executions");
    }
    Ok(execution)
}

/// Reads an execution's placement: queue, key and priority.
fn parse_placement(row: &Row<'_>, i: usize) -> DbResult<Option<Arc<Placement>>> {
    let Some(queue) = optional_text(row, i)? else { return Ok(None) };
    let key = optional_text(row, i + 1)?.unwrap_or_default();
    let priority = row.get::<_, Option<i32>>(i + 2)?.unwrap_or_default();
    Ok(Some(Arc::new(Placement { queue, key, priority })))
}

/// Reads an existing execution from a row, with its creation time.
pub(crate) fn parse_existing_row(row: &Row<'_>) -> DbResult<(ExistingExecution, i64)> {
    let existing = ExistingExecution {
        key: key_of(row, 0)?,
        given_id: optional_text(row, 6)?,
        workflow: text(row, 1)?,
        fingerprint: row.get::<_, Option<i64>>(2)?.map(|fingerprint| fingerprint as u64),
        parent: blob(row, 3)?.is_some().then(|| key_of(row, 3)).transpose()?,
        // an unknown status is shown as queued: see `Execution::note_unknown_status`
        status: status_of(row, 4)?.unwrap_or(Status::Queued),
    };
    Ok((existing, row.get(5)?))
}

/// Reads a row of `queries/checkpoints.sql`; the inner error names a column whose value this version does not support.
pub(crate) fn parse_checkpoint(row: &Row<'_>, execution: Key) -> DbResult<Result<Checkpoint, &'static str>> {
    let Some(path) = path_of(row, 0)? else { return Ok(Err("path of checkpoints")) };
    let Ok(run_no) = u32::try_from(row.get::<_, i64>(1)?) else { return Ok(Err("run_no of checkpoints")) };
    let Ok(order) = u32::try_from(row.get::<_, i64>(2)?) else { return Ok(Err("order_no of checkpoints")) };
    let kind = u8::try_from(row.get::<_, i64>(3)?).ok().and_then(CheckpointKind::from_number);
    let Some(kind) = kind else { return Ok(Err("kind of checkpoints")) };
    Ok(Ok(Checkpoint {
        execution,
        path,
        run_no,
        order,
        kind,
        name: text(row, 4)?.into(),
        fingerprint: fingerprint(row, 5)?,
        at: time(row, 6)?,
        duration_ms: row.get(7)?,
        outcome: payload_of(row, 8)?,
        number: None,
    }))
}

/// Reads a row of `attempts`: path, attempt, failed_at, failure. The inner error is as in [`parse_checkpoint`].
pub(crate) fn parse_attempt(row: &Row<'_>, execution: Key) -> DbResult<Result<Attempt, &'static str>> {
    let Some(path) = path_of(row, 0)? else { return Ok(Err("path of attempts")) };
    let Ok(attempt) = u32::try_from(row.get::<_, i64>(1)?) else { return Ok(Err("attempt of attempts")) };
    Ok(Ok(Attempt { execution, path, attempt, at: time(row, 2)?, failure: payload_of(row, 3)? }))
}

/// Reads the kind of a request from two columns, its kind and its id; `None` if this version does not support it.
pub(crate) fn request_kind(row: &Row<'_>, i: usize) -> DbResult<Option<RequestKind>> {
    Ok(RequestKind::from_row(row.get(i)?, key_of(row, i + 1)?))
}

/// Returns the error for a column whose value this program cannot have written.
fn corrupt_column(row: &Row<'_>, i: usize) -> DbError {
    let column = row.as_ref().column_name(i).unwrap_or("?").to_owned();
    DbError::corrupt(&format!("column {column} of a row has a value that this program never writes"))
}
