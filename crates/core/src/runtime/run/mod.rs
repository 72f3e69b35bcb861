//! [`Run`]: an execution while it runs in this process. A run keeps the Lsns of its staged Writes, its calls,
//! the reason for which it stops, and its conclusion.

pub(crate) mod bundle;
pub(crate) mod call;
pub(crate) mod children;
pub(crate) mod chunks;
pub(crate) mod delivery;
mod detached;
pub(crate) mod item_lookup;
pub(crate) mod mailbox;
pub(crate) mod mismatch;
pub(crate) mod quiescence;
pub(crate) mod replay;
mod state;
pub(crate) mod streams;
pub(crate) mod task;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

pub use state::StopReason;
use state::{CallTable, DeliveryState, GuestState, RunStaging};
pub(crate) use state::{ChildEnd, ChildState, Interrupt, RunState, ThreadUse};

use crate::clock::Timestamp;
use crate::commit::{Fate, FoldTarget, HasLane, Lane, Lsn, Staged};
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::queue::Placement;
use crate::runtime::definition::Definition;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::bundle::VirtualItem;
use crate::runtime::run::call::WaitingFor;
use crate::runtime::run::replay::{Attempts, LastPart, Replay};
use crate::store::{Attempt, Parent, PendingSleep, RequestKind, Start, State, Status, Transition, Write};

/// An execution while it runs in this process.
///
/// The fields have the order in which wakes and polls use them: with thousands of runs, each cache line of a run is read from
/// memory again for each step.
#[repr(C)]
pub(crate) struct Run {
    // first cache line, beside the counts of the Arc: wakes
    /// Wakes the task that polls the run.
    pub(crate) task_waker: AtomicWaker,
    /// Whether the run was woken since its last poll began. If so, a branch may continue without a delivery.
    pub(crate) is_woken: AtomicBool,
    /// Whether the task is polling the run. Writes that are staged during one poll are flushed together.
    is_polled: AtomicBool,
    /// Whether a Write was staged during a poll without waking an idle committer.
    is_wake_pending: AtomicBool,
    /// Whether the run is pausing.
    is_pausing: AtomicBool,
    /// Whether the code has asked for a [`StreamWriter`](crate::StreamWriter) or a [`MessageSender`](crate::MessageSender),
    /// which the bodies of steps use.
    pub(crate) has_body_calls: AtomicBool,
    /// Whether the execution was claimed. Its children may then exist already.
    pub(crate) is_replayed: bool,
    pub(crate) deadline_at: Option<Timestamp>,
    // second cache line: steps
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) engine: Arc<EngineInner>,
    pub(crate) definition: Arc<Definition>,
    /// The tree's fate. `None` unless code of the tree runs before the outcome of the root's guarded Start is
    /// known.
    pub(crate) fate: Option<Fate>,
    /// The lane's generation under which this worker owns the execution.
    pub(crate) generation: u32,
    pub(crate) run_no: u32,
    // four cache lines for steps, and one for other uses
    state: Mutex<RunState>,
    // the other fields are not used by steps
    pub(crate) parent: Option<Parent>,
    /// The workflow_id that the caller gave.
    pub(crate) given_id: Option<Arc<str>>,
    pub(crate) created_at: Timestamp,
    /// The execution's placement whenever it is queued; `None` for the default queue.
    pub(crate) placement: Option<Arc<Placement>>,
    /// The run's reference to itself. The run inserts it into the engine's table of runs before it stages its Start.
    self_ref: Weak<Run>,
    /// Number of heartbeats that were sent before the run was made.
    heartbeats_before: u64,
    conclusion: Mutex<ConclusionState>,
    /// Notified when the run is pausing.
    pausing: Notify,
}

/// The end of a run, for waiters in this process.
#[derive(Clone, Debug)]
pub(crate) enum Conclusion {
    /// The execution's end is durable.
    Ended(Status, Payload),
    /// The execution continues elsewhere or later: it was suspended, parked, requeued or disowned. Its state
    /// is in the database.
    LeftProcess,
}

