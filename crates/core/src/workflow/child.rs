//! Children: executions that a workflow starts, on its own lane, under keys that a replay derives again.

use std::future::{IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde::{Serialize, de::DeserializeOwned};

use crate::commit::{Durable, Lsn, Slot};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::{FromPayload, Payload};
use crate::queue::Ticket;
use crate::runtime::definition::Definition;
use crate::runtime::run::call::{Call, WaitingFor};
use crate::runtime::run::chunks::Place;
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{ChildEnd, ChildState, Interrupt, NewRun, Run};
use crate::runtime::runs::Expected;
use crate::runtime::start_options::{Due, StartOptions, forward_options};
use crate::store::{
    self, CheckpointKind, Detail, Execution, ExecutionId, Outcome, Parent, RequestKind, Status,
};
use crate::workflow::Workflow;
use crate::workflow::context::Context;

/// A child about to be started and awaited; `.await` it. Made by [`Context::child`].
#[must_use = "a child is started when this is awaited"]
pub struct Child<'c, I, O> {
    cx: &'c mut Context,
    definition: Arc<Definition>,
    input: I,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

/// A child about to be started; `.await` it for a [`ChildHandle`]. Made by [`Context::start_child`].
#[must_use = "a child is started when this is awaited"]
pub struct StartChild<'c, I, O>(Child<'c, I, O>);

/// An execution about to be started that its workflow does not wait for; `.await` it for its workflow_id. Made by
/// [`Context::start_detached`].
#[must_use = "an execution is started when this is awaited"]
pub struct StartDetached<'c, I, O>(Child<'c, I, O>);

/// A child that was started, to be awaited by [`result`](ChildHandle::result).
#[must_use = "the workflow may end before a child whose result it does not await"]
pub struct ChildHandle<O> {
    key: Key,
    name: Arc<str>,
    output: PhantomData<fn() -> O>,
}

impl Context {
    /// Runs a child execution to its output. Its error is the child's.
    pub fn child<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> Child<'_, I, O> {
        let definition = workflow.definition.clone();
        Child { cx: self, definition, input, options: None, output: PhantomData }
    }

    /// Starts a child execution that is awaited later.
    pub fn start_child<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> StartChild<'_, I, O> {
        StartChild(self.child(workflow, input))
    }

    /// Starts an execution that the workflow does not wait for, and that is not cancelled with it.
    pub fn start_detached<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> StartDetached<'_, I, O> {
        StartDetached(self.child(workflow, input))
    }
}

impl<I, O> Child<'_, I, O> {
    fn options(&mut self) -> &mut StartOptions {
        self.options.get_or_insert_default()
    }

    /// The queue that it waits in until a worker takes it. What a workflow starts in a full queue is never refused. See
    /// [`Start::queue`](crate::engine::start::Start::queue).
    pub fn queue(mut self, queue: impl AsRef<str>) -> Self {
        self.options().queue = Some(queue.as_ref().into());
        self
    }

    /// Its key within the queue. See [`Start::key`](crate::engine::start::Start::key).
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        self.options().key = Some(key.as_ref().into());
        self
    }

    /// Smaller comes first among those of its queue and key. 0 by default.
    pub fn priority(mut self, priority: i32) -> Self {
        self.options().priority = Some(priority);
        self
    }

    /// It begins not before this long after it was started.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options().due = Some(Due::After(delay));
        self
    }

    /// An attribute that it is found by. See [`Start::attribute`](crate::engine::start::Start::attribute).
    pub fn attribute(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.options().attributes.set(name.as_ref(), value.as_ref());
        self
    }

    /// Cancels it if it has not ended so long after it has begun. See
    /// [`Start::run_timeout`](crate::engine::start::Start::run_timeout).
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.options().run_timeout = Some(timeout);
        self
    }
}

forward_options!(StartChild of Child {
    queue(queue: impl AsRef<str>),
    key(key: impl AsRef<str>),
    priority(priority: i32),
    delay(delay: Duration),
    run_timeout(timeout: Duration),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
});

forward_options!(StartDetached of Child {
    queue(queue: impl AsRef<str>),
    key(key: impl AsRef<str>),
    priority(priority: i32),
    delay(delay: Duration),
    run_timeout(timeout: Duration),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
});

