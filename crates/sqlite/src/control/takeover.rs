//! Takeovers of dead workers: fences their lanes, then requeues their executions. Each of these steps depends only on
//! the present tables, not on the result of the other step.

use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{QUARANTINE_STRIKES, StoreError, next_strikes, quarantine_delay};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::read::begin_of_last_part;
use crate::rows::assignments::{AssignmentRow, read_assignments};
use crate::rows::batches::{end_batch, is_complete};
use crate::rows::{key_bytes, key_of};

/// Maximum number of executions that one transaction of a takeover requeues or wakes. Other writers get their turn
/// between two such transactions.
const REQUEUE_BATCH: u64 = 1000;

impl Database {
    /// See [`Store::take_over`](stepfast_core::Store::take_over).
    pub(crate) fn take_over(&self, worker: i64) -> Result<u64, StoreError> {
        let recovered = self.requeue_dead_workers(worker)?;
        if recovered > 0 {
            self.share.announce_commit(self.listener.id);
        }
        Ok(recovered)
    }

    /// Requeues the executions of dead workers. Returns their number.
    ///
    /// The first step fences the lanes, and commits. The second step requeues the executions of the workers'
    /// assignments. A worker stays registered until the end of the second step. So the next heartbeat of any worker
    /// finishes an interrupted takeover.
    fn requeue_dead_workers(&self, own: i64) -> Result<u64, StoreError> {
        let dead = self.read("looking for dead workers", |conn| self.find_dead_workers(conn, own))?;
        if !dead.is_empty() {
            self.is_sweep_due.store(true, SeqCst);
            for (worker, host, pid) in self.fence_workers(&dead)? {
                tracing::warn!(worker, host, pid, "a worker is dead; its executions are being requeued");
            }
            stepfast_core::crash_point!("sqlite dead workers fenced");
        }
        let mut recovered = 0;
        for worker in dead {
            recovered += self.requeue(worker, true)?;
        }
        if self.is_sweep_due.load(SeqCst) {
            stepfast_core::crash_point!("sqlite requeued without hint");
            self.wake_satisfied()?;
            self.delete_orphaned_slots()?;
            self.is_sweep_due.store(false, SeqCst);
        }
        Ok(recovered)
    }

    /// Finds registered workers other than `own` that are dead. A worker that is closing is fenced, but not dead.
    pub(super) fn find_dead_workers(&self, conn: &Connection, own: i64) -> DbResult<Vec<i64>> {
        let mut statement = conn.prepare_cached("SELECT worker_id FROM workers WHERE worker_id <> ?1")?;
        let workers = statement.query_map([own], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        Ok(workers.into_iter().filter(|worker| !self.share.is_alive(*worker)).collect())
    }

    /// Deletes the lanes of workers, so that none of their flushes and claims is applied any more, and makes their
    /// heartbeats fail. Returns the workers that were registered, with their host name and process id.
    pub(super) fn fence_workers(&self, workers: &[i64]) -> Result<Vec<(i64, String, i64)>, StoreError> {
        self.write("fencing a worker", |conn| {
            let mut sql = Statements::new(conn);
            let mut registered = Vec::new();
            for worker in workers {
                sql.run(Sql::DeleteLanes, [worker])?;
                let mut fenced = sql.get(Sql::RaiseEpoch)?.query([worker])?;
                if let Some(row) = fenced.next()? {
                    registered.push((*worker, row.get(0)?, row.get(1)?));
                    // an UPDATE must be stepped to its end
                    fenced.next()?;
                }
            }
            Ok(registered)
        })
    }

    /// Requeues the executions of a fenced worker, and then ends its registration. A transaction requeues the executions
    /// of whole assignments, up to about [`REQUEUE_BATCH`]. If `is_dead`, the worker died, and each execution counts a
    /// recovery. Otherwise the worker has closed its registration.
    pub(super) fn requeue(&self, worker: i64, is_dead: bool) -> Result<u64, StoreError> {
        let mut requeued = 0;
        let now = self.now();
        loop {
            let (rows, is_finished, counts) =
                self.write("requeueing the executions of a worker", |conn| {
                    let mut sql = Statements::new(conn);
                    let mut rows = 0;
                    let assignments = read_assignments(&mut sql, worker, REQUEUE_BATCH as usize)?;
                    let is_finished = assignments.is_empty();
                    for AssignmentRow { id, executions } in assignments {
                        for execution in executions {
                            rows += u64::from(requeue_execution(&mut sql, execution, worker, is_dead, now)?);
                        }
                        sql.run(Sql::DeleteAssignment, (worker, id.lane, id.number))?;
                    }
                    if is_finished {
                        sql.run(Sql::DeleteWorker, [worker])?;
                    }
                    sql.counts.updated[Table::Executions as usize] += rows;
                    Ok((rows, is_finished, sql.counts))
                })?;
            counts.add_to(&self.counters);
            requeued += rows;
            if is_finished {
                return Ok(requeued);
            }
        }
    }

    /// Ends batches whose wake condition holds, and then wakes executions that wait for an ended child or batch: a worker
    /// may have died between the end and the Wake. If this function is interrupted, the next sweep calls it again. The
    /// first renewing heartbeat of a store makes a sweep due.
    pub(super) fn wake_satisfied(&self) -> Result<(), StoreError> {
        self.end_complete_batches()?;
        let query = include_str!("../../queries/satisfied_waits.sql");
        // the search reads all waits, so it must not hold the lock of writers
        let satisfied = self.read("looking for satisfied waits", |conn| {
            let mut statement = conn.prepare_cached(query)?;
            let keys = statement.query_map([], |row| Ok(key_of(row, 0)))?;
            keys.map(|key| key?).collect::<DbResult<Vec<Key>>>()
        })?;
        for batch in satisfied.chunks(REQUEUE_BATCH as usize) {
            let counts = self.write("waking executions with satisfied waits", |conn| {
                let mut sql = Statements::new(conn);
                for id in batch {
                    // another worker may have woken it in the meantime
                    if sql.update(Table::Executions, Sql::Wake, (key_bytes(id), i64::MIN))? > 0 {
                        sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(id)])?;
                        sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(id)])?;
                        sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(id), true))?;
                    }
                }
                Ok(sql.counts)
            })?;
            counts.add_to(&self.counters);
        }
        Ok(())
    }

    /// Ends batches whose wake condition holds, for the same reason as [`wake_satisfied`](Self::wake_satisfied).
    fn end_complete_batches(&self) -> Result<(), StoreError> {
        let complete = self.read("looking for complete batches", |conn| {
            let mut sql = Statements::new(conn);
            let mut rows = sql.get(Sql::ClosedBatches)?.query([])?;
            let mut closed = Vec::new();
            while let Some(row) = rows.next()? {
                closed.push(key_of(row, 0)?);
            }
            drop(rows);
            let mut complete = Vec::new();
            for batch in closed {
                if is_complete(&mut sql, batch)? {
                    complete.push(batch);
                }
            }
            Ok(complete)
        })?;
        for batches in complete.chunks(REQUEUE_BATCH as usize) {
            let now = self.now();
            let counts = self.write("ending complete batches", |conn| {
                let mut sql = Statements::new(conn);
                for batch in batches {
                    // another worker may have ended it in the meantime
                    end_batch(&mut sql, *batch, now)?;
                }
                Ok(sql.counts)
            })?;
            counts.add_to(&self.counters);
            self.share.announce_commit(self.listener.id);
        }
        Ok(())
    }

    /// Deletes slots whose execution does not run, because older versions or operators may have left such slots.
    fn delete_orphaned_slots(&self) -> Result<(), StoreError> {
        let query = "SELECT 1 FROM slots
                     WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.key = slots.execution AND executions.status = 2)";
        if !self.read("looking for orphaned slots", |conn| Ok(conn.prepare_cached(query)?.exists([])?))? {
            return Ok(());
        }
        let counts = self.write("deleting orphaned slots", |conn| {
            let mut sql = Statements::new(conn);
            let rows = sql.delete(Table::Slots, Sql::DeleteOrphanedSlots, [])?;
            tracing::warn!(rows, "removed slots of executions that do not run");
            Ok(sql.counts)
        })?;
        counts.add_to(&self.counters);
        Ok(())
    }
}

