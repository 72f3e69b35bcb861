//! What can go wrong when one talks to an engine: [`Error`], its kind and its stable code.

use std::fmt;

use crate::failure::Failure;
use crate::text::{escape_controls, quote};

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is wrong: correct it and call again.
    Invalid,
    /// The workflow_id is taken by another workflow or another input, or a queue is stored with other limits.
    Conflict,
    /// There is no such execution, no such workflow, or no such queue.
    NotFound,
    /// The workflow itself failed.
    Failed,
    /// The execution was cancelled, or ran out of time.
    Cancelled,
    /// The execution is parked until somebody resumes it.
    Parked,
    /// The database did not answer: what was asked may or may not happen, and the same call with the same
    /// workflow_id may be repeated. Or it could not be opened yet, or the engine has ended.
    Unavailable,
    /// The database cannot be trusted or understood: stop, and look.
    Corrupt,
}

/// An error of the engine. The message says what was wrong, where, and what to do.
///
/// Its `Debug` form is the message too, behind the code.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some input is not acceptable.
    #[error("{what}: {reason}")]
    Invalid {
        /// Which input.
        what: &'static str,
        /// Why, and what would be.
        reason: String,
    },
    /// No workflow of this name is registered with the engine.
    #[error(
        "workflow {} is not registered with this engine (it knows {}); register it in the builder",
        quote(name),
        if known.is_empty() { "none" } else { known }
    )]
    UnknownWorkflow {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// No queue of this name has been declared.
    #[error(
        "there is no queue {} (there are {}); declare it when an engine is opened, or create it with \
         `stepfast queue set {}`",
        quote(name),
        if known.is_empty() { "none" } else { known },
        quote(name)
    )]
    UnknownQueue {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A queue that may not be changed is stored with other limits than the code declares.
    #[error(
        "queue {name:?} is stored with other limits than this code declares; make them the same, or choose another \
         policy for conflicts"
    )]
    QueueConflict {
        /// The queue.
        name: String,
    },
    /// Another execution of the queue has the dedup_id, and has not ended.
    #[error(
        "queue {queue:?} has an execution with dedup_id {} that has not ended: {}; start it again when \
         that has ended, or ask for a handle to that one",
        quote(dedup_id),
        escape_controls(workflow_id)
    )]
    Deduplicated {
        /// The queue.
        queue: String,
        /// What both have.
        dedup_id: String,
        /// The other execution.
        workflow_id: String,
    },
    /// As many executions wait in the queue as may.
    #[error(
        "queue {queue:?} is full: as many executions wait in it as its max_depth allows; start it again later, let the \
         start wait for room, or raise the limit"
    )]
    QueueFull {
        /// The queue.
        queue: String,
    },
    /// The workflow_id already belongs to something else.
    #[error(
        "workflow_id {} is taken: {reason}; use another workflow_id, or start it with the same \
         workflow and input to get a handle to the first",
        quote(workflow_id)
    )]
    Conflict {
        /// The id.
        workflow_id: String,
        /// By what it is taken.
        reason: String,
    },
    /// There is no execution with this id.
    #[error("there is no execution with workflow_id {}", quote(workflow_id))]
    NotFound {
        /// The id.
        workflow_id: String,
    },
    /// serde could not represent a value.
    #[error("cannot record a value of type {what}: {reason}; derive or fix its Serialize implementation")]
    Encode {
        /// The type.
        what: &'static str,
        /// serde's reason.
        reason: String,
    },
    /// A recorded value is not of the type the code asks for.
    #[error("{value} cannot be read as {what}: {reason}; read it with the type it was recorded with")]
    Decode {
        /// Which value, of what.
        value: String,
        /// The type.
        what: &'static str,
        /// What is recorded instead, or what serde misses in it.
        reason: String,
    },
    /// A value is larger than the engine accepts.
    #[error(
        "{what} has {size} bytes encoded, the limit is {limit}: store it elsewhere and record where, or raise \
         `value_limit`"
    )]
    TooLarge {
        /// Which value.
        what: String,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The workflow ended with an error.
    #[error("the workflow failed: {0}")]
    Failed(Failure),
    /// The execution was cancelled or ran out of time.
    #[error("the execution was cancelled: {0}")]
    Cancelled(Failure),
    /// The execution is parked: it neither runs nor fails until it is resumed.
    #[error(
        "execution {workflow_id:?} is parked: {failure}; fix the cause, then resume it (`stepfast workflow resume \
         {}`)",
        escape_controls(workflow_id)
    )]
    Parked {
        /// Which.
        workflow_id: String,
        /// Why.
        failure: Box<Failure>,
    },
    /// The database did not answer in time.
    #[error(
        "{0}; if that was to change something it is not known whether it has: the same call, with the same \
         workflow_id, may be repeated"
    )]
    Unavailable(String),
    /// The database does not permit its user to read that. Nothing has happened.
    #[error("the database does not permit it: {0}")]
    PermissionDenied(String),
    /// The engine is shutting down or has been.
    #[error("the engine is shut down; what it had accepted is continued by the next one")]
    Shutdown,
    /// The database cannot be opened.
    #[error("cannot open {store}: {reason}")]
    Open {
        /// Which database.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The server of the database is away when it is opened, or takes no more connections. Nothing has happened.
    #[error("cannot reach {store}: {reason}")]
    Unreachable {
        /// Which database.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The database was written by a newer version of Stepfast.
    #[error(
        "the database has schema version {found}, this program knows up to {supported}: upgrade the program"
    )]
    NewerSchema {
        /// Version found.
        found: i64,
        /// Newest version this program knows.
        supported: i64,
    },
    /// The database is damaged or lost history.
    #[error("the database cannot be trusted: {0}")]
    Corrupt(String),
}