#[derive(Default)]
struct ConclusionState {
    conclusion: Option<Conclusion>,
    waiters: Vec<Waker>,
}

pub(crate) struct NewRun {
    pub(crate) key: Key,
    pub(crate) root: Key,
    pub(crate) parent: Option<Parent>,
    pub(crate) given_id: Option<Arc<str>>,
    pub(crate) run_no: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) deadline_at: Option<Timestamp>,
    pub(crate) placement: Option<Arc<Placement>>,
    /// A Start that is staged when another Write depends on it, and the budget reserved for it.
    pub(crate) start: Option<Box<Start>>,
    pub(crate) start_reserved: u32,
    /// The membership in a bundle; `None` for an execution with a row.
    pub(crate) item: Option<Box<VirtualItem>>,
    pub(crate) replay: Option<Replay>,
    pub(crate) attempts: Option<Box<Attempts>>,
    pub(crate) part: LastPart,
    pub(crate) pending_sleeps: Vec<PendingSleep>,
    pub(crate) is_replayed: bool,
    pub(crate) generation: u32,
    pub(crate) fate: Option<Fate>,
}

impl NewRun {
    /// Returns the defaults for a first run that begins here: a root without a deadline, whose Start is
    /// staged separately.
    pub(crate) fn for_first_run(key: Key, root: Key, created_at: Timestamp, generation: u32) -> Self {
        Self {
            key,
            root,
            parent: None,
            given_id: None,
            run_no: 1,
            created_at,
            deadline_at: None,
            placement: None,
            start: None,
            start_reserved: 0,
            item: None,
            replay: None,
            attempts: None,
            part: LastPart::default(),
            pending_sleeps: Vec::new(),
            is_replayed: false,
            generation,
            fate: None,
        }
    }
}

impl Run {
    pub(crate) fn new(engine: Arc<EngineInner>, definition: Arc<Definition>, new: NewRun) -> Arc<Self> {
        let heartbeats_before = engine.wakeups.heartbeats_sent.load(SeqCst);
        let next_order = new.replay.as_ref().map_or(new.part.last_order, Replay::last_order) + 1;
        Arc::new_cyclic(|self_ref| Self {
            self_ref: self_ref.clone(),
            key: new.key,
            root: new.root,
            parent: new.parent,
            given_id: new.given_id,
            run_no: new.run_no,
            created_at: new.created_at,
            deadline_at: new.deadline_at,
            placement: new.placement,
            is_replayed: new.is_replayed,
            definition,
            engine,
            generation: new.generation,
            fate: new.fate,
            state: Mutex::new(RunState {
                is_closed: false,
                interrupt: None,
                stop_reason: None,
                is_deferred: false,
                staging: RunStaging::new(new.start, new.start_reserved, new.item),
                calls: CallTable::of_part(new.part.part),
                delivery: DeliveryState {
                    next_order,
                    delivered_at: new.created_at,
                    block_count: 0,
                    replay: new.replay.map(Box::new),
                    attempts: new.attempts,
                },
                active_branches: 1,
                spawned: Vec::new(),
                pending_sleeps: new.pending_sleeps.into(),
                children: BTreeMap::new(),
                guest: GuestState::default(),
                stop_wakers: Vec::new(),
            }),
            conclusion: Mutex::default(),
            task_waker: AtomicWaker::new(),
            is_woken: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            is_wake_pending: AtomicBool::new(false),
            has_body_calls: AtomicBool::new(false),
            heartbeats_before,
            is_pausing: AtomicBool::new(false),
            pausing: Notify::new(),
        })
    }

