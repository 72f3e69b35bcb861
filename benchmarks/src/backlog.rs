//! `bench backlog`: what a backlog in a queue costs those who take from it, and those who come behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast::queue::Queue;
use stepfast::{Engine, Error, Workflow};
use tokio::time::Instant;

use crate::measure::{Samples, ascending, median};
use crate::queue::{Ran, now, workflow};
use crate::report::{Figure, Row};
use crate::target::{Place, Target, unanswered};

/// The target: at most so much slower behind a backlog, in percent.
const SLOWER: f64 = 10.0;
/// The target: a few of another key begin within so many milliseconds.
const SOON: f64 = 1_000.0;
/// So many of them.
const FEW: usize = 10;
/// The queue.
const NAME: &str = "bench";
/// So many are put into it by one call.
const PORTION: usize = 50_000;

/// One sweep.
pub struct Sweep {
    /// How many executions wait at each step behind those that are run.
    pub backlog: Vec<usize>,
    /// How many are run each time.
    pub iterations: usize,
    /// Runs at each step, in turns with an empty queue beside it, of which the median counts.
    pub runs: usize,
}

impl Sweep {
    /// How much is to be done: executions that are put into queues or run.
    pub fn total(&self) -> u64 {
        let steps = ascending(&self.backlog);
        (steps.last().copied().unwrap_or(0) + 4 * steps.len() * self.runs.max(1) * self.iterations) as u64
    }
}

/// Fills a queue step by step. At each the queue is let go until so many have run, in turns with a queue in which no more
/// than those wait; and while it goes, a few of another key are put behind all of it.
pub async fn run(
    place: &Place,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = place.fresh().await?;
    let beside = place.beside(&target).fresh().await?;
    let measured = on(&target, &beside, sweep, progress).await;
    beside.close().await?;
    target.close().await?;
    measured
}

async fn on(
    target: &Target,
    beside: &Target,
    sweep: &Sweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut full, mut empty) = (Site::open(target).await?, Site::open(beside).await?);
    let (mut rows, mut figures, mut done) = (Vec::new(), Vec::new(), 0);
    // a warm-up, counted by nobody
    for site in [&mut full, &mut empty] {
        site.fill(sweep.iterations / 10).await?;
        site.drain(sweep.iterations / 10, false).await?;
    }
    for step in ascending(&sweep.backlog) {
        let (mut slower, mut filled, mut waits) = (Vec::new(), Vec::new(), Samples::default());
        for round in 0..sweep.runs.max(1) {
            progress(done, &format!("{step} waiting"));
            for (site, wanted) in [(&mut full, step + sweep.iterations), (&mut empty, sweep.iterations)] {
                let missing = wanted.saturating_sub(site.waiting());
                site.fill(missing).await?;
                done += missing as u64;
                progress(done, &format!("{step} waiting"));
            }
            // neither is always the one that comes after the other
            let (on_full, on_empty) = if round.is_multiple_of(2) {
                let on_full = full.drain(sweep.iterations, true).await?;
                (on_full, empty.drain(sweep.iterations, false).await?)
            } else {
                let on_empty = empty.drain(sweep.iterations, false).await?;
                (full.drain(sweep.iterations, true).await?, on_empty)
            };
            done += 2 * sweep.iterations as u64;
            slower.push((1.0 - on_full.per_second / on_empty.per_second.max(1e-9)) * 100.0);
            on_full.few.iter().for_each(|ms| waits.push(*ms));
            filled.push(on_full.per_second);
        }
        let row = Row { queues: Some(1), workers: Some(0), stored: Some(step), ..Row::default() };
        let per_second = median(&filled).unwrap_or_default();
        let completed = sweep.iterations as u64;
        let seconds = completed as f64 / per_second.max(1e-9);
        rows.push(Row { mode: Some("drain".into()), completed, seconds, per_second, ..row.clone() });
        let few = waits.row("ten of another key, to start");
        figures.push(
            Figure::new(
                format!("{step} waiting: slower than an empty queue beside it"),
                median(&slower).unwrap_or_default(),
                "%",
            )
            .at_most(SLOWER),
        );
        figures.push(
            Figure::new(format!("{step} waiting: the last of ten of another key begins"), few.max_ms, "ms")
                .at_most(SOON),
        );
        rows.push(Row { queues: Some(1), workers: Some(0), stored: Some(step), ..few });
    }
    full.engine.shutdown(Duration::from_secs(60)).await?;
    empty.engine.shutdown(Duration::from_secs(60)).await?;
    Ok((rows, figures))
}

/// A store with a queue that is paused.
struct Site<'t> {
    target: &'t Target,
    engine: Engine,
    workflow: Workflow<u32, i64>,
    ran: Arc<Ran>,
    /// How many have been put into the queue.
    put: usize,
}

/// What has come of letting the queue go.
struct Drained {
    per_second: f64,
    /// What each of another key had to wait until it began, in milliseconds.
    few: Vec<f64>,
}

impl<'t> Site<'t> {
    async fn open(target: &'t Target) -> Result<Self, Error> {
        let ran = Arc::new(Ran::default());
        let workflow = workflow(&ran);
        let builder = Engine::builder(target.store().await?).register(&workflow).queue(Queue::new(NAME));
        let engine = builder.open().await?;
        engine.pause_queue(NAME).await?;
        Ok(Self { target, engine, workflow, ran, put: 0 })
    }

    fn waiting(&self) -> usize {
        self.put - self.ran.count.load(SeqCst) as usize
    }

    /// Puts so many more into the queue, and lets the database tidy up.
    async fn fill(&mut self, mut missing: usize) -> Result<(), Error> {
        if missing == 0 {
            return Ok(());
        }
        while missing > 0 {
            let portion = missing.min(PORTION);
            let inputs = std::iter::repeat_n(0, portion);
            self.engine.start_many(&self.workflow, inputs).queue(NAME).key("many").await?;
            self.put += portion;
            missing -= portion;
        }
        if let Some(client) = self.target.postgres() {
            client.batch_execute("VACUUM (ANALYZE)").await.map_err(unanswered)?;
        }
        Ok(())
    }

    /// Lets it go until so many have run; if `with_few`, some of another key come when half of them have.
    async fn drain(&mut self, count: usize, with_few: bool) -> Result<Drained, Error> {
        let before = self.ran.count.load(SeqCst);
        let begun = Instant::now();
        self.engine.resume_queue(NAME).await?;
        let mut few = Vec::new();
        if with_few {
            self.until(before + count as u64 / 2).await;
            few = try_join_all((0..FEW).map(|_| self.one_of_few())).await?;
            self.put += FEW;
        }
        self.until(before + count as u64).await;
        let (seconds, ran) = (begun.elapsed().as_secs_f64(), self.ran.count.load(SeqCst) - before);
        self.engine.pause_queue(NAME).await?;
        // what was taken before the pause comes to its end
        while self.engine.running() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Drained { per_second: ran as f64 / seconds.max(1e-9), few })
    }

    async fn one_of_few(&self) -> Result<f64, Error> {
        let at = now();
        let began = self.engine.start(&self.workflow, 0).queue(NAME).key("few").await?.result().await?;
        Ok((began - at).max(0) as f64 / 1_000.0)
    }

    async fn until(&self, count: u64) {
        while self.ran.count.load(SeqCst) < count {
            self.ran.changed.notified().await;
        }
    }
}
