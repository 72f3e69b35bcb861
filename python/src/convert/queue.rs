//! Converts queues from Python's tuples, and to tuples for `stepfast._options.queue`.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::queue::rate::Rate;
use stepfast::queue::{Limits, OnConflict, Queue, QueueRow};

/// A queue from Python: name; maximum concurrency in all processes, per worker, and per queue key; rate, and rate per
/// queue key; maximum depth; weights of queue keys.
pub(crate) type QueueTuple = (
    String,
    Option<u32>,
    Option<u32>,
    Option<u32>,
    Option<RateTuple>,
    Option<RateTuple>,
    Option<u32>,
    BTreeMap<String, u32>,
);

/// A rate: the number of starts, the period in milliseconds, and the burst of an even rate.
pub(crate) type RateTuple = (u32, u64, Option<u32>);

pub(crate) fn queue_from_tuple(tuple: QueueTuple) -> Queue {
    let (name, concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weights) = tuple;
    let mut queue = Queue::new(name);
    queue.limits.rate = rate.map(rate_from_tuple);
    queue.limits.key_rate = key_rate.map(rate_from_tuple);
    queue.limits.concurrency = concurrency;
    queue.limits.worker_concurrency = worker_concurrency;
    queue.limits.key_concurrency = key_concurrency;
    queue.limits.max_depth = max_depth;
    queue.limits.key_weights = weights.into_iter().collect();
    queue
}

fn rate_from_tuple((starts, period_ms, burst): RateTuple) -> Rate {
    Rate { starts, period: Duration::from_millis(period_ms), burst }
}

fn rate_tuple(rate: Rate) -> RateTuple {
    (rate.starts, rate.period_ms(), rate.burst)
}

/// Returns what to do if a queue is stored with other limits. Python has checked the text.
pub(crate) fn on_conflict(text: &str) -> OnConflict {
    match text {
        "keep" => OnConflict::Keep,
        "reject" => OnConflict::Reject,
        _ => OnConflict::Update,
    }
}

pub(crate) fn queue_tuples(py: Python<'_>, rows: &[QueueRow]) -> PyResult<Py<PyAny>> {
    let rows: PyResult<Vec<_>> = rows.iter().map(|row| queue_tuple(py, row)).collect();
    Ok(rows?.into_pyobject(py)?.unbind())
}

/// Returns a tuple in the order of the fields of `stepfast.QueueInfo`. The time of the last change is in
/// microseconds since 1970.
pub(crate) fn queue_tuple(py: Python<'_>, row: &QueueRow) -> PyResult<Py<PyAny>> {
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
    let (rate, key_rate) = (rate.map(rate_tuple), key_rate.map(rate_tuple));
    let weights: BTreeMap<_, _> = key_weights.iter().collect();
    let limits = (concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weights);
    Ok((name, limits, row.is_paused, row.version, changed_at).into_pyobject(py)?.into_any().unbind())
}
