//! Starting executions: [`Engine::start`] and [`Engine::run`].

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::commit::{Fate, Lane, Lsn, Slot, Staged};
use crate::engine::{Core, Engine};
use crate::error::Error;
use crate::handle::{Handle, decode, decode_here};
use crate::key::Key;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::record::{Detail, Execution, ExecutionId};
use crate::run::{Conclusion, NewRun, Run};
use crate::task::RunTask;
use crate::value::Place;
use crate::workflow::{Definition, Workflow, check_text};
use crate::write::{self, Existing, Outcome, State, Write};

/// Longest workflow_id, in bytes.
const WORKFLOW_ID_LIMIT: usize = 1024;

/// What is told about an execution when it is started.
#[derive(Default)]
struct StartOptions {
    workflow_id: Option<Arc<str>>,
    timeout: Option<Duration>,
    patience: Option<Duration>,
}

/// An execution about to be started; `.await` it for its [`Handle`].
#[must_use = "nothing is started until this is awaited"]
pub struct Start<'e, I, O> {
    engine: &'e Engine,
    workflow: &'e Workflow<I, O>,
    input: I,
    options: Option<Box<StartOptions>>,
}

/// An execution about to be run; `.await` it for its output.
#[must_use = "nothing runs until this is awaited"]
pub struct RunToEnd<'e, I, O>(Start<'e, I, O>);

impl Engine {
    /// Starts an execution. When this returns, it is durable that it will run to its end.
    pub fn start<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> Start<'e, I, O> {
        Start { engine: self, workflow, input, options: None }
    }

    /// Starts an execution and waits for its output: one flush, where nothing else has to be durable before.
    pub fn run<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> RunToEnd<'e, I, O> {
        RunToEnd(self.start(workflow, input))
    }
}

impl<I, O> Start<'_, I, O> {
    fn options(&mut self) -> &mut StartOptions {
        self.options.get_or_insert_default()
    }

    /// The execution's id, and the idempotency key of starting it: a second start with the same id,
    /// workflow and input gets a handle to the first; with others [`Error::Conflict`].
    pub fn workflow_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.options().workflow_id = Some(id.into());
        self
    }

    /// Cancels the execution if it has not ended after this time.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.options().timeout = Some(timeout);
        self
    }

    /// Waits at most this long for the database, then fails with [`Error::Unavailable`]: the start stays
    /// staged and may happen; repeating it with the same workflow_id is safe.
    pub fn wait_at_most(mut self, patience: Duration) -> Self {
        self.options().patience = Some(patience);
        self
    }
}

impl<I, O> RunToEnd<'_, I, O> {
    /// See [`Start::workflow_id`].
    pub fn workflow_id(self, id: impl Into<Arc<str>>) -> Self {
        Self(self.0.workflow_id(id))
    }

    /// See [`Start::execution_timeout`].
    pub fn execution_timeout(self, timeout: Duration) -> Self {
        Self(self.0.execution_timeout(timeout))
    }

    /// Waits at most this long for the output, then fails with [`Error::Unavailable`]; the execution goes on.
    pub fn wait_at_most(self, patience: Duration) -> Self {
        Self(self.0.wait_at_most(patience))
    }
}

impl<'e, I, O> IntoFuture for Start<'e, I, O>
where
    I: Serialize,
    O: Send + 'e,
{
    type Output = Result<Handle<O>, Error>;
    type IntoFuture = Starting<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { engine, workflow, input, options } = self;
        let (core, definition) = (&engine.core, &workflow.definition);
        match Payload::encode(&input) {
            Ok(input) => Starting(StartState::New(Order { core, definition, input, options })),
            Err(error) => Starting(StartState::Failed(error)),
        }
    }
}

impl<'e, I, O> IntoFuture for RunToEnd<'e, I, O>
where
    I: Serialize,
    O: DeserializeOwned + Send + 'e,
{
    type Output = Result<O, Error>;
    type IntoFuture = Running<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { engine, workflow, input, options } = self.0;
        let (core, definition) = (&engine.core, &workflow.definition);
        match Payload::encode(&input) {
            Ok(input) => Running(RunState::New(Order { core, definition, input, options })),
            Err(error) => Running(RunState::Failed(error)),
        }
    }
}

