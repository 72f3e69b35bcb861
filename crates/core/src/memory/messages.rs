//! Messages: their sending, their receipt, and the waits that they satisfy.

use std::sync::Arc;

use super::tables::Tables;
use crate::key::Key;
use crate::store::counters::{Counters, Table};
use crate::store::{Checkpoint, Message, Outcome, PendingMessage, Wait};

impl Tables {
    pub(super) fn apply_send(&mut self, message: &Message, counters: &Counters) -> Outcome {
        let Some(status) = self.executions.get(&message.execution).map(|row| row.status) else {
            return Outcome::NotFound;
        };
        let id = message.id.clone().map(|id| (message.execution, id));
        if id.as_ref().is_some_and(|id| self.message_ids.contains(id)) {
            return Outcome::AlreadySent;
        }
        if status.is_terminal() {
            return Outcome::Ended(status);
        }
        counters.add_inserted(Table::MessageIds, u64::from(id.is_some()));
        self.message_ids.extend(id);
        self.last_message += 1;
        let pending = PendingMessage {
            number: self.last_message,
            value: message.value.clone(),
            sent_at: message.sent_at,
        };
        self.messages.insert((message.execution, message.topic.clone(), pending.number), pending);
        counters.add_inserted(Table::Messages, 1);
        Outcome::Applied
    }

    /// Deletes the message that a checkpoint records as received.
    pub(super) fn delete_received(&mut self, checkpoint: &Checkpoint, counters: &Counters) {
        let Some(number) = checkpoint.message else { return };
        let message = (checkpoint.execution, Arc::from(&*checkpoint.name), number);
        counters.add_deleted(Table::Messages, u64::from(self.messages.remove(&message).is_some()));
    }

    /// Returns the pending messages of an execution and a topic, the earliest first.
    pub(super) fn pending_messages(
        &self,
        execution: Key,
        topic: &Arc<str>,
    ) -> impl Iterator<Item = &PendingMessage> {
        let all = (execution, topic.clone(), i64::MIN)..=(execution, topic.clone(), i64::MAX);
        self.messages.range(all).map(|(_, message)| message)
    }

    /// Whether an event has happened for which an execution waits.
    pub(super) fn has_satisfied_wait(&self, key: Key) -> bool {
        self.waits_of(key).any(|wait| match wait {
            Wait::Child(child) => self.executions.get(child).is_some_and(|row| row.status.is_terminal()),
            Wait::Message(topic) => self.pending_messages(key, topic).next().is_some(),
        })
    }

    /// Returns the events that an execution waits for, in their order.
    pub(super) fn waits_of(&self, key: Key) -> impl Iterator<Item = &Wait> {
        self.waits.get(&key).into_iter().flatten()
    }
}
