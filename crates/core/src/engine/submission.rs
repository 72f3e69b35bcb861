//! [`Submission`]: a start on its way: checked, prepared, staged, and resolved by its outcome.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use futures_util::future::OptionFuture;

use crate::clock::MAX_STORED_DURATION;
use crate::commit::{DurableFuture, Fate, Lsn, FoldTarget, Staged};
use crate::engine::handle::{Handle, decode};
use crate::error::Error;
use crate::key::Key;
use crate::payload::{FromPayload, INLINE_LIMIT, Payload};
use crate::queue::debounce::debounce_key;
use crate::queue::{OnDuplicate, OnFull, Placement};
use crate::runtime::definition::Definition;
use crate::runtime::id_locks::{IdLock, IdLockUntilSettled};
use crate::runtime::inner::Core;
use crate::runtime::run::chunks::Place;
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{Conclusion, NewRun, Run};
use crate::runtime::start_options::StartOptions;
use crate::store::{self, Detail, Execution, ExecutionId, ExistingExecution, Outcome, Status, Write};
use crate::text::{MAX_ID_BYTES, check_name, check_text};

/// An `Arc`, borrowed or owned.
pub(crate) enum Held<'e, T> {
    Lent(&'e Arc<T>),
    Own(Arc<T>),
}

impl<T> Deref for Held<'_, T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        match self {
            Held::Lent(lent) => lent,
            Held::Own(own) => own,
        }
    }
}

/// An execution to be started.
pub(crate) struct Order<'e> {
    pub(crate) core: Held<'e, Core>,
    pub(crate) definition: Held<'e, Definition>,
    pub(crate) input: Payload,
    /// The fingerprint of the input; `None` for that of its payload.
    pub(crate) fingerprint: Option<u64>,
    /// `None` for the defaults.
    pub(crate) options: Option<Box<StartOptions>>,
    /// Whether the start waits for capacity in its queue, which is full.
    waits_for_room: AtomicBool,
}

/// A run that its caller drives. If the caller drops it before its conclusion, it continues in a task of its own.
pub(crate) struct Attended {
    pub(crate) task: Option<RunTask>,
    pub(crate) input: Payload,
    pub(crate) id_lock: Option<IdLock>,
}

impl Attended {
    /// Polls the run to its conclusion, in the caller's own task.
    pub(crate) fn poll_conclusion(&mut self, cx: &mut TaskContext<'_>) -> Poll<Conclusion> {
        let Some(task) = &mut self.task else { return Poll::Ready(Conclusion::Gone) };
        let conclusion = std::task::ready!(task.poll_conclusion(cx, &self.input));
        self.task = None;
        Poll::Ready(conclusion)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach(std::mem::take(&mut self.input), self.id_lock.take());
        }
    }
}

/// A start that has been checked and encoded.
pub(crate) struct Prepared {
    pub(crate) start: Box<store::Start>,
    pub(crate) room: u32,
    id_lock: Option<IdLock>,
    /// Whether a slot in this process is reserved for it.
    is_local: bool,
}

/// A start that has succeeded.
enum Started<O> {
    /// The execution runs in this process, driven by the holder of this value.
    Here(Attended, Arc<Run>),
    /// The execution existed before, or another task or worker runs it.
    Elsewhere(Handle<O>),
}

/// Why a start has to be tried again.
enum Obstacle {
    /// The execution with the same dedup_id has ended in the meantime.
    Gone,
    /// The queue is full: to be tried when it may have capacity.
    Full,
}

/// Why a start cannot take the fast path.
pub(crate) enum TryNow {
    Later,
    Never(Error),
}

impl<'e> Order<'e> {
    pub(crate) fn new(
        core: Held<'e, Core>,
        definition: Held<'e, Definition>,
        input: Payload,
        options: Option<Box<StartOptions>>,
    ) -> Self {
        Self { core, definition, input, fingerprint: None, options, waits_for_room: AtomicBool::new(false) }
    }
}

