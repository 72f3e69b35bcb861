//! Quiescence: detects that every branch of a run is blocked, then makes the next delivery.
//!
//! Branches in Rust are quiescent when a poll of the run's task has woken none of them. A guest's code is
//! polled by its binding, which reports when it is quiescent: see [`guest`](crate::guest).

pub(crate) mod races;

use std::task::Waker;

use crate::clock::Timestamp;
use crate::commit::Lsn;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::runtime::run::call::{Delivery, Phase, WaitingFor};
use crate::runtime::run::mismatch::{
    describe_early_return, describe_missing_abandonment, describe_missing_call, non_determinism_failure,
};
use crate::runtime::run::{ChildState, Interrupt, Run, RunState, ThreadUse};
use crate::store::CheckpointKind;

/// The next action of a run's task after its branches were polled.
pub(crate) enum Quiescence {
    /// A delivery was made, or the replay has ended: poll again.
    Delivered,
    /// All branches are blocked: wait to be woken.
    Idle,
    /// Code of a guest may be running: wait until the binding reports that it is quiescent.
    Active,
}

/// The events for which the branches of a quiescent guest wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockedOn {
    /// Some branches wait for events outside of the execution, and may continue without a delivery.
    #[default]
    External,
    /// All branches wait for durable calls, or for other branches in durable calls. Some of the waits have a
    /// time limit that is not durable.
    TimeLimited,
    /// All branches wait for durable calls, or for other branches in durable calls.
    DurableCalls,
}

impl Run {
    /// Makes the next delivery, if there is one and all branches are quiescent.
    pub(crate) fn deliver_next(&self) -> Quiescence {
        let mut state = self.state();
        if state.delivery.block_count > 0 || state.interrupt.is_some() {
            return Quiescence::Idle;
        }
        if self.definition.is_guest() && state.is_active() {
            return Quiescence::Active;
        }
        if state.decide_race() {
            return Quiescence::Delivered;
        }
        let state = &mut *state;
        let Some(replay) = &mut state.delivery.replay else {
            return match state.calls.completed.pop_front() {
                Some(id) => {
                    self.deliver(state, id);
                    Quiescence::Delivered
                }
                None => Quiescence::Idle,
            };
        };
        let Some(next) = replay.peek() else {
            state.delivery.replay = None;
            for call in state.calls.iter_mut() {
                if matches!(call.phase, Phase::AfterReplay) {
                    call.phase = Phase::Live;
                    if let Some(waker) = call.waker.take() {
                        waker.wake();
                    }
                }
            }
            return Quiescence::Delivered;
        };
        let calls = &state.calls;
        let is_awaited = |id: &usize| calls.get(*id).is_some_and(|call| call.is_awaited);
        let call = replay.calls.get(&next.path).copied().filter(is_awaited);
        let is_abandoned = next.kind == CheckpointKind::Abandoned;
        let (Some(id), false) = (call, is_abandoned) else {
            // a branch that waits for an external event may still make the recorded call
            if state.calls.outstanding < state.active_branches
                && state.guest.blocked_on == BlockedOn::External
            {
                return Quiescence::Idle;
            }
            let disagreement = match call {
                Some(_) => describe_missing_abandonment(next, self.definition.time_limit_hint),
                None => describe_missing_call(next, calls.iter().filter(|call| call.is_waited_for())),
            };
            state.interrupt = Some(Interrupt::Park(non_determinism_failure(&disagreement).into()));
            return Quiescence::Delivered;
        };
        let Some(checkpoint) = replay.pop() else { return Quiescence::Idle };
        replay.calls.remove(&checkpoint.path);
        state.delivery.delivered_at = checkpoint.at;
        state.calls.note_active(|| self.engine.now());
        if let Some(call) = state.calls.get_mut(id) {
            call.phase = Phase::Delivered(Delivery {
                kind: checkpoint.kind,
                outcome: checkpoint.outcome,
                lsn: Lsn(0),
            });
            if let Some(waker) = call.waker.take() {
                waker.wake();
            }
            state.calls.unconsumed += 1;
        }
        Quiescence::Delivered
    }

