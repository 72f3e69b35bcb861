//! [`Queues`]: the queues that an engine knows of, and how they are declared and changed.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::{Core, Engine};
use crate::error::Error;
use crate::queue::{DEFAULT_QUEUE, Limits, OnConflict, Queue, QueueChange, QueueRow, check_queue_name};
use crate::shown::listed;
use crate::store::{Store, StoreError};

/// When it is seen whether there is room in a full queue, whatever has been heard.
const LOOK_FOR_ROOM_AFTER: Duration = Duration::from_secs(1);

/// What the engine knows of queues.
#[derive(Default)]
pub(crate) struct Queues {
    /// Names of queues that are stored. Nobody deletes a queue, so what is known once is known for good.
    known: RwLock<HashSet<Arc<str>>>,
    /// Something has left a queue, here or elsewhere.
    left: Notify,
}

impl Queues {
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

    /// An error if there is no such queue. Waits for a database that does not answer.
    pub(crate) async fn await_known(&self, core: &Core, name: &Arc<str>) -> Result<(), Error> {
        core.ask(|| self.check(core, name)).await
    }

    /// An error if there is no such queue.
    pub(crate) async fn check(&self, core: &Core, name: &Arc<str>) -> Result<(), Error> {
        if self.knows(name) {
            return Ok(());
        }
        if **name == *DEFAULT_QUEUE {
            let reason = format!("{DEFAULT_QUEUE:?} is what has no queue: leave `queue` out");
            return Err(Error::Invalid { what: "queue", reason });
        }
        let there = core.store.queues(None).await?;
        if there.iter().any(|row| row.queue.name == *name) {
            self.learn(name);
            return Ok(());
        }
        let known = listed(there.iter().map(|row| &*row.queue.name));
        Err(Error::UnknownQueue { name: name.to_string(), known })
    }
}

/// Stores a queue that code declares.
pub(crate) async fn declare(store: &dyn Store, queue: &Queue, on_conflict: OnConflict) -> Result<(), Error> {
    queue.check()?;
    let wanted = |row: Option<&QueueRow>| match row {
        None => Ok(Some((queue.limits.clone(), false))),
        Some(row) if row.queue == *queue => Ok(None),
        Some(row) => match on_conflict {
            OnConflict::Update => Ok(Some((queue.limits.clone(), row.is_paused))),
            OnConflict::Keep => {
                tracing::info!(queue = &*queue.name, "its limits in the database are not those of the code");
                Ok(None)
            }
            OnConflict::Refuse => Err(Error::QueueConflict { name: queue.name.to_string() }),
        },
    };
    change(store, &queue.name, wanted).await?;
    Ok(())
}

/// Changes a queue to what `wanted` says, given what is stored: `None` to leave it. What is stored in the end.
async fn change(
    store: &dyn Store,
    name: &Arc<str>,
    wanted: impl Fn(Option<&QueueRow>) -> Result<Option<(Limits, bool)>, Error>,
) -> Result<Option<QueueRow>, Error> {
    loop {
        let seen = store.queues(Some(std::slice::from_ref(name))).await?.pop();
        let Some((limits, is_paused)) = wanted(seen.as_ref())? else { return Ok(seen) };
        let queue = Queue { name: name.clone(), limits };
        let change = QueueChange { queue, is_paused, seen_version: seen.map_or(0, |row| row.version) };
        match store.change_queue(&change).await {
            // somebody else was faster
            Ok(None) | Err(StoreError::Blocked(_)) => {}
            Ok(stored) => return Ok(stored),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Engine {
    /// The queues that there are, by name.
    pub async fn queues(&self) -> Result<Vec<QueueRow>, Error> {
        Ok(self.core.store.queues(None).await?)
    }

    /// Creates a queue, or gives one that is there these limits. They hold for all processes from when this returns on;
    /// what runs already beyond them runs on.
    pub async fn set_queue(&self, queue: &Queue) -> Result<QueueRow, Error> {
        self.change_queue(&queue.name, |_| queue.limits.clone()).await
    }

    /// Creates a queue, or changes one that is there, to what `change` makes of its limits, whoever else changes it. Of
    /// one that is not there it has none. See [`set_queue`](Engine::set_queue).
    pub async fn change_queue(
        &self,
        name: &str,
        change: impl Fn(Limits) -> Limits,
    ) -> Result<QueueRow, Error> {
        check_queue_name(name)?;
        let name: Arc<str> = name.into();
        let wanted = |row: Option<&QueueRow>| {
            let limits = change(row.map(|row| row.queue.limits.clone()).unwrap_or_default());
            let queue = Queue { name: name.clone(), limits };
            queue.check()?;
            let is_same = row.is_some_and(|row| row.queue == queue);
            Ok((!is_same).then(|| (queue.limits, row.is_some_and(|row| row.is_paused))))
        };
        self.changed(&name, wanted).await
    }

    /// Stops a queue: what waits in it stays there, and what is put into it, until it is resumed. What runs runs on.
    pub async fn pause_queue(&self, name: &str) -> Result<QueueRow, Error> {
        self.set_paused(name, true).await
    }

    /// Lets a queue that was paused go on.
    pub async fn resume_queue(&self, name: &str) -> Result<QueueRow, Error> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, is_paused: bool) -> Result<QueueRow, Error> {
        if name == DEFAULT_QUEUE {
            let reason =
                format!("{DEFAULT_QUEUE:?} is what has no queue, and cannot be paused: name another");
            return Err(Error::Invalid { what: "queue", reason });
        }
        check_queue_name(name)?;
        let name: Arc<str> = name.into();
        self.core.queues.check(&self.core, &name).await?;
        let wanted = |row: Option<&QueueRow>| {
            let row = row.filter(|row| row.is_paused != is_paused);
            Ok(row.map(|row| (row.queue.limits.clone(), is_paused)))
        };
        self.changed(&name, wanted).await
    }

    async fn changed(
        &self,
        name: &Arc<str>,
        wanted: impl Fn(Option<&QueueRow>) -> Result<Option<(Limits, bool)>, Error>,
    ) -> Result<QueueRow, Error> {
        let row = change(&*self.core.store, name, wanted).await?;
        // there may be room now, for what waits in it and for what waits outside
        self.core.wake_worker(true);
        self.core.queues.has_left();
        row.ok_or_else(|| Error::Corrupt(format!("queue {name:?} is gone")))
    }
}
