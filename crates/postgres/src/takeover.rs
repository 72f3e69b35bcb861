//! Taking over what lost workers ran: two steps, each of its own, that look at what is, not at what happened.

use stepfast_core::clock::Timestamp;
use stepfast_core::store::StoreError;
use stepfast_core::write::WorkerId;
use uuid::Uuid;

use crate::apply::one;
use crate::connect::Session;
use crate::error::{Trouble, damaged};
use crate::pipeline::{self, Job, Part};
use crate::rows::Columns;
use crate::statements::Sql;
use crate::types::Instant;

/// How many executions one transaction requeues; see requeue.sql.
const CHUNK: u64 = 5_000;

/// Step one: ends a registration. After it returns true, no flush of the worker lands any more, and those
/// that were on their way have landed: it waits for them.
///
/// With `lease` given, only if the worker's lease is still that one. False if it is not, or the worker is gone, or
/// somebody else is ending it just now.
pub(crate) async fn end_registration(
    session: &Session,
    worker: WorkerId,
    lease: Option<Timestamp>,
) -> Result<bool, Trouble> {
    let lock = Job {
        sql: Sql::LockWorker,
        what: "locking a registration",
        params: vec![one(worker.0), one(lease.map(Instant))],
    };
    let locked = pipeline::run(session, Part::Begin, &[lock]).await?;
    if locked.first().is_none_or(|answer| answer.rows.is_empty()) {
        return if pipeline::roll_back(session).await {
            Ok(false)
        } else {
            Err(StoreError::Unavailable("the connection was lost".into()).into())
        };
    }
    let of_worker = |sql, what| Job { sql, what, params: vec![one(worker.0)] };
    let jobs = [
        of_worker(Sql::LockLanes, "locking lanes"),
        of_worker(Sql::BumpLanes, "fencing lanes"),
        of_worker(Sql::Unregister, "ending a registration"),
    ];
    pipeline::run(session, Part::Middle, &jobs).await?;
    stepfast_core::crash_point!("postgres fence open");
    pipeline::run(session, Part::End, &[]).await?;
    Ok(true)
}

/// Step two: makes claimable what is running under owners that have no registration, in key order. Returns
/// how many. `are_lost`: they were lost, which counts, and have not handed on what they ran. What somebody has
/// locked is left to the next look.
pub(crate) async fn requeue(
    session: &Session,
    owners: &[i64],
    are_lost: bool,
    now: Option<Timestamp>,
) -> Result<u64, Trouble> {
    let mut total = 0;
    loop {
        let job = Job {
            sql: Sql::Requeue,
            what: "requeueing executions",
            params: vec![one(owners.to_vec()), one(are_lost), one(now.map(Instant))],
        };
        let answers = pipeline::run(session, Part::Apart, &[job]).await?;
        let row =
            answers.first().and_then(|answer| answer.rows.first()).ok_or_else(|| damaged("an answer"))?;
        let count = Columns::of(row).next::<i64>()? as u64;
        total += count;
        stepfast_core::crash_point!("postgres requeued");
        if count < CHUNK {
            return Ok(total);
        }
    }
}

/// The net under waiting and waking: wakes what waits for a child that has ended, which a waker that was
/// lost before its Wake has left behind. Returns how many.
pub(crate) async fn wake_satisfied(session: &Session, now: Option<Timestamp>) -> Result<u64, Trouble> {
    let find = Job { sql: Sql::Satisfied, what: "looking for satisfied waits", params: Vec::new() };
    let found = pipeline::run(session, Part::Apart, &[find]).await?;
    let mut keys = Vec::new();
    for row in found.iter().flat_map(|answer| &answer.rows) {
        keys.push(Columns::of(row).next::<Uuid>()?);
    }
    if keys.is_empty() {
        return Ok(0);
    }
    keys.sort_unstable();
    let jobs = [
        Job {
            sql: Sql::Lock,
            what: "locking executions",
            params: vec![one(Vec::<Uuid>::new()), one(keys.clone())],
        },
        Job { sql: Sql::Wake, what: "waking executions", params: vec![one(keys), one(now.map(Instant))] },
    ];
    let answers = pipeline::run(session, Part::Whole, &jobs).await?;
    Ok(answers.get(1).map_or(0, |answer| answer.rows.len() as u64))
}
