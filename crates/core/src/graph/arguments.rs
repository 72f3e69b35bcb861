//! [`Arguments`]: the values that a task takes, with their types.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::graph::code::TaskArguments;
use crate::graph::context::shared::GraphContext;
use crate::name::Name;
use crate::payload::Payload;

/// A reference to a task of a graph, whose value other tasks take. The value has the type `T`.
pub struct TaskRef<T> {
    pub(super) name: Name,
    value: PhantomData<fn() -> T>,
}

/// A reference to a task whose value another task takes if there is one: see [`TaskRef::optional`].
pub struct OptionalTaskRef<T>(TaskRef<T>);

/// The input of a graph, as an argument of its tasks.
pub struct GraphInput<I>(pub(super) PhantomData<fn() -> I>);

impl<T> TaskRef<T> {
    pub(super) fn new(name: Name) -> Self {
        Self { name, value: PhantomData }
    }

    /// Returns the task's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same task as an argument that may be missing: `None` if the task has failed or was skipped.
    #[must_use]
    pub fn optional(&self) -> OptionalTaskRef<T> {
        OptionalTaskRef(self.clone())
    }
}

impl<T> Clone for TaskRef<T> {
    fn clone(&self) -> Self {
        Self::new(self.name.clone())
    }
}

impl<I> Clone for GraphInput<I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for GraphInput<I> {}

/// An argument before its task is found by name.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum ArgumentSource {
    /// The input of the graph.
    Input,
    /// The value of a task.
    Task {
        /// The name of the task.
        name: Name,
        /// Whether the value may be missing.
        is_optional: bool,
    },
    /// The context of the graph.
    Context {
        /// Whether the task may change the context.
        is_changed: bool,
    },
}

/// The encoded arguments of an attempt, in the order of their sources.
#[doc(hidden)]
pub struct ArgumentValues<'v> {
    payloads: std::slice::Iter<'v, Option<Payload>>,
    context: Option<GraphContext>,
}

impl<'v> ArgumentValues<'v> {
    pub(super) fn new(arguments: &'v TaskArguments) -> Self {
        let context = arguments.context.as_ref();
        Self {
            payloads: arguments.payloads.iter(),
            context: context.map(|values| GraphContext::from_values(values.clone())),
        }
    }

    /// Skips the first value.
    pub(super) fn skip_first(mut self) -> Self {
        self.payloads.next();
        self
    }

    fn next(&mut self) -> Option<&'v Payload> {
        self.payloads.next()?.as_ref()
    }

    /// Returns the context of the attempt. All calls return the same one.
    pub(super) fn context(&mut self) -> GraphContext {
        self.context.get_or_insert_default().clone()
    }
}

/// The values that a task takes, or the values of which a graph makes its output.
///
/// Implemented for `()`, for the [input of the graph](GraphInput), for [tasks](TaskRef), for the [context of the
/// graph](crate::graph::ContextRef), for lists of tasks with values of one type (`Vec<TaskRef<T>>`), and for tuples of
/// these.
pub trait Arguments {
    /// The types of the values.
    type Values: Send + 'static;

    /// Appends the sources of the values.
    #[doc(hidden)]
    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>);

    /// Decodes the values, of which it takes as many as it has sources.
    #[doc(hidden)]
    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<Self::Values, Error>;
}

impl<T: DeserializeOwned + Send + 'static> Arguments for TaskRef<T> {
    type Values = T;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        sources.push(ArgumentSource::Task { name: self.name.clone(), is_optional: false });
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<T, Error> {
        let Some(payload) = values.next() else { return Err(missing_value(&self.name)) };
        payload.decode().map_err(|error| error.with_value(|| format!("the value of task {:?}", &*self.name)))
    }
}

impl<T: DeserializeOwned + Send + 'static> Arguments for OptionalTaskRef<T> {
    type Values = Option<T>;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        sources.push(ArgumentSource::Task { name: self.0.name.clone(), is_optional: true });
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<Option<T>, Error> {
        let Some(payload) = values.next() else { return Ok(None) };
        let value = payload.decode();
        value.map(Some).map_err(|error| error.with_value(|| format!("the value of task {:?}", &*self.0.name)))
    }
}

impl<I: DeserializeOwned + Send + 'static> Arguments for GraphInput<I> {
    type Values = I;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        sources.push(ArgumentSource::Input);
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<I, Error> {
        let Some(payload) = values.next() else { return Err(missing_value("input")) };
        payload.decode().map_err(|error| error.with_value(|| "the input of the graph".to_owned()))
    }
}

impl<Each: Arguments> Arguments for Vec<Each> {
    type Values = Vec<Each::Values>;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        for argument in self {
            argument.collect_sources(sources);
        }
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<Self::Values, Error> {
        self.iter().map(|argument| argument.decode(values)).collect()
    }
}

/// Implements [`Arguments`] for a tuple.
macro_rules! tuple_arguments {
    ($($argument:ident),*) => {
        impl<$($argument: Arguments),*> Arguments for ($($argument,)*) {
            type Values = ($($argument::Values,)*);

            #[allow(non_snake_case, unused_variables)]
            fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
                let ($($argument,)*) = self;
                $($argument.collect_sources(sources);)*
            }

            #[allow(non_snake_case, unused_variables, clippy::unused_unit)]
            fn decode(
                &self,
                values: &mut ArgumentValues<'_>,
            ) -> Result<Self::Values, Error> {
                let ($($argument,)*) = self;
                Ok(($($argument.decode(values)?,)*))
            }
        }
    };
}

tuple_arguments!();
tuple_arguments!(A);
tuple_arguments!(A, B);
tuple_arguments!(A, B, C);
tuple_arguments!(A, B, C, D);
tuple_arguments!(A, B, C, D, E);
tuple_arguments!(A, B, C, D, E, F);
tuple_arguments!(A, B, C, D, E, F, G);
tuple_arguments!(A, B, C, D, E, F, G, H);

fn missing_value(task: &str) -> Error {
    Error::Invalid { input: "task", reason: format!("{task:?} has no value: it failed or was skipped") }
}
