//! Steps: bodies whose outcome is recorded once, and their retries.

use std::future::IntoFuture;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::failure::{ATTEMPT_TIMED_OUT, Failure, IntoFailure};
use crate::name::Name;
use crate::path::Path;
use crate::payload::{FromPayload, INLINE_LIMIT, Payload, ToPayload};
use crate::runtime::run::call::{Call, Delivery};
use crate::runtime::run::chunks::ChunkTarget;
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::{Interrupt, Run};
use crate::store::{Attempt, CheckpointKind, Outcome, Write};
use crate::text::check_name;
use crate::workflow::context::Context;
use crate::workflow::retry::{RetryPolicy, StepOptions};

/// A builder for a step: `.await` it to run the step. Returned by [`Context::step`].
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'c, F> {
    cx: &'c mut Context,
    name: Name,
    body: F,
    /// `None` for the defaults.
    options: Option<Box<StepOptions>>,
    fingerprint: Option<Result<u64, Error>>,
}

impl Context {
    /// Runs `body` as a step and records its outcome once; a replay returns the recorded outcome.
    ///
    /// The body starts when every earlier Write of the execution is durable. It runs again only if a crash came before
    /// its outcome was recorded.
    ///
    /// The body is a closure that returns a future, because each attempt calls it once:
    /// `async || call(&order).await`. Its value needs serde's `Serialize` and `Deserialize`. Its error may be a
    /// [`Failure`] or any `std::error::Error` ([`IntoFailure`]); where the compiler cannot infer the type, write
    /// `Ok::<_, Failure>(value)`. By default there is one attempt, without a time limit; see
    /// [`retries`](Step::retries), [`RetryPolicy`] and [`timeout`](Step::timeout).
    pub fn step<F, Fut, T, E>(&mut self, name: impl Into<Name>, body: F) -> Step<'_, F>
    where
        // the same bounds as of the future; stated here, the compiler can point at the body
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: IntoFailure,
    {
        Step { cx: self, name: name.into(), body, options: None, fingerprint: None }
    }
}

impl<F> Step<'_, F> {
    fn options(&mut self) -> &mut StepOptions {
        self.options.get_or_insert_default()
    }

    /// Allows up to `retries` further attempts after a failed one, with exponential backoff.
    pub fn retries(mut self, retries: u32) -> Self {
        self.options().retry.retries = retries;
        self
    }

    /// Sets the pause before the second attempt (1 s by default) and the longest pause (60 s by default).
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.options().retry.backoff = first;
        self.options().retry.max_backoff = max;
        self
    }

    /// Sets the whole retry policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options().retry = policy;
        self
    }

    /// Retries only failures for which `retry_if` returns true.
    pub fn retry_if(mut self, retry_if: fn(&Failure) -> bool) -> Self {
        self.options().retry.retry_if = Some(retry_if);
        self
    }

    /// Fails an attempt that takes longer than `timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options().timeout = Some(timeout);
        self
    }

    /// Lets the body run before the checkpoints of earlier steps are durable: for reads, pure computations and
    /// idempotent calls. A crash then loses the last recorded outcomes, and never one in the middle.
    pub fn speculative(mut self) -> Self {
        self.options().is_speculative = true;
        self
    }

    /// Records a fingerprint of the step's arguments. A replay that passes other arguments parks the execution, instead
    /// of using an outcome that belongs to other arguments.
    pub fn args<A: Serialize + ?Sized>(mut self, args: &A) -> Self {
        self.fingerprint = Some(Payload::encode(args).map(|payload| payload.fingerprint()));
        self
    }
}

impl<'c, F, Fut, T, E> IntoFuture for Step<'c, F>
where
    F: FnMut() -> Fut + Send + 'c,
    Fut: Future<Output = Result<T, E>> + Send + 'c,
    T: Serialize + DeserializeOwned + Send + 'c,
    E: IntoFailure + Send + 'c,
{
    type Output = Result<T, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let Step { cx, name, body, options, fingerprint } = self;
        let path = cx.next_path();
        match begin_step_call(&cx.run, path, &name, fingerprint, options.as_deref()) {
            Ok(call) => Box::pin(run_step(call, body, options)),
            Err(failure) => Box::pin(std::future::ready(Err(failure))),
        }
    }
}

/// Begins the call of a step, unless its name, its options or its arguments are invalid.
pub(crate) fn begin_step_call(
    run: &Arc<Run>,
    path: Path,
    name: &Name,
    fingerprint: Option<Result<u64, Error>>,
    options: Option<&StepOptions>,
) -> Result<Call, Failure> {
    let checked =
        check_name("step name", name).and_then(|()| options.map_or(Ok(()), |options| options.retry.check()));
    match (checked, fingerprint.transpose()) {
        (Ok(()), Ok(fingerprint)) => Ok(Call::begin(run, path, name, CallKind::Step, fingerprint)),
        (Err(error), _) | (_, Err(error)) => Err(error.to_failure()),
    }
}

