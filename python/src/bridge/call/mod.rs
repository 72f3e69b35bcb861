//! [`Call`]: something that Python code waits for, in a task of an event loop or in a thread.
//!
//! Who waits polls it by himself and learns whose turn it is: a *turn* is one of the numbers below. As an
//! awaitable it behaves like a future of asyncio that is woken straight from the loop's watcher.

mod methods;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use stepfast::guest::{Gate, Path, StepCall, StepTurn};
use stepfast::{Failure, Key, Payload};

use crate::bridge::branch::Branch;
use crate::bridge::caller_code::Callers;
use crate::bridge::coroutine::Carried;
use crate::bridge::inline::with_inline;
use crate::bridge::mailbox::{Begin, Shared};
use crate::bridge::port::Port;
use crate::bridge::reply::{Future, Reply};
use crate::bridge::waiter::Waiter;
use crate::exit::without_interpreter;
use crate::fork::Process;
use crate::interpreter::SendOutcome;
use crate::lock::Mutex;
use crate::outcome_slot::Slot;
use crate::poll_state::{BODY, DONE, ERROR, PENDING, STOPPED};
use crate::runtime::{enter, is_main};

/// The main thread, while it waits, looks so often whether a signal has come.
const INTERRUPTED_WITHIN: Duration = Duration::from_millis(50);

/// How long this thread may wait at a time: signals come to the main thread alone.
fn interrupted_within(py: Python<'_>) -> Duration {
    if is_main(py) { INTERRUPTED_WITHIN } else { Duration::MAX }
}

/// Now, on the clock that waits are measured by.
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

enum State {
    Waiting(Future),
    Step(StepCall),
    Over(Reply),
    Taken,
    /// The engine has ended before it was over.
    LetGo,
}

/// Something that Python code waits for.
#[pyclass(frozen)]
pub(crate) struct Call(Box<Inner>);

/// It is large, and a call goes through several hands before it is an object.
pub(crate) struct Inner {
    state: Mutex<State>,
    waiter: Arc<Waiter>,
    waker: Waker,
    port: Option<Py<Port>>,
    /// Of a step: its position.
    path: Option<Path>,
    gate: Option<Gate>,
    /// A run whose code the caller runs: its first branch, once that is there.
    begun: Option<Mutex<Option<Begin>>>,
    /// Where the outcome of that code goes.
    code: Mutex<Option<Arc<Slot>>>,
    is_blocking: AtomicBool,
    is_cancelled: AtomicBool,
    /// What it was cancelled with: some tell their cancellations from others by it.
    cancelled_with: Mutex<Option<Py<PyAny>>>,
    /// It was cancelled: the execution waits for what its code makes of that.
    is_given_up: AtomicBool,
    turn: AtomicU8,
    /// The gate wakes it.
    is_listening: AtomicBool,
    /// Of a call for a child in a thread that runs it itself: where it begins, and its key.
    hosting: Option<(Arc<Shared>, Key)>,
    /// Of a call in a thread, if its execution is run by the thread itself: what polls that.
    owner: Option<Py<Call>>,
    /// Of a call that comes to its value when it is awaited.
    carried: Option<Box<Carried>>,
    process: Process,
}

