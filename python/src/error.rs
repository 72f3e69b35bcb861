//! Converts errors of the engine to exceptions of Python.

use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning};
use pyo3::prelude::*;
use stepfast::text::{escape_controls, quote};
use stepfast::{Error, Failure};

use crate::exit::InterpreterGuard;

const ENGINE_CLOSED_MESSAGE: &str =
    "the engine is closed: open another one, which continues the executions that this one has accepted";

/// Returns the exception for an error of the engine, created by `stepfast._runtime.failures`.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    let _guard = InterpreterGuard::enter(py);
    let failure = match error {
        Error::Failed(failure) | Error::Cancelled(failure) => Some(failure),
        Error::Parked { failure, .. } => Some(&**failure),
        _ => None,
    };
    let failure =
        failure.map(|failure| (failure.kind.clone(), failure.message.clone(), failure.detail.to_vec()));
    let exception = py.import("stepfast._runtime.failures").and_then(|failures| {
        let kind = format!("{:?}", error.kind());
        let message = match error {
            // these messages are worded for Python
            Error::Shutdown => ENGINE_CLOSED_MESSAGE.to_owned(),
            Error::UnknownQueue { name, known } => {
                let (name, known) = (quote(name), if known.is_empty() { "none" } else { known });
                format!(
                    "queue {name} does not exist (existing queues: {known}); declare it where an engine is opened, \
                     as in Engine(url, queues=[Queue({name})]), or create it with engine.set_queue"
                )
            }
            Error::QueueConflict { name } => format!(
                "queue {name:?} is stored with other limits than this code declares; make them equal, or declare \
                 the queue with another on_conflict than \"reject\""
            ),
            Error::UnknownSchedule { name } => {
                let name = quote(name);
                format!(
                    "schedule {name} does not exist; declare it where an engine is opened, as in Engine(url, \
                     schedules=[Schedule({name}, ...)]), or create it with engine.set_schedule"
                )
            }
            Error::ScheduleConflict { name } => format!(
                "schedule {} is stored with other values than this code declares; make them equal, or declare the \
                 schedule with another on_conflict than \"reject\"",
                quote(name)
            ),
            Error::Deduplicated { queue, dedup_id, workflow_id } => format!(
                "queue {queue:?} already has an unfinished execution with dedup_id {}: {}; start again when that \
                 execution has ended, or get a handle to it with on_duplicate=\"return_existing\"",
                quote(dedup_id),
                escape_controls(workflow_id)
            ),
            Error::QueueFull { queue } => format!(
                "queue {queue:?} is full: as many executions wait in it as its max_depth allows; start again later, \
                 let the start wait for capacity with on_full=\"wait\", or raise the limit"
            ),
            error => error.to_string(),
        };
        failures.getattr("exception_for_error")?.call1((kind, error.code(), message, failure))
    });
    match exception {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Returns the error for a durable call in a thread that does not belong to the execution.
pub(crate) fn foreign_thread_error(py: Python<'_>) -> PyErr {
    let text = "a durable call is made in a thread that is not the workflow's (asyncio.to_thread, an executor, \
                a thread with a copy of the context): its position in the workflow would depend on timing. Make \
                the call in the workflow's own code; await a sync step of an async workflow: \
                await the_step.in_thread(...)";
    to_exception(py, &Error::Invalid { input: "thread", reason: text.to_owned() })
}

/// Returns the error for a durable call of an async generator that is closed because it was abandoned.
pub(crate) fn generator_close_error(py: Python<'_>) -> PyErr {
    let text = "an async generator that was abandoned before its end makes a durable call while it is closed: the \
                garbage collector closes it at any time, which no replay can repeat. Close the generator in the \
                workflow's own code: async with contextlib.aclosing(...)";
    to_exception(py, &Error::Invalid { input: "async generator", reason: text.to_owned() })
}

/// Warns that a call was never awaited.
pub(crate) fn warn_unawaited(py: Python<'_>, what: &str) {
    let _guard = InterpreterGuard::enter(py);
    let text = format!("{what}, and never awaited: it has no effect");
    let warned = py
        .import("warnings")
        .and_then(|warnings| warnings.call_method1("warn", (text, py.get_type::<PyRuntimeWarning>())));
    if let Err(error) = warned {
        error.write_unraisable(py, None);
    }
}

/// Returns the exception that unwinds the code of a suspended execution.
pub(crate) fn suspended_exception(py: Python<'_>) -> PyErr {
    unwind_exception(py, 1)
}

/// Returns the exception that unwinds code for the reason with this code, as of [`stop_code`](crate::unwinding::stop_code).
pub(crate) fn unwind_exception(py: Python<'_>, stop_code: u8) -> PyErr {
    let _guard = InterpreterGuard::enter(py);
    let exception = py
        .import("stepfast._runtime.branch")
        .and_then(|branch| branch.getattr("unwind_exception")?.call1((stop_code,)));
    exception.map_or_else(|error| error, PyErr::from_value)
}

/// Returns a `RuntimeError`, for a condition without an error of the engine.
pub(crate) fn runtime_error(message: &str) -> PyErr {
    PyRuntimeError::new_err(message.to_owned())
}

/// Returns the parts of a failure for Python: kind, message, causes, encoded exception.
pub(crate) fn failure_parts(failure: &Failure) -> (String, String, Vec<String>, Vec<u8>) {
    (failure.kind.clone(), failure.message.clone(), failure.causes.clone(), failure.detail.to_vec())
}
