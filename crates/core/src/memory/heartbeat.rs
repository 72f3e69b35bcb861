//! Renewals and heartbeats: replies to workers, and the takeover of dead workers.

use std::collections::BTreeSet;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::counters::Counters;
use crate::store::{Detail, Heartbeat, HeartbeatReply, MAX_EXPIRED, Maintenance, Renewal, WorkerId};

impl Tables {
    pub(super) fn renew(&self, worker: WorkerId, epoch: i64, now: Timestamp) -> Renewal {
        let is_fenced = self.workers.get(&worker).is_none_or(|worker| worker.epoch != epoch);
        Renewal { now, is_fenced, ..Renewal::default() }
    }

    pub(super) fn maintain(&self, worker: WorkerId) -> Maintenance {
        Maintenance { has_dead_workers: self.has_dead_workers(worker), ..Maintenance::default() }
    }

    pub(super) fn heartbeat(&self, heartbeat: &Heartbeat, now: Timestamp) -> HeartbeatReply {
        if self.workers.get(&heartbeat.worker).is_none_or(|worker| worker.epoch != heartbeat.epoch) {
            return HeartbeatReply { now, is_fenced: true, ..HeartbeatReply::default() };
        }
        let owned: Vec<Key> = self.owned_by(heartbeat.worker).collect();
        let can_run = |key: Key| {
            self.can_run(
                key,
                &heartbeat.workflows,
                heartbeat.app_version.as_deref(),
                heartbeat.queues.as_deref(),
            )
        };
        let can_claim = |key: Key| can_run(key) && !self.is_queue_paused(key);
        let requests = owned.iter().flat_map(|key| self.requests_of(*key).map(|kind| (*key, kind))).collect();
        let is_finished = |key: &&Key| {
            self.executions.get(*key).is_some_and(|row| row.status.is_terminal() || row.is_parked)
        };
        let unheld = heartbeat.held.as_ref().map_or_else(Vec::new, |held| {
            let held: BTreeSet<Key> = held.iter().copied().collect();
            let unheld = owned.iter().filter(|key| !held.contains(key));
            unheld.filter_map(|key| self.record(*key, Detail::LastPart)).collect()
        });
        HeartbeatReply {
            now,
            is_fenced: false,
            requests,
            finished: heartbeat.watched.iter().filter(is_finished).copied().collect(),
            unheld,
            has_ready: self.ready.values().any(|key| can_claim(*key)),
            next_due: self.due.iter().find(|(_, key)| can_run(*key)).map(|(due_at, _)| *due_at),
            expired: self.expired_executions(now).take(MAX_EXPIRED).collect(),
            next_deadline: self.deadlines.iter().map(|(at, _)| *at).find(|at| *at > now),
            quarantined_until: self
                .quarantine
                .iter()
                .filter(|(key, _)| can_run(**key))
                .map(|(_, at)| *at)
                .min(),
        }
    }

    /// Returns executions whose deadline has passed and that do not run, the earliest deadline first.
    fn expired_executions(&self, now: Timestamp) -> impl Iterator<Item = Key> + '_ {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| *key)
    }

    fn has_dead_workers(&self, worker: WorkerId) -> bool {
        self.workers.iter().any(|(id, row)| row.is_dead && *id != worker)
            || self.owned.iter().any(|(owner, _)| !self.workers.contains_key(owner))
    }

    /// Takes over dead workers. First their lanes get another epoch, so that the lanes record nothing any more. Then
    /// the executions that they should have woken are woken, and those that they ran are requeued.
    pub(super) fn take_over(&mut self, worker: WorkerId, now: Timestamp, counters: &Counters) -> u64 {
        let dead: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(id, row)| row.is_dead && **id != worker)
            .map(|(id, _)| *id)
            .collect();
        for id in &dead {
            self.end_lanes(*id);
            self.workers.remove(id);
        }
        if !dead.is_empty() {
            self.wake_satisfied(now, counters);
        }
        self.requeue_orphans(Some(now), counters)
    }

    /// Wakes executions that wait for a child that has ended: a worker may have died between the child's end and the
    /// Wake. Ends batches whose items have ended, for the same reason.
    pub(super) fn wake_satisfied(&mut self, now: Timestamp, counters: &Counters) {
        self.end_batches(now, counters);
        let satisfied: Vec<Key> =
            self.executions.keys().copied().filter(|key| self.has_satisfied_wait(*key)).collect();
        for key in satisfied {
            self.queue_waiting(key, counters);
        }
    }
}
