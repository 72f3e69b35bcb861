//! Flushes: each is one transaction on the connection of its lane, usually in one round trip.

pub(crate) mod apply;
mod batches;
mod bundles;
pub(crate) mod depth;
mod reports;
pub(crate) mod request;
pub(crate) mod starts;

use stepfast_core::store::counters::Counters;
use stepfast_core::store::{Assignments, Flush, Outcome, StoreError, starting_keys};

use crate::changes::Changes;
use crate::conn::batches::parse_ended_batches;
use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::{Query, QueryResult, discard_plans};
use crate::conn::row_counts::{count_changes, single_row};
use crate::conn::session::{Session, TxPart};
use crate::conn::statements::{FLUSH_STATEMENTS, Sql};
use crate::error::{DbError, corrupt, unavailable_error};
use crate::flush::apply::FlushPlan;
use crate::flush::depth::{DepthCheck, LimitedQueues, QueueEntries};
use crate::flush::reports::{parse_kept_reports, read_outcomes, read_reports};
use crate::flush::request::LockedRows;
use crate::lane::{Lane, LanePosition, Lanes, lost_history};
use crate::rows::Columns;

/// The maximum number of tries of a flush. A flush whose last try conflicts with another transaction counts as blocked.
const MAX_TRIES: usize = 4;

/// The maximum number of times that the epoch of a lane may be raised under one registration. The epoch of a new
/// registration is a multiple of 2^20.
const MAX_TAKEOVERS: i64 = (1 << 20) - 1;

/// The maximum number of rounds that lock newly found descendants of a cancelled execution. After the last round the
/// flush starts over.
const MAX_LOCK_ROUNDS: usize = 8;

/// The outcomes of a durable flush, each with the index of its Write, and the changes by its Wakes and requests.
pub(crate) type Committed = (Vec<(usize, Outcome)>, Changes);

/// Applies a flush; see [`Store::commit`](stepfast_core::Store::commit).
pub(crate) async fn commit(
    connector: &Connector,
    lanes: &Lanes,
    assignments: &Assignments,
    limited_queues: &LimitedQueues,
    counters: &Counters,
    flush: &Flush,
) -> Result<Committed, StoreError> {
    let shared_lane = lanes.shared_lane(flush.worker, flush.lane);
    let mut kept_lane = shared_lane.lock().await;
    let mut plan = FlushPlan::new(flush);
    let claim = lanes.last_claim(flush.worker);
    let (mut tries, mut unexplained_errors) = (0, 0);
    loop {
        let mut lane =
            Lane::open(connector, kept_lane.take(), (flush.worker, flush.lane), FLUSH_STATEMENTS).await?;
        if !plan.starts.rejected.is_empty() {
            // the queues may have capacity by now
            plan = FlushPlan::new(flush);
        }
        let claim = lane.unseen_claim(claim.clone());
        let result =
            try_commit(connector, &mut lane, claim.as_ref(), limited_queues, counters, flush, &mut plan)
                .await;
        let is_clean = result.is_ok() || pipeline::roll_back(&lane.session).await;
        let result = match result {
            // the fence did not match: the lane's row shows the reason
            Err(DbError::Fenced) if is_clean => {
                resolve_failed_fence(&lane, claim.as_ref(), flush, &plan).await.map_err(outcome_unknown)
            }
            Err(DbError::Fenced) => {
                let reason = "the connection was lost before the reason for the failed fence was read";
                Err(StoreError::Unavailable(reason.into()).into())
            }
            result => result,
        };
        if result.is_ok() {
            lanes.record_durable(flush.worker, flush.lane, flush.number, lane.ctid_hint());
        }
        let is_table_locked = is_clean
            && flush.is_bisecting
            && flush.writes.len() == 1
            && matches!(result, Err(DbError::Store(StoreError::Blocked(_))))
            && is_table_locked(&lane.session).await;
        if is_clean && lane.is_usable() {
            *kept_lane = Some(lane);
        }
        tries += 1;
        match result {
            Ok((outcomes, changes)) => {
                assignments.record_flush(flush, &outcomes);
                return Ok((outcomes, changes));
            }
            Err(DbError::DepthLimited) if tries < MAX_TRIES => {
                limited_queues.assume_limited(&QueueEntries::from_flush(flush));
            }
            Err(DbError::Retry(reason)) if tries < MAX_TRIES => {
                tracing::debug!(lane = flush.lane, number = flush.number, reason, "retrying a flush");
            }
            // A retry on a new session shows whether the old session caused the error. While a rejected flush is being
            // split, the retry of the whole flush has shown this already. A single Write is blamed only after two
            // errors.
            Err(DbError::Unexplained(reason))
                if unexplained_errors == 0 && (!flush.is_bisecting || flush.writes.len() == 1) =>
            {
                unexplained_errors += 1;
                tracing::warn!(
                    lane = flush.lane,
                    number = flush.number,
                    reason,
                    "retrying a flush on a new session"
                );
            }
            Err(error) => {
                let error = match error {
                    DbError::Unexplained(reason) => StoreError::Rejected(reason),
                    // the time limit may have cancelled the statement; a smaller part of the flush may take less time
                    DbError::Cancelled(reason) => StoreError::Blocked(reason),
                    other => match other.into_store_error() {
                        StoreError::Blocked(reason) if is_table_locked => StoreError::TableLocked(reason),
                        error => error,
                    },
                };
                if matches!(error, StoreError::Fenced) {
                    *kept_lane = None;
                }
                return Err(error);
            }
        }
    }
}

