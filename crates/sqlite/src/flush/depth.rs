//! [`DepthCheck`]: enforces the depth limit of a queue.

use stepfast_core::queue::depth::{Admission, Depth};
use stepfast_core::store::Start;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::queues::read_queue;

/// The state of a queue to which a flush adds executions.
#[derive(Clone, Copy)]
pub(crate) struct DepthCheck {
    /// Whether an added execution may begin at once.
    pub(crate) allows_immediate_start: bool,
    /// The depth of the queue, as stored when the flush began, and as it is now; `None` if the queue has no depth
    /// limit.
    depth: Option<(Depth, Depth)>,
}

impl DepthCheck {
    /// Reads the state of a queue.
    pub(crate) fn read(sql: &mut Statements<'_>, name: &str) -> DbResult<Self> {
        let Some(row) = read_queue(sql, name)? else {
            return Ok(Self { allows_immediate_start: false, depth: None });
        };
        let mut depth = None;
        if let Some(max) = row.queue.limits.max_depth {
            let bound: i64 = sql.get(Sql::DepthBound)?.query_row([name], |row| row.get(0))?;
            let stored = Depth::new(max, bound.unsigned_abs());
            depth = Some((stored, stored));
        }
        Ok(Self { allows_immediate_start: row.allows_immediate_start(), depth })
    }

    /// Adds an execution to the depth of the queue. Returns false if the queue is full.
    pub(crate) fn try_admit(
        &mut self,
        sql: &mut Statements<'_>,
        start: &Start,
        name: &str,
    ) -> DbResult<bool> {
        let Some((_, depth)) = &mut self.depth else { return Ok(true) };
        if !start.can_be_rejected() {
            depth.admit_unconditionally();
            return Ok(true);
        }
        let mut admission = depth.try_admit();
        if admission == Admission::CountFirst {
            let waiting: i64 = sql.get(Sql::CountDepth)?.query_row([name], |row| row.get(0))?;
            depth.set_count(waiting.unsigned_abs());
            admission = depth.try_admit();
        }
        Ok(admission == Admission::Admitted)
    }

    /// Returns the upper bound of the depth that is to be stored; `None` if the bound has not changed.
    pub(crate) fn changed_bound(&self) -> Option<i64> {
        let (stored, depth) = self.depth?;
        (stored.bound() != depth.bound()).then(|| i64::try_from(depth.bound()).unwrap_or(i64::MAX))
    }
}

/// The checks of the queues to which a flush adds executions.
#[derive(Default)]
pub(super) struct DepthChecks<'f>(Vec<(&'f str, DepthCheck)>);

impl<'f> DepthChecks<'f> {
    /// Returns the check of a queue. The queue is read once per flush.
    pub(super) fn get(&mut self, sql: &mut Statements<'_>, queue: &'f str) -> DbResult<&mut DepthCheck> {
        let i = match self.0.iter().position(|(known, _)| *known == queue) {
            Some(i) => i,
            None => {
                self.0.push((queue, DepthCheck::read(sql, queue)?));
                self.0.len() - 1
            }
        };
        Ok(&mut self.0[i].1)
    }

    /// Stores the depth bounds that have changed.
    pub(super) fn store_bounds(&self, sql: &mut Statements<'_>) -> DbResult<()> {
        for (queue, check) in &self.0 {
            if let Some(bound) = check.changed_bound() {
                sql.run(Sql::SetDepthBound, (queue, bound))?;
            }
        }
        Ok(())
    }
}
