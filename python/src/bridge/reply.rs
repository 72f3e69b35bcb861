//! [`Reply`]: the result of a call.

use std::pin::Pin;
use std::task::{Context, Poll};

use pyo3::prelude::*;
use stepfast::queue::QueueRow;
use stepfast::store::{
    DeadLetter, Event, Execution, Page, Record, RequestResult, StreamEntry, WorkerOverview,
};
use stepfast::{
    BatchCounts, BulkResult, Error, Failure, ItemResult, Payload, QuestionId, ScheduleView, Sent, TokenAnswer,
};

use crate::bridge::batch::handle::BatchHandle;
use crate::bridge::handle::Handle;
use crate::bridge::messaging::token::Token;
use crate::poll_state::{DONE, ERROR, FAILED};

pub(crate) type ReplyFuture = Pin<Box<dyn std::future::Future<Output = Reply> + Send>>;

/// The result of a call.
pub(crate) enum Reply {
    Value(Payload),
    Nothing,
    Text(String),
    /// A token: its id, and its answer.
    Token(String, TokenAnswer),
    /// A received question: its id, and its value.
    Question(QuestionId, Payload),
    Handle(stepfast::Handle<Payload>),
    Handles(Vec<stepfast::Handle<Payload>>),
    Outcomes(Vec<Result<Payload, Error>>),
    Batch(stepfast::BatchHandle<Payload>),
    BatchCounts(BatchCounts),
    Count(u64),
    Items(Vec<ItemResult<Payload>>),
    RequestResult(RequestResult),
    BulkResult(BulkResult),
    Page(Page),
    Found(Vec<Option<Execution>>),
    FoundByValue(Vec<Vec<Execution>>),
    Record(Box<Record>),
    Events(Vec<Event>),
    StreamEntries(Vec<StreamEntry>),
    Workers(WorkerOverview),
    DeadLetters(Vec<DeadLetter>),
    Queue(QueueRow),
    Queues(Vec<QueueRow>),
    Schedule(Box<ScheduleView>),
    Schedules(Vec<ScheduleView>),
    Failed(Failure),
    Error(Error),
}

/// A future of the engine with its result mapped to a reply. An `async` block would contain the future twice.
pub(crate) struct MappedReply<F, M>(F, M);

impl<F, M> MappedReply<F, M>
where
    F: std::future::Future + Send + Unpin + 'static,
    M: Fn(F::Output) -> Reply + Send + Unpin + 'static,
{
    pub(crate) fn new_boxed(future: F, reply: M) -> ReplyFuture {
        Box::pin(Self(future, reply))
    }
}

impl<F, M> std::future::Future for MappedReply<F, M>
where
    F: std::future::Future + Unpin,
    M: Fn(F::Output) -> Reply + Unpin,
{
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        Pin::new(&mut self.0).poll(cx).map(&self.1)
    }
}

impl Reply {
    pub(crate) fn of_call(result: Result<Payload, Failure>) -> Self {
        match result {
            Ok(payload) => Reply::Value(payload),
            Err(failure) => Reply::Failed(failure),
        }
    }

    /// Returns the reply of a wait for a value, which may end without one.
    pub(crate) fn of_wait(value: Option<Payload>) -> Self {
        value.map_or(Reply::Nothing, Reply::Value)
    }

    /// Returns the reply of a call that sends a message: the word for its effect.
    pub(crate) fn of_sent(sent: Sent) -> Self {
        Reply::Text(sent.as_str().to_owned())
    }

    pub(crate) fn of_end(result: Result<Payload, Error>) -> Self {
        match result {
            Ok(payload) => Reply::Value(payload),
            Err(error) => Reply::Error(error),
        }
    }

    pub(crate) fn of_start(result: Result<stepfast::Handle<Payload>, Error>) -> Self {
        match result {
            Ok(handle) => Reply::Handle(handle),
            Err(error) => Reply::Error(error),
        }
    }

    pub(crate) fn state_code(&self) -> u8 {
        match self {
            Reply::Failed(_) => FAILED,
            Reply::Error(_) => ERROR,
            _ => DONE,
        }
    }

    /// Converts the reply to an object. The caller decodes values, because the caller knows the execution.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Reply::Text(text) => Ok(text.into_pyobject(py)?.into_any().unbind()),
            Reply::Token(id, answer) => Ok(Py::new(py, Token::new(id, answer))?.into_any()),
            Reply::Handle(handle) => Ok(Py::new(py, Handle::new(handle))?.into_any()),
            Reply::Handles(handles) => {
                let handles: PyResult<Vec<_>> =
                    handles.into_iter().map(|handle| Py::new(py, Handle::new(handle))).collect();
                Ok(handles?.into_pyobject(py)?.into_any().unbind())
            }
            Reply::Outcomes(outcomes) => crate::convert::record::outcomes(py, outcomes),
            Reply::Batch(batch) => Ok(Py::new(py, BatchHandle::new(batch))?.into_any()),
            Reply::BatchCounts(counts) => crate::convert::record::batch_counts(py, &counts),
            Reply::Count(count) => Ok(count.into_pyobject(py)?.into_any().unbind()),
            Reply::Items(items) => crate::convert::record::items(py, items),
            Reply::RequestResult(result) => crate::convert::record::request_result(py, result),
            Reply::BulkResult(BulkResult { done, pending, not_applicable }) => {
                Ok((done, pending, not_applicable).into_pyobject(py)?.into_any().unbind())
            }
            Reply::Page(page) => crate::convert::record::page(py, &page),
            Reply::Found(found) => crate::convert::record::found_executions(py, &found),
            Reply::FoundByValue(found) => crate::convert::record::executions_by_value(py, &found),
            Reply::Record(record) => crate::convert::record::record(py, &record),
            Reply::Events(events) => crate::convert::record::events(py, &events),
            Reply::StreamEntries(entries) => crate::convert::record::stream_entries(py, &entries),
            Reply::Workers(overview) => crate::convert::workers::worker_overview(py, &overview),
            Reply::DeadLetters(letters) => crate::convert::dead_letters::dead_letters(py, &letters),
            Reply::Queue(row) => crate::convert::queue::queue_tuple(py, &row),
            Reply::Queues(rows) => crate::convert::queue::queue_tuples(py, &rows),
            Reply::Schedule(view) => crate::convert::schedule::schedule_tuple(py, &view),
            Reply::Schedules(views) => crate::convert::schedule::schedule_tuples(py, &views),
            _ => Ok(py.None()),
        }
    }
}

/// A failure from Python: kind, message, causes, whether it may be retried, encoded exception.
#[derive(FromPyObject)]
pub(crate) struct FailureTuple(String, String, Vec<String>, bool, Vec<u8>);

impl From<FailureTuple> for Failure {
    fn from(failure: FailureTuple) -> Self {
        let FailureTuple(kind, message, causes, is_retryable, detail) = failure;
        let mut failure = Failure::with_kind(kind, message);
        (failure.causes, failure.is_retryable, failure.detail) = (causes, is_retryable, detail.into());
        failure
    }
}
