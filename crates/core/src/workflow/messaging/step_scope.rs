//! [`StepScope`]: an attempt of a step whose body runs, and the calls that the body may make.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Error;
use crate::payload::Payload;
use crate::runtime::messaging::check_topic;
use crate::runtime::messaging::streams::{check_stream_name, check_stream_value};
use crate::runtime::run::Run;
use crate::runtime::run::call::{BodyAttempt, Call};
use crate::runtime::run::chunks::reserve_row;
use crate::workflow::messaging::lookup::find;
use crate::workflow::messaging::send::{OutgoingMessage, derived_id};

/// An attempt of a step whose body runs: the body may write to streams of its execution, and send messages.
#[derive(Clone)]
pub struct StepScope {
    run: Arc<Run>,
    call: usize,
    attempt: u32,
}

thread_local! {
    /// The attempt whose body this thread polls.
    static CURRENT: RefCell<Option<StepScope>> = const { RefCell::new(None) };
}

impl StepScope {
    pub(crate) fn new(call: &Call, attempt: u32) -> Self {
        Self { run: call.run.clone(), call: call.id(), attempt }
    }

    /// Returns the attempt whose body this thread polls, if the body belongs to this run.
    pub(super) fn current(run: &Arc<Run>) -> Option<Self> {
        CURRENT.with_borrow(Clone::clone).filter(|scope| Arc::ptr_eq(&scope.run, run))
    }

    /// Returns the attempt; `None` if its call was abandoned.
    fn body_attempt(&self) -> Option<BodyAttempt> {
        let path = self.run.state().calls.get(self.call)?.path.clone();
        Some(BodyAttempt { call: self.call, number: self.attempt, path })
    }

    /// Appends a value that the attempt writes to a stream; see [`StreamWriter::write`](crate::StreamWriter::write).
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`] if no stream can have the name, if the stream is closed, or if the value is too large.
    /// - The error of the store if the end of the stream cannot be found.
    pub async fn write(&self, stream: &Arc<str>, value: Payload) -> Result<(), Error> {
        let run = &self.run;
        check_stream_name(stream)?;
        check_stream_value(stream, &value)?;
        run.stage_row();
        match run.open_stream(stream).await {
            // the engine is ending, and requeues the execution
            Err(Error::Unavailable(_)) => return std::future::pending().await,
            opened => opened?,
        }
        // without a call, the attempt was abandoned
        let Some(attempt) = self.body_attempt() else { return std::future::pending().await };
        let reserved = reserve_row(run.lane(), &value, stream.len()).await;
        match run.append(stream, &attempt, value, reserved)? {
            Some(_) => Ok(()),
            // another worker continues the execution, or the engine is ending
            None => std::future::pending().await,
        }
    }

    /// Sends a message from the body of the attempt; see [`MessageSender::send`](super::MessageSender::send).
    ///
    /// # Errors
    ///
    /// As those of [`Engine::send`](crate::Engine::send).
    pub(crate) async fn send(&self, message: OutgoingMessage) -> Result<(), Error> {
        let run = &self.run;
        check_topic(&message.topic)?;
        let Some(attempt) = self.body_attempt() else { return std::future::pending().await };
        // another attempt of the step sends its first message with the same id, and so on
        let id =
            derived_id(run, &attempt.path) + &format!("#{}", run.state().calls.mailbox().count_sent(attempt));
        let workflow_id = message.workflow_id.clone();
        message.send(run, find(run, &workflow_id).await, id).await
    }

    /// Sends a message with this encoded value, like a [`MessageSender`](super::MessageSender).
    ///
    /// # Errors
    ///
    /// As those of [`Engine::send`](crate::Engine::send).
    pub async fn send_payload(
        &self,
        workflow_id: String,
        value: Payload,
        topic: &str,
        keeps: bool,
    ) -> Result<(), Error> {
        self.send(OutgoingMessage {
            topic: topic.into(),
            keeps,
            ..OutgoingMessage::new(workflow_id, Ok(value))
        })
        .await
    }

    /// Polls the body of the attempt, which may write to streams and send messages meanwhile.
    pub(crate) fn poll<F: Future + ?Sized>(
        &self,
        body: Pin<&mut F>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<F::Output> {
        struct Restore(Option<StepScope>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        body.poll(cx)
    }
}
