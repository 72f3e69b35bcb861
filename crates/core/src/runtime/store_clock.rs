//! [`StoreClock`]: an engine's estimate of its store's time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::clock::Timestamp;

/// Largest correction backwards, in microseconds, that is made gradually: the estimate runs at half speed
/// until the store's time has caught up. A larger correction applies at once.
const MAX_GRADUAL_STEP_MICROS: i64 = 1_000_000;

/// Divisor of the assumed drift: the store's clock loses at most this fraction of the time between two
/// replies against the process's clock. System clocks are slewed by at most 500 parts in a million
/// (adjtimex(2)).
const DRIFT_DIVISOR: i64 = 1_000;

/// An estimate of the store's time between two of the store's replies. The estimate is behind the store's
/// clock only if that clock was set forward, or has run faster than the process's clock. In all other
/// cases a timer set relative to the estimate is not early. The estimate goes back only by a correction that
/// is too large to be made gradually.
///
/// Each reply bounds the offset, which is the store's time minus the process's time. If a reply shows `now`,
/// the offset is at least `now - received_at` and at most `now - sent_at`. The smallest upper bound is kept
/// until a lower bound exceeds it. A reply whose request was under way when another reply was received does not count.
pub(crate) struct StoreClock {
    epoch: Instant,
    /// Version of the other fields; odd while they are being changed.
    version: AtomicU64,
    /// The store's time minus the time since `epoch`, in microseconds.
    offset: AtomicI64,
    /// Lower bound of the store's time minus the time since `epoch`, at `lower_bound_at`. Both are in
    /// microseconds, and `lower_bound_at` counts from `epoch`.
    lower_bound: AtomicI64,
    lower_bound_at: AtomicI64,
    /// Microseconds by which the estimate was ahead of `offset` at `slowed_at`; 0 if the estimate is not
    /// slowed. `slowed_at` is in microseconds since `epoch`.
    ahead: AtomicI64,
    slowed_at: AtomicI64,
    /// The time at which the last reply was received, in microseconds since `epoch`. Locked during changes.
    received_at: Mutex<i64>,
}

impl StoreClock {
    /// Creates the estimate from a first reply.
    pub(crate) fn new(sent_at: Instant, now: Timestamp) -> Self {
        Self {
            epoch: sent_at,
            version: AtomicU64::new(0),
            offset: AtomicI64::new(now.as_micros()),
            // the store has read its clock at an unknown moment since the request
            lower_bound: AtomicI64::new(now.as_micros() - micros(sent_at.elapsed())),
            lower_bound_at: AtomicI64::new(micros(sent_at.elapsed())),
            ahead: AtomicI64::new(0),
            slowed_at: AtomicI64::new(0),
            received_at: Mutex::new(i64::MIN),
        }
    }

    fn since_epoch(&self, at: Instant) -> i64 {
        at.duration_since(self.epoch).as_micros() as i64
    }

