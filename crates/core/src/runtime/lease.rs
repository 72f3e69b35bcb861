//! [`Lease`]: until when a worker may begin bodies, by its own clock, which on Linux goes on while the machine is suspended.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::time_since_boot;

/// No lease: it never runs out.
const FOREVER: u64 = u64::MAX;

/// What this worker knows of its lease, without asking anybody. Never longer than what the store grants: the
/// store counts from when it answers, this from when it was asked.
pub(crate) struct Lease {
    length: Option<Duration>,
    /// The clock.
    now: fn() -> Duration,
    /// In microseconds of the clock.
    until: AtomicU64,
    renewed: Notify,
}

impl Lease {
    /// A lease of this length, if the store has any, granted by an answer to what was asked at `asked_at` since the
    /// machine has started.
    pub(crate) fn new(length: Option<Duration>, asked_at: Duration) -> Self {
        Self::by(time_since_boot, length, asked_at)
    }

    fn by(now: fn() -> Duration, length: Option<Duration>, asked_at: Duration) -> Self {
        let until = length.map_or(FOREVER, |length| micros(asked_at + length));
        Self { length, now, until: AtomicU64::new(until), renewed: Notify::new() }
    }

    /// The store has renewed it, asked at `asked_at` since the machine has started.
    pub(crate) fn renew(&self, asked_at: Duration) {
        let Some(length) = self.length else { return };
        let until = micros(asked_at + length);
        self.until.fetch_max(until, SeqCst);
        self.renewed.notify_waiters();
    }

    /// True while nobody else can have taken over.
    pub(crate) fn is_held(&self) -> bool {
        let until = self.until.load(SeqCst);
        until == FOREVER || micros((self.now)()) < until
    }

    /// Resolves when it is held.
    pub(crate) async fn held(&self) {
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
    u64::try_from(duration.as_micros()).unwrap_or(FOREVER)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const CLOCK: fn() -> Duration = || Duration::from_secs(1_000);

    #[test]
    fn it_counts_from_when_it_was_asked_for() {
        let ago = |seconds| CLOCK().saturating_sub(Duration::from_secs(seconds));
        let lease = Lease::by(CLOCK, Some(Duration::from_secs(100)), ago(200));
        assert!(!lease.is_held() && lease.held().now_or_never().is_none());
        lease.renew(ago(150));
        assert!(!lease.is_held(), "an answer that comes late renews nothing");
        let mut waiting = Box::pin(lease.held());
        assert!(waiting.as_mut().now_or_never().is_none());
        lease.renew(ago(50));
        assert!(lease.is_held() && waiting.now_or_never().is_some());
        lease.renew(ago(150));
        assert!(lease.is_held(), "an older answer takes nothing back");
        assert!(Lease::by(CLOCK, None, ago(200)).is_held(), "a store without leases");
    }

    /// The machine was suspended for an hour: its monotonic clock stood still, the lease has run out.
    #[test]
    fn it_runs_out_while_the_machine_is_suspended() {
        static SUSPENDED: AtomicU64 = AtomicU64::new(0);
        let clock = || Duration::from_secs(1_000 + SUSPENDED.load(SeqCst));
        let lease = Lease::by(clock, Some(Duration::from_secs(3)), clock());
        assert!(lease.is_held());
        SUSPENDED.store(3_600, SeqCst);
        assert!(!lease.is_held());
        assert!(time_since_boot() > Duration::ZERO);
    }
}
