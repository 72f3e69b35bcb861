//! Reads: loads and lists rows, on connections that neither wait for the writer nor block it.

pub(crate) mod batches;
mod events;
mod filter;
mod graphs;
mod messages;
pub(crate) mod queues;
mod streams;
pub(crate) mod workers;

use std::sync::atomic::Ordering::SeqCst;

use bytes::{Bytes, BytesMut};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use stepfast_core::attributes::Attributes;
use stepfast_core::key::Key;
use stepfast_core::payload::{CHUNK_SIZE, ChunkRef, DEFAULT_VALUE_LIMIT};
use stepfast_core::store::{Detail, Execution, ExecutionId, Filter, Page, Record, Status, StoreError, Wait};

use crate::conn;
use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::{DbError, DbResult};
use crate::fork::SqliteUse;
use crate::read::batches::load_bundle;
use crate::read::filter::{FilterConditions, IS_NO_BUNDLE};
use crate::rows::batches::range_bytes;
use crate::rows::payloads::fetch_payload;
use crate::rows::{
    blob, key_bytes, key_of, parse_attempt, parse_checkpoint, parse_execution, request_kind, text,
};

/// Maximum number of concurrent reads for async callers, and of idle read connections.
pub(crate) const MAX_READERS: usize = 4;

impl Database {
    /// Runs `work` on a read connection, with one snapshot of the database. `action` describes the work in errors.
    pub(crate) fn read<T>(
        &self,
        action: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        if self.share.is_log_doubtful() {
            // a transaction renews a doubtful log: a caller must only see data that is on the disk
            self.write(action, |_| Ok(()))?;
        }
        let _in_sqlite = SqliteUse::enter();
        let idle = self.idle_readers.lock().pop();
        let result = match idle {
            Some(conn) => Ok(conn),
            None => conn::open_reader(&self.path, self.vfs),
        }
        .and_then(|conn| {
            let result = read_snapshot(&conn, work);
            let mut readers = self.idle_readers.lock();
            if conn.is_autocommit() && readers.len() < MAX_READERS && !self.is_idle.load(SeqCst) {
                readers.push(conn);
            }
            result
        });
        result.map_err(|error| error.into_store_error(&self.path, action))
    }

    /// See [`Store::load`](stepfast_core::Store::load).
    pub(crate) fn load(
        &self,
        ids: &[ExecutionId],
        detail: Detail,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        self.counters.add_read();
        self.read("loading executions", |conn| {
            let mut sql = Statements::new(conn);
            ids.iter()
                .map(|id| {
                    let has_input = detail != Detail::Outcome;
                    let Some(execution) = find_execution(&mut sql, id, has_input)? else {
                        return Ok(None);
                    };
                    match detail {
                        Detail::Outcome => load_outcome(&mut sql, execution),
                        Detail::Full => load_record(&mut sql, execution, true),
                        Detail::LastPart => load_record(&mut sql, execution, false),
                    }
                    .map(Some)
                })
                .collect()
        })
    }

