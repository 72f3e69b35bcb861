//! [`Run`]: an execution while a worker runs it: its gate, its numbering, its deliveries.
//!
//! Every durable await of a workflow is a *call*. Its outcome is *delivered*: under the run's lock it gets
//! the next `order`, its checkpoint is staged, and only then the waiting branch goes on. Deliveries happen
//! one at a time, each when all branches have come to rest, live and in replay alike; so what the code does
//! between two deliveries depends on nothing but their order, and a replay repeats it exactly.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

use crate::clock::Timestamp;
use crate::commit::{Lane, Lsn, Slot, Staged};
use crate::engine::Core;
use crate::failure::{Failure, NON_DETERMINISTIC};
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::record::{Armed, Status};
use crate::replay::{Attempts, CallKind, Replay, described};
use crate::workflow::Definition;
use crate::write::{Attempt, Checkpoint, CheckpointKind, Move, Parent, Start, State, Write};

/// An execution while it runs here.
pub(crate) struct Run {
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) parent: Option<Parent>,
    pub(crate) run_no: u32,
    pub(crate) deadline_at: Option<Timestamp>,
    /// True if it was claimed: what it starts may exist already.
    pub(crate) is_replayed: bool,
    pub(crate) definition: Arc<Definition>,
    pub(crate) core: Arc<Core>,
    pub(crate) lane: Lane,
    /// The lane's generation that owns it.
    pub(crate) generation: u32,
    /// Itself, to be found by key before its Start can be durable.
    me: Weak<Run>,
    state: Mutex<RunState>,
    conclusion: Mutex<Concluding>,
    /// Wakes the task that polls it.
    pub(crate) task: AtomicWaker,
    /// Set by every wake: the branches may not be at rest.
    pub(crate) is_woken: AtomicBool,
}

/// How a run ended, for those who wait for it in this process.
#[derive(Clone, Debug)]
pub(crate) enum Conclusion {
    /// The end is durable.
    Ended(Status, Payload),
    /// It goes on elsewhere or later: suspended, parked, handed on, or lost. The database knows.
    Gone,
}

#[derive(Default)]
struct Concluding {
    conclusion: Option<Conclusion>,
    waiters: Vec<Waker>,
}

/// Why a run stops before its code has returned.
#[derive(Clone, Debug)]
pub(crate) enum Interrupt {
    /// All branches wait for something far away.
    Suspend,
    /// Somebody cancelled it, or its time is up.
    Cancel(Failure),
    /// Code and record disagree, or a record cannot be read.
    Park(Failure),
    /// The engine shuts down: hand it back.
    HandBack,
    /// Another worker owns it now, or its Start lost.
    Lost,
}

