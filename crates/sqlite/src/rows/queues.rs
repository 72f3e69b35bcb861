//! Stored queues, and the search for queues and keys with ready executions.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row};
use stepfast_core::queue::rate::{ClaimScope, Rate};
use stepfast_core::queue::weights::Weights;
use stepfast_core::queue::{Limits, Queue, QueueRow};

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::{number, text, time};

/// Reads a row of `queues`.
pub(crate) fn parse_queue(row: &Row<'_>) -> DbResult<QueueRow> {
    Ok(QueueRow {
        queue: Queue {
            name: text(row, 0)?,
            limits: Limits {
                concurrency: row.get(4)?,
                worker_concurrency: row.get(5)?,
                key_concurrency: row.get(6)?,
                rate: parse_rate(row, 7)?,
                key_rate: parse_rate(row, 10)?,
                max_depth: row.get(13)?,
                key_weights: parse_weights(row, 14)?,
            },
        },
        version: row.get(1)?,
        changed_at: time(row, 2)?,
        is_paused: row.get(3)?,
    })
}

/// Reads a rate: starts, period, burst.
fn parse_rate(row: &Row<'_>, i: usize) -> DbResult<Option<Rate>> {
    let Some(starts) = row.get(i)? else { return Ok(None) };
    let period = Duration::from_millis(number(row, i + 1)?);
    Ok(Some(Rate { starts, period, burst: row.get(i + 2)? }))
}

/// Reads the weights of queue keys; NULL means that no key has a weight.
fn parse_weights(row: &Row<'_>, i: usize) -> DbResult<Weights> {
    Ok(row.get::<_, Option<String>>(i)?.map_or_else(Weights::default, |json| Weights::from_stored(&json)))
}

/// Reads a stored queue; `None` if the queue does not exist.
pub(crate) fn read_queue(sql: &mut Statements<'_>, name: &str) -> DbResult<Option<QueueRow>> {
    sql.get(Sql::Queue)?.query_row([name], |row| Ok(parse_queue(row))).optional()?.transpose()
}

/// Returns the queues in which executions of a workflow are ready. Skips from queue to queue, so the cost does not
/// depend on the number of ready executions.
pub(crate) fn ready_queues(sql: &mut Statements<'_>, workflow: &str) -> DbResult<Vec<Arc<str>>> {
    let mut found: Vec<Arc<str>> = Vec::new();
    loop {
        let after = found.last().map_or("", |last| &**last);
        let next = sql.get(Sql::NextReadyQueue)?.query_row((workflow, after), |row| Ok(text(row, 0)));
        match next.optional()?.transpose()? {
            Some(queue) => found.push(queue),
            None => return Ok(found),
        }
    }
}

/// Returns the first queue key after `after` with ready executions of a workflow in a queue. If `after` is `None`,
/// begins with the first key. The scope `Woken` considers only woken executions.
pub(crate) fn next_ready_key(
    sql: &mut Statements<'_>,
    workflow: &str,
    queue: &str,
    after: Option<&str>,
    scope: ClaimScope,
) -> DbResult<Option<Arc<str>>> {
    let (first, next) = match scope {
        ClaimScope::Woken => (Sql::FirstWokenKey, Sql::NextWokenKey),
        ClaimScope::All | ClaimScope::Starting => (Sql::FirstReadyKey, Sql::NextReadyKey),
    };
    let next = match after {
        None => sql.get(first)?.query_row((workflow, queue), |row| Ok(text(row, 0))),
        Some(after) => sql.get(next)?.query_row((workflow, queue, after), |row| Ok(text(row, 0))),
    };
    next.optional()?.transpose()
}
