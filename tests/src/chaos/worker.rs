//! A worker process of the chaos suite: it starts executions, runs them, and prints a line for each acknowledgement.
//!
//! Besides the lines of [`child`](crate::crash::child) it prints `clock MICROS` (its own time at the beginning),
//! `idle` (all executions that it started have ended), `shut-down`, `open-failed TEXT` (it could not open the
//! database), `outdated TEXT` (its engine has stopped by itself), `migrated` (an operator has migrated the schema),
//! `error TEXT`, and `note TEXT` for the listener of its deployment only. Lines on its standard input are commands:
//! `start ID N`, `feed N` (start N executions in a queue, then print `note fed`), `close` and `open` (its gate, then
//! print `note closed` or `note open`), `stop` (start no more executions), `shutdown`. The process ends when its input
//! does, because no process reads its lines any more.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use stepfast::clock::{Clock, SystemClock};
use stepfast::queue::Queue;
use stepfast::{Client, Engine, Error, Handle, Workflow};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::chaos::load::{Load, Reporter};
use crate::chaos::neighbour::Service;
use crate::crash::child::LineSink;
use crate::fixtures::later_version;

/// The environment variable that makes a process a worker and names its database.
pub const URL_VARIABLE: &str = "STEPFAST_CHAOS_WORKER";
/// The environment variable with the prefix of the worker's workflow_ids.
pub const NAME_VARIABLE: &str = "STEPFAST_CHAOS_NAME";
/// The environment variable with the prefix of the names of the worker's service.
pub const SERVICE_VARIABLE: &str = "STEPFAST_CHAOS_SERVICE";
/// The environment variable with the minimum time from one start of a caller to the next, in milliseconds.
pub const PACE_VARIABLE: &str = "STEPFAST_CHAOS_PACE";
/// The environment variable with the role of the process.
pub const ROLE_VARIABLE: &str = "STEPFAST_CHAOS_ROLE";
/// The environment variable with the version of the program.
pub const APP_VERSION_VARIABLE: &str = "STEPFAST_CHAOS_APP_VERSION";
/// The environment variable with the executions that callers start.
pub const CALLS_VARIABLE: &str = "STEPFAST_CHAOS_CALLS";
/// The environment variable with the number of callers: each starts an execution when its last one has ended.
pub const CALLERS_VARIABLE: &str = "STEPFAST_CHAOS_CALLERS";
/// The environment variable with the offset of the worker's clock from the machine's, in microseconds.
pub const CLOCK_OFFSET_VARIABLE: &str = "STEPFAST_CHAOS_AHEAD";

/// The queue of the command `feed`.
pub const QUEUE: &str = "pauses";
/// Number of keys of the queue; the first has a quarter of all executions.
pub const KEYS: u32 = 12;
/// Maximum number of concurrent starts of one `feed`, and of keys in one line.
const MAX_CONCURRENT_STARTS: usize = 1_000;
const KEYS_PER_LINE: usize = 100;
/// The role of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Runs executions, including those of its callers.
    #[default]
    Worker,
    /// Only starts executions, which other processes run.
    Client,
    /// Migrates the schema as `stepfast db migrate` does, and ends.
    Operator,
}

