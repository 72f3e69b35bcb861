//! The inbox: starts that others have put there in transactions of their own, on whatever connection.

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
use crate::rows::{foreign_text, key, key_of};

/// Most rows that one claim receives.
const RECEIVED: i64 = 1_000;

/// A row of the inbox, as far as it has to be looked at.
struct Letter {
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
    /// A column whose text no execution can have, and its fault.
    odd_text: Option<(&'static str, &'static str)>,
}

/// Makes executions of what is in the inbox, in the order in which it came. A full queue takes it. A row that no execution
/// can be made of becomes a dead letter.
pub(crate) fn receive(sql: &mut Statements<'_>, shared: &FileShare, now: Timestamp) -> DbResult<()> {
    let mut letters = Vec::new();
    let mut rows = sql.get(Sql::Inbox)?.query([RECEIVED])?;
    while let Some(row) = rows.next()? {
        letters.push(Letter {
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
            odd_text: odd_text(row)?,
        });
    }
    drop(rows);
    let Some(last) = letters.last().map(|letter| letter.id) else { return Ok(()) };
    let shard: u16 = sql.get(Sql::Shard)?.query_row([], |row| row.get(0))?;
    let mut deeper: Vec<&str> = letters.iter().filter_map(|letter| letter.queue.as_deref()).collect();
    deeper.sort_unstable();
    deeper.dedup();
    for queue in deeper {
        // whoever puts something there next counts
        sql.run(Sql::DeepenQueue, [queue])?;
    }
    let mut there = 0_u64;
    for letter in &letters {
        sql.run(Sql::KeepPlace, [])?;
        let reason = match letter.refusal(sql, shard, now)? {
            Some(reason) => Some(reason),
            None => match become_execution(sql, shared, letter, now) {
                Ok(true) => None,
                Ok(false) => {
                    let mut taken = sql.get(Sql::Taken)?.query([letter.id])?;
                    let reason: Option<String> = taken.next()?.map(|row| row.get(0)).transpose()?;
                    there += u64::from(reason.is_none());
                    reason
                }
                Err(trouble) if trouble.is_rejected_value() => {
                    sql.run(Sql::GoBack, [])?;
                    Some(format!("the database refuses it: {}", trouble.detail()))
                }
                Err(trouble) => return Err(trouble),
            },
        };
        if let Some(reason) = reason {
            let id: i64 =
                sql.get(Sql::Bury)?.query_row((letter.id, &reason, now.as_micros()), |row| row.get(0))?;
            tracing::warn!(
                id,
                workflow = escape_controls(&letter.workflow),
                reason = escape_controls(&reason),
                "a row of the inbox becomes a dead letter: see stepfast queue dead-letters"
            );
        }
        sql.run(Sql::GoOn, [])?;
    }
    if there > 0 {
        tracing::info!(starts = there, "what was in the inbox was there already");
    }
    sql.run(Sql::ForgetMail, [last])?;
    Ok(())
}

impl Letter {
    /// Why no execution can be made of it, as far as it says that itself.
    fn refusal(&self, sql: &mut Statements<'_>, shard: u16, now: Timestamp) -> DbResult<Option<String>> {
        let is_odd = |at: i64| Timestamp::from_micros(at).clamp_near(now).as_micros() != at;
        if self.key.shard() != shard {
            let reason = format!("its key names shard {}, and this store is shard {shard}", self.key.shard());
            return Ok(Some(reason));
        }
        if let Some((column, fault)) = self.odd_text {
            return Ok(Some(format!("its {column} {fault}")));
        }
        let times =
            [("put_at", Some(self.put_at)), ("due_at", self.due_at), ("deadline_at", self.deadline_at)];
        if let Some((name, _)) = times.into_iter().find(|(_, at)| at.is_some_and(is_odd)) {
            return Ok(Some(format!("its {name} is not within a hundred years of now")));
        }
        if !self.has_attributes {
            return Ok(None);
        }
        Ok(match odd_attributes(sql, self.id)? {
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

/// Returns whether a row of the inbox has an attribute that no execution can have, and how many it has up to there.
fn odd_attributes(sql: &mut Statements<'_>, id: i64) -> DbResult<(bool, usize)> {
    let is_within = |text: ValueRef<'_>, most: usize| {
        text.as_str().is_ok_and(|text| (1..=most).contains(&text.len()) && !text.contains(char::is_control))
    };
    let mut rows = sql.get(Sql::LetterAttributes)?.query([id])?;
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

/// Returns a column whose text no execution can have, and its fault: SQLite keeps text that is not UTF-8, and nothing can
/// read it; control characters separate what an execution has in the place of a dedup_id.
fn odd_text(row: &Row<'_>) -> DbResult<Option<(&'static str, &'static str)>> {
    const TEXTS: [(usize, &str); 6] = [
        (2, "workflow"),
        (3, "app_version"),
        (4, "queue"),
        (5, "queue_key"),
        (11, "workflow_id"),
        (12, "dedup_id"),
    ];
    for (i, column) in TEXTS {
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

/// Makes an execution of a letter; false if there is one already.
fn become_execution(
    sql: &mut Statements<'_>,
    shared: &FileShare,
    letter: &Letter,
    now: Timestamp,
) -> DbResult<bool> {
    let delayed_until = letter.due_at.filter(|due_at| *due_at > now.as_micros());
    let status = i64::from(delayed_until.is_none());
    if sql.insert(Table::Executions, Sql::Receive, (letter.id, status))? == 0 {
        return Ok(false);
    }
    if letter.has_attributes {
        sql.insert(Table::Attributes, Sql::ReceiveAttributes, [letter.id])?;
    }
    if let Some(due_at) = delayed_until {
        sql.insert(Table::Timers, Sql::Timer, (key(&letter.key), due_at))?;
        return Ok(true);
    }
    let params = (
        key(&letter.key),
        shared.next_seq(now),
        &*letter.workflow,
        letter.app_version.as_deref(),
        letter.queue.as_deref().unwrap_or(DEFAULT_QUEUE),
        letter.queue_key.as_deref().unwrap_or_default(),
        letter.priority.unwrap_or_default(),
    );
    sql.insert(Table::Ready, Sql::Ready, params)?;
    Ok(true)
}
