//! [`Port`]: the connection by which the engine reaches an event loop, or the threads of a pool. One wake-up of the
//! loop delivers up to `MAX_MESSAGES_PER_DRAIN` messages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::ThreadId;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PySet};
use rustix::event::{EventfdFlags, eventfd};
use stepfast::Payload;
use stepfast::guest::{BlockedOn, FlushBurst, RunControl};
use stepfast::sync::Condvar;

use crate::bridge::branch::Branch;
use crate::bridge::caller_code::Callers;
use crate::bridge::mailbox::{Mailbox, Message, NewRun};
use crate::bridge::quiet_watch::QuietWatch;
use crate::bridge::waiter::{Callback, Waiter};
use crate::error::runtime_error;
use crate::exit::{InterpreterGuard, without_interpreter};
use crate::fork::Process;
use crate::interpreter::run_in_context;
use crate::lock::Mutex;
use crate::runtime::enter_runtime;

/// Maximum number of messages taken per wake-up, so that the loop can do its other work.
const MAX_MESSAGES_PER_DRAIN: usize = 256;
/// Minimum number of messages whose tasks share one flush burst, so that one flush contains their Writes.
const MIN_MESSAGES_PER_FLUSH_BURST: usize = 64;
/// A flush burst takes the messages that wait, divided by this number, if these are more than the minimum. The loop handles
/// the others while the burst's Writes are flushed.
const FLUSH_BURSTS_PER_MAILBOX: usize = 3;

thread_local! {
    /// The flush burst that this thread has open.
    static THREAD_FLUSH_BURST: RefCell<Option<FlushBurst>> = const { RefCell::new(None) };
}

/// The scope of a flush burst, in which the Writes of this thread wait for each other. The burst ends early if the
/// thread has to wait.
struct FlushBurstScope;

impl FlushBurstScope {
    fn begin(engine: &stepfast::Engine) -> Self {
        if let Some(burst) = FlushBurst::begin(engine) {
            THREAD_FLUSH_BURST.set(Some(burst));
        }
        Self
    }
}

impl Drop for FlushBurstScope {
    fn drop(&mut self) {
        end_flush_burst();
    }
}

/// Ends the flush burst of this thread, because the thread is about to wait for its own Writes.
pub(crate) fn end_flush_burst() {
    drop(THREAD_FLUSH_BURST.take());
}

/// Forgets the flush burst in a forked child: it belongs to the parent.
pub(crate) fn after_fork_in_child() {
    std::mem::forget(THREAD_FLUSH_BURST.take());
}

/// The engine's connection to one event loop, or to one pool of threads.
#[pyclass(frozen)]
pub(crate) struct Port {
    pub(crate) mailbox: Arc<Mailbox>,
    event_loop: Option<Py<PyAny>>,
    /// A finished future of the loop, with which tasks are woken. Asyncio reads the result of its own futures natively,
    /// and calls the method `result` of any other.
    finished_future: Option<Py<PyAny>>,
    quiet_watch: Mutex<QuietWatch>,
    /// The function of the package that returns what the branches of a run are blocked on.
    blocked_on: Mutex<Option<Py<PyAny>>>,
    callers: Callers,
    /// Messages that `drain` has converted for Python, but could not return because of an exception.
    undelivered: Mutex<Option<Vec<Py<PyAny>>>>,
    /// The thread that created the port.
    loop_thread: ThreadId,
    /// The engine whose flushes wait for the loop's current flush burst.
    engine: Mutex<Option<stepfast::Engine>>,
    process: Process,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.process.drop_if_current(self.engine.get_mut().take());
    }
}

/// The object by which asyncio's current task is found.
enum CurrentTask {
    /// asyncio's dict of current tasks, by loop. The function `current_task` of Python 3.11 reads the same dict, but
    /// takes ten times as long.
    Registry(Py<PyDict>),
    Function(Py<PyAny>),
}

