//! [`Submission`]: a start from the call to its outcome. The start is checked, prepared and staged, and the outcome
//! becomes a handle or an error.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use futures_util::future::OptionFuture;

use crate::clock::MAX_STORED_DURATION;
use crate::commit::{DurableFuture, Fate, FoldTarget, Lsn, Staged};
use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::name_checks::{check_name, check_new_id};
use crate::payload::{FromPayload, INLINE_LIMIT, Payload};
use crate::queue::debounce::debounce_key;
use crate::queue::{OnDuplicate, OnFull, Placement};
use crate::runtime::definition::Definition;
use crate::runtime::inner::EngineInner;
use crate::runtime::outcome::decode_outcome;
use crate::runtime::run::chunks::{self, ChunkTarget};
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{Conclusion, NewRun, Run};
use crate::runtime::start::id_locks::{IdLock, IdLockUntilSettled};
use crate::runtime::start::options::StartOptions;
use crate::store::{self, Detail, ExecutionId, ExistingExecution, Outcome, Status, Write};

/// An `Arc`, borrowed or owned.
pub(crate) enum ArcRef<'e, T> {
    Borrowed(&'e Arc<T>),
    Owned(Arc<T>),
}

impl<T> Deref for ArcRef<'_, T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        match self {
            ArcRef::Borrowed(arc) => arc,
            ArcRef::Owned(arc) => arc,
        }
    }
}

/// An execution to be started.
pub(crate) struct Submission<'e> {
    pub(crate) engine: ArcRef<'e, EngineInner>,
    pub(crate) definition: ArcRef<'e, Definition>,
    pub(crate) input: Payload,
    /// The fingerprint of the input; `None` if it is to be computed from the payload.
    pub(crate) fingerprint: Option<u64>,
    /// The options of the start; `None` for the defaults.
    pub(crate) options: Option<Box<StartOptions>>,
    /// Whether the start waits for capacity in its queue, which is full.
    is_waiting_for_capacity: AtomicBool,
}

/// A run that its caller drives. If the caller drops this value before the conclusion, the run continues in a task of
/// its own.
pub(crate) struct CallerDriven {
    pub(crate) task: Option<RunTask>,
    pub(crate) input: Payload,
    pub(crate) id_lock: Option<IdLock>,
}

impl CallerDriven {
    /// Returns the run; `None` after its conclusion.
    pub(crate) fn run(&self) -> Option<Arc<Run>> {
        self.task.as_ref().map(|task| task.run().clone())
    }

    /// Lets the run continue in a task of its own, unless it has concluded.
    #[inline]
    pub(crate) fn detach(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach(std::mem::take(&mut self.input), self.id_lock.take());
        }
    }

    /// Polls the run to its conclusion, in the caller's own task.
    pub(crate) fn poll_conclusion(&mut self, cx: &mut TaskContext<'_>) -> Poll<Conclusion> {
        let Some(task) = &mut self.task else { return Poll::Ready(Conclusion::LeftProcess) };
        let conclusion = std::task::ready!(task.poll_conclusion(cx, &self.input));
        self.task = None;
        Poll::Ready(conclusion)
    }
}

impl Drop for CallerDriven {
    #[inline]
    fn drop(&mut self) {
        self.detach();
    }
}

/// A start that has been checked and encoded.
pub(crate) struct PreparedStart {
    pub(crate) start: Box<store::Start>,
    pub(crate) reserved: u32,
    id_lock: Option<IdLock>,
    /// Whether the execution begins in this process, where a slot is reserved for it.
    is_local: bool,
}

/// A start that has succeeded.
enum Started<O> {
    /// The execution runs in this process, driven by the holder of this value.
    Local(CallerDriven),
    /// The execution existed before, or another task or worker runs the new one.
    Remote(Handle<O>),
}

/// The reason why a start has to be tried again.
enum RetryReason {
    /// The execution with the same dedup_id has ended in the meantime.
    DuplicateEnded,
    /// The queue is full. The start is tried again when the queue may have capacity.
    QueueFull,
}

/// The reason why a start cannot take the fast path.
pub(crate) enum FastPathError {
    Unsuitable,
    Invalid(Error),
}

impl<'e> Submission<'e> {
    #[inline]
    pub(crate) fn new(
        engine: ArcRef<'e, EngineInner>,
        definition: ArcRef<'e, Definition>,
        input: Payload,
        options: Option<Box<StartOptions>>,
    ) -> Self {
        let registered =
            if definition.is_elsewhere() { engine.definitions.get(&definition.name).cloned() } else { None };
        Self {
            engine,
            definition: registered.map_or(definition, ArcRef::Owned),
            input,
            fingerprint: None,
            options,
            is_waiting_for_capacity: AtomicBool::new(false),
        }
    }
}

