//! [`Branch`]: what workflow code in Python makes its durable calls through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stepfast::Key;
use stepfast::guest::{self, Gate};

use crate::bridge::call::Call;
use crate::bridge::coroutine::Carried;
use crate::bridge::engine::Engine;
use crate::bridge::mailbox::Shared;
use crate::bridge::port::Port;
use crate::bridge::reply::{Future, PyFailure, Reply};
use crate::bridge::task_code::Code;
use crate::bridge::waiter::Waiter;
use crate::convert::start_options::Order;
use crate::convert::step_settings::StepSettings;
use crate::convert::value::{encode, fingerprint};
use crate::fork::Process;
use crate::lock::Mutex;
use crate::outcome_slot::Slot;
use crate::unwinding::{ending, stopped};

/// A branch of an execution that runs here.
#[pyclass(frozen)]
pub(crate) struct Branch {
    /// `None` once it has ended.
    branch: Mutex<Option<guest::Branch>>,
    gate: Gate,
    /// The thread that makes its calls.
    thread: Mutex<Option<ThreadId>>,
    /// It is none: what closes an async generator that was left has no place in the workflow.
    is_torn_off: bool,
    /// Of the first branch: where the code's outcome goes.
    slot: Option<Arc<Slot>>,
    /// The loop that its code runs on; none for a thread.
    port: Option<Py<Port>>,
    /// Of the first branch of an execution whose code a caller runs: what that caller waits for.
    owner: Option<Py<Call>>,
    /// What the package knows the engine by.
    home: Mutex<Option<Py<PyAny>>>,
    /// Of the first branch: the code has come to its end.
    is_over: AtomicBool,
    process: Process,
}

impl Drop for Branch {
    fn drop(&mut self) {
        if self.process.is_current() && self.is_lost() {
            self.gate.put_off();
        }
        self.process.drop_if_current(self.branch.get_mut().take());
    }
}

impl Branch {
    pub(crate) fn new(branch: guest::Branch, slot: Option<Arc<Slot>>, port: Option<Py<Port>>) -> Self {
        let gate = branch.gate();
        Self {
            branch: Mutex::new(Some(branch)),
            gate,
            thread: Mutex::new(Some(crate::thread::thread_here())),
            is_torn_off: false,
            slot,
            port,
            owner: None,
            home: Mutex::default(),
            is_over: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    /// A branch whose code is run by another thread, if it does not run on a loop.
    fn for_another_thread(branch: guest::Branch, port: Option<Py<Port>>) -> Self {
        let branch = Self::new(branch, None, port);
        if branch.port.is_none() {
            branch.thread.with(|thread| *thread = None);
        }
        branch
    }

    /// What tells whether its code has to unwind.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The loop that its code runs on.
    pub(crate) fn port(&self, py: Python<'_>) -> Option<Py<Port>> {
        self.port.as_ref().map(|port| port.clone_ref(py))
    }

    /// True of the first branch if its code has not come to its end.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.is_over.load(SeqCst)
    }

    /// What the package knows the engine by.
    pub(crate) fn at_home(self, home: Py<PyAny>) -> Self {
        drop(self.home.replace(Some(home)));
        self
    }

    /// The first branch of an execution whose code the caller of `owner` runs.
    pub(crate) fn owned_by(mut self, owner: Py<Call>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The key of the child that is about to be called, if this thread hosts it; tells the execution.
    fn hosted(&self, threads: Option<Arc<Shared>>) -> Option<(Arc<Shared>, Key)> {
        if self.port.is_none() {
            self.gate.set_in_thread(threads.is_some());
        }
        let child = self.branch.with(|branch| branch.as_ref().map(guest::Branch::next_child_key))?;
        threads.map(|threads| (threads, child))
    }

    /// True if code that has begun has not come to its end, and never will: the first branch of it goes away.
    fn is_lost(&self) -> bool {
        match &self.owner {
            Some(owner) => owner.get().has_code(),
            None => self.slot.is_some() && !self.is_over.load(SeqCst),
        }
    }

    fn stop(&self, stop: impl FnOnce(&Gate)) {
        if !self.process.is_current() {
            return;
        }
        stop(&self.gate);
        if let Some(owner) = &self.owner {
            // its task is polled by us
            owner.get().advance();
        }
    }

    /// A call without a body; it can be awaited, if this code can.
    fn awaitable(
        slf: &Bound<'_, Self>,
        make: impl FnOnce(&mut guest::Branch) -> Future + Send,
    ) -> PyResult<Call> {
        let (branch, py) = (slf.get(), slf.py());
        let future = branch.made(py, make)?;
        let call = branch.owned(py, Call::new(branch.bound_port(py), Some(branch.gate.clone()), future));
        Ok(if branch.port.is_some() { call.carried(Carried::of(slf.clone().unbind())) } else { call })
    }

    /// A call of this branch: refused where that has no place for it.
    fn made<R: Send>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&mut guest::Branch) -> R + Send,
    ) -> PyResult<R> {
        self.process.check(py)?;
        if self.is_torn_off {
            return Err(crate::error::generator_close_error(py));
        }
        if !self.is_here() {
            return Err(crate::error::foreign_thread_error(py));
        }
        if let Some(ends) = ending(py)? {
            self.stop(Gate::put_off);
            return Err(ends);
        }
        let made = self.branch.with(|branch| branch.as_mut().map(make));
        made.ok_or_else(|| crate::error::runtime_error("this branch of the workflow has ended"))
    }

