//! [`CrashHarness`]: a database with child processes, SIGKILL at random or at a crash point, and checks of the promises
//! afterwards.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::crash::child;
use crate::crash::promises::Promises;
use crate::fixtures::pooler::{Pooler, PreparedStatements};
use crate::fixtures::postgres_server::PostgresServer;

/// The time after which a child that prints nothing counts as hanging.
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);

/// The store that the children use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A file in its own directory.
    Sqlite,
    /// A separate database on the test server.
    Postgres,
    /// A separate database on the test server through a pooler, without hints.
    Pooled(PreparedStatements),
}

/// The options of a child process.
#[derive(Clone, Debug, Default)]
pub struct ChildOptions {
    /// `name:n`: the child kills itself at the n-th passage of the crash point.
    pub crash_at: Option<String>,
    /// The child shuts down after this number of ends.
    pub shutdown_after: Option<u32>,
}

/// The way in which a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// After the end of all its executions.
    Done,
    /// By a shutdown while executions still ran.
    ShutDown,
    /// By its own signal at its crash point.
    Crashed,
    /// By a signal of the harness.
    Killed,
}

/// The results of a job, for the closing table.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of SIGKILLs or power cuts.
    pub kills: u64,
    /// Number of step bodies that began.
    pub bodies: u64,
    /// Number of executions in the finished databases.
    pub executions: u64,
    /// Broken promises.
    pub violations: Vec<String>,
}

impl Tally {
    /// Adds the results of another job.
    pub fn add(&mut self, other: Tally) {
        self.kills += other.kills;
        self.bodies += other.bodies;
        self.executions += other.executions;
        self.violations.extend(other.violations);
    }
}

enum ChildEvent {
    Line(usize, String),
    End(usize),
}

struct CrashChild {
    process: Child,
    is_killed: bool,
    is_armed: bool,
    exit: Option<ChildExit>,
}

/// One database with its child processes.
pub struct CrashHarness {
    /// The database's URL.
    pub url: String,
    /// The database's URL without a pooler.
    direct_url: String,
    /// The acknowledgements that the children printed, and the violations.
    pub promises: Promises,
    runtime: Runtime,
    executions: u32,
    children: Vec<CrashChild>,
    events: (Sender<ChildEvent>, Receiver<ChildEvent>),
    directory: Option<TempDir>,
}

impl CrashHarness {
    /// Creates an empty database, for children that each start the same executions.
    pub fn new(kind: StoreKind, executions: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = (kind == StoreKind::Sqlite).then(|| tempfile::tempdir().unwrap());
        let url = match &directory {
            Some(directory) => format!("sqlite:{}", directory.path().join("crash.db").display()),
            None => runtime.block_on(fresh_database()),
        };
        let (direct_url, url) = match kind {
            StoreKind::Pooled(statements) => (url.clone(), Pooler::shared(statements).store_url(&url, false)),
            StoreKind::Sqlite | StoreKind::Postgres => (url.clone(), url),
        };
        let (promises, children) = (Promises::default(), Vec::new());
        Self { url, direct_url, promises, runtime, executions, children, events: channel(), directory }
    }

