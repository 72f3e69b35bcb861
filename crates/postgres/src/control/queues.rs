//! Queues: how an operator changes them.

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{QueueChange, QueueRow};
use uuid::Uuid;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::TxPart;
use crate::conn::session::Session;
use crate::conn::statements::Sql;
use crate::error::{DbError, corrupt};
use crate::rows::Columns;
use crate::rows::types::Instant;

/// Stores a queue, if it is as whoever changes it has seen it.
pub(crate) async fn change(
    session: &Session,
    change: &QueueChange,
    now: Option<Timestamp>,
) -> Result<Option<QueueRow>, DbError> {
    let QueueChange { queue, is_paused, expected_version: seen_version } = change.clone();
    let limits = &queue.limits;
    let version = seen_version + 1;
    let set = Query {
        sql: Sql::SetQueue,
        action: "changing a queue",
        params: vec![
            param(queue.name.to_string()),
            param(version),
            param(now.map(Instant)),
            param(is_paused),
            param(limits.serializes_claims()),
            param(number(limits.concurrency)),
            param(number(limits.worker_concurrency)),
            param(number(limits.key_concurrency)),
            param(number(limits.rate.map(|rate| rate.starts))),
            param(limits.rate.map(|rate| rate.period_ms() as i64)),
            param(number(limits.rate.and_then(|rate| rate.burst))),
            param(number(limits.key_rate.map(|rate| rate.starts))),
            param(limits.key_rate.map(|rate| rate.period_ms() as i64)),
            param(number(limits.key_rate.and_then(|rate| rate.burst))),
            param(number(limits.max_depth)),
            param(limits.key_weights.to_json()),
        ],
    };
    let answers = pipeline::run(session, TxPart::Begin, &[set]).await?;
    let stored = answers.first().and_then(|answer| answer.rows.first());
    let Some(stored) = stored else {
        // nothing of it may stay: its rates might have begun anew
        pipeline::roll_back(session).await;
        return Ok(None);
    };
    let mut stored = Columns::of(stored);
    let (changed_at, had_slots): (_, bool) = (stored.time()?, stored.next()?);
    if limits.has_slots() && !had_slots {
        give_slots(session, &queue.name).await?;
    }
    pipeline::run(session, TxPart::End, &[]).await?;
    Ok(Some(QueueRow { queue, is_paused, version, changed_at }))
}

/// Gives slots to what runs of a queue, in the transaction that has locked its row. No lock on an execution is held while
/// another one is waited for: flushes and claims may wait for this transaction meanwhile.
async fn give_slots(session: &Session, queue: &str) -> Result<(), DbError> {
    let job = |sql, params| Query { sql, action: "counting what runs of a queue", params };
    pipeline::run(session, TxPart::Middle, &[job(Sql::BeforeSlots, Vec::new())]).await?;
    loop {
        // a fresh snapshot: it shows what claims have taken for which the row was waited for
        let give = job(Sql::RunningIn, vec![param(queue.to_owned())]);
        let answers = pipeline::run(session, TxPart::Middle, &[give]).await?;
        let row =
            answers.first().and_then(|answer| answer.rows.first()).ok_or_else(|| corrupt("an answer"))?;
        let Some(busy) = Columns::of(row).next::<Option<Uuid>>()? else { return Ok(()) };
        let wait = job(Sql::AwaitExecution, vec![param(busy)]);
        let take_back = || job(Sql::TakeSlotsBack, Vec::new());
        pipeline::run(session, TxPart::Middle, &[take_back(), wait, take_back()]).await?;
    }
}

fn number(limit: Option<u32>) -> Option<i32> {
    limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))
}
