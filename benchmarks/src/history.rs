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
    /// How many finished executions are stored at each step.
    pub executions: Vec<usize>,
    /// Concurrent callers.
    pub concurrency: usize,
    /// Workflows in each run.
    pub iterations: usize,
    /// Runs of each way at each step, and on empty stores, of which the median counts.
    pub runs: usize,
}

impl Sweep {
    /// How many finished executions are stored at each step, from the fewest. An empty store is none: each step has its
    /// own beside it.
    fn steps(&self) -> Vec<usize> {
        let mut steps: Vec<usize> = self.executions.iter().copied().filter(|stored| *stored > 0).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// How much is to be done: executions that are stored or run.
    pub fn total(&self) -> u64 {
        let steps = self.steps();
        let measured = 2 * steps.len() * self.runs.max(1) * WAYS.len() * self.iterations;
        (steps.last().copied().unwrap_or(0) + measured) as u64
    }
}

/// Fills a store step by step, and measures at each, in turns with empty stores.
///
/// What is stored was run by the engine itself, half of it with ids given by its caller at random. The runs that are
/// measured stay in the store, too; each run on an empty store has a new one. In turns, because a machine that others use
/// has faster and slower minutes: what counts is the median of the ratios of neighbours.
pub async fn run(
    place: &Place,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    let beside = place.beside(&target);
    let mut empty = Some(beside.fresh().await?);
    let measured = on(&target, &beside, &mut empty, sweep, progress).await;
    if let Some(empty) = empty {
        empty.close().await?;
    }
    target.close().await?;
    measured
}

/// A run, and with how much work all in all it was done.
struct Runs<'a> {
    sweep: &'a Sweep,
    progress: &'a dyn Fn(u64, &str),
    done: u64,
}

impl Runs<'_> {
    async fn one(&mut self, target: &Target, way: Way, stored: usize) -> Result<Row, Error> {
        let (mode, ids, name) = way;
        let Sweep { concurrency, iterations, .. } = *self.sweep;
        let parameters = Parameters { mode, ids, concurrency, steps: 0, iterations: Some(iterations) };
        let (progress, done) = (self.progress, self.done);
        let said = format!("{name}, {stored} stored");
        let mut row = workflows::run(target, parameters, &|n| progress(done + n, &said)).await?;
        self.done += iterations as u64;
        row.stored = Some(stored);
        row.mode = Some(name.to_owned());
        Ok(row)
    }

    async fn on_empty(&mut self, beside: &Place, empty: &mut Option<Target>, way: Way) -> Result<Row, Error> {
        if let Some(target) = empty.take() {
            *empty = Some(beside.emptied(target).await?);
        }
        match empty {
            Some(target) => self.one(target, way, 0).await,
            None => Err(Error::Unavailable("there is no empty store any more".to_owned())),
        }
    }
}

async fn on(
    target: &Target,
    beside: &Place,
    empty: &mut Option<Target>,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut on_empties, mut rows, mut figures) = (vec![Vec::new(); WAYS.len()], Vec::new(), Vec::new());
    let mut runs = Runs { sweep, progress, done: 0 };
    let mut stored = 0;
    for wanted in sweep.steps() {
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
                    let on_empty = runs.on_empty(beside, empty, way).await?;
                    (on_empty, runs.one(target, way, wanted).await?)
                } else {
                    let on_filled = runs.one(target, way, wanted).await?;
                    (runs.on_empty(beside, empty, way).await?, on_filled)
                };
                stored += sweep.iterations;
                slower[i].push((1.0 - on_filled.per_second / on_empty.per_second.max(1e-9)) * 100.0);
                on_empties[i].push(on_empty);
                filled[i].push(on_filled);
            }
        }
        for (way, mut slower) in WAYS.into_iter().zip(slower) {
            slower.sort_by(f64::total_cmp);
            let name = format!("{}, {wanted} stored: slower than an empty store beside it", way.2);
            let limit = (wanted >= ENOUGH).then_some(SLOWER);
            figures.push(Figure::new(name, slower[slower.len() / 2], "%").at_most(limit));
        }
        rows.extend(filled.into_iter().map(median));
    }
    let mut all: Vec<Row> = on_empties.into_iter().filter(|runs| !runs.is_empty()).map(median).collect();
    all.extend(rows);
    Ok((all, figures))
}

fn median(mut runs: Vec<Row>) -> Row {
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
