//! Changes of queues by operators.

use stepfast_core::clock::Timestamp;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::StoreError;
use uuid::Uuid;

use crate::conn::pipeline;
use crate::conn::pipeline::{Query, param};
use crate::conn::session::Session;
use crate::conn::session::TxPart;
use crate::conn::statements::Sql;
use crate::control::{WorkerControl, keep_session};
use crate::error::{DbError, corrupt};
use crate::rows::Columns;
use crate::rows::types::Timestamptz;

impl WorkerControl {
    /// Changes a queue; see [`Store::change_queue`](stepfast_core::Store::change_queue).
    pub(crate) async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let (kept_session, session) = self.open_takeover_session().await?;
        let result = store_queue(&session, change, self.now()).await;
        keep_session(kept_session, session, result.is_ok()).await;
        result.map_err(DbError::into_store_error)
    }
}

/// Stores a queue. Returns `None` if the stored queue has another version than the change expects.
async fn store_queue(
    session: &Session,
    change: &QueueChange,
    now: Option<Timestamp>,
) -> Result<Option<QueueRow>, DbError> {
    let QueueChange { queue, is_paused, expected_version } = change.clone();
    let limits = &queue.limits;
    let version = expected_version + 1;
    let set = Query {
        sql: Sql::SetQueue,
        action: "changing a queue",
        params: vec![
            param(queue.name.to_string()),
            param(version),
            param(now.map(Timestamptz)),
            param(is_paused),
            param(limits.serializes_claims()),
            param(clamp_limit(limits.concurrency)),
            param(clamp_limit(limits.worker_concurrency)),
            param(clamp_limit(limits.key_concurrency)),
            param(clamp_limit(limits.rate.map(|rate| rate.starts))),
            param(limits.rate.map(|rate| rate.period_ms() as i64)),
            param(clamp_limit(limits.rate.and_then(|rate| rate.burst))),
            param(clamp_limit(limits.key_rate.map(|rate| rate.starts))),
            param(limits.key_rate.map(|rate| rate.period_ms() as i64)),
            param(clamp_limit(limits.key_rate.and_then(|rate| rate.burst))),
            param(clamp_limit(limits.max_depth)),
            param(limits.key_weights.to_json()),
        ],
    };
    // flushes and claims that began before have ended once the lock is held; later ones skip the queue or wait
    let lock =
        Query { sql: Sql::LockQueue, action: "locking a queue", params: vec![param(queue.name.to_string())] };
    let results = pipeline::run(session, TxPart::Begin, &[lock, set]).await?;
    let stored = results.get(1).and_then(|result| result.rows.first());
    let Some(stored) = stored else {
        // the transaction must change nothing, but the statement may have deleted the starts that count for rates
        pipeline::roll_back(session).await;
        return Ok(None);
    };
    let mut stored = Columns::new(stored);
    let (changed_at, had_slots): (_, bool) = (stored.time()?, stored.next()?);
    if limits.has_slots() && !had_slots {
        assign_slots(session, &queue.name).await?;
    }
    pipeline::run(session, TxPart::End, &[]).await?;
    Ok(Some(QueueRow { queue, is_paused, version, changed_at }))
}

/// Assigns slots to the running executions of a queue, in the transaction that has locked the queue's settings. The
/// transaction holds no lock on an execution while it waits for the lock on another one, because flushes and claims may
/// wait for this transaction.
async fn assign_slots(session: &Session, queue: &str) -> Result<(), DbError> {
    let query = |sql, params| Query { sql, action: "assigning slots of a queue", params };
    pipeline::run(session, TxPart::Middle, &[query(Sql::SavepointBeforeSlots, Vec::new())]).await?;
    loop {
        // each try has a new snapshot; the first one shows the executions of claims that held the lock before
        let assign = query(Sql::AssignSlots, vec![param(queue.to_owned())]);
        let results = pipeline::run(session, TxPart::Middle, &[assign]).await?;
        let row = results
            .first()
            .and_then(|result| result.rows.first())
            .ok_or_else(|| corrupt("a query result"))?;
        let Some(locked) = Columns::new(row).next::<Option<Uuid>>()? else { return Ok(()) };
        let wait = query(Sql::AwaitExecution, vec![param(locked)]);
        let roll_back = || query(Sql::RollBackToSavepoint, Vec::new());
        pipeline::run(session, TxPart::Middle, &[roll_back(), wait, roll_back()]).await?;
    }
}

/// Returns a limit as a column's value, capped at the column's maximum.
fn clamp_limit(limit: Option<u32>) -> Option<i32> {
    limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))
}
