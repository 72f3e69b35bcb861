//! Registrations, and the look once a second: who is lost, and what concerns the worker that looks.

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
    MAX_EXPIRED, ExecutionId, Heartbeat, QUARANTINE_STRIKES, Registration, HeartbeatReply, StoreError, WorkerId, WorkerInfo,
    is_same_version, quarantine_delay, next_strikes,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::{TURN_TIMEOUT, Database};
use crate::error::DbResult;
use crate::rows::queues::{next_key, ready_queues, stored_queue};
use crate::rows::{key, key_of, maybe_text, request_kind, text};
use crate::{read, schema};

/// Executions that one transaction of a takeover makes claimable; others get their turn in between.
const TAKEOVER: u64 = 1000;
/// At every so many renewals, the first included, a look sweeps: it wakes executions without a Wake whose child has ended, and
/// deletes slots of executions that do not run.
const RENEWALS_PER_SWEEP: u64 = 60;

impl Database {
    /// Registers a worker, or returns the error of a first try.
    pub(crate) fn register(&self, lanes: u16, info: &WorkerInfo) -> DbResult<Registration> {
        const EPOCH: i64 = 1; // the worker_id is new, so any epoch is
        self.share.check_for_peers();
        self.is_idle.store(false, SeqCst);
        let now = self.now();
        let mut entered = None;
        let registered = self.try_write(TURN_TIMEOUT, |conn| {
            // the schema may have been changed since the store was opened
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
            // before COMMIT: nobody may ever see the row without its lock
            self.share.lock_presence(worker).map_err(|error| {
                let reason = format!("cannot lock byte {worker} of its presence file: {error}");
                StoreError::Unavailable(reason)
            })?;
            entered = Some(worker);
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
                // if it was registered after all, it is a lost worker without executions
                if let Some(worker) = entered {
                    self.share.release_presence(worker);
                }
                Err(error)
            }
        }
    }

    /// Gives up a registration. Where that fails, its presence ends all the same: others take it over.
    pub(crate) fn close(&self, worker: i64) -> Result<(), StoreError> {
        let closed = self.hand_on(worker);
        let mut workers = self.workers.lock();
        if let Some(i) = workers.iter().position(|own| *own == worker) {
            workers.swap_remove(i);
            self.listener.remove_engine();
            self.share.release_presence(worker);
        }
        closed
    }

    /// Fences a worker, and hands on what it runs.
    fn hand_on(&self, worker: i64) -> Result<(), StoreError> {
        if !self.forget(&[worker])?.is_empty() {
            stepfast_core::crash_point!("sqlite registration given up");
            self.requeue(worker, false)?;
            // its last Wakes may have come too late for its lanes
            self.wake_called()?;
            self.share.announce_commit(self.listener.id);
        }
        Ok(())
    }

    pub(crate) fn look(&self, look: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.share.check_for_peers();
        if look.renews_lease {
            let is_sweep = self.renewals.fetch_add(1, SeqCst).is_multiple_of(RENEWALS_PER_SWEEP);
            self.is_sweep_due.fetch_or(is_sweep, SeqCst);
        }
        if look.renews_lease {
            self.check_files()?;
        }
        // before the database: the copy is never ahead of it
        let copy = self.share.companions.if_open().and_then(|used| used.read_flush_count());
        self.read("looking what has changed", |conn| {
            if look.renews_lease {
                self.check_flush_count(copy, conn)?;
            }
            let mut seen = self.see(conn, look)?;
            let (lost, owners) = self.lost_beside(conn, look.worker.0)?;
            seen.has_dead_workers = !lost.is_empty() || !owners.is_empty() || self.is_sweep_due.load(SeqCst);
            Ok(seen)
        })
    }

    pub(crate) fn recover(&self, worker: i64) -> Result<u64, StoreError> {
        let recovered = self.take_over(worker)?;
        if recovered > 0 {
            self.share.announce_commit(self.listener.id);
        }
        Ok(recovered)
    }

    pub(crate) fn lost(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.read("looking for lost workers", |conn| {
            let mut is_registered = conn.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
            let mut lost = Vec::new();
            for worker in workers {
                if !is_registered.exists([worker.0])? || !self.share.is_alive(worker.0) {
                    lost.push(*worker);
                }
            }
            Ok(lost)
        })
    }

