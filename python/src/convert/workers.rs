//! Converts the workers of a database to plain tuples for `stepfast._engine.workers`.

use pyo3::prelude::*;
use stepfast::clock::Timestamp;
use stepfast::store::{RegisteredWorker, UnclaimableWork, WorkerOverview};

pub(crate) fn worker_overview(py: Python<'_>, overview: &WorkerOverview) -> PyResult<Py<PyAny>> {
    let workers: PyResult<Vec<_>> = overview.workers.iter().map(|row| worker(py, row)).collect();
    let rows = overview.unclaimable();
    let rows: PyResult<Vec<_>> = rows.iter().map(|row| unclaimable(py, row)).collect();
    Ok((workers?, rows?).into_pyobject(py)?.into_any().unbind())
}

/// Returns a tuple of the fields of `stepfast.Worker`; the fields before `workflows` are a tuple inside it. Instants
/// are in microseconds since 1970.
fn worker(py: Python<'_>, row: &RegisteredWorker) -> PyResult<Py<PyAny>> {
    let info = &row.info;
    let identity =
        (row.worker.0, &info.host, info.pid, row.is_alive, info.is_client, info.app_version.as_deref());
    let workflows: Vec<_> = info.workflows.iter().map(|name| &**name).collect();
    let (registered_at, lease) = (row.registered_at.as_micros(), row.lease_expires_at);
    let tuple = (identity, workflows, row.running, registered_at, lease.map(Timestamp::as_micros));
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}

/// Returns a tuple in the order of the fields of `stepfast.Unclaimable`.
fn unclaimable(py: Python<'_>, row: &UnclaimableWork) -> PyResult<Py<PyAny>> {
    let tuple = (&*row.workflow, row.app_version.as_deref(), row.executions, row.is_version_missing);
    Ok(tuple.into_pyobject(py)?.into_any().unbind())
}
