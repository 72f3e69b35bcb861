//! `bench memory`: the memory of an execution that waits in a step, and of a burst of starts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use stepfast::{Context, Engine, Error, Failure, Handle, Workflow};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::measure::Latencies;
use crate::python::Python;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The number of executions before the growth is measured: what all executions share is allocated by then.
const BASELINE_EXECUTIONS: usize = 1_000;
/// The minimum numbers of executions for which the targets apply: for waiting executions, and for a burst.
const MIN_EXECUTIONS_FOR_TARGET: (usize, usize) = (10_000, 100_000);

/// Measures `many` executions with Rust's API in this process. Returns the rows and figures.
pub async fn run(location: &TargetLocation, many: usize) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    // first, while the allocator holds no free memory
    let (each, blocked) =
        measure_blocked_executions(&location.open_target().await?, BASELINE_EXECUTIONS, many).await?;
    let burst = measure_burst(&location.open_target().await?, many).await?;
    let figures = vec![
        Figure::new("an execution that waits in a step", each, "bytes"),
        Figure::new(format!("peak resident memory, {many} started at once"), peak_bytes() as f64 / 1e6, "MB"),
    ];
    Ok((vec![blocked, burst], figures))
}

/// The figures of one kind from Python. Not every kind has all of them.
#[derive(Deserialize)]
struct PythonFigures {
    each_bytes: Option<f64>,
    peak_bytes: Option<f64>,
    longest_gap_ms: Option<f64>,
    longest_collection_ms: Option<f64>,
    most_in_flight: Option<f64>,
    without_engine_ms: Option<f64>,
}

