//! Children: executions that a workflow starts on its own lane. A replay derives the same keys for them.

mod batch;
mod start;
mod wait;

pub use batch::{ChildBatch, SubmitBatch};
pub(crate) use batch::{NewBatch, submit_recorded, wait_for_counts, wait_for_results};
pub(crate) use start::{ChildKind, NewChild, start_recorded};

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};
use start::start_or_attach;
use wait::{recorded_output, wait_for_end};

use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::{FromPayload, Payload};
use crate::runtime::definition::Definition;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::runtime::start::option_methods::start_option_methods;
use crate::runtime::start::options::StartOptions;
use crate::store::{Detail, ExecutionId};
use crate::workflow::Workflow;
use crate::workflow::context::Context;

/// A builder for a child that is started and awaited: `.await` the builder for the child's output. Returned by
/// [`Context::child`].
#[must_use = "a child is started when this is awaited"]
pub struct Child<'c, I, O> {
    cx: &'c mut Context,
    definition: Arc<Definition>,
    input: I,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

/// A builder for a child that is started and awaited later: `.await` the builder for a [`ChildHandle`]. Returned by
/// [`Context::start_child`].
#[must_use = "a child is started when this is awaited"]
pub struct StartChild<'c, I, O>(Child<'c, I, O>);

/// A builder for a detached child: `.await` the builder for the child's workflow_id. Returned by
/// [`Context::start_detached`].
#[must_use = "an execution is started when this is awaited"]
pub struct StartDetached<'c, I, O>(Child<'c, I, O>);

/// A handle to a child that was started. [`result`](ChildHandle::result) waits for the child's output.
#[must_use = "the workflow may end before a child whose result it does not await"]
pub struct ChildHandle<O> {
    key: Key,
    name: Arc<str>,
    output: PhantomData<fn() -> O>,
}

impl Context {
    /// Runs a child execution to its end, and returns its output. If the child fails, the error is the failure of the
    /// child.
    pub fn child<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> Child<'_, I, O> {
        let definition = workflow.definition.clone();
        Child { cx: self, definition, input, options: None, output: PhantomData }
    }

    /// Starts a child execution, to be awaited later.
    pub fn start_child<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> StartChild<'_, I, O> {
        StartChild(self.child(workflow, input))
    }

    /// Starts an execution that the workflow does not wait for. Cancelling the workflow does not cancel this execution.
    pub fn start_detached<I, O>(&mut self, workflow: &Workflow<I, O>, input: I) -> StartDetached<'_, I, O> {
        StartDetached(self.child(workflow, input))
    }
}

start_option_methods!(Child.options:
    execution_timeout, run_timeout, queue, key, priority, delay, attribute,
);

start_option_methods!(StartChild.0.options:
    execution_timeout, run_timeout, queue, key, priority, delay, attribute,
);

start_option_methods!(StartDetached.0.options:
    workflow_id, execution_timeout, run_timeout, queue, key, priority, dedup_id, on_duplicate, delay, attribute,
);

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
            let call = begin_child_call(&cx.run, path, &definition, fingerprint);
            run_child(
                call,
                NewChild { definition, input: payload, fingerprint, options, kind: ChildKind::Awaited },
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
        let started = self.0.start(ChildKind::Awaited);
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
        let given_id = self.0.options.as_ref().and_then(|options| options.workflow_id.clone());
        let started = self.0.start(ChildKind::Detached);
        Box::pin(async move { started.await.map(|key| key.workflow_id(given_id.as_deref())) })
    }
}

impl<'c, I: Serialize + Send + 'c, O> Child<'c, I, O> {
    /// Starts the child as a call of its own. The start is recorded.
    fn start(self, kind: ChildKind) -> impl Future<Output = Result<Key, Failure>> + Send + use<'c, I, O> {
        let Child { cx, definition, input, options, .. } = self;
        async move {
            let input = Payload::encode(&input)?;
            let path = cx.next_path();
            let fingerprint = input.fingerprint();
            start_recorded(&cx.run, path, NewChild { definition, input, fingerprint, options, kind }).await
        }
    }
}

/// Begins the call of a child.
pub(crate) fn begin_child_call(
    run: &Arc<Run>,
    path: Path,
    definition: &Definition,
    fingerprint: u64,
) -> Call {
    Call::begin(run, path, &definition.name.clone().into(), CallKind::Child, Some(fingerprint))
}

/// Starts the child of a call that has begun, and waits for its output.
pub(crate) async fn run_child<O: FromPayload>(call: Call, child: NewChild) -> Result<O, Failure> {
    if let Some(delivery) = call.wait_recorded().await {
        return recorded_output(&call, delivery.kind, delivery.outcome).await;
    }
    let own_key = own_key(&call).await;
    match start_or_attach(&call, child, own_key).await {
        Ok(key) => wait_for_end(&call, key, key == own_key).await,
        Err(failure) => {
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}

/// Returns the key of the child of a call, unless the child has an id of its own.
async fn own_key(call: &Call) -> Key {
    let run = &call.run;
    if run.is_replayed && run.key.shard() != run.engine.shard {
        // minted before keys contained the number of their shard; so perhaps was the key of the child
        let key = Key::derive_unsharded(run.key, run.run_no, &call.path);
        let find = call.query(|| run.engine.load(ExecutionId::Key(key), Detail::Outcome));
        if Box::pin(find).await.is_some() {
            return key;
        }
    }
    Key::derive(run.key, run.run_no, &call.path)
}

impl<O: DeserializeOwned> ChildHandle<O> {
    /// Returns the child's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.key.to_string()
    }

    /// Waits for the child's output, as a call of the branch `cx`.
    pub async fn result(self, cx: &mut Context) -> Result<O, Failure> {
        let path = cx.next_path();
        wait_for_result(&begin_result_call(&cx.run, path, &self.name), self.key).await
    }
}

/// Begins the call that waits for a child which was started before.
pub(crate) fn begin_result_call(run: &Arc<Run>, path: Path, name: &Arc<str>) -> Call {
    Call::begin(run, path, &name.clone().into(), CallKind::Child, None)
}

/// Waits for the output of a child that was started before.
pub(crate) async fn wait_for_result<O: FromPayload>(call: &Call, key: Key) -> Result<O, Failure> {
    match call.wait_recorded().await {
        Some(delivery) => recorded_output(call, delivery.kind, delivery.outcome).await,
        None => wait_for_end(call, key, false).await,
    }
}