impl<'c, I, O> IntoFuture for Child<'c, I, O>
where
    I: Serialize + Send + 'c,
    O: DeserializeOwned + Send + 'c,
{
    type Output = Result<O, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let Child { cx, definition, input, options, .. } = self;
        let path = cx.next_path();
        Box::pin(async move {
            let payload = Payload::encode(&input)?;
            let fingerprint = payload.fingerprint();
            let call = begin(&cx.run, path, &definition, fingerprint);
            run_to_end(
                call,
                NewChild { definition, input: payload, fingerprint, options, is_detached: false },
            )
            .await
        })
    }
}

impl<'c, I, O> IntoFuture for StartChild<'c, I, O>
where
    I: Serialize + Send + 'c,
    O: Send + 'c,
{
    type Output = Result<ChildHandle<O>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let name = self.0.definition.name.clone();
        let started = self.0.start(false);
        Box::pin(async move { Ok(ChildHandle { key: started.await?, name, output: PhantomData }) })
    }
}

impl<'c, I, O> IntoFuture for StartDetached<'c, I, O>
where
    I: Serialize + Send + 'c,
    O: Send + 'c,
{
    type Output = Result<String, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let started = self.0.start(true);
        Box::pin(async move { started.await.map(|key| key.to_string()) })
    }
}

impl<'c, I: Serialize + Send + 'c, O> Child<'c, I, O> {
    /// Starts it, and records that.
    fn start(self, is_detached: bool) -> impl Future<Output = Result<Key, Failure>> + Send + use<'c, I, O> {
        let Child { cx, definition, input, options, .. } = self;
        async move {
            let input = Payload::encode(&input)?;
            let path = cx.next_path();
            let fingerprint = input.fingerprint();
            start_recorded(&cx.run, path, NewChild { definition, input, fingerprint, options, is_detached })
                .await
        }
    }
}

/// A child that is to be started.
pub(crate) struct NewChild {
    pub(crate) definition: Arc<Definition>,
    pub(crate) input: Payload,
    /// What tells the input apart.
    pub(crate) fingerprint: u64,
    /// `None` for the defaults.
    pub(crate) options: Option<Box<StartOptions>>,
    pub(crate) is_detached: bool,
}

/// Begins the call of a child.
pub(crate) fn begin(run: &Arc<Run>, path: Path, definition: &Definition, fingerprint: u64) -> Call {
    Call::begin(run, path, &definition.name.clone().into(), CallKind::Child, Some(fingerprint))
}

/// Starts the child of a call that has begun, and waits for its output.
pub(crate) async fn run_to_end<O: FromPayload>(call: Call, child: NewChild) -> Result<O, Failure> {
    if let Some(delivery) = call.recorded().await {
        return recorded(&call, delivery.kind, delivery.outcome).await;
    }
    let key = Key::derived(call.run.key, call.run.run_no, &call.path);
    match start(&call, child, key).await {
        Ok(key) => until_end(&call, key).await,
        Err(failure) => {
            call.deliver(CheckpointKind::Failed, Payload::of_failure(&failure), 0).await;
            Err(failure)
        }
    }
}

impl<O: DeserializeOwned> ChildHandle<O> {
    /// The child's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.key.to_string()
    }

    /// Waits for the child's output, as a call of the branch `cx`.
    pub async fn result(self, cx: &mut Context) -> Result<O, Failure> {
        let path = cx.next_path();
        result(begin_result(&cx.run, path, &self.name), self.key).await
    }
}

/// Begins the call that waits for a child which was started.
pub(crate) fn begin_result(run: &Arc<Run>, path: Path, name: &Arc<str>) -> Call {
    Call::begin(run, path, &name.clone().into(), CallKind::Child, None)
}

/// Waits for the output of a child that was started.
pub(crate) async fn result<O: FromPayload>(call: Call, key: Key) -> Result<O, Failure> {
    match call.recorded().await {
        Some(delivery) => recorded(&call, delivery.kind, delivery.outcome).await,
        None => until_end(&call, key).await,
    }
}

