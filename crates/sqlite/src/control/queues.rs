//! Changes of queues by operators.

use rusqlite::params;
use stepfast_core::queue::{Limits, QueueChange, QueueRow};
use stepfast_core::store::StoreError;
use stepfast_core::store::counters::Table;

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::assignments::read_assignments;
use crate::rows::key_bytes;
use crate::rows::queues::read_queue;

impl Database {
    /// See [`Store::change_queue`](stepfast_core::Store::change_queue).
    pub(crate) fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let QueueChange { queue, is_paused, expected_version } = change.clone();
        let row = QueueRow { queue, is_paused, version: expected_version + 1, changed_at: self.now() };
        let (is_changed, counts) = self.write_with_long_wait("changing a queue", |conn| {
            let mut sql = Statements::new(conn);
            let former_limits =
                read_queue(&mut sql, &row.queue.name)?.map(|row| row.queue.limits).unwrap_or_default();
            let Limits {
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate,
                key_rate,
                max_depth,
                key_weights,
            } = row.queue.limits.clone();
            if (former_limits.rate, former_limits.key_rate) != (rate, key_rate) {
                // a changed rate starts without history
                sql.run(Sql::DeleteRates, [&*row.queue.name])?;
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
            let is_changed = sql.run(Sql::SetQueue, params)? > 0;
            if is_changed && row.queue.limits.has_slots() && !former_limits.has_slots() {
                assign_slots(&mut sql, &row.queue.name)?;
            }
            Ok((is_changed, sql.counts))
        })?;
        counts.add_to(&self.counters);
        self.share.announce_commit(self.listener.id);
        Ok(is_changed.then_some(row))
    }
}

/// Assigns slots to the running executions of a queue, which are found by the assignments of all workers.
fn assign_slots(sql: &mut Statements<'_>, queue: &str) -> DbResult<()> {
    let mut workers = Vec::new();
    let mut rows = sql.get(Sql::Workers)?.query([])?;
    while let Some(row) = rows.next()? {
        workers.push(row.get::<_, i64>(0)?);
    }
    drop(rows);
    for worker in workers {
        for assignment in read_assignments(sql, worker, usize::MAX)? {
            for execution in assignment.executions {
                sql.insert(Table::Slots, Sql::AssignSlots, (queue, key_bytes(&execution), worker))?;
            }
        }
    }
    Ok(())
}
