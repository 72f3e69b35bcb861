//! Parses columns of queues into the types of the store contract.

use std::time::Duration;

use stepfast_core::queue::Limits;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::weights::Weights;
use stepfast_core::store::StoreError;

use crate::rows::Columns;

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

pub(crate) fn parse_count(row: &mut Columns<'_>) -> Result<Option<u32>, StoreError> {
    Ok(row.next::<Option<i32>>()?.map(i32::cast_unsigned))
}

pub(crate) fn parse_weights(row: &mut Columns<'_>) -> Result<Weights, StoreError> {
    Ok(row.next::<Option<&str>>()?.map_or_else(Weights::default, Weights::from_stored))
}

pub(crate) fn parse_rate(row: &mut Columns<'_>) -> Result<Option<Rate>, StoreError> {
    let starts = parse_count(row)?;
    let period = row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let burst = parse_count(row)?;
    Ok(starts.zip(period).map(|(starts, period)| Rate { starts, period, burst }))
}
