//! Claims of executions to run.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::counters::Counters;
use crate::store::{Claim, ClaimReply, Detail, State, StoreError, is_same_version, is_served};

impl Tables {
    /// Takes due executions up to their share of the claim, then ready ones, then further due ones. A claim from
    /// quarantine takes executions in quarantine instead.
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        counters: &Counters,
    ) -> Result<ClaimReply, StoreError> {
        let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
        if claim.number <= lane.last_number {
            // A resent claim has happened before: the next heartbeat lists the executions that it took.
            return Ok(ClaimReply::default());
        }
        let mut reply = ClaimReply::default();
        let mut bytes = 0;
        if claim.from_quarantine {
            for key in self.due_in_quarantine(claim, now) {
                let placement = self.placement(key);
                let (of_queue, of_key) = self.remaining_slots(&placement.queue, &placement.key, claim.worker);
                let is_open = of_queue.min(of_key) > 0 && !self.is_queue_paused(key);
                let (of_queue, of_key) = self.allowances(&placement.queue, &placement.key, now);
                let is_due = of_queue.starts.min(of_key.starts) > 0;
                if is_open && is_due && self.take(claim, key, now, &mut bytes, &mut reply, counters) {
                    self.record_start(&placement.queue, &placement.key, now);
                }
            }
        } else {
            self.queue_due(claim, now, counters);
            let due = self.due_without_queue(claim, now);
            let (first, rest) = due.split_at(claim.due_share().min(due.len()));
            for key in first {
                self.take(claim, *key, now, &mut bytes, &mut reply, counters);
            }
            self.claim_ready(claim, now, &mut bytes, &mut reply, counters);
            for key in rest {
                self.take(claim, *key, now, &mut bytes, &mut reply, counters);
            }
        }
        if let ([record], true) = (reply.records.as_slice(), claim.from_quarantine) {
            self.tried_alone.insert(record.execution.key);
        }
        if !reply.records.is_empty() {
            counters.add_claim();
            let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
            lane.last_number = claim.number;
            lane.last_outcomes = Vec::new();
        }
        Ok(reply)
    }

    /// Takes from each queue and key as many ready executions as its share and its limits allow.
    fn claim_ready(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        bytes: &mut usize,
        reply: &mut ClaimReply,
        counters: &Counters,
    ) {
        let woken = self.claim_from(claim, now, None, bytes, reply, counters);
        if woken.is_empty() {
            return;
        }
        // executions that begin get the capacity that woken executions have left
        if reply.records.len() < claim.limit {
            self.claim_from(claim, now, Some(&woken), bytes, reply, counters);
        } else {
            reply.has_more = true;
        }
    }

    /// Takes ready executions. If `only` is given, takes them only from these queues. Returns the queues from which
    /// only woken executions were taken.
    fn claim_from(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        only: Option<&BTreeSet<Arc<str>>>,
        bytes: &mut usize,
        reply: &mut ClaimReply,
        counters: &Counters,
    ) -> BTreeSet<Arc<str>> {
        let can_claim = |tables: &Self, key| tables.can_run_for(key, claim) && !tables.is_queue_paused(key);
        let found = self.claimable_queues(claim.worker, now, only, |key| can_claim(self, key));
        reply.is_limited |= found.is_limited;
        reply.retry_at = reply.retry_at.into_iter().chain(found.retry_at).min();
        let mut fair_share = std::mem::take(&mut self.fair_share);
        let allocations = fair_share.allocate(&found.queues, claim.limit.saturating_sub(reply.records.len()));
        self.fair_share = fair_share;
        for allocation in allocations {
            // other executions of the key wait behind a bundle that is not taken
            let mut bundles = claim.bundle_budget(&allocation.queue, &allocation.key);
            let of_key: Vec<Key> = (self.ready.iter())
                .filter(|(position, _)| {
                    position.placement.queue == allocation.queue && position.placement.key == allocation.key
                })
                .map(|(_, key)| *key)
                .filter(|key| can_claim(self, *key))
                .filter(|key| found.serves(self, &allocation.queue, *key))
                .take_while(|key| bundles.allows(*key))
                .collect();
            for key in of_key.iter().take(allocation.limit) {
                let is_start = !self.woken.contains(key);
                if self.take(claim, *key, now, bytes, reply, counters) && is_start {
                    self.record_start(&allocation.queue, &allocation.key, now);
                }
            }
            reply.has_more |= allocation.is_truncated && of_key.len() >= allocation.limit;
            // the next claim finds the time at which the rate allows more
            reply.has_more |=
                found.starting_only.contains(&allocation.queue) && of_key.len() > allocation.limit;
            reply.is_limited |= !allocation.is_truncated && of_key.len() >= allocation.limit;
        }
        found.woken_only
    }

    /// Takes an execution, unless the claim has reached its maximum of executions or bytes. Returns whether the
    /// execution was taken.
    fn take(
        &mut self,
        claim: &Claim,
        key: Key,
        now: Timestamp,
        bytes: &mut usize,
        reply: &mut ClaimReply,
        counters: &Counters,
    ) -> bool {
        let Some(record) = self.record(key, Detail::LastPart) else { return false };
        *bytes += record.claim_bytes();
        if reply.records.len() >= claim.limit || (*bytes > claim.max_bytes && !reply.records.is_empty()) {
            return false;
        }
        let state = State::Running { pending_sleeps: record.execution.pending_sleeps };
        self.set_state(key, &state, Some(claim.worker), counters);
        if let Some(row) = self.executions.get_mut(&key) {
            row.begin(now);
        }
        self.tried_alone.remove(&key);
        if self.limits(&self.placement(key).queue).has_slots() {
            self.take_slot(key, claim.worker, counters);
        }
        let record = self.record(key, Detail::LastPart).map(|record| self.with_queue_limits(record));
        reply.records.extend(record);
        true
    }

    /// Queues executions with a placement whose timer is due.
    fn queue_due(&mut self, claim: &Claim, now: Timestamp, counters: &Counters) {
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| *key);
        let queued: Vec<Key> = due
            .filter(|key| self.can_run_for(*key, claim))
            .filter(|key| self.executions.get(key).is_some_and(|row| row.placement.is_some()))
            .collect();
        for key in queued {
            if !self.queue_waiting(key, counters) {
                self.queue_scheduled(key, counters);
            }
        }
    }

    /// Returns the executions without a placement whose timer is due, by due time.
    fn due_without_queue(&self, claim: &Claim, now: Timestamp) -> Vec<Key> {
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| *key);
        due.filter(|key| self.can_run_for(*key, claim)).collect()
    }

    /// Returns the executions in quarantine whose delay is over, the earliest first.
    fn due_in_quarantine(&self, claim: &Claim, now: Timestamp) -> Vec<Key> {
        let mut due: Vec<_> = self.quarantine.iter().filter(|(_, at)| **at <= now).collect();
        due.sort_by_key(|(key, at)| (**at, **key));
        let due = due.into_iter().map(|(key, _)| *key);
        due.filter(|key| self.can_run_for(*key, claim)).collect()
    }

    fn can_run_for(&self, key: Key, claim: &Claim) -> bool {
        self.can_run(key, &claim.workflows, claim.app_version.as_deref(), claim.queues.as_deref())
    }

    /// Whether the execution has one of these workflows, may run with this version of the code, and waits in one of
    /// these queues. `None` allows every version or queue.
    pub(super) fn can_run(
        &self,
        key: Key,
        workflows: &[Arc<str>],
        app_version: Option<&str>,
        queues: Option<&[Arc<str>]>,
    ) -> bool {
        self.executions.get(&key).is_some_and(|row| {
            workflows.contains(&row.workflow)
                && is_same_version(app_version, row.app_version.as_deref())
                && is_served(queues, &self.placement(key).queue)
        })
    }
}