/// Starts a child as a call of its own, and records that: a replay, also one of a later run of the
/// execution, goes on with the same child.
pub(crate) async fn start_recorded(run: &Arc<Run>, path: Path, child: NewChild) -> Result<Key, Failure> {
    let fingerprint = Some(child.fingerprint);
    let name = child.definition.name.clone().into();
    // no delivery comes before the call has begun
    let moment = run.state().delivered_at;
    let call = Call::begin(run, path, &name, CallKind::ChildStart, fingerprint);
    if let Some(delivery) = call.recorded().await {
        if delivery.kind == CheckpointKind::Failed {
            return Err(delivery.outcome.to_failure());
        }
        let key = recorded_key(&call, &delivery.outcome).await;
        if !child.is_detached {
            let state =
                if run.core.runs.get(key).is_some() { ChildState::Local } else { ChildState::Elsewhere };
            run.state().children.insert(key, state);
        }
        return Ok(key);
    }
    let key = Key::started(run.key, run.run_no, &call.path, moment);
    match start(&call, child, key).await {
        Ok(key) => {
            crate::crash_point!("child started and not recorded");
            call.deliver(CheckpointKind::Started, Payload::encode(&key.to_string())?, 0).await;
            Ok(key)
        }
        Err(failure) => {
            call.deliver(CheckpointKind::Failed, Payload::of_failure(&failure), 0).await;
            Err(failure)
        }
    }
}

/// Starts the child of a call, or attaches to it if a run before this one has started it.
async fn start(call: &Call, child: NewChild, key: Key) -> Result<Key, Failure> {
    let NewChild { definition, input, options, is_detached, .. } = child;
    let run = &call.run;
    let core = &run.core;
    if core.definitions.get(&definition.name).is_none() {
        let mut failure = core.definitions.unknown(&definition.name).recorded();
        failure.message =
            format!("workflow {:?} cannot start a child: {}", &*run.definition.name, failure.message);
        return Err(failure);
    }
    let limit = core.options.value_limit;
    if input.len() > limit {
        let what = format!("the input of child {:?}", &*definition.name);
        return Err(Error::TooLarge { what, size: input.len(), limit }.recorded());
    }
    let options = options.as_deref().unwrap_or(StartOptions::PLAIN);
    let ticket = place(call, options).await?;
    let (stored, room) = crate::runtime::run::chunks::store(Place::of(run, key), input.clone()).await;
    let is_local = ticket.is_none() && options.due.is_none() && core.take_slot();
    if !is_detached {
        let state = if is_local { ChildState::Local } else { ChildState::Elsewhere };
        run.state().children.insert(key, state);
    }
    let parent = Parent { key: run.key, is_detached };
    let created_at = core.now();
    let (deadline_at, run_timeout) = options.time_limits(created_at, is_local);
    let new = store::Start {
        key,
        root: run.root,
        parent: Some(parent.clone()),
        workflow_id: None,
        workflow: definition.name.clone(),
        app_version: core.info.app_version.clone(),
        ticket,
        fingerprint: None,
        input: stored,
        created_at,
        deadline_at,
        is_guarded: run.is_replayed,
        has_begun: false,
        yields: false,
        dedup_id: None,
        merge_within: None,
        run_timeout,
        attributes: options.attributes.clone(),
        state: options.state(created_at, is_local),
    };
    let child = is_local.then(|| run_of_child(run, &new, &definition, parent));
    let outcome = if run.is_replayed {
        start_guarded(run, new, room, child, input).await
    } else {
        // never claimed before: it cannot have started the child before
        start_new(run, new, room, child, &input)
    };
    match outcome {
        Outcome::Applied => Ok(key),
        Outcome::Duplicate(existing) if existing.parent == Some(run.key) => {
            // whether it runs here, or has ended a moment ago, the database knows
            if let Some(child @ ChildState::Local) = run.state().children.get_mut(&key) {
                *child = ChildState::Elsewhere;
            }
            Ok(key)
        }
        Outcome::Duplicate(existing) => Err(Failure::new(format!(
            "the child's key {key} belongs to an execution of {:?} that this one has not started",
            &*existing.workflow
        ))
        .permanent()),
        Outcome::Refused(reason) => Err(Failure::of_kind(
            crate::failure::REFUSED,
            format!("the child could not be started: {reason}"),
        )
        .permanent()),
        // this run is over
        _ => std::future::pending().await,
    }
}

