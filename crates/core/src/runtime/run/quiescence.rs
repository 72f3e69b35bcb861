//! Rest: when all branches of a run wait, and what is delivered then.
//!
//! Branches of Rust are at rest when a poll of the run's task has woken none of them. Code of a guest is polled
//! by somebody else, who watches it: see [`guest`](crate::guest).

use std::task::Waker;

use crate::clock::Timestamp;
use crate::commit::Lsn;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::runtime::run::call::{Delivery, Phase, WaitingFor};
use crate::runtime::run::mismatch::{ends_early, missing, non_deterministic, not_given_up};
use crate::runtime::run::{ChildState, InThread, Interrupt, Run, RunState};
use crate::store::CheckpointKind;

/// What the run's task does next when all branches are at rest.
pub(crate) enum Rest {
    /// Something was delivered: poll again.
    Delivered,
    /// Wait to be woken.
    Idle,
    /// Code that somebody else polls may be running: wait to be told.
    Restless,
}

/// What the branches of a guest wait for when they are at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// Some may go on by themselves: they wait for something that is nothing of the execution's.
    #[default]
    Outside,
    /// For durable calls, and for branches that wait for such; some with a limit in time that is not durable.
    Limited,
    /// For durable calls, and for branches that wait for such.
    Inside,
}

impl Run {
    /// All branches are at rest: makes the next delivery, if there is one.
    pub(crate) fn rest(&self) -> Rest {
        let mut state = self.state();
        if state.busy > 0 || state.interrupt.is_some() {
            return Rest::Idle;
        }
        if self.definition.is_guest() && state.is_restless() {
            return Rest::Restless;
        }
        let state = &mut *state;
        let Some(replay) = &mut state.replay else {
            return match state.completed.pop_front() {
                Some(id) => {
                    self.deliver(state, id);
                    Rest::Delivered
                }
                None => Rest::Idle,
            };
        };
        let Some(next) = replay.peek() else {
            state.replay = None;
            for call in state.calls.iter_mut().flatten() {
                if matches!(call.phase, Phase::Beyond) {
                    call.phase = Phase::Live;
                    if let Some(waker) = call.waker.take() {
                        waker.wake();
                    }
                }
            }
            return Rest::Delivered;
        };
        let calls = &state.calls;
        let is_awaited = |id: &usize| calls[*id].as_ref().is_some_and(|call| call.is_awaited);
        let call = replay.calls.get(&next.path).copied().filter(is_awaited);
        let is_given_up = next.kind == CheckpointKind::Abandoned;
        let (Some(id), false) = (call, is_given_up) else {
            // a branch that waits for something else than a durable call may still do what is recorded
            if state.outstanding < state.leaves && state.waits == Waits::Outside {
                return Rest::Idle;
            }
            let disagreement = match call {
                Some(_) => not_given_up(next, self.definition.time_limit_hint),
                None => missing(next, calls.iter().flatten().filter(|call| call.is_waited_for())),
            };
            state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement).into()));
            return Rest::Delivered;
        };
        let Some(checkpoint) = replay.pop() else { return Rest::Idle };
        replay.calls.remove(&checkpoint.path);
        state.delivered_at = checkpoint.at;
        if let Some(Some(call)) = state.calls.get_mut(id) {
            call.phase = Phase::Delivered(Delivery {
                kind: checkpoint.kind,
                outcome: checkpoint.outcome,
                lsn: Lsn(0),
            });
            if let Some(waker) = call.waker.take() {
                waker.wake();
            }
            state.unheard += 1;
        }
        Rest::Delivered
    }

    /// Adds `by` to the number of branches that are not waiting for branches of their own.
    pub(crate) fn add_leaves(&self, by: i32) {
        let mut state = self.state();
        state.stir();
        state.leaves = state.leaves.saturating_add_signed(by);
        if by < 0 && self.definition.is_guest() {
            // what hears of the end of a branch on a loop may cancel others, or begin some
            state.is_unsettled |= state.thread.is_none();
            if state.has_undelivered() {
                drop(state);
                self.poke();
            }
        }
    }

    /// Code of a branch of a guest runs.
    pub(crate) fn code_runs(&self) {
        self.state().stir();
    }

    /// Code of a branch of a guest waits now, or has ended. True if from now on somebody has to watch for the rest
    /// of all of them.
    pub(crate) fn code_waits(&self) -> bool {
        let mut state = self.state();
        // a single branch concerns nobody else, unless something is to be done when it has come to rest
        let is_alone = state.leaves <= 1 && state.start.is_none() && state.replay.is_none();
        let is_at_rest = !state.minds_unsettled() && (is_alone || !state.is_restless()) || state.is_closed;
        !is_at_rest && !std::mem::replace(&mut state.is_watched, true)
    }

    /// Changes with everything that branches of a guest do; `None` if nobody needs to watch them any more.
    pub(crate) fn activity(&self) -> Option<u32> {
        let mut state = self.state();
        if !state.is_closed && (state.is_restless() || state.minds_unsettled()) {
            return Some(state.activity);
        }
        state.is_watched = false;
        if !state.is_closed && state.minds_rest() {
            drop(state);
            self.poke();
        }
        None
    }

    /// True if it matters what the branches of a guest wait for: a recorded delivery cannot be made, or the run
    /// could be suspended.
    pub(crate) fn minds_waits(&self) -> bool {
        let state = self.state();
        if let Some(replay) = &state.replay {
            return replay.peek().is_some_and(|next| {
                next.kind == CheckpointKind::Abandoned || !replay.calls.contains_key(&next.path)
            });
        }
        let patience = self.core.options.suspend_after;
        let now = self.core.now();
        state.outstanding > 0
            && state.calls.iter().flatten().filter(|call| call.is_awaited).all(|call| {
                match &call.waiting_for {
                    Some(WaitingFor::Timer(due_at)) => due_at.since(now) > patience,
                    Some(WaitingFor::Child(_)) => true,
                    None => false,
                }
            })
    }

    /// No branch of a guest runs any more, and none can before something is delivered, or comes from outside.
    pub(crate) fn set_quiet(&self, waits: Waits) {
        {
            let mut state = self.state();
            state.is_watched = false;
            state.is_unsettled = false;
            state.is_quiet = true;
            state.waits = waits;
        }
        self.poke();
    }

    /// True if a thread does nothing while its code waits for this child, which may need one itself.
    pub(crate) fn wastes_a_thread(&self, child: Key) -> bool {
        let state = self.state();
        match state.thread {
            None => false,
            Some(InThread::Idle) => true,
            Some(InThread::Hosting) => !matches!(state.children.get(&child), Some(ChildState::Local)),
        }
    }

    /// Wakes `waker` when the guest's code has to unwind; false if it has to already.
    pub(crate) fn on_stop(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if state.stopped.is_some() {
            return false;
        }
        state.stop_wakers.push(waker.clone());
        true
    }

    /// `waker` need not be woken any more.
    pub(crate) fn off_stop(&self, waker: &Waker) {
        let mut state = self.state();
        if let Some(i) = state.stop_wakers.iter().rposition(|other| other.will_wake(waker)) {
            state.stop_wakers.swap_remove(i);
        }
    }

    /// Wakes whoever waits for a call of a guest that has been stopped.
    pub(crate) fn wake_stopped(&self) {
        let wakers = std::mem::take(&mut self.state().stop_wakers);
        for waker in wakers {
            waker.wake();
        }
    }

    /// If every branch is in a durable wait, what for and since when; `None` if some body runs, or some
    /// branch waits for something else.
    pub(crate) fn waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        self.state().durable_waits()
    }
}

