//! Rows: converts columns to the types of the store contract, and back.

pub(crate) mod bundles;
pub(crate) mod queues;
pub(crate) mod types;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::attributes::Attributes;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Attempt, Checkpoint, CheckpointKind, Execution, Parent, Record, RequestKind, Status, StoreError, Wait,
    WorkerId, decode_pending_sleeps,
};
use stepfast_core::{Key, Path, Payload};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::{corrupt, store_error};
use crate::rows::bundles::bundle_record;
use crate::rows::types::{Timestamptz, to_key, to_payload};

/// A reader of a row's columns, one after the other.
pub(crate) struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Columns<'a> {
    /// Creates a reader that begins at the first column.
    pub(crate) fn new(row: &'a Row) -> Self {
        Self { row, next: 0 }
    }

    /// Reads the next column.
    pub(crate) fn next<T: FromSql<'a>>(&mut self) -> Result<T, StoreError> {
        let column = self.next;
        self.next += 1;
        self.row.try_get(column).map_err(|error| match error.as_db_error() {
            Some(_) => store_error("reading a row", &error),
            None => corrupt("a row"),
        })
    }

    pub(crate) fn key(&mut self) -> Result<Key, StoreError> {
        self.next().map(to_key)
    }

    pub(crate) fn opt_key(&mut self) -> Result<Option<Key>, StoreError> {
        Ok(self.next::<Option<Uuid>>()?.map(to_key))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.next::<Timestamptz>().map(|time| time.0)
    }

    pub(crate) fn opt_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.next::<Option<Timestamptz>>()?.map(|time| time.0))
    }

    pub(crate) fn payload(&mut self) -> Result<Payload, StoreError> {
        Ok(self.next::<Option<&[u8]>>()?.map(to_payload).unwrap_or_default())
    }

    /// Reads a status. Returns `None` for a number that this version does not support.
    pub(crate) fn status(&mut self) -> Result<Option<Status>, StoreError> {
        Ok(Status::from_number(self.next::<i16>()?.into()))
    }

    pub(crate) fn path(&mut self) -> Result<Option<Path>, StoreError> {
        Ok(Path::from_bytes(self.next()?))
    }

    fn fingerprint(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.next::<Option<i64>>()?.map(i64::cast_unsigned))
    }

    fn count(&mut self) -> Result<Option<u32>, StoreError> {
        Ok(u32::try_from(self.next::<i64>()?).ok())
    }

    /// Reads the columns after the execution's key in a row of `checkpoints.sql`. The inner `Err` names a column whose
    /// value this version does not support.
    fn checkpoint(&mut self, execution: Key) -> Result<Result<Checkpoint, &'static str>, StoreError> {
        let Some(path) = self.path()? else { return Ok(Err("path of checkpoints")) };
        let run_no = self.next::<i32>()?.cast_unsigned();
        let Some(order) = self.count()? else { return Ok(Err("order_no of checkpoints")) };
        let kind = u8::try_from(self.next::<i16>()?).ok().and_then(CheckpointKind::from_number);
        let Some(kind) = kind else { return Ok(Err("kind of checkpoints")) };
        Ok(Ok(Checkpoint {
            execution,
            path,
            run_no,
            order,
            kind,
            name: self.next::<String>()?.into(),
            fingerprint: self.fingerprint()?,
            outcome: self.payload()?,
            at: self.time()?,
            duration_ms: self.next()?,
            number: None,
        }))
    }

    /// Reads the columns after the execution's key in a row of `attempts.sql`. The inner `Err` names a column whose
    /// value this version does not support.
    fn attempt(&mut self, execution: Key) -> Result<Result<Attempt, &'static str>, StoreError> {
        let Some(path) = self.path()? else { return Ok(Err("path of attempts")) };
        let Some(attempt) = self.count()? else { return Ok(Err("attempt of attempts")) };
        Ok(Ok(Attempt { execution, path, attempt, failure: self.payload()?, at: self.time()? }))
    }
}

/// Parses a row of `list.sql`.
pub(crate) fn parse_listed_execution(row: &Row) -> Result<Execution, StoreError> {
    let mut row = Columns::new(row);
    let mut execution = parse_execution_columns(&mut row)?;
    let attributes: Vec<&str> = row.next()?;
    execution.attributes = attributes.as_chunks().0.iter().map(|[name, value]| (*name, *value)).collect();
    Ok(execution)
}

/// Parses a row of `load.sql`, into a record without details.
pub(crate) fn parse_record(row: &Row) -> Result<Record, StoreError> {
    let mut row = Columns::new(row);
    let execution = parse_execution_columns(&mut row)?;
    Ok(Record { bundle: bundle_record(row.next()?), ..Record::without_details(execution) })
}

/// A row of `claim.sql`: an execution, with facts that only the claim needs.
pub(crate) struct ClaimedRow {
    /// The record without details.
    pub record: Record,
    /// Whether the execution has checkpoints, attempts or requests.
    pub has_history: bool,
    /// Whether the claim has found more executions than it takes. The value is the same in each row.
    pub has_more: bool,
    /// Whether the claim has deleted every row of `ready` and `timers` that it saw, under the settings that it has read.
    /// If not, the claim is invalid. The value is the same in each row.
    pub is_complete: bool,
    /// The execution's position in `ready`, if it had a row there.
    pub seq: Option<i64>,
}

impl ClaimedRow {
    /// Parses a row of `claim.sql` or `claim_quarantined.sql`.
    pub(crate) fn parse(row: &Row) -> Result<Self, StoreError> {
        let mut row = Columns::new(row);
        let record = Record::without_details(parse_execution_columns(&mut row)?);
        let (has_history, has_more, is_complete) = (row.next()?, row.next()?, row.next()?);
        let seq = row.next()?;
        let record = Record { bundle: bundle_record(row.next()?), ..record };
        Ok(Self { record, has_history, has_more, is_complete, seq })
    }
}

