//! `bench backlog`: the cost of a backlog in a queue, for claims from it and for later starts.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::future::try_join_all;
use stepfast::queue::Queue;
use stepfast::{Engine, Error, Workflow};
use tokio::time::Instant;

use crate::experiments::queue::{RunCounter, enqueue, now_micros, workflow};
use crate::measure::{Samples, median, sort_ascending};
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};

/// The target: the maximum slowdown by a backlog, in percent.
const MAX_SLOWDOWN_PERCENT: f64 = 10.0;
/// The target: the maximum time until starts of another key begin, in milliseconds.
const MAX_WAIT_MS: f64 = 1_000.0;
/// The number of starts of another key in each run.
const OTHER_KEY_STARTS: usize = 10;
/// The name of the queue.
const QUEUE_NAME: &str = "bench";
/// The number of executions that one call enqueues.
const STARTS_PER_CALL: usize = 50_000;

/// The parameters of a sweep over sizes of the backlog.
pub struct BacklogSweep {
    /// The numbers of executions that wait behind those that a run executes, one for each step.
    pub backlog: Vec<usize>,
    /// The number of executions in each run.
    pub iterations: usize,
    /// The number of runs in each step. They alternate with runs on an empty queue, and the median counts.
    pub runs: usize,
}

impl BacklogSweep {
    /// The number of executions that the sweep enqueues or runs, for the display of progress.
    pub fn total(&self) -> u64 {
        let steps = sort_ascending(&self.backlog);
        (steps.last().copied().unwrap_or(0) + 4 * steps.len() * self.runs * self.iterations) as u64
    }
}

/// Fills a queue step by step. In each step, resumes the queue until the given number of executions have run. Such runs
/// alternate with runs of a queue that contains only that number. During each run, some starts of another key are enqueued
/// behind the backlog.
pub async fn run(
    location: &TargetLocation,
    sweep: &BacklogSweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let other = location.sibling(&target).open_fresh().await?;
    let measured = measure(&target, &other, sweep, progress).await;
    other.close().await?;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    other: &Target,
    sweep: &BacklogSweep,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let (mut full, mut empty) = (QueueStore::open(target).await?, QueueStore::open(other).await?);
    let (mut rows, mut figures, mut done) = (Vec::new(), Vec::new(), 0);
    // a warm-up, not measured
    for store in [&mut full, &mut empty] {
        store.fill(sweep.iterations / 10).await?;
        store.run_executions(sweep.iterations / 10, false).await?;
    }
    for step in sort_ascending(&sweep.backlog) {
        let (mut slowdowns, mut rates, mut waits) = (Vec::new(), Vec::new(), Samples::default());
        for round in 0..sweep.runs {
            progress(done, &format!("{step} waiting"));
            for (store, wanted) in [(&mut full, step + sweep.iterations), (&mut empty, sweep.iterations)] {
                let missing = wanted.saturating_sub(store.waiting_count());
                store.fill(missing).await?;
                done += missing as u64;
                progress(done, &format!("{step} waiting"));
            }
            // the order alternates, so that neither always runs second
            let (on_full, on_empty) = if round.is_multiple_of(2) {
                let on_full = full.run_executions(sweep.iterations, true).await?;
                (on_full, empty.run_executions(sweep.iterations, false).await?)
            } else {
                let on_empty = empty.run_executions(sweep.iterations, false).await?;
                (full.run_executions(sweep.iterations, true).await?, on_empty)
            };
            done += 2 * sweep.iterations as u64;
            slowdowns.push((1.0 - on_full.per_second / on_empty.per_second.max(1e-9)) * 100.0);
            on_full.other_key_waits_ms.iter().for_each(|ms| waits.push(*ms));
            rates.push(on_full.per_second);
        }
        let row = Row { queues: Some(1), workers: Some(0), stored: Some(step), ..Row::default() };
        let per_second = median(&rates).unwrap_or_default();
        let completed = sweep.iterations as u64;
        let seconds = completed as f64 / per_second.max(1e-9);
        rows.push(Row { mode: Some("drain".into()), completed, seconds, per_second, ..row.clone() });
        let other_key_row = waits.row("ten of another key, to start");
        figures.push(
            Figure::new(
                format!("{step} waiting: slower than an empty queue beside it"),
                median(&slowdowns).unwrap_or_default(),
                "%",
            )
            .at_most(MAX_SLOWDOWN_PERCENT),
        );
        figures.push(
            Figure::new(
                format!("{step} waiting: the last of ten of another key begins"),
                other_key_row.max_ms,
                "ms",
            )
            .at_most(MAX_WAIT_MS),
        );
        rows.push(Row { queues: Some(1), workers: Some(0), stored: Some(step), ..other_key_row });
    }
    full.close().await?;
    empty.close().await?;
    Ok((rows, figures))
}

