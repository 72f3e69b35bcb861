//! Deliveries: how the outcomes of a run's calls reach its code.
//!
//! Every durable await of a workflow is a *call*, whose outcome is *delivered*. Under the run's lock, a
//! delivery gets the next `order`, and its checkpoint is staged. Only then does the waiting branch continue.
//! The run makes one delivery at a time, and only when all branches are blocked, live and in replay alike. So
//! what the code does between two deliveries depends only on their order, and a replay repeats it exactly.

use std::task::Waker;

use crate::clock::Timestamp;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::call::{CallPoll, CallState, Delivery, IdleState, Phase, WaitingFor};
use crate::runtime::run::mismatch::{
    describe_replaced_sleep, describe_unrecorded_abandonment, non_determinism_failure,
};
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::{Interrupt, Run, RunState};
use crate::store::{Checkpoint, CheckpointKind, PendingSleep, State, Write};

/// Calls and their deliveries.
impl Run {
    /// Registers the call at `path`. Returns its id, and whether the call has to be executed at once. In a
    /// replay the call is compared with the record; a mismatch parks the execution.
    pub(crate) fn begin_call(
        &self,
        path: Path,
        name: &Name,
        kind: CallKind,
        fingerprint: Option<u64>,
    ) -> (usize, bool) {
        let begun_at = self.engine.now();
        let mut state = self.state();
        let is_sleep_pending = !matches!(kind, CallKind::Sleep | CallKind::Receive | CallKind::GetEvent)
            && state.pending_sleeps.iter().any(|sleep| sleep.path == path);
        let phase = if state.is_closed || state.interrupt.is_some() {
            Phase::Unreachable
        } else if is_sleep_pending
            && state.delivery.replay.as_ref().is_none_or(|replay| !replay.has_recorded(&path))
        {
            let disagreement = describe_replaced_sleep(kind, name, &path);
            state.interrupt = Some(Interrupt::Park(non_determinism_failure(&disagreement).into()));
            Phase::Unreachable
        } else if let Some(replay) = &state.delivery.replay {
            match replay.find(&path, kind, name, fingerprint) {
                Ok(Some(_)) => Phase::Recorded,
                Ok(None) => Phase::AfterReplay,
                Err(disagreement) => {
                    state.interrupt = Some(Interrupt::Park(non_determinism_failure(&disagreement).into()));
                    Phase::Unreachable
                }
            }
        } else {
            Phase::Live
        };
        let is_live = matches!(phase, Phase::Live);
        let call = CallState {
            path: path.clone(),
            name: name.clone(),
            kind,
            fingerprint,
            begun_at,
            phase,
            is_awaited: !self.definition.is_guest(),
            waiting_for: None,
            message: None,
            waker: None,
        };
        state.calls.outstanding += u32::from(call.is_awaited);
        state.mark_active();
        let id = state.calls.insert(call);
        if let Some(replay) = &mut state.delivery.replay {
            replay.calls.insert(path, id);
        }
        if state.interrupt.is_some() {
            drop(state);
            self.wake_task();
        }
        (id, is_live)
    }

    /// Whether recorded outcomes remain to be delivered.
    pub(crate) fn is_replaying(&self) -> bool {
        self.is_replayed && self.state().delivery.replay.is_some()
    }

    /// Whether the outcome of the call at `path` is recorded and not delivered again yet.
    pub(crate) fn has_recorded(&self, path: &Path) -> bool {
        self.state().delivery.replay.as_ref().is_some_and(|replay| replay.has_recorded(path))
    }

    /// Whether an outcome is recorded at the root's call with this number, or below, delivered again or not.
    pub(crate) fn has_recorded_in_branch(&self, number: u32) -> bool {
        self.state().delivery.replay.as_mut().is_some_and(|replay| replay.has_recorded_in_branch(number))
    }

