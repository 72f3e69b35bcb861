//! [`GuestStep`]: a step whose body a guest runs. It is equivalent to a step in Rust (`step::run_step`), but is
//! polled in place: it is small, and rare paths are boxed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::commit::DurableFuture;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::run::call::{Call, Delivery};
use crate::runtime::run::{Interrupt, Run};
use crate::store::CheckpointKind;
use crate::workflow::retry::StepOptions;
use crate::workflow::step::{
    encode_checked, handle_failed_attempt, mark_body_end, mark_body_start, permits_body, replayed_outcome,
    resume_attempts, store_payload, try_reserve_inline, wait_for_lease,
};

/// A step whose body the caller runs, when [`GuestStep::poll`] asks for it. A step that is dropped before it has
/// finished is recorded as abandoned.
pub struct GuestStep {
    /// The call; `None` once the step has finished, and while the slow path has it.
    call: Option<Call>,
    /// `None` for the defaults.
    options: Option<Box<StepOptions>>,
    attempt: u32,
    /// The pause before the next attempt, after a failed one; `None` if no further attempt is allowed.
    retry_pause: Option<Duration>,
    /// The result of the body.
    outcome: Option<Result<Payload, Box<Failure>>>,
    stage: StepStage,
}

/// The next action of a guest that polls a step.
pub enum StepAction {
    /// Run the body once, [finish](GuestStep::finish) the step with the result, and poll again.
    RunBody,
    /// Continue: the step has finished.
    Finished(Result<Payload, Failure>),
}

enum StepStage {
    /// The call could not begin.
    Invalid(Box<Failure>),
    Created,
    /// In a replay: waiting for the recorded outcome.
    Waiting,
    /// Waiting until the Writes before the body are durable.
    Barrier(DurableFuture<Arc<Run>>),
    Body,
    /// Waiting for the delivery of the value, unless it came at once.
    Delivery(Payload, Option<Delivery>),
    SlowPath(Pin<Box<dyn Future<Output = (Call, NextStage)> + Send>>),
    /// Finished, or stopped for good.
    Finished,
}

/// The stage that follows the slow path.
enum NextStage {
    Body,
    Attempt(u32),
    Finished(Result<Payload, Failure>),
}

impl GuestStep {
    pub(crate) fn new(begun_call: Result<Call, Failure>, options: Option<Box<StepOptions>>) -> Self {
        let (call, stage) = match begun_call {
            Ok(call) => (Some(call), StepStage::Created),
            Err(failure) => (None, StepStage::Invalid(failure.into())),
        };
        Self { call, options, attempt: 1, retry_pause: None, outcome: None, stage }
    }

    /// Reports the body's result. A result that is reported before the body was asked for is ignored.
    pub fn finish(&mut self, outcome: Result<Payload, Failure>) {
        self.retry_pause = outcome.as_ref().err().and_then(|failure| self.pause_before_retry(failure));
        self.outcome = Some(outcome.map_err(Box::new));
    }

    /// Returns the number of the current attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the pause before the next attempt, after the body's failure was [reported](GuestStep::finish); `None`
    /// if no further attempt is allowed.
    pub fn retry_pause(&self) -> Option<Duration> {
        self.retry_pause
    }

    fn pause_before_retry(&self, failure: &Failure) -> Option<Duration> {
        let options = self.options.as_deref().copied().unwrap_or_default();
        options.retry.pause_before_retry(self.attempt, failure)
    }

