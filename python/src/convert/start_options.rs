//! How executions are started, from Python.

use std::collections::HashMap;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::Due;
use stepfast::clock::Timestamp;
use stepfast::guest::StartOptions;
use stepfast::queue::{OnDuplicate, OnFull};

/// When an execution may begin: whether that is an instant, and in microseconds.
type PyDue = (bool, i64);

/// What is told about executions when they are started. Times in seconds; all was checked by whoever makes it.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct Order(Box<StartOptions>);

#[pymethods]
impl Order {
    #[new]
    #[pyo3(signature = (*, workflow_id=None, timeout=None, run_timeout=None, patience=None, queue=None, key=None, priority=None, due=None, dedup_id=None, returns_existing=false, waits_if_full=false, debounce=None, max_delay=None, attributes=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // by name
    fn new(
        workflow_id: Option<&str>,
        timeout: Option<f64>,
        run_timeout: Option<f64>,
        patience: Option<f64>,
        queue: Option<&str>,
        key: Option<&str>,
        priority: Option<i32>,
        due: Option<PyDue>,
        dedup_id: Option<&str>,
        returns_existing: bool,
        waits_if_full: bool,
        debounce: Option<&str>,
        max_delay: Option<f64>,
        attributes: Option<HashMap<String, String>>,
    ) -> Self {
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Self(Box::new(StartOptions {
            workflow_id: workflow_id.map(Into::into),
            timeout: timeout.map(seconds),
            run_timeout: run_timeout.map(seconds),
            patience: patience.map(seconds),
            queue: queue.map(Into::into),
            key: key.map(Into::into),
            priority,
            due: due.map(due_of),
            dedup_id: dedup_id.map(Into::into),
            on_duplicate: if returns_existing { OnDuplicate::ReturnExisting } else { OnDuplicate::Reject },
            on_full: if waits_if_full { OnFull::Wait } else { OnFull::Reject },
            debounce: debounce.map(Into::into),
            max_delay: max_delay.map(seconds),
            attributes: attributes.unwrap_or_default().into_iter().collect(),
        }))
    }

    /// The first of those that are given which one execution alone can have.
    #[getter]
    fn is_of_one(&self) -> Option<&'static str> {
        let StartOptions { workflow_id, dedup_id, debounce, .. } = &*self.0;
        let given = [("workflow_id", workflow_id), ("dedup_id", dedup_id), ("debounce", debounce)];
        given.into_iter().find_map(|(name, given)| given.is_some().then_some(name))
    }
}

impl Order {
    /// Returns true if the execution has an id that was given.
    pub(crate) fn has_id(&self) -> bool {
        self.0.workflow_id.is_some()
    }

    pub(crate) fn options(&self) -> Box<StartOptions> {
        self.0.clone()
    }
}

fn due_of((is_instant, micros): PyDue) -> Due {
    if is_instant {
        Due::At(Timestamp::from_micros(micros))
    } else {
        Due::After(Duration::from_micros(micros.unsigned_abs()))
    }
}
