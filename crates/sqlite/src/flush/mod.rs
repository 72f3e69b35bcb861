//! Flushes: applies each flush in one transaction on the write connection.

pub(crate) mod apply;
mod batches;
pub(crate) mod bulk_insert;
pub(crate) mod depth;
mod existing;
mod messages;
mod number;
pub(crate) mod request;
mod row_batches;
pub(crate) mod starts;

use std::time::Duration;

use stepfast_core::store::{Durability, Flush, Outcome, StoreError};
use tokio::time::Instant;

use crate::companions::FlushCount;
use crate::conn;
use crate::conn::row_counts::StatementCounts;
use crate::conn::statements::Statements;
use crate::database::{Database, TURN_TIMEOUT};
use crate::error::{DbError, DbResult};
use crate::flush::apply::FlushApplier;
use crate::flush::number::{Number, keep_outcomes, take_number};

/// Minimum time between two flushes of a store that increment the flush count.
const FLUSH_COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// The results of a flush: outcomes other than `Applied` with the indexes of their Writes, counts of rows, and the
/// flush count if the flush incremented it.
type FlushResults = (Vec<(usize, Outcome)>, StatementCounts, Option<FlushCount>);

impl Database {
    /// Applies one flush in one transaction, on the calling thread.
    pub(crate) fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let mut result = self.apply(flush, false);
        if let Err(DbError::RetryRowByRow) = result {
            result = self.apply(flush, true);
        }
        let (outcomes, counts, flush_count) =
            result.map_err(|error| error.into_store_error(&self.path, "committing a flush"))?;
        if let Some(flush_count) = flush_count {
            *self.flush_counted_at.lock() = Some(Instant::now());
            let _ =
                self.share.companions.if_open().map(|open_files| open_files.write_flush_count(flush_count));
        }
        self.assignments.record_flush(flush, &outcomes);
        counts.add_to(&self.counters);
        self.counters.add_flush(flush.writes.len() as u64);
        stepfast_core::crash_point!("sqlite flush without hint");
        self.share.announce_commit(self.listener.id);
        Ok(outcomes)
    }

    fn apply(&self, flush: &Flush, is_row_by_row: bool) -> DbResult<FlushResults> {
        self.try_write(TURN_TIMEOUT, |conn| {
            let mut sql = Statements::new(conn);
            let (outcomes, counts) = match take_number(&mut sql, flush)? {
                Number::AppliedBefore(outcomes) => (outcomes, sql.counts),
                Number::Taken => {
                    let mut applier = FlushApplier::new(sql, flush, self.now(), &self.share, is_row_by_row);
                    let outcomes = applier.apply_all()?;
                    keep_outcomes(&mut applier.sql, flush, &outcomes)?;
                    (outcomes, applier.sql.counts)
                }
            };
            let flush_count = if self.is_flush_counted() { Some(conn::count_flush(conn)?) } else { None };
            Ok((outcomes, counts, flush_count))
        })
    }

    /// Whether this flush increments the flush count. Flushes with relaxed durability do not, because a crash may undo
    /// them.
    fn is_flush_counted(&self) -> bool {
        let is_due = self.flush_counted_at.lock().is_none_or(|at| at.elapsed() >= FLUSH_COUNT_INTERVAL);
        is_due && self.info.durability == Durability::Full
    }
}
