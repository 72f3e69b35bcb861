//! [`Watch`]: those who wait for the end of executions that do not run in this process.

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

/// Interest in one execution's end, while it lives.
pub(crate) struct Watcher<'w> {
    watch: &'w CompletionWatch,
    key: Key,
    change: Arc<Notify>,
}

impl CompletionWatch {
    fn lock_executions(&self) -> MutexGuard<'_, HashMap<Key, WatchedExecution>> {
        self.executions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers interest. Look at the database after this, then wait.
    pub(crate) fn watch(&self, key: Key) -> Watcher<'_> {
        let mut watched = self.lock_executions();
        let entry = watched.entry(key).or_insert_with(|| WatchedExecution { change: Arc::default(), watchers: 0 });
        entry.watchers += 1;
        let ended = entry.change.clone();
        self.count.store(watched.len(), SeqCst);
        Watcher { watch: self, key, change: ended }
    }

    /// How many executions are watched.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// True if anybody watches anything.
    pub(crate) fn has_watchers(&self) -> bool {
        self.count() > 0
    }

    /// Something has happened to `key`: whoever watches it looks again.
    pub(crate) fn notify(&self, key: Key) {
        if let Some(watched) = self.lock_executions().get(&key) {
            watched.change.notify_waiters();
        }
    }

    /// All that is watched.
    pub(crate) fn keys(&self) -> Vec<Key> {
        if self.has_watchers() { self.lock_executions().keys().copied().collect() } else { Vec::new() }
    }

    /// Everybody looks again.
    pub(crate) fn notify_all(&self) {
        for watched in self.lock_executions().values() {
            watched.change.notify_waiters();
        }
    }
}

impl Watcher<'_> {
    /// A future that resolves at the next notification after this call.
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
