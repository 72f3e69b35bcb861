//! Registrations, and the look once a second: who is lost, and what concerns the worker that looks.

use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::Timestamp;
use stepfast_core::counters::Table;
use stepfast_core::key::Key;
use stepfast_core::record::ExecutionId;
use stepfast_core::store::{Look, Registration, Seen, StoreError};
use stepfast_core::write::WorkerId;

use crate::error::Tried;
use crate::read;
use crate::row::{key, key_of, request_kind, text};
use crate::statements::{Sql, Statements};
use crate::writer::Inner;

/// Executions that one transaction of a takeover makes claimable; others get their turn in between.
const TAKEOVER: u64 = 1000;
/// Every so many looks, the first included, somebody may have to be woken whom nobody has woken.
const LOOKS_PER_SWEEP: u64 = 60;

impl Inner {
    pub(crate) fn register(&self, lanes: u16) -> Result<Registration, StoreError> {
        const EPOCH: i64 = 1; // the worker_id is new, so any epoch is
        self.shared.look_for_peers();
        let now = self.now();
        let mut entered = None;
        let registered = self.write("registering a worker", |conn| {
            let worker: i64 = conn.query_row(
                "INSERT INTO workers (epoch, registered_at) VALUES (?1, ?2) RETURNING worker_id",
                (EPOCH, now.as_micros()),
                |row| row.get(0),
            )?;
            for lane in 0..lanes {
                conn.execute(
                    "INSERT INTO lanes (worker_id, lane, epoch) VALUES (?1, ?2, ?3)",
                    (worker, lane, EPOCH),
                )?;
            }
            // before COMMIT: nobody may ever see the row without its lock
            self.shared.enter(worker).map_err(|error| {
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
                self.listener.joined();
                Ok(Registration { worker: WorkerId(worker), epoch: EPOCH, now })
            }
            Err(error) => {
                // if it was registered after all, it is a lost worker without executions
                if let Some(worker) = entered {
                    self.shared.leave(worker);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn close(&self, worker: i64) -> Result<(), StoreError> {
        if self.forget(&[worker])? > 0 {
            stepfast_core::crash_point!("sqlite registration given up");
            self.requeue(worker, 0)?;
            // its last Wakes may have come too late for its lanes
            self.wake_called()?;
            self.shared.announce(self.listener.id);
        }
        let mut workers = self.workers.lock();
        if let Some(i) = workers.iter().position(|own| *own == worker) {
            workers.swap_remove(i);
            self.listener.left();
            self.shared.leave(worker);
        }
        Ok(())
    }

    pub(crate) fn look(&self, look: &Look) -> Result<Seen, StoreError> {
        self.shared.look_for_peers();
        let recovered = self.take_over(look.worker.0)?;
        if recovered > 0 {
            self.shared.announce(self.listener.id);
        }
        let mut seen = self.read("looking what has changed", |conn| self.see(conn, look))?;
        seen.recovered = recovered;
        Ok(seen)
    }

    pub(crate) fn lost(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.read("looking for lost workers", |conn| {
            let mut is_registered = conn.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
            let mut lost = Vec::new();
            for worker in workers {
                if !is_registered.exists([worker.0])? || !self.shared.is_alive(worker.0) {
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
    /// interrupted. Costs two short reads if nobody is lost.
    fn take_over(&self, own: i64) -> Result<u64, StoreError> {
        let (workers, owners) = self.read("looking for lost workers", |conn| {
            let mut statement = conn.prepare_cached("SELECT worker_id FROM workers WHERE worker_id <> ?1")?;
            let workers = statement.query_map([own], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
            Ok((workers, strange_owners(conn)?))
        })?;
        let lost: Vec<i64> = workers.into_iter().filter(|worker| !self.shared.is_alive(*worker)).collect();
        if !lost.is_empty() {
            tracing::info!(?lost, "taking over from lost workers");
            self.owes_wakes.store(true, SeqCst);
            self.forget(&lost)?;
            stepfast_core::crash_point!("sqlite lost workers fenced");
        }
        let mut recovered = 0;
        for owner in lost.into_iter().chain(owners) {
            recovered += self.requeue(owner, 1)?;
        }
        let is_sweep = self.looks.fetch_add(1, SeqCst).is_multiple_of(LOOKS_PER_SWEEP);
        if self.owes_wakes.load(SeqCst) || is_sweep {
            stepfast_core::crash_point!("sqlite requeued and nobody woken");
            self.wake_called()?;
            self.owes_wakes.store(false, SeqCst);
        }
        Ok(recovered)
    }

    /// Wakes what waits for a child that has ended: a worker may have ended between the end and the Wake.
    /// Whoever is interrupted before it gets here does it at its next look, or the next process at its first.
    fn wake_called(&self) -> Result<(), StoreError> {
        let called = include_str!("../queries/called.sql");
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
                    sql.insert(Table::Ready, Sql::ReadyAs, (key(id), self.shared.next_seq(self.now())))?;
                }
                Ok((called.len() as u64, sql.tally))
            })?;
            tally.add_to(&self.counters);
            if rows < TAKEOVER {
                return Ok(());
            }
        }
    }

    /// Deletes the fences and registrations of workers: nothing of their lanes lands any more. How many of
    /// them were registered.
    fn forget(&self, workers: &[i64]) -> Result<u64, StoreError> {
        self.write("fencing a worker", |conn| {
            let mut sql = Statements::new(conn);
            let mut registered = 0;
            for worker in workers {
                sql.run(Sql::ForgetLanes, [worker])?;
                registered += sql.run(Sql::ForgetWorker, [worker])?;
            }
            Ok(registered)
        })
    }

    /// Makes what an unregistered owner still runs claimable, in portions.
    fn requeue(&self, owner: i64, recoveries: i64) -> Result<u64, StoreError> {
        let mut requeued = 0;
        loop {
            let (rows, tally) = self.write("requeueing the executions of a worker", |conn| {
                let mut sql = Statements::new(conn);
                let mut found = Vec::new();
                let mut rows = sql.get(Sql::Requeue)?.query((owner, TAKEOVER as i64, recoveries))?;
                while let Some(row) = rows.next()? {
                    found.push((key_of(row, 0)?, row.get::<_, i64>(1)?, text(row, 2)?));
                }
                drop(rows);
                for (id, created_at, workflow) in &found {
                    // as old as they are: what was accepted first is not put behind a backlog
                    sql.insert(Table::Ready, Sql::Ready, (key(id), created_at, &**workflow))?;
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
    fn see(&self, conn: &Connection, look: &Look) -> Tried<Seen> {
        let mut sql = Statements::new(conn);
        let worker = look.worker.0;
        let mut seen = Seen { now: self.now(), ..Seen::default() };
        let epoch: Option<i64> = conn
            .prepare_cached("SELECT epoch FROM workers WHERE worker_id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        seen.is_fenced = epoch != Some(look.epoch);

        let mut statement = conn.prepare_cached(include_str!("../queries/asked.sql"))?;
        let mut rows = statement.query([worker])?;
        while let Some(row) = rows.next()? {
            seen.requests.push((key_of(row, 0)?, request_kind(row, 1)?));
        }
        drop(rows);

        let mut over = conn.prepare_cached(
            "SELECT 1 FROM executions WHERE key = ?1 AND (status >= 4 OR status = 1 AND is_paused)",
        )?;
        for id in &look.watch {
            if over.exists([key(id)])? {
                seen.ended.push(*id);
            }
        }

        if let Some(holds) = &look.holds {
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
                    seen.strays.push(read::record(&mut sql, execution)?);
                }
            }
        }

        let mut ready = conn.prepare_cached("SELECT 1 FROM ready WHERE workflow = ?1")?;
        for workflow in look.workflows.iter() {
            seen.has_ready = seen.has_ready || ready.exists([&**workflow])?;
        }

        let mut due = conn.prepare_cached(include_str!("../queries/due.sql"))?;
        let mut rows = due.query((i64::MIN, key(&Key::default()), i64::MAX, i64::MAX))?;
        while let Some(row) = rows.next()? {
            if look.workflows.contains(&text(row, 2)?) {
                seen.next_due = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        Ok(seen)
    }
}

/// Owners of executions that are not registered: left by a takeover or a close that was interrupted. Goes
/// from owner to owner, however many executions each has.
fn strange_owners(conn: &Connection) -> Tried<Vec<i64>> {
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
