//! The bundles of batches: their part of a record, their lists, and the items of a batch in numbers.

use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    BatchItems, BundleRecord, BundledItems, EndedItems, Execution, Status, StoreError,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::batches::{range_bytes, read_batch};
use crate::rows::payloads::fetch_payload;
use crate::rows::{key_bytes, key_of, number, payload_of, status_of};

impl Database {
    /// See [`Store::bundles`](stepfast_core::Store::bundles).
    pub(crate) fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError> {
        self.counters.add_read();
        let Some(range) = batch.bundles_from(first_item) else { return Ok(Vec::new()) };
        self.read("listing bundles", |conn| {
            let (first, last) = range_bytes(&range);
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut sql = Statements::new(conn);
            let mut rows = sql.get(Sql::Bundles)?.query((first, last, limit))?;
            let mut keys = Vec::new();
            while let Some(row) = rows.next()? {
                keys.push(key_of(row, 0)?);
            }
            Ok(keys)
        })
    }

    /// See [`Store::batch_items`](stepfast_core::Store::batch_items).
    pub(crate) fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        self.counters.add_read();
        if !batch.is_batch() {
            return Ok(BatchItems::default());
        }
        self.read("counting the items of a batch", |conn| read_batch_items(&mut Statements::new(conn), batch))
    }
}

/// The items of a batch by the status of their bundle, or by their own status.
#[derive(Default)]
struct ItemsByStatus {
    bundles: [BundledItems; Status::ALL.len()],
    promoted: [u64; Status::ALL.len()],
    retried: u64,
}

fn read_batch_items(sql: &mut Statements<'_>, batch: Key) -> DbResult<BatchItems> {
    let mut items = ItemsByStatus::default();
    let bundles = batch.bundles();
    let mut rows = sql.get(Sql::BundledItems)?.query(range_bytes(&bundles))?;
    while let Some(row) = rows.next()? {
        // an execution with a status that this version does not support is shown as queued
        let status = status_of(row, 0)?.unwrap_or(Status::Queued);
        items.bundles[status as usize].items += number::<u64>(row, 1)?;
    }
    drop(rows);
    let mut rows = sql.get(Sql::PackedItems)?.query(range_bytes(&bundles))?;
    while let Some(row) = rows.next()? {
        let status = status_of(row, 0)?.unwrap_or(Status::Queued);
        items.bundles[status as usize].packed +=
            EndedItems { completed: number(row, 1)?, failed: number(row, 2)?, cancelled: number(row, 3)? };
    }
    drop(rows);
    let mut rows = sql.get(Sql::PromotedItems)?.query(range_bytes(&batch.items()))?;
    while let Some(row) = rows.next()? {
        let status = status_of(row, 0)?.unwrap_or(Status::Queued);
        items.promoted[status as usize] += number::<u64>(row, 1)?;
    }
    drop(rows);
    // the row of a retried item has the number 1
    items.retried =
        sql.get(Sql::SumBundles)?.query_row(range_bytes(&batch.items()), |row| Ok(number(row, 0)))??;
    let bundled = Status::ALL.into_iter().zip(items.bundles);
    let promoted = Status::ALL.into_iter().zip(items.promoted);
    Ok(BatchItems {
        closed_with: read_batch(sql, batch)?.and_then(|batch| batch.closed_with),
        bundles: bundled.filter(|(_, bundled)| bundled.items > 0).collect(),
        promoted: promoted.filter(|(_, count)| *count > 0).collect(),
        retried: items.retried,
    })
}

/// Loads the bundle's part of the record of an execution; `None` unless the execution is a bundle.
pub(crate) fn load_bundle(
    sql: &mut Statements<'_>,
    execution: &mut Execution,
) -> DbResult<Option<Box<BundleRecord>>> {
    let id = execution.key;
    if !id.is_bundle() {
        return Ok(None);
    }
    let found = sql.get(Sql::BundleItemCount)?.query_row([key_bytes(&id)], |row| Ok(number(row, 0)));
    let Some(item_count) = found.optional()?.transpose()? else { return Ok(None) };
    let mut bundle = BundleRecord { item_count, ..BundleRecord::default() };
    let mut packs: Vec<Payload> = Vec::new();
    let mut rows = sql.get(Sql::Packs)?.query([key_bytes(&id)])?;
    while let Some(row) = rows.next()? {
        packs.push(payload_of(row, 0)?);
    }
    drop(rows);
    for mut pack in packs {
        if !fetch_payload(sql, &mut pack)? {
            execution.note_unreadable("outcomes of packs");
        }
        bundle.packs.push(pack.to_bytes());
    }
    if let Some(items) = id.bundle_items(item_count) {
        let mut rows = sql.get(Sql::Promoted)?.query(range_bytes(&items))?;
        while let Some(row) = rows.next()? {
            bundle.promoted.extend(key_of(row, 0)?.item_index());
        }
    }
    Ok(Some(Box::new(bundle)))
}
