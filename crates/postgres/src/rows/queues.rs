//! Rows of queues as the contract's types.

use std::time::Duration;

use stepfast_core::queue::Limits;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::weights::Weights;
use stepfast_core::store::StoreError;

use crate::rows::Columns;

/// The limits of what leaves a queue, as queries select them.
pub(crate) fn limits(row: &mut Columns<'_>) -> Result<Limits, StoreError> {
    Ok(Limits {
        concurrency: count_of(row)?,
        worker_concurrency: count_of(row)?,
        key_concurrency: count_of(row)?,
        rate: rate(row)?,
        key_rate: rate(row)?,
        key_weights: weights(row)?,
        max_depth: None,
    })
}

pub(crate) fn count_of(row: &mut Columns<'_>) -> Result<Option<u32>, StoreError> {
    Ok(row.next::<Option<i32>>()?.map(i32::cast_unsigned))
}

pub(crate) fn weights(row: &mut Columns<'_>) -> Result<Weights, StoreError> {
    Ok(row.next::<Option<&str>>()?.map_or_else(Weights::default, Weights::from_stored))
}

pub(crate) fn rate(row: &mut Columns<'_>) -> Result<Option<Rate>, StoreError> {
    let starts = count_of(row)?;
    let period = row.next::<Option<i64>>()?.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let burst = count_of(row)?;
    Ok(starts.zip(period).map(|(starts, period)| Rate { starts, period, burst }))
}