    /// Whether the step at `path` failed before the execution was resumed last, and the failure is not delivered again yet.
    /// Also true for a child at `path` that ended before: the child's own row has its outcome.
    pub(crate) fn may_have_failed_before_resume(&self, path: &Path) -> bool {
        let state = self.state();
        let checkpoint = state.delivery.replay.as_ref().and_then(|replay| replay.checkpoint(path));
        checkpoint.is_some_and(|it| {
            matches!(it.kind, CheckpointKind::Failed | CheckpointKind::Child) && it.run_no < self.run_no
        })
    }

    /// Notes that a guest's branch has begun to wait for the call.
    pub(crate) fn await_call(&self, id: usize) {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(id) else { return };
        if std::mem::replace(&mut call.is_awaited, true) {
            return;
        }
        state.calls.outstanding += 1;
        if state.has_undelivered() {
            // all branches may be blocked now
            drop(state);
            self.wake_task();
        }
    }

    /// Notes that the call began at `at`, if that is earlier than this run has begun it.
    pub(crate) fn set_call_begun_at(&self, id: usize, at: Timestamp) {
        if let Some(call) = self.state().calls.get_mut(id) {
            call.begun_at = call.begun_at.min(at);
        }
    }

    /// Returns whether the call is pending, has its delivery, or has to be executed. Keeps `waker` while the
    /// call is pending.
    pub(crate) fn poll_call(&self, id: usize, waker: &Waker) -> CallPoll {
        let mut state = self.state();
        if let Some(delivery) = state.consume(id) {
            return CallPoll::Delivered(delivery);
        }
        let Some(call) = state.calls.get_mut(id) else { return CallPoll::Pending };
        match &call.phase {
            Phase::Live => CallPoll::Execute,
            _ => {
                match &mut call.waker {
                    Some(kept) => kept.clone_from(waker),
                    None => call.waker = Some(waker.clone()),
                }
                CallPoll::Pending
            }
        }
    }

    /// Notes that the call has taken the message with this number, which its delivery receives.
    pub(crate) fn set_message(&self, id: usize, number: i64) {
        if let Some(call) = self.state().calls.get_mut(id) {
            call.message = Some(number);
        }
    }

    /// Notes what the call waits for, so that the run can be suspended. Keeps `waker`.
    pub(crate) fn set_waiting_for(&self, id: usize, waiting_for: WaitingFor, waker: &Waker) {
        let mut state = self.state();
        let is_new = state.calls.set_wait(id, waiting_for);
        if let Some(call) = state.calls.get_mut(id) {
            call.waker = Some(waker.clone());
        }
        drop(state);
        if is_new && self.definition.is_guest() {
            // the task does not poll a guest's call, so it has not seen that the run may be suspended
            self.wake_task();
        }
    }

    /// Notes that the call waits for nothing any more, and continues.
    pub(crate) fn clear_waiting_for(&self, id: usize) {
        self.state().calls.clear_wait(id);
    }

    /// Completes a call with its outcome. If no other branch can be affected, delivers the outcome at once
    /// and returns the delivery. Otherwise the outcome is delivered in its turn.
    pub(crate) fn complete_call(
        &self,
        id: usize,
        kind: CheckpointKind,
        outcome: Payload,
        reserved: u32,
    ) -> Option<Delivery> {
        let mut state = self.state();
        // the last conditions: the code may have cancelled this call, or another branch may have won a race. The
        // outcome would then arrive after the call was abandoned.
        let is_alone = state.active_branches == 1
            && state.delivery.replay.is_none()
            && state.calls.completed.is_empty()
            && state.delivery.block_count == 0
            && state.guest.cancelled_calls == 0
            && !state.has_decidable_race();
        let call = state.calls.get_mut(id)?;
        if !matches!(call.phase, Phase::Live) {
            self.lane().release(reserved);
            self.withdraw_value(&outcome);
            return None;
        }
        call.phase = Phase::Completed(kind, outcome, reserved);
        state.calls.clear_wait(id);
        if is_alone {
            self.deliver(&mut state, id);
            return state.consume(id);
        }
        state.calls.completed.push_back(id);
        drop(state);
        self.wake_task();
        None
    }

