//! Takeovers of dead workers, in two independent steps. Each step only depends on the present state of the database,
//! not on earlier steps.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::PoisonError;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{StoreError, WorkerId};
use uuid::Uuid;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::{Sql, TAKEOVER_STATEMENTS};
use crate::control::WorkerControl;
use crate::control::lease_observer::TakeoverTargets;
use crate::error::{DbError, corrupt, unavailable_error};
use crate::ownership;
use crate::rows::Columns;
use crate::rows::types::{Timestamptz, to_uuid};
use crate::schema::newest_version_column;

/// The maximum number of executions that one transaction requeues; see requeue.sql.
const MAX_REQUEUED_ROWS: u64 = 5_000;

/// A worker whose registration was ended by a takeover.
pub(super) struct EndedWorker {
    pub worker: WorkerId,
    /// The name of the worker's machine.
    pub host: String,
    /// The id of the worker's process on that machine.
    pub pid: i64,
}

impl WorkerControl {
    /// Takes over a worker; see [`Store::take_over`](stepfast_core::Store::take_over).
    pub(crate) async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let targets = {
            let mut observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner);
            observers
                .get_mut(&worker)
                .map(|observer| std::mem::take(&mut observer.targets))
                .unwrap_or_default()
        };
        self.take_over_targets(targets).await
    }

    /// Runs both steps of a takeover. Work that another transaction blocks is left to the next heartbeat, which finds
    /// this work again.
    async fn take_over_targets(&self, targets: TakeoverTargets) -> Result<u64, StoreError> {
        let TakeoverTargets { expired, mut owners, is_sweep_due } = targets;
        let mut kept_session = self.takeover_session.lock().await;
        let session = self.reuse_or_open(kept_session.take(), TAKEOVER_STATEMENTS).await?;
        let result = async {
            for EndedWorker { worker, host, pid } in end_registrations(&session, &expired).await? {
                tracing::warn!(
                    worker = worker.0,
                    host,
                    pid,
                    "a worker is dead; its executions are being requeued"
                );
                owners.push(worker.0);
            }
            let recovered = match owners.as_slice() {
                [] => 0,
                owners => requeue(&session, owners, true, self.now()).await?,
            };
            if is_sweep_due || !expired.is_empty() {
                wake_satisfied(&session, self.now()).await?;
            }
            if is_sweep_due {
                delete_orphaned_slots(&session).await?;
            }
            Ok(recovered)
        };
        let result: Result<u64, DbError> = result.await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *kept_session = Some(session);
        }
        match result {
            Ok(recovered) => Ok(recovered),
            Err(error) => match error.into_store_error() {
                StoreError::Blocked(reason) => {
                    tracing::debug!(reason, "takeover blocked; trying again at the next heartbeat");
                    Ok(0)
                }
                error => Err(unavailable_error(error.into())),
            },
        }
    }

    /// Runs the first step of a takeover alone, for tests that do something between the steps: see
    /// [`end_registrations`].
    pub(crate) async fn end_registration(&self, worker: WorkerId) -> Result<bool, StoreError> {
        let mut kept_session = self.takeover_session.lock().await;
        let session = self.reuse_or_open(kept_session.take(), TAKEOVER_STATEMENTS).await?;
        let result = end_registrations(&session, &[(worker, None)]).await;
        if result.is_ok() || pipeline::roll_back(&session).await {
            *kept_session = Some(session);
        }
        result.map(|ended| !ended.is_empty()).map_err(DbError::into_store_error)
    }

    /// Runs the second step of a takeover alone: see [`requeue`].
    pub(crate) async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.take_over_targets(TakeoverTargets { owners: vec![worker.0], ..TakeoverTargets::default() }).await
    }
}

