//! Runs whose caller does not poll them: in a task of their own, or, once they only wait for their end, without one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use super::task::RunTask;
use crate::payload::Payload;

/// A run in a task of its own.
pub(super) struct Detached {
    pub(super) task: RunTask,
    /// Needed while its code has not begun.
    pub(super) input: Payload,
}

impl Future for Detached {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let Self { task, input } = &mut *self;
        task.poll_conclusion(cx, input).map(drop)
    }
}

/// A run that only waits for its end to be durable: concluded on the lane's thread, without a task.
pub(super) struct Ender(pub(super) std::sync::Mutex<Option<RunTask>>);

impl Wake for Ender {
    fn wake(self: Arc<Self>) {
        let taken = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = taken {
            Self::poll(&self, task);
        }
    }
}

impl Ender {
    pub(super) fn poll(self: &Arc<Self>, mut task: RunTask) {
        let waker = Waker::from(self.clone());
        // kept under the lock while it is polled: a wake in between finds it there afterwards
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let polled = task.poll_conclusion(&mut TaskContext::from_waker(&waker), &Payload::empty());
        if polled.is_pending() {
            *kept = Some(task);
        }
    }
}
