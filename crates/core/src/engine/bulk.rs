//! Acting on all executions that match a filter.

use futures_util::{StreamExt, stream};

use crate::engine::Engine;
use crate::error::Error;
use crate::runtime::inner::Core;
use crate::store::{RequestResult, Filter, RequestKind, Status};

/// So many executions are looked for at a time, and so many are asked at a time.
const PAGE: usize = 1_000;

/// What has come of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// So many are cancelled, or go on.
    pub done: u64,
    /// Of so many it is recorded, and the workers that run them will do it.
    pub requested: u64,
    /// So many are not in a state for that.
    pub declined: u64,
}

impl Answers {
    /// How many have been asked.
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
    /// [`cancel`](Engine::cancel) does with one; `limit` and `after` do not count. `progress` is told now and then how far
    /// it has come. What is started meanwhile is left alone. If it comes to an error, some may be cancelled.
    pub async fn cancel_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(Answers) + Send,
    ) -> Result<Answers, Error> {
        let mut filter = filter.clone();
        if filter.statuses.is_empty() {
            filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
        }
        request_all(&self.core, filter, RequestKind::Cancel, progress).await
    }

    /// Continues all executions that match `filter`, as [`resume`](Engine::resume) does with one: say in the filter whether
    /// those that have failed, those that were cancelled, or those that are parked. Otherwise like
    /// [`cancel_all`](Engine::cancel_all).
    pub async fn resume_all(
        &self,
        filter: &Filter,
        progress: impl FnMut(Answers) + Send,
    ) -> Result<Answers, Error> {
        request_all(&self.core, filter.clone(), RequestKind::Resume, progress).await
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
        // many share a flush
        let mut asked = stream::iter(asked).buffer_unordered(PAGE);
        while let Some(answer) = asked.next().await {
            // one that has gone meanwhile need not be asked
            if let Some(answer) = answer? {
                answers.count(answer);
            }
        }
        progress(answers);
    }
}
