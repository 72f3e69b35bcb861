//! Registrations, heartbeats and takeovers: a heartbeat once a second finds dead workers and the changes that its
//! worker must handle.

pub(crate) mod queues;

use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, OptionalExtension, params};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    ExecutionId, Heartbeat, HeartbeatReply, MAX_EXPIRED, QUARANTINE_STRIKES, Registration, StoreError,
    WorkerId, WorkerInfo, is_same_version, next_strikes, quarantine_delay,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::{Database, TURN_TIMEOUT};
use crate::error::DbResult;
use crate::rows::queues::{next_ready_key, read_queue, ready_queues};
use crate::rows::{key_bytes, key_of, optional_text, request_kind, text};
use crate::{read, schema};

/// Maximum number of executions that one transaction of a takeover requeues; other writers get their turn in between.
const REQUEUE_BATCH: u64 = 1000;
/// Number of lease renewals from one sweep to the next; the first renewal sweeps. A sweep wakes executions whose child
/// has finished without a Wake, and deletes slots of executions that do not run.
const RENEWALS_PER_SWEEP: u64 = 60;

impl Database {
    /// Tries once to register a worker.
    pub(crate) fn register(&self, lanes: u16, info: &WorkerInfo) -> DbResult<Registration> {
        const EPOCH: i64 = 1; // the worker_id is new, so any epoch is unique
        self.share.check_for_peers();
        self.is_idle.store(false, SeqCst);
        let now = self.now();
        let mut locked_worker = None;
        let registered = self.try_write(TURN_TIMEOUT, |conn| {
            // the schema may have changed since the store was opened
            if let Some((found, supported)) = schema::find_newer_version(conn)? {
                return Err(StoreError::NewerSchema { found, supported }.into());
            }
            let worker: i64 = conn.query_row(
                "INSERT INTO workers (epoch, registered_at, host, pid, engine, app_version, workflows, is_client, queues)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING worker_id",
                params![
                    EPOCH,
                    now.as_micros(),
                    info.host,
                    info.pid,
                    info.engine,
                    info.app_version.as_deref(),
                    info.workflows.join("\n"),
                    info.is_client,
                    info.queues.as_ref().map(|queues| queues.join("\n"))
                ],
                |row| row.get(0),
            )?;
            for lane in 0..lanes {
                conn.execute(
                    "INSERT INTO lanes (worker_id, lane, epoch) VALUES (?1, ?2, ?3)",
                    (worker, lane, EPOCH),
                )?;
            }
            // before COMMIT: the row must never be visible without its lock
            self.share.lock_presence(worker).map_err(|error| {
                let reason = format!("cannot lock byte {worker} of its presence file: {error}");
                StoreError::Unavailable(reason)
            })?;
            locked_worker = Some(worker);
            stepfast_core::crash_point!("sqlite presence locked");
            Ok(worker)
        });
        match registered {
            Ok(worker) => {
                stepfast_core::crash_point!("sqlite registered");
                self.workers.lock().push(worker);
                self.listener.add_engine();
                Ok(Registration { worker: WorkerId(worker), epoch: EPOCH, now })
            }
            Err(error) => {
                // if the registration was committed after all, it is a dead worker without executions
                if let Some(worker) = locked_worker {
                    self.share.release_presence(worker);
                }
                Err(error)
            }
        }
    }

    /// Ends a registration. Its presence lock is released even after an error: then peers take the worker over.
    pub(crate) fn close(&self, worker: i64) -> Result<(), StoreError> {
        let closed = self.end_registration(worker);
        let mut workers = self.workers.lock();
        if let Some(i) = workers.iter().position(|own| *own == worker) {
            workers.swap_remove(i);
            self.listener.remove_engine();
            self.share.release_presence(worker);
        }
        closed
    }

    /// Fences a worker, and requeues its executions.
    fn end_registration(&self, worker: i64) -> Result<(), StoreError> {
        if !self.fence_workers(&[worker])?.is_empty() {
            stepfast_core::crash_point!("sqlite registration given up");
            self.requeue(worker, false)?;
            // its last Wakes may have been fenced
            self.wake_satisfied()?;
            self.share.announce_commit(self.listener.id);
        }
        Ok(())
    }

