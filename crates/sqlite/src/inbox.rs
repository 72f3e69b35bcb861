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
struct Mail {
    id: i64,
    key: Key,
    workflow: Arc<str>,
    app_version: Option<Arc<str>>,
    queue: Option<Arc<str>>,
    queue_key: Option<Arc<str>>,
    priority: Option<i32>,
    due_at: Option<i64>,
    has_attributes: bool,
}

/// Makes executions of what is in the inbox, in the order in which it came. A full queue takes it.
pub(crate) fn receive(sql: &mut Statements<'_>, shared: &Shared, now: Timestamp) -> Tried<()> {
    let mut all = Vec::new();
    let mut rows = sql.get(Sql::Inbox)?.query([RECEIVED])?;
    while let Some(row) = rows.next()? {
        all.push(Mail {
            id: row.get(0)?,
            key: key_of(row, 1)?,
            workflow: text(row, 2)?,
            app_version: maybe_text(row, 3)?,
            queue: maybe_text(row, 4)?,
            queue_key: maybe_text(row, 5)?,
            priority: row.get(6)?,
            due_at: row.get::<_, Option<i64>>(7)?.map(|at| Timestamp::from_micros(at).near(now).as_micros()),
            has_attributes: row.get(8)?,
        });
    }
    drop(rows);
    let Some(last) = all.last().map(|mail| mail.id) else { return Ok(()) };
    let mut deeper: Vec<&str> = all.iter().filter_map(|mail| mail.queue.as_deref()).collect();
    deeper.sort_unstable();
    deeper.dedup();
    for queue in deeper {
        // whoever puts something there next counts
        sql.run(Sql::DeepenQueue, [queue])?;
    }
    let mut there = 0;
    for mail in &all {
        let delayed_until = mail.due_at.filter(|due_at| *due_at > now.as_micros());
        let status = i64::from(delayed_until.is_none());
        if sql.insert(Table::Executions, Sql::Receive, (mail.id, status, now.as_micros()))? == 0 {
            there += 1;
            continue;
        }
        if mail.has_attributes {
            sql.insert(Table::Attributes, Sql::ReceiveAttributes, [mail.id])?;
        }
        if let Some(due_at) = delayed_until {
            sql.insert(Table::Timers, Sql::Timer, (key(&mail.key), due_at))?;
            continue;
        }
        let params = (
            key(&mail.key),
            shared.next_seq(now),
            &*mail.workflow,
            mail.app_version.as_deref(),
            mail.queue.as_deref().unwrap_or(DEFAULT_QUEUE),
            mail.queue_key.as_deref().unwrap_or_default(),
            mail.priority.unwrap_or_default(),
        );
        sql.insert(Table::Ready, Sql::Ready, params)?;
    }
    if there > 0 {
        tracing::info!(starts = there, "what was in the inbox was there already");
    }
    sql.run(Sql::ForgetMail, [last])?;
    Ok(())
}
