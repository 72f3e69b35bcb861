//! `bench history`: what finished executions that are stored cost those that run.

use std::sync::Arc;
use std::time::Duration;

use stepfast::Error;
use tokio::time::Instant;

use crate::measure::Latencies;
use crate::report::{Figure, Row};
use crate::target::{Place, Target, unanswered};
use crate::workflows::{self, Ids, Mode, Parameters};
use crate::writes::until_all;

/// From so many stored executions on the target applies.
const ENOUGH: usize = 1_000_000;
/// The target: at most so much slower, in percent.
const SLOWER: f64 = 10.0;
/// Callers that fill the store.
const FILLERS: usize = 4_096;

/// The ways that are measured.
const WAYS: [(Mode, Ids, &str); 4] = [
    (Mode::Start, Ids::Minted, "start"),
    (Mode::Run, Ids::Minted, "run"),
    (Mode::Start, Ids::Given, "start, ids given"),
    (Mode::Run, Ids::Given, "run, ids given"),
];

/// One sweep.
pub struct Sweep {
    /// How many finished executions are stored at each step.
    pub executions: Vec<usize>,
    /// Concurrent callers.
    pub concurrency: usize,
    /// Workflows in each run.
    pub iterations: usize,
    /// Runs of each way at each step, of which the median counts.
    pub runs: usize,
}

impl Sweep {
    /// How much is to be done: executions that are stored or run.
    pub fn total(&self) -> u64 {
        let measured = self.executions.len() * self.runs * WAYS.len() * self.iterations;
        (self.executions.iter().max().copied().unwrap_or(0) + measured) as u64
    }
}

/// Fills a store step by step, and measures at each.
///
/// What is stored was run by the engine itself, half of it with ids given by its caller at random. The runs that are
/// measured stay in the store, too.
pub async fn run(
    place: &Place,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    let measured = on(&target, sweep, progress).await;
    target.close().await?;
    measured
}

async fn on(
    target: &Target,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut rows, mut figures): (Vec<Row>, Vec<Figure>) = (Vec::new(), Vec::new());
    let mut steps = sweep.executions.clone();
    steps.sort_unstable();
    let (mut done, mut stored) = (0, 0);
    for wanted in steps {
        let missing = wanted.saturating_sub(stored);
        fill(target, missing, &|n| progress(done + n, &format!("storing up to {wanted}"))).await?;
        stored += missing;
        done += missing as u64;
        let mut runs: Vec<Vec<Row>> = WAYS.iter().map(|_| Vec::new()).collect();
        for _ in 0..sweep.runs.max(1) {
            for ((mode, ids, name), runs) in WAYS.into_iter().zip(&mut runs) {
                let parameters = Parameters {
                    mode,
                    ids,
                    concurrency: sweep.concurrency,
                    steps: 0,
                    iterations: Some(sweep.iterations),
                };
                let mut row = workflows::run(target, parameters, &|n| {
                    progress(done + n, &format!("{name}, {wanted} stored"));
                })
                .await?;
                done += sweep.iterations as u64;
                stored += sweep.iterations;
                row.stored = Some(wanted);
                row.mode = Some(name.to_owned());
                runs.push(row);
            }
        }
        for mut runs in runs {
            runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let median = runs.swap_remove(runs.len() / 2);
            let first = rows.iter().find(|row| row.mode == median.mode);
            if let (Some(first), Some(mode)) = (first, &median.mode) {
                let slower = (1.0 - median.per_second / first.per_second.max(1e-9)) * 100.0;
                let limit = (wanted >= ENOUGH && first.stored == Some(0)).then_some(SLOWER);
                let fewest = first.stored.unwrap_or_default();
                let name = format!("{mode}, {wanted} stored: slower than with {fewest}");
                figures.push(Figure::new(name, slower, "%").at_most(limit));
            }
            rows.push(median);
        }
    }
    Ok((rows, figures))
}

/// Adds `many` finished executions, and lets the database tidy up.
async fn fill(target: &Target, many: usize, progress: &dyn Fn(u64)) -> Result<(), Error> {
    if many > 0 {
        let callers = FILLERS.min(many);
        let (engine, workflow) = workflows::open(target, callers).await?;
        let latencies = Arc::new(Latencies::new(many));
        let tasks = (0..callers).map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let ids = if n.is_multiple_of(2) { Ids::Minted } else { Ids::Given };
                    let ran = workflows::call(&engine, &workflow, Mode::Run, ids, 0).await;
                    latencies.note(n, begun, ran.is_ok());
                }
            })
        });
        until_all(tasks.collect(), &latencies, progress).await;
        engine.shutdown(Duration::from_secs(60)).await?;
        let mut row = Row::default();
        latencies.fill(&mut row);
        if row.failed > 0 {
            return Err(Error::Unavailable(format!("{} of {many} executions were not stored", row.failed)));
        }
    }
    if let Some(client) = target.postgres() {
        client.batch_execute("VACUUM (ANALYZE)").await.map_err(unanswered)?;
        // may be refused; the next one comes by itself
        let _ = client.batch_execute("CHECKPOINT").await;
    }
    Ok(())
}
