//! Queues: their stored form, and the executions that their limits admit.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{DEFAULT_QUEUE, Queue, QueueChange, QueueRow};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Claim, Heartbeat, Outcome, Start, Status, Store, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, completed, enqueue, keys, parked, placement, queue_transition, queued, resume,
    scheduled, sleeping, start, start_in, start_queued, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    queue_loads_as_it_was_stored,
    queue_change_with_stale_version_is_not_applied,
    concurrency_limit_holds,
    concurrency_limit_holds_across_workers,
    worker_concurrency_limit_holds,
    limit_that_a_claim_uses_up_is_reported,
    key_concurrency_limit_holds,
    waiting_execution_holds_no_slot,
    requeued_or_parked_execution_holds_no_slot,
    due_execution_is_queued_while_there_is_no_slot,
    dead_worker_holds_its_slots_until_takeover,
    new_limit_counts_running_executions,
    raised_limit_admits_more_executions,
    paused_queue_keeps_its_executions,
    claim_takes_only_from_served_queues,
    cancelled_execution_needs_no_slot,
    quarantine_claim_respects_limits,
    slot_is_freed_only_by_its_owner,
    scheduled_execution_is_claimed_when_due,
];

/// Stores a queue, whatever its former version.
pub(super) async fn set_queue(store: &dyn Store, queue: &Queue, is_paused: bool) -> QueueRow {
    let current = store.queues(Some(std::slice::from_ref(&queue.name))).await.unwrap().pop();
    let expected_version = current.map_or(0, |row| row.version);
    let change = QueueChange { queue: queue.clone(), is_paused, expected_version };
    store.change_queue(&change).await.unwrap().expect("no other change of the queue")
}

pub(super) async fn declare_queue(fixture: &dyn StoreFixture, queue: Queue) {
    set_queue(&*fixture.store(), &queue, false).await;
}

/// Enqueues `N` executions with a key in a queue, one flush each.
pub(super) async fn enqueue_all<const N: usize>(worker: &mut Worker, queue: &str, key: &str) -> [Key; N] {
    let all: [Key; N] = keys();
    for each in all {
        worker.apply(vec![enqueue(each, queue, key, 0)]).await;
    }
    all
}

pub(super) async fn complete(worker: &mut Worker, key: Key, queue: &str, of: &str) {
    worker.apply(vec![queue_transition(key, queue, of, completed())]).await;
}

/// Claims as an engine does, until no execution can be claimed now. Also returns when more executions may be claimed.
pub(super) async fn claim_all(worker: &mut Worker) -> (Vec<Key>, Option<Timestamp>) {
    let mut keys = Vec::new();
    for _ in 0..100 {
        let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
        keys.extend(claimed.records.iter().map(|record| record.execution.key));
        if !claimed.has_more && claimed.records.len() < 10 {
            return (keys, claimed.retry_at);
        }
    }
    panic!("a claim always reports more");
}

async fn queue_loads_as_it_was_stored(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let queue =
        Queue::new("mails; DROP TABLE \u{1f600}").concurrency(7).worker_concurrency(2).key_concurrency(1);
    let queue = queue.rate(Rate::new(5, Duration::from_mins(1)));
    let queue = queue.key_rate(Rate::new(3, Duration::from_millis(1_500)).burst(2));
    let queue = queue.key_weight("gold \"1\"", 5).key_weight("", 1_000);
    let stored = set_queue(&*store, &queue, false).await;
    let expected = QueueRow { queue: queue.clone(), is_paused: false, version: 1, changed_at: fixture.now() };
    assert_eq!(stored, expected);
    fixture.clock().advance(Duration::from_secs(5));
    let bare = Queue::new("bare");
    set_queue(&*store, &bare, true).await;
    let second = fixture.second_store().await;
    let all = second.queues(None).await.unwrap();
    let bare = QueueRow { queue: bare, is_paused: true, version: 1, changed_at: at(5_000_000) };
    assert_eq!(all, [bare.clone(), expected], "by name");
    assert_eq!(second.queues(Some(&["bare".into(), "none".into()])).await.unwrap(), [bare]);
    let changed = set_queue(&*second, &queue.concurrency(8), false).await;
    assert_eq!((changed.version, changed.queue.limits.concurrency), (2, Some(8)));
}

