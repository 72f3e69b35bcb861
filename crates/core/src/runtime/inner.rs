//! [`EngineInner`]: the state that the parts of an open engine share.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime;
use tokio::time::Instant;

use crate::clock::{Timestamp, time_since_boot};
use crate::commit::{FoldTarget, Lane, Lsn, Staged};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::capacity::Capacity;
use crate::runtime::capacity::item_slots::ItemSlots;
use crate::runtime::capacity::read_ahead::ReadAhead;
use crate::runtime::completion_watch::CompletionWatch;
use crate::runtime::deferrals::Deferrals;
use crate::runtime::definition::Definitions;
use crate::runtime::known_queues::KnownQueues;
use crate::runtime::lease::Lease;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::query_batcher::{
    EventLookup, EventWaiterLookup, ExecutionQuery, MessageQuery, QueryBatcher, StreamLookup,
};
use crate::runtime::run::item_lookup::find_record;
use crate::runtime::runs::Runs;
use crate::runtime::start::id_locks::IdLocks;
use crate::runtime::store_clock::StoreClock;
use crate::runtime::wakeups::Wakeups;
use crate::store::{
    Detail, ExecutionId, Outcome, Record, Registration, Request, RequestKind, RequestResult, Store,
    WorkerInfo, Write, cancel_outcome,
};
use crate::text::quote;

/// Options with which an engine is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions {
    pub(crate) max_running: usize,
    /// Number of threads for executions that hold one; `None` for no limit.
    pub(crate) max_threads: Option<usize>,
    pub(crate) max_recoveries: u32,
    pub(crate) suspend_after: Duration,
    pub(crate) value_limit: usize,
    pub(crate) staged_bytes: usize,
}

/// State shared by an open engine's handles, worker and runs. The alignment of 128 bytes keeps the reference
/// count and the fields in different cache lines.
#[repr(align(128))]
pub(crate) struct EngineInner {
    pub(crate) store: Arc<dyn Store>,
    /// Number of the store's shard.
    pub(crate) shard: u16,
    pub(crate) options: EngineOptions,
    pub(crate) definitions: Definitions,
    /// The worker's description of itself, including the names of its workflows.
    pub(crate) info: WorkerInfo,
    pub(crate) lanes: OnceLock<Vec<Lane>>,
    pub(crate) runs: Runs,
    pub(crate) completion_watch: CompletionWatch,
    /// The executions whose messages or events are awaited: the receivers, and those that set the events.
    pub(crate) change_watch: CompletionWatch,
    /// The executions whose streams are read.
    pub(crate) stream_watch: CompletionWatch,
    pub(crate) executions: Arc<QueryBatcher<ExecutionQuery>>,
    pub(crate) message_loads: Arc<QueryBatcher<MessageQuery>>,
    pub(crate) event_loads: Arc<QueryBatcher<EventLookup>>,
    pub(crate) waiter_loads: Arc<QueryBatcher<EventWaiterLookup>>,
    pub(crate) stream_loads: Arc<QueryBatcher<StreamLookup>>,
    pub(crate) known_queues: KnownQueues,
    /// Locks of the given workflow_ids of starts that are under way.
    pub(crate) id_locks: Arc<IdLocks>,
    pub(crate) registration: RwLock<Registration>,
    pub(crate) runtime: runtime::Handle,
    pub(super) capacity: Capacity,
    pub(super) lifecycle: Lifecycle,
    pub(crate) store_clock: StoreClock,
    pub(crate) lease: Lease,
    /// Capacity for claims of executions that hold a thread.
    pub(crate) read_ahead: ReadAhead,
    /// The bundles of batches that run here.
    pub(crate) item_slots: ItemSlots,
    pub(crate) wakeups: Wakeups,
    pub(crate) deferrals: Deferrals,
}

/// Pause before a query is retried while the database is unreachable.
const QUERY_RETRY_PAUSE: Duration = Duration::from_millis(100);

