//! [`Writer`]: what the one writer of a SQLite database spends its time on.

use std::sync::Arc;

use stepfast::Store;
use stepfast::store::counters::{Counters, WriterTime};

use super::{Share, to_shares};

/// What it had spent when the run began.
pub struct WriterProbe {
    counters: CounterSource,
    before: WriterTime,
}

enum CounterSource {
    Store(Arc<dyn Store>),
    Own(Arc<Counters>),
}

impl WriterProbe {
    /// The writer of a store.
    pub fn from_store(store: Arc<dyn Store>) -> Self {
        let before = store.counters().writer_time();
        Self { counters: CounterSource::Store(store), before }
    }

    /// Connections that write in turn and count so.
    pub fn from_counters(counters: Arc<Counters>) -> Self {
        Self { before: counters.writer_time(), counters: CounterSource::Own(counters) }
    }

    /// Its shares of the `seconds` since then.
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

/// Several may wait for the same turn at once, and while somebody writes: of that counts what is left of the time.
fn divide(commit: f64, statements: f64, turn: f64, seconds: f64) -> Vec<Share> {
    let left = (seconds - commit - statements).max(0.0);
    let turn = turn.min(left);
    to_shares([
        ("log flush", commit),
        ("statements", statements),
        ("other writers", turn),
        ("client", left - turn),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_clients() {
        let percents =
            |shares: Vec<Share>| shares.iter().map(|it| it.percent.to_string()).collect::<Vec<_>>();
        assert_eq!(percents(divide(1.0, 2.0, 0.5, 10.0)), ["10", "20", "5", "65"]);
        // 64 that wait for one another at once
        assert_eq!(percents(divide(1.0, 2.0, 600.0, 10.0)), ["10", "20", "70", "0"]);
        // clocks that are read one after another
        assert_eq!(percents(divide(6.0, 6.0, 0.0, 11.9)), ["50", "50", "0", "0"]);
    }
}