/// What is to be started.
struct Order<'e> {
    core: &'e Arc<Core>,
    definition: &'e Arc<Definition>,
    input: Payload,
    /// `None` for the defaults.
    options: Option<Box<StartOptions>>,
}

type Boxed<'e, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'e>>;

/// The future of [`Engine::start`]. What is common is polled in place; the rest is boxed.
pub struct Starting<'e, O>(StartState<'e, O>);

enum StartState<'e, O> {
    New(Order<'e>),
    Failed(Error),
    Staged(Attended),
    Other(Boxed<'e, Handle<O>>),
    Done,
}

impl<'e, O: Send + 'e> Future for Starting<'e, O> {
    type Output = Result<Handle<O>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            match std::mem::replace(&mut self.0, StartState::Done) {
                StartState::New(order) => match order.try_now() {
                    Ok(Prepared { start, room, .. }) => {
                        let run = local_run(order.core, order.definition, &start, None);
                        run.register();
                        let Some(lsn) = run.stage_start(start, room) else {
                            order.core.runs.remove(&run);
                            order.core.slot_freed();
                            return Poll::Ready(Err(order.core.why_dropped()));
                        };
                        let task = Some(RunTask::starting(run, lsn));
                        self.0 = StartState::Staged(Attended { task, input: order.input, claim: None });
                    }
                    Err(TryNow::Later) => self.0 = StartState::Other(Box::pin(order.start())),
                    Err(TryNow::Never(error)) => return Poll::Ready(Err(error)),
                },
                StartState::Staged(mut attended) => {
                    let Attended { task: Some(task), input, .. } = &mut attended else {
                        return Poll::Ready(Err(Error::Shutdown));
                    };
                    let Poll::Ready(outcome) = task.poll_started(cx, input) else {
                        self.0 = StartState::Staged(attended);
                        return Poll::Pending;
                    };
                    let run = task.run().clone();
                    if outcome != Outcome::Applied {
                        attended.task = None;
                        let name = &run.definition;
                        return Poll::Ready(settled(&run.core, outcome, name, run.key, None, None));
                    }
                    // its first turn comes here: many are over before they would have got a task
                    if task.poll_conclusion(cx, input).is_ready() {
                        attended.task = None;
                    }
                    drop(attended);
                    return Poll::Ready(Ok(Handle::running(run, None)));
                }
                StartState::Other(mut other) => {
                    let polled = other.as_mut().poll(cx);
                    if polled.is_pending() {
                        self.0 = StartState::Other(other);
                    }
                    return polled;
                }
                StartState::Failed(error) => return Poll::Ready(Err(error)),
                StartState::Done => return Poll::Ready(Err(Error::Shutdown)),
            }
        }
    }
}

/// The future of [`Engine::run`]. What is common is polled in place; the rest is boxed.
pub struct Running<'e, O>(RunState<'e, O>);

enum RunState<'e, O> {
    New(Order<'e>),
    Failed(Error),
    Attended(&'e Arc<Core>, Key, Attended),
    Other(Boxed<'e, O>),
    Done,
}

impl<'e, O: DeserializeOwned + Send + 'e> Future for Running<'e, O> {
    type Output = Result<O, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                RunState::Attended(core, key, attended) => {
                    let (core, key) = (*core, *key);
                    let run = attended.task.as_ref().map(|task| task.run().clone());
                    let conclusion = std::task::ready!(attended.poll_conclusion(cx));
                    let start_lsn = run.and_then(|run| run.start_lsn());
                    self.0 = match conclusion {
                        Conclusion::Ended(status, outcome) if outcome.chunks().is_none() => {
                            return Poll::Ready(decode_here(status, &outcome));
                        }
                        Conclusion::Ended(status, outcome) => {
                            RunState::Other(Box::pin(decode(core, key, status, outcome)))
                        }
                        Conclusion::Gone => RunState::Other(Box::pin(async move {
                            core.check_open()?;
                            started(core, key, start_lsn).await?;
                            Handle::of(core.clone(), key, None).result().await
                        })),
                    };
                }
                RunState::Other(other) => return other.as_mut().poll(cx),
                RunState::New(_) | RunState::Failed(_) | RunState::Done => {
                    match std::mem::replace(&mut self.0, RunState::Done) {
                        RunState::New(order) => match order.try_now() {
                            Ok(Prepared { start, room, .. }) => {
                                let key = start.key;
                                let run = local_run_of(order.core, order.definition, start, room);
                                let task = Some(RunTask::executing(run, &order.input));
                                let attended = Attended { task, input: Payload::empty(), claim: None };
                                self.0 = RunState::Attended(order.core, key, attended);
                            }
                            Err(TryNow::Later) => self.0 = RunState::Other(Box::pin(order.run_to_end())),
                            Err(TryNow::Never(error)) => return Poll::Ready(Err(error)),
                        },
                        RunState::Failed(error) => return Poll::Ready(Err(error)),
                        _ => return Poll::Ready(Err(Error::Shutdown)),
                    }
                }
            }
        }
    }
}