    /// See [`Store::heartbeat`](stepfast_core::Store::heartbeat).
    pub(crate) fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.share.check_for_peers();
        if heartbeat.renews_lease {
            let is_sweep = self.renewals.fetch_add(1, SeqCst).is_multiple_of(RENEWALS_PER_SWEEP);
            self.is_sweep_due.fetch_or(is_sweep, SeqCst);
        }
        if heartbeat.renews_lease {
            self.check_files()?;
        }
        // read before the database: the copy is never ahead of it
        let copied_count =
            self.share.companions.if_open().and_then(|open_files| open_files.read_flush_count());
        self.read("reading a heartbeat", |conn| {
            if heartbeat.renews_lease {
                self.check_flush_count(copied_count, conn)?;
            }
            let mut reply = self.read_heartbeat_reply(conn, heartbeat)?;
            let (dead, owners) = self.find_takeover_targets(conn, heartbeat.worker.0)?;
            reply.has_dead_workers = !dead.is_empty() || !owners.is_empty() || self.is_sweep_due.load(SeqCst);
            Ok(reply)
        })
    }

    /// See [`Store::take_over`](stepfast_core::Store::take_over).
    pub(crate) fn take_over(&self, worker: i64) -> Result<u64, StoreError> {
        let recovered = self.requeue_dead_workers(worker)?;
        if recovered > 0 {
            self.share.announce_commit(self.listener.id);
        }
        Ok(recovered)
    }

    /// See [`Store::dead_workers`](stepfast_core::Store::dead_workers).
    pub(crate) fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.read("looking for dead workers", |conn| {
            let mut is_registered = conn.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
            let mut dead = Vec::new();
            for worker in workers {
                if !is_registered.exists([worker.0])? || !self.share.is_alive(worker.0) {
                    dead.push(*worker);
                }
            }
            Ok(dead)
        })
    }

    /// Requeues the executions of dead workers. Returns their number.
    ///
    /// The first step fences the lanes, and commits. The second step requeues the executions that the workers still
    /// own. It relies on the tables, not on the result of the first step, so the next heartbeat of any worker finishes
    /// an interrupted takeover.
    fn requeue_dead_workers(&self, own: i64) -> Result<u64, StoreError> {
        let (dead, owners) =
            self.read("looking for dead workers", |conn| self.find_takeover_targets(conn, own))?;
        if !dead.is_empty() {
            self.is_sweep_due.store(true, SeqCst);
            for (worker, host, pid) in self.fence_workers(&dead)? {
                tracing::warn!(worker, host, pid, "a worker is dead; its executions are being requeued");
            }
            stepfast_core::crash_point!("sqlite lost workers fenced");
        }
        let mut recovered = 0;
        for owner in dead.into_iter().chain(owners) {
            recovered += self.requeue(owner, true)?;
        }
        if self.is_sweep_due.load(SeqCst) {
            stepfast_core::crash_point!("sqlite requeued and nobody woken");
            self.wake_satisfied()?;
            self.delete_orphaned_slots()?;
            self.is_sweep_due.store(false, SeqCst);
        }
        Ok(recovered)
    }

    /// Wakes executions that wait for a finished child: a worker may have died between the finish and the Wake. After
    /// an interruption, the next heartbeat does it, or the first one of the next process.
    fn wake_satisfied(&self) -> Result<(), StoreError> {
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

    /// Deletes slots whose execution does not run: older versions or operators may have left them.
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

    /// Deletes the lanes and registrations of workers, so that none of their flushes is applied any more. Returns the
    /// workers that were registered, with their host name and process id.
    fn fence_workers(&self, workers: &[i64]) -> Result<Vec<(i64, String, i64)>, StoreError> {
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

    /// Finds dead workers other than `own`, and owners of executions that are not registered.
    fn find_takeover_targets(&self, conn: &Connection, own: i64) -> DbResult<(Vec<i64>, Vec<i64>)> {
        let mut statement = conn.prepare_cached("SELECT worker_id FROM workers WHERE worker_id <> ?1")?;
        let workers = statement.query_map([own], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        let dead = workers.into_iter().filter(|worker| !self.share.is_alive(*worker)).collect();
        Ok((dead, unregistered_owners(conn)?))
    }

    /// Requeues the executions of an unregistered owner, in batches. `is_dead`: whether the worker died, which counts
    /// as a recovery, instead of having ended its registration.
    fn requeue(&self, owner: i64, is_dead: bool) -> Result<u64, StoreError> {
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

    /// Reads the reply to a heartbeat from one snapshot of the database.
    fn read_heartbeat_reply(&self, conn: &Connection, heartbeat: &Heartbeat) -> DbResult<HeartbeatReply> {
        let mut sql = Statements::new(conn);
        let worker = heartbeat.worker.0;
        let mut reply = HeartbeatReply { now: self.now(), ..HeartbeatReply::default() };
        let epoch: Option<i64> = conn
            .prepare_cached("SELECT epoch FROM workers WHERE worker_id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        reply.is_fenced = epoch != Some(heartbeat.epoch);
        reply.newer_schema = schema::find_newer_version(conn)?;

        let mut statement = conn.prepare_cached(include_str!("../../queries/pending_requests.sql"))?;
        let mut rows = statement.query([worker])?;
        while let Some(row) = rows.next()? {
            let key = key_of(row, 0)?;
            reply.requests.extend(request_kind(row, 1)?.map(|kind| (key, kind)));
        }
        drop(rows);

        let mut is_finished = conn.prepare_cached(
            "SELECT 1 FROM executions WHERE key = ?1 AND (status >= 4 OR status = 1 AND is_paused)",
        )?;
        for id in &heartbeat.watched {
            if is_finished.exists([key_bytes(id)])? {
                reply.finished.push(*id);
            }
        }

        if let Some(held) = &heartbeat.held {
            let held: HashSet<&Key> = held.iter().collect();
            let mut unheld = Vec::new();
            let mut statement = conn.prepare_cached("SELECT key FROM executions WHERE owner = ?1")?;
            let mut rows = statement.query([worker])?;
            while let Some(row) = rows.next()? {
                let id = key_of(row, 0)?;
                if !held.contains(&id) {
                    unheld.push(id);
                }
            }
            drop(rows);
            for id in unheld {
                if let Some(execution) = read::find_execution(&mut sql, &ExecutionId::Key(id), true)? {
                    reply.unheld.push(read::load_record(&mut sql, execution)?);
                }
            }
        }

        let version = heartbeat.app_version.as_deref();
        let is_ours = |pinned: Option<&str>| is_same_version(version, pinned);
        reply.has_ready = sql.exists(Sql::InboxRows, [1])?;
        for workflow in heartbeat.workflows.iter() {
            reply.has_ready = reply.has_ready || has_ready(&mut sql, workflow, heartbeat)?;
        }

        let mut rows = sql.get(Sql::QuarantineCandidates)?.query((i64::MAX, version))?;
        while let Some(row) = rows.next()? {
            if heartbeat.workflows.contains(&text(row, 2)?) {
                reply.quarantined_until = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        drop(rows);

        let now = reply.now.as_micros();
        let mut expired = conn.prepare_cached(include_str!("../../queries/expired_executions.sql"))?;
        let mut rows = expired.query((now, MAX_EXPIRED as i64))?;
        while let Some(row) = rows.next()? {
            reply.expired.push(key_of(row, 0)?);
        }
        drop(rows);
        let next = conn
            .prepare_cached(include_str!("../../queries/next_deadline.sql"))?
            .query_row([now], |row| row.get(0))
            .optional()?;
        reply.next_deadline = next.map(Timestamp::from_micros);

        let mut due = conn.prepare_cached(include_str!("../../queries/due_timers.sql"))?;
        let mut rows = due.query((i64::MIN, key_bytes(&Key::default()), i64::MAX, i64::MAX))?;
        while let Some(row) = rows.next()? {
            let queue = optional_text(row, 4)?.unwrap_or_else(|| DEFAULT_QUEUE.into());
            if heartbeat.serves(&queue)
                && heartbeat.workflows.contains(&text(row, 2)?)
                && is_ours(optional_text(row, 3)?.as_deref())
            {
                reply.next_due = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        Ok(reply)
    }
}

/// Whether executions of a workflow are ready in a queue that is served and not paused.
fn has_ready(sql: &mut Statements<'_>, workflow: &str, heartbeat: &Heartbeat) -> DbResult<bool> {
    for queue in ready_queues(sql, workflow)? {
        if !heartbeat.serves(&queue) || read_queue(sql, &queue)?.is_some_and(|row| row.is_paused) {
            continue;
        }
        let mut key = next_ready_key(sql, workflow, &queue, None, ClaimScope::All)?;
        while let Some(it) = key {
            if sql.exists(Sql::HasReady, (workflow, &*queue, &*it, heartbeat.app_version.as_deref()))? {
                return Ok(true);
            }
            key = next_ready_key(sql, workflow, &queue, Some(&it), ClaimScope::All)?;
        }
    }
    Ok(false)
}

/// The recovery state of an execution before its worker died.
struct RecoveryState {
    strikes: u32,
    /// Number of recorded rows at the last recovery; `None` before the first.
    progress: Option<i64>,
    /// Whether the execution was the only one of its claim.
    is_alone: bool,
}

/// Counts a recovery. Returns the time of the execution's trial if it belongs into quarantine.
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

/// Finds owners of executions that are not registered: an interrupted takeover or close leaves them. Scans from owner
/// to owner, independent of their numbers of executions.
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
