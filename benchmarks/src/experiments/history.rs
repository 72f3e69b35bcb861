//! `bench history`: the cost of stored finished executions for running ones.

use std::sync::Arc;
use std::time::Duration;

use stepfast::Error;
use tokio::time::Instant;

use crate::experiments::workflows::{self, IdSource, Mode, WorkflowParameters};
use crate::experiments::writes::wait_for_all;
use crate::measure::{Latencies, median, sort_ascending};
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The minimum number of stored executions for which the target applies.
const MIN_EXECUTIONS_FOR_TARGET: usize = 1_000_000;
/// The target: the maximum slowdown, in percent.
const MAX_SLOWDOWN_PERCENT: f64 = 10.0;
/// The number of callers that fill the store.
const FILL_CALLERS: usize = 4_096;

/// A method to start workflows, with its name.
type StartMethod = (Mode, IdSource, &'static str);

/// The ways to start workflows that are measured.
const START_METHODS: [StartMethod; 6] = [
    (Mode::Start, IdSource::Minted, "start"),
    (Mode::Run, IdSource::Minted, "run"),
    (Mode::Start, IdSource::Given, "start, ids given"),
    (Mode::Run, IdSource::Given, "run, ids given"),
    (Mode::Start, IdSource::Ordered, "start, ids given in order"),
    (Mode::Run, IdSource::Ordered, "run, ids given in order"),
];

/// The parameters of a sweep over numbers of stored executions.
pub struct HistorySweep {
    /// The numbers of finished executions, one for each step. Each step is compared with an empty store.
    pub executions: Vec<usize>,
    /// The number of concurrent callers.
    pub concurrency: usize,
    /// The number of workflows in each run.
    pub iterations: usize,
    /// The number of runs of each start method in each step, on both stores. The median counts.
    pub runs: usize,
}

impl HistorySweep {
    /// The number of executions that the sweep stores or runs, for the display of progress.
    pub fn total(&self) -> u64 {
        let steps = sort_ascending(&self.executions);
        let measured = 2 * steps.len() * self.runs * START_METHODS.len() * self.iterations;
        (steps.last().copied().unwrap_or(0) + measured) as u64
    }
}

/// Fills a store step by step, and measures it in each step, alternating with empty stores.
///
/// The stored executions were run by the engine itself, half of them with random ids of the caller. The measured runs stay
/// in the store, too. The other store is empty whenever a run begins. The runs alternate because a shared machine has faster
/// and slower minutes: the result is the median of the ratios of neighbouring runs.
pub async fn run(
    location: &TargetLocation,
    sweep: &HistorySweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = run_beside_empty_store(&target, location.sibling(&target), sweep, progress).await;
    target.close().await?;
    measured
}

async fn run_beside_empty_store(
    target: &Target,
    location: TargetLocation,
    sweep: &HistorySweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let empty = location.open_fresh().await?;
    let mut runs = HistoryRuns { sweep, progress, done: 0, location, empty };
    let measured = measure(target, &mut runs).await;
    runs.empty.close().await?;
    measured
}

/// The state of a sweep.
struct HistoryRuns<'a> {
    sweep: &'a HistorySweep,
    progress: &'a dyn Fn(u64, &str),
    done: u64,
    /// The store that is empty when each of its runs begins.
    empty: Target,
    /// The location of the empty store.
    location: TargetLocation,
}

impl HistoryRuns<'_> {
    async fn run_on_filled(
        &mut self,
        target: &Target,
        method: StartMethod,
        stored: usize,
    ) -> Result<Row, Error> {
        let row = self.run_one(target, method, stored).await?;
        self.done += self.sweep.iterations as u64;
        Ok(row)
    }

    async fn run_on_empty(&mut self, method: StartMethod) -> Result<Row, Error> {
        self.location.empty(&mut self.empty).await?;
        let row = self.run_one(&self.empty, method, 0).await?;
        self.done += self.sweep.iterations as u64;
        Ok(row)
    }

    async fn run_one(
        &self,
        target: &Target,
        (mode, ids, name): StartMethod,
        stored: usize,
    ) -> Result<Row, Error> {
        let HistorySweep { concurrency, iterations, .. } = *self.sweep;
        let parameters =
            WorkflowParameters { mode, ids, concurrency, steps: 0, iterations: Some(iterations) };
        let activity = format!("{name}, {stored} stored");
        let progress = |n| (self.progress)(self.done + n, &activity);
        let row = workflows::run(target, parameters, &progress).await?;
        Ok(Row { stored: Some(stored), mode: Some(name.to_owned()), ..row })
    }
}

