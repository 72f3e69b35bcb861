//! `bench takeover`: the time for which executions stand still after their worker is killed, or receives SIGTERM.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepfast::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::measure::Samples;
use crate::report::{Figure, Row};
use crate::target::TargetLocation;
use crate::worker::{Worker, WorkerEvent, WorkerEventKind};

/// The minimum number of terminations for which the target applies.
const MIN_KILLS_FOR_TARGET: usize = 20;
/// The target: the maximum time until an execution runs on another worker.
const TARGET_TIME: Duration = Duration::from_secs(5);
/// The time limit for an execution to run on another worker, and for workers to start. A later execution counts as failed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The way in which workers are terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// `SIGKILL`.
    Kill,
    /// `SIGTERM`: the worker requeues its executions.
    Drain,
}

impl Termination {
    fn as_str(self) -> &'static str {
        match self {
            Termination::Kill => "kill",
            Termination::Drain => "drain",
        }
    }
}

/// The parameters of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct TakeoverParameters {
    /// The way in which workers are terminated.
    pub termination: Termination,
    /// The number of terminations.
    pub times: usize,
    /// The number of workers, at least two.
    pub workers: usize,
    /// The number of long executions in all.
    pub executions: u32,
}

/// The workers, and the executions that each of them runs.
struct WorkerSet {
    url: String,
    running: BTreeMap<usize, Worker>,
    owners: BTreeMap<u32, usize>,
    event_sender: mpsc::UnboundedSender<WorkerEvent>,
    events: mpsc::UnboundedReceiver<WorkerEvent>,
    /// The number of the next worker.
    next_number: usize,
}

impl WorkerSet {
    /// Starts a worker, and waits until it is ready.
    async fn add(&mut self) -> Result<usize, Error> {
        let number = self.next_number;
        self.next_number += 1;
        let worker = Worker::start(&self.url, number, self.event_sender.clone())?;
        self.running.insert(number, worker);
        let deadline = Instant::now() + TIMEOUT;
        while let Some(event) = self.next_event(deadline).await {
            match event.kind {
                WorkerEventKind::Ready if event.worker == number => return Ok(number),
                WorkerEventKind::Ended if event.worker == number => break,
                _ => {}
            }
        }
        Err(Error::Unavailable("a worker did not start; its messages are above".into()))
    }

    /// Returns the next event, `None` after `deadline`. Updates the owners of executions.
    async fn next_event(&mut self, deadline: Instant) -> Option<WorkerEvent> {
        let event = timeout_at(deadline, self.events.recv()).await.ok().flatten()?;
        // the last events of a dead worker may arrive late
        if let WorkerEventKind::Begun(execution) = event.kind
            && self.running.contains_key(&event.worker)
        {
            self.owners.insert(execution, event.worker);
        }
        Some(event)
    }

    /// Returns the worker with the most executions, and these.
    fn busiest(&self) -> Option<(usize, BTreeSet<u32>)> {
        let mut by_worker: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        for (&execution, &worker) in &self.owners {
            by_worker.entry(worker).or_default().insert(execution);
        }
        by_worker.into_iter().max_by_key(|(_, executions)| executions.len())
    }
}

/// Terminates workers one by one. Returns the row, and the figure with its target.
///
/// Each sample is the time of one execution, from the signal until the body of its next step begins on another worker.
pub async fn run(
    location: &TargetLocation,
    parameters: TakeoverParameters,
    progress: &dyn Fn(u64),
) -> Result<(Row, Vec<Figure>), Error> {
    let target = location.open_fresh().await?;
    // creates the tables before the workers start
    drop(target.store().await?);
    let result = measure(&target.url, parameters, progress).await;
    target.close().await?;
    result
}

async fn measure(
    url: &str,
    parameters: TakeoverParameters,
    progress: &dyn Fn(u64),
) -> Result<(Row, Vec<Figure>), Error> {
    let TakeoverParameters { termination, times, executions, .. } = parameters;
    let count = parameters.workers.max(2);
    let (event_sender, events) = mpsc::unbounded_channel();
    let (running, owners) = (BTreeMap::new(), BTreeMap::new());
    let mut workers =
        WorkerSet { url: url.to_owned(), running, owners, event_sender, events, next_number: 0 };
    let each = (executions / count as u32).max(1);
    for _ in 0..count {
        let number = workers.add().await?;
        if let Some(worker) = workers.running.get_mut(&number) {
            worker.start_long(number as u32 * each, each).await?;
        }
    }
    let deadline = Instant::now() + TIMEOUT;
    while workers.owners.len() < count * each as usize {
        if workers.next_event(deadline).await.is_none() {
            return Err(Error::Unavailable("the long executions did not all begin within a minute".into()));
        }
    }
    let mut samples = Samples::default();
    let (mut failed, mut late) = (0, 0);
    for done in 0..times {
        // a random moment between two heartbeats of the other workers
        let pause = Instant::now() + Duration::from_millis(fastrand::u64(500..1_500));
        while workers.next_event(pause).await.is_some() {}
        let Some((target_worker, mut remaining)) = workers.busiest() else { break };
        let Some(mut worker) = workers.running.remove(&target_worker) else {
            return Err(Error::Unavailable("a worker has ended by itself".into()));
        };
        let ended_at = Instant::now();
        match termination {
            Termination::Kill => worker.kill()?,
            Termination::Drain => worker.drain()?,
        }
        while !remaining.is_empty() {
            let Some(WorkerEvent { worker, kind, at }) = workers.next_event(ended_at + TIMEOUT).await else {
                break;
            };
            if let WorkerEventKind::Begun(execution) = kind
                && worker != target_worker
                && remaining.remove(&execution)
            {
                let duration = at.saturating_duration_since(ended_at);
                samples.push(duration.as_secs_f64() * 1_000.0);
                late += u64::from(duration > TARGET_TIME);
            }
        }
        failed += remaining.len() as u64;
        workers.owners.retain(|execution, _| !remaining.contains(execution));
        worker.wait().await?;
        workers.add().await?;
        progress(done as u64 + 1);
    }
    for (_, mut worker) in std::mem::take(&mut workers.running) {
        worker.kill()?;
        worker.wait().await?;
    }
    let row = Row {
        concurrency: Some(count),
        callers: Some("workers".into()),
        failed,
        late: Some(late),
        ..samples.row(termination.as_str())
    };
    let name = format!("99 of 100 executions run elsewhere after a {}: 5 s", termination.as_str());
    let target = (times >= MIN_KILLS_FOR_TARGET).then_some(TARGET_TIME.as_secs_f64());
    let worst = if failed > 0 { TIMEOUT.as_secs_f64() } else { row.p99_ms / 1_000.0 };
    Ok((row, vec![Figure::new(name, worst, "s").at_most(target)]))
}
