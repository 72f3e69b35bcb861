//! [`LeaseObserver`]: detects dead workers by their leases.

use std::collections::HashMap;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::store::WorkerId;
use tokio::time::Instant;

use crate::changes::WOKEN_WORKERS;
use crate::control::outage_guard::OutageGuard;

/// The number of observations, one per renewal, from one sweep to the next. A sweep searches for ended children whose parent
/// was not woken, and for slots whose execution does not run.
const OBSERVATIONS_PER_SWEEP: u64 = 60;

/// The end of a lease after the fence of a dead worker; see `RaiseWorkerEpoch`.
const FENCED_LEASE: Timestamp = Timestamp::from_micros(0);

/// A worker's observations of the leases of other workers, from renewal to renewal.
#[derive(Debug, Default)]
pub(super) struct LeaseObserver {
    /// The number of maintenances until the next count of workers.
    until_count: u32,
    /// The number of observations.
    observations: u64,
    /// Whether the worker observes other workers, as of its last renewal.
    is_observing: bool,
    /// Whether the worker's renewals were continuous enough to declare others dead.
    may_declare_dead: bool,
    /// Leases of other workers.
    leases: HashMap<WorkerId, ObservedLease>,
    outage_guard: OutageGuard,
    /// The findings of the last observation.
    pub(super) targets: TakeoverTargets,
}

/// Another worker's lease, as an observer has seen it.
#[derive(Clone, Copy, Debug)]
struct ObservedLease {
    expires_at: Timestamp,
    /// The time at which the observer first saw this lease, by the observer's clock.
    observed_at: Instant,
    /// The number of further renewals at which the lease was unchanged.
    unchanged_renewals: u32,
    is_client: bool,
}

/// Another worker and its lease, as a heartbeat returns them.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLease {
    pub(super) worker: WorkerId,
    pub(super) expires_at: Timestamp,
    /// The length of the worker's leases. `None` if the worker's registration does not contain it.
    pub(super) length: Option<Duration>,
    /// Whether the lease has expired by the server's clock.
    pub(super) is_expired: bool,
    /// Whether the worker is a client. The leases of clients are read only at a sweep.
    pub(super) is_client: bool,
}

/// The dead workers to take over, and whether a sweep is due.
#[derive(Debug, Default)]
pub(super) struct TakeoverTargets {
    /// Workers whose lease has expired, each with the end of its lease.
    pub(super) expired: Vec<(WorkerId, Option<Timestamp>)>,
    /// Whether a sweep may be due: see [`OBSERVATIONS_PER_SWEEP`].
    pub(super) is_sweep_due: bool,
}

impl TakeoverTargets {
    pub(super) fn has_any(&self) -> bool {
        !self.expired.is_empty() || self.is_sweep_due
    }
}

impl LeaseObserver {
    /// Notes a renewal of the worker's own lease, and whether the worker observes other workers from then on.
    pub(super) fn record_renewal(&mut self, is_observing: bool, now: Instant, lease: Duration) {
        self.is_observing = is_observing;
        self.may_declare_dead = self.outage_guard.record_renewal(now, lease);
        if !is_observing {
            self.leases.clear();
        }
    }

    /// Notes a maintenance. Returns whether to count the registered workers.
    pub(super) fn is_count_due(&mut self) -> bool {
        self.until_count = self.until_count.saturating_sub(1);
        self.until_count == 0
    }

    /// Notes a count of registered workers. More than [`WOKEN_WORKERS`] draw lots, so a fleet that may have shrunk is counted
    /// soon. Each of a thousand workers reads a thousand rows, so large fleets are counted once a minute.
    pub(super) fn record_count(&mut self, workers: u32) {
        self.until_count = if workers <= WOKEN_WORKERS { 60 } else { (workers / 16).clamp(10, 60) };
    }

    /// Begins an observation, and returns whether a sweep is due after it. Returns `None` if the worker does not observe
    /// others.
    pub(super) fn begin_observation(&mut self) -> Option<bool> {
        self.is_observing.then(|| {
            self.observations += 1;
            self.observations.is_multiple_of(OBSERVATIONS_PER_SWEEP)
        })
    }

