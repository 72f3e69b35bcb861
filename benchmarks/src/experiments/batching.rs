//! `bench batching`: the effect of batching. Items are written in calls of one to many, and a large batch runs to its end.

use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast::{Client, Context, Engine, Error, Failure, Workflow};
use tokio::time::Instant;

use crate::measure::{Samples, ms_since};
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
}

impl BatchingParameters {
    /// Returns the number of measurements, for the display of progress.
    pub fn total(&self) -> u64 {
        (self.sizes.len() + 2 * self.items.len() + self.callers.len()) as u64
    }
}

/// A batch of this workflow is written, but not run.
fn unregistered() -> Workflow<u64, u64> {
    Workflow::named("batching")
}

/// Writes batches of `size` items by one caller, one call after the other.
pub async fn write(target: &Target, size: usize, duration: Duration) -> Result<Row, Error> {
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
    let row = Row { completed, seconds, per_second: completed as f64 / seconds, ..samples.row("write") };
    client.shutdown(Duration::from_secs(10)).await?;
    Ok(Row { op: Some("write".into()), batch: Some(size as u64), mode: None, ..row })
}

/// Starts executions by single calls of `callers` tasks.
pub async fn single_calls(target: &Target, callers: usize, duration: Duration) -> Result<Row, Error> {
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
    Ok(Row {
        op: Some("single calls".into()),
        concurrency: Some(callers),
        completed,
        seconds,
        per_second: completed as f64 / seconds,
        ..Row::default()
    })
}

/// Submits a batch of `items` and waits until all of them have ended. Each item has this number of steps.
pub async fn run_batch(target: &Target, items: u64, steps: u32) -> Result<(Row, Vec<Figure>), Error> {
    let workflow = Workflow::new("batching", move |mut cx: Context, x: u64| async move {
        for _ in 0..steps {
            cx.step("step", move || std::future::ready(Ok::<_, Failure>(x))).await?;
        }
        Ok::<_, Failure>(x)
    });
    let store = target.store().await?;
    let before = target.bytes_stored().await?;
    let engine = Engine::builder(store.clone()).register(&workflow).open().await?;
    let flushes = store.counters().snapshot().flushes;
    let begun = Instant::now();
    let batch = engine.submit_batch(&workflow, 0..items).await?;
    let submitted_ms = ms_since(begun);
    let counts = batch.wait().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let flushes = store.counters().snapshot().flushes - flushes;
    engine.shutdown(Duration::from_secs(10)).await?;
    drop(store);
    let op = if steps == 0 { "run".to_owned() } else { format!("run, {steps} steps") };
    let mut figures =
        vec![Figure::new(format!("{op}, {items} items: time until all are durable"), submitted_ms, "ms")];
    if let (Some(before), Some(after)) = (before, target.bytes_stored().await?) {
        let each = after.saturating_sub(before) as f64 / items.max(1) as f64;
        figures.push(Figure::new(format!("{op}, {items} items: stored per item"), each, "bytes"));
    }
    let row = Row {
        op: Some(op),
        batch: Some(items),
        completed: counts.ended.completed,
        failed: items - counts.ended.completed,
        seconds,
        per_second: counts.ended.completed as f64 / seconds,
        flushes,
        ..Row::default()
    };
    Ok((row, figures))
}

/// Runs all measurements, each on a fresh store that `open` returns.
pub async fn run<F: Future<Output = Result<Target, Error>>>(
    open: impl Fn() -> F,
    parameters: &BatchingParameters,
    progress: &dyn Fn(),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    for &size in &parameters.sizes {
        let target = open().await?;
        let mut row = write(&target, size, parameters.duration).await?;
        row.published_per_second =
            PUBLISHED_WRITES.iter().find(|(published, _)| *published == size).map(|(_, rate)| *rate);
        rows.push(row);
        target.close().await?;
        progress();
    }
    for &callers in &parameters.callers {
        let target = open().await?;
        rows.push(single_calls(&target, callers, parameters.duration).await?);
        target.close().await?;
        progress();
    }
    for steps in [0, STEPS] {
        for &items in &parameters.items {
            let target = open().await?;
            let (row, found) = run_batch(&target, items, steps).await?;
            rows.push(row);
            figures.extend(found);
            target.close().await?;
            progress();
        }
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
        };
        let open = || Target::open("memory", "full", None);
        let (rows, figures) = run(open, &parameters, &|| ()).await.unwrap();
        assert_eq!(rows.len() as u64, parameters.total());
        assert!(rows.iter().all(|row| row.completed > 0 && row.failed == 0), "{rows:?}");
        assert!(rows[1].completed.is_multiple_of(1_500));
        assert_eq!((rows[3].completed, rows[4].completed), (1_200, 1_200));
        assert!(!figures.is_empty());
    }
}
