//! [`Continuity`]: whether a looker has been able to renew for long enough to judge others.

use std::time::Duration;

use tokio::time::Instant;

/// Somebody who comes back after an outage finds all leases over, and cannot know who comes after it: others get
/// a whole lease from then on. Counted by the looker's own clock, since the server was perhaps not to be asked: it
/// may have been there, behind a network that was not, or have taken longer than a lease from its start until it
/// answered.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    renewed_at: Option<Instant>,
    back_at: Option<Instant>,
}

impl Continuity {
    /// The looker has renewed, at `now`. True if what it sees of others is due to them alone.
    pub(crate) fn renew(&mut self, now: Instant, lease: Duration) -> bool {
        if let Some(at) = self.renewed_at {
            let away = now.duration_since(at);
            let is_waiting = self.back_at.is_some_and(|back_at| at.duration_since(back_at) < lease);
            // who looks late every time must still come to a judgement: while it waits, only what has cost it its
            // own lease begins that anew
            if away > lease || (away > lease * 2 / 3 && !is_waiting) {
                self.back_at = Some(now);
            }
        }
        self.renewed_at = Some(now);
        self.back_at.is_none_or(|at| now.duration_since(at) >= lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_away_waits_for_a_lease() {
        let (lease, begun) = (Duration::from_secs(3), Instant::now());
        let mut continuity = Continuity::default();
        let mut at = |tenths: u64| continuity.renew(begun + Duration::from_millis(tenths * 100), lease);
        // a new looker, and one that renews as it should
        assert!([0, 10, 20, 40, 50].into_iter().all(&mut at));
        // an outage
        assert!(![90, 100, 110].into_iter().any(&mut at));
        assert!([120, 130].into_iter().all(&mut at));
        // away again while it waits: from then on
        assert!(![200, 210, 250, 260, 270].into_iter().any(&mut at));
        assert!(at(280));
        // always late, but never as late as a lease: it judges now and then
        let late: Vec<bool> = (1..=6).map(|n| at(280 + n * 25)).collect();
        assert_eq!(late, [false, false, true, false, false, true]);
    }
}
