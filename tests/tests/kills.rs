//! Promises that survive the SIGKILL of one process, on SQLite and Postgres. The processes are this test binary,
//! started again with a role.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // children print for the test

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use stepfast::graph::Graph;
use stepfast::store::{Checkpoint, Record, RequestResult, Status};
use stepfast::{Context, Engine, EngineBuilder, Error, Failure, Workflow};
use stepfast_tests::crash::harness::fresh_url;
use stepfast_tests::engine::run_within;
use stepfast_tests::engine::support::{BodyResult, Count, Latch, fresh_number, wait_in_step};
use tempfile::TempDir;
use tokio::sync::watch;

const ROLE: &str = "STEPFAST_KILLS_ROLE";
const URL: &str = "STEPFAST_KILLS_URL";
const TEST_TIMEOUT: Duration = Duration::from_mins(3);
const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);
/// Maximum duration of a takeover by a live process on SQLite, where about a second is promised.
const SQLITE_TAKEOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// A child process, killed when it is dropped.
struct Peer {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(role: &str, url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Returns the next line that the child prints.
    fn line(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child has ended").unwrap();
            if let Some((_, text)) = line.split_once("child: ") {
                return text.to_owned();
            }
        }
    }

    /// Waits until the child has killed itself.
    fn dies(mut self) {
        let status = self.process.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
    }

