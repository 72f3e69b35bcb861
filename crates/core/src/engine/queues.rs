//! Queues of a store: how an engine declares, changes, pauses and lists them.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::Error;
use crate::queue::{DEFAULT_QUEUE, Limits, OnConflict, Queue, QueueChange, QueueRow, check_queue_name};
use crate::store::{Store, StoreError};

/// Stores a queue that code declares.
pub(crate) async fn declare_queue(
    store: &dyn Store,
    queue: &Queue,
    on_conflict: OnConflict,
) -> Result<(), Error> {
    queue.check()?;
    let decide = |row: Option<&QueueRow>| match row {
        None => Ok(Some((queue.limits.clone(), false))),
        Some(row) if row.queue == *queue => Ok(None),
        Some(row) => match on_conflict {
            OnConflict::Update => Ok(Some((queue.limits.clone(), row.is_paused))),
            OnConflict::Keep => {
                tracing::info!(
                    queue = &*queue.name,
                    "the queue's limits in the database differ from those in the code"
                );
                Ok(None)
            }
            OnConflict::Reject => Err(Error::QueueConflict { name: queue.name.to_string() }),
        },
    };
    change_queue(store, &queue.name, decide).await?;
    Ok(())
}

/// Gives a queue the limits and the pause state that `decide` returns for the stored row. `None` leaves the queue
/// unchanged. Returns the queue as it is stored in the end.
async fn change_queue(
    store: &dyn Store,
    name: &Arc<str>,
    decide: impl Fn(Option<&QueueRow>) -> Result<Option<(Limits, bool)>, Error>,
) -> Result<Option<QueueRow>, Error> {
    loop {
        let stored = store.queues(Some(std::slice::from_ref(name))).await?.pop();
        let Some((limits, is_paused)) = decide(stored.as_ref())? else { return Ok(stored) };
        let queue = Queue { name: name.clone(), limits };
        let change = QueueChange { queue, is_paused, expected_version: stored.map_or(0, |row| row.version) };
        match store.change_queue(&change).await {
            // another change came first
            Ok(None) | Err(StoreError::Blocked(_)) => {}
            Ok(changed) => return Ok(changed),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Engine {
    /// Returns all queues, ordered by name.
    pub async fn queues(&self) -> Result<Vec<QueueRow>, Error> {
        Ok(self.inner.store.queues(None).await?)
    }

    /// Creates a queue, or gives an existing one these limits. When the method returns, the limits hold for all
    /// processes. Executions that already run beyond a limit continue.
    pub async fn set_queue(&self, queue: &Queue) -> Result<QueueRow, Error> {
        self.change_queue(&queue.name, |_| queue.limits.clone()).await
    }

    /// Creates a queue, or changes an existing one. `change` receives the present limits, which are empty for a new
    /// queue, and returns the new ones. Concurrent changes are not lost. See [`set_queue`](Engine::set_queue).
    pub async fn change_queue(
        &self,
        name: &str,
        change: impl Fn(Limits) -> Limits,
    ) -> Result<QueueRow, Error> {
        check_queue_name(name)?;
        let name: Arc<str> = name.into();
        let decide = |row: Option<&QueueRow>| {
            let limits = change(row.map(|row| row.queue.limits.clone()).unwrap_or_default());
            let queue = Queue { name: name.clone(), limits };
            queue.check()?;
            let is_same = row.is_some_and(|row| row.queue == queue);
            Ok((!is_same).then(|| (queue.limits, row.is_some_and(|row| row.is_paused))))
        };
        self.apply_change(&name, decide).await
    }

    /// Pauses a queue: until the queue is resumed, no execution leaves it. Further executions may enter the queue, and
    /// running executions continue.
    pub async fn pause_queue(&self, name: &str) -> Result<QueueRow, Error> {
        self.set_paused(name, true).await
    }

    /// Resumes a paused queue.
    pub async fn resume_queue(&self, name: &str) -> Result<QueueRow, Error> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, is_paused: bool) -> Result<QueueRow, Error> {
        if name == DEFAULT_QUEUE {
            let reason = format!(
                "{DEFAULT_QUEUE:?} holds the executions without a queue, and cannot be paused: name another"
            );
            return Err(Error::Invalid { input: "queue", reason });
        }
        check_queue_name(name)?;
        let name: Arc<str> = name.into();
        self.inner.known_queues.check(&*self.inner.store, &name).await?;
        let decide = |row: Option<&QueueRow>| {
            let row = row.filter(|row| row.is_paused != is_paused);
            Ok(row.map(|row| (row.queue.limits.clone(), is_paused)))
        };
        self.apply_change(&name, decide).await
    }

    async fn apply_change(
        &self,
        name: &Arc<str>,
        decide: impl Fn(Option<&QueueRow>) -> Result<Option<(Limits, bool)>, Error>,
    ) -> Result<QueueRow, Error> {
        let row = change_queue(&*self.inner.store, name, decide).await?;
        // there may be capacity now, for executions in the queue and for starts that wait outside
        self.inner.wakeups.wake_claimer(true);
        self.inner.known_queues.notify_capacity();
        row.ok_or_else(|| Error::Corrupt(format!("queue {name:?} is gone")))
    }
}
