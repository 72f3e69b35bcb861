//! The answers to tokens, whichever process runs the executions that wait for them.

use std::sync::Arc;

use serde::Serialize;

use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::messaging::answer::encode_answer;
use crate::runtime::messaging::tokens::TokenId;
use crate::store::{EventQuery, Outcome};
use crate::text::quote;

impl Engine {
    /// Completes the token with this id: the execution that has created the token gets the value. One answer counts, also
    /// among several processes. The call returns when the answer is durable. The code of a workflow creates tokens by
    /// [`Context::create_token`](crate::Context::create_token).
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`] if no execution has created the token, and for a value above 64 KiB.
    /// - [`Error::TokenAnswered`] if the token has an answer already.
    /// - [`Error::HasEnded`] if the execution has ended without an answer.
    /// - [`Error::Unavailable`] if it is unknown whether the answer was recorded. Completing the token again is safe.
    pub async fn complete_token<T: Serialize + ?Sized>(&self, token: &str, value: &T) -> Result<(), Error> {
        self.answer_token(token, Ok(Payload::encode(value)?)).await
    }

    /// Fails the token with this id: the wait for the token fails with this error. Otherwise like
    /// [`complete_token`](Self::complete_token).
    ///
    /// # Errors
    ///
    /// The same as those of [`complete_token`](Self::complete_token).
    pub async fn fail_token(&self, token: &str, failure: impl Into<Failure>) -> Result<(), Error> {
        self.answer_token(token, Err(failure.into())).await
    }

    /// Answers the token with an encoded value or a failure.
    #[doc(hidden)]
    pub async fn answer_token(&self, token: &str, answer: Result<Payload, Failure>) -> Result<(), Error> {
        let engine = &self.inner;
        engine.check_open()?;
        let id: TokenId = token.parse()?;
        let query = EventQuery { execution: id.execution, name: Some(TokenId::event_name(&id.path).into()) };
        let secret = engine.event_loads.load(query).await?.pop().map(|event| event.value.decode::<String>());
        if secret.and_then(Result::ok).as_ref() != Some(&id.secret) {
            return Err(unknown_token(token));
        }
        let topic: Arc<str> = id.topic().into();
        let message = engine.new_message(id.execution, topic.clone(), Some(topic), encode_answer(answer))?;
        match engine.send_message(message).await? {
            Outcome::Applied => Ok(()),
            Outcome::AlreadySent => Err(Error::TokenAnswered { token: token.to_owned() }),
            Outcome::Ended(status) => Err(Error::HasEnded {
                workflow_id: id.execution.to_string(),
                status: status.as_str(),
                consequence: "waits for no answer".to_owned(),
            }),
            Outcome::NotFound => Err(unknown_token(token)),
            outcome => Err(engine.unapplied_error("answer", outcome)),
        }
    }
}

fn unknown_token(token: &str) -> Error {
    let reason =
        format!("no execution has created the token {}; check the id and the database", quote(token));
    Error::Invalid { input: "token", reason }
}