impl Order<'_> {
    fn check(&self) -> Result<(), Error> {
        let Self { core, definition, input, .. } = self;
        core.check_open()?;
        if core.info.is_client {
            check_name("workflow name", &definition.name)?;
        } else if core.definitions.get(&definition.name).is_none() {
            return Err(core.definitions.unknown_error(&definition.name));
        }
        let limit = core.options.value_limit;
        if input.len() > limit {
            let what = format!("the input of workflow {:?}", &*definition.name);
            return Err(Error::TooLarge { what, size: input.len(), limit });
        }
        Ok(())
    }

    /// Prepares a start without options, if that is possible without waiting.
    pub(crate) fn try_now(&self) -> Result<Prepared, TryNow> {
        self.check().map_err(TryNow::Never)?;
        let bytes = self.input.len() + 256;
        if self.options.is_some() || self.input.len() > INLINE_LIMIT || !self.core.take_slot() {
            return Err(TryNow::Later);
        }
        let key = Key::mint(self.core.shard);
        let room = self.core.lane_of(key).try_reserve(bytes);
        if room == 0 {
            self.core.release_slot();
            return Err(TryNow::Later);
        }
        let start = self.start_of(key, None, None, self.input.clone(), true);
        Ok(Prepared { start, room, id_lock: None, is_local: true })
    }

    /// Prepares any start, and waits for whatever it needs.
    async fn prepare(&self) -> Result<Prepared, Error> {
        self.check()?;
        let (core, options) = (&*self.core, self.told());
        let ticket = options.ticket()?;
        options.check_debounce(&self.definition.name, &self.input)?;
        options.attributes.check()?;
        if let Some(ticket) = &ticket {
            core.await_queue(&ticket.queue).await?;
        }
        let key = Key::mint(core.shard);
        let mut id_lock = None;
        let id = self.id();
        if let Some(id) = &id {
            check_text("workflow_id", id, MAX_ID_BYTES)?;
            id_lock = Some(core.id_locks.lock(id).await);
        }
        let lane = core.lane_of(key);
        let generation = lane.generation();
        let place = Place { lane, generation, execution: key, tree: key, is_free: true, fate: None };
        let (input, room) = crate::runtime::run::chunks::store(place, self.input.clone()).await;
        let is_local = self.may_begin(ticket.as_deref(), id.is_some()) && core.take_slot();
        if !is_local {
            core.note_queued();
        }
        Ok(Prepared { start: self.start_of(key, id, ticket, input, is_local), room, id_lock, is_local })
    }

    /// Whether the execution may begin here at once, as far as this process knows.
    fn may_begin(&self, ticket: Option<&Placement>, has_id: bool) -> bool {
        let options = self.told();
        let is_timed = options.timeout.is_some() || options.run_timeout.is_some();
        let is_plain = !has_id && !is_timed && options.dedup_id.is_none();
        options.due.is_none() && ticket.is_none_or(|ticket| is_plain && self.core.can_begin_in(&ticket.queue))
    }

    fn start_of(
        &self,
        key: Key,
        id: Option<Arc<str>>,
        ticket: Option<Arc<Placement>>,
        input: Payload,
        is_local: bool,
    ) -> Box<store::Start> {
        let (created_at, options) = (self.core.now(), self.told());
        let (dedup_id, merge_within) = match &options.debounce {
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
            is_guarded: id.is_some() || dedup_id.is_some(),
            workflow_id: id,
            workflow: self.definition.name.clone(),
            app_version: self.core.info.app_version.clone(),
            self_claims: is_local && ticket.is_some(),
            placement: ticket,
            dedup_id,
            debounce_window: merge_within,
            input,
            created_at,
            deadline_at,
            run_timeout,
            attributes: options.attributes.clone(),
            has_begun: false,
            state: options.state(created_at, is_local),
        })
    }
}

fn text(option: Option<&str>) -> String {
    option.unwrap_or_default().to_owned()
}

