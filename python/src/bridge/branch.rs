//! [`Branch`]: the object through which workflow code in Python makes its durable calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;
use std::thread::ThreadId;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use stepfast::Key;
use stepfast::clock::Timestamp;
use stepfast::graph::TaskPlace;
use stepfast::guest::{self, RunControl};

use crate::bridge::batch::submission::{RefusedInput, encode_items};
use crate::bridge::call::Call;
use crate::bridge::coroutine::CallCoroutine;
use crate::bridge::engine::Engine;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::port::Port;
use crate::bridge::reply::{FailureTuple, Reply, ReplyFuture};
use crate::bridge::task_code::BranchCoroutine;
use crate::bridge::waiter::Waiter;
use crate::convert::durations::duration_of;
use crate::convert::graph::{GraphProgress, GraphShape};
use crate::convert::start_options::StartOptions;
use crate::convert::step_settings::StepSettings;
use crate::convert::value::{encode, fingerprint};
use crate::fork::Process;
use crate::lock::Mutex;
use crate::outcome_slot::OutcomeSlot;
use crate::unwinding::{exit_exception, stop_code};

/// A branch of an execution that runs here.
#[pyclass(frozen)]
pub(crate) struct Branch {
    /// `None` once the branch has ended.
    guest_branch: Mutex<Option<guest::GuestBranch>>,
    control: RunControl,
    /// The thread that makes the calls of the branch. For a branch that was created for another thread, `None` until
    /// its first call.
    call_thread: Mutex<Option<ThreadId>>,
    /// Whether this object replaces a branch in code that closes an abandoned async generator. Such an object rejects
    /// durable calls.
    is_detached_from_run: bool,
    /// The destination of the code's outcome; `None` in all branches but the first.
    outcome_slot: Option<Arc<OutcomeSlot>>,
    /// The port of the loop on which the code runs; `None` for a thread.
    port: Option<Py<Port>>,
    /// The call whose caller runs the code of the execution; `None` in all branches but the first one of such an
    /// execution.
    run_call: Option<Py<Call>>,
    /// The engine's object in the Python package.
    host: Mutex<Option<Py<PyAny>>>,
    /// Whether the code has returned or failed. Used only in the first branch.
    has_finished: AtomicBool,
    process: Process,
}

impl Drop for Branch {
    fn drop(&mut self) {
        if self.process.is_current() && self.is_abandoned() {
            self.control.defer();
        }
        self.process.drop_if_current(self.guest_branch.get_mut().take());
    }
}

impl Branch {
    pub(crate) fn new(
        branch: guest::GuestBranch,
        outcome_slot: Option<Arc<OutcomeSlot>>,
        port: Option<Py<Port>>,
    ) -> Self {
        let control = branch.run_control();
        Self {
            guest_branch: Mutex::new(Some(branch)),
            control,
            call_thread: Mutex::new(Some(crate::thread::current_thread_id())),
            is_detached_from_run: false,
            outcome_slot,
            port,
            run_call: None,
            host: Mutex::default(),
            has_finished: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    /// Returns a branch beside this one. Its code runs in another thread, unless it runs on a loop.
    pub(crate) fn beside(&self, py: Python<'_>, branch: guest::GuestBranch) -> Self {
        let branch = Self::new(branch, None, self.port(py));
        if branch.port.is_none() {
            branch.call_thread.with(|thread| *thread = None);
        }
        drop(branch.host.replace(self.host(py)));
        branch
    }

    /// Returns the control of the execution, which reports whether the code has to unwind.
    pub(crate) fn control(&self) -> &RunControl {
        &self.control
    }

    /// Fails in a forked child.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)
    }

    /// Returns the port of the loop on which the code runs.
    pub(crate) fn port(&self, py: Python<'_>) -> Option<Py<Port>> {
        self.port.as_ref().map(|port| port.clone_ref(py))
    }

    /// Returns true if the code of the first branch has neither returned nor failed.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.has_finished.load(SeqCst)
    }

    /// Sets the engine's object in the Python package.
    pub(crate) fn with_host(self, host: Py<PyAny>) -> Self {
        drop(self.host.replace(Some(host)));
        self
    }

