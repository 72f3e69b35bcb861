//! The methods that Python code has of a [`Call`].

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::guest::Gate;
use stepfast::{Error, Payload};

use super::{Call, State, interrupted_within, now};
use crate::bridge::branch::Branch;
use crate::bridge::mailbox::Begin;
use crate::bridge::port::{Port, end_burst};
use crate::bridge::reply::{PyFailure, Reply};
use crate::bridge::waiter::Callback;
use crate::convert::value::{decode, encode};
use crate::exit::without_interpreter;
use crate::lock::Mutex;
use crate::poll_state::{CHILD, PENDING};
use crate::unwinding::stopped;

#[pymethods]
impl Call {
    /// Whose turn it is.
    fn poll(&self) -> u8 {
        self.advance()
    }

    /// The body has returned `value`; whose turn it is.
    pub(crate) fn succeed(&self, value: &Bound<'_, PyAny>) -> PyResult<u8> {
        self.finish(Ok(encode(value)?));
        Ok(self.advance())
    }

    /// The body has failed; whose turn it is.
    fn fail(&self, failure: PyFailure) -> u8 {
        self.finish(Err(failure.into()));
        self.advance()
    }

    /// From any thread: the body, which ran in another process, has returned the value with this encoding.
    fn deliver(&self, py: Python<'_>, encoded: &[u8]) {
        self.finish(Ok(without_interpreter(py, || Payload::from_message_pack(encoded))));
        self.waker.wake_by_ref();
    }

    /// From any thread: the body, which ran in another process, has failed.
    fn deliver_failure(&self, failure: PyFailure) {
        self.finish(Err(failure.into()));
        self.waker.wake_by_ref();
    }