/// Creates the run of a Start that begins here and is staged on its own.
pub(crate) fn local_run(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    start: &store::Start,
    fate: Option<Fate>,
) -> Arc<Run> {
    let first = NewRun::first(start.key, start.root, start.created_at, core.lane_of(start.root).generation());
    let (given_id, ticket) = (start.workflow_id.clone(), start.placement.clone());
    let new = NewRun { deadline_at: start.deadline_at, given_id, ticket, fate, ..first };
    Run::new(core.clone(), definition.clone(), new)
}

/// Creates the run of a Start that is staged together with the first Write that depends on it.
pub(crate) fn local_run_of(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    start: Box<store::Start>,
    room: u32,
) -> Arc<Run> {
    // another execution may have its id
    let fate = start.is_guarded.then(Fate::default);
    let run = local_run(core, definition, &start, fate);
    run.keep_start(start, room);
    run
}

impl Order<'_> {
    pub(crate) async fn start<O>(self) -> Result<Handle<O>, Error> {
        self.patiently(self.start_in_time()).await
    }

    async fn start_in_time<O>(&self) -> Result<Handle<O>, Error> {
        match self.started(self.prepare().await?).await? {
            Started::Here(attended, run) => {
                // the run continues in a task of its own
                drop(attended);
                Ok(Handle::running(run, self.id()))
            }
            Started::Elsewhere(handle) => Ok(handle),
        }
    }

    /// Starts the execution, with as many retries as it needs.
    async fn started<O>(&self, mut prepared: Prepared) -> Result<Started<O>, Error> {
        loop {
            // registered before the queue is found full, so that no notification in the meantime is missed
            let room = self.waits_if_full().then(|| self.core.queues.room());
            match self.start_prepared(prepared).await? {
                Ok(started) => return Ok(started),
                Err(Obstacle::Gone) => {}
                Err(Obstacle::Full) => {
                    self.waits_for_room.store(true, Relaxed);
                    OptionFuture::from(room).await;
                    self.waits_for_room.store(false, Relaxed);
                }
            }
            prepared = self.prepare().await?;
        }
    }

    fn told(&self) -> &StartOptions {
        self.options.as_deref().unwrap_or(StartOptions::PLAIN)
    }

    fn waits_if_full(&self) -> bool {
        self.told().on_full == OnFull::Wait
    }

    /// Runs `work` for at most the wait timeout.
    async fn patiently<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some(patience) = self.told().patience else {
            return work.await;
        };
        tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
            Err(if self.waits_for_room.load(Relaxed) {
                self.full()
            } else {
                Error::Unavailable(format!("the database did not answer within {patience:?}"))
            })
        })
    }

    fn full(&self) -> Error {
        Error::QueueFull { queue: text(self.told().queue.as_deref()) }
    }

    fn id(&self) -> Option<Arc<str>> {
        self.told().workflow_id.clone()
    }

    async fn start_prepared<O>(&self, prepared: Prepared) -> Result<Result<Started<O>, Obstacle>, Error> {
        let (core, definition) = (&*self.core, &*self.definition);
        let Prepared { start, room, id_lock, is_local } = prepared;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        if !is_local {
            let outcome = queue(core, start, room, id_lock).await?;
            return self.came_to(outcome, key, id, fingerprint);
        }
        let run = local_run(core, definition, &start, None);
        run.register();
        let Some(lsn) = run.stage_start(start, room) else {
            core.runs.remove(&run);
            core.release_slot();
            return Err(core.why_dropped());
        };
        let task = Some(RunTask::starting(run.clone(), lsn));
        let mut attended = Attended { task, input: self.input.clone(), id_lock };
        let outcome = poll_fn(|cx| match &mut attended.task {
            Some(task) => task.poll_started(cx, &self.input),
            None => Poll::Ready(Outcome::Dropped),
        })
        .await;
        attended.id_lock = None;
        if outcome != Outcome::Applied {
            attended.task = None;
            return self.came_to(outcome, key, id, fingerprint);
        }
        Ok(Ok(Started::Here(attended, run)))
    }

    /// Turns the outcome of a start that does not run here into a handle, an error or a retry.
    fn came_to<O>(
        &self,
        outcome: Outcome,
        key: Key,
        id: Option<Arc<str>>,
        fingerprint: Option<u64>,
    ) -> Result<Result<Started<O>, Obstacle>, Error> {
        let handle = match outcome {
            Outcome::Deduplicated(None) if self.told().debounce.is_some() => Err(Error::Unavailable(
                "the reply to this debounced start was lost; the execution it merged into has already begun".into(),
            )),
            Outcome::Deduplicated(None) => return Ok(Err(Obstacle::Gone)),
            Outcome::Full if self.waits_if_full() => return Ok(Err(Obstacle::Full)),
            Outcome::Full => Err(self.full()),
            Outcome::Deduplicated(Some(existing)) => self.deduplicated(*existing),
            outcome => settled(&self.core, outcome, &self.definition, key, id, fingerprint),
        };
        handle.map(|handle| Ok(Started::Elsewhere(handle)))
    }

    /// Returns what a start gets whose dedup_id another execution has.
    fn deduplicated<O>(&self, existing: ExistingExecution) -> Result<Handle<O>, Error> {
        let options = self.told();
        let is_same = *existing.workflow == *self.definition.name;
        if is_same && options.on_duplicate == OnDuplicate::ReturnExisting {
            let is_running = existing.status == Status::Running;
            return Ok(Handle::of((*self.core).clone(), existing.key, existing.given_id, |_| is_running));
        }
        Err(Error::Deduplicated {
            queue: text(options.queue.as_deref()),
            dedup_id: text(options.dedup_id.as_deref()),
            workflow_id: existing.workflow_id(),
        })
    }

    pub(crate) async fn run_to_end<O: FromPayload>(self) -> Result<O, Error> {
        self.patiently(self.run_to_end_in_time()).await
    }

    async fn run_to_end_in_time<O: FromPayload>(&self) -> Result<O, Error> {
        let (core, definition) = (&*self.core, &*self.definition);
        let prepared = self.prepare().await?;
        if !prepared.is_local || prepared.start.self_claims {
            return match self.started::<O>(prepared).await? {
                // the code may have to run in the caller's task: the caller drives the run to its end
                Started::Here(mut attended, run) => match poll_fn(|cx| attended.poll_conclusion(cx)).await {
                    Conclusion::Ended(status, outcome) => decode(core, run.key, status, outcome).await,
                    Conclusion::Gone => {
                        core.check_open()?;
                        Handle::<O>::of(core.clone(), run.key, self.id(), |_| true).output().await
                    }
                },
                Started::Elsewhere(handle) => handle.output().await,
            };
        }
        let Prepared { start, room, id_lock, .. } = prepared;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        let run = local_run_of(core, definition, start, room);
        let task = Some(RunTask::executing(run.clone(), &self.input));
        let mut attended = Attended { task, input: Payload::empty(), id_lock };
        let mut landing = None;
        let conclusion = poll_fn(|cx| {
            let polled = attended.poll_conclusion(cx);
            // callers that wait for the id are served once the Start is durable, whatever the code waits for
            if attended.id_lock.is_some()
                && let Some(lsn) = run.start_lsn()
                && landing.get_or_insert_with(|| DurableFuture::new(run.clone(), lsn)).poll_unpin(cx).is_ready()
            {
                attended.id_lock = None;
            }
            polled
        })
        .await;
        // after a fence the run is gone, but its Start is staged again: the id must stay locked until then
        let id_lock = attended.id_lock.take();
        drop(attended);
        if let Conclusion::Ended(status, outcome) = conclusion {
            return decode(core, key, status, outcome).await;
        }
        core.check_open()?;
        started(core, key, run.start_lsn()).await.or_else(|error| match error {
            // another execution has the id
            Error::NotFound { .. } => Ok(()),
            error => Err(error),
        })?;
        drop(id_lock);
        // suspended, requeued, or a duplicate: the database knows which execution has the id
        let existing = match &id {
            None => None,
            Some(id) => core.load(ExecutionId::Given(id.clone()), Detail::Outcome).await?,
        };
        let Some(Execution {
            key: existing_key, workflow, fingerprint: print, parent, status, run_no, ..
        }) = existing.map(|record| record.execution)
        else {
            return Handle::<O>::of(core.clone(), key, id, |_| true).output().await;
        };
        let existing = ExistingExecution {
            key: existing_key,
            given_id: id.clone(),
            workflow,
            fingerprint: print,
            parent: parent.map(|parent| parent.key),
            status,
        };
        check_same(&existing, definition, id.as_deref(), fingerprint)?;
        Handle::<O>::of(core.clone(), existing_key, id, |run| run.run_no == run_no).output().await
    }
}