    /// Makes the executions of lost workers claimable; how many.
    ///
    /// First their lanes are fenced, which commits; then what they still own is requeued. The second step
    /// looks at what the tables say, not at who was fenced, so whoever looks next finishes what was
    /// interrupted.
    fn take_over(&self, own: i64) -> Result<u64, StoreError> {
        let (lost, owners) = self.read("looking for lost workers", |conn| self.lost_beside(conn, own))?;
        if !lost.is_empty() {
            self.is_sweep_due.store(true, SeqCst);
            for (worker, host, pid) in self.forget(&lost)? {
                tracing::warn!(worker, host, pid, "a worker was lost; what it ran is made claimable");
            }
            stepfast_core::crash_point!("sqlite lost workers fenced");
        }
        let mut recovered = 0;
        for owner in lost.into_iter().chain(owners) {
            recovered += self.requeue(owner, true)?;
        }
        if self.is_sweep_due.load(SeqCst) {
            stepfast_core::crash_point!("sqlite requeued and nobody woken");
            self.wake_called()?;
            self.free_stray_slots()?;
            self.is_sweep_due.store(false, SeqCst);
        }
        Ok(recovered)
    }

    /// Wakes what waits for a child that has ended: a worker may have ended between the end and the Wake.
    /// Whoever is interrupted before it gets here does it at its next look, or the next process at its first.
    fn wake_called(&self) -> Result<(), StoreError> {
        let called = include_str!("../../queries/called.sql");
        if !self.read("looking whom to wake", |conn| Ok(conn.prepare_cached(called)?.exists([1])?))? {
            return Ok(());
        }
        loop {
            let (rows, tally) = self.write("waking what a lost worker has left", |conn| {
                let mut sql = Statements::new(conn);
                let mut statement = conn.prepare_cached(called)?;
                let mut rows = statement.query([TAKEOVER as i64])?;
                let mut called = Vec::new();
                while let Some(row) = rows.next()? {
                    called.push(key_of(row, 0)?);
                }
                for id in &called {
                    sql.update(Table::Executions, Sql::Wake, (key(id), i64::MIN))?;
                    sql.delete(Table::Timers, Sql::Untimer, [key(id)])?;
                    sql.delete(Table::Waits, Sql::Unwait, [key(id)])?;
                    sql.insert(Table::Ready, Sql::ReadyAs, (key(id), true))?;
                }
                Ok((called.len() as u64, sql.tally))
            })?;
            tally.add_to(&self.counters);
            if rows < TAKEOVER {
                return Ok(());
            }
        }
    }

    /// Deletes slots whose execution does not run, as an older version, or an operator, has left them.
    fn free_stray_slots(&self) -> Result<(), StoreError> {
        let stray = "SELECT 1 FROM slots
                     WHERE NOT EXISTS (SELECT 1 FROM executions WHERE executions.key = slots.execution AND executions.status = 2)";
        if !self.read("looking for stray slots", |conn| Ok(conn.prepare_cached(stray)?.exists([])?))? {
            return Ok(());
        }
        let tally = self.write("freeing stray slots", |conn| {
            let mut sql = Statements::new(conn);
            let rows = sql.delete(Table::Slots, Sql::StraySlots, [])?;
            tracing::warn!(rows, "removed slots of executions that do not run");
            Ok(sql.tally)
        })?;
        tally.add_to(&self.counters);
        Ok(())
    }

    /// Deletes the fences and registrations of workers: nothing of their lanes lands any more. Those that
    /// were registered, with the name of their machine and the number of their process there.
    fn forget(&self, workers: &[i64]) -> Result<Vec<(i64, String, i64)>, StoreError> {
        self.write("fencing a worker", |conn| {
            let mut sql = Statements::new(conn);
            let mut registered = Vec::new();
            for worker in workers {
                sql.run(Sql::ForgetLanes, [worker])?;
                let mut forgotten = sql.get(Sql::ForgetWorker)?.query([worker])?;
                if let Some(row) = forgotten.next()? {
                    registered.push((*worker, row.get(0)?, row.get(1)?));
                    // a statement that is not stepped to its end is not done
                    forgotten.next()?;
                }
            }
            Ok(registered)
        })
    }

