//! Starting executions: [`Engine::start`] and [`Engine::run`].

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::commit::{Lsn, Slot, Staged};
use crate::engine::{Core, Engine};
use crate::error::Error;
use crate::handle::{Handle, decode};
use crate::key::Key;
use crate::payload::{INLINE_LIMIT, Payload};
use crate::record::{Detail, Execution, ExecutionId};
use crate::run::{Conclusion, NewRun, Run};
use crate::task::RunTask;
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
    options: StartOptions,
}

/// An execution about to be run; `.await` it for its output.
#[must_use = "nothing runs until this is awaited"]
pub struct RunToEnd<'e, I, O>(Start<'e, I, O>);

impl Engine {
    /// Starts an execution. When this returns, it is durable that it will run to its end.
    pub fn start<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> Start<'e, I, O> {
        Start { engine: self, workflow, input, options: StartOptions::default() }
    }

    /// Starts an execution and waits for its output: one flush, where nothing else has to be durable before.
    pub fn run<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> RunToEnd<'e, I, O> {
        RunToEnd(self.start(workflow, input))
    }
}

impl<I, O> Start<'_, I, O> {
    /// The execution's id, and the idempotency key of starting it: a second start with the same id,
    /// workflow and input gets a handle to the first; with others [`Error::Conflict`].
    pub fn workflow_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.options.workflow_id = Some(id.into());
        self
    }

    /// Cancels the execution if it has not ended after this time.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Waits at most this long for the database, then fails with [`Error::Unavailable`]: the start stays
    /// staged and may happen; repeating it with the same workflow_id is safe.
    pub fn wait_at_most(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
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
    I: Serialize + Send + 'e,
    O: 'e,
{
    type Output = Result<Handle<O>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'e>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Start { engine, workflow, input, options } = self;
            let payload = Payload::encode(&input);
            let patience = options.patience;
            patiently(patience, start(&engine.core, &workflow.definition, payload?, options)).await
        })
    }
}

