//! [`StepCall`]: a step whose body a guest runs. It does what a step of Rust does (`step::carry_out`), but is kept
//! in place by whoever polls it: it is small, and what is rare is boxed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::commit::Durable;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::run::call::{Call, Delivery};
use crate::runtime::run::{Interrupt, Run};
use crate::store::CheckpointKind;
use crate::workflow::retry::StepOptions;
use crate::workflow::step::{
    after_crash, after_failure, body_begins, body_is_over, checked, in_time, may_begin, replayed, room_for,
    stored,
};

/// A step whose body somebody else runs, when [`StepCall::poll`] says so. Dropped before it is over, it is recorded
/// as given up.
pub struct StepCall {
    /// While it is not over, and nothing rare has it.
    call: Option<Call>,
    /// `None` for the defaults.
    options: Option<Box<StepOptions>>,
    attempt: u32,
    /// What the body has come to.
    outcome: Option<Result<Payload, Box<Failure>>>,
    stage: Stage,
}

/// What a guest is to do about a step.
pub enum StepTurn {
    /// Run its body, once, and then [finish](StepCall::finish) and poll it.
    Body,
    /// Go on: it is over.
    Over(Result<Payload, Failure>),
}

enum Stage {
    /// Nothing has come of it.
    Invalid(Box<Failure>),
    Made,
    /// In a replay: waits for its turn.
    Waiting,
    /// What came before the body is not durable yet.
    Barrier(Durable<Arc<Run>>),
    Body,
    /// The value has yet to be delivered, if that has not happened at once.
    Delivery(Payload, Option<Delivery>),
    Rare(Pin<Box<dyn Future<Output = (Call, Next)> + Send>>),
    /// It is over, or never will be.
    Over,
}

/// What follows upon something rare.
enum Next {
    Body,
    Attempt(u32),
    Over(Result<Payload, Failure>),
}

impl StepCall {
    pub(crate) fn new(begun: Result<Call, Failure>, options: Option<Box<StepOptions>>) -> Self {
        let (call, stage) = match begun {
            Ok(call) => (Some(call), Stage::Made),
            Err(failure) => (None, Stage::Invalid(failure.into())),
        };
        Self { call, options, attempt: 1, outcome: None, stage }
    }

    /// The body came to this. What was left so before the body was asked for is forgotten: it came too late.
    pub fn finish(&mut self, outcome: Result<Payload, Failure>) {
        self.outcome = Some(outcome.map_err(Box::new));
    }

