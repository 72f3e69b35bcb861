//! `bench batching`: the effect of batching. Items are written in calls of one to many, a large batch runs to its end, and
//! finished executions are searched for in calls of one to many.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::bail;
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfast::{Client, Context, Engine, Error, Failure, Status, Workflow};
use tokio::time::Instant;

use crate::measure::{Samples, ms_since};
use crate::python::Python;
use crate::report::{Figure, Row};
use crate::target::Target;

/// The rates that RogueDB has published for writes, in items per second by items per call. Their machine had an i7-13700H.
/// Source: <https://www.roguedb.com/blog/roguedb-throughput-effects-of-batching>.
const PUBLISHED_WRITES: [(usize, f64); 6] = [
    (1, 23_000.0),
    (1_000, 3_605_522.0),
    (2_000, 5_333_167.0),
    (5_000, 7_133_333.0),
    (10_000, 7_969_833.0),
    (20_000, 9_153_414.0),
];

/// The rates that RogueDB has published for searches, in items per second by items per call, from the same source.
const PUBLISHED_SEARCHES: [(usize, f64); 5] =
    [(1, 173_065.0), (10, 466_203.0), (100, 590_052.0), (1_000, 916_034.0), (2_000, 1_014_414.0)];

/// One of this many ids that are searched for does not exist.
const ABSENT_EVERY: u64 = 10;

/// The number of tasks that start the executions with ids of their own.
const STARTING_TASKS: u64 = 1_000;

/// The number of steps of an item with steps.
const STEPS: u32 = 3;

/// The parameters of an experiment.
pub struct BatchingParameters {
    /// The numbers of items per call.
    pub sizes: Vec<usize>,
    /// The time for which each number of items per call is measured.
    pub duration: Duration,
    /// The numbers of items of the batches that run.
    pub items: Vec<u64>,
    /// The numbers of tasks that start executions by single calls.
    pub callers: Vec<usize>,
    /// The number of finished items among which ids are searched for. A tenth as many single executions are searched for,
    /// too. 0 for no search.
    pub search_items: u64,
    /// The Python that makes the calls; `None` for this program.
    pub python: Option<PathBuf>,
}

/// An operation in a Python process.
struct PythonOperation<'p> {
    python: &'p Path,
    name: &'static str,
    parameters: Value,
}

impl PythonOperation<'_> {
    /// Measures the operation on a store. Returns its row, and for a batch that runs the time until all items were durable,
    /// in milliseconds.
    fn measure(self, url: &str) -> anyhow::Result<(Row, f64)> {
        let Self { python, name, mut parameters } = self;
        parameters["operation"] = name.into();
        parameters["url"] = url.into();
        let mut process = Python::start(python, "batching", parameters)?;
        let PythonRow { completed, failed, seconds, per_second, p50_ms, p99_ms, max_ms } =
            process.resume_until("row", &|_| {})?;
        let submitted_ms = if name == "run" { process.receive("submitted_ms", &|_| {})? } else { 0.0 };
        process.finish()?;
        let row = Row { completed, failed, seconds, per_second, p50_ms, p99_ms, max_ms, ..Row::default() };
        Ok((row, submitted_ms))
    }
}

/// The part of a [`Row`] that a Python process measures.
#[derive(Deserialize)]
struct PythonRow {
    completed: u64,
    failed: u64,
    seconds: f64,
    per_second: f64,
    #[serde(default)]
    p50_ms: f64,
    #[serde(default)]
    p99_ms: f64,
    #[serde(default)]
    max_ms: f64,
}