impl<'e, I, O> IntoFuture for RunToEnd<'e, I, O>
where
    I: Serialize + Send + 'e,
    O: DeserializeOwned + Send + 'e,
{
    type Output = Result<O, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'e>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Start { engine, workflow, input, options } = self.0;
            let payload = Payload::encode(&input);
            let patience = options.patience;
            patiently(patience, run_to_end(&engine.core, &workflow.definition, payload?, options)).await
        })
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
pub(crate) type Starting = watch::Receiver<()>;

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
    async fn conclusion(mut self) -> Conclusion {
        poll_fn(|cx| match &mut self.task {
            Some(task) => {
                let conclusion = std::task::ready!(task.poll_conclusion(cx, &self.input));
                self.task = None;
                Poll::Ready(conclusion)
            }
            None => Poll::Ready(Conclusion::Gone),
        })
        .await
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(mut task) = self.task.take() {
            let (input, claim) = (self.input.clone(), self.claim.take());
            let runtime = task.run().core.runtime.clone();
            runtime.spawn(async move {
                poll_fn(|cx| task.poll_conclusion(cx, &input)).await;
                drop(claim);
            });
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

async fn prepare(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    input: Payload,
    options: StartOptions,
) -> Result<Prepared, Error> {
    core.check_open()?;
    if core.definitions.get(&definition.name).is_none() {
        return Err(unknown_workflow(core, &definition.name));
    }
    let limit = core.options.value_limit;
    if input.len() > limit {
        let what = format!("the input of workflow {:?}", &*definition.name);
        return Err(Error::TooLarge { what, size: input.len(), limit });
    }
    let key = Key::mint();
    let mut claim = None;
    if let Some(id) = &options.workflow_id {
        check_text("workflow_id", id, WORKFLOW_ID_LIMIT)?;
        claim = Some(IdClaim::take(core, id).await);
    }
    let fingerprint = claim.is_some().then(|| input.fingerprint());
    let lane = core.lane_of(key);
    let (input, room) = if input.len() <= INLINE_LIMIT {
        let bytes = input.len() + 256;
        match lane.room_now(bytes) {
            0 => (input, lane.room(bytes).await),
            room => (input, room),
        }
    } else {
        let place = crate::value::Place { execution: key, tree: key, is_free: true };
        crate::value::store(&lane, lane.generation(), place, input).await
    };
    let is_local = core.take_slot();
    let created_at = core.now();
    let state =
        if is_local { State::Running { armed: Vec::new() } } else { State::Queued { armed: Vec::new() } };
    let start = Box::new(write::Start {
        key,
        root: key,
        parent: None,
        workflow_id: options.workflow_id,
        workflow: definition.name.clone(),
        fingerprint,
        input,
        created_at,
        deadline_at: options.timeout.map(|timeout| created_at.plus(timeout)),
        is_guarded: claim.is_some(),
        state,
    });
    Ok(Prepared { start, room, claim, is_local })
}

pub(crate) fn unknown_workflow(core: &Core, name: &str) -> Error {
    Error::UnknownWorkflow { name: name.to_owned(), known: core.names.join(", ") }
}

/// The run of a Start that is carried out here.
fn local_run(core: &Core, start: &write::Start) -> NewRun {
    NewRun {
        key: start.key,
        root: start.root,
        parent: None,
        run_no: 1,
        deadline_at: start.deadline_at,
        start: None,
        start_room: 0,
        replay: None,
        attempts: std::collections::HashMap::new(),
        armed: Vec::new(),
        is_replayed: false,
        generation: core.lane_of(start.root).generation(),
    }
}

async fn start<O>(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    input: Payload,
    options: StartOptions,
) -> Result<Handle<O>, Error> {
    let Prepared { start, room, claim, is_local } = prepare(core, definition, input.clone(), options).await?;
    let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
    let new = local_run(core, &start);
    let lane = core.lane_of(key);
    let staged = Staged { generation: new.generation, tree: key, write: Write::Start(start), room };
    if !is_local {
        let Some(lsn) = lane.stage(staged, &mut Slot::default()) else { return Err(core.why_dropped()) };
        let outcome = lane.durable(lsn).await;
        drop(claim);
        return settled(core, outcome, definition, key, id, fingerprint);
    }
    let run = Run::new(core.clone(), definition.clone(), new);
    run.register();
    let Some(lsn) = run.stage_start(staged) else {
        core.runs.remove(&run);
        core.slot_freed();
        return Err(core.why_dropped());
    };
    let task = RunTask::starting(run.clone(), lsn);
    let mut attended = Attended { task: Some(task), input: input.clone(), claim };
    let outcome = poll_fn(|cx| match &mut attended.task {
        Some(task) => task.poll_started(cx, &input),
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

async fn run_to_end<O: DeserializeOwned>(
    core: &Arc<Core>,
    definition: &Arc<Definition>,
    input: Payload,
    options: StartOptions,
) -> Result<O, Error> {
    let Prepared { start, room, claim, is_local } = prepare(core, definition, input.clone(), options).await?;
    let (key, id, fingerprint) = (start.key, start.workflow_id.clone(), start.fingerprint);
    let conclusion = if is_local {
        let mut new = local_run(core, &start);
        new.start = Some(start);
        new.start_room = room;
        let run = Run::new(core.clone(), definition.clone(), new);
        let task = RunTask::executing(run, &input);
        Attended { task: Some(task), input, claim }.conclusion().await
    } else {
        let lane = core.lane_of(key);
        let generation = lane.generation();
        let staged = Staged { generation, tree: key, write: Write::Start(start), room };
        let lsn: Option<Lsn> = lane.stage(staged, &mut Slot::default());
        let Some(lsn) = lsn else { return Err(core.why_dropped()) };
        let outcome = lane.durable(lsn).await;
        drop(claim);
        return settled(core, outcome, definition, key, id, fingerprint)?.result().await;
    };
    match conclusion {
        Conclusion::Ended(status, outcome) => decode(core, key, status, outcome).await,
        Conclusion::Gone => {
            core.check_open()?;
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
}
