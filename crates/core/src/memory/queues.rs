//! The queues, and what their limits leave room for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::counters::{Counters, Table};
use crate::key::Key;
use crate::queue::{Limits, QueueChange, QueueRow};
use crate::turns::Candidate;
use crate::write::WorkerId;

impl Tables {
    /// Stores a queue, if it is as whoever changes it has seen it. What runs of it counts from then on.
    pub(super) fn change_queue(
        &mut self,
        change: &QueueChange,
        now: Timestamp,
        counters: &Counters,
    ) -> Option<QueueRow> {
        let name = &change.queue.name;
        let version = self.queues.get(name).map_or(0, |row| row.version);
        if version != change.seen_version {
            return None;
        }
        let QueueChange { queue, is_paused, .. } = change.clone();
        let row = QueueRow { queue, is_paused, version: version + 1, changed_at: now };
        self.queues.insert(name.clone(), row.clone());
        if row.queue.limits.has_slots() {
            for (owner, key) in self.owned.clone() {
                if self.ticket(key).queue == *name {
                    self.enter_slot(key, owner, counters);
                }
            }
        }
        Some(row)
    }

    pub(super) fn queues(&self, names: Option<&[Arc<str>]>) -> Vec<QueueRow> {
        let is_meant = |row: &&QueueRow| names.is_none_or(|names| names.contains(&row.queue.name));
        self.queues.values().filter(is_meant).cloned().collect()
    }

    /// The execution counts for its queue's limits.
    pub(super) fn enter_slot(&mut self, key: Key, owner: WorkerId, counters: &Counters) {
        let ticket = self.ticket(key);
        if self.slots.insert(key, (ticket, owner)).is_none() {
            counters.inserted(Table::Slots, 1);
        }
    }

    pub(super) fn limits(&self, queue: &str) -> Limits {
        self.queues.get(queue).map(|row| row.queue.limits.clone()).unwrap_or_default()
    }

    /// True if nothing leaves the execution's queue.
    pub(super) fn is_queue_paused(&self, key: Key) -> bool {
        self.queues.get(&self.ticket(key).queue).is_some_and(|row| row.is_paused)
    }

    /// How many more of its queue, and of its key, may run.
    pub(super) fn room(&self, queue: &str, key: &str, worker: WorkerId) -> (usize, usize) {
        let limits = self.limits(queue);
        let (mut all, mut here, mut of_key) = (0, 0, 0);
        for (ticket, owner) in self.slots.values().filter(|(ticket, _)| *ticket.queue == *queue) {
            all += 1;
            here += u32::from(*owner == worker);
            of_key += u32::from(*ticket.key == *key);
        }
        let room = |limit: Option<u32>, used: u32| limit.map_or(u32::MAX, |limit| limit.saturating_sub(used));
        let of_queue = room(limits.concurrency, all).min(room(limits.worker_concurrency, here));
        (of_queue as usize, room(limits.key_concurrency, of_key) as usize)
    }

    /// The queues with something ready that is not paused, and which the worker serves.
    pub(super) fn candidates_of(
        &self,
        worker: WorkerId,
        can_claim: impl Fn(Key) -> bool,
    ) -> (Vec<Candidate>, bool) {
        let mut found: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for (spot, _) in self.ready.iter().filter(|(_, key)| can_claim(**key)) {
            let keys = found.entry(spot.ticket.queue.clone()).or_default();
            if keys.last() != Some(&spot.ticket.key) {
                keys.push(spot.ticket.key.clone());
            }
        }
        let mut is_limited = false;
        let mut candidates = Vec::new();
        for (queue, mut keys) in found {
            let after = self.turns.after(&queue);
            let first = keys.iter().take_while(|key| **key <= after).count();
            let len = keys.len().max(1);
            keys.rotate_left(first % len);
            let (room, _) = self.room(&queue, "", worker);
            let keys: Vec<_> =
                keys.into_iter().map(|key| (key.clone(), self.room(&queue, &key, worker).1)).collect();
            is_limited |= room == 0 || keys.iter().any(|(_, room)| *room == 0);
            candidates.push(Candidate { queue, room, keys, has_more_keys: false });
        }
        (candidates, is_limited)
    }
}