/// Requeues an execution. Returns false if the worker does not run it.
fn requeue_execution(
    sql: &mut Statements<'_>,
    id: Key,
    worker: i64,
    is_dead: bool,
    now: Timestamp,
) -> DbResult<bool> {
    let requeue = sql.get(Sql::Requeue)?;
    let found = requeue.query_row((key_bytes(&id), worker, i64::from(is_dead)), |row| {
        let strikes: Option<u32> = row.get(0)?;
        let state = RecoveryState {
            strikes: strikes.unwrap_or(0),
            progress: row.get(1)?,
            is_alone: row.get::<_, Option<bool>>(2)? == Some(true),
        };
        Ok((state, row.get(3)?, row.get(4)?))
    });
    let Some((state, queue, queue_key)): Option<(_, Option<String>, Option<String>)> = found.optional()?
    else {
        return Ok(false);
    };
    if let Some(queue) = queue {
        let params = (queue, queue_key.unwrap_or_default(), key_bytes(&id));
        sql.delete(Table::Slots, Sql::FreeSlot, params)?;
    }
    let trial_at = if is_dead { count_recovery(sql, id, &state, now)? } else { None };
    if let Some(trial_at) = trial_at {
        sql.run(Sql::InsertQuarantine, (key_bytes(&id), trial_at.as_micros()))?;
    } else {
        sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(&id), false))?;
    }
    Ok(true)
}

/// The recovery state of an execution before its worker died.
struct RecoveryState {
    strikes: u32,
    /// Number of checkpoints and attempts at the last recovery; `None` before the first recovery.
    progress: Option<i64>,
    /// Whether the execution was tried alone in quarantine.
    is_alone: bool,
}

/// Counts a recovery. Returns the time of the execution's next trial if the execution belongs in quarantine.
fn count_recovery(
    sql: &mut Statements<'_>,
    id: Key,
    state: &RecoveryState,
    now: Timestamp,
) -> DbResult<Option<Timestamp>> {
    let begin = begin_of_last_part(sql, id)?;
    let progress: i64 = sql.get(Sql::Progress)?.query_row((key_bytes(&id), begin), |row| row.get(0))?;
    let has_progressed = state.progress.is_some_and(|former| progress > former);
    let strikes = next_strikes(state.strikes, has_progressed, state.is_alone);
    sql.run(Sql::SetStrikes, (key_bytes(&id), strikes, progress))?;
    Ok((strikes >= QUARANTINE_STRIKES).then(|| now.plus(quarantine_delay(strikes))))
}
