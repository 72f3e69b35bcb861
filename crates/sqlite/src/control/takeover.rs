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
use crate::rows::{key_bytes, key_of, optional_text};

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
    /// The first step fences the lanes, and commits. The second step requeues the executions that the workers still
    /// own. The second step relies on the tables, not on the result of the first step. So the next heartbeat of any
    /// worker finishes an interrupted takeover.
    fn requeue_dead_workers(&self, own: i64) -> Result<u64, StoreError> {
        let (dead, owners) =
            self.read("looking for dead workers", |conn| self.find_takeover_targets(conn, own))?;
        if !dead.is_empty() {
            self.is_sweep_due.store(true, SeqCst);
            for (worker, host, pid) in self.fence_workers(&dead)? {
                tracing::warn!(worker, host, pid, "a worker is dead; its executions are being requeued");
            }
            stepfast_core::crash_point!("sqlite dead workers fenced");
        }
        let mut recovered = 0;
        for owner in dead.into_iter().chain(owners) {
            recovered += self.requeue(owner, true)?;
        }
        if self.is_sweep_due.load(SeqCst) {
            stepfast_core::crash_point!("sqlite requeued without hint");
            self.wake_satisfied()?;
            self.delete_orphaned_slots()?;
            self.is_sweep_due.store(false, SeqCst);
        }
        Ok(recovered)
    }

    /// Finds registered workers other than `own` that are dead, and unregistered workers that still own executions.
    pub(super) fn find_takeover_targets(
        &self,
        conn: &Connection,
        own: i64,
    ) -> DbResult<(Vec<i64>, Vec<i64>)> {
        let mut statement = conn.prepare_cached("SELECT worker_id FROM workers WHERE worker_id <> ?1")?;
        let workers = statement.query_map([own], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        let dead = workers.into_iter().filter(|worker| !self.share.is_alive(*worker)).collect();
        Ok((dead, unregistered_owners(conn)?))
    }

    /// Deletes the lanes and registrations of workers, so that none of their flushes is applied any more. Returns the
    /// workers that were registered, with their host name and process id.
    pub(super) fn fence_workers(&self, workers: &[i64]) -> Result<Vec<(i64, String, i64)>, StoreError> {
        self.write("fencing a worker", |conn| {
            let mut sql = Statements::new(conn);
            let mut registered = Vec::new();
            for worker in workers {
                sql.run(Sql::DeleteLanes, [worker])?;
                let mut deleted = sql.get(Sql::DeleteWorker)?.query([worker])?;
                if let Some(row) = deleted.next()? {
                    registered.push((*worker, row.get(0)?, row.get(1)?));
                    // a DELETE must be stepped to its end
                    deleted.next()?;
                }
            }
            Ok(registered)
        })
    }

    /// Requeues the executions of an unregistered owner, [`REQUEUE_BATCH`] in a transaction. If `is_dead`, the owner
    /// died, and each execution counts a recovery. Otherwise the owner has ended its registration.
    pub(super) fn requeue(&self, owner: i64, is_dead: bool) -> Result<u64, StoreError> {
        let mut requeued = 0;
        let now = self.now();
        loop {
            let (rows, counts) = self.write("requeueing the executions of a worker", |conn| {
                let mut sql = Statements::new(conn);
                let mut found = Vec::new();
                let params = (owner, REQUEUE_BATCH as i64, i64::from(is_dead));
                let mut rows = sql.get(Sql::Requeue)?.query(params)?;
                while let Some(row) = rows.next()? {
                    let strikes: Option<u32> = row.get(1)?;
                    let (progress, is_alone): (Option<i64>, Option<bool>) = (row.get(2)?, row.get(3)?);
                    let state = RecoveryState {
                        strikes: strikes.unwrap_or(0),
                        progress,
                        is_alone: is_alone == Some(true),
                    };
                    let placement = (optional_text(row, 4)?, optional_text(row, 5)?.unwrap_or_default());
                    found.push((key_of(row, 0)?, placement, state));
                }
                drop(rows);
                for (id, (queue, queue_key), state) in &found {
                    if let Some(queue) = queue {
                        let params = (&**queue, &**queue_key, key_bytes(id));
                        sql.delete(Table::Slots, Sql::FreeSlot, params)?;
                    }
                    let trial_at = if is_dead { count_recovery(&mut sql, *id, state, now)? } else { None };
                    if let Some(trial_at) = trial_at {
                        sql.run(Sql::InsertQuarantine, (key_bytes(id), trial_at.as_micros()))?;
                    } else {
                        sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(id), false))?;
                    }
                }
                sql.counts.updated[Table::Executions as usize] += found.len() as u64;
                Ok((found.len() as u64, sql.counts))
            })?;
            counts.add_to(&self.counters);
            requeued += rows;
            if rows < REQUEUE_BATCH {
                return Ok(requeued);
            }
        }
    }

    /// Wakes executions that wait for an ended child: a worker may have died between the end and the Wake. If this
    /// function is interrupted, the next sweep calls it again. The first renewing heartbeat of a store makes a sweep
    /// due.
    pub(super) fn wake_satisfied(&self) -> Result<(), StoreError> {
        let query = include_str!("../../queries/satisfied_waits.sql");
        if !self.read("looking for satisfied waits", |conn| Ok(conn.prepare_cached(query)?.exists([1])?))? {
            return Ok(());
        }
        loop {
            let (rows, counts) = self.write("waking executions with satisfied waits", |conn| {
                let mut sql = Statements::new(conn);
                let mut statement = conn.prepare_cached(query)?;
                let mut rows = statement.query([REQUEUE_BATCH as i64])?;
                let mut satisfied = Vec::new();
                while let Some(row) = rows.next()? {
                    satisfied.push(key_of(row, 0)?);
                }
                for id in &satisfied {
                    sql.update(Table::Executions, Sql::Wake, (key_bytes(id), i64::MIN))?;
                    sql.delete(Table::Timers, Sql::DeleteTimer, [key_bytes(id)])?;
                    sql.delete(Table::Waits, Sql::DeleteWaits, [key_bytes(id)])?;
                    sql.insert(Table::Ready, Sql::ReadyResumed, (key_bytes(id), true))?;
                }
                Ok((satisfied.len() as u64, sql.counts))
            })?;
            counts.add_to(&self.counters);
            if rows < REQUEUE_BATCH {
                return Ok(());
            }
        }
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
    let progress: i64 = sql.get(Sql::Progress)?.query_row([key_bytes(&id)], |row| row.get(0))?;
    let has_progressed = state.progress.is_some_and(|former| progress > former);
    let strikes = next_strikes(state.strikes, has_progressed, state.is_alone);
    sql.run(Sql::SetStrikes, (key_bytes(&id), strikes, progress))?;
    Ok((strikes >= QUARANTINE_STRIKES).then(|| now.plus(quarantine_delay(strikes))))
}

/// Finds unregistered workers that still own executions, as an interrupted takeover or close leaves them. Skips from
/// owner to owner, so the cost does not depend on the number of executions.
fn unregistered_owners(conn: &Connection) -> DbResult<Vec<i64>> {
    let mut next =
        conn.prepare_cached("SELECT owner FROM executions WHERE owner > ?1 ORDER BY owner LIMIT 1")?;
    let mut is_registered = conn.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
    let (mut owner, mut unregistered) = (i64::MIN, Vec::new());
    while let Some(found) = next.query_row([owner], |row| row.get::<_, i64>(0)).optional()? {
        owner = found;
        if !is_registered.exists([owner])? {
            unregistered.push(owner);
        }
    }
    Ok(unregistered)
}
