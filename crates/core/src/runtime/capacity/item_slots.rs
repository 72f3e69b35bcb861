//! [`ItemSlots`]: the bundles of batches that an engine runs, and the turns in which their items get slots.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::{reserved, without_reserved};
use crate::queue::QueueKey;
use crate::runtime::inner::EngineInner;
use crate::sync::Mutex;

/// The number of items that a bundle is assumed to have.
const ITEMS_PER_BUNDLE: usize = 1_000;

/// The bundles that an engine runs.
///
/// An engine claims about as many items as it can run at a time, and as many again. So the items of one batch are shared
/// among engines, and memory stays bounded. Bundles take turns at slots that become free.
#[derive(Default)]
pub(crate) struct ItemSlots {
    /// The number of bundles. Each has a slot of its own beside the slots of its items.
    bundles: AtomicUsize,
    /// The number of virtual items that run.
    running_items: AtomicUsize,
    /// The number of virtual items that run or have not begun.
    claimed_items: AtomicUsize,
    /// Whether the next claim waits until fewer items are claimed.
    is_claim_waiting: AtomicBool,
    /// The queue keys of bundles with items that have not begun, each with the number of these bundles.
    keys: Mutex<HashMap<QueueKey, usize>>,
    /// The bundles that wait for a slot, in the order of their turns.
    waiting: Mutex<VecDeque<Weak<BundleShare>>>,
    /// The number of bundles in `waiting`, and of those that have their turn.
    waiting_count: AtomicUsize,
}

/// The part that one bundle has in the [`ItemSlots`] of its engine. Dropping it returns this part.
pub(crate) struct BundleShare {
    engine: Arc<EngineInner>,
    queue_key: QueueKey,
    needs_threads: bool,
    /// The number of the bundle's virtual items that run.
    running_items: AtomicUsize,
    /// The number of the bundle's virtual items that run or have not begun.
    claimed_items: AtomicUsize,
    /// Whether items have not begun.
    has_pending: AtomicBool,
    /// Whether the bundle waits for its turn.
    is_waiting: AtomicBool,
    /// Whether the bundle may take a slot before the bundles that wait.
    has_turn: AtomicBool,
    waker: AtomicWaker,
}

impl ItemSlots {
    /// Whether a bundle waits for a slot, or has its turn.
    fn has_waiting(&self) -> bool {
        self.waiting_count.load(SeqCst) > 0
    }
}

impl EngineInner {
    /// Returns the number of slots, with those of the bundles themselves.
    pub(super) fn max_slots(&self) -> usize {
        self.options.max_running + self.item_slots.bundles.load(SeqCst)
    }

    /// Returns the number of slots that the items of bundles may take while other executions run.
    fn item_capacity(&self) -> usize {
        without_reserved(self.options.max_running)
    }

    /// Returns the number of taken slots up to which an item may take another one.
    fn item_limit(&self) -> usize {
        if self.item_slots.running_items.load(SeqCst) < reserved(self.options.max_running) {
            self.max_slots()
        } else {
            self.item_capacity() + self.item_slots.bundles.load(SeqCst)
        }
    }

    /// Returns the number of bundles that a claim may take from each queue key, and the queue keys with bundles of which
    /// not all items have begun. If the number is 0, the claimer is woken when it is greater.
    pub(crate) fn claimable_bundles(&self) -> (usize, Vec<QueueKey>) {
        let slots = &self.item_slots;
        slots.is_claim_waiting.store(true, SeqCst);
        let capacity = self.item_capacity();
        let claimed = slots.claimed_items.load(SeqCst);
        let max_bundles =
            if claimed < capacity { (2 * capacity - claimed).div_ceil(ITEMS_PER_BUNDLE) } else { 0 };
        let busy = slots.keys.lock().keys().cloned().collect();
        (max_bundles, busy)
    }

    /// Notes that claimed items have ended, or continue elsewhere.
    fn note_items_left(&self, count: usize) {
        let before = self.item_slots.claimed_items.fetch_sub(count, SeqCst);
        let capacity = self.item_capacity();
        if before >= capacity
            && before - count < capacity
            && self.item_slots.is_claim_waiting.swap(false, SeqCst)
        {
            self.wakeups.wake_claimer(true);
        }
    }

    /// Gives the next waiting bundle its turn, if one waits. To be called when a slot or a thread has become free.
    pub(crate) fn wake_waiting_bundle(&self) {
        while self.item_slots.has_waiting() {
            let next = self.item_slots.waiting.lock().pop_front();
            let Some(next) = next else { return };
            let Some(share) = next.upgrade() else {
                self.item_slots.waiting_count.fetch_sub(1, SeqCst);
                continue;
            };
            share.has_turn.store(true, SeqCst);
            share.is_waiting.store(false, SeqCst);
            share.waker.wake();
            return;
        }
    }