/// Starts a child that cannot be there already. It runs at once; its bodies wait for its Start.
fn start_new(run: &Run, new: store::Start, room: u32, child: Option<Arc<Run>>, input: &Payload) -> Outcome {
    if let Some(child) = &child {
        // its row is held before it is there
        child.register();
    }
    let staged = run.stage_child(Box::new(new), room);
    match (staged, child) {
        (Some((lsn, slot)), Some(child)) => dispatch(child, input, lsn, slot),
        (None, Some(child)) => {
            run.core.runs.remove(&child);
            run.core.slot_freed();
        }
        _ => {}
    }
    if staged.is_some() { Outcome::Applied } else { Outcome::Fenced }
}

/// Starts a child that an earlier run of its parent may have started: it runs here if that is not so.
async fn start_guarded(
    run: &Arc<Run>,
    new: store::Start,
    room: u32,
    child: Option<Arc<Run>>,
    input: Payload,
) -> Outcome {
    // its row is ours before its run begins
    let expected = child.is_some().then(|| Expected::new(&run.core, new.key));
    let staged = run.stage_child(Box::new(new), room);
    let Some((lsn, _)) = staged else {
        if child.is_some() {
            run.core.slot_freed();
        }
        return Outcome::Fenced;
    };
    if let Some(child) = child {
        // a task of its own: the branch that awaits us may be given up before the outcome is known
        let started = Durable::new(run.clone(), lsn);
        run.core.runtime.spawn(async move {
            let _expected = expected;
            match started.await {
                Outcome::Applied => {
                    child.register();
                    dispatch(child, &input, lsn, Slot::default());
                }
                _ => child.core.slot_freed(),
            }
        });
    }
    run.lane().durable(lsn).await
}

/// Where a child is to stand whenever it is queued, as its options say.
async fn place(call: &Call, options: &StartOptions) -> Result<Option<Arc<Ticket>>, Failure> {
    options.check_child().and_then(|()| options.attributes.check()).map_err(|error| error.recorded())?;
    let Some(ticket) = options.ticket().map_err(|error| error.recorded())? else { return Ok(None) };
    let core = &call.run.core;
    let unknown = call.ask(async || match core.queues.check(&*core.store, &ticket.queue).await {
        Err(error @ (Error::UnknownQueue { .. } | Error::Invalid { .. })) => Ok(Some(error)),
        checked => checked.map(|()| None),
    });
    match unknown.await {
        None => Ok(Some(ticket)),
        Some(error) => Err(error.recorded()),
    }
}

/// The run of a child that is started here.
fn run_of_child(
    parent_run: &Arc<Run>,
    start: &store::Start,
    definition: &Arc<Definition>,
    parent: Parent,
) -> Arc<Run> {
    if let Some(fate) = &parent_run.fate {
        fate.add_child();
    }
    let first = NewRun::first(start.key, parent_run.root, start.created_at, parent_run.generation);
    let (parent, fate) = (Some(parent), parent_run.fate.clone());
    let new = NewRun { parent, fate, deadline_at: start.deadline_at, ..first };
    Run::new(parent_run.core.clone(), definition.clone(), new)
}

/// Runs a child, whose Start was staged as `lsn`, in a task of its own.
fn dispatch(child: Arc<Run>, input: &Payload, lsn: Lsn, slot: Slot) {
    child.depends_on(lsn);
    child.started_at(lsn, slot);
    if child.is_lost() {
        // meanwhile: whoever stopped its tree may not have found it
        child.interrupt(Interrupt::Lost);
    }
    let runtime = child.core.runtime.clone();
    let mut task = RunTask::executing(child, input);
    let input = Payload::empty();
    runtime.spawn(async move { poll_fn(|cx| task.poll_conclusion(cx, &input)).await });
}

/// Waits for the end of a child and delivers it.
async fn until_end<O: FromPayload>(call: &Call, key: Key) -> Result<O, Failure> {
    let run = &call.run;
    let signal = poll_fn(|cx| {
        let known = run.state().children.get(&key).cloned();
        match known {
            Some(ChildState::Ended(end)) => Poll::Ready(Some(end)),
            Some(ChildState::Local) => {
                run.waits_for(call.id(), WaitingFor::Child(key), cx.waker());
                // it may have ended between the two
                match run.state().children.get(&key) {
                    Some(ChildState::Local) => Poll::Pending,
                    Some(ChildState::Ended(end)) => Poll::Ready(Some(end.clone())),
                    Some(ChildState::Elsewhere) | None => Poll::Ready(None),
                }
            }
            Some(ChildState::Elsewhere) | None => Poll::Ready(None),
        }
    });
    let end = match signal.await {
        Some(end) => end,
        None => elsewhere(call, key).await,
    };
    if end.status == Status::Cancelled {
        unless_cancelled_too(call).await;
    }
    run.depends_on(end.lsn);
    run.state().children.remove(&key);
    crate::crash_point!("child end heard");
    call.deliver(CheckpointKind::Child, Payload::encode(&key.to_string())?, 0).await;
    output(call, key, end.status, end.outcome).await
}