impl CurrentTask {
    fn find(py: Python<'_>) -> PyResult<Self> {
        let tasks = py.import("asyncio.tasks")?;
        let registry =
            tasks.getattr_opt("_current_tasks")?.and_then(|tasks| tasks.cast_into::<PyDict>().ok());
        Ok(match registry {
            // from 3.14 on the interpreter keeps the tasks, and the function is native
            Some(registry) if py.version_info() < (3, 14) => CurrentTask::Registry(registry.unbind()),
            _ => CurrentTask::Function(tasks.getattr("current_task")?.unbind()),
        })
    }
}

/// Returns a future of asyncio that has finished with `None`.
fn make_finished_future(py: Python<'_>, event_loop: &Py<PyAny>) -> PyResult<Py<PyAny>> {
    let arguments = [("loop", event_loop)].into_py_dict(py)?;
    let future = py.import("asyncio")?.getattr("Future")?.call((), Some(&arguments))?;
    future.call_method1("set_result", (py.None(),))?;
    Ok(future.unbind())
}

impl Port {
    /// Sets the engine whose flushes wait for the loop's current flush burst.
    pub(crate) fn set_engine(&self, engine: Option<stepfast::Engine>) {
        drop(self.engine.replace(engine));
    }

    /// Watches a run until it is quiescent. Called in the loop's thread.
    pub(crate) fn watch(slf: &Bound<'_, Self>, control: &RunControl) -> PyResult<()> {
        let port = slf.get();
        let Some(event_loop) = &port.event_loop else { return Ok(()) };
        if port.quiet_watch.with(|quiet_watch| quiet_watch.add(control.clone())) {
            Self::schedule_tick(slf, event_loop)?;
        }
        Ok(())
    }

    /// Returns what the branches of a quiescent run are blocked on.
    fn blocked_on(&self, py: Python<'_>, control: &RunControl) -> BlockedOn {
        if !control.needs_blocked_on() {
            return BlockedOn::External;
        }
        let _guard = InterpreterGuard::enter(py);
        let callback = self.blocked_on.clone_object(py, Option::as_ref);
        let answer =
            callback.map(|callback| callback.call1(py, (control.run_id(),))?.extract::<u8>(py)).transpose();
        match answer {
            Ok(Some(1)) => BlockedOn::TimeLimited,
            Ok(Some(2)) => BlockedOn::DurableCalls,
            Ok(_) => BlockedOn::External,
            Err(error) => {
                error.write_unraisable(py, None);
                BlockedOn::External
            }
        }
    }

    fn schedule_tick(slf: &Bound<'_, Self>, event_loop: &Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        let _guard = InterpreterGuard::enter(py);
        let tick = slf.getattr(pyo3::intern!(py, "tick"))?;
        event_loop.call_method1(py, pyo3::intern!(py, "call_soon"), (tick,))?;
        Ok(())
    }

    /// Returns true while the loop runs in this thread.
    pub(crate) fn is_loop_running(&self, py: Python<'_>) -> bool {
        static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(event_loop) = &self.event_loop else { return false };
        let _guard = InterpreterGuard::enter(py);
        let running = RUNNING
            .get_or_try_init(py, || {
                Ok::<_, PyErr>(py.import("asyncio")?.getattr("_get_running_loop")?.unbind())
            })
            .and_then(|running| running.call0(py));
        running.is_ok_and(|running| running.is(event_loop))
    }

    /// Returns the task that runs on the loop now, or None.
    pub(crate) fn current_task<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CURRENT_TASK: PyOnceLock<CurrentTask> = PyOnceLock::new();
        let event_loop = &self.event_loop;
        match CURRENT_TASK.get_or_try_init(py, || CurrentTask::find(py))? {
            CurrentTask::Registry(tasks) => {
                Ok(tasks.bind(py).get_item(event_loop)?.unwrap_or_else(|| py.None().into_bound(py)))
            }
            CurrentTask::Function(current_task) => current_task.bind(py).call1((event_loop,)),
        }
    }

    /// Calls the callback of a woken waiter, or polls its call.
    fn resume_waiter(&self, py: Python<'_>, waiter: &Waiter) -> PyResult<()> {
        if let Some(callback) = waiter.take_callback() {
            let Callback { function, context, call } = callback;
            let function = function.bind(py);
            let argument = match &self.finished_future {
                Some(finished) if !call.get().is_cancelled() => finished.bind(py),
                // the result of the call raises the cancellation
                _ => call.bind(py).as_any(),
            };
            run_in_context(context.bind(py), || function.call1((argument,)).map(drop))?;
        } else if let Some(call) = waiter.polled_call(py) {
            call.get().advance();
        }
        Ok(())
    }

    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    pub(crate) fn event_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py))
    }
}

