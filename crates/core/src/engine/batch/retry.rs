//! The retry of a batch's failed items.

use futures_util::{StreamExt, stream};

use super::BatchHandle;
use crate::error::Error;
use crate::key::Key;
use crate::runtime::batch::retry::{ITEMS_IN_FLIGHT, retry_items_of};
use crate::store::{Detail, ExecutionId, Filter, RequestKind, Status};

/// Number of bundles that are read at a time.
const PAGE_BUNDLES: u64 = 8;

impl<O> BatchHandle<O> {
    /// Retries the failed items: each continues as [`resume`](crate::Engine::resume) continues an execution. Its failed steps
    /// are tried again, and its other steps keep their outcomes. Returns the number of retried items.
    ///
    /// The status of the batch stays as it is; [`wait`](Self::wait) waits for the retried items. Items that fail while the
    /// method runs may be retried or not. After an error, some items may be retried; call the method again.
    pub async fn retry_failed(&self) -> Result<u64, Error> {
        let engine = &**self.engine();
        engine.check_open()?;
        // first the items that have rows: a retried item gets one
        let mut retried = self.resume_promoted().await?;
        let mut next_index = 0;
        loop {
            let bundles = engine.store.bundles(self.key(), next_index, PAGE_BUNDLES).await?;
            let Some(last) = bundles.last().and_then(|key| key.last_index()) else { return Ok(retried) };
            let ids: Vec<ExecutionId> = bundles.into_iter().map(ExecutionId::Key).collect();
            for record in engine.store.load(&ids, Detail::Outcome).await?.into_iter().flatten() {
                retried += retry_items_of(engine, &record, |_| true).await?;
            }
            next_index = last + 1;
        }
    }

    /// Resumes the failed items with rows of their own. Returns their number.
    async fn resume_promoted(&self) -> Result<u64, Error> {
        let (parent, statuses) = (Some(self.key()), vec![Status::Failed]);
        let mut filter = Filter { parent, statuses, limit: ITEMS_IN_FLIGHT, ..Filter::default() };
        let mut resumed = 0;
        loop {
            let failed = self.engine().store.list(&filter).await?.executions;
            let Some(last) = failed.last() else { return Ok(resumed) };
            filter.after = Some(last.key);
            let keys: Vec<Key> = failed.iter().map(|item| item.key).collect();
            let requests = keys.into_iter().map(|key| self.engine().request_by_key(key, RequestKind::Resume));
            let mut requests = stream::iter(requests).buffer_unordered(ITEMS_IN_FLIGHT);
            while let Some(result) = requests.next().await {
                resumed += u64::from(result?.is_some());
            }
        }
    }
}
