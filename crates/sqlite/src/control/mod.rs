//! Control of workers: registrations, the heartbeat once a second, takeovers of dead workers, and changes of queues.

mod graphs;
mod heartbeat;
mod queues;
mod takeover;

use std::sync::atomic::Ordering::SeqCst;

use rusqlite::params;
use stepfast_core::store::{Registration, StoreError, WorkerId, WorkerInfo};

use crate::database::{Database, TURN_TIMEOUT};
use crate::error::DbResult;
use crate::schema;

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
                let reason = format!("cannot lock byte {worker} of the presence file: {error}");
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
                // if the registration was committed all the same, the store contains a dead worker without executions
                if let Some(worker) = locked_worker {
                    self.share.release_presence(worker);
                }
                Err(error)
            }
        }
    }

    /// Ends a registration. The presence lock of the worker is released even after an error: then other workers take it
    /// over.
    pub(crate) fn close(&self, worker: i64) -> Result<(), StoreError> {
        let closed = self.end_registration(worker);
        // after the fence, since a flush before it records its assignment
        self.assignments.remove_worker(WorkerId(worker));
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
            stepfast_core::crash_point!("sqlite registration closed");
            self.requeue(worker, false)?;
            // the last Wakes of the worker may have been fenced
            self.wake_satisfied()?;
            self.share.announce_commit(self.listener.id);
        }
        Ok(())
    }
}
