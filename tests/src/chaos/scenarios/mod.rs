//! The scenarios of the chaos suite, one file per kind of fault.

use futures_util::future::LocalBoxFuture;

use crate::chaos::Form;
use crate::chaos::report::Report;

mod backlog;
mod clocks;
pub(super) mod concurrent_writers;
mod failover;
mod open_transactions;
mod outages;
mod pauses;
mod poison_workflow;
pub(super) mod takeover;
mod worker_faults;

type ScenarioFn = fn(Form, fastrand::Rng) -> LocalBoxFuture<'static, Report>;

/// A fault and its checks.
pub struct Scenario {
    /// The name in reports and in `STEPFAST_CHAOS_ONLY`.
    pub name: &'static str,
    /// Whether the scenario is also a part of the short form.
    pub is_short: bool,
    /// Runs the scenario with random numbers from a seed.
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

/// All scenarios, the slowest first.
pub const SCENARIOS: &[Scenario] = &[
    scenario!("server restarts", outages::restarts),
    scenario!("long outage", outages::long_outage),
    scenario!("failover on postgres", failover::on_postgres),
    scenario!("paused queue on postgres", pauses::on_postgres),
    scenario!("killed workers on postgres", worker_faults::killed_on_postgres),
    scenario!("stopped workers on postgres", worker_faults::stopped_on_postgres),
    scenario!("locked workflow_id", open_transactions::locked_id),
    scenario!("held snapshot", open_transactions::held_snapshot),
    scenario!("racing takeovers", takeover::races),
    scenario!("stopped workers on sqlite", worker_faults::stopped_on_sqlite),
    scenario!("skewed clocks", clocks::skewed),
    scenario!("backlog on postgres", backlog::on_postgres),
    scenario!("paused queue on sqlite", pauses::on_sqlite),
    scenario!("killed workers on sqlite", worker_faults::killed_on_sqlite),
    scenario!("lossy network", outages::lossy),
    scenario!("terminated connections", outages::terminated),
    scenario!("killed workers behind pooler", worker_faults::killed_behind_pooler),
    scenario!("backlog on sqlite", backlog::on_sqlite),
    scenario!("concurrent writers on sqlite", concurrent_writers::four_and_one),
    scenario!("thousand dead workers", takeover::thousand_dead, short: false),
    // the quarantine delay grows with each strike, and on Postgres each strike takes a lease
    scenario!("poison workflow on sqlite", poison_workflow::on_sqlite, short: false),
    scenario!("poison workflow on postgres", poison_workflow::on_postgres, short: false),
];
