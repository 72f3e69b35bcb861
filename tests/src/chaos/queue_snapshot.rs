//! [`Census`]: a queue with its executions, slots and limits as one statement finds them, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stepfast::queue::{Limits, QueueRow};

use crate::chaos::deployment::Site;
use crate::chaos::worker::QUEUE;

/// Violations of one kind that are listed.
const LISTED: usize = 5;

/// An execution that runs, or a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its key in the queue.
    pub key: String,
    /// The worker that runs it.
    pub worker: i64,
}

/// Executions by their text.
pub type Holders = BTreeMap<String, Holder>;

/// A queue at one moment.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// The version of the queue's row.
    pub version: i64,
    /// True if it is paused.
    pub is_paused: bool,
    /// `concurrency`, `worker_concurrency` and `key_concurrency`, as the row has them.
    pub limits: [Option<u64>; 3],
    /// Executions that run.
    pub running: Holders,
    /// Rows of `slots`.
    pub slots: Holders,
    /// How many can be claimed, by key.
    pub ready: BTreeMap<String, u64>,
    /// How many executions have each status.
    pub statuses: BTreeMap<i64, u64>,
    /// Registrations, with the process of each.
    pub workers: BTreeMap<i64, i64>,
    /// How many are in quarantine.
    pub quarantined: u64,
}

impl Census {
    /// Takes it; `None` while the database cannot be asked.
    pub async fn take(site: &mut Site) -> Option<Self> {
        let (key, owner, slot) = if site.is_sqlite() {
            ("lower(hex(key))", "owner", "lower(hex(execution))")
        } else {
            (
                "replace(key::text, '-', '')",
                "coalesce(owner, started_by)",
                "replace(execution::text, '-', '')",
            )
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
             WHERE r.queue = '{QUEUE}' GROUP BY r.queue_key
             UNION ALL
             SELECT 'limits', CAST(version AS TEXT), CAST(concurrency AS TEXT), CAST(worker_concurrency AS TEXT),
                    CAST(key_concurrency AS TEXT), CASE WHEN CAST(is_paused AS INTEGER) = 1 THEN '1' ELSE '0' END
             FROM queues WHERE name = '{QUEUE}'
             UNION ALL
             SELECT 'worker', CAST(worker_id AS TEXT), '', '', CAST(pid AS TEXT), '1' FROM workers
             UNION ALL
             SELECT 'quarantine', '', '', '', '', CAST(count(*) AS TEXT) FROM quarantine"
        );
        Some(Self::of(site.rows(&sql).await?))
    }

    fn of(rows: Vec<Vec<Option<String>>>) -> Self {
        let mut census = Self::default();
        for row in rows {
            let number = |i: usize| row[i].as_deref().and_then(|text: &str| text.parse::<i64>().ok());
            let text = |i: usize| row[i].clone().unwrap_or_default();
            let count = number(5).unwrap_or_default().unsigned_abs();
            let holder = || Holder { key: text(3), worker: number(4).unwrap_or_default() };
            match row[0].as_deref().unwrap_or_default() {
                "execution" => {
                    *census.statuses.entry(number(1).unwrap_or_default()).or_default() += count;
                    if number(1) == Some(2) {
                        census.running.insert(text(2), holder());
                    }
                }
                "slot" => {
                    census.slots.insert(text(2), holder());
                }
                "ready" => {
                    census.ready.insert(text(3), count);
                }
                "limits" => {
                    census.version = number(1).unwrap_or_default();
                    census.limits = [2, 3, 4].map(|i| number(i).map(i64::unsigned_abs));
                    census.is_paused = count == 1;
                }
                "worker" => {
                    census.workers.insert(number(1).unwrap_or_default(), number(4).unwrap_or_default());
                }
                _ => census.quarantined = count,
            }
        }
        census
    }

    /// Returns how many can be claimed.
    pub fn waiting(&self) -> u64 {
        self.ready.values().sum()
    }

    /// Returns how many have ended.
    pub fn ended(&self) -> u64 {
        self.statuses.range(4..).map(|(_, count)| count).sum()
    }

    /// Returns how many have not ended.
    pub fn going(&self) -> u64 {
        self.statuses.range(..4).map(|(_, count)| count).sum()
    }

