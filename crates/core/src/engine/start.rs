//! Builders for starts: [`Engine::start`], [`Engine::start_many`] and [`Engine::run`].

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};

use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::start_future::{RunFuture, StartFuture};
use crate::engine::submission::{ArcRef, Submission};
use crate::error::Error;
use crate::payload::Payload;
use crate::queue::{OnDuplicate, OnFull};
use crate::runtime::definition::Definition;
use crate::runtime::start_options::{Due, StartOptions, forward_options};
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

/// Maximum number of starts of one call that are under way at a time.
const MAX_STARTS_IN_FLIGHT: usize = 4_096;

impl Engine {
    /// Starts an execution. When this returns, the start is durable: the execution will run to its end.
    pub fn start<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> StartBuilder<'e, I, O> {
        let definition = &workflow.definition;
        StartBuilder { engine: self, definition, input, options: None, output: PhantomData }
    }

    /// Starts one execution per input, all with the same options. Many of the starts share a flush, like those of
    /// concurrent callers. When this returns, all starts are durable; after an error, some may be.
    pub fn start_many<'e, I, O>(
        &'e self,
        workflow: &'e Workflow<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> StartManyBuilder<'e, I, O> {
        let input = inputs.into_iter().collect();
        let definition = &workflow.definition;
        StartManyBuilder(StartBuilder { engine: self, definition, input, options: None, output: PhantomData })
    }

    /// Starts an execution and waits for its output. This takes one flush, unless something else must be durable
    /// before.
    pub fn run<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> RunBuilder<'e, I, O> {
        RunBuilder(self.start(workflow, input))
    }
}

impl<I, O> StartBuilder<'_, I, O> {
    fn options(&mut self) -> &mut StartOptions {
        self.options.get_or_insert_default()
    }

    /// Sets the execution's id, which makes the start idempotent. A second start with the same id, workflow and input
    /// returns a handle to the first execution; with another workflow or input it fails with [`Error::Conflict`].
    pub fn workflow_id(mut self, id: impl AsRef<str>) -> Self {
        self.options().workflow_id = Some(id.as_ref().into());
        self
    }

    /// Cancels the execution unless it ends within `timeout` from its start.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.options().execution_timeout = Some(timeout);
        self
    }

    /// Cancels the execution unless it ends within `timeout` from its beginning. Time in a queue does not count;
    /// waits and recoveries do.
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.options().run_timeout = Some(timeout);
        self
    }

    /// Sets the [queue](crate::queue::Queue) in which the execution waits for a worker. The queue must be declared,
    /// in this process or in any other.
    pub fn queue(mut self, queue: impl AsRef<str>) -> Self {
        self.options().queue = Some(queue.as_ref().into());
        self
    }

    /// Sets the key within the queue. The keys of a queue share it fairly, so that none waits behind the backlog of
    /// another, and each may have limits of its own.
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        self.options().key = Some(key.as_ref().into());
        self
    }

    /// Sets the priority among executions of the same queue and key: smaller numbers come first. 0 by default.
    pub fn priority(mut self, priority: i32) -> Self {
        self.options().priority = Some(priority);
        self
    }

    /// Allows at most one unfinished execution with this id per queue, across keys.
    /// [`on_duplicate`](StartBuilder::on_duplicate) decides what a second start returns. The id becomes free when the
    /// execution ends.
    pub fn dedup_id(mut self, id: impl AsRef<str>) -> Self {
        self.options().dedup_id = Some(id.as_ref().into());
        self
    }

    /// Sets what the start returns if an unfinished execution has its [`dedup_id`](StartBuilder::dedup_id). By
    /// default it fails with [`Error::Deduplicated`].
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.options().on_duplicate = on_duplicate;
        self
    }

    /// Sets what the start does if its queue is [full](crate::queue::Queue::max_depth). By default it fails with
    /// [`Error::QueueFull`]. A start that waits does so for up to [`wait_timeout`](StartBuilder::wait_timeout), and
    /// then fails with that error.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.options().on_full = on_full;
        self
    }

    /// Debounces the start: until the execution begins, all starts of this workflow with this id in this queue are
    /// one execution. Each start postpones it to its own [`delay`](StartBuilder::delay) from then, and replaces its
    /// input, key, priority and run_timeout; each returns a handle to the execution. The input has at most 64 KiB,
    /// and attributes are not allowed.
    pub fn debounce(mut self, id: impl AsRef<str>) -> Self {
        self.options().debounce = Some(id.as_ref().into());
        self
    }

    /// Limits how long [debounced](StartBuilder::debounce) starts postpone the execution: it begins no later than
    /// `max_delay` after the first of them. No limit by default.
    pub fn max_delay(mut self, max_delay: Duration) -> Self {
        self.options().max_delay = Some(max_delay);
        self
    }

    /// Delays the execution: it begins no earlier than `delay` after it was accepted, and enters its queue only then.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options().due = Some(Due::After(delay));
        self
    }

    /// Schedules the execution: it begins no earlier than `time` by the database's clock, and enters its queue only
    /// then.
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.options().due = Some(Due::At(time));
        self
    }

    /// Adds an attribute, by which [`Engine::list`] finds the execution. Attributes are permanent, and children do
    /// not inherit them. Call it again for further ones: at most 64, with names of up to 128 bytes and values of up
    /// to 1,024.
    pub fn attribute(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.options().attributes.set(name.as_ref(), value.as_ref());
        self
    }

    /// Limits the wait for the database: after `timeout` the call fails with [`Error::Unavailable`]. The start stays
    /// staged and may still happen; repeating it with the same workflow_id is safe.
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.options().wait_timeout = Some(timeout);
        self
    }
}

forward_options!(RunBuilder of StartBuilder {
    workflow_id(id: impl AsRef<str>),
    execution_timeout(timeout: Duration),
    run_timeout(timeout: Duration),
    queue(queue: impl AsRef<str>),
    key(key: impl AsRef<str>),
    priority(priority: i32),
    dedup_id(id: impl AsRef<str>),
    on_duplicate(on_duplicate: OnDuplicate),
    on_full(on_full: OnFull),
    debounce(id: impl AsRef<str>),
    max_delay(max_delay: Duration),
    delay(delay: Duration),
    start_at(time: Timestamp),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
});

forward_options!(StartManyBuilder of StartBuilder {
    execution_timeout(timeout: Duration),
    run_timeout(timeout: Duration),
    queue(queue: impl AsRef<str>),
    key(key: impl AsRef<str>),
    priority(priority: i32),
    on_full(on_full: OnFull),
    delay(delay: Duration),
    start_at(time: Timestamp),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
    wait_timeout(timeout: Duration),
});

impl<I, O> RunBuilder<'_, I, O> {
    /// Limits the wait for the output: after `timeout` the call fails with [`Error::Unavailable`]. The execution
    /// continues.
    pub fn wait_timeout(self, timeout: Duration) -> Self {
        Self(self.0.wait_timeout(timeout))
    }
}

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

/// Starts all of these, enough of them at a time to fill flushes.
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
            Err(error) => StartFuture::failed(error),
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
            Err(error) => RunFuture::failed(error),
        }
    }
}
