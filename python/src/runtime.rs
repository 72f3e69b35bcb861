//! The one tokio runtime of the process.

use std::cell::{Cell, RefCell};

// whoever holds it runs no Python code: the thread that forks keeps its guard
#[allow(clippy::disallowed_types)]
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use tokio::runtime::{Builder, EnterGuard, Runtime};

use crate::exit::{InterpreterGuard, without_interpreter};
use crate::fork::Process;

/// The runtime, and whose it is: a forked child has no threads of its parent's, and needs another.
#[allow(clippy::disallowed_types)]
static RUNTIME: Mutex<Option<(Process, &'static Runtime)>> = Mutex::new(None);

thread_local! {
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
    /// The same as `RUNTIME`, without a lock.
    static RUNTIME_HERE: Cell<Option<(Process, &'static Runtime)>> = const { Cell::new(None) };
    /// Whether it is the main thread of Python, and of which process.
    static IS_MAIN: Cell<Option<(Process, bool)>> = const { Cell::new(None) };
    /// Held by the thread that forks, so that the child does not get the lock from somebody whom it does not have.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

type Held = MutexGuard<'static, Option<(Process, &'static Runtime)>>;

/// While it lives, this thread may poll what needs the runtime.
pub(crate) struct Entered(Option<EnterGuard<'static>>);

/// Enters the runtime, unless the thread has.
pub(crate) fn enter() -> Entered {
    if IS_ENTERED.replace(true) { Entered(None) } else { Entered(Some(runtime().enter())) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_ENTERED.set(false);
        }
    }
}

/// The runtime that engines, their timers and their connections live on; started by the first engine.
pub(crate) fn runtime() -> &'static Runtime {
    if let Some((process, runtime)) = RUNTIME_HERE.get()
        && process.is_current()
    {
        return runtime;
    }
    let mut common = loop {
        match RUNTIME.try_lock() {
            Ok(common) => break common,
            Err(TryLockError::Poisoned(common)) => break common.into_inner(),
            // a thread that forks has it, and may wait for the interpreter, which this one may have
            Err(TryLockError::WouldBlock) => {
                let wait = || drop(RUNTIME.lock());
                Python::try_attach(|py| without_interpreter(py, wait)).unwrap_or_else(wait);
            }
        }
    };
    let made: (Process, &'static Runtime) = match *common {
        Some(made) if made.0.is_current() => made,
        // that of the parent has no threads here; it is not dropped, as it would wait for them
        _ => (Process::current(), Box::leak(Box::new(built()))),
    };
    *common = Some(made);
    RUNTIME_HERE.set(Some(made));
    made.1
}

fn built() -> Runtime {
    let built = Builder::new_multi_thread().worker_threads(2).thread_name("stepfast").enable_all().build();
    // without threads there is no engine, and nothing to tell it to
    built.unwrap_or_else(|error| panic!("cannot start the threads of the engine: {error}"))
}

pub(crate) fn before_fork() {
    HELD.set(Some(RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)));
}

pub(crate) fn after_fork_in_parent() {
    drop(HELD.take());
}

pub(crate) fn after_fork_in_child() {
    drop(HELD.take());
    // the code that forked may run in a turn of the parent's loop: what it does from here on is not in that
    IS_ENTERED.set(false);
}

/// True in the main thread of Python.
pub(crate) fn is_main(py: Python<'_>) -> bool {
    if let Some((process, is_main)) = IS_MAIN.get()
        && process.is_current()
    {
        return is_main;
    }
    let _inside = InterpreterGuard::enter(py);
    let is_main = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        threading.call_method0("get_ident")?.eq(main)
    };
    // a signal that nobody looks for is worse than a look too many
    let is_main = is_main().unwrap_or(true);
    IS_MAIN.set(Some((Process::current(), is_main)));
    is_main
}