    /// Adds `by` to the number of active branches, which are those that do not wait for branches of their
    /// own.
    pub(crate) fn adjust_active_branches(&self, by: i32) {
        let mut state = self.state();
        state.mark_active();
        state.active_branches = state.active_branches.saturating_add_signed(by);
        if by < 0 && self.definition.is_guest() {
            // code that is notified of a branch's end on an event loop may cancel or begin other branches
            state.guest.is_branch_end_unsettled |= !self.definition.holds_thread();
            if state.has_undelivered() {
                drop(state);
                self.wake_task();
            }
        }
    }

    /// Notes that code of a guest's branch has started to run.
    pub(crate) fn code_started(&self) {
        self.state().mark_active();
    }

    /// Notes that code of a guest's branch waits or has ended. Returns true if the caller must watch from now
    /// on until all branches are quiescent.
    pub(crate) fn code_blocked(&self) -> bool {
        let mut state = self.state();
        // a single branch affects no other, and is watched only if the task has work when the branch is
        // quiescent
        let is_alone =
            state.active_branches <= 1 && state.staging.start.is_none() && state.delivery.replay.is_none();
        let is_quiescent =
            !state.has_unsettled_waits() && (is_alone || !state.is_active()) || state.is_closed;
        !is_quiescent && !std::mem::replace(&mut state.guest.is_watched, true)
    }

    /// Returns a counter that changes with every activity of a guest's branches. Returns `None` if the caller
    /// may stop watching them.
    pub(crate) fn activity(&self) -> Option<u32> {
        let mut state = self.state();
        if !state.is_closed && (state.is_active() || state.has_unsettled_waits()) {
            return Some(state.guest.activity);
        }
        state.guest.is_watched = false;
        if !state.is_closed && state.needs_quiescence() {
            drop(state);
            self.wake_task();
        }
        None
    }

    /// Whether [`BlockedOn`] affects the next action: a recorded delivery cannot be made, or the run could be
    /// suspended.
    pub(crate) fn needs_blocked_on(&self) -> bool {
        let state = self.state();
        if let Some(replay) = &state.delivery.replay {
            return replay.peek().is_some_and(|next| {
                next.kind == CheckpointKind::Abandoned || !replay.calls.contains_key(&next.path)
            });
        }
        let suspend_after = self.engine.options.suspend_after;
        let (now, is_pausing) = (self.engine.now(), self.is_pausing());
        state.calls.outstanding > 0
            && state.calls.iter().filter(|call| call.is_awaited).all(|call| match &call.waiting_for {
                Some(waiting_for) => {
                    is_pausing || waiting_for.due_at().is_none_or(|due_at| due_at.since(now) > suspend_after)
                }
                None => false,
            })
    }

    /// Notes that no branch of a guest runs, and none can run before a delivery or an external event.
    pub(crate) fn set_quiescent(&self, blocked_on: BlockedOn) {
        {
            let mut state = self.state();
            state.guest.is_watched = false;
            state.guest.is_branch_end_unsettled = false;
            state.guest.is_quiescent = true;
            state.guest.blocked_on = blocked_on;
        }
        self.wake_task();
    }

    /// Whether the code holds an idle thread while it waits for `child`. The child may need a thread itself.
    pub(crate) fn holds_thread_for(&self, child: Key) -> bool {
        let state = self.state();
        match state.guest.thread_use {
            None => false,
            Some(ThreadUse::Idle) => true,
            Some(ThreadUse::HostsChild) => !matches!(state.children.get(&child), Some(ChildState::Local)),
        }
    }

    /// Registers `waker` to be woken when the guest's code has to unwind. Returns false if the code already
    /// has to unwind.
    pub(crate) fn add_stop_waker(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if state.stop_reason.is_some() {
            return false;
        }
        state.stop_wakers.push(waker.clone());
        true
    }

    /// Removes a waker registered by [`add_stop_waker`](Self::add_stop_waker).
    pub(crate) fn remove_stop_waker(&self, waker: &Waker) {
        let mut state = self.state();
        if let Some(i) = state.stop_wakers.iter().rposition(|other| other.will_wake(waker)) {
            state.stop_wakers.swap_remove(i);
        }
    }

