//! Starting executions: [`Engine::start`] and [`Engine::run`].

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
use crate::engine::start_future::{Running, Starting};
use crate::engine::submission::{Held, Order};
use crate::error::Error;
use crate::payload::Payload;
use crate::queue::{OnDuplicate, OnFull};
use crate::runtime::definition::Definition;
use crate::runtime::start_options::{Due, StartOptions, forward_options};
use crate::workflow::Workflow;

/// An execution about to be started; `.await` it for its [`Handle`].
#[must_use = "nothing is started until this is awaited"]
pub struct Start<'e, I, O> {
    engine: &'e Engine,
    definition: &'e Arc<Definition>,
    input: I,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

/// An execution about to be run; `.await` it for its output.
#[must_use = "nothing runs until this is awaited"]
pub struct RunToEnd<'e, I, O>(Start<'e, I, O>);

/// Executions about to be started; `.await` it for their [`Handle`]s.
#[must_use = "nothing is started until this is awaited"]
pub struct StartMany<'e, I, O>(Start<'e, Vec<I>, O>);

/// So many of one call are started at a time.
const AT_A_TIME: usize = 4_096;

impl Engine {
    /// Starts an execution. When this returns, it is durable that it will run to its end.
    pub fn start<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> Start<'e, I, O> {
        let definition = &workflow.definition;
        Start { engine: self, definition, input, options: None, output: PhantomData }
    }

    /// Starts one execution for each input, all with the same options: many share a flush, as they do when many callers
    /// start one each. When this returns, all of them are durable; if it comes to an error, some may be.
    pub fn start_many<'e, I, O>(
        &'e self,
        workflow: &'e Workflow<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> StartMany<'e, I, O> {
        let input = inputs.into_iter().collect();
        let definition = &workflow.definition;
        StartMany(Start { engine: self, definition, input, options: None, output: PhantomData })
    }

    /// Starts an execution and waits for its output: one flush, where nothing else has to be durable before.
    pub fn run<'e, I, O>(&'e self, workflow: &'e Workflow<I, O>, input: I) -> RunToEnd<'e, I, O> {
        RunToEnd(self.start(workflow, input))
    }
}

impl<I, O> Start<'_, I, O> {
    fn options(&mut self) -> &mut StartOptions {
        self.options.get_or_insert_default()
    }

    /// The execution's id, and the idempotency key of starting it: a second start with the same id,
    /// workflow and input gets a handle to the first; with others [`Error::Conflict`].
    pub fn workflow_id(mut self, id: impl AsRef<str>) -> Self {
        self.options().workflow_id = Some(id.as_ref().into());
        self
    }

    /// Cancels the execution if it has not ended after this time.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.options().timeout = Some(timeout);
        self
    }

    /// Cancels the execution if it has not ended so long after it has begun: time in a queue does not count, waits and
    /// recoveries do.
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.options().run_timeout = Some(timeout);
        self
    }

    /// The queue that it waits in until a worker takes it: see [`Queue`](crate::queue::Queue). It has to be declared,
    /// here or anywhere.
    pub fn queue(mut self, queue: impl AsRef<str>) -> Self {
        self.options().queue = Some(queue.as_ref().into());
        self
    }

    /// Its key within the queue: keys take turns, so that none waits behind the backlog of another, and may have
    /// limits of their own.
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        self.options().key = Some(key.as_ref().into());
        self
    }

    /// Smaller comes first among those of its queue and key. 0 by default.
    pub fn priority(mut self, priority: i32) -> Self {
        self.options().priority = Some(priority);
        self
    }

    /// There is one at most in its queue that has this and has not ended: what a second one comes to, says
    /// [`on_duplicate`](Start::on_duplicate). Whatever its key is; and it is free again when that one has ended, in
    /// whatever way.
    pub fn dedup_id(mut self, id: impl AsRef<str>) -> Self {
        self.options().dedup_id = Some(id.as_ref().into());
        self
    }

    /// What this comes to if another has its [`dedup_id`](Start::dedup_id): [`Error::Deduplicated`], unless told otherwise.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.options().on_duplicate = on_duplicate;
        self
    }

    /// What this comes to if its queue is [full](crate::queue::Queue::max_depth): [`Error::QueueFull`], unless told
    /// otherwise. One that waits does so for as long as [`wait_at_most`](Start::wait_at_most) says, and then comes to
    /// that error.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.options().on_full = on_full;
        self
    }

    /// Starts of this workflow in this queue that have this id are one execution, until that may begin: each lets it begin
    /// its [`delay`](Start::delay) later than it comes itself, and the input of the last one counts, as do its key, its
    /// priority and its run_timeout. Each comes to a handle to that execution. Its input has at most 64 KiB, and
    /// it has no attributes.
    pub fn debounce(mut self, id: impl AsRef<str>) -> Self {
        self.options().debounce = Some(id.as_ref().into());
        self
    }

    /// However often it is put off, what is [debounced](Start::debounce) may begin so long after the first start. No limit
    /// by default.
    pub fn max_delay(mut self, most: Duration) -> Self {
        self.options().max_delay = Some(most);
        self
    }

    /// It begins not before this long after it was accepted; in a queue, it stands there from then on.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options().due = Some(Due::After(delay));
        self
    }

    /// It begins not before this time, by the clock of the database; in a queue, it stands there from then on.
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.options().due = Some(Due::At(time));
        self
    }

    /// An attribute that it is found by: [`Engine::list`] filters by them. It keeps them for good; what it starts has its
    /// own. Called again for another one; at most 64, with names of at most 128 bytes and values of at most 1,024.
    pub fn attribute(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.options().attributes.set(name.as_ref(), value.as_ref());
        self
    }

    /// Waits at most this long for the database, then fails with [`Error::Unavailable`]: the start stays
    /// staged and may happen; repeating it with the same workflow_id is safe.
    pub fn wait_at_most(mut self, patience: Duration) -> Self {
        self.options().patience = Some(patience);
        self
    }
}