    /// The first branch of the code that the caller is to run, and its arguments. From here on a wake polls the
    /// call, until the code has returned.
    pub(crate) fn begun<'py>(slf: &Bound<'py, Self>) -> Option<(Branch, Bound<'py, PyAny>)> {
        let call = slf.get();
        let begin = call.begun.as_ref().and_then(Mutex::take);
        let Begin { branch, input, slot, .. } = begin?;
        let input = crate::bridge::port::readable(slf.py(), &branch.gate(), &input)?;
        call.waiter.set_owner(Some(slf.clone().unbind()));
        drop(call.code.replace(Some(slot.clone())));
        let port = call.port.as_ref().map(|port| port.clone_ref(slf.py()));
        let branch = Branch::new(branch, Some(slot), port).owned_by(slf.clone().unbind());
        Some((branch, input))
    }

    /// The code that the caller has run returned `output`; whose turn it is.
    pub(crate) fn returned(&self, output: &Bound<'_, PyAny>) -> PyResult<u8> {
        let output = encode(output)?;
        Ok(self.over(Ok(output)))
    }

    /// The code that the caller has run failed; whose turn it is.
    fn raised(&self, failure: PyFailure) -> u8 {
        self.over(Err(failure.into()))
    }

    /// The code that the caller has run has unwound; whose turn it is.
    fn unwound(&self) -> u8 {
        self.waiter.set_owner(None);
        self.advance()
    }

    /// What it came to: a value, text, a handle, or nothing.
    pub(crate) fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.state.replace(State::Taken) {
            State::Over(Reply::Value(payload)) => match decode(py, &payload) {
                Ok(value) => Ok(value.unbind()),
                Err(error) => Err(self.unreadable(py, error)),
            },
            State::Over(reply) => reply.value(py),
            _ => Ok(py.None()),
        }
    }

    /// The failure it came to: kind, message, causes, what it is made of again.
    fn failure(&self) -> Option<(String, String, Vec<String>, Vec<u8>)> {
        self.state.with(|state| match state {
            State::Over(Reply::Failed(failure)) => Some(crate::error::failure_parts(failure)),
            _ => None,
        })
    }

    /// Raises the error of the engine it came to.
    fn raise_error(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        let error = self.state.with(|state| match state {
            State::Over(Reply::Error(error)) => Some(error.clone()),
            State::LetGo => Some(Error::Shutdown),
            _ => None,
        });
        error.map_or(Ok(()), |error| Err(crate::error::to_exception(py, &error)))
    }

    /// True if the body, whose turn it was, may still begin: the thread may have waited for the interpreter since.
    #[getter]
    fn may_begin(&self) -> bool {
        self.gate.as_ref().is_none_or(Gate::lets_begin)
    }

    /// 0 while the code may go on, 1 if the execution is suspended, 2 if it is cancelled, 3 if it has ended.
    #[getter]
    fn stopped(&self) -> u8 {
        self.gate.as_ref().map_or(0, stopped)
    }

    /// The position of a step in its execution, as people write it.
    #[getter]
    fn path(&self) -> Option<String> {
        self.path.as_ref().map(ToString::to_string)
    }

    /// Nobody waits for it any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.carried.as_ref().map_or(Ok(()), |carried| carried.close(self, py));
        self.end();
        closed
    }

    /// The engine ends: whatever it runs goes on without whoever waits here, who gets an error.
    fn let_go(&self) {
        let before = self.state.with(|state| {
            let is_open = matches!(state, State::Waiting(_) | State::Step(_));
            is_open.then(|| std::mem::replace(state, State::LetGo))
        });
        if before.is_none() {
            return;
        }
        drop(before);
        self.waker.wake_by_ref();
    }

    /// The child that this thread is to run: its workflow's number, first branch and input.
    fn offered(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let begin = self.hosting.as_ref().and_then(|(port, child)| port.take_offer(*child));
        begin.map_or(Ok(None), |begin| crate::bridge::port::begun(py, begin, None))
    }

    /// Blocks this thread until it is somebody's turn, or `seconds` have passed; a signal interrupts it.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<u8> {
        end_burst();
        let interrupted_within = interrupted_within(py);
        let until = seconds.and_then(|seconds| {
            Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|wait| now().checked_add(wait))
        });
        loop {
            let turn = self.advance();
            if turn != PENDING {
                return Ok(turn);
            }
            if let Some(owner) = &self.owner {
                // nobody else polls the execution; it may be over for this call
                owner.get().advance();
                let turn = self.advance();
                if turn != PENDING {
                    return Ok(turn);
                }
            }
            if self.hosting.as_ref().is_some_and(|(port, child)| port.has_offer(*child)) {
                return Ok(CHILD);
            }
            let left = match until {
                None => interrupted_within,
                Some(until) => until.saturating_duration_since(now()).min(interrupted_within),
            };
            if left.is_zero() {
                return Ok(PENDING);
            }
            without_interpreter(py, || self.waiter.park(left));
            py.check_signals().inspect_err(|error| self.interrupted(py, error))?;
        }
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if let Some(carried) = &slf.get().carried {
            carried.set_awaited()?;
        }
        Ok(slf)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::go_on(slf, None)?.into_next()
    }

    /// As of a coroutine.
    #[allow(clippy::needless_pass_by_value, unused_variables)] // what Python hands over
    fn send<'py>(slf: &Bound<'py, Self>, value: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::go_on(slf, None)?.into_sent()
    }

    /// As of a coroutine.
    #[pyo3(signature = (raised, value=None, traceback=None))]
    #[allow(clippy::needless_pass_by_value, unused_variables)] // what Python hands over
    fn throw<'py>(
        slf: &Bound<'py, Self>,
        raised: Bound<'py, PyAny>,
        value: Option<Bound<'py, PyAny>>,
        traceback: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::go_on(slf, Some(PyErr::from_value(value.unwrap_or(raised))))?.into_sent()
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.carried.as_ref().map_or(Ok(()), |carried| carried.traverse(&visit))
    }

    /// True for a call of an execution's code.
    #[getter]
    fn is_durable(&self) -> bool {
        self.gate.is_some()
    }

    /// Whose turn it is, after it was awaited.
    #[getter]
    fn turn(&self) -> u8 {
        self.turn.load(SeqCst)
    }

    /// A call that is awaited like a coroutine is none of asyncio's futures, but for the task that awaits it.
    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> Option<bool> {
        let is_blocking = self.is_blocking.load(SeqCst);
        (is_blocking || self.carried.is_none()).then_some(is_blocking)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, is_blocking: bool) {
        self.is_blocking.store(is_blocking, SeqCst);
    }

    /// Where asyncio looks for the loop of what has no `get_loop`, which would be a method to be bound every time.
    #[getter(_loop)]
    fn event_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.port.as_ref().and_then(|port| port.get().event_loop(py))
    }

    #[pyo3(signature = (function, *, context))]
    #[allow(clippy::needless_pass_by_value)] // what Python hands over
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>, context: Py<PyAny>) {
        let call = slf.get();
        call.waiter.set(Callback { function, context, argument: slf.clone().into_any().unbind() });
        // woken between the poll and now: nobody was there to be called
        if call.waiter.was_missed() {
            call.waker.wake_by_ref();
        }
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(&self, py: Python<'_>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        self.is_cancelled.store(true, SeqCst);
        drop(self.cancelled_with.replace(msg));
        if let (Some(gate), Some(port)) = (&self.gate, &self.port)
            && !port.get().is_loop_running(py)
        {
            // it is the loop that gives up, not the code
            gate.put_off();
        }
        if let Some(gate) = &self.gate
            && !self.is_given_up.swap(true, SeqCst)
        {
            // until the code has heard of it, nothing else may be delivered
            gate.add_cancelled(1);
            if let Some(port) = &self.port {
                Port::watch(port.bind(py), gate)?;
            }
        }
        self.waker.wake_by_ref();
        Ok(true)
    }

    fn result(&self, py: Python<'_>) -> PyResult<()> {
        // a task that unwinds hears that first
        let is_stopped = self.gate.as_ref().is_some_and(|gate| gate.stopped().is_some());
        if self.is_cancelled.swap(false, SeqCst) && !is_stopped {
            let cancelled = py.import("asyncio")?.getattr("CancelledError")?;
            let with = self.cancelled_with.take();
            let raised = with.map_or_else(|| cancelled.call0(), |with| cancelled.call1((with,)))?;
            return Err(PyErr::from_value(raised));
        }
        Ok(())
    }
}
