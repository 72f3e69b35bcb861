//! [`Token`]: a token that the code of a workflow has created.

use pyo3::prelude::*;
use stepfast::TokenAnswer;

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::reply::Reply;
use crate::convert::durations::duration_of;

/// A token that the code of a workflow has created.
#[pyclass(frozen)]
pub(crate) struct Token {
    id: String,
    answer: TokenAnswer,
}

impl Token {
    pub(crate) fn new(id: String, answer: TokenAnswer) -> Self {
        Self { id, answer }
    }
}

#[pymethods]
impl Token {
    /// Creates a token. The call returns it.
    #[staticmethod]
    fn create(branch: &Bound<'_, Branch>) -> PyResult<Call> {
        Branch::awaitable_call(branch, |branch| {
            let created = branch.create_token();
            Box::pin(async move {
                created.await.map_or_else(Reply::Failed, |(id, answer)| Reply::Token(id, answer))
            })
        })
    }

    /// The id, which the outside needs to provide the value.
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// Waits for the value. The call returns it, or None after the timeout in seconds.
    fn result(&self, branch: &Bound<'_, Branch>, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = timeout.map(duration_of);
        Branch::awaitable_call(branch, |branch| match branch.token_result(&self.answer, timeout) {
            Ok(value) => Box::pin(async move { value.await.map_or_else(Reply::Failed, Reply::of_wait) }),
            Err(received) => Box::pin(std::future::ready(Reply::of_call(received))),
        })
    }
}
