//! [`QueueSnapshot`]: a queue with its executions, slots and limits, as one statement finds them, and its invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stepfast::queue::{Limits, QueueRow};

use crate::chaos::deployment::Deployment;
use crate::chaos::worker::QUEUE;

/// Maximum number of violations of one kind that are listed.
const MAX_LISTED: usize = 5;

/// The holder of a slot: a running execution, or a row of `slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHolder {
    /// The key in the queue.
    pub key: String,
    /// The worker that runs the execution.
    pub worker: i64,
}

/// Slot holders by the texts of their executions' keys.
pub type SlotHolders = BTreeMap<String, SlotHolder>;

/// A queue at one moment.
#[derive(Clone, Debug, Default)]
pub struct QueueSnapshot {
    /// The version of the queue's row.
    pub version: i64,
    /// Whether the queue is paused.
    pub is_paused: bool,
    /// `concurrency`, `worker_concurrency` and `key_concurrency` of the queue's row.
    pub limits: [Option<u64>; 3],
    /// The running executions.
    pub running: SlotHolders,
    /// The rows of `slots`.
    pub slots: SlotHolders,
    /// Number of claimable executions, by key.
    pub ready: BTreeMap<String, u64>,
    /// Number of executions, by status.
    pub statuses: BTreeMap<i64, u64>,
    /// The registrations, with the process of each.
    pub workers: BTreeMap<i64, i64>,
    /// Number of executions in quarantine.
    pub quarantined: u64,
}

impl QueueSnapshot {
    /// Reads a snapshot; `None` while the database is unreachable.
    pub async fn read(deployment: &mut Deployment) -> Option<Self> {
        let (key, owner, slot) = if deployment.is_sqlite() {
            ("lower(hex(key))", "owner", "lower(hex(execution))")
        } else {
            ("replace(key::text, '-', '')", "owner", "replace(execution::text, '-', '')")
        };
        let sql = format!(
            "SELECT 'execution' AS what, CAST(status AS TEXT) AS a, CASE WHEN status = 2 THEN {key} END AS b,
                    CASE WHEN status = 2 THEN queue_key END AS c,
                    CAST(CASE WHEN status = 2 THEN {owner} END AS TEXT) AS d, CAST(count(*) AS TEXT) AS e
             FROM executions WHERE queue = '{QUEUE}' GROUP BY 2, 3, 4, 5
             UNION ALL
             SELECT 'slot', '', {slot}, queue_key, CAST(worker_id AS TEXT), '1' FROM slots WHERE queue = '{QUEUE}'
             UNION ALL
             SELECT 'ready', '', '', r.queue_key, '', CAST(count(*) AS TEXT)
             FROM ready AS r JOIN executions AS e ON e.key = r.execution AND e.status = 1
             WHERE e.queue = '{QUEUE}' GROUP BY r.queue_key
             UNION ALL
             SELECT 'limits', CAST(version AS TEXT), CAST(concurrency AS TEXT), CAST(worker_concurrency AS TEXT),
                    CAST(key_concurrency AS TEXT), CASE WHEN CAST(is_paused AS INTEGER) = 1 THEN '1' ELSE '0' END
             FROM queues WHERE name = '{QUEUE}'
             UNION ALL
             SELECT 'worker', CAST(worker_id AS TEXT), '', '', CAST(pid AS TEXT), '1' FROM workers
             UNION ALL
             SELECT 'quarantine', '', '', '', '', CAST(count(*) AS TEXT) FROM quarantine"
        );
        Some(Self::from_rows(deployment.query_rows(&sql).await?))
    }

    fn from_rows(rows: Vec<Vec<Option<String>>>) -> Self {
        let mut snapshot = Self::default();
        for row in rows {
            let number = |i: usize| row[i].as_deref().and_then(|text: &str| text.parse::<i64>().ok());
            let text = |i: usize| row[i].clone().unwrap_or_default();
            let count = number(5).unwrap_or_default().unsigned_abs();
            let holder = || SlotHolder { key: text(3), worker: number(4).unwrap_or_default() };
            match row[0].as_deref().unwrap_or_default() {
                "execution" => {
                    *snapshot.statuses.entry(number(1).unwrap_or_default()).or_default() += count;
                    if number(1) == Some(2) {
                        snapshot.running.insert(text(2), holder());
                    }
                }
                "slot" => {
                    snapshot.slots.insert(text(2), holder());
                }
                "ready" => {
                    snapshot.ready.insert(text(3), count);
                }
                "limits" => {
                    snapshot.version = number(1).unwrap_or_default();
                    snapshot.limits = [2, 3, 4].map(|i| number(i).map(i64::unsigned_abs));
                    snapshot.is_paused = count == 1;
                }
                "worker" => {
                    snapshot.workers.insert(number(1).unwrap_or_default(), number(4).unwrap_or_default());
                }
                _ => snapshot.quarantined = count,
            }
        }
        snapshot
    }

    /// Returns the number of claimable executions.
    pub fn ready_count(&self) -> u64 {
        self.ready.values().sum()
    }

    /// Returns the number of executions that have ended.
    pub fn ended_count(&self) -> u64 {
        self.statuses.range(4..).map(|(_, count)| count).sum()
    }

    /// Returns the number of executions that have not ended.
    pub fn unfinished_count(&self) -> u64 {
        self.statuses.range(..4).map(|(_, count)| count).sum()
    }

