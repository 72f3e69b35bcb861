//! The engine's suite: what a program sees of an engine, whatever the store; one file per noun, one function
//! per case.
//!
//! tests/engine.rs runs every case on every store. Cases wait for events, never for time to pass; the runner
//! gives up on a case that hangs.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::fixtures::case_list::{cases, nouns};
use crate::{FixtureFactory, StoreFixture};

pub mod support;

/// Runs a case on a fresh database; panics if the engine misbehaves.
pub type Run = for<'a> fn(&'a dyn StoreFixture) -> LocalBoxFuture<'a, ()>;

mod attempt;
mod attributes;
mod budget;
mod cancel;
mod cancelled;
mod changed_code;
mod child;
mod client;
mod crash_loop;
mod drain;
mod fault;
mod fence;
mod hostile;
mod limit;
mod lost_claim_reply;
mod multiple_engines;
mod queue;
mod queued_child;
mod rejected_write;
mod request;
mod self_claiming;
mod staging_budget;
mod start;
mod step;
mod unreadable;
mod value;
mod wait;

/// The cases with faults, by name.
pub fn faults() -> impl Iterator<Item = (&'static str, Run)> {
    fault::CASES
        .iter()
        .chain(fence::CASES)
        .chain(rejected_write::CASES)
        .chain(staging_budget::CASES)
        .chain(lost_claim_reply::CASES)
        .copied()
}

nouns![
    attempt,
    attributes,
    budget,
    cancel,
    cancelled,
    changed_code,
    child,
    client,
    drain,
    hostile,
    crash_loop,
    limit,
    queue,
    queued_child,
    request,
    multiple_engines,
    start,
    step,
    unreadable,
    value,
    wait,
    self_claiming,
];

/// A case that is not over by then hangs.
const PATIENCE: Duration = Duration::from_mins(3);

/// Runs a case on a fresh database, in a runtime of its own; an error if it fails or hangs.
pub fn on_fresh(fresh: FixtureFactory, run: Run) -> Result<(), String> {
    within(PATIENCE, move |runtime| runtime.block_on(async { run(&*fresh().await).await }))
}

/// Runs `body` with a runtime on a thread of its own; an error if it panics or takes longer than `patience`.
pub fn within(
    patience: Duration,
    body: impl FnOnce(tokio::runtime::Runtime) + Send + 'static,
) -> Result<(), String> {
    let (done, ended) = mpsc::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| body(runtime.unwrap())));
        let _ = done.send(result.map_err(|panic| said(&*panic)));
    };
    std::thread::Builder::new().spawn(run).map_err(|error| error.to_string())?;
    ended.recv_timeout(patience).unwrap_or_else(|_| Err(format!("it hangs: not over after {patience:?}")))
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "it panicked".into())
}