impl RunState {
    /// True if something may be delivered once all branches are at rest.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.replay.is_some() || !self.completed.is_empty()
    }

    /// True if a branch has ended and others are in durable waits: these are recorded, and suspended for, once it is
    /// certain that nothing follows from the end.
    pub(crate) fn minds_unsettled(&self) -> bool {
        self.is_unsettled && self.waiting > 0
    }

    /// True if the task of a guest's run has something to do now that a branch has come to rest: a delivery, or
    /// a wait to record or to suspend for once all branches are at rest.
    pub(crate) fn minds_rest(&self) -> bool {
        self.has_undelivered() || (self.waiting > 0 && !self.is_unsettled && !self.is_restless())
    }

    /// A branch does something.
    pub(crate) fn stir(&mut self) {
        self.is_quiet = false;
        self.waits = Waits::Outside;
        self.activity = self.activity.wrapping_add(1);
    }

    /// True if branches that somebody else polls may be running: one has yet to hear something, or is in no
    /// durable call and not known to be waiting.
    fn is_restless(&self) -> bool {
        self.unheard > 0 || self.cancelled > 0 || (!self.is_quiet && self.outstanding < self.leaves)
    }

    /// The failure of code that has returned although more is recorded.
    pub(crate) fn ends_early(&self) -> Option<Failure> {
        let next = self.replay.as_ref()?.peek()?;
        Some(non_deterministic(&ends_early(next)))
    }

    pub(crate) fn durable_waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        if self.busy > 0 || self.replay.is_some() || !self.completed.is_empty() || self.leaves == 0 {
            return None;
        }
        if self.unheard > 0 || self.cancelled > 0 {
            // some branch of a guest is about to go on: with what it was handed, or without what it waited for
            return None;
        }
        let waits: Vec<_> = self
            .calls
            .iter()
            .flatten()
            .filter_map(|call| Some((call.path.clone(), call.waiting_for.clone()?, call.begun_at)))
            .collect();
        // branches that wait for other branches go on with them
        let least = if self.waits == Waits::Inside { self.outstanding } else { self.leaves };
        (waits.len() == least as usize).then_some(waits)
    }
}