/// Runs a step to its outcome.
///
/// Rare paths are boxed, and arguments are used in place (an `async fn` keeps them twice): a waiting step takes little
/// more memory than its body.
#[allow(clippy::manual_async_fn)]
pub(crate) fn run_step<F, Fut, T, E>(
    call: Call,
    mut body: F,
    options: Option<Box<StepOptions>>,
) -> impl Future<Output = Result<T, Failure>> + Send
where
    F: FnMut() -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
    T: ToPayload + FromPayload + Send,
    E: IntoFailure,
{
    async move {
        let call = &call;
        if let Some(delivery) = call.wait_recorded().await {
            return Box::pin(replayed_outcome(call, delivery)).await;
        }
        let (is_speculative, timeout) =
            options.as_ref().map_or((false, None), |options| (options.is_speculative, options.timeout));
        let mut attempt = 1;
        if call.run.is_replayed {
            let policy = options.as_ref().map(|options| options.retry).unwrap_or_default();
            attempt = Box::pin(resume_attempts(call, policy)).await?;
        }
        loop {
            wait_for_body_start(call, is_speculative).await;
            mark_body_start();
            let result = match timeout {
                None => run_attempt(&mut body).await,
                Some(timeout) => Box::pin(run_attempt_within(&mut body, timeout)).await,
            };
            mark_body_end();
            match result.and_then(|value| Ok((encode_checked(call, &value)?, value))) {
                Ok((payload, value)) => {
                    let (payload, reserved) = match try_reserve_inline(call, &payload) {
                        Some(reserved) => (payload, reserved),
                        None => Box::pin(store_payload(call, payload)).await,
                    };
                    let immediate =
                        call.run.complete_call(call.id(), CheckpointKind::Step, payload, reserved);
                    call.wait_delivered(immediate).await;
                    return Ok(value);
                }
                Err(failure) => {
                    let policy = options.as_ref().map(|options| options.retry).unwrap_or_default();
                    let pause = policy.pause_before_retry(attempt, &failure);
                    Box::pin(handle_failed_attempt(call, attempt, failure, pause)).await?;
                }
            }
            attempt += 1;
        }
    }
}

/// Encodes the value of a step. Returns a failure if the value cannot be recorded.
pub(crate) fn encode_checked<T: ToPayload>(call: &Call, value: &T) -> Result<Payload, Failure> {
    let payload = value.to_payload().and_then(|payload| check_size(call, payload));
    payload.map_err(|error| error.to_failure())
}

