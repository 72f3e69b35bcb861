//! `bench queue`: callers put no-op workflows into queues, and workers run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use stepfast::queue::Queue;
use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bound::Probe;
use crate::measure::{Latencies, Samples, ms_since};
use crate::report::Row;
use crate::target::Target;
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
    /// Concurrent callers that put workflows into them.
    pub concurrency: usize,
    /// Workflows in all.
    pub iterations: usize,
    /// Most that run at a time, in each queue; none for no limit.
    pub limit: Option<u32>,
}

/// What has run.
#[derive(Default)]
struct Ran {
    count: AtomicU64,
    changed: Notify,
}

fn workflow(ran: &Arc<Ran>) -> Workflow<u32, ()> {
    let ran = ran.clone();
    Workflow::new("bench queued", move |_: Context, _: u32| {
        let ran = ran.clone();
        async move {
            ran.count.fetch_add(1, SeqCst);
            ran.changed.notify_one();
            Ok::<(), Failure>(())
        }
    })
}

/// Puts workflows into queues and runs them, in one process: first one after the other, then both at once.
pub async fn run(target: &Target, parameters: Parameters, progress: &dyn Fn(u64)) -> Result<Vec<Row>, Error> {
    let ran = Arc::new(Ran::default());
    let workflow = workflow(&ran);
    let names: Vec<String> = (0..parameters.queues).map(|n| format!("bench {n}")).collect();
    let mut builder = Engine::builder(target.store().await?).register(&workflow);
    for name in &names {
        let queue = Queue::new(name);
        builder = builder.queue(match parameters.limit {
            Some(limit) => queue.concurrency(limit),
            None => queue,
        });
    }
    let engine = builder.open().await?;
    let mut rows = Vec::new();
    let total = parameters.iterations;
    // a warm-up, counted by nobody
    enqueue(&engine, &workflow, &names, 64, (total / 20).clamp(1, 2_000), &|_| {}).await;
    all_ran(&engine, &ran, (total / 20).clamp(1, 2_000) as u64, &|_| {}).await;
    for mode in [Mode::Enqueue, Mode::Both] {
        ran.count.store(0, SeqCst);
        if mode == Mode::Enqueue {
            set_paused(&engine, &names, true).await?;
        }
        let store = engine.store();
        let probe = Probe::start(target, Some(store)).await?;
        let (counted, bytes) = (store.counters().counted(), target.bytes_written().await);
        let latencies = enqueue(&engine, &workflow, &names, parameters.concurrency, total, progress).await;
        let enqueued = latencies.wall();
        if mode == Mode::Both {
            all_ran(&engine, &ran, total as u64, progress).await;
        }
        let wall = if mode == Mode::Both { latencies.wall() } else { enqueued };
        let seen = probe.stop(Some(store)).await?;
        let mut row = new_row(mode, parameters);
        latencies.fill_after(wall, &mut row);
        let counted = store.counters().counted().since(&counted);
        row.flushes = counted.flushes;
        row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
        row.bytes_written = target.bytes_written().await - bytes;
        seen.fill(target, &mut row).await?;
        rows.push(row);
        if mode == Mode::Enqueue {
            let probe = Probe::start(target, Some(store)).await?;
            let (counted, bytes) = (store.counters().counted(), target.bytes_written().await);
            let begun = Instant::now();
            set_paused(&engine, &names, false).await?;
            all_ran(&engine, &ran, total as u64, progress).await;
            let wall = begun.elapsed();
            let seen = probe.stop(Some(store)).await?;
            let mut row = new_row(Mode::Drain, parameters);
            row.completed = total as u64;
            row.seconds = wall.as_secs_f64();
            row.per_second = row.completed as f64 / row.seconds.max(1e-9);
            let counted = store.counters().counted().since(&counted);
            row.flushes = counted.flushes;
            row.writes_per_flush = counted.writes as f64 / counted.flushes.max(1) as f64;
            row.bytes_written = target.bytes_written().await - bytes;
            seen.fill(target, &mut row).await?;
            rows.push(row);
        }
    }
    // one at a time, with nothing else to do
    let mut alone = Samples::default();
    for _ in 0..200 {
        let begun = Instant::now();
        engine.start(&workflow, 0).queue(&names[0]).await?.result().await?;
        alone.push(ms_since(begun));
    }
    rows.push(Row { concurrency: Some(1), queues: Some(parameters.queues), ..alone.row("one at a time") });
    engine.shutdown(Duration::from_secs(10)).await?;
    Ok(rows)
}

fn new_row(mode: Mode, parameters: Parameters) -> Row {
    Row {
        mode: Some(mode.as_str().to_owned()),
        concurrency: Some(parameters.concurrency),
        queues: Some(parameters.queues),
        workers: Some(1),
        ..Row::default()
    }
}

async fn set_paused(engine: &Engine, names: &[String], is_paused: bool) -> Result<(), Error> {
    for name in names {
        if is_paused {
            engine.pause_queue(name).await?;
        } else {
            engine.resume_queue(name).await?;
        }
    }
    Ok(())
}

async fn enqueue(
    engine: &Engine,
    workflow: &Workflow<u32, ()>,
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

/// Waits until so many have run, and their ends are durable.
async fn all_ran(engine: &Engine, ran: &Ran, total: u64, progress: &dyn Fn(u64)) {
    while ran.count.load(SeqCst) < total {
        ran.changed.notified().await;
        progress(ran.count.load(SeqCst));
    }
    while engine.running() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
