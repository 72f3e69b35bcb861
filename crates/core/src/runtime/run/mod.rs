//! [`Run`]: an execution while a worker runs it: its gate, what it has staged, how it ends.

pub(crate) mod call;
mod children;
pub(crate) mod chunks;
pub(crate) mod delivery;
mod detached;
pub(crate) mod mismatch;
pub(crate) mod quiescence;
pub(crate) mod replay;
mod state;
pub(crate) mod task;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

pub(crate) use state::{ChildEnd, ChildState, InThread, RunState};

use crate::clock::Timestamp;
use crate::commit::{Fate, Lane, Lsn, HasLane, FoldTarget, Staged};
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::queue::Placement;
use crate::runtime::definition::Definition;
use crate::runtime::inner::Core;
use crate::runtime::run::call::WaitingFor;
use crate::runtime::run::quiescence::Waits;
use crate::runtime::run::replay::{Attempts, Replay};
use crate::store::{PendingSleep, Attempt, CheckpointKind, Move, Parent, Start, State, Status, Write};

/// An execution while it runs here.
pub(crate) struct Run {
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) parent: Option<Parent>,
    /// The id that its caller gave.
    pub(crate) given_id: Option<Arc<str>>,
    pub(crate) run_no: u32,
    pub(crate) deadline_at: Option<Timestamp>,
    /// Where it stands whenever it is queued.
    pub(crate) ticket: Option<Arc<Placement>>,
    /// True if it was claimed: what it starts may exist already.
    pub(crate) is_replayed: bool,
    pub(crate) definition: Arc<Definition>,
    pub(crate) core: Arc<Core>,
    /// The lane's generation that owns it.
    pub(crate) generation: u32,
    /// What it shares with a root whose code runs before the outcome of its Start is known.
    pub(crate) fate: Option<Fate>,
    /// Itself, to be found by key before its Start can be durable.
    me: Weak<Run>,
    state: Mutex<RunState>,
    conclusion: Mutex<Concluding>,
    /// Wakes the task that polls it.
    pub(crate) task: AtomicWaker,
    /// Set by every wake: the branches may not be at rest.
    pub(crate) is_woken: AtomicBool,
    /// While its task polls it, what it stages goes out together.
    is_polled: AtomicBool,
    /// Something was staged meanwhile that an idle committer has not been told of.
    has_staged: AtomicBool,
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
    Cancel(Box<Failure>),
    /// It has killed too many workers.
    Fail(Box<Failure>),
    /// Code and record disagree, or a record cannot be read.
    Park(Box<Failure>),
    /// The engine shuts down: hand it back.
    HandBack,
    /// Its code wants the program to end: hand it back after a while, if the program has not ended by then.
    PutOff,
    /// Another worker owns it now, or its Start lost.
    Lost,
}

/// Why code is told to unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It goes on later, or elsewhere: from the record, or not at all if it is parked.
    Suspended,
    /// It was cancelled, or its time was up.
    Cancelled,
    /// The workflow has returned, and this is a branch that it did not wait for.
    Ended,
}

pub(crate) struct NewRun {
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) parent: Option<Parent>,
    pub(crate) given_id: Option<Arc<str>>,
    pub(crate) run_no: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) deadline_at: Option<Timestamp>,
    pub(crate) ticket: Option<Arc<Placement>>,
    /// A Start that is staged when something depends on it, and the room taken for it.
    pub(crate) start: Option<Box<Start>>,
    pub(crate) start_room: u32,
    pub(crate) replay: Option<Replay>,
    pub(crate) attempts: Option<Box<Attempts>>,
    pub(crate) armed: Vec<PendingSleep>,
    pub(crate) is_replayed: bool,
    pub(crate) generation: u32,
    pub(crate) fate: Option<Fate>,
}

