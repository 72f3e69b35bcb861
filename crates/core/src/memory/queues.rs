//! The queues, and what their limits leave room for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::queue::fairness::ReadyQueue;
use crate::queue::rate::{Allowance, Rate, RateUsage};
use crate::queue::{Limits, QueueChange, QueueRow, remaining};
use crate::store::counters::{Counters, Table};
use crate::store::{Execution, Status, WorkerId};

/// What a claim may take.
#[derive(Default)]
pub(super) struct ClaimableQueues {
    pub(super) queues: Vec<ReadyQueue>,
    /// Queues with a rate of which what has waited is taken: it needs no start, so it comes first.
    pub(super) woken_only: BTreeSet<Arc<str>>,
    /// Queues with a rate of which what has not waited is taken.
    pub(super) starting_only: BTreeSet<Arc<str>>,
    pub(super) is_limited: bool,
    pub(super) retry_at: Option<Timestamp>,
}

impl ClaimableQueues {
    /// True if the execution is of those that may be taken of its queue.
    pub(super) fn serves(&self, tables: &Tables, queue: &str, key: Key) -> bool {
        let has_waited = tables.woken.contains(&key);
        !(self.woken_only.contains(queue) && !has_waited || self.starting_only.contains(queue) && has_waited)
    }
}

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
        if version != change.expected_version {
            return None;
        }
        let QueueChange { queue, is_paused, .. } = change.clone();
        let row = QueueRow { queue, is_paused, version: version + 1, changed_at: now };
        let before =
            self.queues.insert(name.clone(), row.clone()).map(|row| row.queue.limits).unwrap_or_default();
        let limits = &row.queue.limits;
        if (before.rate, before.key_rate) != (limits.rate, limits.key_rate) {
            // another rate begins anew
            self.rates.retain(|(queue, _), _| queue != name);
        }
        if row.queue.limits.has_slots() {
            for (owner, key) in self.owned.clone() {
                if self.placement(key).queue == *name {
                    self.take_slot(key, owner, counters);
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
    pub(super) fn take_slot(&mut self, key: Key, owner: WorkerId, counters: &Counters) {
        let ticket = self.placement(key);
        if self.slots.insert(key, (ticket, owner)).is_none() {
            counters.add_inserted(Table::Slots, 1);
        }
    }

    pub(super) fn limits(&self, queue: &str) -> Limits {
        self.queues.get(queue).map(|row| row.queue.limits.clone()).unwrap_or_default()
    }

    /// True if as many wait in a queue for their beginning as may.
    pub(super) fn is_full(&self, queue: &str) -> bool {
        let Some(max) = self.limits(queue).max_depth else { return false };
        let is_scheduled = |row: &&Execution| {
            row.status == Status::Scheduled
                && row.placement.as_ref().is_some_and(|ticket| *ticket.queue == *queue)
        };
        let queued = self.ready.keys().filter(|spot| spot.is_new && *spot.ticket.queue == *queue).count();
        queued + self.executions.values().filter(is_scheduled).count() >= max as usize
    }

    /// True if what is put into a queue may run at once.
    pub(super) fn allows_immediate_start(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(QueueRow::allows_immediate_start)
    }

    /// True if nothing leaves the execution's queue.
    pub(super) fn is_queue_paused(&self, key: Key) -> bool {
        self.queues.get(&self.placement(key).queue).is_some_and(|row| row.is_paused)
    }

    /// How many more of its queue, and of its key, may run.
    pub(super) fn remaining_slots(&self, queue: &str, key: &str, worker: WorkerId) -> (usize, usize) {
        let limits = self.limits(queue);
        let (mut all, mut here, mut of_key) = (0, 0, 0);
        for (ticket, owner) in self.slots.values().filter(|(ticket, _)| *ticket.queue == *queue) {
            all += 1;
            here += u64::from(*owner == worker);
            of_key += u64::from(*ticket.key == *key);
        }
        let of_queue = remaining(limits.concurrency, all).min(remaining(limits.worker_concurrency, here));
        (of_queue, remaining(limits.key_concurrency, of_key))
    }

    fn rate_usage(&self, rate: &Rate, queue: &Arc<str>, key: Option<&Arc<str>>, now: Timestamp) -> RateUsage {
        let from = rate.window_start(now);
        let all = self.rates.get(&(queue.clone(), key.cloned()));
        let counting = || all.into_iter().flatten().filter(|(at, _)| **at > from);
        RateUsage {
            starts: counting().map(|(_, starts)| starts).sum(),
            first_at: counting().map(|(at, _)| *at).next(),
            last_at: counting().next_back().map(|(at, _)| *at),
        }
    }

    /// What the rates of a queue and of one of its keys allow for.
    pub(super) fn allowances(
        &self,
        queue: &Arc<str>,
        key: &Arc<str>,
        now: Timestamp,
    ) -> (Allowance, Allowance) {
        let limits = self.limits(queue);
        let allowance = |rate: Option<Rate>, key| {
            let none = Allowance { starts: usize::MAX, more_at: None };
            rate.map_or(none, |rate| rate.allowance(&self.rate_usage(&rate, queue, key, now), now))
        };
        (allowance(limits.rate, None), allowance(limits.key_rate, Some(key)))
    }

    /// An execution begins now.
    pub(super) fn record_start(&mut self, queue: &Arc<str>, key: &Arc<str>, now: Timestamp) {
        let limits = self.limits(queue);
        for (rate, key) in [(limits.rate, None), (limits.key_rate, Some(key))] {
            let Some(rate) = rate else { continue };
            let entry = rate.entry(&self.rate_usage(&rate, queue, key, now), now, 1);
            let all = self.rates.entry((queue.clone(), key.cloned())).or_default();
            all.retain(|at, _| *at > entry.prune_until);
            *all.entry(entry.at).or_default() += entry.starts;
        }
    }

    /// The queues with something ready that is not paused, and which the worker serves. Of queues with a rate, what has
    /// waited where there is something like that; and of `only`, where given, the rest.
    pub(super) fn claimable_queues(
        &self,
        worker: WorkerId,
        now: Timestamp,
        only: Option<&BTreeSet<Arc<str>>>,
        can_claim: impl Fn(Key) -> bool,
    ) -> ClaimableQueues {
        let mut all = ClaimableQueues::default();
        let mut found: BTreeMap<Arc<str>, Vec<(Arc<str>, bool)>> = BTreeMap::new();
        for (spot, key) in self.ready.iter().filter(|(_, key)| can_claim(**key)) {
            let queue = &spot.ticket.queue;
            if only.is_some_and(|only| !only.contains(queue)) {
                continue;
            }
            let has_waited = self.woken.contains(key);
            let keys = found.entry(queue.clone()).or_default();
            match keys.last_mut().filter(|(last, _)| *last == spot.ticket.key) {
                Some((_, is_any_woken)) => *is_any_woken |= has_waited,
                None => keys.push((spot.ticket.key.clone(), has_waited)),
            }
        }
        for (queue, mut keys) in found {
            let limits = self.limits(&queue);
            let has_rate = limits.has_rate();
            let weights = limits.key_weights;
            if has_rate && only.is_none() && keys.iter().any(|(_, is_any_woken)| *is_any_woken) {
                all.woken_only.insert(queue.clone());
                keys.retain(|(_, is_any_woken)| *is_any_woken);
            }
            let is_counted = has_rate && !all.woken_only.contains(&queue);
            all.starting_only.extend(is_counted.then(|| queue.clone()));
            let after = self.fair_share.last_key(&queue);
            let first = keys.iter().take_while(|(key, _)| **key <= *after).count();
            let len = keys.len().max(1);
            keys.rotate_left(first % len);
            let (mut room, _) = self.remaining_slots(&queue, "", worker);
            all.is_limited |= room == 0;
            let mut rooms = Vec::with_capacity(keys.len());
            for (key, _) in keys {
                let (_, mut of_key) = self.remaining_slots(&queue, &key, worker);
                all.is_limited |= of_key == 0;
                if is_counted {
                    let (of_queue, of_its_key) = self.allowances(&queue, &key, now);
                    room = room.min(of_queue.starts);
                    of_key = of_key.min(of_its_key.starts);
                    let none_left = [of_queue, of_its_key].into_iter().filter(|it| it.starts == 0);
                    all.retry_at = none_left.filter_map(|it| it.more_at).chain(all.retry_at).min();
                }
                rooms.push((key, of_key));
            }
            all.queues.push(ReadyQueue { queue, capacity: room, keys: rooms, has_more_keys: false, weights });
        }
        all
    }
}