    /// Polls the step: returns the guest's next action, or `Pending` while it has to wait.
    pub fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepAction> {
        loop {
            match &mut self.stage {
                StepStage::Created => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    call.mark_awaited();
                    self.stage = StepStage::Waiting;
                }
                StepStage::Waiting => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    match std::task::ready!(call.poll_recorded(cx)) {
                        Some(delivery) => self.run_slow_path(|call, _| {
                            Box::pin(async move {
                                let outcome = replayed_outcome(&call, delivery).await;
                                (call, NextStage::Finished(outcome))
                            })
                        }),
                        None if call.run.is_replayed => self.run_slow_path(|call, options| {
                            Box::pin(async move {
                                let next = match resume_attempts(&call, options.retry).await {
                                    Ok(attempt) => NextStage::Attempt(attempt),
                                    Err(failure) => NextStage::Finished(Err(failure)),
                                };
                                (call, next)
                            })
                        }),
                        None => self.wait_for_barrier(),
                    }
                }
                StepStage::Barrier(durable) => {
                    let outcome = std::task::ready!(Pin::new(durable).poll(cx));
                    let Some(call) = &self.call else { return Poll::Pending };
                    if !permits_body(&call.run, &outcome) {
                        self.disown();
                    } else if call.run.engine.lease.is_held() {
                        return self.begin_body();
                    } else {
                        self.run_slow_path(|call, _| {
                            Box::pin(async move {
                                wait_for_lease(&call.run).await;
                                (call, NextStage::Body)
                            })
                        });
                    }
                }
                StepStage::Body => {
                    let Some(outcome) = self.outcome.take() else { return Poll::Pending };
                    mark_body_end();
                    self.record_result(outcome.map_err(|failure| *failure));
                }
                StepStage::Delivery(_, immediate) => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    let delivery = match immediate.take() {
                        Some(delivery) => Some(delivery),
                        None => std::task::ready!(call.poll_delivery(cx)),
                    };
                    let is_eager = call.run.definition.is_eager;
                    let stage = std::mem::replace(&mut self.stage, StepStage::Finished);
                    let (StepStage::Delivery(value, _), Some(delivery)) = (stage, delivery) else {
                        return Poll::Pending;
                    };
                    if is_eager {
                        return self.complete(Ok(value));
                    }
                    self.run_slow_path(|call, _| {
                        Box::pin(async move {
                            call.wait_delivered(Some(delivery)).await;
                            (call, NextStage::Finished(Ok(value)))
                        })
                    });
                }
                StepStage::SlowPath(slow_path) => {
                    let (call, next) = std::task::ready!(slow_path.as_mut().poll(cx));
                    self.call = Some(call);
                    match next {
                        NextStage::Body => return self.begin_body(),
                        NextStage::Attempt(attempt) => {
                            self.attempt = attempt;
                            self.wait_for_barrier();
                        }
                        NextStage::Finished(outcome) => return self.complete(outcome),
                    }
                }
                StepStage::Invalid(_) => {
                    let StepStage::Invalid(failure) = std::mem::replace(&mut self.stage, StepStage::Finished)
                    else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(StepAction::Finished(Err(*failure)));
                }
                StepStage::Finished => return Poll::Pending,
            }
        }
    }

    /// Waits until the earlier Writes are durable.
    fn wait_for_barrier(&mut self) {
        let Some(call) = &self.call else { return };
        let is_speculative = self.options.as_ref().is_some_and(|options| options.is_speculative);
        match call.run.barrier(is_speculative) {
            Some(barrier) => self.stage = StepStage::Barrier(DurableFuture::new(call.run.clone(), barrier)),
            None => self.disown(),
        }
    }

    /// Stops the step, because the run is disowned.
    fn disown(&mut self) {
        self.stage = StepStage::Finished;
        if let Some(call) = &self.call {
            call.run.interrupt(Interrupt::Disowned);
        }
    }

    fn begin_body(&mut self) -> Poll<StepAction> {
        if !self.call.as_ref().is_some_and(|call| call.run.can_begin_body()) {
            // cancelled, or past its deadline: the run's task stops the code
            self.stage = StepStage::Finished;
            return Poll::Pending;
        }
        mark_body_start();
        self.outcome = None;
        self.stage = StepStage::Body;
        Poll::Ready(StepAction::RunBody)
    }

    /// Records the body's result.
    fn record_result(&mut self, outcome: Result<Payload, Failure>) {
        let Some(call) = &self.call else { return };
        match outcome.and_then(|value| encode_checked(call, &value)) {
            Ok(value) => match try_reserve_inline(call, &value) {
                Some(reserved) => {
                    let immediate =
                        call.run.complete_call(call.id(), CheckpointKind::Step, value.clone(), reserved);
                    self.stage = StepStage::Delivery(value, immediate);
                }
                None => self.run_slow_path(|call, _| {
                    Box::pin(async move {
                        let (payload, reserved) = store_payload(&call, value.clone()).await;
                        call.deliver(CheckpointKind::Step, payload, reserved).await;
                        (call, NextStage::Finished(Ok(value)))
                    })
                }),
            },
            Err(failure) => {
                let attempt = self.attempt;
                // the failure of a value that is too large was not reported
                let pause = self.retry_pause.or_else(|| self.pause_before_retry(&failure));
                self.run_slow_path(|call, _| {
                    Box::pin(async move {
                        let next = match handle_failed_attempt(&call, attempt, failure, pause).await {
                            Ok(()) => NextStage::Attempt(attempt + 1),
                            Err(failure) => NextStage::Finished(Err(failure)),
                        };
                        (call, next)
                    })
                });
            }
        }
    }

    fn run_slow_path(
        &mut self,
        slow_path: impl FnOnce(Call, StepOptions) -> Pin<Box<dyn Future<Output = (Call, NextStage)> + Send>>,
    ) {
        let Some(call) = self.call.take() else { return };
        let options = self.options.as_deref().copied().unwrap_or_default();
        self.stage = StepStage::SlowPath(slow_path(call, options));
    }

    fn complete(&mut self, outcome: Result<Payload, Failure>) -> Poll<StepAction> {
        self.stage = StepStage::Finished;
        self.call = None;
        Poll::Ready(StepAction::Finished(outcome))
    }
}
