//! The end of the program, for threads for which Python does not wait.
//!
//! When such a thread takes the lock of an interpreter that is ending, the interpreter ends the thread by unwinding its
//! stack. With native code on that stack, the process aborts. So threads count themselves while they return to the
//! interpreter, and while native code calls Python. The end of the program waits until no thread is counted. A thread
//! that arrives later is parked forever.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::sync::Condvar;

use crate::lock::Mutex;
use crate::thread::current_thread_id;

/// Maximum time of one wait for the counted threads at the end of the program. If fewer threads are counted afterwards,
/// the next wait follows.
const GUARD_WAIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of waits, each of at most [`GUARD_WAIT_TIMEOUT`].
const MAX_GUARD_WAITS: usize = 10;

static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// The number of guards of all threads.
static GUARDS: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the program. This thread is never parked.
static EXITING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
static GUARDS_RELEASED: Condvar = Condvar::new();

thread_local! {
    /// The number of guards of this thread.
    static THREAD_GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// A mark of a thread that needs the interpreter and has native code on its stack.
pub(crate) struct InterpreterGuard(());

impl InterpreterGuard {
    /// Creates a guard in a thread that has the interpreter. Does not return once the program ends.
    pub(crate) fn enter(py: Python<'_>) -> Self {
        let guard = Self::acquire();
        if must_park() {
            py.detach(park_forever);
        }
        guard
    }

    fn acquire() -> Self {
        THREAD_GUARDS.set(THREAD_GUARDS.get() + 1);
        GUARDS.fetch_add(1, SeqCst);
        Self(())
    }
}

/// Returns true once the program ends, in every thread but the one that ends it.
fn must_park() -> bool {
    IS_EXITING.load(SeqCst) && EXITING_THREAD.with(|thread| *thread) != Some(current_thread_id())
}

impl Drop for InterpreterGuard {
    fn drop(&mut self) {
        THREAD_GUARDS.set(THREAD_GUARDS.get() - 1);
        release_guards(1);
    }
}

/// Calls `function` without the interpreter. Does not return once the program ends.
pub(crate) fn without_interpreter<R: Send>(py: Python<'_>, function: impl FnOnce() -> R + Send) -> R {
    // during the call this thread does not need the interpreter
    let held = THREAD_GUARDS.replace(0);
    if held > 0 {
        release_guards(held);
    }
    let returned = py.detach(|| {
        let returned = function();
        THREAD_GUARDS.set(held);
        GUARDS.fetch_add(held, SeqCst);
        let guard = InterpreterGuard::acquire();
        if must_park() {
            park_forever();
        }
        // the guard is dropped below, once the thread has the interpreter
        std::mem::forget(guard);
        returned
    });
    drop(InterpreterGuard(()));
    returned
}

/// Releases guards of this thread.
fn release_guards(count: usize) {
    GUARDS.fetch_sub(count, SeqCst);
    if IS_EXITING.load(SeqCst) {
        EXITING_THREAD.with(|_| ());
        GUARDS_RELEASED.notify_all();
    }
}

/// Parks the thread until the process ends.
fn park_forever() {
    release_guards(THREAD_GUARDS.replace(0));
    loop {
        std::thread::park();
    }
}

/// Parks all other threads as soon as they need the interpreter. Called last when the program ends.
#[pyfunction]
pub(crate) fn park_other_threads(py: Python<'_>) {
    let here = current_thread_id();
    let _ = EXITING_THREAD.replace(Some(here));
    IS_EXITING.store(true, SeqCst);
    let own_guards = THREAD_GUARDS.get();
    py.detach(|| {
        // on a busy machine threads finish slowly, one after another
        for _ in 0..MAX_GUARD_WAITS {
            let guards = GUARDS.load(SeqCst);
            if guards <= own_guards {
                return;
            }
            EXITING_THREAD.wait_until_within(
                &GUARDS_RELEASED,
                GUARD_WAIT_TIMEOUT,
                |_| GUARDS.load(SeqCst) <= own_guards,
                |_| (),
            );
            if GUARDS.load(SeqCst) >= guards {
                return;
            }
        }
    });
}

pub(crate) fn after_fork_in_child() {
    // the child has only this thread
    GUARDS.store(THREAD_GUARDS.get(), SeqCst);
    IS_EXITING.store(false, SeqCst);
}