pub(crate) struct RunState {
    is_closed: bool,
    pub(crate) interrupt: Option<Interrupt>,
    /// The Start while it is not staged, and the room taken for it.
    start: Option<Box<Start>>,
    start_room: u32,
    start_lsn: Option<Lsn>,
    next_order: u32,
    /// Largest Lsn of its own Writes and of everything it was handed.
    last: Lsn,
    /// The same without checkpoints: what a speculative step waits for.
    last_solid: Lsn,
    slot: Slot,
    replay: Option<Box<Replay>>,
    /// Failed attempts of a recovered execution, by path.
    attempts: Option<Box<Attempts>>,
    calls: Vec<Option<CallState>>,
    vacant: Vec<usize>,
    /// Calls that wait for their delivery, in the order in which they completed.
    completed: VecDeque<usize>,
    /// Branches that are not waiting for branches of their own.
    leaves: usize,
    /// Calls outstanding.
    outstanding: usize,
    /// Deliveries whose values are still being fetched or made durable: nothing else is delivered.
    pub(crate) busy: usize,
    /// Due times kept in the row.
    pub(crate) armed: Vec<Armed>,
    /// Children that have been started, are awaited, and have not ended.
    pub(crate) children: BTreeMap<Key, ChildState>,
    /// Branches spawned and not yet taken up by the task.
    pub(crate) spawned: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// What is known of a child.
#[derive(Clone, Debug)]
pub(crate) enum ChildState {
    /// It runs in this process.
    Local,
    /// It does not run in this process.
    Elsewhere,
    /// Its end has been staged.
    Ended(ChildEnd),
}

#[derive(Clone, Debug)]
pub(crate) struct ChildEnd {
    pub(crate) status: Status,
    pub(crate) outcome: Payload,
    /// Where its end was staged, if on our lane.
    pub(crate) lsn: Lsn,
}

struct CallState {
    path: Path,
    name: Name,
    kind: CallKind,
    fingerprint: Option<u64>,
    begun_at: Timestamp,
    phase: Phase,
    waiting_for: Option<WaitingFor>,
    waker: Option<Waker>,
}

enum Phase {
    /// Recorded; its delivery will come.
    Recorded,
    /// Not recorded, while others are: waits for the end of the replay.
    Beyond,
    Live,
    /// Completed, not delivered.
    Completed(CheckpointKind, Payload, u32),
    Delivered(Delivery),
    /// Never to be delivered.
    Stuck,
}

/// What a call was handed.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) kind: CheckpointKind,
    /// What was recorded; empty if it was not a replay.
    pub(crate) outcome: Payload,
    pub(crate) lsn: Lsn,
}

/// What a call in a durable wait waits for; none while a body runs.
#[derive(Clone, Debug)]
pub(crate) enum WaitingFor {
    Timer(Timestamp),
    Child(Key),
}

/// What a call may do.
pub(crate) enum Turn {
    Wait,
    Live,
    Delivered(Delivery),
}

/// What the run's task does next when all branches are at rest.
pub(crate) enum Rest {
    /// Something was delivered: poll again.
    Delivered,
    /// Wait to be woken.
    Idle,
}

/// What a run waits for while nothing can be delivered.
pub(crate) enum Settling {
    /// There is something to do first.
    Interrupted,
    /// For bodies, or for something that is not a durable call.
    Busy,
    /// Some branches are in durable waits; all of them, if `all` says what for. `unarmed` are the sleeps
    /// whose due times the row does not keep.
    Waiting { all: Option<Vec<(Path, WaitingFor, Timestamp)>>, unarmed: Vec<Armed> },
}

pub(crate) struct NewRun {
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) parent: Option<Parent>,
    pub(crate) run_no: u32,
    pub(crate) deadline_at: Option<Timestamp>,
    /// A Start that is staged when something depends on it, and the room taken for it.
    pub(crate) start: Option<Box<Start>>,
    pub(crate) start_room: u32,
    pub(crate) replay: Option<Replay>,
    pub(crate) attempts: Option<Box<Attempts>>,
    pub(crate) armed: Vec<Armed>,
    pub(crate) is_replayed: bool,
    pub(crate) generation: u32,
}

