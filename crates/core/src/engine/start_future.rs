//! The futures of [`Engine::start`](crate::Engine::start) and [`Engine::run`](crate::Engine::run).
//!
//! A start without options takes the *fast path*: the future itself polls it, without an allocation. Every other start
//! takes the *slow path*, which is boxed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use crate::engine::handle::Handle;
use crate::engine::submission::{
    ArcRef, CallerDriven, FastPathError, PreparedStart, Submission, handle_for_outcome, new_deferred_run,
    output_of_conclusion,
};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::outcome::decode_inline;
use crate::runtime::run::Conclusion;
use crate::runtime::run::task::RunTask;
use crate::store::Outcome;

type BoxedResult<'e, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'e>>;

/// The future of [`Engine::start`].
pub struct StartFuture<'e, O>(FutureState<'e, StagedStart, Handle<O>>);

impl<'e, O> StartFuture<'e, O> {
    pub(crate) fn new(submission: Submission<'e>) -> Self {
        Self(FutureState::New(submission))
    }

    /// Returns a start that fails with this error.
    pub(super) fn with_error(error: Error) -> Self {
        Self(FutureState::Failed(error))
    }
}

impl<'e, O: Send + 'e> Future for StartFuture<'e, O> {
    type Output = Result<Handle<O>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// The future of [`Engine::run`].
pub struct RunFuture<'e, O>(FutureState<'e, ExecutingRun<'e>, O>);

impl<'e, O> RunFuture<'e, O> {
    pub(crate) fn new(submission: Submission<'e>) -> Self {
        Self(FutureState::New(submission))
    }

    /// Returns a run that fails with this error.
    pub(super) fn with_error(error: Error) -> Self {
        Self(FutureState::Failed(error))
    }
}

impl<'e, O: FromPayload + Send + 'e> Future for RunFuture<'e, O> {
    type Output = Result<O, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// The state of a future that starts an execution and returns a `T`.
enum FutureState<'e, F, T> {
    New(Submission<'e>),
    Failed(Error),
    FastPath(F),
    SlowPath(BoxedResult<'e, T>),
    Done,
}

/// The part of a future's fast path that follows the preparation of the start.
trait FastPath<'e, T>: Sized {
    fn begin(submission: Submission<'e>, prepared: PreparedStart) -> Result<Self, Error>;

    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<FastPathEnd<'e, T>>;

    /// Returns the future for a start that cannot take the fast path.
    fn slow_path(submission: Submission<'e>) -> BoxedResult<'e, T>;
}

/// The end of a fast path.
enum FastPathEnd<'e, T> {
    Finished(Result<T, Error>),
    ContinuesAs(BoxedResult<'e, T>),
}

impl<'e, F: FastPath<'e, T>, T> FutureState<'e, F, T> {
    #[inline]
    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<T, Error>> {
        loop {
            // the state is polled in place: moving it out and in again would cost more than the rest of a poll
            match self {
                Self::FastPath(fast_path) => match ready!(fast_path.poll(cx)) {
                    FastPathEnd::Finished(result) => return Poll::Ready(result),
                    FastPathEnd::ContinuesAs(slow_path) => *self = Self::SlowPath(slow_path),
                },
                Self::SlowPath(slow_path) => return slow_path.as_mut().poll(cx),
                Self::New(_) | Self::Failed(_) | Self::Done => {
                    let submission = match std::mem::replace(self, Self::Done) {
                        Self::New(submission) => submission,
                        Self::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    };
                    *self = match submission.prepare_fast() {
                        Ok(prepared) => Self::FastPath(F::begin(submission, prepared)?),
                        Err(FastPathError::Unsuitable) => Self::SlowPath(F::slow_path(submission)),
                        Err(FastPathError::Invalid(error)) => return Poll::Ready(Err(error)),
                    };
                }
            }
        }
    }
}

/// A start whose Start is staged. The code begins when the Start is durable.
struct StagedStart(CallerDriven);

impl<'e, O: Send + 'e> FastPath<'e, Handle<O>> for StagedStart {
    #[inline]
    fn begin(mut submission: Submission<'e>, prepared: PreparedStart) -> Result<Self, Error> {
        let input = std::mem::take(&mut submission.input);
        submission.launch(prepared, input).map(Self)
    }

    #[inline]
    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<FastPathEnd<'e, Handle<O>>> {
        let CallerDriven { task: Some(task), input, .. } = &mut self.0 else {
            return Poll::Ready(FastPathEnd::Finished(Err(Error::Shutdown)));
        };
        let outcome = ready!(task.poll_start(cx, input));
        let run = task.run().clone();
        let handle = if outcome == Outcome::Applied {
            // the task is polled here for the first time: many executions end before they would have got a task of
            // their own
            task.run_until_blocked(cx);
            self.0.detach();
            Ok(Handle::local(run, None))
        } else {
            self.0.task = None;
            handle_for_outcome(&run.engine, outcome, &run.definition, run.key, None, None)
        };
        Poll::Ready(FastPathEnd::Finished(handle))
    }

    fn slow_path(submission: Submission<'e>) -> BoxedResult<'e, Handle<O>> {
        Box::pin(submission.start())
    }
}

/// A run whose code is executed before its Start is staged.
struct ExecutingRun<'e> {
    engine: ArcRef<'e, EngineInner>,
    key: Key,
    caller_driven: CallerDriven,
}

impl<'e, O: FromPayload + Send + 'e> FastPath<'e, O> for ExecutingRun<'e> {
    #[inline]
    fn begin(submission: Submission<'e>, prepared: PreparedStart) -> Result<Self, Error> {
        let PreparedStart { start, reserved, .. } = prepared;
        let key = start.key;
        let run = new_deferred_run(&submission.engine, &submission.definition, start, reserved);
        let task = Some(RunTask::begin_executing(run, &submission.input));
        let caller_driven = CallerDriven { task, input: Payload::empty(), id_lock: None };
        Ok(Self { engine: submission.engine, key, caller_driven })
    }

    #[inline]
    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<FastPathEnd<'e, O>> {
        let CallerDriven { task, input, .. } = &mut self.caller_driven;
        let Some(running) = task else { return Poll::Ready(FastPathEnd::Finished(Err(Error::Shutdown))) };
        let end = match ready!(running.poll_conclusion(cx, input)) {
            Conclusion::Ended(status, outcome) if outcome.chunk_ref().is_none() => {
                FastPathEnd::Finished(decode_inline(status, &outcome))
            }
            conclusion => {
                let (engine, start_lsn) = (Arc::clone(&self.engine), running.run().start_lsn());
                let output = output_of_conclusion(engine, self.key, None, start_lsn, conclusion);
                FastPathEnd::ContinuesAs(Box::pin(output))
            }
        };
        *task = None;
        Poll::Ready(end)
    }

    fn slow_path(submission: Submission<'e>) -> BoxedResult<'e, O> {
        Box::pin(submission.run_to_end())
    }
}