    /// The call; whoever runs the execution polls both, if that is a thread.
    fn owned(&self, py: Python<'_>, call: Call) -> Call {
        match &self.owner {
            Some(owner) if self.port.is_none() => call.beside(owner.clone_ref(py)),
            _ => call,
        }
    }

    fn bound_port<'a, 'py>(&'a self, py: Python<'py>) -> Option<&'a Bound<'py, Port>> {
        self.port.as_ref().map(|port| port.bind(py))
    }
}

#[pymethods]
impl Branch {
    /// The execution's key, as text.
    #[getter]
    fn key(&self) -> String {
        self.gate.key().to_string()
    }

    /// Tells the runs of this process apart.
    #[getter]
    pub(crate) fn run(&self) -> u64 {
        self.gate.run_id()
    }

    /// Its path, as people write it.
    #[getter]
    fn path(&self) -> Option<String> {
        self.branch.with(|branch| branch.as_ref().map(guest::Branch::path))
    }

    /// The execution's workflow_id.
    #[getter]
    fn workflow_id(&self) -> String {
        self.gate.workflow_id()
    }

    /// The name of the workflow.
    #[getter]
    fn workflow(&self) -> String {
        self.gate.workflow().to_string()
    }

    /// True while what is recorded is delivered again.
    #[getter]
    fn is_replaying(&self) -> bool {
        self.process.is_current()
            && self.branch.with(|branch| branch.as_ref().is_some_and(guest::Branch::is_replaying))
    }

    /// Closes the gate and hands the execution back: whoever claims it goes on from the record.
    fn hand_back(&self) {
        self.stop(Gate::hand_back);
    }

    /// The code wants the program to end: closes the gate; if the program goes on nevertheless, hands the execution
    /// back after a while.
    pub(crate) fn put_off(&self) {
        self.stop(Gate::put_off);
    }

    /// True for the first branch of an execution whose code its caller runs.
    #[getter]
    fn is_inline(&self) -> bool {
        self.owner.is_some()
    }

    /// What the package knows the engine by.
    #[getter]
    fn home(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.home.object(py, Option::as_ref)
    }

    #[setter]
    fn set_home(&self, home: Py<PyAny>) {
        drop(self.home.replace(Some(home)));
    }

    /// 0 while the code may go on, 1 if the execution is suspended, 2 if it is cancelled, 3 if it has ended.
    #[getter]
    fn stopped(&self) -> u8 {
        if self.process.is_current() { stopped(&self.gate) } else { 0 }
    }

    /// True if its code has to unwind, or will have to in a moment: nothing of it is recorded any more.
    #[getter]
    fn is_closing(&self) -> bool {
        !self.process.is_current() || self.gate.is_closing()
    }

    /// True in the thread that makes its calls: the first that has made one.
    #[getter]
    fn is_here(&self) -> bool {
        let here = crate::thread::thread_here();
        self.thread.with(|thread| *thread.get_or_insert(here) == here)
    }