    fn by(&self, of: impl Fn(&Holder) -> String) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for holder in self.running.values() {
            *counts.entry(of(holder)).or_default() += 1;
        }
        counts
    }

    /// Returns how many more a worker may take in all, of which so many are its own: the sum over the keys that wait,
    /// within the limits of the queue.
    pub fn room(&self, running_here: u64) -> u64 {
        let left = |limit: Option<u64>, used: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let [all, of_worker, of_key] = self.limits;
        let by_key = self.by(|it| it.key.clone());
        let of_keys = self.ready.iter().map(|(key, ready)| {
            let used = by_key.get(key).copied().unwrap_or_default();
            left(of_key, used).min(*ready)
        });
        let room: u64 = of_keys.sum();
        room.min(left(all, self.running.len() as u64)).min(left(of_worker, running_here))
    }

    /// Returns how many more these workers may take together; 0 while the queue is paused.
    pub fn room_of(&self, workers: &[i64]) -> u64 {
        if self.is_paused {
            return 0;
        }
        let by_worker = self.by(|it| it.worker.to_string());
        let here = |worker: &i64| by_worker.get(&worker.to_string()).copied().unwrap_or_default();
        workers.iter().map(|worker| self.room(here(worker))).max().unwrap_or_default()
    }

    /// Returns the registrations of these processes.
    pub fn of_processes(&self, pids: &[i64]) -> Vec<i64> {
        self.workers.iter().filter(|(_, pid)| pids.contains(pid)).map(|(worker, _)| *worker).collect()
    }

    /// Returns what is wrong with its slots: each execution that runs has one, if the queue counts what runs, and nothing
    /// else has.
    pub fn slots_gone_wrong(&self) -> Vec<String> {
        let counts = self.limits.iter().any(Option::is_some);
        let missing = self.running.iter().filter(|(it, _)| counts && !self.slots.contains_key(*it));
        let missing = missing.map(|(it, holder)| format!("{it} runs without a slot: {holder:?}"));
        let wrong = self.slots.iter().filter_map(|(it, slot)| match self.running.get(it) {
            None => Some(format!("{it} has a slot and does not run: {slot:?}")),
            Some(holder) if holder != slot => Some(format!("{it} has {slot:?}, and runs as {holder:?}")),
            Some(_) => None,
        });
        missing.chain(wrong).take(LISTED).collect()
    }

    /// Returns what has gone wrong between two looks, of which this is the later one. `rows` has all versions of the
    /// queue. What ran beyond a limit when that was set may go on; so counts are compared with those of the look before.
    pub fn gone_wrong_since(&self, before: &Self, rows: &BTreeMap<i64, QueueRow>) -> Vec<String> {
        let between: Vec<&QueueRow> = rows.range(before.version..=self.version).map(|(_, row)| row).collect();
        let mut wrong = Vec::new();
        if between.len() as i64 != self.version - before.version + 1 {
            wrong.push(format!(
                "versions {}..={} of the queue were not all answered",
                before.version, self.version
            ));
        }
        if between.iter().all(|row| row.is_paused) {
            let begun = self.running.keys().filter(|it| !before.running.contains_key(*it));
            wrong.extend(begun.take(LISTED).map(|it| format!("{it} began while the queue was paused")));
        }
        let most = |limit: fn(&Limits) -> Option<u32>| {
            let limits = between.iter().map(|row| limit(&row.queue.limits).map_or(u64::MAX, u64::from));
            limits.max().unwrap_or(u64::MAX)
        };
        let mut compare =
            |what: &str, now: BTreeMap<String, u64>, then: &BTreeMap<String, u64>, limit: u64| {
                for (of, count) in now {
                    let may = then.get(&of).copied().unwrap_or_default().max(limit);
                    if count > may {
                        wrong.push(format!("{count} ran {what} {of}, where {may} may"));
                    }
                }
            };
        let all = |it: &Holder| it.key.chars().take(0).collect();
        compare("in all", self.by(all), &before.by(all), most(|it| it.concurrency));
        let worker = |it: &Holder| it.worker.to_string();
        compare("in worker", self.by(worker), &before.by(worker), most(|it| it.worker_concurrency));
        let key = |it: &Holder| it.key.clone();
        compare("of key", self.by(key), &before.by(key), most(|it| it.key_concurrency));
        wrong
    }

    /// Returns workers that run something and are none of these.
    pub fn strange_owners(&self, workers: &[i64]) -> BTreeSet<i64> {
        self.running.values().map(|it| it.worker).filter(|worker| !workers.contains(worker)).collect()
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, is_paused, limits, ready, statuses, workers, quarantined, .. } = self;
        let (by_worker, by_key) = (self.by(|it| it.worker.to_string()), self.by(|it| it.key.clone()));
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