impl Deref for Call {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl DerefMut for Call {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.0
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(std::mem::replace(self.state.get_mut(), State::Taken));
            return;
        }
        // it may go away because of an exception that is on its way, and must stay so
        let pending = Python::try_attach(PyErr::take).flatten();
        self.end();
        if let Some(carried) = &self.carried {
            let unawaited = carried.unawaited();
            Python::try_attach(|py| {
                if let Some(what) = unawaited {
                    crate::error::warn_unawaited(py, &what);
                } else if let Err(error) = carried.close(self, py) {
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
    pub(crate) fn new(port: Option<&Bound<'_, Port>>, gate: Option<Gate>, future: Future) -> Self {
        Self::of(port, gate, State::Waiting(future))
    }

    /// A call of a program, which can be awaited if that runs on a loop.
    pub(crate) fn awaitable(port: Option<&Bound<'_, Port>>, future: Future) -> Self {
        Self::awaitable_as(Carried::default(), port, future)
    }

    /// The same, if there is more to it when it is awaited.
    pub(crate) fn awaitable_as(carried: Carried, port: Option<&Bound<'_, Port>>, future: Future) -> Self {
        let call = Self::new(port, None, future);
        if port.is_some() { call.carried(carried) } else { call }
    }

    /// The call of a step.
    pub(crate) fn step(port: Option<&Bound<'_, Port>>, gate: Gate, path: Path, step: StepCall) -> Self {
        let mut call = Self::of(port, Some(gate), State::Step(step));
        call.path = Some(path);
        call
    }

    fn of(port: Option<&Bound<'_, Port>>, gate: Option<Gate>, state: State) -> Self {
        let waiter = Waiter::new(port.map(|port| port.get().shared.clone()));
        Self(Box::new(Inner {
            state: Mutex::new(state),
            waker: waiter.clone().into(),
            waiter,
            port: port.map(|port| port.clone().unbind()),
            path: None,
            gate,
            begun: None,
            code: Mutex::default(),
            is_blocking: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            cancelled_with: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            turn: AtomicU8::new(PENDING),
            is_listening: AtomicBool::new(false),
            hosting: None,
            owner: None,
            carried: None,
            process: Process::current(),
        }))
    }

    /// A call for a child that its own thread runs, if that begins here.
    pub(crate) fn hosting(mut self, port: Arc<Shared>, child: Key) -> Self {
        port.host(child, self.waiter.clone());
        self.hosting = Some((port, child));
        self
    }

    /// A call that comes to its value when it is awaited.
    pub(crate) fn carried(mut self, carried: Carried) -> Self {
        self.carried = Some(Box::new(carried));
        self
    }

    /// Nobody waits for it any more.
    pub(crate) fn end(&self) {
        if !self.process.is_current() {
            return;
        }
        let state = self.state.with(|state| match state {
            // whatever is left of it does nothing when it goes away
            State::Over(_) | State::Taken | State::LetGo => None,
            State::Waiting(_) | State::Step(_) => Some(std::mem::replace(state, State::Taken)),
        });
        self.stop_listening();
        self.stop_hosting();
        if let Some(state) = state {
            self.give_up(state);
        }
        self.stop_cancelling();
    }

    /// It was cancelled, and the code has gone on.
    fn stop_cancelling(&self) {
        if self.is_given_up.swap(false, SeqCst)
            && let Some(gate) = &self.gate
        {
            gate.add_cancelled(-1);
        }
    }

    fn stop_hosting(&self) {
        if let Some((port, child)) = &self.hosting {
            port.unhost(*child);
        }
    }

    /// A call of code that its own thread runs for `owner`: what wakes one wakes both.
    pub(crate) fn beside(mut self, owner: Py<Call>) -> Self {
        let waiter = owner.get().waiter.clone();
        (self.waker, self.waiter, self.owner) = (waiter.clone().into(), waiter, Some(owner));
        self
    }

    /// Drops what nobody waits for any more. That the code gives a call up is recorded, unless its loop does not
    /// run: then it is the loop that has given up.
    fn give_up(&self, state: State) {
        if let (State::Waiting(_) | State::Step(_), Some(gate), Some(port)) = (&state, &self.gate, &self.port)
            && Python::try_attach(|py| port.get().is_loop_running(py)) != Some(true)
        {
            gate.put_off();
        }
        drop(state);
    }

    fn stop_listening(&self) {
        if let Some(gate) = &self.gate
            && self.is_listening.swap(false, SeqCst)
        {
            gate.off_stop(&self.waker);
        }
    }

    /// Whether the code has to unwind; if not, this is woken when it has to.
    fn is_stopped(&self) -> bool {
        let Some(gate) = &self.gate else { return false };
        if self.is_listening.swap(true, SeqCst) {
            return gate.stopped().is_some();
        }
        let is_stopped = !gate.on_stop(&self.waker);
        if is_stopped {
            self.is_listening.store(false, SeqCst);
        }
        is_stopped
    }

    pub(crate) fn waiter(&self) -> Arc<Waiter> {
        self.waiter.clone()
    }

    /// Polls it whenever it is woken, until that is over.
    pub(crate) fn drive(&self, py: Python<'_>, is_over: impl Fn() -> bool) -> PyResult<()> {
        let interrupted_within = interrupted_within(py);
        while !is_over() {
            self.advance();
            without_interpreter(py, || self.waiter.park(interrupted_within));
            py.check_signals().inspect_err(|error| self.interrupted(py, error))?;
        }
        Ok(())
    }

    /// A signal has raised something in code that waits: if the program is to end, nothing more of the code is
    /// recorded, whatever it does while it unwinds.
    fn interrupted(&self, py: Python<'_>, raised: &PyErr) {
        if raised.is_instance_of::<PyException>(py) {
            return;
        }
        if let Some(gate) = &self.gate {
            gate.put_off();
        }
        if let Some(owner) = &self.owner {
            // its task is polled by us
            owner.get().advance();
        }
    }

    /// What is raised if the value cannot be read: for code of an execution, which is parked, what unwinds it.
    fn unreadable(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let Some(gate) = &self.gate else { return error };
        let place = self.path.as_ref().map_or_else(String::new, |path| format!(", position {path}"));
        gate.park(&format!("a recorded value{place}: {}", error.value(py)));
        crate::error::suspended_exception(py)
    }

    /// A call whose code the caller runs when it is its turn.
    pub(crate) fn inline(mut self) -> Self {
        self.begun = Some(Mutex::new(None));
        self
    }

    /// Whoever awaits it goes on: what is awaited next.
    fn go_on<'py>(slf: &Bound<'py, Self>, thrown: Option<PyErr>) -> PyResult<SendOutcome<'py>> {
        let call = slf.get();
        if let Some(carried) = &call.carried {
            return carried.go_on(slf, thrown);
        }
        if let Some(thrown) = thrown {
            return Err(thrown);
        }
        let turn = call.advance();
        if turn != PENDING {
            call.turn.store(turn, SeqCst);
            return Ok(SendOutcome::Returned(slf.py().None().into_bound(slf.py())));
        }
        Ok(SendOutcome::Yielded(Self::blocking(slf)))
    }

    /// The call, for the task that is about to wait for it.
    pub(crate) fn blocking<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        slf.get().is_blocking.store(true, SeqCst);
        slf.clone().into_any()
    }

    /// What its loop knows of callers that run the code of executions.
    pub(crate) fn callers(&self) -> Option<&Callers> {
        self.port.as_ref().map(|port| port.get().callers())
    }

    /// The task of its loop that runs now, or None.
    pub(crate) fn current_task<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.port.as_ref().map_or_else(|| Ok(py.None().into_bound(py)), |port| port.get().current_task(py))
    }

