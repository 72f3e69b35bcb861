//! Batches: their bundles, the packed outcomes of items, and the end of a batch.

use std::ops::RangeInclusive;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;
use crate::store::counters::{Counters, Table};
use crate::store::{
    BatchItems, BundleRecord, BundledItems, CloseBatch, Outcome, Pack, Record, Start, State, Status,
};

impl Tables {
    /// Whether a bundle fits into its batch; true for any other Start.
    pub(super) fn fits_into_batch(&self, start: &Start) -> bool {
        let (Some(last), Some(batch)) = (start.key.last_index(), start.key.batch()) else { return true };
        let (Some(first), Some(closed_with)) = (start.first_item(), self.batches.get(&batch)) else {
            return false;
        };
        let last_bundle = self.bundles.range(batch.bundles()).next_back();
        let next = last_bundle.and_then(|(key, _)| key.last_index()).map_or(0, |last| last + 1);
        first == next && closed_with.is_none_or(|count| count > u64::from(last))
    }

    /// Inserts the rows that a batch or bundle has beside its row in `executions`.
    pub(super) fn insert_batch_rows(&mut self, start: &Start, counters: &Counters) {
        if start.key.is_batch() && !start.state.status().is_terminal() {
            self.batches.insert(start.key, start.item_count);
            counters.add_inserted(Table::Batches, 1);
        }
        if let (true, Some(count)) = (start.is_bundle() || start.is_retried_item(), start.item_count) {
            self.bundles.insert(start.key, count);
            counters.add_inserted(Table::Bundles, 1);
        }
    }

    pub(super) fn apply_pack(&mut self, pack: &Pack, counters: &Counters) -> Outcome {
        self.packs.insert((pack.bundle, pack.number()), pack.clone());
        counters.add_inserted(Table::Packs, 1);
        Outcome::Applied
    }

    pub(super) fn apply_close_batch(&mut self, close: &CloseBatch, counters: &Counters) -> Outcome {
        let CloseBatch { batch, item_count } = *close;
        let closed_with = self.batches.get(&batch).copied().flatten();
        let known = closed_with.unwrap_or_else(|| self.bundled_items(batch));
        if known != item_count || !self.executions.contains_key(&batch) {
            return Outcome::NotFound;
        }
        if let Some(open @ None) = self.batches.get_mut(&batch) {
            *open = Some(item_count);
            counters.add_updated(Table::Batches, 1);
        }
        Outcome::Applied
    }

    /// Returns the number of items in the bundles of a batch.
    fn bundled_items(&self, batch: Key) -> u64 {
        self.bundles.range(batch.bundles()).map(|(_, count)| count).sum()
    }

    /// Ends a batch if its wake condition holds. Returns whether the batch has ended now.
    pub(super) fn end_batch(&mut self, batch: Key, now: Timestamp, counters: &Counters) -> bool {
        let is_waiting = self.executions.get(&batch).is_some_and(|row| row.status == Status::Waiting);
        let is_complete = self.batches.get(&batch) == Some(&Some(self.bundled_items(batch)));
        let mut members = self.executions.range(batch.item(0)..batch);
        if !is_waiting || !is_complete || members.any(|(_, row)| !row.status.is_terminal()) {
            return false;
        }
        let (status, outcome) = (Status::Completed, Payload::empty());
        self.set_state(batch, &State::Ended { status, outcome, at: now }, None, counters);
        true
    }

    /// Ends the batches whose wake condition holds: their worker died before it could do so.
    pub(super) fn end_batches(&mut self, now: Timestamp, counters: &Counters) {
        let batches: Vec<Key> = self.batches.keys().copied().collect();
        for batch in batches {
            self.end_batch(batch, now, counters);
        }
    }

    /// Deletes the row of a batch that has ended; does nothing for other executions.
    pub(super) fn forget_batch(&mut self, key: Key, counters: &Counters) {
        if self.batches.remove(&key).is_some() {
            counters.add_deleted(Table::Batches, 1);
        }
    }

    /// Returns the keys of the executions whose checkpoints and attempts belong to the record of this one: the items of a
    /// bundle, and otherwise the execution itself.
    pub(super) fn recorded_keys(&self, key: Key) -> RangeInclusive<Key> {
        let items = self.bundles.get(&key).and_then(|count| key.bundle_items(*count));
        items.unwrap_or(key..=key)
    }

    /// Returns the recorded state of a bundle's items; `None` for other executions.
    pub(super) fn bundle_record(&self, key: Key) -> Option<Box<BundleRecord>> {
        let item_count = *self.bundles.get(&key).filter(|_| key.is_bundle())?;
        let packs = self.packs_of(key).map(|pack| pack.encode().into()).collect();
        let items = self.recorded_keys(key);
        let promoted = self.executions.range(items).filter_map(|(item, _)| item.item_index()).collect();
        Some(Box::new(BundleRecord { packs, promoted, item_count, has_queue_limits: false }))
    }

    fn packs_of(&self, bundle: Key) -> impl Iterator<Item = &Pack> {
        self.packs.range((bundle, 0)..=(bundle, u32::MAX)).map(|(_, pack)| pack)
    }

    pub(super) fn newest_batch(&self, before: Option<Key>) -> Option<Key> {
        let end = before.map_or(Key::MAX, |batch| batch.item(0));
        let bundle = self.bundles.range(..end).next_back().and_then(|(key, _)| key.batch());
        let unfinished = self.batches.range(..end).next_back().map(|(key, _)| *key);
        bundle.max(unfinished)
    }

    pub(super) fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Vec<Key> {
        let Some(range) = batch.bundles_from(first_item) else { return Vec::new() };
        let keys = self.bundles.range(range).map(|(key, _)| *key);
        keys.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
    }

    pub(super) fn batch_items(&self, batch: Key) -> BatchItems {
        let mut items =
            BatchItems { closed_with: self.batches.get(&batch).copied().flatten(), ..BatchItems::default() };
        if !batch.is_batch() {
            return items;
        }
        items.retried = self.bundles.range(batch.items()).count() as u64;
        for status in Status::ALL {
            let mut bundled = BundledItems::default();
            for (key, count) in self.bundles.range(batch.bundles()) {
                if self.executions.get(key).is_some_and(|row| row.status == status) {
                    bundled.items += count;
                    for pack in self.packs_of(*key) {
                        bundled.packed += pack.ended();
                    }
                }
            }
            if bundled.items > 0 {
                items.bundles.push((status, bundled));
            }
            let promoted = self.executions.range(batch.items());
            let promoted = promoted.filter(|(_, row)| row.status == status).count() as u64;
            if promoted > 0 {
                items.promoted.push((status, promoted));
            }
        }
        items
    }

    /// Sets whether the queue of a claimed bundle limits its executions.
    pub(super) fn with_queue_limits(&self, mut record: Record) -> Record {
        if let Some(bundle) = &mut record.bundle {
            let limits = self.limits(&self.placement(record.execution.key).queue);
            bundle.has_queue_limits = limits.serializes_claims();
        }
        record
    }
}
