//! The end of the program, as threads see it that Python does not wait for.
//!
//! The interpreter ends such a thread where that comes back for it, by unwinding its stack; with native code on that
//! stack the process aborts. So threads count themselves while they are on their way back, and while native code
//! calls Python. The end waits until none of them is, and whichever comes later never comes back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;
use stepfast::sync::Condvar;

use crate::lock::Mutex;
use crate::thread::thread_here;

/// The end waits no longer for a thread that native code has let into Python code, unless threads come to their end
/// meanwhile.
const GUARD_WAIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Most times that the end waits so long.
const MAX_GUARD_WAITS: usize = 10;

static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// Threads inside, each as often as it has entered.
static GUARD_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the program, which goes on.
static EXITING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
static GUARDS_RELEASED: Condvar = Condvar::new();

thread_local! {
    /// How often this thread is inside.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, its thread needs the interpreter, with native code on its stack.
pub(crate) struct InterpreterGuard(());

impl InterpreterGuard {
    /// Enters, in a thread that has the interpreter. Does not return once the program ends.
    pub(crate) fn enter(py: Python<'_>) -> Self {
        let inside = Self::acquire();
        if must_park() {
            py.detach(park_forever);
        }
        inside
    }

    fn acquire() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        GUARD_COUNT.fetch_add(1, SeqCst);
        Self(())
    }
}

/// True in every thread but the one that ends the program, once it ends.
fn must_park() -> bool {
    IS_EXITING.load(SeqCst) && EXITING_THREAD.with(|ending| *ending) != Some(thread_here())
}

impl Drop for InterpreterGuard {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        release_guards(1);
    }
}

/// Calls `function` without the interpreter. Does not return once the program ends.
pub(crate) fn without_interpreter<R: Send>(py: Python<'_>, function: impl FnOnce() -> R + Send) -> R {
    // meanwhile nothing of this thread is on its way
    let depth = DEPTH.replace(0);
    if depth > 0 {
        release_guards(depth);
    }
    let returned = py.detach(|| {
        let returned = function();
        DEPTH.set(depth);
        GUARD_COUNT.fetch_add(depth, SeqCst);
        let back = InterpreterGuard::acquire();
        if must_park() {
            park_forever();
        }
        // left once the thread has the interpreter
        std::mem::forget(back);
        returned
    });
    drop(InterpreterGuard(()));
    returned
}

/// So many entries are over.
fn release_guards(entries: usize) {
    GUARD_COUNT.fetch_sub(entries, SeqCst);
    if IS_EXITING.load(SeqCst) {
        EXITING_THREAD.with(|_| ());
        GUARDS_RELEASED.notify_all();
    }
}

/// Never returns: its thread ends with the process.
fn park_forever() {
    release_guards(DEPTH.replace(0));
    loop {
        std::thread::park();
    }
}

/// Ends all threads but this one, where they need the interpreter the next time. Called last, when the program ends.
#[pyfunction]
pub(crate) fn park_other_threads(py: Python<'_>) {
    let here = thread_here();
    let _ = EXITING_THREAD.replace(Some(here));
    IS_EXITING.store(true, SeqCst);
    let own = DEPTH.get();
    py.detach(|| {
        // on a busy machine threads take their time one after the other
        for _ in 0..MAX_GUARD_WAITS {
            let inside = GUARD_COUNT.load(SeqCst);
            if inside <= own {
                return;
            }
            EXITING_THREAD.when_within(&GUARDS_RELEASED, GUARD_WAIT_TIMEOUT, |_| GUARD_COUNT.load(SeqCst) <= own, |_| ());
            if GUARD_COUNT.load(SeqCst) >= inside {
                return;
            }
        }
    });
}

pub(crate) fn after_fork_in_child() {
    // of all threads only this one is left
    GUARD_COUNT.store(DEPTH.get(), SeqCst);
    IS_EXITING.store(false, SeqCst);
}
