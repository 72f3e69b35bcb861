//! [`Waiter`]: wakes Python code that waits for the engine: a task of an event loop, or a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;

use pyo3::prelude::*;
use stepfast::sync::Condvar;

use crate::bridge::call::Call;
use crate::bridge::mailbox::{Mailbox, Message};
use crate::lock::Mutex;

/// A callback for the loop's thread, with its context and the call that was waited for.
pub(crate) struct Callback {
    pub(crate) function: Py<PyAny>,
    pub(crate) context: Py<PyAny>,
    pub(crate) call: Py<Call>,
}

/// A waker for Python code. Every thread may wake it. A wake never takes the interpreter's lock.
pub(crate) struct Waiter {
    /// The mailbox of the loop whose task waits; `None` for a thread.
    mailbox: Option<Arc<Mailbox>>,
    /// Whether a wake is on its way to the loop.
    is_queued: AtomicBool,
    /// Whether a wake reached the loop before there was a callback.
    has_missed_wake: AtomicBool,
    polled_call: Mutex<Option<Py<Call>>>,
    callback: Mutex<Option<Callback>>,
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Waiter {
    pub(crate) fn new(mailbox: Option<Arc<Mailbox>>) -> Arc<Self> {
        Arc::new(Self {
            mailbox,
            is_queued: AtomicBool::new(false),
            has_missed_wake: AtomicBool::new(false),
            polled_call: Mutex::default(),
            callback: Mutex::default(),
            is_woken: Mutex::default(),
            woken: Condvar::default(),
        })
    }

    /// Sets the callback for the next wake.
    pub(crate) fn set_callback(&self, callback: Callback) {
        drop(self.callback.replace(Some(callback)));
    }

    /// Takes the callback, in the loop's thread.
    pub(crate) fn take_callback(&self) -> Option<Callback> {
        self.is_queued.store(false, SeqCst);
        let callback = self.callback.take();
        if callback.is_none() {
            self.has_missed_wake.store(true, SeqCst);
        }
        callback
    }

    /// Sets the call to poll at a wake without a callback.
    pub(crate) fn set_polled_call(&self, polled_call: Option<Py<Call>>) {
        drop(self.polled_call.replace(polled_call));
    }

    pub(crate) fn polled_call(&self, py: Python<'_>) -> Option<Py<Call>> {
        self.polled_call.clone_object(py, Option::as_ref)
    }

    /// Returns true, once, after a wake that found no callback.
    pub(crate) fn take_missed_wake(&self) -> bool {
        self.has_missed_wake.swap(false, SeqCst)
    }

    /// Blocks this thread until it is woken, or until `timeout` has passed. Must be called without the interpreter's
    /// lock.
    pub(crate) fn park(&self, timeout: std::time::Duration) {
        self.is_woken.wait_until_within(
            &self.woken,
            timeout,
            |is_woken| *is_woken,
            |is_woken| *is_woken = false,
        );
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        match &self.mailbox {
            Some(mailbox) => {
                if !self.is_queued.swap(true, SeqCst) {
                    mailbox.push(Message::Wake(self.clone()));
                }
            }
            None => {
                self.is_woken.with(|is_woken| *is_woken = true);
                self.woken.notify_one();
            }
        }
    }
}
