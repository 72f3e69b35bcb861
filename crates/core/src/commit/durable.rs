//! Acknowledging: the watermark of a lane, and those who wait for it.
//!
//! An Lsn is settled when it is at or below the watermark and not held. All but a few outcomes are
//! `Applied`, so only the others are kept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Lane, Lsn};
use crate::write::Outcome;

/// So many outcomes other than `Applied` are kept: whoever asks for one asks within a few flushes.
const KEPT: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Watermark {
    lsn: AtomicU64,
    /// Lsns at or below the watermark that are not settled.
    held: AtomicUsize,
    /// Outcomes other than `Applied` that are kept.
    exceptions: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    held: HashSet<Lsn>,
    outcomes: HashMap<Lsn, Outcome>,
    /// The Lsns of `outcomes`, as they were noted.
    noted: VecDeque<Lsn>,
    waiters: Vec<Waiter>,
    next_waiter: u64,
}

struct Waiter {
    id: u64,
    lsn: Lsn,
    waker: Waker,
}

impl Inner {
    fn settled(&self, watermark: Lsn, lsn: Lsn) -> Option<Outcome> {
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
        self.peek(lsn).is_some()
    }

    /// The outcome of `lsn` if it is settled; takes no lock in the common case.
    fn peek(&self, lsn: Lsn) -> Option<Outcome> {
        // an Lsn enters `held` and an outcome is noted before the watermark passes it, so this order of
        // loads never misses one
        let watermark = self.lsn();
        let is_held_empty = self.held.load(SeqCst) == 0;
        if self.exceptions.load(SeqCst) == 0 {
            if lsn > watermark {
                return None;
            }
            if is_held_empty {
                return Some(Outcome::Applied);
            }
        }
        self.inner().settled(watermark, lsn)
    }

    /// Keeps `lsns` unsettled although the watermark passes them.
    pub(super) fn hold(&self, lsns: &[Lsn]) {
        let mut inner = self.inner();
        inner.held.extend(lsns);
        self.held.store(inner.held.len(), SeqCst);
    }

    /// True if anything is held.
    pub(super) fn has_held(&self) -> bool {
        self.held.load(SeqCst) > 0
    }

    /// Notes the outcomes other than `Applied`, ends holds, moves the watermark, and wakes whoever waited
    /// for what is settled now.
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

    /// The same, but returns whoever has to be woken.
    pub(super) fn settle(
        &self,
        watermark: Option<Lsn>,
        released: impl IntoIterator<Item = Lsn>,
        outcomes: impl IntoIterator<Item = (Lsn, Outcome)>,
    ) -> Vec<Waker> {
        let mut wake = Vec::new();
        {
            let mut inner = self.inner();
            let inner = &mut *inner;
            if !inner.held.is_empty() {
                for lsn in released {
                    inner.held.remove(&lsn);
                }
            }
            for (lsn, outcome) in outcomes {
                inner.held.remove(&lsn);
                if inner.outcomes.insert(lsn, outcome).is_none() {
                    inner.noted.push_back(lsn);
                }
            }
            while inner.noted.len() > KEPT
                && let Some(oldest) = inner.noted.pop_front()
            {
                inner.outcomes.remove(&oldest);
            }
            let now = watermark.map_or_else(|| self.lsn(), |lsn| lsn.max(self.lsn()));
            // in the order opposite to `peek`
            self.exceptions.store(inner.outcomes.len(), SeqCst);
            self.held.store(inner.held.len(), SeqCst);
            self.lsn.store(now.0, SeqCst);
            let (held, outcomes) = (&inner.held, &inner.outcomes);
            inner.waiters.retain_mut(|waiter| {
                let is_settled = (waiter.lsn <= now && (held.is_empty() || !held.contains(&waiter.lsn)))
                    || (!outcomes.is_empty() && outcomes.contains_key(&waiter.lsn));
                if is_settled {
                    wake.push(std::mem::replace(&mut waiter.waker, Waker::noop().clone()));
                }
                !is_settled
            });
        }
        wake
    }

    pub(super) fn waiters(&self) -> usize {
        self.inner().waiters.len()
    }
}

/// Resolves to the outcome of a Write when it is settled.
pub(crate) struct Durable {
    lane: Lane,
    lsn: Lsn,
    /// Id of our entry among the waiters.
    waiter: Option<u64>,
}

impl Durable {
    pub(super) fn new(lane: Lane, lsn: Lsn) -> Self {
        Self { lane, lsn, waiter: None }
    }
}

impl Future for Durable {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        let watermark = &this.lane.0.watermark;
        if let Some(outcome) = watermark.peek(this.lsn) {
            this.waiter = None;
            return Poll::Ready(outcome);
        }
        let mut inner = watermark.inner();
        // once more under the lock: a flush between the look and the registration would be missed
        if let Some(outcome) = inner.settled(watermark.lsn(), this.lsn) {
            this.waiter = None;
            return Poll::Ready(outcome);
        }
        if let Some(id) = this.waiter
            && let Ok(i) = inner.waiters.binary_search_by_key(&id, |waiter| waiter.id)
        {
            inner.waiters[i].waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let id = inner.next_waiter;
        inner.next_waiter += 1;
        inner.waiters.push(Waiter { id, lsn: this.lsn, waker: cx.waker().clone() });
        this.waiter = Some(id);
        Poll::Pending
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            // waiters are in order of id: retain keeps it
            let mut inner = self.lane.0.watermark.inner();
            if let Ok(i) = inner.waiters.binary_search_by_key(&id, |waiter| waiter.id) {
                inner.waiters.remove(i);
            }
        }
    }
}
