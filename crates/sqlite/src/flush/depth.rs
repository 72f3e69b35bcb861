//! [`Gate`]: whether a queue takes one more.

use stepfast_core::queue::depth::{Depth, Admission};
use stepfast_core::store::Start;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::queues::stored_queue;

/// What a flush has to know of a queue that something is put into.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// What is put into it may begin at once.
    pub(crate) lets_begin: bool,
    /// How many wait in it, where that is limited; as it was when the flush began, and as it is now.
    depth: Option<(Depth, Depth)>,
}

impl Gate {
    /// Of the queue of this name.
    pub(crate) fn of(sql: &mut Statements<'_>, name: &str) -> DbResult<Self> {
        let Some(row) = stored_queue(sql, name)? else { return Ok(Self { lets_begin: false, depth: None }) };
        let mut depth = None;
        if let Some(max) = row.queue.limits.max_depth {
            let bound: i64 = sql.get(Sql::DepthBound)?.query_row([name], |row| row.get(0))?;
            let stored = Depth::new(max, bound.unsigned_abs());
            depth = Some((stored, stored));
        }
        Ok(Self { lets_begin: row.allows_immediate_start(), depth })
    }

    /// One more is put into it; false if it is full.
    pub(crate) fn enter(&mut self, sql: &mut Statements<'_>, start: &Start, name: &str) -> DbResult<bool> {
        let Some((_, depth)) = &mut self.depth else { return Ok(true) };
        if !start.can_be_rejected() {
            depth.admit_unconditionally();
            return Ok(true);
        }
        let mut entry = depth.try_admit();
        if entry == Admission::CountFirst {
            let waiting: i64 = sql.get(Sql::CountDepth)?.query_row([name], |row| row.get(0))?;
            depth.set_count(waiting.unsigned_abs());
            entry = depth.try_admit();
        }
        Ok(entry == Admission::Admitted)
    }

    /// What is to be stored of it, where that has changed.
    pub(crate) fn bound(&self) -> Option<i64> {
        let (stored, depth) = self.depth?;
        (stored.bound() != depth.bound()).then(|| i64::try_from(depth.bound()).unwrap_or(i64::MAX))
    }
}
