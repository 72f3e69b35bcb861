//! The methods of a [`Call`] for Python code.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::guest::RunControl;
use stepfast::{Error, Payload};

use super::{Call, CallState, max_park_time, now};
use crate::bridge::branch::Branch;
use crate::bridge::mailbox::NewRun;
use crate::bridge::messaging::question::Question;
use crate::bridge::port::{Port, end_flush_burst};
use crate::bridge::reply::{FailureTuple, Reply};
use crate::bridge::waiter::Callback;
use crate::convert::value::{decode, encode};
use crate::exit::without_interpreter;
use crate::lock::Mutex;
use crate::poll_state::{PENDING, RUN_CHILD};
use crate::python_functions::python_functions;
use crate::unwinding::stop_code;

#[pymethods]
impl Call {
    /// Polls the call; returns its state code.
    fn poll(&self) -> u8 {
        self.advance()
    }

    /// Records the value that the body has returned; returns the call's state code.
    pub(crate) fn succeed(&self, value: &Bound<'_, PyAny>) -> PyResult<u8> {
        self.finish_step(Ok(encode(value)?));
        Ok(self.advance())
    }

    /// Records the failure of the body; returns the call's state code, and the pause before the next attempt, in
    /// seconds, if there is one.
    fn fail(&self, failure: FailureTuple) -> (u8, Option<f64>) {
        let pause = self.finish_step(Err(failure.into()));
        (self.advance(), pause.map(|pause| pause.as_secs_f64()))
    }

    /// Records the encoded value of a body that ran in another process. Callable from any thread.
    fn deliver(&self, py: Python<'_>, encoded: &[u8]) {
        self.finish_step(Ok(without_interpreter(py, || Payload::from_message_pack(encoded))));
        self.waker.wake_by_ref();
    }

    /// Records the failure of a body that ran in another process; returns the pause before the next attempt, in
    /// seconds, if there is one. Callable from any thread.
    fn deliver_failure(&self, failure: FailureTuple) -> Option<f64> {
        let pause = self.finish_step(Err(failure.into()));
        self.waker.wake_by_ref();
        pause.map(|pause| pause.as_secs_f64())
    }

