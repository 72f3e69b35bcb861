//! Batches as the engine and the code of workflows use them: their submission, their counts and their results.

pub(crate) mod item_requests;
pub(crate) mod results;
pub(crate) mod retry;
pub(crate) mod submission;

use std::sync::Arc;

use crate::error::Error;
use crate::key::{Key, item_id};
use crate::runtime::inner::EngineInner;
use crate::runtime::outcome::parked_error;
use crate::store::{BatchCounts, Filter, Status};

/// Number of bundles or promoted items that are waited for at a time.
const PAGE_BUNDLES: u64 = 256;

/// A batch in the store, whichever process submitted it.
#[derive(Clone)]
pub(crate) struct StoredBatch {
    pub(crate) engine: Arc<EngineInner>,
    pub(crate) key: Key,
    pub(crate) given_id: Option<Arc<str>>,
}

impl StoredBatch {
    /// Returns the id of the batch.
    pub(crate) fn batch_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }

    /// Returns the workflow_id of the item with this index.
    pub(crate) fn item_id(&self, index: u32) -> String {
        item_id(self.batch_id(), index)
    }

    /// Counts the items by state.
    pub(crate) async fn counts(&self) -> Result<BatchCounts, Error> {
        Ok(self.engine.store.batch_items(self.key).await?.counts())
    }

    /// Waits until all items of the batch have ended, and returns their counts. Fails with [`Error::Parked`] if a retried item
    /// is parked.
    pub(crate) async fn wait(&self) -> Result<BatchCounts, Error> {
        let batch = Box::pin(self.engine.wait_ended_or_parked(self.key)).await?;
        if batch.status == Status::Cancelled {
            Box::pin(self.wait_bundles()).await?;
        }
        Box::pin(self.wait_promoted()).await?;
        self.counts().await
    }

    /// Waits until the bundles have ended: workers may still run those of a cancelled batch.
    async fn wait_bundles(&self) -> Result<(), Error> {
        let mut next_index = 0;
        loop {
            let bundles = self.engine.store.bundles(self.key, next_index, PAGE_BUNDLES).await?;
            let Some(last) = bundles.last().and_then(|key| key.last_index()) else { return Ok(()) };
            for bundle in bundles {
                self.engine.wait_ended_or_parked(bundle).await?;
            }
            next_index = last + 1;
        }
    }

    /// Waits until the promoted items have ended: they may be retried after the end of the batch.
    async fn wait_promoted(&self) -> Result<(), Error> {
        let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        let mut filter =
            Filter { statuses, parent: Some(self.key), limit: PAGE_BUNDLES as usize, ..Filter::default() };
        loop {
            let promoted = self.engine.store.list(&filter).await?.executions;
            let Some(last) = promoted.last() else { return Ok(()) };
            filter.after = Some(last.key);
            for item in promoted {
                let item = self.engine.wait_ended_or_parked(item.key).await?;
                if let (true, Some(index)) = (item.is_parked, item.key.item_index()) {
                    return Err(parked_error(self.item_id(index), &item.outcome));
                }
            }
        }
    }
}