    /// Starts a child, and returns its number.
    pub fn spawn(&mut self, options: &ChildOptions) -> usize {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(child::URL_VARIABLE, &self.url)
            .env(child::EXECUTIONS_VARIABLE, self.executions.to_string());
        if let Some(crash) = &options.crash_at {
            command.env("STEPFAST_CRASH", crash);
        }
        if let Some(ends) = options.shutdown_after {
            command.env(child::SHUTDOWN_AFTER_VARIABLE, ends.to_string());
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let number = self.children.len();
        let (out, sender) = (process.stdout.take().unwrap(), self.events.0.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(ChildEvent::Line(number, line));
            }
            let _ = sender.send(ChildEvent::End(number));
        });
        self.children.push(CrashChild {
            process,
            is_killed: false,
            is_armed: options.crash_at.is_some(),
            exit: None,
        });
        number
    }

    /// Kills a child. Lines that it has printed stay in the pipe, and are still read.
    pub fn kill(&mut self, number: usize) {
        let child = &mut self.children[number];
        if child.exit.is_none() {
            child.is_killed = true;
            child.process.kill().unwrap();
        }
    }

    /// Returns the numbers of the children that have not ended.
    pub fn running_children(&self) -> Vec<usize> {
        (0..self.children.len()).filter(|&n| self.children[n].exit.is_none()).collect()
    }

    /// Reads up to `lines` lines of all children. Returns early when a child ends, with its number and the way it
    /// ended.
    pub fn read_lines(&mut self, lines: u64) -> Option<(usize, ChildExit)> {
        let mut read = 0;
        while read < lines {
            match self.events.1.recv_timeout(CHILD_TIMEOUT) {
                Ok(ChildEvent::Line(number, line)) => {
                    read += 1;
                    self.promises.add_line(&line);
                    match line.as_str() {
                        "done" => self.children[number].exit = Some(ChildExit::Done),
                        "shut-down" => self.children[number].exit = Some(ChildExit::ShutDown),
                        _ => {}
                    }
                }
                Ok(ChildEvent::End(number)) => {
                    let exit = self.reap(number);
                    return Some((number, exit));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.promises.violations.push(format!("no child printed a line for {CHILD_TIMEOUT:?}"));
                    for number in self.running_children() {
                        self.kill(number);
                    }
                }
            }
        }
        None
    }

    fn reap(&mut self, number: usize) -> ChildExit {
        let child = &mut self.children[number];
        let status = child.process.wait().unwrap();
        let exit = match child.exit {
            Some(exit) if status.success() => exit,
            _ if child.is_killed => ChildExit::Killed,
            _ if child.is_armed && status.signal() == Some(9) => ChildExit::Crashed,
            exit => {
                self.promises.violations.push(format!("a child died without a kill: {status}"));
                exit.unwrap_or(ChildExit::Killed)
            }
        };
        child.exit = Some(exit);
        exit
    }

    /// Compares the acknowledgements with the database, whether it is finished or not. Returns the number of
    /// executions.
    pub fn check(&mut self, is_done: bool) -> u64 {
        let Self { runtime, promises, url, direct_url, .. } = self;
        runtime.block_on(async {
            let store = stepfast::connect(url).await.unwrap();
            let executions = promises.check(&store, is_done).await;
            drop(store);
            if is_done {
                promises.check_leftovers(direct_url).await;
            }
            executions
        })
    }

    /// Runs a child until all executions have ended, checks all promises, and returns the results.
    pub fn finish(mut self, kills: u64) -> Tally {
        while let Some(&number) = self.running_children().first() {
            self.kill(number);
            self.read_lines(u64::MAX);
        }
        self.spawn(&ChildOptions::default());
        self.read_lines(u64::MAX);
        self.conclude(kills)
    }

    /// Checks all promises of a database whose children have ended.
    pub fn conclude(mut self, kills: u64) -> Tally {
        let executions = self.check(true);
        if !self.promises.violations.is_empty()
            && let Some(directory) = self.directory.take()
        {
            // kept for inspection
            self.promises.violations.push(format!("kept in {}", directory.keep().display()));
        }
        let Promises { bodies, violations, .. } = std::mem::take(&mut self.promises);
        Tally { kills, bodies, executions, violations }
    }
}

impl Drop for CrashHarness {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.process.kill();
            let _ = child.process.wait();
        }
    }
}

/// Kills children at random until the number of kills is reached, in as many databases as necessary. `children` run
/// concurrently on each database. Calls `progress` after each kill.
pub fn kill_at_random(kind: StoreKind, children: usize, kills: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    let mut databases_without_kill = 0;
    while tally.kills < kills {
        let mut harness = CrashHarness::new(kind, rng.u32(20..60));
        let mut killed = 0;
        for _ in 0..children {
            harness.spawn(&ChildOptions::default());
        }
        loop {
            // a child that cannot run would be restarted endlessly
            if !harness.promises.violations.is_empty() {
                break;
            }
            let is_last = tally.kills + killed >= kills;
            if let Some((_, ChildExit::Done)) =
                harness.read_lines(if is_last { u64::MAX } else { rng.u64(1..500) })
            {
                if harness.running_children().is_empty() {
                    break;
                }
                continue;
            }
            // a killed child has ended: checks the database in its present state, and starts the next child
            let running = harness.running_children();
            if running.len() < children {
                if rng.bool() {
                    harness.check(false);
                }
                harness.spawn(&ChildOptions {
                    shutdown_after: rng.u8(0..8).eq(&0).then(|| rng.u32(1..20)),
                    ..ChildOptions::default()
                });
                continue;
            }
            if is_last {
                continue;
            }
            // sometimes all at once
            let all = rng.u8(0..4) == 0;
            let chosen = running[rng.usize(0..running.len())];
            for number in running.into_iter().filter(|number| all || *number == chosen) {
                harness.kill(number);
                killed += 1;
                progress();
            }
        }
        databases_without_kill = if killed == 0 { databases_without_kill + 1 } else { 0 };
        tally.add(harness.conclude(killed));
        if databases_without_kill > 20 {
            tally.violations.push("children end before they can be killed".to_owned());
        }
        if !tally.violations.is_empty() {
            break;
        }
    }
    tally
}

/// Returns the URL of a new database: of a file in the folder, or on the test server.
pub async fn fresh_url(is_sqlite: bool, folder: &Path) -> String {
    if is_sqlite { format!("sqlite:{}", folder.join("test.db").display()) } else { fresh_database().await }
}

/// Creates a new database on the test server, and returns its URL.
pub async fn fresh_database() -> String {
    let url = PostgresServer::shared().url();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let name = format!("crash_{:x}", fastrand::u64(..));
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    format!("{}/{name}", url.rsplit_once('/').unwrap().0)
}
