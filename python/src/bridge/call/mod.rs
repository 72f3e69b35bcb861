//! [`Call`]: an operation for which Python code waits, in a task of an event loop or in a thread.
//!
//! The waiter polls the call. [`Call::advance`] returns one of the state codes in [`crate::poll_state`]. As an
//! awaitable the call behaves like a future of asyncio. But its [`Port`] calls the callback of the waiting task
//! directly, without a further turn of the loop.

pub(crate) mod continuation;
mod methods;
pub(crate) mod race;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use stepfast::guest::{GuestStep, Path, RunControl, StepAction, StepScope};
use stepfast::{Failure, Key, Payload};

use crate::bridge::branch::Branch;
use crate::bridge::caller_code::Callers;
use crate::bridge::coroutine::CallCoroutine;
use crate::bridge::inline::poll_inline;
use crate::bridge::mailbox::{Mailbox, NewRun};
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::bridge::waiter::Waiter;
use crate::exit::without_interpreter;
use crate::fork::Process;
use crate::interpreter::SendOutcome;
use crate::lock::Mutex;
use crate::outcome_slot::OutcomeSlot;
use crate::poll_state::{DONE, ERROR, PENDING, RUN_BODY, STOPPED};
use crate::runtime::{enter_runtime, is_main_thread};

/// Interval at which the waiting main thread checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the maximum time for which this thread may be parked at once. Only the main thread receives signals, and has
/// to check for them.
fn max_park_time(py: Python<'_>) -> Duration {
    if is_main_thread(py) { SIGNAL_CHECK_INTERVAL } else { Duration::MAX }
}

/// Returns the current time of the clock that measures waits.
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

enum CallState {
    Waiting(ReplyFuture),
    Step(GuestStep),
    Finished(Reply),
    Consumed,
    /// The engine has ended before the call.
    EngineClosed,
}

/// An operation for which Python code waits.
#[pyclass(frozen)]
pub(crate) struct Call(Box<CallInner>);

/// The fields of a [`Call`], boxed because they are large, and a call is moved several times before it becomes an
/// object.
pub(crate) struct CallInner {
    state: Mutex<CallState>,
    waiter: Arc<Waiter>,
    waker: Waker,
    port: Option<Py<Port>>,
    /// The path of a step; `None` for any other call.
    path: Option<Path>,
    /// The number of the step's attempt whose body was begun last; 0 before the first one, and for any other call.
    attempt: AtomicU32,
    control: Option<RunControl>,
    /// The new run whose code the caller is to run. The outer option is `None` if the caller runs no code, the inner
    /// one until the run has begun.
    new_run: Option<Mutex<Option<NewRun>>>,
    /// The destination of that code's outcome.
    outcome_slot: Mutex<Option<Arc<OutcomeSlot>>>,
    is_blocking: AtomicBool,
    is_cancelled: AtomicBool,
    /// The message of the cancellation, by which some code recognises its own cancellations.
    cancel_message: Mutex<Option<Py<PyAny>>>,
    /// Whether the call was cancelled, and blocks deliveries to the execution until its code has reacted.
    blocks_delivery: AtomicBool,
    awaited_state: AtomicU8,
    /// Whether the call is registered to be woken when its code has to unwind.
    is_stop_registered: AtomicBool,
    /// The mailbox in which a child begins, and the child's key; `None` unless the thread of this call runs the child
    /// itself.
    hosted_child: Option<(Arc<Mailbox>, Key)>,
    /// The call that polls the execution; `None` unless the thread of this call drives the execution.
    run_call: Option<Py<Call>>,
    /// The state of a call that is awaited like a coroutine.
    coroutine: Option<Box<CallCoroutine>>,
    process: Process,
}

impl Deref for Call {
    type Target = CallInner;

    fn deref(&self) -> &CallInner {
        &self.0
    }
}

impl DerefMut for Call {
    fn deref_mut(&mut self) -> &mut CallInner {
        &mut self.0
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(std::mem::replace(self.state.get_mut(), CallState::Consumed));
            return;
        }
        // the call may be dropped while an exception propagates, which has to be kept
        let pending = Python::try_attach(PyErr::take).flatten();
        self.end();
        if let Some(coroutine) = &self.coroutine {
            let unawaited = coroutine.unawaited_description();
            Python::try_attach(|py| {
                if let Some(what) = unawaited {
                    crate::error::warn_unawaited(py, &what);
                } else if let Err(error) = coroutine.close(self, py) {
                    error.write_unraisable(py, None);
                }
            });
        }
        if let Some(pending) = pending {
            Python::try_attach(|py| pending.restore(py));
        }
    }
}

