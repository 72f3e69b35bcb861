//! The inbox: starts that others have put there in transactions of their own, on whatever connection.

use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::counters::Table;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;

use crate::error::Tried;
use crate::row::{key, key_of, maybe_text, text};
use crate::shared::Shared;
use crate::statements::{Sql, Statements};

/// Most rows that one claim receives.
const RECEIVED: i64 = 1_000;

/// A row of the inbox, as far as it has to be looked at.
struct Letter {
    id: i64,
    key: Key,
    workflow: Arc<str>,
    app_version: Option<Arc<str>>,
    queue: Option<Arc<str>>,
    queue_key: Option<Arc<str>>,
    priority: Option<i32>,
    due_at: Option<i64>,
    has_attributes: bool,
    has_odd_attributes: bool,
    put_at: i64,
    deadline_at: Option<i64>,
}

/// Makes executions of what is in the inbox, in the order in which it came. A full queue takes it. A row that no execution
/// can be made of becomes a dead letter.
pub(crate) fn receive(sql: &mut Statements<'_>, shared: &Shared, now: Timestamp) -> Tried<()> {
    let mut letters = Vec::new();
    let mut rows = sql.get(Sql::Inbox)?.query([RECEIVED])?;
    while let Some(row) = rows.next()? {
        letters.push(Letter {
            id: row.get(0)?,
            key: key_of(row, 1)?,
            workflow: text(row, 2)?,
            app_version: maybe_text(row, 3)?,
            queue: maybe_text(row, 4)?,
            queue_key: maybe_text(row, 5)?,
            priority: row.get(6)?,
            due_at: row.get(7)?,
            has_attributes: row.get(8)?,
            has_odd_attributes: row.get(9)?,
            put_at: row.get(10)?,
            deadline_at: row.get(11)?,
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
    let mut there = 0;
    for letter in &letters {
        sql.run(Sql::KeepPlace, [])?;
        let reason = match letter.refusal(shard, now) {
            Some(reason) => Some(reason),
            None => match become_execution(sql, shared, letter, now) {
                Ok(true) => None,
                Ok(false) => {
                    there += 1;
                    let mut taken = sql.get(Sql::Taken)?.query([letter.id])?;
                    taken.next()?.map(|row| row.get(0)).transpose()?
                }
                Err(trouble) if trouble.is_of_value() => {
                    sql.run(Sql::GoBack, [])?;
                    Some(format!("the database refuses it: {}", trouble.detail()))
                }
                Err(trouble) => return Err(trouble),
            },
        };
        if let Some(reason) = reason {
            tracing::warn!(
                row = letter.id,
                workflow = &*letter.workflow,
                reason,
                "a row of the inbox becomes a dead letter: see stepfast queue dead-letters"
            );
            sql.run(Sql::Bury, (letter.id, reason, now.as_micros()))?;
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
    fn refusal(&self, shard: u16, now: Timestamp) -> Option<String> {
        let is_odd = |at: i64| Timestamp::from_micros(at).near(now).as_micros() != at;
        if self.key.shard() != shard {
            return Some(format!(
                "its key names shard {}, and this store is shard {shard}",
                self.key.shard()
            ));
        }
        let times =
            [("put_at", Some(self.put_at)), ("due_at", self.due_at), ("deadline_at", self.deadline_at)];
        if let Some((name, _)) = times.into_iter().find(|(_, at)| at.is_some_and(is_odd)) {
            return Some(format!("its {name} is not within a hundred years of now"));
        }
        let reason = "an attribute is not a name of 1 to 128 bytes with a text of 1 to 1024 bytes";
        self.has_odd_attributes.then(|| reason.to_owned())
    }
}

/// Makes an execution of a letter; false if there is one already.
fn become_execution(
    sql: &mut Statements<'_>,
    shared: &Shared,
    letter: &Letter,
    now: Timestamp,
) -> Tried<bool> {
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