impl NewRun {
    /// The first run of an execution that begins here: a root without a deadline, whose Start is elsewhere.
    pub(crate) fn first(key: Key, root: Key, created_at: Timestamp, generation: u32) -> Self {
        Self {
            key,
            root,
            parent: None,
            given_id: None,
            run_no: 1,
            created_at,
            deadline_at: None,
            ticket: None,
            start: None,
            start_room: 0,
            replay: None,
            attempts: None,
            armed: Vec::new(),
            is_replayed: false,
            generation,
            fate: None,
        }
    }
}

impl Run {
    pub(crate) fn new(core: Arc<Core>, definition: Arc<Definition>, new: NewRun) -> Arc<Self> {
        let next_order = new.replay.as_ref().map_or(0, Replay::last_order) + 1;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            key: new.key,
            root: new.root,
            parent: new.parent,
            given_id: new.given_id,
            run_no: new.run_no,
            deadline_at: new.deadline_at,
            ticket: new.ticket,
            is_replayed: new.is_replayed,
            definition,
            core,
            generation: new.generation,
            fate: new.fate,
            state: Mutex::new(RunState {
                is_closed: false,
                interrupt: None,
                start: new.start,
                start_room: new.start_room,
                start_lsn: Lsn(0),
                next_order,
                delivered_at: new.created_at,
                last: Lsn(0),
                last_solid: Lsn(0),
                slot: FoldTarget::default(),
                replay: new.replay.map(Box::new),
                attempts: new.attempts,
                calls: Vec::new(),
                vacant: Vec::new(),
                completed: VecDeque::new(),
                leaves: 1,
                outstanding: 0,
                unheard: 0,
                waiting: 0,
                is_quiet: false,
                is_unsettled: false,
                waits: Waits::Outside,
                is_watched: false,
                cancelled: 0,
                activity: 0,
                thread: None,
                stopped: None,
                is_put_off: false,
                stop_wakers: Vec::new(),
                busy: 0,
                armed: new.armed,
                children: BTreeMap::new(),
                spawned: Vec::new(),
            }),
            conclusion: Mutex::default(),
            task: AtomicWaker::new(),
            is_woken: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            has_staged: AtomicBool::new(false),
        })
    }

    /// The lane that it is staged on.
    pub(crate) fn lane(&self) -> &Lane {
        self.core.lane_of(self.root)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Write that moves the execution to a state.
    pub(crate) fn to_state(&self, state: State) -> Write {
        Write::Transition(Move { key: self.key, ticket: self.ticket.clone(), state })
    }

    /// Makes the run findable by key, for requests, children, waiters and the worker.
    pub(crate) fn register(&self) {
        if let Some(me) = self.me.upgrade() {
            self.core.runs.insert(me);
        }
    }

    /// How many deliveries it has had.
    pub(crate) fn deliveries(&self) -> u32 {
        self.state().next_order - 1
    }

    /// Stops the run at its next turn. The first reason counts, except that losing it always does.
    pub(crate) fn interrupt(&self, interrupt: Interrupt) {
        {
            let mut state = self.state();
            let counts = match interrupt {
                Interrupt::Lost => true,
                Interrupt::PutOff => !state.is_closed,
                _ => !state.is_closed || state.is_put_off,
            };
            if !counts {
                return;
            }
            if state.interrupt.is_none() || matches!(interrupt, Interrupt::Lost) {
                state.interrupt = Some(interrupt);
            }
        }
        self.poke();
    }

    /// Interrupts the run if its deadline has passed; true if it is to stop.
    pub(crate) fn heed_deadline(&self) -> bool {
        let Some(deadline_at) = self.deadline_at else { return false };
        let is_over = self.core.now() >= deadline_at;
        if is_over {
            self.interrupt(Interrupt::Cancel(Failure::deadline_reached().into()));
        }
        is_over
    }

    /// True if a body of the run may begin now: nothing is to stop it. Read right before each body.
    pub(crate) fn lets_begin(&self) -> bool {
        if self.heed_deadline() || self.is_lost() {
            return false;
        }
        let state = self.state();
        !state.is_closed && state.interrupt.is_none()
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

    /// True if it is not ours any more, or the Start that its tree rests on has lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lane().generation() != self.generation || self.fate.as_ref().is_some_and(Fate::has_failed)
    }

    /// Where the Start was staged, if it was staged here.
    pub(crate) fn start_lsn(&self) -> Option<Lsn> {
        Some(self.state().start_lsn).filter(|lsn| *lsn > Lsn(0))
    }

    /// True if the Start was staged and its outcome is known.
    pub(crate) fn is_start_settled(&self) -> bool {
        self.start_lsn().is_some_and(|lsn| self.lane().is_settled(lsn))
    }

    /// From here on the task polls the run, until [`Run::end_poll`].
    pub(crate) fn begin_poll(&self) {
        self.is_polled.store(true, SeqCst);
    }

    /// What was staged meanwhile goes out.
    pub(crate) fn end_poll(&self) {
        self.is_polled.store(false, SeqCst);
        if self.has_staged.load(SeqCst) && self.has_staged.swap(false, SeqCst) {
            self.lane().wake_committer();
        }
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
            if let Write::Transition(change) = write {
                // nothing has been staged yet: the execution is born in the state it has reached
                start.has_begun = true;
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
        // only changes of the execution's own row have a slot to fold into
        let is_own = is_start || matches!(&write, Write::Transition(_));
        let mut slot = if is_own { state.slot } else { FoldTarget::default() };
        let lsn = self.stage_at(state, write, room, is_solid, &mut slot)?;
        if is_own {
            state.slot = slot;
        }
        if is_start {
            state.start_lsn = lsn;
            if self.is_lost() {
                // the caller's Start goes on without this run
                state.interrupt = Some(Interrupt::Lost);
            }
        }
        Some(lsn)
    }

    /// Stages the Start of a child; also where, so that the child's own end may fold into it.
    pub(crate) fn stage_child(&self, start: Box<Start>, room: u32) -> Option<(Lsn, FoldTarget)> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        self.start_in(&mut state)?;
        let mut slot = FoldTarget::default();
        let lsn = self.stage_at(&mut state, Write::Start(start), room, true, &mut slot)?;
        crate::crash_point!("child start staged");
        Some((lsn, slot))
    }

    fn stage_at(
        &self,
        state: &mut RunState,
        write: Write,
        room: u32,
        is_solid: bool,
        slot: &mut FoldTarget,
    ) -> Option<Lsn> {
        if matches!(state.interrupt, Some(Interrupt::Lost)) {
            // something else has been staged in its place, and goes on from the record
            self.lane().release(room);
            return None;
        }
        let (generation, tree) = (self.generation, self.root);
        let staged = Staged { generation, tree, write, reserved: room, fate: self.fate.clone() };
        let lsn = if self.is_polled.load(SeqCst) {
            self.lane().stage_without_wake(staged, slot).map(|(lsn, is_idle)| {
                if is_idle {
                    self.has_staged.store(true, SeqCst);
                    if !self.is_polled.load(SeqCst) {
                        // another thread has ended the poll meanwhile, and may not have seen it
                        self.lane().wake_committer();
                    }
                }
                lsn
            })
        } else {
            self.lane().stage(staged, slot)
        };
        let Some(lsn) = lsn else {
            state.interrupt = Some(Interrupt::Lost);
            return None;
        };
        state.last = state.last.max(lsn);
        if is_solid {
            state.last_solid = state.last_solid.max(lsn);
        }
        Some(lsn)
    }

    /// Says where the Start of the run was staged by its parent.
    pub(crate) fn started_at(&self, lsn: Lsn, slot: FoldTarget) {
        let mut state = self.state();
        state.start_lsn = lsn;
        state.slot = slot;
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

impl HasLane for Arc<Run> {
    fn lane(&self) -> &Lane {
        Run::lane(self)
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
