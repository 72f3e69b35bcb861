//! `bench history`: what finished executions that are stored cost those that run.

use std::sync::Arc;
use std::time::Duration;

use stepfast::Error;
use tokio::time::Instant;

use crate::measure::{Latencies, ascending, median};
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

/// A way to have workflows done, and its name.
type Way = (Mode, Ids, &'static str);

/// The ways that are measured.
const WAYS: [Way; 6] = [
    (Mode::Start, Ids::Minted, "start"),
    (Mode::Run, Ids::Minted, "run"),
    (Mode::Start, Ids::Given, "start, ids given"),
    (Mode::Run, Ids::Given, "run, ids given"),
    (Mode::Start, Ids::Ordered, "start, ids given in order"),
    (Mode::Run, Ids::Ordered, "run, ids given in order"),
];

/// One sweep.
pub struct Sweep {
    /// How many finished executions are stored at each step; each has an empty store beside it.
    pub executions: Vec<usize>,
    /// Concurrent callers.
    pub concurrency: usize,
    /// Workflows in each run.
    pub iterations: usize,
    /// Runs of each way at each step, and on empty stores, of which the median counts.
    pub runs: usize,
}

impl Sweep {
    /// How much is to be done: executions that are stored or run.
    pub fn total(&self) -> u64 {
        let steps = ascending(&self.executions);
        let measured = 2 * steps.len() * self.runs.max(1) * WAYS.len() * self.iterations;
        (steps.last().copied().unwrap_or(0) + measured) as u64
    }
}

/// Fills a store step by step, and measures at each, in turns with empty stores.
///
/// What is stored was run by the engine itself, half of it with ids given by its caller at random. The runs that are
/// measured stay in the store, too; the store beside it is empty whenever a run begins. In turns, because a machine that others use
/// has faster and slower minutes: what counts is the median of the ratios of neighbours.
pub async fn run(
    place: &Place,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    let measured = beside(&target, place.beside(&target), sweep, progress).await;
    target.close().await?;
    measured
}

async fn beside(
    target: &Target,
    place: Place,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let empty = place.fresh().await?;
    let mut runs = Runs { sweep, progress, done: 0, place, empty };
    let measured = on(target, &mut runs).await;
    runs.empty.close().await?;
    measured
}

/// Runs, and how much work all in all they have done.
struct Runs<'a> {
    sweep: &'a Sweep,
    progress: &'a dyn Fn(u64, &str),
    done: u64,
    /// The store beside the one that is filled, and where it is.
    empty: Target,
    place: Place,
}

impl Runs<'_> {
    async fn on_filled(&mut self, target: &Target, way: Way, stored: usize) -> Result<Row, Error> {
        let row = self.one(target, way, stored).await?;
        self.done += self.sweep.iterations as u64;
        Ok(row)
    }

    async fn on_empty(&mut self, way: Way) -> Result<Row, Error> {
        self.place.empty(&mut self.empty).await?;
        let row = self.one(&self.empty, way, 0).await?;
        self.done += self.sweep.iterations as u64;
        Ok(row)
    }

    async fn one(&self, target: &Target, (mode, ids, name): Way, stored: usize) -> Result<Row, Error> {
        let Sweep { concurrency, iterations, .. } = *self.sweep;
        let parameters = Parameters { mode, ids, concurrency, steps: 0, iterations: Some(iterations) };
        let said = format!("{name}, {stored} stored");
        let progress = |n| (self.progress)(self.done + n, &said);
        let row = workflows::run(target, parameters, &progress).await?;
        Ok(Row { stored: Some(stored), mode: Some(name.to_owned()), ..row })
    }
}

async fn on(target: &Target, runs: &mut Runs<'_>) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (sweep, progress) = (runs.sweep, runs.progress);
    let (mut on_empties, mut rows, mut figures) = (vec![Vec::new(); WAYS.len()], Vec::new(), Vec::new());
    let mut stored = 0;
    for wanted in ascending(&sweep.executions) {
        let (missing, done) = (wanted.saturating_sub(stored), runs.done);
        fill(target, missing, &|n| progress(done + n, &format!("storing up to {wanted}"))).await?;
        stored += missing;
        runs.done += missing as u64;
        let mut filled = vec![Vec::new(); WAYS.len()];
        let mut slower = vec![Vec::new(); WAYS.len()];
        for round in 0..sweep.runs.max(1) {
            for (i, way) in WAYS.into_iter().enumerate() {
                // neither is always the one that comes after the other
                let (on_empty, on_filled) = if round.is_multiple_of(2) {
                    let on_empty = runs.on_empty(way).await?;
                    (on_empty, runs.on_filled(target, way, wanted).await?)
                } else {
                    let on_filled = runs.on_filled(target, way, wanted).await?;
                    (runs.on_empty(way).await?, on_filled)
                };
                stored += sweep.iterations;
                slower[i].push((1.0 - on_filled.per_second / on_empty.per_second.max(1e-9)) * 100.0);
                on_empties[i].push(on_empty);
                filled[i].push(on_filled);
            }
        }
        for (way, slower) in WAYS.into_iter().zip(slower) {
            let name = format!("{}, {wanted} stored: slower than an empty store beside it", way.2);
            let limit = (wanted >= ENOUGH).then_some(SLOWER);
            figures.push(Figure::new(name, median(&slower).unwrap_or_default(), "%").at_most(limit));
        }
        rows.extend(filled.into_iter().map(middle));
    }
    let mut all: Vec<Row> = on_empties.into_iter().filter(|runs| !runs.is_empty()).map(middle).collect();
    all.extend(rows);
    Ok((all, figures))
}

/// The run in the middle.
fn middle(mut runs: Vec<Row>) -> Row {
    runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    runs.swap_remove(runs.len() / 2)
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
