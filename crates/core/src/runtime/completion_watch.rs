//! [`CompletionWatch`]: the watchers of executions that do not run in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;

#[derive(Default)]
pub(crate) struct CompletionWatch {
    count: AtomicUsize,
    executions: Mutex<HashMap<Key, WatchedExecution>>,
}

struct WatchedExecution {
    change: Arc<Notify>,
    watchers: usize,
}

/// Interest in the end of one execution, while this value lives.
pub(crate) struct Watcher<'w> {
    watch: &'w CompletionWatch,
    key: Key,
    change: Arc<Notify>,
}

impl CompletionWatch {
    fn lock_executions(&self) -> MutexGuard<'_, HashMap<Key, WatchedExecution>> {
        self.executions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a watcher of an execution. Load the execution after this call, then wait for the next
    /// change.
    pub(crate) fn watch(&self, key: Key) -> Watcher<'_> {
        let mut watched = self.lock_executions();
        let entry =
            watched.entry(key).or_insert_with(|| WatchedExecution { change: Arc::default(), watchers: 0 });
        entry.watchers += 1;
        let change = entry.change.clone();
        self.count.store(watched.len(), SeqCst);
        Watcher { watch: self, key, change }
    }

    /// Returns the number of watched executions.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// Whether any execution is watched.
    pub(crate) fn has_watchers(&self) -> bool {
        self.count() > 0
    }

    /// Notifies the watchers of `key`, which then load the execution again.
    pub(crate) fn notify(&self, key: Key) {
        if let Some(watched) = self.lock_executions().get(&key) {
            watched.change.notify_waiters();
        }
    }

    /// Returns the keys of all watched executions.
    pub(crate) fn keys(&self) -> Vec<Key> {
        if self.has_watchers() { self.lock_executions().keys().copied().collect() } else { Vec::new() }
    }

    /// Notifies all watchers.
    pub(crate) fn notify_all(&self) {
        for watched in self.lock_executions().values() {
            watched.change.notify_waiters();
        }
    }
}

impl Watcher<'_> {
    /// Returns a future that resolves at the next notification after this call.
    pub(crate) fn next_change(&self) -> tokio::sync::futures::OwnedNotified {
        self.change.clone().notified_owned()
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut watched = self.watch.lock_executions();
        if let Some(entry) = watched.get_mut(&self.key) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                watched.remove(&self.key);
            }
        }
        self.watch.count.store(watched.len(), SeqCst);
    }
}
