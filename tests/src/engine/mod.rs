//! The engine suite: the behaviour of an engine that a program observes, on every store. One file per noun, one
//! function per case.
//!
//! tests/engine.rs runs every case on every store. Cases wait for events, never for time to pass; the runner ends a
//! case that hangs.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::fixtures::case_list::{cases, nouns};
use crate::{FixtureFactory, StoreFixture};

pub mod support;

/// A function that runs one case on a fresh database. It panics if the engine misbehaves.
pub type EngineCase = for<'a> fn(&'a dyn StoreFixture) -> LocalBoxFuture<'a, ()>;
use EngineCase as Case;

mod attempt;
mod attributes;
mod batch;
mod batch_item;
mod batch_turns;
mod budget;
mod cancel;
mod cancelled;
mod changed_code;
mod child;
mod child_batch;
mod client;
mod continuation;
mod crash_loop;
mod drain;
mod events;
mod fan_in;
mod fault;
mod fence;
mod graph;
mod graph_context;
mod graph_resume;
mod hostile;
mod identified_child;
mod kept_messages;
mod leftovers;
mod limit;
mod lost_claim_reply;
mod messages;
mod moment;
mod multiple_engines;
mod pause;
mod queue;
mod queued_child;
mod rejected_write;
mod request;
mod schedules;
mod search;
mod self_claiming;
mod speculation;
mod staging_budget;
mod start;
mod step;
mod streams;
mod tokens;
mod unreadable;
mod value;
mod wait;

/// Returns the cases with faults, each with its name.
pub fn fault_cases() -> impl Iterator<Item = (&'static str, EngineCase)> {
    fault::CASES
        .iter()
        .chain(fence::CASES)
        .chain(moment::CASES)
        .chain(rejected_write::CASES)
        .chain(staging_budget::CASES)
        .chain(lost_claim_reply::CASES)
        .copied()
}

nouns![
    attempt,
    attributes,
    batch,
    batch_item,
    batch_turns,
    budget,
    cancel,
    cancelled,
    changed_code,
    child,
    child_batch,
    client,
    drain,
    fan_in,
    graph,
    graph_context,
    graph_resume,
    hostile,
    identified_child,
    crash_loop,
    leftovers,
    limit,
    kept_messages,
    messages,
    events,
    tokens,
    streams,
    continuation,
    schedules,
    queue,
    queued_child,
    request,
    search,
    multiple_engines,
    pause,
    speculation,
    start,
    step,
    unreadable,
    value,
    wait,
    self_claiming,
];

/// The time after which a case counts as hanging. The longest case takes 30 s alone, and more on a busy machine.
const CASE_TIMEOUT: Duration = Duration::from_mins(10);

/// Runs a case on a fresh database, in a runtime of its own. Returns an error if the case fails or hangs.
pub fn run_case(fresh: FixtureFactory, run: EngineCase) -> Result<(), String> {
    run_within(CASE_TIMEOUT, move |runtime| runtime.block_on(async { run(&*fresh().await).await }))
}

/// Runs `body` with a runtime on a thread of its own. Returns an error if it panics or takes longer than `timeout`.
pub fn run_within(
    timeout: Duration,
    body: impl FnOnce(tokio::runtime::Runtime) + Send + 'static,
) -> Result<(), String> {
    let (done, ended) = mpsc::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| body(runtime.unwrap())));
        let _ = done.send(result.map_err(|panic| panic_message(&*panic)));
    };
    std::thread::Builder::new().spawn(run).map_err(|error| error.to_string())?;
    ended
        .recv_timeout(timeout)
        .unwrap_or_else(|_| Err(format!("the case hangs: not finished after {timeout:?}")))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "the case panicked".into())
}
