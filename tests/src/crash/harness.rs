//! [`Rig`]: a database, victim processes on it, SIGKILL at random or where a victim is armed to kill itself,
//! and a check after it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::crash::child;
use crate::crash::promises::Told;
use crate::fixtures::pooler::Pooler;
use crate::fixtures::postgres_server::PostgresServer;

/// A victim that tells nothing for so long is stuck.
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);

/// Which store the victims use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A file in a directory of its own.
    Sqlite,
    /// A database of its own on the test server.
    Postgres,
    /// The same through a pooler, without hints.
    Pooled,
}

/// How a victim is started.
#[derive(Clone, Debug, Default)]
pub struct ChildOptions {
    /// `name:n`: it kills itself at the n-th passage of the crash point.
    pub crash_at: Option<String>,
    /// It shuts down in good order after so many ends.
    pub shutdown_after: Option<u32>,
}

/// What became of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// It did everything.
    Done,
    /// It left in good order with work under way.
    ShutDown,
    /// It killed itself where it was armed to.
    Crashed,
    /// The rig killed it.
    Killed,
}

/// What a job has done, for the closing table.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// SIGKILLs, or cuts of the power.
    pub kills: u64,
    /// Step bodies that began.
    pub bodies: u64,
    /// Executions in the databases that were finished.
    pub executions: u64,
    /// What is not as promised.
    pub violations: Vec<String>,
}

impl Tally {
    /// Adds another job's.
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

/// One database and its victims.
pub struct Rig {
    /// The database's URL.
    pub url: String,
    /// The same without anything in between.
    direct_url: String,
    /// What the victims have told, and what is wrong.
    pub told: Told,
    runtime: Runtime,
    executions: u32,
    victims: Vec<CrashChild>,
    events: (Sender<ChildEvent>, Receiver<ChildEvent>),
    directory: Option<TempDir>,
}

impl Rig {
    /// An empty database, for victims that start so many executions each (all the same).
    pub fn new(kind: StoreKind, executions: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = (kind == StoreKind::Sqlite).then(|| tempfile::tempdir().unwrap());
        let url = match &directory {
            Some(directory) => format!("sqlite:{}", directory.path().join("crash.db").display()),
            None => runtime.block_on(fresh_database()),
        };
        let (direct_url, url) = match kind {
            StoreKind::Pooled => (url.clone(), Pooler::shared().store_url(&url, false)),
            StoreKind::Sqlite | StoreKind::Postgres => (url.clone(), url),
        };
        let (told, victims) = (Told::default(), Vec::new());
        Self { url, direct_url, told, runtime, executions, victims, events: channel(), directory }
    }

    /// Starts a victim; its number.
    pub fn spawn(&mut self, arms: &ChildOptions) -> usize {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(child::URL_VARIABLE, &self.url).env(child::EXECUTIONS_VARIABLE, self.executions.to_string());
        if let Some(crash) = &arms.crash_at {
            command.env("STEPFAST_CRASH", crash);
        }
        if let Some(leave) = arms.shutdown_after {
            command.env(child::SHUTDOWN_AFTER_VARIABLE, leave.to_string());
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let number = self.victims.len();
        let (out, sender) = (process.stdout.take().unwrap(), self.events.0.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(ChildEvent::Line(number, line));
            }
            let _ = sender.send(ChildEvent::End(number));
        });
        self.victims.push(CrashChild { process, is_killed: false, is_armed: arms.crash_at.is_some(), exit: None });
        number
    }

    /// Kills a victim. What it has told stays in the pipe, and is heard.
    pub fn kill(&mut self, number: usize) {
        let victim = &mut self.victims[number];
        if victim.exit.is_none() {
            victim.is_killed = true;
            victim.process.kill().unwrap();
        }
    }

    /// Victims that have not ended.
    pub fn living(&self) -> Vec<usize> {
        (0..self.victims.len()).filter(|&n| self.victims[n].exit.is_none()).collect()
    }

    /// Listens until somebody has told `lines` more lines or a victim has ended: who, and how.
    pub fn listen(&mut self, lines: u64) -> Option<(usize, ChildExit)> {
        let mut heard = 0;
        while heard < lines {
            match self.events.1.recv_timeout(CHILD_TIMEOUT) {
                Ok(ChildEvent::Line(number, line)) => {
                    heard += 1;
                    self.told.hear(&line);
                    match line.as_str() {
                        "all" => self.victims[number].exit = Some(ChildExit::Done),
                        "left" => self.victims[number].exit = Some(ChildExit::ShutDown),
                        _ => {}
                    }
                }
                Ok(ChildEvent::End(number)) => {
                    let fate = self.fate(number);
                    return Some((number, fate));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.told
                        .violations
                        .push(format!("nothing happened for {CHILD_TIMEOUT:?}: somebody is stuck"));
                    for number in self.living() {
                        self.kill(number);
                    }
                }
            }
        }
        None
    }

