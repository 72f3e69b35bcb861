//! Branches: parts of a workflow that run concurrently, each with a context of its own.
//!
//! All branches are polled inside the execution's own task. Branches may therefore borrow from the code around them,
//! and the task detects when all of them are blocked.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either as Selected, join, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::runtime::run::Run;
use crate::workflow::context::Context;

/// The output of a race between two branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first branch won.
    First(A),
    /// The second branch won.
    Second(B),
}

/// The error of a branch that was abandoned because its time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time is up")]
pub struct Elapsed;

/// The branches of one call, such as `join` or `map`. The group adds them to the run's count of active branches. By
/// this count the run detects whether every branch waits in a durable call.
pub(crate) struct BranchGroup {
    run: Arc<Run>,
    branches: AtomicI32,
}

impl BranchGroup {
    /// Begins a group. From now on the branch that makes the call counts as blocked.
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        run.adjust_active_branches(-1);
        Self { run: run.clone(), branches: AtomicI32::new(0) }
    }

    pub(crate) fn begin(&self) {
        self.branches.fetch_add(1, Relaxed);
        self.run.adjust_active_branches(1);
    }

    pub(crate) fn end(&self) {
        self.branches.fetch_sub(1, Relaxed);
        self.run.adjust_active_branches(-1);
    }
}

impl Drop for BranchGroup {
    fn drop(&mut self) {
        self.run.adjust_active_branches(1 - self.branches.load(Relaxed));
    }
}

impl Context {
    /// Runs two branches concurrently and waits for both.
    pub async fn join<'a, A, B, FA, FB>(&mut self, first: A, second: B) -> (FA::Output, FB::Output)
    where
        A: FnOnce(Context) -> FA,
        B: FnOnce(Context) -> FB,
        FA: Future + Send + 'a,
        FB: Future + Send + 'a,
    {
        let path = self.next_path();
        let group = &BranchGroup::new(&self.run);
        group.begin();
        group.begin();
        let (first, second) = (first(self.for_branch(&path, 0)), second(self.for_branch(&path, 1)));
        join(
            first.map(|output| {
                group.end();
                output
            }),
            second.map(|output| {
                group.end();
                output
            }),
        )
        .await
    }

    /// Runs one branch per closure, all concurrently, and waits for all. Returns their outputs in order.
    pub async fn join_all<F, Fut>(&mut self, branches: impl IntoIterator<Item = F>) -> Vec<Fut::Output>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future + Send,
    {
        self.map(branches, usize::MAX, |cx, branch| branch(cx)).await
    }

    /// Runs `body` for every item, with at most `limit` branches at a time. Returns the outputs in the order of the
    /// items.
    pub async fn map<I, F, Fut>(&mut self, items: I, limit: usize, mut body: F) -> Vec<Fut::Output>
    where
        I: IntoIterator,
        F: FnMut(Context, I::Item) -> Fut,
        Fut: Future + Send,
    {
        let path = self.next_path();
        let group = BranchGroup::new(&self.run);
        let mut items = items.into_iter();
        let mut running = FuturesUnordered::new();
        let mut outputs: Vec<Option<Fut::Output>> = Vec::new();
        loop {
            while running.len() < limit.max(1)
                && let Some(item) = items.next()
            {
                let n = outputs.len();
                outputs.push(None);
                group.begin();
                running.push(body(self.for_branch(&path, n as u32), item).map(move |output| (n, output)));
            }
            let Some((n, output)) = running.next().await else { break };
            group.end();
            outputs[n] = Some(output);
        }
        outputs.into_iter().flatten().collect()
    }

    /// Runs two branches concurrently until one of them is done, and abandons the other.
    pub async fn race<'a, A, B, FA, FB>(&mut self, first: A, second: B) -> Either<FA::Output, FB::Output>
    where
        A: FnOnce(Context) -> FA,
        B: FnOnce(Context) -> FB,
        FA: Future + Send + 'a,
        FB: Future + Send + 'a,
    {
        let path = self.next_path();
        let group = BranchGroup::new(&self.run);
        group.begin();
        group.begin();
        let first = Box::pin(first(self.for_branch(&path, 0)));
        let second = Box::pin(second(self.for_branch(&path, 1)));
        // the loser is dropped before the workflow continues, so that its abandonment is recorded first
        match select(first, second).await {
            Selected::Left((output, loser)) => {
                drop(loser);
                Either::First(output)
            }
            Selected::Right((output, loser)) => {
                drop(loser);
                Either::Second(output)
            }
        }
    }

    /// Runs one branch per closure until one of them is done, and abandons the others in their order. Returns the
    /// number and the output of the branch that was first; `None` if there are no branches.
    pub async fn race_all<F, Fut>(
        &mut self,
        branches: impl IntoIterator<Item = F>,
    ) -> Option<(usize, Fut::Output)>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future + Send,
    {
        let path = self.next_path();
        let group = BranchGroup::new(&self.run);
        let mut running = Vec::new();
        for (n, branch) in branches.into_iter().enumerate() {
            group.begin();
            running.push(Box::pin(branch(self.for_branch(&path, n as u32))));
        }
        if running.is_empty() {
            return None;
        }
        let (output, n, losers) = futures_util::future::select_all(running).await;
        drop(losers);
        Some((n, output))
    }

    /// Runs a branch for at most `limit`, durably: a replay returns the same result.
    pub async fn timeout<'a, A, FA>(&mut self, limit: Duration, branch: A) -> Result<FA::Output, Elapsed>
    where
        A: FnOnce(Context) -> FA,
        FA: Future + Send + 'a,
    {
        match self.race(branch, async move |mut cx: Context| cx.sleep(limit).await).await {
            Either::First(output) => Ok(output),
            Either::Second(()) => Err(Elapsed),
        }
    }

    /// Spawns a branch that runs concurrently with this one. The new branch ends no later than the workflow.
    pub fn spawn<F, Fut>(&mut self, branch: F) -> Branch<Fut::Output>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        let path = self.next_path();
        let run = self.run.clone();
        let (send, output) = oneshot::channel();
        let future = branch(self.for_branch(&path, 0));
        let active = ActiveBranch::new(&run);
        let spawned = Box::pin(async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            drop(active);
            let _ = send.send(result.map_err(|panic| Failure::from_panic(&*panic)));
        });
        run.state().spawned.push(spawned);
        run.wake_task();
        Branch { run, output }
    }
}

/// A branch outside of any group. The run counts the branch as active until this value is dropped.
pub(crate) struct ActiveBranch(Arc<Run>);

impl ActiveBranch {
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        run.adjust_active_branches(1);
        Self::counted(run)
    }

    /// Returns the guard of a branch that is counted already.
    pub(crate) fn counted(run: &Arc<Run>) -> Self {
        Self(run.clone())
    }
}

impl Drop for ActiveBranch {
    fn drop(&mut self) {
        self.0.adjust_active_branches(-1);
    }
}

/// A spawned branch.
#[must_use = "a branch runs without being awaited, but it ends with the workflow"]
pub struct Branch<T> {
    run: Arc<Run>,
    output: oneshot::Receiver<Result<T, Failure>>,
}

impl<T> Branch<T> {
    /// Waits for the branch's output. Returns an error if the branch panicked.
    pub async fn output(self) -> Result<T, Failure> {
        // this branch waits for another one and cannot make a call, so it does not count as active
        let _group = BranchGroup::new(&self.run);
        match self.output.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}
