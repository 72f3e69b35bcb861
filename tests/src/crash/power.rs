//! Power cuts: a victim works on a [`Disk`], and what would be left of its database if the power went is taken
//! at many moments, opened, compared with what had been acknowledged by then, and brought to an end.

use std::path::Path;
use std::sync::{Arc, Mutex};

use stepfast::store::Durability;
use stepfast::{Engine, Failure, SqliteOptions, SqliteStore, Store, Workflow};
use tokio::sync::Notify;

use crate::crash::child::{self, LineSink};
use crate::crash::disk::{PowerCut, Disk, MARK_SUFFIX_BYTES};
use crate::crash::harness::Tally;
use crate::crash::promises::Told;
use crate::crash::{leftovers, vfs};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A store whose file lies on `disk`.
fn store_on(disk: &Arc<Disk>, path: &Path, durability: Durability) -> Arc<dyn Store> {
    let options =
        SqliteOptions { durability, vfs: Some(vfs::register(disk.clone())), ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(path, options).unwrap())
}

/// Somebody who listens, with a bell that rings at every line.
fn listener() -> (LineSink, Arc<Mutex<Told>>, Arc<Notify>) {
    let (told, bell) = (Arc::new(Mutex::new(Told::default())), Arc::new(Notify::new()));
    let (hearing, ringing) = (told.clone(), bell.clone());
    let ear: LineSink = Arc::new(move |line| {
        hearing.lock().unwrap().hear(line);
        ringing.notify_one();
    });
    (ear, told, bell)
}

/// Cuts the power so often, in as many databases as it takes.
pub fn cuts(durability: Durability, count: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let runtime = runtime();
    let mut tally = Tally::default();
    while tally.kills < count && (durability == Durability::Relaxed || tally.violations.is_empty()) {
        tally.add(runtime.block_on(life(durability, count - tally.kills, &mut rng, progress)));
    }
    tally
}

/// The control: with relaxed durability the same cuts take back what was acknowledged, or they prove nothing.
/// What they take back is the end of it: nothing is damaged, and no delivery is missing in between.
pub fn relaxed_cuts(count: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut tally = cuts(Durability::Relaxed, count, seed, progress);
    let is_loss = |it: &String| {
        ["is gone", "was acknowledged", "forgot its cancel", "was not durable"]
            .iter()
            .any(|loss| it.contains(loss))
    };
    let losses = tally.violations.iter().filter(|it| is_loss(it)).count();
    tally.violations.retain(|it| !is_loss(it));
    if losses == 0 {
        tally.violations.push("relaxed durability lost nothing: the cuts do not bite".to_owned());
    }
    tally
}

/// One log of writes, syncs and acknowledgements: none comes before the sync that covers it. The control is
/// relaxed durability, where some must.
pub fn log(durability: Durability, executions: u64, seed: u64) -> Tally {
    let (mut tally, early) = acknowledged_before_synced(durability, executions, seed);
    match durability {
        Durability::Full if early > 0 => {
            tally.violations.push(format!("{early} were acknowledged before the sync that covers them"));
        }
        Durability::Relaxed if early == 0 => {
            tally.violations.push("relaxed durability synced in time: the log does not bite".to_owned());
        }
        _ => {}
    }
    tally
}

