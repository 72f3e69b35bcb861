//! Builders for starts: [`Engine::start`], [`Engine::start_many`] and [`Engine::run`].

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::start_future::{RunFuture, StartFuture};
use crate::engine::submission::{ArcRef, Submission};
use crate::error::Error;
use crate::payload::Payload;
use crate::runtime::definition::Definition;
use crate::runtime::start::option_methods::start_option_methods;
use crate::runtime::start::options::StartOptions;
use crate::workflow::Workflow;

/// A builder for a start: `.await` it for the execution's [`Handle`].
#[must_use = "nothing is started until this is awaited"]
pub struct StartBuilder<'e, I, O> {
    engine: &'e Engine,
    definition: &'e Arc<Definition>,
    input: I,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

/// A builder for a run: `.await` it for the execution's output.
#[must_use = "nothing runs until this is awaited"]
pub struct RunBuilder<'e, I, O>(StartBuilder<'e, I, O>);

/// A builder for several starts: `.await` it for the executions' [`Handle`]s.
#[must_use = "nothing is started until this is awaited"]
pub struct StartManyBuilder<'e, I, O>(StartBuilder<'e, Vec<I>, O>);

/// Maximum number of starts of one `start_many` that are under way at a time.
const MAX_STARTS_IN_FLIGHT: usize = 4_096;

impl Engine {
    /// Starts an execution. When the call returns, the start is durable: the execution will run to its end.
    pub fn start<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> StartBuilder<'e, I, O> {
        let definition = &workflow.definition;
        StartBuilder { engine: self, definition, input, options: None, output: PhantomData }
    }

    /// Starts one execution per input, all with the same options. Many of the starts share a flush, like those of
    /// concurrent callers. When the call returns, all starts are durable; after an error, some may be durable.
    pub fn start_many<'e, I, O>(
        &'e self,
        workflow: &'e Workflow<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> StartManyBuilder<'e, I, O> {
        let input = inputs.into_iter().collect();
        let definition = &workflow.definition;
        StartManyBuilder(StartBuilder { engine: self, definition, input, options: None, output: PhantomData })
    }

    /// Starts an execution and waits for its output. The call takes one flush, unless a body has to wait until earlier
    /// Writes are durable.
    pub fn run<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> RunBuilder<'e, I, O> {
        RunBuilder(self.start(workflow, input))
    }
}

start_option_methods!(StartBuilder.options:
    workflow_id, execution_timeout, run_timeout, wait_timeout, queue, key, priority, dedup_id, on_duplicate, on_full,
    debounce, max_delay, delay, start_at, attribute,
);

start_option_methods!(RunBuilder.0.options:
    workflow_id, execution_timeout, run_timeout, wait_timeout, queue, key, priority, dedup_id, on_duplicate, on_full,
    debounce, max_delay, delay, start_at, attribute,
);

start_option_methods!(StartManyBuilder.0.options:
    execution_timeout, run_timeout, wait_timeout, queue, key, priority, on_full, delay, start_at, attribute,
);

impl<'e, I, O> IntoFuture for StartManyBuilder<'e, I, O>
where
    I: Serialize + Send + 'e,
    O: Send + 'e,
{
    type Output = Result<Vec<Handle<O>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'e>>;

    fn into_future(self) -> Self::IntoFuture {
        let StartBuilder { engine, definition, input, options, .. } = self.0;
        let submission = |input: I| {
            let (engine, definition) =
                (ArcRef::Owned(engine.inner.clone()), ArcRef::Owned(definition.clone()));
            Ok(Submission::new(engine, definition, Payload::encode(&input)?, options.clone()))
        };
        let submissions: Result<Vec<_>, Error> = input.into_iter().map(submission).collect();
        Box::pin(async move { start_all(submissions?).await })
    }
}

/// Starts an execution for each of `submissions`, with enough starts at a time to fill flushes.
pub(crate) fn start_all<'o, O: Send + 'o>(
    submissions: Vec<Submission<'static>>,
) -> BoxFuture<'o, Result<Vec<Handle<O>>, Error>> {
    let start = |submission: Submission<'static>| -> BoxFuture<'o, _> { submission.start().boxed() };
    stream::iter(submissions.into_iter().map(start)).buffered(MAX_STARTS_IN_FLIGHT).try_collect().boxed()
}

impl<'e, I, O> IntoFuture for StartBuilder<'e, I, O>
where
    I: Serialize,
    O: Send + 'e,
{
    type Output = Result<Handle<O>, Error>;
    type IntoFuture = StartFuture<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let StartBuilder { engine, definition, input, options, .. } = self;
        let (engine, definition) = (ArcRef::Borrowed(&engine.inner), ArcRef::Borrowed(definition));
        match Payload::encode(&input) {
            Ok(input) => StartFuture::new(Submission::new(engine, definition, input, options)),
            Err(error) => StartFuture::with_error(error),
        }
    }
}

impl<'e, I, O> IntoFuture for RunBuilder<'e, I, O>
where
    I: Serialize,
    O: DeserializeOwned + Send + 'e,
{
    type Output = Result<O, Error>;
    type IntoFuture = RunFuture<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let StartBuilder { engine, definition, input, options, .. } = self.0;
        let (engine, definition) = (ArcRef::Borrowed(&engine.inner), ArcRef::Borrowed(definition));
        match Payload::encode(&input) {
            Ok(input) => RunFuture::new(Submission::new(engine, definition, input, options)),
            Err(error) => RunFuture::with_error(error),
        }
    }
}
