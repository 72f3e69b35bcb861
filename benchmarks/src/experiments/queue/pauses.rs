//! `bench pauses`: the time until a pause, or a changed limit, of a busy queue takes effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::{Engine, Error, Workflow};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::experiments::queue::{RunCounter, workflow};
use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::{Target, TargetLocation};
use crate::worker::{Worker, WorkerEvent, WorkerEventKind};

/// The name of the queue.
const QUEUE_NAME: &str = "bench";
/// The time for which the executions that end after a change are observed.
const OBSERVATION: Duration = Duration::from_millis(1_500);
/// The time for which the queue is busy before each change.
const BUSY_TIME: Duration = Duration::from_millis(500);
/// The interval between two calls that enqueue executions.
const ENQUEUE_INTERVAL: Duration = Duration::from_millis(10);
/// The interval in which ends are counted after the limit of the queue has changed.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);
/// The ratio of the queue's pace to the pace below which the limit is in effect.
const LIMITED_RATIO: u64 = 10;
/// The target for the 99th percentile, in milliseconds.
const MAX_EFFECT_MS: f64 = 1_000.0;
/// The minimum number of changes for which the target applies.
const MIN_CHANGES_FOR_TARGET: usize = 100;

/// The parameters of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct PauseParameters {
    /// The number of executions that are enqueued per second.
    pub per_second: u64,
    /// The number of worker processes.
    pub workers: usize,
    /// The number of pauses, and the number of changed limits.
    pub changes: usize,
}

/// A change of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Pause,
    /// The queue lets one execution run at a time.
    Limit,
}

/// Pauses a busy queue again and again, and limits it again and again. Measures the time from each call until the last
/// execution ends that the change no longer allows.
pub async fn run(
    location: &TargetLocation,
    parameters: PauseParameters,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    let measured = measure(&target, parameters, progress).await;
    target.close().await?;
    measured
}

async fn measure(
    target: &Target,
    parameters: PauseParameters,
    progress: &dyn Fn(u64, &str),
) -> Result<(Vec<Row>, Vec<Figure>), Error> {
    let workflow = workflow(&Arc::new(RunCounter::default()));
    // this process enqueues executions and does not run them
    let builder = Engine::builder(target.store().await?).register(&workflow).serve_queues(["bench none"]);
    let engine = builder.queue(Queue::new(QUEUE_NAME)).open().await?;
    let (sender, events) = mpsc::unbounded_channel();
    let start = |number| Worker::start(&target.url, number, sender.clone());
    let workers = (0..parameters.workers).map(start).collect::<Result<Vec<_>, Error>>()?;
    let (enqueued, is_finished) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let enqueueing = spawn_enqueueing(&engine, &workflow, parameters, &enqueued, &is_finished);
    let mut queue = BusyQueue { engine, parameters, events, run_counts: vec![0; workers.len()], enqueued };
    queue.wait_until_ready().await?;
    let (mut rows, mut figures, mut done) = (Vec::new(), Vec::new(), 0);
    for (change, name) in [(Change::Pause, "pause"), (Change::Limit, "concurrency of 1")] {
        let mut samples = Samples::default();
        for _ in 0..parameters.changes {
            progress(done, name);
            samples.push(queue.measure(change).await?);
            done += 1;
        }
        let row = samples.row(name);
        let limit = (parameters.changes >= MIN_CHANGES_FOR_TARGET).then_some(MAX_EFFECT_MS);
        figures.push(
            Figure::new(format!("{name}, until it has taken effect: 99th percentile"), row.p99_ms, "ms")
                .at_most(limit),
        );
        rows.push(row);
    }
    is_finished.store(true, SeqCst);
    enqueueing.await.map_err(|_| Error::Shutdown)??;
    queue.engine.shutdown(Duration::from_secs(10)).await?;
    for worker in workers {
        worker.wait().await?;
    }
    Ok((rows, figures))
}

/// Enqueues executions at an even pace until `is_finished`.
fn spawn_enqueueing(
    engine: &Engine,
    workflow: &Workflow<u32, i64>,
    parameters: PauseParameters,
    enqueued: &Arc<AtomicU64>,
    is_finished: &Arc<AtomicBool>,
) -> JoinHandle<Result<(), Error>> {
    let (engine, workflow) = (engine.clone(), workflow.clone());
    let (enqueued, is_finished) = (enqueued.clone(), is_finished.clone());
    tokio::spawn(async move {
        let begun = Instant::now();
        let mut tick = tokio::time::interval(ENQUEUE_INTERVAL);
        while !is_finished.load(SeqCst) {
            tick.tick().await;
            let due = (begun.elapsed().as_secs_f64() * parameters.per_second as f64) as u64;
            let missing = due.saturating_sub(enqueued.load(SeqCst)) as usize;
            if missing > 0 {
                let inputs = std::iter::repeat_n(0, missing);
                engine.start_many(&workflow, inputs).queue(QUEUE_NAME).await?;
                enqueued.fetch_add(missing as u64, SeqCst);
            }
        }
        Ok(())
    })
}