impl Submission<'_> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { engine, definition, input, .. } = self;
        engine.check_open()?;
        if engine.info.is_client || definition.is_elsewhere() {
            check_name("workflow name", &definition.name)?;
        } else if engine.definitions.get(&definition.name).is_none() {
            return Err(engine.definitions.unknown_error(&definition.name));
        }
        let limit = engine.options.value_limit;
        if input.len() > limit {
            let value = format!("the input of workflow {:?}", &*definition.name);
            return Err(Error::TooLarge { value, size: input.len(), limit });
        }
        Ok(())
    }

    /// Prepares a start without options, if that is possible without waiting.
    pub(crate) fn prepare_fast(&self) -> Result<PreparedStart, FastPathError> {
        self.check().map_err(FastPathError::Invalid)?;
        let bytes = self.input.len() + 256;
        let is_plain = self.options.is_none() && self.input.len() <= INLINE_LIMIT;
        if !is_plain || self.definition.is_elsewhere() || !self.engine.take_slot() {
            return Err(FastPathError::Unsuitable);
        }
        let key = Key::mint(self.engine.shard);
        let reserved = self.engine.lane_of(key).try_reserve(bytes);
        if reserved == 0 {
            self.engine.release_slot();
            return Err(FastPathError::Unsuitable);
        }
        let start = self.build_start(key, None, None, self.input.clone(), true);
        Ok(PreparedStart { start, reserved, id_lock: None, is_local: true })
    }

    /// Prepares any start, and waits if necessary, for example for the lock of its id or for budget.
    async fn prepare(&self) -> Result<PreparedStart, Error> {
        self.check()?;
        let (engine, options) = (&*self.engine, self.options());
        let placement = options.placement()?;
        options.check_debounce(&self.definition.name, &self.input)?;
        options.attributes.check()?;
        if let Some(placement) = &placement {
            engine.check_queue(&placement.queue).await?;
        }
        let key = Key::mint(engine.shard);
        let mut id_lock = None;
        let id = self.workflow_id();
        if let Some(id) = &id {
            check_new_id("workflow_id", id)?;
            id_lock = Some(engine.id_locks.lock(id).await);
        }
        let lane = engine.lane_of(key);
        let generation = lane.generation();
        let place = ChunkTarget {
            lane,
            generation,
            execution: key,
            tree: key,
            is_unowned: true,
            fate: None,
            run: None,
        };
        let (input, reserved) = chunks::store(place, self.input.clone(), options.attributes.size()).await;
        let is_local = self.may_begin_here(placement.as_deref(), id.is_some()) && engine.take_slot();
        if !is_local {
            engine.note_queued();
        }
        Ok(PreparedStart {
            start: self.build_start(key, id, placement, input, is_local),
            reserved,
            id_lock,
            is_local,
        })
    }

    /// Whether the execution may begin at once in this process, as far as the engine's state shows.
    fn may_begin_here(&self, placement: Option<&Placement>, has_id: bool) -> bool {
        let options = self.options();
        let is_timed = options.execution_timeout.is_some() || options.run_timeout.is_some();
        let is_plain = !has_id && !is_timed && options.dedup_id.is_none();
        options.due.is_none()
            && !self.definition.is_elsewhere()
            && placement.is_none_or(|placement| is_plain && self.engine.can_begin_in(&placement.queue))
    }

    fn build_start(
        &self,
        key: Key,
        id: Option<Arc<str>>,
        placement: Option<Arc<Placement>>,
        input: Payload,
        is_local: bool,
    ) -> Box<store::Start> {
        let (created_at, options) = (self.engine.now(), self.options());
        let (dedup_id, debounce_window) = match &options.debounce {
            Some(id) => (
                Some(debounce_key(&self.definition.name, id)),
                Some(options.max_delay.unwrap_or(MAX_STORED_DURATION).min(MAX_STORED_DURATION)),
            ),
            None => (options.dedup_id.clone(), None),
        };
        let (deadline_at, run_timeout) = options.time_limits(created_at, is_local);
        Box::new(store::Start {
            key,
            root: key,
            parent: None,
            fingerprint: id.is_some().then(|| self.fingerprint.unwrap_or_else(|| self.input.fingerprint())),
            item_count: None,
            is_guarded: id.is_some() || dedup_id.is_some(),
            workflow_id: id,
            workflow: self.definition.name.clone(),
            app_version: self.engine.info.app_version.clone().filter(|_| !options.is_unversioned),
            self_claims: is_local && placement.is_some(),
            placement,
            dedup_id,
            debounce_window,
            input,
            created_at,
            deadline_at,
            run_timeout,
            attributes: options.attributes.clone(),
            has_begun: false,
            state: options.initial_state(created_at, is_local),
        })
    }
}

