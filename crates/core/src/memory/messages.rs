//! Messages, events and streams, and the waits that messages and events satisfy.

use std::sync::Arc;

use super::tables::Tables;
use crate::key::Key;
use crate::store::counters::{Counters, Table};
use crate::store::{
    Checkpoint, CheckpointKind, Event, EventQuery, Forward, MAX_ENTRIES_LOADED, Message, Outcome,
    PendingMessage, Status, StreamEntry, StreamQuery, Wait,
};

impl Tables {
    pub(super) fn apply_send(&mut self, message: &Message, counters: &Counters) -> Outcome {
        let status = self.executions.get(&message.execution).map(|row| row.status);
        let status = if message.execution.is_address() { Some(Status::Queued) } else { status };
        let Some(status) = status else { return Outcome::NotFound };
        let ids: Vec<_> = message.recorded_ids().map(|(key, id)| (key, id.clone())).collect();
        if ids.iter().any(|id| self.message_ids.contains(id)) {
            return Outcome::AlreadySent;
        }
        if status.is_terminal() {
            return Outcome::Ended(status);
        }
        counters.add_inserted(Table::MessageIds, ids.len() as u64);
        self.message_ids.extend(ids);
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

    /// Moves the messages at an address, and copies the ids at the address. Without messages, the execution has all ids.
    pub(super) fn apply_forward(&mut self, forward: Forward, counters: &Counters) -> Outcome {
        let Forward { address, execution } = forward;
        let kept = (address, Arc::from(""), i64::MIN)..;
        let kept = self.messages.range(kept).map(|(place, _)| place.clone());
        let kept: Vec<_> = kept.take_while(|(receiver, ..)| *receiver == address).collect();
        if kept.is_empty() {
            return Outcome::Applied;
        }
        for place in kept {
            let Some(message) = self.messages.remove(&place) else { continue };
            self.messages.insert((execution, place.1, place.2), message);
            counters.add_updated(Table::Messages, 1);
        }
        let ids = self.message_ids.range((address, Arc::from(""))..).cloned();
        let ids: Vec<_> = ids.take_while(|(receiver, _)| *receiver == address).collect();
        // the ids also stay at the address: a sender that has not found the execution may keep the same message again
        for id in ids {
            counters.add_inserted(Table::MessageIds, u64::from(self.message_ids.insert((execution, id.1))));
        }
        Outcome::Applied
    }

    /// Deletes the message that a checkpoint records as received.
    pub(super) fn delete_received(&mut self, checkpoint: &Checkpoint, counters: &Counters) {
        let Some(number) = checkpoint.received() else { return };
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

    /// Returns the topics of an execution's pending messages, each with the number of its messages.
    pub(super) fn pending_topics(&self, receiver: Key) -> Vec<(Arc<str>, u64)> {
        let mut topics: Vec<(Arc<str>, u64)> = Vec::new();
        let messages = self.messages.range((receiver, Arc::from(""), i64::MIN)..);
        for ((_, topic, _), _) in messages.take_while(|((other, ..), _)| *other == receiver) {
            match topics.last_mut() {
                Some((last, count)) if last == topic => *count += 1,
                _ => topics.push((topic.clone(), 1)),
            }
        }
        topics
    }

    /// Appends an entry to a stream.
    pub(super) fn append_entry(
        &mut self,
        execution: Key,
        stream: &Arc<str>,
        entry: &StreamEntry,
        counters: &Counters,
    ) {
        self.stream_entries.insert((execution, stream.clone(), entry.offset), entry.clone());
        counters.add_inserted(Table::StreamEntries, 1);
    }

    /// Returns entries of a stream.
    pub(super) fn stream_entries(&self, query: &StreamQuery) -> Vec<StreamEntry> {
        let place = |offset| (query.execution, query.stream.clone(), offset);
        match query.from {
            Some(from) => {
                let entries = self.stream_entries.range(place(from)..=place(i64::MAX));
                entries.take(MAX_ENTRIES_LOADED).map(|(_, entry)| entry.clone()).collect()
            }
            None => {
                let mut entries = self.stream_entries.range(place(i64::MIN)..=place(i64::MAX));
                entries.next_back().map(|(_, entry)| entry.clone()).into_iter().collect()
            }
        }
    }

    /// Returns events of an execution: the last of a name, or all in their order.
    pub(super) fn events(&self, query: &EventQuery) -> Vec<Event> {
        let is_asked = |it: &&Checkpoint| query.name.as_deref().is_none_or(|name| *it.name == *name);
        let mut set: Vec<&Checkpoint> = self.events_of(query.execution).filter(is_asked).collect();
        set.sort_by_key(|checkpoint| checkpoint.order);
        let skipped = if query.name.is_some() { set.len().saturating_sub(1) } else { 0 };
        let event =
            |it: &Checkpoint| Event { name: Arc::from(&*it.name), value: it.outcome.clone(), set_at: it.at };
        set.into_iter().skip(skipped).map(event).collect()
    }

    fn events_of(&self, execution: Key) -> impl Iterator<Item = &Checkpoint> {
        self.checkpoints_of(execution).filter(|checkpoint| checkpoint.kind == CheckpointKind::Event)
    }

    /// Returns the suspended executions that wait for an event of an execution.
    pub(super) fn event_waiters(&self, setter: Key, name: &Arc<str>) -> Vec<Key> {
        let wait = Wait::Event(setter, name.clone());
        self.waits.iter().filter(|(_, waits)| waits.contains(&wait)).map(|(key, _)| *key).collect()
    }

    /// Whether a wake condition of an execution holds, other than its timer.
    pub(super) fn has_satisfied_wait(&self, key: Key) -> bool {
        self.waits_of(key).any(|wait| match wait {
            Wait::Child(child) => self.executions.get(child).is_some_and(|row| row.status.is_terminal()),
            Wait::Message(topic) => self.pending_messages(key, topic).next().is_some(),
            Wait::Event(setter, name) => {
                self.executions.get(setter).is_some_and(|row| row.status.is_terminal())
                    || self.events_of(*setter).any(|it| *it.name == **name)
            }
        })
    }

    /// Returns the waits of an execution, in their order.
    pub(super) fn waits_of(&self, key: Key) -> impl Iterator<Item = &Wait> {
        self.waits.get(&key).into_iter().flatten()
    }
}