impl Role {
    const ALL: [(Role, &'static str); 3] =
        [(Role::Worker, "worker"), (Role::Client, "client"), (Role::Operator, "operator")];

    /// Returns the name of the role in the environment.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The executions that callers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKind {
    /// Orders; waits of more than 10 ms suspend.
    #[default]
    Orders,
    /// Ticks, which never suspend.
    Ticks,
    /// Orders and as many naps.
    Naps,
    /// Orders, every third of them through a queue with limits.
    Queued,
    /// As [`Queued`](Self::Queued), after one upgrade.
    Upgrades,
    /// As [`Queued`](Self::Queued), beside as many executions that begin later, and a backlog in a paused queue. After
    /// `stop` the queue is resumed.
    Mixed,
}

/// The queue of [`CallKind::Queued`].
const JOBS: &str = "jobs";
/// The paused queue of [`CallKind::Mixed`], and the number of its executions.
const HELD: &str = "held";
const HELD_EXECUTIONS: u32 = 100;
/// The time from the start of an execution that begins later to its due time.
const START_DELAY: Duration = Duration::from_millis(500);

impl CallKind {
    const ALL: [(CallKind, &'static str); 6] = [
        (CallKind::Orders, "orders"),
        (CallKind::Ticks, "ticks"),
        (CallKind::Naps, "naps"),
        (CallKind::Queued, "queued"),
        (CallKind::Upgrades, "upgrades"),
        (CallKind::Mixed, "mixed"),
    ];

    /// Returns whether every third order has a queue with limits.
    fn has_queue(self) -> bool {
        matches!(self, CallKind::Queued | CallKind::Upgrades | CallKind::Mixed)
    }

    /// Returns the name in the environment.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Runs a worker and returns true if the environment makes this process one.
pub fn run_if_requested() -> bool {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return false };
    let text = |name| std::env::var(name).unwrap_or_default();
    let callers = text(CALLERS_VARIABLE).parse().unwrap_or(0);
    let calls = CallKind::ALL
        .iter()
        .find(|(_, name)| *name == text(CALLS_VARIABLE))
        .map_or(CallKind::default(), |it| it.0);
    let commands = read_commands();
    // each line is one write: it is in the pipe even if the process dies at the next instruction
    let sink: LineSink = Arc::new(|line: &str| {
        let written = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
        if written.is_err() {
            // no process reads the lines any more
            std::process::exit(2);
        }
    });
    let reporter = Reporter { sink, clock_offset: text(CLOCK_OFFSET_VARIABLE).parse().unwrap_or(0) };
    let role =
        Role::ALL.iter().find(|(_, name)| *name == text(ROLE_VARIABLE)).map_or(Role::default(), |it| it.0);
    later_version::become_later_if_requested();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if role == Role::Operator {
        runtime.block_on(migrate(&url, &reporter.sink));
        return true;
    }
    let version = std::env::var(APP_VERSION_VARIABLE).ok();
    let service = if text(SERVICE_VARIABLE).is_empty() { Service::First } else { Service::Neighbour };
    let pace = Duration::from_millis(text(PACE_VARIABLE).parse().unwrap_or(0));
    let config = WorkerConfig { url, name: text(NAME_VARIABLE), service, role, version, pace };
    runtime.block_on(run_worker(config, reporter, calls, callers, commands));
    true
}

/// Reads commands from the standard input. Ends the process when the input is closed.
fn read_commands() -> UnboundedReceiver<String> {
    let (send, receive) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        std::process::exit(2);
    });
    receive
}

/// The configuration of a worker process.
struct WorkerConfig {
    url: String,
    name: String,
    service: Service,
    role: Role,
    version: Option<String>,
    pace: Duration,
}

/// Migrates the schema.
async fn migrate(url: &str, sink: &LineSink) {
    match stepfast::schema::migrate(url, None, false).await {
        Ok(_) => sink("migrated"),
        Err(error) => report_error(sink, "open-failed", &error),
    }
}

/// Prints an error with its code, as one line.
fn report_error(sink: &LineSink, event: &str, error: &Error) {
    sink(&format!("{event} {error:?}").replace('\n', " "));
}

struct Callers {
    engine: Engine,
    reporter: Reporter,
    calls: CallKind,
    name: String,
    service: Service,
    pace: Duration,
    next: AtomicU32,
    is_stopped: AtomicBool,
}

async fn open_engine(config: &WorkerConfig, load: &Load, calls: CallKind) -> Result<Engine, Error> {
    let store = stepfast::connect(&config.url).await?;
    let engine = if config.role == Role::Client {
        Client::open(store).await?.into_engine()
    } else {
        let mut builder = load.register(Engine::builder(store));
        if calls != CallKind::Ticks {
            builder = builder.suspend_after(Duration::from_millis(10));
        }
        if let Some(version) = &config.version {
            builder = builder.app_version(version);
        }
        builder.open().await?
    };
    if calls.has_queue() {
        engine.set_queue(&Queue::new(config.service.name(JOBS)).concurrency(3)).await?;
    }
    Ok(engine)
}

async fn run_worker(
    config: WorkerConfig,
    reporter: Reporter,
    calls: CallKind,
    count: u32,
    mut commands: UnboundedReceiver<String>,
) {
    let sink = reporter.sink.clone();
    sink(&format!("clock {}", SystemClock.now().as_micros()));
    let sql = if calls == CallKind::Naps { Some(Arc::new(connect(&config.url).await)) } else { None };
    let gate = watch::Sender::new(true);
    let load = Load::new(&reporter, sql, gate.subscribe(), config.service);
    let engine = match open_engine(&config, &load, calls).await {
        Ok(engine) => engine,
        Err(error) => return report_error(&sink, "open-failed", &error),
    };
    let callers = Arc::new(Callers {
        engine: engine.clone(),
        reporter,
        calls,
        name: config.name,
        service: config.service,
        pace: config.pace,
        next: AtomicU32::new(0),
        is_stopped: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    if calls == CallKind::Upgrades {
        let (callers, upgrade) = (callers.clone(), load.upgrade.clone());
        tasks.spawn(async move {
            let id = format!("upgrade-{}", callers.name);
            callers.may_continue(callers.call(&upgrade, &id, 1, None).await);
        });
    }
    let mut held = Vec::new();
    if calls == CallKind::Mixed {
        match callers.fill_paused_queue(&load.gated).await {
            Ok(handles) => held = handles,
            Err(error) => return report_error(&sink, "error", &error),
        }
    }
    for caller in 0..count {
        let repeat = |workflow: &Workflow<u32, String>, kind: &str, delay| {
            let caller = format!("{kind}{}.{caller}", callers.name);
            callers.clone().call_repeatedly(workflow.clone(), caller, delay)
        };
        tasks.spawn(repeat(if calls == CallKind::Ticks { &load.tick } else { &load.order }, "", None));
        match calls {
            CallKind::Naps => drop(tasks.spawn(repeat(&load.nap, "nap-", None))),
            CallKind::Mixed => drop(tasks.spawn(repeat(&load.gated, "delayed-", Some(START_DELAY)))),
            _ => {}
        }
    }
    let mut ended = std::pin::pin!(engine.work(Duration::from_secs(20)));
    loop {
        let line = tokio::select! {
            line = commands.recv() => line,
            ended = &mut ended => {
                return match ended {
                    Ok(()) => sink("shut-down"),
                    Err(error) => report_error(&sink, "outdated", &error),
                };
            }
        };
        let Some(line) = line else { return };
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["start", id, n] => {
                let (workflow, id, n) = (load.order.clone(), (*id).to_owned(), n.parse().unwrap());
                let callers = callers.clone();
                tasks.spawn(async move {
                    let _ = callers.may_continue(callers.call(&workflow, &id, n, None).await);
                });
            }
            ["feed", count] => {
                let (gated, count) = (load.gated.clone(), count.parse().unwrap());
                tasks.spawn(callers.clone().feed(gated, count));
            }
            ["close"] => {
                gate.send_replace(false);
                sink("note closed");
            }
            ["open"] => {
                gate.send_replace(true);
                sink("note open");
            }
            ["stop"] => {
                callers.is_stopped.store(true, SeqCst);
                callers.may_continue(callers.empty_paused_queue(std::mem::take(&mut held)).await);
                while let Some(ended) = tasks.join_next().await {
                    ended.unwrap();
                }
                sink("idle");
            }
            ["shutdown"] => {
                callers.is_stopped.store(true, SeqCst);
                engine.shutdown(Duration::from_secs(20)).await.unwrap();
                sink("shut-down");
                std::process::exit(0);
            }
            _ => sink(&format!("error: unknown command {line:?}")),
        }
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Callers {
    /// Starts executions one after the other until `stop`. Their workflow_ids begin with the name of the caller.
    async fn call_repeatedly(
        self: Arc<Self>,
        workflow: Workflow<u32, String>,
        caller: String,
        delay: Option<Duration>,
    ) {
        let mut ticks = tokio::time::interval(self.pace.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_stopped.load(SeqCst) {
            if !self.pace.is_zero() {
                ticks.tick().await;
            }
            let n = self.next.fetch_add(1, SeqCst);
            let id = format!("{caller}-{n}");
            if !self.may_continue(self.call(&workflow, &id, n, delay).await) {
                return;
            }
        }
    }

    async fn call(
        &self,
        workflow: &Workflow<u32, String>,
        id: &str,
        n: u32,
        delay: Option<Duration>,
    ) -> Result<(), Error> {
        let mut start = self.engine.start(workflow, n).workflow_id(id);
        if let Some(delay) = delay {
            start = start.delay(delay);
        } else if self.calls.has_queue() && n % 3 == 2 {
            start = start.queue(self.service.name(JOBS));
        }
        let handle = start.await?;
        (self.reporter.sink)(&format!("started {id}"));
        let output = handle.result().await?;
        (self.reporter.sink)(&format!("ended {id} {output}"));
        Ok(())
    }

    /// Starts executions in a paused queue.
    async fn fill_paused_queue(&self, gated: &Workflow<u32, String>) -> Result<Vec<Handle<String>>, Error> {
        let queue = self.service.name(HELD);
        self.engine.set_queue(&Queue::new(&*queue)).await?;
        self.engine.pause_queue(&queue).await?;
        let start = |n| {
            let id = format!("held-{}-{n}", self.name);
            self.engine.start(gated, n).workflow_id(id).queue(&*queue).into_future()
        };
        let held: Vec<Handle<String>> = try_join_all((0..HELD_EXECUTIONS).map(start)).await?;
        for handle in &held {
            (self.reporter.sink)(&format!("started {}", handle.workflow_id()));
        }
        Ok(held)
    }

    /// Resumes the paused queue, and waits for the results of its executions.
    async fn empty_paused_queue(&self, held: Vec<Handle<String>>) -> Result<(), Error> {
        if held.is_empty() {
            return Ok(());
        }
        self.engine.resume_queue(&self.service.name(HELD)).await?;
        for handle in held {
            let output = handle.result().await?;
            (self.reporter.sink)(&format!("ended {} {output}", handle.workflow_id()));
        }
        Ok(())
    }

    /// Starts `count` executions in the queue, and prints the keys of the accepted ones: `note started KEY KEY .`.
    async fn feed(self: Arc<Self>, gated: Workflow<u32, String>, count: u32) {
        let start = |_| {
            let n = self.next.fetch_add(1, SeqCst);
            let group = n / 8;
            let key = if group.is_multiple_of(4) { 0 } else { group % KEYS };
            let start = self.engine.start(&gated, n).queue(QUEUE).key(format!("k{key}"));
            let start = start.priority((n % 3) as i32);
            async move { start.await.map(|handle| handle.key().to_string()) }
        };
        let mut started =
            stream::iter((0..count).map(start)).buffer_unordered(MAX_CONCURRENT_STARTS).chunks(KEYS_PER_LINE);
        while let Some(keys) = started.next().await {
            let (keys, errors): (Vec<_>, Vec<_>) = keys.into_iter().partition(Result::is_ok);
            let keys: Vec<String> = keys.into_iter().flatten().collect();
            if !keys.is_empty() {
                // the dot shows that the line is complete
                (self.reporter.sink)(&format!("note started {} .", keys.join(" ")));
            }
            for error in errors {
                if !self.may_continue(error.map(|_| ())) {
                    return;
                }
            }
        }
        (self.reporter.sink)("note fed");
    }

    /// Returns whether the caller may continue. Only the end of the engine, which `run_worker` reports, prevents a
    /// result.
    fn may_continue(&self, result: Result<(), Error>) -> bool {
        match result {
            Ok(()) => true,
            Err(Error::Shutdown | Error::NewerSchema { .. }) => false,
            Err(error) => {
                report_error(&self.reporter.sink, "error", &error);
                false
            }
        }
    }
}