    /// Wakes the waiters for calls of a guest that has been stopped.
    pub(crate) fn wake_stop_wakers(&self) {
        let wakers = std::mem::take(&mut self.state().stop_wakers);
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns the durable waits of all branches, each with the call's path, the awaited event, and the time
    /// at which the call began. Returns `None` if a body runs or a branch waits for another event.
    pub(crate) fn durable_waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        self.state().durable_waits()
    }

    /// Returns the durable waits with which a paused run is parked, in the form of
    /// [`durable_waits`](Self::durable_waits). Returns `None` if the run cannot be parked yet.
    pub(crate) fn waits_at_pause(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        let state = self.state();
        state.durable_waits().or_else(|| state.waits_at_gate())
    }
}

impl RunState {
    /// Whether a delivery, or the decision of a race, may be possible once all branches are quiescent.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.delivery.replay.is_some() || !self.calls.completed.is_empty() || self.has_decidable_race()
    }

    /// Whether a branch has ended while others are in durable waits. The run records these waits, and is
    /// suspended for them, only when it is certain that the end makes no code run.
    pub(crate) fn has_unsettled_waits(&self) -> bool {
        self.guest.is_branch_end_unsettled && self.calls.has_durable_wait()
    }

    /// Whether the task of a guest's run has work now that a branch waits. The work is a delivery. If all
    /// branches are quiescent, the task may also record durable waits, or suspend the run.
    pub(crate) fn needs_quiescence(&self) -> bool {
        self.has_undelivered()
            || (self.calls.has_durable_wait() && !self.guest.is_branch_end_unsettled && !self.is_active())
    }

    /// Notes that a branch is active.
    pub(crate) fn mark_active(&mut self) {
        self.guest.is_quiescent = false;
        self.guest.blocked_on = BlockedOn::External;
        self.guest.activity = self.guest.activity.wrapping_add(1);
    }

    /// Whether branches of a guest may be running: one has not consumed its delivery, or is neither in a
    /// durable call nor known to wait.
    fn is_active(&self) -> bool {
        self.calls.unconsumed > 0
            || self.guest.cancelled_calls > 0
            || (!self.guest.is_quiescent && self.calls.outstanding < self.active_branches)
    }

    /// Returns a failure if the record continues although the code has returned.
    pub(crate) fn early_return_failure(&self) -> Option<Failure> {
        let next = self.delivery.replay.as_ref()?.peek()?;
        Some(non_determinism_failure(&describe_early_return(next)))
    }

    /// Returns the durable waits of a pausing run in which a body does not begin and no other body runs. Other
    /// branches may wait for events outside of durable calls. Such an event may depend on the body that does not
    /// begin, so the run does not wait for it.
    fn waits_at_gate(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        if self.delivery.block_count > 0
            || self.has_undelivered()
            || self.calls.unconsumed > 0
            || self.guest.cancelled_calls > 0
        {
            return None;
        }
        let waits: Vec<_> = self
            .calls
            .iter()
            .filter(|call| call.is_waited_for())
            .map(|call| Some((call.path.clone(), call.waiting_for.clone()?, call.begun_at)))
            .collect::<Option<_>>()?;
        waits.iter().any(|(_, waiting_for, _)| matches!(waiting_for, WaitingFor::Resume)).then_some(waits)
    }

    pub(crate) fn durable_waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        if self.delivery.block_count > 0 || self.has_undelivered() || self.active_branches == 0 {
            return None;
        }
        if self.calls.unconsumed > 0 || self.guest.cancelled_calls > 0 {
            // a branch of a guest is about to continue, after its delivery or after its call was cancelled
            return None;
        }
        let waits: Vec<_> = self
            .calls
            .iter()
            .filter_map(|call| Some((call.path.clone(), call.waiting_for.clone()?, call.begun_at)))
            .collect();
        // a branch that waits for other branches needs no durable wait of its own
        let expected = if self.guest.blocked_on == BlockedOn::DurableCalls {
            self.calls.outstanding
        } else {
            self.active_branches
        };
        (waits.len() == expected as usize).then_some(waits)
    }
}
