//! [`EngineInner`]: the state that the parts of an open engine share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::{Timestamp, time_since_boot};
use crate::commit::{FoldTarget, Lane, Lsn, Staged};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::completion_watch::CompletionWatch;
use crate::runtime::deferrals::Deferrals;
use crate::runtime::definition::Definitions;
use crate::runtime::known_queues::KnownQueues;
use crate::runtime::lease::Lease;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::load_batcher::LoadBatcher;
use crate::runtime::read_ahead::ReadAhead;
use crate::runtime::run::Interrupt;
use crate::runtime::runs::Runs;
use crate::runtime::start::id_locks::IdLocks;
use crate::runtime::store_clock::StoreClock;
use crate::runtime::wakeups::Wakeups;
use crate::store::{
    Detail, Execution, ExecutionId, Outcome, Record, Registration, Request, RequestKind, RequestResult,
    Store, StoreError, WorkerInfo, Write, cancel_outcome,
};

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

/// State shared by an open engine's handles, worker and runs. Aligned to 128 bytes so that reference counting
/// does not share a cache line with the fields.
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
    pub(crate) load_batcher: Arc<LoadBatcher>,
    pub(crate) known_queues: KnownQueues,
    /// Locks of the ids given by callers whose starts are under way.
    pub(crate) id_locks: Arc<IdLocks>,
    pub(crate) registration: RwLock<Registration>,
    pub(crate) runtime: runtime::Handle,
    /// Number of slots taken by runs and claims. In a cache line of its own, because every run changes it.
    pub(super) taken_slots: CachePadded<AtomicUsize>,
    /// Number of the taken slots that are reserved for a claim under way.
    pub(super) reserved_slots: AtomicUsize,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    poison_reason: OnceLock<String>,
    /// The newer schema that the database has or is about to get, and the newest that this program supports.
    /// Unset while the program is new enough.
    newer_schema: OnceLock<(i64, i64)>,
    pub(crate) store_clock: StoreClock,
    pub(crate) lease: Lease,
    /// Capacity for claims of executions that hold a thread.
    pub(crate) read_ahead: ReadAhead,
    pub(crate) wakeups: Wakeups,
    pub(crate) deferrals: Deferrals,
    shutdown_sender: Mutex<Option<oneshot::Sender<ShutdownRequest>>>,
}

/// Error message for a Write that was dropped while the engine is open.
const DROPPED_WRITE_MESSAGE: &str = "the write was dropped: the engine lost its registration, or the database \
                                     rejected another item of the same flush";

