//! Queues: how they are stored, and what their limits leave room for.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{DEFAULT_QUEUE, Queue, QueueChange, QueueRow};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Claim, Heartbeat, Outcome, Start, Status, Store, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, completed, enqueue, keys, queue_transition, parked, queued, resume, scheduled, sleeping,
    start, start_in, start_queued, placement, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    a_queue_comes_back_as_it_was_stored,
    a_change_of_what_has_changed_is_refused,
    concurrency_holds,
    concurrency_holds_for_several_workers,
    worker_concurrency_holds,
    key_concurrency_holds,
    what_waits_has_no_slot,
    what_is_handed_back_or_parked_has_no_slot,
    what_is_due_stands_in_its_queue_again,
    a_lost_worker_keeps_its_slots_until_it_is_taken_over,
    a_limit_counts_what_runs_already,
    a_raised_limit_lets_more_run,
    a_paused_queue_keeps_what_it_has,
    only_queues_that_are_served_come,
    what_was_cancelled_needs_no_slot,
    the_quarantine_heeds_limits,
    a_slot_is_freed_by_its_owner_alone,
    what_is_scheduled_comes_when_it_is_due,
];

/// Stores a queue as it is to be, whatever it was.
pub(super) async fn set(store: &dyn Store, queue: &Queue, is_paused: bool) -> QueueRow {
    let seen = store.queues(Some(std::slice::from_ref(&queue.name))).await.unwrap().pop();
    let seen_version = seen.map_or(0, |row| row.version);
    let change = QueueChange { queue: queue.clone(), is_paused, expected_version: seen_version };
    store.change_queue(&change).await.unwrap().expect("nobody else changes it")
}

pub(super) async fn declare(fixture: &dyn StoreFixture, queue: Queue) {
    set(&*fixture.store(), &queue, false).await;
}

/// Puts `N` executions into a key of a queue, one flush each.
pub(super) async fn put<const N: usize>(worker: &mut Worker, queue: &str, key: &str) -> [Key; N] {
    let all: [Key; N] = keys();
    for each in all {
        worker.apply(vec![enqueue(each, queue, key, 0)]).await;
    }
    all
}

pub(super) async fn end(worker: &mut Worker, key: Key, queue: &str, of: &str) {
    worker.apply(vec![queue_transition(key, queue, of, completed())]).await;
}

/// Claims all that may be claimed now: as an engine does, again while there may be more. Also, when more may come.
pub(super) async fn claim_all(worker: &mut Worker) -> (Vec<Key>, Option<Timestamp>) {
    let mut keys = Vec::new();
    for _ in 0..100 {
        let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
        keys.extend(claimed.records.iter().map(|record| record.execution.key));
        if !claimed.has_more && claimed.records.len() < 10 {
            return (keys, claimed.retry_at);
        }
    }
    panic!("it claims for ever");
}

async fn a_queue_comes_back_as_it_was_stored(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let queue =
        Queue::new("mails; DROP TABLE \u{1f600}").concurrency(7).worker_concurrency(2).key_concurrency(1);
    let queue = queue.rate(Rate::new(5, Duration::from_mins(1)));
    let queue = queue.key_rate(Rate::new(3, Duration::from_millis(1_500)).burst(2));
    let queue = queue.key_weight("gold \"1\"", 5).key_weight("", 1_000);
    let stored = set(&*store, &queue, false).await;
    let expected = QueueRow { queue: queue.clone(), is_paused: false, version: 1, changed_at: fixture.now() };
    assert_eq!(stored, expected);
    fixture.clock().advance(Duration::from_secs(5));
    let bare = Queue::new("bare");
    set(&*store, &bare, true).await;
    let second = fixture.second_store().await;
    let all = second.queues(None).await.unwrap();
    let bare = QueueRow { queue: bare, is_paused: true, version: 1, changed_at: at(5_000_000) };
    assert_eq!(all, [bare.clone(), expected], "by name");
    assert_eq!(second.queues(Some(&["bare".into(), "none".into()])).await.unwrap(), [bare]);
    let again = set(&*second, &queue.concurrency(8), false).await;
    assert_eq!((again.version, again.queue.limits.concurrency), (2, Some(8)));
}

