//! [`GuestStep`]: a step whose body a guest runs. It is equivalent to a step in Rust (`step::run_step`), but is polled in
//! place: it is small, and rare paths are boxed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::commit::DurableFuture;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::run::call::{Call, Delivery};
use crate::runtime::run::{Interrupt, Run};
use crate::store::CheckpointKind;
use crate::workflow::retry::StepOptions;
use crate::workflow::step::{
    resume_attempts, handle_failed_attempt, mark_body_start, mark_body_end, encode_checked, wait_for_lease, permits_body, replayed_outcome, try_reserve_inline,
    store_payload,
};

/// A step whose body the caller runs, when [`GuestStep::poll`] asks for it. A step that is dropped before it has finished
/// is recorded as abandoned.
pub struct StepCall {
    /// The call; `None` once the step has finished, and while the slow path has it.
    call: Option<Call>,
    /// `None` for the defaults.
    options: Option<Box<StepOptions>>,
    attempt: u32,
    /// The result of the body.
    outcome: Option<Result<Payload, Box<Failure>>>,
    stage: Stage,
}

/// The next action of a guest that polls a step.
pub enum StepTurn {
    /// Run the body once, [finish](GuestStep::finish) the step with the result, and poll again.
    Body,
    /// Continue: the step has finished.
    Over(Result<Payload, Failure>),
}

enum Stage {
    /// The call could not begin.
    Invalid(Box<Failure>),
    Made,
    /// In a replay: waiting for the recorded outcome.
    Waiting,
    /// Waiting until the Writes before the body are durable.
    Barrier(DurableFuture<Arc<Run>>),
    Body,
    /// Waiting for the delivery of the value, unless it came at once.
    Delivery(Payload, Option<Delivery>),
    Rare(Pin<Box<dyn Future<Output = (Call, Next)> + Send>>),
    /// Finished, or stopped for good.
    Over,
}

/// The stage that follows the slow path.
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

    /// Reports the body's result. A result that is reported before the body was asked for is ignored.
    pub fn finish(&mut self, outcome: Result<Payload, Failure>) {
        self.outcome = Some(outcome.map_err(Box::new));
    }

    /// Polls the step: returns the guest's next action, or `Pending` while it has to wait.
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
                                let outcome = replayed_outcome(&call, delivery).await;
                                (call, Next::Over(outcome))
                            })
                        }),
                        None if call.run.is_replayed => self.rarely(|call, options| {
                            Box::pin(async move {
                                let next = match resume_attempts(&call, options.retry).await {
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
                    if !permits_body(&call.run, &outcome) {
                        self.lost();
                    } else if call.run.core.lease.is_held() {
                        return self.begin();
                    } else {
                        self.rarely(|call, _| {
                            Box::pin(async move {
                                wait_for_lease(&call.run).await;
                                (call, Next::Body)
                            })
                        });
                    }
                }
                Stage::Body => {
                    let Some(outcome) = self.outcome.take() else { return Poll::Pending };
                    mark_body_end();
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

    /// Waits until the earlier Writes are durable.
    fn approach(&mut self) {
        let Some(call) = &self.call else { return };
        let is_speculative = self.options.as_ref().is_some_and(|options| options.is_speculative);
        match call.run.barrier(is_speculative) {
            Some(barrier) => self.stage = Stage::Barrier(DurableFuture::new(call.run.clone(), barrier)),
            None => self.lost(),
        }
    }

    /// Stops the step, because the run is disowned.
    fn lost(&mut self) {
        self.stage = Stage::Over;
        if let Some(call) = &self.call {
            call.run.interrupt(Interrupt::Lost);
        }
    }

    fn begin(&mut self) -> Poll<StepTurn> {
        if !self.call.as_ref().is_some_and(|call| call.run.lets_begin()) {
            // cancelled, or past its deadline: the run's task stops the code
            self.stage = Stage::Over;
            return Poll::Pending;
        }
        mark_body_start();
        self.outcome = None;
        self.stage = Stage::Body;
        Poll::Ready(StepTurn::Body)
    }

    /// Records the body's result.
    fn record(&mut self, outcome: Result<Payload, Failure>) {
        let Some(call) = &self.call else { return };
        match outcome.and_then(|value| encode_checked(call, &value)) {
            Ok(value) => match try_reserve_inline(call, &value) {
                Some(room) => {
                    let at_once = call.run.complete(call.id(), CheckpointKind::Step, value.clone(), room);
                    self.stage = Stage::Delivery(value, at_once);
                }
                None => self.rarely(|call, _| {
                    Box::pin(async move {
                        let (payload, room) = store_payload(&call, value.clone()).await;
                        call.deliver(CheckpointKind::Step, payload, room).await;
                        (call, Next::Over(Ok(value)))
                    })
                }),
            },
            Err(failure) => {
                let attempt = self.attempt;
                self.rarely(|call, options| {
                    Box::pin(async move {
                        let next = match handle_failed_attempt(&call, attempt, failure, options.retry).await {
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
