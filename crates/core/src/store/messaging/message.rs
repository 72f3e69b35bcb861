//! [`Message`]: the Write that sends a value to an execution; [`PendingMessage`]: a message that was not received yet;
//! [`Forward`]: the Write that moves kept messages to their execution.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;

/// Maximum number of pending messages of one execution and topic that a store returns at a time.
pub const MAX_PENDING_LOADED: usize = 100;

/// The Write that sends a message to an execution.
///
/// The first of these conditions that holds decides the outcome, after all other Writes of the flush:
/// - The execution does not exist: [`NotFound`](crate::store::Outcome::NotFound). An [address](Key::is_address) counts as an
///   execution that never ends.
/// - A message with this id was sent to the execution or to the [address](Self::address) before:
///   [`AlreadySent`](crate::store::Outcome::AlreadySent).
/// - The execution has ended: [`Ended`](crate::store::Outcome::Ended).
/// - Otherwise: [`Applied`](crate::store::Outcome::Applied).
///
/// The store gives each message a number. Among the messages of an execution and topic, a later flush gets greater
/// numbers; the messages of one flush are numbered in the order of its Writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The key of the execution to which the message is sent, or an address, at which it is kept.
    pub execution: Key,
    /// The address at which the id is recorded, too: another sender, which has not found the execution yet, may keep the same
    /// message there. `None` if the message is kept, and for a message that no sender keeps.
    pub address: Option<Key>,
    /// The topic; empty for the default topic.
    pub topic: Arc<str>,
    /// The id by which a second sending is recognised; `None` if the message is sent once in any case. The ids of an
    /// execution's messages are kept as long as the execution.
    pub id: Option<Arc<str>>,
    /// The value.
    pub value: Payload,
    /// The time at which the message was sent.
    pub sent_at: Timestamp,
    /// Whether an execution sends the message. Its worker drops the Write when it loses the execution.
    pub is_owned: bool,
}

/// The Write that moves the messages that are kept at an address to an execution. They keep their numbers, so they are
/// received before messages that were sent to the execution later. Their ids are copied: they stay at the address, too. A
/// Forward is applied before the messages of its flush are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The address of the execution's workflow_id.
    pub address: Key,
    /// The key of the execution.
    pub execution: Key,
}

impl Message {
    /// Returns the keys for which the id is recorded, each with the id.
    pub fn recorded_ids(&self) -> impl Iterator<Item = (Key, &Arc<str>)> {
        let keys = std::iter::once(self.execution).chain(self.address);
        keys.filter_map(|key| self.id.as_ref().map(|id| (key, id)))
    }

    /// Returns the size in bytes of the texts and the value.
    pub(crate) fn size(&self) -> usize {
        self.topic.len() + self.id.as_ref().map_or(0, |id| id.len()) + self.value.len()
    }
}

/// A message that its execution has not received yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingMessage {
    /// The number of the message.
    pub number: i64,
    /// The value.
    pub value: Payload,
    /// The time at which the message was sent.
    pub sent_at: Timestamp,
}