async fn a_change_of_what_has_changed_is_refused(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let change = |seen_version| QueueChange {
        queue: Queue::new("a"),
        is_paused: false,
        expected_version: seen_version,
    };
    let version = |row: Option<QueueRow>| row.map(|row| row.version);
    assert_eq!(version(store.change_queue(&change(0)).await.unwrap()), Some(1));
    for seen in [0, 2] {
        assert_eq!(store.change_queue(&change(seen)).await.unwrap(), None, "it has version 1");
    }
    assert_eq!(version(store.change_queue(&change(1)).await.unwrap()), Some(2));
}

async fn concurrency_holds(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(3)).await;
    let all: [Key; 5] = put(&mut worker, "a", "").await;
    let before = worker.store.counters().snapshot();
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    assert_eq!((taken.as_slice(), claimed.is_limited), (&all[..3], true));
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert!(claimed.records.is_empty() && claimed.is_limited);
    end(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(10).await, [all[3]]);
    for key in [all[0], all[2], all[3]] {
        end(&mut worker, key, "a", "").await;
    }
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    assert_eq!((claimed.records.len(), claimed.is_limited), (1, false));
    end(&mut worker, all[4], "a", "").await;
    let done = worker.store.counters().snapshot().since(&before);
    assert_eq!(done.row_changes(Table::Slots), (5, 0, 5));
}

async fn concurrency_holds_for_several_workers(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    declare(fixture, Queue::new("a").concurrency(3)).await;
    let all: [Key; 5] = put(&mut one, "a", "").await;
    assert_eq!(one.claim_keys(2).await, all[..2]);
    assert_eq!(two.claim_keys(10).await, [all[2]]);
    assert!(one.claim_keys(10).await.is_empty());
    end(&mut two, all[2], "a", "").await;
    assert_eq!(one.claim_keys(10).await, [all[3]]);
    assert!(two.claim_keys(10).await.is_empty());
}

async fn worker_concurrency_holds(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    declare(fixture, Queue::new("a").worker_concurrency(2)).await;
    let all: [Key; 5] = put(&mut one, "a", "").await;
    assert_eq!(one.claim_keys(10).await, all[..2]);
    assert!(one.claim_keys(10).await.is_empty());
    assert_eq!(two.claim_keys(10).await, all[2..4]);
    end(&mut one, all[0], "a", "").await;
    assert!(two.claim_keys(10).await.is_empty());
    assert_eq!(one.claim_keys(10).await, [all[4]]);
}

async fn key_concurrency_holds(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").key_concurrency(1).concurrency(3)).await;
    let x: [Key; 2] = put(&mut worker, "a", "x").await;
    let y: [Key; 2] = put(&mut worker, "a", "y").await;
    let bare: [Key; 2] = put(&mut worker, "a", "").await;
    let z: [Key; 1] = put(&mut worker, "a", "z").await;
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    assert_eq!((taken, claimed.is_limited), (vec![x[0], y[0], z[0]], true));
    end(&mut worker, y[0], "a", "y").await;
    // those without a key are limited as a key is
    assert_eq!(worker.claim_keys(10).await, [bare[0]]);
    end(&mut worker, x[0], "a", "x").await;
    assert_eq!(worker.claim_keys(10).await, [x[1]]);
    end(&mut worker, z[0], "a", "z").await;
    assert_eq!(worker.claim_keys(10).await, [y[1]]);
    end(&mut worker, y[1], "a", "y").await;
    assert!(worker.claim_keys(10).await.is_empty(), "the rest is of keys of which one runs");
    end(&mut worker, bare[0], "a", "").await;
    assert_eq!(worker.claim_keys(10).await, [bare[1]]);
}

