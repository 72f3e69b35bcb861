//! Who is registered, and what waits: for people.

use rusqlite::Row;
use stepfast_core::store::{DeadLetter, StoreError, WorkerOverview, WaitingWork, WorkerId, WorkerInfo, RegisteredWorker};

use crate::database::Database;
use crate::error::DbResult;
use crate::rows::{foreign_text, key_of, maybe_text, text, time};

impl Database {
    /// See [`Store::survey`](stepfast_core::Store::survey).
    pub(crate) fn survey(&self, most: u64) -> Result<WorkerOverview, StoreError> {
        self.counters.add_read();
        self.read("looking who is there", |conn| {
            let mut survey = WorkerOverview::default();
            let mut statement = conn.prepare_cached(include_str!("../../queries/workers.sql"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                survey.workers.push(self.worker(row)?);
            }
            drop(rows);
            let mut statement = conn.prepare_cached(include_str!("../../queries/waiting.sql"))?;
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let mut rows = statement.query((self.now().as_micros(), most))?;
            while let Some(row) = rows.next()? {
                let (workflow, app_version) = (text(row, 0)?, maybe_text(row, 1)?);
                let executions = row.get::<_, i64>(2)? as u64;
                survey.waiting.push(WaitingWork { workflow, app_version, executions });
            }
            Ok(survey)
        })
    }

    /// See [`Store::dead_letters`](stepfast_core::Store::dead_letters).
    pub(crate) fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.counters.add_read();
        self.read("listing dead letters", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../../queries/dead_letters.sql"))?;
            let mut rows = statement.query([i64::try_from(most).unwrap_or(i64::MAX)])?;
            let mut letters = Vec::new();
            while let Some(row) = rows.next()? {
                letters.push(DeadLetter {
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
            Ok(letters)
        })
    }

    fn worker(&self, row: &Row<'_>) -> DbResult<RegisteredWorker> {
        let worker = row.get(0)?;
        Ok(RegisteredWorker {
            worker: WorkerId(worker),
            info: WorkerInfo {
                host: row.get(1)?,
                pid: row.get(2)?,
                engine: row.get(3)?,
                app_version: maybe_text(row, 4)?,
                workflows: text(row, 5)?.lines().map(Into::into).collect(),
                queues: maybe_text(row, 8)?.map(|names| names.lines().map(Into::into).collect()),
                is_client: row.get(6)?,
            },
            registered_at: time(row, 7)?,
            lease_expires_at: None,
            is_alive: self.share.is_alive(worker),
            running: row.get::<_, i64>(9)? as u64,
        })
    }
}