    /// Delivers the outcome of a completed call: assigns the order, stages the checkpoint and wakes the
    /// branch.
    pub(crate) fn deliver(&self, state: &mut RunState, id: usize) {
        if state.is_closed || state.interrupt.is_some() {
            return;
        }
        let at = self.engine.now();
        let Some(call) = state.calls.get_mut(id) else { return };
        if !matches!(call.phase, Phase::Completed(..)) {
            return;
        }
        let Phase::Completed(kind, outcome, reserved) =
            std::mem::replace(&mut call.phase, Phase::Unreachable)
        else {
            return;
        };
        let mut checkpoint = Checkpoint {
            execution: self.key,
            // the call's path is not read again after the delivery
            path: std::mem::take(&mut call.path),
            run_no: self.run_no,
            order: state.delivery.next_order,
            kind,
            name: call.name.clone(),
            fingerprint: call.fingerprint,
            outcome,
            at,
            duration_ms: at.since(call.begun_at).as_millis() as i64,
            number: call.message.take(),
        };
        if kind == CheckpointKind::StreamWrite {
            checkpoint.number = state.calls.streams().take_offset(&checkpoint.name);
        }
        let received = checkpoint.received().map(|number| (checkpoint.name.clone(), number));
        state.delivery.next_order += 1;
        state.delivery.delivered_at = at;
        state.calls.note_active(|| at);
        let Some(lsn) = self.stage_locked(state, Write::Checkpoint(checkpoint), reserved) else { return };
        if let Some((topic, number)) = received {
            state.calls.mailbox().note_received(&topic, number, lsn);
        }
        let Some(call) = state.calls.get_mut(id) else { return };
        // the caller of `complete_call` has the outcome
        call.phase = Phase::Delivered(Delivery { kind, outcome: Payload::empty(), lsn });
        crate::crash_point!("checkpoint staged");
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
        state.calls.unconsumed += 1;
    }

    /// Returns the name of a call.
    pub(crate) fn call_name(&self, id: usize) -> String {
        let state = self.state();
        state.calls.get(id).map_or_else(String::new, |call| call.name.to_string())
    }

    /// Removes a call whose future was dropped. If its outcome was not delivered, records the call as
    /// abandoned.
    pub(crate) fn finish_call(&self, id: usize) {
        let mut state = self.state();
        let mut is_message_free = false;
        let Some(call) = state.calls.remove(id) else { return };
        if !call.is_awaited {
            // no branch began to wait for the call: the call counts as never made, whenever its future is
            // dropped
            if let Some(replay) = &mut state.delivery.replay {
                replay.calls.remove(&call.path);
            }
            return;
        }
        if !matches!(call.phase, Phase::Consumed) {
            state.calls.outstanding -= 1;
            state.mark_active();
        }
        match call.phase {
            Phase::Delivered(_) => {
                state.calls.unconsumed -= 1;
                return;
            }
            Phase::Consumed | Phase::Unreachable => return,
            Phase::Completed(_, outcome, reserved) if state.is_closed || state.interrupt.is_some() => {
                self.lane().release(reserved);
                self.withdraw_value(&outcome);
                return;
            }
            _ if state.is_closed || state.interrupt.is_some() => return,
            Phase::Recorded => {
                let Some(replay) = &mut state.delivery.replay else { return };
                replay.calls.remove(&call.path);
                if !replay.abandon(&call.path) {
                    self.park_for_abandoned_call(&mut state, &call, true);
                }
                drop(state);
                self.wake_task();
                return;
            }
            Phase::AfterReplay => {
                let Some(replay) = &mut state.delivery.replay else { return };
                replay.calls.remove(&call.path);
                if replay.has_more_deliveries() {
                    // the recorded code abandoned the call, if at all, only after the deliveries that are
                    // still to come
                    self.park_for_abandoned_call(&mut state, &call, false);
                    drop(state);
                    self.wake_task();
                    return;
                }
            }
            Phase::Live => {}
            Phase::Completed(_, outcome, reserved) => {
                self.lane().release(reserved);
                if let Some(number) = call.message {
                    // another call receives the message
                    state.calls.mailbox().put_back(&call.name, number);
                    is_message_free = true;
                } else {
                    self.withdraw_value(&outcome);
                }
                state.calls.completed.retain(|other| *other != id);
            }
        }
        let at = self.engine.now();
        let checkpoint = Checkpoint {
            execution: self.key,
            path: call.path,
            run_no: self.run_no,
            order: state.delivery.next_order,
            kind: CheckpointKind::Abandoned,
            name: call.name,
            fingerprint: call.fingerprint,
            outcome: Payload::empty(),
            at,
            duration_ms: at.since(call.begun_at).as_millis() as i64,
            number: None,
        };
        state.delivery.next_order += 1;
        self.stage_locked(&mut state, Write::Checkpoint(checkpoint), 0);
        drop(state);
        if is_message_free {
            self.engine.change_watch.notify(self.key);
        }
    }

