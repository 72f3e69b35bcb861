//! Who works on a database, as plain tuples for `stepfast.survey`.

use pyo3::prelude::*;
use stepfast::clock::Timestamp;
use stepfast::store::{WorkerOverview, UnclaimableWork, RegisteredWorker};

pub(crate) fn survey(py: Python<'_>, survey: &WorkerOverview) -> PyResult<Py<PyAny>> {
    let workers: PyResult<Vec<_>> = survey.workers.iter().map(|row| worker(py, row)).collect();
    let rows = survey.unclaimable();
    let rows: PyResult<Vec<_>> = rows.iter().map(|row| unclaimable(py, row)).collect();
    Ok((workers?, rows?).into_pyobject(py)?.into_any().unbind())
}

/// The fields of `stepfast.survey.Worker` up to its workflows, then one by one; instants in microseconds.
fn worker(py: Python<'_>, row: &RegisteredWorker) -> PyResult<Py<PyAny>> {
    let info = &row.info;
    let about =
        (row.worker.0, &info.host, info.pid, row.is_alive, info.is_client, info.app_version.as_deref());
    let workflows: Vec<_> = info.workflows.iter().map(|name| &**name).collect();
    let (registered_at, lease) = (row.registered_at.as_micros(), row.lease_expires_at);
    let shown = (about, workflows, row.running, registered_at, lease.map(Timestamp::as_micros));
    Ok(shown.into_pyobject(py)?.into_any().unbind())
}

/// In the order of the fields of `stepfast.survey.Unclaimable`.
fn unclaimable(py: Python<'_>, row: &UnclaimableWork) -> PyResult<Py<PyAny>> {
    let shown = (&*row.workflow, row.app_version.as_deref(), row.executions, row.is_version_missing);
    Ok(shown.into_pyobject(py)?.into_any().unbind())
}
