//! [`Watch`]: those who wait for the end of executions that do not run in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;

#[derive(Default)]
pub(crate) struct Watch {
    count: AtomicUsize,
    watched: Mutex<HashMap<Key, Watched>>,
}

struct Watched {
    ended: Arc<Notify>,
    watchers: usize,
}

/// Interest in one execution's end, while it lives.
pub(crate) struct Watching<'w> {
    watch: &'w Watch,
    key: Key,
    ended: Arc<Notify>,
}

impl Watch {
    fn watched(&self) -> MutexGuard<'_, HashMap<Key, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers interest. Look at the database after this, then wait.
    pub(crate) fn watch(&self, key: Key) -> Watching<'_> {
        let mut watched = self.watched();
        let entry = watched.entry(key).or_insert_with(|| Watched { ended: Arc::default(), watchers: 0 });
        entry.watchers += 1;
        let ended = entry.ended.clone();
        self.count.store(watched.len(), SeqCst);
        Watching { watch: self, key, ended }
    }

    /// How many executions are watched.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// True if anybody watches anything.
    pub(crate) fn is_used(&self) -> bool {
        self.count() > 0
    }

    /// Something has happened to `key`: whoever watches it looks again.
    pub(crate) fn notify(&self, key: Key) {
        if let Some(watched) = self.watched().get(&key) {
            watched.ended.notify_waiters();
        }
    }

    /// All that is watched.
    pub(crate) fn keys(&self) -> Vec<Key> {
        if self.is_used() { self.watched().keys().copied().collect() } else { Vec::new() }
    }

    /// Everybody looks again.
    pub(crate) fn notify_all(&self) {
        for watched in self.watched().values() {
            watched.ended.notify_waiters();
        }
    }
}

impl Watching<'_> {
    /// A future that resolves at the next notification after this call.
    pub(crate) fn changed(&self) -> tokio::sync::futures::OwnedNotified {
        self.ended.clone().notified_owned()
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut watched = self.watch.watched();
        if let Some(entry) = watched.get_mut(&self.key) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                watched.remove(&self.key);
            }
        }
        self.watch.count.store(watched.len(), SeqCst);
    }
}