impl Run {
    pub(crate) fn new(core: Arc<Core>, definition: Arc<Definition>, new: NewRun) -> Arc<Self> {
        let lane = core.lane_of(new.root);
        let next_order = new.replay.as_ref().map_or(0, Replay::last_order) + 1;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            key: new.key,
            root: new.root,
            parent: new.parent,
            run_no: new.run_no,
            deadline_at: new.deadline_at,
            is_replayed: new.is_replayed,
            definition,
            core,
            lane,
            generation: new.generation,
            state: Mutex::new(RunState {
                is_closed: false,
                interrupt: None,
                start: new.start,
                start_room: new.start_room,
                start_lsn: None,
                next_order,
                last: Lsn(0),
                last_solid: Lsn(0),
                slot: Slot::default(),
                replay: new.replay.map(Box::new),
                attempts: new.attempts,
                calls: Vec::new(),
                vacant: Vec::new(),
                completed: VecDeque::new(),
                leaves: 1,
                outstanding: 0,
                busy: 0,
                armed: new.armed,
                children: BTreeMap::new(),
                spawned: Vec::new(),
            }),
            conclusion: Mutex::default(),
            task: AtomicWaker::new(),
            is_woken: AtomicBool::new(false),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the run findable by key, for requests, children, waiters and the worker.
    pub(crate) fn register(&self) {
        if let Some(me) = self.me.upgrade() {
            self.core.runs.insert(me);
        }
    }

    /// Stops the run at its next turn. The first reason counts, except that losing it always does.
    pub(crate) fn interrupt(&self, interrupt: Interrupt) {
        {
            let mut state = self.state();
            if state.is_closed && !matches!(interrupt, Interrupt::Lost) {
                return;
            }
            if state.interrupt.is_none() || matches!(interrupt, Interrupt::Lost) {
                state.interrupt = Some(interrupt);
            }
        }
        self.poke();
    }

    /// Lets the task look again.
    pub(crate) fn poke(&self) {
        self.is_woken.store(true, SeqCst);
        self.task.wake();
    }

    /// False once the gate is closed.
    pub(crate) fn is_open(&self) -> bool {
        !self.state().is_closed
    }

    /// Drops branches that were spawned and not taken up: outside of the lock, which they take.
    pub(crate) fn drop_spawned(&self) {
        let spawned = std::mem::take(&mut self.state().spawned);
        drop(spawned);
    }

    /// Where the Start was staged, if it was staged here.
    pub(crate) fn start_lsn(&self) -> Option<Lsn> {
        self.state().start_lsn
    }

    /// True if the Start was staged and its outcome is known.
    pub(crate) fn is_start_settled(&self) -> bool {
        self.start_lsn().is_some_and(|lsn| self.lane.is_settled(lsn))
    }

    /// Closes the gate: from here on nothing of the run's code is recorded.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
    }

