//! `bench queue`: callers put no-op workflows into queues, and workers run them.

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
use crate::measure::{Latencies, Samples, ms_since};
use crate::python::Python;
use crate::report::Row;
use crate::target::Target;
use crate::worker::{Told, What, Worker};
use crate::writes::until_all;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Putting workflows into queues that are paused.
    Enqueue,
    /// Running what waits in the queues.
    Drain,
    /// Both at once.
    Both,
}

impl Mode {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Enqueue => "enqueue",
            Mode::Drain => "drain",
            Mode::Both => "both",
        }
    }
}

/// One combination of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Queues.
    pub queues: usize,
    /// Worker processes beside this one; 0 if this one works itself.
    pub workers: usize,
    /// Concurrent callers that put workflows into them.
    pub concurrency: usize,
    /// Workflows in all.
    pub iterations: usize,
    /// Most that run at a time, in each queue; none for no limit.
    pub limit: Option<u32>,
}

/// What has run.
#[derive(Default)]
pub struct Ran {
    pub(crate) count: AtomicU64,
    pub(crate) changed: Notify,
}

/// The workflow: it returns when it began, in microseconds.
pub fn workflow(ran: &Arc<Ran>) -> Workflow<u32, i64> {
    let ran = ran.clone();
    Workflow::new("bench queued", move |_: Context, _: u32| {
        let ran = ran.clone();
        async move {
            let at = now();
            ran.count.fetch_add(1, SeqCst);
            ran.changed.notify_one();
            Ok::<i64, Failure>(at)
        }
    })
}

pub(crate) fn now() -> i64 {
    SystemClock.now().as_micros()
}

/// Whoever runs what is put into queues.
pub(crate) enum Runners {
    /// This process.
    Here(Arc<Ran>),
    /// Other processes, and how many each has run.
    There { workers: Vec<Worker>, told: mpsc::UnboundedReceiver<Told>, ran: Vec<u64> },
}

