//! Acknowledgement: the watermark of a lane, and its waiters.
//!
//! An Lsn is settled when its outcome is kept, or when it is at or below the watermark and not held. Nearly
//! all outcomes are `Applied`, so the lane keeps only the others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crossbeam_utils::CachePadded;

use super::lsn::Lsn;
use crate::store::Outcome;

/// Maximum number of outcomes other than `Applied` that are kept for late callers. A registered waiter gets
/// its outcome separately, however late it polls.
const MAX_KEPT_OUTCOMES: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Watermark {
    /// The lists and maps, in a cache line of their own. So threads that lock them do not slow down threads
    /// that read the other fields.
    inner: CachePadded<Mutex<Inner>>,
    lsn: AtomicU64,
    /// Number of held Lsns, which the watermark does not settle when it passes them.
    held: AtomicUsize,
    exceptions: Exceptions,
}

/// Number of slots of [`Exceptions`].
const EXCEPTION_SLOTS: usize = 1 << 12;

/// The Lsns that have had an outcome other than `Applied`, as a filter that is read without a lock.
///
/// Each slot has the largest of these Lsns with one residue. An Lsn above its slot has no such outcome. Newer Lsns raise
/// the slots, so only an Lsn that is as old as the slots can be mistaken for an exception.
struct Exceptions(Box<[AtomicU64]>);