    /// See [`Store::load_value`](stepfast_core::Store::load_value).
    pub(crate) fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.counters.add_read();
        self.read("loading a value", |conn| {
            // the length comes from a row, and may be wrong: the chunks limit the capacity
            let expected = usize::try_from(chunks.len).unwrap_or(usize::MAX).min(DEFAULT_VALUE_LIMIT);
            let mut bytes = BytesMut::with_capacity(expected.min(chunks.count as usize * CHUNK_SIZE));
            let mut count = 0;
            let mut statement =
                conn.prepare_cached("SELECT n, bytes FROM chunks WHERE execution = ?1 AND value = ?2 AND n < ?3 ORDER BY n")?;
            let mut rows = statement.query((key_bytes(&execution), chunks.value as i64, chunks.count))?;
            while let Some(row) = rows.next()? {
                if row.get::<_, i64>(0)? != count {
                    break;
                }
                bytes.extend_from_slice(blob(row, 1)?.unwrap_or_default());
                count += 1;
            }
            if count != i64::from(chunks.count) || bytes.len() as u64 != chunks.len {
                return Err(DbError::corrupt(&format!(
                    "value {} of execution {execution} should have {} bytes in {} chunks, but has {} bytes in \
                     {count} chunks",
                    chunks.value,
                    chunks.len,
                    chunks.count,
                    bytes.len()
                )));
            }
            Ok(bytes.freeze())
        })
    }

    /// See [`Store::list`](stepfast_core::Store::list).
    pub(crate) fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.counters.add_read();
        self.read("listing executions", |conn| {
            let mut conditions = FilterConditions::of(filter);
            let (from, key_column) = if filter.attributes.is_empty() {
                ("", "key")
            } else {
                // `a.execution` has the order of the index on attributes
                (" JOIN attributes AS a ON a.execution = executions.key", "a.execution")
            };
            if filter.limit == 0 && conditions.is_empty() {
                // the counts of whole tables are fast; a retried item has a row in both
                let sql = format!(
                    "SELECT (SELECT count(*) FROM executions)
                            - (SELECT count(*) FROM bundles WHERE NOT {IS_NO_BUNDLE})"
                );
                let total: i64 = conn.query_row(&sql, [], |row| row.get(0))?;
                return Ok(Page { executions: Vec::new(), total: Some(total as u64) });
            }
            if conn.prepare_cached("SELECT 1 FROM bundles")?.exists([])? {
                conditions.exclude_bundles();
            }
            if filter.limit == 0 {
                let sql = format!("SELECT count(*) FROM executions{from}{}", conditions.text());
                let total: i64 =
                    conn.query_row(&sql, params_from_iter(conditions.values), |row| row.get(0))?;
                return Ok(Page { executions: Vec::new(), total: Some(total as u64) });
            }
            if let Some(after) = filter.after {
                conditions.add(&format!("{key_column} < ?"), [Value::Blob(after.as_bytes().to_vec())]);
            }
            let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
            let list = include_str!("../../queries/list.sql");
            let sql = format!("{list}{from}{} ORDER BY {key_column} DESC LIMIT {limit}", conditions.text());
            let mut statement = conn.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(conditions.values))?;
            let mut executions = Vec::new();
            while let Some(row) = rows.next()? {
                executions.push(parse_execution(row, false)?);
            }
            drop(rows);
            let mut sql = Statements::new(conn);
            for execution in &mut executions {
                execution.attributes = load_attributes(&mut sql, execution.key)?;
            }
            Ok(Page { executions, total: None })
        })
    }

    /// See [`Store::find`](stepfast_core::Store::find).
    pub(crate) fn find(
        &self,
        name: &str,
        values: &[String],
        limit: u64,
    ) -> Result<Vec<Vec<Key>>, StoreError> {
        self.counters.add_read();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read("searching by an attribute", |conn| {
            let mut sql = Statements::new(conn);
            let mut found = Vec::with_capacity(values.len());
            for value in values {
                let mut rows = sql.get(Sql::ExecutionsByValue)?.query((name, value, limit))?;
                let mut keys = Vec::new();
                while let Some(row) = rows.next()? {
                    keys.push(key_of(row, 0)?);
                }
                found.push(keys);
            }
            Ok(found)
        })
    }
}

/// Runs `work` in a transaction that only reads.
fn read_snapshot<T>(conn: &Connection, work: impl FnOnce(&Connection) -> DbResult<T>) -> DbResult<T> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    let result = work(conn);
    let rolled_back = conn.prepare_cached("ROLLBACK")?.execute([]);
    let value = result?;
    rolled_back?;
    Ok(value)
}

/// Finds an execution's row, and fetches its payloads. The input is skipped unless `with_input`.
pub(crate) fn find_execution(
    sql: &mut Statements<'_>,
    id: &ExecutionId,
    with_input: bool,
) -> DbResult<Option<Execution>> {
    let found = match id {
        ExecutionId::Key(id) => {
            sql.get(Sql::Execution)?.query_row([key_bytes(id)], |row| Ok(parse_execution(row, with_input)))
        }
        ExecutionId::Given(id) => {
            sql.get(Sql::ExecutionById)?.query_row([&**id], |row| Ok(parse_execution(row, with_input)))
        }
    };
    let mut found = found.optional()?.transpose()?;
    if let Some(execution) = &mut found {
        fetch_payloads(sql, execution)?;
    }
    Ok(found)
}

