//! Steps: bodies whose outcome is recorded once, and their retries.

use std::future::{IntoFuture, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::failure::{ATTEMPT_TIMED_OUT, Failure, IntoFailure};
use crate::name::Name;
use crate::name_checks::check_name;
use crate::path::Path;
use crate::payload::{FromPayload, Payload, ToPayload};
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::workflow::context::Context;
use crate::workflow::retry::{RetryPolicy, StepOptions};
use crate::workflow::step_execution::{StepAction, StepExecution};

/// A builder for a step: `.await` it to run the step. Returned by [`Context::step`].
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'c, F> {
    cx: &'c mut Context,
    name: Name,
    body: F,
    /// The options of the step; `None` for the defaults.
    options: Option<Box<StepOptions>>,
    fingerprint: Option<Result<u64, Error>>,
}

impl Context {
    /// Runs `body` as a step and records its outcome once; a replay returns the recorded outcome.
    ///
    /// The body starts when every earlier Write of the execution is durable. Except for retries, the body runs again
    /// only if its run stopped before the outcome was recorded, as in a crash or a shutdown.
    ///
    /// The body is a closure that returns a future, because each attempt calls it once: `async || call(&order).await`.
    /// The value of the body needs serde's `Serialize` and `Deserialize`. The error may be a [`Failure`] or any
    /// `std::error::Error` ([`IntoFailure`]); where the compiler cannot infer the type, write `Ok::<_,
    /// Failure>(value)`. By default there is one attempt, without a time limit; see [`retries`](Step::retries),
    /// [`RetryPolicy`] and [`timeout`](Step::timeout).
    pub fn step<F, Fut, T, E>(&mut self, name: impl Into<Name>, body: F) -> Step<'_, F>
    where
        // the same bounds as those of `IntoFuture`: repeated here, they let the compiler point at the body
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
    /// idempotent calls. A crash may then lose the latest outcomes, although the body has used them. No crash loses an
    /// outcome and keeps a later one.
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
/// A waiting step takes little more memory than its body. Rare paths are boxed, and arguments are used in place; an
/// `async fn` would keep them twice.
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
        let timeout = options.as_ref().and_then(|options| options.timeout);
        let mut execution = StepExecution::new(Ok(call), options);
        // the value of the last attempt, which need not be decoded
        let mut kept = None;
        loop {
            match poll_fn(|cx| execution.poll(cx)).await {
                StepAction::RunBody => {
                    let result = match (timeout, execution.calling_scope()) {
                        (None, None) => run_attempt(&mut body).await,
                        (Some(timeout), None) => Box::pin(run_attempt_within(&mut body, timeout)).await,
                        (timeout, Some(scope)) => {
                            let timeout = timeout.unwrap_or(Duration::MAX);
                            let mut attempt = Box::pin(run_attempt_within(&mut body, timeout));
                            poll_fn(|cx| scope.poll(attempt.as_mut(), cx)).await
                        }
                    };
                    execution.finish(result.and_then(|value| {
                        let payload = value.to_payload().map_err(|error| error.to_failure());
                        kept = Some(value);
                        payload
                    }));
                }
                StepAction::Finished(outcome) => {
                    let payload = outcome.map_err(|failure| *failure)?;
                    return match kept {
                        Some(value) => Ok(value),
                        None => Box::pin(execution.decode_replayed(&payload)).await,
                    };
                }
            }
        }
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
