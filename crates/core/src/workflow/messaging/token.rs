//! [`Token`]: a result that the outside provides, once.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::messaging::answer::decode_answer;
use crate::runtime::messaging::tokens::TokenId;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::sync::Mutex;
use crate::workflow::context::Context;
use crate::workflow::messaging::receive::receive;
use crate::workflow::messaging::set_event::set_event;

/// A token: an id to hand to the outside, which provides a value or an error for it, once. Made by
/// [`Context::create_token`]. The outside calls [`Engine::complete_token`](crate::Engine::complete_token) or
/// [`Engine::fail_token`](crate::Engine::fail_token).
pub struct Token<T> {
    id: String,
    answer: TokenAnswer,
    value: PhantomData<fn() -> T>,
}

/// The topic of a token's answer, and the answer once the execution has received it.
#[derive(Clone)]
pub struct TokenAnswer {
    execution: Key,
    topic: Arc<str>,
    state: Arc<Mutex<AnswerState>>,
}

/// The answer to a token, as its execution has received it.
type Answer = Result<Payload, Failure>;

/// The state of a token in its execution.
enum AnswerState {
    /// No call waits for the answer.
    Free,
    /// A call waits for the answer.
    Awaited,
    /// A call has received the answer.
    Received(Answer),
}

/// A durable call that creates a token. Made by [`Context::create_token`].
#[must_use = "no token is created before the call is awaited"]
pub struct CreateToken<'c, T> {
    context: &'c mut Context,
    value: PhantomData<fn() -> T>,
}

/// A durable call that waits for the answer to a token. Made by [`Token::result`].
#[must_use = "the wait begins when the call is awaited"]
pub struct TokenResult<'c, T> {
    context: &'c mut Context,
    answer: TokenAnswer,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

/// A [`TokenResult`] whose wait ends after a time.
#[must_use = "the wait begins when the call is awaited"]
pub struct TokenResultWithin<'c, T>(TokenResult<'c, T>);

impl Context {
    /// Creates a token, whose id the outside needs to provide a value: an approval, a callback of another service. The
    /// token is durable before the next step begins, so a step can hand out the id. A replay returns the same token.
    pub fn create_token<T: DeserializeOwned>(&mut self) -> CreateToken<'_, T> {
        CreateToken { context: self, value: PhantomData }
    }

    /// Begins the call that creates a token.
    pub(crate) fn begin_create_token(&mut self) -> Call {
        let path = self.next_path();
        let name = TokenId::event_name(&path);
        Call::begin(&self.run, path, &name.into(), CallKind::SetEvent, None)
    }

    /// Begins the call that waits for the answer to a token. Returns the answer if it was received before: then there is
    /// no call.
    pub(crate) fn begin_token_result(&mut self, answer: &TokenAnswer) -> Result<TokenWait, Answer> {
        if answer.execution != self.run.key {
            let reason =
                "it was created by another execution; wait in the code that has created it".to_owned();
            return Err(Err(Error::Invalid { input: "token", reason }.to_failure()));
        }
        let mut state = answer.state.lock();
        match &*state {
            AnswerState::Received(received) => return Err(received.clone()),
            AnswerState::Awaited => {
                let reason = "another branch of the code waits for this token; wait in one branch".to_owned();
                return Err(Err(Error::Invalid { input: "token", reason }.to_failure()));
            }
            AnswerState::Free => *state = AnswerState::Awaited,
        }
        drop(state);
        let path = self.next_path();
        let call = Call::begin(&self.run, path, &answer.topic.clone().into(), CallKind::Receive, None);
        Ok(TokenWait { call, answer: answer.clone() })
    }
}

impl<T> Token<T> {
    /// Returns the id: a text of up to some hundred letters, digits and dots. Knowing the id is enough to provide the
    /// value. The id contains 122 random bits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits durably for the value of the token, as a call of the branch `cx`. A further call returns the same value. One
    /// branch at a time can wait for a token.
    ///
    /// # Errors
    ///
    /// The call fails with the error of [`Engine::fail_token`](crate::Engine::fail_token), if another branch waits for
    /// the token, or if the value is not a `T`.
    pub fn result<'c>(&self, cx: &'c mut Context) -> TokenResult<'c, T> {
        TokenResult { context: cx, answer: self.answer.clone(), timeout: None, value: PhantomData }
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> TokenResult<'c, T> {
    /// Ends the wait after this time. The call then returns `None`, and the token stays valid.
    pub fn timeout(self, timeout: Duration) -> TokenResultWithin<'c, T> {
        TokenResultWithin(Self { timeout: Some(timeout), ..self })
    }

    async fn wait(self) -> Result<Option<T>, Failure> {
        let value = match self.context.begin_token_result(&self.answer) {
            Ok(wait) => wait.run(self.timeout).await?,
            Err(received) => Some(received?),
        };
        let Some(value) = value else { return Ok(None) };
        let decoded = value.decode::<T>().map(Some);
        decoded.map_err(|error| error.with_value(|| "the value of a token".to_owned()).to_failure())
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for CreateToken<'c, T> {
    type Output = Result<Token<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let call = self.context.begin_create_token();
            let (id, answer) = create_token(&call).await?;
            Ok(Token { id, answer, value: PhantomData })
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for TokenResult<'c, T> {
    type Output = Result<T, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.wait().await? {
                Some(value) => Ok(value),
                // without a timeout, the wait ends with an answer
                None => std::future::pending().await,
            }
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for TokenResultWithin<'c, T> {
    type Output = Result<Option<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.wait())
    }
}

/// Runs a call that creates a token. Returns the id of the token and its answer.
pub(crate) async fn create_token(call: &Call) -> Result<(String, TokenAnswer), Failure> {
    let unreadable = |error: Error| error.with_value(|| "the secret of a token".to_owned()).to_failure();
    let secret = match call.wait_recorded().await {
        Some(recorded) if recorded.kind == CheckpointKind::Failed => {
            return Err(recorded.outcome.to_failure());
        }
        Some(recorded) => recorded.outcome.decode::<String>().map_err(unreadable)?,
        None => {
            let secret = TokenId::new_secret();
            set_event(call, Payload::encode(&secret)).await?;
            secret
        }
    };
    let id = TokenId { execution: call.run.key, path: call.path.clone(), secret };
    let state = Arc::new(Mutex::new(AnswerState::Free));
    let answer = TokenAnswer { execution: id.execution, topic: id.topic().into(), state };
    Ok((id.to_string(), answer))
}

/// A call that waits for the answer to a token. Until this value is dropped, no other call can wait for it.
pub(crate) struct TokenWait {
    call: Call,
    answer: TokenAnswer,
}

impl TokenWait {
    /// Runs the call. Returns the value, or `None` after the timeout.
    pub(crate) async fn run(self, timeout: Option<Duration>) -> Result<Option<Payload>, Failure> {
        let call = &self.call;
        let Some(encoded) = receive(call, &self.answer.topic, timeout).await? else { return Ok(None) };
        let received = match decode_answer(&encoded) {
            Ok(received) => received,
            Err(error) => call.park(error.to_string()).await,
        };
        *self.answer.state.lock() = AnswerState::Received(received.clone());
        received.map(Some)
    }
}

impl Drop for TokenWait {
    fn drop(&mut self) {
        let mut state = self.answer.state.lock();
        if matches!(*state, AnswerState::Awaited) {
            *state = AnswerState::Free;
        }
    }
}