impl Call {
    pub(crate) fn new(
        port: Option<&Bound<'_, Port>>,
        control: Option<RunControl>,
        future: ReplyFuture,
    ) -> Self {
        Self::with_state(port, control, CallState::Waiting(future))
    }

    /// Returns a call of a program, awaitable if the program runs on a loop.
    pub(crate) fn awaitable(port: Option<&Bound<'_, Port>>, future: ReplyFuture) -> Self {
        Self::awaitable_with(CallCoroutine::default(), port, future)
    }

    /// Returns a call of a program, which runs `coroutine` when it is awaited on a loop.
    pub(crate) fn awaitable_with(
        coroutine: CallCoroutine,
        port: Option<&Bound<'_, Port>>,
        future: ReplyFuture,
    ) -> Self {
        let call = Self::new(port, None, future);
        if port.is_some() { call.with_coroutine(coroutine) } else { call }
    }

    /// Returns the call of a step.
    pub(crate) fn step(
        port: Option<&Bound<'_, Port>>,
        control: RunControl,
        path: Path,
        step: GuestStep,
    ) -> Self {
        let mut call = Self::with_state(port, Some(control), CallState::Step(step));
        call.path = Some(path);
        call
    }

    fn with_state(port: Option<&Bound<'_, Port>>, control: Option<RunControl>, state: CallState) -> Self {
        let waiter = Waiter::new(port.map(|port| port.get().mailbox.clone()));
        Self(Box::new(CallInner {
            state: Mutex::new(state),
            waker: waiter.clone().into(),
            waiter,
            port: port.map(|port| port.clone().unbind()),
            path: None,
            attempt: AtomicU32::new(0),
            control,
            new_run: None,
            outcome_slot: Mutex::default(),
            is_blocking: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            cancel_message: Mutex::default(),
            blocks_delivery: AtomicBool::new(false),
            awaited_state: AtomicU8::new(PENDING),
            is_stop_registered: AtomicBool::new(false),
            hosted_child: None,
            run_call: None,
            coroutine: None,
            process: Process::current(),
        }))
    }

    /// Makes the thread of the call run the child, if the child begins here.
    pub(crate) fn with_hosted_child(mut self, mailbox: Arc<Mailbox>, child: Key) -> Self {
        mailbox.host_child(child, self.waiter.clone());
        self.hosted_child = Some((mailbox, child));
        self
    }

    /// Makes `await` of this call return the call's value, as with a coroutine. Otherwise `await` returns `None`, and
    /// the caller reads `state`.
    pub(crate) fn with_coroutine(mut self, coroutine: CallCoroutine) -> Self {
        self.coroutine = Some(Box::new(coroutine));
        self
    }

    /// Ends the call: its result is no longer needed.
    pub(crate) fn end(&self) {
        if !self.process.is_current() {
            return;
        }
        let state = self.state.with(|state| match state {
            // these states have nothing to abandon
            CallState::Finished(_) | CallState::Consumed | CallState::EngineClosed => None,
            CallState::Waiting(_) | CallState::Step(_) => Some(std::mem::replace(state, CallState::Consumed)),
        });
        self.unregister_stop();
        self.stop_hosting();
        if let Some(state) = state {
            self.abandon(state);
        }
        self.unblock_delivery();
    }

    /// Allows deliveries again, after the code has received the cancellation.
    fn unblock_delivery(&self) {
        if self.blocks_delivery.swap(false, SeqCst)
            && let Some(control) = &self.control
        {
            control.add_cancelled_calls(-1);
        }
    }

    fn stop_hosting(&self) {
        if let Some((mailbox, child)) = &self.hosted_child {
            mailbox.stop_hosting(*child);
        }
    }

