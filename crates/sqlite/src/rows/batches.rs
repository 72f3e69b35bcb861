//! Batches: their rows, and their end.

use std::ops::RangeInclusive;

use rusqlite::OptionalExtension;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::key_bytes;

/// Returns a range of keys for binding.
pub(crate) fn range_bytes(range: &RangeInclusive<Key>) -> (&[u8], &[u8]) {
    (key_bytes(range.start()), key_bytes(range.end()))
}

/// A row of `batches`.
#[derive(Clone, Copy)]
pub(crate) struct UnfinishedBatch {
    /// The number of items with which the batch was closed; `None` while it is open.
    pub(crate) closed_with: Option<u64>,
}

/// Reads the row of a batch; `None` unless the batch is unfinished.
pub(crate) fn read_batch(sql: &mut Statements<'_>, batch: Key) -> DbResult<Option<UnfinishedBatch>> {
    let found = sql.get(Sql::UnfinishedBatch)?.query_row([key_bytes(&batch)], |row| {
        let item_count: Option<i64> = row.get(0)?;
        Ok(UnfinishedBatch { closed_with: item_count.map(|count| count as u64) })
    });
    Ok(found.optional()?)
}

/// Whether a batch is closed, all its items are in its bundles, and all bundles and items with a row have ended.
///
/// The searches for unfinished rows come before the sum: they end at the first row that they find. The last rows are searched
/// first, because the first bundles are claimed first.
pub(crate) fn is_complete(sql: &mut Statements<'_>, batch: Key) -> DbResult<bool> {
    let closed_with = read_batch(sql, batch)?.and_then(|batch| batch.closed_with);
    let Some(item_count) = closed_with else { return Ok(false) };
    let bundles = batch.bundles();
    for members in [&bundles, &batch.items()] {
        if sql.exists(Sql::HasUnfinished, range_bytes(members))? {
            return Ok(false);
        }
    }
    let bundled: i64 = sql.get(Sql::SumBundles)?.query_row(range_bytes(&bundles), |row| row.get(0))?;
    Ok(bundled as u64 == item_count)
}

/// Ends a batch if its wake condition holds. Returns whether the batch has ended now.
pub(crate) fn end_batch(sql: &mut Statements<'_>, batch: Key, now: Timestamp) -> DbResult<bool> {
    let has_ended = is_complete(sql, batch)?
        && sql.update(Table::Executions, Sql::EndBatch, (key_bytes(&batch), now.as_micros()))? > 0;
    if has_ended {
        sql.delete(Table::Batches, Sql::DeleteBatch, [key_bytes(&batch)])?;
    }
    Ok(has_ended)
}
