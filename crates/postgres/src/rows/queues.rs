//! Parses columns of queues into the types of the store contract.

use std::time::Duration;

use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::weights::Weights;
use stepfast_core::queue::{Limits, Queue, QueueRow};
use stepfast_core::store::StoreError;
use tokio_postgres::Row;

use crate::rows::Columns;

/// Parses a row of `queues.sql`.
pub(crate) fn parse_queue(row: &Row) -> Result<QueueRow, StoreError> {
    let mut row = Columns::new(row);
    let name = row.next::<&str>()?.into();
    let (version, changed_at, is_paused) = (row.next()?, row.time()?, row.next()?);
    let mut limits = parse_limits(&mut row)?;
    limits.max_depth = parse_count(&mut row)?;
    Ok(QueueRow { queue: Queue { name, limits }, is_paused, version, changed_at })
}

/// Parses a queue's limits, without its depth limit, in the order in which queries select them.
pub(crate) fn parse_limits(row: &mut Columns<'_>) -> Result<Limits, StoreError> {
    Ok(Limits {
        concurrency: parse_count(row)?,
        worker_concurrency: parse_count(row)?,
        key_concurrency: parse_count(row)?,
        rate: parse_rate(row)?,
        key_rate: parse_rate(row)?,
        key_weights: parse_weights(row)?,
        max_depth: None,
    })
}

fn parse_count(row: &mut Columns<'_>) -> Result<Option<u32>, StoreError> {
    Ok(row.next::<Option<i32>>()?.map(i32::cast_unsigned))
}

fn parse_weights(row: &mut Columns<'_>) -> Result<Weights, StoreError> {
    Ok(row.next::<Option<&str>>()?.map_or_else(Weights::default, Weights::from_stored))
}

fn parse_rate(row: &mut Columns<'_>) -> Result<Option<Rate>, StoreError> {
    let starts = parse_count(row)?;
    let period = row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let burst = parse_count(row)?;
    Ok(starts.zip(period).map(|(starts, period)| Rate { starts, period, burst }))
}
