//! [`Slot`]: where code in Python is asked for, and leaves what it came to.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stepfast::lock::Mutex;
use stepfast::{Failure, Payload};

type Outcome = Result<Payload, Failure>;

/// Between a future of the engine, which waits for a body, and the Python code that is the body.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    is_wanted: bool,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Slot {
    /// True once after a body was asked for.
    pub(crate) fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.0.lock().is_wanted)
    }

    /// The body came to `outcome`.
    pub(crate) fn fill(&self, outcome: Outcome) {
        let waker = {
            let mut inner = self.0.lock();
            inner.outcome = Some(outcome);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The same for somebody who polls the future by himself.
    pub(crate) fn fill_quietly(&self, outcome: Outcome) {
        let mut inner = self.0.lock();
        inner.outcome = Some(outcome);
        inner.waker = None;
    }

    /// Asks for a body and waits for its outcome. What an earlier body has left is forgotten: it came too late.
    pub(crate) fn body(self: Arc<Self>) -> Body {
        self.0.lock().outcome = None;
        Body { slot: self, has_asked: false }
    }
}

/// Resolves when the body has come to its outcome.
pub(crate) struct Body {
    slot: Arc<Slot>,
    has_asked: bool,
}

impl Future for Body {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let has_asked = std::mem::replace(&mut self.has_asked, true);
        let mut inner = self.slot.0.lock();
        if !has_asked {
            inner.is_wanted = true;
        }
        match inner.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
