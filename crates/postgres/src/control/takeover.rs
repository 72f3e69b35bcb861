//! Takeovers of dead workers, in two independent steps. Each step only depends on the present state of the database,
//! not on earlier steps.

use std::collections::VecDeque;
use std::sync::PoisonError;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{StoreError, WorkerId};

use crate::changes::Changes;
use crate::conn::batches::{complete_batches_query, end_batches_query, parse_ended_batches};
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, QueryResult, param};
use crate::conn::row_counts::single_row;
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::control::lease_observer::TakeoverTargets;
use crate::control::{WorkerControl, keep_session};
use crate::error::{DbError, corrupt, unavailable_error};
use crate::rows::Columns;
use crate::rows::types::{Timestamptz, to_uuid};
use crate::schema::newest_version_column;

/// A worker that was fenced.
pub(super) struct FencedWorker {
    pub worker: WorkerId,
    /// The name of the worker's machine.
    pub host: String,
    /// The id of the worker's process on that machine.
    pub pid: i64,
    /// Whether the worker only called the store, and ran no executions.
    pub is_client: bool,
}

/// The maximum number of dead workers that one transaction fences, or whose executions it requeues.
const MAX_WORKERS_AT_ONCE: usize = 50;

impl WorkerControl {
    /// Takes over dead workers; see [`Store::take_over`](stepfast_core::Store::take_over). Returns the number of requeued
    /// executions. Adds the executions that have become ready, and the batches that have ended, to `changes`, also before
    /// an error.
    pub(crate) async fn take_over(&self, worker: WorkerId, changes: &mut Changes) -> Result<u64, StoreError> {
        let targets = {
            let mut observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner);
            observers
                .get_mut(&worker)
                .map(|observer| std::mem::take(&mut observer.targets))
                .unwrap_or_default()
        };
        self.take_over_targets(targets, changes).await
    }

    /// Runs both steps of a takeover for each worker. Work that another transaction blocks is left to the next heartbeat:
    /// the worker stays registered, with an expired lease, until all of its executions are requeued.
    async fn take_over_targets(
        &self,
        targets: TakeoverTargets,
        changes: &mut Changes,
    ) -> Result<u64, StoreError> {
        let TakeoverTargets { expired, is_sweep_due } = targets;
        let (kept_session, session) = self.open_takeover_session().await?;
        let mut recovered = 0;
        let result = async {
            let fenced = fence_workers(&session, &expired, true).await?;
            for FencedWorker { worker, host, pid, .. } in &fenced {
                tracing::warn!(
                    worker = worker.0,
                    host,
                    pid,
                    "a worker is dead; its executions are being requeued"
                );
            }
            let fenced: Vec<WorkerId> = fenced.iter().map(|fenced| fenced.worker).collect();
            requeue_all(&session, &fenced, self.now(), &mut recovered).await?;
            // one sweep is enough for all workers of a schema
            let is_sweeping = is_sweep_due && begin_sweep(&session, self.now()).await?;
            if is_sweeping || !expired.is_empty() {
                wake_satisfied(&session, self.now(), changes).await?;
            }
            if is_sweeping {
                delete_orphaned_slots(&session).await?;
            }
            Ok(())
        };
        let result: Result<(), DbError> = result.await;
        if recovered > 0 {
            changes.merge(Changes::ready(recovered));
        }
        keep_session(kept_session, session, result.is_ok()).await;
        match result {
            Ok(()) => Ok(recovered),
            Err(error) => match error.into_store_error() {
                StoreError::Blocked(reason) => {
                    tracing::debug!(reason, "takeover blocked; trying again at the next heartbeat");
                    Ok(recovered)
                }
                error => Err(unavailable_error(error.into())),
            },
        }
    }

    /// Runs the first step of a takeover alone, for tests that do something between the steps: see [`fence_workers`].
    pub(crate) async fn fence(&self, worker: WorkerId) -> Result<bool, StoreError> {
        let (kept_session, session) = self.open_takeover_session().await?;
        let result = fence_workers(&session, &[(worker, None)], true).await;
        keep_session(kept_session, session, result.is_ok()).await;
        result.map(|fenced| !fenced.is_empty()).map_err(DbError::into_store_error)
    }

    /// Runs the second step of a takeover alone: see [`requeue`].
    pub(crate) async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let (kept_session, session) = self.open_takeover_session().await?;
        let mut count = 0;
        let result = requeue(&session, worker, true, self.now(), &mut count).await;
        keep_session(kept_session, session, result.is_ok()).await;
        result.map(|()| count).map_err(DbError::into_store_error)
    }
}

