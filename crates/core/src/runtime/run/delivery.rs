//! Deliveries: how the outcomes of a run's calls reach its code.
//!
//! Every durable await of a workflow is a *call*. Its outcome is *delivered*: under the run's lock it gets
//! the next `order`, its checkpoint is staged, and only then the waiting branch goes on. Deliveries happen
//! one at a time, each when all branches have come to rest, live and in replay alike; so what the code does
//! between two deliveries depends on nothing but their order, and a replay repeats it exactly.

use std::task::Waker;

use crate::clock::Timestamp;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::call::{CallState, Delivery, Phase, Settling, Turn, WaitingFor};
use crate::runtime::run::mismatch::{given_up, non_deterministic, sleep_under_way};
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::{Interrupt, Run, RunState};
use crate::store::{PendingSleep, Checkpoint, CheckpointKind, State, Write};

/// Calls and their deliveries.
impl Run {
    /// Registers the call at `path`: its number, and whether it is to be carried out at once. In a replay it
    /// is compared with the record; a mismatch parks the run.
    pub(crate) fn begin(
        &self,
        path: Path,
        name: &Name,
        kind: CallKind,
        fingerprint: Option<u64>,
    ) -> (usize, bool) {
        let begun_at = self.core.now();
        let mut state = self.state();
        let sleeps_there = kind != CallKind::Sleep && state.armed.iter().any(|armed| armed.path == path);
        let phase = if state.is_closed || state.interrupt.is_some() {
            Phase::Stuck
        } else if sleeps_there && state.replay.as_ref().is_none_or(|replay| !replay.records(&path)) {
            let disagreement = sleep_under_way(kind, name, &path);
            state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement).into()));
            Phase::Stuck
        } else if let Some(replay) = &state.replay {
            match replay.find(&path, kind, name, fingerprint) {
                Ok(Some(_)) => Phase::Recorded,
                Ok(None) => Phase::Beyond,
                Err(disagreement) => {
                    state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement).into()));
                    Phase::Stuck
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
            waker: None,
        };
        state.outstanding += u32::from(call.is_awaited);
        state.stir();
        let id = match state.vacant.pop() {
            Some(id) => {
                state.calls[id] = Some(call);
                id
            }
            None => {
                if state.calls.is_empty() {
                    // most executions have one branch
                    state.calls.reserve_exact(1);
                }
                state.calls.push(Some(call));
                state.calls.len() - 1
            }
        };
        if let Some(replay) = &mut state.replay {
            replay.calls.insert(path, id);
        }
        if state.interrupt.is_some() {
            drop(state);
            self.poke();
        }
        (id, is_live)
    }

    /// The branch of a guest has begun to wait for the call.
    pub(crate) fn await_call(&self, id: usize) {
        let mut state = self.state();
        let Some(Some(call)) = state.calls.get_mut(id) else { return };
        if std::mem::replace(&mut call.is_awaited, true) {
            return;
        }
        state.outstanding += 1;
        if state.has_undelivered() {
            // all branches may be at rest now
            drop(state);
            self.poke();
        }
    }

    /// Says that the call began at `at`, in a run before this one.
    pub(crate) fn began_at(&self, id: usize, at: Timestamp) {
        if let Some(Some(call)) = self.state().calls.get_mut(id) {
            call.begun_at = at;
        }
    }

    /// Whose turn it is; keeps `waker` while the call waits.
    pub(crate) fn turn(&self, id: usize, waker: &Waker) -> Turn {
        let mut state = self.state();
        if let Some(delivery) = state.hear(id) {
            return Turn::Delivered(delivery);
        }
        let Some(Some(call)) = state.calls.get_mut(id) else { return Turn::Wait };
        match &call.phase {
            Phase::Live => Turn::Live,
            _ => {
                match &mut call.waker {
                    Some(kept) => kept.clone_from(waker),
                    None => call.waker = Some(waker.clone()),
                }
                Turn::Wait
            }
        }
    }

    /// Says what the call waits for, so that the run can suspend; keeps `waker`.
    pub(crate) fn waits_for(&self, id: usize, waiting_for: WaitingFor, waker: &Waker) {
        let mut state = self.state();
        let mut is_new = false;
        if let Some(Some(call)) = state.calls.get_mut(id) {
            is_new = call.waiting_for.replace(waiting_for).is_none();
            call.waker = Some(waker.clone());
        }
        state.waiting += u32::from(is_new);
        drop(state);
        if is_new && self.definition.is_guest() {
            // the task does not poll the call: it has not seen that there is something to suspend for
            self.poke();
        }
    }

    /// The call has an outcome. It is delivered at once if no other branch could be concerned, else in turn.
    pub(crate) fn complete(
        &self,
        id: usize,
        kind: CheckpointKind,
        outcome: Payload,
        room: u32,
    ) -> Option<Delivery> {
        let mut state = self.state();
        // a call that the code has cancelled may be this one: its outcome would come after the cancellation
        let is_alone = state.leaves == 1
            && state.replay.is_none()
            && state.completed.is_empty()
            && state.busy == 0
            && state.cancelled == 0;
        let Some(Some(call)) = state.calls.get_mut(id) else { return None };
        if !matches!(call.phase, Phase::Live) {
            self.lane().release(room);
            return None;
        }
        call.phase = Phase::Completed(kind, outcome, room);
        let waited = call.waiting_for.take().is_some();
        state.waiting -= u32::from(waited);
        if is_alone {
            self.deliver(&mut state, id);
            return state.hear(id);
        }
        state.completed.push_back(id);
        drop(state);
        self.poke();
        None
    }

    /// Assigns the order, stages the checkpoint, hands the outcome over.
    pub(crate) fn deliver(&self, state: &mut RunState, id: usize) {
        if state.is_closed || state.interrupt.is_some() {
            return;
        }
        let at = self.core.now();
        let Some(Some(call)) = state.calls.get_mut(id) else { return };
        if !matches!(call.phase, Phase::Completed(..)) {
            return;
        }
        let Phase::Completed(kind, outcome, room) = std::mem::replace(&mut call.phase, Phase::Stuck) else {
            return;
        };
        let checkpoint = Checkpoint {
            execution: self.key,
            // nobody asks a delivered call for it
            path: std::mem::take(&mut call.path),
            run_no: self.run_no,
            order: state.next_order,
            kind,
            name: call.name.clone(),
            fingerprint: call.fingerprint,
            outcome,
            at,
            took_ms: at.since(call.begun_at).as_millis() as i64,
        };
        state.next_order += 1;
        state.delivered_at = at;
        let Some(lsn) = self.stage_in(state, Write::Checkpoint(checkpoint), room) else { return };
        let Some(Some(call)) = state.calls.get_mut(id) else { return };
        // whoever completed the call has its value
        call.phase = Phase::Delivered(Delivery { kind, outcome: Payload::empty(), lsn });
        crate::crash_point!("checkpoint staged");
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
        state.unheard += 1;
    }

    /// The name of a call.
    pub(crate) fn name_of(&self, id: usize) -> String {
        let state = self.state();
        state.calls.get(id).and_then(Option::as_ref).map_or_else(String::new, |call| call.name.to_string())
    }

    /// The call's future is gone. If it was not delivered, that the workflow gave it up is recorded.
    pub(crate) fn finish_call(&self, id: usize) {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(id).and_then(Option::take) else { return };
        state.vacant.push(id);
        state.waiting -= u32::from(call.waiting_for.is_some());
        if !call.is_awaited {
            // nobody has begun to wait for it: it was never made, whenever it goes away
            if let Some(replay) = &mut state.replay {
                replay.calls.remove(&call.path);
            }
            return;
        }
        if !matches!(call.phase, Phase::Heard) {
            state.outstanding -= 1;
            state.stir();
        }
        match call.phase {
            Phase::Delivered(_) => {
                state.unheard -= 1;
                return;
            }
            Phase::Heard | Phase::Stuck => return,
            Phase::Completed(_, _, room) if state.is_closed || state.interrupt.is_some() => {
                self.lane().release(room);
                return;
            }
            _ if state.is_closed || state.interrupt.is_some() => return,
            Phase::Recorded => {
                let Some(replay) = &mut state.replay else { return };
                replay.calls.remove(&call.path);
                if !replay.give_up(&call.path) {
                    self.disagree_to_give_up(&mut state, &call, true);
                }
                drop(state);
                self.poke();
                return;
            }
            Phase::Beyond => {
                let Some(replay) = &mut state.replay else { return };
                replay.calls.remove(&call.path);
                if replay.delivers_more() {
                    // what was delivered after this would have seen it
                    self.disagree_to_give_up(&mut state, &call, false);
                    drop(state);
                    self.poke();
                    return;
                }
            }
            Phase::Live => {}
            Phase::Completed(_, _, room) => {
                self.lane().release(room);
                state.completed.retain(|other| *other != id);
            }
        }
        let at = self.core.now();
        let checkpoint = Checkpoint {
            execution: self.key,
            path: call.path,
            run_no: self.run_no,
            order: state.next_order,
            kind: CheckpointKind::Abandoned,
            name: call.name,
            fingerprint: call.fingerprint,
            outcome: Payload::empty(),
            at,
            took_ms: at.since(call.begun_at).as_millis() as i64,
        };
        state.next_order += 1;
        self.stage_in(&mut state, Write::Checkpoint(checkpoint), 0);
    }

    fn disagree_to_give_up(&self, state: &mut RunState, call: &CallState, is_recorded: bool) {
        let time_limit = self.definition.time_limit_hint;
        let disagreement = given_up(call.kind, &call.name, &call.path, is_recorded, time_limit);
        state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement).into()));
    }

    /// What the run's task needs to know before it waits to be woken; stages the Start.
    pub(crate) fn settle_down(&self) -> Settling {
        let mut state = self.state();
        if state.interrupt.is_some() || self.start_in(&mut state).is_none() {
            return Settling::Interrupted;
        }
        if state.waiting == 0 || state.is_unsettled {
            return Settling::Busy;
        }
        let sleeps = state.calls.iter().flatten().filter_map(|call| match call.waiting_for {
            Some(WaitingFor::Timer(due_at)) => Some(PendingSleep { path: call.path.clone(), due_at }),
            _ => None,
        });
        let unarmed = sleeps.filter(|armed| !state.armed.contains(armed)).collect();
        Settling::Waiting { all: state.durable_waits(), unarmed }
    }

    /// Keeps due times in the row.
    pub(crate) fn arm(&self, armed: Vec<PendingSleep>) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        let outstanding = |armed: &PendingSleep, calls: &[Option<CallState>]| {
            calls.iter().flatten().any(|call| call.path == armed.path)
        };
        let mut kept = std::mem::take(&mut state.armed);
        kept.retain(|armed| outstanding(armed, &state.calls));
        kept.extend(armed);
        state.armed = kept;
        let moved = State::Running { armed: state.armed.clone() };
        self.stage_in(&mut state, self.to_state(moved), 0);
    }
}

impl RunState {
    /// What was delivered to a call, for its branch, which goes on from here.
    fn hear(&mut self, id: usize) -> Option<Delivery> {
        let call = self.calls.get_mut(id)?.as_mut()?;
        if !matches!(call.phase, Phase::Delivered(_)) {
            return None;
        }
        let Phase::Delivered(delivery) = std::mem::replace(&mut call.phase, Phase::Heard) else {
            return None;
        };
        let is_awaited = call.is_awaited;
        self.unheard -= 1;
        self.outstanding -= u32::from(is_awaited);
        self.stir();
        Some(delivery)
    }
}
