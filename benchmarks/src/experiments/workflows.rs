//! `bench workflows` and `bench steps`: no-op workflows with any number of no-op steps, started by concurrent callers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepfast::{Context, Engine, Error, Failure, Key, Workflow};
use tokio::time::Instant;

use crate::bound::{Probe, RunObservation};
use crate::experiments::writes::wait_for_all;
use crate::measure::Latencies;
use crate::python::Python;
use crate::report::Row;
use crate::target::Target;

/// The way in which a caller starts a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `start`, then a wait for the result: as the peers do.
    Start,
    /// `run`, which starts a workflow and waits for its result in one call.
    Run,
}

impl Mode {
    /// The mode's name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Start => "start",
            Mode::Run => "run",
        }
    }
}

/// The source of the workflows' ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdSource {
    /// The engine mints them, in the order of time.
    #[default]
    Minted,
    /// The caller gives random ones.
    Given,
    /// The caller gives ids in the order of time.
    Ordered,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct WorkflowParameters {
    /// The way in which callers start workflows.
    pub mode: Mode,
    /// The number of concurrent callers.
    pub concurrency: usize,
    /// The source of the ids. In Python always the engine.
    pub ids: IdSource,
    /// The number of steps in a workflow.
    pub steps: usize,
    /// The number of workflows in all. `None` means 400 per caller, at least 2,000 and at most 300,000, divided by the
    /// number of steps plus one, but at least one per caller.
    pub iterations: Option<usize>,
}

impl WorkflowParameters {
    /// Returns the number of workflows in all.
    pub fn total(&self) -> usize {
        let default = (self.concurrency * 400).clamp(2_000, 300_000) / (1 + self.steps);
        self.iterations.unwrap_or(default.max(self.concurrency))
    }

    /// Returns the number of warm-up workflows, which are not measured.
    pub fn warm_up_total(&self) -> usize {
        (self.total() / 20).clamp(1, 2_000)
    }

    /// Returns the bytes per workflow, if the store's size is known before and after the run.
    pub(crate) fn bytes_each(&self, before: Option<u64>, after: Option<u64>) -> Option<f64> {
        let workflows = self.total() + self.warm_up_total();
        Some(after?.saturating_sub(before?) as f64 / workflows as f64)
    }
}

/// Returns a workflow of no-op steps. Its input is the number of steps.
pub fn workflow() -> Workflow<u32, ()> {
    Workflow::new("bench", |mut cx: Context, steps: u32| async move {
        for _ in 0..steps {
            cx.step("noop", || async { Ok::<(), Failure>(()) }).await?;
        }
        Ok::<(), Failure>(())
    })
}

/// Runs one combination on a new engine. `progress` receives the number of workflows that have ended.
pub async fn run(
    target: &Target,
    parameters: WorkflowParameters,
    progress: &dyn Fn(u64),
) -> Result<Row, Error> {
    let before = target.bytes_before_run().await?;
    let (engine, workflow) = open(target, parameters.concurrency).await?;
    let (mut row, observation) = measure(&engine, &workflow, target, parameters, progress).await?;
    engine.shutdown(Duration::from_secs(10)).await?;
    drop(engine);
    observation.fill(target, &mut row).await?;
    row.disk_bytes_each = parameters.bytes_each(before, target.bytes_stored().await?);
    Ok(row)
}

/// Opens an engine whose capacity exceeds `concurrency`, so that running is measured, not waiting for capacity.
pub(crate) async fn open(target: &Target, concurrency: usize) -> Result<(Engine, Workflow<u32, ()>), Error> {
    let workflow = workflow();
    let builder = Engine::builder(target.store().await?).register(&workflow);
    let engine = builder.max_running(concurrency.max(10_000) + 1).open().await?;
    Ok((engine, workflow))
}

/// Measures one combination on an open engine, after a warm-up.
pub(crate) async fn measure(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    target: &Target,
    parameters: WorkflowParameters,
    progress: &dyn Fn(u64),
) -> Result<(Row, RunObservation), Error> {
    let WorkflowParameters { mode, concurrency, steps, .. } = parameters;
    let total = parameters.total();
    let warm_up = WorkflowParameters { concurrency: concurrency.min(64), ..parameters };
    run_callers(engine, workflow, warm_up, parameters.warm_up_total(), &|_| {}).await;
    let store = engine.store();
    let probe = Probe::start(target, Some(store)).await?;
    let counted = store.counters().snapshot();
    let bytes = target.bytes_written().await;
    let (latencies, elapsed) = run_callers(engine, workflow, parameters, total, progress).await;
    let observation = probe.stop(Some(store)).await?;
    let mut row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        steps: Some(steps),
        ..Row::default()
    };
    latencies.fill_with_elapsed(elapsed, &mut row);
    let counted = store.counters().snapshot().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    row.bytes_written = target.bytes_written().await - bytes;
    row.cpu_each = Some(observation.cpu_each(row.completed));
    Ok((row, observation))
}

/// Runs one combination in a Python process. Returns its row and its messages for the user. The callers are tasks of one
/// event loop, or threads.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: WorkflowParameters,
    are_threads: bool,
    size: Option<usize>,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Row, String)> {
    let WorkflowParameters { mode, concurrency, steps, .. } = parameters;
    let input = json!({
        "url": target.url,
        "mode": mode.as_str(),
        "concurrency": concurrency,
        "is_threads": are_threads,
        "steps": steps,
        "total": parameters.total(),
        "size": size,
    });
    let before = target.bytes_before_run().await?;
    let mut python = Python::start(python, "workflows", input)?;
    let probe = Probe::start_for_process(target, python.id()).await?;
    let mut row: Row = python.resume_until("row", progress)?;
    let observation = probe.stop(None).await?;
    python.resume()?;
    let messages = python.finish()?;
    row.cpu_each = Some(observation.cpu_each(row.completed));
    observation.fill(target, &mut row).await?;
    let row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        callers: are_threads.then(|| "threads".to_owned()),
        steps: Some(steps),
        size,
        disk_bytes_each: parameters.bytes_each(before, target.bytes_stored().await?),
        ..row
    };
    Ok((row, messages))
}

/// Makes one call of a caller.
pub(crate) async fn call(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    mode: Mode,
    ids: IdSource,
    steps: u32,
) -> Result<(), Error> {
    // random, like the ids of orders, users and requests
    let id = match ids {
        IdSource::Minted => None,
        IdSource::Given => Some(format!("order-{:032x}", fastrand::u128(..))),
        IdSource::Ordered => Some(format!("order-{:032x}", Key::mint(0).as_u128())),
    };
    match (mode, id) {
        (Mode::Run, None) => engine.run(workflow, steps).await,
        (Mode::Run, Some(id)) => engine.run(workflow, steps).workflow_id(id).await,
        (Mode::Start, None) => engine.start(workflow, steps).await?.result().await,
        (Mode::Start, Some(id)) => engine.start(workflow, steps).workflow_id(id).await?.result().await,
    }
}

async fn run_callers(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    parameters: WorkflowParameters,
    total: usize,
    progress: &dyn Fn(u64),
) -> (Arc<Latencies>, Duration) {
    let WorkflowParameters { mode, concurrency, steps, ids, .. } = parameters;
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    let callers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let is_ok = call(&engine, &workflow, mode, ids, steps as u32).await.is_ok();
                    latencies.record(n, begun, is_ok);
                }
            })
        })
        .collect();
    wait_for_all(callers, &latencies, progress).await;
    let elapsed = begun.elapsed();
    (latencies, elapsed)
}
