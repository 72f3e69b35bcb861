//! [`Core`]: the state that the parts of an open engine share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::{Timestamp, time_since_boot};
use crate::commit::{Lane, Lsn, FoldTarget, Staged};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::completion_watch::CompletionWatch;
use crate::runtime::deferrals::Deferrals;
use crate::runtime::definition::Definitions;
use crate::runtime::id_locks::IdLocks;
use crate::runtime::known_queues::KnownQueues;
use crate::runtime::lease::Lease;
use crate::runtime::lifecycle::ShutdownRequest;
use crate::runtime::load_batcher::LoadBatcher;
use crate::runtime::read_ahead::ReadAhead;
use crate::runtime::run::Interrupt;
use crate::runtime::runs::Runs;
use crate::runtime::store_clock::StoreTime;
use crate::runtime::wakeups::WorkerSignals;
use crate::store::{
    RequestResult, Detail, Execution, ExecutionId, Outcome, Record, Registration, Request, RequestKind, Store,
    StoreError, WorkerInfo, Write, cancel_outcome,
};

/// What an engine is told when it is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) max_running: usize,
    /// Threads for executions that hold one; `None` for no limit.
    pub(crate) threads: Option<usize>,
    pub(crate) max_recoveries: u32,
    pub(crate) suspend_after: Duration,
    pub(crate) value_limit: usize,
    pub(crate) staged_bytes: usize,
}

/// What an engine's parts share. Apart from the count of its references, which every run changes.
#[repr(align(128))]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    /// The shard that the store is.
    pub(crate) shard: u16,
    pub(crate) options: Options,
    pub(crate) definitions: Definitions,
    /// What it says of itself, the names of its workflows among that.
    pub(crate) info: WorkerInfo,
    pub(crate) lanes: OnceLock<Vec<Lane>>,
    pub(crate) runs: Runs,
    pub(crate) watch: CompletionWatch,
    pub(crate) loads: Arc<LoadBatcher>,
    pub(crate) queues: KnownQueues,
    /// Ids given by callers whose starts are under way.
    pub(crate) id_locks: Arc<IdLocks>,
    pub(crate) registration: RwLock<Registration>,
    pub(crate) runtime: runtime::Handle,
    /// Places taken; apart, for every run changes it.
    pub(super) running: CachePadded<AtomicUsize>,
    /// Of these, taken for a claim that is going on.
    pub(super) reserved: AtomicUsize,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    poisoned: OnceLock<String>,
    /// The schema that is coming and the newest that this program knows, where it is too old.
    outdated: OnceLock<(i64, i64)>,
    pub(crate) store_time: StoreTime,
    pub(crate) lease: Lease,
    /// Room for claims of executions that hold a thread.
    pub(crate) read_ahead: ReadAhead,
    pub(crate) worker: WorkerSignals,
    pub(crate) put_offs: Deferrals,
    shutdown: Mutex<Option<oneshot::Sender<ShutdownRequest>>>,
}

/// Why a Write was dropped in an engine that is open.
const DROPPED: &str = "what was to be recorded was dropped: the engine lost its registration, or the database refused \
                       something in the same flush";

/// How long executions may run on in an engine that is too old for the schema that is coming.
const OUTDATED_GRACE: Duration = Duration::from_secs(10);

