//! [`StoreTime`]: an engine's estimate of its store's time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::clock::Timestamp;

/// What was told too early by no more than this, in microseconds, is not taken back: time goes at half its speed
/// until the estimate has caught up. A clock that was set back further is followed at once.
const SLOWED: i64 = 1_000_000;

/// The store's clock loses at most one part in so many against ours between two answers: system clocks are slewed by
/// at most 500 parts in a million (adjtimex(2)).
const SLOWEST: i64 = 1_000;

/// What time it is at the store, between two answers of it. Never behind the store's clock unless that was
/// set forward since the last answer: what is due an hour from an estimate is not due before that. It does not go
/// back, unless the store's clock was set back.
///
/// An answer that shows `now` and took from `asked_at` to `heard_at` says that the store's time minus ours
/// is at least `now - heard_at` and at most `now - asked_at`. The smallest upper bound is kept until some
/// lower bound is above it.
pub(crate) struct StoreTime {
    epoch: Instant,
    /// Odd while the estimate changes.
    version: AtomicU64,
    /// The store's time minus the time since `epoch`, in microseconds.
    offset: AtomicI64,
    /// The store's time minus the time since `epoch` was at least this at `certain_at`, in microseconds since `epoch`.
    certain: AtomicI64,
    certain_at: AtomicI64,
    /// At `slowed_at`, in microseconds since `epoch`, what was told was so much ahead of that.
    ahead: AtomicI64,
    slowed_at: AtomicI64,
    changes: Mutex<()>,
}

impl StoreTime {
    /// The estimate after a first answer.
    pub(crate) fn new(asked_at: Instant, now: Timestamp) -> Self {
        Self {
            epoch: asked_at,
            version: AtomicU64::new(0),
            offset: AtomicI64::new(now.as_micros()),
            // the first answer took an unknown part of the time until now
            certain: AtomicI64::new(now.as_micros() - micros(asked_at.elapsed())),
            certain_at: AtomicI64::new(micros(asked_at.elapsed())),
            ahead: AtomicI64::new(0),
            slowed_at: AtomicI64::new(0),
            changes: Mutex::default(),
        }
    }

    fn since_epoch(&self, at: Instant) -> i64 {
        at.duration_since(self.epoch).as_micros() as i64
    }

