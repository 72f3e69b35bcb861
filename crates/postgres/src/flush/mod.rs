//! Flushes: each lane has a connection of its own, and a flush is one round trip on it.

pub(crate) mod apply;
pub(crate) mod depth;
pub(crate) mod request;
pub(crate) mod resolve;
pub(crate) mod results;
pub(crate) mod starts;

use stepfast_core::store::counters::Counters;
use stepfast_core::store::{Flush, Outcome, StoreError};

use crate::conn::connector::Connector;
use crate::conn::pipeline;
use crate::conn::pipeline::discard_plans;
use crate::conn::row_counts::count_changes;
use crate::conn::session::TxPart;
use crate::conn::statements::{FLUSH, Sql};
use crate::error::{DbError, corrupt, unavailable_error};
use crate::flush::apply::Sorted;
use crate::flush::depth::{Depths, Entries, Gates};
use crate::flush::request::Targets;
use crate::flush::results::Applied;
use crate::lane::{Lane, Lanes, LanePosition, lost_history};
use crate::ownership::Ownership;

/// How often a flush that lost against another transaction is tried again before it counts as blocked.
const TRIES: usize = 4;

/// How often the epoch of a lane may be raised under one registration: see `register`.
const TAKEOVERS: i64 = (1 << 20) - 1;

/// How often newly found descendants of a cancelled execution are locked before the flush starts over.
const LOCK_ROUNDS: usize = 8;

/// Applies a flush; see [`Store::commit`](stepfast_core::Store::commit).
pub(crate) async fn commit(
    connector: &Connector,
    lanes: &Lanes,
    windows: &Ownership,
    depths: &Depths,
    counters: &Counters,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, StoreError> {
    let slot = lanes.shared_lane(flush.worker, flush.lane);
    let mut place = slot.lock().await;
    let mut sorted = Sorted::new(flush);
    enter(windows, flush, &mut sorted);
    let claim = lanes.last_claim(flush.worker);
    let (mut tries, mut odd_answers) = (0, 0);
    loop {
        let mut lane = Lane::open(connector, place.take(), (flush.worker, flush.lane), FLUSH).await?;
        if !sorted.starts.refused.is_empty() {
            // there may be room by now
            sorted = Sorted::new(flush);
            enter(windows, flush, &mut sorted);
        }
        let claim = lane.unseen_claim(claim.clone());
        let result =
            attempt(connector, &mut lane, claim.as_ref(), depths, counters, flush, &mut sorted).await;
        let is_clean = result.is_ok() || pipeline::roll_back(&lane.session).await;
        let result = match result {
            // the fence did not match: its row says why
            Err(DbError::Fenced) if is_clean => {
                resolve_fence(&lane, claim.as_ref(), flush).await.map_err(unsettled)
            }
            Err(DbError::Fenced) => {
                Err(StoreError::Unavailable("the connection was lost behind a fence".into()).into())
            }
            result => result,
        };
        if result.is_ok() {
            lanes.record_durable(flush.worker, flush.lane, flush.number, lane.ctid_hint());
        }
        if is_clean && lane.is_usable() {
            *place = Some(lane);
        }
        tries += 1;
        match result {
            Ok(outcomes) => {
                windows.record_flush(flush, sorted.released_keys(), &outcomes);
                return Ok(outcomes);
            }
            Err(DbError::DepthLimited) if tries < TRIES => depths.suspect(&Entries::of(flush)),
            Err(DbError::Retry(reason)) if tries < TRIES => {
                tracing::debug!(lane = flush.lane, number = flush.number, reason, "flush is tried again");
            }
            // a fresh session decides whether the error was one of the old session. While the flush is split, the whole
            // flush has shown that already; an item alone is blamed after two equal answers again.
            Err(DbError::Unexplained(reason))
                if odd_answers == 0 && (!flush.is_bisecting || flush.writes.len() == 1) =>
            {
                odd_answers += 1;
                tracing::warn!(
                    lane = flush.lane,
                    number = flush.number,
                    reason,
                    "flush is tried on a new session"
                );
            }
            Err(trouble) => {
                let error = match trouble {
                    DbError::Unexplained(reason) => StoreError::Rejected(reason),
                    // perhaps by its limit in time, which a part of the flush may keep
                    DbError::Cancelled(reason) => StoreError::Blocked(reason),
                    trouble => trouble.into_store_error(),
                };
                if matches!(error, StoreError::Fenced) {
                    *place = None;
                }
                if !matches!(error, StoreError::Unavailable(_)) {
                    windows.record_failed_flush(flush);
                }
                return Err(error);
            }
        }
    }
}

/// Starts without an entry in the index of owners what the worker's window covers.
fn enter(windows: &Ownership, flush: &Flush, sorted: &mut Sorted<'_>) {
    windows.begin_flush(flush, &mut |window| {
        sorted.starts.within(window);
        sorted.starts.running_keys().collect()
    });
}

/// One try. After an error its transaction may still be open.
async fn attempt<'a>(
    connector: &Connector,
    lane: &mut Lane,
    claim: Option<&LanePosition>,
    depths: &Depths,
    counters: &Counters,
    flush: &'a Flush,
    sorted: &mut Sorted<'a>,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let now = connector.options().clock.as_ref().map(|clock| clock.now());
    let session = &lane.session;
    let mut jobs = Vec::new();
    if session.needs_new_plans(flush.writes.len()) {
        jobs.push(discard_plans());
    }
    jobs.push(lane.fence_query(flush.epoch, flush.number, false, claim));
    let (mut whole, mut begin) = if flush.is_bisecting {
        (TxPart::WholeShortWait, TxPart::BeginShortWait)
    } else {
        (TxPart::Whole, TxPart::Begin)
    };
    let mut outcomes = Vec::new();
    let mut answers = Vec::new();
    stepfast_core::crash_point!("postgres before flush");
    let entries = Entries::of(flush);
    if depths.concern(&entries) {
        jobs.push(entries.lock());
        answers = pipeline::run(session, begin, &jobs).await?;
        (whole, begin) = (TxPart::End, TxPart::Middle);
        let mut gates = Gates::read(&entries, depths, answers.last().ok_or_else(|| corrupt("an answer"))?)?;
        let refused = loop {
            match gates.refused(&entries) {
                Ok(refused) => break refused,
                Err(count) => {
                    let counted = pipeline::run(session, TxPart::Middle, std::slice::from_ref(&count)).await?;
                    gates.counted(counted.first().ok_or_else(|| corrupt("an answer"))?)?;
                    answers.extend(counted);
                    jobs.push(count);
                }
            }
        };
        sorted.starts.refuse(refused);
        jobs.push(gates.keep());
    } else if !entries.queues.is_empty() {
        jobs.push(entries.check());
    }
    jobs.extend(sorted.jobs(flush, now));
    let unsent = answers.len();
    let answers = if sorted.requests.is_empty() {
        answers.extend(pipeline::run(session, whole, &jobs[unsent..]).await?);
        answers
    } else {
        answers.extend(pipeline::run(session, begin, &jobs[unsent..]).await?);
        stepfast_core::crash_point!("postgres flush open");
        // What a cancel reaches is only known for sure once it is locked: descendants may have been started
        // while the lock was awaited. So look again until nothing new turns up.
        let place = jobs.iter().position(|job| job.sql == Sql::Lock).ok_or_else(|| corrupt("a flush"))?;
        let mut locked = Targets::read(answers.get(place).ok_or_else(|| corrupt("an answer"))?)?;
        let mut rounds = 0;
        let targets = loop {
            let again = pipeline::run(session, TxPart::Middle, &[sorted.lock()]).await?;
            let targets = Targets::read(again.first().ok_or_else(|| corrupt("an answer"))?)?;
            if targets.is_within(&locked) {
                break targets;
            }
            locked = targets;
            rounds += 1;
            if rounds == LOCK_ROUNDS {
                return Err(DbError::Retry(
                    "descendants are started faster than they can be cancelled".into(),
                ));
            }
        };
        let decisions = targets.decide(&sorted.requests);
        let more = decisions.jobs();
        answers.extend(pipeline::run(session, TxPart::End, &more).await?);
        jobs.extend(more);
        outcomes = decisions.outcomes;
        answers
    };
    // durable from here on
    stepfast_core::crash_point!("postgres after flush");
    count_changes(counters, &jobs, &answers)?;
    counters.add_flush(flush.writes.len() as u64);
    lane.record_fence(&jobs, &answers, claim);
    let mut applied = Applied::read(flush, sorted, &jobs, &answers)?;
    outcomes.extend(applied.outcomes);
    let refused = &sorted.starts.refused;
    applied.losers.extend(refused);
    if !applied.losers.is_empty() {
        let losers = resolve::losers(&lane.session, flush, &applied.losers, refused).await;
        outcomes.extend(losers.map_err(unavailable_error)?);
    }
    outcomes.sort_by_key(|(i, _)| *i);
    Ok(outcomes)
}