/// A store with a paused queue.
pub(crate) struct QueueStore<'t> {
    target: &'t Target,
    engine: Engine,
    workflow: Workflow<u32, i64>,
    run_counter: Arc<RunCounter>,
    /// The number of executions enqueued so far.
    enqueued: usize,
}

/// The figures of one run of a queue.
pub(crate) struct QueueRun {
    pub(crate) per_second: f64,
    /// The wait times of the starts of another key, from enqueueing until they begin, in milliseconds.
    other_key_waits_ms: Vec<f64>,
}

impl<'t> QueueStore<'t> {
    pub(crate) async fn open(target: &'t Target) -> Result<Self, Error> {
        let run_counter = Arc::new(RunCounter::default());
        let workflow = workflow(&run_counter);
        let builder =
            Engine::builder(target.store().await?).register(&workflow).queue(Queue::new(QUEUE_NAME));
        let engine = builder.open().await?;
        engine.pause_queue(QUEUE_NAME).await?;
        Ok(Self { target, engine, workflow, run_counter, enqueued: 0 })
    }

    pub(crate) async fn close(self) -> Result<(), Error> {
        self.engine.shutdown(Duration::from_secs(60)).await
    }

    /// Enqueues executions by concurrent callers. Returns the number of executions enqueued per second.
    pub(crate) async fn enqueue(&mut self, callers: usize, count: usize) -> Result<f64, Error> {
        let names = [QUEUE_NAME.to_owned()];
        let begun = Instant::now();
        let latencies = enqueue(&self.engine, &self.workflow, &names, callers, count, &|_| {}).await;
        let mut row = Row::default();
        latencies.fill_with_elapsed(begun.elapsed(), &mut row);
        if row.failed > 0 {
            return Err(Error::Unavailable(format!("{} of {count} executions were not queued", row.failed)));
        }
        self.enqueued += count;
        Ok(row.per_second)
    }

    fn waiting_count(&self) -> usize {
        self.enqueued - self.run_counter.count.load(SeqCst) as usize
    }

    /// Enqueues `missing` executions, and lets the database vacuum its tables.
    async fn fill(&mut self, mut missing: usize) -> Result<(), Error> {
        if missing == 0 {
            return Ok(());
        }
        while missing > 0 {
            let batch = missing.min(STARTS_PER_CALL);
            let inputs = std::iter::repeat_n(0, batch);
            self.engine.start_many(&self.workflow, inputs).queue(QUEUE_NAME).key("many").await?;
            self.enqueued += batch;
            missing -= batch;
        }
        self.target.vacuum().await
    }

    /// Resumes the queue until `count` executions have run. With `with_other_key`, enqueues starts of another key when half of
    /// them have run.
    pub(crate) async fn run_executions(
        &mut self,
        count: usize,
        with_other_key: bool,
    ) -> Result<QueueRun, Error> {
        let before = self.run_counter.count.load(SeqCst);
        let begun = Instant::now();
        self.engine.resume_queue(QUEUE_NAME).await?;
        let mut other_key_waits_ms = Vec::new();
        if with_other_key {
            self.wait_for_runs(before + count as u64 / 2).await;
            other_key_waits_ms =
                try_join_all((0..OTHER_KEY_STARTS).map(|_| self.run_with_other_key())).await?;
            self.enqueued += OTHER_KEY_STARTS;
        }
        self.wait_for_runs(before + count as u64).await;
        let (seconds, ran) = (begun.elapsed().as_secs_f64(), self.run_counter.count.load(SeqCst) - before);
        self.engine.pause_queue(QUEUE_NAME).await?;
        // executions that were claimed before the pause run to their end
        while self.engine.running_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(QueueRun { per_second: ran as f64 / seconds.max(1e-9), other_key_waits_ms })
    }

    async fn run_with_other_key(&self) -> Result<f64, Error> {
        let at = now_micros();
        let began = self.engine.start(&self.workflow, 0).queue(QUEUE_NAME).key("few").await?.result().await?;
        Ok((began - at).max(0) as f64 / 1_000.0)
    }

    async fn wait_for_runs(&self, count: u64) {
        while self.run_counter.count.load(SeqCst) < count {
            self.run_counter.changed.notified().await;
        }
    }
}