#[pymethods]
impl Port {
    /// Creates a port for a loop, which watches `fileno()`, or for threads.
    #[new]
    fn new(py: Python<'_>, event_loop: Option<Py<PyAny>>) -> PyResult<Self> {
        let event_fd = if event_loop.is_some() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Some(fd.map_err(|error| runtime_error(&format!("cannot watch for wake-ups: {error}")))?)
        } else {
            None
        };
        let finished_future =
            event_loop.as_ref().map(|event_loop| make_finished_future(py, event_loop)).transpose()?;
        let (messages, hosted_children, is_closed) =
            (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let mailbox =
            Mailbox { messages, hosted_children, is_closed, event_fd, message_arrived: Condvar::default() };
        Ok(Self {
            mailbox: Arc::new(mailbox),
            event_loop,
            finished_future,
            quiet_watch: Mutex::default(),
            blocked_on: Mutex::default(),
            callers: Callers::new(),
            undelivered: Mutex::default(),
            loop_thread: crate::thread::current_thread_id(),
            engine: Mutex::default(),
            process: Process::current(),
        })
    }

    /// Sets the function that returns what the branches of a run are blocked on. The function returns 0 for something
    /// outside of the execution, and 2 for the execution's own calls. For own calls with a time limit that is not
    /// durable, the function returns 1.
    fn set_blocked_on(&self, blocked_on: Py<PyAny>) {
        drop(self.blocked_on.replace(Some(blocked_on)));
    }

    /// Sets two collections of the loop: the guards of callers that run the code of executions, and the ids of runs
    /// that unwind.
    fn set_callers(&self, py: Python<'_>, guards: Py<PyDict>, unwinding: Py<PySet>) {
        self.callers.set_guards(py, guards, unwinding);
    }

    /// Returns the task of the caller that runs the code of this run, or None.
    fn caller_task(&self, py: Python<'_>, run_id: u64) -> Option<Py<PyAny>> {
        self.callers.task(py, run_id)
    }

    /// Returns true if a task of the loop runs now in this thread. May return false although a task runs, for example
    /// if the loop was moved to another thread. Callers then use the check of asyncio, which is slower.
    fn is_in_task(&self, py: Python<'_>) -> PyResult<bool> {
        if crate::thread::current_thread_id() != self.loop_thread {
            return Ok(false);
        }
        self.current_task(py).map(|task| !task.is_none())
    }

