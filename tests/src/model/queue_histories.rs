//! Random histories of queues: whatever producers and claimers do, and however often they are lost, no limit is exceeded,
//! keys keep their order, and every execution runs to its end once.
#![allow(missing_docs)] // the fields say what they are

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
    cancel, completed, queued, running, scheduled, sleeping, start, placement, write,
};
use crate::{StoreFixture, Worker};

const QUEUES: [&str; 2] = ["a", "b"];
const KEYS: [&str; 3] = ["", "x", "y"];
/// Workers at a time.
const WORKERS: usize = 3;

/// Something that happens.
#[derive(Clone, Debug)]
pub enum QueueOp {
    /// Executions are put into a queue, one flush each, some of them for later.
    Enqueue { queue: usize, key: usize, priority: i32, count: u8, delay_ms: u64 },
    /// A worker puts some into a queue that run at once if nothing stands in the way.
    StartSelfClaiming { queue: usize, key: usize, count: u8, worker: usize },
    /// A worker claims at most so many, again while there may be more.
    Claim { worker: usize, most: usize },
    /// A worker ends, suspends or hands back one that it runs.
    Exit { nth: usize, how: RunExit },
    /// A worker is lost, and another takes over.
    KillWorker { worker: usize },
    /// One that waits or runs is cancelled.
    Cancel { nth: usize },
    /// A queue gets other limits.
    SetLimits {
        queue: usize,
        concurrency: Option<u32>,
        of_worker: Option<u32>,
        of_key: Option<u32>,
        rate: Option<u32>,
        key_rate: Option<u32>,
        max_depth: Option<u32>,
        weight: u32,
    },
    /// A queue stands still, or goes on.
    SetPaused { queue: usize, is_paused: bool },
    /// Time goes by.
    Advance { ms: u64 },
}

/// How an execution leaves its worker.
#[derive(Clone, Copy, Debug)]
pub enum RunExit {
    End,
    Sleep,
    Requeue,
}

/// Random histories.
pub fn histories() -> impl Strategy<Value = Vec<QueueOp>> {
    let limit = || proptest::option::of(1..5_u32);
    let put = (0..2_usize, 0..3_usize, -1..2_i32, 1..6_u8, prop_oneof![3 => Just(0), 1 => 1..3_000_u64]);
    let how = prop_oneof![3 => Just(RunExit::End), 1 => Just(RunExit::Sleep), 1 => Just(RunExit::Requeue)];
    let op = prop_oneof![
        6 => put.prop_map(|(queue, key, priority, count, delay_ms)| QueueOp::Enqueue { queue, key, priority, count, delay_ms }),
        3 => (0..2_usize, 0..3_usize, 1..6_u8, 0..WORKERS).prop_map(
            |(queue, key, count, worker)| QueueOp::StartSelfClaiming { queue, key, count, worker }
        ),
        8 => (0..WORKERS, 1..8_usize).prop_map(|(worker, most)| QueueOp::Claim { worker, most }),
        8 => (0..100_usize, how).prop_map(|(nth, how)| QueueOp::Exit { nth, how }),
        1 => (0..WORKERS).prop_map(|worker| QueueOp::KillWorker { worker }),
        1 => (0..100_usize).prop_map(|nth| QueueOp::Cancel { nth }),
        2 => (0..2_usize, limit(), limit(), limit(), limit(), limit(), proptest::option::of(1..12_u32), 1..4_u32).prop_map(
            |(queue, concurrency, of_worker, of_key, rate, key_rate, max_depth, weight)| QueueOp::SetLimits {
                queue, concurrency, of_worker, of_key, rate, key_rate, max_depth, weight
            }
        ),
        1 => (0..2_usize, any::<bool>()).prop_map(|(queue, is_paused)| QueueOp::SetPaused { queue, is_paused }),
        3 => (1..2_000_u64).prop_map(|ms| QueueOp::Advance { ms }),
    ];
    proptest::collection::vec(op, 1..60)
}

/// Where an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemState {
    /// In its queue from this time on; it has waited or not.
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
    /// How often its worker was lost.
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
    /// In the order in which they were put into their queues.
    items: BTreeMap<usize, (Key, Item)>,
    limits: [Limits; 2],
    paused: [bool; 2],
    /// Starts that count for rates, of each queue and key, since the rate was changed last.
    starts: BTreeMap<(usize, Option<usize>), Vec<Timestamp>>,
}

/// How long a rate counts.
const PERIOD: Duration = Duration::from_secs(1);

