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
const PATIENCE: Duration = Duration::from_secs(1);
/// Most times that the end waits so long.
const WAITS: usize = 10;

static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Threads inside, each as often as it has entered.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// The thread that ends the program, which goes on.
static ENDING: Mutex<Option<ThreadId>> = Mutex::new(None);
static LEFT: Condvar = Condvar::new();

thread_local! {
    /// How often this thread is inside.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, its thread needs the interpreter, with native code on its stack.
pub(crate) struct Inside(());

impl Inside {
    /// Enters, in a thread that has the interpreter. Does not return once the program ends.
    pub(crate) fn enter(py: Python<'_>) -> Self {
        let inside = Self::counted();
        if is_too_late() {
            py.detach(stay);
        }
        inside
    }

    fn counted() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        INSIDE.fetch_add(1, SeqCst);
        Self(())
    }
}

/// True in every thread but the one that ends the program, once it ends.
fn is_too_late() -> bool {
    IS_ENDING.load(SeqCst) && ENDING.with(|ending| *ending) != Some(thread_here())
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        left(1);
    }
}

/// Calls `function` without the interpreter. Does not return once the program ends.
pub(crate) fn detached<R: Send>(py: Python<'_>, function: impl FnOnce() -> R + Send) -> R {
    // meanwhile nothing of this thread is on its way
    let depth = DEPTH.replace(0);
    if depth > 0 {
        left(depth);
    }
    let returned = py.detach(|| {
        let returned = function();
        DEPTH.set(depth);
        INSIDE.fetch_add(depth, SeqCst);
        let back = Inside::counted();
        if is_too_late() {
            stay();
        }
        // left once the thread has the interpreter
        std::mem::forget(back);
        returned
    });
    drop(Inside(()));
    returned
}

/// So many entries are over.
fn left(entries: usize) {
    INSIDE.fetch_sub(entries, SeqCst);
    if IS_ENDING.load(SeqCst) {
        ENDING.with(|_| ());
        LEFT.notify_all();
    }
}

/// Never returns: its thread ends with the process.
fn stay() {
    left(DEPTH.replace(0));
    loop {
        std::thread::park();
    }
}

/// Ends all threads but this one, where they need the interpreter the next time. Called last, when the program ends.
#[pyfunction]
pub(crate) fn end_threads(py: Python<'_>) {
    let here = thread_here();
    let _ = ENDING.replace(Some(here));
    IS_ENDING.store(true, SeqCst);
    let own = DEPTH.get();
    py.detach(|| {
        // on a busy machine threads take their time one after the other
        for _ in 0..WAITS {
            let inside = INSIDE.load(SeqCst);
            if inside <= own {
                return;
            }
            ENDING.when_within(&LEFT, PATIENCE, |_| INSIDE.load(SeqCst) <= own, |_| ());
            if INSIDE.load(SeqCst) >= inside {
                return;
            }
        }
    });
}

pub(crate) fn after_fork_in_child() {
    // of all threads only this one is left
    INSIDE.store(DEPTH.get(), SeqCst);
    IS_ENDING.store(false, SeqCst);
}
