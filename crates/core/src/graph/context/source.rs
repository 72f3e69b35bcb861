//! [`ContextRef`] and [`ContextView`]: the context of a graph as an argument of tasks and as its output.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::graph::arguments::{ArgumentSource, ArgumentValues, Arguments};
use crate::graph::context::shared::GraphContext;

/// The context of a graph, as an argument of tasks that read and change it, or as the output of the graph. Returned by
/// [`Graph::context`](crate::graph::Graph::context).
#[derive(Clone, Copy, Debug)]
pub struct ContextRef(());

/// The context of a graph as a value of the type `T`, whose fields are the keys: see [`ContextRef::view`].
pub struct ContextView<T>(PhantomData<fn() -> T>);

impl ContextRef {
    pub(in crate::graph) const fn new() -> Self {
        Self(())
    }

    /// Returns the context as an argument of the type `T`, for tasks that read the context without changing it, and for
    /// the output of the graph. `T` is a struct whose fields are keys of the context, or a map.
    #[must_use]
    pub fn view<T>(self) -> ContextView<T> {
        ContextView(PhantomData)
    }
}

impl<T> Clone for ContextView<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ContextView<T> {}

impl Arguments for ContextRef {
    type Values = GraphContext;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        sources.push(ArgumentSource::Context { is_changed: true });
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<GraphContext, Error> {
        Ok(values.context())
    }
}

impl<T: DeserializeOwned + Send + 'static> Arguments for ContextView<T> {
    type Values = T;

    fn collect_sources(&self, sources: &mut Vec<ArgumentSource>) {
        sources.push(ArgumentSource::Context { is_changed: false });
    }

    fn decode(&self, values: &mut ArgumentValues<'_>) -> Result<T, Error> {
        values.context().view()
    }
}