    fn fate(&mut self, number: usize) -> ChildExit {
        let victim = &mut self.victims[number];
        let status = victim.process.wait().unwrap();
        let fate = match victim.exit {
            Some(fate) if status.success() => fate,
            _ if victim.is_killed => ChildExit::Killed,
            _ if victim.is_armed && status.signal() == Some(9) => ChildExit::Crashed,
            fate => {
                self.told.violations.push(format!("a victim died by itself: {status}"));
                fate.unwrap_or(ChildExit::Killed)
            }
        };
        victim.exit = Some(fate);
        fate
    }

    /// Compares what was told with the database, finished or not.
    pub fn check(&mut self, is_done: bool) -> u64 {
        let Self { runtime, told, url, direct_url: direct, .. } = self;
        runtime.block_on(async {
            let store = stepfast::connect(url).await.unwrap();
            let executions = told.check(&store, is_done).await;
            drop(store);
            if is_done {
                told.check_leftovers(direct).await;
            }
            executions
        })
    }

    /// Runs a victim to the end of everything, asks everything, and sums up.
    pub fn finish(mut self, kills: u64) -> Tally {
        while let Some(&number) = self.living().first() {
            self.kill(number);
            self.listen(u64::MAX);
        }
        self.spawn(&ChildOptions::default());
        self.listen(u64::MAX);
        self.conclude(kills)
    }

    /// Asks everything of a database whose victims are done.
    pub fn conclude(mut self, kills: u64) -> Tally {
        let executions = self.check(true);
        if !self.told.violations.is_empty()
            && let Some(directory) = self.directory.take()
        {
            // for whoever wants to see
            self.told.violations.push(format!("kept in {}", directory.keep().display()));
        }
        let Told { bodies, violations, .. } = std::mem::take(&mut self.told);
        Tally { kills, bodies, executions, violations }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for victim in &mut self.victims {
            let _ = victim.process.kill();
            let _ = victim.process.wait();
        }
    }
}

/// Kills victims at random until that has happened `kills` times, in as many databases as it takes.
/// `victims` run side by side on each; calls `progress` after each kill.
pub fn at_random(kind: StoreKind, victims: usize, kills: u64, seed: u64, progress: &dyn Fn()) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    let mut barren = 0;
    while tally.kills < kills {
        let mut rig = Rig::new(kind, rng.u32(20..60));
        let mut killed = 0;
        for _ in 0..victims {
            rig.spawn(&ChildOptions::default());
        }
        loop {
            // a victim that cannot run would be started for ever
            if !rig.told.violations.is_empty() {
                break;
            }
            let is_last = tally.kills + killed >= kills;
            if let Some((_, ChildExit::Done)) = rig.listen(if is_last { u64::MAX } else { rng.u64(1..500) }) {
                if rig.living().is_empty() {
                    break;
                }
                continue;
            }
            // somebody has ended by a kill of ours: the database is seen as it is now, and the next one comes
            let living = rig.living();
            if living.len() < victims {
                if rng.bool() {
                    rig.check(false);
                }
                rig.spawn(&ChildOptions { shutdown_after: rng.u8(0..8).eq(&0).then(|| rng.u32(1..20)), ..ChildOptions::default() });
                continue;
            }
            if is_last {
                continue;
            }
            // now and then all at once
            let all = rng.u8(0..4) == 0;
            let chosen = living[rng.usize(0..living.len())];
            for number in living.into_iter().filter(|number| all || *number == chosen) {
                rig.kill(number);
                killed += 1;
                progress();
            }
        }
        barren = if killed == 0 { barren + 1 } else { 0 };
        tally.add(rig.conclude(killed));
        if barren > 20 {
            tally.violations.push("victims are done before they can be killed".to_owned());
        }
        if !tally.violations.is_empty() {
            break;
        }
    }
    tally
}

/// A database of its own on the test server.
pub async fn fresh_database() -> String {
    let url = PostgresServer::shared().url();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let name = format!("crash_{:x}", fastrand::u64(..));
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    format!("{}/{name}", url.rsplit_once('/').unwrap().0)
}
