//! Messages, events and tokens: the parts that clients and workflows share.

pub(crate) mod answer;
pub(crate) mod events;
pub(crate) mod private_names;
pub(crate) mod questions;
pub(crate) mod shown;
pub(crate) mod streams;
pub(crate) mod tokens;

use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::name_checks::{MAX_ID_BYTES, check_name, check_text, split_item_id};
use crate::payload::{INLINE_LIMIT, Payload};
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::private_names::is_private;
use crate::runtime::run::chunks::reserve_row;
use crate::runtime::run::item_lookup::key_of_text;
use crate::store::{Execution, ExecutionId, Message, Outcome, Write};

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
        let described = || {
            if is_private(&topic) {
                "the value of the answer or the question".to_owned()
            } else {
                format!("the message of topic {topic:?}")
            }
        };
        if size > INLINE_LIMIT {
            let reason = format!(
                "{} has {size} bytes, and the limit is {INLINE_LIMIT}; store the value elsewhere, and send where",
                described()
            );
            return Err(Error::Invalid { input: "value", reason });
        }
        let limit = self.options.value_limit;
        if size > limit {
            return Err(Error::TooLarge { value: described(), size, limit });
        }
        Ok(Message { execution, topic, id, value, sent_at: self.now(), is_owned: false })
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
