//! The search for many executions by their workflow_ids or their attributes, in few queries.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::attributes::check_attribute;
use crate::engine::Engine;
use crate::error::Error;
use crate::key::{Key, MAX_BATCH_ITEMS};
use crate::name_checks::split_item_id;
use crate::runtime::run::item_lookup::{id_of_item, key_of_text};
use crate::store::{Detail, Execution, ExecutionId, Record, Store, StoreError};

/// Maximum number of executions that one query loads.
const QUERY_EXECUTIONS: usize = 250;
/// Minimum number of items of batches that one query loads: neighbouring items are in one bundle, which is read once.
const MIN_QUERY_ITEMS: usize = 250;
/// Maximum number of items of batches that one query loads.
const MAX_QUERY_ITEMS: usize = 2_000;
/// Maximum number of queries of a search at a time.
const MAX_QUERIES: usize = 4;

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

    /// Finds executions by an attribute of this name, for each of the values: the newest first, and up to `limit` for each
    /// value. The executions have their status and their outcome, and no input.
    ///
    /// Thousands of values take a few queries, several of them at a time. An outcome above 64 KiB is a reference, which
    /// [`load_value`](Engine::load_value) resolves. All executions with an attribute are found, page by page, by a
    /// [list](Engine::list).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no execution can have such an attribute, or if `limit` is 0.
    pub async fn find(
        &self,
        name: &str,
        values: &[impl AsRef<str> + Sync],
        limit: usize,
    ) -> Result<Vec<Vec<Execution>>, Error> {
        self.inner.check_open()?;
        if limit == 0 {
            return Err(Error::Invalid { input: "limit", reason: "it is 0, at least 1 is needed".into() });
        }
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        for value in &values {
            check_attribute(name, value)?;
        }
        Ok(find(&*self.inner.store, name, &values, limit as u64).await?)
    }
}

async fn find(
    store: &dyn Store,
    name: &str,
    values: &[&str],
    limit: u64,
) -> Result<Vec<Vec<Execution>>, StoreError> {
    let queries: Vec<_> =
        values.chunks(QUERY_EXECUTIONS).map(|values| store.find(name, values, limit)).collect();
    let keys: Vec<Vec<Key>> = stream::iter(queries).buffered(MAX_QUERIES).try_concat().await?;
    let ids: Vec<ExecutionId> = keys.iter().flatten().map(|key| ExecutionId::Key(*key)).collect();
    let mut records = load_all(store, &ids, QUERY_EXECUTIONS).await?.into_iter();
    // an execution may be deleted after its key was found
    let load = |keys: Vec<Key>| {
        records.by_ref().take(keys.len()).flatten().map(|record| record.execution).collect::<Vec<_>>()
    };
    Ok(keys.into_iter().map(load).collect())
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
    let key_of = |(text, index, position): &(usize, u32, usize)| {
        let batch = by_text[*text].as_ref().map(|execution| execution.key).filter(|key| key.is_batch())?;
        (u64::from(*index) < MAX_BATCH_ITEMS).then(|| (batch.item(*index), *position))
    };
    let mut keys: Vec<(Key, usize)> = items.iter().filter_map(key_of).collect();
    keys.sort_unstable();
    let mut found: Vec<Option<Execution>> = vec![None; ids.len()];
    let (keys, positions): (Vec<Key>, Vec<usize>) = keys.into_iter().unzip();
    for (position, item) in positions.into_iter().zip(load_items(store, &keys).await?) {
        found[position] = item;
    }
    for (text, index, position) in &items {
        if let (Some(item), Some(batch)) = (&mut found[*position], &by_text[*text]) {
            item.given_id = id_of_item(batch, *index);
        }
    }
    for (text, position) in others {
        found[position] = by_text[text].take();
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

/// Loads items of batches in the order of their keys, which are sorted.
async fn load_items(store: &dyn Store, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
    let count = items.len().div_ceil(MAX_QUERIES).clamp(MIN_QUERY_ITEMS, MAX_QUERY_ITEMS);
    let queries: Vec<_> = items.chunks(count).map(|items| store.load_items(items)).collect();
    stream::iter(queries).buffered(MAX_QUERIES).try_concat().await
}
