//! Reading: `load`, `value` and `list`, on connections of their own that neither wait for the writer nor make
//! it wait.

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
use crate::error::{DbResult, DbError};
use crate::fork::SqliteUse;
use crate::rows::payloads::fetch;
use crate::rows::{attempt, blob, checkpoint, execution, key, request_kind, text};

/// Connections that are kept for reading.
pub(crate) const READERS: usize = 4;

impl Database {
    /// Does `work` on a connection that reads, seeing one state of the database.
    pub(crate) fn read<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        if self.share.is_log_doubtful() {
            // what a caller is told is on the disk
            self.write(doing, |_| Ok(()))?;
        }
        let _in_sqlite = SqliteUse::enter();
        let kept = self.idle_readers.lock().pop();
        let done = match kept {
            Some(conn) => Ok(conn),
            None => conn::reader(&self.path, self.vfs),
        }
        .and_then(|conn| {
            let done = snapshot(&conn, work);
            let mut readers = self.idle_readers.lock();
            if conn.is_autocommit() && readers.len() < READERS && !self.is_idle.load(SeqCst) {
                readers.push(conn);
            }
            done
        });
        done.map_err(|trouble| trouble.into_store_error(&self.path, doing))
    }

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
                    let Some(execution) = find(&mut sql, id, detail == Detail::Full)? else {
                        return Ok(None);
                    };
                    if detail == Detail::Full { record(&mut sql, execution) } else { Ok(row_only(execution)) }
                        .map(Some)
                })
                .collect()
        })
    }

    pub(crate) fn value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.counters.add_read();
        self.read("loading a value", |conn| {
            // the length comes from a row: believed only as far as the pieces confirm it
            let expected = usize::try_from(chunks.len).unwrap_or(usize::MAX).min(DEFAULT_VALUE_LIMIT);
            let mut bytes = BytesMut::with_capacity(expected.min(chunks.count as usize * CHUNK_SIZE));
            let mut count = 0;
            let mut statement =
                conn.prepare_cached("SELECT n, bytes FROM chunks WHERE execution = ?1 AND value = ?2 AND n < ?3 ORDER BY n")?;
            let mut rows = statement.query((key(&execution), chunks.value as i64, chunks.count))?;
            while let Some(row) = rows.next()? {
                if row.get::<_, i64>(0)? != count {
                    break;
                }
                bytes.extend_from_slice(blob(row, 1)?.unwrap_or_default());
                count += 1;
            }
            if count != i64::from(chunks.count) || bytes.len() as u64 != chunks.len {
                return Err(DbError::corrupt(&format!(
                    "value {} of execution {execution} should have {} bytes in {} pieces, {} bytes in {count} \
                     pieces are there",
                    chunks.value,
                    chunks.len,
                    chunks.count,
                    bytes.len()
                )));
            }
            Ok(bytes.freeze())
        })
    }

    pub(crate) fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.counters.add_read();
        self.read("listing executions", |conn| {
            let mut conditions = Conditions::of(filter);
            let (from, place) = if filter.attributes.is_empty() {
                ("", "key")
            } else {
                // in the order of the index
                (" JOIN attributes AS a ON a.execution = executions.key", "a.execution")
            };
            if filter.limit == 0 {
                let sql = format!("SELECT count(*) FROM executions{from}{}", conditions.text());
                let total: i64 =
                    conn.query_row(&sql, params_from_iter(conditions.values), |row| row.get(0))?;
                return Ok(Page { executions: Vec::new(), total: Some(total as u64) });
            }
            if let Some(after) = filter.after {
                conditions.add(&format!("{place} < ?"), [Value::Blob(after.as_bytes().to_vec())]);
            }
            let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
            let list = include_str!("../../queries/list.sql");
            let sql = format!("{list}{from}{} ORDER BY {place} DESC LIMIT {limit}", conditions.text());
            let mut statement = conn.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(conditions.values))?;
            let mut executions = Vec::new();
            while let Some(row) = rows.next()? {
                executions.push(execution(row, false)?);
            }
            drop(rows);
            let mut sql = Statements::new(conn);
            for execution in &mut executions {
                execution.attributes = attributes(&mut sql, execution.key)?;
            }
            Ok(Page { executions, total: None })
        })
    }
}

/// Runs `work` in a transaction that only reads.
fn snapshot<T>(conn: &Connection, work: impl FnOnce(&Connection) -> DbResult<T>) -> DbResult<T> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    let done = work(conn);
    let ended = conn.prepare_cached("ROLLBACK")?.execute([]);
    let done = done?;
    ended?;
    Ok(done)
}