    fn park_for_abandoned_call(&self, state: &mut RunState, call: &CallState, is_recorded: bool) {
        let time_limit = self.definition.time_limit_hint;
        let disagreement =
            describe_unrecorded_abandonment(call.kind, &call.name, &call.path, is_recorded, time_limit);
        state.interrupt = Some(Interrupt::Park(non_determinism_failure(&disagreement).into()));
    }

    /// Stages the Start, before the run's task waits to be woken. Returns the durable waits of the branches.
    pub(crate) fn prepare_to_wait(&self) -> IdleState {
        let mut state = self.state();
        if state.interrupt.is_some() || self.ensure_start_staged(&mut state).is_none() {
            return IdleState::Interrupted;
        }
        if !state.calls.has_durable_wait() || state.guest.is_branch_end_unsettled {
            return IdleState::NoDurableWait;
        }
        // the calls of a wide run are not looked at whenever one of many children has ended
        if !state.calls.take_new_timer()
            && !self.is_pausing()
            && let Some(until) = state.suspendable_at(self.engine.now())
        {
            return IdleState::TooEarly(until);
        }
        let sleeps = state.calls.iter().filter_map(|call| {
            let due_at = call.waiting_for.as_ref()?.due_at()?;
            Some(PendingSleep { path: call.path.clone(), due_at })
        });
        let unrecorded_sleeps = sleeps.filter(|sleep| !state.pending_sleeps.contains(sleep)).collect();
        IdleState::Waiting { durable_waits: state.durable_waits(), unrecorded_sleeps }
    }

    /// Records pending sleeps, with their due times, in the execution's row. Removes sleeps that are over.
    pub(crate) fn record_pending_sleeps(&self, sleeps: Vec<PendingSleep>) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        let mut kept = std::mem::take(&mut state.pending_sleeps).into_vec();
        kept.retain(|sleep| state.calls.iter().any(|call| call.path == sleep.path));
        kept.extend(sleeps);
        state.pending_sleeps = kept.into();
        let running = State::Running { pending_sleeps: state.pending_sleeps.to_vec() };
        self.stage_locked(&mut state, self.transition_to(running), 0);
    }
}

impl RunState {
    /// Consumes the delivery to a call. The call's branch is active from here on.
    fn consume(&mut self, id: usize) -> Option<Delivery> {
        let call = self.calls.get_mut(id)?;
        if !matches!(call.phase, Phase::Delivered(_)) {
            return None;
        }
        let Phase::Delivered(delivery) = std::mem::replace(&mut call.phase, Phase::Consumed) else {
            return None;
        };
        let is_awaited = call.is_awaited;
        self.calls.unconsumed -= 1;
        self.calls.outstanding -= u32::from(is_awaited);
        self.mark_active();
        Some(delivery)
    }
}
