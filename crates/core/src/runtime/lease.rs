//! [`Lease`]: the time until which a worker may begin bodies, by the worker's own clock. On Linux that clock
//! also runs while the machine is suspended.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::time_since_boot;

/// Expiry of a lease in a store without leases.
const NEVER_EXPIRES: u64 = u64::MAX;

/// The worker's own record of its lease, which needs no query. The recorded expiry is never later than that
/// of the lease in the store: the worker counts from its request, and the store from the request's arrival.
pub(crate) struct Lease {
    length: Option<Duration>,
    /// The clock: the time since the machine booted.
    clock: fn() -> Duration,
    /// Expiry in microseconds of the clock.
    expires_at: AtomicU64,
    /// Expiry after the last renewal while the lease was not held; 0 for none.
    pending: AtomicU64,
    renewed: Notify,
}

impl Lease {
    /// Creates a lease of this length, or without an expiry if the store has no leases. `sent_at` is when the
    /// worker sent the request for its registration, as time since the machine booted.
    pub(crate) fn new(length: Option<Duration>, sent_at: Duration) -> Self {
        Self::with_clock(time_since_boot, length, sent_at)
    }

    fn with_clock(clock: fn() -> Duration, length: Option<Duration>, sent_at: Duration) -> Self {
        let expires_at = length.map_or(NEVER_EXPIRES, |length| micros(sent_at + length));
        Self {
            length,
            clock,
            expires_at: AtomicU64::new(expires_at),
            pending: AtomicU64::new(0),
            renewed: Notify::new(),
        }
    }

    /// Begins the lease of a registration whose request was sent at `sent_at`, as time since the machine booted.
    pub(crate) fn begin(&self, sent_at: Duration) {
        let Some(length) = self.length else { return };
        self.extend(micros(sent_at + length));
    }

    /// Extends the lease after a renewal whose request was sent at `sent_at`, as time since the machine booted. If the
    /// lease is not held, requests may have come in the meantime. The renewal is then pending until they are handled, and
    /// the result is true.
    pub(crate) fn renew(&self, sent_at: Duration) -> bool {
        let Some(length) = self.length else { return false };
        let expires_at = micros(sent_at + length);
        if self.is_held() {
            self.extend(expires_at);
            return false;
        }
        self.pending.fetch_max(expires_at, SeqCst);
        micros((self.clock)()) < expires_at
    }

    /// Whether a renewal is pending.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(SeqCst) > 0
    }

    /// Extends the lease by the pending renewals.
    pub(crate) fn grant_pending(&self) {
        self.extend(self.pending.swap(0, SeqCst));
    }

    fn extend(&self, expires_at: u64) {
        self.expires_at.fetch_max(expires_at, SeqCst);
        self.renewed.notify_waiters();
    }

    /// Whether the lease is held: no other worker can have taken over.
    pub(crate) fn is_held(&self) -> bool {
        let expires_at = self.expires_at.load(SeqCst);
        expires_at == NEVER_EXPIRES || micros((self.clock)()) < expires_at
    }

    /// Waits until the lease is held.
    pub(crate) async fn wait_held(&self) {
        loop {
            let renewed = self.renewed.notified();
            if self.is_held() {
                return;
            }
            renewed.await;
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(NEVER_EXPIRES)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const CLOCK: fn() -> Duration = || Duration::from_secs(1_000);

    #[test]
    fn lease_counts_from_when_it_was_requested() {
        let ago = |seconds| CLOCK().saturating_sub(Duration::from_secs(seconds));
        let lease = Lease::with_clock(CLOCK, Some(Duration::from_secs(100)), ago(200));
        assert!(!lease.is_held() && lease.wait_held().now_or_never().is_none());
        assert!(!lease.renew(ago(150)), "a late reply renews nothing");
        lease.grant_pending();
        assert!(!lease.is_held());
        let mut waiting = Box::pin(lease.wait_held());
        assert!(waiting.as_mut().now_or_never().is_none());
        lease.begin(ago(50));
        assert!(lease.is_held() && waiting.now_or_never().is_some());
        assert!(!lease.renew(ago(150)) && lease.is_held(), "an older reply takes nothing back");
        assert!(Lease::with_clock(CLOCK, None, ago(200)).is_held(), "a store without leases");
    }

    #[test]
    fn lapsed_lease_begins_again_after_requests_are_handled() {
        let ago = |seconds| CLOCK().saturating_sub(Duration::from_secs(seconds));
        let lease = Lease::with_clock(CLOCK, Some(Duration::from_secs(100)), ago(200));
        assert!(lease.renew(ago(50)) && !lease.is_held() && lease.is_pending());
        // a further renewal before the requests are handled
        assert!(lease.renew(ago(10)) && !lease.is_held());
        lease.grant_pending();
        assert!(lease.is_held() && !lease.is_pending());
        assert!(!lease.renew(ago(0)) && !lease.is_pending(), "the lease was held");
    }

    /// The machine was suspended for an hour: its monotonic clock stood still, but the lease has expired.
    #[test]
    fn lease_expires_while_the_machine_is_suspended() {
        static SUSPENDED: AtomicU64 = AtomicU64::new(0);
        let clock = || Duration::from_secs(1_000 + SUSPENDED.load(SeqCst));
        let lease = Lease::with_clock(clock, Some(Duration::from_secs(3)), clock());
        assert!(lease.is_held());
        SUSPENDED.store(3_600, SeqCst);
        assert!(!lease.is_held());
        assert!(time_since_boot() > Duration::ZERO);
    }
}
