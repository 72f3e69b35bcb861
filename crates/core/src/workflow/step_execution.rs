//! [`StepExecution`]: the state of a step until its outcome. The step is polled in place: its state is small, and rare
//! paths are boxed.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::commit::DurableFuture;
use crate::error::Error;
use crate::failure::Failure;
use crate::path::Path;
use crate::payload::{FromPayload, INLINE_LIMIT, Payload};
use crate::runtime::run::call::{Call, Delivery};
use crate::runtime::run::chunks::{self, ChunkTarget};
use crate::runtime::run::{Interrupt, Run};
use crate::store::{Attempt, CheckpointKind, Outcome, Write};
use crate::workflow::messaging::StepScope;
use crate::workflow::retry::{RetryPolicy, StepOptions};

/// A step without its body. The holder of this value runs the body when [`StepExecution::poll`] returns
/// [`StepAction::RunBody`]. A step that is dropped before it has finished is recorded as abandoned.
pub(crate) struct StepExecution {
    /// The call; `None` if the call could not begin, while the slow path has it, and after `free_call`.
    call: Option<Call>,
    /// The options of the step; `None` for the defaults.
    options: Option<Box<StepOptions>>,
    attempt: u32,
    /// The pause before the next attempt, after a failed one; `None` if no further attempt is allowed.
    retry_pause: Option<Duration>,
    /// The result of the body.
    outcome: Option<Result<Payload, Box<Failure>>>,
    stage: StepStage,
}

/// The next action of the holder of a step.
pub enum StepAction {
    /// Run the body once, pass its result to `finish`, and poll the step again.
    RunBody,
    /// Continue with this outcome: the step has finished. The failure is boxed to keep waiting steps small.
    Finished(Result<Payload, Box<Failure>>),
}

enum StepStage {
    /// The call could not begin.
    Invalid(Box<Failure>),
    Created,
    /// In a replay: waiting for the recorded outcome.
    Waiting,
    /// Waiting until the Writes before the body are durable.
    Barrier(DurableFuture<Arc<Run>>),
    /// Waiting for the end of a pause: the run's task parks the execution when all other branches wait too.
    Paused,
    Body,
    /// Waiting for the delivery of the value; the delivery is present if it came at once.
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

impl StepExecution {
    pub(crate) fn new(begun_call: Result<Call, Failure>, options: Option<Box<StepOptions>>) -> Self {
        let (call, stage) = match begun_call {
            Ok(call) => (Some(call), StepStage::Created),
            Err(failure) => (None, StepStage::Invalid(failure.into())),
        };
        Self { call, options, attempt: 1, retry_pause: None, outcome: None, stage }
    }

    /// Reports the body's result. A result is ignored if it is reported before `poll` has returned
    /// [`StepAction::RunBody`].
    pub(crate) fn finish(&mut self, outcome: Result<Payload, Failure>) {
        self.retry_pause = outcome.as_ref().err().and_then(|failure| self.pause_before_retry(failure));
        self.outcome = Some(outcome.map_err(Box::new));
    }

    /// Returns the attempt whose body runs, which may write to streams and send messages.
    pub(crate) fn scope(&self) -> Option<StepScope> {
        self.call.as_ref().map(|call| StepScope::new(call, self.attempt))
    }

    /// Returns the attempt whose body runs, if the code of the workflow has asked for writers of streams or for senders.
    pub(crate) fn calling_scope(&self) -> Option<StepScope> {
        let run = &self.call.as_ref()?.run;
        if run.has_body_calls.load(SeqCst) { self.scope() } else { None }
    }

    /// Returns the number of the current attempt, from 1.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the pause before the next attempt, after the body's failure was reported; `None`
    /// if no further attempt is allowed.
    pub(crate) fn retry_pause(&self) -> Option<Duration> {
        self.retry_pause
    }

    fn pause_before_retry(&self, failure: &Failure) -> Option<Duration> {
        let options = self.options.as_deref().copied().unwrap_or_default();
        options.retry.pause_before_retry(self.attempt, failure)
    }