/// What it means that a question fails about a flush that may be durable: no error of a statement says that it is not.
fn unsettled(trouble: DbError) -> DbError {
    match trouble {
        DbError::Retry(_) | DbError::Store(StoreError::Fenced | StoreError::Corrupt(_)) => trouble,
        trouble => unavailable_error(trouble).into(),
    }
}

/// What a fence that did not match means.
async fn resolve_fence(
    lane: &Lane,
    claim: Option<&LanePosition>,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, DbError> {
    let Some((epoch, last)) = lane.read_state().await? else {
        return Err(DbError::Store(StoreError::Fenced));
    };
    let number = flush.number;
    // whoever has taken the lane over has raised its epoch; any other one is of another registration
    let is_ours = (flush.epoch..=flush.epoch + TAKEOVERS).contains(&epoch);
    if is_ours && flush.is_resent && last >= number && (last == number || epoch != flush.epoch) {
        lane.await_durable().await?;
        return resolve::applied_before(&lane.session, flush).await;
    }
    if epoch != flush.epoch {
        return Err(DbError::Store(StoreError::Fenced));
    }
    if last == number - 1 {
        if let Some(claim) = claim {
            lane.check_claim(claim).await?;
        }
        return Err(DbError::Retry(format!("flush {number} of lane {} met its own earlier try", flush.lane)));
    }
    if last < number {
        return Err(lost_history(flush.lane, number - 1, last).into());
    }
    Err(StoreError::Corrupt(format!("flush {number} of lane {} was sent after flush {last}", flush.lane))
        .into())
}
