//! [`Failure`]: a recorded error. Every replay gets the same one.

use std::any::Any;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The recorded form of an error of a step's body or of a workflow.
///
/// The operator `?` converts any `std::error::Error` into a failure, which keeps the name of the error's type, the
/// message and the causes. [`Failure::new`] converts text, and [`Failure::from_dyn`] a `Box<dyn Error>` or an
/// `anyhow::Error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The error's type, or one of the engine's own [codes](Failure::code).
    pub kind: String,
    /// The error's message.
    pub message: String,
    /// The messages of the error's causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Whether a step's retry policy may try the step again; true by default.
    #[serde(default = "default_is_retryable", skip_serializing_if = "is_true")]
    pub is_retryable: bool,
    /// The data from which another language rebuilds the error; empty for errors of Rust.
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub detail: Bytes,
}

/// Kind of the failure of a start whose workflow_id belongs to another execution.
pub const CONFLICT: &str = "SF-0003";
/// The kind of failure of an attempt that exceeded its timeout.
pub const ATTEMPT_TIMED_OUT: &str = "SF-0020";
/// The kind of failure of an execution that reached its deadline.
pub const DEADLINE_REACHED: &str = "SF-0021";
/// The kind of failure of an execution that was cancelled on request.
pub const CANCELLED: &str = "SF-0022";
/// The kind of failure that parks an execution whose code no longer matches its record.
pub const NON_DETERMINISTIC: &str = "SF-0023";
/// The kind of failure of code that panicked.
pub const PANICKED: &str = "SF-0024";
/// The kind of failure of a step or an execution whose outcome the database rejected.
pub const OUTCOME_REJECTED: &str = "SF-0025";
/// The kind of failure that parks an execution whose recorded values cannot be read.
pub const UNREADABLE: &str = "SF-0026";
/// The kind of failure of an execution whose worker died too often.
pub const KILLS_WORKERS: &str = "SF-0027";
/// The kind of failure that parks an execution on request.
pub const PAUSED: &str = "SF-0028";

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_true(value: &bool) -> bool {
    *value
}

fn default_is_retryable() -> bool {
    true
}

impl Failure {
    /// Creates a failure from a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self::with_kind("Failure", message)
    }

    /// Creates a retryable failure of the given kind.
    pub fn with_kind(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            causes: Vec::new(),
            is_retryable: true,
            detail: Bytes::new(),
        }
    }

    /// Creates a failure from a type-erased error, with its causes: a `Box<dyn Error>` or an `anyhow::Error`.
    ///
    /// Neither type is a `std::error::Error` itself, so `?` does not convert it. Write
    /// `.map_err(|error| Failure::from_dyn(&*error))?`.
    pub fn from_dyn(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { causes: causes_of(error), ..Self::new(error.to_string()) }
    }

    /// Returns the failure of an execution that reached its deadline.
    pub(crate) fn deadline_reached() -> Self {
        Self::with_kind(DEADLINE_REACHED, "the execution reached its deadline").permanent()
    }

    /// Returns the failure of an execution that was cancelled on request.
    pub(crate) fn cancelled() -> Self {
        Self::with_kind(CANCELLED, "cancelled on request").permanent()
    }

    /// Returns the failure that parks an execution on request.
    pub(crate) fn paused() -> Self {
        Self::with_kind(PAUSED, "paused on request").permanent()
    }

    /// Returns the failure that parks an execution whose record cannot be read.
    pub(crate) fn unreadable_record(reason: &str) -> Self {
        let message = format!(
            "its record cannot be read: {reason}; use the version of Stepfast that wrote the record, or repair the \
             row, then resume the execution"
        );
        Self::with_kind(UNREADABLE, message).permanent()
    }

    /// Creates the failure of code that panicked with this payload.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "unknown cause".to_owned());
        Self::with_kind(PANICKED, format!("panicked: {message}"))
    }

    /// Returns the same failure, marked as not retryable.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.is_retryable = false;
        self
    }

    /// Returns the error code (`SF-…`) of a failure that the engine itself recorded.
    pub fn code(&self) -> Option<&str> {
        self.kind.starts_with("SF-").then_some(self.kind.as_str())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        if let Some(code) = self.code() {
            write!(f, " [{code}]")?;
        }
        Ok(())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let kind = std::any::type_name::<E>().to_owned();
        Self {
            kind,
            message: error.to_string(),
            causes: causes_of(&error),
            is_retryable: true,
            detail: Bytes::new(),
        }
    }
}

fn causes_of(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect()
}

/// An error that a step's body or a workflow may return: a [`Failure`], any `std::error::Error`, or any other type that
/// implements `Into<Failure>`.
///
/// The trait is equivalent to `Into<Failure>`. The trait exists so that the compiler can give advice when a type does
/// not implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a step or a workflow",
    label = "its error must be a `Failure`, or a type that implements `std::error::Error`",
    note = "text: return `Err(Failure::new(text))`, or `.map_err(Failure::new)`",
    note = "`anyhow::Error` or `Box<dyn Error>`: `.map_err(|error| Failure::from_dyn(&*error))`",
    note = "a type of your own: implement `std::error::Error` (for example with `thiserror`) or `Into<Failure>`"
)]
pub trait IntoFailure {
    /// Converts the error to its recorded form.
    fn into_failure(self) -> Failure;
}

#[diagnostic::do_not_recommend]
impl<E: Into<Failure>> IntoFailure for E {
    fn into_failure(self) -> Failure {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_keeps_message_and_causes_of_erased_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("no order")]
        struct NoOrder(#[source] std::num::ParseIntError);
        let boxed: Box<dyn std::error::Error + Send + Sync> = NoOrder("x".parse::<u8>().unwrap_err()).into();
        let failure = Failure::from_dyn(&*boxed);
        assert_eq!(failure.to_string(), "no order: invalid digit found in string");
        assert_eq!(failure.causes.len(), 1);
    }

    #[test]
    fn failure_keeps_type_message_and_causes_of_errors() {
        let failure = Failure::from("x".parse::<u8>().unwrap_err());
        assert_eq!(failure.kind, "core::num::error::ParseIntError");
        assert_eq!(failure.to_string(), "invalid digit found in string");
        assert!(failure.is_retryable && !failure.clone().permanent().is_retryable);
        assert_eq!(failure.code(), None);
        assert_eq!(Failure::with_kind(PANICKED, "boom").to_string(), "boom [SF-0024]");
    }
}