    /// Returns the descriptor that the loop watches; -1 for threads.
    fn fileno(&self) -> i32 {
        self.mailbox.event_fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Handles messages in the loop's thread.
    ///
    /// Resumes the waiters that were woken. Returns the other messages, or `None` if there are none. A new run is a
    /// tuple of its workflow's number, its branch and its input. For a run that has to unwind, the message is the run's
    /// id.
    fn drain(slf: &Bound<'_, Self>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let (this, py) = (slf.get(), slf.py());
        let _guard = InterpreterGuard::enter(py);
        let _entered = enter_runtime();
        let mut buffer = [0; 8];
        if let Some(fd) = &this.mailbox.event_fd {
            let _ = rustix::io::read(fd, &mut buffer);
        }
        let (messages, waiting) = this.mailbox.messages.with(|messages| {
            let waiting = messages.len();
            (messages.drain(..waiting.min(MAX_MESSAGES_PER_DRAIN)).collect::<Vec<_>>(), waiting)
        });
        let messages_per_burst = (waiting / FLUSH_BURSTS_PER_MAILBOX).max(MIN_MESSAGES_PER_FLUSH_BURST);
        if let (true, Some(fd)) = (waiting > messages.len(), &this.mailbox.event_fd) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        let engine = this.engine.with(|engine| engine.clone());
        let mut messages_for_python = this.undelivered.take();
        let mut messages = messages.into_iter();
        while messages.len() > 0 {
            let _burst = engine.as_ref().map(FlushBurstScope::begin);
            for message in messages.by_ref().take(messages_per_burst) {
                let taken = match message {
                    Message::Wake(waiter) => this.resume_waiter(py, &waiter),
                    other => message_to_python(py, other, Some(slf))
                        .map(|message| messages_for_python.get_or_insert_default().push(message)),
                };
                if let Err(error) = taken {
                    // the resumed code ends the program, or the loop: the other messages are kept, because their
                    // waiters must still be woken
                    drop(this.undelivered.replace(messages_for_python));
                    this.mailbox.return_messages(messages);
                    return Err(error);
                }
            }
        }
        Ok(messages_for_python)
    }

    /// Counts a turn of the loop, and notifies the runs that are quiescent.
    fn tick(slf: &Bound<'_, Self>) -> PyResult<()> {
        let port = slf.get();
        let (quiet, is_scheduled) = port.quiet_watch.with(QuietWatch::count_turn);
        for control in quiet {
            control.set_quiescent(port.blocked_on(slf.py(), &control));
        }
        match &port.event_loop {
            Some(event_loop) if is_scheduled => Self::schedule_tick(slf, event_loop),
            _ => Ok(()),
        }
    }

    /// Waits for the next message, in a thread of a pool. Returns `None` once the port is closed.
    fn next_message(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let message = without_interpreter(py, || {
            let is_ready =
                |messages: &VecDeque<_>| !messages.is_empty() || self.mailbox.is_closed.load(SeqCst);
            self.mailbox.messages.wait_until(&self.mailbox.message_arrived, is_ready, VecDeque::pop_front)
        });
        message.map(|message| message_to_python(py, message, None)).transpose()
    }

    /// Ends the waits of all threads, and drops the waiting messages.
    fn close(&self) {
        let dropped = self.mailbox.messages.with(|messages| {
            self.mailbox.is_closed.store(true, SeqCst);
            std::mem::take(messages)
        });
        self.mailbox.message_arrived.notify_all();
        drop(dropped);
    }

    // the loop's callbacks keep the port, and the port keeps the function that reads the loop's tasks
    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.finished_future)?;
        self.callers.traverse(&visit)?;
        self.blocked_on.traverse(|callback| visit.call(callback))
    }

    fn __clear__(&self) {
        drop(self.blocked_on.take());
    }

    /// Returns the number of waiting messages.
    fn __len__(&self) -> usize {
        self.mailbox.messages.with(|messages| messages.len())
    }
}

fn message_to_python(
    py: Python<'_>,
    message: Message,
    port: Option<&Bound<'_, Port>>,
) -> PyResult<Py<PyAny>> {
    match message {
        Message::Wake(_) => Ok(py.None()),
        Message::Unwind(control) => Ok(control.run_id().into_pyobject(py)?.into_any().unbind()),
        Message::Begin(new_run) => {
            new_run_to_python(py, new_run, port).map(|new_run| new_run.unwrap_or_else(|| py.None()))
        }
    }
}

/// Returns a new run as a tuple for Python; `None` if the execution was parked because its input cannot be read.
pub(crate) fn new_run_to_python(
    py: Python<'_>,
    new_run: NewRun,
    port: Option<&Bound<'_, Port>>,
) -> PyResult<Option<Py<PyAny>>> {
    let NewRun { workflow, branch, input, outcome_slot } = new_run;
    let Some(input) = decode_or_park(py, &branch.run_control(), &input) else { return Ok(None) };
    let branch = Branch::new(branch, Some(outcome_slot), port.map(|port| port.clone().unbind()));
    Ok(Some((workflow, branch, input).into_pyobject(py)?.into_any().unbind()))
}

/// Returns the input of an execution. If the input cannot be read, parks the execution and returns `None`.
pub(crate) fn decode_or_park<'py>(
    py: Python<'py>,
    control: &RunControl,
    input: &Payload,
) -> Option<Bound<'py, PyAny>> {
    match crate::convert::value::decode(py, input) {
        Ok(input) => Some(input),
        Err(error) => {
            control.park(&format!("its input: {}", error.value(py)));
            None
        }
    }
}
