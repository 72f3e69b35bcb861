//! Flushes: each is one transaction on the connection that writes.

pub(crate) mod apply;
pub(crate) mod bulk_insert;
pub(crate) mod depth;
pub(crate) mod request;
pub(crate) mod resend;

use std::time::Duration;

use stepfast_core::store::{Durability, Flush, Outcome, StoreError};
use tokio::time::Instant;

use crate::companions::FlushCount;
use crate::conn;
use crate::conn::statements::{Statements, Tally};
use crate::database::{TURN_TIMEOUT, Database, check_fence};
use crate::error::{DbResult, DbError};
use crate::flush::apply::Apply;

/// Time between two flushes of a process that are counted.
const COUNT_AFTER: Duration = Duration::from_millis(100);

/// What became of a flush: the outcomes that are not `Applied`, by index; its rows; and the count, if it was counted.
type Applied = (Vec<(usize, Outcome)>, Tally, Option<FlushCount>);

impl Database {
    /// Applies one flush in one transaction, on the calling thread.
    pub(crate) fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let mut applied = self.apply(flush, false);
        if let Err(DbError::RetryRowByRow) = applied {
            applied = self.apply(flush, true);
        }
        let (outcomes, tally, counted) =
            applied.map_err(|trouble| trouble.into_store_error(&self.path, "committing a flush"))?;
        if let Some(counted) = counted {
            *self.flush_counted_at.lock() = Some(Instant::now());
            let _ = self.share.companions.if_open().map(|used| used.write_flush_count(counted));
        }
        tally.add_to(&self.counters);
        self.counters.add_flush(flush.writes.len() as u64);
        stepfast_core::crash_point!("sqlite flush not announced");
        self.share.announce_commit(self.listener.id);
        Ok(outcomes)
    }

    fn apply(&self, flush: &Flush, is_single: bool) -> DbResult<Applied> {
        self.try_write(TURN_TIMEOUT, |conn| {
            let mut sql = Statements::new(conn);
            check_fence(&mut sql, flush.worker.0, flush.lane, flush.epoch)?;
            let mut apply = Apply::new(sql, flush, self.now(), &self.share, is_single);
            let outcomes = if flush.is_resent { apply.again()? } else { apply.all()? };
            let counted = if self.counts_now() { Some(conn::count(conn)?) } else { None };
            Ok((outcomes, apply.sql.tally, counted))
        })
    }

    /// True if this flush is to be counted. Without a sync at its end nobody knows whether it stays.
    fn counts_now(&self) -> bool {
        let is_due = self.flush_counted_at.lock().is_none_or(|at| at.elapsed() >= COUNT_AFTER);
        is_due && self.about.durability == Durability::Full
    }
}
