//! Converts the options of starts from Python.

use std::collections::HashMap;

use crate::convert::durations::duration_of;
use pyo3::prelude::*;
use stepfast::Due;
use stepfast::clock::Timestamp;
use stepfast::guest;
use stepfast::queue::{OnDuplicate, OnFull};

/// The names of the options in Python.
pub(crate) const OPTION_NAMES: [&str; 15] = [
    "workflow_id",
    "execution_timeout",
    "run_timeout",
    "wait_timeout",
    "queue",
    "key",
    "priority",
    "dedup_id",
    "on_duplicate",
    "on_full",
    "delay",
    "start_at",
    "debounce",
    "max_delay",
    "attributes",
];

/// The options with which executions are started. Times are in seconds; `start_at` is in microseconds since 1970. The
/// package has checked all values.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct StartOptions(Box<guest::StartOptions>);

#[pymethods]
impl StartOptions {
    #[new]
    #[pyo3(signature = (*, workflow_id=None, execution_timeout=None, run_timeout=None, wait_timeout=None, queue=None, key=None, priority=None, dedup_id=None, on_duplicate="reject", on_full="reject", delay=None, start_at=None, debounce=None, max_delay=None, attributes=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // arguments by name
    fn new(
        workflow_id: Option<&str>,
        execution_timeout: Option<f64>,
        run_timeout: Option<f64>,
        wait_timeout: Option<f64>,
        queue: Option<&str>,
        key: Option<&str>,
        priority: Option<i32>,
        dedup_id: Option<&str>,
        on_duplicate: &str,
        on_full: &str,
        delay: Option<f64>,
        start_at: Option<i64>,
        debounce: Option<&str>,
        max_delay: Option<f64>,
        attributes: Option<HashMap<String, String>>,
    ) -> Self {
        let due = start_at.map(|micros| Due::At(Timestamp::from_micros(micros)));
        Self(Box::new(guest::StartOptions {
            workflow_id: workflow_id.map(Into::into),
            execution_timeout: execution_timeout.map(duration_of),
            run_timeout: run_timeout.map(duration_of),
            wait_timeout: wait_timeout.map(duration_of),
            queue: queue.map(Into::into),
            key: key.map(Into::into),
            priority,
            due: due.or_else(|| delay.map(|delay| Due::After(duration_of(delay)))),
            dedup_id: dedup_id.map(Into::into),
            on_duplicate: match on_duplicate {
                "return_existing" => OnDuplicate::ReturnExisting,
                _ => OnDuplicate::Reject,
            },
            on_full: match on_full {
                "wait" => OnFull::Wait,
                _ => OnFull::Reject,
            },
            debounce: debounce.map(Into::into),
            max_delay: max_delay.map(duration_of),
            attributes: attributes.unwrap_or_default().into_iter().collect(),
            is_unversioned: false,
        }))
    }
}

impl StartOptions {
    /// Returns true if a workflow_id was given.
    pub(crate) fn has_id(&self) -> bool {
        self.0.workflow_id.is_some()
    }

    pub(crate) fn to_core(&self) -> Box<guest::StartOptions> {
        self.0.clone()
    }
}
