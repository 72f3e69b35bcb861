//! Renewals, and heartbeats: a worker reports to the store, and receives the changes that it must handle.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::store::{
    ExecutionId, Heartbeat, HeartbeatReply, MAX_EXPIRED, Maintenance, Renewal, StoreError, Tidying, WorkerId,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::assignments::{AssignmentRow, insert_assignment, read_assignments, retain_running};
use crate::rows::queues::{Capability, read_queue};
use crate::rows::{key_bytes, key_of, request_kind};
use crate::{read, schema};

/// Number of maintenances of a store from one sweep to the next; the first one makes a sweep due. A sweep wakes executions
/// whose child has ended without a Wake, ends complete batches, and deletes slots of executions that do not run.
const MAINTENANCES_PER_SWEEP: u64 = 60;

impl Database {
    /// See [`Store::renew`](stepfast_core::Store::renew).
    pub(crate) fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError> {
        self.check_files()?;
        // the copy of the flush count is read before the database, so that the copy is never newer
        let copied_count =
            self.share.companions.if_open().and_then(|open_files| open_files.read_flush_count());
        self.read("renewing a registration", |conn| {
            self.check_flush_count(copied_count, conn)?;
            Ok(Renewal {
                now: self.now(),
                is_fenced: read_epoch(conn, worker)? != Some(epoch),
                newer_schema: schema::find_newer_version(conn)?,
                // without hints, each renewal has its heartbeat
                has_requests: false,
                receives_hints: false,
            })
        })
    }

    /// See [`Store::maintain`](stepfast_core::Store::maintain).
    pub(crate) fn maintain(&self, worker: WorkerId, epoch: i64) -> Result<Maintenance, StoreError> {
        match self.tidy_assignments(worker.0, epoch) {
            // the next maintenance makes the same changes
            Err(StoreError::Unavailable(reason)) => tracing::debug!(reason, "cannot tidy assignments"),
            result => result?,
        }
        let is_sweep = self.maintenances.fetch_add(1, SeqCst).is_multiple_of(MAINTENANCES_PER_SWEEP);
        self.is_sweep_due.fetch_or(is_sweep, SeqCst);
        let dead = self.read("looking for dead workers", |conn| self.find_dead_workers(conn, worker.0))?;
        let has_dead_workers = !dead.is_empty() || self.is_sweep_due.load(SeqCst);
        Ok(Maintenance { has_dead_workers, ..Maintenance::default() })
    }

    /// See [`Store::heartbeat`](stepfast_core::Store::heartbeat).
    pub(crate) fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.share.check_for_peers();
        self.read("reading a heartbeat", |conn| self.read_heartbeat_reply(conn, heartbeat))
    }

    /// Deletes and merges assignments of which no execution, or few executions, still run.
    fn tidy_assignments(&self, worker: i64, epoch: i64) -> Result<(), StoreError> {
        let id = WorkerId(worker);
        let Some(Tidying { merged, deleted }) = self.assignments.begin_tidying(id) else { return Ok(()) };
        self.write("tidying assignments", |conn| {
            let mut sql = Statements::new(conn);
            // a takeover relies on the assignments of a fenced worker
            if !sql.exists(Sql::HasEpoch, (worker, epoch))? {
                return Ok(());
            }
            if let Some((id, executions)) = &merged {
                insert_assignment(&mut sql, worker, *id, executions)?;
            }
            for id in &deleted {
                sql.run(Sql::DeleteAssignment, (worker, id.lane, id.number))?;
            }
            Ok(())
        })?;
        self.assignments.end_tidying(id);
        Ok(())
    }

    /// Reads the reply to a heartbeat from one snapshot of the database.
    fn read_heartbeat_reply(&self, conn: &Connection, heartbeat: &Heartbeat) -> DbResult<HeartbeatReply> {
        let mut sql = Statements::new(conn);
        let worker = heartbeat.worker.0;
        let mut reply = HeartbeatReply { now: self.now(), ..HeartbeatReply::default() };
        reply.is_fenced = read_epoch(conn, heartbeat.worker)? != Some(heartbeat.epoch);

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
            // a later assignment of an execution may exist beside its first one
            let mut unheld = BTreeSet::new();
            for AssignmentRow { id, executions } in read_assignments(&mut sql, worker, usize::MAX)? {
                let (known, rest): (Vec<Key>, Vec<Key>) =
                    executions.iter().partition(|key| held.contains(key));
                // an execution that is held need not be looked up
                let mut running = retain_running(&mut sql, worker, rest)?;
                if running.is_empty() {
                    continue;
                }
                unheld.extend(running.iter().copied());
                // no claim and no flush is under way whose executions are not held
                running.extend(retain_running(&mut sql, worker, known)?);
                self.assignments.adopt(heartbeat.worker, id, running);
            }
            for id in unheld {
                if let Some(execution) = read::find_execution(&mut sql, &ExecutionId::Key(id), true)? {
                    reply.unheld.push(read::load_record(&mut sql, execution, false)?);
                }
            }
        }

        let capability = Capability {
            workflows: &heartbeat.workflows,
            app_version: heartbeat.app_version.as_deref(),
            queues: heartbeat.queues.as_deref(),
        };
        reply.has_ready = sql.exists(Sql::InboxRows, [1])?;
        for route in capability.routes(&mut sql, Sql::NextReadyRoute)? {
            reply.has_ready =
                reply.has_ready || !read_queue(&mut sql, route.queue())?.is_some_and(|row| row.is_paused);
        }

        for (workflow, version) in capability.quarantine_versions(&mut sql)? {
            let mut rows = sql.get(Sql::QuarantineCandidates)?.query((i64::MAX, &*workflow, &*version))?;
            if let Some(row) = rows.next()? {
                let trial_at = Timestamp::from_micros(row.get(0)?);
                reply.quarantined_until = reply.quarantined_until.into_iter().chain([trial_at]).min();
            }
        }

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

        for route in capability.routes(&mut sql, Sql::NextTimerRoute)? {
            let (first, no_key) = (i64::MIN, Key::default());
            let params = (route.as_str(), first, key_bytes(&no_key), i64::MAX, 1);
            let due_at = sql.get(Sql::DueTimers)?.query_row(params, |row| row.get(0)).optional()?;
            reply.next_due = reply.next_due.into_iter().chain(due_at.map(Timestamp::from_micros)).min();
        }
        Ok(reply)
    }
}

/// Returns the epoch of a registration; `None` if the worker is not registered.
fn read_epoch(conn: &Connection, worker: WorkerId) -> DbResult<Option<i64>> {
    let mut statement = conn.prepare_cached("SELECT epoch FROM workers WHERE worker_id = ?1")?;
    Ok(statement.query_row([worker.0], |row| row.get(0)).optional()?)
}
