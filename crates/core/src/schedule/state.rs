//! [`ScheduleState`]: the input of a part of a schedule's execution, and how requests and decisions change it.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::failure::{CONFLICT, Failure};
use crate::schedule::decision::Decision;
use crate::schedule::declaration::Schedule;
use crate::schedule::policy::Overlap;

/// The topic of the questions that change a schedule.
pub(crate) const REQUEST_TOPIC: &str = "schedule";

/// Maximum number of instants that wait for the end of a running execution.
const MAX_BUFFERED: usize = 1_000;
/// Maximum number of executions whose ends a schedule awaits or counts.
const MAX_TRACKED: usize = 1_000;
/// Maximum number of backfills that are under way.
const MAX_BACKFILLS: usize = 100;
/// Number of skipped instants that a schedule lists.
const LISTED_SKIPS: usize = 10;

/// A change of a schedule, or a start that the schedule makes on demand. Asked as a question of [`REQUEST_TOPIC`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScheduleRequest {
    /// Creates or changes the schedule. A changed timing counts from this time on.
    Set { schedule: Box<Schedule>, at: Timestamp },
    /// Starts no further executions until the schedule is resumed.
    Pause { reason: String },
    /// Ends a pause at this time.
    Resume { at: Timestamp },
    /// Ends the schedule. Its execution stays, so that a schedule of the same name can be set again.
    Delete,
    /// Starts an execution now, with this id.
    Trigger { workflow_id: String },
    /// Starts the executions of all instants in this range that have none: after the first time, until the second.
    Backfill { after: Timestamp, until: Timestamp },
}

/// The state of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScheduleState {
    /// The schedule; `None` before the first [`Set`](ScheduleRequest::Set) and after a deletion.
    pub(crate) schedule: Option<Schedule>,
    pub(crate) pause: Option<SchedulePause>,
    /// The next instant; `None` if there is none, or if it has to be computed.
    pub(crate) next: Option<Timestamp>,
    /// The time after which the next instant has to be searched; `None` if it is known.
    pub(crate) changed_at: Option<Timestamp>,
    /// Whether more instants have passed than one decision has handled.
    pub(crate) is_catching_up: bool,
    /// Whether the last decision could compute no instants. The next one may be made by another worker.
    #[serde(default)]
    pub(crate) is_undecided: bool,
    /// The executions that the schedule has started, and whose ends it awaits or counts.
    pub(crate) running: Vec<StartedExecution>,
    /// Instants that wait for the end of a running execution.
    pub(crate) buffered: VecDeque<Timestamp>,
    pub(crate) backfills: VecDeque<Backfill>,
    /// Number of executions that have failed one after the other.
    pub(crate) failures: u32,
    pub(crate) started: u64,
    pub(crate) skipped: u64,
    pub(crate) last_started: Option<Timestamp>,
    /// The last skipped instants.
    pub(crate) skips: VecDeque<Timestamp>,
    /// The last start that failed, for people.
    pub(crate) error: Option<String>,
}

/// An execution that a schedule has started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartedExecution {
    pub(crate) workflow_id: String,
    /// The text of the key.
    pub(crate) key: String,
}

/// A pause of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulePause {
    /// The reason, for people; empty if none was given.
    pub reason: String,
    /// Whether the schedule paused itself after too many failures.
    pub is_automatic: bool,
}

/// A range of instants whose executions start one after the other, or all at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Backfill {
    pub(crate) after: Timestamp,
    pub(crate) until: Timestamp,
}

/// A schedule and its present state.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleView {
    /// The schedule.
    pub schedule: Schedule,
    /// The pause, if the schedule is paused.
    pub pause: Option<SchedulePause>,
    /// The next instant; `None` if there is none, or if the schedule is paused.
    pub next: Option<Timestamp>,
    /// The last instant for which an execution was started.
    pub last_started: Option<Timestamp>,
    /// The number of executions that were started for instants, triggers and backfills.
    pub started: u64,
    /// The number of instants that were skipped, because of the overlap policy. Instants that were missed, and those of a
    /// pause, do not count.
    pub skipped: u64,
    /// The last instants that were skipped.
    pub skips: Vec<Timestamp>,
    /// Number of instants that wait for the end of a running execution.
    pub buffered: usize,
    /// Number of backfills that are under way.
    pub backfills: usize,
    /// Number of executions that have failed one after the other. Counted only by a schedule with
    /// [`pause_after`](Schedule::pause_after).
    pub failures: u32,
    /// The reason why the last start failed; `None` if it succeeded.
    pub error: Option<String>,
    /// The workflow_id of the execution that is the schedule.
    pub workflow_id: String,
    /// The reason why the schedule's own execution does not continue; `None` if it does.
    pub stopped: Option<String>,
    /// Whether the next instant has passed for more than a minute, because no worker runs the schedule.
    pub is_late: bool,
}

