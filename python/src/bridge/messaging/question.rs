//! [`Question`]: a question that the code of a workflow has received; and the questions that it asks.

use pyo3::prelude::*;
use stepfast::{AskBuilder, Error, Failure, Payload, QuestionId};

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::reply::{FailureTuple, Reply};
use crate::convert::durations::duration_of;

/// A question that the code of a workflow has received.
#[pyclass(frozen)]
pub(crate) struct Question {
    id: QuestionId,
    /// The decoded value.
    #[pyo3(get)]
    value: Py<PyAny>,
}

impl Question {
    pub(crate) fn new(id: QuestionId, value: Py<PyAny>) -> Self {
        Self { id, value }
    }

    /// Answers the question, once.
    fn reply(&self, branch: &Bound<'_, Branch>, answer: Result<Payload, Failure>) -> PyResult<Call> {
        Branch::awaitable_call(branch, |branch| match branch.answer(&self.id, answer) {
            Ok(sent) => Box::pin(async move { sent.await.map_or_else(Reply::Failed, |()| Reply::Nothing) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }
}

#[pymethods]
impl Question {
    /// Receives a question. The call returns it, or None after the timeout in seconds.
    #[staticmethod]
    fn receive(branch: &Bound<'_, Branch>, topic: &str, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = timeout.map(duration_of);
        Branch::awaitable_call(branch, |branch| match branch.receive_question(topic, timeout) {
            Ok(question) => Box::pin(async move {
                match question.await {
                    Ok(Some((id, value))) => Reply::Question(id, value),
                    Ok(None) => Reply::Nothing,
                    Err(failure) => Reply::Failed(failure),
                }
            }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Asks the execution with this workflow_id. The call returns the answer, or None after the timeout in seconds.
    #[staticmethod]
    fn ask(
        branch: &Bound<'_, Branch>,
        workflow_id: String,
        value: &Bound<'_, PyAny>,
        topic: &str,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        let value = crate::convert::value::encode(value)?;
        let timeout = timeout.map(duration_of);
        Branch::awaitable_call(branch, |branch| match branch.ask(workflow_id, value, topic, timeout) {
            Ok(answer) => Box::pin(async move { answer.await.map_or_else(Reply::Failed, Reply::of_wait) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Answers the question with a value.
    fn answer(&self, branch: &Bound<'_, Branch>, value: &Bound<'_, PyAny>) -> PyResult<Call> {
        self.reply(branch, Ok(crate::convert::value::encode(value)?))
    }

    /// Answers the question with a failure.
    fn refuse(&self, branch: &Bound<'_, Branch>, failure: FailureTuple) -> PyResult<Call> {
        self.reply(branch, Err(failure.into()))
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.value)
    }
}

/// Asks a question with this topic and id. The reply is the answer, or nothing after the timeout in seconds.
pub(crate) async fn answer_of(
    question: AskBuilder<()>,
    topic: String,
    timeout: Option<f64>,
    message_id: Option<String>,
) -> Reply {
    let mut question = question.topic(topic);
    if let Some(id) = message_id {
        question = question.message_id(id);
    }
    let answer = match timeout {
        Some(seconds) => question.timeout(duration_of(seconds)).payload().await,
        None => question.payload().await,
    };
    match answer {
        Ok(answer) => Reply::of_wait(answer),
        // the execution itself has not failed
        Err(Error::Failed(refusal)) => Reply::Failed(refusal),
        Err(error) => Reply::Error(error),
    }
}
