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
    use std::collections::BTreeSet;

    use super::*;
    use crate::failure::Failure;
    use crate::payload::Payload;
    use crate::schedule::declaration::Schedule;
    use crate::schedule::policy::Overlap;
    use crate::schedule::state::{ScheduleRequest, StartedExecution};

    const START: i64 = 1_790_000_000;

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_micros((START + seconds) * 1_000_000)
    }

    /// A schedule with an instant each 10 s, whose executions end when the test says so.
    struct Simulation {
        state: ScheduleState,
        /// The ids of the executions that were started, in their order.
        started: Vec<String>,
        running: BTreeSet<String>,
        ended: Vec<End>,
        cancels: usize,
    }

    impl Simulation {
        fn new(change: impl FnOnce(Schedule) -> Schedule) -> Self {
            let schedule = Schedule::of_payload("s".into(), "w".into(), &Payload::encode(&()).unwrap());
            let schedule = Box::new(change(schedule.every(Duration::from_secs(10))));
            let mut state = ScheduleState::default();
            state.apply_request(&ScheduleRequest::Set { schedule, at: second(0) }).unwrap();
            Self { state, started: Vec::new(), running: BTreeSet::new(), ended: Vec::new(), cancels: 0 }
        }

        /// Lets the schedule decide at this second, until it has to wait.
        fn at(&mut self, seconds: i64) {
            for _ in 0..1_000 {
                let decision = decide(&self.state, second(seconds), std::mem::take(&mut self.ended));
                let actions = self.state.apply_decision(&decision);
                if actions.cancels_running {
                    self.cancels += 1;
                    for workflow_id in std::mem::take(&mut self.running) {
                        self.ended.push(End { workflow_id, has_failed: None });
                    }
                }
                for instant in actions.starts {
                    let workflow_id = crate::schedule::declaration::instant_id("s", instant);
                    if self.started.contains(&workflow_id) {
                        let mut conflict = Failure::new("taken");
                        conflict.kind = crate::failure::CONFLICT.into();
                        self.state.note_failed_start(&workflow_id, &conflict);
                        continue;
                    }
                    self.started.push(workflow_id.clone());
                    self.running.insert(workflow_id.clone());
                    self.state.note_started(StartedExecution { workflow_id, key: String::new() });
                }
                let instants = Instants::new(self.state.schedule.as_ref().unwrap()).unwrap();
                let is_due = self.state.next.is_some_and(|next| instants.due_at(next) <= second(seconds));
                let is_active = self.state.pause.is_none();
                if !(self.state.has_work() || !self.ended.is_empty() || is_due && is_active) {
                    return;
                }
            }
            panic!("the schedule never waits: {:?}", self.state);
        }

        fn end_first(&mut self, has_failed: bool) {
            let workflow_id = self.running.pop_first().unwrap();
            self.ended.push(End { workflow_id, has_failed: Some(has_failed) });
        }

        fn request(&mut self, request: &ScheduleRequest) {
            self.state.apply_request(request).unwrap();
        }

        /// Returns the seconds of the instants that were started.
        fn seconds(&self) -> Vec<i64> {
            let instant = |id: &String| crate::schedule::declaration::instant_of(id).unwrap().as_micros();
            self.started.iter().map(|id| instant(id) / 1_000_000 - START).collect()
        }
    }

    #[test]
    fn overlap_policies_decide_what_a_long_execution_delays() {
        // the first execution ends at 35, all others at once
        for (policy, until_35, until_60, skipped, cancels) in [
            (Overlap::Skip, &[10][..], &[10, 40, 50, 60][..], 2, 0),
            (Overlap::BufferOne, &[10], &[10, 20, 40, 50, 60], 1, 0),
            (Overlap::BufferAll, &[10], &[10, 20, 30, 40, 50, 60], 0, 0),
            (Overlap::CancelRunning, &[10, 20, 30], &[10, 20, 30, 40, 50, 60], 0, 2),
            (Overlap::Allow, &[10, 20, 30], &[10, 20, 30, 40, 50, 60], 0, 0),
        ] {
            let mut simulation = Simulation::new(|schedule| schedule.overlap(policy));
            for seconds in 1..35 {
                simulation.at(seconds);
            }
            assert_eq!(simulation.seconds(), until_35, "{policy:?}");
            for seconds in 35..=60 {
                while !simulation.running.is_empty() {
                    simulation.end_first(false);
                    simulation.at(seconds);
                }
                simulation.at(seconds);
            }
            assert_eq!(simulation.seconds(), until_60, "{policy:?}");
            assert_eq!((simulation.state.skipped, simulation.cancels), (skipped, cancels), "{policy:?}");
        }
    }

    #[test]
    fn catch_up_policies_decide_what_a_downtime_costs() {
        for (policy, late, expected) in [
            (CatchUp::None, 3_655, vec![3_650]),
            (CatchUp::Last, 3_655, vec![3_650]),
            (CatchUp::All, 3_655, (1..=365).map(|number| number * 10).collect()),
        ] {
            let mut simulation = Simulation::new(|it| it.catch_up(policy).overlap(Overlap::Allow));
            simulation.at(late);
            assert_eq!(simulation.seconds(), expected, "{policy:?}");
            simulation.at(late + 10);
            assert_eq!(simulation.seconds().last(), Some(&3_660), "{policy:?}");
        }
        // more than a minute late
        let hourly = |it: Schedule| it.every(Duration::from_secs(3_600)).starts_at(second(10));
        let mut simulation = Simulation::new(|it| hourly(it).catch_up(CatchUp::None));
        simulation.at(3_610 + 61);
        assert_eq!(simulation.seconds(), [0; 0]);
        simulation.at(7_210 + 60);
        assert_eq!(simulation.seconds(), [7_210]);
        // of a very long downtime, the last instants count
        let mut simulation = Simulation::new(|it| it.catch_up(CatchUp::All).overlap(Overlap::Allow));
        simulation.at(1_000_005);
        let seconds = simulation.seconds();
        assert_eq!((seconds.len(), seconds[0], seconds[9_999]), (10_000, 900_010, 1_000_000));
    }

    #[test]
    fn jitter_delays_each_instant() {
        let mut simulation = Simulation::new(|it| it.jitter(Duration::from_secs(9)).overlap(Overlap::Allow));
        let mut delays = BTreeSet::new();
        for seconds in 1..=1_000 {
            let before = simulation.started.len();
            simulation.at(seconds);
            for instant in &simulation.seconds()[before..] {
                delays.insert(seconds - instant);
            }
        }
        assert!(simulation.started.len() >= 99, "{}", simulation.started.len());
        assert!(delays.len() > 5 && delays.iter().all(|delay| (0..=9).contains(delay)), "{delays:?}");
    }

    #[test]
    fn instants_of_a_pause_are_not_caught_up() {
        let mut simulation = Simulation::new(|it| it.catch_up(CatchUp::All).overlap(Overlap::BufferAll));
        simulation.at(15);
        simulation.request(&ScheduleRequest::Pause { reason: String::new() });
        // the schedule decides when it receives the pause, and not again before the resume
        simulation.at(15);
        simulation.end_first(false);
        simulation.request(&ScheduleRequest::Resume { at: second(47) });
        simulation.at(48);
        simulation.at(55);
        assert_eq!(simulation.seconds(), [10, 50]);
        // a second resume changes nothing
        simulation.request(&ScheduleRequest::Resume { at: second(56) });
        simulation.end_first(false);
        simulation.at(60);
        assert_eq!(simulation.seconds(), [10, 50, 60]);
    }

    #[test]
    fn failures_in_a_row_pause_the_schedule() {
        let mut simulation = Simulation::new(|it| it.pause_after(2));
        for (seconds, has_failed) in [(10, true), (20, false), (30, true), (40, true)] {
            simulation.at(seconds);
            assert!(simulation.state.pause.is_none());
            simulation.end_first(has_failed);
        }
        simulation.at(45);
        assert!(simulation.state.pause.as_ref().is_some_and(|pause| pause.is_automatic));
        simulation.at(55);
        assert_eq!(simulation.seconds(), [10, 20, 30, 40]);
    }

    /// Random requests, ends and times. Each instant has at most one execution, and its place among the counters.
    #[test]
    fn random_histories_keep_the_promises() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for policy in Overlap::ALL.into_iter().cycle().take(100) {
            let catch_up = random.choice(CatchUp::ALL).unwrap();
            let mut simulation = Simulation::new(|it| it.overlap(policy).catch_up(catch_up));
            let (mut now, mut pauses) = (0, 0);
            for _ in 0..200 {
                match random.u8(..8) {
                    0 if !simulation.running.is_empty() => simulation.end_first(random.bool()),
                    1 => simulation.request(&ScheduleRequest::Pause { reason: String::new() }),
                    2 | 3 => {
                        pauses += u64::from(simulation.state.pause.is_some());
                        simulation.request(&ScheduleRequest::Resume { at: second(now) });
                    }
                    4 if simulation.state.backfills.len() < 5 => {
                        let from = random.i64(0..=now);
                        let backfill = ScheduleRequest::Backfill { after: second(from), until: second(now) };
                        simulation.request(&backfill);
                    }
                    _ => now += random.i64(1..40),
                }
                simulation.at(now);
                if policy != Overlap::Allow {
                    assert!(simulation.running.len() <= 1, "{policy:?}: {:?}", simulation.running);
                }
            }
            let distinct: BTreeSet<_> = simulation.started.iter().collect();
            assert_eq!(distinct.len(), simulation.started.len(), "{policy:?}");
            assert_eq!(simulation.state.started as usize, simulation.started.len(), "{policy:?}");
            assert!(simulation.seconds().iter().all(|seconds| seconds % 10 == 0 && *seconds <= now));
            let has_all = policy == Overlap::Allow && catch_up == CatchUp::All && pauses == 0;
            if has_all && simulation.state.pause.is_none() {
                assert_eq!(simulation.started.len() as i64, now / 10, "{policy:?}");
            }
        }
    }

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