    /// Makes the call share the waiter of `run_call`, so that a wake of one call wakes both. The same thread waits for
    /// both calls.
    pub(crate) fn with_run_call(mut self, run_call: Py<Call>) -> Self {
        let waiter = run_call.get().waiter.clone();
        (self.waker, self.waiter, self.run_call) = (waiter.clone().into(), waiter, Some(run_call));
        self
    }

    /// Drops the state of an unfinished call. For a durable call, the drop records that the code has abandoned the
    /// call. But if the loop of the code no longer runs, the execution is deferred instead, and nothing is recorded.
    fn abandon(&self, state: CallState) {
        if let (CallState::Waiting(_) | CallState::Step(_), Some(control), Some(port)) =
            (&state, &self.control, &self.port)
            && Python::try_attach(|py| port.get().is_loop_running(py)) != Some(true)
        {
            control.defer();
        }
        drop(state);
    }

    fn unregister_stop(&self) {
        if let Some(control) = &self.control
            && self.is_stop_registered.swap(false, SeqCst)
        {
            control.remove_stop_waker(&self.waker);
        }
    }

    /// Returns whether the code has to unwind. If not, the waiter is woken as soon as the code has to.
    fn is_stopped(&self) -> bool {
        let Some(control) = &self.control else { return false };
        if self.is_stop_registered.swap(true, SeqCst) {
            return control.stop_reason().is_some();
        }
        let is_stopped = !control.add_stop_waker(&self.waker);
        if is_stopped {
            self.is_stop_registered.store(false, SeqCst);
        }
        is_stopped
    }