async fn queue_change_with_stale_version_is_not_applied(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let change =
        |expected_version| QueueChange { queue: Queue::new("a"), is_paused: false, expected_version };
    let version = |row: Option<QueueRow>| row.map(|row| row.version);
    assert_eq!(version(store.change_queue(&change(0)).await.unwrap()), Some(1));
    for stale in [0, 2] {
        assert_eq!(store.change_queue(&change(stale)).await.unwrap(), None, "the queue has version 1");
    }
    assert_eq!(version(store.change_queue(&change(1)).await.unwrap()), Some(2));
}

async fn concurrency_limit_holds(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(3)).await;
    let all: [Key; 5] = enqueue_all(&mut worker, "a", "").await;
    let before = worker.store.counters().snapshot();
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    assert_eq!((taken.as_slice(), claimed.is_limited), (&all[..3], true));
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert!(claimed.records.is_empty() && claimed.is_limited);
    complete(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(10).await, [all[3]]);
    for key in [all[0], all[2], all[3]] {
        complete(&mut worker, key, "a", "").await;
    }
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert_eq!((claimed.records.len(), claimed.is_limited), (1, false));
    complete(&mut worker, all[4], "a", "").await;
    let done = worker.store.counters().snapshot().since(&before);
    assert_eq!(done.row_changes(Table::Slots), (5, 0, 5));
}

async fn concurrency_limit_holds_across_workers(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").concurrency(3)).await;
    let all: [Key; 5] = enqueue_all(&mut one, "a", "").await;
    assert_eq!(one.claim_keys(2).await, all[..2]);
    assert_eq!(two.claim_keys(10).await, [all[2]]);
    assert!(one.claim_keys(10).await.is_empty());
    complete(&mut two, all[2], "a", "").await;
    assert_eq!(one.claim_keys(10).await, [all[3]]);
    assert!(two.claim_keys(10).await.is_empty());
}

async fn worker_concurrency_limit_holds(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").worker_concurrency(2)).await;
    let all: [Key; 5] = enqueue_all(&mut one, "a", "").await;
    assert_eq!(one.claim_keys(10).await, all[..2]);
    assert!(one.claim_keys(10).await.is_empty());
    assert_eq!(two.claim_keys(10).await, all[2..4]);
    complete(&mut one, all[0], "a", "").await;
    assert!(two.claim_keys(10).await.is_empty());
    assert_eq!(one.claim_keys(10).await, [all[4]]);
}

/// A worker claims again when slots become free only if its last claim was limited. The limit may be used up by the claim
/// itself, with one execution of each of many keys.
async fn limit_that_a_claim_uses_up_is_reported(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(2)).await;
    for key in ["u", "v", "x"] {
        let _: [Key; 1] = enqueue_all(&mut worker, "a", key).await;
    }
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert_eq!((claimed.records.len(), claimed.is_limited), (2, true));
    complete(&mut worker, claimed.records[0].execution.key, "a", "u").await;
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert_eq!(claimed.records.len(), 1);
}

async fn key_concurrency_limit_holds(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").key_concurrency(1).concurrency(3)).await;
    let x: [Key; 2] = enqueue_all(&mut worker, "a", "x").await;
    let y: [Key; 2] = enqueue_all(&mut worker, "a", "y").await;
    let bare: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    let z: [Key; 1] = enqueue_all(&mut worker, "a", "z").await;
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    assert_eq!((taken, claimed.is_limited), (vec![x[0], y[0], z[0]], true));
    complete(&mut worker, y[0], "a", "y").await;
    // executions without a key are limited like those of a key
    assert_eq!(worker.claim_keys(10).await, [bare[0]]);
    complete(&mut worker, x[0], "a", "x").await;
    assert_eq!(worker.claim_keys(10).await, [x[1]]);
    complete(&mut worker, z[0], "a", "z").await;
    assert_eq!(worker.claim_keys(10).await, [y[1]]);
    complete(&mut worker, y[1], "a", "y").await;
    assert!(worker.claim_keys(10).await.is_empty(), "one execution of each remaining key runs");
    complete(&mut worker, bare[0], "a", "").await;
    assert_eq!(worker.claim_keys(10).await, [bare[1]]);
}

