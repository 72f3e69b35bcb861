//! [`Lease`]: until when a worker may begin bodies, by its own monotonic clock.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// No lease: it never runs out.
const FOREVER: u64 = u64::MAX;

/// What this worker knows of its lease, without asking anybody. Never longer than what the store grants: the
/// store counts from when it answers, this from when it was asked.
pub(crate) struct Lease {
    length: Option<Duration>,
    epoch: Instant,
    /// In microseconds since `epoch`.
    until: AtomicU64,
    renewed: Notify,
}

impl Lease {
    /// A lease of this length, if the store has any, granted by an answer to what was asked at `asked_at`.
    pub(crate) fn new(length: Option<Duration>, asked_at: Instant) -> Self {
        let until = length.map_or(FOREVER, micros);
        Self { length, epoch: asked_at, until: AtomicU64::new(until), renewed: Notify::new() }
    }

    /// The store has renewed it, asked at `asked_at`.
    pub(crate) fn renew(&self, asked_at: Instant) {
        let Some(length) = self.length else { return };
        let until = micros(asked_at.duration_since(self.epoch) + length);
        self.until.fetch_max(until, SeqCst);
        self.renewed.notify_waiters();
    }

    /// True while nobody else can have taken over.
    pub(crate) fn is_held(&self) -> bool {
        let until = self.until.load(SeqCst);
        until == FOREVER || micros(self.epoch.elapsed()) < until
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

    #[test]
    fn it_counts_from_when_it_was_asked_for() {
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let lease = Lease::new(Some(Duration::from_secs(100)), ago(200));
        assert!(!lease.is_held() && lease.held().now_or_never().is_none());
        lease.renew(ago(150));
        assert!(!lease.is_held(), "an answer that comes late renews nothing");
        let mut waiting = Box::pin(lease.held());
        assert!(waiting.as_mut().now_or_never().is_none());
        lease.renew(ago(50));
        assert!(lease.is_held() && waiting.now_or_never().is_some());
        lease.renew(ago(150));
        assert!(lease.is_held(), "an older answer takes nothing back");
        assert!(Lease::new(None, ago(200)).is_held(), "a store without leases");
    }
}