impl BatchingParameters {
    /// Returns an operation in Python; `None` if this program makes the calls.
    fn in_python(&self, name: &'static str, parameters: Value) -> Option<PythonOperation<'_>> {
        Some(PythonOperation { python: self.python.as_deref()?, name, parameters })
    }

    /// Returns the number of measurements, for the display of progress.
    pub fn total(&self) -> u64 {
        let searches = if self.search_items > 0 { 3 * PUBLISHED_SEARCHES.len() } else { 0 };
        (self.sizes.len() + 2 * self.items.len() + self.callers.len() + searches) as u64
    }
}

/// A batch of this workflow is written, but not run.
fn unregistered() -> Workflow<u64, u64> {
    Workflow::named("batching")
}

/// Writes batches of `size` items by one caller, one call after the other.
async fn write(target: &Target, size: usize, duration: Duration) -> Result<Row, Error> {
    let client = Client::open(target.store().await?).await?;
    let workflow = unregistered();
    let mut samples = Samples::default();
    let mut latencies = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < duration {
        let call = Instant::now();
        client.submit_batch(&workflow, 0..size as u64).await?;
        latencies.push(ms_since(call));
    }
    let seconds = begun.elapsed().as_secs_f64();
    for ms in &latencies {
        samples.push(*ms);
    }
    let completed = (latencies.len() * size) as u64;
    client.shutdown(Duration::from_secs(10)).await?;
    let per_second = completed as f64 / seconds;
    Ok(Row { completed, seconds, per_second, mode: None, ..samples.row("write") })
}

/// Starts executions by single calls of `callers` tasks.
async fn single_calls(target: &Target, callers: usize, duration: Duration) -> Result<Row, Error> {
    let client = Client::open(target.store().await?).await?;
    let begun = Instant::now();
    let calls = (0..callers as u64).map(|caller| {
        let (client, workflow) = (client.clone(), unregistered());
        tokio::spawn(async move {
            let mut calls = 0;
            while begun.elapsed() < duration {
                client.start(&workflow, caller).await?;
                calls += 1;
            }
            Ok::<u64, Error>(calls)
        })
    });
    let calls = try_join_all(calls).await.map_err(|error| Error::Unavailable(error.to_string()))?;
    let completed: u64 = calls.into_iter().sum::<Result<u64, Error>>()?;
    let seconds = begun.elapsed().as_secs_f64();
    client.shutdown(Duration::from_secs(10)).await?;
    Ok(Row { completed, seconds, per_second: completed as f64 / seconds, ..Row::default() })
}

/// Submits a batch of `items` and waits until all of them have ended. Each item has this number of steps. Also returns the
/// time until all items were durable, in milliseconds.
async fn run_batch(target: &Target, items: u64, steps: u32) -> Result<(Row, f64), Error> {
    let workflow = Workflow::new("batching", move |mut cx: Context, x: u64| async move {
        for _ in 0..steps {
            cx.step("step", move || std::future::ready(Ok::<_, Failure>(x))).await?;
        }
        Ok::<_, Failure>(x)
    });
    let store = target.store().await?;
    let engine = Engine::builder(store.clone()).register(&workflow).open().await?;
    let flushes = store.counters().snapshot().flushes;
    let begun = Instant::now();
    let batch = engine.submit_batch(&workflow, 0..items).await?;
    let submitted_ms = ms_since(begun);
    let counts = batch.wait().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let flushes = store.counters().snapshot().flushes - flushes;
    engine.shutdown(Duration::from_secs(10)).await?;
    let row = Row {
        completed: counts.ended.completed,
        failed: items - counts.ended.completed,
        seconds,
        per_second: counts.ended.completed as f64 / seconds,
        flushes,
        ..Row::default()
    };
    Ok((row, submitted_ms))
}

/// Submits a batch as [`run_batch`] does, perhaps from Python. Also returns figures about the whole batch.
async fn measure_run(
    target: &Target,
    items: u64,
    steps: u32,
    parameters: &BatchingParameters,
) -> anyhow::Result<(Row, Vec<Figure>)> {
    let before = target.bytes_before_run().await?;
    let (row, submitted_ms) = match parameters.in_python("run", json!({ "items": items, "steps": steps })) {
        Some(operation) => operation.measure(&target.url)?,
        None => run_batch(target, items, steps).await?,
    };
    let op = if steps == 0 { "run".to_owned() } else { format!("run, {steps} steps") };
    let mut figures =
        vec![Figure::new(format!("{op}, {items} items: time until all are durable"), submitted_ms, "ms")];
    if let (Some(before), Some(after)) = (before, target.bytes_stored().await?) {
        let each = after.saturating_sub(before) as f64 / items.max(1) as f64;
        figures.push(Figure::new(format!("{op}, {items} items: stored per item"), each, "bytes"));
    }
    Ok((Row { op: Some(op), batch: Some(items), ..row }, figures))
}

/// The attribute of the single executions that are searched for. Its value is the id.
const ID_ATTRIBUTE: &str = "id";

/// Executions that are searched for.
struct SearchedIds {
    op: &'static str,
    /// Their ids, before the number.
    prefix: &'static str,
    /// Whether they are searched for by their attribute.
    by_attribute: bool,
    /// Their number. The output of each is its number.
    count: u64,
}

impl SearchedIds {
    /// Returns random ids, each with the output of its execution, and with `None` if no execution has the id.
    fn sample(&self, size: usize) -> (Vec<String>, Vec<Option<u64>>) {
        let one = |_| {
            let number = fastrand::u64(..self.count);
            let is_absent = fastrand::u64(..ABSENT_EVERY) == 0;
            let id = format!("{}{}", self.prefix, if is_absent { self.count + number } else { number });
            (id, (!is_absent).then_some(number))
        };
        (0..size).map(one).unzip()
    }
}

/// Searches for random ids in calls of `size` by one caller, and decodes the outputs. The time of the calls and of the
/// decoding counts.
async fn search(
    client: &Client,
    searched: &SearchedIds,
    size: usize,
    duration: Duration,
) -> Result<Row, Error> {
    let mut latencies = Vec::new();
    let mut failed = 0;
    let begun = Instant::now();
    while begun.elapsed() < duration {
        let (ids, expected) = searched.sample(size);
        let call = Instant::now();
        let found = if searched.by_attribute {
            let found = client.find(ID_ATTRIBUTE, &ids, 1).await?;
            found.into_iter().map(|mut of_value| of_value.pop()).collect()
        } else {
            client.get_many(&ids).await?
        };
        let outputs: Vec<Option<u64>> = found
            .iter()
            .map(|execution| {
                let completed = execution.as_ref().filter(|it| it.status == Status::Completed)?;
                completed.outcome.decode().ok()
            })
            .collect();
        latencies.push(ms_since(call));
        failed +=
            outputs.iter().zip(&expected).filter(|(output, expected)| output != expected).count() as u64;
    }
    latencies.sort_by(f64::total_cmp);
    let quantile = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let (seconds, completed) =
        (latencies.iter().sum::<f64>() / 1e3, (latencies.len() * size) as u64 - failed);
    Ok(Row {
        completed,
        failed,
        seconds,
        per_second: completed as f64 / seconds,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        max_ms: quantile(1.0),
        ..Row::default()
    })
}

/// Makes finished executions, and searches for them through a newly opened store.
async fn run_searches(
    target: &Target,
    parameters: &BatchingParameters,
    progress: &dyn Fn(),
) -> anyhow::Result<Vec<Row>> {
    let (items, duration) = (parameters.search_items, parameters.duration);
    let workflow = Workflow::new("batching", |_: Context, x: u64| std::future::ready(Ok::<u64, Failure>(x)));
    let items = SearchedIds { op: "search", prefix: "b#", by_attribute: false, count: items };
    let singles =
        SearchedIds { op: "search by id", prefix: "single-", count: items.count.div_ceil(10), ..items };
    let of_attribute = SearchedIds { op: "search by attribute", by_attribute: true, ..singles };
    let store = target.store().await?;
    let engine = Engine::builder(store.clone()).register(&workflow).open().await?;
    engine.submit_batch(&workflow, 0..items.count).batch_id("b").await?.wait().await?;
    let next = Arc::new(AtomicU64::new(0));
    let tasks = (0..STARTING_TASKS.min(singles.count)).map(|_| {
        let (engine, workflow, next) = (engine.clone(), workflow.clone(), next.clone());
        let (prefix, count) = (singles.prefix, singles.count);
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= count {
                    return Ok(());
                }
                let id = format!("{prefix}{number}");
                engine.run(&workflow, number).workflow_id(&*id).attribute(ID_ATTRIBUTE, &*id).await?;
            }
        })
    });
    let started = try_join_all(tasks).await?;
    started.into_iter().collect::<Result<(), Error>>()?;
    engine.shutdown(Duration::from_secs(10)).await?;
    // a store in memory cannot be opened a second time
    let is_memory = store.info().kind == "memory";
    if is_memory && parameters.python.is_some() {
        bail!("a search in Python needs a store in a database; leave it out with --search-items 0");
    }
    let store = if is_memory { store } else { target.store().await? };
    let client = Client::open(store).await?;
    let mut rows = Vec::new();
    for searched in [&items, &singles, &of_attribute] {
        for (size, published) in PUBLISHED_SEARCHES {
            let input = json!({
                "prefix": searched.prefix,
                "count": searched.count,
                "size": size,
                "seconds": duration.as_secs_f64(),
                "by_attribute": searched.by_attribute.then_some(ID_ATTRIBUTE),
            });
            let row = match parameters.in_python("search", input) {
                Some(operation) => operation.measure(&target.url)?.0,
                None => search(&client, searched, size, duration).await?,
            };
            let (op, batch) = (Some(searched.op.to_owned()), Some(size as u64));
            rows.push(Row { op, batch, published_per_second: Some(published), ..row });
            progress();
        }
    }
    client.shutdown(Duration::from_secs(10)).await?;
    Ok(rows)
}

