//! [`KnownQueues`]: the names of queues that an engine has found in its store.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::Error;
use crate::queue::DEFAULT_QUEUE;
use crate::store::Store;
use crate::text::list_names;

/// Interval at which callers check a full queue for capacity without a notification.
const CAPACITY_RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The queues known to exist, and a notification when one of them may have capacity.
#[derive(Default)]
pub(crate) struct KnownQueues {
    /// Names of stored queues. Queues are never deleted, so a known name stays valid.
    names: RwLock<HashSet<Arc<str>>>,
    /// Notified when an execution has left a queue, in this process or another.
    capacity_freed: Notify,
}

impl KnownQueues {
    fn contains(&self, name: &str) -> bool {
        self.names.read().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Adds the name of a queue that exists.
    pub(crate) fn add(&self, name: &Arc<str>) {
        self.names.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
    }

    /// Notifies the callers that wait for capacity, because an execution may have left a queue.
    pub(crate) fn notify_capacity(&self) {
        self.capacity_freed.notify_waiters();
    }

    /// Returns a future that resolves when a queue that is full now may have capacity.
    pub(crate) fn wait_for_capacity(&self) -> impl Future<Output = ()> {
        let freed = self.capacity_freed.notified();
        async {
            let _ = tokio::time::timeout(CAPACITY_RECHECK_INTERVAL, freed).await;
        }
    }

    /// Returns an error if the queue does not exist.
    pub(crate) async fn check(&self, store: &dyn Store, name: &Arc<str>) -> Result<(), Error> {
        if self.contains(name) {
            return Ok(());
        }
        if **name == *DEFAULT_QUEUE {
            let reason = format!("{DEFAULT_QUEUE:?} holds the executions without a queue: leave `queue` out");
            return Err(Error::Invalid { input: "queue", reason });
        }
        let queues = store.queues(None).await?;
        if queues.iter().any(|row| row.queue.name == *name) {
            self.add(name);
            return Ok(());
        }
        let known = list_names(queues.iter().map(|row| &*row.queue.name));
        Err(Error::UnknownQueue { name: name.to_string(), known })
    }
}
