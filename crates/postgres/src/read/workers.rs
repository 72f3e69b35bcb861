//! Overviews for operators: registered workers, waiting work, and dead letters.

use stepfast_core::clock::Timestamp;
use stepfast_core::store::{
    DeadLetter, RegisteredWorker, StoreError, WaitingWork, WorkerId, WorkerInfo, WorkerOverview,
};
use tokio_postgres::Row;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::Timestamptz;

impl Reader {
    /// Lists workers; see [`Store::workers`](stepfast_core::Store::workers). `now`: the present time, or `None` for the
    /// server's.
    pub(crate) async fn workers(
        &self,
        (limit, counts_running): (u64, bool),
        now: Option<Timestamp>,
        lease_micros: i64,
    ) -> Result<WorkerOverview, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let now = now.map(Timestamptz);
        let action = "listing workers";
        let params = vec![param(now), param(lease_micros), param(counts_running)];
        let workers = Query { sql: Sql::Workers, action, params };
        let workers = self.query(workers).await?;
        let waiting = self
            .query(Query { sql: Sql::WaitingWork, action, params: vec![param(now), param(limit)] })
            .await?;
        Ok(WorkerOverview {
            workers: workers.iter().map(parse_worker).collect::<Result<_, _>>()?,
            waiting: waiting.iter().map(parse_waiting_work).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the dead workers among `workers`; see [`Store::dead_workers`](stepfast_core::Store::dead_workers).
    /// `now`: the present time, or `None` for the server's.
    pub(crate) async fn dead_workers(
        &self,
        workers: &[WorkerId],
        now: Option<Timestamp>,
        lease_micros: i64,
    ) -> Result<Vec<WorkerId>, StoreError> {
        let ids: Vec<i64> = workers.iter().map(|worker| worker.0).collect();
        let params = vec![param(ids), param(now.map(Timestamptz)), param(lease_micros)];
        let rows =
            self.query(Query { sql: Sql::DeadWorkers, action: "finding dead workers", params }).await?;
        rows.iter().map(|row| Columns::new(row).next().map(WorkerId)).collect()
    }

    /// Lists dead letters; see [`Store::dead_letters`](stepfast_core::Store::dead_letters).
    pub(crate) async fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query =
            Query { sql: Sql::DeadLetters, action: "listing dead letters", params: vec![param(limit)] };
        self.query(query).await?.iter().map(parse_dead_letter).collect()
    }
}

fn parse_dead_letter(row: &Row) -> Result<DeadLetter, StoreError> {
    let mut row = Columns::new(row);
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

fn parse_worker(row: &Row) -> Result<RegisteredWorker, StoreError> {
    let mut row = Columns::new(row);
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

fn parse_waiting_work(row: &Row) -> Result<WaitingWork, StoreError> {
    let mut row = Columns::new(row);
    Ok(WaitingWork {
        workflow: row.next::<&str>()?.into(),
        app_version: row.next::<Option<&str>>()?.map(Into::into),
        executions: row.next::<i64>()? as u64,
    })
}
