//! Queues as they are stored, and which of them have something ready.

use std::sync::Arc;

use rusqlite::OptionalExtension;
use stepfast_core::queue::QueueRow;
use stepfast_core::queue::rate::ClaimScope;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::{queue, text};

/// A queue as it is stored, if it was declared.
pub(crate) fn stored_queue(sql: &mut Statements<'_>, name: &str) -> DbResult<Option<QueueRow>> {
    sql.get(Sql::Queue)?.query_row([name], |row| Ok(queue(row))).optional()?.transpose()
}

/// The queues in which executions of a workflow are ready; goes from one to the next, however many each has.
pub(crate) fn ready_queues(sql: &mut Statements<'_>, workflow: &str) -> DbResult<Vec<Arc<str>>> {
    let mut found: Vec<Arc<str>> = Vec::new();
    loop {
        let after = found.last().map_or("", |last| &**last);
        let next = sql.get(Sql::NextQueue)?.query_row((workflow, after), |row| Ok(text(row, 0)));
        match next.optional()?.transpose()? {
            Some(queue) => found.push(queue),
            None => return Ok(found),
        }
    }
}

/// The key after this one of which executions of a workflow are ready in a queue; the first of all for `None`. Only of
/// those that have waited, where it says so.
pub(crate) fn next_key(
    sql: &mut Statements<'_>,
    workflow: &str,
    queue: &str,
    after: Option<&str>,
    which: ClaimScope,
) -> DbResult<Option<Arc<str>>> {
    let (first, next) = match which {
        ClaimScope::Woken => (Sql::FirstWokenKey, Sql::NextWokenKey),
        ClaimScope::All | ClaimScope::Starting => (Sql::FirstKey, Sql::NextKey),
    };
    let next = match after {
        None => sql.get(first)?.query_row((workflow, queue), |row| Ok(text(row, 0))),
        Some(after) => sql.get(next)?.query_row((workflow, queue, after), |row| Ok(text(row, 0))),
    };
    next.optional()?.transpose()
}
