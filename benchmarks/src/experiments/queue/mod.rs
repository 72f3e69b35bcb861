//! `bench queue`: callers enqueue no-op workflows, and workers run them.

pub mod backlog;
pub mod pauses;
pub mod rate;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use serde_json::json;
use stepfast::clock::{Clock, SystemClock};
use stepfast::queue::Queue;
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::bound::Probe;
use crate::experiments::writes::wait_for_all;
use crate::measure::{Latencies, Samples, ms_since};
use crate::python::Python;
use crate::report::Row;
use crate::target::Target;
use crate::worker::{Worker, WorkerEvent, WorkerEventKind};

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// Enqueueing workflows into paused queues.
    Enqueue,
    /// Running the workflows that wait in the queues.
    Drain,
    /// Both at the same time.
    Both,
}

impl QueueMode {
    /// The mode's name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueMode::Enqueue => "enqueue",
            QueueMode::Drain => "drain",
            QueueMode::Both => "both",
        }
    }
}

/// The parameters of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct QueueParameters {
    /// The number of queues.
    pub queues: usize,
    /// The number of worker processes. With 0, this process runs the workflows itself.
    pub workers: usize,
    /// The number of concurrent callers that enqueue workflows.
    pub concurrency: usize,
    /// The number of workflows in all.
    pub iterations: usize,
    /// The concurrency limit of each queue. `None` means no limit.
    pub limit: Option<u32>,
}

/// A counter of workflows that have begun in this process.
#[derive(Default)]
pub struct RunCounter {
    pub(crate) count: AtomicU64,
    pub(crate) changed: Notify,
}

/// Returns a workflow whose output is the time at which it began, in microseconds.
pub fn workflow(run_counter: &Arc<RunCounter>) -> Workflow<u32, i64> {
    let run_counter = run_counter.clone();
    Workflow::new("bench queued", move |_: Context, _: u32| {
        let run_counter = run_counter.clone();
        async move {
            let at = now_micros();
            run_counter.count.fetch_add(1, SeqCst);
            run_counter.changed.notify_one();
            Ok::<i64, Failure>(at)
        }
    })
}

pub(crate) fn now_micros() -> i64 {
    SystemClock.now().as_micros()
}

/// The processes that run the enqueued workflows.
pub(crate) enum Runners {
    /// This process.
    ThisProcess(Arc<RunCounter>),
    /// Other processes, with the number of workflows that each has run.
    OtherProcesses {
        workers: Vec<Worker>,
        events: mpsc::UnboundedReceiver<WorkerEvent>,
        run_counts: Vec<u64>,
    },
}

impl Runners {
    pub(crate) async fn start(url: &str, count: usize) -> Result<Self, Error> {
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let start = |number| Worker::start(url, number, event_sender.clone());
        let workers = (0..count).map(start).collect::<Result<Vec<_>, Error>>()?;
        for _ in 0..count {
            if events.recv().await.is_none_or(|event| event.kind == WorkerEventKind::Ended) {
                return Err(Error::Unavailable("a worker did not start; its messages are above".into()));
            }
        }
        Ok(Runners::OtherProcesses { workers, events, run_counts: vec![0; count] })
    }