/// How long executions may continue in an engine that is too old for the coming schema.
const OUTDATED_DRAIN_GRACE: Duration = Duration::from_secs(10);

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
            load_batcher: LoadBatcher::new(store.clone(), runtime.clone()),
            store,
            shard,
            options,
            info,
            definitions,
            lanes: OnceLock::new(),
            runs: Runs::default(),
            completion_watch: CompletionWatch::default(),
            known_queues: KnownQueues::default(),
            id_locks: IdLocks::new(runtime.clone()),
            registration: RwLock::new(registration),
            runtime,
            taken_slots: AtomicUsize::new(0).into(),
            reserved_slots: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            poison_reason: OnceLock::new(),
            newer_schema: OnceLock::new(),
            store_clock: StoreClock::new(registering_at, registration.now),
            lease: Lease::new(lease, time_since_boot().saturating_sub(registering_at.elapsed())),
            wakeups: Wakeups::new(),
            deferrals: Deferrals::default(),
            read_ahead: ReadAhead::new(options.max_threads),
            shutdown_sender: Mutex::new(None),
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

    /// Whether the engine takes no new executions, from the beginning of a drain or shutdown.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(SeqCst)
    }

    /// Sets the channel to the worker for the shutdown request.
    pub(crate) fn set_shutdown_sender(&self, shutdown: oneshot::Sender<ShutdownRequest>) {
        *self.shutdown_sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(shutdown);
    }

    /// Sends the worker a request to shut down. Only the first call has an effect.
    pub(crate) fn send_shutdown(&self, shutdown: ShutdownRequest) {
        let sender = self.shutdown_sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            self.begin_closing();
            let _ = sender.send(shutdown);
        }
    }

    /// Stops taking new executions. Executions that are started from now on wait for another worker.
    pub(crate) fn begin_draining(&self) {
        self.is_draining.store(true, SeqCst);
    }

    pub(crate) fn begin_closing(&self) {
        self.begin_draining();
        self.is_closing.store(true, SeqCst);
        self.known_queues.notify_capacity();
    }

    /// Stops the engine because the database cannot be trusted.
    pub(crate) fn poison(&self, reason: &str) {
        tracing::error!(reason, "the database cannot be trusted; stopping the engine");
        let _ = self.poison_reason.set(reason.to_owned());
        for run in self.runs.all() {
            run.interrupt(Interrupt::Disowned);
        }
        self.completion_watch.notify_all();
    }

    /// Shuts the engine down cleanly, because the database is being migrated to a schema that this program
    /// does not support.
    pub(crate) fn drain_outdated(self: &Arc<Self>, (found, supported): (i64, i64)) {
        if self.newer_schema.set((found, supported)).is_err() || self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database is being migrated to a newer schema; this engine requeues its executions and ends: start \
             the newer version of the program"
        );
        let engine = self.clone();
        self.runtime.spawn(async move {
            if let Err(error) = engine.drain(OUTDATED_DRAIN_GRACE).await {
                tracing::error!(%error, "the engine could not shut down cleanly");
            }
        });
    }

    /// Ends the engine if a store error is fatal. Returns any other error.
    pub(crate) fn stop_if_fatal(&self, error: StoreError) -> Option<StoreError> {
        match error {
            StoreError::Corrupt(reason) => self.poison(&reason),
            StoreError::NewerSchema { found, supported } => self.stop_outdated((found, supported)),
            error => return Some(error),
        }
        None
    }

    /// Ends the engine at once and records nothing more, because the database has a schema that this program
    /// does not support. Engines of the newer version continue the executions that it ran.
    pub(crate) fn stop_outdated(&self, (found, supported): (i64, i64)) {
        let _ = self.newer_schema.set((found, supported));
        if self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database was migrated to a newer schema; this engine records nothing more and ends: start the \
             newer version of the program"
        );
        for run in self.runs.all() {
            run.interrupt(Interrupt::Disowned);
        }
        let (done, _) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace: Duration::ZERO, done });
    }

    /// Whether this program does not support the schema that the database has, or is about to get.
    pub(crate) fn is_outdated(&self) -> bool {
        self.newer_schema.get().is_some()
    }

    /// Whether the database cannot be trusted any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison_reason.get().is_some()
    }

    /// Returns an error if the engine no longer accepts calls.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if let Some(reason) = self.poison_reason.get() {
            return Err(Error::Corrupt(reason.clone()));
        }
        match self.newer_schema.get() {
            _ if !self.is_closing() => Ok(()),
            Some(&(found, supported)) => Err(Error::NewerSchema { found, supported }),
            None => Err(Error::Shutdown),
        }
    }

    /// Returns the error for calls after the engine has ended.
    pub(crate) fn closed_error(&self) -> Error {
        self.check_open().err().unwrap_or(Error::Shutdown)
    }

    /// Returns the error for a Write that was dropped.
    pub(crate) fn dropped_write_error(&self) -> Error {
        self.check_open().err().unwrap_or_else(|| Error::Unavailable(DROPPED_WRITE_MESSAGE.into()))
    }

    /// Wakes the claimer. With `has_ready`, an execution may be claimable.
    pub(crate) fn wake_claimer(&self, has_ready: bool) {
        if has_ready {
            self.wakeups.has_ready.store(true, SeqCst);
        }
        self.wakeups.claim.notify_one();
    }

    /// Notes that slots of queues were freed. Wakes the claimer if a queue's limits held executions back.
    pub(crate) fn note_queue_slots_freed(&self) {
        self.wakeups.freed_queue_slots.fetch_add(1, SeqCst);
        if self.wakeups.is_slot_awaited.swap(false, SeqCst) {
            self.wake_claimer(true);
        }
    }

    /// Requests a claim when the next slot of a queue is freed, counting slots freed since `freed` was read.
    pub(crate) fn claim_on_freed_slot(&self, freed: u64) {
        self.wakeups.is_slot_awaited.store(true, SeqCst);
        if self.wakeups.freed_queue_slots.load(SeqCst) != freed
            && self.wakeups.is_slot_awaited.swap(false, SeqCst)
        {
            self.wake_claimer(true);
        }
    }

    /// Requests a heartbeat now.
    pub(crate) fn request_heartbeat(&self) {
        self.wakeups.is_heartbeat_requested.store(true, SeqCst);
        self.wakeups.heartbeat.notify_one();
    }

    /// Notes that the registration has ended.
    pub(crate) fn mark_fenced(&self) {
        self.wakeups.is_fenced.store(true, SeqCst);
        self.wakeups.fence.notify_one();
    }

    /// Stages a Write that belongs to no run.
    pub(crate) fn stage_unowned(&self, tree: Key, write: Write) -> Option<(&Lane, Lsn)> {
        let lane = self.lane_of(tree);
        let staged = Staged { generation: lane.generation(), tree, write, reserved: 0, fate: None };
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
        if let Some(record) = self.load(ExecutionId::Given(workflow_id.into()), detail).await? {
            return Ok(record);
        }
        if let Some(key) = Key::from_text(workflow_id)
            && let Some(record) = self.load(ExecutionId::Key(key), detail).await?
        {
            return Ok(record);
        }
        Err(Error::NotFound { workflow_id: workflow_id.to_owned() })
    }

    /// Waits until the execution, wherever it runs, has ended or is parked.
    pub(crate) async fn wait_ended_or_parked(self: &Arc<Self>, key: Key) -> Result<Execution, Error> {
        self.wait_until(key, |execution| execution.status.is_terminal() || execution.is_parked, &|| {}).await
    }

    /// Waits until the execution, wherever it runs, has ended. Calls `on_unended` after each load that shows
    /// it has not.
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
            if let Some(reason) = self.poison_reason.get() {
                return Err(Error::Corrupt(reason.clone()));
            }
            if *self.wakeups.is_stopped.borrow() {
                return Err(self.closed_error());
            }
            change.await;
        }
    }

    /// Waits until the engine has ended.
    pub(crate) async fn wait_stopped(&self) {
        let _ = self.wakeups.is_stopped.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    /// Stages a request for an execution and waits for its result.
    pub(crate) async fn request(&self, workflow_id: &str, kind: RequestKind) -> Result<RequestResult, Error> {
        self.check_open()?;
        let key = self.find(workflow_id, Detail::Outcome).await?.execution.key;
        let result = self.request_by_key(key, kind).await?;
        result.ok_or_else(|| Error::NotFound { workflow_id: workflow_id.to_owned() })
    }

    /// Does the same as [`request`](Self::request), by key. Returns `None` if the execution does not exist.
    pub(crate) async fn request_by_key(
        &self,
        key: Key,
        kind: RequestKind,
    ) -> Result<Option<RequestResult>, Error> {
        let reason = match kind {
            RequestKind::Cancel => cancel_outcome(),
            RequestKind::Expire => Payload::from_failure(&Failure::deadline_reached()),
            RequestKind::Resume => Payload::empty(),
        };
        let request = Request { execution: key, id: Key::mint(0), kind, at: self.now(), reason };
        let Some((lane, lsn)) = self.stage_unowned(key, Write::Request(request)) else {
            return Err(self.dropped_write_error());
        };
        match lane.wait_durable(lsn).await {
            Outcome::RequestHandled(result, _) => {
                crate::crash_point!("request durable");
                if result == RequestResult::Pending {
                    // an execution that runs here is interrupted without waiting for the worker's heartbeat
                    if let (RequestKind::Cancel, Some(run)) = (kind, self.runs.get(key)) {
                        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
                    }
                }
                Ok(Some(result))
            }
            Outcome::NotFound => Ok(None),
            Outcome::Rejected(reason) => Err(Error::Unavailable(reason.to_string())),
            _ => Err(self.dropped_write_error()),
        }
    }
}
