//! The search for an item of a batch by its workflow_id, as in `batch#7`.

use crate::error::Error;
use crate::key::{Key, MAX_BATCH_ITEMS};
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::chunks;
use crate::store::{Detail, Execution, ExecutionId, Parent, Record, unpack_inputs};

impl EngineInner {
    /// Returns the record of an item; `None` if the batch has no such item. The record of an item without a row of its own
    /// is put together from that of its bundle.
    pub(crate) async fn find_item(
        &self,
        batch: Key,
        index: u32,
        detail: Detail,
    ) -> Result<Option<Record>, Error> {
        if u64::from(index) >= MAX_BATCH_ITEMS {
            return Ok(None);
        }
        let key = batch.item(index);
        if let Some(record) = self.load(ExecutionId::Key(key), detail).await? {
            return Ok(Some(record));
        }
        let Some(bundle) = self.store.bundles(batch, index, 1).await?.pop() else { return Ok(None) };
        let Some(mut record) = self.load(ExecutionId::Key(bundle), detail).await? else { return Ok(None) };
        let Some(items) = record.bundle.take() else { return Ok(None) };
        let end = items.outcomes().unwrap_or_default().into_iter().find(|it| it.index == index);
        let input = match detail {
            Detail::Outcome => Payload::empty(),
            Detail::Full => self.input_of_item(bundle, record.execution.input.clone(), index).await?,
        };
        record.checkpoints.retain(|checkpoint| checkpoint.execution == key);
        record.attempts.retain(|attempt| attempt.execution == key);
        let of_bundle = record.execution;
        let (status, outcome, ended_at) = match end {
            Some(end) => (end.status, end.outcome, of_bundle.ended_at),
            None => (of_bundle.status, of_bundle.outcome, of_bundle.ended_at),
        };
        record.execution = Execution {
            key,
            parent: Some(Parent { key: batch, is_detached: false }),
            fingerprint: None,
            owner: of_bundle.owner.filter(|_| !status.is_terminal()),
            is_parked: of_bundle.is_parked && !status.is_terminal(),
            status,
            input,
            outcome,
            ended_at,
            ..of_bundle
        };
        Ok(Some(record))
    }

    /// Returns the input of an item from the packed inputs of its bundle.
    async fn input_of_item(&self, bundle: Key, packed: Payload, index: u32) -> Result<Payload, Error> {
        let packed = chunks::fetch(self, bundle, packed).await?;
        let inputs = unpack_inputs(&packed).unwrap_or_default();
        // the last input is that of the last index
        let from_end = bundle.last_index().unwrap_or_default() - index;
        Ok(inputs.into_iter().rev().nth(from_end as usize).unwrap_or_default())
    }
}
