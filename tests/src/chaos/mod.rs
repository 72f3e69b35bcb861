//! Chaos: worker processes under load on real stores, external faults, and the same promises after each fault.
//!
//! A [`deployment`] is a database with [`worker`] processes that call and run [`load`] without end. A scenario
//! injects a fault, measures the recovery of the [`throughput`], checks the [`promises`](crate::crash::promises), and
//! returns a [`report`]. Each scenario has a [`neighbour`]: a second service on the same database, for which nothing may
//! change. The time until recovery depends on the machine too: it is always printed, but judged in the
//! long form only.

use std::time::Duration;

pub mod busy_queue;
pub mod connection;
pub mod deployment;
pub mod load;
pub mod neighbour;
pub mod operator;
pub mod queue_snapshot;
pub mod report;
mod scenarios;
pub mod throughput;
pub mod worker;
pub mod worker_process;

pub use scenarios::concurrent_writers::run_if_requested as write_if_requested;
pub use scenarios::takeover::measure_takeovers;
pub use scenarios::{SCENARIOS, Scenario};

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Seconds: each fault happens once or a few times.
    Short,
    /// Minutes. The throughput is judged, so scenarios run one at a time.
    Long,
}

impl Form {
    /// Returns the form that an environment variable names: `short`, which is the default, or `long`.
    ///
    /// # Panics
    ///
    /// Panics if the variable has another value.
    pub fn from_variable(name: &str) -> Self {
        match std::env::var(name).as_deref() {
            Err(_) | Ok("" | "short") => Form::Short,
            Ok("long") => Form::Long,
            Ok(other) => panic!("{name} is short or long, not {other:?}"),
        }
    }

    /// Returns the value for this form.
    pub fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Form::Short => short,
            Form::Long => long,
        }
    }

    /// Returns a duration in seconds for this form.
    pub fn seconds(self, short: u64, long: u64) -> Duration {
        Duration::from_secs(self.pick(short, long))
    }
}
