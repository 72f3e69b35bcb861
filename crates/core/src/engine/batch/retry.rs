//! The retry of a batch's failed items, and the cancel of retried items.

use futures_util::{StreamExt, stream};

use super::BatchHandle;
use crate::error::Error;
use crate::key::Key;
use crate::runtime::batch::retry::{ITEMS_IN_FLIGHT, retry_items_of};
use crate::store::{Detail, ExecutionId, Filter, RequestKind, RequestResult, Status};

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
        let mut retried = 0;
        self.request_promoted(RequestKind::Resume, vec![Status::Failed], |_| retried += 1).await?;
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

    /// Cancels the unfinished items of a batch that has ended: retried items. Returns `None` without any.
    pub(super) async fn cancel_retried(&self) -> Result<Option<RequestResult>, Error> {
        let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        let mut cancelled = None;
        self.request_promoted(RequestKind::Cancel, statuses, |result| {
            if result == RequestResult::Pending || (result == RequestResult::Done && cancelled.is_none()) {
                cancelled = Some(result);
            }
        })
        .await?;
        Ok(cancelled)
    }

    /// Requests something of all items that have rows of their own and one of these statuses. `answer` receives the result
    /// of each request.
    async fn request_promoted(
        &self,
        kind: RequestKind,
        statuses: Vec<Status>,
        mut answer: impl FnMut(RequestResult),
    ) -> Result<(), Error> {
        let mut filter =
            Filter { parent: Some(self.key()), statuses, limit: ITEMS_IN_FLIGHT, ..Filter::default() };
        loop {
            let items = self.engine().store.list(&filter).await?.executions;
            let Some(last) = items.last() else { return Ok(()) };
            filter.after = Some(last.key);
            let keys: Vec<Key> = items.iter().map(|item| item.key).collect();
            let requests = keys.into_iter().map(|key| self.engine().request_by_key(key, kind));
            let mut requests = stream::iter(requests).buffer_unordered(ITEMS_IN_FLIGHT);
            while let Some(result) = requests.next().await {
                result?.into_iter().for_each(&mut answer);
            }
        }
    }
}
