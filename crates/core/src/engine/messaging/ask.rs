//! [`AskBuilder`]: a question to an execution, whichever process runs it.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::messaging::send::MessageReceiver;
use crate::error::Error;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::answer::decode_answer;
use crate::runtime::messaging::private_names::private_name;
use crate::runtime::messaging::questions::{answer_event, encode_question, question_topic};
use crate::runtime::messaging::{DEFAULT_TOPIC, check_message_id};
use crate::runtime::run::chunks::fetch;
use crate::store::Outcome;

/// A question to an execution. Made by [`Engine::ask`] or [`Handle::ask`].
#[must_use = "nothing is asked before the builder is awaited"]
pub struct AskBuilder<T> {
    engine: Arc<EngineInner>,
    receiver: MessageReceiver,
    topic: Arc<str>,
    message_id: Option<Arc<str>>,
    value: Result<Payload, Error>,
    timeout: Option<Duration>,
    answer: PhantomData<fn() -> T>,
}

/// An [`AskBuilder`] whose wait ends after a time.
#[must_use = "nothing is asked before the builder is awaited"]
pub struct AskWithinBuilder<T>(AskBuilder<T>);

impl Engine {
    /// Asks the execution with this workflow_id a question, and waits for the answer. The question is a message: the
    /// execution may run, wait, be queued or be suspended, in whichever process. The code of the workflow receives the
    /// question by [`Context::receive_question`](crate::Context::receive_question).
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`] if no execution has this id.
    /// - [`Error::HasEnded`] if the execution has ended, or ends without an answer.
    /// - [`Error::Failed`] if the execution refuses the question.
    /// - [`Error::Invalid`] for a value above 64 KiB, and for a topic or an id that no message can have.
    /// - [`Error::Decode`] if the answer is not a `T`.
    /// - [`Error::Unavailable`] if it is unknown whether the question was asked. Asking again is safe with a
    ///   [`message_id`](AskBuilder::message_id).
    pub fn ask<T: DeserializeOwned>(
        &self,
        workflow_id: impl Into<String>,
        value: &(impl Serialize + ?Sized),
    ) -> AskBuilder<T> {
        let receiver = MessageReceiver::Id(workflow_id.into());
        AskBuilder::new(self.inner.clone(), receiver, Payload::encode(value))
    }

    /// Asks a question with this encoded value, like [`ask`](Self::ask).
    #[doc(hidden)]
    pub fn ask_payload(&self, workflow_id: String, value: Payload) -> AskBuilder<()> {
        AskBuilder::new(self.inner.clone(), MessageReceiver::Id(workflow_id), Ok(value))
    }
}

impl<O> Handle<O> {
    /// Asks the execution a question: see [`Engine::ask`].
    pub fn ask<T: DeserializeOwned>(&self, value: &(impl Serialize + ?Sized)) -> AskBuilder<T> {
        AskBuilder::new(self.engine().clone(), self.as_receiver(), Payload::encode(value))
    }

    /// Asks a question with this encoded value, like [`ask`](Self::ask).
    #[doc(hidden)]
    pub fn ask_payload(&self, value: Payload) -> AskBuilder<()> {
        AskBuilder::new(self.engine().clone(), self.as_receiver(), Ok(value))
    }
}

impl<T> AskBuilder<T> {
    fn new(engine: Arc<EngineInner>, receiver: MessageReceiver, value: Result<Payload, Error>) -> Self {
        let (topic, answer) = (DEFAULT_TOPIC.into(), PhantomData);
        Self { engine, receiver, topic, message_id: None, value, timeout: None, answer }
    }

    /// Asks under this topic: up to 255 bytes of printable characters. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Gives the question an id: up to 1,024 bytes of printable characters. A second question with this id to the same
    /// execution is not asked again; the call waits for the answer to the first one. The ids are kept as long as the
    /// execution.
    pub fn message_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Ends the wait after this time. The call then returns `None`; the question stays.
    pub fn timeout(self, timeout: Duration) -> AskWithinBuilder<T> {
        AskWithinBuilder(Self { timeout: Some(timeout), ..self })
    }

    /// Asks, and returns the encoded answer, or `None` after the timeout.
    #[doc(hidden)]
    pub async fn payload(self) -> Result<Option<Payload>, Error> {
        let Self { engine, receiver, topic, message_id, value, timeout, .. } = self;
        engine.check_open()?;
        let topic = question_topic(&topic)?;
        let id = match &message_id {
            Some(id) => {
                check_message_id(id)?;
                xxh3_128(id.as_bytes())
            }
            None => Uuid::new_v4().as_u128(),
        };
        let (found, workflow_id) = receiver.find(&engine).await;
        let receiver = found?;
        let message_id = private_name(&format!("question {id:032x}"));
        let question = encode_question(id, &value?);
        let message = engine.new_message(receiver, topic, Some(message_id.into()), question)?;
        let name = answer_event(id);
        match engine.send_message(message).await? {
            Outcome::Applied | Outcome::AlreadySent => {}
            outcome => return Err(engine.send_error(&workflow_id, outcome)),
        }
        let Some(event) = engine.wait_for_event(receiver, &workflow_id, &name, timeout).await? else {
            return Ok(None);
        };
        let answer = decode_answer(&fetch(&engine, receiver, event.value).await?)?;
        answer.map(Some).map_err(Error::Failed)
    }

    async fn ask(self) -> Result<Option<T>, Error>
    where
        T: DeserializeOwned,
    {
        let Some(value) = self.payload().await? else { return Ok(None) };
        value.decode().map(Some).map_err(|error| error.with_value(|| "an answer".to_owned()))
    }
}

impl<T> AskWithinBuilder<T> {
    /// Asks, and returns the encoded answer, or `None` after the timeout.
    #[doc(hidden)]
    pub async fn payload(self) -> Result<Option<Payload>, Error> {
        self.0.payload().await
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for AskBuilder<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.ask().await? {
                Some(value) => Ok(value),
                // without a timeout, the wait ends with an answer or an error
                None => std::future::pending().await,
            }
        })
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for AskWithinBuilder<T> {
    type Output = Result<Option<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.ask())
    }
}
