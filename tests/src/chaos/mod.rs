//! Chaos: worker processes under load on real stores, faults from outside, and the same promises after each.
//!
//! A [`deployment`] is a database with [`worker`] processes that call and run [`load`] without end. A scenario lets a
//! fault strike, sees how the [`throughput`] comes back, asks [`check`](crate::crash::promises) what the promises are worth, and
//! comes to a [`report`]. How soon the pace is back depends on the machine too: it is always said, and judged in
//! the long form only.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::chaos::report::Report;

mod backlog;
pub mod census;
mod clocks;
mod concurrent_writers;
pub mod deployment;
mod foreign_transactions;
pub mod load;
pub mod operator;
mod outages;
mod pauses;
mod poison_workflow;
mod processes;
pub mod report;
pub mod shift;
mod takeover;
pub mod throughput;
pub mod worker;
pub mod worker_process;

pub use concurrent_writers::run_if_asked as write_if_asked;
pub use takeover::measure as measure_takeovers;

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

type Run = fn(Form, fastrand::Rng) -> LocalBoxFuture<'static, Report>;

/// A scenario.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// True if it is a part of the short form, too.
    pub is_short: bool,
    /// Runs it.
    pub run: Run,
}

macro_rules! scenario {
    ($name:literal, $run:expr) => {
        scenario!($name, $run, short: true)
    };
    ($name:literal, $run:expr, short: $is_short:literal) => {
        Scenario { name: $name, is_short: $is_short, run: |form, rng| Box::pin($run(form, rng)) }
    };
}

/// All of them; those that take longest first.
pub const SCENARIOS: &[Scenario] = &[
    scenario!("restarts", outages::restarts),
    scenario!("away", outages::away),
    scenario!("pauses on postgres", pauses::on_postgres),
    scenario!("killed on postgres", processes::killed_on_postgres),
    scenario!("stopped on postgres", processes::stopped_on_postgres),
    scenario!("foreign lock", foreign_transactions::locked_id),
    scenario!("foreign snapshot", foreign_transactions::held_snapshot),
    scenario!("racing takeovers", takeover::races),
    scenario!("stopped on sqlite", processes::stopped_on_sqlite),
    scenario!("clocks", clocks::skewed),
    scenario!("backlog on postgres", backlog::on_postgres),
    scenario!("pauses on sqlite", pauses::on_sqlite),
    scenario!("killed on sqlite", processes::killed_on_sqlite),
    scenario!("lossy network", outages::lossy),
    scenario!("terminated", outages::terminated),
    scenario!("backlog on sqlite", backlog::on_sqlite),
    scenario!("neighbours on sqlite", concurrent_writers::four_and_one),
    scenario!("thousand lost", takeover::thousand, short: false),
    // pauses grow from strike to strike, and on Postgres each costs a lease
    scenario!("culprit on sqlite", poison_workflow::on_sqlite, short: false),
    scenario!("culprit on postgres", poison_workflow::on_postgres, short: false),
];