    /// The store's time now.
    pub(crate) fn now(&self) -> Timestamp {
        let since = self.since_epoch(Instant::now());
        loop {
            let version = self.version.load(SeqCst);
            let told = self.told(since);
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return Timestamp::from_micros(told);
            }
            std::hint::spin_loop();
        }
    }

    /// The time that it is at the store at least: what ends at this time does not end early by the store's clock,
    /// unless that was set back since the last answer.
    pub(crate) fn certainly(&self) -> Timestamp {
        let since = self.since_epoch(Instant::now());
        loop {
            let version = self.version.load(SeqCst);
            let certain = self.certain_offset(since) + since;
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return Timestamp::from_micros(certain);
            }
            std::hint::spin_loop();
        }
    }

    /// The lower bound so many microseconds after `epoch`: the store's clock may go slower than ours.
    fn certain_offset(&self, since: i64) -> i64 {
        self.certain.load(SeqCst) - (since - self.certain_at.load(SeqCst)) / SLOWEST
    }

    /// What is told so many microseconds after `epoch`.
    fn told(&self, since: i64) -> i64 {
        let told = self.offset.load(SeqCst) + since;
        match self.ahead.load(SeqCst) {
            0 => told,
            ahead => told + (ahead - (since - self.slowed_at.load(SeqCst)) / 2).max(0),
        }
    }

    /// Takes in that the store, asked at `asked_at`, has just answered that it is `now` there.
    pub(crate) fn correct(&self, asked_at: Instant, now: Timestamp) {
        self.heard(asked_at, Instant::now(), now);
    }

    fn heard(&self, asked_at: Instant, heard_at: Instant, now: Timestamp) {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let since = self.since_epoch(heard_at);
        let at_least = now.as_micros() - since;
        let at_most = now.as_micros() - self.since_epoch(asked_at);
        let certain = self.certain_offset(since);
        // a bound that is above the other one is of before the store's clock was set
        let certain = if certain > at_most { at_least } else { certain.max(at_least) };
        self.version.fetch_add(1, SeqCst);
        self.certain.store(certain, SeqCst);
        self.certain_at.store(since, SeqCst);
        self.version.fetch_add(1, SeqCst);
        let offset = self.offset.load(SeqCst);
        if at_most < offset || at_least > offset {
            let ahead = self.told(since) - since - at_most;
            self.version.fetch_add(1, SeqCst);
            self.offset.store(at_most, SeqCst);
            self.ahead.store(if (1..=SLOWED).contains(&ahead) { ahead } else { 0 }, SeqCst);
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
    fn the_best_answer_counts_until_it_is_contradicted() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |millis: i64| Timestamp::from_micros(millis * 1_000);
        // the store is 1,000 ms ahead of us; its first answer takes 50 ms and shows the time in their middle
        let time = StoreTime::new(epoch, shows(1_025));
        let offset = || time.offset.load(SeqCst) / 1_000;
        assert_eq!(offset(), 1_025);
        time.heard(at(100), at(104), shows(1_102));
        assert_eq!(offset(), 1_002, "a quicker answer");
        time.heard(at(200), at(900), shows(1_550));
        assert_eq!(offset(), 1_002, "a slower one");
        time.heard(at(1_000), at(1_002), shows(62_001));
        assert_eq!(offset(), 61_001, "the store's clock was set forward");
        time.heard(at(2_000), at(2_002), shows(2_501));
        assert_eq!(offset(), 501, "and back");
    }

    #[test]
    fn the_certain_time_is_never_ahead_of_the_store() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |micros: i64| Timestamp::from_micros(micros);
        let time = StoreTime::new(epoch, shows(0));
        let certain = |millis: i64| time.certain_offset(millis * 1_000) + millis * 1_000;
        // the store's clock begins with ours, and is slewed: it loses 500 us each second
        let store = |millis: i64| millis * 1_000 - millis / 2;
        for second in 1..100 {
            let asked = second * 1_000;
            // now and then an answer takes long
            let heard = asked + if second % 7 == 0 { 900 } else { 1 };
            assert!(certain(asked) <= store(asked), "{second}: before the answer");
            time.heard(at(asked as u64), at(heard as u64), shows(store(asked)));
            assert!(certain(heard) <= store(heard), "{second}: after it");
            assert!(certain(heard) >= store(heard) - 3_000, "{second}: it is a useful bound");
        }
        time.heard(at(100_000), at(100_001), shows(7_000_000));
        assert_eq!(certain(100_001), 7_000_000, "the store's clock was set back");
        time.heard(at(101_000), at(101_001), shows(900_000_000));
        assert_eq!(certain(101_001), 900_000_000, "and forward");
    }

    #[test]
    fn a_better_answer_takes_nothing_back() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let shows = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let time = StoreTime::new(epoch, shows(1_040));
        let told = |millis: i64| time.told(millis * 1_000);
        assert_eq!(told(100), 1_140_000);
        time.heard(at(100), at(100), shows(1_100));
        assert_eq!(
            [told(100), told(101), told(150), told(180)],
            [1_140_000, 1_140_500, 1_165_000, 1_180_000]
        );
        assert_eq!([told(181), told(300)], [1_181_000, 1_300_000], "it has caught up");
        time.heard(at(300), at(300), shows(1_290));
        time.heard(at(310), at(310), shows(1_295));
        assert_eq!([told(310), told(311)], [1_305_000, 1_305_500], "another while it is slowed");
        time.heard(at(400), at(400), shows(60_000));
        assert_eq!(told(400), 60_000_000, "set forward");
        time.heard(at(500), at(500), shows(1_500));
        assert_eq!(told(500), 1_500_000, "and back");
    }
}
