//! Rows as the contract's types.

pub(crate) mod queues;
pub(crate) mod types;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::attributes::Attributes;
use stepfast_core::clock::Timestamp;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Attempt, Checkpoint, CheckpointKind, Execution, ExistingExecution, Parent, Record, RequestKind, Status,
    StoreError, WorkerId, decode_pending_sleeps,
};
use stepfast_core::{Key, Path, Payload};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::{corrupt, store_error};
use crate::rows::types::{Instant, key, payload};

/// The columns of a row, one after the other.
pub(crate) struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Columns<'a> {
    /// From the first.
    pub(crate) fn of(row: &'a Row) -> Self {
        Self { row, next: 0 }
    }

    /// The next column.
    pub(crate) fn next<T: FromSql<'a>>(&mut self) -> Result<T, StoreError> {
        let column = self.next;
        self.next += 1;
        self.row.try_get(column).map_err(|error| match error.as_db_error() {
            Some(_) => store_error("reading a row", &error),
            None => corrupt("a row"),
        })
    }

    pub(crate) fn key(&mut self) -> Result<Key, StoreError> {
        self.next().map(key)
    }

    pub(crate) fn opt_key(&mut self) -> Result<Option<Key>, StoreError> {
        Ok(self.next::<Option<Uuid>>()?.map(key))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.next::<Instant>().map(|instant| instant.0)
    }

    pub(crate) fn opt_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.next::<Option<Instant>>()?.map(|instant| instant.0))
    }

    pub(crate) fn payload(&mut self) -> Result<Payload, StoreError> {
        Ok(self.next::<Option<&[u8]>>()?.map(payload).unwrap_or_default())
    }

    /// A status; `None` for a number that this version does not know.
    pub(crate) fn status(&mut self) -> Result<Option<Status>, StoreError> {
        Ok(Status::from_number(self.next::<i16>()?.into()))
    }

    fn path(&mut self) -> Result<Option<Path>, StoreError> {
        Ok(Path::from_bytes(self.next()?))
    }

    fn fingerprint(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.next::<Option<i64>>()?.map(i64::cast_unsigned))
    }

    fn count(&mut self) -> Result<Option<u32>, StoreError> {
        Ok(u32::try_from(self.next::<i64>()?).ok())
    }

    /// The rest of a row of `checkpoints.sql`; the name of a column if that has a value that this version does not know.
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
            took_ms: self.next()?,
        }))
    }

    /// The rest of a row of `attempts.sql`, likewise.
    fn attempt(&mut self, execution: Key) -> Result<Result<Attempt, &'static str>, StoreError> {
        let Some(path) = self.path()? else { return Ok(Err("path of attempts")) };
        let Some(attempt) = self.count()? else { return Ok(Err("attempt of attempts")) };
        Ok(Ok(Attempt { execution, path, attempt, failure: self.payload()?, at: self.time()? }))
    }
}

/// A row of list.sql.
pub(crate) fn listed(row: &Row) -> Result<Execution, StoreError> {
    let mut row = Columns::of(row);
    let mut execution = leading_execution(&mut row)?;
    let attributes: Vec<&str> = row.next()?;
    execution.attributes = attributes.as_chunks().0.iter().map(|[name, value]| (*name, *value)).collect();
    Ok(execution)
}

/// An execution, from the columns that load, list and claim have in common.
pub(crate) fn execution(row: &Row) -> Result<Execution, StoreError> {
    leading_execution(&mut Columns::of(row))
}

/// What a claim has taken: the columns of an execution, and what take.sql adds to them.
pub(crate) struct TakenRow {
    pub execution: Execution,
    /// True if something is recorded of it.
    pub has_more: bool,
    /// True, in each row, if every row of ready was there that made the claim take something.
    pub is_whole: bool,
    /// Its place in ready, if it had one.
    pub seq: Option<i64>,
}

impl TakenRow {
    /// A row of take.sql or take_quarantined.sql.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let mut row = Columns::of(row);
        Ok(Self {
            execution: leading_execution(&mut row)?,
            has_more: row.next()?,
            is_whole: row.next()?,
            seq: row.next()?,
        })
    }
}