/// Fences workers, as step one of a takeover, and returns those that were fenced. Waits for flushes in flight; later
/// flushes, claims and heartbeats of these workers fail. So their assignments no longer change, except by step two.
///
/// A worker with a given lease is skipped if its lease has changed. Workers that are not registered, or that another
/// transaction is fencing, are skipped too. The fence of a dead worker ends its lease, so that any other worker may finish
/// an interrupted takeover at once. A worker that is closing keeps its lease: it requeues its executions itself.
pub(super) async fn fence_workers(
    session: &Session,
    workers: &[(WorkerId, Option<Timestamp>)],
    are_dead: bool,
) -> Result<Vec<FencedWorker>, DbError> {
    let mut fenced = Vec::new();
    let mut groups: VecDeque<_> = workers.chunks(MAX_WORKERS_AT_ONCE).collect();
    while let Some(group) = groups.pop_front() {
        match fence_group(session, group, are_dead).await.map_err(DbError::into_store_error) {
            Ok(of_group) => fenced.extend(of_group),
            // other workers do not have to wait for this one
            Err(StoreError::Blocked(reason)) if pipeline::roll_back(session).await => {
                if let [(worker, _)] = group {
                    log_blocked(*worker, &reason);
                } else {
                    groups.extend(group.chunks(1));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !fenced.is_empty() {
        stepfast_core::crash_point!("postgres dead workers fenced");
    }
    Ok(fenced)
}

/// Makes all further flushes, claims and heartbeats of some workers fail, in one transaction.
async fn fence_group(
    session: &Session,
    workers: &[(WorkerId, Option<Timestamp>)],
    are_dead: bool,
) -> Result<Vec<FencedWorker>, DbError> {
    let lock = |(worker, lease): &(WorkerId, Option<Timestamp>)| Query {
        sql: Sql::LockWorker,
        action: "locking a registration",
        params: vec![param(worker.0), param(lease.map(Timestamptz)), param(newest_version_column())],
    };
    let locks: Vec<Query<'_>> = workers.iter().map(lock).collect();
    let locked = pipeline::run(session, TxPart::Begin, &locks).await?;
    let mut fenced = Vec::new();
    let mut queries = Vec::new();
    for ((worker, _), locked) in workers.iter().zip(&locked) {
        let Some(row) = locked.rows.first() else { continue };
        let mut row = Columns::new(row);
        fenced.push(FencedWorker {
            worker: *worker,
            host: row.next()?,
            pid: row.next()?,
            is_client: row.next()?,
        });
        let of_worker = |sql, action| Query { sql, action, params: vec![param(worker.0)] };
        queries.extend([
            of_worker(Sql::LockLanes, "locking lanes"),
            of_worker(Sql::RaiseLaneEpochs, "fencing lanes"),
            Query {
                sql: Sql::RaiseWorkerEpoch,
                action: "fencing a worker",
                params: vec![param(worker.0), param(are_dead)],
            },
        ]);
    }
    pipeline::run(session, TxPart::Middle, &queries).await?;
    stepfast_core::crash_point!("postgres fence open");
    pipeline::run(session, TxPart::End, &[]).await?;
    Ok(fenced)
}

/// Requeues the executions of fenced workers that are dead, as step two of a takeover, and ends their registrations. Adds the
/// number of the executions to `total`, also before an error. Workers with few executions share a transaction: when hundreds
/// die at once, their executions must not wait for hundreds of flushes of the log, nor become ready in small portions that
/// all other workers compete for.
async fn requeue_all(
    session: &Session,
    workers: &[WorkerId],
    now: Option<Timestamp>,
    total: &mut u64,
) -> Result<(), DbError> {
    for group in workers.chunks(MAX_WORKERS_AT_ONCE) {
        let mut rest = group.to_vec();
        if group.len() > 1 {
            let limit = MAX_REQUEUED / MAX_WORKERS_AT_ONCE as i64;
            let queries: Vec<Query<'_>> =
                group.iter().flat_map(|worker| requeue_queries(*worker, true, now, limit, (-1, 0))).collect();
            match send_requeue(session, TxPart::Whole, &queries).await {
                Ok(results) => {
                    rest.clear();
                    for (worker, results) in group.iter().zip(results.chunks(2)) {
                        let [requeued, unregistered] = results else {
                            return Err(corrupt("a query result").into());
                        };
                        *total += Columns::new(single_row(requeued)?).next::<i64>()? as u64;
                        if unregistered.affected_rows == 0 {
                            rest.push(*worker);
                        }
                    }
                }
                // one of them may need more time, or have a locked row
                Err(_) if pipeline::roll_back(session).await => {}
                Err(error) => return Err(error),
            }
        }
        for worker in rest {
            let blocked = match requeue(session, worker, true, now, total).await {
                Ok(()) => continue,
                Err(DbError::Cancelled(reason)) => reason,
                Err(error) => match error.into_store_error() {
                    StoreError::Blocked(reason) => reason,
                    error => return Err(error.into()),
                },
            };
            // other workers do not have to wait for this one
            log_blocked(worker, &blocked);
            if !pipeline::roll_back(session).await {
                return Err(StoreError::Unavailable(blocked).into());
            }
        }
    }
    Ok(())
}

fn log_blocked(worker: WorkerId, reason: &str) {
    tracing::debug!(worker = worker.0, reason, "takeover blocked; trying again at the next heartbeat");
}

/// Returns the queries that requeue executions of a worker by the assignments after `position`, and end the registration
/// of a worker without assignments.
fn requeue_queries(
    worker: WorkerId,
    is_dead: bool,
    now: Option<Timestamp>,
    limit: i64,
    (lane, number): (i16, i64),
) -> [Query<'static>; 2] {
    let now = now.map(Timestamptz);
    let params = vec![param(worker.0), param(is_dead), param(now), param(limit), param(lane), param(number)];
    [
        Query { sql: Sql::Requeue, action: "requeueing executions", params },
        Query { sql: Sql::Unregister, action: "ending registrations", params: vec![param(worker.0)] },
    ]
}

async fn send_requeue(
    session: &Session,
    part: TxPart,
    queries: &[Query<'_>],
) -> Result<Vec<QueryResult>, DbError> {
    let results = pipeline::run(session, part, queries).await?;
    stepfast_core::crash_point!("postgres requeued");
    Ok(results)
}

/// The maximum number of executions that one statement requeues. If the statement exceeds its time limit, because the
/// executions have recorded very much, it is repeated with an eighth.
const MAX_REQUEUED: i64 = 5_000;

/// Requeues the executions of a fenced worker, as step two of a takeover, and ends its registration. Adds the number of the
/// executions to `total`, also before an error. `is_dead` is true if the worker died, which counts as a recovery, and false
/// if it closed its registration. The worker stays registered while another transaction has locked one of its executions.
pub(super) async fn requeue(
    session: &Session,
    worker: WorkerId,
    is_dead: bool,
    now: Option<Timestamp>,
    total: &mut u64,
) -> Result<(), DbError> {
    let mut limit = MAX_REQUEUED;
    // lane and number of the assignment after which the next statement begins
    let mut position: (i16, i64) = (-1, 0);
    loop {
        let [requeue, unregister] = requeue_queries(worker, is_dead, now, limit, position);
        let results = match send_requeue(session, TxPart::Standalone, &[requeue]).await {
            Err(DbError::Cancelled(reason)) if limit > 1 && pipeline::roll_back(session).await => {
                limit = (limit / 8).max(1);
                tracing::warn!(reason, limit, "requeueing again with fewer executions at a time");
                continue;
            }
            results => results?,
        };
        let requeued = results.first().ok_or_else(|| corrupt("a query result"))?;
        let mut row = Columns::new(single_row(requeued)?);
        let (count, ended): (i64, i64) = (row.next()?, row.next()?);
        let last: (Option<i16>, Option<i64>) = (row.next()?, row.next()?);
        // counted before anything else may fail
        *total += count as u64;
        let ended_registrations = pipeline::run(session, TxPart::Standalone, &[unregister]).await?;
        if ended_registrations.iter().any(|result| result.affected_rows > 0) {
            return Ok(());
        }
        if count == 0 && ended == 0 {
            // other transactions have locked all that is left of the examined assignments
            let (Some(lane), Some(number)) = last else { return Ok(()) };
            position = (lane, number);
        }
    }
}

/// Begins a sweep. Returns false if another worker has begun one within the last minute.
async fn begin_sweep(session: &Session, now: Option<Timestamp>) -> Result<bool, DbError> {
    let params = vec![param(now.map(Timestamptz))];
    let query = Query { sql: Sql::BeginSweep, action: "beginning a sweep", params };
    let results = pipeline::run(session, TxPart::Standalone, &[query]).await?;
    Ok(results.first().is_some_and(|result| result.affected_rows > 0))
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

/// Wakes executions that wait for a child that has ended, ends batches of which nothing is left to run, and adds both to
/// `changes`. A worker that dies before it sends the Wakes leaves such executions behind.
pub(super) async fn wake_satisfied(
    session: &Session,
    now: Option<Timestamp>,
    changes: &mut Changes,
) -> Result<(), DbError> {
    let may_have_ended = wake_parents(session, now, changes).await?;
    if may_have_ended && end_batches(session, now, changes).await? {
        // parents of these batches may wait for them
        wake_parents(session, now, changes).await?;
    }
    Ok(())
}

/// Wakes executions that wait for a child that has ended. Returns whether there are closed batches, which may have to be
/// ended.
async fn wake_parents(
    session: &Session,
    now: Option<Timestamp>,
    changes: &mut Changes,
) -> Result<bool, DbError> {
    let find = Query { sql: Sql::SatisfiedWaits, action: "finding satisfied waits", params: Vec::new() };
    let found = pipeline::run(session, TxPart::Begin, &[find]).await?;
    let (batches, keys): (Vec<Key>, Vec<Key>) =
        parse_keys(&found)?.into_iter().partition(|key| key.is_batch());
    let keys = keys.into_iter().map(to_uuid).collect::<Vec<_>>();
    let params = vec![param(keys), param(now.map(Timestamptz))];
    let wake = Query { sql: Sql::Wake, action: "waking executions", params };
    let results = pipeline::run(session, TxPart::End, &[wake]).await?;
    let row = single_row(results.first().ok_or_else(|| corrupt("a query result"))?)?;
    let woken = Columns::new(row).next::<i64>()?.unsigned_abs();
    if woken > 0 {
        changes.merge(Changes::ready(woken));
    }
    Ok(!batches.is_empty())
}

/// The maximum number of batches that one statement checks.
const MAX_CHECKED_BATCHES: usize = 5_000;

/// Ends the batches of which nothing is left to run, and adds them to `changes`. Returns whether there were any.
async fn end_batches(
    session: &Session,
    now: Option<Timestamp>,
    changes: &mut Changes,
) -> Result<bool, DbError> {
    let (mut last_checked, mut has_ended) = (Key::default(), false);
    loop {
        let params = vec![param(to_uuid(last_checked)), param(MAX_CHECKED_BATCHES as i64)];
        let find = Query { sql: Sql::ClosedBatches, action: "finding closed batches", params };
        let closed = parse_keys(&pipeline::run(session, TxPart::Standalone, &[find]).await?)?;
        let Some(last) = closed.last() else { return Ok(has_ended) };
        last_checked = *last;
        let complete = pipeline::run(session, TxPart::Begin, &[complete_batches_query(&closed)]).await?;
        let complete = parse_keys(&complete)?;
        let end = (!complete.is_empty()).then(|| end_batches_query(&complete, now));
        for ended in &pipeline::run(session, TxPart::End, end.as_slice()).await? {
            for key in parse_ended_batches(ended)? {
                has_ended = true;
                changes.add_ended(key);
            }
        }
        if closed.len() < MAX_CHECKED_BATCHES {
            return Ok(has_ended);
        }
    }
}

/// Reads the keys in the first columns of rows.
fn parse_keys(results: &[QueryResult]) -> Result<Vec<Key>, StoreError> {
    results.iter().flat_map(|result| &result.rows).map(|row| Columns::new(row).key()).collect()
}
