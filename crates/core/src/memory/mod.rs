//! [`MemoryStore`]: the reference model of the [`Store`] contract.
//!
//! The store loses everything when the process ends, and promises no durability. In all other respects it works as the
//! other stores do: lanes, fences, flush numbers, guards and outcomes. The code is written to be read: each table is a
//! map, and plain Rust describes what the databases must do.

mod apply;
mod batches;
mod claim;
mod heartbeat;
mod list;
mod messages;
mod queues;
mod rows;
mod tables;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tables::{LaneRow, Tables, WorkerRow};
use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::key::Key;
use crate::payload::ChunkRef;
use crate::queue::{QueueChange, QueueRow};
use crate::store::counters::Counters;
use crate::store::{
    BatchItems, Claim, ClaimReply, DeadLetter, Detail, Durability, Event, EventQuery, Execution, ExecutionId,
    Filter, Flush, GraphRow, Heartbeat, HeartbeatReply, Hint, MAX_PENDING_LOADED, Maintenance, Outcome, Page,
    PendingMessage, Record, Registration, Renewal, Store, StoreError, StoreInfo, StreamEntry, StreamQuery,
    WorkerId, WorkerInfo, WorkerOverview, load_items_by_bundle, outcomes_to_keep,
};

/// The epoch of every registration, until a takeover or a close ends it.
const FIRST_EPOCH: i64 = 1;

/// A store in the memory of this process.
///
/// Several engines of the process may share a store in an `Arc`. The engines then see each other's executions, like
/// processes that share a database.
pub struct MemoryStore {
    info: StoreInfo,
    counters: Counters,
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
    /// The number of published hints; see [`MemoryStore::publish_hint`].
    changes: watch::Sender<u64>,
    /// The number of hints at the last return of `next_hint`.
    seen_changes: Mutex<u64>,
}