async fn patiently<T>(
    patience: Option<Duration>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match patience {
        None => work.await,
        Some(patience) => tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
            Err(Error::Unavailable(format!("the database did not answer within {patience:?}")))
        }),
    }
}

/// A start in this process of an id given by a caller, whose outcome is not known yet.
pub(crate) type StartUnderWay = watch::Receiver<()>;

/// The right to start an id given by a caller: one at a time in a process.
struct IdClaim {
    core: Arc<Core>,
    id: Arc<str>,
    _settled: watch::Sender<()>,
}

impl IdClaim {
    async fn take(core: &Arc<Core>, id: &Arc<str>) -> Self {
        loop {
            let mut other = {
                let mut starting = core.starting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match starting.get(id) {
                    Some(other) => other.clone(),
                    None => {
                        let (settled, receiver) = watch::channel(());
                        starting.insert(id.clone(), receiver);
                        return Self { core: core.clone(), id: id.clone(), _settled: settled };
                    }
                }
            };
            // resolves, with an error, when the other claim is dropped
            let _ = other.changed().await;
        }
    }
}

impl Drop for IdClaim {
    fn drop(&mut self) {
        self.core.starting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.id);
    }
}

/// A run whose caller may go away: dropped before its conclusion, it goes on in a task of its own.
struct Attended {
    task: Option<RunTask>,
    input: Payload,
    claim: Option<IdClaim>,
}

impl Attended {
    /// The conclusion, polled in the caller's own task.
    fn poll_conclusion(&mut self, cx: &mut TaskContext<'_>) -> Poll<Conclusion> {
        let Some(task) = &mut self.task else { return Poll::Ready(Conclusion::Gone) };
        let conclusion = std::task::ready!(task.poll_conclusion(cx, &self.input));
        self.task = None;
        Poll::Ready(conclusion)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach(std::mem::take(&mut self.input), self.claim.take());
        }
    }
}

/// A start that has been checked and encoded.
struct Prepared {
    start: Box<write::Start>,
    room: u32,
    claim: Option<IdClaim>,
    /// True if there is a place for it to run here.
    is_local: bool,
}

/// Why something cannot be prepared at once.
enum TryNow {
    Later,
    Never(Error),
}

