//! [`Running`]: the code of an execution while it runs in Python, as the engine sees it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use stepfast::guest::Gate;
use stepfast::{Failure, Payload};

use crate::bridge::mailbox::{Note, Shared};
use crate::outcome_slot::Body;

/// Resolves when the code has returned. Given up before, it tells the code to unwind; and so it tells branches
/// that the code has left behind.
pub(crate) struct Running {
    body: Body,
    gate: Gate,
    port: Arc<Shared>,
    has_returned: bool,
}

impl Running {
    pub(crate) fn new(body: Body, gate: Gate, port: Arc<Shared>) -> Self {
        Self { body, gate, port, has_returned: false }
    }
}

impl Future for Running {
    type Output = Result<Payload, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.body).poll(cx);
        self.has_returned = polled.is_ready();
        polled
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_returned || self.gate.branches() > 1 {
            self.port.push(Note::Unwind(self.gate.clone()));
        }
    }
}