/// An execution's row.
pub(crate) fn find(sql: &mut Statements<'_>, id: &ExecutionId, with_input: bool) -> DbResult<Option<Execution>> {
    let found = match id {
        ExecutionId::Key(id) => {
            sql.get(Sql::Execution)?.query_row([key(id)], |row| Ok(execution(row, with_input)))
        }
        ExecutionId::Given(id) => {
            sql.get(Sql::ExecutionById)?.query_row([&**id], |row| Ok(execution(row, with_input)))
        }
    };
    let mut found = found.optional()?.transpose()?;
    if let Some(execution) = &mut found {
        fetch_both(sql, execution)?;
    }
    Ok(found)
}

/// Fetches the input and the outcome of an execution that was just read.
pub(crate) fn fetch_both(sql: &mut Statements<'_>, execution: &mut Execution) -> DbResult<()> {
    if !fetch(sql, &mut execution.input)? {
        execution.note_unreadable("input of executions");
    }
    if !fetch(sql, &mut execution.outcome)? {
        execution.note_unreadable("outcome of executions");
    }
    Ok(())
}

/// An execution with all that was recorded of it.
pub(crate) fn record(sql: &mut Statements<'_>, execution: Execution) -> DbResult<Record> {
    let id = execution.key;
    let mut record = row_only(execution);
    record.execution.attributes = attributes(sql, id)?;
    let mut rows = sql.get(Sql::Checkpoints)?.query([key(&id)])?;
    while let Some(row) = rows.next()? {
        match checkpoint(row, id)? {
            Ok(checkpoint) => record.checkpoints.push(checkpoint),
            Err(column) => record.execution.note_unreadable(column),
        }
    }
    drop(rows);
    let mut rows = sql.get(Sql::Attempts)?.query([key(&id)])?;
    while let Some(row) = rows.next()? {
        match attempt(row, id)? {
            Ok(attempt) => record.attempts.push(attempt),
            Err(column) => record.execution.note_unreadable(column),
        }
    }
    drop(rows);
    for checkpoint in &mut record.checkpoints {
        if !fetch(sql, &mut checkpoint.outcome)? {
            record.execution.note_unreadable("outcome of checkpoints");
        }
    }
    for attempt in &mut record.attempts {
        if !fetch(sql, &mut attempt.failure)? {
            record.execution.note_unreadable("failure of attempts");
        }
    }
    let mut rows = sql.get(Sql::Asked)?.query([key(&id)])?;
    while let Some(row) = rows.next()? {
        record.requests.extend(request_kind(row, 0)?);
    }
    Ok(record)
}

/// What an execution is found by.
fn attributes(sql: &mut Statements<'_>, id: Key) -> DbResult<Attributes> {
    let mut attributes = Attributes::NONE;
    let mut rows = sql.get(Sql::Attributes)?.query([key(&id)])?;
    while let Some(row) = rows.next()? {
        attributes.set(text(row, 0)?, text(row, 1)?);
    }
    Ok(attributes)
}

pub(crate) fn row_only(execution: Execution) -> Record {
    Record { execution, checkpoints: Vec::new(), attempts: Vec::new(), requests: Vec::new() }
}

/// The conditions of a list, and what they compare with.
struct Conditions {
    texts: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    fn of(filter: &Filter) -> Self {
        let mut all = Conditions { texts: Vec::new(), values: Vec::new() };
        for (n, (name, value)) in filter.attributes.iter().enumerate() {
            let [name, value] = [name, value].map(|text| Value::Text(text.to_owned()));
            // the first is found by its index, see `list`
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

    /// Ids that begin with `prefix`: given ones as a range of text, minted ones as a range of keys.
    fn add_prefix(&mut self, prefix: &str) {
        let mut given = "workflow_id >= ?".to_owned();
        let mut values = vec![Value::Text(prefix.to_owned())];
        if let Some(end) = after_prefix(prefix) {
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

/// The first text after all those that begin with `prefix`.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // steps over the surrogates, which are no chars
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// The first and last key whose text begins with `prefix`; `None` if no key's does.
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
    fn prefixes_of_keys_are_ranges() {
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
    fn the_end_of_a_prefix_comes_after_all_that_begin_with_it() {
        assert_eq!(after_prefix("order-").as_deref(), Some("order."));
        assert_eq!(after_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(after_prefix("\u{10ffff}"), None);
    }
}
