//! Cancelling and resuming all executions that match a filter.

use futures_util::{StreamExt, stream};

use crate::engine::Engine;
use crate::error::Error;
use crate::runtime::inner::EngineInner;
use crate::store::{Filter, RequestKind, RequestResult, Status};

/// Number of executions per page of the list, and of requests that are under way at a time.
const PAGE_SIZE: usize = 1_000;

/// The counts of a bulk request, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkResult {
    /// The number of executions that the request has cancelled or continued.
    pub done: u64,
    /// The number of executions for which the request is recorded. The workers that run them will cancel or continue
    /// them.
    pub pending: u64,
    /// The number of executions whose status does not permit the request.
    pub not_applicable: u64,
}

impl BulkResult {
    /// Returns the number of executions that the request has reached.
    pub fn total(&self) -> u64 {
        self.done + self.pending + self.not_applicable
    }

    fn add(&mut self, result: RequestResult) {
        *match result {
            RequestResult::Done => &mut self.done,
            RequestResult::Pending => &mut self.pending,
            RequestResult::NotApplicable(_) => &mut self.not_applicable,
        } += 1;
    }
}

impl Engine {
    /// Cancels all executions that match `filter` and have not ended, in the order of [`list`](Engine::list), as
    /// [`cancel`](Engine::cancel) cancels one. The filter's `limit` and `after` are ignored. `progress` receives the
    /// counts from time to time. Executions that start in the meantime are not cancelled. After an error, some
    /// executions may be cancelled.
    pub async fn cancel_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(BulkResult) + Send,
    ) -> Result<BulkResult, Error> {
        let filter = with_default_statuses(filter, |status| !status.is_terminal());
        request_all(&self.inner, filter, RequestKind::Cancel, progress).await
    }

    /// Continues all executions that match `filter`, as [`resume`](Engine::resume) continues one. The filter should
    /// select failed, cancelled or parked executions. In all other respects the method works like
    /// [`cancel_all`](Engine::cancel_all).
    pub async fn resume_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(BulkResult) + Send,
    ) -> Result<BulkResult, Error> {
        request_all(&self.inner, filter.clone(), RequestKind::Resume, progress).await
    }

    /// Parks all executions that match `filter` and can be paused, as [`pause`](Engine::pause) parks one. In all other
    /// respects the method works like [`cancel_all`](Engine::cancel_all).
    pub async fn pause_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(BulkResult) + Send,
    ) -> Result<BulkResult, Error> {
        let filter = with_default_statuses(filter, |status| {
            matches!(status, Status::Queued | Status::Running | Status::Waiting)
        });
        request_all(&self.inner, filter, RequestKind::Pause, progress).await
    }
}

/// Returns the filter with those statuses for which `is_default` returns true, unless the filter has any.
fn with_default_statuses(filter: &Filter, is_default: impl Fn(Status) -> bool) -> Filter {
    let mut filter = filter.clone();
    if filter.statuses.is_empty() {
        filter.statuses = Status::ALL.into_iter().filter(|status| is_default(*status)).collect();
    }
    filter
}

async fn request_all(
    engine: &EngineInner,
    mut filter: Filter,
    kind: RequestKind,
    mut progress: impl FnMut(BulkResult) + Send,
) -> Result<BulkResult, Error> {
    filter.check()?;
    (filter.limit, filter.after) = (PAGE_SIZE, None);
    let mut total = BulkResult::default();
    loop {
        let page = engine.store.list(&filter).await?.executions;
        let Some(last) = page.last() else { return Ok(total) };
        filter.after = Some(last.key);
        let requests = page.into_iter().map(|it| engine.request_by_key(it.key, kind));
        // many requests share a flush
        let mut requests = stream::iter(requests).buffer_unordered(PAGE_SIZE);
        while let Some(result) = requests.next().await {
            // an execution that has been deleted in the meantime does not count
            if let Some(result) = result? {
                total.add(result);
            }
        }
        progress(total);
    }
}
