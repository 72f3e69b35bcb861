//! [`WriterProbe`]: the time that the single writer of a SQLite database spends on each activity.

use std::sync::Arc;

use stepfast::Store;
use stepfast::store::counters::{Counters, WriterTime};

use super::{Share, to_shares};

/// A measurement of the writer's time, from the start of a run.
pub struct WriterProbe {
    counters: CounterSource,
    before: WriterTime,
}

enum CounterSource {
    Store(Arc<dyn Store>),
    Own(Arc<Counters>),
}

impl WriterProbe {
    /// Reads the time of a store's writer.
    pub fn from_store(store: Arc<dyn Store>) -> Self {
        let before = store.counters().writer_time();
        Self { counters: CounterSource::Store(store), before }
    }

    /// Reads the time of connections that write in turn and share these counters.
    pub fn from_counters(counters: Arc<Counters>) -> Self {
        Self { before: counters.writer_time(), counters: CounterSource::Own(counters) }
    }

    /// Returns the writer's shares of the `seconds` since then.
    pub fn shares(&self, seconds: f64) -> Vec<Share> {
        let now = match &self.counters {
            CounterSource::Store(store) => store.counters().writer_time(),
            CounterSource::Own(counters) => counters.writer_time(),
        };
        let spent = now.since(&self.before);
        let [commit, statements, turn] =
            [spent.commit, spent.statements, spent.turn_wait].map(|it| it.as_secs_f64());
        divide(commit, statements, turn, seconds)
    }
}

/// Divides the time into shares. Several connections may wait at once, also during another one's write, so their wait time
/// counts only up to the time that is left.
fn divide(commit: f64, statements: f64, turn: f64, seconds: f64) -> Vec<Share> {
    let remaining = (seconds - commit - statements).max(0.0);
    let turn = turn.min(remaining);
    to_shares([
        ("log flush", commit),
        ("statements", statements),
        ("other writers", turn),
        ("client", remaining - turn),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_belongs_to_the_clients() {
        let percents =
            |shares: Vec<Share>| shares.iter().map(|it| it.percent.to_string()).collect::<Vec<_>>();
        assert_eq!(percents(divide(1.0, 2.0, 0.5, 10.0)), ["10", "20", "5", "65"]);
        // 64 connections that wait for one another
        assert_eq!(percents(divide(1.0, 2.0, 600.0, 10.0)), ["10", "20", "70", "0"]);
        // clocks that were read one after the other
        assert_eq!(percents(divide(6.0, 6.0, 0.0, 11.9)), ["50", "50", "0", "0"]);
    }
}
