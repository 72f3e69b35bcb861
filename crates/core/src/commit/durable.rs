//! [`Durable`]: the future that resolves when a Write is settled.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Lsn;
use super::lane::Lane;
use crate::store::Outcome;

/// What keeps a lane within reach. Cloning a [`Lane`] is cheap only as long as no other core does: whoever
/// has something of its own that leads there waits by that.
pub(crate) trait OnLane {
    fn lane(&self) -> &Lane;
}

impl OnLane for Lane {
    fn lane(&self) -> &Lane {
        self
    }
}

impl OnLane for &Lane {
    fn lane(&self) -> &Lane {
        self
    }
}

/// Resolves to the outcome of a Write when it is settled.
pub(crate) struct Durable<L: OnLane + Unpin> {
    on: L,
    lsn: Lsn,
    /// Id of our entry among the waiters.
    waiter: Option<u64>,
}

impl<L: OnLane + Unpin> Durable<L> {
    pub(crate) fn new(on: L, lsn: Lsn) -> Self {
        Self { on, lsn, waiter: None }
    }
}

impl<L: OnLane + Unpin> Future for Durable<L> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        this.on.lane().0.watermark.poll(this.lsn, &mut this.waiter, cx.waker())
    }
}

impl<L: OnLane + Unpin> Drop for Durable<L> {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            self.on.lane().0.watermark.forget(id);
        }
    }
}