    /// Returns the lines that the child has printed since, after its death.
    fn remaining_lines(&mut self) -> Vec<String> {
        let texts = self.lines.by_ref().map(|line| line.unwrap());
        texts.filter_map(|line| Some(line.split_once("child: ")?.1.to_owned())).collect()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn engine(url: &str, with: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    with(Engine::builder(stepfast::connect(url).await.unwrap())).open().await.unwrap()
}

/// The entry point of child processes. Does nothing when the suite runs it.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let url = std::env::var(URL).unwrap();
    let run = run_within(TEST_TIMEOUT, move |runtime| {
        runtime.block_on(async {
            match &*role {
                "resumes" => resumes(&url).await,
                "runs" => runs(&url).await,
                "maps" => maps(&url).await,
                role => panic!("{role}"),
            }
        });
    });
    run.unwrap();
}

/// Runs a test on an empty database of each store.
fn on_each(test: impl AsyncFn(&str, bool) + Copy + Send + 'static) {
    for is_sqlite in [true, false] {
        let run = run_within(TEST_TIMEOUT, move |runtime| {
            let directory = TempDir::new().unwrap();
            runtime.block_on(async {
                let url = fresh_url(is_sqlite, directory.path()).await;
                test(&url, is_sqlite).await;
            });
        });
        run.unwrap_or_else(|error| panic!("sqlite: {is_sqlite}: {error}"));
    }
}

/// The behaviour of the second step of the workflow `w`.
#[derive(Clone)]
enum Second {
    Fails,
    Waits(Count),
    Ends,
}

/// Returns the workflow `w`: a step that returns a fresh number, which is also the output, and a second step.
fn workflow(first: &'static str, second: Second) -> Workflow<(), usize> {
    Workflow::new("w", move |mut cx: Context, (): ()| {
        let second = second.clone();
        async move {
            let number = cx.step(first, async || BodyResult::Ok(fresh_number())).await?;
            match second {
                Second::Fails => return Err(Failure::new("not yet")),
                Second::Waits(count) => wait_in_step(&mut cx, &count, &Latch::new()).await?,
                Second::Ends => cx.step("stop", async || BodyResult::Ok(())).await?,
            }
            Ok(number)
        }
    })
}

/// Resumes `x`, and kills its own process as soon as that is acknowledged.
async fn resumes(url: &str) {
    // the resumed execution may begin in this process, but cannot finish
    let workflow = workflow("first", Second::Waits(Count::new()));
    let engine = engine(url, |b| b.register(&workflow)).await;
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// Makes `x` a failed, cancelled or parked execution.
async fn make(url: &str, status: &str) -> usize {
    let count = Count::new();
    let second = if status == "failed" { Second::Fails } else { Second::Waits(count.clone()) };
    let original = workflow("first", second);
    let one = engine(url, |b| b.register(&original)).await;
    let handle = one.start(&original, ()).workflow_id("x").await.unwrap();
    if status != "failed" {
        count.wait_for(1).await;
    }
    if status == "cancelled" {
        handle.cancel().await.unwrap();
    }
    if status != "parked" {
        let error = handle.result().await.unwrap_err();
        assert!(matches!(error, Error::Failed(_) | Error::Cancelled(_)), "{error}");
    }
    let number = one.show("x").await.unwrap().checkpoints[0].outcome.decode().unwrap();
    one.shutdown(SHUTDOWN_GRACE).await.unwrap();
    if status == "parked" {
        let changed = workflow("other", Second::Ends);
        let two = engine(url, |b| b.register(&changed)).await;
        let error = two.get::<usize>("x").await.unwrap().result().await.unwrap_err();
        assert!(matches!(error, Error::Parked { .. }), "{error}");
        two.shutdown(SHUTDOWN_GRACE).await.unwrap();
    }
    number
}

fn check_resume_survives_kill(status: &'static str) {
    on_each(async move |url: &str, _| {
        let number = make(url, status).await;
        let before = {
            let idle = engine(url, |b| b).await;
            let execution = idle.show("x").await.unwrap().execution;
            idle.shutdown(SHUTDOWN_GRACE).await.unwrap();
            execution
        };
        let expected = match status {
            "failed" => Status::Failed,
            "cancelled" => Status::Cancelled,
            _ => Status::Queued,
        };
        assert_eq!((before.status, before.is_parked), (expected, status == "parked"));
        Peer::start("resumes", url).dies();
        let mended = workflow("first", Second::Ends);
        let engine = engine(url, |b| b.register(&mended)).await;
        let output = engine.get::<usize>("x").await.unwrap().result().await.unwrap();
        assert_eq!(output, number, "the recorded step is kept");
        engine.shutdown(SHUTDOWN_GRACE).await.unwrap();
    });
}

#[test]
fn resume_of_failed_execution_survives_kill() {
    check_resume_survives_kill("failed");
}

#[test]
fn resume_of_cancelled_execution_survives_kill() {
    check_resume_survives_kill("cancelled");
}

#[test]
fn resume_of_parked_execution_survives_kill() {
    check_resume_survives_kill("parked");
}

/// A callback for the idempotency key of each body that begins.
type KeyCallback = Arc<dyn Fn(String) + Send + Sync>;

/// Returns the workflow `pays`: one step that uses the key that the guide recommends, and finishes if `ends`.
fn pays(on_body: KeyCallback, ends: bool) -> Workflow<(), String> {
    Workflow::new("pays", move |mut cx: Context, (): ()| {
        let on_body = on_body.clone();
        async move {
            let key = format!("{}/charge", cx.execution_key());
            let body = || {
                let (on_body, key) = (on_body.clone(), key.clone());
                async move {
                    on_body(key.clone());
                    if !ends {
                        std::future::pending::<()>().await;
                    }
                    BodyResult::Ok(key)
                }
            };
            cx.step("charge", body).await
        }
    })
}

/// Runs `x`, prints the key of its body, and waits for being killed.
async fn runs(url: &str) {
    let pays = pays(Arc::new(|key| println!("child: {key}")), false);
    let engine = engine(url, |b| b.register(&pays)).await;
    engine.run(&pays, ()).workflow_id("x").await.unwrap();
}

#[test]
fn idempotency_key_is_unchanged_after_crash() {
    on_each(async |url: &str, _| {
        let mut peer = Peer::start("runs", url);
        let key = peer.line();
        peer.kill();
        let pays = pays(Arc::new(|_| ()), true);
        let engine = engine(url, |b| b.register(&pays)).await;
        assert_eq!(engine.get::<String>("x").await.unwrap().result().await.unwrap(), key);
        let record = engine.show("x").await.unwrap();
        assert_eq!((record.execution.recoveries, record.attempts.len()), (1, 0));
        engine.shutdown(SHUTDOWN_GRACE).await.unwrap();
    });
}

#[test]
fn live_process_takes_over_with_same_idempotency_key() {
    on_each(async |url: &str, is_sqlite| {
        let mut peer = Peer::start("runs", url);
        let key = peer.line();
        let taken = watch::Sender::new(None);
        let on_body = taken.clone();
        let pays = pays(Arc::new(move |key| drop(on_body.send_replace(Some(key)))), true);
        let engine = engine(url, |b| b.register(&pays)).await;
        // no call is made from here on
        let mut taken = taken.subscribe();
        assert_eq!(*taken.borrow(), None);
        peer.kill();
        let limit = if is_sqlite { SQLITE_TAKEOVER_TIMEOUT } else { TEST_TIMEOUT };
        let taken = tokio::time::timeout(limit, taken.wait_for(Option::is_some)).await;
        assert_eq!(*taken.expect("no execution was taken over").unwrap(), Some(key));
        engine.shutdown(SHUTDOWN_GRACE).await.unwrap();
    });
}

/// Number of items of the graph that is killed in the middle.
const ITEMS: u64 = 10_000;

/// Returns the graph `squares`, which is mapped over all items and adds their squares up. `on_body` is called with the
/// item of each body that begins.
fn squares(on_body: impl Fn(u64) + Send + Sync + 'static) -> Workflow<(), u64> {
    let mut graph = Graph::<()>::new("squares");
    let items = graph.task("items").run((), async |()| BodyResult::Ok((0..ITEMS).collect::<Vec<_>>()));
    let square = graph.task("square").map_over(&items).max_items(100).run((), move |item, ()| {
        on_body(item);
        async move {
            tokio::task::yield_now().await;
            BodyResult::Ok(item * item)
        }
    });
    let sum = graph.task("sum").run(square, async |all: Vec<u64>| BodyResult::Ok(all.iter().sum::<u64>()));
    graph.build(sum).unwrap()
}

/// Runs the graph as `x`, and prints the item of each body.
async fn maps(url: &str) {
    let squares = squares(|item| println!("child: {item}"));
    let engine = engine(url, |b| b.register(&squares)).await;
    engine.run(&squares, ()).workflow_id("x").await.unwrap();
}

/// Returns the checkpoints of the items by item.
fn items_of(record: &Record) -> BTreeMap<u64, Checkpoint> {
    let items = record.checkpoints.iter().filter(|checkpoint| &*checkpoint.name == "square");
    let by_item = |checkpoint: &Checkpoint| {
        // the number of the task, and the number of the item from 1
        let numbers = checkpoint.path.numbers().unwrap();
        assert_eq!(numbers.len(), 2, "{}", checkpoint.path);
        (u64::from(numbers[1]) - 1, checkpoint.clone())
    };
    let found: BTreeMap<u64, Checkpoint> = items.clone().map(by_item).collect();
    assert_eq!(found.len(), items.count(), "no item is recorded twice");
    found
}

#[test]
fn items_recorded_before_kill_do_not_run_again() {
    on_each(async |url: &str, is_sqlite| {
        let mut peer = Peer::start("maps", url);
        let mut begun: BTreeSet<u64> = BTreeSet::new();
        let kill_after = fastrand::usize(1_000..ITEMS as usize / 2);
        println!("kill after {kill_after} bodies");
        while begun.len() < kill_after {
            begun.insert(peer.line().parse().unwrap());
        }
        peer.kill();
        begun.extend(peer.remaining_lines().iter().map(|line| line.parse::<u64>().unwrap()));
        let idle = engine(url, |b| b).await;
        let before = items_of(&idle.show("x").await.unwrap());
        idle.shutdown(SHUTDOWN_GRACE).await.unwrap();
        assert!(
            !before.is_empty() && before.len() < ITEMS as usize,
            "the kill was in the middle: {}",
            before.len()
        );
        assert!(before.keys().all(|item| begun.contains(item)), "only items that have run are recorded");

        let bodies: Arc<Mutex<Vec<u64>>> = Arc::default();
        let noted = bodies.clone();
        let squares = squares(move |item| noted.lock().unwrap().push(item));
        let engine = engine(url, |b| b.register(&squares)).await;
        let output = engine.get::<u64>("x").await.unwrap().result().await.unwrap();
        assert_eq!(output, (0..ITEMS).map(|item| item * item).sum::<u64>());
        let record = engine.show("x").await.unwrap();
        engine.shutdown(SHUTDOWN_GRACE).await.unwrap();
        assert_eq!(
            record.checkpoints.len() as u64,
            ITEMS + 2,
            "one checkpoint for each item and each other task"
        );
        let after = items_of(&record);
        assert!(after.keys().copied().eq(0..ITEMS));
        assert!(before.iter().all(|(item, checkpoint)| after[item] == *checkpoint), "the record is kept");
        let mut bodies = std::mem::take(&mut *bodies.lock().unwrap());
        bodies.sort_unstable();
        let expected: Vec<u64> = (0..ITEMS).filter(|item| !before.contains_key(item)).collect();
        assert_eq!(bodies, expected, "exactly the items run that were not recorded");
        println!("sqlite: {is_sqlite}: {} recorded of {} begun before the kill", before.len(), begun.len());
    });
}
