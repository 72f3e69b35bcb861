//! [`BatchHandle`]: a reference to a batch, whichever process submitted it.

use std::fmt;
use std::sync::Arc;

use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::{Key, item_id};
use crate::runtime::inner::EngineInner;
use crate::store::{BatchCounts, Filter, RequestResult, Status};

/// Number of bundles or promoted items that are read at a time.
const PAGE_BUNDLES: u64 = 256;

/// A reference to a batch whose items have outputs of type `O`.
pub struct BatchHandle<O> {
    /// The handle of the batch as an execution.
    handle: Handle<O>,
}

impl<O> BatchHandle<O> {
    pub(crate) fn new(engine: Arc<EngineInner>, key: Key, given_id: Option<Arc<str>>) -> Self {
        Self { handle: Handle::remote(engine, key, given_id) }
    }

    pub(super) fn engine(&self) -> &Arc<EngineInner> {
        self.handle.engine()
    }

    /// Returns the id of the batch.
    pub fn batch_id(&self) -> String {
        self.handle.workflow_id()
    }

    /// Returns the workflow_id of the item with this index.
    pub fn item_id(&self, index: u32) -> String {
        item_id(self.batch_id(), index)
    }

    /// Returns the key of the batch.
    pub fn key(&self) -> Key {
        self.handle.key()
    }

    /// Reads the status of the batch from the database: `waiting` until all items have ended, then `completed`, or
    /// `cancelled`.
    pub async fn status(&self) -> Result<Status, Error> {
        self.handle.status().await
    }

    /// Counts the items by state. The cost grows with the number of bundles, not of items.
    pub async fn counts(&self) -> Result<BatchCounts, Error> {
        self.engine().check_open()?;
        Ok(self.engine().store.batch_items(self.key()).await?.counts())
    }

    /// Waits until all items of the batch have ended, and returns their counts. Failed items do not fail the batch.
    pub async fn wait(&self) -> Result<BatchCounts, Error> {
        let batch = Box::pin(self.engine().wait_ended_or_parked(self.key())).await?;
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
            let bundles = self.engine().store.bundles(self.key(), next_index, PAGE_BUNDLES).await?;
            let Some(last) = bundles.last().and_then(|key| key.last_index()) else { return Ok(()) };
            for bundle in bundles {
                self.engine().wait_ended_or_parked(bundle).await?;
            }
            next_index = last + 1;
        }
    }

    /// Waits until the promoted items have ended: they may be retried after the end of the batch.
    async fn wait_promoted(&self) -> Result<(), Error> {
        let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        let mut filter =
            Filter { statuses, parent: Some(self.key()), limit: PAGE_BUNDLES as usize, ..Filter::default() };
        loop {
            let promoted = self.engine().store.list(&filter).await?.executions;
            let Some(last) = promoted.last() else { return Ok(()) };
            filter.after = Some(last.key);
            for item in promoted {
                self.engine().wait_ended_or_parked(item.key).await?;
            }
        }
    }

    /// Cancels the batch: items that have not ended end as `cancelled`. In all other respects like
    /// [`Engine::cancel`](crate::Engine::cancel).
    pub async fn cancel(&self) -> Result<RequestResult, Error> {
        self.handle.cancel().await
    }
}

impl<O> fmt::Debug for BatchHandle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchHandle({:?})", self.batch_id())
    }
}

impl<O> Clone for BatchHandle<O> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}
