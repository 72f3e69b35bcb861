//! Registered workers, waiting work and dead letters: overviews for operators.

use std::collections::HashSet;

use rusqlite::Row;
use stepfast_core::store::{
    DeadLetter, RegisteredWorker, Route, StoreError, WaitingWork, WorkerId, WorkerInfo, WorkerOverview,
};

use crate::conn::statements::Statements;
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::assignments::{read_assignments, retain_running};
use crate::rows::{foreign_text, key_of, optional_text, text, time};

impl Database {
    /// See [`Store::workers`](stepfast_core::Store::workers).
    pub(crate) fn workers(&self, limit: u64, counts_running: bool) -> Result<WorkerOverview, StoreError> {
        self.counters.add_read();
        self.read("listing workers", |conn| {
            let mut overview = WorkerOverview::default();
            let mut statement = conn.prepare_cached(include_str!("../../queries/workers.sql"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                overview.workers.push(self.registered_worker(row)?);
            }
            drop(rows);
            let mut sql = Statements::new(conn);
            for it in overview.workers.iter_mut().filter(|_| counts_running) {
                let mut running = HashSet::new();
                for assignment in read_assignments(&mut sql, it.worker.0, usize::MAX)? {
                    running.extend(retain_running(&mut sql, it.worker.0, assignment.executions)?);
                }
                it.running = running.len() as u64;
            }
            let mut statement = conn.prepare_cached(include_str!("../../queries/waiting_work.sql"))?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut rows = statement.query((self.now().as_micros(), limit))?;
            while let Some(row) = rows.next()? {
                let route = Route::from_text(&text(row, 0)?);
                overview.waiting.push(WaitingWork {
                    workflow: route.workflow().into(),
                    app_version: route.app_version().map(Into::into),
                    executions: row.get::<_, i64>(1)? as u64,
                });
            }
            Ok(overview)
        })
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

    /// See [`Store::dead_letters`](stepfast_core::Store::dead_letters).
    pub(crate) fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.counters.add_read();
        self.read("listing dead letters", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../../queries/dead_letters.sql"))?;
            let mut rows = statement.query([i64::try_from(limit).unwrap_or(i64::MAX)])?;
            let mut dead_letters = Vec::new();
            while let Some(row) = rows.next()? {
                dead_letters.push(DeadLetter {
                    id: row.get(0)?,
                    created_at: time(row, 1)?,
                    rejected_at: time(row, 2)?,
                    key: key_of(row, 3)?,
                    reason: row.get(4)?,
                    workflow: foreign_text(row, 5)?.unwrap_or_default(),
                    workflow_id: foreign_text(row, 6)?,
                    queue: foreign_text(row, 7)?,
                });
            }
            Ok(dead_letters)
        })
    }

    fn registered_worker(&self, row: &Row<'_>) -> DbResult<RegisteredWorker> {
        let worker = row.get(0)?;
        Ok(RegisteredWorker {
            worker: WorkerId(worker),
            info: WorkerInfo {
                host: row.get(1)?,
                pid: row.get(2)?,
                engine: row.get(3)?,
                app_version: optional_text(row, 4)?,
                workflows: text(row, 5)?.lines().map(Into::into).collect(),
                queues: optional_text(row, 8)?.map(|names| names.lines().map(Into::into).collect()),
                is_client: row.get(6)?,
            },
            registered_at: time(row, 7)?,
            lease_expires_at: None,
            is_alive: self.share.is_alive(worker),
            running: 0,
        })
    }
}
