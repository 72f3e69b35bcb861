//! Stored queues, and the search for queues and keys with ready executions.

use std::sync::Arc;

use rusqlite::OptionalExtension;
use stepfast_core::queue::QueueRow;
use stepfast_core::queue::rate::ClaimScope;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::{queue, text};

/// Reads a stored queue; `None` if it was not declared.
pub(crate) fn read_queue(sql: &mut Statements<'_>, name: &str) -> DbResult<Option<QueueRow>> {
    sql.get(Sql::Queue)?.query_row([name], |row| Ok(queue(row))).optional()?.transpose()
}

/// Returns the queues in which executions of a workflow are ready. Skips from queue to queue, independent of their
/// numbers of executions.
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

/// Returns the next key after `after`, or the first key for `None`, with ready executions of a workflow in a queue. The
/// scope `Woken` considers only woken executions.
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