/// Pause before a database that did not answer a question is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Core {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: Options,
        definitions: Definitions,
        info: WorkerInfo,
        registration: Registration,
        registering_at: Instant,
        runtime: runtime::Handle,
    ) -> Arc<Self> {
        let (lease, shard) = (store.info().lease, store.info().shard);
        Arc::new(Self {
            loads: LoadBatcher::new(store.clone(), runtime.clone()),
            store,
            shard,
            options,
            info,
            definitions,
            lanes: OnceLock::new(),
            runs: Runs::default(),
            watch: CompletionWatch::default(),
            queues: KnownQueues::default(),
            id_locks: IdLocks::new(runtime.clone()),
            registration: RwLock::new(registration),
            runtime,
            running: AtomicUsize::new(0).into(),
            reserved: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            poisoned: OnceLock::new(),
            outdated: OnceLock::new(),
            store_time: StoreTime::new(registering_at, registration.now),
            lease: Lease::new(lease, time_since_boot().saturating_sub(registering_at.elapsed())),
            worker: WorkerSignals::new(),
            put_offs: Deferrals::default(),
            read_ahead: ReadAhead::new(options.threads),
            shutdown: Mutex::new(None),
        })
    }

    /// The engine's estimate of the store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.store_time.now()
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        self.lanes.get().map_or(&[], Vec::as_slice)
    }

    /// The lane of the tree with this root.
    pub(crate) fn lane_of(&self, root: Key) -> &Lane {
        match self.lanes() {
            [lane] => lane,
            lanes => &lanes[(root.stable_hash() % lanes.len() as u64) as usize],
        }
    }

    pub(crate) fn registration(&self) -> Registration {
        *self.registration.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// True from the beginning of a drain, or of the engine's end, on: it takes nothing new to run.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(SeqCst)
    }

    /// Keeps the way to end the worker.
    pub(crate) fn keep_shutdown(&self, shutdown: oneshot::Sender<ShutdownRequest>) {
        *self.shutdown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shutdown);
    }

    /// Tells the worker to end; the first call counts.
    pub(crate) fn send_shutdown(&self, shutdown: ShutdownRequest) {
        let sender = self.shutdown.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            self.begin_closing();
            let _ = sender.send(shutdown);
        }
    }

    /// From here on it takes nothing new to run; what is started waits for another worker.
    pub(crate) fn begin_draining(&self) {
        self.is_draining.store(true, SeqCst);
    }

    pub(crate) fn begin_closing(&self) {
        self.begin_draining();
        self.is_closing.store(true, SeqCst);
        self.queues.has_left();
    }

    /// Stops the engine: the database cannot be trusted.
    pub(crate) fn poison(&self, reason: &str) {
        tracing::error!(reason, "the engine stops: the database cannot be trusted");
        let _ = self.poisoned.set(reason.to_owned());
        for run in self.runs.all() {
            run.interrupt(Interrupt::Lost);
        }
        self.watch.notify_all();
    }

    /// Ends the engine in good order: the database is being brought to a schema that this program does not know.
    pub(crate) fn outdate(self: &Arc<Self>, (found, supported): (i64, i64)) {
        if self.outdated.set((found, supported)).is_err() || self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database is being brought to a newer schema: this engine hands on what it runs and ends; start the \
             newer version of the program"
        );
        let core = self.clone();
        self.runtime.spawn(async move {
            if let Err(error) = core.drain(OUTDATED_GRACE).await {
                tracing::error!(%error, "the engine could not end in good order");
            }
        });
    }

    /// Ends the engine where an error of its store says that it cannot go on. Returns any other error.
    pub(crate) fn end_by(&self, error: StoreError) -> Option<StoreError> {
        match error {
            StoreError::Corrupt(reason) => self.poison(&reason),
            StoreError::NewerSchema { found, supported } => self.expel((found, supported)),
            error => return Some(error),
        }
        None
    }

    /// Ends the engine at once, and records nothing more: the database has a schema that this program does not know. Engines of
    /// the newer version continue the executions that it ran.
    pub(crate) fn expel(&self, (found, supported): (i64, i64)) {
        let _ = self.outdated.set((found, supported));
        if self.is_closing() {
            return;
        }
        tracing::error!(
            found,
            supported,
            "the database has been brought to a newer schema: this engine records nothing more and ends; start the newer \
             version of the program"
        );
        for run in self.runs.all() {
            run.interrupt(Interrupt::Lost);
        }
        let (done, _) = oneshot::channel();
        self.send_shutdown(ShutdownRequest { grace: Duration::ZERO, done });
    }

    /// True if the schema that the database has, or is about to get, is not known to this program.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.get().is_some()
    }

    /// True if the database cannot be trusted any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    /// An error if the engine cannot accept anything any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if let Some(reason) = self.poisoned.get() {
            return Err(Error::Corrupt(reason.clone()));
        }
        match self.outdated.get() {
            _ if !self.is_closing() => Ok(()),
            Some(&(found, supported)) => Err(Error::NewerSchema { found, supported }),
            None => Err(Error::Shutdown),
        }
    }

    /// The reason for which the engine has ended.
    pub(crate) fn why_ended(&self) -> Error {
        self.check_open().err().unwrap_or(Error::Shutdown)
    }

    /// What to say when a Write was dropped.
    pub(crate) fn why_dropped(&self) -> Error {
        self.check_open().err().unwrap_or_else(|| Error::Unavailable(DROPPED.into()))
    }

    /// Lets the claims look again what there is to do; with `is_ready`, there may be something to claim.
    pub(crate) fn wake_worker(&self, is_ready: bool) {
        if is_ready {
            self.worker.is_ready.store(true, SeqCst);
        }
        self.worker.wanted.notify_one();
    }

    /// Slots of queues are free again: a claim may bring what their limits have left.
    pub(crate) fn slots_freed(&self) {
        self.worker.freed_slots.fetch_add(1, SeqCst);
        if self.worker.is_slot_wanted.swap(false, SeqCst) {
            self.wake_worker(true);
        }
    }

    /// The next slot that is freed leads to a claim, those included that were freed since `freed` was read.
    pub(crate) fn await_slot(&self, freed: u64) {
        self.worker.is_slot_wanted.store(true, SeqCst);
        if self.worker.freed_slots.load(SeqCst) != freed && self.worker.is_slot_wanted.swap(false, SeqCst) {
            self.wake_worker(true);
        }
    }

    /// Asks for a look now.
    pub(crate) fn want_look(&self) {
        self.worker.is_look_wanted.store(true, SeqCst);
        self.worker.look.notify_one();
    }

    /// The registration is over.
    pub(crate) fn fenced(&self) {
        self.worker.is_fenced.store(true, SeqCst);
        self.worker.fenced.notify_one();
    }

    /// Stages a Write that belongs to nobody's run.
    pub(crate) fn stage_free(&self, tree: Key, write: Write) -> Option<(&Lane, Lsn)> {
        let lane = self.lane_of(tree);
        let staged = Staged { generation: lane.generation(), tree, write, reserved: 0, fate: None };
        let lsn = lane.stage(staged, &mut FoldTarget::default())?;
        Some((lane, lsn))
    }

    pub(crate) async fn load(&self, id: ExecutionId, detail: Detail) -> Result<Option<Record>, Error> {
        Ok(self.store.load(&[id], detail).await?.pop().flatten())
    }

    /// Asks the database until it answers; `Unavailable` only when the engine is ending. What is not permitted may be
    /// soon: no execution fails for what an administrator does.
    pub(crate) async fn ask<T, F>(&self, question: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match question().await {
                Err(Error::Unavailable(reason) | Error::PermissionDenied(reason)) => {
                    if self.is_closing() {
                        return Err(Error::Unavailable(reason));
                    }
                    tracing::debug!(reason, "asking again");
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                Err(Error::NewerSchema { found, supported }) => {
                    self.expel((found, supported));
                    return Err(Error::Unavailable("the engine is too old for the database".into()));
                }
                answer => return answer,
            }
        }
    }

    /// Returns an error if there is no queue of this name. Waits for a database that does not answer.
    pub(crate) async fn await_queue(&self, name: &Arc<str>) -> Result<(), Error> {
        self.ask(|| self.queues.check(&*self.store, name)).await
    }

    /// The execution with this workflow_id.
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
    pub(crate) async fn until_ended(self: &Arc<Self>, key: Key) -> Result<Execution, Error> {
        self.until(key, |execution| execution.status.is_terminal() || execution.is_parked, &|| {}).await
    }

    /// Waits until the execution, wherever it runs, has ended; tells at every look that it has not.
    pub(crate) async fn until_terminal(
        self: &Arc<Self>,
        key: Key,
        has_not: &impl Fn(),
    ) -> Result<Execution, Error> {
        self.until(key, |execution| execution.status.is_terminal(), has_not).await
    }

    async fn until(
        self: &Arc<Self>,
        key: Key,
        is_it: impl Fn(&Execution) -> bool,
        is_not: &impl Fn(),
    ) -> Result<Execution, Error> {
        let watching = self.watch.watch(key);
        if self.info.is_client {
            // it looks once a second from here on
            self.worker.look.notify_one();
        }
        loop {
            let changed = watching.next_change();
            // a load may hang: the engine's end must not
            let loaded = tokio::select! {
                biased;
                loaded = self.loads.load(key) => loaded,
                () = self.stopped() => return Err(self.why_ended()),
            };
            match loaded {
                Ok(Some(execution)) if is_it(&execution) => return Ok(execution),
                Ok(None) => return Err(Error::NotFound { workflow_id: key.to_string() }),
                Ok(Some(_)) => is_not(),
                Err(error @ (Error::Unavailable(_) | Error::PermissionDenied(_))) => {
                    tracing::debug!(%error, "waiting for an end");
                }
                Err(error) => return Err(error),
            }
            if let Some(reason) = self.poisoned.get() {
                return Err(Error::Corrupt(reason.clone()));
            }
            if *self.worker.stopped.borrow() {
                return Err(self.why_ended());
            }
            changed.await;
        }
    }

    /// Resolves when the engine has ended.
    pub(crate) async fn stopped(&self) {
        let _ = self.worker.stopped.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    /// Asks for something to be done with an execution.
    pub(crate) async fn request(&self, workflow_id: &str, kind: RequestKind) -> Result<RequestResult, Error> {
        self.check_open()?;
        let key = self.find(workflow_id, Detail::Outcome).await?.execution.key;
        let answer = self.request_of(key, kind).await?;
        answer.ok_or_else(|| Error::NotFound { workflow_id: workflow_id.to_owned() })
    }

    /// The same by its key; `None` if there is no such execution.
    pub(crate) async fn request_of(&self, key: Key, kind: RequestKind) -> Result<Option<RequestResult>, Error> {
        let reason = match kind {
            RequestKind::Cancel => cancel_outcome(),
            RequestKind::Expire => Payload::from_failure(&Failure::deadline_reached()),
            RequestKind::Resume => Payload::empty(),
        };
        let request = Request { execution: key, id: Key::mint(0), kind, at: self.now(), reason };
        let Some((lane, lsn)) = self.stage_free(key, Write::Request(request)) else {
            return Err(self.why_dropped());
        };
        match lane.wait_durable(lsn).await {
            Outcome::RequestHandled(answer, _) => {
                crate::crash_point!("request durable");
                if answer == RequestResult::Pending {
                    // if it runs here: no need to wait for the worker's look
                    if let (RequestKind::Cancel, Some(run)) = (kind, self.runs.get(key)) {
                        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
                    }
                }
                Ok(Some(answer))
            }
            Outcome::NotFound => Ok(None),
            Outcome::Rejected(reason) => Err(Error::Unavailable(reason.to_string())),
            _ => Err(self.why_dropped()),
        }
    }
}
