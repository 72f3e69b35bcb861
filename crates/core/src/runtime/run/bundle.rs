//! [`BundleRun`]: what the runs of a bundle's items share while a worker runs the bundle.
//!
//! An item of a bundle is *virtual* until it needs a row of its own. Its run stages checkpoints, attempts and chunks under
//! the item's key, and hands its end to the bundle, which stages the ends of many items as one Pack. Any other state that
//! a run records for its execution *promotes* the item: the run stages a Start, and the item is an execution like any
//! other from then on.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, MutexGuard, Weak};

use super::state::RunState;
use super::{ChildState, Interrupt, Run};
use crate::commit::{Lane, Lsn};
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::capacity::item_slots::BundleShare;
use crate::store::{ItemOutcome, ItemTemplate, Pack, RequestKind, State, Status, Write, cancel_outcome};
use crate::sync::Mutex;

/// The state that the runs of a bundle's items share.
pub(crate) struct BundleRun {
    /// The run of the bundle, which owns this value.
    run: Weak<Run>,
    /// The template of the Starts with which items get rows of their own.
    pub(crate) template: ItemTemplate,
    /// The part of the engine's slots that the bundle has.
    pub(crate) share: Arc<BundleShare>,
    /// Whether a request cancels any item.
    has_cancelled_items: AtomicBool,
    state: Mutex<BundleState>,
}

/// The part of a [`BundleRun`] that its lock guards. Virtual items stage their Writes under this lock. A thread that needs
/// the state of an item's run too locks that state first.
#[derive(Default)]
struct BundleState {
    /// Whether the virtual items record nothing more.
    is_closed: bool,
    /// The outcomes that no Pack contains yet, and the budget reserved for them.
    outcomes: Vec<ItemOutcome>,
    reserved: u32,
    /// The runs of virtual items that are blocked, by index.
    blocked: HashMap<u32, Weak<Run>, foldhash::fast::RandomState>,
    /// Whether an item has left without an outcome, because the bundle is paused.
    has_paused_item: bool,
    /// The indexes of the items that a request cancels.
    cancelled: HashSet<u32, foldhash::fast::RandomState>,
}

/// The membership of an item's run in its bundle, as long as the item has no row of its own.
pub(crate) struct VirtualItem {
    pub(crate) bundle: Arc<BundleRun>,
    pub(crate) index: u32,
    pub(crate) input: Payload,
}

/// The outcomes that a Pack will contain.
pub(crate) struct UnpackedOutcomes {
    outcomes: Vec<ItemOutcome>,
    reserved: u32,
}

impl BundleRun {
    /// Creates the shared state of a bundle's items. `run` is the run of the bundle.
    pub(crate) fn new(run: &Arc<Run>, template: ItemTemplate, share: Arc<BundleShare>) -> Arc<Self> {
        let (has_cancelled_items, state) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { run: Arc::downgrade(run), template, share, has_cancelled_items, state })
    }

    /// Locks the state for a Write of a virtual item. Returns `None` if the bundle is closed.
    fn lock_open(&self) -> Option<MutexGuard<'_, BundleState>> {
        Some(self.state.lock()).filter(|state| !state.is_closed)
    }

    /// Notes that items have rows of their own, or are about to. A cancel of the bundle that arrives after the cancel of its
    /// batch cancels them too.
    pub(crate) fn note_promoted(&self, indexes: impl IntoIterator<Item = u32>) {
        if let Some(run) = self.run.upgrade() {
            let promoted =
                indexes.into_iter().map(|index| (self.template.batch.item(index), ChildState::Remote));
            run.state().children.extend(promoted);
        }
    }

    /// Keeps the run of an item that is blocked, so that the item can be stopped. A run that is not a virtual item any more
    /// is left alone.
    pub(crate) fn note_blocked(&self, index: u32, run: &Arc<Run>) {
        let run_state = run.state();
        if run_state.staging.item.is_none() {
            return;
        }
        if let Some(mut open) = self.lock_open() {
            open.blocked.insert(index, Arc::downgrade(run));
            if open.cancelled.contains(&index) {
                drop((open, run_state));
                run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
            }
            return;
        }
        drop(run_state);
        run.interrupt(Interrupt::Disowned);
    }

    /// Cancels an item: at once if it is blocked or has a row of its own, otherwise when it begins or is blocked.
    pub(crate) fn cancel_item(&self, index: u32) {
        let blocked = {
            let mut state = self.state.lock();
            state.cancelled.insert(index);
            self.has_cancelled_items.store(true, SeqCst);
            state.blocked.get(&index).and_then(Weak::upgrade)
        };
        if let Some(item) = blocked {
            item.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
        } else if let Some(run) = self.run.upgrade()
            && run.state().children.contains_key(&self.template.batch.item(index))
        {
            self.cancel_promoted(&run, index, None);
        }
    }

    /// Ends an item that has not begun if a request cancels it. Returns whether that is so.
    pub(crate) fn end_if_cancelled(&self, index: u32) -> bool {
        // most bundles need no lock
        if !self.has_cancelled_items.load(SeqCst) {
            return false;
        }
        let mut state = self.state.lock();
        let is_cancelled = state.cancelled.contains(&index);
        if is_cancelled && !state.is_closed {
            state.outcomes.push(ItemOutcome { index, status: Status::Cancelled, outcome: cancel_outcome() });
        }
        is_cancelled
    }

    /// Requests the cancel of an item that has a row of its own, once the row is durable. `start` is the Lsn of the row's
    /// Start, unless that is known to be durable.
    fn cancel_promoted(&self, run: &Arc<Run>, index: u32, start: Option<Lsn>) {
        let (run, item) = (run.clone(), self.template.batch.item(index));
        run.engine.runtime.clone().spawn(async move {
            if let Some(lsn) = start {
                run.lane().wait_durable(lsn).await;
            }
            // an error says that the engine is ending: the next owner of the bundle reads the request
            let _ = run.engine.request_by_key(item, RequestKind::Cancel).await;
        });
    }

    /// Whether an item has left without an outcome, because the bundle was paused.
    pub(crate) fn has_paused_item(&self) -> bool {
        self.state.lock().has_paused_item
    }

    /// Pauses the items that are blocked: none of them begins another body.
    pub(crate) fn pause_items(&self) {
        for run in self.blocked_runs() {
            run.pause();
        }
    }

    fn blocked_runs(&self) -> Vec<Arc<Run>> {
        self.state.lock().blocked.values().filter_map(Weak::upgrade).collect()
    }

    /// Takes the outcomes that no Pack contains yet.
    pub(crate) fn take_outcomes(&self) -> Option<UnpackedOutcomes> {
        let mut state = self.state.lock();
        take_outcomes(&mut state)
    }

    /// Closes the bundle: its virtual items record nothing more, and their code stops. Returns the outcomes that no Pack
    /// contains yet.
    pub(crate) fn close(&self) -> Option<UnpackedOutcomes> {
        let outcomes = {
            let mut state = self.state.lock();
            state.is_closed = true;
            take_outcomes(&mut state)
        };
        for run in self.blocked_runs() {
            run.interrupt(Interrupt::Disowned);
        }
        outcomes
    }

    /// Notes that an item is no virtual item of the bundle any more. The bundle's task is woken for the next item.
    fn note_left(&self, mut state: MutexGuard<'_, BundleState>, index: u32) {
        state.blocked.remove(&index);
        drop(state);
        self.share.note_item_left();
        if let Some(run) = self.run.upgrade() {
            run.wake_task();
        }
    }
}