    /// The coroutine of its code, for the task that runs it.
    fn code(slf: &Bound<'_, Self>, coroutine: Py<PyAny>) -> PyResult<Code> {
        Code::new(slf, coroutine)
    }

    /// True if its code runs on an event loop.
    #[getter]
    fn is_on_loop(&self) -> bool {
        self.port.is_some()
    }

    /// A branch that goes on beside this one until it ends; `None` if this one has ended.
    fn fork(&self, py: Python<'_>) -> Option<Self> {
        if !self.process.is_current() {
            return None;
        }
        let branch = self.branch.with(|branch| branch.as_mut().map(guest::Branch::fork))?;
        let forked = Self::for_another_thread(branch, self.port.as_ref().map(|port| port.clone_ref(py)));
        drop(forked.home.replace(self.home(py)));
        Some(forked)
    }

    /// A branch that is to begin: it has its place, and does not count yet.
    fn reserve(&self, py: Python<'_>) -> PyResult<Self> {
        let Some(branch) = self.branch.with(|branch| branch.as_mut().map(guest::Branch::reserve)) else {
            return Err(crate::error::runtime_error("this branch of the workflow has ended"));
        };
        let reserved = Self::for_another_thread(branch, self.port.as_ref().map(|port| port.clone_ref(py)));
        drop(reserved.home.replace(self.home(py)));
        Ok(reserved)
    }

    /// Begins a branch that was reserved.
    fn begin(&self) {
        self.branch.with(|branch| {
            if let Some(branch) = branch {
                branch.begin();
            }
        });
    }

    /// From now until the end of what this returns the branch only waits for branches of its own.
    fn join(&self) -> Join {
        let waiter = self.owner.as_ref().map(|owner| owner.get().waiter());
        let join = self.branch.with(|branch| branch.as_ref().map(guest::Branch::join));
        Join { is_over: AtomicBool::new(join.is_none()), join: Mutex::new(join), waiter }
    }

    /// Goes on with an execution that its caller runs while its branches are in other threads.
    fn drive(&self, py: Python<'_>, join: &Join) -> PyResult<()> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let driven = owner.get().drive(py, || join.is_over.load(SeqCst));
        driven.inspect_err(|raised| {
            if !raised.is_instance_of::<PyException>(py) {
                self.put_off();
            }
        })
    }

    /// What stands for a branch where there is none, and refuses durable calls.
    fn torn_off(&self, py: Python<'_>) -> Self {
        Self {
            branch: Mutex::default(),
            gate: self.gate.clone(),
            thread: Mutex::default(),
            is_torn_off: true,
            slot: None,
            port: self.port.as_ref().map(|port| port.clone_ref(py)),
            owner: None,
            home: Mutex::new(self.home(py)),
            is_over: AtomicBool::new(true),
            process: self.process,
        }
    }

