//! Reads of batches: their bundles, and the numbers of their items.

use stepfast_core::Key;
use stepfast_core::store::{BatchItems, BundledItems, EndedItems, Status, StoreError};
use tokio_postgres::Row;

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::Sql;
use crate::error::corrupt;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::to_uuid;

impl Reader {
    /// Finds a batch; see [`Store::newest_batch`](stepfast_core::Store::newest_batch).
    pub(crate) async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        let end = before.map_or(Key::MAX, |batch| batch.item(0));
        let params = vec![param(to_uuid(end))];
        let query = Query { sql: Sql::NewestBatch, action: "listing batches", params };
        let rows = self.query(query).await?;
        let newest = rows.first().map(|row| Columns::new(row).opt_key()).transpose()?.flatten();
        Ok(newest.and_then(Key::batch))
    }

    /// Lists bundles; see [`Store::bundles`](stepfast_core::Store::bundles).
    pub(crate) async fn bundles(
        &self,
        batch: Key,
        first_item: u32,
        limit: u64,
    ) -> Result<Vec<Key>, StoreError> {
        let Some(bundles) = batch.bundles_from(first_item) else { return Ok(Vec::new()) };
        let params = vec![
            param(to_uuid(*bundles.start())),
            param(to_uuid(batch)),
            param(i64::try_from(limit).unwrap_or(i64::MAX)),
        ];
        let rows = self.query(Query { sql: Sql::Bundles, action: "listing bundles", params }).await?;
        rows.iter().map(|row| Columns::new(row).key()).collect()
    }

    /// Counts the items of a batch; see [`Store::batch_items`](stepfast_core::Store::batch_items).
    pub(crate) async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        let mut items = BatchItems::default();
        if !batch.is_batch() {
            return Ok(items);
        }
        let params =
            vec![param(to_uuid(batch)), param(to_uuid(batch.item(0))), param(to_uuid(batch.bundle(0)))];
        for row in self.query(Query { sql: Sql::BatchItems, action: "counting items", params }).await? {
            add_row(&row, &mut items)?;
        }
        Ok(items)
    }
}

/// Adds a row of batch_items.sql.
fn add_row(row: &Row, items: &mut BatchItems) -> Result<(), StoreError> {
    let mut row = Columns::new(row);
    let kind: &str = row.next()?;
    // an unknown status is shown as queued
    let status = row.status()?.unwrap_or(Status::Queued);
    let mut count = || row.next::<i64>().map(i64::unsigned_abs);
    let number = count()?;
    let packed = EndedItems { completed: count()?, failed: count()?, cancelled: count()? };
    match kind {
        "closed" => items.closed_with = Some(number),
        "bundled" => items.bundles.push((status, BundledItems { items: number, packed })),
        "retried" => items.retried = number,
        "promoted" => items.promoted.push((status, number)),
        _ => return Err(corrupt("a query result")),
    }
    Ok(())
}
