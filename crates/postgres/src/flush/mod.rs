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
use crate::conn::pipeline::replan;
use crate::conn::row_counts::count;
use crate::conn::session::Part;
use crate::conn::statements::{FLUSH, Sql};
use crate::error::{Trouble, damaged, unavailable};
use crate::flush::apply::Sorted;
use crate::flush::depth::{Depths, Entries, Gates};
use crate::flush::request::Targets;
use crate::flush::results::Applied;
use crate::lane::{Lane, Lanes, Mark, lost};
use crate::ownership::Windows;

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
    windows: &Windows,
    depths: &Depths,
    counters: &Counters,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, StoreError> {
    let slot = lanes.slot(flush.worker, flush.lane);
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
        let claim = lane.unseen(claim.clone());
        let result =
            attempt(connector, &mut lane, claim.as_ref(), depths, counters, flush, &mut sorted).await;
        let is_clean = result.is_ok() || pipeline::roll_back(&lane.session).await;
        let result = match result {
            // the fence did not match: its row says why
            Err(Trouble::Fence) if is_clean => {
                resolve_fence(&lane, claim.as_ref(), flush).await.map_err(unsettled)
            }
            Err(Trouble::Fence) => {
                Err(StoreError::Unavailable("the connection was lost behind a fence".into()).into())
            }
            result => result,
        };
        if result.is_ok() {
            lanes.landed(flush.worker, flush.lane, flush.number, lane.place());
        }
        if is_clean && lane.is_usable() {
            *place = Some(lane);
        }
        tries += 1;
        match result {
            Ok(outcomes) => {
                windows.landed(flush, sorted.released_keys(), &outcomes);
                return Ok(outcomes);
            }
            Err(Trouble::Deep) if tries < TRIES => depths.suspect(&Entries::of(flush)),
            Err(Trouble::Again(reason)) if tries < TRIES => {
                tracing::debug!(lane = flush.lane, number = flush.number, reason, "flush is tried again");
            }
            // a fresh session decides whether the error was one of the old session. While the flush is split, the whole
            // flush has shown that already; an item alone is blamed after two equal answers again.
            Err(Trouble::Odd(reason))
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
                    Trouble::Odd(reason) => StoreError::Rejected(reason),
                    // perhaps by its limit in time, which a part of the flush may keep
                    Trouble::Cancelled(reason) => StoreError::Blocked(reason),
                    trouble => trouble.into_store_error(),
                };
                if matches!(error, StoreError::Fenced) {
                    *place = None;
                }
                if !matches!(error, StoreError::Unavailable(_)) {
                    windows.failed(flush);
                }
                return Err(error);
            }
        }
    }
}

/// Starts without an entry in the index of owners what the worker's window covers.
fn enter(windows: &Windows, flush: &Flush, sorted: &mut Sorted<'_>) {
    windows.enter(flush, &mut |window| {
        sorted.starts.within(window);
        sorted.starts.running_keys().collect()
    });
}

