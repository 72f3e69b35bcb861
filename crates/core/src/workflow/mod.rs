//! [`Workflow`]: a durable function and its registered name.

pub(crate) mod branch;
pub(crate) mod child;
pub(crate) mod context;
pub(crate) mod continuation;
pub(crate) mod messaging;
pub(crate) mod retry;
pub(crate) mod sleep;
pub(crate) mod step;
pub(crate) mod step_execution;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use crate::failure::{Failure, IntoFailure, UNREADABLE};
use crate::payload::Payload;
use crate::runtime::definition::{Body, BodyFuture, CodeLocation, Definition};
use crate::runtime::run::Run;
use crate::workflow::context::Context;

/// A durable function and the name under which it is registered. Programs register and start workflows, and
/// workflow code calls them as children.
///
/// `I` is the type of the input, `O` that of the output. Cheap to clone.
pub struct Workflow<I, O> {
    pub(crate) definition: Arc<Definition>,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Workflow<I, O> {
    fn clone(&self) -> Self {
        Self { definition: self.definition.clone(), types: PhantomData }
    }
}

impl<I, O> fmt::Debug for Workflow<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workflow({:?})", self.name())
    }
}

impl<I, O> Workflow<I, O>
where
    I: Serialize + DeserializeOwned + Send + 'static,
    O: Serialize + DeserializeOwned + Send + 'static,
{
    /// Returns the workflow `name` with the given body.
    ///
    /// The name is recorded in the database: after a crash or a deploy, executions find their code by it. The body
    /// may fail with a [`Failure`] or with any [`std::error::Error`].
    pub fn new<F, Fut, E>(name: &str, body: F) -> Self
    where
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: IntoFailure,
    {
        let workflow_name: Arc<str> = name.into();
        let body = move |run: Arc<Run>, input: &Payload| -> Result<BodyFuture, Failure> {
            let input: I = input.decode().map_err(|error| {
                let error = error.with_value(|| format!("the input of workflow {workflow_name:?}"));
                Failure::with_kind(UNREADABLE, error.to_string())
            })?;
            let output = body(Context::root(run), input);
            Ok(Box::pin(async move {
                let output = output.await.map_err(IntoFailure::into_failure)?;
                Payload::encode(&output).map_err(|error| error.to_failure())
            }))
        };
        Self::from_body(name, CodeLocation::Task, Box::new(body))
    }

    /// Returns the workflow `name` with a body whose types are erased.
    pub(crate) fn from_body(name: &str, code: CodeLocation, body: Box<Body>) -> Self {
        let definition = Definition {
            name: name.into(),
            is_eager: true,
            code,
            time_limit_hint: "`cx.timeout`, or `cx.race`",
            graph: None,
            body,
        };
        Self { definition: Arc::new(definition), types: PhantomData }
    }

    /// Returns the same workflow with or without durable reads. By default the code receives a step's outcome before
    /// that outcome is durable. With durable reads, the code waits until the outcome is durable, which costs one flush
    /// per step. Use durable reads for code that shows outcomes to the outside world other than through steps.
    #[must_use]
    pub fn durable_reads(self, has_durable_reads: bool) -> Self {
        self.change(|definition| definition.is_eager = !has_durable_reads)
    }
}

impl<I, O> Workflow<I, O> {
    /// Returns the same workflow as a graph with this declaration, which is JSON.
    pub(crate) fn declared(self, declaration: String) -> Self {
        self.change(|definition| definition.graph = Some(declaration.into()))
    }

    /// Returns the same workflow with a changed definition. Clones of the workflow keep their definition.
    fn change(self, change: impl FnOnce(&mut Definition)) -> Self {
        let mut definition = Arc::try_unwrap(self.definition).unwrap_or_else(|shared| Definition {
            name: shared.name.clone(),
            is_eager: shared.is_eager,
            code: shared.code,
            time_limit_hint: shared.time_limit_hint,
            graph: shared.graph.clone(),
            body: Box::new(move |run: Arc<Run>, input: &Payload| (shared.body)(run, input)),
        });
        change(&mut definition);
        Self { definition: Arc::new(definition), types: PhantomData }
    }

    /// Returns the workflow `name`, whose code is in another program. A [`Client`](crate::Client) or an engine starts
    /// executions of this workflow, and workers of the other program run them. An engine that has registered a workflow
    /// of this name may run them itself. `I` and `O` must match the types in the other program. Such a workflow cannot
    /// be registered.
    pub fn named(name: &str) -> Self {
        let body = |_: Arc<Run>, _: &Payload| -> Result<BodyFuture, Failure> {
            Err(Failure::new("the workflow's code is not in this program"))
        };
        let definition = Definition {
            name: name.into(),
            is_eager: true,
            code: CodeLocation::OtherProgram,
            time_limit_hint: "",
            graph: None,
            body: Box::new(body),
        };
        Self { definition: Arc::new(definition), types: PhantomData }
    }

    /// Returns the workflow's registered name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }
}

impl Workflow<Payload, Payload> {
    /// Returns a workflow whose code is polled by a language binding; see [`guest`](crate::guest).
    pub(crate) fn from_guest_body(
        name: &str,
        is_eager: bool,
        holds_thread: bool,
        time_limit_hint: &'static str,
        body: Box<Body>,
    ) -> Self {
        let code = if holds_thread { CodeLocation::Thread } else { CodeLocation::Loop };
        let name = name.into();
        let definition = Definition { name, is_eager, code, time_limit_hint, graph: None, body };
        Self { definition: Arc::new(definition), types: PhantomData }
    }
}
