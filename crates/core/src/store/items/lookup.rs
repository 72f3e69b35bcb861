//! The lookup of items by their keys, for stores without a query of their own for it.

use std::ops::Range;

use super::virtual_item;
use crate::key::Key;
use crate::store::{Detail, Execution, ExecutionId, Record, Store, StoreError};

/// Maximum number of bundles that one query loads, because a bundle has the outcomes of up to 1,000 items.
const QUERY_BUNDLES: usize = 16;
/// Maximum number of keys of bundles that one query lists.
const QUERY_BUNDLE_KEYS: u64 = 1_000;

/// Loads the executions of items by the lists of bundles and their records; see [`Store::load_items`].
pub async fn load_items_by_bundle<S: Store + ?Sized>(
    store: &S,
    items: &[Key],
) -> Result<Vec<Option<Execution>>, StoreError> {
    let mut found = vec![None; items.len()];
    let mut bundles = Vec::new();
    let mut at = 0;
    for of_batch in items.chunk_by(|a, b| a.batch() == b.batch()) {
        find_bundles(store, of_batch, at, &mut bundles).await?;
        at += of_batch.len();
    }
    for bundles in bundles.chunks(QUERY_BUNDLES) {
        load_bundles(store, items, bundles, &mut found).await?;
    }
    Ok(found)
}

/// A bundle, and the positions of the items in it that are searched for.
struct SearchedBundle {
    key: Key,
    positions: Range<usize>,
}

/// Finds the bundles of items of one batch. The first item is at position `at` of all items.
async fn find_bundles<S: Store + ?Sized>(
    store: &S,
    mut items: &[Key],
    mut at: usize,
    bundles: &mut Vec<SearchedBundle>,
) -> Result<(), StoreError> {
    while let Some((batch, index)) = items.first().and_then(|item| item.batch().zip(item.item_index())) {
        let limit = if items.len() == 1 { 1 } else { QUERY_BUNDLE_KEYS };
        let listed = store.bundles(batch, index, limit).await?;
        for key in &listed {
            let count = items.partition_point(|item| item.item_index() <= key.last_index());
            if count > 0 {
                bundles.push(SearchedBundle { key: *key, positions: at..at + count });
            }
            (items, at) = (&items[count..], at + count);
        }
        if (listed.len() as u64) < limit {
            break;
        }
    }
    Ok(())
}

/// Loads items from the records of their bundles, and from the rows of promoted items.
async fn load_bundles<S: Store + ?Sized>(
    store: &S,
    items: &[Key],
    bundles: &[SearchedBundle],
    found: &mut [Option<Execution>],
) -> Result<(), StoreError> {
    let ids: Vec<ExecutionId> = bundles.iter().map(|bundle| ExecutionId::Key(bundle.key)).collect();
    let records = store.load(&ids, Detail::Outcome).await?;
    let mut promoted = Vec::new();
    for (SearchedBundle { positions, .. }, record) in bundles.iter().zip(records) {
        let Some(Record { execution, bundle: Some(bundle), .. }) = record else { continue };
        let indexes: Vec<u32> =
            items[positions.clone()].iter().filter_map(|item| item.item_index()).collect();
        let first = execution.key.first_index(bundle.item_count).unwrap_or_default();
        for ((at, index), outcome) in positions.clone().zip(&indexes).zip(bundle.outcomes_of(&indexes)) {
            if bundle.promoted.binary_search(index).is_ok() {
                promoted.push(at);
            } else if *index >= first {
                found[at] = Some(virtual_item(&execution, items[at], outcome));
            }
        }
    }
    if promoted.is_empty() {
        return Ok(());
    }
    let ids: Vec<ExecutionId> = promoted.iter().map(|at| ExecutionId::Key(items[*at])).collect();
    for (at, record) in promoted.into_iter().zip(store.load(&ids, Detail::Outcome).await?) {
        found[at] = record.map(|record| record.execution);
    }
    Ok(())
}