    /// Polls the step: returns the holder's next action, or `Pending` while it has to wait.
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<StepAction> {
        loop {
            match &mut self.stage {
                StepStage::Created | StepStage::Waiting => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    if matches!(self.stage, StepStage::Created) {
                        call.mark_awaited();
                    }
                    let Poll::Ready(recorded) = call.poll_recorded(cx) else {
                        self.stage = StepStage::Waiting;
                        return Poll::Pending;
                    };
                    match recorded {
                        Some(delivery) => self.run_slow_path(|call, _| {
                            Box::pin(async move {
                                let outcome = replayed_payload(&call, delivery).await;
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
                        if let Some(action) = self.begin_body() {
                            return Poll::Ready(action);
                        }
                    } else {
                        self.run_slow_path(|call, _| {
                            Box::pin(async move {
                                wait_for_lease(&call.run).await;
                                (call, NextStage::Body)
                            })
                        });
                    }
                }
                StepStage::Paused => {
                    let Some(call) = &self.call else { return Poll::Pending };
                    std::task::ready!(call.poll_pause(cx));
                    self.wait_for_barrier();
                }
                StepStage::Body => {
                    let Some(outcome) = self.outcome.take() else { return Poll::Pending };
                    crate::crash_point!("body ended and not recorded");
                    if let Some(value) = self.record_result(outcome.map_err(|failure| *failure)) {
                        return self.complete(Ok(value));
                    }
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
                        NextStage::Body => {
                            if let Some(action) = self.begin_body() {
                                return Poll::Ready(action);
                            }
                        }
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
                    return Poll::Ready(StepAction::Finished(Err(failure)));
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

    /// Begins the body. Returns `None` if the body may not begin now, after setting the next stage.
    fn begin_body(&mut self) -> Option<StepAction> {
        if self.call.as_ref().is_some_and(|call| call.run.is_pausing()) {
            self.stage = StepStage::Paused;
            return None;
        }
        if !self.call.as_ref().is_some_and(|call| call.run.can_begin_body()) {
            // the execution is cancelled, or past its deadline: the run's task stops the code
            self.stage = StepStage::Finished;
            return None;
        }
        crate::crash_point!("body begins");
        self.outcome = None;
        self.stage = StepStage::Body;
        Some(StepAction::RunBody)
    }

    /// Records the body's result. Returns the value if the code receives it at once, without waiting for a delivery.
    fn record_result(&mut self, outcome: Result<Payload, Failure>) -> Option<Payload> {
        let call = self.call.as_ref()?;
        match outcome.and_then(|value| {
            check_size(call, "the outcome of step", value).map_err(|error| error.to_failure())
        }) {
            Ok(value) => match try_reserve_inline(call, &value) {
                Some(reserved) => {
                    let immediate =
                        call.run.complete_call(call.id(), CheckpointKind::Step, value.clone(), reserved);
                    if immediate.is_some() && call.run.definition.is_eager {
                        return Some(value);
                    }
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
                // a value that is too large becomes a failure only here: its pause is not computed yet
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
        None
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
        Poll::Ready(StepAction::Finished(outcome.map_err(Box::new)))
    }

    /// Frees the call of a finished step, so that another call may get its id.
    pub(crate) fn free_call(&mut self) {
        self.call = None;
    }

    /// Returns the recorded value of a finished step. Parks the execution if the value is not a `T`.
    pub(crate) async fn decode_replayed<T: FromPayload>(self, payload: &Payload) -> Result<T, Failure> {
        match (T::from_payload(payload), &self.call) {
            (Ok(value), _) => Ok(value),
            (Err(error), Some(call)) => {
                let name = call.run.call_name(call.id());
                call.park(error.with_value(|| format!("the value of step {name:?}")).to_string()).await
            }
            (Err(error), None) => Err(error.to_failure()),
        }
    }
}

/// Records a failed attempt, and waits for `pause` until the next attempt is due. If `pause` is `None`, no further
/// attempt is allowed: the function then records the failure as the step's outcome, and returns it.
async fn handle_failed_attempt(
    call: &Call,
    attempt: u32,
    failure: Failure,
    pause: Option<Duration>,
) -> Result<(), Failure> {
    let Some(pause) = pause else {
        return record_final_failure(call, failure).await;
    };
    record_attempt(call, attempt, &failure);
    crate::crash_point!("attempt staged");
    // the pause is not recorded, and the run does not suspend for it
    sleep_before_retry(call, pause).await;
    Ok(())
}

/// Returns the recorded payload of a step.
async fn replayed_payload(call: &Call, delivery: Delivery) -> Result<Payload, Failure> {
    let payload = call.fetch(delivery.outcome).await;
    if delivery.kind != CheckpointKind::Failed {
        return Ok(payload);
    }
    match payload.decode::<Failure>() {
        Ok(failure) => Err(failure),
        Err(error) => call.park(error.to_string()).await,
    }
}

/// Continues a step with attempts that failed before a crash: waits for the rest of the pause, and returns the number
/// of the next attempt. If the policy allows no further attempt, records the last failure as the outcome and returns
/// it.
async fn resume_attempts(call: &Call, policy: RetryPolicy) -> Result<u32, Failure> {
    let failed = call.run.take_attempts(&call.path);
    let attempt = failed.len() as u32 + 1;
    let Some(last) = failed.last() else { return Ok(attempt) };
    let failure = last.failure.decode::<Failure>().unwrap_or_else(Failure::from);
    if !policy.allows_retry(attempt - 1, &failure) {
        return record_final_failure(call, failure).await;
    }
    // the remaining time is at most the whole pause, whatever the clock showed when the attempt failed
    let whole = policy.pause_after(attempt - 1);
    let remaining = last.at.plus(whole).since(call.run.engine.now());
    sleep_before_retry(call, remaining.min(whole)).await;
    Ok(attempt)
}

/// Sleeps until the next attempt is due. The run may be parked for a pause meanwhile.
async fn sleep_before_retry(call: &Call, pause: Duration) {
    let mut sleep = pin!(tokio::time::sleep(pause));
    while let Either::Right(_) = select(sleep.as_mut(), pin!(call.run.wait_pausing())).await {
        poll_fn(|cx| call.poll_pause(cx)).await;
    }
}

/// Whether a body may begin. `outcome` is the outcome of the Write for which the body has waited.
fn permits_body(run: &Run, outcome: &Outcome) -> bool {
    !run.is_disowned()
        && match outcome {
            Outcome::Applied | Outcome::RequestHandled(..) => true,
            // an earlier run has started this child, so the child exists
            Outcome::Duplicate(existing) => existing.parent == Some(run.key),
            _ => false,
        }
}

/// Waits until the worker holds its lease. A worker whose lease has run out may have been taken over, so no body begins
/// before the worker has renewed the lease.
async fn wait_for_lease(run: &Run) {
    let lease = &run.engine.lease;
    if lease.is_held() {
        return;
    }
    lease.wait_held().await;
    if run.is_disowned() {
        // the worker was taken over: it now holds the lease of another registration
        run.interrupt(Interrupt::Disowned);
        std::future::pending::<()>().await;
    }
}

/// Returns the payload, or an error if it exceeds the limit of values. The error calls the payload `noun` of the call's name.
pub(crate) fn check_size(call: &Call, noun: &str, payload: Payload) -> Result<Payload, Error> {
    let limit = call.run.engine.options.value_limit;
    if payload.len() <= limit {
        return Ok(payload);
    }
    let value = format!("{noun} {:?}", call.run.call_name(call.id()));
    Err(Error::TooLarge { value, size: payload.len(), limit })
}

/// Reserves budget for a payload that fits into its row. Returns `None` if the payload is larger, or if the budget is
/// used up.
fn try_reserve_inline(call: &Call, payload: &Payload) -> Option<u32> {
    if payload.len() > INLINE_LIMIT {
        return None;
    }
    Some(call.run.lane().try_reserve(payload.len() + 256)).filter(|reserved| *reserved > 0)
}

pub(crate) async fn store_payload(call: &Call, payload: Payload) -> (Payload, u32) {
    chunks::store(ChunkTarget::for_run(&call.run, call.run.key), payload, 0).await
}

fn record_attempt(call: &Call, attempt: u32, failure: &Failure) {
    let run = &call.run;
    let path: Path = call.path.clone();
    let (failure, at) = (Payload::from_failure(failure), run.engine.now());
    run.stage(Write::Attempt(Attempt { execution: run.key, path, attempt, failure, at }), 0);
}

/// Records the failure as the step's outcome and returns it.
async fn record_final_failure<T>(call: &Call, failure: Failure) -> Result<T, Failure> {
    let (payload, reserved) = store_payload(call, Payload::from_failure(&failure)).await;
    call.deliver(CheckpointKind::Failed, payload, reserved).await;
    Err(failure)
}