    /// Returns the lane on which the run's Writes are staged.
    pub(crate) fn lane(&self) -> &Lane {
        self.engine.lane_of(self.root)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the Write that moves the execution to `state`.
    pub(crate) fn transition_to(&self, state: State) -> Write {
        Write::Transition(Transition { key: self.key, placement: self.placement.clone(), state })
    }

    /// Registers the run, so that requests, children, waiters and the worker find it by key.
    pub(crate) fn register(&self) {
        if let Some(self_ref) = self.self_ref.upgrade() {
            self.engine.runs.insert(self_ref);
        }
    }

    /// Returns the last order that the execution has used, live or in its record. A replay does not change
    /// the order.
    pub(crate) fn delivery_count(&self) -> u32 {
        self.state().delivery.next_order - 1
    }

    /// Stops the run when its task is next polled. The first reason counts, except that `Disowned` overrides
    /// any other.
    pub(crate) fn interrupt(&self, interrupt: Interrupt) {
        {
            let mut state = self.state();
            let is_effective = match interrupt {
                Interrupt::Disowned => true,
                Interrupt::Defer => !state.is_closed,
                _ => !state.is_closed || state.is_deferred,
            };
            if !is_effective {
                return;
            }
            if state.interrupt.is_none() || matches!(interrupt, Interrupt::Disowned) {
                state.interrupt = Some(interrupt);
            }
        }
        self.wake_task();
    }

    /// Handles a request to this execution, which runs.
    pub(crate) fn handle_request(&self, kind: RequestKind) {
        match kind {
            RequestKind::Cancel => self.interrupt(Interrupt::Cancel(Failure::cancelled().into())),
            RequestKind::Pause => self.pause(),
            RequestKind::Resume => self.withdraw_pause(),
            RequestKind::CancelItem(index) => {
                // a bundle that has not begun here reads the request from its record, or from the next heartbeat
                if let Some(bundle) = self.engine.runs.bundle(self.key) {
                    bundle.cancel_item(index);
                }
            }
            // an expiry does not apply to a running execution
            RequestKind::Expire => {}
        }
    }

    /// Whether the run was made before the heartbeat with this number was sent, counted from 0. If not, requests in the
    /// reply may concern an earlier run of the execution.
    pub(crate) fn precedes_heartbeat(&self, number: u64) -> bool {
        self.heartbeats_before <= number
    }

    /// Pauses the run: no further body begins, and the run is parked when all its branches wait.
    fn pause(&self) {
        if self.is_pausing.swap(true, SeqCst) {
            return;
        }
        self.engine.runs.add_pausing(self.self_ref.clone());
        self.pausing.notify_waiters();
        self.wake_task();
    }

    /// Withdraws the pause of a run that is not parked yet: its bodies begin again.
    pub(crate) fn withdraw_pause(&self) {
        if !self.is_pausing.swap(false, SeqCst) {
            return;
        }
        let wakers: Vec<Waker> = self
            .state()
            .calls
            .iter_mut()
            .filter(|call| matches!(call.waiting_for, Some(WaitingFor::Resume)))
            .filter_map(|call| call.waker.take())
            .collect();
        for waker in wakers {
            waker.wake();
        }
        self.wake_task();
    }

    /// Whether the run is pausing: no further body begins.
    pub(crate) fn is_pausing(&self) -> bool {
        self.is_pausing.load(SeqCst)
    }

    /// Waits until the run is pausing.
    pub(crate) async fn wait_pausing(&self) {
        let mut pausing = pin!(self.pausing.notified());
        // registered before the flag is read: `pause` sets the flag first
        pausing.as_mut().enable();
        if !self.is_pausing() {
            pausing.await;
        }
    }

    /// Interrupts the run if its deadline has passed. Returns whether the deadline has passed.
    pub(crate) fn check_deadline(&self) -> bool {
        let Some(deadline_at) = self.deadline_at else { return false };
        let has_passed = self.engine.now() >= deadline_at;
        if has_passed {
            self.interrupt(Interrupt::Cancel(Failure::deadline_reached().into()));
        }
        has_passed
    }

    /// Whether a body of the run may begin now: no reason to stop is known. Call this right before each body.
    pub(crate) fn can_begin_body(&self) -> bool {
        if self.check_deadline() || self.is_disowned() {
            return false;
        }
        let state = self.state();
        !state.is_closed && state.interrupt.is_none()
    }

    /// Wakes the run's task.
    pub(crate) fn wake_task(&self) {
        self.is_woken.store(true, SeqCst);
        self.task_waker.wake();
    }

    /// Whether the run is open: its code may record.
    pub(crate) fn is_open(&self) -> bool {
        !self.state().is_closed
    }

    /// Whether `parent` has started this execution, and the execution still exists.
    pub(crate) fn is_started_child_of(&self, parent: Key) -> bool {
        let is_child = self.parent.as_ref().is_some_and(|it| it.key == parent);
        if !is_child || self.is_disowned() {
            return false;
        }
        let state = self.state();
        state.interrupt.is_none() && matches!(state.stop_reason, None | Some(StopReason::Ended))
    }

    /// Drops the spawned branches that the task has not taken. The state is not locked meanwhile, because the
    /// branches' destructors lock it.
    pub(crate) fn drop_spawned(&self) {
        let spawned = std::mem::take(&mut self.state().spawned);
        drop(spawned);
    }

    /// Whether another registration or worker owns the execution, or the Start on which its tree depends has
    /// failed.
    pub(crate) fn is_disowned(&self) -> bool {
        self.lane().generation() != self.generation || self.fate.as_ref().is_some_and(Fate::has_failed)
    }

    /// Returns the Lsn of the Start, or `None` if the Start was not staged here.
    pub(crate) fn start_lsn(&self) -> Option<Lsn> {
        Some(self.state().staging.start_lsn).filter(|lsn| *lsn > Lsn(0))
    }

    /// Whether the Start was staged and its outcome is known.
    pub(crate) fn is_start_settled(&self) -> bool {
        self.start_lsn().is_some_and(|lsn| self.lane().is_settled(lsn))
    }

    /// Begins a poll by the task, until [`Run::end_poll`].
    pub(crate) fn begin_poll(&self) {
        self.is_polled.store(true, SeqCst);
    }

    /// Ends a poll, and wakes the committer for Writes that were staged during it.
    pub(crate) fn end_poll(&self) {
        self.is_polled.store(false, SeqCst);
        if self.is_wake_pending.load(SeqCst) && self.is_wake_pending.swap(false, SeqCst) {
            self.lane().wake_committer();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Closes the run: its code records nothing more.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
    }

    /// Stages a Write of the run, after its Start. Returns `None` if the run is closed or disowned.
    pub(crate) fn stage(&self, write: Write, reserved: u32) -> Option<Lsn> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        self.stage_locked(&mut state, write, reserved)
    }

    /// Stages a Write like [`Run::stage`], for a caller that has locked the state. Also stages in a closed
    /// run, which still has to record the state in which it leaves the execution.
    pub(crate) fn stage_locked(&self, state: &mut RunState, write: Write, reserved: u32) -> Option<Lsn> {
        if state.staging.item.is_some() {
            return self.stage_of_item(state, write, reserved);
        }
        if let Some(mut start) = state.staging.start.take() {
            if let Write::Transition(change) = write {
                // nothing was staged yet: the execution is created in the state that it has reached
                start.has_begun = true;
                start.state = change.state;
                let reserved = reserved + state.staging.start_reserved;
                return self.stage_write(state, Write::Start(start), reserved, true);
            }
            let start_reserved = state.staging.start_reserved;
            self.stage_write(state, Write::Start(start), start_reserved, true)?;
        }
        let is_required = state::is_required(&write);
        self.stage_write(state, write, reserved, is_required)
    }

    fn stage_write(
        &self,
        state: &mut RunState,
        write: Write,
        reserved: u32,
        is_required: bool,
    ) -> Option<Lsn> {
        if let Write::Start(start) = &write
            && start.key == self.key
            && matches!(start.state, State::Running { .. })
        {
            // register the run before its Start can be durable: the outcome must reach the run, and no claim
            // may launch the execution
            self.register();
        }
        let is_start = matches!(&write, Write::Start(start) if start.key == self.key);
        // only changes of the execution's own row fold
        let is_own = is_start || matches!(&write, Write::Transition(_));
        let mut fold_target = if is_own { state.staging.fold_target } else { FoldTarget::default() };
        let lsn = self.stage_on_lane(state, write, reserved, is_required, &mut fold_target)?;
        if is_own {
            state.staging.fold_target = fold_target;
        }
        if is_start {
            state.staging.start_lsn = lsn;
            if self.is_disowned() {
                // the generation has ended: the lane keeps the caller's Start, but another run of the
                // execution begins after a claim
                state.interrupt = Some(Interrupt::Disowned);
            }
        }
        Some(lsn)
    }

    /// Stages the Start of a child. Also returns the fold target, so that the child's end may fold into the
    /// Start.
    pub(crate) fn stage_child(&self, start: Box<Start>, reserved: u32) -> Option<(Lsn, FoldTarget)> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        self.ensure_row_staged(&mut state)?;
        let mut fold_target = FoldTarget::default();
        let lsn = self.stage_on_lane(&mut state, Write::Start(start), reserved, true, &mut fold_target)?;
        crate::crash_point!("child start staged");
        Some((lsn, fold_target))
    }

