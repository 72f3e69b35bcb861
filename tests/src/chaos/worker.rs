//! A worker process of the chaos suite: it starts executions, runs them, and tells what was acknowledged.
//!
//! Beside the lines of [`victim`](crate::crash::child) it tells `clock MICROS` (its own, when it begins), `idle` (all
//! that it started has ended), `left` (it has shut down), `refused TEXT` (it could not open the database), `outdated
//! TEXT` (its engine has ended by itself), `migrated` (an operator has brought the schema up to date), `error TEXT`, and
//! `note TEXT` for the listener of its site alone.
//! Lines on its standard input ask for something: `start ID N`, `feed N` (start N in a queue, then `note fed`),
//! `close` and `open` (its gate, then `note closed` and `note open`), `stop` (start nothing more), `leave` (shut down in
//! good order). It ends when that input does: nobody listens any more.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfast::clock::{Clock, SystemClock};
use stepfast::queue::Queue;
use stepfast::{Client, Engine, Error, Workflow};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::chaos::load::{Load, Teller};
use crate::crash::child::LineSink;
use crate::fixtures::later_version;

/// Names the database to a process that is to be a worker.
pub const URL: &str = "STEPFAST_CHAOS_WORKER";
/// What its ids begin with.
pub const NAME: &str = "STEPFAST_CHAOS_NAME";
/// Names the role of the process.
pub const ROLE: &str = "STEPFAST_CHAOS_ROLE";
/// The version of its program.
pub const APP_VERSION: &str = "STEPFAST_CHAOS_APP_VERSION";
/// What its callers call.
pub const CALLS: &str = "STEPFAST_CHAOS_CALLS";
/// How many callers it has: each starts an execution when its last one has ended.
pub const CALLERS: &str = "STEPFAST_CHAOS_CALLERS";
/// How many microseconds its clock is ahead of the machine's.
pub const AHEAD: &str = "STEPFAST_CHAOS_AHEAD";

/// The queue that is fed.
pub const QUEUE: &str = "pauses";
/// Keys of the queue that is fed; the first has a quarter of all executions.
pub const KEYS: u32 = 12;
/// Starts of one feed that are under way at a time, and keys in one line.
const FED_AT_ONCE: usize = 1_000;
const IN_A_LINE: usize = 100;
/// The role of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Runs executions, those of its callers among them.
    #[default]
    Worker,
    /// Its callers start what others run.
    Client,
    /// Brings the schema up to date as `stepfast db migrate` does, and ends.
    Operator,
}

