//! Which executions, from Python.

use pyo3::prelude::*;
use stepfast::clock::Timestamp;
use stepfast::store::{Filter, Status};
use stepfast::{Engine, Error, Payload};

use crate::error::to_exception;

/// Statuses, workflow, whether they are parked; workflow_id of the parent, beginning of their own; version of the code; queue;
/// attributes; the instants from which on and before which they were created, in microseconds.
type Told = (
    Vec<String>,
    Option<String>,
    Option<bool>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Vec<(String, String)>,
    Option<i64>,
    Option<i64>,
);

/// A filter as it was told.
pub(crate) struct PyFilter {
    filter: Filter,
    parent: Option<String>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for PyFilter {
    type Error = PyErr;

    fn extract(told: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let (statuses, workflow, is_paused, parent, id_prefix, app_version, queue, attributes, from, before): Told =
            told.extract()?;
        let statuses: Result<Vec<Status>, String> = statuses.iter().map(|status| status.parse()).collect();
        let statuses =
            statuses.map_err(|reason| to_exception(told.py(), &Error::Invalid { what: "status", reason }))?;
        let filter = Filter {
            statuses,
            workflow: workflow.map(Into::into),
            is_parked: is_paused,
            id_prefix: id_prefix.map(Into::into),
            app_version: app_version.map(Into::into),
            queue: queue.map(Into::into),
            attributes: attributes.into_iter().collect(),
            created_from: from.map(Timestamp::from_micros),
            created_before: before.map(Timestamp::from_micros),
            ..Filter::default()
        };
        Ok(Self { filter, parent })
    }
}

impl PyFilter {
    /// The filter, once its parent is known by its key.
    pub(crate) async fn resolved(self, engine: &Engine) -> Result<Filter, Error> {
        let Self { mut filter, parent } = self;
        if let Some(parent) = parent {
            filter.parent = Some(engine.get::<Payload>(&parent).await?.key());
        }
        Ok(filter)
    }
}