    fn stage_on_lane(
        &self,
        state: &mut RunState,
        write: Write,
        reserved: u32,
        is_required: bool,
        fold_target: &mut FoldTarget,
    ) -> Option<Lsn> {
        if matches!(state.interrupt, Some(Interrupt::Disowned)) {
            // the lane may still accept Writes of this generation, but the execution continues from its
            // record without this run
            self.lane().release(reserved);
            return None;
        }
        let (generation, tree) = (self.generation, self.root);
        let staged = Staged { generation, tree, write, reserved, fate: self.fate.clone() };
        let lsn = if self.is_polled.load(SeqCst) {
            self.lane().stage_without_wake(staged, fold_target).map(|(lsn, needs_wake)| {
                if needs_wake {
                    self.is_wake_pending.store(true, SeqCst);
                    if !self.is_polled.load(SeqCst) {
                        // another thread has ended the poll since, and may have missed the flag
                        self.lane().wake_committer();
                    }
                }
                lsn
            })
        } else {
            self.lane().stage(staged, fold_target)
        };
        let Some(lsn) = lsn else {
            state.interrupt = Some(Interrupt::Disowned);
            return None;
        };
        state.staging.last_lsn = state.staging.last_lsn.max(lsn);
        if is_required {
            state.staging.last_required_lsn = state.staging.last_required_lsn.max(lsn);
        }
        Some(lsn)
    }

