//! Random histories of queues. Whatever producers and claimers do, and however often workers die, no limit is exceeded,
//! keys keep their order, and every execution runs to its end once.
#![allow(missing_docs)] // the names of the fields are their documentation

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{Limits, Queue, QueueChange};
use stepfast_core::store::{Outcome, QUARANTINE_STRIKES, Start, Transition, Write};

use crate::fixtures::builders::{
    cancel, completed, placement, queued, running, scheduled, sleeping, start, write,
};
use crate::{StoreFixture, Worker};

const QUEUES: [&str; 2] = ["a", "b"];
const KEYS: [&str; 3] = ["", "x", "y"];
/// Number of workers that are alive at any time.
const WORKERS: usize = 3;

/// One operation of a history.
#[derive(Clone, Debug)]
pub enum QueueOp {
    /// Executions are put into a queue, one flush each, some of them with a delay.
    Enqueue { queue: usize, key: usize, priority: i32, count: u8, delay_ms: u64 },
    /// A worker sends self-claiming starts.
    StartSelfClaiming { queue: usize, key: usize, count: u8, worker: usize },
    /// A worker claims up to `limit` executions, again while there may be more.
    Claim { worker: usize, limit: usize },
    /// A worker ends, suspends or requeues one of the executions that it runs.
    Exit { nth: usize, exit: RunExit },
    /// A worker dies, and another takes it over.
    KillWorker { worker: usize },
    /// An execution that has not ended is cancelled.
    Cancel { nth: usize },
    /// The limits of a queue change.
    SetLimits {
        queue: usize,
        concurrency: Option<u32>,
        worker_concurrency: Option<u32>,
        key_concurrency: Option<u32>,
        rate: Option<u32>,
        key_rate: Option<u32>,
        max_depth: Option<u32>,
        weight: u32,
    },
    /// A queue is paused or resumed.
    SetPaused { queue: usize, is_paused: bool },
    /// Time passes.
    Advance { ms: u64 },
}

/// The way in which a run leaves its worker.
#[derive(Clone, Copy, Debug)]
pub enum RunExit {
    End,
    Sleep,
    Requeue,
}

/// Returns a strategy for histories.
pub fn histories() -> impl Strategy<Value = Vec<QueueOp>> {
    let limit = || proptest::option::of(1..5_u32);
    let put = (0..2_usize, 0..3_usize, -1..2_i32, 1..6_u8, prop_oneof![3 => Just(0), 1 => 1..3_000_u64]);
    let exit = prop_oneof![3 => Just(RunExit::End), 1 => Just(RunExit::Sleep), 1 => Just(RunExit::Requeue)];
    let op = prop_oneof![
        6 => put.prop_map(|(queue, key, priority, count, delay_ms)| QueueOp::Enqueue { queue, key, priority, count, delay_ms }),
        3 => (0..2_usize, 0..3_usize, 1..6_u8, 0..WORKERS).prop_map(
            |(queue, key, count, worker)| QueueOp::StartSelfClaiming { queue, key, count, worker }
        ),
        8 => (0..WORKERS, 1..8_usize).prop_map(|(worker, limit)| QueueOp::Claim { worker, limit }),
        8 => (0..100_usize, exit).prop_map(|(nth, exit)| QueueOp::Exit { nth, exit }),
        1 => (0..WORKERS).prop_map(|worker| QueueOp::KillWorker { worker }),
        1 => (0..100_usize).prop_map(|nth| QueueOp::Cancel { nth }),
        2 => (0..2_usize, limit(), limit(), limit(), limit(), limit(), proptest::option::of(1..12_u32), 1..4_u32).prop_map(
            |(queue, concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weight)| QueueOp::SetLimits {
                queue, concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, weight
            }
        ),
        1 => (0..2_usize, any::<bool>()).prop_map(|(queue, is_paused)| QueueOp::SetPaused { queue, is_paused }),
        3 => (1..2_000_u64).prop_map(|ms| QueueOp::Advance { ms }),
    ];
    proptest::collection::vec(op, 1..60)
}

/// The state of an execution in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemState {
    /// Waiting in its queue since `from`. `has_waited`: queued again after a wait, without a new start.
    Queued {
        from: Timestamp,
        has_waited: bool,
    },
    Running {
        worker: usize,
    },
    Ended,
}

struct Item {
    queue: usize,
    key: usize,
    priority: i32,
    is_scheduled: bool,
    has_begun: bool,
    /// Number of deaths of its worker.
    deaths: u32,
    state: ItemState,
    is_cancelled: bool,
}

