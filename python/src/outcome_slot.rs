//! [`Slot`]: where the code of an execution leaves what it came to.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stepfast::{Failure, Payload};

use crate::lock::Mutex;

type Outcome = Result<Payload, Failure>;

/// Between a future of the engine, which waits for the code, and Python, where that runs.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Slot {
    /// The code came to `outcome`.
    pub(crate) fn fill(&self, outcome: Outcome) {
        let waker = self.0.with(|inner| {
            inner.outcome = Some(outcome);
            inner.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The same for somebody who polls the future by himself.
    pub(crate) fn fill_quietly(&self, outcome: Outcome) {
        let waker = self.0.with(|inner| {
            inner.outcome = Some(outcome);
            inner.waker.take()
        });
        drop(waker);
    }

    /// Waits for the outcome.
    pub(crate) fn body(self: Arc<Self>) -> Body {
        Body(self)
    }
}

/// Resolves when the code has come to its outcome.
pub(crate) struct Body(Arc<Slot>);

impl Future for Body {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let waker = cx.waker();
        self.0.0.with(|inner| match inner.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                inner.waker = Some(waker.clone());
                Poll::Pending
            }
        })
    }
}