impl EngineInner {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: EngineOptions,
        definitions: Definitions,
        info: WorkerInfo,
        registration: Registration,
        registering_at: Instant,
        runtime: runtime::Handle,
    ) -> Arc<Self> {
        let (lease, shard) = (store.info().lease, store.info().shard);
        Arc::new(Self {
            executions: QueryBatcher::new(store.clone(), runtime.clone()),
            message_loads: QueryBatcher::new(store.clone(), runtime.clone()),
            event_loads: QueryBatcher::new(store.clone(), runtime.clone()),
            waiter_loads: QueryBatcher::new(store.clone(), runtime.clone()),
            stream_loads: QueryBatcher::new(store.clone(), runtime.clone()),
            store,
            shard,
            options,
            info,
            definitions,
            lanes: OnceLock::new(),
            runs: Runs::default(),
            completion_watch: CompletionWatch::default(),
            change_watch: CompletionWatch::default(),
            stream_watch: CompletionWatch::default(),
            known_queues: KnownQueues::default(),
            id_locks: IdLocks::new(runtime.clone()),
            registration: RwLock::new(registration),
            runtime,
            capacity: Capacity::default(),
            lifecycle: Lifecycle::default(),
            store_clock: StoreClock::new(registering_at, registration.now),
            lease: Lease::new(lease, time_since_boot().saturating_sub(registering_at.elapsed())),
            item_slots: ItemSlots::default(),
            wakeups: Wakeups::new(),
            deferrals: Deferrals::default(),
            read_ahead: ReadAhead::new(options.max_threads),
        })
    }

    /// Returns the engine's estimate of the store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.store_clock.now()
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        self.lanes.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the lane of the tree with this root.
    pub(crate) fn lane_of(&self, root: Key) -> &Lane {
        match self.lanes() {
            [lane] => lane,
            lanes => &lanes[(root.stable_hash() % lanes.len() as u64) as usize],
        }
    }

    pub(crate) fn registration(&self) -> Registration {
        *self.registration.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages a Write that belongs to no run.
    pub(crate) fn stage_unowned(&self, tree: Key, write: Write) -> Option<(&Lane, Lsn)> {
        self.stage_reserved(tree, write, 0)
    }

    /// Stages a Write that belongs to no run, and for which budget is reserved.
    pub(crate) fn stage_reserved(&self, tree: Key, write: Write, reserved: u32) -> Option<(&Lane, Lsn)> {
        let lane = self.lane_of(tree);
        let staged = Staged { generation: lane.generation(), tree, write, reserved, fate: None };
        let lsn = lane.stage(staged, &mut FoldTarget::default())?;
        Some((lane, lsn))
    }

    pub(crate) async fn load(&self, id: ExecutionId, detail: Detail) -> Result<Option<Record>, Error> {
        Ok(self.store.load(&[id], detail).await?.pop().flatten())
    }

    /// Retries a query until the database replies. Returns `Unavailable` only when the engine is ending. A
    /// denied permission is retried too: no execution fails because an administrator changes privileges.
    pub(crate) async fn query_with_retry<T, F>(&self, query: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match query().await {
                Err(Error::Unavailable(reason) | Error::PermissionDenied(reason)) => {
                    if self.is_closing() {
                        return Err(Error::Unavailable(reason));
                    }
                    tracing::debug!(reason, "query failed; retrying");
                    tokio::time::sleep(QUERY_RETRY_PAUSE).await;
                }
                Err(error @ Error::Shutdown) => return Err(Error::Unavailable(error.to_string())),
                Err(Error::NewerSchema { found, supported }) => {
                    self.stop_outdated((found, supported));
                    return Err(Error::Unavailable("the engine is too old for the database".into()));
                }
                result => return result,
            }
        }
    }

    /// Returns an error if the store has no queue of this name. Retries while the database is unreachable.
    pub(crate) async fn check_queue(&self, name: &Arc<str>) -> Result<(), Error> {
        self.query_with_retry(|| self.known_queues.check(&*self.store, name)).await
    }

    /// Returns the execution with this workflow_id.
    pub(crate) async fn find(&self, workflow_id: &str, detail: Detail) -> Result<Record, Error> {
        find_record(&*self.store, workflow_id, detail).await
    }

    /// Stages a request for an execution and waits for its result.
    pub(crate) async fn request(&self, workflow_id: &str, kind: RequestKind) -> Result<RequestResult, Error> {
        self.check_open()?;
        let key = self.find(workflow_id, Detail::Outcome).await?.execution.key;
        self.request_by_key(key, kind).await?.ok_or_else(|| missing_error(key, workflow_id.to_owned()))
    }

    /// Does the same as [`request`](Self::request), by key. Returns `None` if the execution does not exist.
    pub(crate) async fn request_by_key(
        &self,
        key: Key,
        kind: RequestKind,
    ) -> Result<Option<RequestResult>, Error> {
        let reason = match kind {
            RequestKind::Cancel | RequestKind::CancelItem(_) => cancel_outcome(),
            RequestKind::Expire => Payload::from_failure(&Failure::deadline_reached()),
            RequestKind::Resume => Payload::empty(),
            RequestKind::Pause => Payload::from_failure(&Failure::paused()),
        };
        let id = match (kind, key.batch()) {
            (RequestKind::CancelItem(index), Some(batch)) => batch.item(index),
            _ => Key::mint(0),
        };
        let request = Request { execution: key, id, kind, at: self.now(), reason };
        let run = self.runs.get(key);
        let Some((lane, lsn)) = self.stage_unowned(key, Write::Request(request)) else {
            return Err(self.dropped_write_error());
        };
        match lane.wait_durable(lsn).await {
            Outcome::RequestHandled(result, _) => {
                crate::crash_point!("request durable");
                let is_pending = result == RequestResult::Pending;
                if is_pending || (kind, result) == (RequestKind::Resume, RequestResult::Done) {
                    // an execution that runs here handles the request without waiting for the worker's heartbeat
                    match (run, self.runs.get(key)) {
                        (Some(run), Some(current)) if Arc::ptr_eq(&run, &current) => run.handle_request(kind),
                        // the request may concern another run, which has ended since
                        (_, Some(_)) if is_pending => self.wakeups.request_heartbeat(),
                        _ => {}
                    }
                }
                Ok(Some(result))
            }
            Outcome::NotFound if kind == RequestKind::Cancel => self.cancel_virtual_item(key).await,
            Outcome::NotFound if kind == RequestKind::Resume => self.resume_virtual_item(key).await,
            Outcome::NotFound => Ok(None),
            Outcome::Rejected(reason) => Err(Error::Unavailable(reason.to_string())),
            _ => Err(self.dropped_write_error()),
        }
    }
}

/// Returns the error for an execution to which a request found no row.
pub(crate) fn missing_error(key: Key, workflow_id: String) -> Error {
    if key.item_index().is_none() {
        return Error::NotFound { workflow_id };
    }
    let reason = format!(
        "{} runs together with other items of its batch: it can be cancelled, but not paused",
        quote(&workflow_id)
    );
    Error::Invalid { input: "workflow_id", reason }
}
