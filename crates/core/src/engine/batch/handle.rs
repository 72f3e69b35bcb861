//! [`BatchHandle`]: a reference to a batch, whichever process submitted it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::runtime::batch::StoredBatch;
use crate::runtime::inner::EngineInner;
use crate::store::{BatchCounts, RequestResult, Status};

/// A reference to a batch whose items have outputs of type `O`.
pub struct BatchHandle<O> {
    pub(super) batch: StoredBatch,
    output: PhantomData<fn() -> O>,
}

impl<O> BatchHandle<O> {
    pub(crate) fn new(engine: Arc<EngineInner>, key: Key, given_id: Option<Arc<str>>) -> Self {
        Self { batch: StoredBatch { engine, key, given_id }, output: PhantomData }
    }

    pub(super) fn engine(&self) -> &Arc<EngineInner> {
        &self.batch.engine
    }

    /// Returns the handle of the batch as an execution.
    fn handle(&self) -> Handle<O> {
        let StoredBatch { engine, key, given_id } = self.batch.clone();
        Handle::remote(engine, key, given_id)
    }

    /// Returns the id of the batch.
    pub fn batch_id(&self) -> String {
        self.batch.batch_id()
    }

    /// Returns the workflow_id of the item with this index.
    pub fn item_id(&self, index: u32) -> String {
        self.batch.item_id(index)
    }

    /// Returns the key of the batch.
    pub fn key(&self) -> Key {
        self.batch.key
    }

    /// Reads the status of the batch from the database: `waiting` until all items have ended, then `completed`, or
    /// `cancelled`.
    pub async fn status(&self) -> Result<Status, Error> {
        self.handle().status().await
    }

    /// Counts the items by state. The cost grows with the number of bundles, not of items.
    pub async fn counts(&self) -> Result<BatchCounts, Error> {
        self.engine().check_open()?;
        self.batch.counts().await
    }

    /// Waits until all items of the batch have ended, and returns their counts. Failed items do not fail the batch.
    pub async fn wait(&self) -> Result<BatchCounts, Error> {
        self.engine().check_open()?;
        self.batch.wait().await
    }

    /// Cancels the batch: items that have not ended end as `cancelled`. Once the batch has ended, the method cancels
    /// [retried](Self::retry_failed) items. In all other respects like [`Engine::cancel`](crate::Engine::cancel).
    pub async fn cancel(&self) -> Result<RequestResult, Error> {
        let result = self.handle().cancel().await?;
        let retried = match result {
            RequestResult::NotApplicable(Status::Completed) => self.cancel_retried().await?,
            _ => None,
        };
        Ok(retried.unwrap_or(result))
    }
}

impl<O> fmt::Debug for BatchHandle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchHandle({:?})", self.batch_id())
    }
}

impl<O> Clone for BatchHandle<O> {
    fn clone(&self) -> Self {
        Self { batch: self.batch.clone(), output: PhantomData }
    }
}