impl Item {
    fn new(queue: usize, key: usize, priority: i32, state: ItemState) -> Self {
        let (is_scheduled, has_begun, is_cancelled) = (false, false, false);
        Self { queue, key, priority, is_scheduled, has_begun, deaths: 0, state, is_cancelled }
    }
}

struct Model<'f> {
    fixture: &'f dyn StoreFixture,
    workers: Vec<Worker>,
    /// The executions, in the order in which they were enqueued.
    items: BTreeMap<usize, (Key, Item)>,
    limits: [Limits; 2],
    paused: [bool; 2],
    /// Starts that count for rates, by queue and key, since the last change of the rate.
    starts: BTreeMap<(usize, Option<usize>), Vec<Timestamp>>,
}

/// The period of all rates.
const PERIOD: Duration = Duration::from_secs(1);

/// Replays a history. Panics at the first violation.
pub async fn replay(fixture: &dyn StoreFixture, ops: &[QueueOp]) {
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let store = if n == 0 { fixture.store() } else { fixture.second_store().await };
        workers.push(Worker::register(&store).await);
    }
    let limits = [Limits::default(), Limits::default()];
    let mut model = Model {
        fixture,
        workers,
        items: BTreeMap::new(),
        limits,
        paused: [false; 2],
        starts: BTreeMap::new(),
    };
    for op in ops {
        model.apply(op).await;
    }
    model.drain().await;
}