impl MemoryStore {
    /// Creates an empty store with the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Creates an empty store that uses `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            info: StoreInfo {
                kind: "memory",
                version: concat!("MemoryStore ", env!("CARGO_PKG_VERSION")).into(),
                location: "memory".into(),
                store_id: Uuid::now_v7().to_string(),
                shard: 0,
                durability: Durability::None,
                lanes: 1,
                max_flush_writes: 16_384,
                max_flush_bytes: 4 << 20,
                lease: None,
            },
            counters: Counters::default(),
            clock,
            tables: Mutex::default(),
            changes: watch::Sender::new(0),
            seen_changes: Mutex::new(0),
        }
    }

    /// Marks a worker as dead, as if its process had been killed: another worker takes it over after that other
    /// worker's next heartbeat. Until then the marked worker can continue, like a process that only seems dead.
    pub fn mark_dead(&self, worker: WorkerId) {
        if let Some(row) = self.tables().workers.get_mut(&worker) {
            row.is_dead = true;
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // no code between two related changes panics, so the tables behind a poisoned lock are consistent
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies other engines that something may have changed. A single engine needs no hints.
    fn publish_hint(&self, tables: &Tables) {
        if tables.workers.len() > 1 {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let executions = self.tables().executions.len();
        f.debug_struct("MemoryStore").field("executions", &executions).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let mut tables = self.tables();
        tables.last_worker += 1;
        let worker = WorkerId(tables.last_worker);
        let registered_at = self.clock.now();
        let (info, epoch) = (info.clone(), FIRST_EPOCH);
        tables.workers.insert(worker, WorkerRow { epoch, is_dead: false, info, registered_at });
        for lane in 0..lanes {
            tables.lanes.insert((worker, lane), LaneRow::new(FIRST_EPOCH));
        }
        Ok(Registration { worker, epoch: FIRST_EPOCH, now: registered_at })
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let mut tables = self.tables();
        if tables.workers.remove(&worker).is_some() {
            tables.end_lanes(worker);
            tables.requeue_orphans(None, &self.counters);
            tables.wake_satisfied(self.clock.now(), &self.counters);
            self.publish_hint(&tables);
        }
        Ok(())
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        debug_assert_eq!(
            rows::find_row_changed_twice(&flush.writes),
            None,
            "a flush is a set of row changes"
        );
        let mut tables = self.tables();
        let lane = tables.lane(flush.worker, flush.lane, flush.epoch)?;
        if flush.number == lane.last_number && flush.is_resent {
            return Ok(lane.last_outcomes.clone());
        }
        if flush.number != lane.last_number + 1 {
            return Err(StoreError::Corrupt(format!(
                "flush {} of lane {} does not follow flush {}",
                flush.number, flush.lane, lane.last_number
            )));
        }
        let outcomes = tables.apply(flush, self.clock.now(), &self.counters)?;
        let lane = tables.lane(flush.worker, flush.lane, flush.epoch)?;
        lane.last_number = flush.number;
        lane.last_outcomes = outcomes_to_keep(flush, &outcomes).cloned().collect();
        self.counters.add_flush(flush.writes.len() as u64);
        if !flush.writes.is_empty() {
            self.publish_hint(&tables);
        }
        Ok(outcomes)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        self.tables().claim(claim, self.clock.now(), &self.counters)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let mut tables = self.tables();
        let row = tables.change_queue(change, self.clock.now(), &self.counters);
        self.publish_hint(&tables);
        Ok(row)
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        self.counters.add_read();
        Ok(self.tables().queues(names))
    }

    async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        let rows = graphs.iter().map(|graph| (graph.name.clone(), graph.clone()));
        self.tables().graphs.extend(rows);
        Ok(())
    }

    async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        self.counters.add_read();
        let is_requested = |row: &&GraphRow| names.is_none_or(|names| names.contains(&row.name));
        Ok(self.tables().graphs.values().filter(is_requested).cloned().collect())
    }

    async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError> {
        Ok(self.tables().renew(worker, epoch, self.clock.now()))
    }

    async fn maintain(&self, worker: WorkerId, _epoch: i64) -> Result<Maintenance, StoreError> {
        Ok(self.tables().maintain(worker))
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        Ok(self.tables().heartbeat(heartbeat, self.clock.now()))
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let recovered = tables.take_over(worker, self.clock.now(), &self.counters);
        if recovered > 0 {
            self.publish_hint(&tables);
        }
        Ok(recovered)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        let key = |id: &ExecutionId| match id {
            ExecutionId::Key(key) => Some(*key),
            ExecutionId::Given(id) => tables.keys.get(id).copied(),
        };
        Ok(ids.iter().map(|id| tables.record(key(id)?, detail)).collect())
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        let mut bytes = BytesMut::new();
        for n in 0..chunks.count {
            let Some(chunk) = tables.chunks.get(&(execution, chunks.value, n)) else { break };
            bytes.extend_from_slice(chunk);
        }
        if bytes.len() as u64 == chunks.len {
            Ok(bytes.freeze())
        } else {
            Err(StoreError::Corrupt(format!(
                "value {} of execution {execution} has {} of {} bytes",
                chunks.value,
                bytes.len(),
                chunks.len
            )))
        }
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.counters.add_read();
        Ok(self.tables().list(filter))
    }

    async fn find(&self, name: &str, values: &[&str], limit: u64) -> Result<Vec<Vec<Key>>, StoreError> {
        self.counters.add_read();
        Ok(self.tables().find(name, values, limit))
    }

    async fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
        load_items_by_bundle(self, items).await
    }

    async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        self.counters.add_read();
        Ok(self.tables().newest_batch(before))
    }

    async fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError> {
        self.counters.add_read();
        Ok(self.tables().bundles(batch, first_item, limit))
    }

    async fn messages(&self, receivers: &[(Key, Arc<str>)]) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        let pending = |(key, topic): &(Key, Arc<str>)| {
            tables.pending_messages(*key, topic).take(MAX_PENDING_LOADED).cloned().collect()
        };
        Ok(receivers.iter().map(pending).collect())
    }

    async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.counters.add_read();
        Ok(self.tables().pending_topics(receiver))
    }

    async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        Ok(queries.iter().map(|query| tables.events(query)).collect())
    }

    async fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        Ok(events.iter().map(|(setter, name)| tables.event_waiters(*setter, name)).collect())
    }

    async fn stream_entries(&self, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        self.counters.add_read();
        let tables = self.tables();
        Ok(queries.iter().map(|query| tables.stream_entries(query)).collect())
    }

    async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        self.counters.add_read();
        Ok(self.tables().batch_items(batch))
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        let tables = self.tables();
        let is_dead = |id: &&WorkerId| tables.workers.get(id).is_none_or(|worker| worker.is_dead);
        Ok(workers.iter().filter(is_dead).copied().collect())
    }

    async fn dead_letters(&self, _limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        // no transaction of another program reaches this store
        Ok(Vec::new())
    }

    async fn workers(&self, limit: u64, _counts_running: bool) -> Result<WorkerOverview, StoreError> {
        self.counters.add_read();
        Ok(self.tables().worker_overview(limit, self.clock.now()))
    }

    async fn next_hint(&self, _worker: WorkerId) -> Hint {
        let seen = || self.seen_changes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = *seen();
        let mut changes = self.changes.subscribe();
        if let Ok(now) = changes.wait_for(|now| *now > start).await {
            let mut seen = seen();
            *seen = (*now).max(*seen);
        }
        Hint::ANY_CHANGE
    }
}