/// Waits until the Start of a run that has left this process is durable.
pub(crate) async fn started(core: &Arc<Core>, key: Key, lsn: Option<Lsn>) -> Result<(), Error> {
    let Some(lsn) = lsn else { return Ok(()) };
    match core.lane_of(key).wait_durable(lsn).await {
        // staged again after a fence, and found as a duplicate of itself
        Outcome::Duplicate(existing) if existing.key == key => Ok(()),
        Outcome::Duplicate(_) => Err(Error::NotFound { workflow_id: key.to_string() }),
        Outcome::Rejected(reason) => Err(Error::Invalid { what: "start", reason: reason.to_string() }),
        Outcome::Dropped | Outcome::Fenced => Err(core.why_dropped()),
        _ => Ok(()),
    }
}

/// Stages a Start that does not run here, and waits for its outcome.
async fn queue(
    core: &Arc<Core>,
    start: Box<store::Start>,
    room: u32,
    id_lock: Option<IdLock>,
) -> Result<Outcome, Error> {
    let key = start.key;
    let lane = core.lane_of(key);
    let generation = lane.generation();
    let staged = Staged { generation, tree: key, write: Write::Start(start), reserved: room, fate: None };
    let Some(lsn) = lane.stage(staged, &mut FoldTarget::default()) else { return Err(core.why_dropped()) };
    let held = IdLockUntilSettled { lock: id_lock, lane: lane.clone(), lsn };
    Ok(held.lane.wait_durable(lsn).await)
}

