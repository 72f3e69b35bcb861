//! [`Worker`]: a worker process, which is this program, started again. It reads commands from its standard input, writes
//! events to its standard output, and ends when its standard input is closed.

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

use crate::experiments::messaging;
use crate::experiments::queue::RunCounter;
use crate::target::io_error;

/// The program's arguments for a worker. The URL of the store follows them.
pub const COMMAND: [&str; 2] = ["bench", "worker"];

/// The minimum interval between reports of the number of executions run.
const REPORT_INTERVAL: Duration = Duration::from_millis(2);
/// The duration of a step of a long execution.
const STEP_DURATION: Duration = Duration::from_millis(100);
/// The number of steps of a long execution: more than any benchmark waits for.
const STEPS_PER_EXECUTION: u32 = 1_000_000;

/// A worker process, seen from its parent.
pub struct Worker {
    /// The worker's number.
    pub number: usize,
    child: Child,
    input: ChildStdin,
}

/// An event of a worker.
pub struct WorkerEvent {
    /// The worker's number.
    pub worker: usize,
    /// The kind of event.
    pub kind: WorkerEventKind,
    /// The time at which the event was received.
    pub at: Instant,
}

/// The kind of a worker's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEventKind {
    /// The worker is ready.
    Ready,
    /// The worker has begun the body of a step of this long execution.
    Begun(u32),
    /// The number of enqueued executions that the worker has run since its start.
    Ran(u64),
    /// The worker has ended.
    Ended,
}

impl Worker {
    /// Starts a worker on the store at `url`. Its events go to `events`; its standard error is inherited.
    pub fn start(
        url: &str,
        number: usize,
        events: mpsc::UnboundedSender<WorkerEvent>,
    ) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(|error| io_error("find this program", &error))?;
        let mut child = Command::new(program)
            .args(COMMAND)
            .arg("--store")
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io_error("start a worker", &error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Unavailable("a worker has no standard input or output".into()));
        };
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            let send = |kind| events.send(WorkerEvent { worker: number, kind, at: Instant::now() });
            while let Ok(Some(line)) = lines.next_line().await {
                let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
                let _ = match (word, number.parse()) {
                    ("begun", Ok(execution)) => send(WorkerEventKind::Begun(execution as u32)),
                    ("ran", Ok(count)) => send(WorkerEventKind::Ran(count)),
                    ("ready", _) => send(WorkerEventKind::Ready),
                    _ => continue,
                };
            }
            let _ = send(WorkerEventKind::Ended);
        });
        Ok(Self { number, child, input })
    }

    /// Starts a worker on the store at `url`, and waits until it is ready.
    pub(crate) async fn start_one(url: &str) -> Result<Self, Error> {
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let worker = Self::start(url, 0, event_sender)?;
        while let Some(event) = events.recv().await {
            match event.kind {
                WorkerEventKind::Ready => return Ok(worker),
                WorkerEventKind::Ended => break,
                WorkerEventKind::Begun(_) | WorkerEventKind::Ran(_) => {}
            }
        }
        Err(Error::Unavailable("a worker did not start; its messages are above".into()))
    }

    /// Makes the worker start `count` long executions, numbered from `first`.
    pub async fn start_long(&mut self, first: u32, count: u32) -> Result<(), Error> {
        let command = format!("start {first} {count}\n");
        self.input
            .write_all(command.as_bytes())
            .await
            .map_err(|error| io_error("send a command to a worker", &error))
    }

    /// Kills the worker by `SIGKILL`.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.child.start_kill().map_err(|error| io_error("kill a worker", &error))
    }

    /// Stops the worker gracefully by `SIGTERM`.
    pub fn drain(&self) -> Result<(), Error> {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
        let gone = || Error::Unavailable("a worker has ended by itself".into());
        rustix::process::kill_process(id.ok_or_else(gone)?, rustix::process::Signal::TERM)
            .map_err(|error| io_error("send a signal to a worker", &error.into()))
    }

    /// Closes the worker's standard input, and waits until the process has ended.
    pub async fn wait(mut self) -> Result<(), Error> {
        drop(self.input);
        self.child.wait().await.map(drop).map_err(|error| io_error("wait for a worker", &error))
    }
}

/// Returns a workflow of very many short steps.
fn long_workflow() -> Workflow<u32, ()> {
    Workflow::new("bench long", |mut cx: Context, number: u32| async move {
        for _ in 0..STEPS_PER_EXECUTION {
            let body = || async {
                print_line(&format!("begun {number}"));
                tokio::time::sleep(STEP_DURATION).await;
                Ok::<(), Failure>(())
            };
            cx.step("short", body).await?;
        }
        Ok::<(), Failure>(())
    })
}

fn print_line(line: &str) {
    let mut output = std::io::stdout().lock();
    // the reader may be gone
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Runs a worker on the store at `url`, until its standard input is closed (the process then exits at once) or until
/// `SIGTERM` (the worker then requeues its executions).
pub async fn run_worker(url: &str) -> Result<(), Error> {
    let run_counter = Arc::new(RunCounter::default());
    let (noop, long, queued) = (
        crate::experiments::workflows::workflow(),
        long_workflow(),
        crate::experiments::queue::workflow(&run_counter),
    );
    let (stream, echo) = (messaging::streams::workflow(), messaging::messages::echo_workflow());
    let builder =
        Engine::builder(stepfast::connect(url).await?).register(&noop).register(&long).register(&queued);
    let engine = builder.register(&stream).register(&echo).open().await?;
    tokio::spawn(report_runs(engine.clone(), run_counter));
    let mut sigterm = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|error| io_error("listen to signals", &error))?;
    print_line("ready");
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            _ = sigterm.recv() => return engine.drain(Duration::ZERO).await,
            command = commands.next_line() => match command {
                Ok(Some(command)) => execute_command(&engine, &long, &command).await?,
                _ => std::process::exit(0),
            }
        }
    }
}

/// Reports the number of enqueued executions that have run and whose ends are durable.
async fn report_runs(engine: Engine, run_counter: Arc<RunCounter>) {
    let mut reported = 0;
    loop {
        if reported == run_counter.count.load(SeqCst) {
            run_counter.changed.notified().await;
        }
        let ended = run_counter.count.load(SeqCst).saturating_sub(engine.running_count() as u64);
        if ended > reported {
            reported = ended;
            print_line(&format!("ran {reported}"));
        }
        tokio::time::sleep(REPORT_INTERVAL).await;
    }
}

async fn execute_command(engine: &Engine, long: &Workflow<u32, ()>, command: &str) -> Result<(), Error> {
    let words: Vec<_> = command.split_whitespace().collect();
    let ["start", first, count] = words[..] else { return Ok(()) };
    let (first, count) = (first.parse().unwrap_or(0), count.parse::<u32>().unwrap_or(0));
    for number in first..first + count {
        engine.start(long, number).await?;
    }
    Ok(())
}
