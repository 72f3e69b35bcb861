//! Crashes: a process that runs workflows is killed with SIGKILL again and again, and started again on the
//! same database, until all is done. After each kill the record is compared with what the victim had
//! acknowledged, and with which step bodies had run.
//!
//! `STEPFAST_CRASH_KILLS` says how often (25 by default), `STEPFAST_CRASH_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test with a main of its own

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use stepfast::record::{Detail, ExecutionId, Filter};
use stepfast::write::CheckpointKind;
use stepfast::{Context, Engine, Failure, Key, Status, Store, Workflow};
use stepfast_tests::postgres_server::PostgresServer;

/// Executions that the victim starts, each with an id of its own.
const EXECUTIONS: u32 = 60;

fn main() -> ExitCode {
    if let Ok(url) = std::env::var("STEPFAST_CRASH_VICTIM") {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(victim(&url));
        return ExitCode::SUCCESS;
    }
    let seed = variable("STEPFAST_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    let kills = variable("STEPFAST_CRASH_KILLS").unwrap_or(25);
    println!("crash: {kills} kills a store, STEPFAST_CRASH_SEED={seed}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut passed, mut failed) = (0, 0);
    // on Postgres a lease has to run out after each kill: that takes seconds
    for (store, kills) in [("sqlite", kills), ("postgres", kills.div_ceil(5))] {
        let result = runtime.block_on(async move {
            tokio::spawn(async move { Crashes::new(store, seed).await.run(kills).await }).await
        });
        match result {
            Ok(told) => {
                passed += 1;
                println!("test crash::{store} ... ok ({told})");
            }
            Err(error) => {
                failed += 1;
                println!("test crash::{store} ... FAILED ({error})");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// One line for the parent, in one write: it is in the pipe even if the next instruction is the last.
fn tell(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

async fn body(execution: String, step: String) -> Result<String, Failure> {
    tell(&format!("body {execution} {step}"));
    tokio::task::yield_now().await;
    Ok(format!("{step} done"))
}

/// The workflows: steps in a row and side by side, failing attempts, children, short and long waits.
fn workflows() -> (Workflow<u32, String>, Workflow<u32, String>) {
    let child = Workflow::new("child", |mut cx: Context, n: u32| async move {
        let me = cx.execution();
        let one = cx.step("one", || body(me.clone(), "one".into())).await?;
        if n.is_multiple_of(3) {
            cx.sleep(Duration::from_millis(30)).await;
        }
        Ok::<_, Failure>(one)
    });
    let awaited = child.clone();
    let root = Workflow::new("root", move |mut cx: Context, n: u32| {
        let child = awaited.clone();
        async move {
            let me = cx.execution();
            let mut all = Vec::new();
            for i in 0..3 {
                all.push(cx.step("row", || body(me.clone(), format!("row{i}"))).args(&i).await?);
            }
            let tries = AtomicU32::new(0);
            all.push(
                cx.step("flaky", async || {
                    if tries.fetch_add(1, SeqCst) == 0 {
                        return Err(Failure::new("not yet"));
                    }
                    body(me.clone(), "flaky".into()).await
                })
                .retries(5)
                .backoff(Duration::from_millis(1), Duration::from_millis(2))
                .await?,
            );
            let side = cx
                .map(0..4u32, 2, |mut cx, i| {
                    let me = me.clone();
                    async move { cx.step("side", || body(me.clone(), format!("side{i}"))).await }
                })
                .await;
            all.extend(side.into_iter().collect::<Result<Vec<_>, _>>()?);
            let (first, second) = cx
                .join(
                    |mut cx: Context| {
                        let child = child.clone();
                        async move { cx.child(&child, n).await }
                    },
                    |mut cx: Context| {
                        let child = child.clone();
                        async move { cx.child(&child, n + 1).await }
                    },
                )
                .await;
            all.extend([first?, second?]);
            // beyond what the engine keeps in memory: the execution suspends
            cx.sleep(Duration::from_millis(if n.is_multiple_of(2) { 60 } else { 5 })).await;
            let large = cx.step("large", async || Ok::<_, Failure>("x".repeat(100_000))).await?;
            all.push(large.len().to_string());
            Ok::<_, Failure>(all.join(","))
        }
    });
    (root, child)
}

/// Starts all executions and waits for them, telling what is acknowledged.
async fn victim(url: &str) {
    let (root, child) = workflows();
    let engine = Engine::builder(stepfast::connect(url).await.unwrap())
        .register(&root)
        .register(&child)
        .suspend_after(Duration::from_millis(20))
        .open()
        .await
        .unwrap();
    let started: Vec<_> = (0..EXECUTIONS)
        .map(|n| {
            let (engine, root) = (engine.clone(), root.clone());
            tokio::spawn(async move {
                let handle = engine.start(&root, n).workflow_id(format!("w-{n}")).await.unwrap();
                tell(&format!("started w-{n}"));
                let output = handle.result().await.unwrap();
                tell(&format!("ended w-{n} {output}"));
            })
        })
        .collect();
    for task in started {
        task.await.unwrap();
    }
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
    tell("all");
}

/// A database of its own on the test server.
async fn fresh_database() -> String {
    let url = PostgresServer::shared().url();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let name = format!("crash_{:x}", fastrand::u64(..));
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    format!("{}/{name}", url.rsplit_once('/').unwrap().0)
}

/// What is known of one database over all kills.
struct Crashes {
    url: String,
    rng: fastrand::Rng,
    started: BTreeSet<String>,
    ended: BTreeMap<String, String>,
    /// Steps whose outcome was in the database when nobody was running: (execution, what its body tells).
    recorded: BTreeSet<(String, String)>,
    bodies: u64,
    _directory: Option<tempfile::TempDir>,
}

impl Crashes {
    async fn new(store: &str, seed: u64) -> Self {
        let directory = (store == "sqlite").then(|| tempfile::tempdir().unwrap());
        let url = match &directory {
            Some(directory) => format!("sqlite:{}", directory.path().join("crash.db").display()),
            None => fresh_database().await,
        };
        Self {
            url,
            rng: fastrand::Rng::with_seed(seed),
            started: BTreeSet::new(),
            ended: BTreeMap::new(),
            recorded: BTreeSet::new(),
            bodies: 0,
            _directory: directory,
        }
    }

    async fn run(mut self, kills: u64) -> String {
        let mut killed = 0;
        let mut rounds = 0;
        loop {
            let is_last = killed >= kills;
            let after = if is_last { u64::MAX } else { self.rng.u64(1..400) };
            let is_done = self.round(after);
            rounds += 1;
            let store = stepfast::connect(&self.url).await.unwrap();
            self.check(&store, is_done).await;
            if is_done && is_last {
                return format!("{killed} kills, {} bodies run", self.bodies);
            }
            if is_done {
                // all is over before enough kills: from the beginning, in an empty database
                let seed = self.rng.u64(..);
                let bodies = self.bodies;
                let store = if self.url.starts_with("sqlite") { "sqlite" } else { "postgres" };
                self = Crashes { bodies, ..Crashes::new(store, seed).await };
            } else {
                killed += 1;
            }
            assert!(rounds < kills * 4 + 100, "it does not come to an end");
        }
    }

    /// One life of the victim: SIGKILL after so many lines. True if it has finished everything.
    fn round(&mut self, after: u64) -> bool {
        let mut victim = self.spawn();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut is_done = false;
        let mut is_killed = false;
        for (n, line) in (1..).zip(lines) {
            let Ok(line) = line else { break };
            is_done |= line == "all";
            self.note(&line);
            if n == after {
                // what is in the pipe already was told before: it is read to its end
                victim.kill().unwrap();
                is_killed = true;
            }
        }
        let status = victim.wait().unwrap();
        assert!(is_killed || is_done, "the victim died by itself: {status}");
        is_done
    }

    fn spawn(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .env("STEPFAST_CRASH_VICTIM", &self.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn note(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("started"), Some(id), None) => {
                self.started.insert(id.to_owned());
            }
            (Some("ended"), Some(id), Some(output)) => {
                let before = self.ended.insert(id.to_owned(), output.to_owned());
                assert!(before.is_none_or(|before| before == output), "{id} ended twice, with other outputs");
            }
            (Some("body"), Some(execution), Some(step)) => {
                self.bodies += 1;
                let step = (execution.to_owned(), step.to_owned());
                assert!(!self.recorded.contains(&step), "the body of {step:?} ran although it is recorded");
            }
            _ => {}
        }
    }

    /// The promises, as questions to a database that nobody is using.
    async fn check(&mut self, store: &Arc<dyn Store>, is_done: bool) {
        let all = store.list(&Filter { limit: 100_000, ..Filter::default() }).await.unwrap().executions;
        let ids: BTreeMap<String, Key> = all.iter().map(|row| (row.workflow_id(), row.key)).collect();
        for id in &self.started {
            assert!(ids.contains_key(id), "{id} was acknowledged and is gone");
        }
        let keys: Vec<ExecutionId> = all.iter().map(|row| ExecutionId::Key(row.key)).collect();
        let mut children: BTreeMap<Key, u32> = BTreeMap::new();
        for record in store.load(&keys, Detail::Full).await.unwrap().into_iter().flatten() {
            let row = &record.execution;
            let id = row.workflow_id();
            assert!(!row.is_paused, "{id} is parked: {:?}", row.outcome);
            if let Some(output) = self.ended.get(&id) {
                assert_eq!(row.status, Status::Completed, "{id} was acknowledged as ended");
                assert_eq!(&row.outcome.decode::<String>().unwrap(), output, "{id}");
            }
            if is_done {
                assert_eq!(row.status, Status::Completed, "{id} is stranded");
                assert!(row.owner.is_none(), "{id} has an owner");
            }
            if let Some(parent) = &row.parent {
                *children.entry(parent.key).or_default() += 1;
            }
            let mut orders: Vec<u32> = record.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
            orders.sort_unstable();
            assert!(orders.iter().copied().eq(1..=orders.len() as u32), "{id} has orders {orders:?}");
            let told = record.checkpoints.iter().filter(|checkpoint| checkpoint.kind == CheckpointKind::Step);
            for checkpoint in told.filter(|checkpoint| checkpoint.outcome.chunks().is_none()) {
                let outcome = checkpoint.outcome.decode::<String>().unwrap();
                let step = outcome.strip_suffix(" done").unwrap().to_owned();
                self.recorded.insert((row.key.to_string(), step));
            }
        }
        for (parent, count) in children {
            assert!(count <= 2, "{parent} has {count} children, its code starts two");
        }
    }
}
