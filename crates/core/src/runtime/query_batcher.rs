//! [`QueryBatcher`]: look-ups of many callers share queries, as Writes share flushes.
//!
//! While one query is under way, the look-ups of the next query gather. There is no timer.

use std::sync::Arc;

use tokio::runtime;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::key::Key;
use crate::store::{
    Detail, Event, EventQuery, Execution, ExecutionId, PendingMessage, Store, StoreError, StreamEntry,
    StreamQuery,
};
use crate::sync::Mutex;

/// Maximum number of look-ups in one query.
const MAX_KEYS: usize = 1_000;

/// A query that answers many look-ups at a time.
pub(crate) trait BatchedQuery: Send + Sync + 'static {
    /// The subject of a look-up.
    type Key: Send + Sync + 'static;
    /// The result of a look-up.
    type Value: Send + 'static;

    /// Returns the results in the order of the keys.
    fn query(
        store: &dyn Store,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Vec<Self::Value>, StoreError>> + Send;
}

/// The query for executions with their outcomes, without their inputs.
pub(crate) struct ExecutionQuery;

impl BatchedQuery for ExecutionQuery {
    type Key = ExecutionId;
    type Value = Option<Execution>;

    async fn query(store: &dyn Store, ids: &[ExecutionId]) -> Result<Vec<Option<Execution>>, StoreError> {
        let records = store.load(ids, Detail::Outcome).await?;
        Ok(records.into_iter().map(|record| record.map(|record| record.execution)).collect())
    }
}

/// The query for the pending messages of executions and topics.
pub(crate) struct MessageQuery;

impl BatchedQuery for MessageQuery {
    type Key = (Key, Arc<str>);
    type Value = Vec<PendingMessage>;

    async fn query(
        store: &dyn Store,
        receivers: &[(Key, Arc<str>)],
    ) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        store.messages(receivers).await
    }
}

/// The query for events of executions.
pub(crate) struct EventLookup;

impl BatchedQuery for EventLookup {
    type Key = EventQuery;
    type Value = Vec<Event>;

    async fn query(store: &dyn Store, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        store.events(queries).await
    }
}

/// The query for the suspended executions that wait for events.
pub(crate) struct EventWaiterLookup;

impl BatchedQuery for EventWaiterLookup {
    type Key = (Key, Arc<str>);
    type Value = Vec<Key>;

    async fn query(store: &dyn Store, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        store.event_waiters(events).await
    }
}

/// The query for entries of streams.
pub(crate) struct StreamLookup;

impl BatchedQuery for StreamLookup {
    type Key = StreamQuery;
    type Value = Vec<StreamEntry>;

    async fn query(store: &dyn Store, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        store.stream_entries(queries).await
    }
}

/// Combines look-ups into shared queries.
pub(crate) struct QueryBatcher<Q: BatchedQuery> {
    store: Arc<dyn Store>,
    runtime: runtime::Handle,
    pending: Mutex<Pending<Q>>,
}

struct Pending<Q: BatchedQuery> {
    keys: Vec<Q::Key>,
    replies: Vec<oneshot::Sender<Result<Q::Value, Error>>>,
    /// Whether a task is sending queries. That task will look up these keys too.
    is_querying: bool,
}

impl<Q: BatchedQuery> Default for Pending<Q> {
    fn default() -> Self {
        Self { keys: Vec::new(), replies: Vec::new(), is_querying: false }
    }
}

/// A guard of the task that sends queries. If the task panics, or its runtime has ended, the pending look-ups fail, and
/// the next look-up begins another task.
struct QueryingGuard<Q: BatchedQuery>(Option<Arc<QueryBatcher<Q>>>);

impl<Q: BatchedQuery> Drop for QueryingGuard<Q> {
    fn drop(&mut self) {
        let Some(batcher) = self.0.take() else { return };
        // dropped without the lock, because dropping a sender wakes its caller
        let _failed = {
            let mut pending = batcher.pending.lock();
            std::mem::take(&mut *pending)
        };
    }
}

impl<Q: BatchedQuery> QueryBatcher<Q> {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: runtime::Handle) -> Arc<Self> {
        Arc::new(Self { store, runtime, pending: Mutex::default() })
    }

    /// Returns the result of a look-up. Shares the query with other callers.
    pub(crate) async fn load(self: &Arc<Self>, key: Q::Key) -> Result<Q::Value, Error> {
        let (reply, loaded) = oneshot::channel();
        let is_first = {
            let mut pending = self.pending.lock();
            pending.keys.push(key);
            pending.replies.push(reply);
            !std::mem::replace(&mut pending.is_querying, true)
        };
        if is_first {
            // in a task of its own: this caller may be dropped, and other callers still need their replies
            let guard = QueryingGuard(Some(self.clone()));
            self.runtime.spawn(self.clone().query_pending(guard));
        }
        loaded.await.unwrap_or_else(|_| Err(Error::Unavailable("the query was dropped".into())))
    }

    /// Sends queries until no keys are pending.
    async fn query_pending(self: Arc<Self>, mut guard: QueryingGuard<Q>) {
        loop {
            let (keys, replies) = {
                let mut pending = self.pending.lock();
                let count = pending.keys.len().min(MAX_KEYS);
                let keys: Vec<_> = pending.keys.drain(..count).collect();
                let replies: Vec<_> = pending.replies.drain(..count).collect();
                pending.is_querying = !keys.is_empty();
                (keys, replies)
            };
            if keys.is_empty() {
                guard.0 = None;
                return;
            }
            match Q::query(&*self.store, &keys).await {
                Ok(values) => {
                    for (reply, value) in replies.into_iter().zip(values) {
                        let _ = reply.send(Ok(value));
                    }
                }
                Err(error) => {
                    let error = Error::from(error);
                    for reply in replies {
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
        let batcher =
            QueryBatcher::<ExecutionQuery>::new(Arc::new(MemoryStore::new()), runtime.handle().clone());
        drop(runtime);
        for _ in 0..2 {
            let loaded = batcher.load(ExecutionId::Key(Key::mint(0))).now_or_never();
            assert!(matches!(loaded, Some(Err(Error::Unavailable(_)))), "{loaded:?}");
        }
    }
}
