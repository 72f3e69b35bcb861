//! [`Question`]: a message that waits for its answer, asked and received by the code of workflows.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::messaging::DEFAULT_TOPIC;
use crate::runtime::messaging::answer::{decode_answer, encode_answer};
use crate::runtime::messaging::questions::{answer_event, decode_question, encode_question, question_topic};
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::workflow::context::Context;
use crate::workflow::messaging::get_event::get_event;
use crate::workflow::messaging::receive::receive;
use crate::workflow::messaging::send::{OutgoingMessage, send};
use crate::workflow::messaging::set_event::set_event;

/// A question that an execution has received. [`Context::answer`] and [`Context::refuse`] answer it.
pub struct Question<T> {
    /// The value that was asked.
    pub value: T,
    id: QuestionId,
}

/// The id of a received question, which can be answered once.
pub struct QuestionId {
    id: u128,
    is_answered: AtomicBool,
}

/// A durable call that receives a question. Made by [`Context::receive_question`].
#[must_use = "nothing is received before the call is awaited"]
pub struct ReceiveQuestion<'c, T> {
    context: &'c mut Context,
    topic: Arc<str>,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

/// A [`ReceiveQuestion`] whose wait ends after a time.
#[must_use = "nothing is received before the call is awaited"]
pub struct ReceiveQuestionWithin<'c, T>(ReceiveQuestion<'c, T>);

/// A durable call that asks another execution a question. Made by [`Context::ask`].
#[must_use = "nothing is asked before the call is awaited"]
pub struct Ask<'c, T> {
    context: &'c mut Context,
    workflow_id: String,
    value: Result<Payload, Error>,
    topic: Arc<str>,
    timeout: Option<Duration>,
    answer: PhantomData<fn() -> T>,
}

/// An [`Ask`] whose wait ends after a time.
#[must_use = "nothing is asked before the call is awaited"]
pub struct AskWithin<'c, T>(Ask<'c, T>);

impl Context {
    /// Waits durably for the next question to this execution; see [`Engine::ask`](crate::Engine::ask). Questions and other
    /// messages have separate topics. Otherwise like [`receive`](Self::receive).
    ///
    /// # Errors
    ///
    /// A value that is not a `T` fails the call; the question counts as received.
    pub fn receive_question<T: DeserializeOwned>(&mut self) -> ReceiveQuestion<'_, T> {
        ReceiveQuestion { context: self, topic: DEFAULT_TOPIC.into(), timeout: None, value: PhantomData }
    }

    /// Answers a question, once: a replay sends no second answer. The answer is durable before the next step begins.
    ///
    /// # Errors
    ///
    /// The call fails if the question was answered before, or if the value is too large or cannot be encoded.
    pub async fn answer<T>(
        &mut self,
        question: &Question<T>,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), Failure> {
        let value = Payload::encode(value).map_err(|error| error.to_failure())?;
        let call = self.begin_answer(&question.id).map_err(|error| error.to_failure())?;
        answer(&call, Ok(value)).await
    }

    /// Answers a question with an error, once: the call that asked fails with it. Otherwise like
    /// [`answer`](Self::answer).
    ///
    /// # Errors
    ///
    /// The call fails if the question was answered before.
    pub async fn refuse<T>(
        &mut self,
        question: &Question<T>,
        failure: impl Into<Failure>,
    ) -> Result<(), Failure> {
        let call = self.begin_answer(&question.id).map_err(|error| error.to_failure())?;
        answer(&call, Err(failure.into())).await
    }

    /// Asks the execution with this workflow_id a question, once, and waits durably for the answer. The answer is recorded,
    /// so a replay returns the same one.
    ///
    /// # Errors
    ///
    /// The call fails if the execution does not exist, has ended or ends without an answer, if it refuses the question, or
    /// if the answer is not a `T`.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        workflow_id: impl Into<String>,
        value: &(impl Serialize + ?Sized),
    ) -> Ask<'_, T> {
        let (workflow_id, value) = (workflow_id.into(), Payload::encode(value));
        let topic = DEFAULT_TOPIC.into();
        Ask { context: self, workflow_id, value, topic, timeout: None, answer: PhantomData }
    }

    /// Begins the call that receives a question of a topic.
    pub(crate) fn begin_receive_question(&mut self, topic: &str) -> Result<Call, Error> {
        let path = self.next_path();
        let topic = question_topic(topic)?;
        Ok(Call::begin(&self.run, path, &topic.into(), CallKind::Receive, None))
    }

    /// Begins the call that answers a question.
    pub(crate) fn begin_answer(&mut self, question: &QuestionId) -> Result<Call, Error> {
        if question.is_answered.swap(true, SeqCst) {
            let reason = "the question was answered before; one answer counts".to_owned();
            return Err(Error::Invalid { input: "question", reason });
        }
        let path = self.next_path();
        Ok(Call::begin(&self.run, path, &answer_event(question.id).into(), CallKind::SetEvent, None))
    }

    /// Begins the calls that ask a question of a topic, and that wait for the answer.
    pub(crate) fn begin_ask(&mut self, topic: &str) -> Result<AskCalls, Error> {
        let (asking, waiting) = (self.next_path(), self.next_path());
        let topic = question_topic(topic)?;
        let run = &self.run;
        let id = Key::derive(run.key, run.run_no, &asking).as_u128();
        let asking = Call::begin(run, asking, &topic.clone().into(), CallKind::Send, None);
        Ok(AskCalls { id, topic, asking, waiting })
    }
}

