//! [`WorkerProcess`]: a worker process of a [`Deployment`](crate::chaos::deployment::Deployment).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::chaos::neighbour::Service;
use crate::chaos::worker::{self, CallKind, Role};
use crate::fixtures::later_version::LATER_VERSION_VARIABLE;

/// The options of a worker process.
#[derive(Clone, Debug, Default)]
pub struct WorkerOptions {
    /// The URL of the database; `None` for that of the deployment.
    pub url: Option<String>,
    /// The role of the process.
    pub role: Role,
    /// The service of the process.
    pub service: Service,
    /// Whether the process is of the later version.
    pub is_later: bool,
    /// The executions that its callers start.
    pub calls: CallKind,
    /// Number of callers.
    pub callers: u32,
    /// Minimum time from one start of a caller to the next.
    pub pace: Duration,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, String)>,
    /// The offset of its clock from the machine's, in microseconds.
    pub clock_offset: i64,
    /// The way in which it may end without a kill.
    pub allowed_exit: AllowedExit,
}

impl WorkerOptions {
    /// Returns options with this number of callers of orders.
    pub fn orders(callers: u32) -> Self {
        Self { callers, ..Self::default() }
    }
}

/// The ways in which a process may end without a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedExit {
    /// Only after the command `shutdown`.
    #[default]
    OnRequest,
    /// Also by SIGABRT.
    Abort,
    /// Also because the schema is of another version, or because its work is done.
    Reported,
    /// When its input is closed. The process is not a worker.
    InputClosed,
}

/// The state of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// The process runs.
    Running,
    /// The process was killed. Its remaining lines are still read.
    Killed,
    /// The process has shut down.
    ShutDown,
    /// The process has exited by itself.
    Exited,
}

/// A worker process.
pub struct WorkerProcess {
    process: Child,
    allowed_exit: AllowedExit,
    /// Whether the process is of the later version.
    pub is_later: bool,
    /// The state of the process.
    pub state: ProcessState,
    /// Number of ends that it has reported.
    pub end_count: u64,
    /// Lower bound of the offset of its clock from ours at its beginning, in microseconds.
    pub clock_offset: i64,
    /// The figures of its flushes, as it printed them.
    pub flush_figures: Vec<u64>,
    /// Whether all executions that it started have ended.
    pub is_idle: bool,
    /// The last line of a process that ended without a kill.
    pub exit_line: Option<String>,
}

/// A line of a worker, or its end.
pub struct WorkerEvent {
    /// The time when the line was read.
    pub at: Instant,
    /// The service of the worker.
    pub service: Service,
    /// The number of the worker in its service.
    pub number: usize,
    /// The line; `None` at the end of the process.
    pub line: Option<String>,
}

/// A receiver of events.
pub type Listener = Box<dyn FnMut(&WorkerEvent)>;

impl WorkerProcess {
    /// Starts a process that works on the database at `url`, and sends its events to `sender`.
    pub fn spawn(
        url: &str,
        number: usize,
        options: &WorkerOptions,
        sender: &UnboundedSender<WorkerEvent>,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if options.allowed_exit != AllowedExit::InputClosed {
            command.env(worker::URL_VARIABLE, options.url.as_deref().unwrap_or(url));
        }
        command
            .env(worker::NAME_VARIABLE, options.service.name(&format!("w{number}")))
            .env(worker::SERVICE_VARIABLE, options.service.name(""))
            .env(worker::PACE_VARIABLE, options.pace.as_millis().to_string())
            .env(worker::ROLE_VARIABLE, options.role.as_str())
            .env(worker::CALLS_VARIABLE, options.calls.as_str())
            .env(worker::CALLERS_VARIABLE, options.callers.to_string())
            .env(worker::CLOCK_OFFSET_VARIABLE, options.clock_offset.to_string())
            .envs(options.is_later.then_some((LATER_VERSION_VARIABLE, "")))
            .envs(options.environment.iter().cloned());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (out, sender) = (process.stdout.take().unwrap(), sender.clone());
        let service = options.service;
        std::thread::spawn(move || {
            let send = |line| sender.send(WorkerEvent { at: Instant::now(), service, number, line });
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = send(Some(line));
            }
            let _ = send(None);
        });
        Self {
            process,
            allowed_exit: options.allowed_exit,
            is_later: options.is_later,
            state: ProcessState::Running,
            end_count: 0,
            clock_offset: 0,
            flush_figures: Vec::new(),
            is_idle: false,
            exit_line: None,
        }
    }

    /// Returns whether the process has ended without a kill.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, ProcessState::ShutDown | ProcessState::Exited)
    }

    /// Returns the process id.
    pub fn pid(&self) -> i64 {
        self.process.id().into()
    }

    /// Records that the process ends without a kill, with its last line. Returns whether its options allow that.
    pub fn note_exit(&mut self, line: &str) -> bool {
        self.exit_line = Some(line.to_owned());
        if self.state == ProcessState::Running {
            self.state = ProcessState::ShutDown;
        }
        self.allowed_exit == AllowedExit::Reported
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) {
        assert_eq!(self.state, ProcessState::Running);
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Kills the process. Lines that it has printed stay in the pipe, and are still read.
    pub fn kill(&mut self) {
        if self.state == ProcessState::Running {
            self.state = ProcessState::Killed;
            self.process.kill().unwrap();
        }
    }

    /// Sends the process a command; see [`worker`].
    pub fn send_command(&mut self, command: &str) {
        if let Some(stdin) = &mut self.process.stdin {
            // the end of a process that has died is read from its output
            let _ = writeln!(stdin, "{command}");
        }
    }

    /// Closes the standard input of the process.
    pub fn close_input(&mut self) {
        self.process.stdin = None;
    }

    /// Waits for the end of the process, whose output is closed. Returns an error if its options do not allow this end.
    pub fn reap(&mut self) -> Result<(), ExitStatus> {
        let status = self.process.wait().unwrap();
        let is_allowed = match (self.state, self.allowed_exit) {
            (ProcessState::Killed, _) => true,
            (ProcessState::ShutDown, _) | (_, AllowedExit::InputClosed) => status.success(),
            (_, AllowedExit::Abort) => status.signal() == Some(Signal::ABORT.as_raw()),
            _ => false,
        };
        if self.state != ProcessState::ShutDown {
            self.state = ProcessState::Exited;
        }
        if is_allowed { Ok(()) } else { Err(status) }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
