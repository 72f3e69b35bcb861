//! Reads: `load`, `load_value` and `list`, on connections of their own, which neither wait for the writer nor block it.

pub(crate) mod queues;
pub(crate) mod workers;

use std::sync::atomic::Ordering::SeqCst;

use bytes::{Bytes, BytesMut};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use stepfast_core::attributes::Attributes;
use stepfast_core::key::Key;
use stepfast_core::payload::{CHUNK_SIZE, ChunkRef, DEFAULT_VALUE_LIMIT};
use stepfast_core::store::{Detail, Execution, ExecutionId, Filter, Page, Record, StoreError};

use crate::conn;
use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::{DbError, DbResult};
use crate::fork::SqliteUse;
use crate::rows::payloads::fetch_payload;
use crate::rows::{attempt, blob, checkpoint, execution, key_bytes, request_kind, text};

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
            // a caller must only see data that is on the disk
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
                    let Some(execution) = find_execution(&mut sql, id, detail == Detail::Full)? else {
                        return Ok(None);
                    };
                    if detail == Detail::Full {
                        load_record(&mut sql, execution)
                    } else {
                        Ok(record_of_row(execution))
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
            // the length comes from a row: trusted only as far as the chunks confirm it
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
                // the order of the index on attributes
                (" JOIN attributes AS a ON a.execution = executions.key", "a.execution")
            };
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
                executions.push(execution(row, false)?);
            }
            drop(rows);
            let mut sql = Statements::new(conn);
            for execution in &mut executions {
                execution.attributes = load_attributes(&mut sql, execution.key)?;
            }
            Ok(Page { executions, total: None })
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
            sql.get(Sql::Execution)?.query_row([key_bytes(id)], |row| Ok(execution(row, with_input)))
        }
        ExecutionId::Given(id) => {
            sql.get(Sql::ExecutionById)?.query_row([&**id], |row| Ok(execution(row, with_input)))
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

/// Loads an execution's full record.
pub(crate) fn load_record(sql: &mut Statements<'_>, execution: Execution) -> DbResult<Record> {
    let id = execution.key;
    let mut record = record_of_row(execution);
    record.execution.attributes = load_attributes(sql, id)?;
    let mut rows = sql.get(Sql::Checkpoints)?.query([key_bytes(&id)])?;
    while let Some(row) = rows.next()? {
        match checkpoint(row, id)? {
            Ok(checkpoint) => record.checkpoints.push(checkpoint),
            Err(column) => record.execution.note_unreadable(column),
        }
    }
    drop(rows);
    let mut rows = sql.get(Sql::Attempts)?.query([key_bytes(&id)])?;
    while let Some(row) = rows.next()? {
        match attempt(row, id)? {
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
    Ok(record)
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

/// Returns the record of an execution whose history is not loaded.
pub(crate) fn record_of_row(execution: Execution) -> Record {
    Record { execution, checkpoints: Vec::new(), attempts: Vec::new(), requests: Vec::new() }
}

/// The SQL conditions of a filter, and the values of their parameters.
struct FilterConditions {
    texts: Vec<String>,
    values: Vec<Value>,
}

impl FilterConditions {
    fn of(filter: &Filter) -> Self {
        let mut all = FilterConditions { texts: Vec::new(), values: Vec::new() };
        for (n, (name, value)) in filter.attributes.iter().enumerate() {
            let [name, value] = [name, value].map(|text| Value::Text(text.to_owned()));
            // the first attribute is found through its index, see `list`
            let text = match n {
                0 => "a.name = ? AND a.value = ?",
                _ => {
                    "EXISTS (SELECT 1 FROM attributes WHERE execution = executions.key AND name = ? AND value = ?)"
                }
            };
            all.add(text, [name, value]);
        }
        if !filter.statuses.is_empty() {
            let numbers: Vec<String> =
                filter.statuses.iter().map(|status| (*status as u8).to_string()).collect();
            all.add(&format!("status IN ({})", numbers.join(", ")), []);
        }
        if let Some(workflow) = &filter.workflow {
            all.add("workflow = ?", [Value::Text(workflow.to_string())]);
        }
        if let Some(is_paused) = filter.is_parked {
            all.add("is_paused = ?", [Value::Integer(i64::from(is_paused))]);
        }
        if let Some(parent) = filter.parent {
            all.add("parent = ?", [Value::Blob(parent.as_bytes().to_vec())]);
        }
        if let Some(version) = &filter.app_version {
            all.add("app_version = ?", [Value::Text(version.to_string())]);
        }
        if let Some(queue) = &filter.queue {
            all.add("ifnull(queue, 'default') = ?", [Value::Text(queue.to_string())]);
        }
        if let Some(from) = filter.created_from {
            all.add("created_at >= ?", [Value::Integer(from.as_micros())]);
        }
        if let Some(before) = filter.created_before {
            all.add("created_at < ?", [Value::Integer(before.as_micros())]);
        }
        if let Some(prefix) = filter.id_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            all.add_prefix(prefix);
        }
        all
    }

    fn add<const N: usize>(&mut self, text: &str, values: [Value; N]) {
        self.texts.push(text.to_owned());
        self.values.extend(values);
    }

    /// Adds the condition for ids that begin with `prefix`: a range of texts for given ids, a range of keys for minted
    /// ones.
    fn add_prefix(&mut self, prefix: &str) {
        let mut given = "workflow_id >= ?".to_owned();
        let mut values = vec![Value::Text(prefix.to_owned())];
        if let Some(end) = end_of_prefix(prefix) {
            given.push_str(" AND workflow_id < ?");
            values.push(Value::Text(end));
        }
        if let Some((first, last)) = keys_with_prefix(prefix) {
            given = format!("({given} OR workflow_id IS NULL AND key BETWEEN ? AND ?)");
            values.extend([Value::Blob(first.to_vec()), Value::Blob(last.to_vec())]);
        }
        self.texts.push(given);
        self.values.extend(values);
    }

    fn text(&self) -> String {
        if self.texts.is_empty() { String::new() } else { format!(" WHERE {}", self.texts.join(" AND ")) }
    }
}

/// Returns the first text that sorts after all texts that begin with `prefix`; `None` if none does.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // skips the surrogates, which are not chars
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Returns the first and the last key whose text begins with `prefix`; `None` if no key's text can.
fn keys_with_prefix(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    const FORM: &[u8; 36] = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    let (mut first, mut last) = ([0u8; 16], [0xff_u8; 16]);
    let mut digits = 0;
    if prefix.len() > FORM.len() {
        return None;
    }
    for (byte, form) in prefix.bytes().zip(FORM) {
        if *form == b'-' {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        let shift = if digits % 2 == 0 { 4 } else { 0 };
        for bytes in [&mut first, &mut last] {
            bytes[digits / 2] = bytes[digits / 2] & !(0x0f << shift) | digit << shift;
        }
        digits += 1;
    }
    Some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_prefix_selects_range_of_keys() {
        let key = Key::mint(0);
        let text = key.to_string();
        for len in 1..=36 {
            let (first, last) = keys_with_prefix(&text[..len]).unwrap();
            assert!(first <= *key.as_bytes() && *key.as_bytes() <= last, "{len}");
            let begins = |bytes: [u8; 16]| Key::from_bytes(bytes).to_string().starts_with(&text[..len]);
            assert!(begins(first) && begins(last), "{len}");
        }
        for wrong in ["0190A", "order", "0190a1b2c", "0190a1b2--"] {
            assert_eq!(keys_with_prefix(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn end_of_prefix_sorts_after_all_texts_with_that_prefix() {
        assert_eq!(end_of_prefix("order-").as_deref(), Some("order."));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
    }
}
