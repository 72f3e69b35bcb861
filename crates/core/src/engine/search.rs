//! The search for many executions by their workflow_ids, in few queries.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::engine::Engine;
use crate::error::Error;
use crate::key::{Key, MAX_BATCH_ITEMS};
use crate::name_checks::split_item_id;
use crate::runtime::run::item_lookup::{key_of_text, virtual_item};
use crate::store::{Detail, Execution, ExecutionId, Record, Store, StoreError};

/// Maximum number of executions that one query loads.
const QUERY_EXECUTIONS: usize = 250;
/// Maximum number of bundles that one query loads, because a bundle has the outcomes of up to 1,000 items.
const QUERY_BUNDLES: usize = 16;
/// Maximum number of keys of bundles that one query lists.
const QUERY_BUNDLE_KEYS: usize = 1_000;
/// Maximum number of queries of a search at a time.
const MAX_QUERIES: usize = 4;

/// An item that is searched for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WantedItem {
    batch: Key,
    index: u32,
    /// The position of its id among all ids.
    position: usize,
}

/// A bundle, and the items in it that are searched for.
struct WantedBundle<'w> {
    bundle: Key,
    items: &'w [WantedItem],
}

/// The executions that are found, each with the position of its id.
type Found = Vec<(usize, Execution)>;

impl Engine {
    /// Returns the executions with these workflow_ids, in the order of the ids; `None` for each that does not exist. The
    /// executions have their status and their outcome, and no input. An id may be the text of a key, or that of an item,
    /// as in `batch#7`.
    ///
    /// Thousands of ids take a few queries, several of them at a time. An outcome above 64 KiB is a reference, which
    /// [`load_value`](Engine::load_value) resolves.
    pub async fn get_many(&self, ids: &[impl AsRef<str> + Sync]) -> Result<Vec<Option<Execution>>, Error> {
        self.inner.check_open()?;
        let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
        Ok(get_many(&*self.inner.store, &ids).await?)
    }
}

async fn get_many(store: &dyn Store, ids: &[&str]) -> Result<Vec<Option<Execution>>, StoreError> {
    // the texts to find among the ids of executions: ids of no items, and the batches of items
    let mut texts = Vec::with_capacity(ids.len());
    let mut batches = HashMap::new();
    let mut items = Vec::new();
    let mut others = Vec::new();
    for (position, id) in ids.iter().enumerate() {
        match split_item_id(id) {
            Some((batch, index)) => {
                let text = *batches.entry(batch).or_insert_with(|| {
                    texts.push(batch);
                    texts.len() - 1
                });
                items.push((text, index, position));
            }
            None => {
                texts.push(id);
                others.push((texts.len() - 1, position));
            }
        }
    }
    let mut by_text = find_rows(store, &texts).await?;
    let batch_of = |(text, index, position): &(usize, u32, usize)| {
        let batch = by_text[*text].as_ref().map(|execution| execution.key).filter(|key| key.is_batch())?;
        (u64::from(*index) < MAX_BATCH_ITEMS).then_some(WantedItem {
            batch,
            index: *index,
            position: *position,
        })
    };
    let mut wanted: Vec<WantedItem> = items.iter().filter_map(batch_of).collect();
    wanted.sort_unstable();
    let mut found: Vec<Option<Execution>> = vec![None; ids.len()];
    for (text, position) in others {
        found[position] = by_text[text].take();
    }
    for (position, item) in find_items(store, &wanted).await? {
        found[position] = Some(item);
    }
    // executions that are older than batches may have ids like those of items
    let missing: Vec<usize> =
        items.iter().map(|(.., position)| *position).filter(|position| found[*position].is_none()).collect();
    let given: Vec<ExecutionId> = missing.iter().map(|position| given_id(ids[*position])).collect();
    for (position, record) in missing.into_iter().zip(load_all(store, &given, QUERY_EXECUTIONS).await?) {
        found[position] = record.map(|record| record.execution);
    }
    Ok(found)
}

fn given_id(id: &str) -> ExecutionId {
    ExecutionId::Given(Arc::from(id))
}

