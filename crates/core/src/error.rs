//! [`Error`]: an error that a call of an engine returns, with its kind and its stable code.

use std::fmt;

use crate::failure::{CONFLICT, Failure, PAUSED};
use crate::text::{escape_controls, quote};

/// The class of an [`Error`], by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input or the setup of the database is wrong. Correct it and call again.
    Invalid,
    /// The call contradicts the database. Another execution has the workflow_id or the dedup_id, the queue is full, or
    /// the queue's stored limits differ from the declared ones.
    Conflict,
    /// The execution, the workflow or the queue does not exist.
    NotFound,
    /// The workflow itself failed.
    Failed,
    /// The execution was cancelled, or it reached its deadline.
    Cancelled,
    /// The execution is parked until it is resumed.
    Parked,
    /// The database is unreachable, or the engine has ended. If the reply to a call did not arrive, the outcome of the
    /// call is unknown, and repeating it with the same workflow_id is safe.
    Unavailable,
    /// The database cannot be trusted, or its contents cannot be read. Stop and investigate.
    Corrupt,
}

/// An error of an engine. Its message says what is wrong, where, and what to do.
///
/// The `Debug` form is the code followed by the message.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input is not acceptable.
    #[error("{input}: {reason}")]
    Invalid {
        /// The name of the input.
        input: &'static str,
        /// The reason why the input is not acceptable, and what is acceptable.
        reason: String,
    },
    /// No workflow with this name is registered with the engine.
    #[error(
        "workflow {} is not registered with this engine (registered: {}); register it in the builder",
        quote(name),
        if known.is_empty() { "none" } else { known }
    )]
    UnknownWorkflow {
        /// The requested name.
        name: String,
        /// The registered names, as text for people.
        known: String,
    },
    /// No queue with this name exists.
    #[error(
        "queue {} does not exist (existing queues: {}); declare it when an engine is opened, or create it with \
         `stepfast queue set {}`",
        quote(name),
        if known.is_empty() { "none" } else { known },
        quote(name)
    )]
    UnknownQueue {
        /// The requested name.
        name: String,
        /// The names of the existing queues, as text for people.
        known: String,
    },
    /// A queue's stored limits differ from the declared ones, and the declared conflict policy is
    /// [`Reject`](crate::OnConflict::Reject).
    #[error(
        "queue {name:?} is stored with other limits than this code declares; make them equal, or choose another \
         conflict policy for the queue"
    )]
    QueueConflict {
        /// The name of the queue.
        name: String,
    },
    /// No schedule with this name exists.
    #[error(
        "schedule {} does not exist; declare it when an engine is opened, or create it with `stepfast schedule set`",
        quote(name)
    )]
    UnknownSchedule {
        /// The requested name.
        name: String,
    },
    /// A stored schedule differs from the declared one, and the declared conflict policy is
    /// [`Reject`](crate::OnConflict::Reject).
    #[error(
        "schedule {} is stored with other values than this code declares; make them equal, or choose another conflict \
         policy for the schedule",
        quote(name)
    )]
    ScheduleConflict {
        /// The name of the schedule.
        name: String,
    },
    /// An unfinished execution of the queue already has the dedup_id.
    #[error(
        "queue {queue:?} already has an unfinished execution with dedup_id {}: {}; start again when that execution has \
         ended, or request a handle to it",
        quote(dedup_id),
        escape_controls(workflow_id)
    )]
    Deduplicated {
        /// The name of the queue.
        queue: String,
        /// The dedup_id of both starts.
        dedup_id: String,
        /// The workflow_id of the unfinished execution.
        workflow_id: String,
    },
    /// The number of executions that wait in the queue has reached its `max_depth`.
    #[error(
        "queue {queue:?} is full: as many executions wait in it as its max_depth allows; start again later, let the \
         start wait for capacity, or raise the limit"
    )]
    QueueFull {
        /// The name of the queue.
        queue: String,
    },
    /// The workflow_id or batch_id belongs to an execution or a batch of another workflow, or with another input.
    #[error(
        "id {} is taken: {reason}; use another id, or the same workflow and input to get a handle to what has the id",
        quote(workflow_id)
    )]
    Conflict {
        /// The requested workflow_id or batch_id.
        workflow_id: String,
        /// The difference from the existing execution.
        reason: String,
    },
    /// No execution has this workflow_id.
    #[error("no execution has workflow_id {}; check the id and the database", quote(workflow_id))]
    NotFound {
        /// The requested workflow_id.
        workflow_id: String,
    },
    /// The execution has ended: it receives no message, and sets no event.
    #[error("execution {} has ended with status {status}, and {consequence}", quote(workflow_id))]
    HasEnded {
        /// The workflow_id of the execution.
        workflow_id: String,
        /// The final status: `completed`, `failed` or `cancelled`.
        status: &'static str,
        /// The consequence for the call, as in "receives no message".
        consequence: String,
    },
    /// The token was completed or failed before: its first answer counts.
    #[error(
        "token {} has an answer already; the first answer counts, and this one was not recorded",
        quote(token)
    )]
    TokenAnswered {
        /// The id of the token.
        token: String,
    },
    /// serde cannot represent a value.
    #[error(
        "cannot record a value of type {type_name}: {reason}; derive or fix its Serialize implementation"
    )]
    Encode {
        /// The type of the value.
        type_name: &'static str,
        /// serde's message.
        reason: String,
    },
    /// A recorded value does not have the type that the code asks for.
    #[error("{value} cannot be read as {type_name}: {reason}; read it with the type it was recorded with")]
    Decode {
        /// The unreadable value, described for people.
        value: String,
        /// The type that the code asks for.
        type_name: &'static str,
        /// A description of the mismatch, with the kind of the recorded value if it is readable.
        reason: String,
    },
    /// A value is larger than the engine accepts.
    #[error(
        "{value} has {size} bytes encoded, the limit is {limit}: store it elsewhere and record where, or raise \
         `value_limit`"
    )]
    TooLarge {
        /// The value, described for people.
        value: String,
        /// The encoded size of the value, in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The workflow ended with an error.
    #[error("the workflow failed: {0}")]
    Failed(Failure),
    /// The execution was cancelled, or it reached its deadline.
    #[error("the execution was cancelled: {0}")]
    Cancelled(Failure),
    /// The execution is parked: it neither runs nor fails until it is resumed.
    #[error(
        "execution {workflow_id:?} is parked: {failure}; {} (`stepfast workflow resume {}`)",
        if failure.kind == PAUSED { "resume it to continue" } else { "fix the cause, then resume it" },
        escape_controls(workflow_id)
    )]
    Parked {
        /// The workflow_id of the execution.
        workflow_id: String,
        /// The reason why the execution is parked.
        failure: Box<Failure>,
    },
    /// The database is unreachable, or its reply did not arrive in time.
    #[error(
        "{0}; if this call was to change something, its outcome is unknown: retrying it with the same workflow_id is \
         safe"
    )]
    Unavailable(String),
    /// The database's user lacks a privilege. Nothing was changed.
    #[error("permission denied by the database: {0}")]
    PermissionDenied(String),
    /// The engine is shutting down, or has shut down.
    #[error("the engine is shut down; the next engine continues all accepted executions")]
    Shutdown,
    /// The database cannot be opened.
    #[error("cannot open {store}: {reason}")]
    Open {
        /// A description of the database, for people.
        store: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The database server is unreachable, or accepts no further connections, while the database is being opened.
    /// Nothing was changed.
    #[error("cannot reach {store}: {reason}")]
    Unreachable {
        /// A description of the database, for people.
        store: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The database has, or is about to get, the schema of a newer version of Stepfast.
    #[error(
        "the database has schema version {found}, this program supports versions up to {supported}: upgrade the program"
    )]
    NewerSchema {
        /// The schema version of the database.
        found: i64,
        /// The newest schema version that this program supports.
        supported: i64,
    },
    /// The database is damaged, or it has lost acknowledged data.
    #[error("the database cannot be trusted: {0}")]
    Corrupt(String),
}