async fn measure(target: &Target, runs: &mut HistoryRuns<'_>) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (sweep, progress) = (runs.sweep, runs.progress);
    let (mut runs_on_empty, mut rows, mut figures) =
        (vec![Vec::new(); START_METHODS.len()], Vec::new(), Vec::new());
    let mut stored = 0;
    for wanted in sort_ascending(&sweep.executions) {
        let (missing, done) = (wanted.saturating_sub(stored), runs.done);
        fill_store(target, missing, &|n| progress(done + n, &format!("storing up to {wanted}"))).await?;
        stored += missing;
        runs.done += missing as u64;
        let mut runs_on_filled = vec![Vec::new(); START_METHODS.len()];
        let mut slowdowns = vec![Vec::new(); START_METHODS.len()];
        for round in 0..sweep.runs {
            for (i, method) in START_METHODS.into_iter().enumerate() {
                // the order alternates, so that neither always runs second
                let (on_empty, on_filled) = if round.is_multiple_of(2) {
                    let on_empty = runs.run_on_empty(method).await?;
                    (on_empty, runs.run_on_filled(target, method, wanted).await?)
                } else {
                    let on_filled = runs.run_on_filled(target, method, wanted).await?;
                    (runs.run_on_empty(method).await?, on_filled)
                };
                stored += sweep.iterations;
                slowdowns[i].push((1.0 - on_filled.per_second / on_empty.per_second.max(1e-9)) * 100.0);
                runs_on_empty[i].push(on_empty);
                runs_on_filled[i].push(on_filled);
            }
        }
        for (method, slowdowns) in START_METHODS.into_iter().zip(slowdowns) {
            let name = format!("{}, {wanted} stored: slower than an empty store beside it", method.2);
            let limit = (wanted >= MIN_EXECUTIONS_FOR_TARGET).then_some(MAX_SLOWDOWN_PERCENT);
            figures.push(Figure::new(name, median(&slowdowns).unwrap_or_default(), "%").at_most(limit));
        }
        rows.extend(runs_on_filled.into_iter().map(median_run));
    }
    let mut all: Vec<Row> =
        runs_on_empty.into_iter().filter(|runs| !runs.is_empty()).map(median_run).collect();
    all.extend(rows);
    Ok((all, figures))
}

/// Returns the run with the median rate.
fn median_run(mut runs: Vec<Row>) -> Row {
    runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    runs.swap_remove(runs.len() / 2)
}

/// Adds `many` finished executions, and lets the database vacuum its tables.
async fn fill_store(target: &Target, many: usize, progress: &dyn Fn(u64)) -> Result<(), Error> {
    if many > 0 {
        let callers = FILL_CALLERS.min(many);
        let (engine, workflow) = workflows::open(target, callers).await?;
        let latencies = Arc::new(Latencies::new(many));
        let tasks = (0..callers).map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let ids = if n.is_multiple_of(2) { IdSource::Minted } else { IdSource::Given };
                    let ran = workflows::call(&engine, &workflow, Mode::Run, ids, 0).await;
                    latencies.record(n, begun, ran.is_ok());
                }
            })
        });
        wait_for_all(tasks.collect(), &latencies, progress).await;
        engine.shutdown(Duration::from_secs(60)).await?;
        let mut row = Row::default();
        latencies.fill(&mut row);
        if row.failed > 0 {
            return Err(Error::Unavailable(format!("{} of {many} executions were not stored", row.failed)));
        }
    }
    target.settle().await
}
