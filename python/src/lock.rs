//! [`Mutex`]: a lock under which no Python code can run.
//!
//! Python code may let another thread have the interpreter. A thread that holds the interpreter and waits for a lock
//! then stands in the way of the thread that holds the lock, for good. So there are no guards here: a closure sees the
//! value, and `Send` keeps everything out of it that proves possession of the interpreter. What goes away may run
//! Python code, too: whatever held an object is returned, and the caller drops it.

#![allow(clippy::disallowed_types)] // of the lock that it wraps

use std::time::Duration;

use pyo3::PyTraverseError;
use pyo3::prelude::*;
use stepfast::sync::{Condvar, Mutex as Inner};

/// A lock around a value, which only closures see that cannot call Python.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// Returns what `look` makes of the value.
    pub(crate) fn with<R: Send>(&self, look: impl FnOnce(&mut T) -> R + Send) -> R {
        look(&mut self.0.lock())
    }

    /// Replaces the value; returns the one before.
    #[must_use = "what goes away may run Python code: the caller drops it, after the lock"]
    pub(crate) fn replace(&self, value: T) -> T {
        std::mem::replace(&mut self.0.lock(), value)
    }

    /// Waits until `is_over` for the value, then returns what `look` makes of it. For threads without the interpreter.
    pub(crate) fn when<R: Send>(
        &self,
        changed: &Condvar,
        is_over: impl Fn(&T) -> bool + Send,
        look: impl FnOnce(&mut T) -> R + Send,
    ) -> R {
        look(&mut changed.wait_while(self.0.lock(), |value| !is_over(value)))
    }

    /// The same, for so long at most.
    pub(crate) fn when_within<R: Send>(
        &self,
        changed: &Condvar,
        patience: Duration,
        is_over: impl Fn(&T) -> bool + Send,
        look: impl FnOnce(&mut T) -> R + Send,
    ) -> R {
        look(&mut changed.wait_while_for(self.0.lock(), patience, |value| !is_over(value)))
    }

    /// Visits the objects in the value, for the collector: no Python code runs meanwhile. Does nothing if the lock is
    /// held, as its holder keeps what is inside alive.
    pub(crate) fn traverse(
        &self,
        visit: impl FnOnce(&T) -> Result<(), PyTraverseError>,
    ) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |value| visit(&value))
    }

    /// The value, which nobody else can have.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Default> Mutex<T> {
    /// Takes the value out.
    #[must_use = "what goes away may run Python code: the caller drops it, after the lock"]
    pub(crate) fn take(&self) -> T {
        self.replace(T::default())
    }
}

impl<T> Mutex<T> {
    /// Returns a further reference to the object that `find` finds, which runs no Python code.
    pub(crate) fn object<O>(&self, py: Python<'_>, find: impl FnOnce(&T) -> Option<&Py<O>>) -> Option<Py<O>> {
        find(&self.0.lock()).map(|object| object.clone_ref(py))
    }
}
