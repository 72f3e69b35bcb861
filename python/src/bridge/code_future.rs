//! [`CodeFuture`]: an execution's code that runs in Python, as a future of the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use stepfast::guest::RunControl;
use stepfast::{Failure, Payload};

use crate::bridge::mailbox::{Mailbox, Message};
use crate::outcome_slot::OutcomeFuture;

/// A future that resolves when the code has returned. If the future is dropped earlier, the code unwinds. If it
/// is dropped later, the branches that the code has left behind unwind.
pub(crate) struct CodeFuture {
    outcome: OutcomeFuture,
    control: RunControl,
    mailbox: Arc<Mailbox>,
    has_returned: bool,
}

impl CodeFuture {
    pub(crate) fn new(outcome: OutcomeFuture, control: RunControl, mailbox: Arc<Mailbox>) -> Self {
        Self { outcome, control, mailbox, has_returned: false }
    }
}

impl Future for CodeFuture {
    type Output = Result<Payload, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.outcome).poll(cx);
        self.has_returned = polled.is_ready();
        polled
    }
}

impl Drop for CodeFuture {
    fn drop(&mut self) {
        if !self.has_returned || self.control.branch_count() > 1 {
            self.mailbox.push(Message::Unwind(self.control.clone()));
        }
    }
}