    /// Wakes all bundles that wait for a slot: the engine takes no new executions.
    pub(crate) fn wake_waiting_bundles(&self) {
        for _ in 0..self.item_slots.waiting_count.load(SeqCst) {
            self.wake_waiting_bundle();
        }
    }
}

impl BundleShare {
    /// Adds a claimed bundle with this number of unfinished items.
    pub(crate) fn new(
        engine: &Arc<EngineInner>,
        queue_key: QueueKey,
        item_count: usize,
        needs_threads: bool,
    ) -> Arc<Self> {
        engine.item_slots.bundles.fetch_add(1, SeqCst);
        engine.item_slots.claimed_items.fetch_add(item_count, SeqCst);
        *engine.item_slots.keys.lock().entry(queue_key.clone()).or_default() += 1;
        Arc::new(Self {
            engine: engine.clone(),
            queue_key,
            needs_threads,
            running_items: AtomicUsize::new(0),
            claimed_items: AtomicUsize::new(item_count),
            has_pending: AtomicBool::new(true),
            is_waiting: AtomicBool::new(false),
            has_turn: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        })
    }

    /// Returns the number of virtual items that run.
    pub(crate) fn running_items(&self) -> usize {
        self.running_items.load(SeqCst)
    }

    /// Notes that an item has ended, or is no virtual item any more.
    pub(crate) fn note_item_left(&self) {
        self.return_items(1, 1);
    }

    /// Returns the parts of items in the numbers of the engine. `running` of the `claimed` items have begun.
    fn return_items(&self, running: usize, claimed: usize) {
        self.running_items.fetch_sub(running, SeqCst);
        self.claimed_items.fetch_sub(claimed, SeqCst);
        self.engine.item_slots.running_items.fetch_sub(running, SeqCst);
        if self.needs_threads && running > 0 {
            self.engine.read_ahead.note_items_left(running);
        }
        self.engine.note_items_left(claimed);
    }

    /// Whether a thread is free for an item, if the items need threads.
    fn has_thread(&self) -> bool {
        !self.needs_threads || self.engine.read_ahead.has_capacity_for_item()
    }

    /// Notes that all items have begun. Claims may take further bundles of the queue key.
    pub(crate) fn note_all_begun(&self) {
        if !self.has_pending.swap(false, SeqCst) {
            return;
        }
        let mut keys = self.engine.item_slots.keys.lock();
        if let Some(count) = keys.get_mut(&self.queue_key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&self.queue_key);
            }
        }
    }

    /// Ends the bundle's turn. Returns false if the bundle does not have its turn.
    fn end_turn(&self) -> bool {
        let has_turn = self.has_turn.swap(false, SeqCst);
        self.engine.item_slots.waiting_count.fetch_sub(usize::from(has_turn), SeqCst);
        has_turn
    }

    /// Takes a slot for the next item, which then runs, if one is free and no other bundle waits. Otherwise the bundle gets
    /// in line, and `waker` is woken at its turn. After its turn, a bundle with further items gets in line again.
    pub(crate) fn take_slot(self: &Arc<Self>, has_more: bool, waker: &Waker) -> bool {
        if self.is_waiting.load(SeqCst) {
            return false;
        }
        let slots = &self.engine.item_slots;
        let has_turn = self.end_turn();
        let is_taken = (has_turn || !slots.has_waiting())
            && self.has_thread()
            && self.engine.take_slot_below(self.engine.item_limit());
        if is_taken {
            slots.running_items.fetch_add(1, SeqCst);
            self.running_items.fetch_add(1, SeqCst);
            if self.needs_threads {
                self.engine.read_ahead.note_item_begun();
            }
        }
        if !is_taken || (has_turn && has_more) {
            self.get_in_line(has_turn && !is_taken, waker);
        }
        is_taken
    }

    /// Puts the bundle behind the bundles that wait, or before them if it could not use its turn: a claim may have reserved
    /// the slot.
    fn get_in_line(self: &Arc<Self>, is_first: bool, waker: &Waker) {
        let slots = &self.engine.item_slots;
        self.waker.register(waker);
        self.is_waiting.store(true, SeqCst);
        slots.waiting_count.fetch_add(1, SeqCst);
        {
            let (share, mut waiting) = (Arc::downgrade(self), slots.waiting.lock());
            if is_first { waiting.push_front(share) } else { waiting.push_back(share) }
        }
        // a slot that became free in the meantime has woken nothing
        let has_slot = || self.has_thread() && self.engine.taken_slots() < self.engine.item_limit();
        if has_slot() || self.engine.is_draining() {
            self.engine.wake_waiting_bundle();
        }
    }
}

impl Drop for BundleShare {
    fn drop(&mut self) {
        self.note_all_begun();
        self.engine.item_slots.bundles.fetch_sub(1, SeqCst);
        self.return_items(self.running_items.load(SeqCst), self.claimed_items.load(SeqCst));
        if self.end_turn() {
            self.engine.wake_waiting_bundle();
        }
    }
}
