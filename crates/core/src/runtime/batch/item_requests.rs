//! Requests to items without rows of their own.

use futures_util::future::BoxFuture;

use super::retry::retry_items_of;
use crate::error::Error;
use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::item_lookup::bundle_of_item;
use crate::store::{Detail, ExecutionId, RequestKind, RequestResult, Status};

impl EngineInner {
    /// Stages the cancel of an item without a row of its own, as a request to its bundle. Returns `None` for other
    /// executions, and for an item that does not exist.
    pub(crate) fn cancel_virtual_item(
        &self,
        key: Key,
    ) -> BoxFuture<'_, Result<Option<RequestResult>, Error>> {
        Box::pin(async move {
            let Some(index) = key.item_index() else { return Ok(None) };
            let Some(item) = self.store.load_items(&[key]).await?.pop().flatten() else { return Ok(None) };
            if item.status.is_terminal() {
                return Ok(Some(RequestResult::NotApplicable(item.status)));
            }
            let Some(bundle) = bundle_of_item(&*self.store, key).await? else { return Ok(None) };
            match self.request_by_key(bundle, RequestKind::CancelItem(index)).await? {
                // the bundle has ended in the meantime: the item has an outcome, or a row of its own
                Some(RequestResult::NotApplicable(_)) => self.request_by_key(key, RequestKind::Cancel).await,
                result => Ok(result),
            }
        })
    }

    /// Resumes an item without a row of its own, if it has failed: the item gets a row. Returns `None` for other
    /// executions, and for an item that does not exist.
    pub(crate) fn resume_virtual_item(
        &self,
        key: Key,
    ) -> BoxFuture<'_, Result<Option<RequestResult>, Error>> {
        Box::pin(async move {
            let Some(index) = key.item_index() else { return Ok(None) };
            let Some(item) = self.store.load_items(&[key]).await?.pop().flatten() else { return Ok(None) };
            if item.status != Status::Failed {
                return Ok(Some(RequestResult::NotApplicable(item.status)));
            }
            let Some(bundle) = bundle_of_item(&*self.store, key).await? else { return Ok(None) };
            let Some(record) = self.load(ExecutionId::Key(bundle), Detail::Outcome).await? else {
                return Ok(None);
            };
            // another call may have retried the item in the meantime
            retry_items_of(self, &record, |other| other == index).await?;
            Ok(Some(RequestResult::Done))
        })
    }
}
