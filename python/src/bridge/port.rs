//! [`Port`]: how the engine reaches an event loop, or the threads of a pool: one wake-up for all that came in
//! meanwhile.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::ThreadId;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySet};
use rustix::event::{EventfdFlags, eventfd};
use stepfast::Payload;
use stepfast::guest::{Burst, Gate, Waits};
use stepfast::sync::Condvar;

use crate::bridge::branch::Branch;
use crate::bridge::caller_code::Callers;
use crate::bridge::mailbox::{Begin, Note, Shared};
use crate::bridge::waiter::{Callback, Waiter};
use crate::error::runtime_error;
use crate::exit::{InterpreterGuard, without_interpreter};
use crate::fork::Process;
use crate::interpreter::call_in;
use crate::lock::Mutex;
use crate::runtime::enter;

/// So many notes are taken at a time: the loop has other things to do.
const AT_ONCE: usize = 256;
/// What so many tasks stage in their turn goes out together.
const BURST: usize = 64;

thread_local! {
    /// The burst that this thread is in.
    static BURST_HERE: RefCell<Option<Burst>> = const { RefCell::new(None) };
}

/// A burst that ends early if the thread has to wait.
struct InBurst;

impl InBurst {
    fn begin(engine: &stepfast::Engine) -> Self {
        if let Some(burst) = Burst::begin(engine) {
            BURST_HERE.set(Some(burst));
        }
        Self
    }
}

impl Drop for InBurst {
    fn drop(&mut self) {
        end_burst();
    }
}

/// Ends the burst that this thread is in: it is about to wait for what it has staged.
pub(crate) fn end_burst() {
    drop(BURST_HERE.take());
}

/// In a forked child: the burst is its parent's.
pub(crate) fn after_fork_in_child() {
    std::mem::forget(BURST_HERE.take());
}

/// Where an engine leaves its notes for one event loop, or one pool of threads.
#[pyclass(frozen)]
pub(crate) struct Port {
    pub(crate) shared: Arc<Shared>,
    event_loop: Option<Py<PyAny>>,
    restless: Mutex<Restless>,
    /// Tells what the branches of a run wait for.
    waits: Mutex<Option<Py<PyAny>>>,
    callers: Callers,
    /// What was taken for Python and could not be handed over.
    left: Mutex<Option<Vec<Py<PyAny>>>>,
    /// In which it was made.
    thread: ThreadId,
    /// Whose flushes wait for what the loop does at once.
    engine: Mutex<Option<stepfast::Engine>>,
    process: Process,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.process.drop_if_current(self.engine.get_mut().take());
    }
}

/// Where asyncio tells which task runs.
enum CurrentTask {
    /// The tasks that run, by loop: `current_task` of 3.11 is no more than a look at it, and ten times as slow.
    Known(Py<PyDict>),
    Asked(Py<PyAny>),
}

impl CurrentTask {
    fn found(py: Python<'_>) -> PyResult<Self> {
        let tasks = py.import("asyncio.tasks")?;
        let known = tasks.getattr_opt("_current_tasks")?.and_then(|known| known.cast_into::<PyDict>().ok());
        Ok(match known {
            // from 3.14 on the interpreter keeps them, and the function is native
            Some(known) if py.version_info() < (3, 14) => CurrentTask::Known(known.unbind()),
            _ => CurrentTask::Asked(tasks.getattr("current_task")?.unbind()),
        })
    }
}

/// Executions that have not come to rest, watched turn by turn of the loop.
#[derive(Default)]
struct Restless {
    watched: Vec<Watched>,
    /// The loop's next turn looks at them.
    is_ticking: bool,
}

struct Watched {
    gate: Gate,
    activity: Option<u32>,
    turns: u32,
}

/// A branch that waits for something else than a durable call is at rest after so many turns of the loop
/// without any activity of the execution: what one future sets off in others takes a turn each.
const QUIET_TURNS: u32 = 8;

impl Port {
    /// Says which engine's flushes wait for what the loop does at once.
    pub(crate) fn set_engine(&self, engine: Option<stepfast::Engine>) {
        drop(self.engine.replace(engine));
    }

    /// Watches for the moment at which the execution comes to rest. From the loop's thread.
    pub(crate) fn watch(slf: &Bound<'_, Self>, gate: &Gate) -> PyResult<()> {
        let port = slf.get();
        let Some(event_loop) = &port.event_loop else { return Ok(()) };
        let was_ticking = port.restless.with(|restless| {
            restless.watched.push(Watched { gate: gate.clone(), activity: None, turns: 0 });
            std::mem::replace(&mut restless.is_ticking, true)
        });
        if !was_ticking {
            Self::tick_soon(slf, event_loop)?;
        }
        Ok(())
    }