impl Error {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid { .. }
            | Error::Encode { .. }
            | Error::TooLarge { .. }
            | Error::Open { .. }
            | Error::PermissionDenied(_) => ErrorKind::Invalid,
            Error::UnknownWorkflow { .. } | Error::UnknownQueue { .. } | Error::NotFound { .. } => {
                ErrorKind::NotFound
            }
            Error::Conflict { .. }
            | Error::QueueConflict { .. }
            | Error::Deduplicated { .. }
            | Error::QueueFull { .. } => ErrorKind::Conflict,
            Error::Failed(_) => ErrorKind::Failed,
            Error::Cancelled(_) => ErrorKind::Cancelled,
            Error::Parked { .. } => ErrorKind::Parked,
            Error::Unavailable(_) | Error::Shutdown | Error::Unreachable { .. } => ErrorKind::Unavailable,
            Error::Decode { .. } | Error::NewerSchema { .. } | Error::Corrupt(_) => ErrorKind::Corrupt,
        }
    }

    /// Its stable code; docs/reference/errors.md has a paragraph for each.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "SF-0001",
            Error::UnknownWorkflow { .. } => "SF-0002",
            Error::Conflict { .. } => "SF-0003",
            Error::NotFound { .. } => "SF-0004",
            Error::Encode { .. } => "SF-0005",
            Error::Decode { .. } => "SF-0006",
            Error::TooLarge { .. } => "SF-0007",
            Error::Failed(_) => "SF-0008",
            Error::Cancelled(_) => "SF-0009",
            Error::Parked { .. } => "SF-0010",
            Error::Unavailable(_) => "SF-0011",
            Error::Shutdown => "SF-0012",
            Error::Open { .. } => "SF-0013",
            Error::NewerSchema { .. } => "SF-0014",
            Error::Corrupt(_) => "SF-0015",
            Error::Unreachable { .. } => "SF-0035",
            Error::PermissionDenied(_) => "SF-0036",
            Error::UnknownQueue { .. } => "SF-0037",
            Error::QueueConflict { .. } => "SF-0038",
            Error::Deduplicated { .. } => "SF-0039",
            Error::QueueFull { .. } => "SF-0040",
        }
    }

    /// What is recorded of it where it is the end of a step or of an execution: it would be the same at the next
    /// attempt.
    pub(crate) fn to_failure(&self) -> Failure {
        Failure::with_kind(self.code(), self.to_string()).permanent()
    }

    /// The same error, which says what value could not be read.
    pub(crate) fn with_value(mut self, which: impl FnOnce() -> String) -> Self {
        if let Error::Decode { value, .. } = &mut self {
            *value = which();
        }
        self
    }
}

/// The code and the message: `fn main() -> Result<(), Error>` and `unwrap` print this form, and whoever reads
/// that wants to know what to do, not how the enum is built.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_the_beginning_of_a_long_value_and_no_control_character() {
        let long = || format!("\u{1b}[2J{}", "x".repeat(100_000));
        for error in [
            Error::UnknownWorkflow { name: long(), known: String::new() },
            Error::UnknownQueue { name: long(), known: String::new() },
            Error::Deduplicated { queue: "q".into(), dedup_id: long(), workflow_id: "\n".into() },
            Error::Conflict { workflow_id: long(), reason: String::new() },
            Error::NotFound { workflow_id: long() },
        ] {
            let text = error.to_string();
            assert!(text.len() < 1_000 && text.contains("xxx\"…"), "{text}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn the_debug_form_is_what_people_read() {
        let error = Error::NotFound { workflow_id: "order-7".to_owned() };
        let text = "SF-0004: there is no execution with workflow_id \"order-7\"";
        assert_eq!((format!("{error:?}"), format!("{error:#?}")), (text.to_owned(), text.to_owned()));
    }
}
