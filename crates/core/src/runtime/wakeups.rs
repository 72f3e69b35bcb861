//! [`WorkerSignals`]: how the rest of an engine reaches its worker.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};

use tokio::sync::{Notify, watch};

use crate::clock::Timestamp;
use crate::key::Key;
use crate::sync::Mutex;

/// What wakes the worker's loops, and what for.
#[derive(Default)]
pub(crate) struct WorkerSignals {
    /// Wakes the looks.
    pub(crate) look: Notify,
    /// Wakes the claims.
    pub(crate) wanted: Notify,
    /// Wakes the takeovers: a look has seen lost workers.
    pub(crate) take_over: Notify,
    /// Ends all of them: the registration is over.
    pub(crate) fenced: Notify,
    /// Wakes who waits until nothing runs any more.
    pub(crate) freed: Notify,
    /// Something may be claimable.
    pub(crate) is_ready: AtomicBool,
    /// The last claim has left something that was ready, or there was no place for it: what is put into queues stands
    /// behind that.
    pub(crate) is_backed_up: AtomicBool,
    /// The registration is over.
    pub(crate) is_fenced: AtomicBool,
    /// Somebody wants a look now.
    pub(crate) is_look_wanted: AtomicBool,
    /// A queue's limits have left something that is ready: a claim is wanted when a slot is free.
    pub(crate) is_slot_wanted: AtomicBool,
    /// How often slots were freed here.
    pub(crate) freed_slots: AtomicU64,
    /// Something of the quarantine is being tried: its end is awaited.
    pub(crate) is_trying: AtomicBool,
    /// Earliest due time heard of, in microseconds; `i64::MAX` for none.
    pub(crate) due_at: AtomicI64,
    /// Earliest deadline heard of, of what waits.
    pub(crate) deadline_at: AtomicI64,
    /// The same of what is in quarantine.
    pub(crate) quarantined_until: AtomicI64,
    /// Claims have failed that may have taken something: what was about to end then.
    pub(crate) lost_claims: Mutex<Option<Vec<Key>>>,
    /// Held during a claim until what it took is adopted, and during a search for strays: what a claim has not
    /// brought yet would seem to be one.
    pub(crate) claiming: tokio::sync::Mutex<()>,
    /// True once the engine has ended.
    pub(crate) stopped: watch::Sender<bool>,
}

impl WorkerSignals {
    pub(crate) fn new() -> Self {
        let never = || AtomicI64::new(i64::MAX);
        Self { due_at: never(), deadline_at: never(), quarantined_until: never(), ..Self::default() }
    }

    /// True if a timer is due; that one is waited for no longer.
    pub(crate) fn take_due_timer(&self, now: Timestamp) -> bool {
        take_due(&self.due_at, now)
    }

    /// True if a deadline has passed; that one is waited for no longer.
    pub(crate) fn take_deadline(&self, now: Timestamp) -> bool {
        take_due(&self.deadline_at, now)
    }
}

fn take_due(at: &AtomicI64, now: Timestamp) -> bool {
    let is_due = at.load(SeqCst) <= now.as_micros();
    if is_due {
        at.store(i64::MAX, SeqCst);
    }
    is_due
}