impl Order<'_> {
    fn check(&self) -> Result<(), Error> {
        let Self { core, definition, input, .. } = self;
        core.check_open()?;
        if core.definitions.get(&definition.name).is_none() {
            return Err(unknown_workflow(core, &definition.name));
        }
        let limit = core.options.value_limit;
        if input.len() > limit {
            let what = format!("the input of workflow {:?}", &*definition.name);
            return Err(Error::TooLarge { what, size: input.len(), limit });
        }
        Ok(())
    }

    /// Prepares a start with nothing special about it.
    fn try_now(&self) -> Result<Prepared, TryNow> {
        self.check().map_err(TryNow::Never)?;
        let bytes = self.input.len() + 256;
        if self.options.is_some() || self.input.len() > INLINE_LIMIT || !self.core.take_slot() {
            return Err(TryNow::Later);
        }
        let key = Key::mint();
        let room = self.core.lane_of(key).room_now(bytes);
        if room == 0 {
            self.core.slot_freed();
            return Err(TryNow::Later);
        }
        let start = self.start_of(key, None, self.input.clone(), true);
        Ok(Prepared { start, room, claim: None, is_local: true })
    }

    /// Prepares any start, waiting for what it needs.
    async fn prepare(&self) -> Result<Prepared, Error> {
        self.check()?;
        let core = self.core;
        let key = Key::mint();
        let mut claim = None;
        let id = self.options.as_ref().and_then(|options| options.workflow_id.clone());
        if let Some(id) = &id {
            check_text("workflow_id", id, WORKFLOW_ID_LIMIT)?;
            claim = Some(IdClaim::take(core, id).await);
        }
        let lane = core.lane_of(key);
        let generation = lane.generation();
        let place = Place { lane: &lane, generation, execution: key, tree: key, is_free: true, fate: None };
        let (input, room) = crate::value::store(place, self.input.clone()).await;
        let is_local = core.take_slot();
        Ok(Prepared { start: self.start_of(key, id, input, is_local), room, claim, is_local })
    }

    fn start_of(&self, key: Key, id: Option<Arc<str>>, input: Payload, is_local: bool) -> Box<write::Start> {
        let created_at = self.core.now();
        let armed = Vec::new();
        let timeout = self.options.as_ref().and_then(|options| options.timeout);
        Box::new(write::Start {
            key,
            root: key,
            parent: None,
            fingerprint: id.is_some().then(|| self.input.fingerprint()),
            is_guarded: id.is_some(),
            workflow_id: id,
            workflow: self.definition.name.clone(),
            input,
            created_at,
            deadline_at: timeout.map(|timeout| created_at.plus(timeout)),
            state: if is_local { State::Running { armed } } else { State::Queued { armed } },
        })
    }

    fn patience(&self) -> Option<Duration> {
        self.options.as_ref().and_then(|options| options.patience)
    }
}

pub(crate) fn unknown_workflow(core: &Core, name: &str) -> Error {
    Error::UnknownWorkflow { name: name.to_owned(), known: core.names.join(", ") }
}

/// The run of a Start that is carried out here and staged by itself.
fn local_run(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    start: &write::Start,
    fate: Option<Fate>,
) -> Arc<Run> {
    Run::new(
        core.clone(),
        definition.clone(),
        NewRun {
            key: start.key,
            root: start.root,
            parent: None,
            run_no: 1,
            deadline_at: start.deadline_at,
            start: None,
            start_room: 0,
            replay: None,
            attempts: None,
            armed: Vec::new(),
            is_replayed: false,
            generation: core.lane_of(start.root).generation(),
            fate,
        },
    )
}

/// The run of a Start that is staged when something depends on it.
fn local_run_of(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    start: Box<write::Start>,
    room: u32,
) -> Arc<Run> {
    // somebody else may have its id
    let fate = start.is_guarded.then(Fate::default);
    let run = local_run(core, definition, &start, fate);
    run.keep_start(start, room);
    run
}