/// Measures `many` executions in Python, each kind in its own process. Returns the rows, the figures, and the messages of
/// the processes for the user.
///
/// A burst is started in two ways. `burst` creates all tasks at once, as `asyncio.gather` does. It has the most tasks in
/// flight, so its memory is the target's figure; but asyncio itself blocks the loop while it creates and starts that many
/// tasks. `fed` creates a hundred tasks in each iteration of the loop, so that only the engine blocks the loop: the gaps of
/// its heartbeat are the target's figure. `tuned` is `fed` with Python's garbage collector set as the guide advises for
/// programs with very many waiting executions: by default it scans all of their objects from time to time.
pub async fn run_in_python(
    python: &Path,
    location: &TargetLocation,
    many: usize,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Vec<Row>, Vec<Figure>, String)> {
    let (mut rows, mut figures, mut messages) = (Vec::new(), Vec::new(), String::new());
    for kind in ["blocked", "burst", "fed", "tuned"] {
        let target = location.open_target().await?;
        let mut input = json!({ "kind": kind, "url": target.url, "many": many });
        if kind == "blocked" {
            input["few"] = BASELINE_EXECUTIONS.into();
        }
        let mut process = Python::start(python, "memory", input)?;
        let bytes = target.bytes_written().await;
        let (measured, mut row): (PythonFigures, Row) = process.resume_until("measured", progress)?;
        if target.postgres().is_some() {
            row.bytes_written = target.bytes_written().await - bytes;
        }
        messages += &process.finish()?;
        rows.push(row);
        let limit_from = |minimum: usize, limit: f64| (many >= minimum).then_some(limit);
        figures.extend(measured.each_bytes.map(|bytes| {
            let name = "an async workflow that waits in a step: 10 KB";
            Figure::new(name, bytes, "bytes").at_most(limit_from(MIN_EXECUTIONS_FOR_TARGET.0, 10_000.0))
        }));
        // with the other kinds, fewer executions than `many` are in flight at the peak
        figures.extend(measured.peak_bytes.filter(|_| kind == "burst").map(|bytes| {
            let name = format!("peak resident memory, {many} started at once: 2 GB");
            Figure::new(name, bytes / 1e6, "MB").at_most(limit_from(MIN_EXECUTIONS_FOR_TARGET.1, 2_000.0))
        }));
        figures.extend(measured.longest_gap_ms.map(|ms| {
            match kind {
                "fed" => Figure::new("event loop blocked, 100 starts per turn: 20 ms", ms, "ms")
                    .at_most(limit_from(MIN_EXECUTIONS_FOR_TARGET.1, 20.0)),
                "tuned" => Figure::new(
                    "the same with the garbage collector's old generation frozen: 20 ms",
                    ms,
                    "ms",
                )
                .at_most(limit_from(MIN_EXECUTIONS_FOR_TARGET.1, 20.0)),
                _ => Figure::new("event loop blocked, all tasks created at once", ms, "ms"),
            }
        }));
        let name = format!("of that by Python's garbage collector, in one go, {kind}");
        figures.extend(measured.longest_collection_ms.map(|ms| Figure::new(name, ms, "ms")));
        let name = "event loop blocked by as many tasks created at once, without an engine";
        figures.extend(measured.without_engine_ms.map(|ms| Figure::new(name, ms, "ms")));
        let name = format!("most in flight, {kind}");
        figures.extend(measured.most_in_flight.map(|most| Figure::new(name, most, "workflows")));
    }
    Ok((rows, figures, messages))
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Returns the peak of this process's resident memory, in bytes.
fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Starts executions that wait in a step, up to `many`. Returns the growth in bytes per execution since the first
/// `baseline`, and the row of the run.
async fn measure_blocked_executions(
    target: &Target,
    baseline: usize,
    many: usize,
) -> Result<(f64, Row), Error> {
    let release = Arc::new(Semaphore::new(0));
    let shared = release.clone();
    let workflow = Workflow::new("blocked", move |mut cx: Context, (): ()| {
        let release = shared.clone();
        async move {
            cx.step("wait", || async {
                let _ = release.acquire().await;
                Ok::<(), Failure>(())
            })
            .await
        }
    });
    let engine =
        Engine::builder(target.store().await?).register(&workflow).max_running(many + 1).open().await?;
    let latencies = Latencies::new(many);
    let mut handles: Vec<Handle<()>> = Vec::with_capacity(many);
    let mut before = 0;
    while handles.len() < many {
        let batch = (0..1_000).map(|_| std::future::IntoFuture::into_future(engine.start(&workflow, ())));
        for handle in poll_all(batch).await {
            let (n, begun) = (latencies.next().unwrap_or(0), Instant::now());
            handles.push(handle?);
            latencies.record(n, begun, true);
        }
        if handles.len() == baseline {
            before = resident_bytes();
        }
    }
    let each = resident_bytes().saturating_sub(before) as f64 / (many - baseline) as f64;
    release.close();
    for handle in &handles {
        handle.result().await?;
    }
    let mut row = Row { mode: Some("blocked".into()), concurrency: Some(many), ..Row::default() };
    latencies.fill(&mut row);
    engine.shutdown(Duration::from_secs(10)).await?;
    Ok((each, row))
}

/// Starts `burst` no-op executions at once, waits for all of them, and returns the row of the run.
async fn measure_burst(target: &Target, burst: usize) -> Result<Row, Error> {
    let workflow = crate::experiments::workflows::workflow();
    let engine = Engine::builder(target.store().await?).register(&workflow).open().await?;
    let latencies = Arc::new(Latencies::new(burst));
    let started: Vec<_> = (0..burst)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                let (n, begun) = (latencies.next().unwrap_or(0), Instant::now());
                let result = async { engine.start(&workflow, 1).await?.result().await }.await;
                latencies.record(n, begun, result.is_ok());
            })
        })
        .collect();
    for task in started {
        let _ = task.await;
    }
    let mut row = Row { mode: Some("burst".into()), concurrency: Some(burst), ..Row::default() };
    latencies.fill(&mut row);
    engine.shutdown(Duration::from_secs(10)).await?;
    Ok(row)
}

/// Polls all futures concurrently. Returns their outputs in order.
async fn poll_all<F: Future + Unpin>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        let mut is_pending = false;
        for (future, output) in futures.iter_mut().zip(outputs.iter_mut()) {
            if let Some(polled) = future {
                match std::pin::Pin::new(polled).poll(cx) {
                    std::task::Poll::Ready(ready) => {
                        *output = Some(ready);
                        *future = None;
                    }
                    std::task::Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect())
    })
    .await
}