/// Runs all measurements, each on a fresh store that `open` returns.
pub async fn run<F: Future<Output = Result<Target, Error>>>(
    open: impl Fn() -> F,
    parameters: &BatchingParameters,
    progress: &dyn Fn(),
) -> anyhow::Result<(Vec<Row>, Vec<Figure>)> {
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    for &size in &parameters.sizes {
        let target = open().await?;
        let input = json!({ "size": size, "seconds": parameters.duration.as_secs_f64() });
        let row = match parameters.in_python("write", input) {
            Some(operation) => operation.measure(&target.url)?.0,
            None => write(&target, size, parameters.duration).await?,
        };
        let published_per_second =
            PUBLISHED_WRITES.iter().find(|(published, _)| *published == size).map(|(_, rate)| *rate);
        rows.push(Row { op: Some("write".into()), batch: Some(size as u64), published_per_second, ..row });
        target.close().await?;
        progress();
    }
    for &callers in &parameters.callers {
        let target = open().await?;
        let input = json!({ "callers": callers, "seconds": parameters.duration.as_secs_f64() });
        let row = match parameters.in_python("single calls", input) {
            Some(operation) => operation.measure(&target.url)?.0,
            None => single_calls(&target, callers, parameters.duration).await?,
        };
        rows.push(Row { op: Some("single calls".into()), concurrency: Some(callers), ..row });
        target.close().await?;
        progress();
    }
    for steps in [0, STEPS] {
        for &items in &parameters.items {
            let target = open().await?;
            let (row, found) = measure_run(&target, items, steps, parameters).await?;
            rows.push(row);
            figures.extend(found);
            target.close().await?;
            progress();
        }
    }
    if parameters.search_items > 0 {
        let target = open().await?;
        rows.extend(run_searches(&target, parameters, progress).await?);
        target.close().await?;
    }
    Ok((rows, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_items_are_counted() {
        let parameters = BatchingParameters {
            sizes: vec![1, 1_500],
            duration: Duration::from_millis(20),
            items: vec![1_200],
            callers: vec![3],
            search_items: 1_500,
            python: None,
        };
        let open = || Target::open("memory", "full", None);
        let (rows, figures) = run(open, &parameters, &|| ()).await.unwrap();
        assert_eq!(rows.len() as u64, parameters.total());
        assert!(rows.iter().all(|row| row.completed > 0 && row.failed == 0), "{rows:?}");
        assert!(rows[1].completed.is_multiple_of(1_500));
        assert_eq!((rows[3].completed, rows[4].completed), (1_200, 1_200));
        assert!(!figures.is_empty());
        let searches: Vec<_> = rows[5..].iter().map(|row| (row.op.as_deref(), row.batch)).collect();
        assert_eq!((searches.len(), searches[0]), (15, (Some("search"), Some(1))));
        assert_eq!(searches[9], (Some("search by id"), Some(2_000)));
        assert_eq!(searches[14], (Some("search by attribute"), Some(2_000)));
    }
}
