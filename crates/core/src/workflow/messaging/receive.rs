//! [`Receive`]: a durable call that waits for a message.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::messaging::{DEFAULT_TOPIC, check_topic};
use crate::runtime::run::call::{Call, WaitingFor};
use crate::runtime::run::mailbox::Received;
use crate::runtime::run::replay::CallKind;
use crate::store::{CheckpointKind, MAX_PENDING_LOADED, PendingMessage, Write};
use crate::workflow::context::Context;
use crate::workflow::messaging::change::wait_for_change;
use crate::workflow::sleep::due_at_after;

/// A durable call that waits for a message to the execution. Made by [`Context::receive`].
#[must_use = "nothing is received before the call is awaited"]
pub struct Receive<'c, T> {
    context: &'c mut Context,
    topic: Arc<str>,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

impl Context {
    /// Waits durably for the next message to this execution, and returns its value. Each message is received once, in the
    /// order in which the messages became durable. Several calls that wait for the same topic receive in the order in which
    /// they began.
    ///
    /// # Errors
    ///
    /// A value that is not a `T` fails the call; the message counts as received.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Receive<'_, T> {
        Receive { context: self, topic: DEFAULT_TOPIC.into(), timeout: None, value: PhantomData }
    }

    /// Begins the call that receives a message of a topic. Takes the path of the call in any case.
    pub(crate) fn begin_receive(&mut self, topic: Arc<str>) -> Result<(Call, Arc<str>), Error> {
        let path = self.next_path();
        check_topic(&topic)?;
        Ok((Call::begin(&self.run, path, &topic.clone().into(), CallKind::Receive, None), topic))
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> Receive<'c, T> {
    /// Receives only messages of this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Ends the wait after this time. The call then returns `None`.
    pub fn timeout(self, timeout: Duration) -> ReceiveWithin<'c, T> {
        ReceiveWithin(Self { timeout: Some(timeout), ..self })
    }

    async fn receive(self) -> Result<Option<T>, Failure> {
        let begun = self.context.begin_receive(self.topic);
        let (call, topic) = begun.map_err(|error| error.to_failure())?;
        let Some(value) = receive(&call, &topic, self.timeout).await? else { return Ok(None) };
        value
            .decode::<T>()
            .map(Some)
            .map_err(|error| error.with_value(|| format!("a message of topic {topic:?}")).to_failure())
    }
}

/// A [`Receive`] whose wait ends after a time.
#[must_use = "nothing is received before the call is awaited"]
pub struct ReceiveWithin<'c, T>(Receive<'c, T>);

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for Receive<'c, T> {
    type Output = Result<T, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.receive().await? {
                Some(value) => Ok(value),
                // without a timeout, the wait ends with a message
                None => std::future::pending().await,
            }
        })
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for ReceiveWithin<'c, T> {
    type Output = Result<Option<T>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.receive())
    }
}

/// Runs a call that receives a message. Returns the value, or `None` after the timeout. Fails if the database has rejected
/// the receipt.
pub(crate) async fn receive(
    call: &Call,
    topic: &Arc<str>,
    timeout: Option<Duration>,
) -> Result<Option<Payload>, Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        // the run that has received here has forwarded the kept messages before
        call.run.state().calls.mailbox().set_complete(topic);
        return match recorded.kind {
            CheckpointKind::Message => Ok(Some(call.fetch(recorded.outcome).await)),
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(None),
        };
    }
    let run = &call.run;
    let until = timeout.map(|timeout| due_at_after(call, timeout));
    // a message needs a receiver with a row
    run.stage_row();
    run.state().calls.mailbox().add_receiver(topic, call.id());
    let message = {
        let receiver = Receiver { call, topic };
        receiver.forward_kept().await;
        receiver.wait(until).await
    };
    match message {
        Some(message) => {
            run.set_message(call.id(), message.number);
            call.deliver(CheckpointKind::Message, message.value.clone(), 0).await;
            Ok(Some(call.fetch(message.value).await))
        }
        None => {
            call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
            Ok(None)
        }
    }
}

