//! [`BundleItems`]: the items of loaded bundles, by which rows of items are added to the records of their bundles.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use stepfast_core::Key;
use stepfast_core::store::{BundleRecord, Record, StoreError};
use tokio_postgres::Row;

use crate::rows::{Columns, add_attempt, add_checkpoint};

/// The bundles among some records, with their items.
pub(crate) struct BundleItems {
    keys: Vec<Key>,
    /// For each bundle, the range of the keys of its items, and the position of its record.
    bundles: BTreeMap<Key, (RangeInclusive<Key>, usize)>,
}

/// Returns the part of a record for a bundle with this number of items, without what is recorded of them.
pub(crate) fn bundle_record(item_count: Option<i64>) -> Option<Box<BundleRecord>> {
    let record = |count: i64| BundleRecord { item_count: count.unsigned_abs(), ..BundleRecord::default() };
    item_count.map(|count| Box::new(record(count)))
}

impl BundleItems {
    /// Finds the bundles among `records`.
    pub(crate) fn new(records: &[Record]) -> Self {
        let item = |(i, record): (usize, &Record)| {
            let (key, count) = (record.execution.key, record.bundle.as_ref()?.item_count);
            let items = key.bundle_items(count)?;
            Some((key, (items, i)))
        };
        let bundles: BTreeMap<Key, _> = records.iter().enumerate().filter_map(item).collect();
        Self { keys: bundles.keys().copied().collect(), bundles }
    }

    /// Whether no record is one of a bundle.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the keys of the bundles, in order.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the keys of the first and the last item of each bundle.
    pub(crate) fn item_keys(&self) -> Vec<(Key, Key)> {
        self.bundles.values().map(|(items, _)| (*items.start(), *items.end())).collect()
    }

    /// Adds the rows of `Packs`.
    pub(crate) fn add_packs(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let bundle = row.key()?;
            let outcomes = Bytes::copy_from_slice(row.next()?);
            let record = self.bundles.get(&bundle).and_then(|(_, i)| records.get_mut(*i));
            if let Some(bundle) = record.and_then(|record| record.bundle.as_mut()) {
                bundle.packs.push(outcomes);
            }
        }
        Ok(())
    }

    /// Adds the rows of promoted_items.sql.
    pub(crate) fn add_promoted(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let item = Columns::new(row).key()?;
            let bundle = self.record(item, records).and_then(|record| record.bundle.as_mut());
            if let Some((bundle, index)) = bundle.zip(item.item_index()) {
                bundle.promoted.push(index);
            }
        }
        Ok(())
    }

    /// Adds the rows of item_checkpoints.sql.
    pub(crate) fn add_checkpoints(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let item = row.key()?;
            let checkpoint = row.checkpoint(item)?;
            if let Some(record) = self.record(item, records) {
                add_checkpoint(record, checkpoint);
            }
        }
        Ok(())
    }

    /// Adds the rows of item_attempts.sql.
    pub(crate) fn add_attempts(&self, rows: &[Row], records: &mut [Record]) -> Result<(), StoreError> {
        for row in rows {
            let mut row = Columns::new(row);
            let item = row.key()?;
            let attempt = row.attempt(item)?;
            if let Some(record) = self.record(item, records) {
                add_attempt(record, attempt);
            }
        }
        Ok(())
    }

    /// Returns the record of the bundle that contains an item.
    fn record<'a>(&self, item: Key, records: &'a mut [Record]) -> Option<&'a mut Record> {
        let (batch, index) = (item.batch()?, item.item_index()?);
        let (_, (items, i)) = self.bundles.range(batch.bundle(index)..batch).next()?;
        records.get_mut(*i).filter(|_| items.contains(&item))
    }
}
