//! Queues: from Python as tuples, and as plain tuples for `stepfast.queue`.

use pyo3::prelude::*;
use stepfast::queue::{Limits, OnConflict, Queue, QueueRow};

/// A queue from Python: its name, and its limits in all processes, in any one worker, of any one key.
pub(crate) type PyQueue = (String, Option<u32>, Option<u32>, Option<u32>);

/// Where an execution is to stand: queue, key, priority.
pub(crate) type PyTicket = (String, Option<String>, Option<i32>);

pub(crate) fn queue((name, concurrency, worker_concurrency, key_concurrency): PyQueue) -> Queue {
    let mut queue = Queue::new(name);
    queue.limits.concurrency = concurrency;
    queue.limits.worker_concurrency = worker_concurrency;
    queue.limits.key_concurrency = key_concurrency;
    queue
}

/// What to do where a queue is stored with other limits, from Python, which has checked it.
pub(crate) fn on_conflict(text: &str) -> OnConflict {
    match text {
        "keep" => OnConflict::Keep,
        "refuse" => OnConflict::Refuse,
        _ => OnConflict::Update,
    }
}

pub(crate) fn rows(py: Python<'_>, rows: &[QueueRow]) -> PyResult<Py<PyAny>> {
    let rows: PyResult<Vec<_>> = rows.iter().map(|it| row(py, it)).collect();
    Ok(rows?.into_pyobject(py)?.unbind())
}

/// In the order of the fields of `stepfast.queue.QueueInfo`; the instant in microseconds.
pub(crate) fn row(py: Python<'_>, row: &QueueRow) -> PyResult<Py<PyAny>> {
    let Limits { concurrency, worker_concurrency, key_concurrency, .. } = row.queue.limits;
    let (name, changed_at) = (&*row.queue.name, row.changed_at.as_micros());
    let limits = (concurrency, worker_concurrency, key_concurrency);
    Ok((name, limits, row.is_paused, row.version, changed_at).into_pyobject(py)?.into_any().unbind())
}
