//! [`Decision`]: which instants of a schedule have passed, and which of its executions have ended. Recorded as the outcome of a
//! step, so that a replay repeats it even with other data of time zones.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::schedule::policy::CatchUp;
use crate::schedule::state::ScheduleState;
use crate::schedule::timing::Instants;

/// Maximum number of instants that one decision handles.
const MAX_INSTANTS: usize = 100;
/// Maximum number of missed instants that get their executions.
const MAX_CAUGHT_UP: usize = 10_000;
/// Lateness from which an instant counts as missed.
const MAX_LATENESS: Duration = Duration::from_secs(60);

/// The facts from which a schedule continues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Decision {
    /// The instants that have passed and get their executions, unless the overlap policy says otherwise.
    pub(crate) due: Vec<Timestamp>,
    /// The first instant that this decision does not handle.
    pub(crate) next: Option<Timestamp>,
    /// Whether `next` has passed, too.
    pub(crate) is_catching_up: bool,
    /// The next instants of the first backfill, each with whether others follow.
    pub(crate) backfill: Vec<(Timestamp, bool)>,
    /// Whether the first backfill has no further instants.
    pub(crate) ends_backfill: bool,
    /// The executions that have ended.
    pub(crate) ended: Vec<End>,
    /// The reason why no instants could be computed.
    pub(crate) error: Option<String>,
}

/// The end of an execution that a schedule has started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) workflow_id: String,
    /// Whether the execution has failed; `None` if it was cancelled.
    pub(crate) has_failed: Option<bool>,
}

/// Decides which instants a schedule handles at the time `now`.
pub(crate) fn decide(state: &ScheduleState, now: Timestamp, ended: Vec<End>) -> Decision {
    let mut decision = Decision { ended, ..Decision::default() };
    let Some(schedule) = &state.schedule else { return decision };
    let instants = match Instants::new(schedule) {
        Ok(instants) => instants,
        Err(error) => {
            // for example, this program does not know the time zone
            decision.error = Some(error.to_string());
            return decision;
        }
    };
    let next = state.changed_at.map_or(state.next, |time| instants.next_after(time));
    decide_due(&mut decision, &instants, schedule.catch_up, state.is_catching_up, next, now);
    if let Some(backfill) = state.backfills.front() {
        let mut after = backfill.after;
        let mut next = instants.next_after(after).filter(|it| *it <= backfill.until);
        decision.ends_backfill = next.is_none();
        while let Some(instant) = next
            && decision.backfill.len() < MAX_INSTANTS
        {
            after = instant;
            next = instants.next_after(after).filter(|it| *it <= backfill.until);
            decision.backfill.push((instant, next.is_some()));
        }
    }
    decision
}

/// Decides which instants have passed, from the instant `next` on.
fn decide_due(
    decision: &mut Decision,
    instants: &Instants<'_>,
    catch_up: CatchUp,
    is_catching_up: bool,
    mut next: Option<Timestamp>,
    now: Timestamp,
) {
    let is_due = |instant: Timestamp| instants.due_at(instant) <= now;
    decision.next = next;
    let Some(first) = next.filter(|instant| is_due(*instant)) else { return };
    if catch_up == CatchUp::All {
        if !is_catching_up {
            next = Some(first_caught_up(instants, first, now));
        }
        while let Some(instant) = next.filter(|instant| is_due(*instant)) {
            if decision.due.len() == MAX_INSTANTS {
                decision.is_catching_up = true;
                break;
            }
            decision.due.push(instant);
            next = instants.next_after(instant);
        }
        decision.next = next;
        return;
    }
    let mut last = instants.last_until(now).unwrap_or(first).max(first);
    while last > first && !is_due(last) {
        let before = Timestamp::from_micros(last.as_micros() - 1);
        last = instants.last_until(before).unwrap_or(first).max(first);
    }
    if catch_up == CatchUp::Last || now.since(instants.due_at(last)) <= MAX_LATENESS {
        decision.due.push(last);
    }
    decision.next = instants.next_after(last);
}

/// Returns the first of the instants from `first` on that are caught up: of too many, only the last ones.
fn first_caught_up(instants: &Instants<'_>, first: Timestamp, now: Timestamp) -> Timestamp {
    // instants are at least a second apart
    if now.since(first) < Duration::from_secs(MAX_CAUGHT_UP as u64) {
        return first;
    }
    let mut from = now;
    for _ in 0..MAX_CAUGHT_UP {
        match instants.last_until(Timestamp::from_micros(from.as_micros() - 1)) {
            Some(instant) if instant > first => from = instant,
            _ => return first,
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;
    use crate::schedule::declaration::Schedule;

    #[test]
    fn instant_waits_for_a_worker_that_can_compute_it() {
        let at = Timestamp::from_micros;
        let hour = 3_600_000_000;
        let schedule = |zone: &str| {
            let input = Payload::encode(&()).unwrap();
            Schedule::of_payload("s".into(), "w".into(), &input).cron("0 * * * *").timezone(zone)
        };
        for changed_at in [None, Some(at(hour / 2))] {
            let next = changed_at.is_none().then_some(at(hour));
            let mut state = ScheduleState {
                schedule: Some(schedule("Europe/Atlantis")),
                next,
                changed_at,
                ..ScheduleState::default()
            };
            let decision = decide(&state, at(hour + 1), Vec::new());
            assert_eq!(state.apply_decision(&decision).starts, []);
            assert!(state.error.as_ref().is_some_and(|error| error.contains("Atlantis")), "{state:?}");
            assert_eq!((state.next, state.changed_at, state.has_work()), (next, changed_at, false));
            // as if the data of the next worker had the time zone
            state.schedule = Some(schedule("UTC"));
            let decision = decide(&state, at(hour + 2), Vec::new());
            assert_eq!(state.apply_decision(&decision).starts, [at(hour)]);
            assert_eq!((state.next, state.error, state.is_undecided), (Some(at(2 * hour)), None, false));
        }
    }
}
