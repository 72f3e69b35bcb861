//! `bench workflows` and `bench steps`: no-op workflows, with any number of no-op steps, by concurrent
//! callers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::measure::Latencies;
use crate::python::Python;
use crate::report::Row;
use crate::target::Target;

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

/// One combination of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// How callers start workflows.
    pub mode: Mode,
    /// Concurrent callers.
    pub concurrency: usize,
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
    let Parameters { mode, concurrency, steps, .. } = parameters;
    let workflow = workflow();
    // as many places as callers: what is measured is running, not waiting for a place
    let engine = Engine::builder(target.store().await?)
        .register(&workflow)
        .max_running(concurrency.max(10_000) + 1)
        .open()
        .await?;
    let total = parameters.total();
    drive(&engine, &workflow, mode, concurrency.min(64), steps, (total / 20).clamp(1, 2_000), &|_| {}).await;
    let counted = engine.store().counters().counted();
    let bytes = target.bytes_written().await;
    let latencies = drive(&engine, &workflow, mode, concurrency, steps, total, progress).await;
    let mut row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        steps: Some(steps),
        ..Row::default()
    };
    latencies.0.fill_after(latencies.1, &mut row);
    let counted = engine.store().counters().counted().since(&counted);
    row.flushes = counted.flushes;
    row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
    engine.shutdown(Duration::from_secs(10)).await?;
    row.bytes_written = target.bytes_written().await - bytes;
    Ok(row)
}

/// Runs one combination in a Python process: its row, and what it had to say to people. The callers are tasks of
/// one event loop, or threads.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: Parameters,
    are_threads: bool,
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
    });
    let mut python = Python::start(python, "workflows", asked)?;
    let bytes = target.bytes_written().await;
    let mut row: Row = python.go("row", progress)?;
    if target.postgres().is_some() {
        row.bytes_written = target.bytes_written().await - bytes;
    }
    let said = python.end()?;
    let row = Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(concurrency),
        callers: are_threads.then(|| "threads".to_owned()),
        steps: Some(steps),
        ..row
    };
    Ok((row, said))
}

async fn drive(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
    mode: Mode,
    concurrency: usize,
    steps: usize,
    total: usize,
    progress: &dyn Fn(u64),
) -> (Arc<Latencies>, Duration) {
    let latencies = Arc::new(Latencies::new(total));
    let begun = Instant::now();
    let callers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let result = match mode {
                        Mode::Run => engine.run(&workflow, steps as u32).await,
                        Mode::Start => match engine.start(&workflow, steps as u32).await {
                            Ok(handle) => handle.result().await,
                            Err(error) => Err(error),
                        },
                    };
                    latencies.note(n, begun, result.is_ok());
                }
            })
        })
        .collect();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for caller in callers {
        let mut caller = std::pin::pin!(caller);
        loop {
            tokio::select! {
                _ = &mut caller => break,
                _ = tick.tick() => progress(latencies.done()),
            }
        }
    }
    let wall = begun.elapsed();
    progress(latencies.done());
    (latencies, wall)
}