    /// Takes the execution whose code the caller is to run: its first branch, and its arguments. From now until the
    /// code has returned, a wake polls the call.
    pub(crate) fn take_new_run<'py>(slf: &Bound<'py, Self>) -> Option<(Branch, Bound<'py, PyAny>)> {
        let call = slf.get();
        let new_run = call.new_run.as_ref().and_then(Mutex::take);
        let NewRun { branch, input, outcome_slot, .. } = new_run?;
        let input = crate::bridge::port::decode_or_park(slf.py(), &branch.run_control(), &input)?;
        call.waiter.set_polled_call(Some(slf.clone().unbind()));
        drop(call.outcome_slot.replace(Some(outcome_slot.clone())));
        let port = call.port.as_ref().map(|port| port.clone_ref(slf.py()));
        let branch = Branch::new(branch, Some(outcome_slot), port).run_by(slf.clone().unbind());
        Some((branch, input))
    }

    /// Records the output of the code that the caller has run; returns the call's state code.
    pub(crate) fn code_returned(&self, output: &Bound<'_, PyAny>) -> PyResult<u8> {
        let output = encode(output)?;
        Ok(self.finish_code(Ok(output)))
    }

    /// Records the failure of the code that the caller has run; returns the call's state code.
    fn code_failed(&self, failure: FailureTuple) -> u8 {
        self.finish_code(Err(failure.into()))
    }

    /// Ends the code that the caller has run, after it has unwound; returns the call's state code.
    fn code_unwound(&self) -> u8 {
        self.waiter.set_polled_call(None);
        self.advance()
    }

    /// Takes the result of the call as a Python object; None if the call has no result.
    pub(crate) fn take_value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let decoded = |payload: &Payload| match decode(py, payload) {
            Ok(value) => Ok(value.unbind()),
            Err(error) => Err(self.park_unreadable(py, error)),
        };
        match self.state.replace(CallState::Consumed) {
            CallState::Finished(Reply::Value(payload)) => decoded(&payload),
            CallState::Finished(Reply::Question(id, payload)) => {
                Ok(Py::new(py, Question::new(id, decoded(&payload)?))?.into_any())
            }
            CallState::Finished(reply) => reply.into_python(py),
            _ => Ok(py.None()),
        }
    }

    /// Returns the failure of the call: kind, message, causes, encoded exception.
    fn failure(&self) -> Option<(String, String, Vec<String>, Vec<u8>)> {
        self.state.with(|state| match state {
            CallState::Finished(Reply::Failed(failure)) => Some(crate::error::failure_parts(failure)),
            _ => None,
        })
    }

    /// Raises the error of the engine with which the call has ended.
    fn raise_error(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        let error = self.state.with(|state| match state {
            CallState::Finished(Reply::Error(error)) => Some(error.clone()),
            CallState::EngineClosed => Some(Error::Shutdown),
            _ => None,
        });
        error.map_or(Ok(()), |error| Err(crate::error::to_exception(py, &error)))
    }

    /// Whether the body may still begin. The thread may have waited for the interpreter after the call returned
    /// `RUN_BODY`.
    #[getter]
    fn can_begin(&self) -> bool {
        self.control.as_ref().is_none_or(RunControl::can_begin_body)
    }

    /// The reason why the code has to unwind, as of `unwinding::stop_code`.
    #[getter]
    fn stop_code(&self) -> u8 {
        self.control.as_ref().map_or(0, stop_code)
    }

    /// The path of a step in its execution, as text.
    #[getter]
    fn path(&self) -> Option<String> {
        self.path.as_ref().map(ToString::to_string)
    }

    /// The number of the step's current attempt, from 1; `None` for any other call.
    #[getter]
    pub(crate) fn attempt(&self) -> Option<u32> {
        // read without a lock, because every log record needs it
        Some(self.attempt.load(SeqCst)).filter(|&attempt| attempt > 0)
    }

    /// Ends the call: its result is no longer needed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.coroutine.as_ref().map_or(Ok(()), |coroutine| coroutine.close(self, py));
        self.end();
        closed
    }

    /// Ends the wait with an error because the engine shuts down. The execution continues elsewhere.
    fn fail_with_shutdown(&self) {
        let previous = self.state.with(|state| {
            let is_open = matches!(state, CallState::Waiting(_) | CallState::Step(_));
            is_open.then(|| std::mem::replace(state, CallState::EngineClosed))
        });
        if previous.is_none() {
            return;
        }
        drop(previous);
        self.waker.wake_by_ref();
    }

    /// Takes the child that this thread is to run: the number of its workflow, its first branch and its input.
    fn take_offered_run(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let new_run = self.hosted_child.as_ref().and_then(|(mailbox, child)| mailbox.take_offer(*child));
        new_run.map_or(Ok(None), |new_run| crate::bridge::port::new_run_to_python(py, new_run, None))
    }

    /// Blocks this thread until the state code is not pending, or `seconds` have passed; a signal interrupts the
    /// wait.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<u8> {
        end_flush_burst();
        let max_park_time = max_park_time(py);
        let deadline = seconds.and_then(|seconds| {
            Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|wait| now().checked_add(wait))
        });
        let mut is_blocking = false;
        loop {
            let state_code = self.advance();
            if state_code != PENDING {
                return Ok(state_code);
            }
            if let Some(run_call) = &self.run_call {
                // no other thread polls the execution, and polling it may finish this call
                run_call.get().advance();
                let state_code = self.advance();
                if state_code != PENDING {
                    return Ok(state_code);
                }
            }
            if self.hosted_child.as_ref().is_some_and(|(mailbox, child)| mailbox.has_offer(*child)) {
                return Ok(RUN_CHILD);
            }
            let remaining = match deadline {
                None => max_park_time,
                Some(deadline) => deadline.saturating_duration_since(now()).min(max_park_time),
            };
            if remaining.is_zero() {
                return Ok(PENDING);
            }
            if !std::mem::replace(&mut is_blocking, true) {
                warn_if_loop_blocks(py)?;
            }
            without_interpreter(py, || self.waiter.park(remaining));
            py.check_signals().inspect_err(|error| self.handle_interrupt(py, error))?;
        }
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if let Some(coroutine) = &slf.get().coroutine {
            coroutine.mark_awaited()?;
        }
        Ok(slf)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::resume(slf, None)?.into_next()
    }

    /// Resumes the call, as the `send` of a coroutine does.
    #[allow(clippy::needless_pass_by_value, unused_variables)] // arguments that Python passes
    fn send<'py>(slf: &Bound<'py, Self>, value: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::resume(slf, None)?.into_sent()
    }

    /// Throws an exception into the call, as the `throw` of a coroutine does.
    #[pyo3(signature = (raised, value=None, traceback=None))]
    #[allow(clippy::needless_pass_by_value, unused_variables)] // arguments that Python passes
    fn throw<'py>(
        slf: &Bound<'py, Self>,
        raised: Bound<'py, PyAny>,
        value: Option<Bound<'py, PyAny>>,
        traceback: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::resume(slf, Some(PyErr::from_value(value.unwrap_or(raised))))?.into_sent()
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.coroutine.as_ref().map_or(Ok(()), |coroutine| coroutine.traverse(&visit))
    }

    /// Whether the call was made by the code of an execution.
    #[getter]
    fn is_durable(&self) -> bool {
        self.control.is_some()
    }

    /// The state code, after the call was awaited.
    #[getter]
    fn state(&self) -> u8 {
        self.awaited_state.load(SeqCst)
    }

    /// Marks the call as a future of asyncio. A call that is awaited like a coroutine is such a future only for the
    /// task that awaits it.
    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> Option<bool> {
        let is_blocking = self.is_blocking.load(SeqCst);
        (is_blocking || self.coroutine.is_none()).then_some(is_blocking)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, is_blocking: bool) {
        self.is_blocking.store(is_blocking, SeqCst);
    }

    /// The loop of the call. Asyncio reads this attribute of a future without a method `get_loop`, which would be bound
    /// at each use.
    #[getter(_loop)]
    fn event_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.port.as_ref().and_then(|port| port.get().event_loop(py))
    }

    /// Lets the loop call `function` when the code can continue: with a finished future of the loop, or with the call
    /// itself if it was cancelled.
    #[pyo3(signature = (function, *, context))]
    #[allow(clippy::needless_pass_by_value)] // arguments that Python passes
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>, context: Py<PyAny>) {
        let call = slf.get();
        call.waiter.set_callback(Callback { function, context, call: slf.clone().unbind() });
        // a wake that came between the poll and now has found no callback
        if call.waiter.take_missed_wake() {
            call.waker.wake_by_ref();
        }
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(&self, py: Python<'_>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        self.is_cancelled.store(true, SeqCst);
        drop(self.cancel_message.replace(msg));
        if let (Some(control), Some(port)) = (&self.control, &self.port)
            && !port.get().is_loop_running(py)
        {
            // the loop cancels the call, because the loop ends; the code has not cancelled it
            control.defer();
        }
        if let Some(control) = &self.control
            && !self.blocks_delivery.swap(true, SeqCst)
        {
            // nothing else may be delivered until the code has received the cancellation
            control.add_cancelled_calls(1);
            if let Some(port) = &self.port {
                Port::watch(port.bind(py), control)?;
            }
        }
        self.waker.wake_by_ref();
        Ok(true)
    }

    fn result(&self, py: Python<'_>) -> PyResult<()> {
        // a task that has to unwind receives the exception that unwinds its code, and not the cancellation
        let is_stopped = self.control.as_ref().is_some_and(|control| control.stop_reason().is_some());
        if self.is_cancelled.swap(false, SeqCst) && !is_stopped {
            let cancelled = py.import("asyncio")?.getattr("CancelledError")?;
            let message = self.cancel_message.take();
            let raised = message.map_or_else(|| cancelled.call0(), |message| cancelled.call1((message,)))?;
            return Err(PyErr::from_value(raised));
        }
        Ok(())
    }
}

/// Warns if this thread is about to block although an event loop runs in it.
fn warn_if_loop_blocks(py: Python<'_>) -> PyResult<()> {
    let functions = python_functions(py)?;
    if !functions.get_running_loop.bind(py).call0()?.is_none() {
        functions.warn_of_blocked_loop.bind(py).call0()?;
    }
    Ok(())
}
