//! The engine's errors as Python's exceptions: one table, from kind to class.

use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning};
use pyo3::prelude::*;
use stepfast::text::{escape_controls, quote};
use stepfast::{Error, Failure};

use crate::exit::InterpreterGuard;

const ENGINE_CLOSED_MESSAGE: &str =
    "the engine is closed: open another one. What it had accepted is continued by the next one";

/// The exception for an error of the engine: made by `stepfast.failure`.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    let _inside = InterpreterGuard::enter(py);
    let failure = match error {
        Error::Failed(failure) | Error::Cancelled(failure) => Some(failure),
        Error::Parked { failure, .. } => Some(&**failure),
        _ => None,
    };
    let failure =
        failure.map(|failure| (failure.kind.clone(), failure.message.clone(), failure.detail.to_vec()));
    let made = py.import("stepfast._runtime.failures").and_then(|errors| {
        let kind = format!("{:?}", error.kind());
        let message = match error {
            // as Python calls it
            Error::Shutdown => ENGINE_CLOSED_MESSAGE.to_owned(),
            Error::UnknownQueue { name, known } => {
                let (name, known) = (quote(name), if known.is_empty() { "none" } else { known });
                format!(
                    "there is no queue {name} (there are {known}); declare it where an engine is opened, as in \
                     Engine(url, queues=[Queue({name})]), or create it with engine.set_queue"
                )
            }
            Error::QueueConflict { name } => format!(
                "queue {name:?} is stored with other limits than this code declares; make them the same, or \
                 declare it with another on_conflict than \"refuse\""
            ),
            Error::Deduplicated { queue, dedup_id, workflow_id } => format!(
                "queue {queue:?} has an execution with dedup_id {} that has not ended: {}; start it again when that has \
                 ended, or get a handle to that one with on_duplicate=\"return_existing\"",
                quote(dedup_id),
                escape_controls(workflow_id)
            ),
            Error::QueueFull { queue } => format!(
                "queue {queue:?} is full: as many executions wait in it as its max_depth allows; start it again later, \
                 let the start wait for room with on_full=\"wait\", or raise the limit"
            ),
            error => error.to_string(),
        };
        errors.getattr("made")?.call1((kind, error.code(), message, failure))
    });
    match made {
        Ok(made) => PyErr::from_value(made),
        Err(error) => error,
    }
}

/// A durable call in a thread that is none of the execution's.
pub(crate) fn foreign_thread_error(py: Python<'_>) -> PyErr {
    let text = "a durable call is made in a thread that is not the workflow's (asyncio.to_thread, an executor, \
                a thread with a copy of the context): its place in the workflow would be a matter of time. Make \
                it in the workflow's own code; a sync step in an async workflow is awaited: \
                await the_step.in_thread(...)";
    to_exception(py, &Error::Invalid { what: "thread", reason: text.to_owned() })
}

/// A durable call of an async generator that is closed because it was left before its end.
pub(crate) fn generator_close_error(py: Python<'_>) -> PyErr {
    let text = "an async generator that was left before its end makes a durable call while it is closed: it is \
                closed whenever the collector finds it, which no replay can repeat. Close it in the workflow's \
                own code: async with contextlib.aclosing(...)";
    to_exception(py, &Error::Invalid { what: "async generator", reason: text.to_owned() })
}

/// Something was called, and that is all.
pub(crate) fn warn_unawaited(py: Python<'_>, what: &str) {
    let _inside = InterpreterGuard::enter(py);
    let text = format!("{what}, and never awaited: nothing has come of it");
    let warned = py
        .import("warnings")
        .and_then(|warnings| warnings.call_method1("warn", (text, py.get_type::<PyRuntimeWarning>())));
    if let Err(error) = warned {
        error.write_unraisable(py, None);
    }
}

/// What unwinds code that is to go on later.
pub(crate) fn suspended_exception(py: Python<'_>) -> PyErr {
    let _inside = InterpreterGuard::enter(py);
    let made =
        py.import("stepfast._runtime.branch").and_then(|branch| branch.getattr("unwinding")?.call1((1,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The same for something that has no error of the engine.
pub(crate) fn runtime_error(message: &str) -> PyErr {
    PyRuntimeError::new_err(message.to_owned())
}

/// A failure as Python knows it: kind, message, causes, what it was made of.
pub(crate) fn failure_parts(failure: &Failure) -> (String, String, Vec<String>, Vec<u8>) {
    (failure.kind.clone(), failure.message.clone(), failure.causes.clone(), failure.detail.to_vec())
}
