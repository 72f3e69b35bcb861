//! [`Workflow`]: a durable function and its registered name.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use crate::context::Context;
use crate::error::Error;
use crate::failure::{Failure, IntoFailure, UNREADABLE};
use crate::payload::Payload;
use crate::shown::quoted;

/// The future of a workflow's body, from encoded input to encoded output.
pub(crate) type BodyFuture = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;

/// A workflow's body with its types erased: decodes the input and makes the future.
pub(crate) type Body = dyn Fn(Context, &Payload) -> Result<BodyFuture, Failure> + Send + Sync;

/// Where the code of a workflow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeIn {
    /// In the run's task, which polls it.
    Task,
    /// In another language, polled on a loop of that.
    Loop,
    /// In another language, where it holds a thread of a pool while it runs.
    Thread,
    /// In another program.
    Elsewhere,
}

/// A workflow with its types erased.
pub(crate) struct Definition {
    pub(crate) name: Arc<str>,
    pub(crate) is_eager: bool,
    pub(crate) code: CodeIn,
    /// How its language limits durable calls in time, in words.
    pub(crate) time_limit: &'static str,
    pub(crate) body: Box<Body>,
}

impl Definition {
    /// True if its code is polled by a binding, not by the run's task.
    pub(crate) fn is_guest(&self) -> bool {
        matches!(self.code, CodeIn::Loop | CodeIn::Thread)
    }

    /// True if its code holds a thread of a pool while it runs.
    pub(crate) fn is_in_thread(&self) -> bool {
        self.code == CodeIn::Thread
    }
}

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
        let body = move |cx: Context, input: &Payload| -> Result<BodyFuture, Failure> {
            let input: I = input.decode().map_err(|error| {
                let error = error.of_value(|| format!("the input of workflow {shown:?}"));
                Failure::of_kind(UNREADABLE, error.to_string())
            })?;
            let run = body(cx, input);
            Ok(Box::pin(async move {
                let output = run.await.map_err(IntoFailure::into_failure)?;
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
                let body = Box::new(move |cx: Context, input: &Payload| (inner.body)(cx, input));
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
        let body = |_: Context, _: &Payload| -> Result<BodyFuture, Failure> {
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

/// The workflows an engine knows, by name.
#[derive(Default)]
pub(crate) struct Definitions(HashMap<Arc<str>, Arc<Definition>, foldhash::fast::RandomState>);

/// Longest name of a workflow or step, in bytes.
pub(crate) const NAME_LIMIT: usize = 255;

impl Definitions {
    pub(crate) fn register(&mut self, definition: &Arc<Definition>) -> Result<(), Error> {
        check_name("workflow name", &definition.name)?;
        if definition.code == CodeIn::Elsewhere {
            let reason =
                format!("{:?} has no code in this program; only a client can start it", definition.name);
            return Err(Error::Invalid { what: "workflow", reason });
        }
        match self.0.insert(definition.name.clone(), definition.clone()) {
            Some(other) if !Arc::ptr_eq(&other, definition) => Err(Error::Invalid {
                what: "workflow name",
                reason: format!("{:?} is registered twice; give one of them another name", definition.name),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Definition>> {
        self.0.get(name)
    }

    pub(crate) fn names(&self) -> Arc<[Arc<str>]> {
        let mut names: Vec<Arc<str>> = self.0.keys().cloned().collect();
        names.sort();
        names.into()
    }
}

/// Names and ids go into the database as text and onto terminals: not empty, not too long, no control
/// characters.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), Error> {
    check_text(what, name, NAME_LIMIT)
}

pub(crate) fn check_text(what: &'static str, text: &str, limit: usize) -> Result<(), Error> {
    let reason = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > limit {
        format!("has {} bytes, at most {limit} are allowed", text.len())
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("{} contains the control character {control:?}; use printable characters only", quoted(text))
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what, reason })
}