async fn what_waits_has_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 3] = put(&mut worker, "a", "").await;
    let child = Key::mint(0);
    worker.apply(vec![start_queued(child)]).await;
    assert_eq!(worker.claim_keys(1).await, [all[0]], "the default queue comes after it");
    assert_eq!(worker.claim_keys(9).await, [child]);
    worker.apply(vec![queue_transition(all[0], "a", "", awaiting(&[child]))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    worker.apply(vec![queue_transition(child, DEFAULT_QUEUE, "", completed())]).await;
    worker.apply(vec![Write::Wake(all[0])]).await;
    assert!(worker.claim_keys(9).await.is_empty(), "woken, and there is no slot for it");
    end(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]], "in front of what has not begun");
    end(&mut worker, all[0], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[2]]);
}

async fn what_is_handed_back_or_parked_has_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = put(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", queued())]).await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", parked("no"))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    worker.commit(vec![resume(all[0])]).await;
    assert!(worker.claim_keys(9).await.is_empty());
    end(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
}

async fn what_is_due_stands_in_its_queue_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = put(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
    worker.apply(vec![queue_transition(all[0], "a", "", sleeping(at(50)))]).await;
    assert_eq!(worker.claim_keys(9).await, [all[1]]);
    assert_eq!(worker.heartbeat().await.next_due, Some(at(50)));
    fixture.clock().advance(Duration::from_micros(60));
    assert!(worker.claim_keys(9).await.is_empty(), "there is no slot for it");
    assert_eq!(worker.execution(all[0]).await.status, Status::Queued);
    assert_eq!(worker.heartbeat().await.next_due, None, "nothing is due again and again");
    end(&mut worker, all[1], "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [all[0]]);
}

async fn a_lost_worker_keeps_its_slots_until_it_is_taken_over(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare(fixture, Queue::new("a").concurrency(2).key_concurrency(1)).await;
    let x: [Key; 2] = put(&mut lost, "a", "x").await;
    let y: [Key; 2] = put(&mut lost, "a", "y").await;
    assert_eq!(lost.claim_keys(9).await, [x[0], y[0]]);
    fixture.mark_dead(lost.id).await;
    assert!(other.claim_keys(9).await.is_empty());
    assert_eq!(other.take_over_dead_workers().await, 2);
    assert_eq!(other.claim_keys(9).await, [x[0], y[0]], "in front of what has not begun");
    assert!(other.claim_keys(9).await.is_empty());
    end(&mut other, x[0], "a", "x").await;
    assert_eq!(other.claim_keys(9).await, [x[1]]);
}

async fn a_limit_counts_what_runs_already(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a")).await;
    let all: [Key; 4] = put(&mut worker, "a", "x").await;
    assert_eq!(worker.claim_keys(2).await, all[..2]);
    declare(fixture, Queue::new("a").concurrency(2)).await;
    assert!(worker.claim_keys(9).await.is_empty());
    end(&mut worker, all[0], "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, [all[2]]);
    declare(fixture, Queue::new("a").key_concurrency(1)).await;
    end(&mut worker, all[1], "a", "x").await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn a_raised_limit_lets_more_run(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 4] = put(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    declare(fixture, Queue::new("a").concurrency(3)).await;
    assert_eq!(worker.claim_keys(9).await, all[1..3]);
    declare(fixture, Queue::new("a")).await;
    assert_eq!(worker.claim_keys(9).await, all[3..]);
}

async fn a_paused_queue_keeps_what_it_has(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let store = fixture.store();
    set(&*store, &Queue::new("a"), true).await;
    let all: [Key; 2] = put(&mut worker, "a", "").await;
    let plain = Key::mint(0);
    assert!(worker.claim_keys(9).await.is_empty());
    assert!(!worker.heartbeat().await.has_ready, "nothing that could be claimed");
    worker.apply(vec![start_queued(plain)]).await;
    assert!(worker.heartbeat().await.has_ready);
    assert_eq!(worker.claim_keys(9).await, [plain]);
    set(&*store, &Queue::new("a"), false).await;
    assert!(worker.heartbeat().await.has_ready);
    assert_eq!(worker.claim_keys(1).await, all[..1]);
    set(&*store, &Queue::new("a").concurrency(9), true).await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn only_queues_that_are_served_come(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let a: [Key; 2] = put(&mut worker, "a", "").await;
    let b: [Key; 1] = put(&mut worker, "b", "").await;
    let [plain, asleep] = keys();
    worker.apply(vec![start_queued(plain)]).await;
    worker.apply(vec![start_in(asleep, sleeping(at(-5)))]).await;
    let served = |names: &[&str]| Some(names.iter().map(|name| Arc::from(*name)).collect());
    for (names, ready, due) in
        [(&["a"][..], true, false), (&["none"], false, false), (&[DEFAULT_QUEUE], true, true)]
    {
        let look = Heartbeat { queues: served(names), ..worker.new_heartbeat() };
        let seen = worker.store.heartbeat(&look).await.unwrap();
        assert_eq!((seen.has_ready, seen.next_due.is_some()), (ready, due), "{names:?}");
    }
    let claim = |worker: &Worker, names: &[&str]| Claim { queues: served(names), ..worker.new_claim(9) };
    for (names, expected) in [
        (&["none"][..], vec![]),
        (&["a", "none"], a.to_vec()),
        (&[DEFAULT_QUEUE], vec![asleep, plain]),
        (&["a", "b"], b.to_vec()),
    ] {
        let records = worker.try_claim(&claim(&worker, names)).await.unwrap();
        let taken: Vec<Key> = records.iter().map(|record| record.execution.key).collect();
        assert_eq!(taken, expected, "{names:?}");
    }
}

async fn what_was_cancelled_needs_no_slot(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 3] = put(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    worker.commit(vec![cancel(all[0]), cancel(all[1])]).await;
    assert!(worker.claim_keys(9).await.is_empty(), "the first one runs until its owner ends it");
    assert_eq!(worker.commit_one(queue_transition(all[0], "a", "", completed())).await, Outcome::Cancelled);
    assert_eq!(worker.claim_keys(9).await, all[2..]);
}

async fn the_quarantine_heeds_limits(fixture: &dyn StoreFixture) {
    declare(fixture, Queue::new("a").concurrency(2).key_concurrency(1)).await;
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
    let others: [Key; 3] = put(&mut worker, "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, others[..1], "the others are in quarantine");
    fixture.clock().advance(Duration::from_mins(1));
    let tried = worker.claim_from_quarantine(9).await;
    let tried: Vec<Key> = tried.iter().map(|record| record.execution.key).collect();
    assert_eq!(tried, [y], "of key x one runs");
    assert!(worker.claim_keys(9).await.is_empty() && worker.claim_from_quarantine(9).await.is_empty());
    end(&mut worker, others[0], "a", "x").await;
    assert_eq!(worker.claim_from_quarantine(9).await[0].execution.key, x);
    assert!(worker.claim_keys(9).await.is_empty());
    end(&mut worker, x, "a", "x").await;
    assert_eq!(worker.claim_keys(9).await, others[1..2]);
}

async fn a_slot_is_freed_by_its_owner_alone(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare(fixture, Queue::new("a").concurrency(1)).await;
    let all: [Key; 2] = put(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, all[..1]);
    // it is not his any more, or never was
    let late = other.commit_one(queue_transition(all[0], "a", "", completed())).await;
    assert_eq!(late, Outcome::NotFound);
    assert!(other.claim_keys(9).await.is_empty());
}

async fn what_is_scheduled_comes_when_it_is_due(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").concurrency(2)).await;
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
    let first: [Key; 1] = put(&mut worker, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, [plain, urgent]);
    assert_eq!(worker.heartbeat().await.next_due, None);
    end(&mut worker, urgent, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, first);
}