/// Returns unless a cancel is recorded for the execution itself. The same one may have ended the child, and
/// that must not be taken for an outcome: it can be heard of before the execution's own turn comes.
async fn unless_cancelled_too(call: &Call) {
    let run = &call.run;
    let id = ExecutionId::Key(run.key);
    let record = call.ask(|| run.core.load(id.clone(), Detail::Full)).await;
    if record.is_some_and(|it| it.requests.contains(&RequestKind::Cancel)) {
        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
        std::future::pending::<()>().await;
    }
}

/// Waits for the end of a child that does not run in this process, or did not a moment ago.
async fn elsewhere(call: &Call, key: Key) -> ChildEnd {
    let run = &call.run;
    // before the first look it may have ended: that is no reason yet to suspend
    let has_looked = AtomicBool::new(false);
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let has_not_ended = || {
        has_looked.store(true, SeqCst);
        run.waits_for(call.id(), WaitingFor::Child(key), &waker);
        // its end may have been told before somebody listened
        waker.wake_by_ref();
    };
    let signal = poll_fn(|cx| {
        if has_looked.load(SeqCst) {
            run.waits_for(call.id(), WaitingFor::Child(key), cx.waker());
        }
        match run.state().children.get(&key) {
            Some(ChildState::Ended(end)) => Poll::Ready(end.clone()),
            _ => Poll::Pending,
        }
    });
    let ended = async {
        // its Start may be on its way: before that is durable there is nothing to look at
        let Some(barrier) = run.barrier(true) else { std::future::pending().await };
        if let Outcome::Fenced | Outcome::Dropped = run.lane().durable(barrier).await {
            std::future::pending::<()>().await;
        }
        match run.core.until_terminal(key, &has_not_ended).await {
            Ok(Execution { status, outcome, .. }) => ChildEnd { status, outcome, lsn: Lsn(0) },
            Err(error) => call.park(error.to_string()).await,
        }
    };
    match select(std::pin::pin!(signal), std::pin::pin!(ended)).await {
        Either::Left((end, _)) | Either::Right((end, _)) => end,
    }
}

/// The output of a child whose end was recorded: from its row.
async fn recorded<O: FromPayload>(call: &Call, kind: CheckpointKind, payload: Payload) -> Result<O, Failure> {
    if kind == CheckpointKind::Failed {
        return match payload.decode::<Failure>() {
            Ok(failure) => Err(failure),
            Err(error) => call.park(error.to_string()).await,
        };
    }
    let key = recorded_key(call, &payload).await;
    let core = &call.run.core;
    let execution = match call.ask(|| core.load(ExecutionId::Key(key), Detail::Outcome)).await {
        Some(record) => record.execution,
        None => call.park(format!("the child {key} is not in the database any more")).await,
    };
    let (status, outcome) = if execution.status.is_terminal() {
        (execution.status, execution.outcome)
    } else {
        // somebody has resumed it: what it comes to now is its end
        let end = elsewhere(call, key).await;
        (end.status, end.outcome)
    };
    call.run.state().children.remove(&key);
    output(call, key, status, outcome).await
}

async fn recorded_key(call: &Call, payload: &Payload) -> Key {
    match payload.decode::<String>().ok().and_then(|text| Key::from_text(&text)) {
        Some(key) => key,
        None => call.park("what is recorded is not a child's key".to_owned()).await,
    }
}

async fn output<O: FromPayload>(
    call: &Call,
    key: Key,
    status: Status,
    outcome: Payload,
) -> Result<O, Failure> {
    let outcome = call.fetch_of(key, outcome).await;
    if status == Status::Completed {
        return match O::from_payload(&outcome) {
            Ok(output) => Ok(output),
            Err(error) => {
                let name = call.run.name_of(call.id());
                let error = error.of_value(|| format!("the output of child {key}, workflow {name:?},"));
                call.park(error.to_string()).await
            }
        };
    }
    Err(outcome.to_failure())
}