    fn count_running_by(&self, of: impl Fn(&SlotHolder) -> String) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for holder in self.running.values() {
            *counts.entry(of(holder)).or_default() += 1;
        }
        counts
    }

    /// Returns how many more executions of this queue may be claimed by a worker that runs `running_here` of them: the
    /// sum over the keys with ready executions, within the limits of the queue.
    pub fn capacity_for(&self, running_here: u64) -> u64 {
        let remaining =
            |limit: Option<u64>, used: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let [all, of_worker, of_key] = self.limits;
        let by_key = self.count_running_by(|it| it.key.clone());
        let of_keys = self.ready.iter().map(|(key, ready)| {
            let used = by_key.get(key).copied().unwrap_or_default();
            remaining(of_key, used).min(*ready)
        });
        let capacity: u64 = of_keys.sum();
        capacity.min(remaining(all, self.running.len() as u64)).min(remaining(of_worker, running_here))
    }

    /// Returns how many more executions these workers may claim together; 0 while the queue is paused.
    pub fn capacity_of_workers(&self, workers: &[i64]) -> u64 {
        if self.is_paused {
            return 0;
        }
        let by_worker = self.count_running_by(|it| it.worker.to_string());
        let here = |worker: &i64| by_worker.get(&worker.to_string()).copied().unwrap_or_default();
        workers.iter().map(|worker| self.capacity_for(here(worker))).max().unwrap_or_default()
    }

    /// Returns the registrations of these processes.
    pub fn workers_of_processes(&self, pids: &[i64]) -> Vec<i64> {
        self.workers.iter().filter(|(_, pid)| pids.contains(pid)).map(|(worker, _)| *worker).collect()
    }

    /// Returns the violations among slots. If the queue limits running executions, each of these has a slot. No other
    /// execution has one.
    pub fn slot_violations(&self) -> Vec<String> {
        let counts = self.limits.iter().any(Option::is_some);
        let missing = self.running.iter().filter(|(it, _)| counts && !self.slots.contains_key(*it));
        let missing = missing.map(|(it, holder)| format!("{it} runs without a slot: {holder:?}"));
        let violations = self.slots.iter().filter_map(|(it, slot)| match self.running.get(it) {
            None => Some(format!("{it} has a slot and does not run: {slot:?}")),
            Some(holder) if holder != slot => Some(format!("{it} has {slot:?}, and runs as {holder:?}")),
            Some(_) => None,
        });
        missing.chain(violations).take(MAX_LISTED).collect()
    }

    /// Returns the violations since an earlier snapshot. `rows` contains all versions of the queue. Executions that
    /// exceed a limit when it is set may continue; so counts are compared with those of the earlier snapshot.
    pub fn violations_since(&self, before: &Self, rows: &BTreeMap<i64, QueueRow>) -> Vec<String> {
        let between: Vec<&QueueRow> = rows.range(before.version..=self.version).map(|(_, row)| row).collect();
        let mut violations = Vec::new();
        if between.len() as i64 != self.version - before.version + 1 {
            violations.push(format!(
                "not all versions {}..={} of the queue were returned to the operator",
                before.version, self.version
            ));
        }
        if between.iter().all(|row| row.is_paused) {
            let begun = self.running.keys().filter(|it| !before.running.contains_key(*it));
            violations
                .extend(begun.take(MAX_LISTED).map(|it| format!("{it} began while the queue was paused")));
        }
        let max_limit = |limit: fn(&Limits) -> Option<u32>| {
            let limits = between.iter().map(|row| limit(&row.queue.limits).map_or(u64::MAX, u64::from));
            limits.max().unwrap_or(u64::MAX)
        };
        let mut compare =
            |what: &str, now: BTreeMap<String, u64>, then: &BTreeMap<String, u64>, limit: u64| {
                for (of, count) in now {
                    let limit = then.get(&of).copied().unwrap_or_default().max(limit);
                    if count > limit {
                        violations.push(format!("{count} ran {what} {of}, with a limit of {limit}"));
                    }
                }
            };
        let all = |it: &SlotHolder| it.key.chars().take(0).collect();
        compare(
            "in all",
            self.count_running_by(all),
            &before.count_running_by(all),
            max_limit(|it| it.concurrency),
        );
        let worker = |it: &SlotHolder| it.worker.to_string();
        compare(
            "in worker",
            self.count_running_by(worker),
            &before.count_running_by(worker),
            max_limit(|it| it.worker_concurrency),
        );
        let key = |it: &SlotHolder| it.key.clone();
        compare(
            "of key",
            self.count_running_by(key),
            &before.count_running_by(key),
            max_limit(|it| it.key_concurrency),
        );
        violations
    }

    /// Returns the workers that run executions but are not among `workers`.
    pub fn unknown_owners(&self, workers: &[i64]) -> BTreeSet<i64> {
        self.running.values().map(|it| it.worker).filter(|worker| !workers.contains(worker)).collect()
    }
}

impl fmt::Display for QueueSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, is_paused, limits, ready, statuses, workers, quarantined, .. } = self;
        let (by_worker, by_key) =
            (self.count_running_by(|it| it.worker.to_string()), self.count_running_by(|it| it.key.clone()));
        write!(
            f,
            "version {version}, paused {is_paused}, limits {limits:?}, running {} by worker {by_worker:?} by key \
             {by_key:?}, slots {}, ready {ready:?}, quarantined {quarantined}, statuses {statuses:?}, workers (process) \
             {workers:?}",
            self.running.len(),
            self.slots.len()
        )
    }
}
