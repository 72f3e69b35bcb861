//! Runs that their caller does not poll. Such a run has a task of its own, or no task if it only waits for
//! its end to be durable.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use super::task::RunTask;
use crate::payload::Payload;

/// A run in a task of its own.
pub(super) struct DetachedRun {
    pub(super) task: RunTask,
    /// The input, which is needed until the code has begun.
    pub(super) input: Payload,
}

impl Future for DetachedRun {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let Self { task, input } = &mut *self;
        task.poll_conclusion(cx, input).map(drop)
    }
}

/// A run that only waits for its end to be durable. It is concluded on the lane's thread, without a task.
pub(super) struct FinalFlush(pub(super) std::sync::Mutex<Option<RunTask>>);

impl Wake for FinalFlush {
    fn wake(self: Arc<Self>) {
        let taken = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = taken {
            Self::poll(&self, task);
        }
    }
}

impl FinalFlush {
    pub(super) fn poll(self: &Arc<Self>, mut task: RunTask) {
        let waker = Waker::from(self.clone());
        // the lock is held during the poll, so that a wake in between finds the task afterwards
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let polled = task.poll_conclusion(&mut TaskContext::from_waker(&waker), &Payload::empty());
        if polled.is_pending() {
            *kept = Some(task);
        }
    }
}

impl Drop for RunTask {
    /// Closes the run. A runtime that ends drops tasks whose code has not returned. In an open run, the calls of that code
    /// would be recorded as abandoned.
    fn drop(&mut self) {
        self.run().close();
    }
}

impl RunTask {
    /// Lets the run conclude without a caller that polls it. The run gets a task of its own, or no task if
    /// only the flush of its end is missing. `guard` is kept until the outcome of the Start is known.
    pub(crate) fn detach(mut self, input: Payload, mut guard: Option<impl Send + 'static>) {
        if guard.is_none() && self.is_ending() {
            let final_flush = Arc::new(FinalFlush(std::sync::Mutex::new(None)));
            final_flush.poll(self);
            return;
        }
        let runtime = self.run().engine.runtime.clone();
        if guard.is_none() {
            // detached runs may wait for a long time and in large numbers: this task is small
            runtime.spawn(DetachedRun { task: self, input });
            return;
        }
        runtime.spawn(async move {
            std::future::poll_fn(|cx| {
                let polled = self.poll_conclusion(cx, &input);
                if guard.is_some() && self.run().is_start_settled() {
                    guard = None;
                }
                polled
            })
            .await;
            // after a fence the run has concluded, and its Start is staged again
            if guard.is_some()
                && let Some(lsn) = self.run().start_lsn()
            {
                self.run().lane().wait_durable(lsn).await;
            }
        });
    }
}
