//! [`Places`]: how many executions may run here.

use std::sync::atomic::Ordering::SeqCst;

use super::inner::Core;
use crate::store::is_served;

/// Places taken for a claim; those that are not kept are given back.
pub(crate) struct Reservation<'c> {
    engine: &'c Core,
    count: usize,
}

impl<'c> Reservation<'c> {
    /// Takes at most so many; `None` if there are none.
    pub(crate) fn take(core: &'c Core, most: usize) -> Option<Self> {
        if core.is_draining() || core.is_poisoned() {
            return None;
        }
        let max = core.options.max_running;
        let taken = |running: usize| max.saturating_sub(running).min(most);
        let before = core.running.fetch_update(SeqCst, SeqCst, |running| Some(running + taken(running)));
        let count = before.map_or(0, taken);
        core.reserved.fetch_add(count, SeqCst);
        (count > 0).then_some(Self { engine: core, count })
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// So many are used.
    pub(crate) fn commit_used(mut self, used: usize) {
        self.engine.reserved.fetch_sub(used.min(self.count), SeqCst);
        self.count = self.count.saturating_sub(used);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.engine.reserved.fetch_sub(self.count, SeqCst);
        self.engine.running.fetch_sub(self.count, SeqCst);
    }
}

impl Core {
    /// Takes a place for a run; false if there are as many as may be, or the engine takes nothing new.
    pub(crate) fn take_slot(&self) -> bool {
        if self.is_draining() || self.info.is_client {
            return false;
        }
        let max = self.options.max_running;
        self.running.fetch_update(SeqCst, SeqCst, |running| (running < max).then_some(running + 1)).is_ok()
    }

    /// Something is queued. If there is no place for it, nothing that comes later takes the next one by itself.
    pub(crate) fn note_queued(&self) {
        if self.running.load(SeqCst) >= self.options.max_running {
            self.worker.is_backed_up.store(true, SeqCst);
        }
    }

    /// True if something that is put into this queue may begin here at once, as far as is known here: the store knows
    /// whether the queue has limits.
    pub(crate) fn can_begin_in(&self, queue: &str) -> bool {
        is_served(self.info.queues.as_deref(), queue) && !self.worker.is_backed_up.load(SeqCst)
    }

    pub(crate) fn add_running(&self, count: usize) {
        self.running.fetch_add(count, SeqCst);
    }

    pub(crate) fn release_slot(&self) {
        let before = self.running.fetch_sub(1, SeqCst);
        if before == self.options.max_running {
            self.wake_worker(true);
        }
        if self.is_draining() {
            self.worker.freed.notify_waiters();
        }
        if self.worker.is_trying.load(SeqCst) {
            self.worker.quarantined_until.store(i64::MIN, SeqCst);
            self.wake_worker(false);
        }
    }

    pub(crate) fn running_count(&self) -> usize {
        self.running.load(SeqCst).saturating_sub(self.reserved.load(SeqCst))
    }
}
