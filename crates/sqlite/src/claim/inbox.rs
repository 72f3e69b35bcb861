//! The inbox: starts that other programs insert in their own transactions, on any connection.

use rusqlite::Row;
use rusqlite::types::ValueRef;
use stepfast_core::attributes::{MAX_ATTRIBUTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::store::counters::Table;
use stepfast_core::text::escape_controls;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::file_share::FileShare;
use crate::rows::{foreign_text, key_bytes, key_of};

/// Maximum number of inbox rows that one claim drains.
const MAX_INBOX_ROWS: i64 = 1_000;

/// A row of the inbox, with the columns that a claim checks.
struct InboxRow {
    id: i64,
    key: Key,
    workflow: String,
    app_version: Option<String>,
    queue: Option<String>,
    queue_key: Option<String>,
    priority: Option<i32>,
    due_at: Option<i64>,
    has_attributes: bool,
    put_at: i64,
    deadline_at: Option<i64>,
    /// The first column with invalid text, and its fault.
    text_fault: Option<(&'static str, &'static str)>,
}

/// Turns the rows of the inbox into executions, in the order of their arrival. Depth limits do not apply. An invalid
/// row becomes a dead letter.
pub(crate) fn drain_inbox(sql: &mut Statements<'_>, share: &FileShare, now: Timestamp) -> DbResult<()> {
    let mut inbox_rows = Vec::new();
    let mut rows = sql.get(Sql::InboxRows)?.query([MAX_INBOX_ROWS])?;
    while let Some(row) = rows.next()? {
        inbox_rows.push(InboxRow {
            id: row.get(0)?,
            key: key_of(row, 1)?,
            workflow: foreign_text(row, 2)?.unwrap_or_default(),
            app_version: foreign_text(row, 3)?,
            queue: foreign_text(row, 4)?,
            queue_key: foreign_text(row, 5)?,
            priority: row.get(6)?,
            due_at: row.get(7)?,
            has_attributes: row.get(8)?,
            put_at: row.get(9)?,
            deadline_at: row.get(10)?,
            text_fault: find_text_fault(row)?,
        });
    }
    drop(rows);
    let Some(last_id) = inbox_rows.last().map(|inbox_row| inbox_row.id) else { return Ok(()) };
    let shard: u16 = sql.get(Sql::Shard)?.query_row([], |row| row.get(0))?;
    let mut queues: Vec<&str> =
        inbox_rows.iter().filter_map(|inbox_row| inbox_row.queue.as_deref()).collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        // the depth bound becomes invalid, so that the next Start in this queue counts the waiting executions
        sql.run(Sql::InvalidateDepthBound, [queue])?;
    }
    let mut duplicates = 0_u64;
    for inbox_row in &inbox_rows {
        sql.run(Sql::InboxSavepoint, [])?;
        let reason = match inbox_row.rejection_reason(sql, shard, now)? {
            Some(reason) => Some(reason),
            None => match insert_execution(sql, share, inbox_row, now) {
                Ok(true) => None,
                Ok(false) => {
                    let mut conflict = sql.get(Sql::InboxConflict)?.query([inbox_row.id])?;
                    let reason: Option<String> = conflict.next()?.map(|row| row.get(0)).transpose()?;
                    duplicates += u64::from(reason.is_none());
                    reason
                }
                Err(error) if error.is_rejected_value() => {
                    sql.run(Sql::RollBackInboxRow, [])?;
                    Some(format!("the database rejects it: {}", error.detail()))
                }
                Err(error) => return Err(error),
            },
        };
        if let Some(reason) = reason {
            let id: i64 = sql
                .get(Sql::InsertDeadLetter)?
                .query_row((inbox_row.id, &reason, now.as_micros()), |row| row.get(0))?;
            tracing::warn!(
                id,
                workflow = escape_controls(&inbox_row.workflow),
                reason = escape_controls(&reason),
                "moved an inbox row to the dead letters: see stepfast queue dead-letters"
            );
        }
        sql.run(Sql::ReleaseInboxSavepoint, [])?;
    }
    if duplicates > 0 {
        tracing::info!(starts = duplicates, "skipped inbox rows whose executions already exist");
    }
    sql.run(Sql::DeleteInboxRows, [last_id])?;
    Ok(())
}