/// The calls that ask a question, and that wait for the answer. The second call begins when the question is durable.
pub(crate) struct AskCalls {
    id: u128,
    topic: Arc<str>,
    asking: Call,
    waiting: Path,
}

impl AskCalls {
    /// Runs the calls. Returns the answer, or `None` after the timeout.
    pub(crate) async fn run(
        self,
        workflow_id: &str,
        value: Result<Payload, Error>,
        timeout: Option<Duration>,
    ) -> Result<Option<Payload>, Failure> {
        let Self { id, topic, asking, waiting } = self;
        let question = value.map(|value| encode_question(id, &value));
        let message = OutgoingMessage { topic, ..OutgoingMessage::new(workflow_id.to_owned(), question) };
        send(&asking, message).await?;
        let waiting = Call::begin(&asking.run, waiting, &answer_event(id).into(), CallKind::GetEvent, None);
        let Some(encoded) = get_event(&waiting, workflow_id, timeout).await? else { return Ok(None) };
        match decode_answer(&encoded) {
            Ok(answer) => answer.map(Some),
            Err(error) => waiting.park(error.to_string()).await,
        }
    }
}

/// Runs a call that answers a question.
pub(crate) async fn answer(call: &Call, answer: Result<Payload, Failure>) -> Result<(), Failure> {
    set_event(call, Ok(encode_answer(answer))).await
}

/// Runs a call that receives a question. Returns its id and its value, or `None` after the timeout.
pub(crate) async fn receive_question(
    call: &Call,
    timeout: Option<Duration>,
) -> Result<Option<(QuestionId, Payload)>, Failure> {
    let topic: Arc<str> = call.run.call_name(call.id()).into();
    let Some(encoded) = receive(call, &topic, timeout).await? else { return Ok(None) };
    match decode_question(&encoded) {
        Ok((id, value)) => Ok(Some((QuestionId { id, is_answered: AtomicBool::new(false) }, value))),
        Err(error) => call.park(error.to_string()).await,
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> ReceiveQuestion<'c, T> {
    /// Receives only questions of this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Ends the wait after this time. The call then returns `None`.
    pub fn timeout(self, timeout: Duration) -> ReceiveQuestionWithin<'c, T> {
        ReceiveQuestionWithin(Self { timeout: Some(timeout), ..self })
    }

    async fn receive(self) -> Result<Option<Question<T>>, Failure> {
        let begun = self.context.begin_receive_question(&self.topic);
        let call = begun.map_err(|error| error.to_failure())?;
        let Some((id, value)) = receive_question(&call, self.timeout).await? else { return Ok(None) };
        let value = value.decode::<T>().map_err(|error| {
            error.with_value(|| format!("a question of topic {:?}", self.topic)).to_failure()
        })?;
        Ok(Some(Question { value, id }))
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> Ask<'c, T> {
    /// Asks under this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Ends the wait after this time. The call then returns `None`; the question stays.
    pub fn timeout(self, timeout: Duration) -> AskWithin<'c, T> {
        AskWithin(Self { timeout: Some(timeout), ..self })
    }

    async fn ask(self) -> Result<Option<T>, Failure> {
        let calls = self.context.begin_ask(&self.topic).map_err(|error| error.to_failure())?;
        let Some(answer) = calls.run(&self.workflow_id, self.value, self.timeout).await? else {
            return Ok(None);
        };
        let decoded = answer.decode::<T>().map(Some);
        decoded.map_err(|error| error.with_value(|| "an answer".to_owned()).to_failure())
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for ReceiveQuestion<'c, T> {
    type Output = Result<Question<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.receive().await? {
                Some(question) => Ok(question),
                // without a timeout, the wait ends with a question
                None => std::future::pending().await,
            }
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for ReceiveQuestionWithin<'c, T> {
    type Output = Result<Option<Question<T>>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.receive())
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for Ask<'c, T> {
    type Output = Result<T, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.ask().await? {
                Some(answer) => Ok(answer),
                // without a timeout, the wait ends with an answer or an error
                None => std::future::pending().await,
            }
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for AskWithin<'c, T> {
    type Output = Result<Option<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.ask())
    }
}
