//! [`SendFromWorkflow`]: a durable call that sends a message to another execution; [`MessageSender`] for steps.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::messaging::{DEFAULT_TOPIC, check_topic};
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::chunks::reserve_row;
use crate::runtime::run::replay::CallKind;
use crate::store::{CheckpointKind, Outcome, Write};
use crate::workflow::context::Context;
use crate::workflow::messaging::lookup::find_other;
use crate::workflow::messaging::step_scope::StepScope;

/// A durable call that sends a message to an execution. Made by [`Context::send`].
#[must_use = "nothing is sent before the call is awaited"]
pub struct SendFromWorkflow<'c> {
    context: &'c mut Context,
    message: OutgoingMessage,
}

/// A message that a call sends.
pub(crate) struct OutgoingMessage {
    pub(crate) workflow_id: String,
    pub(crate) value: Result<Payload, Error>,
    pub(crate) topic: Arc<str>,
    /// The id that the caller gave; `None` for an id that is derived from the call.
    pub(crate) id: Option<Arc<str>>,
    /// Whether the message is kept if no execution has the workflow_id yet.
    pub(crate) keeps: bool,
}

/// A sender for the steps of an execution. Made by [`Context::message_sender`].
#[derive(Clone)]
pub struct MessageSender {
    run: Arc<Run>,
}

/// A message that the body of a step sends. Made by [`MessageSender::send`].
#[must_use = "nothing is sent before the call is awaited"]
pub struct SendFromStep {
    run: Arc<Run>,
    message: OutgoingMessage,
}

impl Context {
    /// Sends a message to the execution with this workflow_id, once: a replay does not send the message again. The call
    /// returns when the message is durable.
    ///
    /// # Errors
    ///
    /// The call fails if the execution does not exist or has ended.
    pub fn send<T: serde::Serialize + ?Sized>(
        &mut self,
        workflow_id: impl Into<String>,
        value: &T,
    ) -> SendFromWorkflow<'_> {
        SendFromWorkflow {
            context: self,
            message: OutgoingMessage::new(workflow_id.into(), Payload::encode(value)),
        }
    }

    /// Returns a sender with which the steps of this execution send messages. This is no durable call.
    pub fn message_sender(&mut self) -> MessageSender {
        self.run.has_body_calls.store(true, SeqCst);
        MessageSender { run: self.run.clone() }
    }

    /// Begins the call that sends a message of a topic. Takes the path of the call in any case.
    pub(crate) fn begin_send(&mut self, topic: &Arc<str>) -> Result<Call, Error> {
        let path = self.next_path();
        check_topic(topic)?;
        Ok(Call::begin(&self.run, path, &topic.clone().into(), CallKind::Send, None))
    }
}

impl SendFromWorkflow<'_> {
    /// Sends the message under this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.message.topic = topic.into();
        self
    }

    /// Keeps the message if no execution has the workflow_id yet: see [`SendBuilder::keep`](crate::SendBuilder::keep).
    pub fn keep(mut self) -> Self {
        self.message.keeps = true;
        self
    }

    async fn send(self) -> Result<(), Failure> {
        let begun = self.context.begin_send(&self.message.topic);
        send(&begun.map_err(|error| error.to_failure())?, self.message).await
    }
}

impl MessageSender {
    /// Sends a message from the body of a step to the execution with this workflow_id. The call returns when the message is
    /// durable. If the body runs again, for a retry or after a crash, its first message is not sent again, nor is its second
    /// one, and so on: give other messages in another step.
    ///
    /// # Errors
    ///
    /// The call fails if the execution does not exist or has ended, and outside of the body of a step of this execution. The
    /// tasks that a body spawns count as outside.
    pub fn send<T: serde::Serialize + ?Sized>(
        &self,
        workflow_id: impl Into<String>,
        value: &T,
    ) -> SendFromStep {
        SendFromStep {
            run: self.run.clone(),
            message: OutgoingMessage::new(workflow_id.into(), Payload::encode(value)),
        }
    }
}

