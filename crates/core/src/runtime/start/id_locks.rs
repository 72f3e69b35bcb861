//! [`IdLocks`]: serializes the starts in this process that have the same workflow_id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime;
use tokio::sync::watch;

use crate::commit::{DurableFuture, Lane, Lsn};

/// The given workflow_ids of starts in this process whose outcome is not known yet.
pub(crate) struct IdLocks {
    ids: Mutex<HashMap<Arc<str>, watch::Receiver<()>>>,
    runtime: runtime::Handle,
}

/// The exclusive right to start an execution with a given workflow_id. The next start with this workflow_id
/// may begin when this value is dropped.
pub(crate) struct IdLock {
    locks: Arc<IdLocks>,
    id: Arc<str>,
    _released: watch::Sender<()>,
}

impl IdLocks {
    pub(crate) fn new(runtime: runtime::Handle) -> Arc<Self> {
        Arc::new(Self { ids: Mutex::default(), runtime })
    }

    fn lock_ids(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Receiver<()>>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other start of this id is under way in this process.
    pub(crate) async fn lock(self: &Arc<Self>, id: &Arc<str>) -> IdLock {
        loop {
            let mut other = {
                let mut ids = self.lock_ids();
                match ids.get(id) {
                    Some(other) => other.clone(),
                    None => {
                        let (released, receiver) = watch::channel(());
                        ids.insert(id.clone(), receiver);
                        return IdLock { locks: self.clone(), id: id.clone(), _released: released };
                    }
                }
            };
            // resolves, with an error, when the other lock is dropped
            let _ = other.changed().await;
        }
    }
}

impl Drop for IdLock {
    fn drop(&mut self) {
        self.locks.lock_ids().remove(&self.id);
    }
}

/// The lock of an id, kept until the outcome of the Start is known, even if no caller waits for the outcome.
pub(crate) struct IdLockUntilSettled {
    pub(crate) lock: Option<IdLock>,
    pub(crate) lane: Lane,
    pub(crate) lsn: Lsn,
}

impl Drop for IdLockUntilSettled {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take()
            && !self.lane.is_settled(self.lsn)
        {
            let settled = DurableFuture::new(self.lane.clone(), self.lsn);
            let runtime = lock.locks.runtime.clone();
            runtime.spawn(async move {
                settled.await;
                drop(lock);
            });
        }
    }
}
