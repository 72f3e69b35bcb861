//! The search for an execution by its workflow_id, also for an item of a batch, as in `batch#7`.

use std::sync::Arc;

use crate::error::Error;
use crate::key::{Key, MAX_BATCH_ITEMS, item_id};
use crate::name_checks::split_item_id;
use crate::payload::Payload;
use crate::runtime::messaging::shown::show_record;
use crate::store::{
    Detail, Execution, ExecutionId, Record, Store, StoreError, input_of_item, unpack_inputs, virtual_item,
};

/// Returns the record of the execution with this workflow_id, which may be the text of its key. The record of an item
/// without a row of its own is put together from that of its bundle. The names of tokens and questions are those for
/// people.
#[doc(hidden)]
pub async fn find_record(store: &dyn Store, workflow_id: &str, detail: Detail) -> Result<Record, Error> {
    let mut record = find(store, workflow_id, detail).await?;
    show_record(&mut record);
    Ok(record)
}

async fn find(store: &dyn Store, workflow_id: &str, detail: Detail) -> Result<Record, Error> {
    if let Some(record) = find_row(store, workflow_id, detail).await? {
        return Ok(record);
    }
    if let Some((batch, index)) = split_item_id(workflow_id)
        && let Some(batch) = find_row(store, batch, Detail::Outcome).await?
        && let Some(mut record) = find_item(store, batch.execution.key, index, detail).await?
    {
        record.execution.given_id = id_of_item(&batch.execution, index);
        return Ok(record);
    }
    Err(Error::NotFound { workflow_id: workflow_id.to_owned() })
}

/// Returns the id of an item of this batch; `None` if the batch has none, because its key is its id.
pub(crate) fn id_of_item(batch: &Execution, index: u32) -> Option<Arc<str>> {
    batch.given_id.as_ref().map(|batch| item_id(batch, index).into())
}

/// Returns the record of an execution with a row of its own, by its given id or by the text of its key.
async fn find_row(store: &dyn Store, id: &str, detail: Detail) -> Result<Option<Record>, StoreError> {
    if let Some(record) = load(store, ExecutionId::Given(id.into()), detail).await? {
        return Ok(Some(record));
    }
    match key_of_text(id) {
        Some(key) => load(store, ExecutionId::Key(key), detail).await,
        None => Ok(None),
    }
}

/// Returns the key with this text; `None` also for the key of a bundle, which is no execution for people.
pub(crate) fn key_of_text(text: &str) -> Option<Key> {
    Key::from_text(text).filter(|key| !key.is_bundle())
}

async fn load(store: &dyn Store, id: ExecutionId, detail: Detail) -> Result<Option<Record>, StoreError> {
    Ok(store.load(&[id], detail).await?.pop().flatten())
}

/// Returns the record of an item; `None` if `batch` is no batch or has no such item.
async fn find_item(
    store: &dyn Store,
    batch: Key,
    index: u32,
    detail: Detail,
) -> Result<Option<Record>, StoreError> {
    if !batch.is_batch() || u64::from(index) >= MAX_BATCH_ITEMS {
        return Ok(None);
    }
    let key = batch.item(index);
    if detail == Detail::Outcome {
        let item = store.load_items(&[key]).await?.pop().flatten();
        return Ok(item.map(Record::without_details));
    }
    if let Some(record) = load(store, ExecutionId::Key(key), detail).await? {
        return Ok(Some(record));
    }
    let Some(bundle) = bundle_of_item(store, key).await? else { return Ok(None) };
    let Some(mut record) = load(store, ExecutionId::Key(bundle), detail).await? else { return Ok(None) };
    let Some(items) = record.bundle.take() else { return Ok(None) };
    if items.promoted.binary_search(&index).is_ok() {
        // the item was promoted after the first load
        return load(store, ExecutionId::Key(key), detail).await;
    }
    let end = items.outcomes_of(&[index]).pop().flatten();
    let packed = std::mem::take(&mut record.execution.input);
    let input = load_input(store, bundle, packed, index).await?;
    record.checkpoints.retain(|checkpoint| checkpoint.execution == key);
    record.attempts.retain(|attempt| attempt.execution == key);
    record.execution = Execution { input, ..virtual_item(&record.execution, key, end) };
    Ok(Some(record))
}

/// Returns the key of the bundle of an item; `None` for other executions, and for an item that does not exist.
pub(crate) async fn bundle_of_item(store: &dyn Store, item: Key) -> Result<Option<Key>, StoreError> {
    let (Some(batch), Some(index)) = (item.batch(), item.item_index()) else { return Ok(None) };
    Ok(store.bundles(batch, index, 1).await?.pop())
}

/// Loads the input of an item from the packed inputs of its bundle.
async fn load_input(
    store: &dyn Store,
    bundle: Key,
    packed: Payload,
    index: u32,
) -> Result<Payload, StoreError> {
    let packed = match packed.chunk_ref() {
        None => packed,
        Some(chunks) => Payload::from_bytes(store.load_value(bundle, chunks).await?),
    };
    let inputs = unpack_inputs(&packed).unwrap_or_default();
    Ok(input_of_item(&inputs, bundle, index))
}