impl Order<'_> {
    async fn start<O>(self) -> Result<Handle<O>, Error> {
        patiently(self.patience(), self.start_in_time()).await
    }

    async fn start_in_time<O>(&self) -> Result<Handle<O>, Error> {
        let (core, definition) = (self.core, self.definition);
        let Prepared { start, room, claim, is_local } = self.prepare().await?;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        if !is_local {
            let outcome = queue(core, start, room, claim).await?;
            return settled(core, outcome, definition, key, id, fingerprint);
        }
        let run = local_run(core, definition, &start, None);
        run.register();
        let Some(lsn) = run.stage_start(start, room) else {
            core.runs.remove(&run);
            core.slot_freed();
            return Err(core.why_dropped());
        };
        let task = Some(RunTask::starting(run.clone(), lsn));
        let mut attended = Attended { task, input: self.input.clone(), claim };
        let outcome = poll_fn(|cx| match &mut attended.task {
            Some(task) => task.poll_started(cx, &self.input),
            None => Poll::Ready(Outcome::Dropped),
        })
        .await;
        attended.claim = None;
        if outcome != Outcome::Applied {
            attended.task = None;
            return settled(core, outcome, definition, key, id, fingerprint);
        }
        // the run goes on in a task of its own
        drop(attended);
        Ok(Handle::running(run, id))
    }

    async fn run_to_end<O: DeserializeOwned>(self) -> Result<O, Error> {
        patiently(self.patience(), self.run_to_end_in_time()).await
    }

    async fn run_to_end_in_time<O: DeserializeOwned>(&self) -> Result<O, Error> {
        let (core, definition) = (self.core, self.definition);
        let Prepared { start, room, claim, is_local } = self.prepare().await?;
        let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
        if !is_local {
            let outcome = queue(core, start, room, claim).await?;
            return settled(core, outcome, definition, key, id, fingerprint)?.result().await;
        }
        let run = local_run_of(core, definition, start, room);
        let task = Some(RunTask::executing(run.clone(), &self.input));
        let mut attended = Attended { task, input: Payload::empty(), claim };
        let conclusion = poll_fn(|cx| {
            let polled = attended.poll_conclusion(cx);
            if attended.claim.is_some() && run.is_start_settled() {
                attended.claim = None;
            }
            polled
        })
        .await;
        // after a fence the run is gone, and its Start is staged again: nobody else may start the id yet
        let claim = attended.claim.take();
        drop(attended);
        if let Conclusion::Ended(status, outcome) = conclusion {
            return decode(core, key, status, outcome).await;
        }
        core.check_open()?;
        started(core, key, run.start_lsn()).await.or_else(|error| match error {
            // somebody else has the id
            Error::NotFound { .. } => Ok(()),
            error => Err(error),
        })?;
        drop(claim);
        // suspended, handed on, or the id was taken: the database knows by whom
        let existing = match &id {
            None => None,
            Some(id) => core.load(ExecutionId::Given(id.clone()), Detail::Outcome).await?,
        };
        let Some(Execution { key: existing_key, workflow, fingerprint: print, parent, status, .. }) =
            existing.map(|record| record.execution)
        else {
            return Handle::of(core.clone(), key, id).result().await;
        };
        let existing = Existing {
            key: existing_key,
            workflow,
            fingerprint: print,
            parent: parent.map(|parent| parent.key),
            status,
        };
        check_same(&existing, definition, id.as_deref(), fingerprint)?;
        Handle::of(core.clone(), existing_key, id).result().await
    }
}

/// Waits until the Start of a run that went away has landed.
async fn started(core: &Arc<Core>, key: Key, lsn: Option<Lsn>) -> Result<(), Error> {
    let Some(lsn) = lsn else { return Ok(()) };
    match core.lane_of(key).durable(lsn).await {
        Outcome::Duplicate(_) => Err(Error::NotFound { workflow_id: key.to_string() }),
        Outcome::Refused(reason) => Err(Error::Invalid { what: "start", reason: reason.to_string() }),
        Outcome::Dropped | Outcome::Fenced => Err(core.why_dropped()),
        _ => Ok(()),
    }
}

/// Keeps the right to start an id until the outcome of its Start is known, also if nobody waits for that.
struct Claimed {
    claim: Option<IdClaim>,
    lane: Lane,
    lsn: Lsn,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && !self.lane.is_settled(self.lsn)
        {
            let settled = self.lane.durable(self.lsn);
            let runtime = claim.core.runtime.clone();
            runtime.spawn(async move {
                settled.await;
                drop(claim);
            });
        }
    }
}

/// Stages a Start that does not run here, and waits for its outcome.
async fn queue(
    core: &Arc<Core>,
    start: Box<write::Start>,
    room: u32,
    claim: Option<IdClaim>,
) -> Result<Outcome, Error> {
    let key = start.key;
    let lane = core.lane_of(key);
    let generation = lane.generation();
    let staged = Staged { generation, tree: key, write: Write::Start(start), room, fate: None };
    let Some(lsn) = lane.stage(staged, &mut Slot::default()) else { return Err(core.why_dropped()) };
    let claimed = Claimed { claim, lane, lsn };
    Ok(claimed.lane.durable(lsn).await)
}

/// The handle that a Start which does not run here, or lost, leads to.
fn settled<O>(
    core: &Arc<Core>,
    outcome: Outcome,
    definition: &Definition,
    key: Key,
    id: Option<Arc<str>>,
    fingerprint: Option<u64>,
) -> Result<Handle<O>, Error> {
    match outcome {
        Outcome::Applied => Ok(Handle::of(core.clone(), key, id)),
        Outcome::Duplicate(existing) => {
            check_same(&existing, definition, id.as_deref(), fingerprint)?;
            Ok(Handle::of(core.clone(), existing.key, id))
        }
        Outcome::Refused(reason) => Err(Error::Invalid { what: "start", reason: reason.to_string() }),
        _ => Err(core.why_dropped()),
    }
}

fn check_same(
    existing: &Existing,
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