fn text_or_empty(option: Option<&str>) -> String {
    option.unwrap_or_default().to_owned()
}

/// Creates the run of a new execution that begins in this process.
fn new_local_run(
    engine: &Arc<EngineInner>,
    definition: &Arc<Definition>,
    start: &store::Start,
    fate: Option<Fate>,
) -> Arc<Run> {
    let first = NewRun::for_first_run(
        start.key,
        start.root,
        start.created_at,
        engine.lane_of(start.root).generation(),
    );
    let (given_id, placement) = (start.workflow_id.clone(), start.placement.clone());
    let new = NewRun { deadline_at: start.deadline_at, given_id, placement, fate, ..first };
    Run::new(engine.clone(), definition.clone(), new)
}

/// Creates the run of a new execution. Its Start is staged only together with the first Write that depends on the
/// Start.
pub(crate) fn new_deferred_run(
    engine: &Arc<EngineInner>,
    definition: &Arc<Definition>,
    start: Box<store::Start>,
    reserved: u32,
) -> Arc<Run> {
    // another execution may have the id of this Start
    let fate = start.is_guarded.then(Fate::default);
    let run = new_local_run(engine, definition, &start, fate);
    run.set_unstaged_start(start, reserved);
    run
}

impl Submission<'_> {
    pub(crate) async fn start<O>(self) -> Result<Handle<O>, Error> {
        self.within_wait_timeout(self.start_untimed()).await
    }

    async fn start_untimed<O>(&self) -> Result<Handle<O>, Error> {
        match self.start_with_retries(self.prepare().await?).await? {
            Started::Local(caller_driven) => {
                let run = caller_driven.run().ok_or(Error::Shutdown)?;
                // the run continues in a task of its own
                drop(caller_driven);
                Ok(Handle::local(run, self.workflow_id()))
            }
            Started::Remote(handle) => Ok(handle),
        }
    }

    /// Starts the execution, and tries again as long as there is a [`RetryReason`].
    async fn start_with_retries<O>(&self, mut prepared: PreparedStart) -> Result<Started<O>, Error> {
        loop {
            // the wait begins before the attempt finds the queue full, so that no notification between them is missed
            let capacity = self.waits_if_full().then(|| self.engine.known_queues.wait_for_capacity());
            match self.try_start(prepared).await? {
                Ok(started) => return Ok(started),
                Err(RetryReason::DuplicateEnded) => {}
                Err(RetryReason::QueueFull) => {
                    self.is_waiting_for_capacity.store(true, Relaxed);
                    OptionFuture::from(capacity).await;
                    self.is_waiting_for_capacity.store(false, Relaxed);
                }
            }
            prepared = self.prepare().await?;
        }
    }

    pub(crate) fn options(&self) -> &StartOptions {
        self.options.as_deref().unwrap_or(StartOptions::DEFAULTS)
    }

    fn waits_if_full(&self) -> bool {
        self.options().on_full == OnFull::Wait
    }

    /// Runs `work` for at most the wait timeout.
    async fn within_wait_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some(timeout) = self.options().wait_timeout else {
            return work.await;
        };
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
            Err(if self.is_waiting_for_capacity.load(Relaxed) {
                self.queue_full_error()
            } else {
                Error::Unavailable(format!("the database did not reply within {timeout:?}"))
            })
        })
    }

    fn queue_full_error(&self) -> Error {
        Error::QueueFull { queue: text_or_empty(self.options().queue.as_deref()) }
    }

    pub(crate) fn workflow_id(&self) -> Option<Arc<str>> {
        self.options().workflow_id.clone()
    }

    /// Creates the run of an execution that begins in this process, and stages its Start.
    pub(crate) fn launch(&self, prepared: PreparedStart, input: Payload) -> Result<CallerDriven, Error> {
        let PreparedStart { start, reserved, id_lock, .. } = prepared;
        let run = new_local_run(&self.engine, &self.definition, &start, None);
        run.register();
        let Some(lsn) = run.stage_start(start, reserved) else {
            self.engine.runs.remove(&run);
            self.engine.release_slot();
            return Err(self.engine.dropped_write_error());
        };
        let task = Some(RunTask::await_start(run, lsn));
        Ok(CallerDriven { task, input, id_lock })
    }

    async fn try_start<O>(&self, prepared: PreparedStart) -> Result<Result<Started<O>, RetryReason>, Error> {
        let start = &prepared.start;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        if !prepared.is_local {
            let outcome = stage_queued(&self.engine, prepared).await?;
            return self.resolve(outcome, key, id, fingerprint);
        }
        let mut caller_driven = self.launch(prepared, self.input.clone())?;
        let outcome = match &mut caller_driven.task {
            Some(task) => poll_fn(|cx| task.poll_start(cx, &self.input)).await,
            None => Outcome::Dropped,
        };
        caller_driven.id_lock = None;
        if outcome == Outcome::Applied {
            return Ok(Ok(Started::Local(caller_driven)));
        }
        caller_driven.task = None;
        self.resolve(outcome, key, id, fingerprint)
    }

    /// Turns the outcome of a Start that began no run in this process into a handle, an error or a retry.
    fn resolve<O>(
        &self,
        outcome: Outcome,
        key: Key,
        id: Option<Arc<str>>,
        fingerprint: Option<u64>,
    ) -> Result<Result<Started<O>, RetryReason>, Error> {
        let handle = match outcome {
            Outcome::Deduplicated(None) if self.options().debounce.is_some() => Err(Error::Unavailable(
                "the reply to this debounced start was lost; the execution it merged into has already begun"
                    .into(),
            )),
            Outcome::Deduplicated(None) => return Ok(Err(RetryReason::DuplicateEnded)),
            Outcome::Full if self.waits_if_full() => return Ok(Err(RetryReason::QueueFull)),
            Outcome::Full => Err(self.queue_full_error()),
            Outcome::Deduplicated(Some(existing)) => self.resolve_duplicate(*existing),
            outcome => handle_for_outcome(&self.engine, outcome, &self.definition, key, id, fingerprint),
        };
        handle.map(|handle| Ok(Started::Remote(handle)))
    }

    /// Returns the handle or the error for a start whose dedup_id another execution has.
    fn resolve_duplicate<O>(&self, existing: ExistingExecution) -> Result<Handle<O>, Error> {
        let options = self.options();
        let is_same = *existing.workflow == *self.definition.name;
        if is_same && options.on_duplicate == OnDuplicate::ReturnExisting {
            let is_running = existing.status == Status::Running;
            return Ok(Handle::attach((*self.engine).clone(), existing.key, existing.given_id, |_| {
                is_running
            }));
        }
        Err(Error::Deduplicated {
            queue: text_or_empty(options.queue.as_deref()),
            dedup_id: text_or_empty(options.dedup_id.as_deref()),
            workflow_id: existing.workflow_id(),
        })
    }

    pub(crate) async fn run_to_end<O: FromPayload>(self) -> Result<O, Error> {
        self.within_wait_timeout(self.run_untimed()).await
    }

    async fn run_untimed<O: FromPayload>(&self) -> Result<O, Error> {
        let (engine, definition) = (&*self.engine, &*self.definition);
        let prepared = self.prepare().await?;
        if !prepared.is_local || prepared.start.self_claims {
            return match self.start_with_retries::<O>(prepared).await? {
                // the code may have to run in the caller's task: the caller drives the run to its end
                Started::Local(mut caller_driven) => {
                    let key = caller_driven.run().ok_or(Error::Shutdown)?.key;
                    let conclusion = poll_fn(|cx| caller_driven.poll_conclusion(cx)).await;
                    output_of_conclusion(engine.clone(), key, self.workflow_id(), None, conclusion).await
                }
                Started::Remote(handle) => handle.output().await,
            };
        }
        let PreparedStart { start, reserved, id_lock, .. } = prepared;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        let run = new_deferred_run(engine, definition, start, reserved);
        let task = Some(RunTask::begin_executing(run.clone(), &self.input));
        let mut caller_driven = CallerDriven { task, input: Payload::empty(), id_lock };
        let mut durable_start = None;
        let conclusion = poll_fn(|cx| {
            let polled = caller_driven.poll_conclusion(cx);
            // other starts of the id may continue once the Start is durable, although the code still runs
            if caller_driven.id_lock.is_some()
                && let Some(lsn) = run.start_lsn()
                && durable_start
                    .get_or_insert_with(|| DurableFuture::new(run.clone(), lsn))
                    .poll_unpin(cx)
                    .is_ready()
            {
                caller_driven.id_lock = None;
            }
            polled
        })
        .await;
        // after a fence the run is gone, but its Start is staged again: the id stays locked until this Start is durable
        let id_lock = caller_driven.id_lock.take();
        drop(caller_driven);
        if let Conclusion::Ended(status, outcome) = conclusion {
            return decode_outcome(engine, key, status, outcome).await;
        }
        engine.check_open()?;
        wait_for_start(engine, key, run.start_lsn()).await.or_else(|error| match error {
            // another execution has the id
            Error::NotFound { .. } => Ok(()),
            error => Err(error),
        })?;
        drop(id_lock);
        // the run was suspended or requeued, or its Start was a duplicate: the database shows which execution has the
        // id
        let existing = match &id {
            None => None,
            Some(id) => engine.load(ExecutionId::Given(id.clone()), Detail::Outcome).await?,
        };
        let Some(execution) = existing.map(|record| record.execution) else {
            return Handle::<O>::attach(engine.clone(), key, id, |_| true).output().await;
        };
        let (existing_key, run_no) = (execution.key, execution.run_no);
        let existing = ExistingExecution::from(&execution);
        definition.check_same_start(&existing, id.as_deref(), fingerprint)?;
        Handle::<O>::attach(engine.clone(), existing_key, id, |run| run.run_no == run_no).output().await
    }
}