/// The executions that a decision lets the schedule start, and whether it cancels those that run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Actions {
    /// The instants, in the order of the starts.
    pub(crate) starts: Vec<Timestamp>,
    pub(crate) cancels_running: bool,
}

impl ScheduleState {
    /// Changes the state as a request asks for. Returns a refusal as text.
    pub(crate) fn apply_request(&mut self, request: &ScheduleRequest) -> Result<(), String> {
        match request {
            ScheduleRequest::Set { schedule, at } => {
                let has_same_instants =
                    self.schedule.as_ref().is_some_and(|old| old.has_same_instants(schedule));
                if !has_same_instants {
                    self.changed_at = Some(*at);
                    self.is_catching_up = false;
                    self.buffered.clear();
                }
                self.schedule = Some((**schedule).clone());
            }
            ScheduleRequest::Delete => {
                let running = std::mem::take(&mut self.running);
                *self = Self { running, ..Self::default() };
            }
            _ if self.schedule.is_none() => return Err("the schedule was deleted".to_owned()),
            ScheduleRequest::Pause { reason } => {
                self.pause = Some(SchedulePause { reason: reason.clone(), is_automatic: false });
            }
            ScheduleRequest::Resume { at } => {
                if self.pause.take().is_some() {
                    self.failures = 0;
                    // the instants of the pause have passed
                    self.changed_at = Some(*at);
                    self.is_catching_up = false;
                }
            }
            ScheduleRequest::Trigger { .. } => {}
            ScheduleRequest::Backfill { after, until } => {
                if self.backfills.len() >= MAX_BACKFILLS {
                    return Err(format!("{MAX_BACKFILLS} backfills are under way; wait for their ends"));
                }
                self.backfills.push_back(Backfill { after: *after, until: *until });
            }
        }
        Ok(())
    }

    /// Changes the state by a decision. Returns the executions to start.
    pub(crate) fn apply_decision(&mut self, decision: &Decision) -> Actions {
        let Some(schedule) = self.schedule.clone() else { return Actions::default() };
        let mut actions = Actions::default();
        self.count_ends(decision, schedule.pause_after);
        if let Some(error) = &decision.error {
            // the next instant stays for the next decision
            self.error = Some(error.clone());
            self.is_undecided = true;
            return actions;
        }
        if std::mem::take(&mut self.is_undecided) {
            self.error = None;
        }
        self.next = decision.next;
        self.changed_at = None;
        self.is_catching_up = decision.is_catching_up;
        if self.pause.is_some() {
            return actions;
        }
        let mut is_busy = !self.running.is_empty();
        let allows_all = schedule.overlap == Overlap::Allow;
        if (!is_busy || allows_all)
            && let Some(instant) = self.buffered.pop_front()
        {
            self.start(&mut actions, &mut is_busy, instant);
        }
        for instant in decision.due.iter().copied() {
            match schedule.overlap {
                _ if !is_busy => self.start(&mut actions, &mut is_busy, instant),
                Overlap::Allow => self.start(&mut actions, &mut is_busy, instant),
                Overlap::BufferOne if self.buffered.is_empty() => self.buffered.push_back(instant),
                Overlap::BufferAll if self.buffered.len() < MAX_BUFFERED => self.buffered.push_back(instant),
                Overlap::Skip | Overlap::BufferOne | Overlap::BufferAll => self.skip(instant),
                Overlap::CancelRunning => {
                    actions.cancels_running = true;
                    if let Some(replaced) = self.buffered.pop_front() {
                        self.skip(replaced);
                    }
                    self.buffered.push_back(instant);
                }
            }
        }
        if let Some(backfill) = self.backfills.front_mut() {
            for (instant, rest) in &decision.backfill {
                if is_busy && !allows_all {
                    break;
                }
                backfill.after = *instant;
                actions.starts.push(*instant);
                is_busy = true;
                if !rest {
                    self.backfills.pop_front();
                    break;
                }
            }
        }
        if decision.backfill.is_empty() && decision.ends_backfill {
            self.backfills.pop_front();
        }
        actions
    }