    /// The branch has ended.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.branch.take();
        self.process.drop_if_current(ended);
        match self.bound_port(py) {
            Some(port) if self.process.is_current() && self.gate.code_waits() => {
                Port::watch(port, &self.gate)
            }
            _ => Ok(()),
        }
    }

    /// A step. Its arguments are told apart by a hash of them, however the call is spelled. The first `bound` arguments
    /// that the function gets are not among them.
    #[pyo3(signature = (settings, args, kwargs, bound=0))]
    fn step(
        &self,
        py: Python<'_>,
        settings: &StepSettings,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        bound: usize,
    ) -> PyResult<Call> {
        // what cannot be recorded cannot be compared: the body may take anything
        let fingerprint = match settings.signature(py) {
            Some(signature) => signature.fingerprint(args, kwargs, bound),
            None => fingerprint(args, kwargs),
        };
        let (path, step) = self.made(py, |branch| {
            let path = branch.coming_path();
            let options = settings.options.map(Box::new);
            (path, branch.step(&settings.name, options, fingerprint))
        })?;
        Ok(self.owned(py, Call::step(self.bound_port(py), self.gate.clone(), path, step)))
    }

    /// A step, to be awaited: its body gets `args` and `kwargs`. `None` if this code cannot await.
    fn carry(
        slf: &Bound<'_, Self>,
        settings: &Bound<'_, StepSettings>,
        recorded: &Bound<'_, PyTuple>,
        args: Py<PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> PyResult<Option<Call>> {
        let branch = slf.get();
        if branch.port.is_none() && branch.is_here() {
            return Ok(None);
        }
        let bound = args.bind(slf.py()).len().saturating_sub(recorded.len());
        let call = branch.step(slf.py(), settings.get(), recorded, kwargs, bound)?;
        let (settings, kwargs) = (settings.clone().unbind(), kwargs.clone().unbind());
        Ok(Some(call.carried(Carried::step(slf.clone().unbind(), settings, args, kwargs))))
    }

    /// A durable sleep.
    fn sleep(slf: &Bound<'_, Self>, seconds: f64) -> PyResult<Call> {
        let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Self::awaitable(slf, |branch| {
            let sleep = branch.sleep(duration);
            Box::pin(async move {
                sleep.await;
                Reply::Nothing
            })
        })
    }

    /// Runs a child to its output. If this is a thread, and it may host, it runs the child itself.
    fn child(
        slf: &Bound<'_, Self>,
        engine: &Engine,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        may_host: bool,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let threads = if slf.get().port.is_none() { engine.threads_of(workflow) } else { None };
        let (workflow, input) = engine.call(workflow, args, kwargs, true)?;
        let hosting = slf.get().hosted(threads.filter(|_| may_host && order.is_none()));
        let options = order.map(Order::options);
        let call = Self::awaitable(slf, |branch| {
            let child = branch.child(&workflow, input, options);
            Box::pin(async move { Reply::of(child.await) })
        })?;
        Ok(match hosting {
            Some((threads, child)) => call.hosting(threads, child),
            None => call,
        })
    }

    /// Waits for the output of a child that was started under this key.
    fn child_result(slf: &Bound<'_, Self>, engine: &Engine, workflow: usize, key: &str) -> PyResult<Call> {
        let workflow = engine.workflow(workflow)?;
        let Some(key) = Key::from_text(key) else {
            return Err(crate::error::runtime_error("this is not the key of a child"));
        };
        slf.get().hosted(None);
        Self::awaitable(slf, |branch| {
            let output = branch.child_result(&workflow, key);
            Box::pin(async move { Reply::of(output.await) })
        })
    }

    /// Starts a child; its key.
    fn start_child(
        slf: &Bound<'_, Self>,
        engine: &Engine,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        is_detached: bool,
        order: Option<&Order>,
    ) -> PyResult<Call> {
        let options = order.map(Order::options);
        let (workflow, input) = engine.call(workflow, args, kwargs, true)?;
        Self::awaitable(slf, |branch| {
            let started = branch.start_child(&workflow, input, options, is_detached);
            Box::pin(async move {
                match started.await {
                    Ok(key) => Reply::Text(key.to_string()),
                    Err(failure) => Reply::Failed(failure),
                }
            })
        })
    }

    /// The code has returned `output`.
    pub(crate) fn succeed(&self, output: &Bound<'_, PyAny>) -> PyResult<()> {
        self.process.check(output.py())?;
        let output = encode(output)?;
        self.is_over.store(true, SeqCst);
        if let Some(slot) = &self.slot {
            slot.fill(Ok(output));
        }
        Ok(())
    }

    /// The code has failed.
    fn fail(&self, failure: PyFailure) {
        self.is_over.store(true, SeqCst);
        if let (Some(slot), true) = (&self.slot, self.process.is_current()) {
            slot.fill(Err(failure.into()));
        }
    }
}

/// While it has not ended, a branch only waits for branches of its own.
#[pyclass(frozen)]
pub(crate) struct Join {
    join: Mutex<Option<guest::Join>>,
    is_over: AtomicBool,
    /// Of whoever drives the execution meanwhile.
    waiter: Option<Arc<Waiter>>,
}

#[pymethods]
impl Join {
    /// The branch goes on.
    fn end(&self) {
        drop(self.join.take());
        self.is_over.store(true, SeqCst);
        if let Some(waiter) = &self.waiter {
            waiter.clone().wake();
        }
    }
}
