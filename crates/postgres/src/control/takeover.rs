//! Taking over what lost workers ran: two steps, each of its own, that look at what is, not at what happened.

use std::collections::HashSet;
use std::ops::Range;

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{StoreError, WorkerId};
use uuid::Uuid;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::ownership;
use crate::rows::Columns;
use crate::rows::types::{Instant, uuid};
use crate::schema::known;

/// How many executions one transaction requeues; see requeue.sql.
const CHUNK: u64 = 5_000;

/// A worker whose registration was ended.
pub(crate) struct Ended {
    pub worker: WorkerId,
    /// Name of its machine.
    pub host: String,
    /// Number of its process there.
    pub pid: i64,
}

/// Step one: ends registrations. Returns which. No flush of those lands any more, and those that were on their way
/// have landed: it waits for them. What they run is in the index of owners then, for step two.
///
/// Where a lease is given, only if the worker's lease is still that one; and not if the worker is gone, or somebody
/// else is ending it just now. Where somebody has locked some of what a worker runs, its registration stays, of no use
/// to it, until a later try.
pub(crate) async fn end_registrations(
    session: &Session,
    workers: &[(WorkerId, Option<Timestamp>)],
) -> Result<Vec<Ended>, DbError> {
    let (mut fenced, mut all) = (Vec::new(), Vec::new());
    for &(worker, lease) in workers {
        match fence(session, worker, lease).await.map_err(DbError::into_store_error) {
            Ok(None) => {}
            Ok(Some((ended, window))) => {
                fenced.push((worker, window));
                all.push(ended);
            }
            // the others need not wait for it
            Err(StoreError::Blocked(reason)) if pipeline::roll_back(session).await => {
                tracing::debug!(worker = worker.0, reason, "taking over waits for the next look");
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !fenced.is_empty() {
        stepfast_core::crash_point!("postgres lost workers fenced");
    }
    for (workers, window) in ownership::merge_windows(&fenced) {
        enter(session, &workers, &window).await?;
    }
    Ok(all)
}

/// Makes all further flushes and looks of a worker fail. Returns who it was, and its window, which changes no more.
async fn fence(
    session: &Session,
    worker: WorkerId,
    lease: Option<Timestamp>,
) -> Result<Option<(Ended, Range<Key>)>, DbError> {
    let lock = Query {
        sql: Sql::LockWorker,
        action: "locking a registration",
        params: vec![param(worker.0), param(lease.map(Instant)), param(known())],
    };
    let locked = pipeline::run(session, TxPart::Begin, &[lock]).await?;
    let Some(row) = locked.first().and_then(|answer| answer.rows.first()) else {
        return if pipeline::roll_back(session).await {
            Ok(None)
        } else {
            Err(StoreError::Unavailable("the connection was lost".into()).into())
        };
    };
    let mut row = Columns::of(row);
    let window = row.key()?..row.key()?;
    let ended = Ended { worker, host: row.next()?, pid: row.next()? };
    let of_worker = |sql, what| Query { sql, action: what, params: vec![param(worker.0)] };
    let jobs = [
        of_worker(Sql::LockLanes, "locking lanes"),
        of_worker(Sql::BumpLanes, "fencing lanes"),
        of_worker(Sql::BumpWorker, "fencing a worker"),
    ];
    pipeline::run(session, TxPart::Middle, &jobs).await?;
    stepfast_core::crash_point!("postgres fence open");
    pipeline::run(session, TxPart::End, &[]).await?;
    Ok(Some((ended, window)))
}

/// Enters what these fenced workers have started in the index of owners, and ends their registrations. A registration
/// stays where somebody has locked something.
async fn enter(session: &Session, workers: &[i64], window: &Range<Key>) -> Result<(), DbError> {
    let params = vec![param(workers.to_vec()), param(uuid(window.start)), param(uuid(window.end))];
    let job = Query { sql: Sql::EnterAll, action: "entering what runs", params };
    let answers = pipeline::run(session, TxPart::Begin, &[job]).await?;
    let mut left = HashSet::new();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        left.insert(Columns::of(row).next::<i64>()?);
    }
    let done: Vec<i64> = workers.iter().copied().filter(|worker| !left.contains(worker)).collect();
    let jobs = [
        Query { sql: Sql::ForgetAllClaims, action: "forgetting claims", params: vec![param(done.clone())] },
        Query { sql: Sql::Unregister, action: "ending registrations", params: vec![param(done)] },
    ];
    pipeline::run(session, TxPart::End, &jobs).await?;
    Ok(())
}

/// Step two: makes claimable what is running under owners that have no registration, in key order. Returns
/// how many. `are_lost`: they were lost, which counts, and have not handed on what they ran. What somebody has
/// locked is left to the next look.
pub(crate) async fn requeue(
    session: &Session,
    owners: &[i64],
    are_lost: bool,
    now: Option<Timestamp>,
) -> Result<u64, DbError> {
    let mut total = 0;
    loop {
        let job = Query {
            sql: Sql::Requeue,
            action: "requeueing executions",
            params: vec![param(owners.to_vec()), param(are_lost), param(now.map(Instant))],
        };
        let answers = pipeline::run(session, TxPart::Standalone, &[job]).await?;
        let row =
            answers.first().and_then(|answer| answer.rows.first()).ok_or_else(|| corrupt("an answer"))?;
        let count = Columns::of(row).next::<i64>()? as u64;
        total += count;
        stepfast_core::crash_point!("postgres requeued");
        if count < CHUNK {
            return Ok(total);
        }
    }
}

/// The net under slots: deletes those whose execution does not run, as an older version, or an operator, has left them.
pub(crate) async fn free_stray_slots(session: &Session) -> Result<(), DbError> {
    let job = Query { sql: Sql::StraySlots, action: "freeing stray slots", params: Vec::new() };
    let answers = pipeline::run(session, TxPart::Standalone, &[job]).await?;
    if let Some(freed) = answers.first().filter(|answer| answer.affected_rows > 0) {
        tracing::warn!(rows = freed.affected_rows, "removed slots of executions that do not run");
    }
    Ok(())
}

/// The net under waiting and waking: wakes what waits for a child that has ended, which a waker that was
/// lost before its Wake has left behind. Returns how many.
pub(crate) async fn wake_satisfied(session: &Session, now: Option<Timestamp>) -> Result<u64, DbError> {
    let find = Query { sql: Sql::Satisfied, action: "looking for satisfied waits", params: Vec::new() };
    let found = pipeline::run(session, TxPart::Standalone, &[find]).await?;
    let mut keys = Vec::new();
    for row in found.iter().flat_map(|answer| &answer.rows) {
        keys.push(Columns::of(row).next::<Uuid>()?);
    }
    if keys.is_empty() {
        return Ok(0);
    }
    keys.sort_unstable();
    let jobs = [
        Query {
            sql: Sql::Lock,
            action: "locking executions",
            params: vec![param(Vec::<Uuid>::new()), param(keys.clone())],
        },
        Query { sql: Sql::Wake, action: "waking executions", params: vec![param(keys), param(now.map(Instant))] },
    ];
    let answers = pipeline::run(session, TxPart::Whole, &jobs).await?;
    Ok(answers.get(1).map_or(0, |answer| answer.rows.len() as u64))
}
