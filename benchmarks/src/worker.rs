//! [`Worker`]: a worker that is a process of its own: this program, started again. It does what its standard input
//! says, tells on its standard output what it does, and ends when its standard input is closed.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stepfast::{Context, Engine, Error, Failure, Workflow};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::queue::Ran;
use crate::target::io;

/// What the program is called with to be a worker; the URL of the store follows.
pub const COMMAND: [&str; 2] = ["bench", "worker"];

/// A worker tells how many it has run every so often.
const TELL_EVERY: Duration = Duration::from_millis(2);
/// A step of a long execution takes so long.
const STEP: Duration = Duration::from_millis(100);
/// So many steps it has: more than any benchmark waits for.
const STEPS: u32 = 1_000_000;

/// A worker, from outside.
pub struct Worker {
    /// Its number.
    pub number: usize,
    child: Child,
    input: ChildStdin,
}

/// What a worker has told, and when it was heard.
pub struct Told {
    /// Which worker.
    pub worker: usize,
    /// What.
    pub what: What,
    /// When.
    pub at: Instant,
}

/// What a worker tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It works.
    Ready,
    /// It has begun the body of a step of this long execution.
    Begun(u32),
    /// So many of what was put into queues it has run, since its beginning.
    Ran(u64),
    /// It is gone.
    Ended,
}

impl Worker {
    /// Starts a worker on the store at `url`; what it tells goes to `tell`, and to people what it says to them.
    pub fn start(url: &str, number: usize, tell: mpsc::UnboundedSender<Told>) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(|error| io("find this program", &error))?;
        let mut child = Command::new(program)
            .args(COMMAND)
            .arg("--store")
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io("start a worker", &error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Unavailable("a worker has no standard input or output".into()));
        };
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            let send = |what| tell.send(Told { worker: number, what, at: Instant::now() });
            while let Ok(Some(line)) = lines.next_line().await {
                let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
                let _ = match (word, number.parse()) {
                    ("begun", Ok(execution)) => send(What::Begun(execution as u32)),
                    ("ran", Ok(count)) => send(What::Ran(count)),
                    ("ready", _) => send(What::Ready),
                    _ => continue,
                };
            }
            let _ = send(What::Ended);
        });
        Ok(Self { number, child, input })
    }

    /// Lets it start long executions with these numbers.
    pub async fn start_long(&mut self, first: u32, count: u32) -> Result<(), Error> {
        let command = format!("start {first} {count}\n");
        self.input.write_all(command.as_bytes()).await.map_err(|error| io("tell a worker what to do", &error))
    }

    /// Kills it: `SIGKILL`.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.child.start_kill().map_err(|error| io("kill a worker", &error))
    }

    /// Asks it to end in peace: `SIGTERM`.
    pub fn drain(&self) -> Result<(), Error> {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
        let gone = || Error::Unavailable("a worker has ended by itself".into());
        rustix::process::kill_process(id.ok_or_else(gone)?, rustix::process::Signal::TERM)
            .map_err(|error| io("send a signal to a worker", &error.into()))
    }

    /// Waits until it is gone.
    pub async fn ended(mut self) -> Result<(), Error> {
        drop(self.input);
        self.child.wait().await.map(drop).map_err(|error| io("wait for a worker", &error))
    }
}

/// A workflow of very many short steps.
fn long() -> Workflow<u32, ()> {
    Workflow::new("bench long", |mut cx: Context, number: u32| async move {
        for _ in 0..STEPS {
            let body = || async {
                say(&format!("begun {number}"));
                tokio::time::sleep(STEP).await;
                Ok::<(), Failure>(())
            };
            cx.step("short", body).await?;
        }
        Ok::<(), Failure>(())
    })
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // whoever listens may be gone
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Is a worker on the store at `url`, until standard input is closed (it then ends at once) or it is asked to end by
/// `SIGTERM` (it then hands back what runs).
pub async fn work(url: &str) -> Result<(), Error> {
    let ran = Arc::new(Ran::default());
    let (noop, long, queued) = (crate::workflows::workflow(), long(), crate::queue::workflow(&ran));
    let store = stepfast::connect(url).await?;
    let engine = Engine::builder(store).register(&noop).register(&long).register(&queued).open().await?;
    tokio::spawn(tell_ran(engine.clone(), ran));
    let mut asked = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|error| io("listen to signals", &error))?;
    say("ready");
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            _ = asked.recv() => return engine.drain(Duration::ZERO).await,
            command = commands.next_line() => match command {
                Ok(Some(command)) => obey(&engine, &long, &command).await?,
                _ => std::process::exit(0),
            }
        }
    }
}

/// Tells how many of what was put into queues have run, and have ended for good.
async fn tell_ran(engine: Engine, ran: Arc<Ran>) {
    let mut told = 0;
    loop {
        if told == ran.count.load(SeqCst) {
            ran.changed.notified().await;
        }
        let ended = ran.count.load(SeqCst).saturating_sub(engine.running() as u64);
        if ended > told {
            told = ended;
            say(&format!("ran {told}"));
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

async fn obey(engine: &Engine, long: &Workflow<u32, ()>, command: &str) -> Result<(), Error> {
    let words: Vec<_> = command.split_whitespace().collect();
    let ["start", first, count] = words[..] else { return Ok(()) };
    let (first, count) = (first.parse().unwrap_or(0), count.parse::<u32>().unwrap_or(0));
    for number in first..first + count {
        engine.start(long, number).await?;
    }
    Ok(())
}
