//! [`Writer`]: what the one writer of a SQLite database spends its time on.

use std::sync::Arc;

use stepfast::Store;
use stepfast::store::counters::{Counters, WriterTime};

use super::{Share, shares};

/// What it had spent when the run began.
pub struct Writer {
    counters: Counted,
    before: WriterTime,
}

enum Counted {
    Store(Arc<dyn Store>),
    Own(Arc<Counters>),
}

impl Writer {
    /// The writer of a store.
    pub fn of_store(store: Arc<dyn Store>) -> Self {
        let before = store.counters().writer_time();
        Self { counters: Counted::Store(store), before }
    }

    /// Connections that write in turn and count so.
    pub fn of(counters: Arc<Counters>) -> Self {
        Self { before: counters.writer_time(), counters: Counted::Own(counters) }
    }

    /// Its shares of the `seconds` since then.
    pub fn shares(&self, seconds: f64) -> Vec<Share> {
        let now = match &self.counters {
            Counted::Store(store) => store.counters().writer_time(),
            Counted::Own(counters) => counters.writer_time(),
        };
        let spent = now.since(&self.before);
        let [commit, statements, turn] =
            [spent.commit, spent.statements, spent.turn_wait].map(|it| it.as_secs_f64());
        divided(commit, statements, turn, seconds)
    }
}

/// Several may wait for the same turn at once, and while somebody writes: of that counts what is left of the time.
fn divided(commit: f64, statements: f64, turn: f64, seconds: f64) -> Vec<Share> {
    let left = (seconds - commit - statements).max(0.0);
    let turn = turn.min(left);
    shares([
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
        assert_eq!(percents(divided(1.0, 2.0, 0.5, 10.0)), ["10", "20", "5", "65"]);
        // 64 that wait for one another at once
        assert_eq!(percents(divided(1.0, 2.0, 600.0, 10.0)), ["10", "20", "70", "0"]);
        // clocks that are read one after another
        assert_eq!(percents(divided(6.0, 6.0, 0.0, 11.9)), ["50", "50", "0", "0"]);
    }
}
