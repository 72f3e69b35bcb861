//! Cancelling and resuming all executions that match a filter.

use futures_util::{StreamExt, stream};

use crate::engine::Engine;
use crate::error::Error;
use crate::runtime::inner::Core;
use crate::store::{RequestResult, Filter, RequestKind, Status};

/// Number of executions per page of the list, and of requests that are under way at a time.
const PAGE: usize = 1_000;

/// The counts of a bulk request, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Executions that the request has cancelled or continued.
    pub done: u64,
    /// Executions for which the request is recorded, and which the workers that run them will cancel or continue.
    pub requested: u64,
    /// Executions in a status to which the request does not apply.
    pub declined: u64,
}

impl Answers {
    /// The number of executions that the request has reached.
    pub fn total(&self) -> u64 {
        self.done + self.requested + self.declined
    }

    fn count(&mut self, answer: RequestResult) {
        *match answer {
            RequestResult::Done => &mut self.done,
            RequestResult::Pending => &mut self.requested,
            RequestResult::NotApplicable(_) => &mut self.declined,
        } += 1;
    }
}

impl Engine {
    /// Cancels all executions that match `filter` and have not ended, in the order of [`list`](Engine::list), as
    /// [`cancel`](Engine::cancel) cancels one. The filter's `limit` and `after` are ignored. `progress` receives the counts
    /// from time to time. Executions that start in the meantime are left alone. After an error, some may be cancelled.
    pub async fn cancel_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(Answers) + Send,
    ) -> Result<Answers, Error> {
        let mut filter = filter.clone();
        if filter.statuses.is_empty() {
            filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        }
        request_all(&self.inner, filter, RequestKind::Cancel, progress).await
    }

    /// Continues all executions that match `filter`, as [`resume`](Engine::resume) continues one. The filter should select
    /// failed, cancelled or parked executions. Otherwise like [`cancel_all`](Engine::cancel_all).
    pub async fn resume_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(Answers) + Send,
    ) -> Result<Answers, Error> {
        request_all(&self.inner, filter.clone(), RequestKind::Resume, progress).await
    }
}

async fn request_all(
    core: &Core,
    mut filter: Filter,
    kind: RequestKind,
    mut progress: impl FnMut(Answers) + Send,
) -> Result<Answers, Error> {
    filter.check()?;
    (filter.limit, filter.after) = (PAGE, None);
    let mut answers = Answers::default();
    loop {
        let page = core.store.list(&filter).await?.executions;
        let Some(last) = page.last() else { return Ok(answers) };
        filter.after = Some(last.key);
        let asked = page.into_iter().map(|it| core.request_of(it.key, kind));
        // many requests share a flush
        let mut asked = stream::iter(asked).buffer_unordered(PAGE);
        while let Some(answer) = asked.next().await {
            // an execution that has been deleted in the meantime does not count
            if let Some(answer) = answer? {
                answers.count(answer);
            }
        }
        progress(answers);
    }
}