fn take_outcomes(state: &mut BundleState) -> Option<UnpackedOutcomes> {
    if state.outcomes.is_empty() {
        return None;
    }
    let mut outcomes = std::mem::take(&mut state.outcomes);
    outcomes.sort_unstable_by_key(|it| it.index);
    Some(UnpackedOutcomes { outcomes, reserved: std::mem::take(&mut state.reserved) })
}

impl UnpackedOutcomes {
    /// Drops the outcomes, whose items will run again, and releases their budget.
    pub(crate) fn discard(self, lane: &Lane) {
        lane.release(self.reserved);
    }

    /// Stages the outcomes as a Pack of `run`, the run of their bundle. Also stages in a closed run, which still has to
    /// record what its items have reached.
    pub(crate) fn stage(self, run: &Run) -> Option<Lsn> {
        let pack = Pack { bundle: run.key, outcomes: self.outcomes };
        let lsn = run.stage_locked(&mut run.state(), Write::Pack(pack), self.reserved);
        crate::crash_point!("pack staged");
        lsn
    }
}

impl Run {
    /// Stages a Write of a virtual item. An end becomes an outcome of the bundle, and is durable with one of its next
    /// Packs. Any other new state promotes the item. Returns `None` if nothing was staged.
    pub(super) fn stage_of_item(&self, state: &mut RunState, write: Write, reserved: u32) -> Option<Lsn> {
        let Some(item) = &state.staging.item else { return None };
        let (bundle, index) = (item.bundle.clone(), item.index);
        let Some(mut open) = bundle.lock_open() else {
            self.lane().release(reserved);
            state.interrupt = Some(Interrupt::Disowned);
            return None;
        };
        match write {
            Write::Transition(change) => match change.state {
                State::Ended { status, outcome, .. } => {
                    open.outcomes.push(ItemOutcome { index, status, outcome });
                    open.reserved += reserved;
                    state.staging.item = None;
                    bundle.note_left(open, index);
                    None
                }
                State::Parked { is_pause: true, .. } => {
                    // the bundle is parked as a whole
                    open.has_paused_item = true;
                    bundle.note_left(open, index);
                    None
                }
                new_state => self.promote_locked(state, &bundle, open, new_state, reserved),
            },
            write => {
                let is_required = super::state::is_required(&write);
                self.stage_write(state, write, reserved, is_required)
            }
        }
    }

    /// Gives a virtual item a row of its own, in which it is `running`. Does nothing for other executions. Returns `None`
    /// if the run is disowned.
    pub(crate) fn promote(&self, state: &mut RunState) -> Option<()> {
        let Some(item) = &state.staging.item else { return Some(()) };
        let bundle = item.bundle.clone();
        let Some(open) = bundle.lock_open() else {
            state.interrupt = Some(Interrupt::Disowned);
            return None;
        };
        let running = State::Running { pending_sleeps: state.pending_sleeps.to_vec() };
        self.promote_locked(state, &bundle, open, running, 0).map(drop)
    }

    fn promote_locked(
        &self,
        state: &mut RunState,
        bundle: &BundleRun,
        open: MutexGuard<'_, BundleState>,
        new_state: State,
        reserved: u32,
    ) -> Option<Lsn> {
        let item = state.staging.item.take()?;
        let start = bundle.template.start(item.index, item.input, self.deadline_at, new_state);
        bundle.note_promoted([item.index]);
        let lsn = self.stage_write(state, Write::Start(start.into()), reserved, true);
        crate::crash_point!("item promoted");
        if open.cancelled.contains(&item.index)
            && let Some(run) = bundle.run.upgrade()
        {
            bundle.cancel_promoted(&run, item.index, lsn);
        }
        bundle.note_left(open, item.index);
        lsn
    }
}
