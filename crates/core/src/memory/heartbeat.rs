//! The look once a second: takeover, and what concerns a worker.

use std::collections::BTreeSet;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::counters::Counters;
use crate::store::{Detail, MAX_EXPIRED, Heartbeat, HeartbeatReply, WorkerId};

impl Tables {
    pub(super) fn heartbeat(&self, look: &Heartbeat, now: Timestamp) -> HeartbeatReply {
        if self.workers.get(&look.worker).is_none_or(|worker| worker.epoch != look.epoch) {
            return HeartbeatReply { now, is_fenced: true, ..HeartbeatReply::default() };
        }
        let mine: Vec<Key> = self.owned_by(look.worker).collect();
        let can_run = |key: Key| {
            self.can_run(key, &look.workflows, look.app_version.as_deref(), look.queues.as_deref())
        };
        let can_claim = |key: Key| can_run(key) && !self.is_queue_paused(key);
        let requests = mine.iter().flat_map(|key| self.requests_of(*key).map(|kind| (*key, kind))).collect();
        let is_over = |key: &&Key| {
            self.executions.get(*key).is_some_and(|row| row.status.is_terminal() || row.is_parked)
        };
        let strays = look.held.as_ref().map_or_else(Vec::new, |holds| {
            let holds: BTreeSet<Key> = holds.iter().copied().collect();
            let strays = mine.iter().filter(|key| !holds.contains(key));
            strays.filter_map(|key| self.record(*key, Detail::Full)).collect()
        });
        HeartbeatReply {
            newer_schema: None,
            now,
            is_fenced: false,
            requests,
            finished: look.watched.iter().filter(is_over).copied().collect(),
            unheld: strays,
            has_ready: self.ready.values().any(|key| can_claim(*key)),
            next_due: self.due.iter().find(|(_, key)| can_run(*key)).map(|(due_at, _)| *due_at),
            expired: self.expired(now).take(MAX_EXPIRED).collect(),
            next_deadline: self.deadlines.iter().map(|(at, _)| *at).find(|at| *at > now),
            quarantined_until: self
                .quarantine
                .iter()
                .filter(|(key, _)| can_run(**key))
                .map(|(_, at)| *at)
                .min(),
            has_dead_workers: self.has_dead_workers(look.worker),
            next_expiry_at: None,
        }
    }

    /// What has expired and waits, the longest first.
    fn expired(&self, now: Timestamp) -> impl Iterator<Item = Key> + '_ {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| *key)
    }

    fn has_dead_workers(&self, looker: WorkerId) -> bool {
        self.workers.iter().any(|(id, worker)| worker.is_dead && *id != looker)
            || self.owned.iter().any(|(owner, _)| !self.workers.contains_key(owner))
    }

    /// Takes over the lost workers: first their lanes end, so that nothing of theirs lands any more, then
    /// what they ran is queued, and what they should have woken is woken.
    pub(super) fn take_over(&mut self, looker: WorkerId, now: Timestamp, counters: &Counters) -> u64 {
        let lost: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(id, worker)| worker.is_dead && **id != looker)
            .map(|(id, _)| *id)
            .collect();
        for worker in &lost {
            self.end_lanes(*worker);
            self.workers.remove(worker);
        }
        if !lost.is_empty() {
            self.wake_satisfied(counters);
        }
        self.requeue_orphans(Some(now), counters)
    }

    /// Wakes what waits for a child that has ended: a worker may have ended between the end and the Wake.
    pub(super) fn wake_satisfied(&mut self, counters: &Counters) {
        let called: Vec<Key> = self.executions.keys().copied().filter(|key| self.has_ended_child(*key)).collect();
        for key in called {
            self.queue_waiting(key, counters);
        }
    }
}