    /// Waits until `total` workflows have run since the start, and their ends are durable.
    async fn wait_for_runs(
        &mut self,
        total: u64,
        engine: &Engine,
        progress: &dyn Fn(u64),
    ) -> Result<(), Error> {
        match self {
            Runners::ThisProcess(run_counter) => {
                while run_counter.count.load(SeqCst) < total {
                    run_counter.changed.notified().await;
                    progress(run_counter.count.load(SeqCst));
                }
                while engine.running_count() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Runners::OtherProcesses { events, run_counts, .. } => {
                while run_counts.iter().sum::<u64>() < total {
                    match events.recv().await {
                        Some(WorkerEvent { worker, kind: WorkerEventKind::Ran(count), .. }) => {
                            run_counts[worker] = count;
                        }
                        Some(WorkerEvent { kind: WorkerEventKind::Ended, .. }) | None => {
                            return Err(Error::Unavailable("a worker has ended by itself".into()));
                        }
                        _ => {}
                    }
                    progress(run_counts.iter().sum());
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn wait_for_end(self) -> Result<(), Error> {
        if let Runners::OtherProcesses { workers, .. } = self {
            for worker in workers {
                worker.wait().await?;
            }
        }
        Ok(())
    }
}

/// Enqueues workflows and runs them: first one after the other, then both at the same time, then one workflow at a time.
pub async fn run(
    target: &Target,
    parameters: QueueParameters,
    progress: &dyn Fn(u64),
) -> Result<Vec<Row>, Error> {
    let run_counter = Arc::new(RunCounter::default());
    let workflow = workflow(&run_counter);
    let names: Vec<String> = (0..parameters.queues).map(|n| format!("bench {n}")).collect();
    let mut builder = Engine::builder(target.store().await?).register(&workflow);
    if parameters.workers > 0 {
        // this process enqueues workflows and does not run them
        builder = builder.serve_queues(["bench none"]);
    }
    for name in &names {
        let queue = Queue::new(name);
        builder = builder.queue(match parameters.limit {
            Some(limit) => queue.concurrency(limit),
            None => queue,
        });
    }
    let engine = builder.open().await?;
    let runners = match parameters.workers {
        0 => Runners::ThisProcess(run_counter),
        workers => Runners::start(&target.url, workers).await?,
    };
    let mut bench = QueueBench { target, parameters, engine, workflow, names, runners, enqueued: 0 };
    let rows = bench.run(progress).await;
    bench.engine.shutdown(Duration::from_secs(10)).await?;
    bench.runners.wait_for_end().await?;
    rows
}

/// Runs the same experiment in one process of Python, which enqueues and runs the workflows.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: QueueParameters,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Vec<Row>, String)> {
    let QueueParameters { queues, concurrency, iterations, limit, .. } = parameters;
    let input = json!({
        "url": target.url,
        "queues": queues,
        "concurrency": concurrency,
        "total": iterations,
        "limit": limit,
    });
    let mut python = Python::start(python, "queue", input)?;
    let mut measured = Vec::new();
    for mode in [QueueMode::Enqueue, QueueMode::Drain, QueueMode::Both] {
        let probe = Probe::start_for_process(target, python.id()).await?;
        let row: Row = python.resume_until("row", progress)?;
        measured.push((mode, row, probe.stop(None).await?));
    }
    let pairs: Vec<(f64, f64)> = python.resume_until("waits", &|_| {})?;
    let mut waits = WaitTimes::default();
    for (start, result) in pairs {
        waits.starts.push(start);
        waits.results.push(result);
    }
    let messages = python.finish()?;
    let mut rows = Vec::new();
    for (mode, row, observation) in measured {
        let mut row =
            Row { concurrency: Some(concurrency), ..with_queue_columns(row, mode.as_str(), parameters) };
        observation.fill(target, &mut row).await?;
        rows.push(row);
    }
    rows.extend(latency_rows("one at a time", &waits, parameters));
    Ok((rows, messages))
}

fn with_queue_columns(row: Row, mode: &str, parameters: QueueParameters) -> Row {
    let QueueParameters { queues, workers, .. } = parameters;
    Row { mode: Some(mode.to_owned()), queues: Some(queues), workers: Some(workers), ..row }
}

fn latency_rows(mode: &str, waits: &WaitTimes, parameters: QueueParameters) -> [Row; 2] {
    let row = |samples: &Samples, label: &str| {
        let mode = format!("{mode}, {label}");
        Row { concurrency: Some(1), ..with_queue_columns(samples.row(&mode), &mode, parameters) }
    };
    [row(&waits.starts, "to start"), row(&waits.results, "to result")]
}

struct QueueBench<'t> {
    target: &'t Target,
    parameters: QueueParameters,
    engine: Engine,
    workflow: Workflow<u32, i64>,
    names: Vec<String>,
    runners: Runners,
    /// The number of workflows enqueued so far.
    enqueued: u64,
}

impl QueueBench<'_> {
    async fn run(&mut self, progress: &dyn Fn(u64)) -> Result<Vec<Row>, Error> {
        // a warm-up, not measured
        let warm_up = (self.parameters.iterations / 20).clamp(1, 2_000);
        self.enqueue(64, warm_up, &|_| {}).await;
        self.wait_for_runs(&|_| {}).await?;
        let mut rows = Vec::new();
        self.set_paused(true).await?;
        rows.push(self.measure(QueueMode::Enqueue, progress).await?.0);
        rows.push(self.measure(QueueMode::Drain, progress).await?.0);
        let (row, under_load) = self.measure(QueueMode::Both, progress).await?;
        rows.push(row);
        rows.extend(latency_rows("under load", &under_load, self.parameters));
        // one at a time, without other load
        let alone = self.run_one_by_one(200, &AtomicBool::new(false)).await?;
        rows.extend(latency_rows("one at a time", &alone, self.parameters));
        Ok(rows)
    }

    /// Measures one mode. For `Both`, also returns the wait times of one caller.
    async fn measure(&mut self, mode: QueueMode, progress: &dyn Fn(u64)) -> Result<(Row, WaitTimes), Error> {
        let QueueParameters { concurrency, iterations, .. } = self.parameters;
        let row = Row { concurrency: Some(concurrency), ..Row::default() };
        let mut row = with_queue_columns(row, mode.as_str(), self.parameters);
        let probe = Probe::start(self.target, Some(self.engine.store())).await?;
        let counted = self.engine.store().counters().snapshot();
        let bytes = self.target.bytes_written().await;
        let mut waits = WaitTimes::default();
        let begun = Instant::now();
        match mode {
            QueueMode::Enqueue => self.enqueue(concurrency, iterations, progress).await.fill(&mut row),
            QueueMode::Drain => {
                self.set_paused(false).await?;
                self.wait_for_runs(progress).await?;
                row.completed = iterations as u64;
                row.seconds = begun.elapsed().as_secs_f64();
                row.per_second = row.completed as f64 / row.seconds.max(1e-9);
            }
            QueueMode::Both => {
                let is_finished = Arc::new(AtomicBool::new(false));
                let sampler = self.spawn_sampler(is_finished.clone());
                let latencies = self.enqueue(concurrency, iterations, progress).await;
                is_finished.store(true, SeqCst);
                waits = sampler.await.map_err(|_| Error::Shutdown)??;
                self.enqueued += waits.results.len() as u64;
                self.wait_for_runs(progress).await?;
                latencies.fill_with_elapsed(begun.elapsed(), &mut row);
            }
        }
        let observation = probe.stop(Some(self.engine.store())).await?;
        let counted = self.engine.store().counters().snapshot().since(&counted);
        row.flushes = counted.flushes;
        row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
        row.bytes_written = self.target.bytes_written().await - bytes;
        observation.fill(self.target, &mut row).await?;
        Ok((row, waits))
    }

    /// Starts an additional caller, which waits for the result of each of its workflows.
    fn spawn_sampler(
        &self,
        is_finished: Arc<AtomicBool>,
    ) -> tokio::task::JoinHandle<Result<WaitTimes, Error>> {
        let (engine, workflow, name) = (self.engine.clone(), self.workflow.clone(), self.names[0].clone());
        tokio::spawn(async move { run_one_by_one(&engine, &workflow, &name, usize::MAX, &is_finished).await })
    }

    async fn run_one_by_one(&mut self, limit: usize, is_finished: &AtomicBool) -> Result<WaitTimes, Error> {
        let waits = run_one_by_one(&self.engine, &self.workflow, &self.names[0], limit, is_finished).await?;
        self.enqueued += waits.results.len() as u64;
        Ok(waits)
    }

    async fn set_paused(&self, is_paused: bool) -> Result<(), Error> {
        for name in &self.names {
            if is_paused {
                self.engine.pause_queue(name).await?;
            } else {
                self.engine.resume_queue(name).await?;
            }
        }
        Ok(())
    }

    async fn enqueue(&mut self, callers: usize, total: usize, progress: &dyn Fn(u64)) -> Arc<Latencies> {
        self.enqueued += total as u64;
        enqueue(&self.engine, &self.workflow, &self.names, callers, total, progress).await
    }

    async fn wait_for_runs(&mut self, progress: &dyn Fn(u64)) -> Result<(), Error> {
        let before = self.enqueued - (self.parameters.iterations as u64).min(self.enqueued);
        self.runners
            .wait_for_runs(self.enqueued, &self.engine, &|ran| progress(ran.saturating_sub(before)))
            .await
    }
}

/// The times that callers have waited after they enqueued a workflow.
#[derive(Default)]
struct WaitTimes {
    /// The times until the workflow began.
    starts: Samples,
    /// The times until the caller had its result.
    results: Samples,
}

/// Enqueues workflows one after the other, and waits for the result of each.
async fn run_one_by_one(
    engine: &Engine,
    workflow: &Workflow<u32, i64>,
    name: &str,
    limit: usize,
    is_finished: &AtomicBool,
) -> Result<WaitTimes, Error> {
    let mut waits = WaitTimes::default();
    for _ in 0..limit {
        if is_finished.load(SeqCst) {
            break;
        }
        let (begun, at) = (Instant::now(), now_micros());
        let began = engine.run(workflow, 0).queue(name).await?;
        waits.results.push(ms_since(begun));
        waits.starts.push((began - at).max(0) as f64 / 1000.0);
    }
    Ok(waits)
}

/// Enqueues `total` workflows by concurrent callers, in these queues in turn.
pub(crate) async fn enqueue(
    engine: &Engine,
    workflow: &Workflow<u32, i64>,
    names: &[String],
    callers: usize,
    total: usize,
    progress: &dyn Fn(u64),
) -> Arc<Latencies> {
    let latencies = Arc::new(Latencies::new(total));
    let names: Arc<[String]> = names.into();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, workflow, latencies) = (engine.clone(), workflow.clone(), latencies.clone());
            let names = names.clone();
            tokio::spawn(async move {
                while let Some(n) = latencies.next() {
                    let begun = Instant::now();
                    let started = engine.start(&workflow, 0).queue(&names[n % names.len()]).await;
                    latencies.record(n, begun, started.is_ok());
                }
            })
        })
        .collect();
    wait_for_all(callers, &latencies, progress).await;
    latencies
}
