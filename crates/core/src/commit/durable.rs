//! [`DurableFuture`]: the future that resolves when a Write is settled.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::lane::Lane;
use super::lsn::Lsn;
use crate::store::Outcome;

/// A value that is, or leads to, a lane. Cloning a [`Lane`] is slow while other CPU cores clone it too. So a
/// caller that has another reference, such as its run, waits through that reference.
pub(crate) trait HasLane {
    fn lane(&self) -> &Lane;
}

impl HasLane for Lane {
    fn lane(&self) -> &Lane {
        self
    }
}

impl HasLane for &Lane {
    fn lane(&self) -> &Lane {
        self
    }
}

impl Lane {
    /// Returns a future that resolves to the outcome of `lsn` when it is durable or otherwise settled.
    pub(crate) fn wait_durable(&self, lsn: Lsn) -> DurableFuture<&Lane> {
        DurableFuture::new(self, lsn)
    }
}

/// A future that resolves to the outcome of a Write when the Write is settled.
pub(crate) struct DurableFuture<L: HasLane + Unpin> {
    source: L,
    lsn: Lsn,
    /// Id of this future among the waiters; `None` while the future is not registered.
    waiter: Option<u64>,
}

impl<L: HasLane + Unpin> DurableFuture<L> {
    pub(crate) fn new(source: L, lsn: Lsn) -> Self {
        Self { source, lsn, waiter: None }
    }
}

impl<L: HasLane + Unpin> Future for DurableFuture<L> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        this.source.lane().0.watermark.poll(this.lsn, &mut this.waiter, cx.waker())
    }
}

impl<L: HasLane + Unpin> Drop for DurableFuture<L> {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            self.source.lane().0.watermark.remove_waiter(id);
        }
    }
}