    /// The code of the branch waits.
    pub(crate) fn code_waits(&self, branch: &Branch, py: Python<'_>) -> PyResult<()> {
        match &self.port {
            Some(port) if branch.gate().code_waits() => Port::watch(port.bind(py), branch.gate()),
            _ => Ok(()),
        }
    }

    /// True while the code of an execution is run by its caller, here.
    pub(crate) fn has_code(&self) -> bool {
        self.code.with(|code| code.is_some())
    }

    fn over(&self, outcome: Result<Payload, Failure>) -> u8 {
        self.waiter.set_owner(None);
        if let Some(slot) = self.code.take() {
            slot.fill_quietly(outcome);
        }
        self.advance()
    }

    /// Polls it: whose turn it is.
    pub(crate) fn advance(&self) -> u8 {
        if !self.process.is_current() {
            return ERROR;
        }
        self.state.with(|state| self.advance_in(state))
    }

    fn advance_in(&self, state: &mut State) -> u8 {
        let mut cx = Context::from_waker(&self.waker);
        let reply = match state {
            State::Over(reply) => return reply.turn(),
            State::Taken => return DONE,
            State::LetGo => return ERROR,
            State::Step(step) => {
                let _entered = enter();
                match step.poll(&mut cx) {
                    Poll::Ready(StepTurn::Body) => return BODY,
                    Poll::Ready(StepTurn::Over(outcome)) => Some(Reply::of(outcome)),
                    Poll::Pending => None,
                }
            }
            State::Waiting(future) => {
                let _entered = enter();
                match self.poll_and_begin(future, &mut cx) {
                    (_, true) => return BODY,
                    (Poll::Ready(reply), false) => Some(reply),
                    (Poll::Pending, false) => None,
                }
            }
        };
        match reply {
            Some(reply) => {
                let turn = reply.turn();
                *state = State::Over(reply);
                turn
            }
            None if self.is_stopped() => STOPPED,
            None => PENDING,
        }
    }

    /// Polls it; true if the code that it waits for begins here.
    fn poll_and_begin(&self, future: &mut Future, cx: &mut Context<'_>) -> (Poll<Reply>, bool) {
        let Some(begun) = &self.begun else { return (future.as_mut().poll(cx), false) };
        let (polled, begin) = with_inline(|| future.as_mut().poll(cx));
        let Some(begin) = begin else { return (polled, false) };
        drop(begun.replace(Some(begin)));
        (polled, true)
    }

    /// The body of its step came to this.
    fn finish(&self, outcome: Result<Payload, Failure>) {
        self.state.with(|state| {
            if let State::Step(step) = state {
                step.finish(outcome);
            }
        });
    }
}