    /// What to do next; `Pending` if that is to wait.
    pub fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepTurn> {
        loop {
            match &mut self.stage {
                Stage::Made => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    call.set_awaited();
                    self.stage = Stage::Waiting;
                }
                Stage::Waiting => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    match std::task::ready!(call.poll_recorded(cx)) {
                        Some(delivery) => self.rarely(|call, _| {
                            Box::pin(async move {
                                let outcome = replayed(&call, delivery).await;
                                (call, Next::Over(outcome))
                            })
                        }),
                        None if call.run.is_replayed => self.rarely(|call, options| {
                            Box::pin(async move {
                                let next = match after_crash(&call, options.retry).await {
                                    Ok(attempt) => Next::Attempt(attempt),
                                    Err(failure) => Next::Over(Err(failure)),
                                };
                                (call, next)
                            })
                        }),
                        None => self.approach(),
                    }
                }
                Stage::Barrier(durable) => {
                    let outcome = std::task::ready!(Pin::new(durable).poll(cx));
                    let Some(call) = &self.call else { return Poll::Pending };
                    if !may_begin(&call.run, &outcome) {
                        self.lost();
                    } else if call.run.core.lease.is_held() {
                        return self.begin();
                    } else {
                        self.rarely(|call, _| {
                            Box::pin(async move {
                                in_time(&call.run).await;
                                (call, Next::Body)
                            })
                        });
                    }
                }
                Stage::Body => {
                    let Some(outcome) = self.outcome.take() else { return Poll::Pending };
                    body_is_over();
                    self.record(outcome.map_err(|failure| *failure));
                }
                Stage::Delivery(_, at_once) => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    let delivery = match at_once.take() {
                        Some(delivery) => Some(delivery),
                        None => std::task::ready!(call.poll_delivery(cx)),
                    };
                    let is_eager = call.run.definition.is_eager;
                    let stage = std::mem::replace(&mut self.stage, Stage::Over);
                    let (Stage::Delivery(value, _), Some(delivery)) = (stage, delivery) else {
                        return Poll::Pending;
                    };
                    if is_eager {
                        return self.over(Ok(value));
                    }
                    self.rarely(|call, _| {
                        Box::pin(async move {
                            call.delivered(Some(delivery)).await;
                            (call, Next::Over(Ok(value)))
                        })
                    });
                }
                Stage::Rare(rare) => {
                    let (call, next) = std::task::ready!(rare.as_mut().poll(cx));
                    self.call = Some(call);
                    match next {
                        Next::Body => return self.begin(),
                        Next::Attempt(attempt) => {
                            self.attempt = attempt;
                            self.approach();
                        }
                        Next::Over(outcome) => return self.over(outcome),
                    }
                }
                Stage::Invalid(_) => {
                    let Stage::Invalid(failure) = std::mem::replace(&mut self.stage, Stage::Over) else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(StepTurn::Over(Err(*failure)));
                }
                Stage::Over => return Poll::Pending,
            }
        }
    }

    /// Waits for what the body has to wait for.
    fn approach(&mut self) {
        let Some(call) = &self.call else { return };
        let is_speculative = self.options.as_ref().is_some_and(|options| options.is_speculative);
        match call.run.barrier(is_speculative) {
            Some(barrier) => self.stage = Stage::Barrier(Durable::new(call.run.clone(), barrier)),
            None => self.lost(),
        }
    }

    /// There is no body to run any more.
    fn lost(&mut self) {
        self.stage = Stage::Over;
        if let Some(call) = &self.call {
            call.run.interrupt(Interrupt::Lost);
        }
    }

    fn begin(&mut self) -> Poll<StepTurn> {
        if !self.call.as_ref().is_some_and(|call| call.run.lets_begin()) {
            // cancelled, or its time is up: the run's task stops the code
            self.stage = Stage::Over;
            return Poll::Pending;
        }
        body_begins();
        self.outcome = None;
        self.stage = Stage::Body;
        Poll::Ready(StepTurn::Body)
    }

    /// The body is over.
    fn record(&mut self, outcome: Result<Payload, Failure>) {
        let Some(call) = &self.call else { return };
        match outcome.and_then(|value| checked(call, &value)) {
            Ok(value) => match room_for(call, &value) {
                Some(room) => {
                    let at_once = call.run.complete(call.id(), CheckpointKind::Step, value.clone(), room);
                    self.stage = Stage::Delivery(value, at_once);
                }
                None => self.rarely(|call, _| {
                    Box::pin(async move {
                        let (payload, room) = stored(&call, value.clone()).await;
                        call.deliver(CheckpointKind::Step, payload, room).await;
                        (call, Next::Over(Ok(value)))
                    })
                }),
            },
            Err(failure) => {
                let attempt = self.attempt;
                self.rarely(|call, options| {
                    Box::pin(async move {
                        let next = match after_failure(&call, attempt, failure, options.retry).await {
                            Ok(()) => Next::Attempt(attempt + 1),
                            Err(failure) => Next::Over(Err(failure)),
                        };
                        (call, next)
                    })
                });
            }
        }
    }

    fn rarely(
        &mut self,
        rare: impl FnOnce(Call, StepOptions) -> Pin<Box<dyn Future<Output = (Call, Next)> + Send>>,
    ) {
        let Some(call) = self.call.take() else { return };
        let options = self.options.as_deref().copied().unwrap_or_default();
        self.stage = Stage::Rare(rare(call, options));
    }

    fn over(&mut self, outcome: Result<Payload, Failure>) -> Poll<StepTurn> {
        self.stage = Stage::Over;
        self.call = None;
        Poll::Ready(StepTurn::Over(outcome))
    }
}
