//! [`Waiter`]: what wakes Python code that waits for the engine: a task of an event loop, or a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;

use pyo3::prelude::*;
use stepfast::sync::Condvar;

use crate::bridge::call::Call;
use crate::bridge::mailbox::{Note, Shared};
use crate::lock::Mutex;

/// What is called in the loop's thread, and in which context.
pub(crate) struct Callback {
    pub(crate) function: Py<PyAny>,
    pub(crate) context: Py<PyAny>,
    pub(crate) argument: Py<PyAny>,
}

/// Woken from any thread; never takes the interpreter's lock.
pub(crate) struct Waiter {
    /// The loop whose task waits; `None` for a thread.
    port: Option<Arc<Shared>>,
    /// On its way to the loop.
    is_queued: AtomicBool,
    /// It came to the loop before there was anybody to call.
    is_missed: AtomicBool,
    owner: Mutex<Option<Py<Call>>>,
    callback: Mutex<Option<Callback>>,
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Waiter {
    pub(crate) fn new(port: Option<Arc<Shared>>) -> Arc<Self> {
        Arc::new(Self {
            port,
            is_queued: AtomicBool::new(false),
            is_missed: AtomicBool::new(false),
            owner: Mutex::default(),
            callback: Mutex::default(),
            is_woken: Mutex::default(),
            woken: Condvar::default(),
        })
    }

    /// Calls `callback` at the next wake.
    pub(crate) fn set(&self, callback: Callback) {
        drop(self.callback.replace(Some(callback)));
    }

    /// From the loop's thread: whom to call.
    pub(crate) fn take(&self) -> Option<Callback> {
        self.is_queued.store(false, SeqCst);
        let callback = self.callback.take();
        if callback.is_none() {
            self.is_missed.store(true, SeqCst);
        }
        callback
    }

    /// The call that is polled at a wake when nobody waits for it.
    pub(crate) fn set_owner(&self, owner: Option<Py<Call>>) {
        drop(self.owner.replace(owner));
    }

    pub(crate) fn owner(&self, py: Python<'_>) -> Option<Py<Call>> {
        self.owner.object(py, Option::as_ref)
    }

    /// True once if a wake found nobody to call.
    pub(crate) fn was_missed(&self) -> bool {
        self.is_missed.swap(false, SeqCst)
    }

    /// Blocks this thread until it is woken, or `patience` is over. Call it without the interpreter's lock.
    pub(crate) fn park(&self, patience: std::time::Duration) {
        self.is_woken.when_within(&self.woken, patience, |is_woken| *is_woken, |is_woken| *is_woken = false);
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        match &self.port {
            Some(port) => {
                if !self.is_queued.swap(true, SeqCst) {
                    port.push(Note::Wake(self.clone()));
                }
            }
            None => {
                self.is_woken.with(|is_woken| *is_woken = true);
                self.woken.notify_one();
            }
        }
    }
}
