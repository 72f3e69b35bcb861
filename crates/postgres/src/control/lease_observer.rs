//! [`LeaseObserver`]: detects dead workers by their leases.

use std::collections::HashMap;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::store::WorkerId;
use tokio::time::Instant;

use crate::control::outage_guard::OutageGuard;

/// The number of renewals from one sweep to the next. A sweep searches for ended children whose parent was not woken,
/// and for slots whose execution does not run.
const RENEWALS_PER_SWEEP: u64 = 60;

/// The number of renewals that search for the leftovers of interrupted takeovers, after the worker has registered or
/// another worker has left. Later, only one in this number of renewals searches, because searches take longer and
/// longer while a transaction holds a snapshot.
const RENEWALS_PER_SEARCH: u64 = 10;

/// A worker's observations of the leases of other workers, from renewal to renewal.
#[derive(Debug, Default)]
pub(super) struct LeaseObserver {
    renewals: u64,
    /// The number of renewals since the last renewal at which a known worker was missing or a leftover was found.
    quiet_renewals: u64,
    /// Leases of other workers.
    leases: HashMap<WorkerId, ObservedLease>,
    pub(super) outage_guard: OutageGuard,
    /// The findings of the last renewal.
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
}

/// The dead workers and leftovers to take over.
#[derive(Debug, Default)]
pub(super) struct TakeoverTargets {
    /// Workers whose lease has expired, each with the end of its lease.
    pub(super) expired: Vec<(WorkerId, Option<Timestamp>)>,
    /// Owners that run executions but have no registration.
    pub(super) owners: Vec<i64>,
    /// Whether a sweep is due: see [`RENEWALS_PER_SWEEP`].
    pub(super) is_sweep_due: bool,
}

impl TakeoverTargets {
    pub(super) fn has_any(&self) -> bool {
        !self.expired.is_empty() || !self.owners.is_empty() || self.is_sweep_due
    }
}

impl LeaseObserver {
    pub(super) fn is_search_due(&self) -> bool {
        self.quiet_renewals < RENEWALS_PER_SEARCH || self.renewals.is_multiple_of(RENEWALS_PER_SEARCH)
    }

    /// Notes which workers are dead. Returns the earliest future end of a lease that its worker has not renewed since
    /// the observer's last renewal.
    ///
    /// A worker is dead if `may_declare_dead` is true, its lease has expired, and that lease stayed the same while the
    /// observer has renewed its own lease twice. The server's clock may have been set back since a lease was written.
    /// Therefore a lease also counts as expired when it has stayed the same for twice its length by the observer's
    /// clock. The last parameter is the present time, by the server's clock and by the observer's.
    pub(super) fn observe(
        &mut self,
        peers: &[PeerLease],
        unregistered_owners: Vec<i64>,
        may_declare_dead: bool,
        (now, at): (Timestamp, Instant),
    ) -> Option<Timestamp> {
        self.renewals += 1;
        let mut leases = HashMap::with_capacity(peers.len());
        let mut expired = Vec::new();
        let mut next = None;
        for &PeerLease { worker, expires_at, length, is_expired } in peers {
            let observed = match self.leases.get(&worker) {
                Some(observed) if observed.expires_at == expires_at => {
                    ObservedLease { unchanged_renewals: observed.unchanged_renewals + 1, ..*observed }
                }
                _ => ObservedLease { expires_at, observed_at: at, unchanged_renewals: 0 },
            };
            let is_expired = is_expired
                || length.is_some_and(|length| at.duration_since(observed.observed_at) > length * 2);
            if is_expired && observed.unchanged_renewals >= 2 && may_declare_dead {
                expired.push((worker, Some(expires_at)));
            }
            if observed.unchanged_renewals > 0 && expires_at > now {
                next = Some(next.map_or(expires_at, |next: Timestamp| next.min(expires_at)));
            }
            leases.insert(worker, observed);
        }
        let is_quiet =
            unregistered_owners.is_empty() && self.leases.keys().all(|worker| leases.contains_key(worker));
        self.quiet_renewals = if is_quiet { self.quiet_renewals + 1 } else { 0 };
        self.leases = leases;
        self.targets = TakeoverTargets {
            expired,
            owners: unregistered_owners,
            is_sweep_due: self.renewals.is_multiple_of(RENEWALS_PER_SWEEP),
        };
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: i64, expires_at: i64, is_expired: bool) -> PeerLease {
        let (expires_at, length) = (Timestamp::from_micros(expires_at), Some(Duration::from_secs(3)));
        PeerLease { worker: WorkerId(id), expires_at, length, is_expired }
    }

    #[test]
    fn lease_expires_by_the_observers_clock_too() {
        let (mut observer, begun_at) = (LeaseObserver::default(), Instant::now());
        // the server's clock was set back, so by this clock the lease ends in an hour
        let mut is_dead = |second: u64, lease: i64, may_declare_dead: bool| {
            let now = (Timestamp::from_micros(0), begun_at + Duration::from_secs(second));
            observer.observe(&[peer(1, 3_600_000_000 + lease, false)], Vec::new(), may_declare_dead, now);
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

    #[test]
    fn search_follows_a_departure_and_recurs_periodically() {
        let (mut observer, begun_at) = (LeaseObserver::default(), Instant::now());
        let mut searches = |renewals: u64, peers: &[i64], owners: &[i64]| {
            let peers: Vec<_> = peers.iter().map(|id| peer(*id, 0, false)).collect();
            let mut searches = 0;
            for _ in 0..renewals {
                searches += u64::from(observer.is_search_due());
                observer.observe(&peers, owners.to_vec(), true, (Timestamp::from_micros(0), begun_at));
            }
            searches
        };
        assert_eq!(searches(10, &[1, 2], &[]), 10, "while the worker is new");
        assert_eq!(searches(50, &[1, 2], &[]), 5, "while nothing changes");
        assert_eq!(searches(20, &[1, 2, 3], &[]), 2, "after a worker registers");
        assert!(searches(11, &[1, 3], &[]) >= 10, "after a worker leaves");
        searches(20, &[1, 3], &[]);
        searches(1, &[1, 3], &[2]);
        assert_eq!(searches(10, &[1, 3], &[]), 10, "after a leftover was found");
    }
}