impl Runners {
    pub(crate) async fn start(url: &str, count: usize) -> Result<Self, Error> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let start = |number| Worker::start(url, number, tell.clone());
        let workers = (0..count).map(start).collect::<Result<Vec<_>, Error>>()?;
        for _ in 0..count {
            if told.recv().await.is_none_or(|told| told.what == What::Ended) {
                return Err(Error::Unavailable("a worker did not start; its messages are above".into()));
            }
        }
        Ok(Runners::There { workers, told, ran: vec![0; count] })
    }

    /// Waits until so many have run since the beginning, and their ends are durable.
    async fn until(&mut self, total: u64, engine: &Engine, progress: &dyn Fn(u64)) -> Result<(), Error> {
        match self {
            Runners::Here(all) => {
                while all.count.load(SeqCst) < total {
                    all.changed.notified().await;
                    progress(all.count.load(SeqCst));
                }
                while engine.running() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Runners::There { told, ran, .. } => {
                while ran.iter().sum::<u64>() < total {
                    match told.recv().await {
                        Some(Told { worker, what: What::Ran(count), .. }) => ran[worker] = count,
                        Some(Told { what: What::Ended, .. }) | None => {
                            return Err(Error::Unavailable("a worker has ended by itself".into()));
                        }
                        _ => {}
                    }
                    progress(ran.iter().sum());
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn end(self) -> Result<(), Error> {
        if let Runners::There { workers, .. } = self {
            for worker in workers {
                worker.ended().await?;
            }
        }
        Ok(())
    }
}

/// Puts workflows into queues and runs them: first one after the other, then both at once, then one at a time.
pub async fn run(target: &Target, parameters: Parameters, progress: &dyn Fn(u64)) -> Result<Vec<Row>, Error> {
    let ran = Arc::new(Ran::default());
    let workflow = workflow(&ran);
    let names: Vec<String> = (0..parameters.queues).map(|n| format!("bench {n}")).collect();
    let mut builder = Engine::builder(target.store().await?).register(&workflow);
    if parameters.workers > 0 {
        // this process puts in, and does not run
        builder = builder.serve(["bench none"]);
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
        0 => Runners::Here(ran),
        workers => Runners::start(&target.url, workers).await?,
    };
    let mut bench = Bench { target, parameters, engine, workflow, names, runners, put: 0 };
    let rows = bench.run(progress).await;
    bench.engine.shutdown(Duration::from_secs(10)).await?;
    bench.runners.end().await?;
    rows
}

/// The same in one process of Python, which puts in and runs.
pub async fn run_in_python(
    python: &Path,
    target: &Target,
    parameters: Parameters,
    progress: &dyn Fn(u64),
) -> anyhow::Result<(Vec<Row>, String)> {
    let Parameters { queues, concurrency, iterations, limit, .. } = parameters;
    let asked = json!({
        "url": target.url,
        "queues": queues,
        "concurrency": concurrency,
        "total": iterations,
        "limit": limit,
    });
    let mut python = Python::start(python, "queue", asked)?;
    let mut measured = Vec::new();
    for mode in [Mode::Enqueue, Mode::Drain, Mode::Both] {
        let probe = Probe::start(target, None).await?;
        let row: Row = python.go("row", progress)?;
        measured.push((mode, row, probe.stop(None).await?.by_another_process()));
    }
    let told: Vec<(f64, f64)> = python.go("waits", &|_| {})?;
    let mut waits = Waits::default();
    for (start, result) in told {
        waits.starts.push(start);
        waits.results.push(result);
    }
    let said = python.end()?;
    let mut rows = Vec::new();
    for (mode, row, seen) in measured {
        let mut row = Row { concurrency: Some(concurrency), ..in_queues(row, mode.as_str(), parameters) };
        seen.fill(target, &mut row).await?;
        rows.push(row);
    }
    rows.extend(latencies("one at a time", &waits, parameters));
    Ok((rows, said))
}

fn in_queues(row: Row, mode: &str, parameters: Parameters) -> Row {
    let Parameters { queues, workers, .. } = parameters;
    Row { mode: Some(mode.to_owned()), queues: Some(queues), workers: Some(workers), ..row }
}

fn latencies(mode: &str, waits: &Waits, parameters: Parameters) -> [Row; 2] {
    let row = |samples: &Samples, what: &str| {
        let mode = format!("{mode}, {what}");
        Row { concurrency: Some(1), ..in_queues(samples.row(&mode), &mode, parameters) }
    };
    [row(&waits.starts, "to start"), row(&waits.results, "to result")]
}

struct Bench<'t> {
    target: &'t Target,
    parameters: Parameters,
    engine: Engine,
    workflow: Workflow<u32, i64>,
    names: Vec<String>,
    runners: Runners,
    /// How many have been put into queues since the beginning.
    put: u64,
}

impl Bench<'_> {
    async fn run(&mut self, progress: &dyn Fn(u64)) -> Result<Vec<Row>, Error> {
        // a warm-up, counted by nobody
        let few = (self.parameters.iterations / 20).clamp(1, 2_000);
        self.enqueue(64, few, &|_| {}).await;
        self.all_ran(&|_| {}).await?;
        let mut rows = Vec::new();
        self.set_paused(true).await?;
        rows.push(self.measured(Mode::Enqueue, progress).await?.0);
        rows.push(self.measured(Mode::Drain, progress).await?.0);
        let (row, under_load) = self.measured(Mode::Both, progress).await?;
        rows.push(row);
        rows.extend(latencies("under load", &under_load, self.parameters));
        // one at a time, with nothing else to do
        let alone = self.one_by_one(200, &AtomicBool::new(false)).await?;
        rows.extend(latencies("one at a time", &alone, self.parameters));
        Ok(rows)
    }

    /// One mode; for both at once, also what some of the callers had to wait.
    async fn measured(&mut self, mode: Mode, progress: &dyn Fn(u64)) -> Result<(Row, Waits), Error> {
        let Parameters { concurrency, iterations, .. } = self.parameters;
        let row = Row { concurrency: Some(concurrency), ..Row::default() };
        let mut row = in_queues(row, mode.as_str(), self.parameters);
        let probe = Probe::start(self.target, Some(self.engine.store())).await?;
        let counted = self.engine.store().counters().snapshot();
        let bytes = self.target.bytes_written().await;
        let mut waits = Waits::default();
        let begun = Instant::now();
        match mode {
            Mode::Enqueue => self.enqueue(concurrency, iterations, progress).await.fill(&mut row),
            Mode::Drain => {
                self.set_paused(false).await?;
                self.all_ran(progress).await?;
                row.completed = iterations as u64;
                row.seconds = begun.elapsed().as_secs_f64();
                row.per_second = row.completed as f64 / row.seconds.max(1e-9);
            }
            Mode::Both => {
                let is_over = Arc::new(AtomicBool::new(false));
                let sampler = self.sampler(is_over.clone());
                let latencies = self.enqueue(concurrency, iterations, progress).await;
                is_over.store(true, SeqCst);
                waits = sampler.await.map_err(|_| Error::Shutdown)??;
                self.put += waits.results.len() as u64;
                self.all_ran(progress).await?;
                latencies.fill_after(begun.elapsed(), &mut row);
            }
        }
        let seen = probe.stop(Some(self.engine.store())).await?;
        let counted = self.engine.store().counters().snapshot().since(&counted);
        row.flushes = counted.flushes;
        row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
        row.bytes_written = self.target.bytes_written().await - bytes;
        seen.fill(self.target, &mut row).await?;
        Ok((row, waits))
    }

    /// A caller beside the others, who waits for each of his.
    fn sampler(&self, is_over: Arc<AtomicBool>) -> tokio::task::JoinHandle<Result<Waits, Error>> {
        let (engine, workflow, name) = (self.engine.clone(), self.workflow.clone(), self.names[0].clone());
        tokio::spawn(async move { one_by_one(&engine, &workflow, &name, usize::MAX, &is_over).await })
    }

    async fn one_by_one(&mut self, most: usize, is_over: &AtomicBool) -> Result<Waits, Error> {
        let waits = one_by_one(&self.engine, &self.workflow, &self.names[0], most, is_over).await?;
        self.put += waits.results.len() as u64;
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
        self.put += total as u64;
        enqueue(&self.engine, &self.workflow, &self.names, callers, total, progress).await
    }

    async fn all_ran(&mut self, progress: &dyn Fn(u64)) -> Result<(), Error> {
        let before = self.put - (self.parameters.iterations as u64).min(self.put);
        self.runners.until(self.put, &self.engine, &|ran| progress(ran.saturating_sub(before))).await
    }
}

/// What callers had to wait, from putting something into a queue.
#[derive(Default)]
struct Waits {
    /// Until it began.
    starts: Samples,
    /// Until they had its result.
    results: Samples,
}

/// Puts one into a queue, waits for its result, and so on.
async fn one_by_one(
    engine: &Engine,
    workflow: &Workflow<u32, i64>,
    name: &str,
    most: usize,
    is_over: &AtomicBool,
) -> Result<Waits, Error> {
    let mut waits = Waits::default();
    for _ in 0..most {
        if is_over.load(SeqCst) {
            break;
        }
        let (begun, at) = (Instant::now(), now());
        let began = engine.run(workflow, 0).queue(name).await?;
        waits.results.push(ms_since(begun));
        waits.starts.push((began - at).max(0) as f64 / 1000.0);
    }
    Ok(waits)
}

async fn enqueue(
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
                    latencies.note(n, begun, started.is_ok());
                }
            })
        })
        .collect();
    until_all(callers, &latencies, progress).await;
    latencies
}