impl SendFromStep {
    /// Sends the message under this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.message.topic = topic.into();
        self
    }

    /// Keeps the message if no execution has the workflow_id yet: see [`SendBuilder::keep`](crate::SendBuilder::keep).
    pub fn keep(mut self) -> Self {
        self.message.keeps = true;
        self
    }

    async fn send(self) -> Result<(), Error> {
        let Some(scope) = StepScope::current(&self.run) else {
            let reason =
                "a MessageSender sends in the body of a step; in the code of the workflow, call send";
            return Err(Error::Invalid { input: "message", reason: reason.to_owned() });
        };
        scope.send(self.message).await
    }
}

impl IntoFuture for SendFromStep {
    type Output = Result<(), Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await.map_err(|error| error.to_failure()) })
    }
}

impl<'c> IntoFuture for SendFromWorkflow<'c> {
    type Output = Result<(), Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Runs a call that sends a message.
pub(crate) async fn send(call: &Call, message: OutgoingMessage) -> Result<(), Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        return match recorded.kind {
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(()),
        };
    }
    let run = &call.run;
    let workflow_id = message.workflow_id.clone();
    let derived_id = derived_id(run, &call.path);
    let found = find_other(call, &workflow_id, || run.engine.find_receiver(&workflow_id)).await;
    let result = message.send(run, found, derived_id).await;
    crate::crash_point!("message sent and not recorded");
    match result {
        Ok(()) => {
            call.deliver(CheckpointKind::Sent, Payload::empty(), 0).await;
            Ok(())
        }
        Err(error) => {
            let failure = error.to_failure();
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}

impl OutgoingMessage {
    /// Creates a message with the default topic.
    pub(crate) fn new(workflow_id: String, value: Result<Payload, Error>) -> Self {
        Self { workflow_id, value, topic: DEFAULT_TOPIC.into(), id: None, keeps: false }
    }

    /// Sends the message of a run, after the search for its receiver. Returns when the message is durable. The future never
    /// resolves if the run records nothing more: the engine is ending, or another worker continues the execution.
    pub(super) async fn send(
        self,
        run: &Arc<Run>,
        found: Result<Key, Error>,
        derived_id: String,
    ) -> Result<(), Error> {
        let Self { workflow_id, value, topic, id, keeps } = self;
        let engine = &run.engine;
        let receiver = engine.receiver_or_address(found, &workflow_id, keeps)?;
        let id = id.unwrap_or_else(|| derived_id.into());
        let mut message = engine.new_message(receiver, topic, Some(id), value?)?;
        message.is_owned = true;
        let reserved = reserve_row(run.lane(), &message.value, 0).await;
        if keeps && !receiver.is_address() {
            let forward = engine.new_forward(&workflow_id, receiver);
            message.address = Some(forward.address);
            run.stage(Write::Forward(forward), 0);
        }
        let Some(lsn) = run.stage(Write::Send(message.into()), reserved) else {
            return std::future::pending().await;
        };
        let is_before = match run.lane().wait_durable(lsn).await {
            Outcome::Fenced | Outcome::Dropped => return std::future::pending().await,
            Outcome::Applied => false,
            Outcome::AlreadySent => true,
            outcome => return Err(engine.send_error(&workflow_id, outcome)),
        };
        // the first message with this id may have been kept after the Forward
        if receiver.is_address() || keeps && is_before {
            match engine.query_with_retry(|| engine.forward_to_new(&workflow_id)).await {
                Err(Error::Unavailable(_)) => return std::future::pending().await,
                forwarded => forwarded?,
            }
        }
        Ok(())
    }
}

/// Returns the id of the message that the call at a path sends. A replay of the call sends the same id.
pub(super) fn derived_id(run: &Run, path: &Path) -> String {
    // the control character keeps the id apart from those of callers
    format!("\u{1}{}/{}/{path}", run.key, run.run_no)
}