    /// What the branches of a run that has come to rest wait for.
    fn waits_of(&self, py: Python<'_>, gate: &Gate) -> Waits {
        if !gate.minds_waits() {
            return Waits::Outside;
        }
        let _inside = InterpreterGuard::enter(py);
        let waits = self.waits.object(py, Option::as_ref);
        let told = waits.map(|waits| waits.call1(py, (gate.run_id(),))?.extract::<u8>(py)).transpose();
        match told {
            Ok(Some(1)) => Waits::Limited,
            Ok(Some(2)) => Waits::Inside,
            Ok(_) => Waits::Outside,
            Err(error) => {
                error.write_unraisable(py, None);
                Waits::Outside
            }
        }
    }

    fn tick_soon(slf: &Bound<'_, Self>, event_loop: &Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        let _inside = InterpreterGuard::enter(py);
        let tick = slf.getattr(pyo3::intern!(py, "tick"))?;
        event_loop.call_method1(py, pyo3::intern!(py, "call_soon"), (tick,))?;
        Ok(())
    }

    /// True while the loop runs, in this thread.
    pub(crate) fn is_loop_running(&self, py: Python<'_>) -> bool {
        static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(event_loop) = &self.event_loop else { return false };
        let _inside = InterpreterGuard::enter(py);
        let running = RUNNING
            .get_or_try_init(py, || {
                Ok::<_, PyErr>(py.import("asyncio")?.getattr("_get_running_loop")?.unbind())
            })
            .and_then(|running| running.call0(py));
        running.is_ok_and(|running| running.is(event_loop))
    }