    /// Returns the estimate of the store's time.
    pub(crate) fn now(&self) -> Timestamp {
        let since = self.since_epoch(Instant::now());
        loop {
            let version = self.version.load(SeqCst);
            let estimate = self.estimate(since);
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return Timestamp::from_micros(estimate);
            }
            std::hint::spin_loop();
        }
    }

    /// Returns a lower bound of the store's time: a wait that ends at this time is not early. The bound is
    /// ahead of the store's clock only if that clock was set back since the last reply.
    pub(crate) fn earliest_now(&self) -> Timestamp {
        let since = self.since_epoch(Instant::now());
        loop {
            let version = self.version.load(SeqCst);
            let lower_bound = self.lower_bound_offset(since) + since;
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return Timestamp::from_micros(lower_bound);
            }
            std::hint::spin_loop();
        }
    }

    /// Returns the lower bound of the offset, `since` microseconds after `epoch`. The bound falls with time,
    /// because the store's clock may be slower than the process's clock.
    fn lower_bound_offset(&self, since: i64) -> i64 {
        self.lower_bound.load(SeqCst) - (since - self.lower_bound_at.load(SeqCst)) / DRIFT_DIVISOR
    }

    /// Returns the estimate `since` microseconds after `epoch`.
    fn estimate(&self, since: i64) -> i64 {
        let estimate = self.offset.load(SeqCst) + since;
        match self.ahead.load(SeqCst) {
            0 => estimate,
            ahead => estimate + (ahead - (since - self.slowed_at.load(SeqCst)) / 2).max(0),
        }
    }

    /// Corrects the estimate with a reply that was received just now. The reply shows the store's time `now`,
    /// and its request was sent at `sent_at`.
    pub(crate) fn correct(&self, sent_at: Instant, now: Timestamp) {
        self.apply_reply(sent_at, Instant::now(), now);
    }

    fn apply_reply(&self, sent_at: Instant, received_at: Instant, now: Timestamp) {
        let mut last_received_at = self.received_at.lock().unwrap_or_else(PoisonError::into_inner);
        if self.since_epoch(sent_at) < *last_received_at {
            // the store's clock may have been set between the two replies, and their order is unknown
            return;
        }
        let since = self.since_epoch(received_at);
        *last_received_at = since;
        let new_lower_bound = now.as_micros() - since;
        let upper_bound = now.as_micros() - self.since_epoch(sent_at);
        let lower_bound = self.lower_bound_offset(since);
        // a lower bound above the upper bound is from before the store's clock was set
        let lower_bound =
            if lower_bound > upper_bound { new_lower_bound } else { lower_bound.max(new_lower_bound) };
        self.version.fetch_add(1, SeqCst);
        self.lower_bound.store(lower_bound, SeqCst);
        self.lower_bound_at.store(since, SeqCst);
        self.version.fetch_add(1, SeqCst);
        let offset = self.offset.load(SeqCst);
        if upper_bound < offset || new_lower_bound > offset {
            let ahead = self.estimate(since) - since - upper_bound;
            self.version.fetch_add(1, SeqCst);
            self.offset.store(upper_bound, SeqCst);
            self.ahead.store(if (1..=MAX_GRADUAL_STEP_MICROS).contains(&ahead) { ahead } else { 0 }, SeqCst);
            self.slowed_at.store(since, SeqCst);
            self.version.fetch_add(1, SeqCst);
        }
    }
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn best_reply_counts_until_it_is_contradicted() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |millis: i64| Timestamp::from_micros(millis * 1_000);
        // the store is 1,000 ms ahead of this process; its first reply takes 50 ms and shows the time in the
        // middle
        let clock = StoreClock::new(epoch, shows(1_025));
        let offset = || clock.offset.load(SeqCst) / 1_000;
        assert_eq!(offset(), 1_025);
        clock.apply_reply(at(100), at(104), shows(1_102));
        assert_eq!(offset(), 1_002, "a faster reply");
        clock.apply_reply(at(200), at(900), shows(1_550));
        assert_eq!(offset(), 1_002, "a slower reply");
        clock.apply_reply(at(1_000), at(1_002), shows(62_001));
        assert_eq!(offset(), 61_001, "the store's clock was set forward");
        clock.apply_reply(at(2_000), at(2_002), shows(2_501));
        assert_eq!(offset(), 501, "and back");
    }

    #[test]
    fn reply_from_before_a_change_of_the_clock_does_not_undo_it() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let clock = StoreClock::new(epoch, shows(0));
        // the store's clock was set between the two replies
        clock.apply_reply(at(1_000), at(1_010), shows(61_000));
        clock.apply_reply(at(1_005), at(1_020), shows(1_008));
        assert_eq!(clock.estimate(1_020_000), 61_020_000);
        clock.apply_reply(at(1_020), at(1_020), shows(1_020));
        assert_eq!(clock.estimate(1_020_000), 1_020_000);
    }

    #[test]
    fn lower_bound_is_never_ahead_of_the_store() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |micros: i64| Timestamp::from_micros(micros);
        let clock = StoreClock::new(epoch, shows(0));
        let lower_bound = |millis: i64| clock.lower_bound_offset(millis * 1_000) + millis * 1_000;
        // the store's clock begins with the process's clock, and is slewed: it loses 500 µs each second
        let store = |millis: i64| millis * 1_000 - millis / 2;
        for second in 1..100 {
            let sent = second * 1_000;
            // some replies take long
            let received = sent + if second % 7 == 0 { 900 } else { 1 };
            assert!(lower_bound(sent) <= store(sent), "{second}: before the reply");
            clock.apply_reply(at(sent as u64), at(received as u64), shows(store(sent)));
            assert!(lower_bound(received) <= store(received), "{second}: after the reply");
            assert!(lower_bound(received) >= store(received) - 3_000, "{second}: the bound is close");
        }
        clock.apply_reply(at(100_000), at(100_001), shows(7_000_000));
        assert_eq!(lower_bound(100_001), 7_000_000, "the store's clock was set back");
        clock.apply_reply(at(101_000), at(101_001), shows(900_000_000));
        assert_eq!(lower_bound(101_001), 900_000_000, "and forward");
    }

    #[test]
    fn estimate_never_goes_back_on_a_better_reply() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let clock = StoreClock::new(epoch, shows(1_040));
        let estimate = |millis: i64| clock.estimate(millis * 1_000);
        assert_eq!(estimate(100), 1_140_000);
        clock.apply_reply(at(100), at(100), shows(1_100));
        assert_eq!(
            [estimate(100), estimate(101), estimate(150), estimate(180)],
            [1_140_000, 1_140_500, 1_165_000, 1_180_000]
        );
        assert_eq!([estimate(181), estimate(300)], [1_181_000, 1_300_000], "the store has caught up");
        clock.apply_reply(at(300), at(300), shows(1_290));
        clock.apply_reply(at(310), at(310), shows(1_295));
        assert_eq!(
            [estimate(310), estimate(311)],
            [1_305_000, 1_305_500],
            "another correction while it is slowed"
        );
        clock.apply_reply(at(400), at(400), shows(60_000));
        assert_eq!(estimate(400), 60_000_000, "set forward");
        clock.apply_reply(at(500), at(500), shows(1_500));
        assert_eq!(estimate(500), 1_500_000, "and back");
    }
}