/// A call among the receivers of a topic, until this value is dropped.
struct Receiver<'c> {
    call: &'c Call,
    topic: &'c Arc<str>,
}

impl Receiver<'_> {
    /// Moves the messages of the topic that were kept for the workflow_id to this execution, unless the topic is complete.
    async fn forward_kept(&self) {
        let Self { call, topic } = *self;
        let run = &call.run;
        let Some(id) = &run.given_id else { return };
        if run.state().calls.mailbox().is_complete(topic) {
            return;
        }
        // a sender that does not find the execution keeps its message, and looks again: the execution must be found then,
        // or the message here
        if let Some(lsn) = run.start_lsn() {
            run.lane().wait_durable(lsn).await;
        }
        let forward = run.engine.new_forward(id, run.key);
        if !self.find_messages(forward.address).await.is_empty() {
            let Some(lsn) = run.stage(Write::Forward(forward), 0) else { return };
            run.lane().wait_durable(lsn).await;
        }
        run.state().calls.mailbox().set_complete(topic);
    }

    /// Waits for a message until a time; `None` if none has come.
    async fn wait(&self, until: Option<Timestamp>) -> Option<PendingMessage> {
        let run = &self.call.run;
        let watcher = run.engine.change_watch.watch(run.key);
        loop {
            let change = watcher.next_change();
            if let Some(message) = self.take() {
                return Some(message);
            }
            let receipts = run.barrier(false).filter(|lsn| !run.lane().is_settled(*lsn));
            let count = self.load().await;
            if let Some(message) = self.take() {
                return Some(message);
            }
            if count == MAX_PENDING_LOADED
                && let Some(lsn) = receipts
            {
                // other messages may follow the loaded ones, which were taken: their rows are gone when the receipts are
                // durable
                run.lane().wait_durable(lsn).await;
                continue;
            }
            let waiting_for = WaitingFor::Message { topic: self.topic.clone(), until };
            if !wait_for_change(self.call, Some(waiting_for), until, change).await {
                return None;
            }
        }
    }

    fn take(&self) -> Option<PendingMessage> {
        self.call.run.state().calls.mailbox().take(self.topic, self.call.id())
    }

    /// Loads the pending messages of the topic. Returns their number, with those that were taken.
    async fn load(&self) -> usize {
        let run = &self.call.run;
        let mut load = Load { receiver: self, received: None };
        load.received =
            Some(run.state().calls.mailbox().begin_load(self.topic, |lsn| run.lane().is_settled(lsn)));
        let messages = self.find_messages(run.key).await;
        let count = messages.len();
        if let Some(received) = load.received.take() {
            run.state().calls.mailbox().finish_load(self.topic, messages, &received);
        }
        count
    }

    /// Returns the pending messages of the topic that were sent to an execution, or are kept at an address.
    async fn find_messages(&self, receiver: Key) -> Vec<PendingMessage> {
        let engine = &self.call.run.engine;
        let query = || async { engine.message_loads.load((receiver, self.topic.clone())).await };
        match engine.query_with_retry(query).await {
            Ok(messages) => messages,
            // the engine is ending, and requeues the execution
            Err(Error::Unavailable(_)) => std::future::pending().await,
            Err(error) => self.call.park(error.to_string()).await,
        }
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        let run = &self.call.run;
        let has_others = run.state().calls.mailbox().remove_receiver(self.topic, self.call.id());
        if has_others {
            // another call may be the first now
            run.engine.change_watch.notify(run.key);
        }
    }
}

/// A load that is under way.
struct Load<'r, 'c> {
    receiver: &'r Receiver<'c>,
    received: Option<Received>,
}

impl Drop for Load<'_, '_> {
    fn drop(&mut self) {
        if self.received.is_some() {
            self.receiver.call.run.state().calls.mailbox().cancel_load();
        }
    }
}
