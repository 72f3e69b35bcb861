//! Converts the options of starts from Python.

use std::collections::HashMap;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::Due;
use stepfast::clock::Timestamp;
use stepfast::guest;
use stepfast::queue::{OnDuplicate, OnFull};

/// When an execution may begin: whether the time is an instant, and the microseconds.
type DueTuple = (bool, i64);

/// The options with which executions are started. Times are in seconds. The package has checked all values.
#[pyclass(frozen, module = "stepfast._native")]
pub(crate) struct StartOptions(Box<guest::StartOptions>);

#[pymethods]
impl StartOptions {
    #[new]
    #[pyo3(signature = (*, workflow_id=None, execution_timeout=None, run_timeout=None, wait_timeout=None, queue=None, key=None, priority=None, due=None, dedup_id=None, returns_existing=false, waits_if_full=false, debounce=None, max_delay=None, attributes=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // arguments by name
    fn new(
        workflow_id: Option<&str>,
        execution_timeout: Option<f64>,
        run_timeout: Option<f64>,
        wait_timeout: Option<f64>,
        queue: Option<&str>,
        key: Option<&str>,
        priority: Option<i32>,
        due: Option<DueTuple>,
        dedup_id: Option<&str>,
        returns_existing: bool,
        waits_if_full: bool,
        debounce: Option<&str>,
        max_delay: Option<f64>,
        attributes: Option<HashMap<String, String>>,
    ) -> Self {
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Self(Box::new(guest::StartOptions {
            workflow_id: workflow_id.map(Into::into),
            execution_timeout: execution_timeout.map(seconds),
            run_timeout: run_timeout.map(seconds),
            wait_timeout: wait_timeout.map(seconds),
            queue: queue.map(Into::into),
            key: key.map(Into::into),
            priority,
            due: due.map(due_from_tuple),
            dedup_id: dedup_id.map(Into::into),
            on_duplicate: if returns_existing { OnDuplicate::ReturnExisting } else { OnDuplicate::Reject },
            on_full: if waits_if_full { OnFull::Wait } else { OnFull::Reject },
            debounce: debounce.map(Into::into),
            max_delay: max_delay.map(seconds),
            attributes: attributes.unwrap_or_default().into_iter().collect(),
        }))
    }

    /// The first given option that only one execution can have; `None` if there is none.
    #[getter]
    fn unique_option(&self) -> Option<&'static str> {
        let guest::StartOptions { workflow_id, dedup_id, debounce, .. } = &*self.0;
        let given = [("workflow_id", workflow_id), ("dedup_id", dedup_id), ("debounce", debounce)];
        given.into_iter().find_map(|(name, given)| given.is_some().then_some(name))
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

fn due_from_tuple((is_instant, micros): DueTuple) -> Due {
    if is_instant {
        Due::At(Timestamp::from_micros(micros))
    } else {
        Due::After(Duration::from_micros(micros.unsigned_abs()))
    }
}