    /// Lost workers beside the one that looks, and owners that are not registered.
    fn lost_beside(&self, conn: &Connection, own: i64) -> DbResult<(Vec<i64>, Vec<i64>)> {
        let mut statement = conn.prepare_cached("SELECT worker_id FROM workers WHERE worker_id <> ?1")?;
        let workers = statement.query_map([own], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
        let lost = workers.into_iter().filter(|worker| !self.share.is_alive(*worker)).collect();
        Ok((lost, strange_owners(conn)?))
    }

    /// Makes what an unregistered owner still runs claimable, in portions. `is_lost`: it was lost, which counts,
    /// and has not handed on what it ran.
    fn requeue(&self, owner: i64, is_lost: bool) -> Result<u64, StoreError> {
        let mut requeued = 0;
        let now = self.now();
        loop {
            let (rows, tally) = self.write("requeueing the executions of a worker", |conn| {
                let mut sql = Statements::new(conn);
                let mut found = Vec::new();
                let params = (owner, TAKEOVER as i64, i64::from(is_lost));
                let mut rows = sql.get(Sql::Requeue)?.query(params)?;
                while let Some(row) = rows.next()? {
                    let strikes: Option<u32> = row.get(1)?;
                    let (progress, is_alone): (Option<i64>, Option<bool>) = (row.get(2)?, row.get(3)?);
                    let before =
                        Before { strikes: strikes.unwrap_or(0), progress, is_alone: is_alone == Some(true) };
                    let place = (maybe_text(row, 4)?, maybe_text(row, 5)?.unwrap_or_default());
                    found.push((key_of(row, 0)?, place, before));
                }
                drop(rows);
                for (id, (queue, queue_key), before) in &found {
                    if let Some(queue) = queue {
                        let params = (&**queue, &**queue_key, key(id));
                        sql.delete(Table::Slots, Sql::Unslot, params)?;
                    }
                    let tried_at = if is_lost { strike(&mut sql, *id, before, now)? } else { None };
                    if let Some(tried_at) = tried_at {
                        sql.run(Sql::Quarantine, (key(id), tried_at.as_micros()))?;
                    } else {
                        sql.insert(Table::Ready, Sql::ReadyAs, (key(id), false))?;
                    }
                }
                sql.tally.updated[Table::Executions as usize] += found.len() as u64;
                Ok((found.len() as u64, sql.tally))
            })?;
            tally.add_to(&self.counters);
            requeued += rows;
            if rows < TAKEOVER {
                return Ok(requeued);
            }
        }
    }

    /// What concerns the worker, in one state of the database.
    fn see(&self, conn: &Connection, look: &Heartbeat) -> DbResult<HeartbeatReply> {
        let mut sql = Statements::new(conn);
        let worker = look.worker.0;
        let mut seen = HeartbeatReply { now: self.now(), ..HeartbeatReply::default() };
        let epoch: Option<i64> = conn
            .prepare_cached("SELECT epoch FROM workers WHERE worker_id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        seen.is_fenced = epoch != Some(look.epoch);
        seen.newer_schema = schema::find_newer_version(conn)?;

        let mut statement = conn.prepare_cached(include_str!("../../queries/asked.sql"))?;
        let mut rows = statement.query([worker])?;
        while let Some(row) = rows.next()? {
            let key = key_of(row, 0)?;
            seen.requests.extend(request_kind(row, 1)?.map(|kind| (key, kind)));
        }
        drop(rows);

        let mut over = conn.prepare_cached(
            "SELECT 1 FROM executions WHERE key = ?1 AND (status >= 4 OR status = 1 AND is_paused)",
        )?;
        for id in &look.watched {
            if over.exists([key(id)])? {
                seen.finished.push(*id);
            }
        }

        if let Some(holds) = &look.held {
            let holds: HashSet<&Key> = holds.iter().collect();
            let mut strays = Vec::new();
            let mut statement = conn.prepare_cached("SELECT key FROM executions WHERE owner = ?1")?;
            let mut rows = statement.query([worker])?;
            while let Some(row) = rows.next()? {
                let id = key_of(row, 0)?;
                if !holds.contains(&id) {
                    strays.push(id);
                }
            }
            drop(rows);
            for id in strays {
                if let Some(execution) = read::find(&mut sql, &ExecutionId::Key(id), true)? {
                    seen.unheld.push(read::record(&mut sql, execution)?);
                }
            }
        }

        let version = look.app_version.as_deref();
        let is_ours = |pinned: Option<&str>| is_same_version(version, pinned);
        seen.has_ready = sql.exists(Sql::Inbox, [1])?;
        for workflow in look.workflows.iter() {
            seen.has_ready = seen.has_ready || is_ready(&mut sql, workflow, look)?;
        }

        let mut rows = sql.get(Sql::Quarantined)?.query((i64::MAX, version))?;
        while let Some(row) = rows.next()? {
            if look.workflows.contains(&text(row, 2)?) {
                seen.quarantined_until = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        drop(rows);

        let now = seen.now.as_micros();
        let mut expired = conn.prepare_cached(include_str!("../../queries/expired.sql"))?;
        let mut rows = expired.query((now, MAX_EXPIRED as i64))?;
        while let Some(row) = rows.next()? {
            seen.expired.push(key_of(row, 0)?);
        }
        drop(rows);
        let next = conn
            .prepare_cached(include_str!("../../queries/next_deadline.sql"))?
            .query_row([now], |row| row.get(0))
            .optional()?;
        seen.next_deadline = next.map(Timestamp::from_micros);

        let mut due = conn.prepare_cached(include_str!("../../queries/due.sql"))?;
        let mut rows = due.query((i64::MIN, key(&Key::default()), i64::MAX, i64::MAX))?;
        while let Some(row) = rows.next()? {
            let queue = maybe_text(row, 4)?.unwrap_or_else(|| DEFAULT_QUEUE.into());
            if look.serves(&queue)
                && look.workflows.contains(&text(row, 2)?)
                && is_ours(maybe_text(row, 3)?.as_deref())
            {
                seen.next_due = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        Ok(seen)
    }
}

/// True if executions of a workflow are ready, in a queue that is served and not paused.
fn is_ready(sql: &mut Statements<'_>, workflow: &str, look: &Heartbeat) -> DbResult<bool> {
    for queue in ready_queues(sql, workflow)? {
        if !look.serves(&queue) || stored_queue(sql, &queue)?.is_some_and(|row| row.is_paused) {
            continue;
        }
        let mut key = next_key(sql, workflow, &queue, None, ClaimScope::All)?;
        while let Some(it) = key {
            if sql.exists(Sql::IsReady, (workflow, &*queue, &*it, look.app_version.as_deref()))? {
                return Ok(true);
            }
            key = next_key(sql, workflow, &queue, Some(&it), ClaimScope::All)?;
        }
    }
    Ok(false)
}

/// What is known of an execution that was recovered before.
struct Before {
    strikes: u32,
    progress: Option<i64>,
    is_alone: bool,
}

/// Counts a recovery; when the execution may be tried, if it belongs into quarantine.
fn strike(sql: &mut Statements<'_>, id: Key, before: &Before, now: Timestamp) -> DbResult<Option<Timestamp>> {
    let recorded: i64 = sql.get(Sql::Recorded)?.query_row([key(&id)], |row| row.get(0))?;
    let has_got_on = before.progress.is_some_and(|before| recorded > before);
    let strikes = next_strikes(before.strikes, has_got_on, before.is_alone);
    sql.run(Sql::Judge, (key(&id), strikes, recorded))?;
    Ok((strikes >= QUARANTINE_STRIKES).then(|| now.plus(quarantine_delay(strikes))))
}

/// Owners of executions that are not registered: left by a takeover or a close that was interrupted. Goes
/// from owner to owner, however many executions each has.
fn strange_owners(conn: &Connection) -> DbResult<Vec<i64>> {
    let mut next =
        conn.prepare_cached("SELECT owner FROM executions WHERE owner > ?1 ORDER BY owner LIMIT 1")?;
    let mut is_registered = conn.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
    let (mut owner, mut strange) = (i64::MIN, Vec::new());
    while let Some(found) = next.query_row([owner], |row| row.get::<_, i64>(0)).optional()? {
        owner = found;
        if !is_registered.exists([owner])? {
            strange.push(owner);
        }
    }
    Ok(strange)
}