    /// Keeps the Lsn of this run's Start, which the parent has staged, and the place into which a Transition
    /// folds.
    pub(crate) fn set_staged_start(&self, lsn: Lsn, fold_target: FoldTarget) {
        let mut state = self.state();
        state.staging.start_lsn = lsn;
        state.staging.fold_target = fold_target;
    }

    /// Stages the run's Start alone, before any of its code runs.
    pub(crate) fn stage_start(&self, start: Box<Start>, reserved: u32) -> Option<Lsn> {
        self.stage_write(&mut self.state(), Write::Start(start), reserved, true)
    }

    /// Keeps a Start that is staged when another Write depends on it.
    pub(crate) fn set_unstaged_start(&self, start: Box<Start>, reserved: u32) {
        let mut state = self.state();
        state.staging.start = Some(start);
        state.staging.start_reserved = reserved;
    }

    /// Stages the Start if it is not staged yet. Returns `None` if the run is disowned.
    pub(crate) fn ensure_start_staged(&self, state: &mut RunState) -> Option<()> {
        if let Some(start) = state.staging.start.take() {
            let reserved = state.staging.start_reserved;
            self.stage_write(state, Write::Start(start), reserved, true)?;
        }
        Some(())
    }

    /// Stages the Start if it is not staged yet, also that of a virtual item. Returns `None` if the run is disowned.
    pub(crate) fn ensure_row_staged(&self, state: &mut RunState) -> Option<()> {
        self.ensure_start_staged(state)?;
        self.promote(state)
    }