/// One try. After an error its transaction may still be open.
async fn attempt<'a>(
    connector: &Connector,
    lane: &mut Lane,
    claim: Option<&Mark>,
    depths: &Depths,
    counters: &Counters,
    flush: &'a Flush,
    sorted: &mut Sorted<'a>,
) -> Result<Vec<(usize, Outcome)>, Trouble> {
    let now = connector.options().clock.as_ref().map(|clock| clock.now());
    let session = &lane.session;
    let mut jobs = Vec::new();
    if session.needs_new_plans(flush.writes.len()) {
        jobs.push(replan());
    }
    jobs.push(lane.fence(flush.epoch, flush.number, false, claim));
    let (mut whole, mut begin) = if flush.is_bisecting {
        (Part::WholeBriefly, Part::BeginBriefly)
    } else {
        (Part::Whole, Part::Begin)
    };
    let mut outcomes = Vec::new();
    let mut answers = Vec::new();
    stepfast_core::crash_point!("postgres before flush");
    let entries = Entries::of(flush);
    if depths.concern(&entries) {
        jobs.push(entries.lock());
        answers = pipeline::run(session, begin, &jobs).await?;
        (whole, begin) = (Part::End, Part::Middle);
        let mut gates = Gates::read(&entries, depths, answers.last().ok_or_else(|| damaged("an answer"))?)?;
        let refused = loop {
            match gates.refused(&entries) {
                Ok(refused) => break refused,
                Err(count) => {
                    let counted = pipeline::run(session, Part::Middle, std::slice::from_ref(&count)).await?;
                    gates.counted(counted.first().ok_or_else(|| damaged("an answer"))?)?;
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
        let place = jobs.iter().position(|job| job.sql == Sql::Lock).ok_or_else(|| damaged("a flush"))?;
        let mut locked = Targets::read(answers.get(place).ok_or_else(|| damaged("an answer"))?)?;
        let mut rounds = 0;
        let targets = loop {
            let again = pipeline::run(session, Part::Middle, &[sorted.lock()]).await?;
            let targets = Targets::read(again.first().ok_or_else(|| damaged("an answer"))?)?;
            if targets.is_within(&locked) {
                break targets;
            }
            locked = targets;
            rounds += 1;
            if rounds == LOCK_ROUNDS {
                return Err(Trouble::Again(
                    "descendants are started faster than they can be cancelled".into(),
                ));
            }
        };
        let decisions = targets.decide(&sorted.requests);
        let more = decisions.jobs();
        answers.extend(pipeline::run(session, Part::End, &more).await?);
        jobs.extend(more);
        outcomes = decisions.outcomes;
        answers
    };
    // durable from here on
    stepfast_core::crash_point!("postgres after flush");
    count(counters, &jobs, &answers)?;
    counters.flushed(flush.writes.len() as u64);
    lane.fenced(&jobs, &answers, claim);
    let mut applied = Applied::read(flush, sorted, &jobs, &answers)?;
    outcomes.extend(applied.outcomes);
    let refused = &sorted.starts.refused;
    applied.losers.extend(refused);
    if !applied.losers.is_empty() {
        let losers = resolve::losers(&lane.session, flush, &applied.losers, refused).await;
        outcomes.extend(losers.map_err(unavailable)?);
    }
    outcomes.sort_by_key(|(i, _)| *i);
    Ok(outcomes)
}

/// What it means that a question fails about a flush that may be durable: no error of a statement says that it is not.
fn unsettled(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Again(_) | Trouble::Store(StoreError::Fenced | StoreError::Corrupt(_)) => trouble,
        trouble => unavailable(trouble).into(),
    }
}

/// What a fence that did not match means.
async fn resolve_fence(
    lane: &Lane,
    claim: Option<&Mark>,
    flush: &Flush,
) -> Result<Vec<(usize, Outcome)>, Trouble> {
    let Some((epoch, last)) = lane.state().await? else {
        return Err(Trouble::Store(StoreError::Fenced));
    };
    let number = flush.number;
    // whoever has taken the lane over has raised its epoch; any other one is of another registration
    let is_ours = (flush.epoch..=flush.epoch + TAKEOVERS).contains(&epoch);
    if is_ours && flush.is_resent && last >= number && (last == number || epoch != flush.epoch) {
        lane.prove().await?;
        return resolve::applied_before(&lane.session, flush).await;
    }
    if epoch != flush.epoch {
        return Err(Trouble::Store(StoreError::Fenced));
    }
    if last == number - 1 {
        if let Some(claim) = claim {
            lane.expect(claim).await?;
        }
        return Err(Trouble::Again(format!("flush {number} of lane {} met its own earlier try", flush.lane)));
    }
    if last < number {
        return Err(lost(flush.lane, number - 1, last).into());
    }
    Err(StoreError::Corrupt(format!("flush {number} of lane {} was sent after flush {last}", flush.lane))
        .into())
}