    /// Stages a Write of the run, its Start first. `None` if the gate is closed or ownership is lost.
    pub(crate) fn stage(&self, write: Write, room: u32) -> Option<Lsn> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        self.stage_in(&mut state, write, room)
    }

    /// Like [`Run::stage`], also through a closed gate: for the run's own end.
    pub(crate) fn stage_in(&self, state: &mut RunState, write: Write, room: u32) -> Option<Lsn> {
        if let Some(mut start) = state.start.take() {
            if let Write::Move(change) = write {
                // nothing has been staged yet: the execution is born in the state it has reached
                start.state = change.state;
                let room = room + state.start_room;
                return self.stage_write(state, Write::Start(start), room, true);
            }
            let start_room = state.start_room;
            self.stage_write(state, Write::Start(start), start_room, true)?;
        }
        let is_solid = !matches!(&write, Write::Checkpoint(c) if c.kind != CheckpointKind::Abandoned);
        self.stage_write(state, write, room, is_solid)
    }

    fn stage_write(&self, state: &mut RunState, write: Write, room: u32, is_solid: bool) -> Option<Lsn> {
        if let Write::Start(start) = &write
            && start.key == self.key
            && matches!(start.state, State::Running { .. })
        {
            // findable before it is durable: what becomes of it must find it, and nobody may adopt it
            self.register();
        }
        let is_start = matches!(&write, Write::Start(start) if start.key == self.key);
        let (generation, tree) = (self.generation, self.root);
        // only changes of the execution's own row have a slot to fold into
        let mut none = Slot::default();
        let slot = match &write {
            Write::Start(start) if start.key == self.key => &mut state.slot,
            Write::Move(_) => &mut state.slot,
            _ => &mut none,
        };
        let lsn = self.lane.stage(Staged { generation, tree, write, room }, slot);
        let Some(lsn) = lsn else {
            state.interrupt = Some(Interrupt::Lost);
            return None;
        };
        if is_start {
            state.start_lsn = Some(lsn);
        }
        state.last = state.last.max(lsn);
        if is_solid {
            state.last_solid = state.last_solid.max(lsn);
        }
        Some(lsn)
    }

    /// Stages the Start of the run by itself, before any of its code runs.
    pub(crate) fn stage_start(&self, start: Box<Start>, room: u32) -> Option<Lsn> {
        self.stage_write(&mut self.state(), Write::Start(start), room, true)
    }

    /// Keeps a Start to be staged when something depends on it.
    pub(crate) fn keep_start(&self, start: Box<Start>, room: u32) {
        let mut state = self.state();
        state.start = Some(start);
        state.start_room = room;
    }

    /// Stages the Start if that has not happened.
    pub(crate) fn start_in(&self, state: &mut RunState) -> Option<()> {
        if let Some(start) = state.start.take() {
            let room = state.start_room;
            self.stage_write(state, Write::Start(start), room, true)?;
        }
        Some(())
    }

    /// What a step's body waits for: the largest Lsn of all earlier Writes, or for a speculative one of
    /// those that are not checkpoints.
    /// Stages the Start if that has not happened; `None` if the run is lost.
    pub(crate) fn barrier(&self, is_speculative: bool) -> Option<Lsn> {
        let mut state = self.state();
        self.start_in(&mut state)?;
        Some(if is_speculative { state.last_solid } else { state.last })
    }

    /// Notes that the run was handed something that is durable only with `lsn`.
    pub(crate) fn depends_on(&self, lsn: Lsn) {
        let mut state = self.state();
        state.last = state.last.max(lsn);
        state.last_solid = state.last_solid.max(lsn);
    }

    /// The failed attempts recorded at `path`, once.
    pub(crate) fn take_attempts(&self, path: &Path) -> Vec<Attempt> {
        if !self.is_replayed {
            return Vec::new();
        }
        let mut state = self.state();
        state.attempts.as_mut().and_then(|attempts| attempts.remove(path)).unwrap_or_default()
    }

    pub(crate) fn conclude(&self, conclusion: Conclusion) {
        let waiters = {
            let mut concluding = self.conclusion.lock().unwrap_or_else(PoisonError::into_inner);
            concluding.conclusion = Some(conclusion);
            std::mem::take(&mut concluding.waiters)
        };
        for waker in waiters {
            waker.wake();
        }
    }

    /// The conclusion, or `waker` is woken when there is one.
    pub(crate) fn concluded(&self, waker: &Waker) -> Option<Conclusion> {
        let mut concluding = self.conclusion.lock().unwrap_or_else(PoisonError::into_inner);
        if concluding.conclusion.is_none() && !concluding.waiters.iter().any(|other| other.will_wake(waker)) {
            concluding.waiters.push(waker.clone());
        }
        concluding.conclusion.clone()
    }

    /// Tells the run about the end of a child, or that it no longer runs here. False if nobody listens.
    pub(crate) fn child_signal(&self, child: Key, signal: ChildState) -> bool {
        {
            let mut state = self.state();
            if state.is_closed {
                return false;
            }
            let Some(known) = state.children.get_mut(&child) else { return false };
            if !matches!(known, ChildState::Ended(_)) {
                *known = signal;
            }
            let waiting = state
                .calls
                .iter_mut()
                .flatten()
                .find(|call| matches!(call.waiting_for, Some(WaitingFor::Child(key)) if key == child));
            if let Some(call) = waiting
                && let Some(waker) = call.waker.take()
            {
                waker.wake();
            }
        }
        self.poke();
        true
    }
}

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
        let phase = if state.is_closed || state.interrupt.is_some() {
            Phase::Stuck
        } else if let Some(replay) = &state.replay {
            match replay.find(&path, kind, name, fingerprint) {
                Ok(Some(_)) => Phase::Recorded,
                Ok(None) => Phase::Beyond,
                Err(disagreement) => {
                    state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement)));
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
            waiting_for: None,
            waker: None,
        };
        state.outstanding += 1;
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

    /// Whose turn it is; keeps `waker` while the call waits.
    pub(crate) fn turn(&self, id: usize, waker: &Waker) -> Turn {
        let mut state = self.state();
        let Some(Some(call)) = state.calls.get_mut(id) else { return Turn::Wait };
        match &call.phase {
            Phase::Live => Turn::Live,
            Phase::Delivered(delivery) => Turn::Delivered(delivery.clone()),
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
        if let Some(Some(call)) = state.calls.get_mut(id) {
            call.waiting_for = Some(waiting_for);
            call.waker = Some(waker.clone());
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
        let is_alone =
            state.leaves == 1 && state.replay.is_none() && state.completed.is_empty() && state.busy == 0;
        let Some(Some(call)) = state.calls.get_mut(id) else { return None };
        if !matches!(call.phase, Phase::Live) {
            self.lane.give_back(room);
            return None;
        }
        call.phase = Phase::Completed(kind, outcome, room);
        call.waiting_for = None;
        if is_alone {
            self.deliver(&mut state, id);
            return match state.calls.get(id) {
                Some(Some(CallState { phase: Phase::Delivered(delivery), .. })) => Some(delivery.clone()),
                _ => None,
            };
        }
        state.completed.push_back(id);
        drop(state);
        self.poke();
        None
    }

    /// Assigns the order, stages the checkpoint, hands the outcome over.
    fn deliver(&self, state: &mut RunState, id: usize) {
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
            path: call.path.clone(),
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
        let Some(lsn) = self.stage_in(state, Write::Checkpoint(checkpoint), room) else { return };
        let Some(Some(call)) = state.calls.get_mut(id) else { return };
        // whoever completed the call has its value
        call.phase = Phase::Delivered(Delivery { kind, outcome: Payload::empty(), lsn });
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
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
        state.outstanding -= 1;
        let at = self.core.now();
        match call.phase {
            Phase::Delivered(_) | Phase::Stuck => return,
            Phase::Completed(_, _, room) if state.is_closed || state.interrupt.is_some() => {
                self.lane.give_back(room);
                return;
            }
            _ if state.is_closed || state.interrupt.is_some() => return,
            Phase::Recorded => {
                let Some(replay) = &mut state.replay else { return };
                replay.calls.remove(&call.path);
                let is_due = replay
                    .peek()
                    .is_some_and(|next| next.path == call.path && next.kind == CheckpointKind::Abandoned);
                if is_due {
                    replay.pop();
                } else {
                    let disagreement = format!(
                        "the code now gives up {} {:?} at position {}, whose outcome is recorded",
                        call.kind.word(),
                        &*call.name,
                        call.path
                    );
                    state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement)));
                }
                drop(state);
                self.poke();
                return;
            }
            Phase::Beyond => {
                if let Some(replay) = &mut state.replay {
                    replay.calls.remove(&call.path);
                }
            }
            Phase::Live => {}
            Phase::Completed(_, _, room) => {
                self.lane.give_back(room);
                state.completed.retain(|other| *other != id);
            }
        }
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

    /// All branches are at rest: makes the next delivery, if there is one.
    pub(crate) fn rest(&self) -> Rest {
        let mut state = self.state();
        if state.busy > 0 || state.interrupt.is_some() {
            return Rest::Idle;
        }
        let state = &mut *state;
        if let Some(replay) = &mut state.replay {
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
            let call = replay.calls.get(&next.path).copied();
            let can_deliver = call.is_some() && next.kind != CheckpointKind::Abandoned;
            if !can_deliver {
                // a branch that waits for something else than a durable call may still make it
                if state.outstanding >= state.leaves {
                    let disagreement = missing_call(next, call.is_some());
                    state.interrupt = Some(Interrupt::Park(non_deterministic(&disagreement)));
                    return Rest::Delivered;
                }
                return Rest::Idle;
            }
            let (Some(checkpoint), Some(id)) = (replay.pop(), call) else { return Rest::Idle };
            replay.calls.remove(&checkpoint.path);
            if let Some(Some(call)) = state.calls.get_mut(id) {
                call.phase = Phase::Delivered(Delivery {
                    kind: checkpoint.kind,
                    outcome: checkpoint.outcome,
                    lsn: Lsn(0),
                });
                if let Some(waker) = call.waker.take() {
                    waker.wake();
                }
            }
            return Rest::Delivered;
        }
        match state.completed.pop_front() {
            Some(id) => {
                self.deliver(state, id);
                Rest::Delivered
            }
            None => Rest::Idle,
        }
    }

    /// Adds `by` to the number of branches that are not waiting for branches of their own.
    pub(crate) fn add_leaves(&self, by: isize) {
        let mut state = self.state();
        state.leaves = state.leaves.saturating_add_signed(by);
    }

    /// If every branch is in a durable wait, what for and since when; `None` if some body runs, or some
    /// branch waits for something else.
    pub(crate) fn waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        self.state().waits()
    }

    /// What the run's task needs to know before it waits to be woken; stages the Start.
    pub(crate) fn settle_down(&self) -> Settling {
        let mut state = self.state();
        if state.interrupt.is_some() || self.start_in(&mut state).is_none() {
            return Settling::Interrupted;
        }
        if state.calls.iter().flatten().all(|call| call.waiting_for.is_none()) {
            return Settling::Busy;
        }
        let sleeps = state.calls.iter().flatten().filter_map(|call| match call.waiting_for {
            Some(WaitingFor::Timer(due_at)) => Some(Armed { path: call.path.clone(), due_at }),
            _ => None,
        });
        let unarmed = sleeps.filter(|armed| !state.armed.contains(armed)).collect();
        Settling::Waiting { all: state.waits(), unarmed }
    }

    /// Keeps due times in the row.
    pub(crate) fn arm(&self, armed: Vec<Armed>) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        let outstanding = |armed: &Armed, calls: &[Option<CallState>]| {
            calls.iter().flatten().any(|call| call.path == armed.path)
        };
        let mut kept = std::mem::take(&mut state.armed);
        kept.retain(|armed| outstanding(armed, &state.calls));
        kept.extend(armed);
        state.armed = kept;
        let moved = State::Running { armed: state.armed.clone() };
        self.stage_in(&mut state, Write::Move(Move { key: self.key, state: moved }), 0);
    }
}