async fn waiting_execution_holds_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 3] = enqueue_all(&mut worker, "a", "").await;
    let child = Key::mint(0);
    worker.apply(vec![start_queued(child)]).await;
    assert_eq!(worker.claim_keys(1).await, [all[0]], "the default queue is served last");
    assert_eq!(worker.claim_keys(9).await, [child]);
    worker.apply(vec![queue_transition(all[0], "a", "", awaiting(&[child]))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    worker.apply(vec![queue_transition(child, DEFAULT_QUEUE, "", completed())]).await;
    worker.apply(vec![Write::Wake(all[0])]).await;
    assert!(worker.claim_keys(9).await.is_empty(), "the execution was woken without a free slot");
    complete(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]], "an execution that has begun is claimed first");
    complete(&mut worker, all[0], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[2]]);
}

async fn requeued_or_parked_execution_holds_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", queued())]).await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", parked("no"))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    worker.commit(vec![resume(all[0])]).await;
    assert!(worker.claim_keys(9).await.is_empty());
    complete(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
}

async fn due_execution_is_queued_while_there_is_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", sleeping(at(50)))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    assert_eq!(worker.heartbeat().await.next_due, Some(at(50)));
    fixture.clock().advance(Duration::from_micros(60));
    assert!(worker.claim_keys(9).await.is_empty(), "no slot is free");
    assert_eq!(worker.execution(all[0]).await.status, Status::Queued);
    assert_eq!(worker.heartbeat().await.next_due, None, "the execution is due a second time");
    complete(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
}

async fn dead_worker_holds_its_slots_until_takeover(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").concurrency(2).key_concurrency(1)).await;
    let x: [Key; 2] = enqueue_all(&mut dead, "a", "x").await;
    let y: [Key; 2] = enqueue_all(&mut dead, "a", "y").await;
    assert_eq!(dead.claim_keys(9).await, [x[0], y[0]]);
    fixture.mark_dead(dead.id).await;
    assert!(other.claim_keys(9).await.is_empty());
    assert_eq!(other.take_over_dead_workers().await, 2);
    assert_eq!(other.claim_keys(9).await, [x[0], y[0]], "an execution that has begun is claimed first");
    assert!(other.claim_keys(9).await.is_empty());
    complete(&mut other, x[0], "a", "x").await;
    assert_eq!(other.claim_keys(9).await, [x[1]]);
}

async fn new_limit_counts_running_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a")).await;
    let all: [Key; 4] = enqueue_all(&mut worker, "a", "x").await;
    assert_eq!(worker.claim_keys(2).await, all[..2]);
    declare_queue(fixture, Queue::new("a").concurrency(2)).await;
    assert!(worker.claim_keys(9).await.is_empty());
    complete(&mut worker, all[0], "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, [all[2]]);
    declare_queue(fixture, Queue::new("a").key_concurrency(1)).await;
    complete(&mut worker, all[1], "a", "x").await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn raised_limit_admits_more_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 4] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    declare_queue(fixture, Queue::new("a").concurrency(3)).await;
    assert_eq!(worker.claim_keys(9).await, all[1..3]);
    declare_queue(fixture, Queue::new("a")).await;
    assert_eq!(worker.claim_keys(9).await, all[3..]);
}

async fn paused_queue_keeps_its_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let store = fixture.store();
    set_queue(&*store, &Queue::new("a"), true).await;
    let all: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    let plain = Key::mint(0);
    assert!(worker.claim_keys(9).await.is_empty());
    assert!(!worker.heartbeat().await.has_ready, "no execution can be claimed");
    worker.apply(vec![start_queued(plain)]).await;
    assert!(worker.heartbeat().await.has_ready);
    assert_eq!(worker.claim_keys(9).await, [plain]);
    set_queue(&*store, &Queue::new("a"), false).await;
    assert!(worker.heartbeat().await.has_ready);
    assert_eq!(worker.claim_keys(1).await, all[..1]);
    set_queue(&*store, &Queue::new("a").concurrency(9), true).await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn claim_takes_only_from_served_queues(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let a: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    let b: [Key; 1] = enqueue_all(&mut worker, "b", "").await;
    let [plain, sleeper] = keys();
    worker.apply(vec![start_queued(plain)]).await;
    worker.apply(vec![start_in(sleeper, sleeping(at(-5)))]).await;
    let served = |names: &[&str]| Some(names.iter().map(|name| Arc::from(*name)).collect());
    for (names, ready, due) in
        [(&["a"][..], true, false), (&["none"], false, false), (&[DEFAULT_QUEUE], true, true)]
    {
        let heartbeat = Heartbeat { queues: served(names), ..worker.new_heartbeat() };
        let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
        assert_eq!((reply.has_ready, reply.next_due.is_some()), (ready, due), "{names:?}");
    }
    let claim = |worker: &Worker, names: &[&str]| Claim { queues: served(names), ..worker.new_claim(9) };
    for (names, expected) in [
        (&["none"][..], vec![]),
        (&["a", "none"], a.to_vec()),
        (&[DEFAULT_QUEUE], vec![sleeper, plain]),
        (&["a", "b"], b.to_vec()),
    ] {
        let records = worker.try_claim(&claim(&worker, names)).await.unwrap();
        let taken: Vec<Key> = records.iter().map(|record| record.execution.key).collect();
        assert_eq!(taken, expected, "{names:?}");
    }
}

