//! Queues: from Python as tuples, and as plain tuples for `stepfast.queue`.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::queue::rate::Rate;
use stepfast::queue::{Limits, OnConflict, Queue, QueueRow};

/// A queue from Python: its name; its limits in all processes, in any one worker, of any one key; its rate, and that of
/// any one key; how many may wait in it; the weights of its keys.
pub(crate) type PyQueue = (
    String,
    Option<u32>,
    Option<u32>,
    Option<u32>,
    Option<PyRate>,
    Option<PyRate>,
    Option<u32>,
    BTreeMap<String, u32>,
);

/// A rate: starts, in so many milliseconds, and the burst of one that is even.
pub(crate) type PyRate = (u32, u64, Option<u32>);

pub(crate) fn queue(told: PyQueue) -> Queue {
    let (name, concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weights) = told;
    let mut queue = Queue::new(name);
    queue.limits.rate = rate.map(rate_of);
    queue.limits.key_rate = key_rate.map(rate_of);
    queue.limits.concurrency = concurrency;
    queue.limits.worker_concurrency = worker_concurrency;
    queue.limits.key_concurrency = key_concurrency;
    queue.limits.max_depth = max_depth;
    queue.limits.key_weights = weights.into_iter().collect();
    queue
}

fn rate_of((starts, period_ms, burst): PyRate) -> Rate {
    Rate { starts, period: Duration::from_millis(period_ms), burst }
}

fn told(rate: Rate) -> PyRate {
    (rate.starts, rate.period_ms(), rate.burst)
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
    let Limits {
        concurrency,
        worker_concurrency,
        key_concurrency,
        rate,
        key_rate,
        max_depth,
        ref key_weights,
    } = row.queue.limits;
    let (name, changed_at) = (&*row.queue.name, row.changed_at.as_micros());
    let (rate, key_rate) = (rate.map(told), key_rate.map(told));
    let weights: BTreeMap<_, _> = key_weights.iter().collect();
    let limits = (concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weights);
    Ok((name, limits, row.is_paused, row.version, changed_at).into_pyobject(py)?.into_any().unbind())
}
