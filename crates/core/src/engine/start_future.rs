//! The futures of [`Engine::start`](crate::Engine::start) and [`Engine::run`](crate::Engine::run).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::engine::handle::{Handle, decode, decode_here};
use crate::engine::submission::{
    Attended, Held, Order, Prepared, TryNow, local_run, local_run_of, settled, started,
};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, Payload};
use crate::runtime::inner::Core;
use crate::runtime::run::Conclusion;
use crate::runtime::run::task::RunTask;
use crate::store::Outcome;

type Boxed<'e, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'e>>;

/// The future of [`Engine::start`]. The fast path is polled in place; everything else is boxed.
pub struct Starting<'e, O>(StartState<'e, O>);

impl<'e, O> Starting<'e, O> {
    /// Returns a start that fails with this error.
    pub(super) fn failed(error: Error) -> Self {
        Self(StartState::Failed(error))
    }

    pub(crate) fn of(order: Order<'e>) -> Self {
        Self(StartState::New(order))
    }
}

enum StartState<'e, O> {
    New(Order<'e>),
    Failed(Error),
    Staged(Attended),
    Other(Boxed<'e, Handle<O>>),
    Done,
}

impl<'e, O: Send + 'e> Future for Starting<'e, O> {
    type Output = Result<Handle<O>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            // in place: moving the state out and in again would cost more than the rest of a poll
            match &mut self.0 {
                StartState::Staged(attended) => {
                    let Attended { task: Some(task), input, .. } = attended else {
                        return Poll::Ready(Err(Error::Shutdown));
                    };
                    let outcome = std::task::ready!(task.poll_started(cx, input));
                    let run = task.run().clone();
                    if outcome != Outcome::Applied {
                        attended.task = None;
                        let name = &run.definition;
                        return Poll::Ready(settled(&run.core, outcome, name, run.key, None, None));
                    }
                    // the task is polled here for the first time: many executions end before they would have got a task of their own
                    task.take_turn(cx);
                    self.0 = StartState::Done;
                    return Poll::Ready(Ok(Handle::running(run, None)));
                }
                StartState::Other(other) => return other.as_mut().poll(cx),
                StartState::New(_) | StartState::Failed(_) | StartState::Done => {
                    match std::mem::replace(&mut self.0, StartState::Done) {
                        StartState::New(order) => match order.try_now() {
                            Ok(Prepared { start, room, .. }) => {
                                let run = local_run(&order.core, &order.definition, &start, None);
                                run.register();
                                let Some(lsn) = run.stage_start(start, room) else {
                                    order.core.runs.remove(&run);
                                    order.core.release_slot();
                                    return Poll::Ready(Err(order.core.why_dropped()));
                                };
                                let task = Some(RunTask::starting(run, lsn));
                                self.0 =
                                    StartState::Staged(Attended { task, input: order.input, id_lock: None });
                            }
                            Err(TryNow::Later) => self.0 = StartState::Other(Box::pin(order.start())),
                            Err(TryNow::Never(error)) => return Poll::Ready(Err(error)),
                        },
                        StartState::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    }
                }
            }
        }
    }
}

/// The future of [`Engine::run`]. The fast path is polled in place; everything else is boxed.
pub struct Running<'e, O>(RunState<'e, O>);

impl<'e, O> Running<'e, O> {
    /// Returns a run that fails with this error.
    pub(super) fn failed(error: Error) -> Self {
        Self(RunState::Failed(error))
    }

    pub(crate) fn of(order: Order<'e>) -> Self {
        Self(RunState::New(order))
    }
}

enum RunState<'e, O> {
    New(Order<'e>),
    Failed(Error),
    Attended(Held<'e, Core>, Key, Attended),
    Other(Boxed<'e, O>),
    Done,
}

impl<'e, O: FromPayload + Send + 'e> Future for Running<'e, O> {
    type Output = Result<O, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                RunState::Attended(core, key, attended) => {
                    let key = *key;
                    let run = attended.task.as_ref().map(|task| task.run().clone());
                    let conclusion = std::task::ready!(attended.poll_conclusion(cx));
                    let start_lsn = run.and_then(|run| run.start_lsn());
                    self.0 = match conclusion {
                        Conclusion::Ended(status, outcome) if outcome.chunk_ref().is_none() => {
                            return Poll::Ready(decode_here(status, &outcome));
                        }
                        Conclusion::Ended(status, outcome) => {
                            let core = Arc::clone(core);
                            RunState::Other(Box::pin(
                                async move { decode(&core, key, status, outcome).await },
                            ))
                        }
                        Conclusion::Gone => {
                            let core = Arc::clone(core);
                            RunState::Other(Box::pin(async move {
                                core.check_open()?;
                                started(&core, key, start_lsn).await?;
                                Handle::<O>::of(core, key, None, |_| true).output().await
                            }))
                        }
                    };
                }
                RunState::Other(other) => return other.as_mut().poll(cx),
                RunState::New(_) | RunState::Failed(_) | RunState::Done => {
                    match std::mem::replace(&mut self.0, RunState::Done) {
                        RunState::New(order) => match order.try_now() {
                            Ok(Prepared { start, room, .. }) => {
                                let key = start.key;
                                let run = local_run_of(&order.core, &order.definition, start, room);
                                let task = Some(RunTask::executing(run, &order.input));
                                let attended = Attended { task, input: Payload::empty(), id_lock: None };
                                self.0 = RunState::Attended(order.core, key, attended);
                            }
                            Err(TryNow::Later) => self.0 = RunState::Other(Box::pin(order.run_to_end())),
                            Err(TryNow::Never(error)) => return Poll::Ready(Err(error)),
                        },
                        RunState::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    }
                }
            }
        }
    }
}