impl Role {
    const ALL: [(Role, &'static str); 3] =
        [(Role::Worker, "worker"), (Role::Client, "client"), (Role::Operator, "operator")];

    /// Its name in the environment.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// What callers call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Orders; what waits longer than 10 ms suspends.
    #[default]
    Orders,
    /// Beats, which never suspend.
    Beats,
    /// Orders, and as many naps.
    Naps,
    /// Orders, every third of which goes through a queue with limits.
    Queued,
    /// The same, and a ferry at first.
    Ferries,
}

/// The queue of [`Calls::Queued`].
const JOBS: &str = "jobs";

impl Calls {
    const ALL: [(Calls, &'static str); 5] = [
        (Calls::Orders, "orders"),
        (Calls::Beats, "beats"),
        (Calls::Naps, "naps"),
        (Calls::Queued, "queued"),
        (Calls::Ferries, "ferries"),
    ];

    /// Its name in the environment.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Runs the worker if this process was started to be one.
pub fn run_if_asked() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let text = |name| std::env::var(name).unwrap_or_default();
    let callers = text(CALLERS).parse().unwrap_or(0);
    let calls = Calls::ALL.iter().find(|(_, name)| *name == text(CALLS)).map_or(Calls::default(), |it| it.0);
    let asked = listen();
    // one line is one write: it is in the pipe even if the next instruction is the last
    let ear: LineSink = Arc::new(|line: &str| {
        let told = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
        if told.is_err() {
            // nobody listens any more
            std::process::exit(2);
        }
    });
    let teller = Teller { ear, ahead: text(AHEAD).parse().unwrap_or(0) };
    let role = Role::ALL.iter().find(|(_, name)| *name == text(ROLE)).map_or(Role::default(), |it| it.0);
    later_version::become_later_if_requested();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if role == Role::Operator {
        runtime.block_on(migrate(&url, &teller.ear));
        return true;
    }
    let version = std::env::var(APP_VERSION).ok();
    let place = Place { url, name: text(NAME), role, version };
    runtime.block_on(work(place, teller, calls, callers, asked));
    true
}

/// Lines of the standard input. Ends the process when it is closed.
fn listen() -> UnboundedReceiver<String> {
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

/// Where a process works, and as what.
struct Place {
    url: String,
    name: String,
    role: Role,
    version: Option<String>,
}

/// Brings the schema up to date.
async fn migrate(url: &str, ear: &LineSink) {
    match stepfast::schema::migrate(url, None, false).await {
        Ok(_) => ear("migrated"),
        Err(error) => tell(ear, "refused", &error),
    }
}

/// Tells an error with its code, in a line.
fn tell(ear: &LineSink, what: &str, error: &Error) {
    ear(&format!("{what} {error:?}").replace('\n', " "));
}

struct Callers {
    engine: Engine,
    teller: Teller,
    calls: Calls,
    name: String,
    next: AtomicU32,
    is_stopped: AtomicBool,
}

async fn open(place: &Place, load: &Load, calls: Calls) -> Result<Engine, Error> {
    let store = stepfast::connect(&place.url).await?;
    let engine = if place.role == Role::Client {
        Client::open(store).await?.into_engine()
    } else {
        let mut builder = load.register(Engine::builder(store));
        if calls != Calls::Beats {
            builder = builder.suspend_after(Duration::from_millis(10));
        }
        if let Some(version) = &place.version {
            builder = builder.app_version(version);
        }
        builder.open().await?
    };
    if matches!(calls, Calls::Queued | Calls::Ferries) {
        engine.set_queue(&Queue::new(JOBS).concurrency(3)).await?;
    }
    Ok(engine)
}

async fn work(place: Place, teller: Teller, calls: Calls, count: u32, mut asked: UnboundedReceiver<String>) {
    let ear = teller.ear.clone();
    ear(&format!("clock {}", SystemClock.now().as_micros()));
    let sql = if calls == Calls::Naps { Some(Arc::new(connect(&place.url).await)) } else { None };
    let gate = watch::Sender::new(true);
    let load = Load::new(&teller, sql, gate.subscribe());
    let engine = match open(&place, &load, calls).await {
        Ok(engine) => engine,
        Err(error) => return tell(&ear, "refused", &error),
    };
    let callers = Arc::new(Callers {
        engine: engine.clone(),
        teller,
        calls,
        name: place.name,
        next: AtomicU32::new(0),
        is_stopped: AtomicBool::new(false),
    });
    let mut calling = JoinSet::new();
    if calls == Calls::Ferries {
        let (callers, ferry) = (callers.clone(), load.ferry.clone());
        calling.spawn(async move {
            let id = format!("ferry-{}", callers.name);
            callers.heed(callers.call(&ferry, &id, 1).await);
        });
    }
    for _ in 0..count {
        let first = if calls == Calls::Beats { &load.beat } else { &load.order };
        calling.spawn(callers.clone().go_on(first.clone(), ""));
        if calls == Calls::Naps {
            calling.spawn(callers.clone().go_on(load.nap.clone(), "nap-"));
        }
    }
    let mut ended = std::pin::pin!(engine.work(Duration::from_secs(20)));
    loop {
        let line = tokio::select! {
            line = asked.recv() => line,
            ended = &mut ended => {
                return match ended {
                    Ok(()) => ear("left"),
                    Err(error) => tell(&ear, "outdated", &error),
                };
            }
        };
        let Some(line) = line else { return };
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["start", id, n] => {
                let (workflow, id, n) = (load.order.clone(), (*id).to_owned(), n.parse().unwrap());
                let callers = callers.clone();
                calling.spawn(async move {
                    let _ = callers.heed(callers.call(&workflow, &id, n).await);
                });
            }
            ["feed", count] => {
                let (pass, count) = (load.pass.clone(), count.parse().unwrap());
                calling.spawn(callers.clone().feed(pass, count));
            }
            ["close"] => {
                gate.send_replace(false);
                ear("note closed");
            }
            ["open"] => {
                gate.send_replace(true);
                ear("note open");
            }
            ["stop"] => {
                callers.is_stopped.store(true, SeqCst);
                while let Some(ended) = calling.join_next().await {
                    ended.unwrap();
                }
                ear("idle");
            }
            ["leave"] => {
                callers.is_stopped.store(true, SeqCst);
                engine.shutdown(Duration::from_secs(20)).await.unwrap();
                ear("left");
                std::process::exit(0);
            }
            _ => ear(&format!("error: asked for {line:?}")),
        }
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Callers {
    /// Calls again and again until it is stopped.
    async fn go_on(self: Arc<Self>, workflow: Workflow<u32, String>, kind: &'static str) {
        while !self.is_stopped.load(SeqCst) {
            let n = self.next.fetch_add(1, SeqCst);
            let id = format!("{kind}{}-{n}", self.name);
            if !self.heed(self.call(&workflow, &id, n).await) {
                return;
            }
        }
    }

    async fn call(&self, workflow: &Workflow<u32, String>, id: &str, n: u32) -> Result<(), Error> {
        let mut start = self.engine.start(workflow, n).workflow_id(id);
        if matches!(self.calls, Calls::Queued | Calls::Ferries) && n % 3 == 2 {
            start = start.queue(JOBS);
        }
        let handle = start.await?;
        (self.teller.ear)(&format!("started {id}"));
        let output = handle.result().await?;
        (self.teller.ear)(&format!("ended {id} {output}"));
        Ok(())
    }

    /// Starts so many executions in the queue, and tells which of them were accepted: `note started KEY KEY .`.
    async fn feed(self: Arc<Self>, pass: Workflow<u32, String>, count: u32) {
        let start = |_| {
            let n = self.next.fetch_add(1, SeqCst);
            let group = n / 8;
            let key = if group.is_multiple_of(4) { 0 } else { group % KEYS };
            let start = self.engine.start(&pass, n).queue(QUEUE).key(format!("k{key}"));
            let start = start.priority((n % 3) as i32);
            async move { start.await.map(|handle| handle.key().to_string()) }
        };
        let mut started = stream::iter((0..count).map(start)).buffer_unordered(FED_AT_ONCE).chunks(IN_A_LINE);
        while let Some(keys) = started.next().await {
            let (keys, errors): (Vec<_>, Vec<_>) = keys.into_iter().partition(Result::is_ok);
            let keys: Vec<String> = keys.into_iter().flatten().collect();
            if !keys.is_empty() {
                // the dot shows that the line is whole
                (self.teller.ear)(&format!("note started {} .", keys.join(" ")));
            }
            for error in errors {
                if !self.heed(error.map(|_| ())) {
                    return;
                }
            }
        }
        (self.teller.ear)("note fed");
    }

    /// True if it may go on. Nothing but the engine's end, of which `work` tells, keeps a caller from its result.
    fn heed(&self, result: Result<(), Error>) -> bool {
        match result {
            Ok(()) => true,
            Err(Error::Shutdown | Error::NewerSchema { .. }) => false,
            Err(error) => {
                tell(&self.teller.ear, "error", &error);
                false
            }
        }
    }
}
