//! Messages, events and tokens: the parts that clients and workflows share.

pub(crate) mod answer;
pub(crate) mod events;
pub(crate) mod private_names;
pub(crate) mod questions;
pub(crate) mod shown;
pub(crate) mod streams;
pub(crate) mod tokens;

use std::sync::Arc;

use crate::commit::{Lane, Lsn};
use crate::error::Error;
use crate::key::Key;
use crate::name_checks::{MAX_ID_BYTES, check_name, check_text, split_item_id};
use crate::payload::{INLINE_LIMIT, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::private_names::is_private;
use crate::runtime::run::chunks::reserve_row;
use crate::runtime::run::item_lookup::key_of_text;
use crate::store::{Execution, ExecutionId, Forward, Message, Outcome, Write};

/// The topic of messages that are sent without one.
pub(crate) const DEFAULT_TOPIC: &str = "default";

/// Returns an error for a topic that no message can have.
pub(crate) fn check_topic(topic: &str) -> Result<(), Error> {
    check_name("topic", topic)
}

/// Returns an error for an id that a caller cannot give to a message.
pub(crate) fn check_message_id(id: &str) -> Result<(), Error> {
    check_text("message_id", id, MAX_ID_BYTES)
}

/// Returns an error for a value that is too large for a message of this topic.
pub(crate) fn check_message_size(topic: &str, value: &Payload) -> Result<(), Error> {
    let size = value.len();
    if size <= INLINE_LIMIT {
        return Ok(());
    }
    let reason = format!(
        "{} has {size} bytes, and the limit is {INLINE_LIMIT}; store the value elsewhere, and send where",
        describe_message(topic)
    );
    Err(Error::Invalid { input: "value", reason })
}

fn describe_message(topic: &str) -> String {
    if is_private(topic) {
        "the value of the answer or the question".to_owned()
    } else {
        format!("the message of topic {topic:?}")
    }
}

impl EngineInner {
    /// Returns the message that sends a value to an execution now.
    pub(crate) fn new_message(
        &self,
        execution: Key,
        topic: Arc<str>,
        id: Option<Arc<str>>,
        value: Payload,
    ) -> Result<Message, Error> {
        let size = value.len();
        check_message_size(&topic, &value)?;
        let limit = self.options.value_limit;
        if size > limit {
            return Err(Error::TooLarge { value: describe_message(&topic), size, limit });
        }
        let sent_at = self.now();
        Ok(Message { execution, address: None, topic, id, value, sent_at, is_owned: false })
    }

    /// Sends a message from outside of executions, and returns the outcome when the message is durable.
    pub(crate) async fn send_message(&self, message: Message) -> Result<Outcome, Error> {
        let receiver = message.execution;
        let texts = message.size() - message.value.len();
        let reserved = reserve_row(self.lane_of(receiver), &message.value, texts).await;
        let staged = self.stage_reserved(receiver, Write::Send(message.into()), reserved);
        let Some((lane, lsn)) = staged else { return Err(self.dropped_write_error()) };
        Ok(lane.wait_durable(lsn).await)
    }

    /// Returns the key of the execution with this workflow_id, to which messages can be sent.
    pub(crate) async fn find_receiver(&self, workflow_id: &str) -> Result<Key, Error> {
        let found = match self.find_execution(workflow_id).await? {
            None => self.find_item(workflow_id).await?,
            found => found,
        };
        let execution = found.ok_or_else(|| Error::NotFound { workflow_id: workflow_id.to_owned() })?;
        if execution.key.is_batch() {
            let reason = "a batch receives no messages; send them to its items".to_owned();
            return Err(Error::Invalid { input: "workflow_id", reason });
        }
        Ok(execution.key)
    }

    /// Returns the execution that a search for the receiver of a message has found. If there is none, and the message is to
    /// be kept, returns the address of the workflow_id.
    pub(crate) fn receiver_or_address(
        &self,
        found: Result<Key, Error>,
        workflow_id: &str,
        keeps: bool,
    ) -> Result<Key, Error> {
        match found {
            Err(Error::NotFound { .. }) if keeps => self.address_of(workflow_id),
            found => found,
        }
    }

    /// Returns the address of a workflow_id that an execution can get later. Fails for other ids.
    fn address_of(&self, workflow_id: &str) -> Result<Key, Error> {
        check_text("workflow_id", workflow_id, MAX_ID_BYTES)?;
        if key_of_text(workflow_id).is_some() || split_item_id(workflow_id).is_some() {
            let reason = format!(
                "no message can be kept for {workflow_id:?}: it looks like an id that the engine gives to an execution or \
                 to an item"
            );
            return Err(Error::Invalid { input: "workflow_id", reason });
        }
        Ok(Key::address_of(workflow_id, self.shard))
    }

    /// Stages the move of kept messages to their execution. A message that is sent to the execution later is received after
    /// them.
    pub(crate) fn stage_forward(&self, forward: Forward) -> Option<(&Lane, Lsn)> {
        self.stage_unowned(forward.execution, Write::Forward(forward))
    }

    /// Returns the Write that moves the messages that are kept for this workflow_id to its execution.
    pub(crate) fn new_forward(&self, workflow_id: &str, execution: Key) -> Forward {
        Forward { address: Key::address_of(workflow_id, self.shard), execution }
    }

    /// Moves the messages that are kept for this workflow_id to its execution, if the execution exists by now.
    ///
    /// A receiver looks for kept messages when its Start is durable, and a sender looks for the receiver when its message is
    /// durable. So one of them finds the other.
    pub(crate) async fn forward_to_new(&self, workflow_id: &str) -> Result<(), Error> {
        crate::crash_point!("message kept");
        let receiver = match self.find_receiver(workflow_id).await {
            Err(Error::NotFound { .. }) => return Ok(()),
            found => found?,
        };
        let staged = self.stage_forward(self.new_forward(workflow_id, receiver));
        let (lane, lsn) = staged.ok_or_else(|| self.dropped_write_error())?;
        lane.wait_durable(lsn).await;
        Ok(())
    }

    /// Returns the execution with this id, or with this text of its key.
    async fn find_execution(&self, workflow_id: &str) -> Result<Option<Execution>, Error> {
        let found = self.executions.load(ExecutionId::Given(workflow_id.into())).await?;
        match key_of_text(workflow_id) {
            Some(key) if found.is_none() => self.executions.load(ExecutionId::Key(key)).await,
            _ => Ok(found),
        }
    }

    /// Returns the item with this id if it has a row of its own. Fails for an item without one.
    async fn find_item(&self, workflow_id: &str) -> Result<Option<Execution>, Error> {
        let Some((batch, index)) = split_item_id(workflow_id) else { return Ok(None) };
        let Some(batch) = self.find_execution(batch).await?.filter(|it| it.key.is_batch()) else {
            return Ok(None);
        };
        let key = batch.key.item(index);
        if let Some(item) = self.executions.load(ExecutionId::Key(key)).await? {
            return Ok(Some(item));
        }
        match self.store.load_items(&[key]).await?.pop().flatten() {
            None => Ok(None),
            Some(_) => Err(Error::Invalid {
                input: "workflow_id",
                reason: format!(
                    "item {workflow_id:?} receives no messages before it waits for one, or for a timer, as an execution \
                     of its own"
                ),
            }),
        }
    }

    /// Returns the error of a message that was not sent, because the Write has this outcome.
    pub(crate) fn send_error(&self, workflow_id: &str, outcome: Outcome) -> Error {
        let workflow_id = || workflow_id.to_owned();
        match outcome {
            Outcome::Ended(status) => Error::HasEnded {
                workflow_id: workflow_id(),
                status: status.as_str(),
                consequence: "receives no message".to_owned(),
            },
            Outcome::NotFound => Error::NotFound { workflow_id: workflow_id() },
            outcome => self.unapplied_error("message", outcome),
        }
    }
}
