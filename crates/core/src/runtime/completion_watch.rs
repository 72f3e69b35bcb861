//! [`CompletionWatch`]: the watchers of executions in the database, whichever process runs them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::error::Error;
use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::store::Execution;

#[derive(Default)]
pub(crate) struct CompletionWatch {
    count: AtomicUsize,
    executions: Mutex<HashMap<Key, WatchedExecution>>,
}

struct WatchedExecution {
    change: Arc<Notify>,
    watchers: usize,
}

/// A registration of a caller that waits for one execution. It ends when this value is dropped.
pub(crate) struct Watcher<'w> {
    watch: &'w CompletionWatch,
    key: Key,
    change: Arc<Notify>,
}

impl CompletionWatch {
    fn lock_executions(&self) -> MutexGuard<'_, HashMap<Key, WatchedExecution>> {
        self.executions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a watcher of an execution. Call [`Watcher::next_change`] before each load of the execution,
    /// then wait for that change.
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

impl EngineInner {
    /// Waits until the execution, wherever it runs, has ended or is parked.
    pub(crate) async fn wait_ended_or_parked(self: &Arc<Self>, key: Key) -> Result<Execution, Error> {
        self.wait_until(key, |execution| execution.status.is_terminal() || execution.is_parked, &|| {}).await
    }

    /// Waits until the execution, wherever it runs, has ended. Calls `on_unended` after each load that shows
    /// that the execution has not ended.
    pub(crate) async fn wait_ended(
        self: &Arc<Self>,
        key: Key,
        on_unended: &impl Fn(),
    ) -> Result<Execution, Error> {
        self.wait_until(key, |execution| execution.status.is_terminal(), on_unended).await
    }

    async fn wait_until(
        self: &Arc<Self>,
        key: Key,
        is_done: impl Fn(&Execution) -> bool,
        on_unended: &impl Fn(),
    ) -> Result<Execution, Error> {
        let watcher = self.completion_watch.watch(key);
        if self.info.is_client {
            // a client with watchers sends a heartbeat every second
            self.wakeups.heartbeat.notify_one();
        }
        loop {
            let change = watcher.next_change();
            // a load may hang, which must not delay the engine's end
            let loaded = tokio::select! {
                biased;
                loaded = self.load_batcher.load(key) => loaded,
                () = self.wait_stopped() => return Err(self.closed_error()),
            };
            match loaded {
                Ok(Some(execution)) if is_done(&execution) => return Ok(execution),
                Ok(None) => return Err(Error::NotFound { workflow_id: key.to_string() }),
                Ok(Some(_)) => on_unended(),
                Err(error @ (Error::Unavailable(_) | Error::PermissionDenied(_))) => {
                    tracing::debug!(%error, "cannot load a watched execution; retrying");
                }
                Err(error) => return Err(error),
            }
            if self.is_poisoned() || *self.wakeups.is_stopped.borrow() {
                return Err(self.closed_error());
            }
            change.await;
        }
    }
}