impl RunState {
    /// The failure of code that has returned although more is recorded.
    pub(crate) fn ends_early(&self) -> Option<Failure> {
        let next = self.replay.as_ref()?.peek()?;
        Some(non_deterministic(&format!(
            "the record goes on with {} {:?} at position {}, the code now returns before it",
            described(next.kind),
            &*next.name,
            next.path
        )))
    }

    fn waits(&self) -> Option<Vec<(Path, WaitingFor, Timestamp)>> {
        if self.busy > 0 || self.replay.is_some() || !self.completed.is_empty() || self.leaves == 0 {
            return None;
        }
        let waits: Vec<_> = self
            .calls
            .iter()
            .flatten()
            .filter_map(|call| Some((call.path.clone(), call.waiting_for.clone()?, call.begun_at)))
            .collect();
        (waits.len() == self.leaves).then_some(waits)
    }
}

fn non_deterministic(disagreement: &str) -> Failure {
    Failure::of_kind(
        NON_DETERMINISTIC,
        format!(
            "the code does not repeat what was recorded: {disagreement}. Restore the code that started this \
             execution (or its order of steps) and resume it, or cancel it"
        ),
    )
    .permanent()
}

fn missing_call(next: &Checkpoint, is_called: bool) -> String {
    if is_called {
        format!(
            "the call {:?} at position {} was given up when it was recorded, now the code goes on waiting for \
             it; durable calls are given up the same way in a replay only through `cx.race` and `cx.timeout`",
            &*next.name, next.path
        )
    } else {
        format!(
            "the record goes on with {} {:?} at position {}, the code now does not call it",
            described(next.kind),
            &*next.name,
            next.path
        )
    }
}

impl Wake for Run {
    fn wake(self: Arc<Self>) {
        self.poke();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.poke();
    }
}