/// Returns the output of an execution after its run in this process has concluded. `start_lsn` is the position of its
/// Start, unless the Start is known to be durable.
pub(crate) async fn output_of_conclusion<O: FromPayload>(
    engine: Arc<EngineInner>,
    key: Key,
    id: Option<Arc<str>>,
    start_lsn: Option<Lsn>,
    conclusion: Conclusion,
) -> Result<O, Error> {
    if let Conclusion::Ended(status, outcome) = conclusion {
        return decode_outcome(&engine, key, status, outcome).await;
    }
    engine.check_open()?;
    wait_for_start(&engine, key, start_lsn).await?;
    Handle::<O>::attach(engine, key, id, |_| true).output().await
}

/// Waits until the Start of a run that has left this process is durable.
async fn wait_for_start(engine: &Arc<EngineInner>, key: Key, lsn: Option<Lsn>) -> Result<(), Error> {
    let Some(lsn) = lsn else { return Ok(()) };
    match engine.lane_of(key).wait_durable(lsn).await {
        // the Start was staged again after a fence, and found the row that it had created before
        Outcome::Duplicate(existing) if existing.key == key => Ok(()),
        Outcome::Duplicate(_) => Err(Error::NotFound { workflow_id: key.to_string() }),
        outcome @ (Outcome::Rejected(_) | Outcome::Dropped | Outcome::Fenced) => {
            Err(engine.unapplied_error("start", outcome))
        }
        _ => Ok(()),
    }
}

