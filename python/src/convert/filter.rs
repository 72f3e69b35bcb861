//! Converts filters of executions from Python.

use pyo3::prelude::*;
use stepfast::clock::Timestamp;
use stepfast::store::{Filter, Status};
use stepfast::{Engine, Error, Payload};

use crate::error::to_exception;

/// A filter from Python: statuses; workflow; whether parked; workflow_id of the parent; prefix of the workflow_id;
/// version of the code; queue; attributes; earliest creation time; creation time before which executions match. Times
/// are in microseconds since 1970.
type FilterTuple = (
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

/// A filter whose parent is still given by workflow_id, not by key.
pub(crate) struct UnresolvedFilter {
    filter: Filter,
    parent: Option<String>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for UnresolvedFilter {
    type Error = PyErr;

    fn extract(tuple: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let (statuses, workflow, is_parked, parent, id_prefix, app_version, queue, attributes, from, before): FilterTuple =
            tuple.extract()?;
        let statuses: Result<Vec<Status>, String> = statuses.iter().map(|status| status.parse()).collect();
        let statuses = statuses
            .map_err(|reason| to_exception(tuple.py(), &Error::Invalid { input: "status", reason }))?;
        let filter = Filter {
            statuses,
            workflow: workflow.map(Into::into),
            is_parked,
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

impl UnresolvedFilter {
    /// Returns the filter with the parent's key.
    pub(crate) async fn resolve(self, engine: &Engine) -> Result<Filter, Error> {
        let Self { mut filter, parent } = self;
        if let Some(parent) = parent {
            filter.parent = Some(engine.get::<Payload>(&parent).await?.key());
        }
        Ok(filter)
    }
}
