//! The bundles of batches: their part of a record, their lists, and the items of a batch in numbers.

use std::ops::Range;

use bytes::Bytes;
use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    BatchItems, BundleRecord, BundledItems, EndedItems, Execution, ExecutionId, ItemOutcome, Status,
    StoreError, search_pack, virtual_item,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::read::{fetch_payloads, find_execution};
use crate::rows::batches::{range_bytes, read_batch};
use crate::rows::payloads::{SearchedPayload, fetch_payload};
use crate::rows::{blob, key_bytes, key_of, number, parse_execution, payload_of, status_of};

impl Database {
    /// See [`Store::newest_batch`](stepfast_core::Store::newest_batch).
    pub(crate) fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        self.counters.add_read();
        self.read("listing batches", |conn| {
            let end = before.map_or(Key::MAX, |batch| batch.item(0));
            let mut sql = Statements::new(conn);
            let statement = sql.get(Sql::NewestBatch)?;
            let newest: Option<[u8; 16]> = statement.query_row((key_bytes(&end),), |row| row.get(0))?;
            Ok(newest.and_then(|key| Key::from_bytes(key).batch()))
        })
    }

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
                load_items_of_batch(&mut sql, of_batch, &mut found[at..end])?;
                at = end;
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

/// Loads items of one batch, which are in ascending order.
fn load_items_of_batch(
    sql: &mut Statements<'_>,
    items: &[Key],
    found: &mut [Option<Execution>],
) -> DbResult<()> {
    let Some(batch) = items[0].batch() else { return Ok(()) };
    let has_promoted = sql.exists(Sql::Promoted, range_bytes(&batch.items()))?;
    for mut bundle in find_bundles(sql, items)? {
        fetch_payloads(sql, &mut bundle.execution)?;
        let (items, found) = (&items[bundle.places.clone()], &mut found[bundle.places.clone()]);
        let indexes: Vec<u32> = items.iter().filter_map(|item| item.item_index()).collect();
        let ends = search_packs(sql, &mut bundle, &indexes)?;
        for ((item, end), found) in items.iter().zip(ends).zip(found) {
            let id = ExecutionId::Key(*item);
            let row = if has_promoted { find_execution(sql, &id, false)? } else { None };
            *found = Some(row.unwrap_or_else(|| virtual_item(&bundle.execution, *item, end)));
        }
    }
    Ok(())
}

/// A bundle of items that are searched for.
struct SearchedBundle {
    execution: Execution,
    /// The columns `outcomes` of its packs. Each item is in one of them at most.
    packs: Vec<Payload>,
    /// The places of its items among those that are searched for.
    places: Range<usize>,
}

/// Finds the bundles of these items of one batch. Reads on from bundle to bundle, and seeks again behind a bundle without
/// such items.
fn find_bundles(sql: &mut Statements<'_>, items: &[Key]) -> DbResult<Vec<SearchedBundle>> {
    let mut bundles: Vec<SearchedBundle> = Vec::new();
    let mut at = 0;
    while let Some((batch, index)) = items.get(at).and_then(|item| item.batch().zip(item.item_index())) {
        let Some(range) = batch.bundles_from(index) else { break };
        let mut rows = sql.get(Sql::PackedBundles)?.query(range_bytes(&range))?;
        let mut is_passed = false;
        while let Some(row) = rows.next()? {
            let key = key_of(row, 0)?;
            if let Some(bundle) = bundles.last_mut().filter(|bundle| bundle.execution.key == key) {
                bundle.packs.push(payload_of(row, 27)?);
                continue;
            }
            let first = key.first_index(number(row, 26)?).unwrap_or_default();
            let begin = at + items[at..].partition_point(|item| item.item_index() < Some(first));
            let end = at + items[at..].partition_point(|item| item.item_index() <= key.last_index());
            at = end;
            if begin == end {
                is_passed = true;
                break;
            }
            let packs = if blob(row, 27)?.is_some() { vec![payload_of(row, 27)?] } else { Vec::new() };
            bundles.push(SearchedBundle {
                execution: parse_execution(row, false)?,
                packs,
                places: begin..end,
            });
        }
        if !is_passed {
            break;
        }
    }
    Ok(bundles)
}

/// Loads the outcomes of these items from the packs of their bundle; `None` for each that has none. `indexes` are in
/// ascending order. A damaged pack contains no outcomes.
fn search_packs(
    sql: &mut Statements<'_>,
    bundle: &mut SearchedBundle,
    indexes: &[u32],
) -> DbResult<Vec<Option<ItemOutcome>>> {
    let mut found = vec![None; indexes.len()];
    for pack in bundle.packs.drain(..) {
        if !search_pack(&mut SearchedPayload::new(sql, pack), indexes, &mut found)? {
            bundle.execution.note_unreadable("outcomes of packs");
            found.fill(None);
            break;
        }
    }
    Ok(found)
}

/// Reads the columns `outcomes` of a bundle's packs, by number. A long one is a reference to its pieces.
fn pack_columns(sql: &mut Statements<'_>, bundle: Key) -> DbResult<Vec<Payload>> {
    let mut packs = Vec::new();
    let mut rows = sql.get(Sql::Packs)?.query([key_bytes(&bundle)])?;
    while let Some(row) = rows.next()? {
        packs.push(payload_of(row, 0)?);
    }
    Ok(packs)
}

/// Loads the outcomes in the packs of a bundle, by number.
fn load_packs(sql: &mut Statements<'_>, bundle: &mut Execution) -> DbResult<Vec<Bytes>> {
    let mut packs = pack_columns(sql, bundle.key)?;
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