async fn cancelled_execution_needs_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 3] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    worker.commit(vec![cancel(all[0]), cancel(all[1])]).await;
    assert!(worker.claim_keys(9).await.is_empty(), "the first execution runs until its owner ends it");
    assert_eq!(worker.commit_one(queue_transition(all[0], "a", "", completed())).await, Outcome::Cancelled);
    assert_eq!(worker.claim_keys(9).await, all[2..]);
}

async fn quarantine_claim_respects_limits(fixture: &dyn StoreFixture) {
    declare_queue(fixture, Queue::new("a").concurrency(2).key_concurrency(1)).await;
    let first = Worker::register(&fixture.store()).await;
    let mut worker = first;
    let [x, y]: [Key; 2] = keys();
    worker.apply(vec![enqueue(x, "a", "x", 0), enqueue(y, "a", "y", 0)]).await;
    assert_eq!(worker.claim_keys(9).await, [x, y]);
    for _ in 0..3 {
        fixture.mark_dead(worker.id).await;
        worker = Worker::register(&fixture.second_store().await).await;
        assert_eq!(worker.take_over_dead_workers().await, 2);
        worker.claim_keys(9).await;
    }
    let others: [Key; 3] = enqueue_all(&mut worker, "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, others[..1], "the others are in quarantine");
    fixture.clock().advance(Duration::from_mins(1));
    let tried = worker.claim_from_quarantine(9).await;
    let tried: Vec<Key> = tried.iter().map(|record| record.execution.key).collect();
    assert_eq!(tried, [y], "one execution of key x runs");
    assert!(worker.claim_keys(9).await.is_empty() && worker.claim_from_quarantine(9).await.is_empty());
    complete(&mut worker, others[0], "a", "x").await;
    assert_eq!(worker.claim_from_quarantine(9).await[0].execution.key, x);
    assert!(worker.claim_keys(9).await.is_empty());
    complete(&mut worker, x, "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, others[1..2]);
}

async fn slot_is_freed_only_by_its_owner(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    // the other worker no longer runs the execution, or never did
    let late = other.commit_one(queue_transition(all[0], "a", "", completed())).await;
    assert_eq!(late, Outcome::NotFound);
    assert!(other.claim_keys(9).await.is_empty());
}

async fn scheduled_execution_is_claimed_when_due(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(2)).await;
    let [plain, queued, urgent, gone] = keys();
    let of = |key, due_at, priority| {
        write(Start { placement: placement("a", "", priority), ..start(key, scheduled(due_at)) })
    };
    worker
        .apply(vec![
            start_in(plain, scheduled(at(100))),
            of(queued, at(50), 0),
            of(urgent, at(200), -1),
            of(gone, at(50), 0),
        ])
        .await;
    assert!(claim_all(&mut worker).await.0.is_empty());
    assert_eq!(worker.heartbeat().await.next_due, Some(at(50)));
    let row = worker.execution(plain).await;
    assert_eq!((row.status, row.wake_at), (Status::Scheduled, Some(at(100))));
    worker.commit(vec![cancel(gone)]).await;
    assert_eq!(worker.execution(gone).await.status, Status::Cancelled);
    fixture.clock().advance(Duration::from_micros(99));
    assert_eq!(claim_all(&mut worker).await.0, [queued]);
    fixture.clock().advance(Duration::from_micros(101));
    let first: [Key; 1] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, [plain, urgent]);
    assert_eq!(worker.heartbeat().await.next_due, None);
    complete(&mut worker, urgent, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, first);
}
