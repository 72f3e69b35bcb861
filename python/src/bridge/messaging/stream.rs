//! Streams: written by the code of workflows and by the bodies of steps, and read by programs with a [`StreamReader`].

use std::sync::Arc;

use pyo3::prelude::*;
use stepfast::guest::StepScope;
use stepfast::{Error, Payload, ReadStreamBuilder};
use tokio::sync::Mutex as AsyncMutex;

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::messaging::step::call_in_step;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::convert::value::encode;
use crate::fork::Process;

/// Writes a value to a stream, in the code of a workflow.
#[pyfunction]
pub(crate) fn write_stream(
    branch: &Bound<'_, Branch>,
    stream: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<Call> {
    write_or_close(branch, stream, Some(encode(value)?))
}

/// Closes a stream, in the code of a workflow.
#[pyfunction]
pub(crate) fn close_stream(branch: &Bound<'_, Branch>, stream: &str) -> PyResult<Call> {
    write_or_close(branch, stream, None)
}

fn write_or_close(branch: &Bound<'_, Branch>, stream: &str, value: Option<Payload>) -> PyResult<Call> {
    Branch::awaitable_call(branch, |branch| match branch.write_stream(stream, value) {
        Ok(written) => Box::pin(async move { written.await.map_or_else(Reply::Failed, |()| Reply::Nothing) }),
        Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
    })
}

/// Appends a value to a stream, in the body of an attempt of a step. Returns an awaitable call if the body `is_on_loop`, and
/// `None` if the attempt has ended.
#[pyfunction]
pub(crate) fn append_to_stream(
    branch: &Bound<'_, Branch>,
    step: &Bound<'_, Call>,
    attempt: u32,
    stream: &str,
    value: &Bound<'_, PyAny>,
    is_on_loop: bool,
) -> PyResult<Option<Call>> {
    let stream: Arc<str> = stream.into();
    let write = |scope: StepScope, value| async move { scope.write(&stream, value).await };
    call_in_step(branch, step, attempt, value, is_on_loop, "write_stream", write)
}

/// The values of a stream that are still to be read.
enum ReaderState {
    /// Nothing was read yet.
    New(ReadStreamBuilder<()>),
    Open(stepfast::StreamReader<()>),
    /// The stream could not be opened.
    Failed,
}

/// A reader of the values of a stream.
#[pyclass(frozen)]
pub(crate) struct StreamReader {
    /// `None` in a forked child, whose parent reads the values.
    reader: Option<Arc<AsyncMutex<ReaderState>>>,
    process: Process,
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.process.drop_if_current(self.reader.take());
    }
}

impl StreamReader {
    pub(crate) fn new(builder: ReadStreamBuilder<()>, offset: i64) -> Self {
        let reader = Arc::new(AsyncMutex::new(ReaderState::New(builder.from(offset))));
        Self { reader: Some(reader), process: Process::current() }
    }
}

#[pymethods]
impl StreamReader {
    /// Waits for the next values, and returns those that are durable already. After the last value, the list is empty.
    fn next_page(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.process.check(py)?;
        let reader = self.reader.clone();
        let future: ReplyFuture = Box::pin(async move {
            let Some(reader) = reader else { return Reply::Nothing };
            reader.lock().await.next_page().await
        });
        Ok(Call::awaitable(port, future))
    }
}

impl ReaderState {
    async fn next_page(&mut self) -> Reply {
        if let ReaderState::New(_) = self
            && let ReaderState::New(builder) = std::mem::replace(self, ReaderState::Failed)
        {
            match builder.await {
                Ok(opened) => *self = ReaderState::Open(opened),
                Err(error) => return Reply::Error(error),
            }
        }
        match self {
            ReaderState::Open(reader) => {
                reader.next_entries().await.map_or_else(Reply::Error, Reply::StreamEntries)
            }
            ReaderState::New(_) | ReaderState::Failed => Reply::Error(Error::Shutdown),
        }
    }
}
