//! The bundles of batches: their part of a record, their lists, and the items of a batch in numbers.

use bytes::Bytes;
use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    BatchItems, BundleRecord, BundledItems, EndedItems, Execution, ExecutionId, Status, StoreError,
    virtual_item,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::read::find_execution;
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

    /// See [`Store::load_items`](stepfast_core::Store::load_items).
    pub(crate) fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
        self.counters.add_read();
        self.read("loading items", |conn| {
            let mut sql = Statements::new(conn);
            let mut found = vec![None; items.len()];
            let mut at = 0;
            for of_batch in items.chunk_by(|a, b| a.batch() == b.batch()) {
                let end = at + of_batch.len();
                let has_promoted = match of_batch[0].batch() {
                    Some(batch) => sql.exists(Sql::Promoted, range_bytes(&batch.items()))?,
                    None => false,
                };
                while at < end {
                    at += load_first_items(&mut sql, &items[at..end], has_promoted, &mut found[at..end])?;
                }
            }
            Ok(found)
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

/// Loads the first of these items of one batch, and all others that are in the same bundle. Returns the number of the items
/// for which `found` is complete.
fn load_first_items(
    sql: &mut Statements<'_>,
    items: &[Key],
    has_promoted: bool,
    found: &mut [Option<Execution>],
) -> DbResult<usize> {
    let index_of = |item: &Key| item.item_index().unwrap_or_default();
    let range = items[0].item_index().and_then(|index| items[0].batch()?.bundles_from(index));
    let Some(range) = range else { return Ok(1) };
    let (from, to) = range_bytes(&range);
    let bundle = sql
        .get(Sql::Bundles)?
        .query_row((from, to, 1), |row| Ok((key_of(row, 0), number::<u64>(row, 1))))
        .optional()?;
    let Some((bundle, item_count)) = bundle else { return Ok(items.len()) };
    let (bundle, item_count) = (bundle?, item_count?);
    let count = items.partition_point(|item| item.item_index() <= bundle.last_index());
    let first = bundle.first_index(item_count).unwrap_or_default();
    let begin = items[..count].partition_point(|item| index_of(item) < first);
    if begin == count {
        return Ok(count);
    }
    let (items, found) = (&items[begin..count], &mut found[begin..count]);
    let Some(mut execution) = find_execution(sql, &ExecutionId::Key(bundle), false)? else {
        return Ok(count);
    };
    let indexes: Vec<u32> = items.iter().map(index_of).collect();
    let packed = BundleRecord { packs: load_packs(sql, &mut execution)?, ..BundleRecord::default() };
    for ((item, end), found) in items.iter().zip(packed.outcomes_of(&indexes)).zip(found) {
        let id = ExecutionId::Key(*item);
        let row = if has_promoted { find_execution(sql, &id, false)? } else { None };
        *found = Some(row.unwrap_or_else(|| virtual_item(&execution, *item, end)));
    }
    Ok(count)
}

/// Loads the columns `outcomes` of a bundle's packs, by number.
fn load_packs(sql: &mut Statements<'_>, bundle: &mut Execution) -> DbResult<Vec<Bytes>> {
    let mut packs: Vec<Payload> = Vec::new();
    let mut rows = sql.get(Sql::Packs)?.query([key_bytes(&bundle.key)])?;
    while let Some(row) = rows.next()? {
        packs.push(payload_of(row, 0)?);
    }
    drop(rows);
    for pack in &mut packs {
        if !fetch_payload(sql, pack)? {
            bundle.note_unreadable("outcomes of packs");
        }
    }
    Ok(packs.iter().map(Payload::to_bytes).collect())
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
    let packs = load_packs(sql, execution)?;
    let mut bundle = BundleRecord { item_count, packs, ..BundleRecord::default() };
    if let Some(items) = id.bundle_items(item_count) {
        let mut rows = sql.get(Sql::Promoted)?.query(range_bytes(&items))?;
        while let Some(row) = rows.next()? {
            bundle.promoted.extend(key_of(row, 0)?.item_index());
        }
    }
    Ok(Some(Box::new(bundle)))
}
