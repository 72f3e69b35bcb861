//! [`Wakeups`]: the signals by which the rest of an engine wakes its worker.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::sync::Mutex;

/// Signals to the worker's loops, and the reasons for them.
#[derive(Default)]
pub(crate) struct Wakeups {
    /// Wakes the renewals: a client has begun to wait for executions, or the time of the next renewal has changed.
    pub(crate) renewal: Notify,
    /// Wakes the heartbeats.
    pub(crate) heartbeat: Notify,
    /// Wakes the claimer.
    pub(crate) claim: Notify,
    /// Wakes the maintenance: the registration was renewed.
    pub(crate) maintenance: Notify,
    /// The time of an additional renewal; `None` if only regular ones are due.
    pub(crate) extra_renewal_at: Mutex<Option<Instant>>,
    /// Ends all loops: the registration is over.
    pub(crate) fence: Notify,
    /// Wakes callers that wait until no execution runs any more.
    pub(crate) run_ended: Notify,
    /// Whether an execution may be claimable.
    pub(crate) has_ready: AtomicBool,
    /// Whether ready executions are waiting: the last claim left some, or capacity was exhausted. New
    /// executions in queues wait behind them.
    pub(crate) is_backlogged: AtomicBool,
    /// Whether the registration is over.
    pub(crate) is_fenced: AtomicBool,
    /// Whether the next turn of the heartbeat loop sends a heartbeat even if none is due.
    pub(crate) is_heartbeat_requested: AtomicBool,
    /// Whether hints announce all changes by other processes, as of the last renewal.
    pub(crate) receives_hints: AtomicBool,
    /// Number of heartbeats sent.
    pub(crate) heartbeats_sent: AtomicU64,
    /// Whether a queue's limits held ready executions back: the next freed slot causes a claim.
    pub(crate) is_slot_awaited: AtomicBool,
    /// Number of times that slots of queues were freed, here or as a hint announced.
    pub(crate) freed_queue_slots: AtomicU64,
    /// Whether a quarantined execution is being tried. Meanwhile, each end of a run makes the worker check
    /// whether the next trial may begin.
    pub(crate) has_trial: AtomicBool,
    /// Earliest known due time, in microseconds; `i64::MAX` for none.
    pub(crate) next_due_at: AtomicI64,
    /// Earliest known deadline of an execution that is not running, in microseconds; `i64::MAX` for none.
    pub(crate) next_deadline_at: AtomicI64,
    /// Earliest known time for the next trial of a quarantined execution, in microseconds; `i64::MAX` for
    /// none.
    pub(crate) next_trial_at: AtomicI64,
    /// Keys of the executions whose runs were beginning or ending when a claim failed; `None` if no claim has
    /// failed since the last search. A failed claim may have taken executions.
    pub(crate) lost_claims: Mutex<Option<Vec<Key>>>,
    /// A lock that a claim holds until the claimed executions are launched. A search for lost claims holds
    /// the lock too, because it would otherwise find executions of a claim under way.
    pub(crate) claim_lock: tokio::sync::Mutex<()>,
    /// Whether the engine has ended.
    pub(crate) is_stopped: watch::Sender<bool>,
}

impl Wakeups {
    pub(crate) fn new() -> Self {
        let never = || AtomicI64::new(i64::MAX);
        Self { next_due_at: never(), next_deadline_at: never(), next_trial_at: never(), ..Self::default() }
    }

    /// Wakes the claimer. With `has_ready`, an execution may be claimable.
    pub(crate) fn wake_claimer(&self, has_ready: bool) {
        if has_ready {
            self.has_ready.store(true, SeqCst);
        }
        self.claim.notify_one();
    }

    /// Notes that slots of queues were freed. Wakes the claimer if a queue's limits held executions back.
    pub(crate) fn note_queue_slots_freed(&self) {
        self.freed_queue_slots.fetch_add(1, SeqCst);
        if self.is_slot_awaited.swap(false, SeqCst) {
            self.wake_claimer(true);
        }
    }

    /// Requests a claim when the next slot of a queue is freed. `freed` is an earlier value of
    /// `freed_queue_slots`: slots freed since then count.
    pub(crate) fn claim_on_freed_slot(&self, freed: u64) {
        self.is_slot_awaited.store(true, SeqCst);
        if self.freed_queue_slots.load(SeqCst) != freed && self.is_slot_awaited.swap(false, SeqCst) {
            self.wake_claimer(true);
        }
    }

    /// Requests a renewal at a time, or earlier.
    pub(crate) fn request_renewal(&self, at: Instant) {
        let mut extra = self.extra_renewal_at.lock();
        *extra = Some(extra.map_or(at, |earlier| earlier.min(at)));
        drop(extra);
        self.renewal.notify_one();
    }

    /// Requests a heartbeat now.
    pub(crate) fn request_heartbeat(&self) {
        self.is_heartbeat_requested.store(true, SeqCst);
        self.heartbeat.notify_one();
    }

    /// Notes that the registration has ended.
    pub(crate) fn mark_fenced(&self) {
        self.is_fenced.store(true, SeqCst);
        self.fence.notify_one();
    }

    /// Returns whether a timer is due. If so, forgets its due time.
    pub(crate) fn take_due_timer(&self, now: Timestamp) -> bool {
        take_due(&self.next_due_at, now)
    }

    /// Returns whether a deadline has passed. If so, forgets the deadline.
    pub(crate) fn take_due_deadline(&self, now: Timestamp) -> bool {
        take_due(&self.next_deadline_at, now)
    }
}

fn take_due(at: &AtomicI64, now: Timestamp) -> bool {
    let is_due = at.load(SeqCst) <= now.as_micros();
    if is_due {
        at.store(i64::MAX, SeqCst);
    }
    is_due
}