/// The queue, the worker processes that run its executions, and the process that enqueues them.
struct BusyQueue {
    engine: Engine,
    parameters: PauseParameters,
    events: mpsc::UnboundedReceiver<WorkerEvent>,
    /// The number of executions that each worker has run.
    run_counts: Vec<u64>,
    enqueued: Arc<AtomicU64>,
}

impl BusyQueue {
    async fn wait_until_ready(&mut self) -> Result<(), Error> {
        let mut ready = 0;
        while ready < self.run_counts.len() {
            match self.events.recv().await {
                Some(WorkerEvent { kind: WorkerEventKind::Ready, .. }) => ready += 1,
                Some(WorkerEvent { kind: WorkerEventKind::Ended, .. }) | None => return Err(ended()),
                Some(event) => self.note(&event),
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &WorkerEvent) {
        if let WorkerEventKind::Ran(count) = event.kind {
            self.run_counts[event.worker] = count;
        }
    }

    fn run_count(&self) -> u64 {
        self.run_counts.iter().sum()
    }

    /// Returns the time of the next report of a worker, before `end`.
    async fn next_report(&mut self, end: Instant) -> Result<Option<Instant>, Error> {
        loop {
            match timeout_at(end, self.events.recv()).await {
                Err(_) => return Ok(None),
                Ok(Some(WorkerEvent { kind: WorkerEventKind::Ended, .. }) | None) => return Err(ended()),
                Ok(Some(event)) => {
                    self.note(&event);
                    if matches!(event.kind, WorkerEventKind::Ran(_)) {
                        return Ok(Some(event.at));
                    }
                }
            }
        }
    }

    /// Waits until no backlog is left, and the queue has been busy for a while.
    async fn wait_until_busy(&mut self) -> Result<(), Error> {
        while self.run_count() + self.parameters.per_second / 10 < self.enqueued.load(SeqCst) {
            self.next_report(Instant::now() + ENQUEUE_INTERVAL).await?;
        }
        let end = Instant::now() + BUSY_TIME;
        while self.next_report(end).await?.is_some() {}
        Ok(())
    }

    /// Makes the change, and returns the milliseconds until it has taken effect. Then undoes the change.
    async fn measure(&mut self, change: Change) -> Result<f64, Error> {
        self.wait_until_busy().await?;
        let begun = Instant::now();
        let made = self.make(change);
        made.await?;
        let end = begun + OBSERVATION;
        let mut ends = vec![(begun, self.run_count())];
        while let Some(at) = self.next_report(end).await? {
            ends.push((at, self.run_count()));
        }
        match change {
            Change::Pause => self.engine.resume_queue(QUEUE_NAME).await.map(drop)?,
            Change::Limit => self.engine.set_queue(&Queue::new(QUEUE_NAME)).await.map(drop)?,
        }
        let last = match change {
            Change::Pause => ends.last().map(|(at, _)| *at),
            Change::Limit => self.last_unlimited(&ends),
        };
        Ok(last.map_or(0.0, |at| at.saturating_duration_since(begun).as_secs_f64() * 1_000.0))
    }

    async fn make(&self, change: Change) -> Result<(), Error> {
        match change {
            Change::Pause => self.engine.pause_queue(QUEUE_NAME).await.map(drop),
            Change::Limit => self.engine.set_queue(&Queue::new(QUEUE_NAME).concurrency(1)).await.map(drop),
        }
    }

    /// Returns the end of the last interval in which more executions ended than the limit allows.
    fn last_unlimited(&self, ends: &[(Instant, u64)]) -> Option<Instant> {
        let allowed = self.parameters.per_second * COUNT_INTERVAL.as_millis() as u64 / 1_000 / LIMITED_RATIO;
        let exceeds = |&&(at, count): &&(Instant, u64)| {
            let before = ends.iter().rev().find(|(earlier, _)| at.duration_since(*earlier) >= COUNT_INTERVAL);
            count - before.unwrap_or(&ends[0]).1 > allowed
        };
        ends.iter().rev().find(exceeds).map(|(at, _)| *at)
    }
}

fn ended() -> Error {
    Error::Unavailable("a worker has ended; its messages are above".into())
}