    /// The task of its loop that runs now, or None.
    pub(crate) fn current_task<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CURRENT_TASK: PyOnceLock<CurrentTask> = PyOnceLock::new();
        let event_loop = &self.event_loop;
        match CURRENT_TASK.get_or_try_init(py, || CurrentTask::found(py))? {
            CurrentTask::Known(tasks) => {
                Ok(tasks.bind(py).get_item(event_loop)?.unwrap_or_else(|| py.None().into_bound(py)))
            }
            CurrentTask::Asked(current_task) => current_task.bind(py).call1((event_loop,)),
        }
    }

    /// Lets whoever waits by the waiter go on.
    fn woken(py: Python<'_>, waiter: &Waiter) -> PyResult<()> {
        if let Some(callback) = waiter.take() {
            let Callback { function, context, argument } = callback;
            call_in(context.bind(py), function.bind(py), argument.bind(py))?;
        } else if let Some(owner) = waiter.owner(py) {
            owner.get().advance();
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
    /// A port for a loop, which watches its `fileno()`; or for threads.
    #[new]
    fn new(event_loop: Option<Py<PyAny>>) -> PyResult<Self> {
        let fd = if event_loop.is_some() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Some(fd.map_err(|error| runtime_error(&format!("cannot watch for wake-ups: {error}")))?)
        } else {
            None
        };
        let (notes, hosts, is_closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let shared = Shared { notes, hosts, is_closed, fd, came: Condvar::default() };
        Ok(Self {
            shared: Arc::new(shared),
            event_loop,
            restless: Mutex::default(),
            waits: Mutex::default(),
            callers: Callers::new(),
            left: Mutex::default(),
            thread: crate::thread::thread_here(),
            engine: Mutex::default(),
            process: Process::current(),
        })
    }

    /// Sets what tells what the branches of a run wait for: 0 for something outside, 1 for the execution's own
    /// calls with a limit in time that is not durable, 2 for its own calls.
    fn set_waits(&self, waits: Py<PyAny>) {
        drop(self.waits.replace(Some(waits)));
    }

    /// Sets where the loop keeps what guards callers that run the code of executions, and which of those unwind.
    fn set_callers(&self, py: Python<'_>, guards: Py<PyDict>, unwound: Py<PySet>) {
        self.callers.keep(py, guards, unwound);
    }

    /// The task of the caller that runs the code of this run, or None.
    fn caller(&self, py: Python<'_>, run: u64) -> Option<Py<PyAny>> {
        self.callers.task(py, run)
    }

    /// True if a task of its loop runs now, in this thread. What is false may be so, too: that has to be asked of
    /// asyncio, which asks the system for its process.
    fn is_here(&self, py: Python<'_>) -> PyResult<bool> {
        if crate::thread::thread_here() != self.thread {
            return Ok(false);
        }
        self.current_task(py).map(|task| !task.is_none())
    }

    /// What the loop watches; -1 for threads.
    fn fileno(&self) -> i32 {
        self.shared.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// In the loop's thread: wakes whoever waits no longer. Returns what else came: tuples of a workflow's
    /// number, branch and input for what begins, the id of a run that has to unwind; `None` if nothing.
    fn drain(slf: &Bound<'_, Self>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let (this, py) = (slf.get(), slf.py());
        let _inside = InterpreterGuard::enter(py);
        let _entered = enter();
        let mut buffer = [0; 8];
        if let Some(fd) = &this.shared.fd {
            let _ = rustix::io::read(fd, &mut buffer);
        }
        let (notes, has_more) = this.shared.notes.with(|notes| {
            let many = notes.len().min(AT_ONCE);
            (notes.drain(..many).collect::<Vec<_>>(), !notes.is_empty())
        });
        if let (true, Some(fd)) = (has_more, &this.shared.fd) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        let engine = this.engine.with(|engine| engine.clone());
        let mut others = this.left.take();
        let mut notes = notes.into_iter();
        while notes.len() > 0 {
            let _burst = engine.as_ref().map(InBurst::begin);
            for note in notes.by_ref().take(BURST) {
                let taken = match note {
                    Note::Wake(waiter) => Self::woken(py, &waiter),
                    other => told(py, other, Some(slf)).map(|told| others.get_or_insert_default().push(told)),
                };
                if let Err(error) = taken {
                    // code ends the program, or the loop: all others who wait still have to hear
                    drop(this.left.replace(others));
                    this.shared.put_back(notes);
                    return Err(error);
                }
            }
        }
        Ok(others)
    }

    /// A turn of the loop has passed: tells the executions that have come to rest.
    fn tick(slf: &Bound<'_, Self>) -> PyResult<()> {
        let port = slf.get();
        let (quiet, goes_on) = port.restless.with(|restless| {
            let mut quiet = Vec::new();
            restless.watched.retain_mut(|watched| {
                let activity = watched.gate.activity();
                if activity.is_none() {
                    return false;
                }
                watched.turns = if activity == watched.activity { watched.turns + 1 } else { 0 };
                watched.activity = activity;
                if watched.turns < QUIET_TURNS {
                    return true;
                }
                quiet.push(watched.gate.clone());
                false
            });
            restless.is_ticking = !restless.watched.is_empty();
            (quiet, restless.is_ticking)
        });
        for gate in quiet {
            gate.set_quiet(port.waits_of(slf.py(), &gate));
        }
        match &port.event_loop {
            Some(event_loop) if goes_on => Self::tick_soon(slf, event_loop),
            _ => Ok(()),
        }
    }

    /// In a thread of a pool: waits for the next note. `None` once the port is closed.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let note = without_interpreter(py, || {
            let is_over = |notes: &VecDeque<_>| !notes.is_empty() || self.shared.is_closed.load(SeqCst);
            self.shared.notes.when(&self.shared.came, is_over, VecDeque::pop_front)
        });
        note.map(|note| told(py, note, None)).transpose()
    }

    /// Lets threads that wait go, and drops what waits for them.
    fn close(&self) {
        let left = self.shared.notes.with(|notes| {
            self.shared.is_closed.store(true, SeqCst);
            std::mem::take(notes)
        });
        self.shared.came.notify_all();
        drop(left);
    }

    // it is kept by the loop's own callbacks, and keeps what tells what runs wait for
    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.event_loop)?;
        self.callers.traverse(&visit)?;
        self.waits.traverse(|waits| visit.call(waits))
    }

    fn __clear__(&self) {
        drop(self.waits.take());
    }

    /// How many notes wait.
    fn __len__(&self) -> usize {
        self.shared.notes.with(|notes| notes.len())
    }
}

fn told(py: Python<'_>, note: Note, port: Option<&Bound<'_, Port>>) -> PyResult<Py<PyAny>> {
    match note {
        Note::Wake(_) => Ok(py.None()),
        Note::Unwind(gate) => Ok(gate.run_id().into_pyobject(py)?.into_any().unbind()),
        Note::Begin(begin) => begun(py, begin, port).map(|begun| begun.unwrap_or_else(|| py.None())),
    }
}

/// What begins, as Python knows it; `None` if it was parked, because its input cannot be read.
pub(crate) fn begun(
    py: Python<'_>,
    begin: Begin,
    port: Option<&Bound<'_, Port>>,
) -> PyResult<Option<Py<PyAny>>> {
    let Begin { workflow, branch, input, slot } = begin;
    let Some(input) = readable(py, &branch.gate(), &input) else { return Ok(None) };
    let branch = Branch::new(branch, Some(slot), port.map(|port| port.clone().unbind()));
    Ok(Some((workflow, branch, input).into_pyobject(py)?.into_any().unbind()))
}

/// The input of an execution; if it cannot be read, that is parked.
pub(crate) fn readable<'py>(py: Python<'py>, gate: &Gate, input: &Payload) -> Option<Bound<'py, PyAny>> {
    match crate::convert::value::decode(py, input) {
        Ok(input) => Some(input),
        Err(error) => {
            gate.park(&format!("its input: {}", error.value(py)));
            None
        }
    }
}
