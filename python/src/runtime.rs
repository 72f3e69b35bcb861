//! The tokio runtime of the process.

use std::cell::{Cell, RefCell};

// a lock of the standard library, because the forking thread keeps its guard; no Python code runs under the lock
#[allow(clippy::disallowed_types)]
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use tokio::runtime::{Builder, EnterGuard, Runtime};

use crate::exit::{InterpreterGuard, without_interpreter};
use crate::fork::Process;

/// The runtime, and the process to which it belongs. A forked child does not have its parent's threads, so it needs a
/// runtime of its own.
#[allow(clippy::disallowed_types)]
static RUNTIME: Mutex<Option<(Process, &'static Runtime)>> = Mutex::new(None);

thread_local! {
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
    /// A copy of `RUNTIME`, read without a lock.
    static THREAD_RUNTIME: Cell<Option<(Process, &'static Runtime)>> = const { Cell::new(None) };
    /// Whether this thread is the main thread of Python, and in which process.
    static IS_MAIN_THREAD: Cell<Option<(Process, bool)>> = const { Cell::new(None) };
    /// The guard of `RUNTIME`, which the forking thread holds during the fork. Otherwise the child could inherit a lock
    /// that none of its threads can release.
    static FORK_LOCK: RefCell<Option<RuntimeLock>> = const { RefCell::new(None) };
}

type RuntimeLock = MutexGuard<'static, Option<(Process, &'static Runtime)>>;

/// Allows this thread to poll futures that need the runtime.
pub(crate) struct RuntimeGuard(Option<EnterGuard<'static>>);

/// Enters the runtime, unless the thread has entered it before.
pub(crate) fn enter_runtime() -> RuntimeGuard {
    if IS_ENTERED.replace(true) { RuntimeGuard(None) } else { RuntimeGuard(Some(runtime().enter())) }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_ENTERED.set(false);
        }
    }
}

/// Returns the runtime of engines, their timers and their connections. The first engine starts it.
pub(crate) fn runtime() -> &'static Runtime {
    if let Some((process, runtime)) = THREAD_RUNTIME.get()
        && process.is_current()
    {
        return runtime;
    }
    let mut common = loop {
        match RUNTIME.try_lock() {
            Ok(common) => break common,
            Err(TryLockError::Poisoned(common)) => break common.into_inner(),
            // a forking thread holds the lock, and may wait for the interpreter, which this thread may hold
            Err(TryLockError::WouldBlock) => {
                let wait = || drop(RUNTIME.lock());
                Python::try_attach(|py| without_interpreter(py, wait)).unwrap_or_else(wait);
            }
        }
    };
    let made: (Process, &'static Runtime) = match *common {
        Some(made) if made.0.is_current() => made,
        // the parent's runtime has no threads here; it is not dropped, because the drop would wait for them
        _ => (Process::current(), Box::leak(Box::new(build_runtime()))),
    };
    *common = Some(made);
    THREAD_RUNTIME.set(Some(made));
    made.1
}

fn build_runtime() -> Runtime {
    let built = Builder::new_multi_thread().worker_threads(2).thread_name("stepfast").enable_all().build();
    // a panic, because without these threads there is no engine that could return the error
    built.unwrap_or_else(|error| panic!("cannot start the threads of the engine: {error}"))
}

pub(crate) fn before_fork() {
    FORK_LOCK.set(Some(RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)));
}

pub(crate) fn after_fork_in_parent() {
    drop(FORK_LOCK.take());
}

pub(crate) fn after_fork_in_child() {
    drop(FORK_LOCK.take());
    // the parent may have forked in a turn of its event loop, after it entered the runtime; the child is in no such
    // turn
    IS_ENTERED.set(false);
}

/// Returns true in the main thread of Python.
pub(crate) fn is_main_thread(py: Python<'_>) -> bool {
    if let Some((process, is_main_thread)) = IS_MAIN_THREAD.get()
        && process.is_current()
    {
        return is_main_thread;
    }
    let _guard = InterpreterGuard::enter(py);
    let is_main_thread = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        threading.call_method0("get_ident")?.eq(main)
    };
    // a missed signal is worse than an unnecessary check
    let is_main_thread = is_main_thread().unwrap_or(true);
    IS_MAIN_THREAD.set(Some((Process::current(), is_main_thread)));
    is_main_thread
}