fn leading_execution(row: &mut Columns<'_>) -> Result<Execution, StoreError> {
    let key = row.key()?;
    let root = row.opt_key()?.unwrap_or(key);
    let parent = row.opt_key()?;
    let is_detached = row.next()?;
    let (status, is_armed_damaged);
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
            let armed = decode_pending_sleeps(bytes.unwrap_or_default());
            is_armed_damaged = armed.is_none();
            armed.unwrap_or_default()
        },
        wake_at: row.opt_time()?,
        strikes: row.next::<Option<i32>>()?.unwrap_or_default().cast_unsigned(),
        app_version: row.next::<Option<&str>>()?.map(Into::into),
        placement: ticket(row)?,
        dedup_id: row.next::<Option<&str>>()?.map(Into::into),
        run_timeout: row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        attributes: Attributes::NONE,
        unreadable: None,
    };
    if status.is_none() {
        execution.note_unknown_status();
    }
    if is_armed_damaged {
        execution.note_unreadable("armed of executions");
    }
    Ok(execution)
}

/// Where an execution stands: its queue, its key there, its priority.
fn ticket(row: &mut Columns<'_>) -> Result<Option<Arc<Placement>>, StoreError> {
    let (queue, key, priority): (Option<&str>, Option<&str>, Option<i32>) =
        (row.next()?, row.next()?, row.next()?);
    let ticket = |queue: &str| Placement {
        queue: queue.into(),
        key: key.unwrap_or_default().into(),
        priority: priority.unwrap_or_default(),
    };
    Ok(queue.map(|queue| Arc::new(ticket(queue))))
}

/// A row of `existing.sql`.
pub(crate) struct Found {
    /// What it is to a Start that lost.
    pub existing: ExistingExecution,
    /// True if its status is one that this version knows; else it passes for queued, as a parked execution is.
    pub has_known_status: bool,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Who runs it, if that began without a claim.
    pub owner: Option<WorkerId>,
    /// Its queue and what it alone has there.
    pub dedup: Option<(String, String)>,
}

/// What Starts lost against.
pub(crate) fn found(row: &Row) -> Result<Found, StoreError> {
    let mut row = Columns::of(row);
    let status;
    let existing = ExistingExecution {
        key: row.key()?,
        given_id: row.next::<Option<&str>>()?.map(Into::into),
        workflow: row.next::<&str>()?.into(),
        fingerprint: row.fingerprint()?,
        parent: row.opt_key()?,
        status: {
            status = row.status()?;
            status.unwrap_or(Status::Queued)
        },
    };
    let created_at = row.time()?;
    let owner = row.next::<Option<i64>>()?.map(WorkerId);
    let (queue, dedup_id): (Option<String>, Option<String>) = (row.next()?, row.next()?);
    let has_known_status = status.is_some();
    Ok(Found { existing, has_known_status, created_at, owner, dedup: queue.zip(dedup_id) })
}

/// What was recorded of executions, put to its execution.
pub(crate) struct Details {
    places: HashMap<Key, usize>,
}

impl Details {
    /// For these records.
    pub(crate) fn new(records: &[Record]) -> Self {
        Self { places: records.iter().enumerate().map(|(i, record)| (record.execution.key, i)).collect() }
    }

    /// Adds rows of `checkpoints.sql`.
    pub(crate) fn checkpoints(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::of(row);
            let execution = row.key()?;
            let checkpoint = row.checkpoint(execution)?;
            if let Some(record) = self.record(execution, records) {
                match checkpoint {
                    Ok(checkpoint) => record.checkpoints.push(checkpoint),
                    Err(column) => record.execution.note_unreadable(column),
                }
            }
        }
        Ok(())
    }

    /// Adds rows of `attempts.sql`.
    pub(crate) fn attempts(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::of(row);
            let execution = row.key()?;
            let attempt = row.attempt(execution)?;
            if let Some(record) = self.record(execution, records) {
                match attempt {
                    Ok(attempt) => record.attempts.push(attempt),
                    Err(column) => record.execution.note_unreadable(column),
                }
            }
        }
        Ok(())
    }

    /// Adds attributes: key, name and value.
    pub(crate) fn attributes(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::of(row);
            let (execution, name, value): (_, &str, &str) = (row.key()?, row.next()?, row.next()?);
            if let Some(record) = self.record(execution, records) {
                record.execution.attributes.set(name, value);
            }
        }
        Ok(())
    }

    /// Adds requests: key and kind.
    pub(crate) fn requests(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::of(row);
            let execution = row.key()?;
            let kind = RequestKind::from_number(row.next::<i16>()?.into());
            if let Some(record) = self.record(execution, records) {
                record.requests.extend(kind);
            }
        }
        Ok(())
    }

    fn record<'a>(&self, key: Key, records: &'a mut [Record]) -> Option<&'a mut Record> {
        self.places.get(&key).and_then(|&place| records.get_mut(place))
    }
}

/// A record without details.
pub(crate) fn bare(execution: Execution) -> Record {
    Record { execution, checkpoints: Vec::new(), attempts: Vec::new(), requests: Vec::new() }
}