/// Whether another transaction has locked a table of the schema against writes, or waits to do so. False if the server
/// does not reply.
async fn is_table_locked(session: &Session) -> bool {
    let query = Query { sql: Sql::IsTableLocked, action: "looking for locks on tables", params: Vec::new() };
    let results = pipeline::run(session, TxPart::Standalone, &[query]).await.unwrap_or_default();
    results.iter().any(|result| single_row(result).is_ok_and(|row| row.get(0)))
}

/// Tries to commit a flush once. After an error, the transaction may still be open.
async fn try_commit<'a>(
    connector: &Connector,
    lane: &mut Lane,
    claim: Option<&LanePosition>,
    limited_queues: &LimitedQueues,
    counters: &Counters,
    flush: &'a Flush,
    plan: &mut FlushPlan<'a>,
) -> Result<Committed, DbError> {
    let now = connector.options().clock.as_ref().map(|clock| clock.now());
    let session = &lane.session;
    let mut queries = Vec::new();
    if session.needs_new_plans(flush.writes.len()) {
        queries.push(discard_plans());
    }
    queries.push(lane.fence_query(flush.epoch, flush.number, false, claim, starting_keys(flush)));
    let (mut whole, mut begin) = if flush.is_bisecting {
        (TxPart::WholeShortWait, TxPart::BeginShortWait)
    } else {
        (TxPart::Whole, TxPart::Begin)
    };
    let mut results = Vec::new();
    stepfast_core::crash_point!("postgres before flush");
    let entries = QueueEntries::from_flush(flush);
    if limited_queues.may_limit(&entries) {
        queries.push(entries.lock_query());
        results = pipeline::run(session, begin, &queries).await?;
        (whole, begin) = (TxPart::End, TxPart::Middle);
        let mut check = DepthCheck::read(
            &entries,
            limited_queues,
            results.last().ok_or_else(|| corrupt("a query result"))?,
        )?;
        let rejected = loop {
            match check.find_rejected(&entries) {
                Ok(rejected) => break rejected,
                Err(count_query) => {
                    let counted =
                        pipeline::run(session, TxPart::Middle, std::slice::from_ref(&count_query)).await?;
                    check.apply_counts(counted.first().ok_or_else(|| corrupt("a query result"))?)?;
                    results.extend(counted);
                    queries.push(count_query);
                }
            }
        };
        plan.starts.reject(&rejected);
        queries.push(check.save_query());
        queries.extend(plan.starts.lock_queues_query(&[]));
    } else {
        let lock = plan.starts.lock_queues_query(&entries.queues);
        queries.extend(lock.or_else(|| entries.assert_unlimited_query()));
    }
    queries.extend(plan.queries(flush, now));
    let unsent = results.len();
    let mut changes = Changes::default();
    let results = if plan.requests.is_empty() {
        queries.extend(plan.send_queries(flush));
        results.extend(pipeline::run(session, whole, &queries[unsent..]).await?);
        results
    } else {
        results.extend(pipeline::run(session, begin, &queries[unsent..]).await?);
        stepfast_core::crash_point!("postgres flush open");
        // The targets of a cancel are known for sure only once they are locked: descendants may have been started
        // during the wait for the lock. So the locking query is repeated until it finds no new descendants.
        let index = queries
            .iter()
            .position(|query| query.sql == Sql::LockExecutions)
            .ok_or_else(|| corrupt("a flush"))?;
        let mut locked = LockedRows::read(results.get(index).ok_or_else(|| corrupt("a query result"))?)?;
        let mut rounds = 0;
        let mut targets = loop {
            // no further bundle fits into a locked batch
            let locks: Vec<_> = locked.lock_batches_query().into_iter().chain([plan.lock_query()]).collect();
            let relocked = pipeline::run(session, TxPart::Middle, &locks).await?;
            let targets = LockedRows::read(relocked.last().ok_or_else(|| corrupt("a query result"))?)?;
            if targets.is_subset_of(&locked) {
                break targets;
            }
            locked = targets;
            rounds += 1;
            if rounds == MAX_LOCK_ROUNDS {
                return Err(DbError::Retry(
                    "new descendants are started faster than they can be cancelled".into(),
                ));
            }
        };
        if let Some(query) = plan.pauses_query() {
            let pauses = pipeline::run(session, TxPart::Middle, &[query]).await?;
            targets.read_pauses(pauses.first().ok_or_else(|| corrupt("a query result"))?)?;
        }
        let decisions = targets.decide(&plan.requests);
        let mut more = decisions.queries();
        more.extend(decisions.keep_query(flush));
        more.extend(plan.send_queries(flush));
        let applied = pipeline::run(session, TxPart::End, &more).await?;
        changes = decisions.changes(&more, &applied)?;
        results.extend(applied);
        queries.extend(more);
        results
    };
    // the flush is durable from here on
    stepfast_core::crash_point!("postgres after flush");
    count_changes(counters, &queries, &results)?;
    counters.add_flush(flush.writes.len() as u64);
    lane.record_fence(&queries, &results, claim);
    changes.merge(woken_executions(&queries, &results)?);
    changes.merge(ended_batches(&queries, &results)?);
    Ok((read_outcomes(flush, plan, read_reports(&results)?)?, changes))
}

