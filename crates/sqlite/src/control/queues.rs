//! Queues: how an operator changes them.

use rusqlite::params;
use stepfast_core::queue::{Limits, QueueChange, QueueRow};
use stepfast_core::store::StoreError;
use stepfast_core::store::counters::Table;

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::rows::queues::stored_queue;

impl Database {
    /// See [`Store::change_queue`](stepfast_core::Store::change_queue).
    pub(crate) fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let QueueChange { queue, is_paused, expected_version: seen_version } = change.clone();
        let row = QueueRow { queue, is_paused, version: seen_version + 1, changed_at: self.now() };
        let (is_changed, tally) = self.write_with_long_wait("changing a queue", |conn| {
            let mut sql = Statements::new(conn);
            let before =
                stored_queue(&mut sql, &row.queue.name)?.map(|row| row.queue.limits).unwrap_or_default();
            let Limits {
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate,
                key_rate,
                max_depth,
                key_weights,
            } = row.queue.limits.clone();
            if (before.rate, before.key_rate) != (rate, key_rate) {
                // another rate begins anew
                sql.run(Sql::ForgetRates, [&*row.queue.name])?;
            }
            let params = params![
                &*row.queue.name,
                row.version,
                row.changed_at.as_micros(),
                is_paused,
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate.map(|rate| rate.starts),
                rate.map(|rate| rate.period_ms() as i64),
                rate.and_then(|rate| rate.burst),
                key_rate.map(|rate| rate.starts),
                key_rate.map(|rate| rate.period_ms() as i64),
                key_rate.and_then(|rate| rate.burst),
                max_depth,
                key_weights.to_json(),
            ];
            let changed = sql.run(Sql::SetQueue, params)?;
            if changed > 0 && row.queue.limits.has_slots() && !before.has_slots() {
                sql.insert(Table::Slots, Sql::RunningIn, [&*row.queue.name])?;
            }
            Ok((changed > 0, sql.tally))
        })?;
        tally.add_to(&self.counters);
        self.share.announce_commit(self.listener.id);
        Ok(is_changed.then_some(row))
    }
}
