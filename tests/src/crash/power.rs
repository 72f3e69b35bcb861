//! Power cuts: a child works on a [`Disk`]. At many moments, the content that a power cut would leave is opened as a
//! database, compared with the acknowledgements so far, and sometimes run to its end.

use std::path::Path;
use std::sync::{Arc, Mutex};

use stepfast::store::Durability;
use stepfast::{Engine, Failure, SqliteOptions, SqliteStore, Store, Workflow};
use tokio::sync::Notify;

use crate::crash::child::{self, LineSink};
use crate::crash::disk::{Disk, MARK_SUFFIX_BYTES, PowerCut};
use crate::crash::harness::Tally;
use crate::crash::promises::Promises;
use crate::crash::{leftovers, vfs};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Opens a store whose file is on `disk`.
fn store_on(disk: &Arc<Disk>, path: &Path, durability: Durability) -> Arc<dyn Store> {
    let options =
        SqliteOptions { durability, vfs: Some(vfs::register(disk.clone())), ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(path, options).unwrap())
}

/// Returns a sink, the promises that it records, and a notification for every line.
fn recording_sink() -> (LineSink, Arc<Mutex<Promises>>, Arc<Notify>) {
    let (promises, line_received) = (Arc::new(Mutex::new(Promises::default())), Arc::new(Notify::new()));
    let (recorded, notify) = (promises.clone(), line_received.clone());
    let sink: LineSink = Arc::new(move |line| {
        recorded.lock().unwrap().add_line(line);
        notify.notify_one();
    });
    (sink, promises, line_received)
}

/// Cuts the power `count` times, in as many databases as necessary.
pub fn cut_power(durability: Durability, count: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let runtime = runtime();
    let mut tally = Tally::default();
    while tally.kills < count && (durability == Durability::Relaxed || tally.violations.is_empty()) {
        tally.add(runtime.block_on(run_with_cuts(durability, count - tally.kills, &mut rng, progress)));
    }
    tally
}

/// Cuts the power with relaxed durability, as a control: acknowledged work must get lost, or the cuts prove nothing.
/// Only the latest work may get lost: nothing is damaged, and no earlier delivery is missing.
pub fn cut_power_relaxed(count: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut tally = cut_power(Durability::Relaxed, count, seed, progress);
    let is_loss = |it: &String| {
        ["is gone", "was acknowledged", "forgot its cancel", "was not durable"]
            .iter()
            .any(|loss| it.contains(loss))
    };
    let losses = tally.violations.iter().filter(|it| is_loss(it)).count();
    tally.violations.retain(|it| !is_loss(it));
    if losses == 0 {
        tally.violations.push("relaxed durability lost nothing: the cuts have no effect".to_owned());
    }
    tally
}

/// Checks in one log of writes, syncs and acknowledgements that no acknowledgement precedes the sync that covers it.
/// With relaxed durability, as a control, some must.
pub fn check_sync_order(durability: Durability, executions: u64, seed: u64) -> Tally {
    let (mut tally, early) = count_early_acknowledgements(durability, executions, seed);
    match durability {
        Durability::Full if early > 0 => {
            tally.violations.push(format!("{early} were acknowledged before the sync that covers them"));
        }
        Durability::Relaxed if early == 0 => {
            tally.violations.push("relaxed durability synced in time: the log detects nothing".to_owned());
        }
        _ => {}
    }
    tally
}

/// Runs one child from its beginning to its end, with at most `max_cuts` power cuts.
async fn run_with_cuts(
    durability: Durability,
    max_cuts: u64,
    rng: &mut fastrand::Rng,
    progress: &dyn Fn(),
) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::default());
    let (sink, promises, line_received) = recording_sink();
    let store = store_on(&disk, &directory.path().join("crash.db"), durability);
    let executions = rng.u32(20..40);
    let mut work = tokio::spawn(child::run_executions(store, sink, executions, None));
    let mut tally = Tally::default();
    let mut lines = rng.u32(1..120);
    while tally.kills < max_cuts {
        tokio::select! {
            done = &mut work => {
                done.unwrap();
                tally.bodies += promises.lock().unwrap().bodies;
                return tally;
            }
            () = line_received.notified() => {}
        }
        lines = lines.saturating_sub(1);
        if lines > 0 {
            continue;
        }
        lines = rng.u32(1..120);
        // the acknowledgements so far must be on the disk now
        let acknowledged = promises.lock().unwrap().clone();
        let after = tempfile::tempdir().unwrap();
        // the counter file beside the database was durable before the database was written
        let presence = "crash.db-presence";
        std::fs::copy(directory.path().join(presence), after.path().join(presence)).unwrap();
        disk.cut_power(PowerCut::ALL[rng.usize(0..3)], rng, after.path());
        progress();
        let remaining = (rng.u8(0..3) == 0).then_some(executions);
        let found = check_image(acknowledged, after.path(), remaining).await;
        tally.add(Tally { kills: 1, ..found });
    }
    work.abort();
    let _ = work.await;
    tally.bodies += promises.lock().unwrap().bodies;
    tally
}

