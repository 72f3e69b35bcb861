//! [`LoadBatcher`]: loads of executions share queries, as Writes share flushes.
//!
//! While one query is under way, the keys of the next query gather. There is no timer.

use std::sync::Arc;

use tokio::runtime;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::key::Key;
use crate::store::{Detail, Execution, ExecutionId, Store};
use crate::sync::Mutex;

/// Maximum number of executions in one query.
const MAX_KEYS: usize = 1_000;

type Loaded = Result<Option<Execution>, Error>;

/// Combines loads of executions into shared queries.
pub(crate) struct LoadBatcher {
    store: Arc<dyn Store>,
    runtime: runtime::Handle,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    keys: Vec<(Key, oneshot::Sender<Loaded>)>,
    /// Whether a task is sending queries. That task will load these keys too.
    is_loading: bool,
}

/// A guard of the task that sends queries. If the task panics, or its runtime has ended, the pending loads fail, and the
/// next load begins another task.
struct LoadingGuard(Option<Arc<LoadBatcher>>);

impl Drop for LoadingGuard {
    fn drop(&mut self) {
        let Some(batcher) = self.0.take() else { return };
        // dropped without the lock, because dropping a sender wakes its caller
        let _failed = {
            let mut pending = batcher.pending.lock();
            pending.is_loading = false;
            std::mem::take(&mut pending.keys)
        };
    }
}

impl LoadBatcher {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: runtime::Handle) -> Arc<Self> {
        Arc::new(Self { store, runtime, pending: Mutex::default() })
    }

    /// Returns the execution with its outcome, without its input. Shares the query with other callers.
    pub(crate) async fn load(self: &Arc<Self>, key: Key) -> Loaded {
        let (reply, loaded) = oneshot::channel();
        let is_first = {
            let mut pending = self.pending.lock();
            pending.keys.push((key, reply));
            !std::mem::replace(&mut pending.is_loading, true)
        };
        if is_first {
            // in a task of its own: this caller may be dropped, and other callers still need their replies
            let guard = LoadingGuard(Some(self.clone()));
            self.runtime.spawn(self.clone().load_pending(guard));
        }
        loaded.await.unwrap_or_else(|_| Err(Error::Unavailable("the query was dropped".into())))
    }

    /// Sends queries until no keys are pending.
    async fn load_pending(self: Arc<Self>, mut guard: LoadingGuard) {
        loop {
            let batch = {
                let mut pending = self.pending.lock();
                let count = pending.keys.len().min(MAX_KEYS);
                let batch: Vec<_> = pending.keys.drain(..count).collect();
                pending.is_loading = !batch.is_empty();
                batch
            };
            if batch.is_empty() {
                guard.0 = None;
                return;
            }
            let ids: Vec<ExecutionId> = batch.iter().map(|(key, _)| ExecutionId::Key(*key)).collect();
            match self.store.load(&ids, Detail::Outcome).await {
                Ok(records) => {
                    for ((_, reply), record) in batch.into_iter().zip(records) {
                        let _ = reply.send(Ok(record.map(|record| record.execution)));
                    }
                }
                Err(error) => {
                    let error = Error::from(error);
                    for (_, reply) in batch {
                        let _ = reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::memory::MemoryStore;

    #[test]
    fn load_fails_when_its_runtime_has_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let batcher = LoadBatcher::new(Arc::new(MemoryStore::new()), runtime.handle().clone());
        drop(runtime);
        for _ in 0..2 {
            let loaded = batcher.load(Key::mint(0)).now_or_never();
            assert!(matches!(loaded, Some(Err(Error::Unavailable(_)))), "{loaded:?}");
        }
    }
}