/// Lets a history happen; panics as soon as something is wrong.
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
            QueueOp::Claim { worker, most } => {
                for _ in 0..20 {
                    if !self.claim(worker, most).await {
                        return;
                    }
                }
            }
            QueueOp::Exit { nth, how } => self.exit_run(nth, how).await,
            QueueOp::KillWorker { worker } => self.kill_worker(worker).await,
            QueueOp::Cancel { nth } => self.cancel(nth).await,
            QueueOp::SetLimits { queue, concurrency, of_worker, of_key, rate, key_rate, max_depth, weight } => {
                let per_second = |starts: Option<u32>| starts.map(|starts| Rate::new(starts, PERIOD));
                let limits = Limits {
                    concurrency,
                    worker_concurrency: of_worker,
                    key_concurrency: of_key,
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

    /// Time goes by, and all that live say so.
    async fn advance(&self, by: Duration) {
        self.fixture.clock().advance(by);
        for worker in &self.workers {
            worker.heartbeat().await;
        }
    }

    async fn store_queue(&self, queue: usize) {
        let store = self.fixture.store();
        let name: Arc<str> = QUEUES[queue].into();
        let seen = store.queues(Some(std::slice::from_ref(&name))).await.unwrap().pop();
        let queue_now = Queue { name, limits: self.limits[queue].clone() };
        let seen_version = seen.map_or(0, |row| row.version);
        let change =
            QueueChange { queue: queue_now, is_paused: self.paused[queue], expected_version: seen_version };
        assert!(store.change_queue(&change).await.unwrap().is_some());
    }

    async fn enqueue(&mut self, queue: usize, key: usize, priority: i32, delay_ms: u64) {
        let id = Key::mint(0);
        let from = self.fixture.now().plus(Duration::from_millis(delay_ms));
        let state = if delay_ms > 0 { scheduled(from) } else { queued() };
        let ticket = placement(QUEUES[queue], KEYS[key], priority);
        let start = Start { placement: ticket, created_at: self.fixture.now(), ..start(id, state) };
        let worker = self.items.len() % WORKERS;
        let outcome = self.workers[worker].commit_one(write(start)).await;
        assert_eq!(outcome, if self.is_full(queue) { Outcome::Full } else { Outcome::Applied });
        if outcome == Outcome::Full {
            return;
        }
        let place = ItemState::Queued { from, has_waited: false };
        self.add(id, Item { is_scheduled: delay_ms > 0, ..Item::new(queue, key, priority, place) });
    }

    /// True if as many wait for their beginning as may.
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
        let ticket = placement(QUEUES[queue], KEYS[key], 0);
        let start = Start { self_claims: true, placement: ticket, created_at: now, ..start(id, running()) };
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
        let is_meant = |item: &Item| matches!(item.state, ItemState::Running { worker } if of(item, worker));
        self.items.values().filter(|(_, item)| is_meant(item)).count()
    }

    /// Claims, and looks at what came. True if there may be more.
    async fn claim(&mut self, worker: usize, most: usize) -> bool {
        let now = self.fixture.now();
        let claim = self.workers[worker].new_claim(most);
        let claimed = self.workers[worker].send_claim(&claim).await.unwrap();
        assert!(claimed.records.len() <= most);
        let mut taken = BTreeSet::new();
        for record in &claimed.records {
            let key = record.execution.key;
            let n = *self.items.iter().find(|(_, (id, _))| *id == key).expect("one that was put there").0;
            assert!(taken.insert(n), "{key} came twice");
            let (_, item) = &self.items[&n];
            let ItemState::Queued { from, .. } = item.state else { panic!("{key} was {:?}", item.state) };
            assert!(from <= now, "{key} came early");
            assert!(!self.paused[item.queue], "{key} came of a queue that is paused");
        }
        self.check_order(&taken, now);
        for n in taken {
            self.begin_run(n, worker, now);
        }
        if claimed.records.is_empty() {
            self.check_rest_is_limited(worker, now);
        }
        claimed.has_more || claimed.records.len() == most
    }

    /// What an empty claim has left in its queue has no room there.
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
                || is_used_up(limits.worker_concurrency, self.count_running(|it, by| of_queue(it) && by == worker))
                || is_used_up(
                    limits.key_concurrency,
                    self.count_running(|it, _| of_queue(it) && it.key == left.key),
                );
            // a start is forgotten a thousandth of the period late
            let counts = |at: &Timestamp| at.plus(PERIOD + PERIOD / 1_000) > now;
            let begun =
                |of| self.starts.get(&(left.queue, of)).into_iter().flatten().filter(|at| counts(at)).count();
            let is_rated = !has_waited
                && (limits.rate.is_some_and(|rate| begun(None) >= rate.starts as usize)
                    || limits.key_rate.is_some_and(|rate| begun(Some(left.key)) >= rate.starts as usize));
            assert!(is_full || is_rated, "{id} was left in queue {}, which has room for it", left.queue);
        }
    }

    /// Nothing was left that should have come before what came of the same key.
    fn check_order(&self, taken: &BTreeSet<usize>, now: Timestamp) {
        for n in taken {
            let (_, came) = &self.items[n];
            let rated = self.limits[came.queue].rate.is_some() || self.limits[came.queue].key_rate.is_some();
            for (other, (id, left)) in &self.items {
                let ItemState::Queued { from, has_waited } = left.state else { continue };
                let is_beside = left.queue == came.queue && left.key == came.key && from <= now;
                // in quarantine it comes when it is tried
                let is_tried = left.deaths >= QUARANTINE_STRIKES;
                if taken.contains(other) || !is_beside || is_tried || left.is_cancelled {
                    continue;
                }
                // under a rate what has waited, which needs no start, comes by itself
                let has_other_turn =
                    rated && has_waited != matches!(came.state, ItemState::Queued { has_waited: true, .. });
                // those that were scheduled come into their queue when somebody claims
                let is_older = !left.is_scheduled && !came.is_scheduled;
                let goes_first = (left.priority, !left.has_begun) < (came.priority, !came.has_begun)
                    || (left.priority == came.priority
                        && !left.has_begun
                        && !came.has_begun
                        && is_older
                        && other < n);
                assert!(has_other_turn || !goes_first, "{id} was left, and {n} came of the same key");
            }
        }
    }

    /// An execution runs from here on, within the limits of its queue.
    fn begin_run(&mut self, n: usize, worker: usize, now: Timestamp) {
        let (_, item) = &self.items[&n];
        let (queue, key) = (item.queue, item.key);
        let ItemState::Queued { has_waited, .. } = item.state else { return };
        let limits = self.limits[queue].clone();
        let room = |limit: Option<u32>, used: usize| limit.is_none_or(|limit| used < limit as usize);
        let of_queue = self.count_running(|it, _| it.queue == queue);
        assert!(room(limits.concurrency, of_queue), "{of_queue} ran of queue {queue}");
        let here = self.count_running(|it, by| it.queue == queue && by == worker);
        assert!(room(limits.worker_concurrency, here), "{here} ran of queue {queue} in worker {worker}");
        let of_key = self.count_running(|it, _| it.queue == queue && it.key == key);
        assert!(room(limits.key_concurrency, of_key), "{of_key} ran of key {key} of queue {queue}");
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

    fn nth_item(&self, nth: usize, is_meant: impl Fn(&Item) -> bool) -> Option<usize> {
        let all: Vec<usize> =
            self.items.iter().filter(|(_, (_, item))| is_meant(item)).map(|(n, _)| *n).collect();
        all.get(nth % all.len().max(1)).copied()
    }

    async fn exit_run(&mut self, nth: usize, how: RunExit) {
        let Some(n) = self.nth_item(nth, |item| matches!(item.state, ItemState::Running { .. })) else { return };
        let now = self.fixture.now();
        let Some((key, item)) = self.items.get_mut(&n) else { return };
        let ItemState::Running { worker } = item.state else { return };
        // what is asked to end ends
        let how = if item.is_cancelled { RunExit::End } else { how };
        let wakes_at = now.plus(Duration::from_millis(nth as u64));
        let (state, place) = match how {
            RunExit::End => (completed(), ItemState::Ended),
            RunExit::Sleep => (sleeping(wakes_at), ItemState::Queued { from: wakes_at, has_waited: true }),
            RunExit::Requeue => (queued(), ItemState::Queued { from: now, has_waited: false }),
        };
        item.state = place;
        let expected = if item.is_cancelled { Outcome::Cancelled } else { Outcome::Applied };
        let ticket = placement(QUEUES[item.queue], KEYS[item.key], item.priority);
        let key = *key;
        let outcome = self.workers[worker]
            .commit_one(Write::Transition(Transition { key, placement: ticket, state }))
            .await;
        assert_eq!(outcome, expected);
    }

    async fn kill_worker(&mut self, worker: usize) {
        self.fixture.mark_dead(self.workers[worker].id).await;
        let now = self.fixture.now();
        let lost = self.count_running(|_, by| by == worker) as u64;
        let store = self.fixture.second_store().await;
        self.workers[worker] = Worker::register(&store).await;
        // a store may want to see it more than once before it believes; the others live on meanwhile
        let mut recovered = 0;
        for _ in 0..5 {
            // a lease that is renewed is another one
            self.fixture.clock().advance(Duration::from_micros(1));
            for worker in &self.workers {
                recovered += worker.heartbeat().await.recovered;
            }
        }
        assert_eq!(recovered, lost);
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

    /// Without limits and pauses everything runs to its end, and no slot is left taken.
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
            assert!(left == 0 || before > 0 || left < self.items.len(), "{left} are left and never come");
        }
        for queue in 0..2 {
            self.limits[queue] =
                Limits { concurrency: Some(1), key_concurrency: Some(1), ..Limits::default() };
            self.store_queue(queue).await;
            self.enqueue(queue, 1, 0, 0).await;
        }
        let (taken, at_once) = (self.claim(0, 10).await, self.count_running(|_, _| true));
        assert!(!taken && at_once == 2, "slots are taken by what does not run");
    }

    /// What was lost too often comes alone.
    async fn try_quarantine(&mut self, worker: usize) {
        let now = self.fixture.now();
        let records = self.workers[worker].claim_from_quarantine(100).await;
        for record in records {
            let n = *self.items.iter().find(|(_, (id, _))| *id == record.execution.key).unwrap().0;
            self.begin_run(n, worker, now);
        }
    }
}