/// Returns the handle to which a Start leads that does not run here or was a duplicate.
pub(crate) fn settled<O>(
    core: &Arc<Core>,
    outcome: Outcome,
    definition: &Definition,
    key: Key,
    id: Option<Arc<str>>,
    fingerprint: Option<u64>,
) -> Result<Handle<O>, Error> {
    match outcome {
        Outcome::Applied | Outcome::Queued => Ok(Handle::of(core.clone(), key, id, |_| true)),
        Outcome::Duplicate(existing) => {
            check_same(&existing, definition, id.as_deref(), fingerprint)?;
            let is_running = existing.status == Status::Running;
            Ok(Handle::of(core.clone(), existing.key, id, |_| is_running))
        }
        Outcome::Rejected(reason) => Err(Error::Invalid { what: "start", reason: reason.to_string() }),
        _ => Err(core.why_dropped()),
    }
}

fn check_same(
    existing: &ExistingExecution,
    definition: &Definition,
    id: Option<&str>,
    fingerprint: Option<u64>,
) -> Result<(), Error> {
    let reason = if *existing.workflow != *definition.name {
        format!(
            "it belongs to an execution of workflow {:?}, not {:?}",
            &*existing.workflow, &*definition.name
        )
    } else if existing.fingerprint.is_some() && existing.fingerprint != fingerprint {
        format!("it belongs to an execution of {:?} with another input", &*definition.name)
    } else {
        return Ok(());
    };
    Err(Error::Conflict { workflow_id: id.unwrap_or_default().to_owned(), reason })
}
