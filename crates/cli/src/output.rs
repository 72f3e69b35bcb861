//! The program's output: tables for people, JSON for programs; and its exit codes.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::clock::Timestamp;
use stepfast::queue::Placement;
use stepfast::store::{Attempt, Checkpoint, CheckpointKind, Execution, Record, Wait, WorkerId};
use stepfast::text::{escape_controls, format_duration, quote};
use stepfast::{Error, ErrorKind, Failure, Key, Payload, Status};

use crate::value::payload_json;

/// The program's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Everything was done.
    Done = 0,
    /// Something failed; the message says what.
    Failed = 1,
    /// The command line is wrong. `clap` exits with the same code.
    Usage = 2,
    /// The execution, the queue, the schedule or the graph does not exist.
    NotFound = 3,
    /// The request does not apply to the execution's status, or the id is taken.
    NotApplicable = 4,
    /// The database is unreachable.
    Unavailable = 5,
}

impl Exit {
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::Conflict => Exit::NotApplicable,
            ErrorKind::Unavailable => Exit::Unavailable,
            _ => Exit::Failed,
        }
    }

    /// Returns the code of an error of this program.
    pub(crate) fn of_command(error: &anyhow::Error) -> Self {
        if error.is::<NotFound>() {
            Exit::NotFound
        } else if error.is::<UsageError>() {
            Exit::Usage
        } else {
            Exit::Failed
        }
    }
}

/// The error that what a command names does not exist, with [`Exit::NotFound`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFound(pub(crate) String);

/// The error of options that contradict each other, with [`Exit::Usage`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

impl UsageError {
    /// Returns the error with this message.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Returns lines for a terminal, with all control characters escaped.
pub(crate) fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_controls).collect::<Vec<_>>().join("\n")
}

/// Prints a line. If the reader of a pipe has ended, as `head` does, the program ends too.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", escape_lines(text)).and_then(|()| out.flush()) {
        let is_reader_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !is_reader_gone {
            let _ = writeln!(std::io::stderr(), "error: cannot write the output: {error}");
        }
        std::process::exit(i32::from(!is_reader_gone));
    }
}

