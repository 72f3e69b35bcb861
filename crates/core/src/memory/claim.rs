//! Claiming executions to run.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::counters::Counters;
use crate::store::{Claim, ClaimReply, Detail, Record, State, StoreError, is_same_version, is_served};

impl Tables {
    /// Takes due sleepers by due time, then ready ones; or what may be tried of the quarantine.
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        counters: &Counters,
    ) -> Result<ClaimReply, StoreError> {
        let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
        if claim.number <= lane.last_number {
            // Sent again: it has happened, and the next look shows what it took.
            return Ok(ClaimReply::default());
        }
        let mut claimed = ClaimReply::default();
        let mut bytes = 0;
        if claim.from_quarantine {
            for key in self.due_in_quarantine(claim, now) {
                let ticket = self.placement(key);
                let (of_queue, of_key) = self.remaining_slots(&ticket.queue, &ticket.key, claim.worker);
                let is_open = of_queue.min(of_key) > 0 && !self.is_queue_paused(key);
                let (of_queue, of_key) = self.allowances(&ticket.queue, &ticket.key, now);
                let is_due = of_queue.starts.min(of_key.starts) > 0;
                if is_open && is_due && self.take(claim, key, now, &mut bytes, &mut claimed, counters) {
                    self.record_start(&ticket.queue, &ticket.key, now);
                }
            }
        } else {
            self.queue_due(claim, now, counters);
            for key in self.due_without_queue(claim, now) {
                self.take(claim, key, now, &mut bytes, &mut claimed, counters);
            }
            self.claim_ready(claim, now, &mut bytes, &mut claimed, counters);
        }
        if let ([record], true) = (claimed.records.as_slice(), claim.from_quarantine) {
            self.tried_alone.insert(record.execution.key);
        }
        if !claimed.records.is_empty() {
            counters.add_claim();
            let lane = self.lane(claim.worker, claim.lane, claim.epoch)?;
            lane.last_number = claim.number;
            lane.last_outcomes = Vec::new();
        }
        Ok(claimed)
    }

    /// Takes from each queue, and each key, what its turn and its limits allow for.
    fn claim_ready(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        bytes: &mut usize,
        claimed: &mut ClaimReply,
        counters: &Counters,
    ) {
        let woken = self.claim_from(claim, now, None, bytes, claimed, counters);
        if woken.is_empty() {
            return;
        }
        // the places that what has waited has left are those of the starts
        if claimed.records.len() < claim.limit {
            self.claim_from(claim, now, Some(&woken), bytes, claimed, counters);
        } else {
            claimed.has_more = true;
        }
    }

    /// The same of these queues, where they are given. Returns the queues of which only what has waited was taken.
    fn claim_from(
        &mut self,
        claim: &Claim,
        now: Timestamp,
        only: Option<&BTreeSet<Arc<str>>>,
        bytes: &mut usize,
        claimed: &mut ClaimReply,
        counters: &Counters,
    ) -> BTreeSet<Arc<str>> {
        let can_claim = |tables: &Self, key| tables.can_run_for(key, claim) && !tables.is_queue_paused(key);
        let found = self.claimable_queues(claim.worker, now, only, |key| can_claim(self, key));
        claimed.is_limited |= found.is_limited;
        claimed.retry_at = claimed.retry_at.into_iter().chain(found.retry_at).min();
        let mut turns = std::mem::take(&mut self.fair_share);
        let portions = turns.allocate(&found.queues, claim.limit.saturating_sub(claimed.records.len()));
        self.fair_share = turns;
        for portion in portions {
            let of_key: Vec<Key> = (self.ready.iter())
                .filter(|(spot, _)| spot.ticket.queue == portion.queue && spot.ticket.key == portion.key)
                .map(|(_, key)| *key)
                .filter(|key| can_claim(self, *key))
                .filter(|key| found.serves(self, &portion.queue, *key))
                .collect();
            for key in of_key.iter().take(portion.limit) {
                let is_start = !self.woken.contains(key);
                if self.take(claim, *key, now, bytes, claimed, counters) && is_start {
                    self.record_start(&portion.queue, &portion.key, now);
                }
            }
            claimed.has_more |= portion.is_truncated && of_key.len() >= portion.limit;
            // another claim tells when there is more
            claimed.has_more |= found.starting_only.contains(&portion.queue) && of_key.len() > portion.limit;
            claimed.is_limited |= !portion.is_truncated && of_key.len() > portion.limit;
        }
        found.woken_only
    }

    /// Takes an execution, unless the claim has enough bytes.
    fn take(
        &mut self,
        claim: &Claim,
        key: Key,
        now: Timestamp,
        bytes: &mut usize,
        claimed: &mut ClaimReply,
        counters: &Counters,
    ) -> bool {
        let Some(record) = self.record(key, Detail::Full) else { return false };
        *bytes += record_bytes(&record);
        if claimed.records.len() >= claim.limit || (*bytes > claim.max_bytes && !claimed.records.is_empty()) {
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
        claimed.records.extend(self.record(key, Detail::Full));
        true
    }

    /// What waits in a queue of its own, and is due, stands in that queue again.
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

    /// What waits in no queue of its own, and is due.
    fn due_without_queue(&self, claim: &Claim, now: Timestamp) -> Vec<Key> {
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| *key);
        due.filter(|key| self.can_run_for(*key, claim)).collect()
    }

    /// What may be tried of the quarantine.
    fn due_in_quarantine(&self, claim: &Claim, now: Timestamp) -> Vec<Key> {
        let mut due: Vec<_> = self.quarantine.iter().filter(|(_, at)| **at <= now).collect();
        due.sort_by_key(|(key, at)| (**at, **key));
        let due = due.into_iter().map(|(key, _)| *key);
        due.filter(|key| self.can_run_for(*key, claim)).collect()
    }

    fn can_run_for(&self, key: Key, claim: &Claim) -> bool {
        self.can_run(key, &claim.workflows, claim.app_version.as_deref(), claim.queues.as_deref())
    }

    /// True if the execution's workflow is one of these, code of this version may run it, and it stands in one of these
    /// queues, where they are given.
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

fn record_bytes(record: &Record) -> usize {
    let checkpoints: usize = record.checkpoints.iter().map(|checkpoint| checkpoint.outcome.len()).sum();
    record.execution.input.len() + checkpoints
}