    /// Marks the first branch of an execution whose code the caller of `run_call` runs.
    pub(crate) fn run_by(mut self, run_call: Py<Call>) -> Self {
        self.run_call = Some(run_call);
        self
    }

    /// Returns the mailbox and the key of the child that is about to be called, if this thread may host the child. A
    /// thread that hosts a child runs its code. In a race no thread does, because the code of a child cannot unwind when
    /// its parent's branch loses. Also notes for the execution whether its thread hosts a child.
    fn child_to_host(
        &self,
        mailbox: Option<Arc<Mailbox>>,
        place: Option<TaskPlace>,
    ) -> Option<(Arc<Mailbox>, Key)> {
        let mailbox = mailbox.filter(|_| !self.control.is_in_race());
        if self.port.is_none() {
            self.control.set_thread_use(mailbox.is_some());
        }
        let child =
            self.guest_branch.with(|branch| branch.as_ref().map(|branch| branch.next_child_key(place)))?;
        mailbox.map(|mailbox| (mailbox, child))
    }

    /// Returns true if dropping this branch abandons code that has begun, and has neither returned nor failed. Only the
    /// first branch of an execution can.
    fn is_abandoned(&self) -> bool {
        match &self.run_call {
            Some(run_call) => run_call.get().is_running_code(),
            None => self.outcome_slot.is_some() && !self.has_finished.load(SeqCst),
        }
    }

    fn stop_run(&self, stop: impl FnOnce(&RunControl)) {
        if !self.process.is_current() {
            return;
        }
        stop(&self.control);
        if let Some(run_call) = &self.run_call {
            // this thread polls the task of the execution
            run_call.get().advance();
        }
    }

    /// Returns a call without a body, awaitable if the code runs on a loop.
    pub(crate) fn awaitable_call(
        slf: &Bound<'_, Self>,
        make: impl FnOnce(&mut guest::GuestBranch) -> ReplyFuture + Send,
    ) -> PyResult<Call> {
        let (branch, py) = (slf.get(), slf.py());
        let future = branch.make_call(py, make)?;
        let call = branch
            .attach_run_call(py, Call::new(branch.bound_port(py), Some(branch.control.clone()), future));
        Ok(if branch.port.is_some() {
            call.with_coroutine(CallCoroutine::for_call(slf.clone().unbind()))
        } else {
            call
        })
    }

