//! Queues, and the capacity that their limits leave.

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

/// The queues from which a claim may take executions.
#[derive(Default)]
pub(super) struct ClaimableQueues {
    /// The queues with the capacity that their limits leave.
    pub(super) queues: Vec<ReadyQueue>,
    /// Queues with a rate from which only woken executions are taken. Woken executions do not count for the rate, so
    /// they come first.
    pub(super) woken_only: BTreeSet<Arc<str>>,
    /// Queues with a rate from which only executions that begin are taken.
    pub(super) starting_only: BTreeSet<Arc<str>>,
    /// Whether limits hold back ready executions.
    pub(super) is_limited: bool,
    /// The time at which a rate allows more starts.
    pub(super) retry_at: Option<Timestamp>,
}

impl ClaimableQueues {
    /// Whether the claim may take this execution from its queue now.
    pub(super) fn serves(&self, tables: &Tables, queue: &str, key: Key) -> bool {
        let is_woken = tables.woken.contains(&key);
        !(self.woken_only.contains(queue) && !is_woken || self.starting_only.contains(queue) && is_woken)
    }
}

/// Number of entries of `rates` below which none are deleted.
const MIN_PRUNED_RATES: usize = 32;

impl Tables {
    /// Stores a queue if it has the expected version. From then on, the queue's running executions count towards its
    /// limits.
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
            // a changed rate starts without entries
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
        let is_requested = |row: &&QueueRow| names.is_none_or(|names| names.contains(&row.queue.name));
        self.queues.values().filter(is_requested).cloned().collect()
    }

    /// Takes a slot for a running execution, in the execution's queue.
    pub(super) fn take_slot(&mut self, key: Key, owner: WorkerId, counters: &Counters) {
        let placement = self.placement(key);
        if self.slots.insert(key, (placement, owner)).is_none() {
            counters.add_inserted(Table::Slots, 1);
        }
    }

    pub(super) fn limits(&self, queue: &str) -> Limits {
        self.queues.get(queue).map(|row| row.queue.limits.clone()).unwrap_or_default()
    }

    /// Whether the number of executions that wait in a queue to begin has reached the maximum.
    pub(super) fn is_full(&self, queue: &str) -> bool {
        let Some(max) = self.limits(queue).max_depth else { return false };
        let is_scheduled = |row: &&Execution| {
            row.status == Status::Scheduled
                && row.placement.as_ref().is_some_and(|placement| *placement.queue == *queue)
        };
        let queued = self
            .ready
            .keys()
            .filter(|position| position.is_new && *position.placement.queue == *queue)
            .count();
        queued + self.executions.values().filter(is_scheduled).count() >= max as usize
    }

    /// Whether a start in a queue may run at once.
    pub(super) fn allows_immediate_start(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(QueueRow::allows_immediate_start)
    }

    /// Whether the execution's queue is paused.
    pub(super) fn is_queue_paused(&self, key: Key) -> bool {
        self.queues.get(&self.placement(key).queue).is_some_and(|row| row.is_paused)
    }

    /// Returns the remaining slots of a queue for this worker, and those of one of its keys.
    pub(super) fn remaining_slots(&self, queue: &str, key: &str, worker: WorkerId) -> (usize, usize) {
        let limits = self.limits(queue);
        let (mut all, mut here, mut of_key) = (0, 0, 0);
        for (placement, owner) in self.slots.values().filter(|(placement, _)| *placement.queue == *queue) {
            all += 1;
            here += u64::from(*owner == worker);
            of_key += u64::from(*placement.key == *key);
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

    /// Returns the starts that the rates of a queue and of one of its keys allow.
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

    /// Records that an execution begins now, for the rates of its queue and key.
    pub(super) fn record_start(&mut self, queue: &Arc<str>, key: &Arc<str>, now: Timestamp) {
        let limits = self.limits(queue);
        for (rate, key) in [(limits.rate, None), (limits.key_rate, Some(key))] {
            let Some(rate) = rate else { continue };
            let entry = rate.entry(&self.rate_usage(&rate, queue, key, now), now, 1);
            let all = self.rates.entry((queue.clone(), key.cloned())).or_default();
            all.retain(|at, _| *at > entry.prune_until);
            *all.entry(entry.at).or_default() += entry.starts;
        }
        if self.rates.len() > 2 * self.counting_rates.max(MIN_PRUNED_RATES) {
            self.prune_rates(now);
        }
    }

    /// Deletes the starts that no longer count. The keys of these starts may never start again.
    fn prune_rates(&mut self, now: Timestamp) {
        let mut rates = std::mem::take(&mut self.rates);
        rates.retain(|(queue, key), all| {
            let limits = self.limits(queue);
            let rate = if key.is_some() { limits.key_rate } else { limits.rate };
            let until = rate.map_or(now, |rate| rate.expired_until(now));
            all.retain(|at, _| *at > until);
            !all.is_empty()
        });
        self.counting_rates = rates.len();
        self.rates = rates;
    }

    /// Returns the queues with executions that `can_claim` accepts.
    ///
    /// If a queue with a rate has woken executions, the first call returns only these, and names the queue in
    /// `woken_only`. A second call with these queues in `only` returns their other executions.
    pub(super) fn claimable_queues(
        &self,
        worker: WorkerId,
        now: Timestamp,
        only: Option<&BTreeSet<Arc<str>>>,
        can_claim: impl Fn(Key) -> bool,
    ) -> ClaimableQueues {
        let mut all = ClaimableQueues::default();
        let mut found: BTreeMap<Arc<str>, Vec<(Arc<str>, bool)>> = BTreeMap::new();
        for (position, key) in self.ready.iter().filter(|(_, key)| can_claim(**key)) {
            let queue = &position.placement.queue;
            if only.is_some_and(|only| !only.contains(queue)) {
                continue;
            }
            let is_woken = self.woken.contains(key);
            let keys = found.entry(queue.clone()).or_default();
            match keys.last_mut().filter(|(last, _)| *last == position.placement.key) {
                Some((_, is_any_woken)) => *is_any_woken |= is_woken,
                None => keys.push((position.placement.key.clone(), is_woken)),
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
            let last_key = self.fair_share.last_key(&queue);
            let first = keys.iter().take_while(|(key, _)| **key <= *last_key).count();
            let len = keys.len().max(1);
            keys.rotate_left(first % len);
            let (mut capacity, _) = self.remaining_slots(&queue, "", worker);
            all.is_limited |= capacity == 0;
            let mut key_capacities = Vec::with_capacity(keys.len());
            for (key, _) in keys {
                let (_, mut of_key) = self.remaining_slots(&queue, &key, worker);
                all.is_limited |= of_key == 0;
                if is_counted {
                    let (of_queue, of_its_key) = self.allowances(&queue, &key, now);
                    capacity = capacity.min(of_queue.starts);
                    of_key = of_key.min(of_its_key.starts);
                    let exhausted = [of_queue, of_its_key].into_iter().filter(|it| it.starts == 0);
                    all.retry_at = exhausted.filter_map(|it| it.more_at).chain(all.retry_at).min();
                }
                key_capacities.push((key, of_key));
            }
            all.queues.push(ReadyQueue {
                queue,
                capacity,
                keys: key_capacities,
                has_more_keys: false,
                weights,
            });
        }
        all
    }
}
