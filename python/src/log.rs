//! What the engine logs, on its way to the `logging` of Python.
//!
//! It is told in the engine's own threads, lanes among them, which must wait neither for the interpreter nor for
//! whatever a program's handlers do. So lines are only put in line here, and a thread of Python's takes them out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use stepfast::clock::{Clock, SystemClock};

// whoever holds it runs no Python code: the thread that forks keeps its guard
#[allow(clippy::disallowed_types)]
use stepfast::sync::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::exit::without_interpreter;

/// So many lines wait at most; what comes then is counted.
const MOST: usize = 1_000;
/// Of those for debugging so many: there may be thousands at once, and nobody misses them.
const MOST_DEBUG: usize = 100;

/// A line: the number of its level, its text, when it was told (seconds since 1970).
type Line = (u8, String, f64);

struct Queue {
    lines: VecDeque<Line>,
    dropped: u64,
    is_closed: bool,
}

#[allow(clippy::disallowed_types)]
static QUEUE: Mutex<Queue> = Mutex::new(Queue { lines: VecDeque::new(), dropped: 0, is_closed: false });
static CAME: Condvar = Condvar::new();

thread_local! {
    /// Held by the thread that forks, as in `runtime`.
    static HELD: RefCell<Option<std::sync::MutexGuard<'static, Queue>>> = const { RefCell::new(None) };
}

/// Has all that this program's engines log put in line, from here on.
pub(crate) fn install() {
    // fails if somebody else listens already: then that is where it goes
    let _ = tracing::subscriber::set_global_default(Listener { spans: AtomicU64::new(1) });
}

pub(crate) fn before_fork() {
    HELD.set(Some(QUEUE.lock()));
}

pub(crate) fn after_fork_in_parent() {
    drop(HELD.take());
}

/// The parent tells what is in line.
pub(crate) fn after_fork_in_child() {
    if let Some(mut queue) = HELD.take() {
        *queue = Queue { lines: VecDeque::new(), dropped: 0, is_closed: false };
    }
}

/// Waits for lines, and takes them out; none once there will be no more.
#[pyfunction]
pub(crate) fn next_log_lines(py: Python<'_>) -> Option<Vec<Line>> {
    without_interpreter(py, || {
        let guard = QUEUE.lock();
        let mut queue = CAME.wait_while(guard, |queue| queue.lines.is_empty() && !queue.is_closed);
        if queue.lines.is_empty() {
            return None;
        }
        let mut lines: Vec<Line> = queue.lines.drain(..).collect();
        if queue.dropped > 0 {
            let text = format!("{} lines of the log are left out: they came too fast", queue.dropped);
            lines.push(line(Level::WARN, text));
            queue.dropped = 0;
        }
        Some(lines)
    })
}

/// There will be no more lines after those that are in line, until it is opened again.
#[pyfunction]
pub(crate) fn close_log(py: Python<'_>, is_closed: bool) {
    // whoever holds it may be about to fork, and wait for the interpreter
    without_interpreter(py, || QUEUE.lock().is_closed = is_closed);
    CAME.notify_all();
}

fn line(level: Level, text: String) -> Line {
    // the numbers of `logging`
    let number = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG | Level::TRACE => 10,
    };
    (number, text, SystemClock.now().as_micros() as f64 / 1e6)
}

/// Listens to what is traced.
struct Listener {
    spans: AtomicU64,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("stepfast") && *metadata.level() <= Level::DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = line(*event.metadata().level(), text.shown());
        let mut queue = QUEUE.lock();
        let is_debug = *event.metadata().level() >= Level::DEBUG;
        if queue.is_closed || (is_debug && queue.lines.len() >= MOST_DEBUG) {
            return;
        }
        if queue.lines.len() >= MOST {
            queue.dropped += 1;
            return;
        }
        queue.lines.push_back(line);
        drop(queue);
        CAME.notify_one();
    }

    // of spans nothing is told
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as text: what happened, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn shown(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{} ({})", self.message, self.fields) }
    }

    fn field(&mut self, field: &Field, value: &dyn std::fmt::Display) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
            return;
        }
        let gap = if self.fields.is_empty() { "" } else { ", " };
        let _ = write!(self.fields, "{gap}{}: {value}", field.name());
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, &format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, &value);
    }
}