/// Records a failed attempt and waits for `pause`, until the next one is due. Without a pause no further attempt is
/// allowed: records the failure as the step's outcome instead, and returns it.
pub(crate) async fn handle_failed_attempt(
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
    // this pause is not recorded, and the run does not suspend for it
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Returns the recorded outcome of a step.
pub(crate) async fn replayed_outcome<T: FromPayload>(call: &Call, delivery: Delivery) -> Result<T, Failure> {
    let payload = call.fetch(delivery.outcome).await;
    match delivery.kind {
        CheckpointKind::Failed => match payload.decode::<Failure>() {
            Ok(failure) => Err(failure),
            Err(error) => call.park(error.to_string()).await,
        },
        _ => match T::from_payload(&payload) {
            Ok(value) => Ok(value),
            Err(error) => {
                let name = call.run.call_name(call.id());
                call.park(error.with_value(|| format!("the value of step {name:?}")).to_string()).await
            }
        },
    }
}

/// Continues the attempts that failed before a crash: waits for the rest of the pause and returns the number of the
/// next attempt. If the policy allows no further attempt, records the last failure as the outcome and returns it.
pub(crate) async fn resume_attempts(call: &Call, policy: RetryPolicy) -> Result<u32, Failure> {
    let failed = call.run.take_attempts(&call.path);
    let attempt = failed.len() as u32 + 1;
    let Some(last) = failed.last() else { return Ok(attempt) };
    let failure = last.failure.decode::<Failure>().unwrap_or_else(Failure::from);
    if !policy.allows_retry(attempt - 1, &failure) {
        return record_final_failure(call, failure).await;
    }
    // at most the whole pause, whatever the clock showed when the attempt failed
    let whole = policy.pause_after(attempt - 1);
    let remaining = last.at.plus(whole).since(call.run.engine.now());
    tokio::time::sleep(remaining.min(whole)).await;
    Ok(attempt)
}

/// Waits until the body may begin: all earlier Writes are durable.
async fn wait_for_body_start(call: &Call, is_speculative: bool) {
    let run = &call.run;
    if let Some(barrier) = run.barrier(is_speculative)
        && permits_body(run, &run.lane().wait_durable(barrier).await)
    {
        wait_for_lease(run).await;
        if run.can_begin_body() {
            return;
        }
        // cancelled, or past its deadline: the task stops the code
        return std::future::pending().await;
    }
    // the Start was a duplicate, or the lane is fenced: there is no body left to run
    run.interrupt(Interrupt::Disowned);
    std::future::pending::<()>().await;
}

pub(crate) fn mark_body_start() {
    crate::crash_point!("body begins");
}

pub(crate) fn mark_body_end() {
    crate::crash_point!("body ended and not recorded");
}

/// Whether a body may begin after the Write that it had to wait for had this `outcome`.
pub(crate) fn permits_body(run: &Run, outcome: &Outcome) -> bool {
    !run.is_disowned()
        && match outcome {
            Outcome::Applied | Outcome::RequestHandled(..) => true,
            // a child that an earlier run has started: it exists
            Outcome::Duplicate(existing) => existing.parent == Some(run.key),
            _ => false,
        }
}

/// Waits until the worker holds its lease. A worker whose lease has run out may have been taken over, so no body
/// begins before it has renewed.
pub(crate) async fn wait_for_lease(run: &Run) {
    let lease = &run.engine.lease;
    if lease.is_held() {
        return;
    }
    lease.wait_held().await;
    if run.is_disowned() {
        // taken over: the lease that is held now is that of another registration
        run.interrupt(Interrupt::Disowned);
        std::future::pending::<()>().await;
    }
}

async fn run_attempt<F, Fut, T, E>(body: &mut F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: IntoFailure,
{
    let body =
        std::panic::catch_unwind(AssertUnwindSafe(body)).map_err(|panic| Failure::from_panic(&*panic))?;
    match AssertUnwindSafe(body).catch_unwind().await {
        Ok(result) => result.map_err(IntoFailure::into_failure),
        Err(panic) => Err(Failure::from_panic(&*panic)),
    }
}

async fn run_attempt_within<F, Fut, T, E>(body: &mut F, timeout: Duration) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: IntoFailure,
{
    tokio::time::timeout(timeout, run_attempt(body)).await.unwrap_or_else(|_| {
        Err(Failure::with_kind(ATTEMPT_TIMED_OUT, format!("the attempt took longer than {timeout:?}")))
    })
}

fn check_size(call: &Call, payload: Payload) -> Result<Payload, Error> {
    let limit = call.run.engine.options.value_limit;
    if payload.len() <= limit {
        return Ok(payload);
    }
    let value = format!("the outcome of step {:?}", call.run.call_name(call.id()));
    Err(Error::TooLarge { value, size: payload.len(), limit })
}

/// Reserves staging budget for a payload that fits into its row; `None` if that needs waiting.
pub(crate) fn try_reserve_inline(call: &Call, payload: &Payload) -> Option<u32> {
    if payload.len() > INLINE_LIMIT {
        return None;
    }
    Some(call.run.lane().try_reserve(payload.len() + 256)).filter(|reserved| *reserved > 0)
}

pub(crate) async fn store_payload(call: &Call, payload: Payload) -> (Payload, u32) {
    crate::runtime::run::chunks::store(ChunkTarget::for_run(&call.run, call.run.key), payload).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_pauses_grow_to_maximum_and_jitter_shortens() {
        let policy = RetryPolicy { retries: 9, ..RetryPolicy::default() };
        let pauses: Vec<u64> = (1..9).map(|attempt| policy.pause_after(attempt).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(policy.pause_after(u32::MAX), Duration::from_secs(60));
        for attempt in 1..9 {
            let (pause, jittered) = (policy.pause_after(attempt), policy.jittered_pause_after(attempt));
            assert!(jittered <= pause && jittered >= pause / 2);
        }
        let unlimited =
            RetryPolicy { backoff: Duration::MAX, max_backoff: Duration::MAX, jitter: 0.0, ..policy };
        assert_eq!(unlimited.jittered_pause_after(1), Duration::MAX);
    }

    #[test]
    fn retry_policy_keeps_zero_pause_and_rejects_bad_numbers() {
        let policy = RetryPolicy { backoff: Duration::ZERO, factor: f64::INFINITY, ..RetryPolicy::default() };
        assert_eq!((policy.pause_after(1), policy.pause_after(9)), (Duration::ZERO, Duration::ZERO));
        assert!(policy.check().is_ok());
        for factor in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.5] {
            let error = RetryPolicy { factor, ..policy }.check().unwrap_err().to_string();
            assert!(error.starts_with("factor: is ") && error.contains("at least 1"), "{error}");
        }
        for jitter in [f64::NAN, f64::INFINITY, -0.5, 1.5] {
            let error = RetryPolicy { jitter, ..policy }.check().unwrap_err().to_string();
            assert!(error.starts_with("jitter: is ") && error.contains("0 to 1"), "{error}");
        }
    }

    #[test]
    fn retry_policy_limits_attempts_and_failures() {
        let policy = RetryPolicy { retries: 2, ..RetryPolicy::default() };
        let failure = Failure::new("x");
        assert!(
            policy.allows_retry(1, &failure)
                && policy.allows_retry(2, &failure)
                && !policy.allows_retry(3, &failure)
        );
        assert!(!policy.allows_retry(1, &failure.clone().permanent()));
        let restricted = RetryPolicy { retry_if: Some(|failure| failure.message == "again"), ..policy };
        assert!(restricted.allows_retry(1, &Failure::new("again")) && !restricted.allows_retry(1, &failure));
        let steady = RetryPolicy { jitter: 0.0, ..policy };
        let pauses = [1, 2, 3].map(|attempt| steady.pause_before_retry(attempt, &failure));
        assert_eq!(pauses, [Some(Duration::from_secs(1)), Some(Duration::from_secs(2)), None]);
    }
}