    /// Returns true if the task that awaits the call was cancelled, and has not received the cancellation.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(SeqCst)
    }

    pub(crate) fn waiter(&self) -> Arc<Waiter> {
        self.waiter.clone()
    }

    /// Polls the call at every wake until `is_finished`.
    pub(crate) fn drive(&self, py: Python<'_>, is_finished: impl Fn() -> bool) -> PyResult<()> {
        let max_park_time = max_park_time(py);
        while !is_finished() {
            self.advance();
            without_interpreter(py, || self.waiter.park(max_park_time));
            py.check_signals().inspect_err(|error| self.handle_interrupt(py, error))?;
        }
        Ok(())
    }

    /// Handles an exception that a signal has raised in waiting code. If the exception ends the program, nothing more
    /// is recorded while the code unwinds.
    fn handle_interrupt(&self, py: Python<'_>, raised: &PyErr) {
        if raised.is_instance_of::<PyException>(py) {
            return;
        }
        if let Some(control) = &self.control {
            control.defer();
        }
        if let Some(run_call) = &self.run_call {
            // this thread polls the task of the execution
            run_call.get().advance();
        }
    }

    /// Returns the exception for a value that cannot be read. For a call of an execution's code, parks the execution
    /// and returns the exception that unwinds the code.
    fn park_unreadable(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let Some(control) = &self.control else { return error };
        let place = self.path.as_ref().map_or_else(String::new, |path| format!(", position {path}"));
        control.park(&format!("a recorded value{place}: {}", error.value(py)));
        crate::error::suspended_exception(py)
    }

    /// Makes the caller run the code of the execution, if the execution begins here.
    pub(crate) fn run_by_caller(mut self) -> Self {
        self.new_run = Some(Mutex::new(None));
        self
    }

    /// Resumes the code that awaits the call; returns the object to await next.
    fn resume<'py>(slf: &Bound<'py, Self>, thrown: Option<PyErr>) -> PyResult<SendOutcome<'py>> {
        let call = slf.get();
        if let Some(coroutine) = &call.coroutine {
            return coroutine.resume(slf, thrown);
        }
        if let Some(thrown) = thrown {
            return Err(thrown);
        }
        let state_code = call.advance();
        if state_code != PENDING {
            call.awaited_state.store(state_code, SeqCst);
            return Ok(SendOutcome::Returned(slf.py().None().into_bound(slf.py())));
        }
        Ok(SendOutcome::Yielded(Self::as_blocking_future(slf)))
    }

    /// Returns the call as a future for the task that is about to wait for it. asyncio requires that such a future is marked
    /// as blocking.
    pub(crate) fn as_blocking_future<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        slf.get().is_blocking.store(true, SeqCst);
        slf.clone().into_any()
    }

    /// Returns the loop's registry of callers that run the code of executions.
    pub(crate) fn callers(&self) -> Option<&Callers> {
        self.port.as_ref().map(|port| port.get().callers())
    }

    /// Returns the task that runs on the loop now, or None.
    pub(crate) fn current_task<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.port.as_ref().map_or_else(|| Ok(py.None().into_bound(py)), |port| port.get().current_task(py))
    }

    /// Notes that the code of the branch is blocked.
    pub(crate) fn code_blocked(&self, branch: &Branch, py: Python<'_>) -> PyResult<()> {
        match &self.port {
            Some(port) if branch.control().code_blocked() => Port::watch(port.bind(py), branch.control()),
            _ => Ok(()),
        }
    }

    /// Returns true while the caller runs the code of an execution here.
    pub(crate) fn is_running_code(&self) -> bool {
        self.outcome_slot.with(|slot| slot.is_some())
    }

    fn finish_code(&self, outcome: Result<Payload, Failure>) -> u8 {
        self.waiter.set_polled_call(None);
        if let Some(slot) = self.outcome_slot.take() {
            slot.fill_without_wake(outcome);
        }
        self.advance()
    }

    /// Polls the call; returns its state code.
    pub(crate) fn advance(&self) -> u8 {
        if !self.process.is_current() {
            return ERROR;
        }
        if !self.has_lost_race() {
            let state_code = self.state.with(|state| self.advance_state(state));
            if state_code != STOPPED || !self.has_lost_race() {
                return state_code;
            }
        }
        // ended explicitly, so that the call is recorded as abandoned before the branch ends: a traceback may keep
        // the call alive
        self.end();
        STOPPED
    }

    /// Whether the branch of the call has lost a race, and so abandons the call.
    fn has_lost_race(&self) -> bool {
        self.control.as_ref().is_some_and(RunControl::has_lost_race)
    }

    fn advance_state(&self, state: &mut CallState) -> u8 {
        let mut cx = Context::from_waker(&self.waker);
        let reply = match state {
            CallState::Finished(reply) => return reply.state_code(),
            CallState::Consumed => return DONE,
            CallState::EngineClosed => return ERROR,
            CallState::Step(step) => {
                let _entered = enter_runtime();
                match step.poll(&mut cx) {
                    Poll::Ready(StepAction::RunBody) => {
                        self.attempt.store(step.attempt(), SeqCst);
                        return RUN_BODY;
                    }
                    Poll::Ready(StepAction::Finished(outcome)) => {
                        Some(Reply::of_call(outcome.map_err(|failure| *failure)))
                    }
                    Poll::Pending => None,
                }
            }
            CallState::Waiting(future) => {
                let _entered = enter_runtime();
                match self.poll_and_begin(future, &mut cx) {
                    (_, true) => return RUN_BODY,
                    (Poll::Ready(reply), false) => Some(reply),
                    (Poll::Pending, false) => None,
                }
            }
        };
        match reply {
            Some(reply) => {
                let state_code = reply.state_code();
                *state = CallState::Finished(reply);
                state_code
            }
            None if self.is_stopped() => STOPPED,
            None => PENDING,
        }
    }

    /// Polls the future; also returns true if the code of its execution begins here.
    fn poll_and_begin(&self, future: &mut ReplyFuture, cx: &mut Context<'_>) -> (Poll<Reply>, bool) {
        let Some(new_run) = &self.new_run else { return (future.as_mut().poll(cx), false) };
        let (polled, begun) = poll_inline(|| future.as_mut().poll(cx));
        let Some(begun) = begun else { return (polled, false) };
        drop(new_run.replace(Some(begun)));
        (polled, true)
    }

    /// Returns the attempt of the step with this number, if its body runs.
    pub(crate) fn step_scope(&self, attempt: u32) -> Option<StepScope> {
        if self.has_lost_race() {
            return None;
        }
        self.state.with(|state| match state {
            CallState::Step(step) if step.attempt() == attempt => step.scope(),
            _ => None,
        })
    }

    /// Records the outcome of the step's body; returns the pause before the next attempt, if the body has failed and
    /// may run again.
    fn finish_step(&self, outcome: Result<Payload, Failure>) -> Option<Duration> {
        self.state.with(|state| match state {
            CallState::Step(step) => {
                step.finish(outcome);
                step.retry_pause()
            }
            _ => None,
        })
    }
}
