//! [`Capacity`]: the slots of an engine for running executions.

pub(crate) mod item_slots;
pub(crate) mod read_ahead;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crossbeam_utils::CachePadded;

use crate::runtime::inner::EngineInner;
use crate::store::is_served;

/// The part of an engine's slots and threads that the items of bundles leave to other executions: one in this number. The
/// other executions leave the same part of the slots to items.
const RESERVED_SHARE: usize = 4;

/// The numbers of an engine's slots that are in use.
#[derive(Default)]
pub(super) struct Capacity {
    /// Number of slots taken by runs and claims. It has a cache line of its own, because every run changes
    /// it.
    taken_slots: CachePadded<AtomicUsize>,
    /// Number of the taken slots that are reserved for a claim under way.
    reserved_slots: AtomicUsize,
}

/// Slots reserved for a claim. Dropping the reservation releases the slots that were not used.
pub(crate) struct Reservation<'e> {
    engine: &'e EngineInner,
    count: usize,
}

impl<'e> Reservation<'e> {
    /// Reserves at most `limit` slots. Returns `None` if no slot is free or the engine takes no new
    /// executions.
    pub(crate) fn take(engine: &'e EngineInner, limit: usize) -> Option<Self> {
        if engine.is_draining() || engine.is_poisoned() {
            return None;
        }
        let max = engine.max_slots();
        let free = |taken: usize| max.saturating_sub(taken).min(limit);
        let previous =
            engine.capacity.taken_slots.fetch_update(SeqCst, SeqCst, |taken| Some(taken + free(taken)));
        let count = previous.map_or(0, free);
        engine.capacity.reserved_slots.fetch_add(count, SeqCst);
        (count > 0).then_some(Self { engine, count })
    }

    /// Returns the number of reserved slots.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Keeps `used` of the slots for claimed executions and releases the others.
    pub(crate) fn commit_used(mut self, used: usize) {
        self.engine.capacity.reserved_slots.fetch_sub(used.min(self.count), SeqCst);
        self.count = self.count.saturating_sub(used);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.engine.capacity.reserved_slots.fetch_sub(self.count, SeqCst);
        self.engine.capacity.taken_slots.fetch_sub(self.count, SeqCst);
        self.engine.wake_waiting_bundle();
    }
}

impl EngineInner {
    /// Takes a slot for a run. Returns false if no slot is free or the engine takes no new executions.
    pub(crate) fn take_slot(&self) -> bool {
        if self.is_draining() || self.info.is_client {
            return false;
        }
        self.take_slot_below(self.max_slots())
    }

    /// Takes a slot if fewer than `max` are taken.
    pub(super) fn take_slot_below(&self, max: usize) -> bool {
        self.capacity
            .taken_slots
            .fetch_update(SeqCst, SeqCst, |taken| (taken < max).then_some(taken + 1))
            .is_ok()
    }

    /// Notes that an execution was queued. While capacity is exhausted, later starts must not overtake it.
    pub(crate) fn note_queued(&self) {
        if self.taken_slots() >= self.max_slots() {
            self.wakeups.is_backlogged.store(true, SeqCst);
        }
    }

    /// Whether an execution put into this queue may begin here at once, as far as the engine's state shows.
    /// Only the store can decide whether the queue's limits allow it.
    pub(crate) fn can_begin_in(&self, queue: &str) -> bool {
        is_served(self.info.queues.as_deref(), queue) && !self.wakeups.is_backlogged.load(SeqCst)
    }

    /// Takes slots for runs that exist already, whether or not capacity is free.
    pub(crate) fn take_slots_unchecked(&self, count: usize) {
        self.capacity.taken_slots.fetch_add(count, SeqCst);
    }

    /// Returns the number of taken slots.
    pub(super) fn taken_slots(&self) -> usize {
        self.capacity.taken_slots.load(SeqCst)
    }

    /// Releases the slot of a run that has concluded. Wakes the claimer if no slot was free, and a drain or a
    /// trial in quarantine that waits for runs to end.
    pub(crate) fn release_slot(&self) {
        let previous = self.capacity.taken_slots.fetch_sub(1, SeqCst);
        if previous >= self.max_slots() {
            self.wakeups.wake_claimer(true);
        }
        if self.is_draining() {
            self.wakeups.run_ended.notify_waiters();
        }
        if self.wakeups.has_trial.load(SeqCst) {
            self.wakeups.next_trial_at.store(i64::MIN, SeqCst);
            self.wakeups.wake_claimer(false);
        }
        self.wake_waiting_bundle();
    }

    /// Returns the number of executions that run here.
    pub(crate) fn running_count(&self) -> usize {
        self.capacity.taken_slots.load(SeqCst).saturating_sub(self.capacity.reserved_slots.load(SeqCst))
    }
}

/// Returns the number of slots or threads that items and other executions leave to each other.
fn reserved(count: usize) -> usize {
    (count / RESERVED_SHARE).max(1)
}

/// Returns the number of slots or threads without those that items leave to other executions: at least one of two.
fn without_reserved(count: usize) -> usize {
    count.saturating_sub(reserved(count)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_one_of_two_slots() {
        let items = [1, 2, 3, 4, 5, 8, 10_000].map(without_reserved);
        assert_eq!(items, [1, 1, 2, 3, 4, 6, 7_500]);
    }
}