/// Stages the Start of an execution that does not begin in this process, and waits for the outcome.
async fn stage_queued(engine: &Arc<EngineInner>, prepared: PreparedStart) -> Result<Outcome, Error> {
    let PreparedStart { start, reserved, id_lock, .. } = prepared;
    let key = start.key;
    let lane = engine.lane_of(key);
    let generation = lane.generation();
    let staged = Staged { generation, tree: key, write: Write::Start(start), reserved, fate: None };
    let Some(lsn) = lane.stage(staged, &mut FoldTarget::default()) else {
        return Err(engine.dropped_write_error());
    };
    let id_lock_guard = IdLockUntilSettled { lock: id_lock, lane: lane.clone(), lsn };
    Ok(id_lock_guard.lane.wait_durable(lsn).await)
}

/// Returns the handle or the error for a Start with this outcome that began no run in this process.
pub(crate) fn handle_for_outcome<O>(
    engine: &Arc<EngineInner>,
    outcome: Outcome,
    definition: &Definition,
    key: Key,
    id: Option<Arc<str>>,
    fingerprint: Option<u64>,
) -> Result<Handle<O>, Error> {
    match outcome {
        Outcome::Applied | Outcome::Queued => Ok(Handle::attach(engine.clone(), key, id, |_| true)),
        Outcome::Duplicate(existing) => {
            definition.check_same_start(&existing, id.as_deref(), fingerprint)?;
            let is_running = existing.status == Status::Running;
            Ok(Handle::attach(engine.clone(), existing.key, id, |_| is_running))
        }
        outcome => Err(engine.unapplied_error("start", outcome)),
    }
}
