//! The futures of [`Engine::start`](crate::Engine::start) and [`Engine::run`](crate::Engine::run).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::engine::handle::{Handle, decode_inline, decode_outcome};
use crate::engine::submission::{
    ArcRef, CallerDriven, FastPathError, PreparedStart, Submission, handle_for_outcome, new_deferred_run,
    new_local_run, wait_for_start,
};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Conclusion;
use crate::runtime::run::task::RunTask;
use crate::store::Outcome;

type BoxedResult<'e, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'e>>;

/// The future of [`Engine::start`]. The fast path is polled in place; everything else is boxed.
pub struct StartFuture<'e, O>(StartFutureState<'e, O>);

impl<'e, O> StartFuture<'e, O> {
    /// Returns a start that fails with this error.
    pub(super) fn failed(error: Error) -> Self {
        Self(StartFutureState::Failed(error))
    }

    pub(crate) fn new(submission: Submission<'e>) -> Self {
        Self(StartFutureState::New(submission))
    }
}

enum StartFutureState<'e, O> {
    New(Submission<'e>),
    Failed(Error),
    Staged(CallerDriven),
    SlowPath(BoxedResult<'e, Handle<O>>),
    Done,
}

impl<'e, O: Send + 'e> Future for StartFuture<'e, O> {
    type Output = Result<Handle<O>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            // in place: moving the state out and in again would cost more than the rest of a poll
            match &mut self.0 {
                StartFutureState::Staged(caller_driven) => {
                    let CallerDriven { task: Some(task), input, .. } = caller_driven else {
                        return Poll::Ready(Err(Error::Shutdown));
                    };
                    let outcome = std::task::ready!(task.poll_start(cx, input));
                    let run = task.run().clone();
                    if outcome != Outcome::Applied {
                        caller_driven.task = None;
                        let definition = &run.definition;
                        return Poll::Ready(handle_for_outcome(
                            &run.engine,
                            outcome,
                            definition,
                            run.key,
                            None,
                            None,
                        ));
                    }
                    // the task is polled here for the first time: many executions end before they would have got a
                    // task of their own
                    task.run_until_blocked(cx);
                    self.0 = StartFutureState::Done;
                    return Poll::Ready(Ok(Handle::local(run, None)));
                }
                StartFutureState::SlowPath(slow_path) => return slow_path.as_mut().poll(cx),
                StartFutureState::New(_) | StartFutureState::Failed(_) | StartFutureState::Done => {
                    match std::mem::replace(&mut self.0, StartFutureState::Done) {
                        StartFutureState::New(submission) => match submission.prepare_fast() {
                            Ok(PreparedStart { start, reserved, .. }) => {
                                let run =
                                    new_local_run(&submission.engine, &submission.definition, &start, None);
                                run.register();
                                let Some(lsn) = run.stage_start(start, reserved) else {
                                    submission.engine.runs.remove(&run);
                                    submission.engine.release_slot();
                                    return Poll::Ready(Err(submission.engine.dropped_write_error()));
                                };
                                let task = Some(RunTask::await_start(run, lsn));
                                self.0 = StartFutureState::Staged(CallerDriven {
                                    task,
                                    input: submission.input,
                                    id_lock: None,
                                });
                            }
                            Err(FastPathError::Unsuitable) => {
                                self.0 = StartFutureState::SlowPath(Box::pin(submission.start()));
                            }
                            Err(FastPathError::Invalid(error)) => return Poll::Ready(Err(error)),
                        },
                        StartFutureState::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    }
                }
            }
        }
    }
}

/// The future of [`Engine::run`]. The fast path is polled in place; everything else is boxed.
pub struct RunFuture<'e, O>(RunFutureState<'e, O>);

impl<'e, O> RunFuture<'e, O> {
    /// Returns a run that fails with this error.
    pub(super) fn failed(error: Error) -> Self {
        Self(RunFutureState::Failed(error))
    }

    pub(crate) fn new(submission: Submission<'e>) -> Self {
        Self(RunFutureState::New(submission))
    }
}

enum RunFutureState<'e, O> {
    New(Submission<'e>),
    Failed(Error),
    CallerDriven(ArcRef<'e, EngineInner>, Key, CallerDriven),
    SlowPath(BoxedResult<'e, O>),
    Done,
}

impl<'e, O: FromPayload + Send + 'e> Future for RunFuture<'e, O> {
    type Output = Result<O, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                RunFutureState::CallerDriven(engine, key, caller_driven) => {
                    let key = *key;
                    let run = caller_driven.task.as_ref().map(|task| task.run().clone());
                    let conclusion = std::task::ready!(caller_driven.poll_conclusion(cx));
                    let start_lsn = run.and_then(|run| run.start_lsn());
                    self.0 = match conclusion {
                        Conclusion::Ended(status, outcome) if outcome.chunk_ref().is_none() => {
                            return Poll::Ready(decode_inline(status, &outcome));
                        }
                        Conclusion::Ended(status, outcome) => {
                            let engine = Arc::clone(engine);
                            RunFutureState::SlowPath(Box::pin(async move {
                                decode_outcome(&engine, key, status, outcome).await
                            }))
                        }
                        Conclusion::LeftProcess => {
                            let engine = Arc::clone(engine);
                            RunFutureState::SlowPath(Box::pin(async move {
                                engine.check_open()?;
                                wait_for_start(&engine, key, start_lsn).await?;
                                Handle::<O>::attach(engine, key, None, |_| true).output().await
                            }))
                        }
                    };
                }
                RunFutureState::SlowPath(slow_path) => return slow_path.as_mut().poll(cx),
                RunFutureState::New(_) | RunFutureState::Failed(_) | RunFutureState::Done => {
                    match std::mem::replace(&mut self.0, RunFutureState::Done) {
                        RunFutureState::New(submission) => match submission.prepare_fast() {
                            Ok(PreparedStart { start, reserved, .. }) => {
                                let key = start.key;
                                let run = new_deferred_run(
                                    &submission.engine,
                                    &submission.definition,
                                    start,
                                    reserved,
                                );
                                let task = Some(RunTask::begin_executing(run, &submission.input));
                                let caller_driven =
                                    CallerDriven { task, input: Payload::empty(), id_lock: None };
                                self.0 = RunFutureState::CallerDriven(submission.engine, key, caller_driven);
                            }
                            Err(FastPathError::Unsuitable) => {
                                self.0 = RunFutureState::SlowPath(Box::pin(submission.run_to_end()));
                            }
                            Err(FastPathError::Invalid(error)) => return Poll::Ready(Err(error)),
                        },
                        RunFutureState::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    }
                }
            }
        }
    }
}
