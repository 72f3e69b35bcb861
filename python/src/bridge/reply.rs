//! [`Reply`]: what a call comes to.

use std::pin::Pin;
use std::task::{Context, Poll};

use pyo3::prelude::*;
use stepfast::queue::QueueRow;
use stepfast::store::{RequestResult, DeadLetter, Page, Record, WorkerOverview};
use stepfast::{Answers, Error, Failure, Payload};

use crate::bridge::handle::Handle;
use crate::poll_state::{DONE, ERROR, FAILED};

pub(crate) type Future = Pin<Box<dyn std::future::Future<Output = Reply> + Send>>;

/// What a call comes to.
pub(crate) enum Reply {
    Value(Payload),
    Nothing,
    Text(String),
    Handle(stepfast::Handle<Payload>),
    Handles(Vec<stepfast::Handle<Payload>>),
    Many(Vec<Result<Payload, Error>>),
    Answer(RequestResult),
    Answers(Answers),
    Page(Page),
    Record(Box<Record>),
    Survey(WorkerOverview),
    DeadLetters(Vec<DeadLetter>),
    Queue(QueueRow),
    Queues(Vec<QueueRow>),
    Failed(Failure),
    Error(Error),
}

/// What a future of the engine comes to, as a reply. An `async` block would keep that future twice.
pub(crate) struct Replied<F, M>(F, M);

impl<F, M> Replied<F, M>
where
    F: std::future::Future + Send + Unpin + 'static,
    M: Fn(F::Output) -> Reply + Send + Unpin + 'static,
{
    pub(crate) fn boxed(future: F, reply: M) -> Future {
        Box::pin(Self(future, reply))
    }
}

impl<F, M> std::future::Future for Replied<F, M>
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
    pub(crate) fn of(result: Result<Payload, Failure>) -> Self {
        match result {
            Ok(payload) => Reply::Value(payload),
            Err(failure) => Reply::Failed(failure),
        }
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

    pub(crate) fn of_queue(result: Result<QueueRow, Error>) -> Self {
        match result {
            Ok(row) => Reply::Queue(row),
            Err(error) => Reply::Error(error),
        }
    }

    pub(crate) fn turn(&self) -> u8 {
        match self {
            Reply::Failed(_) => FAILED,
            Reply::Error(_) => ERROR,
            _ => DONE,
        }
    }

    /// As Python knows it; that of a payload is left to who knows whose it is.
    pub(crate) fn value(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Reply::Text(text) => Ok(text.into_pyobject(py)?.into_any().unbind()),
            Reply::Handle(handle) => Ok(Py::new(py, Handle::new(handle))?.into_any()),
            Reply::Handles(handles) => {
                let handles: PyResult<Vec<_>> =
                    handles.into_iter().map(|handle| Py::new(py, Handle::new(handle))).collect();
                Ok(handles?.into_pyobject(py)?.into_any().unbind())
            }
            Reply::Many(ends) => crate::convert::record::ends(py, ends),
            Reply::Answer(answer) => crate::convert::record::answer(py, answer),
            Reply::Answers(Answers { done, requested, declined }) => {
                Ok((done, requested, declined).into_pyobject(py)?.into_any().unbind())
            }
            Reply::Page(page) => crate::convert::record::page(py, &page),
            Reply::Record(record) => crate::convert::record::record(py, &record),
            Reply::Survey(survey) => crate::convert::workers::survey(py, &survey),
            Reply::DeadLetters(letters) => crate::convert::dead_letters::dead_letters(py, &letters),
            Reply::Queue(row) => crate::convert::queue::row(py, &row),
            Reply::Queues(rows) => crate::convert::queue::rows(py, &rows),
            _ => Ok(py.None()),
        }
    }
}

/// A failure from Python: kind, message, causes, whether it may be retried, what it is made of again.
#[derive(FromPyObject)]
pub(crate) struct PyFailure(String, String, Vec<String>, bool, Vec<u8>);

impl From<PyFailure> for Failure {
    fn from(failure: PyFailure) -> Self {
        let PyFailure(kind, message, causes, is_retryable, detail) = failure;
        let mut failure = Failure::with_kind(kind, message);
        (failure.causes, failure.is_retryable, failure.detail) = (causes, is_retryable, detail.into());
        failure
    }
}