fn parse_execution_columns(row: &mut Columns<'_>) -> Result<Execution, StoreError> {
    let key = row.key()?;
    let root = row.opt_key()?.unwrap_or(key);
    let parent = row.opt_key()?;
    let is_detached = row.next()?;
    let (status, has_damaged_sleeps);
    let mut execution = Execution {
        key,
        root,
        parent: parent.map(|key| Parent { key, is_detached }),
        given_id: row.next::<Option<&str>>()?.map(Into::into),
        workflow: row.next::<&str>()?.into(),
        fingerprint: row.fingerprint()?,
        status: {
            status = row.status()?;
            status.unwrap_or(Status::Queued)
        },
        is_parked: row.next()?,
        input: row.payload()?,
        outcome: row.payload()?,
        owner: row.next::<Option<i64>>()?.map(WorkerId),
        run_no: row.next::<i32>()?.cast_unsigned(),
        recoveries: row.next::<i32>()?.cast_unsigned(),
        created_at: row.time()?,
        ended_at: row.opt_time()?,
        deadline_at: row.opt_time()?,
        pending_sleeps: {
            let bytes: Option<&[u8]> = row.next()?;
            let sleeps = decode_pending_sleeps(bytes.unwrap_or_default());
            has_damaged_sleeps = sleeps.is_none();
            sleeps.unwrap_or_default()
        },
        wake_at: row.opt_time()?,
        strikes: row.next::<Option<i32>>()?.unwrap_or_default().cast_unsigned(),
        app_version: row.next::<Option<&str>>()?.map(Into::into),
        placement: parse_placement(row)?,
        dedup_id: row.next::<Option<&str>>()?.map(Into::into),
        run_timeout: row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        attributes: Attributes::NONE,
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

/// Reads an execution's placement: its queue, queue key and priority.
fn parse_placement(row: &mut Columns<'_>) -> Result<Option<Arc<Placement>>, StoreError> {
    let (queue, key, priority): (Option<&str>, Option<&str>, Option<i32>) =
        (row.next()?, row.next()?, row.next()?);
    let placement = |queue: &str| Placement {
        queue: queue.into(),
        key: key.unwrap_or_default().into(),
        priority: priority.unwrap_or_default(),
    };
    Ok(queue.map(|queue| Arc::new(placement(queue))))
}

/// Adds a checkpoint to a record, or notes the column that this version does not support.
fn add_checkpoint(record: &mut Record, checkpoint: Result<Checkpoint, &'static str>) {
    match checkpoint {
        Ok(checkpoint) => record.checkpoints.push(checkpoint),
        Err(column) => record.execution.note_unreadable(column),
    }
}

/// Adds an attempt to a record, or notes the column that this version does not support.
fn add_attempt(record: &mut Record, attempt: Result<Attempt, &'static str>) {
    match attempt {
        Ok(attempt) => record.attempts.push(attempt),
        Err(column) => record.execution.note_unreadable(column),
    }
}

/// An index of records by execution, by which rows with details are added to their records.
pub(crate) struct RecordDetails {
    indexes: HashMap<Key, usize>,
}

impl RecordDetails {
    /// Indexes `records` by execution.
    pub(crate) fn new(records: &[Record]) -> Self {
        Self { indexes: records.iter().enumerate().map(|(i, record)| (record.execution.key, i)).collect() }
    }

    /// Adds the rows of `checkpoints.sql`.
    pub(crate) fn add_checkpoints(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let execution = row.key()?;
            let checkpoint = row.checkpoint(execution)?;
            if let Some(record) = self.record_without_items(execution, records) {
                add_checkpoint(record, checkpoint);
            }
        }
        Ok(())
    }

    /// Adds the rows of `attempts.sql`.
    pub(crate) fn add_attempts(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let execution = row.key()?;
            let attempt = row.attempt(execution)?;
            if let Some(record) = self.record_without_items(execution, records) {
                add_attempt(record, attempt);
            }
        }
        Ok(())
    }

    /// Adds attributes, from rows with an execution's key, a name and a value.
    pub(crate) fn add_attributes(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let (execution, name, value): (_, &str, &str) = (row.key()?, row.next()?, row.next()?);
            if let Some(record) = self.record(execution, records) {
                record.execution.attributes.set(name, value);
            }
        }
        Ok(())
    }

    /// Adds requests, from rows with an execution's key, a kind and an id.
    pub(crate) fn add_requests(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let execution = row.key()?;
            let (kind, id) = (row.next::<i16>()?, row.key()?);
            let kind = RequestKind::from_row(kind.into(), id);
            if let Some(record) = self.record(execution, records) {
                record.requests.extend(kind);
            }
        }
        Ok(())
    }

    /// Adds the events for which executions wait, from rows with an execution's key, a kind, a subject and a name.
    pub(crate) fn add_waits(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let execution = row.key()?;
            let wait = Wait::from_columns(row.next::<i16>()?.into(), row.key()?, row.next()?);
            if let Some(record) = self.record(execution, records) {
                record.waits.extend(wait);
            }
        }
        Ok(())
    }

    /// Returns the record of an execution, unless it is a bundle: its checkpoints and attempts are those of its items.
    fn record_without_items<'a>(&self, key: Key, records: &'a mut [Record]) -> Option<&'a mut Record> {
        self.record(key, records).filter(|record| record.bundle.is_none())
    }

    fn record<'a>(&self, key: Key, records: &'a mut [Record]) -> Option<&'a mut Record> {
        self.indexes.get(&key).and_then(|&index| records.get_mut(index))
    }
}