/// Fetches the input and the outcome of an execution whose row was read.
pub(crate) fn fetch_payloads(sql: &mut Statements<'_>, execution: &mut Execution) -> DbResult<()> {
    if !fetch_payload(sql, &mut execution.input)? {
        execution.note_unreadable("input of executions");
    }
    if !fetch_payload(sql, &mut execution.outcome)? {
        execution.note_unreadable("outcome of executions");
    }
    Ok(())
}

/// Loads the part of a bundle's record that belongs to its outcome. The row of the execution was read.
pub(crate) fn load_outcome(sql: &mut Statements<'_>, mut execution: Execution) -> DbResult<Record> {
    let bundle = load_bundle(sql, &mut execution)?;
    Ok(Record { bundle, ..Record::without_details(execution) })
}

/// Loads the attributes, checkpoints, attempts and requests of an execution whose row was read, also of the parts before its
/// last continuation with `has_earlier_parts`. The checkpoints and attempts of a bundle are those of its items.
pub(crate) fn load_record(
    sql: &mut Statements<'_>,
    execution: Execution,
    has_earlier_parts: bool,
) -> DbResult<Record> {
    let id = execution.key;
    let mut record = load_outcome(sql, execution)?;
    record.execution.attributes = load_attributes(sql, id)?;
    let items = record.bundle.as_ref().and_then(|bundle| id.bundle_items(bundle.item_count));
    let begin = if has_earlier_parts || items.is_some() { Vec::new() } else { begin_of_last_part(sql, id)? };
    let mut rows = match &items {
        Some(items) => sql.get(Sql::ItemCheckpoints)?.query(range_bytes(items))?,
        None => sql.get(Sql::Checkpoints)?.query((key_bytes(&id), &*begin))?,
    };
    while let Some(row) = rows.next()? {
        let execution = if items.is_some() { key_of(row, 9)? } else { id };
        match parse_checkpoint(row, execution)? {
            Ok(checkpoint) => record.checkpoints.push(checkpoint),
            Err(column) => record.execution.note_unreadable(column),
        }
    }
    drop(rows);
    let mut rows = match &items {
        Some(items) => sql.get(Sql::ItemAttempts)?.query(range_bytes(items))?,
        None => sql.get(Sql::Attempts)?.query((key_bytes(&id), &*begin))?,
    };
    while let Some(row) = rows.next()? {
        let execution = if items.is_some() { key_of(row, 4)? } else { id };
        match parse_attempt(row, execution)? {
            Ok(attempt) => record.attempts.push(attempt),
            Err(column) => record.execution.note_unreadable(column),
        }
    }
    drop(rows);
    for checkpoint in &mut record.checkpoints {
        if !fetch_payload(sql, &mut checkpoint.outcome)? {
            record.execution.note_unreadable("outcome of checkpoints");
        }
    }
    for attempt in &mut record.attempts {
        if !fetch_payload(sql, &mut attempt.failure)? {
            record.execution.note_unreadable("failure of attempts");
        }
    }
    let mut rows = sql.get(Sql::Requests)?.query([key_bytes(&id)])?;
    while let Some(row) = rows.next()? {
        record.requests.extend(request_kind(row, 0)?);
    }
    drop(rows);
    if record.execution.status == Status::Waiting {
        let mut rows = sql.get(Sql::Waits)?.query([key_bytes(&id)])?;
        while let Some(row) = rows.next()? {
            record.waits.extend(Wait::from_columns(row.get(0)?, key_of(row, 1)?, &text(row, 2)?));
        }
    }
    Ok(record)
}

/// Returns the path at which the last part of an execution begins; empty if the execution has not continued as new.
pub(crate) fn begin_of_last_part(sql: &mut Statements<'_>, id: Key) -> DbResult<Vec<u8>> {
    let mut rows = sql.get(Sql::LastContinuation)?.query([key_bytes(&id)])?;
    Ok(match rows.next()? {
        Some(row) => blob(row, 0)?.unwrap_or_default().to_vec(),
        None => Vec::new(),
    })
}

/// Loads the attributes of an execution.
fn load_attributes(sql: &mut Statements<'_>, id: Key) -> DbResult<Attributes> {
    let mut attributes = Attributes::NONE;
    let mut rows = sql.get(Sql::Attributes)?.query([key_bytes(&id)])?;
    while let Some(row) = rows.next()? {
        attributes.set(text(row, 0)?, text(row, 1)?);
    }
    Ok(attributes)
}