    /// Stages the Start of the run, unless it was staged before, also that of a virtual item. A call that waits for budget
    /// must not hold budget, and the budget of the Start is released only when the Start is flushed.
    pub(crate) fn stage_row(&self) {
        let mut state = self.state();
        if !state.is_closed {
            let _ = self.ensure_row_staged(&mut state);
        }
    }

    /// Returns the barrier of a step: the largest Lsn of all earlier Writes and received values. The barrier
    /// of a speculative step ignores the run's own checkpoints of outcomes. Stages the Start if it is not
    /// staged yet. Returns `None` if the run is disowned.
    pub(crate) fn barrier(&self, is_speculative: bool) -> Option<Lsn> {
        let mut state = self.state();
        self.ensure_start_staged(&mut state)?;
        Some(if is_speculative { state.staging.last_required_lsn } else { state.staging.last_lsn })
    }

    /// Notes that the run has received a value that is not durable before `lsn`.
    pub(crate) fn add_dependency(&self, lsn: Lsn) {
        let mut state = self.state();
        state.staging.last_lsn = state.staging.last_lsn.max(lsn);
        state.staging.last_required_lsn = state.staging.last_required_lsn.max(lsn);
    }

    /// Takes the failed attempts that are recorded at `path`.
    pub(crate) fn take_attempts(&self, path: &Path) -> Vec<Attempt> {
        if !self.is_replayed {
            return Vec::new();
        }
        let mut state = self.state();
        state.delivery.attempts.as_mut().and_then(|attempts| attempts.remove(path)).unwrap_or_default()
    }

    pub(crate) fn conclude(&self, conclusion: Conclusion) {
        let waiters = {
            let mut state = self.conclusion.lock().unwrap_or_else(PoisonError::into_inner);
            state.conclusion = Some(conclusion);
            std::mem::take(&mut state.waiters)
        };
        for waker in waiters {
            waker.wake();
        }
    }

    /// Returns the conclusion. If there is none yet, registers `waker` for it.
    pub(crate) fn conclusion_or_register(&self, waker: &Waker) -> Option<Conclusion> {
        let mut state = self.conclusion.lock().unwrap_or_else(PoisonError::into_inner);
        if state.conclusion.is_none() && !state.waiters.iter().any(|other| other.will_wake(waker)) {
            state.waiters.push(waker.clone());
        }
        state.conclusion.clone()
    }

    /// Notifies the run that a child has ended or no longer runs here. Returns false if the run is closed or
    /// does not wait for this child.
    pub(crate) fn update_child(&self, child: Key, child_state: ChildState) -> bool {
        {
            let mut state = self.state();
            if state.is_closed {
                return false;
            }
            let Some(known) = state.children.get_mut(&child) else { return false };
            if !matches!(known, ChildState::Ended(_)) {
                *known = child_state;
            }
            for waker in state.calls.take_child_wakers(child) {
                waker.wake();
            }
        }
        self.wake_task();
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
        self.wake_task();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_task();
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// mimalloc has a size class of 640 bytes. The next class costs memory. A size of exactly 640 bytes costs a slower path,
    /// because mimalloc adds seven bytes for the alignment.
    #[test]
    fn run_fits_into_a_size_class_of_the_allocator() {
        let counts_of_arc = 2 * size_of::<usize>();
        let size = size_of::<Run>() + counts_of_arc;
        assert!(size + 7 <= 640, "{size} bytes");
    }

    /// Line of the cache that has this byte of a run, behind the counts of its Arc.
    fn line_of(offset: usize) -> usize {
        (offset + 2 * size_of::<usize>()) / 64
    }

    #[test]
    fn step_uses_six_cache_lines_of_its_run() {
        assert_eq!(line_of(offset_of!(Run, deadline_at) + 15), 0);
        assert_eq!((line_of(offset_of!(Run, key)), line_of(offset_of!(Run, run_no))), (1, 1));
        let state = offset_of!(Run, state);
        let last_used = size_of::<Mutex<RunState>>() - size_of::<RunState>() + RunState::USED_BY_STEPS - 1;
        assert_eq!((line_of(state), line_of(state + last_used)), (2, 5));
    }
}
