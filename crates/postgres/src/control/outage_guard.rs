//! [`OutageGuard`]: keeps a worker from declaring others dead after an outage.

use std::time::Duration;

use tokio::time::Instant;

/// The renewals of a worker, and whether they were continuous enough to declare others dead.
///
/// A worker that returns after an outage finds all leases expired, and cannot determine which other workers will return
/// too. So the other workers get one full lease from that return. The guard measures time by the worker's own clock.
/// The time since the server's start does not show the length of an outage. The network may have failed instead, or the
/// server may have taken longer than a lease to answer.
#[derive(Debug, Default)]
pub(crate) struct OutageGuard {
    /// The time of the last renewal; `None` before the first renewal.
    renewed_at: Option<Instant>,
    /// The time of the first renewal after the last outage; `None` if there was no outage.
    reconnected_at: Option<Instant>,
}

impl OutageGuard {
    /// Records a renewal at `now`. Returns whether the worker may declare others dead.
    pub(crate) fn record_renewal(&mut self, now: Instant, lease: Duration) -> bool {
        if let Some(at) = self.renewed_at {
            let pause = now.duration_since(at);
            let is_waiting =
                self.reconnected_at.is_some_and(|reconnected_at| at.duration_since(reconnected_at) < lease);
            // A worker whose renewals are all late must be able to declare others dead at some time. So while the
            // worker waits, only a pause that is longer than a lease restarts the wait.
            if pause > lease || (pause > lease * 2 / 3 && !is_waiting) {
                self.reconnected_at = Some(now);
            }
        }
        self.renewed_at = Some(now);
        self.reconnected_at.is_none_or(|at| now.duration_since(at) >= lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_waits_one_lease_after_an_outage() {
        let (lease, begun_at) = (Duration::from_secs(3), Instant::now());
        let mut guard = OutageGuard::default();
        let mut at =
            |tenths: u64| guard.record_renewal(begun_at + Duration::from_millis(tenths * 100), lease);
        // a new worker, which renews in time
        assert!([0, 10, 20, 40, 50].into_iter().all(&mut at));
        // an outage
        assert!(![90, 100, 110].into_iter().any(&mut at));
        assert!([120, 130].into_iter().all(&mut at));
        // another outage during the wait restarts it
        assert!(![200, 210, 250, 260, 270].into_iter().any(&mut at));
        assert!(at(280));
        // always late, but never by a lease: the worker may declare others dead now and then
        let late: Vec<bool> = (1..=6).map(|n| at(280 + n * 25)).collect();
        assert_eq!(late, [false, false, true, false, false, true]);
    }
}