impl Model<'_> {
    async fn apply(&mut self, op: &QueueOp) {
        match *op {
            QueueOp::Enqueue { queue, key, priority, count, delay_ms } => {
                for _ in 0..count {
                    self.enqueue(queue, key, priority, delay_ms).await;
                }
            }
            QueueOp::StartSelfClaiming { queue, key, count, worker } => {
                for _ in 0..count {
                    self.start_self_claiming(queue, key, worker).await;
                }
            }
            QueueOp::Claim { worker, limit } => {
                for _ in 0..20 {
                    if !self.claim(worker, limit).await {
                        return;
                    }
                }
            }
            QueueOp::Exit { nth, exit } => self.exit_run(nth, exit).await,
            QueueOp::KillWorker { worker } => self.kill_worker(worker).await,
            QueueOp::Cancel { nth } => self.cancel(nth).await,
            QueueOp::SetLimits {
                queue,
                concurrency,
                worker_concurrency,
                key_concurrency,
                rate,
                key_rate,
                max_depth,
                weight,
            } => {
                let per_second = |starts: Option<u32>| starts.map(|starts| Rate::new(starts, PERIOD));
                let limits = Limits {
                    concurrency,
                    worker_concurrency,
                    key_concurrency,
                    rate: per_second(rate),
                    key_rate: per_second(key_rate),
                    max_depth,
                    key_weights: [(KEYS[1], weight)].into_iter().collect(),
                };
                let before = std::mem::replace(&mut self.limits[queue], limits);
                if (before.rate, before.key_rate) != (self.limits[queue].rate, self.limits[queue].key_rate) {
                    self.starts.retain(|(of, _), _| *of != queue);
                }
                self.store_queue(queue).await;
            }
            QueueOp::SetPaused { queue, is_paused } => {
                self.paused[queue] = is_paused;
                self.store_queue(queue).await;
            }
            QueueOp::Advance { ms } => self.advance(Duration::from_millis(ms)).await,
        }
    }

    /// Advances the clock, and renews all leases.
    async fn advance(&self, by: Duration) {
        self.fixture.clock().advance(by);
        for worker in &self.workers {
            worker.heartbeat().await;
        }
    }

    async fn store_queue(&self, queue: usize) {
        let store = self.fixture.store();
        let name: Arc<str> = QUEUES[queue].into();
        let stored = store.queues(Some(std::slice::from_ref(&name))).await.unwrap().pop();
        let queue_now = Queue { name, limits: self.limits[queue].clone() };
        let expected_version = stored.map_or(0, |row| row.version);
        let change = QueueChange { queue: queue_now, is_paused: self.paused[queue], expected_version };
        assert!(store.change_queue(&change).await.unwrap().is_some());
    }

    async fn enqueue(&mut self, queue: usize, key: usize, priority: i32, delay_ms: u64) {
        let id = Key::mint(0);
        let from = self.fixture.now().plus(Duration::from_millis(delay_ms));
        let state = if delay_ms > 0 { scheduled(from) } else { queued() };
        let placement = placement(QUEUES[queue], KEYS[key], priority);
        let start = Start { placement, created_at: self.fixture.now(), ..start(id, state) };
        let worker = self.items.len() % WORKERS;
        let outcome = self.workers[worker].commit_one(write(start)).await;
        assert_eq!(outcome, if self.is_full(queue) { Outcome::Full } else { Outcome::Applied });
        if outcome == Outcome::Full {
            return;
        }
        let place = ItemState::Queued { from, has_waited: false };
        self.add(id, Item { is_scheduled: delay_ms > 0, ..Item::new(queue, key, priority, place) });
    }

    /// Returns whether the number of executions that wait for their beginning has reached `max_depth`.
    fn is_full(&self, queue: usize) -> bool {
        let waits = |item: &Item| {
            item.queue == queue && !item.has_begun && matches!(item.state, ItemState::Queued { .. })
        };
        let waiting = self.items.values().filter(|(_, item)| waits(item)).count();
        self.limits[queue].max_depth.is_some_and(|max| waiting >= max as usize)
    }

    fn add(&mut self, id: Key, item: Item) -> usize {
        let n = self.items.len();
        self.items.insert(n, (id, item));
        n
    }

    async fn start_self_claiming(&mut self, queue: usize, key: usize, worker: usize) {
        let (id, now) = (Key::mint(0), self.fixture.now());
        let placement = placement(QUEUES[queue], KEYS[key], 0);
        let start = Start { self_claims: true, placement, created_at: now, ..start(id, running()) };
        let outcome = self.workers[worker].commit_one(write(start)).await;
        assert_eq!(outcome == Outcome::Full, self.is_full(queue));
        if outcome == Outcome::Full {
            return;
        }
        let place = ItemState::Queued { from: now, has_waited: false };
        let n = self.add(id, Item::new(queue, key, 0, place));
        if outcome == Outcome::Applied {
            let has_limits = self.limits[queue].serializes_claims() || self.limits[queue].max_depth.is_some();
            assert!(!has_limits && !self.paused[queue], "{id} began, although its queue has limits");
            self.begin_run(n, worker, now);
        } else {
            assert_eq!(outcome, Outcome::Queued);
        }
    }

    fn count_running(&self, of: impl Fn(&Item, usize) -> bool) -> usize {
        let matches = |item: &Item| matches!(item.state, ItemState::Running { worker } if of(item, worker));
        self.items.values().filter(|(_, item)| matches(item)).count()
    }

    /// Claims, and checks the claimed executions. Returns whether there may be more.
    async fn claim(&mut self, worker: usize, limit: usize) -> bool {
        let now = self.fixture.now();
        let claim = self.workers[worker].new_claim(limit);
        let claimed = self.workers[worker].send_claim(&claim).await.unwrap();
        assert!(claimed.records.len() <= limit);
        let mut taken = BTreeSet::new();
        for record in &claimed.records {
            let key = record.execution.key;
            let n = *self.items.iter().find(|(_, (id, _))| *id == key).expect("an enqueued execution").0;
            assert!(taken.insert(n), "{key} was claimed twice");
            let (_, item) = &self.items[&n];
            let ItemState::Queued { from, .. } = item.state else { panic!("{key} was {:?}", item.state) };
            assert!(from <= now, "{key} was claimed early");
            assert!(!self.paused[item.queue], "{key} was claimed from a paused queue");
        }
        self.check_order(&taken, now);
        for n in taken {
            self.begin_run(n, worker, now);
        }
        if claimed.records.is_empty() && !claimed.has_more {
            self.check_rest_is_limited(worker, now);
        }
        claimed.has_more || claimed.records.len() == limit
    }

    /// Checks that every execution left by an empty claim exceeds a limit.
    fn check_rest_is_limited(&self, worker: usize, now: Timestamp) {
        for (id, left) in self.items.values() {
            let ItemState::Queued { from, has_waited } = left.state else { continue };
            let is_claimable = from <= now && left.deaths < QUARANTINE_STRIKES && !left.is_cancelled;
            if !is_claimable || self.paused[left.queue] {
                continue;
            }
            let limits = &self.limits[left.queue];
            let is_used_up =
                |limit: Option<u32>, used: usize| limit.is_some_and(|limit| used >= limit as usize);
            let of_queue = |item: &Item| item.queue == left.queue;
            let is_full = is_used_up(limits.concurrency, self.count_running(|it, _| of_queue(it)))
                || is_used_up(
                    limits.worker_concurrency,
                    self.count_running(|it, by| of_queue(it) && by == worker),
                )
                || is_used_up(
                    limits.key_concurrency,
                    self.count_running(|it, _| of_queue(it) && it.key == left.key),
                );
            // a store may count a start for a thousandth of the period longer
            let counts = |at: &Timestamp| at.plus(PERIOD + PERIOD / 1_000) > now;
            let begun =
                |of| self.starts.get(&(left.queue, of)).into_iter().flatten().filter(|at| counts(at)).count();
            let is_rated = !has_waited
                && (limits.rate.is_some_and(|rate| begun(None) >= rate.starts as usize)
                    || limits.key_rate.is_some_and(|rate| begun(Some(left.key)) >= rate.starts as usize));
            assert!(is_full || is_rated, "{id} was left in queue {}, which has capacity for it", left.queue);
        }
    }

    /// Checks that no execution was left that precedes a claimed one of the same key.
    fn check_order(&self, taken: &BTreeSet<usize>, now: Timestamp) {
        for n in taken {
            let (_, claimed) = &self.items[n];
            let rated =
                self.limits[claimed.queue].rate.is_some() || self.limits[claimed.queue].key_rate.is_some();
            for (other, (id, left)) in &self.items {
                let ItemState::Queued { from, has_waited } = left.state else { continue };
                let is_comparable = left.queue == claimed.queue && left.key == claimed.key && from <= now;
                // executions in quarantine have an order of their own
                let is_tried = left.deaths >= QUARANTINE_STRIKES;
                if taken.contains(other) || !is_comparable || is_tried || left.is_cancelled {
                    continue;
                }
                // under a rate, executions that have waited need no start and are claimed separately
                let is_claimed_separately = rated
                    && has_waited != matches!(claimed.state, ItemState::Queued { has_waited: true, .. });
                // scheduled executions enter their queue only with a claim
                let is_older = !left.is_scheduled && !claimed.is_scheduled;
                let precedes = (left.priority, !left.has_begun) < (claimed.priority, !claimed.has_begun)
                    || (left.priority == claimed.priority
                        && !left.has_begun
                        && !claimed.has_begun
                        && is_older
                        && other < n);
                assert!(
                    is_claimed_separately || !precedes,
                    "{id} was left, and {n} of the same key was claimed"
                );
            }
        }
    }

    /// Begins the run of an execution, and checks the limits of its queue.
    fn begin_run(&mut self, n: usize, worker: usize, now: Timestamp) {
        let (_, item) = &self.items[&n];
        let (queue, key) = (item.queue, item.key);
        let ItemState::Queued { has_waited, .. } = item.state else { return };
        let limits = self.limits[queue].clone();
        let has_capacity = |limit: Option<u32>, used: usize| limit.is_none_or(|limit| used < limit as usize);
        let of_queue = self.count_running(|it, _| it.queue == queue);
        assert!(has_capacity(limits.concurrency, of_queue), "{of_queue} ran of queue {queue}");
        let here = self.count_running(|it, by| it.queue == queue && by == worker);
        assert!(
            has_capacity(limits.worker_concurrency, here),
            "{here} ran of queue {queue} in worker {worker}"
        );
        let of_key = self.count_running(|it, _| it.queue == queue && it.key == key);
        assert!(has_capacity(limits.key_concurrency, of_key), "{of_key} ran of key {key} of queue {queue}");
        for (rate, of) in [(limits.rate, None), (limits.key_rate, Some(key))] {
            let Some(rate) = rate.filter(|_| !has_waited) else { continue };
            let starts = self.starts.entry((queue, of)).or_default();
            starts.push(now);
            let within = starts.iter().filter(|at| at.plus(PERIOD) > now).count();
            assert!(within <= rate.starts as usize, "{within} began within {PERIOD:?}: {queue} {of:?}");
        }
        if let Some((_, item)) = self.items.get_mut(&n) {
            item.state = ItemState::Running { worker };
            item.has_begun = true;
        }
    }

    fn nth_item(&self, nth: usize, matches: impl Fn(&Item) -> bool) -> Option<usize> {
        let all: Vec<usize> =
            self.items.iter().filter(|(_, (_, item))| matches(item)).map(|(n, _)| *n).collect();
        all.get(nth % all.len().max(1)).copied()
    }

    async fn exit_run(&mut self, nth: usize, exit: RunExit) {
        let Some(n) = self.nth_item(nth, |item| matches!(item.state, ItemState::Running { .. })) else {
            return;
        };
        let now = self.fixture.now();
        let Some((key, item)) = self.items.get_mut(&n) else { return };
        let ItemState::Running { worker } = item.state else { return };
        // a cancelled execution ends
        let exit = if item.is_cancelled { RunExit::End } else { exit };
        let wakes_at = now.plus(Duration::from_millis(nth as u64));
        let (state, item_state) = match exit {
            RunExit::End => (completed(), ItemState::Ended),
            RunExit::Sleep => (sleeping(wakes_at), ItemState::Queued { from: wakes_at, has_waited: true }),
            RunExit::Requeue => (queued(), ItemState::Queued { from: now, has_waited: false }),
        };
        item.state = item_state;
        let expected = if item.is_cancelled { Outcome::Cancelled } else { Outcome::Applied };
        let placement = placement(QUEUES[item.queue], KEYS[item.key], item.priority);
        let key = *key;
        let outcome =
            self.workers[worker].commit_one(Write::Transition(Transition { key, placement, state })).await;
        assert_eq!(outcome, expected);
    }

    async fn kill_worker(&mut self, worker: usize) {
        self.fixture.mark_dead(self.workers[worker].id).await;
        let now = self.fixture.now();
        let owned = self.count_running(|_, by| by == worker) as u64;
        let store = self.fixture.second_store().await;
        self.workers[worker] = Worker::register(&store).await;
        // a store may need several heartbeats before it counts a worker as dead; the others stay alive
        let mut recovered = 0;
        for _ in 0..5 {
            // only a changed expiry counts as a renewal
            self.fixture.clock().advance(Duration::from_micros(1));
            for worker in &self.workers {
                recovered += worker.heartbeat().await.recovered;
            }
        }
        assert_eq!(recovered, owned);
        for (_, item) in self.items.values_mut() {
            if item.state == (ItemState::Running { worker }) {
                item.state = ItemState::Queued { from: now, has_waited: false };
                item.deaths += 1;
            }
        }
    }

    async fn cancel(&mut self, nth: usize) {
        let Some(n) = self.nth_item(nth, |item| item.state != ItemState::Ended) else { return };
        let Some((key, item)) = self.items.get_mut(&n) else { return };
        let key = *key;
        item.is_cancelled = true;
        if matches!(item.state, ItemState::Queued { .. }) {
            item.state = ItemState::Ended;
        }
        let outcome = self.workers[0].commit_one(cancel(key)).await;
        assert!(matches!(outcome, Outcome::RequestHandled(..)), "{outcome:?}");
    }

    /// Removes all limits and pauses, runs all executions to their ends, and checks that no slot remains taken.
    async fn drain(&mut self) {
        self.advance(Duration::from_hours(1)).await;
        self.limits = [Limits::default(), Limits::default()];
        self.paused = [false; 2];
        self.starts.clear();
        for queue in 0..2 {
            self.store_queue(queue).await;
        }
        while self.items.values().any(|(_, item)| item.state != ItemState::Ended) {
            let before = self.count_running(|_, _| true);
            for worker in 0..WORKERS {
                while self.claim(worker, 100).await {}
                self.try_quarantine(worker).await;
            }
            while self.count_running(|_, _| true) > 0 {
                self.exit_run(0, RunExit::End).await;
            }
            self.advance(Duration::from_hours(1)).await;
            let left = self.items.values().filter(|(_, item)| item.state != ItemState::Ended).count();
            assert!(
                left == 0 || before > 0 || left < self.items.len(),
                "{left} executions are never claimed"
            );
        }
        for queue in 0..2 {
            self.limits[queue] =
                Limits { concurrency: Some(1), key_concurrency: Some(1), ..Limits::default() };
            self.store_queue(queue).await;
            self.enqueue(queue, 1, 0, 0).await;
        }
        let (taken, at_once) = (self.claim(0, 10).await, self.count_running(|_, _| true));
        assert!(!taken && at_once == 2, "executions that do not run hold slots");
    }

    /// Claims from quarantine: executions whose worker died too often come one at a time.
    async fn try_quarantine(&mut self, worker: usize) {
        let now = self.fixture.now();
        let records = self.workers[worker].claim_from_quarantine(100).await;
        for record in records {
            let n = *self.items.iter().find(|(_, (id, _))| *id == record.execution.key).unwrap().0;
            self.begin_run(n, worker, now);
        }
    }
}
