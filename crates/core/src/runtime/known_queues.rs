//! [`KnownQueues`]: the names of queues that an engine has found in its store.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::Error;
use crate::queue::DEFAULT_QUEUE;
use crate::store::Store;
use crate::text::list_names;

/// When it is seen whether there is room in a full queue, whatever has been heard.
const LOOK_FOR_ROOM_AFTER: Duration = Duration::from_secs(1);

/// The queues that are known to exist, and a notification when one of them may have room.
#[derive(Default)]
pub(crate) struct KnownQueues {
    /// Names of queues that are stored. Nobody deletes a queue, so what is known once is known for good.
    known: RwLock<HashSet<Arc<str>>>,
    /// Something has left a queue, here or elsewhere.
    left: Notify,
}

impl KnownQueues {
    fn knows(&self, name: &str) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// There is a queue of this name.
    pub(crate) fn learn(&self, name: &Arc<str>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
    }

    /// Something may have left a queue: who waits for room may try again.
    pub(crate) fn has_left(&self) {
        self.left.notify_waiters();
    }

    /// Ends when there may be room in a queue that is full now.
    pub(crate) fn room(&self) -> impl Future<Output = ()> {
        let left = self.left.notified();
        async {
            let _ = tokio::time::timeout(LOOK_FOR_ROOM_AFTER, left).await;
        }
    }

    /// An error if there is no such queue.
    pub(crate) async fn check(&self, store: &dyn Store, name: &Arc<str>) -> Result<(), Error> {
        if self.knows(name) {
            return Ok(());
        }
        if **name == *DEFAULT_QUEUE {
            let reason = format!("{DEFAULT_QUEUE:?} is what has no queue: leave `queue` out");
            return Err(Error::Invalid { what: "queue", reason });
        }
        let there = store.queues(None).await?;
        if there.iter().any(|row| row.queue.name == *name) {
            self.learn(name);
            return Ok(());
        }
        let known = list_names(there.iter().map(|row| &*row.queue.name));
        Err(Error::UnknownQueue { name: name.to_string(), known })
    }
}
