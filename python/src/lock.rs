//! [`Mutex`]: a lock under which no Python code can run.
//!
//! Python code may let another thread take the interpreter. If that thread then waits for a lock that the first thread
//! holds, both threads wait forever. So this lock has no guards: only a closure gets the value. Because of the bound
//! `Send`, the closure cannot contain the token of a thread that holds the interpreter. Dropping a value may run Python
//! code, too. So values that may contain Python objects are returned, and the caller drops them after the lock is
//! released.

#![allow(clippy::disallowed_types)] // this lock wraps that type

use std::time::Duration;

use pyo3::PyTraverseError;
use pyo3::prelude::*;
use stepfast::sync::{Condvar, Mutex as Inner};

/// A lock around a value. Only closures that cannot call Python get the value.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// Calls `access` with the value; returns its result.
    pub(crate) fn with<R: Send>(&self, access: impl FnOnce(&mut T) -> R + Send) -> R {
        access(&mut self.0.lock())
    }

    /// Replaces the value; returns the previous one.
    #[must_use = "dropping the returned value may run Python code: the caller drops the value, after the lock"]
    pub(crate) fn replace(&self, value: T) -> T {
        std::mem::replace(&mut self.0.lock(), value)
    }

    /// Waits until `is_ready` returns true for the value, then calls `access`. Must be called without the interpreter's
    /// lock.
    pub(crate) fn wait_until<R: Send>(
        &self,
        changed: &Condvar,
        is_ready: impl Fn(&T) -> bool + Send,
        access: impl FnOnce(&mut T) -> R + Send,
    ) -> R {
        access(&mut changed.wait_while(self.0.lock(), |value| !is_ready(value)))
    }

    /// Waits like [`Self::wait_until`], but at most for `timeout`.
    pub(crate) fn wait_until_within<R: Send>(
        &self,
        changed: &Condvar,
        timeout: Duration,
        is_ready: impl Fn(&T) -> bool + Send,
        access: impl FnOnce(&mut T) -> R + Send,
    ) -> R {
        access(&mut changed.wait_while_for(self.0.lock(), timeout, |value| !is_ready(value)))
    }

    /// Visits the objects in the value, for the garbage collector; no Python code runs during the visit. Does nothing
    /// if the lock is held, because its holder keeps the objects alive.
    pub(crate) fn traverse(
        &self,
        visit: impl FnOnce(&T) -> Result<(), PyTraverseError>,
    ) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |value| visit(&value))
    }

    /// Returns the value without locking: the caller has exclusive access.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Default> Mutex<T> {
    /// Takes the value, and leaves the default.
    #[must_use = "dropping the returned value may run Python code: the caller drops the value, after the lock"]
    pub(crate) fn take(&self) -> T {
        self.replace(T::default())
    }
}

impl<T> Mutex<T> {
    /// Returns a new reference to the object that `find` selects. `find` must not run Python code.
    pub(crate) fn clone_object<O>(
        &self,
        py: Python<'_>,
        find: impl FnOnce(&T) -> Option<&Py<O>>,
    ) -> Option<Py<O>> {
        find(&self.0.lock()).map(|object| object.clone_ref(py))
    }
}