impl Error {
    /// Returns the class of the error, by what a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid { .. }
            | Error::Encode { .. }
            | Error::TooLarge { .. }
            | Error::Open { .. }
            | Error::PermissionDenied(_) => ErrorKind::Invalid,
            Error::UnknownWorkflow { .. }
            | Error::UnknownQueue { .. }
            | Error::UnknownSchedule { .. }
            | Error::NotFound { .. } => ErrorKind::NotFound,
            Error::Conflict { .. }
            | Error::HasEnded { .. }
            | Error::TokenAnswered { .. }
            | Error::QueueConflict { .. }
            | Error::ScheduleConflict { .. }
            | Error::Deduplicated { .. }
            | Error::QueueFull { .. } => ErrorKind::Conflict,
            Error::Failed(_) => ErrorKind::Failed,
            Error::Cancelled(_) => ErrorKind::Cancelled,
            Error::Parked { .. } => ErrorKind::Parked,
            Error::Unavailable(_) | Error::Shutdown | Error::Unreachable { .. } => ErrorKind::Unavailable,
            Error::Decode { .. } | Error::NewerSchema { .. } | Error::Corrupt(_) => ErrorKind::Corrupt,
        }
    }

    /// Returns the stable code of the error. docs/reference/errors.md has a paragraph for each code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "SF-0001",
            Error::UnknownWorkflow { .. } => "SF-0002",
            Error::Conflict { .. } => CONFLICT,
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
            Error::HasEnded { .. } => "SF-0042",
            Error::TokenAnswered { .. } => "SF-0043",
            Error::UnknownSchedule { .. } => "SF-0044",
            Error::ScheduleConflict { .. } => "SF-0045",
        }
    }

    /// Returns the failure to record when this error ends a step or an execution. The failure is permanent: the next
    /// attempt would fail in the same way.
    pub(crate) fn to_failure(&self) -> Failure {
        Failure::with_kind(self.code(), self.to_string()).permanent()
    }

    /// Replaces the description of the unreadable value in a [`Decode`](Self::Decode) error by the result of
    /// `describe`. Returns any other error unchanged.
    pub(crate) fn with_value(mut self, describe: impl FnOnce() -> String) -> Self {
        if let Error::Decode { value, .. } = &mut self {
            *value = describe();
        }
        self
    }
}

/// Writes the code and the message. `fn main() -> Result<(), Error>` and `unwrap` print this form for people, who need
/// advice rather than the structure of the enum.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_cuts_long_values_and_escapes_control_characters() {
        let long = || format!("\u{1b}[2J{}", "x".repeat(100_000));
        for error in [
            Error::UnknownWorkflow { name: long(), known: String::new() },
            Error::UnknownQueue { name: long(), known: String::new() },
            Error::UnknownSchedule { name: long() },
            Error::ScheduleConflict { name: long() },
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
    fn debug_form_is_code_and_message() {
        let error = Error::NotFound { workflow_id: "order-7".to_owned() };
        let text = "SF-0004: no execution has workflow_id \"order-7\"; check the id and the database";
        assert_eq!((format!("{error:?}"), format!("{error:#?}")), (text.to_owned(), text.to_owned()));
    }
}