impl InboxRow {
    /// Returns the reason why the row cannot become an execution; `None` if the values of the row show no such reason.
    fn rejection_reason(
        &self,
        sql: &mut Statements<'_>,
        shard: u16,
        now: Timestamp,
    ) -> DbResult<Option<String>> {
        let is_out_of_range = |at: i64| Timestamp::from_micros(at).clamp_near(now).as_micros() != at;
        if self.key.shard() != shard {
            let reason = format!("its key names shard {}, and this store is shard {shard}", self.key.shard());
            return Ok(Some(reason));
        }
        if let Some((column, fault)) = self.text_fault {
            return Ok(Some(format!("its {column} {fault}")));
        }
        let timestamps =
            [("put_at", Some(self.put_at)), ("due_at", self.due_at), ("deadline_at", self.deadline_at)];
        if let Some((name, _)) = timestamps.into_iter().find(|(_, at)| at.is_some_and(is_out_of_range)) {
            return Ok(Some(format!("its {name} is not within a hundred years of now")));
        }
        if !self.has_attributes {
            return Ok(None);
        }
        Ok(match check_attributes(sql, self.id)? {
            (true, _) => Some(
                "an attribute is not a name of 1 to 128 bytes, without '=', with a text of 1 to 1024 bytes, both printable"
                    .to_owned(),
            ),
            (false, count) if count > MAX_ATTRIBUTES => {
                Some(format!("it has more than {MAX_ATTRIBUTES} attributes"))
            }
            _ => None,
        })
    }
}

/// Returns whether a row of the inbox has an invalid attribute, and the number of attributes before it.
fn check_attributes(sql: &mut Statements<'_>, id: i64) -> DbResult<(bool, usize)> {
    let is_within = |text: ValueRef<'_>, max_bytes: usize| {
        text.as_str()
            .is_ok_and(|text| (1..=max_bytes).contains(&text.len()) && !text.contains(char::is_control))
    };
    let mut rows = sql.get(Sql::InboxAttributes)?.query([id])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let (name, value) = (row.get_ref(0)?, row.get_ref(1)?);
        let is_text = row.get_ref(2)?.as_str() == Ok("text");
        let is_name = is_within(name, MAX_NAME_BYTES) && name.as_str().is_ok_and(|name| !name.contains('='));
        if !is_text || !is_name || !is_within(value, MAX_VALUE_BYTES) {
            return Ok((true, count));
        }
        count += 1;
    }
    Ok((false, count))
}

/// Returns the first column with invalid text, and its fault. SQLite stores text that is not UTF-8, but no program
/// could read it. Control characters are rejected, because one of them separates the parts of a debounce key, which the
/// column `dedup_id` of a debounced execution contains.
fn find_text_fault(row: &Row<'_>) -> DbResult<Option<(&'static str, &'static str)>> {
    const TEXT_COLUMNS: [(usize, &str); 6] = [
        (2, "workflow"),
        (3, "app_version"),
        (4, "queue"),
        (5, "queue_key"),
        (11, "workflow_id"),
        (12, "dedup_id"),
    ];
    for (i, column) in TEXT_COLUMNS {
        match row.get_ref(i)?.as_str_or_null() {
            Err(_) => return Ok(Some((column, "is not UTF-8"))),
            Ok(Some(text)) if text.contains(char::is_control) => {
                return Ok(Some((column, "has a control character")));
            }
            Ok(_) => {}
        }
    }
    Ok(None)
}

/// Inserts the execution of an inbox row. Returns false if it exists already.
fn insert_execution(
    sql: &mut Statements<'_>,
    share: &FileShare,
    inbox_row: &InboxRow,
    now: Timestamp,
) -> DbResult<bool> {
    let delayed_until = inbox_row.due_at.filter(|due_at| *due_at > now.as_micros());
    let status = i64::from(delayed_until.is_none());
    if sql.insert(Table::Executions, Sql::ExecutionFromInbox, (inbox_row.id, status))? == 0 {
        return Ok(false);
    }
    if inbox_row.has_attributes {
        sql.insert(Table::Attributes, Sql::AttributesFromInbox, [inbox_row.id])?;
    }
    if let Some(due_at) = delayed_until {
        sql.insert(Table::Timers, Sql::InsertTimer, (key_bytes(&inbox_row.key), due_at))?;
        return Ok(true);
    }
    let params = (
        key_bytes(&inbox_row.key),
        share.next_seq(now),
        &*inbox_row.workflow,
        inbox_row.app_version.as_deref(),
        inbox_row.queue.as_deref().unwrap_or(DEFAULT_QUEUE),
        inbox_row.queue_key.as_deref().unwrap_or_default(),
        inbox_row.priority.unwrap_or_default(),
    );
    sql.insert(Table::Ready, Sql::InsertReady, params)?;
    Ok(true)
}
