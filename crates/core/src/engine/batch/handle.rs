//! [`BatchHandle`]: a reference to a batch, whichever process submitted it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::store::{BatchCounts, Detail, ExecutionId, RequestKind, RequestResult, Status};

/// A reference to a batch whose items have outputs of type `O`.
pub struct BatchHandle<O> {
    pub(super) engine: Arc<EngineInner>,
    pub(super) key: Key,
    given_id: Option<Arc<str>>,
    output: PhantomData<fn() -> O>,
}

impl<O> BatchHandle<O> {
    pub(crate) fn new(engine: Arc<EngineInner>, key: Key, given_id: Option<Arc<str>>) -> Self {
        Self { engine, key, given_id, output: PhantomData }
    }

    /// Returns the id of the batch.
    pub fn batch_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }

    /// Returns the workflow_id of the item with this index.
    pub fn item_id(&self, index: u32) -> String {
        format!("{}#{index}", self.batch_id())
    }

    /// Returns the key of the batch.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Reads the status of the batch from the database: `waiting` until all items have ended, then `completed`, or
    /// `cancelled`.
    pub async fn status(&self) -> Result<Status, Error> {
        self.engine.check_open()?;
        let record = self.engine.load(ExecutionId::Key(self.key), Detail::Outcome).await?;
        let record = record.ok_or_else(|| Error::NotFound { workflow_id: self.batch_id() })?;
        Ok(record.execution.status)
    }

    /// Counts the items by state. The cost grows with the number of bundles, not of items.
    pub async fn counts(&self) -> Result<BatchCounts, Error> {
        self.engine.check_open()?;
        Ok(self.engine.store.batch_items(self.key).await?.counts())
    }

    /// Waits until the batch has ended, and returns the counts of its items. Failed items do not fail the batch.
    pub async fn wait(&self) -> Result<BatchCounts, Error> {
        Box::pin(self.engine.wait_ended_or_parked(self.key)).await?;
        self.counts().await
    }

    /// Cancels the batch: items that have not ended end as `cancelled`. In all other respects like
    /// [`Engine::cancel`](crate::Engine::cancel).
    pub async fn cancel(&self) -> Result<RequestResult, Error> {
        self.engine.check_open()?;
        let result = self.engine.request_by_key(self.key, RequestKind::Cancel).await?;
        result.ok_or_else(|| Error::NotFound { workflow_id: self.batch_id() })
    }
}

impl<O> fmt::Debug for BatchHandle<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchHandle({:?})", self.batch_id())
    }
}

impl<O> Clone for BatchHandle<O> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            key: self.key,
            given_id: self.given_id.clone(),
            output: PhantomData,
        }
    }
}
