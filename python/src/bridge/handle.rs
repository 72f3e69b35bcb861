//! [`Handle`]: a reference to an execution. Its operations return a [`Call`], for which the program waits.

use futures_util::future::join_all;
use pyo3::prelude::*;
use stepfast::store::RequestResult;
use stepfast::{Error, GetEventBuilder, Payload, SendBuilder};

use crate::bridge::call::Call;
use crate::bridge::coroutine::CallCoroutine;
use crate::bridge::messaging::question::answer_of;
use crate::bridge::messaging::stream::StreamReader;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::convert::durations::duration_of;
use crate::fork::Process;

/// A reference to an execution.
#[pyclass(frozen)]
pub(crate) struct Handle {
    handle: stepfast::Handle<Payload>,
    process: Process,
}

impl Handle {
    pub(crate) fn new(handle: stepfast::Handle<Payload>) -> Self {
        Self { handle, process: Process::current() }
    }
}

impl Handle {
    /// Returns a call that sends a request for the execution.
    fn request<F>(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        send: impl FnOnce(stepfast::Handle<Payload>) -> F,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<RequestResult, Error>> + Send + 'static,
    {
        self.process.check(py)?;
        let request = send(self.handle.clone());
        let future: ReplyFuture = Box::pin(async move {
            match request.await {
                Ok(result) => Reply::RequestResult(result),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }
}

#[pymethods]
impl Handle {
    /// The execution's workflow_id.
    #[getter]
    fn workflow_id(&self) -> String {
        self.handle.workflow_id()
    }

    /// Returns the output, when the execution has ended.
    fn result(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let output = self.handle.payload();
        let future: ReplyFuture = Box::pin(async move { Reply::of_end(output.await) });
        Ok(Call::awaitable_with(CallCoroutine::for_program("the result of a handle"), port, future))
    }

    /// Returns the current status.
    fn status(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let handle = self.handle.clone();
        let future: ReplyFuture = Box::pin(async move {
            match handle.status().await {
                Ok(status) => Reply::Text(status.to_string()),
                Err(error) => Reply::Error(error),
            }
        });
        Ok(Call::awaitable(port, future))
    }

    /// Requests that the execution be cancelled, with the children that it awaits.
    fn cancel(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.request(py, port, |handle| async move { handle.cancel().await })
    }

    /// Requests that the execution be resumed, if it is parked, failed or cancelled.
    fn resume(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.request(py, port, |handle| async move { handle.resume().await })
    }

    /// Requests that the execution be parked.
    fn pause(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.request(py, port, |handle| async move { handle.pause().await })
    }

    /// Sends a message to the execution.
    fn send(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        topic: &str,
        message_id: Option<&str>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        self.process.check(py)?;
        let message = self.handle.send_payload(crate::convert::value::encode(value)?);
        let sent = new_message(message, topic, message_id).into_future();
        let reply = async move { sent.await.map_or_else(Reply::Error, Reply::of_sent) };
        Ok(Call::awaitable(port, Box::pin(reply)))
    }

    /// Waits for an event of the execution. Returns its value, or None after the timeout in seconds.
    fn get_event(
        &self,
        py: Python<'_>,
        name: String,
        timeout: Option<f64>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        self.process.check(py)?;
        let value = event_value(self.handle.get_event(name), timeout);
        let reply = async move { value.await.map_or_else(Reply::Error, Reply::of_wait) };
        Ok(Call::awaitable(port, Box::pin(reply)))
    }

    /// Returns a reader of a stream of the execution, which begins at this offset.
    fn read_stream(&self, py: Python<'_>, stream: &str, offset: i64) -> PyResult<StreamReader> {
        self.process.check(py)?;
        Ok(StreamReader::new(self.handle.read_stream(stream), offset))
    }

    /// Asks the execution a question. Returns the answer, or None after the timeout in seconds.
    fn ask(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        topic: String,
        timeout: Option<f64>,
        message_id: Option<String>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        self.process.check(py)?;
        let question = self.handle.ask_payload(crate::convert::value::encode(value)?);
        Ok(Call::awaitable(port, Box::pin(answer_of(question, topic, timeout, message_id))))
    }

    /// Returns the outputs of all `handles`, or the errors with which they have ended, in one call.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value)] // arguments that Python passes
    fn results(
        py: Python<'_>,
        handles: Vec<PyRef<'_, Self>>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        for handle in &handles {
            handle.process.check(py)?;
        }
        let outputs: Vec<_> = handles.iter().map(|handle| handle.handle.payload()).collect();
        Ok(Call::awaitable(port, Box::pin(async move { Reply::Outcomes(join_all(outputs).await) })))
    }
}

/// Returns a message with this topic and id.
pub(crate) fn new_message(message: SendBuilder, topic: &str, message_id: Option<&str>) -> SendBuilder {
    let message = message.topic(topic);
    match message_id {
        Some(id) => message.message_id(id),
        None => message,
    }
}

/// Returns the encoded value of an event, or `None` after the timeout in seconds.
pub(crate) async fn event_value(
    event: GetEventBuilder<()>,
    timeout: Option<f64>,
) -> Result<Option<Payload>, Error> {
    match timeout {
        Some(seconds) => event.timeout(duration_of(seconds)).payload().await,
        None => event.payload().await,
    }
}