impl Default for Exceptions {
    fn default() -> Self {
        Self((0..EXCEPTION_SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Exceptions {
    fn slot(&self, lsn: Lsn) -> &AtomicU64 {
        &self.0[(lsn.0 % EXCEPTION_SLOTS as u64) as usize]
    }

    fn insert(&self, lsn: Lsn) {
        self.slot(lsn).fetch_max(lsn.0, SeqCst);
    }

    /// Whether the Lsn may have had an outcome other than `Applied`. False is certain.
    fn may_contain(&self, lsn: Lsn) -> bool {
        lsn.0 <= self.slot(lsn).load(SeqCst)
    }
}

#[derive(Default)]
struct Inner {
    held: HashSet<Lsn>,
    outcomes: HashMap<Lsn, Outcome>,
    /// The Lsns of `outcomes`, oldest entry first.
    outcome_order: VecDeque<Lsn>,
    /// The waiters in order of id. Removed waiters stay for a time: see [`Inner::remove_waiter`].
    waiters: Vec<Waiter>,
    /// Number of removed waiters in `waiters`.
    removed_waiters: usize,
    next_waiter: u64,
    /// Numbers of Lsns held and of waiters registered since the last [`Watermark::take_counts`].
    uncounted: (u64, u64),
    /// Outcomes other than `Applied` of waiters that were woken and have not polled since, by waiter id.
    pending_outcomes: HashMap<u64, Outcome>,
}

struct Waiter {
    id: u64,
    lsn: Lsn,
    /// `None` if the waiter was removed.
    waker: Option<Waker>,
}

impl Inner {
    /// Removes a waiter. The cost does not grow with the number of waiters: the waiter is only marked, and the list is
    /// compacted when half of its waiters are marked.
    fn remove_waiter(&mut self, id: u64) {
        self.pending_outcomes.remove(&id);
        if let Ok(i) = self.waiters.binary_search_by_key(&id, |waiter| waiter.id)
            && self.waiters[i].waker.take().is_some()
        {
            self.removed_waiters += 1;
        }
        if self.removed_waiters * 2 > self.waiters.len() {
            self.waiters.retain(|waiter| waiter.waker.is_some());
            self.removed_waiters = 0;
        }
    }

    /// Returns the outcome of `lsn` if it is settled. Removes the outcome that is pending for this waiter.
    fn take_outcome(&mut self, watermark: Lsn, lsn: Lsn, waiter: Option<u64>) -> Option<Outcome> {
        if let Some(outcome) = waiter.and_then(|id| self.pending_outcomes.remove(&id)) {
            return Some(outcome);
        }
        if let Some(outcome) = self.outcomes.get(&lsn) {
            return Some(outcome.clone());
        }
        (lsn <= watermark && !self.held.contains(&lsn)).then_some(Outcome::Applied)
    }
}

impl Watermark {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lsn(&self) -> Lsn {
        Lsn(self.lsn.load(SeqCst))
    }

    pub(super) fn is_settled(&self, lsn: Lsn) -> bool {
        self.peek(lsn, None).is_some()
    }

    /// Returns the outcome of `lsn` if it is settled; takes no lock in the common case.
    fn peek(&self, lsn: Lsn, waiter: Option<u64>) -> Option<Outcome> {
        // an Lsn enters `held` and `exceptions` before the watermark passes the Lsn; so loads in this order miss
        // neither
        let watermark = self.lsn();
        let is_held_empty = self.held.load(SeqCst) == 0;
        if !self.exceptions.may_contain(lsn) {
            if lsn > watermark {
                return None;
            }
            if is_held_empty {
                return Some(Outcome::Applied);
            }
        }
        self.inner().take_outcome(watermark, lsn, waiter)
    }

    /// Keeps `lsns` unsettled although the watermark passes them.
    pub(super) fn hold(&self, lsns: &[Lsn]) {
        let mut inner = self.inner();
        inner.uncounted.0 += lsns.len() as u64;
        inner.held.extend(lsns);
        self.held.store(inner.held.len(), SeqCst);
    }

    /// Returns how many Lsns were held, and how many waits did not end at once, since the last call.
    pub(super) fn take_counts(&self) -> (u64, u64) {
        std::mem::take(&mut self.inner().uncounted)
    }

    /// Whether any Lsn is held.
    pub(super) fn has_held(&self) -> bool {
        self.held.load(SeqCst) > 0
    }

    /// Keeps the outcomes other than `Applied`, ends holds, moves the watermark, and wakes the waiters of
    /// Lsns that are settled now.
    pub(super) fn publish(
        &self,
        watermark: Option<Lsn>,
        released: impl IntoIterator<Item = Lsn>,
        outcomes: impl IntoIterator<Item = (Lsn, Outcome)>,
    ) {
        for waker in self.settle(watermark, released, outcomes) {
            waker.wake();
        }
    }

    /// Does the same as [`publish`](Self::publish), but returns the wakers instead of waking them.
    pub(super) fn settle(
        &self,
        watermark: Option<Lsn>,
        released: impl IntoIterator<Item = Lsn>,
        outcomes: impl IntoIterator<Item = (Lsn, Outcome)>,
    ) -> Vec<Waker> {
        let mut wakers = Vec::new();
        {
            let mut inner = self.inner();
            let inner = &mut *inner;
            if !inner.held.is_empty() {
                for lsn in released {
                    inner.held.remove(&lsn);
                }
            }
            for (lsn, outcome) in outcomes {
                // before the watermark and `held` are stored, as `peek` loads them first
                self.exceptions.insert(lsn);
                inner.held.remove(&lsn);
                if inner.outcomes.insert(lsn, outcome).is_none() {
                    inner.outcome_order.push_back(lsn);
                }
            }
            let now = watermark.map_or_else(|| self.lsn(), |lsn| lsn.max(self.lsn()));
            let (held, outcomes, pending) = (&inner.held, &inner.outcomes, &mut inner.pending_outcomes);
            inner.removed_waiters = 0;
            inner.waiters.retain_mut(|waiter| {
                if waiter.waker.is_none() {
                    return false;
                }
                let outcome = if outcomes.is_empty() { None } else { outcomes.get(&waiter.lsn) };
                let is_settled = outcome.is_some()
                    || (waiter.lsn <= now && (held.is_empty() || !held.contains(&waiter.lsn)));
                if let Some(outcome) = outcome {
                    pending.insert(waiter.id, outcome.clone());
                }
                if is_settled {
                    wakers.extend(waiter.waker.take());
                }
                !is_settled
            });
            while inner.outcome_order.len() > MAX_KEPT_OUTCOMES
                && let Some(oldest) = inner.outcome_order.pop_front()
            {
                inner.outcomes.remove(&oldest);
            }
            // stored in the reverse order of the loads in `peek`
            self.held.store(inner.held.len(), SeqCst);
            self.lsn.store(now.0, SeqCst);
        }
        wakers
    }

    /// Returns the outcome of `lsn` if it is settled. Otherwise registers `waker` under the id in `waiter`.
    pub(super) fn poll(&self, lsn: Lsn, waiter: &mut Option<u64>, waker: &Waker) -> Poll<Outcome> {
        if let Some(outcome) = self.peek(lsn, *waiter) {
            *waiter = None;
            return Poll::Ready(outcome);
        }
        let mut inner = self.inner();
        // check again under the lock: a flush between the check and the registration would be missed
        if let Some(outcome) = inner.take_outcome(self.lsn(), lsn, *waiter) {
            *waiter = None;
            return Poll::Ready(outcome);
        }
        if let Some(id) = *waiter
            && let Ok(i) = inner.waiters.binary_search_by_key(&id, |waiter| waiter.id)
        {
            inner.waiters[i].waker = Some(waker.clone());
            return Poll::Pending;
        }
        let id = inner.next_waiter;
        inner.next_waiter += 1;
        inner.uncounted.1 += 1;
        inner.waiters.push(Waiter { id, lsn, waker: Some(waker.clone()) });
        *waiter = Some(id);
        Poll::Pending
    }

    /// Removes a waiter that no longer waits.
    pub(super) fn remove_waiter(&self, id: u64) {
        self.inner().remove_waiter(id);
    }

    pub(super) fn waiter_count(&self) -> usize {
        let inner = self.inner();
        inner.waiters.len() - inner.removed_waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_gets_its_outcome_however_late_it_polls() {
        let watermark = Watermark::default();
        let (mut early, mut cancelled) = (None, None);
        assert!(watermark.poll(Lsn(1), &mut early, Waker::noop()).is_pending());
        assert!(watermark.poll(Lsn(2), &mut cancelled, Waker::noop()).is_pending());
        let others = (1..MAX_KEPT_OUTCOMES as u64 * 2).map(|n| (Lsn(n), Outcome::Dropped));
        watermark.publish(Some(Lsn(MAX_KEPT_OUTCOMES as u64 * 2)), [], others);
        assert_eq!(watermark.poll(Lsn(1), &mut early, Waker::noop()), Poll::Ready(Outcome::Dropped));
        watermark.remove_waiter(cancelled.unwrap());
        let inner = watermark.inner();
        assert!(
            inner.pending_outcomes.is_empty()
                && inner.waiters.is_empty()
                && inner.outcomes.len() == MAX_KEPT_OUTCOMES
        );
    }

    #[test]
    fn exception_does_not_make_other_lsns_take_the_lock() {
        let watermark = Watermark::default();
        let exceptions = |range: std::ops::Range<u64>| range.map(|n| (Lsn(n * 100), Outcome::Queued));
        watermark.publish(Some(Lsn(1_000_000)), [], exceptions(1..10_000));
        let newest = (999_001..999_900).filter(|n| n % 100 != 0);
        {
            // with the lock held, `peek` returns only if it does not take the lock
            let _inner = watermark.inner();
            for n in newest {
                assert!(!watermark.exceptions.may_contain(Lsn(n)), "{n}");
                assert_eq!(watermark.peek(Lsn(n), None), Some(Outcome::Applied));
            }
            assert_eq!(watermark.peek(Lsn(1_000_001), None), None);
        }
        for n in 1..10_000 {
            assert_eq!(watermark.peek(Lsn(n * 100), None), Some(Outcome::Queued), "{n}");
            assert_eq!(watermark.peek(Lsn(n * 100 + 1), None), Some(Outcome::Applied), "{n}");
        }
    }

    #[test]
    fn removing_waiters_moves_few_others() {
        const WAITERS: u64 = 10_000;
        let watermark = Watermark::default();
        let mut ids = vec![None; WAITERS as usize];
        for id in &mut ids {
            assert!(watermark.poll(Lsn(1), id, Waker::noop()).is_pending());
        }
        for (n, id) in ids.iter().take(9_000).enumerate() {
            watermark.remove_waiter(id.unwrap());
            watermark.remove_waiter(id.unwrap());
            assert_eq!(watermark.waiter_count(), WAITERS as usize - n - 1);
            let inner = watermark.inner();
            assert!(inner.waiters.len() <= 2 * (inner.waiters.len() - inner.removed_waiters).max(1));
            // the list is compacted at most when it has halved: a removal in between moves nothing
            assert!(inner.removed_waiters > 0 || inner.waiters.len() < 5_001);
        }
        let woken = watermark.settle(Some(Lsn(1)), [], []);
        assert_eq!((woken.len(), watermark.waiter_count()), (1_000, 0));
        assert_eq!(watermark.poll(Lsn(1), &mut ids[9_500], Waker::noop()), Poll::Ready(Outcome::Applied));
    }

    #[test]
    fn held_lsn_is_not_settled_by_the_watermark() {
        let watermark = Watermark::default();
        let mut waiter = None;
        watermark.hold(&[Lsn(3)]);
        watermark.publish(Some(Lsn(5)), [], []);
        assert_eq!(watermark.peek(Lsn(4), None), Some(Outcome::Applied));
        assert!(watermark.poll(Lsn(3), &mut waiter, Waker::noop()).is_pending());
        watermark.publish(None, [Lsn(3)], []);
        assert_eq!(watermark.poll(Lsn(3), &mut waiter, Waker::noop()), Poll::Ready(Outcome::Applied));
    }
}
