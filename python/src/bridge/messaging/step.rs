//! Calls in the bodies of steps: messages and values of streams.

use pyo3::prelude::*;
use stepfast::guest::StepScope;
use stepfast::{Error, Payload};

use crate::bridge::branch::Branch;
use crate::bridge::call::Call;
use crate::bridge::coroutine::CallCoroutine;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::convert::value::encode;

/// Makes a call with a value, in the body of an attempt of a step. Returns an awaitable call if the body `is_on_loop`, and
/// `None` if the attempt has ended. `name` names the call in tracebacks.
pub(super) fn call_in_step<F>(
    branch: &Bound<'_, Branch>,
    step: &Bound<'_, Call>,
    attempt: u32,
    value: &Bound<'_, PyAny>,
    is_on_loop: bool,
    name: &'static str,
    call: impl FnOnce(StepScope, Payload) -> F,
) -> PyResult<Option<Call>>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let py = branch.py();
    branch.get().check_process(py)?;
    let value = encode(value)?;
    let Some(scope) = step.get().step_scope(attempt) else { return Ok(None) };
    let done = call(scope, value);
    let future: ReplyFuture =
        Box::pin(async move { done.await.map_or_else(Reply::Error, |()| Reply::Nothing) });
    let control = Some(branch.get().control().clone());
    let port = branch.get().port(py).filter(|_| is_on_loop);
    let call = Call::new(port.as_ref().map(|port| port.bind(py)), control, future);
    Ok(Some(if port.is_some() { call.with_coroutine(CallCoroutine::for_program(name)) } else { call }))
}

/// Sends a message, in the body of an attempt of a step. Returns as [`call_in_step`] does.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the arguments of the Python function
pub(crate) fn send_in_step(
    branch: &Bound<'_, Branch>,
    step: &Bound<'_, Call>,
    attempt: u32,
    workflow_id: String,
    value: &Bound<'_, PyAny>,
    topic: String,
    keeps: bool,
    is_on_loop: bool,
) -> PyResult<Option<Call>> {
    let send =
        |scope: StepScope, value| async move { scope.send_payload(workflow_id, value, &topic, keeps).await };
    call_in_step(branch, step, attempt, value, is_on_loop, "send", send)
}