/// Finds the executions with rows of their own, by their given ids, and then by the texts of their keys.
async fn find_rows(store: &dyn Store, ids: &[&str]) -> Result<Vec<Option<Execution>>, StoreError> {
    let given: Vec<ExecutionId> = ids.iter().map(|id| given_id(id)).collect();
    let records = load_all(store, &given, QUERY_EXECUTIONS).await?;
    let mut found: Vec<Option<Execution>> =
        records.into_iter().map(|record| record.map(|record| record.execution)).collect();
    let by_key: Vec<(usize, ExecutionId)> = (0..ids.len())
        .filter(|at| found[*at].is_none())
        .filter_map(|at| Some((at, ExecutionId::Key(key_of_text(ids[at])?))))
        .collect();
    let keys: Vec<ExecutionId> = by_key.iter().map(|(_, key)| key.clone()).collect();
    for ((at, _), record) in by_key.into_iter().zip(load_all(store, &keys, QUERY_EXECUTIONS).await?) {
        found[at] = record.map(|record| record.execution);
    }
    Ok(found)
}

/// Loads executions in the order of `ids`, at most `limit` in one query.
async fn load_all(
    store: &dyn Store,
    ids: &[ExecutionId],
    limit: usize,
) -> Result<Vec<Option<Record>>, StoreError> {
    let queries: Vec<_> = ids.chunks(limit).map(|ids| store.load(ids, Detail::Outcome)).collect();
    stream::iter(queries).buffered(MAX_QUERIES).try_concat().await
}

/// Finds items of batches. `wanted` is sorted.
async fn find_items(store: &dyn Store, wanted: &[WantedItem]) -> Result<Found, StoreError> {
    let of_batches: Vec<_> =
        wanted.chunk_by(|a, b| a.batch == b.batch).map(|items| find_bundles(store, items)).collect();
    let bundles: Vec<WantedBundle<'_>> = stream::iter(of_batches).buffered(MAX_QUERIES).try_concat().await?;
    let queries: Vec<_> =
        bundles.chunks(QUERY_BUNDLES).map(|bundles| find_items_of_bundles(store, bundles)).collect();
    stream::iter(queries).buffered(MAX_QUERIES).try_concat().await
}

/// Finds the bundles of items, which are sorted and belong to one batch. Items that do not exist have no bundle.
async fn find_bundles<'w>(
    store: &dyn Store,
    mut items: &'w [WantedItem],
) -> Result<Vec<WantedBundle<'w>>, StoreError> {
    let mut bundles = Vec::new();
    while let Some(first) = items.first() {
        let limit = if items.len() == 1 { 1 } else { QUERY_BUNDLE_KEYS };
        let listed = store.bundles(first.batch, first.index, limit as u64).await?;
        for bundle in &listed {
            let end = items.partition_point(|item| Some(item.index) <= bundle.last_index());
            let (of_bundle, others) = items.split_at(end);
            if !of_bundle.is_empty() {
                bundles.push(WantedBundle { bundle: *bundle, items: of_bundle });
            }
            items = others;
        }
        if listed.len() < limit {
            break;
        }
    }
    Ok(bundles)
}

/// Finds items in their bundles, and in the rows of promoted items.
async fn find_items_of_bundles(store: &dyn Store, bundles: &[WantedBundle<'_>]) -> Result<Found, StoreError> {
    let ids: Vec<ExecutionId> = bundles.iter().map(|it| ExecutionId::Key(it.bundle)).collect();
    let records = store.load(&ids, Detail::Outcome).await?;
    let mut found = Vec::new();
    let mut promoted = Vec::new();
    for (WantedBundle { items, .. }, record) in bundles.iter().zip(records) {
        let Some(Record { execution, bundle: Some(bundle), .. }) = record else { continue };
        let indexes: Vec<u32> = items.iter().map(|item| item.index).collect();
        for (item, end) in items.iter().zip(bundle.outcomes_of(&indexes)) {
            if bundle.promoted.binary_search(&item.index).is_ok() {
                promoted.push(*item);
            } else {
                found.push((item.position, virtual_item(&execution, item.batch.item(item.index), end)));
            }
        }
    }
    let rows: Vec<ExecutionId> =
        promoted.iter().map(|item| ExecutionId::Key(item.batch.item(item.index))).collect();
    let rows = load_all(store, &rows, QUERY_EXECUTIONS).await?;
    found.extend(promoted.iter().zip(rows).filter_map(|(item, row)| Some((item.position, row?.execution))));
    Ok(found)
}