pub(crate) fn print_json(value: &Value) -> anyhow::Result<()> {
    print(&escape_json(&serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Returns a text that comes from another program, for a cell of a table. Characters that would move the cursor, end
/// the line or reverse the direction of writing are escaped.
pub(crate) fn cell_text(text: &str) -> String {
    let needs_escape = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| if needs_escape(c) { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Prints JSON in one line.
pub(crate) fn print_json_line(value: &Value) {
    print(&escape_json(&value.to_string()));
}

/// Returns JSON with all control characters in texts escaped.
fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        // characters below a space are escaped already, or separate values
        if char.is_control() && char > ' ' {
            escaped.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Formats an instant in UTC, to the millisecond.
pub(crate) fn format_instant(instant: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(instant.as_micros())
        .map_or_else(|_| "?".to_owned(), |instant| format!("{instant:.3}"))
}

pub(crate) fn format_status(execution: &Execution) -> String {
    if execution.is_parked { format!("{} (parked)", execution.status) } else { execution.status.to_string() }
}

/// Dead workers that have not been taken over yet.
pub(crate) struct DeadWorkers(pub(crate) Vec<WorkerId>);

impl DeadWorkers {
    fn owns(&self, execution: &Execution) -> bool {
        execution.owner.is_some_and(|owner| self.0.contains(&owner))
    }
}

pub(crate) fn executions_table(executions: &[Execution], dead_workers: &DeadWorkers) -> String {
    if executions.is_empty() {
        return "no executions match".to_owned();
    }
    // these columns are shown only if an execution has a version, a queue or an attribute
    let has_version = executions.iter().any(|execution| execution.app_version.is_some());
    let has_queue = executions.iter().any(|execution| execution.placement.is_some());
    let has_attributes = executions.iter().any(|execution| !execution.attributes.is_empty());
    let mut header = vec!["workflow_id", "workflow", "status", "created at", "ended at", "recoveries"];
    header.extend(has_version.then_some("version"));
    header.extend(has_queue.then_some("queue"));
    header.extend(has_attributes.then_some("attributes"));
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
    for execution in executions {
        let mark = if dead_workers.owns(execution) { " (worker dead)" } else { "" };
        let mut row = vec![
            execution.workflow_id(),
            execution.workflow.to_string(),
            format_status(execution) + mark,
            format_instant(execution.created_at),
            execution.ended_at.map_or(String::new(), format_instant),
            execution.recoveries.to_string(),
        ];
        row.extend(has_version.then(|| execution.app_version.as_deref().unwrap_or("any").to_owned()));
        row.extend(has_queue.then(|| execution.queue().to_owned()));
        row.extend(has_attributes.then(|| format_attributes(execution)));
        table.add_row(row);
    }
    table.to_string()
}

/// Formats attributes in the form that the filters of a list accept.
pub(crate) fn format_attributes(execution: &Execution) -> String {
    let all: Vec<String> =
        execution.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.join(" ")
}

pub(crate) fn execution_json(execution: &Execution, dead_workers: &DeadWorkers) -> Value {
    let placement = execution.placement.as_deref();
    json!({
        "workflow_id": execution.workflow_id(),
        "key": execution.key.to_string(),
        "workflow": &*execution.workflow,
        "status": execution.status.as_str(),
        "is_parked": execution.is_parked,
        "parent": execution.parent.as_ref().map(|parent| parent.key.to_string()),
        "root": execution.root.to_string(),
        "owner": execution.owner.map(|owner| owner.0),
        "is_owner_dead": dead_workers.owns(execution),
        "run_no": execution.run_no,
        "recoveries": execution.recoveries,
        "app_version": execution.app_version.as_deref(),
        "queue": placement.map(|placement| &*placement.queue),
        "queue_key": placement.map(|placement| &*placement.key).filter(|key| !key.is_empty()),
        "priority": placement.map_or(0, |placement| placement.priority),
        "dedup_id": execution.given_dedup_id(),
        "debounce": execution.debounce_id(),
        "created_at": format_instant(execution.created_at),
        "ended_at": execution.ended_at.map(format_instant),
        "deadline_at": execution.deadline_at.map(format_instant),
        "run_timeout_ms": execution.run_timeout.map(|timeout| timeout.as_millis() as u64),
        "wake_at": execution.wake_at.map(format_instant),
        "attributes": execution.attributes.iter().collect::<BTreeMap<_, _>>(),
    })
}

/// The data that `show` prints of an execution.
pub(crate) struct ShowData {
    pub(crate) record: Record,
    /// The children that the checkpoints refer to.
    pub(crate) children: HashMap<Key, Execution>,
    pub(crate) dead_workers: DeadWorkers,
    /// The reason why no live worker can run the execution; `None` if a live worker can, or if the execution waits for
    /// none.
    pub(crate) unclaimable: Option<String>,
    /// The topics of its pending messages, each with the number of its messages.
    pub(crate) pending: Vec<(String, u64)>,
}

impl ShowData {
    /// Returns the key of the child that a checkpoint refers to, and the child's row.
    pub(crate) fn child(&self, checkpoint: &Checkpoint) -> Option<(Key, Option<&Execution>)> {
        let key = child_key(checkpoint)?;
        Some((key, self.children.get(&key)))
    }
}

/// Returns the key of the child that a checkpoint refers to.
pub(crate) fn child_key(checkpoint: &Checkpoint) -> Option<Key> {
    match checkpoint.kind {
        CheckpointKind::Child | CheckpointKind::Started => {
            checkpoint.outcome.decode::<String>().ok().and_then(|text| Key::from_text(&text))
        }
        _ => None,
    }
}

pub(crate) fn record_json(all: &ShowData) -> Value {
    let record = &all.record;
    let mut shown = execution_json(&record.execution, &all.dead_workers);
    shown["unclaimable"] = json!(all.unclaimable);
    shown["input"] = payload_json(&record.execution.input);
    shown["outcome"] = payload_json(&record.execution.outcome);
    shown["waits"] = record.waits.iter().map(wait_json).collect();
    shown["pending"] =
        all.pending.iter().map(|(topic, count)| json!({ "topic": topic, "messages": count })).collect();
    shown["checkpoints"] = record
        .checkpoints
        .iter()
        .map(|checkpoint| {
            json!({
                "order": checkpoint.order,
                "path": checkpoint.path.to_string(),
                "kind": checkpoint.kind.as_str(),
                "name": &*checkpoint.name,
                "outcome": payload_json(&checkpoint.outcome),
                "child": all.child(checkpoint).and_then(|(_, child)| child).map(child_json),
                "recorded_at": format_instant(checkpoint.at),
                "duration_ms": checkpoint.duration_ms,
            })
        })
        .collect();
    shown["attempts"] = record
        .attempts
        .iter()
        .map(|attempt| {
            json!({
                "path": attempt.path.to_string(),
                "attempt": attempt.attempt,
                "failure": payload_json(&attempt.failure),
                "failed_at": format_instant(attempt.at),
            })
        })
        .collect();
    shown
}

fn wait_json(wait: &Wait) -> Value {
    match wait {
        Wait::Child(child) => json!({ "kind": "child", "key": child.to_string() }),
        Wait::Message(topic) => json!({ "kind": "message", "topic": &**topic }),
        Wait::Event(setter, name) => json!({ "kind": "event", "key": setter.to_string(), "name": &**name }),
    }
}

/// Returns the waits of an execution; `None` if there are none.
fn format_waits(record: &Record) -> Option<String> {
    const MAX_WAITS: usize = 5;
    let waits = record.waits.iter().take(MAX_WAITS).map(|wait| match wait {
        Wait::Child(child) => format!("child {child}"),
        Wait::Message(topic) => format!("message {}", quote(topic)),
        Wait::Event(setter, name) => format!("event {} of {setter}", quote(name)),
    });
    let more = record.waits.len().checked_sub(MAX_WAITS).filter(|more| *more > 0);
    let all: Vec<String> = waits.chain(more.map(|more| format!("{more} more"))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Returns the text for the topics of pending messages; `None` if there are none.
fn format_pending(topics: &[(String, u64)]) -> Option<String> {
    const MAX_TOPICS: usize = 5;
    let shown = topics.iter().take(MAX_TOPICS).map(|(topic, count)| {
        let noun = if *count == 1 { "message" } else { "messages" };
        format!("{count} {noun} {}", quote(topic))
    });
    let more = topics.len().checked_sub(MAX_TOPICS).filter(|more| *more > 0);
    let all: Vec<String> = shown.chain(more.map(|more| format!("{more} more topics"))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn child_json(child: &Execution) -> Value {
    json!({
        "workflow_id": child.workflow_id(),
        "status": child.status.as_str(),
        "outcome": payload_json(&child.outcome),
    })
}

/// Returns a line with the workflow, the id and the status of an execution, and a line with the failure because of which
/// the execution ended or is parked.
pub(crate) fn status_lines(shown: &ShowData) -> String {
    let execution = &shown.record.execution;
    let mark = if shown.dead_workers.owns(execution) { " (worker dead)" } else { "" };
    let failure = format_outcome(execution).filter(|_| execution.status != Status::Completed);
    format!(
        "{} {}  {}{mark}{}",
        execution.workflow,
        execution.workflow_id(),
        format_status(execution),
        failure.map_or_else(String::new, |failure| format!("\n{failure}"))
    )
}

pub(crate) fn record_text(shown: &ShowData) -> String {
    let record = &shown.record;
    let execution = &record.execution;
    let mut text = format!(
        "{} {}\nstatus      {}\ncreated at  {}\n",
        execution.workflow,
        execution.workflow_id(),
        format_status(execution),
        format_instant(execution.created_at)
    );
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!("{name:12}{value}\n");
        }
    };
    let mark = if shown.dead_workers.owns(execution) { " (dead)" } else { "" };
    line("worker", execution.owner.map(|owner| format!("{}{mark}", owner.0)));
    line("queue", execution.placement.as_deref().map(|placement| format_queue(placement, execution)));
    line("attributes", (!execution.attributes.is_empty()).then(|| format_attributes(execution)));
    line("unclaimable", shown.unclaimable.clone());
    line("ended at", execution.ended_at.map(format_instant));
    line("waits for", format_waits(record));
    line("pending", format_pending(&shown.pending));
    line("wakes at", execution.wake_at.map(format_instant));
    line("deadline", execution.deadline_at.map(format_instant));
    line("parent", execution.parent.as_ref().map(|parent| parent.key.to_string()));
    line("recoveries", (execution.recoveries > 0).then(|| execution.recoveries.to_string()));
    line("version", execution.app_version.as_deref().map(str::to_owned));
    line("run", (execution.run_no > 1).then(|| execution.run_no.to_string()));
    line("input", Some(short_payload(&execution.input)));
    line("outcome", format_outcome(execution));
    if record.checkpoints.is_empty() && record.attempts.is_empty() {
        return text + "no steps recorded";
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_header(["order", "path", "kind", "name", "outcome", "duration"]);
    for checkpoint in &record.checkpoints {
        let (outcome, duration_ms) = match (checkpoint.kind, shown.child(checkpoint)) {
            (CheckpointKind::Failed, _) => (format_failure(&checkpoint.outcome), checkpoint.duration_ms),
            (kind, Some((key, child))) => {
                // the parent may have waited in several runs: the duration shown is the child's own
                let child_duration = child
                    .filter(|_| kind == CheckpointKind::Child)
                    .and_then(|child| child.ended_at.map(|end| end.since(child.created_at)));
                let duration_ms =
                    child_duration.map_or(checkpoint.duration_ms, |duration| duration.as_millis() as i64);
                (format_child(key, child), duration_ms)
            }
            _ => (short_payload(&checkpoint.outcome), checkpoint.duration_ms),
        };
        table.add_row([
            checkpoint.order.to_string(),
            checkpoint.path.to_string(),
            checkpoint.kind.as_str().to_owned(),
            checkpoint.name.to_string(),
            outcome,
            format_duration(duration_ms),
        ]);
        for attempt in record.attempts.iter().filter(|attempt| attempt.path == checkpoint.path) {
            table.add_row(attempt_row(attempt));
        }
    }
    // failed attempts of steps without an outcome
    let is_open = |attempt: &&Attempt| record.checkpoints.iter().all(|it| it.path != attempt.path);
    for attempt in record.attempts.iter().filter(is_open) {
        table.add_row(attempt_row(attempt));
    }
    text + &table.to_string()
}

/// Formats the queue of an execution with its placement there.
pub(crate) fn format_queue(placement: &Placement, execution: &Execution) -> String {
    let key = if placement.key.is_empty() { String::new() } else { format!(", key {}", placement.key) };
    let priority =
        if placement.priority == 0 { String::new() } else { format!(", priority {}", placement.priority) };
    let labelled =
        |label: &str, id: Option<&str>| id.map_or_else(String::new, |id| format!(", {label} {id}"));
    let dedup_id = labelled("dedup_id", execution.given_dedup_id());
    let debounce = labelled("debounce", execution.debounce_id());
    format!("{}{key}{priority}{dedup_id}{debounce}", placement.queue)
}

fn attempt_row(attempt: &Attempt) -> [String; 6] {
    [
        String::new(),
        attempt.path.to_string(),
        format!("attempt {}", attempt.attempt),
        String::new(),
        format_failure(&attempt.failure),
        String::new(),
    ]
}

/// Formats a child in one line, beginning with its id.
fn format_child(key: Key, child: Option<&Execution>) -> String {
    let Some(child) = child else { return format!("{key} (not in the database)") };
    let outcome = format_outcome(child).map_or(String::new(), |outcome| format!(": {outcome}"));
    format!("{} {}{outcome}", child.workflow_id(), format_status(child))
}

/// Formats the output of an execution, or the failure because of which it ended or is parked. Returns `None` if there
/// is neither.
fn format_outcome(execution: &Execution) -> Option<String> {
    let is_failure = matches!(execution.status, Status::Failed | Status::Cancelled) || execution.is_parked;
    let text = if is_failure { format_failure } else { short_payload };
    (!execution.outcome.is_empty()).then(|| text(&execution.outcome))
}

/// Formats a recorded failure, cut short if it is long.
fn format_failure(payload: &Payload) -> String {
    const MAX_CHARS: usize = 4_000;
    let text = full_failure(payload);
    match text.char_indices().nth(MAX_CHARS) {
        None => text,
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}

pub(crate) fn full_failure(payload: &Payload) -> String {
    payload.decode::<Failure>().map_or_else(
        |_| short_payload(payload),
        |failure| {
            // Python exceptions are identified by their class
            let is_exception = !failure.detail.is_empty() && failure.message != failure.kind;
            if is_exception { format!("{}: {failure}", failure.kind) } else { failure.to_string() }
        },
    )
}

/// Formats a payload in one short line.
pub(crate) fn short_payload(payload: &Payload) -> String {
    const MAX_CHARS: usize = 80;
    if let Some(chunks) = payload.chunk_ref() {
        return format!("({} bytes)", chunks.len);
    }
    let text = match payload_json(payload) {
        Value::Null => String::new(),
        value => value.to_string(),
    };
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    let cut: String = text.chars().take(MAX_CHARS).collect();
    format!("{cut}… ({} bytes)", payload.len())
}