forward_options!(RunToEnd of Start {
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
    max_delay(most: Duration),
    delay(delay: Duration),
    start_at(time: Timestamp),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
});

forward_options!(StartMany of Start {
    execution_timeout(timeout: Duration),
    run_timeout(timeout: Duration),
    queue(queue: impl AsRef<str>),
    key(key: impl AsRef<str>),
    priority(priority: i32),
    on_full(on_full: OnFull),
    delay(delay: Duration),
    start_at(time: Timestamp),
    attribute(name: impl AsRef<str>, value: impl AsRef<str>),
    wait_at_most(patience: Duration),
});

impl<I, O> RunToEnd<'_, I, O> {
    /// Waits at most this long for the output, then fails with [`Error::Unavailable`]; the execution goes on.
    pub fn wait_at_most(self, patience: Duration) -> Self {
        Self(self.0.wait_at_most(patience))
    }
}

impl<'e, I, O> IntoFuture for StartMany<'e, I, O>
where
    I: Serialize + Send + 'e,
    O: Send + 'e,
{
    type Output = Result<Vec<Handle<O>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'e>>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { engine, definition, input, options, .. } = self.0;
        let order = |input: I| {
            let (core, definition) = (Held::Own(engine.core.clone()), Held::Own(definition.clone()));
            Ok(Order::new(core, definition, Payload::encode(&input)?, options.clone()))
        };
        let orders: Result<Vec<_>, Error> = input.into_iter().map(order).collect();
        Box::pin(async move { start_all(orders?).await })
    }
}

/// Starts all of these, so many at a time that they fill flushes.
pub(crate) fn start_all<'o, O: Send + 'o>(
    orders: Vec<Order<'static>>,
) -> BoxFuture<'o, Result<Vec<Handle<O>>, Error>> {
    let start = |order: Order<'static>| -> BoxFuture<'o, _> { order.start().boxed() };
    stream::iter(orders.into_iter().map(start)).buffered(AT_A_TIME).try_collect().boxed()
}

impl<'e, I, O> IntoFuture for Start<'e, I, O>
where
    I: Serialize,
    O: Send + 'e,
{
    type Output = Result<Handle<O>, Error>;
    type IntoFuture = Starting<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { engine, definition, input, options, .. } = self;
        let (core, definition) = (Held::Lent(&engine.core), Held::Lent(definition));
        match Payload::encode(&input) {
            Ok(input) => Starting::of(Order::new(core, definition, input, options)),
            Err(error) => Starting::failed(error),
        }
    }
}

impl<'e, I, O> IntoFuture for RunToEnd<'e, I, O>
where
    I: Serialize,
    O: DeserializeOwned + Send + 'e,
{
    type Output = Result<O, Error>;
    type IntoFuture = Running<'e, O>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { engine, definition, input, options, .. } = self.0;
        let (core, definition) = (Held::Lent(&engine.core), Held::Lent(definition));
        match Payload::encode(&input) {
            Ok(input) => Running::of(Order::new(core, definition, input, options)),
            Err(error) => Running::failed(error),
        }
    }
}
