//! Queries about batches and bundles that several rooms send.

use stepfast_core::Key;
use stepfast_core::clock::Timestamp;
use stepfast_core::store::StoreError;

use crate::conn::pipeline::{Param, Query, QueryResult, column, param};
use crate::conn::row_counts::single_row;
use crate::conn::statements::Sql;
use crate::rows::Columns;
use crate::rows::bundles::BundleItems;
use crate::rows::types::{Timestamptz, to_key, to_uuid};

/// Returns the query that locks unfinished batches, in key order; `None` without batches.
pub(crate) fn lock_batches_query(mut batches: Vec<Key>) -> Option<Query<'static>> {
    batches.sort_unstable();
    batches.dedup();
    let params = vec![column(&batches, |key| to_uuid(*key))];
    let query = Query { sql: Sql::LockBatches, action: "locking batches", params };
    (!batches.is_empty()).then_some(query)
}

/// Returns the parameters of complete_batches.sql: batches, their first items, and the lowest keys of their bundles.
fn batch_params(batches: &[Key]) -> Vec<Param<'static>> {
    vec![
        column(batches, |key| to_uuid(*key)),
        column(batches, |key| to_uuid(key.item(0))),
        column(batches, |key| to_uuid(key.bundle(0))),
    ]
}

/// Returns the query that locks those of some batches that can be ended now. `batches` are in key order.
pub(crate) fn complete_batches_query(batches: &[Key]) -> Query<'static> {
    Query { sql: Sql::CompleteBatches, action: "finding complete batches", params: batch_params(batches) }
}

/// Returns the query that ends those of some batches that can be ended now. `batches` are in key order. `now`: the present
/// time, `None` for the server's.
pub(crate) fn end_batches_query(batches: &[Key], now: Option<Timestamp>) -> Query<'static> {
    let mut params = batch_params(batches);
    params.push(param(now.map(Timestamptz)));
    Query { sql: Sql::EndBatches, action: "ending batches", params }
}

/// Reads the batches that [`end_batches_query`] has ended.
pub(crate) fn parse_ended_batches(result: &QueryResult) -> Result<Vec<Key>, StoreError> {
    let mut row = Columns::new(single_row(result)?);
    let (_count, ended): (i64, Vec<_>) = (row.next()?, row.next()?);
    Ok(ended.into_iter().map(to_key).collect())
}

/// Returns the queries for the [outcomes](outcome_queries), the checkpoints and the attempts of the items of bundles.
pub(crate) fn item_queries(bundles: &BundleItems, action: &'static str) -> [Query<'static>; 4] {
    let [packs, promoted] = outcome_queries(bundles, action);
    let of_items = |sql| Query { sql, action, params: item_params(bundles) };
    [packs, promoted, of_items(Sql::ItemCheckpoints), of_items(Sql::ItemAttempts)]
}

/// Returns the queries for the packs and the promoted items of bundles.
pub(crate) fn outcome_queries(bundles: &BundleItems, action: &'static str) -> [Query<'static>; 2] {
    let packs = vec![column(bundles.keys(), |key| to_uuid(*key))];
    [
        Query { sql: Sql::Packs, action, params: packs },
        Query { sql: Sql::PromotedItems, action, params: item_params(bundles) },
    ]
}

fn item_params(bundles: &BundleItems) -> Vec<Param<'static>> {
    let items = bundles.item_keys();
    vec![column(&items, |(first, _)| to_uuid(*first)), column(&items, |(_, last)| to_uuid(*last))]
}