/// Compares the content after a power cut with the acknowledgements before it. If `remaining` is given, runs that
/// number of executions to their ends first, and checks all promises.
async fn check_image(mut promises: Promises, directory: &Path, remaining: Option<u32>) -> Tally {
    let path = directory.join("crash.db").display().to_string();
    let url = format!("sqlite:{path}");
    let store = stepfast::connect(&url).await.unwrap();
    promises.bodies = 0;
    promises.violations.extend(leftovers::integrity_errors(&path));
    let mut executions = promises.check(&store, false).await;
    if let Some(count) = remaining {
        let shared = Arc::new(Mutex::new(std::mem::take(&mut promises)));
        let recorded = shared.clone();
        let sink: LineSink = Arc::new(move |line| recorded.lock().unwrap().add_line(line));
        child::run_executions(store.clone(), sink, count, None).await;
        promises = std::mem::take(&mut shared.lock().unwrap());
        executions = promises.check(&store, true).await;
        drop(store);
        promises.check_leftovers(&url).await;
    }
    Tally { kills: 0, bodies: promises.bodies, executions, violations: promises.violations }
}

/// The prefix of marks in inputs and outputs.
const MARK_PREFIX: &[u8] = b"ack-";

/// Starts and runs thousands of executions on one disk, and records writes, syncs and acknowledgements in one log.
/// Returns the results, and the number of acknowledgements before the sync that covers them.
fn count_early_acknowledgements(durability: Durability, executions: u64, seed: u64) -> (Tally, u64) {
    let disk = Arc::new(Disk::with_marks(MARK_PREFIX));
    let acknowledgements: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let directory = tempfile::tempdir().unwrap();
    let bodies = runtime().block_on(async {
        let store = store_on(&disk, &directory.path().join("log.db"), durability);
        let echo =
            Workflow::new("echo", |mut cx: stepfast::Context, (output, steps): (String, u32)| async move {
                for _ in 0..steps {
                    cx.step("noop", async || Ok::<_, Failure>(())).await?;
                }
                Ok::<_, Failure>(output.replace("in-", "ack-"))
            });
        let engine = Engine::builder(store).register(&echo).open().await.unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bodies = 0;
        let mut tasks = Vec::new();
        for _ in 0..executions {
            let number = rng.u64(..) >> 16;
            let (ack, input) = (format!("ack-{number:012x}"), format!("in-{number:012x}"));
            let steps = rng.u32(0..4);
            bodies += u64::from(steps);
            let (engine, echo, disk, acknowledgements) =
                (engine.clone(), echo.clone(), disk.clone(), acknowledgements.clone());
            let starts = rng.bool();
            tasks.push(async move {
                if starts {
                    // when the start is acknowledged, its input is durable
                    let handle = engine.start(&echo, (ack.clone(), steps)).await.unwrap();
                    let now = disk.now();
                    acknowledgements.lock().unwrap().push((ack.clone(), now));
                    assert_eq!(handle.result().await.unwrap(), ack);
                } else {
                    // when the output is acknowledged, it is durable; the input has another prefix
                    let output = engine.run(&echo, (input, steps)).await.unwrap();
                    let now = disk.now();
                    assert_eq!(output, ack);
                    acknowledgements.lock().unwrap().push((output, now));
                }
            });
        }
        let mut tasks: std::collections::VecDeque<_> = tasks.into();
        // waves of many sizes: single executions, and hundreds that share a flush
        while !tasks.is_empty() {
            let wave = [1, 3, 40, 400][rng.usize(0..4)].min(tasks.len());
            let wave: Vec<_> = tasks.drain(..wave).map(tokio::spawn).collect();
            for task in wave {
                task.await.unwrap();
            }
        }
        engine.shutdown(std::time::Duration::from_secs(10)).await.unwrap();
        bodies
    });
    assert_eq!(MARK_PREFIX.len() + MARK_SUFFIX_BYTES, "ack-0123456789ab".len());
    let acknowledgements = acknowledgements.lock().unwrap();
    let early = acknowledgements
        .iter()
        .filter(|(mark, at)| disk.durable_at(mark.as_bytes()).is_none_or(|durable_at| durable_at > *at));
    let early = early.count() as u64;
    (Tally { kills: 0, bodies, executions: acknowledgements.len() as u64, violations: Vec::new() }, early)
}
