//! [`StoreTime`]: an engine's estimate of its store's time.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use tokio::time::Instant;

use crate::clock::Timestamp;

/// What time it is at the store, between two answers of it. Never behind the store's clock unless that was
/// set forward since the last answer: what is due an hour from an estimate is not due before that.
///
/// An answer that shows `now` and took from `asked_at` to `heard_at` says that the store's time minus ours
/// is at least `now - heard_at` and at most `now - asked_at`. The smallest upper bound is kept until some
/// lower bound is above it.
pub(crate) struct StoreTime {
    epoch: Instant,
    /// The store's time minus the time since `epoch`, in microseconds.
    offset: AtomicI64,
}

impl StoreTime {
    /// The estimate after a first answer.
    pub(crate) fn new(asked_at: Instant, now: Timestamp) -> Self {
        Self { epoch: asked_at, offset: AtomicI64::new(now.as_micros()) }
    }

    fn since_epoch(&self, at: Instant) -> i64 {
        at.duration_since(self.epoch).as_micros() as i64
    }

    /// The store's time now.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.offset.load(SeqCst) + self.since_epoch(Instant::now()))
    }

    /// Takes in that the store, asked at `asked_at`, has just answered that it is `now` there.
    pub(crate) fn correct(&self, asked_at: Instant, now: Timestamp) {
        self.heard(asked_at, Instant::now(), now);
    }

    fn heard(&self, asked_at: Instant, heard_at: Instant, now: Timestamp) {
        let at_least = now.as_micros() - self.since_epoch(heard_at);
        let at_most = now.as_micros() - self.since_epoch(asked_at);
        let offset = self.offset.load(SeqCst);
        if at_most < offset || at_least > offset {
            self.offset.store(at_most, SeqCst);
        }
    }
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
}
