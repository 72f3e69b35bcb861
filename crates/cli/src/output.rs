//! What the program prints: tables for people, JSON for programs; and its exit codes.

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Value, json};
use stepfast::clock::Timestamp;
use stepfast::record::{Execution, Record};
use stepfast::{Error, ErrorKind, Payload};

/// The program's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// All was done.
    Done = 0,
    /// Something failed; the message says what.
    Failed = 1,
    // 2 is clap's: the command line is wrong
    /// There is no such execution.
    NotFound = 3,
    /// The execution is in a state in which that is not possible.
    Declined = 4,
    /// The database did not answer.
    Unavailable = 5,
}

impl Exit {
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::Conflict => Exit::Declined,
            ErrorKind::Unavailable => Exit::Unavailable,
            _ => Exit::Failed,
        }
    }
}

#[allow(clippy::print_stdout)] // this is where the program prints
pub(crate) fn print(text: &str) {
    println!("{text}");
}

pub(crate) fn print_json(value: &Value) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// An instant in UTC, to the millisecond.
fn at(instant: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(instant.as_micros())
        .map_or_else(|_| "?".to_owned(), |instant| format!("{instant:.3}"))
}

fn status_of(execution: &Execution) -> String {
    if execution.is_paused { format!("{} (parked)", execution.status) } else { execution.status.to_string() }
}

pub(crate) fn executions_table(executions: &[Execution]) -> String {
    if executions.is_empty() {
        return "no executions match".to_owned();
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "workflow_id",
        "workflow",
        "status",
        "created at",
        "ended at",
        "recoveries",
    ]);
    for execution in executions {
        table.add_row([
            execution.workflow_id(),
            execution.workflow.to_string(),
            status_of(execution),
            at(execution.created_at),
            execution.ended_at.map_or(String::new(), at),
            execution.recoveries.to_string(),
        ]);
    }
    table.to_string()
}

pub(crate) fn execution_json(execution: &Execution) -> Value {
    json!({
        "workflow_id": execution.workflow_id(),
        "key": execution.key.to_string(),
        "workflow": &*execution.workflow,
        "status": execution.status.as_str(),
        "is_paused": execution.is_paused,
        "parent": execution.parent.as_ref().map(|parent| parent.key.to_string()),
        "root": execution.root.to_string(),
        "owner": execution.owner.map(|owner| owner.0),
        "run_no": execution.run_no,
        "recoveries": execution.recoveries,
        "created_at": at(execution.created_at),
        "ended_at": execution.ended_at.map(at),
        "deadline_at": execution.deadline_at.map(at),
        "wake_at": execution.wake_at.map(at),
    })
}

pub(crate) fn record_json(record: &Record) -> Value {
    let mut shown = execution_json(&record.execution);
    shown["input"] = payload_json(&record.execution.input);
    shown["outcome"] = payload_json(&record.execution.outcome);
    shown["checkpoints"] = record
        .checkpoints
        .iter()
        .map(|checkpoint| {
            json!({
                "order": checkpoint.order,
                "path": checkpoint.path.to_string(),
                "kind": kind(checkpoint.kind),
                "name": &*checkpoint.name,
                "outcome": payload_json(&checkpoint.outcome),
                "recorded_at": at(checkpoint.at),
                "took_ms": checkpoint.took_ms,
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
                "failed_at": at(attempt.at),
            })
        })
        .collect();
    shown
}

fn kind(kind: stepfast::write::CheckpointKind) -> &'static str {
    use stepfast::write::CheckpointKind;
    match kind {
        CheckpointKind::Step => "step",
        CheckpointKind::Failed => "failed",
        CheckpointKind::Abandoned => "abandoned",
        CheckpointKind::Timer => "timer",
        CheckpointKind::Child => "child",
        CheckpointKind::Started => "started",
    }
}

pub(crate) fn record_text(record: &Record) -> String {
    let execution = &record.execution;
    let mut text = format!(
        "{} {}\nstatus      {}\ncreated at  {}\n",
        execution.workflow,
        execution.workflow_id(),
        status_of(execution),
        at(execution.created_at)
    );
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!("{name:12}{value}\n");
        }
    };
    line("ended at", execution.ended_at.map(at));
    line("wakes at", execution.wake_at.map(at));
    line("deadline", execution.deadline_at.map(at));
    line("parent", execution.parent.as_ref().map(|parent| parent.key.to_string()));
    line("recoveries", (execution.recoveries > 0).then(|| execution.recoveries.to_string()));
    line("run", (execution.run_no > 1).then(|| execution.run_no.to_string()));
    line("input", Some(short(&execution.input)));
    line("outcome", (!execution.outcome.is_empty()).then(|| short(&execution.outcome)));
    if record.checkpoints.is_empty() {
        return text + "no steps recorded";
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(["order", "path", "kind", "name", "outcome", "took"]);
    for checkpoint in &record.checkpoints {
        let failed = record.attempts.iter().filter(|attempt| attempt.path == checkpoint.path).count();
        let retries = if failed > 0 { format!(" (after {failed} failed attempts)") } else { String::new() };
        table.add_row([
            checkpoint.order.to_string(),
            checkpoint.path.to_string(),
            kind(checkpoint.kind).to_owned(),
            checkpoint.name.to_string(),
            short(&checkpoint.outcome) + &retries,
            format!("{} ms", checkpoint.took_ms),
        ]);
    }
    text + &table.to_string()
}

/// A payload in one short line.
fn short(payload: &Payload) -> String {
    const LONGEST: usize = 80;
    let text = match payload_json(payload) {
        Value::Null => String::new(),
        value => value.to_string(),
    };
    if text.chars().count() <= LONGEST {
        return text;
    }
    let cut: String = text.chars().take(LONGEST).collect();
    format!("{cut}… ({} bytes)", payload.len())
}

/// A payload as JSON; bytes as `{"bytes": length}`, numbers beyond JSON's as text.
fn payload_json(payload: &Payload) -> Value {
    payload.to_value().map_or(Value::Null, to_json)
}

fn to_json(value: rmpv::Value) -> Value {
    match value {
        rmpv::Value::Nil => Value::Null,
        rmpv::Value::Boolean(value) => value.into(),
        rmpv::Value::Integer(number) => number
            .as_i64()
            .map(Value::from)
            .or_else(|| number.as_u64().map(Value::from))
            .unwrap_or_else(|| number.to_string().into()),
        rmpv::Value::F32(number) => float(f64::from(number)),
        rmpv::Value::F64(number) => float(number),
        rmpv::Value::String(text) => text.into_str().map_or(Value::Null, Value::from),
        rmpv::Value::Binary(bytes) => json!({ "bytes": bytes.len() }),
        rmpv::Value::Array(items) => items.into_iter().map(to_json).collect(),
        rmpv::Value::Map(entries) => Value::Object(
            entries
                .into_iter()
                .map(|(key, value)| {
                    let key = match key {
                        rmpv::Value::String(text) => text.into_str().unwrap_or_default(),
                        other => other.to_string(),
                    };
                    (key, to_json(value))
                })
                .collect(),
        ),
        rmpv::Value::Ext(tag, bytes) => json!({ "extension": tag, "bytes": bytes.len() }),
    }
}

fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}
