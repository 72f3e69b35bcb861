//! [`SendBuilder`]: a message to an execution, whichever process runs it.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::{DEFAULT_TOPIC, check_message_id, check_topic};
use crate::store::Outcome;

/// A message to an execution. Made by [`Engine::send`] or [`Handle::send`].
#[must_use = "nothing is sent before the builder is awaited"]
pub struct SendBuilder {
    engine: Arc<EngineInner>,
    receiver: MessageReceiver,
    topic: Arc<str>,
    message_id: Option<Arc<str>>,
    keeps: bool,
    value: Result<Payload, Error>,
}

/// The effect of a call that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The execution has the message.
    Now,
    /// A message with this id was sent before: the call has changed nothing.
    Before,
    /// No execution has the workflow_id yet: the message is [kept](SendBuilder::keep).
    Kept,
}

impl Sent {
    /// Returns the word for the effect.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "sent",
            Self::Before => "sent before",
            Self::Kept => "kept",
        }
    }

    /// Returns the effect of a message with this outcome; `None` if it was not sent.
    fn from_outcome(outcome: &Outcome, receiver: Key) -> Option<Self> {
        match outcome {
            Outcome::Applied if receiver.is_address() => Some(Self::Kept),
            Outcome::Applied => Some(Self::Now),
            Outcome::AlreadySent => Some(Self::Before),
            _ => None,
        }
    }
}

/// The execution to which the message is sent.
pub(super) enum MessageReceiver {
    Id(String),
    Handle { key: Key, workflow_id: String },
}

impl MessageReceiver {
    /// Returns the result of the search for the execution's key, and its workflow_id.
    pub(super) async fn find(self, engine: &EngineInner) -> (Result<Key, Error>, String) {
        match self {
            MessageReceiver::Id(id) => (engine.find_receiver(&id).await, id),
            MessageReceiver::Handle { key, workflow_id } => (Ok(key), workflow_id),
        }
    }
}

impl Engine {
    /// Sends a message to the execution with this workflow_id, in whichever process it runs, waits or is queued. The call
    /// returns when the message is durable. The code of the workflow receives it by
    /// [`Context::receive`](crate::Context::receive).
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`] if no execution has this id.
    /// - [`Error::HasEnded`] if the execution has ended.
    /// - [`Error::Invalid`] for a value above 64 KiB, and for a topic or an id that no message can have.
    /// - [`Error::Unavailable`] if it is unknown whether the message was sent. Sending it again is safe with a
    ///   [`message_id`](SendBuilder::message_id).
    pub fn send<T: Serialize + ?Sized>(&self, workflow_id: impl Into<String>, value: &T) -> SendBuilder {
        SendBuilder::new(self.inner.clone(), MessageReceiver::Id(workflow_id.into()), Payload::encode(value))
    }

    /// Sends a message with this encoded value, like [`send`](Self::send).
    #[doc(hidden)]
    pub fn send_payload(&self, workflow_id: String, value: Payload) -> SendBuilder {
        SendBuilder::new(self.inner.clone(), MessageReceiver::Id(workflow_id), Ok(value))
    }
}

impl<O> Handle<O> {
    pub(super) fn as_receiver(&self) -> MessageReceiver {
        MessageReceiver::Handle { key: self.key(), workflow_id: self.workflow_id() }
    }

    /// Sends a message to the execution: see [`Engine::send`].
    pub fn send<T: Serialize + ?Sized>(&self, value: &T) -> SendBuilder {
        SendBuilder::new(self.engine().clone(), self.as_receiver(), Payload::encode(value))
    }

    /// Sends a message with this encoded value, like [`send`](Self::send).
    #[doc(hidden)]
    pub fn send_payload(&self, value: Payload) -> SendBuilder {
        SendBuilder::new(self.engine().clone(), self.as_receiver(), Ok(value))
    }
}

impl SendBuilder {
    fn new(engine: Arc<EngineInner>, receiver: MessageReceiver, value: Result<Payload, Error>) -> Self {
        Self { engine, receiver, topic: DEFAULT_TOPIC.into(), message_id: None, keeps: false, value }
    }

    /// Sends the message under this topic: up to 255 bytes of printable characters. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Gives the message an id: up to 1,024 bytes of printable characters. A second message with this id to the same
    /// execution is not sent again; the call succeeds. The ids are kept as long as the execution.
    pub fn message_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Keeps the message if no execution has the workflow_id yet: an execution with this id, which is started later,
    /// receives it. Kept messages have no time limit. If the same message is sent again, keep it again, so that its
    /// [`message_id`](Self::message_id) is recognised.
    pub fn keep(mut self) -> Self {
        self.keeps = true;
        self
    }

    async fn send(self) -> Result<Sent, Error> {
        let Self { engine, receiver, topic, message_id, keeps, value } = self;
        engine.check_open()?;
        check_topic(&topic)?;
        if let Some(id) = &message_id {
            check_message_id(id)?;
        }
        let (found, workflow_id) = receiver.find(&engine).await;
        let receiver = engine.receiver_or_address(found, &workflow_id, keeps)?;
        let mut message = engine.new_message(receiver, topic, message_id, value?)?;
        if keeps && !receiver.is_address() {
            let forward = engine.new_forward(&workflow_id, receiver);
            message.address = Some(forward.address);
            engine.stage_forward(forward);
        }
        let outcome = engine.send_message(message).await?;
        let sent =
            Sent::from_outcome(&outcome, receiver).ok_or_else(|| engine.send_error(&workflow_id, outcome))?;
        // the first message with this id may have been kept after the Forward
        if receiver.is_address() || keeps && sent == Sent::Before {
            engine.forward_to_new(&workflow_id).await?;
        }
        Ok(sent)
    }
}

impl IntoFuture for SendBuilder {
    type Output = Result<Sent, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Sent, Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
