//! `bench workflows` and `bench steps`: no-op workflows, with any number of no-op steps, by concurrent
//! callers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepfast::{Context, Engine, Error, Failure, Key, Workflow};
use tokio::time::Instant;

use crate::bound::{Probe, Seen};
use crate::measure::Latencies;
use crate::python::Python;
use crate::report::Row;
use crate::sizes;
use crate::target::Target;
use crate::writes::until_all;

/// How a caller starts a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The handle is acknowledged, then the result: what peers do.
    Start,
    /// From start to result in one call.
    Run,
}

impl Mode {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Start => "start",
            Mode::Run => "run",
        }
    }
}

/// Who gives the workflows their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    /// The engine: they are ordered by time.
    #[default]
    Minted,
    /// The caller, at random.
    Given,
    /// From the caller, in the order of time.
    Ordered,
}

/// One combination of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// How callers start workflows.
    pub mode: Mode,
    /// Concurrent callers.
    pub concurrency: usize,
    /// Who gives the ids; in Python the engine.
    pub ids: Ids,
    /// Steps in a workflow.
    pub steps: usize,
    /// Workflows in all; `None` for 400 per caller, at least 2,000 and at most 300,000, divided by the
    /// number of steps plus one.
    pub iterations: Option<usize>,
}

impl Parameters {
    /// Workflows in all.
    pub fn total(&self) -> usize {
        let default = (self.concurrency * 400).clamp(2_000, 300_000) / (1 + self.steps);
        self.iterations.unwrap_or(default).max(1)
    }

    /// Workflows in all that go before those that count.
    pub fn warm_up(&self) -> usize {
        (self.total() / 20).clamp(1, 2_000)
    }
}

/// A workflow of `steps` no-op steps, whose number is its input.
pub fn workflow() -> Workflow<u32, ()> {
    Workflow::new("bench", |mut cx: Context, steps: u32| async move {
        for _ in 0..steps {
            cx.step("noop", || async { Ok::<(), Failure>(()) }).await?;
        }
        Ok::<(), Failure>(())
    })
}

/// Runs one combination on a fresh engine; `progress` hears how many workflows have ended.
pub async fn run(target: &Target, parameters: Parameters, progress: &dyn Fn(u64)) -> Result<Row, Error> {
    let (engine, workflow) = open(target, parameters.concurrency).await?;
    let (mut row, seen) = measure(&engine, &workflow, target, parameters, progress).await?;
    engine.shutdown(Duration::from_secs(10)).await?;
    seen.fill(target, &mut row).await?;
    Ok(row)
}

/// An engine with as many places as `concurrency` callers take: what is measured is running, not waiting for a place.
pub(crate) async fn open(target: &Target, concurrency: usize) -> Result<(Engine, Workflow<u32, ()>), Error> {
    let workflow = workflow();
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(concurrency.max(10_000) + 1).open().await?;
    Ok((engine, workflow))
}

/// Measures one combination on an engine that is open, after a warm-up.
pub(crate) async fn measure(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    target: &Target,
    parameters: Parameters,
    progress: &dyn Fn(u64),
) -> Result<(Row, Seen), Error> {
    let Parameters { mode, concurrency, steps, .. } = parameters;
    let total = parameters.total();
    let warm = Parameters { concurrency: concurrency.min(64), ..parameters };
    drive(engine, workflow, warm, parameters.warm_up(), &|_| {}).await;
    let store = engine.store();
    let probe = Probe::start(target, Some(store)).await?;
    let counted = store.counters().snapshot();
    let bytes = target.bytes_written().await;
    let (latencies, wall) = drive(engine, workflow, parameters, total, progress).await;
    let seen = probe.stop(Some(store)).await?;
    let mut row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        steps: Some(steps),
        ..Row::default()
    };
    latencies.fill_after(wall, &mut row);
    let counted = store.counters().snapshot().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    row.bytes_written = target.bytes_written().await - bytes;
    Ok((row, seen))
}

/// Runs one combination in a Python process: its row, and what it had to say to people. The callers are tasks of
/// one event loop, or threads.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: Parameters,
    are_threads: bool,
    size: Option<usize>,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Row, String)> {
    let Parameters { mode, concurrency, steps, .. } = parameters;
    let asked = json!({
        "url": target.url,
        "mode": mode.as_str(),
        "concurrency": concurrency,
        "is_threads": are_threads,
        "steps": steps,
        "total": parameters.total(),
        "size": size,
    });
    let before = target.bytes_stored().await?;
    let mut python = Python::start(python, "workflows", asked)?;
    let probe = Probe::start(target, None).await?;
    let mut row: Row = python.go("row", progress)?;
    let seen = probe.stop(None).await?.by_another_process();
    let said = python.end()?;
    seen.fill(target, &mut row).await?;
    let workflows = parameters.total() + parameters.warm_up();
    let row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        callers: are_threads.then(|| "threads".to_owned()),
        steps: Some(steps),
        size,
        disk_bytes_each: sizes::each(before, target.bytes_stored().await?, workflows)
            .filter(|_| size.is_some()),
        ..row
    };
    Ok((row, said))
}

/// One call of one caller.
pub(crate) async fn call(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    mode: Mode,
    ids: Ids,
    steps: u32,
) -> Result<(), Error> {
    // at random, as orders, users and requests have them
    let id = match ids {
        Ids::Minted => None,
        Ids::Given => Some(format!("order-{:032x}", fastrand::u128(..))),
        Ids::Ordered => Some(format!("order-{:032x}", Key::mint(0).as_u128())),
    };
    match (mode, id) {
        (Mode::Run, None) => engine.run(workflow, steps).await,
        (Mode::Run, Some(id)) => engine.run(workflow, steps).workflow_id(id).await,
        (Mode::Start, None) => engine.start(workflow, steps).await?.result().await,
        (Mode::Start, Some(id)) => engine.start(workflow, steps).workflow_id(id).await?.result().await,
    }
}

async fn drive(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    parameters: Parameters,
    total: usize,
    progress: &dyn Fn(u64),
) -> (Arc<Latencies>, Duration) {
    let Parameters { mode, concurrency, steps, ids, .. } = parameters;
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    let callers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let is_ok = call(&engine, &workflow, mode, ids, steps as u32).await.is_ok();
                    latencies.note(n, begun, is_ok);
                }
            })
        })
        .collect();
    until_all(callers, &latencies, progress).await;
    let wall = begun.elapsed();
    (latencies, wall)
}