    fn start(&mut self, actions: &mut Actions, is_busy: &mut bool, instant: Timestamp) {
        actions.starts.push(instant);
        self.last_started = Some(instant);
        *is_busy = true;
    }

    fn skip(&mut self, instant: Timestamp) {
        self.skipped += 1;
        if self.skips.len() == LISTED_SKIPS {
            self.skips.pop_front();
        }
        self.skips.push_back(instant);
    }

    /// Removes the executions that have ended, and pauses the schedule after too many failures.
    fn count_ends(&mut self, decision: &Decision, pause_after: Option<u32>) {
        for end in &decision.ended {
            let Some(place) = self.running.iter().position(|it| it.workflow_id == end.workflow_id) else {
                continue;
            };
            self.running.remove(place);
            self.count_result(end.has_failed, pause_after);
        }
    }

    /// Counts the result of an execution or of a start; `None` counts as neither.
    fn count_result(&mut self, has_failed: Option<bool>, pause_after: Option<u32>) {
        match has_failed {
            Some(true) => self.failures = self.failures.saturating_add(1),
            Some(false) => self.failures = 0,
            None => {}
        }
        if self.pause.is_none() && pause_after.is_some_and(|limit| self.failures >= limit) {
            let reason = match self.failures {
                1 => "an execution failed".to_owned(),
                failures => format!("{failures} executions failed one after the other"),
            };
            self.pause = Some(SchedulePause { reason, is_automatic: true });
        }
    }

    /// Notes a start that has succeeded.
    pub(crate) fn note_started(&mut self, started: StartedExecution) {
        self.started += 1;
        self.error = None;
        if self.awaits_ends() || self.schedule.as_ref().is_some_and(|it| it.overlap != Overlap::Allow) {
            if self.running.len() == MAX_TRACKED {
                self.running.remove(0);
            }
            self.running.push(started);
        }
    }

    /// Notes a start that has failed. An execution with the same id was started before, and counts as neither.
    pub(crate) fn note_failed_start(&mut self, workflow_id: &str, failure: &Failure) {
        if failure.kind == CONFLICT {
            return;
        }
        self.error = Some(format!("{workflow_id}: {}", failure.message));
        let pause_after = self.schedule.as_ref().and_then(|schedule| schedule.pause_after);
        self.count_result(Some(true), pause_after);
    }

    /// Whether the schedule reacts to the end of an execution at once, not only at the next instant.
    pub(crate) fn awaits_ends(&self) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        schedule.pause_after.is_some() || !self.buffered.is_empty() || !self.backfills.is_empty()
    }

    /// Whether the schedule has to decide again without waiting for anything.
    pub(crate) fn has_work(&self) -> bool {
        let Some(schedule) = self.schedule.as_ref().filter(|_| !self.is_undecided) else { return false };
        let is_free = self.running.is_empty() || schedule.overlap == Overlap::Allow;
        let may_start = self.pause.is_none() && is_free;
        self.changed_at.is_some() || (may_start && !(self.buffered.is_empty() && self.backfills.is_empty()))
    }

    /// Returns the view of a schedule in this state; `None` if the schedule was deleted.
    pub(crate) fn view(&self, workflow_id: String) -> Option<ScheduleView> {
        Some(ScheduleView {
            schedule: self.schedule.clone()?,
            pause: self.pause.clone(),
            next: self.next.filter(|_| self.pause.is_none()),
            last_started: self.last_started,
            started: self.started,
            skipped: self.skipped,
            skips: self.skips.iter().copied().collect(),
            buffered: self.buffered.len(),
            backfills: self.backfills.len(),
            failures: self.failures,
            error: self.error.clone(),
            workflow_id,
            stopped: None,
            is_late: false,
        })
    }

    /// Returns the name of the schedule, for the ids of its executions.
    pub(crate) fn name(&self) -> Option<Arc<str>> {
        self.schedule.as_ref().map(|schedule| schedule.name.clone())
    }
}