/// Returns the change that the executions are ready that the Wakes of a flush have woken.
fn woken_executions(queries: &[Query<'_>], results: &[QueryResult]) -> Result<Changes, StoreError> {
    let mut changes = Changes::default();
    for (_, result) in queries.iter().zip(results).filter(|(query, _)| query.sql == Sql::Wake) {
        let mut row = Columns::new(single_row(result)?);
        let (count, _, _): (i64, i64, i64) = (row.next()?, row.next()?, row.next()?);
        changes.add_all_ready(row.next::<Vec<&str>>()?, count.unsigned_abs());
    }
    Ok(changes)
}

/// Returns the change that the batches have ended that the Wakes of a flush have ended.
fn ended_batches(queries: &[Query<'_>], results: &[QueryResult]) -> Result<Changes, StoreError> {
    let mut changes = Changes::default();
    for (_, result) in queries.iter().zip(results).filter(|(query, _)| query.sql == Sql::EndBatches) {
        parse_ended_batches(result)?.into_iter().for_each(|key| changes.add_ended(key));
    }
    Ok(changes)
}

/// Converts an error of a query about a flush that may be durable. Such an error does not mean that the flush has
/// failed.
fn outcome_unknown(error: DbError) -> DbError {
    match error {
        DbError::Retry(_) | DbError::Store(StoreError::Fenced | StoreError::Corrupt(_)) => error,
        error => unavailable_error(error).into(),
    }
}

/// Finds out why a fence did not match. Returns the flush's outcomes if the flush was applied before.
async fn resolve_failed_fence(
    lane: &Lane,
    claim: Option<&LanePosition>,
    flush: &Flush,
    plan: &FlushPlan<'_>,
) -> Result<Committed, DbError> {
    let Some((epoch, last, kept)) = lane.read_state().await? else {
        return Err(DbError::Store(StoreError::Fenced));
    };
    let number = flush.number;
    // a takeover raises the lane's epoch; any epoch outside of this range belongs to another registration
    let is_ours = (flush.epoch..=flush.epoch + MAX_TAKEOVERS).contains(&epoch);
    if is_ours && flush.is_resent && last == number {
        lane.await_durable().await?;
        // the database keeps neither which workers the requests concern nor which executions were woken
        let has_unknown = !plan.requests.is_empty() || !plan.wakes.is_empty() || plan.batches.has_wakes();
        let changes = if has_unknown { Changes::any() } else { Changes::default() };
        return Ok((read_outcomes(flush, plan, parse_kept_reports(kept.as_deref())?)?, changes));
    }
    if epoch != flush.epoch {
        return Err(DbError::Store(StoreError::Fenced));
    }
    if last == number - 1 {
        if let Some(claim) = claim {
            lane.check_claim(claim).await?;
        }
        return Err(DbError::Retry(format!(
            "flush {number} of lane {} conflicts with its own earlier attempt",
            flush.lane
        )));
    }
    if last < number {
        return Err(lost_history(flush.lane, number - 1, last).into());
    }
    Err(StoreError::Corrupt(format!("flush {number} of lane {} was sent after flush {last}", flush.lane))
        .into())
}
