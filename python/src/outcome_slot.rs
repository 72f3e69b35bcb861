//! [`OutcomeSlot`]: the place where the code of an execution leaves its outcome.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stepfast::{Failure, Payload};

use crate::lock::Mutex;

type Outcome = Result<Payload, Failure>;

/// Passes an outcome from Python, where the code runs, to a future of the engine that waits for the code.
#[derive(Default)]
pub(crate) struct OutcomeSlot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl OutcomeSlot {
    /// Stores the outcome, and wakes the future.
    pub(crate) fn fill(&self, outcome: Outcome) {
        let waker = self.0.with(|state| {
            state.outcome = Some(outcome);
            state.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stores the outcome without waking the future, for a caller that polls the future itself.
    pub(crate) fn fill_without_wake(&self, outcome: Outcome) {
        let waker = self.0.with(|state| {
            state.outcome = Some(outcome);
            state.waker.take()
        });
        drop(waker);
    }

    /// Returns a future of the outcome.
    pub(crate) fn future(self: Arc<Self>) -> OutcomeFuture {
        OutcomeFuture(self)
    }
}

/// A future that resolves when the outcome is stored.
pub(crate) struct OutcomeFuture(Arc<OutcomeSlot>);

impl Future for OutcomeFuture {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let waker = cx.waker();
        self.0.0.with(|state| match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        })
    }
}
