//! [`Workflow`]: a durable function and its registered name.

pub(crate) mod branch;
pub(crate) mod child;
pub(crate) mod context;
pub(crate) mod retry;
pub(crate) mod sleep;
pub(crate) mod step;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use crate::failure::{Failure, IntoFailure, UNREADABLE};
use crate::payload::Payload;
use crate::runtime::definition::{Body, BodyFuture, CodeIn, Definition};
use crate::runtime::run::Run;
use crate::workflow::context::Context;

/// A durable function with its name: what is registered, started, and called as a child.
///
/// `I` is its input, `O` its output. Cheap to clone.
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
    /// The workflow `name` with the given body.
    ///
    /// The name goes into the database; executions find their code by it after a crash or a deploy. Any
    /// error that is a [`std::error::Error`], or a [`Failure`], may end the body.
    pub fn new<F, Fut, E>(name: &str, body: F) -> Self
    where
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: IntoFailure,
    {
        let shown: Arc<str> = name.into();
        let body = move |run: Arc<Run>, input: &Payload| -> Result<BodyFuture, Failure> {
            let input: I = input.decode().map_err(|error| {
                let error = error.of_value(|| format!("the input of workflow {shown:?}"));
                Failure::of_kind(UNREADABLE, error.to_string())
            })?;
            let output = body(Context::root(run), input);
            Ok(Box::pin(async move {
                let output = output.await.map_err(IntoFailure::into_failure)?;
                Payload::encode(&output).map_err(|error| error.recorded())
            }))
        };
        let definition = Definition {
            name: name.into(),
            is_eager: true,
            code: CodeIn::Task,
            time_limit: "`cx.timeout`, or `cx.race`",
            body: Box::new(body),
        };
        Self { definition: Arc::new(definition), types: PhantomData }
    }

    /// The same workflow, whose code sees a step's outcome only when it is durable: for code that shows
    /// step values to the world outside of steps. Costs a flush per step on the way.
    #[must_use]
    pub fn eager(self, is_eager: bool) -> Self {
        match Arc::try_unwrap(self.definition) {
            Ok(definition) => {
                Self { definition: Arc::new(Definition { is_eager, ..definition }), types: PhantomData }
            }
            Err(definition) => {
                let (name, inner) = (definition.name.clone(), definition);
                let (code, time_limit) = (inner.code, inner.time_limit);
                let body = Box::new(move |run: Arc<Run>, input: &Payload| (inner.body)(run, input));
                let definition = Definition { name, is_eager, code, time_limit, body };
                Self { definition: Arc::new(definition), types: PhantomData }
            }
        }
    }
}

impl<I, O> Workflow<I, O> {
    /// The workflow `name` whose code is in another program: for a [`Client`](crate::Client), which starts it
    /// there. `I` and `O` must be what that program has. It cannot be registered.
    pub fn named(name: &str) -> Self {
        let body = |_: Arc<Run>, _: &Payload| -> Result<BodyFuture, Failure> {
            Err(Failure::new("its code is not in this program"))
        };
        let definition = Definition {
            name: name.into(),
            is_eager: true,
            code: CodeIn::Elsewhere,
            time_limit: "",
            body: Box::new(body),
        };
        Self { definition: Arc::new(definition), types: PhantomData }
    }

    /// Its registered name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }
}

impl Workflow<Payload, Payload> {
    /// A workflow whose code somebody else polls; see [`guest`](crate::guest).
    pub(crate) fn guest(
        name: &str,
        is_eager: bool,
        is_in_thread: bool,
        time_limit: &'static str,
        body: Box<Body>,
    ) -> Self {
        let code = if is_in_thread { CodeIn::Thread } else { CodeIn::Loop };
        let definition = Definition { name: name.into(), is_eager, code, time_limit, body };
        Self { definition: Arc::new(definition), types: PhantomData }
    }
}