    /// Makes a durable call of this branch with `make`. Fails if the branch cannot make calls here.
    fn make_call<R: Send>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&mut guest::GuestBranch) -> R + Send,
    ) -> PyResult<R> {
        self.process.check(py)?;
        if self.is_detached_from_run {
            return Err(crate::error::generator_close_error(py));
        }
        if !self.is_own_thread() {
            return Err(crate::error::foreign_thread_error(py));
        }
        if self.control.has_lost_race() {
            return Err(crate::error::unwind_exception(py, stop_code(&self.control)));
        }
        if let Some(exception) = exit_exception(py)? {
            self.stop_run(RunControl::defer);
            return Err(exception);
        }
        let call = self.guest_branch.with(|branch| branch.as_mut().map(make));
        call.ok_or_else(|| crate::error::runtime_error("this branch of the workflow has ended"))
    }

    /// Attaches the call to the call that drives the execution, if this thread drives the execution, and so polls both
    /// calls.
    fn attach_run_call(&self, py: Python<'_>, call: Call) -> Call {
        match &self.run_call {
            Some(run_call) if self.port.is_none() => call.with_run_call(run_call.clone_ref(py)),
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
        self.control.key().to_string()
    }

    /// The id of the run, unique in this process.
    #[getter]
    pub(crate) fn run_id(&self) -> u64 {
        self.control.run_id()
    }

    /// The path of the branch, as text.
    #[getter]
    fn path(&self) -> Option<String> {
        self.guest_branch.with(|branch| branch.as_ref().map(guest::GuestBranch::path))
    }

    /// The execution's workflow_id.
    #[getter]
    fn workflow_id(&self) -> String {
        self.control.workflow_id()
    }

    /// The name of the workflow.
    #[getter]
    fn workflow(&self) -> String {
        self.control.workflow().to_string()
    }

    /// Whether recorded outcomes are being replayed.
    #[getter]
    fn is_replaying(&self) -> bool {
        self.process.is_current()
            && self.guest_branch.with(|branch| branch.as_ref().is_some_and(guest::GuestBranch::is_replaying))
    }

    /// Closes the run and requeues the execution: the next worker that claims it continues from the record.
    fn requeue(&self) {
        self.stop_run(RunControl::requeue);
    }

    /// Closes the run because the code ends the program. If the program continues nevertheless, the execution is
    /// requeued after a pause.
    pub(crate) fn defer(&self) {
        self.stop_run(RunControl::defer);
    }

    /// Whether this is the first branch of an execution whose code its caller runs.
    #[getter]
    fn is_inline(&self) -> bool {
        self.run_call.is_some()
    }

    /// The engine's object in the Python package.
    #[getter]
    fn host(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.host.clone_object(py, Option::as_ref)
    }

    #[setter]
    fn set_host(&self, host: Py<PyAny>) {
        drop(self.host.replace(Some(host)));
    }

    /// The reason why the code has to unwind, as of `unwinding::stop_code`.
    #[getter]
    fn stop_code(&self) -> u8 {
        if self.process.is_current() { stop_code(&self.control) } else { 0 }
    }

    /// Whether the code has to unwind now or in a moment, so that nothing more of it is recorded.
    #[getter]
    fn is_closing(&self) -> bool {
        !self.process.is_current() || self.control.is_closing()
    }

    /// Whether this thread makes the branch's calls. For a branch that was created for another thread, the first thread
    /// that makes a call, or reads this attribute, becomes the thread of the branch.
    #[getter]
    pub(crate) fn is_own_thread(&self) -> bool {
        let here = crate::thread::current_thread_id();
        self.call_thread.with(|thread| *thread.get_or_insert(here) == here)
    }

    /// Wraps the coroutine of the branch's code for the task that runs it.
    fn wrap_coroutine(slf: &Bound<'_, Self>, coroutine: Py<PyAny>) -> PyResult<BranchCoroutine> {
        BranchCoroutine::new(slf, coroutine)
    }

    /// Whether the code runs on an event loop.
    #[getter]
    fn is_on_loop(&self) -> bool {
        self.port.is_some()
    }

    /// Creates a concurrent branch, which counts as active until its end. Returns `None` if this branch has ended.
    fn fork(&self, py: Python<'_>) -> Option<Self> {
        if !self.process.is_current() {
            return None;
        }
        let branch = self.guest_branch.with(|branch| branch.as_mut().map(guest::GuestBranch::fork))?;
        Some(self.beside(py, branch))
    }

    /// Reserves a concurrent branch. The new branch has its path at once, but does not count as active until it begins.
    fn reserve(&self, py: Python<'_>) -> PyResult<Self> {
        let Some(branch) = self.guest_branch.with(|branch| branch.as_mut().map(guest::GuestBranch::reserve))
        else {
            return Err(crate::error::runtime_error("this branch of the workflow has ended"));
        };
        Ok(self.beside(py, branch))
    }

    /// Begins a reserved branch.
    fn begin(&self) {
        self.guest_branch.with(|branch| {
            if let Some(branch) = branch {
                branch.begin();
            }
        });
    }

    /// Marks that the branch waits only for branches of its own, until the returned [`Join`] ends.
    fn join(&self) -> Join {
        let driver = self.run_call.as_ref().map(|run_call| run_call.get().waiter());
        let join = self.guest_branch.with(|branch| branch.as_ref().map(guest::GuestBranch::join));
        Join { has_ended: AtomicBool::new(join.is_none()), join: Mutex::new(join), driver }
    }

    /// Drives an execution whose code the caller runs, while its branches run in other threads, until `join` ends.
    fn drive(&self, py: Python<'_>, join: &Join) -> PyResult<()> {
        let Some(run_call) = &self.run_call else { return Ok(()) };
        let driven = run_call.get().drive(py, || join.has_ended.load(SeqCst));
        driven.inspect_err(|raised| {
            if !raised.is_instance_of::<PyException>(py) {
                self.defer();
            }
        })
    }

    /// Returns a stand-in for a branch, which rejects durable calls: for code that closes an abandoned async
    /// generator.
    fn detached_from_run(&self, py: Python<'_>) -> Self {
        Self {
            guest_branch: Mutex::default(),
            control: self.control.clone(),
            call_thread: Mutex::default(),
            is_detached_from_run: true,
            outcome_slot: None,
            port: self.port.as_ref().map(|port| port.clone_ref(py)),
            run_call: None,
            host: Mutex::new(self.host(py)),
            has_finished: AtomicBool::new(true),
            process: self.process,
        }
    }

    /// Ends the branch.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.guest_branch.take();
        self.process.drop_if_current(ended);
        match self.bound_port(py) {
            Some(port) if self.process.is_current() && self.control.code_blocked() => {
                Port::watch(port, &self.control)
            }
            _ => Ok(()),
        }
    }

    /// Takes the next task of a graph that may begin in this execution.
    fn begin_next_task(&self, progress: &GraphProgress) -> Option<usize> {
        if !self.process.is_current() {
            return None;
        }
        self.guest_branch.with(|branch| {
            let branch = branch.as_ref()?;
            progress.begin_next_in(|place| branch.has_recorded_task(place))
        })
    }

    /// Whether a replay delivers the outcome of the task or the callback with these settings.
    fn has_recorded_task(&self, settings: &StepSettings) -> bool {
        let Some(place) = settings.task_place().filter(|_| self.process.is_current()) else { return false };
        self.guest_branch.with(|branch| branch.as_ref().is_some_and(|branch| branch.has_recorded_task(place)))
    }

    /// Whether the task of these settings has failed and is repeated, because the execution was resumed since.
    fn is_repeated_task(&self, settings: &StepSettings, shape: &GraphShape, task: usize) -> bool {
        let Some(place) = settings.task_place().filter(|_| self.process.is_current()) else { return false };
        self.guest_branch.with(|branch| {
            branch.as_ref().is_some_and(|branch| branch.is_repeated_task(place, shape.dependent_places(task)))
        })
    }

    /// Makes the call of a step. A fingerprint identifies the arguments, however the call is spelled. The fingerprint
    /// does not cover the first `bound` arguments of the function.
    #[pyo3(signature = (settings, args, kwargs, bound=0))]
    fn step(
        &self,
        py: Python<'_>,
        settings: &StepSettings,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        bound: usize,
    ) -> PyResult<Call> {
        if let Some(place) = settings.task_place() {
            let step = self
                .make_call(py, |branch| branch.task(place, &settings.name, settings.options.map(Box::new)))?;
            let call = Call::step(self.bound_port(py), self.control.clone(), place.path(), step);
            return Ok(self.attach_run_call(py, call));
        }
        // arguments that cannot be encoded have no fingerprint: the body may take any value
        let fingerprint = match settings.signature(py) {
            Some(signature) => signature.fingerprint(args, kwargs, bound),
            None => fingerprint(args, kwargs),
        };
        let (path, step) = self.make_call(py, |branch| {
            let path = branch.upcoming_path();
            let options = settings.options.map(Box::new);
            (path, branch.step(&settings.name, options, fingerprint))
        })?;
        Ok(self.attach_run_call(py, Call::step(self.bound_port(py), self.control.clone(), path, step)))
    }

    /// Makes the awaitable call of a step, whose body gets `args` and `kwargs`. The fingerprint covers `recorded` and
    /// `kwargs`. Returns `None` if the code cannot await.
    fn awaitable_step(
        slf: &Bound<'_, Self>,
        settings: &Bound<'_, StepSettings>,
        recorded: &Bound<'_, PyTuple>,
        args: Py<PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> PyResult<Option<Call>> {
        let branch = slf.get();
        if branch.port.is_none() && branch.is_own_thread() {
            return Ok(None);
        }
        let bound = args.bind(slf.py()).len().saturating_sub(recorded.len());
        let call = branch.step(slf.py(), settings.get(), recorded, kwargs, bound)?;
        let (settings, kwargs) = (settings.clone().unbind(), kwargs.clone().unbind());
        Ok(Some(call.with_coroutine(CallCoroutine::for_step(slf.clone().unbind(), settings, args, kwargs))))
    }

    /// Makes a durable sleep.
    fn sleep(slf: &Bound<'_, Self>, seconds: f64) -> PyResult<Call> {
        let duration = duration_of(seconds);
        Self::awaitable_call(slf, |branch| {
            let sleep = branch.sleep(duration);
            Box::pin(async move {
                sleep.await;
                Reply::Nothing
            })
        })
    }

    /// Makes a durable sleep until a time by the database's clock, in microseconds since 1970.
    fn sleep_until(slf: &Bound<'_, Self>, micros: i64) -> PyResult<Call> {
        Self::awaitable_call(slf, |branch| {
            let sleep = branch.sleep_until(Timestamp::from_micros(micros));
            Box::pin(async move {
                sleep.await;
                Reply::Nothing
            })
        })
    }

    /// Receives a message. The call returns its value, or None after the timeout in seconds.
    fn receive(slf: &Bound<'_, Self>, topic: &str, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = timeout.map(duration_of);
        Self::awaitable_call(slf, |branch| match branch.receive(topic, timeout) {
            Ok(message) => Box::pin(async move { message.await.map_or_else(Reply::Failed, Reply::of_wait) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Sends a message to the execution with this workflow_id.
    fn send(
        slf: &Bound<'_, Self>,
        workflow_id: String,
        value: &Bound<'_, PyAny>,
        topic: &str,
        keeps: bool,
    ) -> PyResult<Call> {
        let value = crate::convert::value::encode(value)?;
        Self::awaitable_call(slf, |branch| match branch.send(workflow_id, value, topic, keeps) {
            Ok(sent) => Box::pin(async move { sent.await.map_or_else(Reply::Failed, |()| Reply::Nothing) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Sets an event.
    fn set_event(slf: &Bound<'_, Self>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Call> {
        let value = crate::convert::value::encode(value)?;
        Self::awaitable_call(slf, |branch| match branch.set_event(name, value) {
            Ok(set) => Box::pin(async move { set.await.map_or_else(Reply::Failed, |()| Reply::Nothing) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Waits for an event of the execution with this workflow_id. The call returns its value, or None after the timeout in
    /// seconds.
    fn get_event(
        slf: &Bound<'_, Self>,
        workflow_id: String,
        name: &str,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        let timeout = timeout.map(duration_of);
        Self::awaitable_call(slf, |branch| match branch.get_event(workflow_id, name, timeout) {
            Ok(event) => Box::pin(async move { event.await.map_or_else(Reply::Failed, Reply::of_wait) }),
            Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
        })
    }

    /// Runs a child to its output. If `may_run_here`, a thread that waits for the child runs its code itself. With the
    /// settings of a task, the child is this task of a graph.
    #[pyo3(signature = (engine, workflow, args, kwargs, may_run_here, options, task=None))]
    #[allow(clippy::too_many_arguments)] // arguments of Python
    fn child(
        slf: &Bound<'_, Self>,
        engine: &Engine,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        may_run_here: bool,
        options: Option<&StartOptions>,
        task: Option<&StepSettings>,
    ) -> PyResult<Call> {
        let place = task.and_then(StepSettings::task_place);
        let mailbox = if slf.get().port.is_none() { engine.thread_mailbox(workflow) } else { None };
        let (workflow, input) = engine.workflow_and_input(workflow, args, kwargs, true)?;
        let hosted_child =
            slf.get().child_to_host(mailbox.filter(|_| may_run_here && options.is_none()), place);
        let options = options.map(StartOptions::to_core);
        let call = Self::awaitable_call(slf, |branch| {
            let child = branch.child(&workflow, input, options, place);
            Box::pin(async move { Reply::of_call(child.await) })
        })?;
        Ok(match hosted_child {
            Some((mailbox, child)) => call.with_hosted_child(mailbox, child),
            None => call,
        })
    }

    /// Waits for the output of the child that was started under this key.
    fn child_result(slf: &Bound<'_, Self>, engine: &Engine, workflow: usize, key: &str) -> PyResult<Call> {
        let (workflow, key) = (engine.workflow(workflow)?, parse_key(key)?);
        slf.get().child_to_host(None, None);
        Self::awaitable_call(slf, |branch| {
            let output = branch.child_result(&workflow, key);
            Box::pin(async move { Reply::of_call(output.await) })
        })
    }

    /// Starts a child. The call returns the child's workflow_id: the id that was given, or else the text of its key.
    fn start_child(
        slf: &Bound<'_, Self>,
        engine: &Engine,
        workflow: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        is_detached: bool,
        options: Option<&StartOptions>,
    ) -> PyResult<Call> {
        let options = options.map(StartOptions::to_core);
        let given_id = options.as_ref().and_then(|options| options.workflow_id.clone());
        let (workflow, input) = engine.workflow_and_input(workflow, args, kwargs, true)?;
        Self::awaitable_call(slf, |branch| {
            let started = branch.start_child(&workflow, input, options, is_detached);
            Box::pin(async move {
                match started.await {
                    Ok(key) => Reply::Text(given_id.map_or_else(|| key.to_string(), |id| id.to_string())),
                    Err(failure) => Reply::Failed(failure),
                }
            })
        })
    }

    /// Submits a batch of calls with these tuples of arguments. The call returns the id of the batch. At the first input
    /// that cannot be encoded, returns its index and the exception instead of a call.
    fn submit_batch(
        slf: &Bound<'_, Self>,
        engine: &Engine,
        workflow: usize,
        items: &Bound<'_, PyList>,
        options: Option<&StartOptions>,
    ) -> PyResult<(Option<Call>, Option<RefusedInput>)> {
        let known = engine.known_workflow(workflow)?;
        let options = options.map(StartOptions::to_core);
        let (inputs, error) = encode_items(&known, items, true);
        if let Some(error) = error {
            return Ok((None, Some((inputs.len() as u64, error.into_value(slf.py()).into_any()))));
        }
        let call = Self::awaitable_call(slf, |branch| {
            let submitted = branch.submit_batch(&known.workflow, inputs, options);
            Box::pin(
                async move { submitted.await.map_or_else(Reply::Failed, |key| Reply::Text(key.to_string())) },
            )
        })?;
        Ok((Some(call), None))
    }

    /// Waits until the batch with this key has ended, and counts its items by state.
    fn batch_counts(slf: &Bound<'_, Self>, engine: &Engine, workflow: usize, key: &str) -> PyResult<Call> {
        let (workflow, key) = (engine.workflow(workflow)?, parse_key(key)?);
        Self::awaitable_call(slf, |branch| {
            let counts = branch.batch_counts(&workflow, key);
            Box::pin(async move { counts.await.map_or_else(Reply::Failed, Reply::BatchCounts) })
        })
    }

    /// Waits until the batch with this key has ended, and reads the results of its items.
    fn batch_results(slf: &Bound<'_, Self>, engine: &Engine, workflow: usize, key: &str) -> PyResult<Call> {
        let (workflow, key) = (engine.workflow(workflow)?, parse_key(key)?);
        Self::awaitable_call(slf, |branch| {
            let results = branch.batch_results(&workflow, key);
            Box::pin(async move { results.await.map_or_else(Reply::Failed, Reply::Items) })
        })
    }

    /// Records the output that the code has returned.
    pub(crate) fn succeed(&self, output: &Bound<'_, PyAny>) -> PyResult<()> {
        self.process.check(output.py())?;
        let output = encode(output)?;
        self.has_finished.store(true, SeqCst);
        if let Some(slot) = &self.outcome_slot {
            slot.fill(Ok(output));
        }
        Ok(())
    }

    /// Records the failure of the code.
    fn fail(&self, failure: FailureTuple) {
        self.has_finished.store(true, SeqCst);
        if let (Some(slot), true) = (&self.outcome_slot, self.process.is_current()) {
            slot.fill(Err(failure.into()));
        }
    }
}

fn parse_key(text: &str) -> PyResult<Key> {
    Key::from_text(text).ok_or_else(|| crate::error::runtime_error("this is not the key of a child"))
}

/// A mark that a branch waits only for branches of its own, until the join ends.
#[pyclass(frozen)]
pub(crate) struct Join {
    join: Mutex<Option<guest::BranchJoin>>,
    has_ended: AtomicBool,
    /// The waiter of the thread that drives the execution during the join.
    driver: Option<Arc<Waiter>>,
}

#[pymethods]
impl Join {
    /// Ends the wait: the branch continues.
    fn end(&self) {
        drop(self.join.take());
        self.has_ended.store(true, SeqCst);
        if let Some(driver) = &self.driver {
            driver.clone().wake();
        }
    }
}
