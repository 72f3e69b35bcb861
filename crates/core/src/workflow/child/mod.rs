//! Children: executions that a workflow starts, on its own lane, under keys that a replay derives again.

mod start;
mod wait;

pub(crate) use start::start_recorded;

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use start::start;
use wait::{recorded, until_end};

use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::{FromPayload, Payload};
use crate::runtime::definition::Definition;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::runtime::start_options::{Due, StartOptions, forward_options};
use crate::store::CheckpointKind;
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
