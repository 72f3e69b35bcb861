//! The scenarios of the chaos tests: each one file per kind of fault.

use futures_util::future::LocalBoxFuture;

use crate::chaos::Form;
use crate::chaos::report::Report;

mod backlog;
mod clocks;
pub mod concurrent_writers;
mod open_transactions;
mod outages;
mod pauses;
mod poison_workflow;
pub mod takeover;
mod worker_faults;

type ScenarioFn = fn(Form, fastrand::Rng) -> LocalBoxFuture<'static, Report>;

/// A scenario.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// True if it is a part of the short form, too.
    pub is_short: bool,
    /// Runs it.
    pub run: ScenarioFn,
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
    scenario!("away", outages::long_outage),
    scenario!("pauses on postgres", pauses::on_postgres),
    scenario!("killed on postgres", worker_faults::killed_on_postgres),
    scenario!("stopped on postgres", worker_faults::stopped_on_postgres),
    scenario!("foreign lock", open_transactions::locked_id),
    scenario!("foreign snapshot", open_transactions::held_snapshot),
    scenario!("racing takeovers", takeover::races),
    scenario!("stopped on sqlite", worker_faults::stopped_on_sqlite),
    scenario!("clocks", clocks::skewed),
    scenario!("backlog on postgres", backlog::on_postgres),
    scenario!("pauses on sqlite", pauses::on_sqlite),
    scenario!("killed on sqlite", worker_faults::killed_on_sqlite),
    scenario!("lossy network", outages::lossy),
    scenario!("terminated", outages::terminated),
    scenario!("backlog on sqlite", backlog::on_sqlite),
    scenario!("neighbours on sqlite", concurrent_writers::four_and_one),
    scenario!("thousand lost", takeover::thousand_dead, short: false),
    // pauses grow from strike to strike, and on Postgres each costs a lease
    scenario!("culprit on sqlite", poison_workflow::on_sqlite, short: false),
    scenario!("culprit on postgres", poison_workflow::on_postgres, short: false),
];