    /// Notes which workers are dead. Returns the earliest future end of a lease that its worker has not renewed since
    /// the observer's last renewal.
    ///
    /// A worker whose fence has ended its lease is dead. Any other worker is dead if this worker may declare others dead, its
    /// lease has expired, and that lease stayed the same while the observer has renewed its own lease twice. The server's clock
    /// may have been set back since a lease was written. Therefore a lease also counts as expired when it has stayed the
    /// same for twice its length by the observer's clock. The last parameter is the present time, by the server's clock
    /// and by the observer's.
    pub(super) fn observe(
        &mut self,
        peers: &[PeerLease],
        (now, at): (Timestamp, Instant),
    ) -> Option<Timestamp> {
        let mut leases = HashMap::with_capacity(peers.len());
        let mut expired = Vec::new();
        let mut next = None;
        for &PeerLease { worker, expires_at, length, is_expired, is_client } in peers {
            if expires_at == FENCED_LEASE {
                // a takeover was interrupted after it had fenced the worker
                expired.push((worker, Some(expires_at)));
                continue;
            }
            let observed = match self.leases.get(&worker) {
                Some(observed) if observed.expires_at == expires_at => {
                    ObservedLease { unchanged_renewals: observed.unchanged_renewals + 1, ..*observed }
                }
                _ => ObservedLease { expires_at, observed_at: at, unchanged_renewals: 0, is_client },
            };
            let is_expired = is_expired
                || length.is_some_and(|length| at.duration_since(observed.observed_at) > length * 2);
            if is_expired && observed.unchanged_renewals >= 2 && self.may_declare_dead {
                expired.push((worker, Some(expires_at)));
            }
            if observed.unchanged_renewals > 0 && expires_at > now {
                next = Some(next.map_or(expires_at, |next: Timestamp| next.min(expires_at)));
            }
            leases.insert(worker, observed);
        }
        let is_sweep_due = self.observations.is_multiple_of(OBSERVATIONS_PER_SWEEP);
        if !is_sweep_due {
            leases.extend(self.leases.drain().filter(|(_, observed)| observed.is_client));
        }
        self.leases = leases;
        self.targets = TakeoverTargets { expired, is_sweep_due };
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: i64, expires_at: i64, is_expired: bool) -> PeerLease {
        let (expires_at, length) = (Timestamp::from_micros(expires_at), Some(Duration::from_secs(3)));
        PeerLease { worker: WorkerId(id), expires_at, length, is_expired, is_client: false }
    }

    #[test]
    fn clients_are_observed_from_sweep_to_sweep() {
        let (mut observer, begun_at) = (LeaseObserver::default(), Instant::now());
        observer.may_declare_dead = true;
        let mut dead_after = None;
        for second in 1..=4 * OBSERVATIONS_PER_SWEEP {
            observer.observations = second;
            let client = PeerLease { is_client: true, ..peer(1, 1, true) };
            let peers = if second.is_multiple_of(OBSERVATIONS_PER_SWEEP) { vec![client] } else { vec![] };
            let now = (Timestamp::from_micros(2), begun_at + Duration::from_secs(second));
            observer.observe(&peers, now);
            if !observer.targets.expired.is_empty() {
                dead_after = dead_after.or(Some(second));
            }
        }
        assert_eq!(dead_after, Some(3 * OBSERVATIONS_PER_SWEEP));
    }

    #[test]
    fn large_fleets_are_counted_more_often() {
        let mut observer = LeaseObserver::default();
        assert!(observer.is_count_due(), "the first maintenance");
        assert!(observer.is_count_due(), "the count failed");
        for (workers, expected) in [(1, 60), (10, 60), (11, 10), (200, 12), (1_000, 60), (5_000, 60)] {
            observer.record_count(workers);
            let maintenances = (1..100).find(|_| observer.is_count_due());
            assert_eq!(maintenances, Some(expected), "{workers} workers");
        }
    }

    #[test]
    fn lease_expires_by_the_observers_clock_too() {
        let (mut observer, begun_at) = (LeaseObserver::default(), Instant::now());
        // the server's clock was set back, so by this clock the lease ends in an hour
        let mut is_dead = |second: u64, lease: i64, may_declare_dead: bool| {
            let now = (Timestamp::from_micros(0), begun_at + Duration::from_secs(second));
            (observer.observations, observer.may_declare_dead) = (1, may_declare_dead);
            observer.observe(&[peer(1, 3_600_000_000 + lease, false)], now);
            observer.targets.has_any()
        };
        assert!(!(0..=6).any(|second| is_dead(second, 0, true)));
        assert!(is_dead(7, 0, true));
        // the lease was renewed, then observed late
        assert!(!is_dead(8, 1, true) && !is_dead(20, 1, true) && is_dead(21, 1, true));
        assert!(
            !is_dead(22, 2, true) && !is_dead(40, 2, false) && !is_dead(41, 2, false) && is_dead(42, 2, true)
        );
    }
}
