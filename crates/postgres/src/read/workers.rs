//! Who is registered, and what waits: for people.

use stepfast_core::clock::Timestamp;
use stepfast_core::store::{DeadLetter, StoreError, WorkerOverview, WaitingWork, WorkerId, WorkerInfo, RegisteredWorker};
use tokio_postgres::Row;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::Instant;

impl Reader {
    /// See [`Store::survey`](stepfast_core::Store::survey); by the time `now`, or the server's.
    pub(crate) async fn survey(
        &self,
        most: u64,
        now: Option<Timestamp>,
        lease_micros: i64,
    ) -> Result<WorkerOverview, StoreError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let now = now.map(Instant);
        let what = "looking who is there";
        let workers = Query { sql: Sql::Workers, action: what, params: vec![param(now), param(lease_micros)] };
        let workers = self.ask(workers).await?;
        let waiting = self.ask(Query { sql: Sql::Waiting, action: what, params: vec![param(now), param(most)] }).await?;
        Ok(WorkerOverview {
            workers: workers.iter().map(worker).collect::<Result<_, _>>()?,
            waiting: waiting.iter().map(waits).collect::<Result<_, _>>()?,
        })
    }
}

impl Reader {
    /// See [`Store::dead_letters`](stepfast_core::Store::dead_letters).
    pub(crate) async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let job = Query { sql: Sql::DeadLetters, action: "listing dead letters", params: vec![param(most)] };
        self.ask(job).await?.iter().map(dead_letter).collect()
    }
}

fn dead_letter(row: &Row) -> Result<DeadLetter, StoreError> {
    let mut row = Columns::of(row);
    Ok(DeadLetter {
        id: row.next()?,
        created_at: row.time()?,
        rejected_at: row.time()?,
        key: row.key()?,
        reason: row.next()?,
        workflow: row.next()?,
        workflow_id: row.next()?,
        queue: row.next()?,
    })
}

fn worker(row: &Row) -> Result<RegisteredWorker, StoreError> {
    let mut row = Columns::of(row);
    Ok(RegisteredWorker {
        worker: WorkerId(row.next()?),
        info: WorkerInfo {
            host: row.next()?,
            pid: u32::try_from(row.next::<i64>()?).unwrap_or_default(),
            engine: row.next()?,
            app_version: row.next::<Option<&str>>()?.map(Into::into),
            workflows: row.next::<Vec<&str>>()?.into_iter().map(Into::into).collect(),
            queues: row.next::<Option<Vec<&str>>>()?.map(|names| names.into_iter().map(Into::into).collect()),
            is_client: row.next()?,
        },
        registered_at: row.time()?,
        lease_expires_at: row.opt_time()?,
        is_alive: row.next()?,
        running: row.next::<i64>()? as u64,
    })
}

fn waits(row: &Row) -> Result<WaitingWork, StoreError> {
    let mut row = Columns::of(row);
    Ok(WaitingWork {
        workflow: row.next::<&str>()?.into(),
        app_version: row.next::<Option<&str>>()?.map(Into::into),
        executions: row.next::<i64>()? as u64,
    })
}