/// One victim from its beginning to its end, with cuts at most `most` times on the way.
async fn life(durability: Durability, most: u64, rng: &mut fastrand::Rng, progress: &dyn Fn()) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::default());
    let (ear, told, bell) = listener();
    let store = store_on(&disk, &directory.path().join("crash.db"), durability);
    let wanted = rng.u32(20..40);
    let mut work = tokio::spawn(child::run_executions(store, ear, wanted, None));
    let mut tally = Tally::default();
    let mut lines = rng.u32(1..120);
    while tally.kills < most {
        tokio::select! {
            done = &mut work => {
                done.unwrap();
                tally.bodies += told.lock().unwrap().bodies;
                return tally;
            }
            () = bell.notified() => {}
        }
        lines = lines.saturating_sub(1);
        if lines > 0 {
            continue;
        }
        lines = rng.u32(1..120);
        // what is acknowledged by now is on the disk by now
        let acknowledged = told.lock().unwrap().clone();
        let after = tempfile::tempdir().unwrap();
        // the count that is beside the database was durable before it was written
        let presence = "crash.db-presence";
        std::fs::copy(directory.path().join(presence), after.path().join(presence)).unwrap();
        disk.cut_power(PowerCut::ALL[rng.usize(0..3)], rng, after.path());
        progress();
        let goes_on = (rng.u8(0..3) == 0).then_some(wanted);
        let found = check(acknowledged, after.path(), goes_on).await;
        tally.add(Tally { kills: 1, ..found });
    }
    work.abort();
    let _ = work.await;
    tally.bodies += told.lock().unwrap().bodies;
    tally
}

/// What is left after a cut, compared with what was acknowledged before it; `goes_on`: brought to an end by
/// somebody who wants so many executions, and asked for everything.
async fn check(mut told: Told, directory: &Path, goes_on: Option<u32>) -> Tally {
    let path = directory.join("crash.db").display().to_string();
    let url = format!("sqlite:{path}");
    let store = stepfast::connect(&url).await.unwrap();
    told.bodies = 0;
    told.violations.extend(leftovers::damage(&path));
    let mut executions = told.check(&store, false).await;
    if let Some(wanted) = goes_on {
        let told_on = Arc::new(Mutex::new(std::mem::take(&mut told)));
        let hearing = told_on.clone();
        let ear: LineSink = Arc::new(move |line| hearing.lock().unwrap().hear(line));
        child::run_executions(store.clone(), ear, wanted, None).await;
        told = std::mem::take(&mut told_on.lock().unwrap());
        executions = told.check(&store, true).await;
        drop(store);
        told.check_leftovers(&url).await;
    }
    Tally { kills: 0, bodies: told.bodies, executions, violations: told.violations }
}

/// What marks of inputs and outputs begin with.
const BEGUN: &[u8] = b"ack-";

/// Starts and runs thousands of executions on one disk, keeps one log of all writes, syncs and
/// acknowledgements, and looks whether one was acknowledged before the sync that covers it. How many were not
/// covered in time, and of how many.
fn acknowledged_before_synced(durability: Durability, executions: u64, seed: u64) -> (Tally, u64) {
    let disk = Arc::new(Disk::with_marks(BEGUN));
    let heard: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
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
            let (engine, echo, disk, heard) = (engine.clone(), echo.clone(), disk.clone(), heard.clone());
            let starts = rng.bool();
            tasks.push(async move {
                if starts {
                    // when the start is acknowledged its input is durable
                    let handle = engine.start(&echo, (ack.clone(), steps)).await.unwrap();
                    let now = disk.now();
                    heard.lock().unwrap().push((ack.clone(), now));
                    assert_eq!(handle.result().await.unwrap(), ack);
                } else {
                    // when the output is acknowledged it is durable; the input begins otherwise
                    let output = engine.run(&echo, (input, steps)).await.unwrap();
                    let now = disk.now();
                    assert_eq!(output, ack);
                    heard.lock().unwrap().push((output, now));
                }
            });
        }
        let mut tasks: std::collections::VecDeque<_> = tasks.into();
        // waves of many sizes: one alone, and hundreds that share a flush
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
    assert_eq!(BEGUN.len() + MARK_SUFFIX_BYTES, "ack-0123456789ab".len());
    let heard = heard.lock().unwrap();
    let early = heard.iter().filter(|(mark, at)| disk.durable_at(mark.as_bytes()).is_none_or(|it| it > *at));
    let early = early.count() as u64;
    (Tally { kills: 0, bodies, executions: heard.len() as u64, violations: Vec::new() }, early)
}
