//! [`Hand`]: a worker process, as its [`Site`](crate::chaos::deployment::Site) sees it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::chaos::worker::{self, Calls, Role};
use crate::fixtures::later_version::LATER_VERSION_VARIABLE;

/// How a worker is hired.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// How it gets to the database, if by a way of its own.
    pub url: Option<String>,
    /// Its role.
    pub role: Role,
    /// True for a process of the later version.
    pub is_later: bool,
    /// What its callers call.
    pub calls: Calls,
    /// How many callers it has.
    pub callers: u32,
    /// More of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// How far its clock is ahead of the machine's, in microseconds.
    pub ahead: i64,
    /// How it may end by itself.
    pub may_end: MayEnd,
}

impl Terms {
    /// So many callers of orders.
    pub fn orders(callers: u32) -> Self {
        Self { callers, ..Self::default() }
    }
}

/// How a process may end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MayEnd {
    /// Only when it is asked to leave.
    #[default]
    Asked,
    /// Also by SIGABRT.
    Aborting,
    /// Also because the schema is not that of its version, or because its work is done.
    Telling,
    /// It is no worker, and ends when its input does.
    WithInput,
}

/// What has become of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    Working,
    /// We have killed it; what it has told is still heard.
    Killed,
    /// It has shut down.
    Left,
    /// It is gone.
    Dead,
}

/// A worker process.
pub struct Hand {
    process: Child,
    may_end: MayEnd,
    /// True for a process of the later version.
    pub is_later: bool,
    /// What has become of it.
    pub fate: Fate,
    /// Ends that it has told.
    pub ends: u64,
    /// How far its clock was ahead of ours when it began, in microseconds, and a little less.
    pub ahead: i64,
    /// What it has told of its flushes.
    pub figures: Vec<u64>,
    /// True when all that it has started has ended.
    pub is_idle: bool,
    /// The last line of a process that ended by itself.
    pub last_words: Option<String>,
}

/// Something that was heard.
pub struct Heard {
    /// When it came out of the pipe.
    pub at: Instant,
    /// The number of the worker.
    pub number: usize,
    /// Its line; `None` at its end.
    pub line: Option<String>,
}

/// Who listens.
pub type Listener = Box<dyn FnMut(&Heard)>;

impl Hand {
    /// Starts a process that works on the database at `url`, and is heard by `sender`.
    pub fn hire(url: &str, number: usize, terms: &Terms, sender: &UnboundedSender<Heard>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if terms.may_end != MayEnd::WithInput {
            command.env(worker::URL, terms.url.as_deref().unwrap_or(url));
        }
        command
            .env(worker::NAME, format!("w{number}"))
            .env(worker::ROLE, terms.role.as_str())
            .env(worker::CALLS, terms.calls.as_str())
            .env(worker::CALLERS, terms.callers.to_string())
            .env(worker::AHEAD, terms.ahead.to_string())
            .envs(terms.is_later.then_some((LATER_VERSION_VARIABLE, "")))
            .envs(terms.environment.iter().cloned());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (out, sender) = (process.stdout.take().unwrap(), sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(Heard { at: Instant::now(), number, line: Some(line) });
            }
            let _ = sender.send(Heard { at: Instant::now(), number, line: None });
        });
        Self {
            process,
            may_end: terms.may_end,
            is_later: terms.is_later,
            fate: Fate::Working,
            ends: 0,
            ahead: 0,
            figures: Vec::new(),
            is_idle: false,
            last_words: None,
        }
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> i64 {
        self.process.id().into()
    }

    /// Notes that the process ends by itself, and why. Returns whether its terms allow that.
    pub fn ends_by_itself(&mut self, why: &str) -> bool {
        self.last_words = Some(why.to_owned());
        if self.fate == Fate::Working {
            self.fate = Fate::Left;
        }
        self.may_end == MayEnd::Telling
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        assert_eq!(self.fate, Fate::Working);
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Kills it. What it has told stays in the pipe, and is heard.
    pub fn kill(&mut self) {
        if self.fate == Fate::Working {
            self.fate = Fate::Killed;
            self.process.kill().unwrap();
        }
    }

    /// Asks it for something; see [`worker`].
    pub fn ask(&mut self, what: &str) {
        if let Some(stdin) = &mut self.process.stdin {
            // one that has died meanwhile is heard of
            let _ = writeln!(stdin, "{what}");
        }
    }

    /// Closes its standard input.
    pub fn close(&mut self) {
        self.process.stdin = None;
    }

    /// It has told its last; an error if it had no reason to end.
    pub fn end(&mut self) -> Result<(), ExitStatus> {
        let status = self.process.wait().unwrap();
        let may_end = match (self.fate, self.may_end) {
            (Fate::Killed, _) => true,
            (Fate::Left, _) | (_, MayEnd::WithInput) => status.success(),
            (_, MayEnd::Aborting) => status.signal() == Some(Signal::ABORT.as_raw()),
            _ => false,
        };
        if self.fate != Fate::Left {
            self.fate = Fate::Dead;
        }
        if may_end { Ok(()) } else { Err(status) }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