/// Ends registrations, as step one of a takeover, and returns the workers that were fenced. Waits for flushes in
/// flight; later flushes of these workers fail. Afterwards their executions are in the index of owners, for step two.
///
/// A worker with a given lease is skipped if its lease has changed. Workers that are not registered, or that another
/// transaction is ending, are skipped too. If another transaction has locked an execution of a worker, the worker stays
/// registered, but fenced, until a later try.
pub(super) async fn end_registrations(
    session: &Session,
    workers: &[(WorkerId, Option<Timestamp>)],
) -> Result<Vec<EndedWorker>, DbError> {
    let (mut fenced, mut all) = (Vec::new(), Vec::new());
    for &(worker, lease) in workers {
        match fence_worker(session, worker, lease).await.map_err(DbError::into_store_error) {
            Ok(None) => {}
            Ok(Some((ended, window))) => {
                fenced.push((worker, window));
                all.push(ended);
            }
            // other workers do not have to wait for this one
            Err(StoreError::Blocked(reason)) if pipeline::roll_back(session).await => {
                tracing::debug!(
                    worker = worker.0,
                    reason,
                    "takeover blocked; trying again at the next heartbeat"
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !fenced.is_empty() {
        stepfast_core::crash_point!("postgres dead workers fenced");
    }
    for (workers, window) in ownership::merge_windows(&fenced) {
        index_owners(session, &workers, &window).await?;
    }
    Ok(all)
}

/// Makes all further flushes and heartbeats of a worker fail. Returns the worker and its window, which no longer
/// changes. Returns `None` if the worker was skipped.
async fn fence_worker(
    session: &Session,
    worker: WorkerId,
    lease: Option<Timestamp>,
) -> Result<Option<(EndedWorker, Range<Key>)>, DbError> {
    let lock = Query {
        sql: Sql::LockWorker,
        action: "locking a registration",
        params: vec![param(worker.0), param(lease.map(Timestamptz)), param(newest_version_column())],
    };
    let locked = pipeline::run(session, TxPart::Begin, &[lock]).await?;
    let Some(row) = locked.first().and_then(|result| result.rows.first()) else {
        return if pipeline::roll_back(session).await {
            Ok(None)
        } else {
            Err(StoreError::Unavailable("the connection was lost".into()).into())
        };
    };
    let mut row = Columns::new(row);
    let window = row.key()?..row.key()?;
    let ended = EndedWorker { worker, host: row.next()?, pid: row.next()? };
    let of_worker = |sql, action| Query { sql, action, params: vec![param(worker.0)] };
    let queries = [
        of_worker(Sql::LockLanes, "locking lanes"),
        of_worker(Sql::RaiseLaneEpochs, "fencing lanes"),
        of_worker(Sql::RaiseWorkerEpoch, "fencing a worker"),
    ];
    pipeline::run(session, TxPart::Middle, &queries).await?;
    stepfast_core::crash_point!("postgres fence open");
    pipeline::run(session, TxPart::End, &[]).await?;
    Ok(Some((ended, window)))
}

/// Adds the executions of fenced workers to the index of owners, and ends their registrations. A worker stays
/// registered while another transaction has locked one of its executions.
async fn index_owners(session: &Session, workers: &[i64], window: &Range<Key>) -> Result<(), DbError> {
    let params = vec![param(workers.to_vec()), param(to_uuid(window.start)), param(to_uuid(window.end))];
    let query = Query { sql: Sql::IndexAllOwners, action: "indexing owners", params };
    let results = pipeline::run(session, TxPart::Begin, &[query]).await?;
    let mut unfinished = HashSet::new();
    for row in results.iter().flat_map(|result| &result.rows) {
        unfinished.insert(Columns::new(row).next::<i64>()?);
    }
    let done: Vec<i64> = workers.iter().copied().filter(|worker| !unfinished.contains(worker)).collect();
    let queries = [
        Query { sql: Sql::DeleteAllClaims, action: "deleting claims", params: vec![param(done.clone())] },
        Query { sql: Sql::Unregister, action: "ending registrations", params: vec![param(done)] },
    ];
    pipeline::run(session, TxPart::End, &queries).await?;
    Ok(())
}

/// Requeues, as step two of a takeover, the executions of owners without a registration, in key order. Returns the
/// number of these executions. `are_dead` is true if the owners died, which counts as a recovery, and false if they
/// closed their registrations. Rows that another transaction has locked are left to the next heartbeat.
pub(super) async fn requeue(
    session: &Session,
    owners: &[i64],
    are_dead: bool,
    now: Option<Timestamp>,
) -> Result<u64, DbError> {
    let mut total = 0;
    loop {
        let query = Query {
            sql: Sql::Requeue,
            action: "requeueing executions",
            params: vec![param(owners.to_vec()), param(are_dead), param(now.map(Timestamptz))],
        };
        let results = pipeline::run(session, TxPart::Standalone, &[query]).await?;
        let row = results
            .first()
            .and_then(|result| result.rows.first())
            .ok_or_else(|| corrupt("a query result"))?;
        let count = Columns::new(row).next::<i64>()? as u64;
        total += count;
        stepfast_core::crash_point!("postgres requeued");
        if count < MAX_REQUEUED_ROWS {
            return Ok(total);
        }
    }
}

/// Deletes slots whose execution does not run. An older version or an operator may have left such slots.
async fn delete_orphaned_slots(session: &Session) -> Result<(), DbError> {
    let query =
        Query { sql: Sql::DeleteOrphanedSlots, action: "deleting orphaned slots", params: Vec::new() };
    let results = pipeline::run(session, TxPart::Standalone, &[query]).await?;
    if let Some(deleted) = results.first().filter(|result| result.affected_rows > 0) {
        tracing::warn!(rows = deleted.affected_rows, "removed slots of executions that do not run");
    }
    Ok(())
}

/// Wakes executions that wait for a child that has ended, and returns their number. A worker that dies before it sends
/// the Wake leaves such executions behind.
pub(super) async fn wake_satisfied(session: &Session, now: Option<Timestamp>) -> Result<u64, DbError> {
    let find = Query { sql: Sql::SatisfiedWaits, action: "finding satisfied waits", params: Vec::new() };
    let found = pipeline::run(session, TxPart::Standalone, &[find]).await?;
    let mut keys = Vec::new();
    for row in found.iter().flat_map(|result| &result.rows) {
        keys.push(Columns::new(row).next::<Uuid>()?);
    }
    if keys.is_empty() {
        return Ok(0);
    }
    keys.sort_unstable();
    let queries = [
        Query {
            sql: Sql::LockExecutions,
            action: "locking executions",
            params: vec![param(Vec::<Uuid>::new()), param(keys.clone())],
        },
        Query {
            sql: Sql::Wake,
            action: "waking executions",
            params: vec![param(keys), param(now.map(Timestamptz))],
        },
    ];
    let results = pipeline::run(session, TxPart::Whole, &queries).await?;
    Ok(results.get(1).map_or(0, |result| result.rows.len() as u64))
}
