//! Chaos: worker processes under load on real stores, faults from outside, and the same promises after each.
//!
//! A [`deployment`] is a database with [`worker`] processes that call and run [`load`] without end. A scenario lets a
//! fault strike, sees how the [`throughput`] comes back, asks [`check`](crate::crash::promises) what the promises are worth, and
//! comes to a [`report`]. How soon the pace is back depends on the machine too: it is always said, and judged in
//! the long form only.

use std::time::Duration;

pub mod busy_queue;
pub mod deployment;
pub mod load;
pub mod operator;
pub mod queue_snapshot;
pub mod report;
mod scenarios;
pub mod throughput;
pub mod worker;
pub mod worker_process;

pub use scenarios::concurrent_writers::run_if_asked as write_if_asked;
pub use scenarios::takeover::measure as measure_takeovers;
pub use scenarios::{SCENARIOS, Scenario};

/// How long it all takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Seconds: each fault strikes once or a few times.
    Short,
    /// Minutes; the pace is judged, so scenarios run one at a time.
    Long,
}

impl Form {
    /// One or the other.
    pub fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Form::Short => short,
            Form::Long => long,
        }
    }

    /// So many seconds.
    pub fn seconds(self, short: u64, long: u64) -> Duration {
        Duration::from_secs(self.pick(short, long))
    }
}
