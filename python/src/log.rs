//! Passes the engine's log lines to the `logging` of Python.
//!
//! An engine logs lines in its own threads, including the threads of its lanes. These threads must wait neither for the
//! interpreter nor for log handlers. So the lines are only queued here, and a Python thread takes them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use stepfast::clock::{Clock, SystemClock};

// a lock with a guard, because the forking thread keeps the guard; no Python code runs under the lock
#[allow(clippy::disallowed_types)]
use stepfast::sync::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::exit::without_interpreter;

/// Maximum number of queued lines. Further lines are only counted.
const MAX_QUEUED_LINES: usize = 1_000;
/// Number of queued lines at which further debug lines are dropped. Thousands of debug lines may arrive at once, and
/// are dispensable.
const MAX_QUEUED_DEBUG_LINES: usize = 100;

/// A log line: the number of its level, its text, its time in seconds since 1970.
type LogLine = (u8, String, f64);

struct LogQueue {
    lines: VecDeque<LogLine>,
    dropped: u64,
    is_closed: bool,
}

#[allow(clippy::disallowed_types)]
static LOG_QUEUE: Mutex<LogQueue> =
    Mutex::new(LogQueue { lines: VecDeque::new(), dropped: 0, is_closed: false });
static LINES_ADDED: Condvar = Condvar::new();

thread_local! {
    /// The guard of `LOG_QUEUE`, which the forking thread holds during the fork, as in `runtime`.
    static FORK_LOCK: RefCell<Option<std::sync::MutexGuard<'static, LogQueue>>> = const { RefCell::new(None) };
}

/// Begins to queue the log lines of this program's engines.
pub(crate) fn install() {
    // fails if another subscriber is installed, which then receives the lines
    let _ = tracing::subscriber::set_global_default(LogSubscriber { next_span_id: AtomicU64::new(1) });
}

pub(crate) fn before_fork() {
    FORK_LOCK.set(Some(LOG_QUEUE.lock()));
}

pub(crate) fn after_fork_in_parent() {
    drop(FORK_LOCK.take());
}

/// Empties the queue in a forked child, because the parent logs these lines.
pub(crate) fn after_fork_in_child() {
    if let Some(mut queue) = FORK_LOCK.take() {
        *queue = LogQueue { lines: VecDeque::new(), dropped: 0, is_closed: false };
    }
}

/// Waits for lines and takes them; returns `None` once the log is closed.
#[pyfunction]
pub(crate) fn next_log_lines(py: Python<'_>) -> Option<Vec<LogLine>> {
    without_interpreter(py, || {
        let guard = LOG_QUEUE.lock();
        let mut queue = LINES_ADDED.wait_while(guard, |queue| queue.lines.is_empty() && !queue.is_closed);
        if queue.lines.is_empty() {
            return None;
        }
        let mut lines: Vec<LogLine> = queue.lines.drain(..).collect();
        if queue.dropped > 0 {
            let text = format!("{} log lines were dropped: they arrived too fast", queue.dropped);
            lines.push(log_line(Level::WARN, text));
            queue.dropped = 0;
        }
        Some(lines)
    })
}

/// Closes the log after the queued lines, or opens it again.
#[pyfunction]
pub(crate) fn set_log_closed(py: Python<'_>, is_closed: bool) {
    // the thread that holds the lock may be about to fork, and may wait for the interpreter
    without_interpreter(py, || LOG_QUEUE.lock().is_closed = is_closed);
    LINES_ADDED.notify_all();
}

fn log_line(level: Level, text: String) -> LogLine {
    // the level numbers of `logging`
    let number = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG | Level::TRACE => 10,
    };
    (number, text, SystemClock.now().as_micros() as f64 / 1e6)
}

/// The subscriber that receives the events of `tracing`, and queues them as lines.
struct LogSubscriber {
    next_span_id: AtomicU64,
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("stepfast") && *metadata.level() <= Level::DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let line = log_line(*event.metadata().level(), text.into_line());
        let mut queue = LOG_QUEUE.lock();
        let is_debug = *event.metadata().level() >= Level::DEBUG;
        if queue.is_closed || (is_debug && queue.lines.len() >= MAX_QUEUED_DEBUG_LINES) {
            return;
        }
        if queue.lines.len() >= MAX_QUEUED_LINES {
            queue.dropped += 1;
            return;
        }
        queue.lines.push_back(line);
        drop(queue);
        LINES_ADDED.notify_one();
    }

    // spans are not logged
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.next_span_id.fetch_add(1, Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as text: the message, then the fields.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn into_line(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{} ({})", self.message, self.fields) }
    }

    fn append(&mut self, field: &Field, value: &dyn std::fmt::Display) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
            return;
        }
        let gap = if self.fields.is_empty() { "" } else { ", " };
        let _ = write!(self.fields, "{gap}{}: {value}", field.name());
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.append(field, &format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.append(field, &value);
    }
}
