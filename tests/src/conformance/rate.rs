//! Rates: how often executions of a queue, and of its keys, may begin.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{DEFAULT_QUEUE, Queue};
use stepfast_core::store::{Claim, QUARANTINE_STRIKES, Start, Write};

use super::quarantine::replace_dead_worker;
use super::queue::{claim_all, complete, declare_queue, enqueue_all};
use crate::fixtures::builders::{
    WORKFLOW, at, awaiting, completed, enqueue, keys, placement, queue_transition, queued, sleeping, start,
    start_queued, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    rate_holds_in_every_window,
    even_rate_spaces_starts,
    key_rate_holds_for_each_key,
    key_rate_holds_over_several_claims,
    begun_execution_consumes_no_start,
    begun_execution_without_capacity_blocks_no_start,
    begun_execution_without_worker_blocks_no_start,
    begun_and_new_executions_share_a_claim,
    begun_execution_precedes_keys_with_exhausted_rate,
    start_between_woken_executions_stays_ready,
    taken_over_execution_begins_again_and_counts,
    execution_tried_in_quarantine_counts,
    changed_rate_resets_its_window,
    starts_of_keys_that_came_once_are_deleted,
];

/// Asserts that the table of starts has at most this number of rows.
async fn assert_stored_starts(fixture: &dyn StoreFixture, rows: usize) {
    let probe = format!(
        "CREATE TABLE probe (n integer, CONSTRAINT at_most_{rows} CHECK (n <= {rows})); \
         INSERT INTO probe SELECT count(*) FROM rates; \
         DROP TABLE probe;"
    );
    fixture.execute(&probe).await;
}

async fn starts_of_keys_that_came_once_are_deleted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let minute = Duration::from_mins(1);
    declare_queue(fixture, Queue::new("window").key_rate(Rate::new(2, minute))).await;
    declare_queue(fixture, Queue::new("even").key_rate(Rate::new(2, minute).burst(4))).await;
    for round in 0..20 {
        for queue in ["window", "even"] {
            // keys that come once, and a key whose starts always count
            let mut starts: Vec<Write> = (0..8)
                .map(|n| {
                    let key = format!("{round} {n}");
                    write(Start { placement: placement(queue, &key, 0), ..start(Key::mint(0), queued()) })
                })
                .collect();
            starts.extend((0..9).map(|_| {
                write(Start { placement: placement(queue, "busy", 0), ..start(Key::mint(0), queued()) })
            }));
            worker.apply(starts).await;
        }
        let (claimed, _) = claim_all(&mut worker).await;
        assert!(claimed.len() >= 2 * 8 + 2, "{}", claimed.len());
        fixture.clock().advance(minute);
    }
    // two queues, each with the keys of a few rounds
    assert_stored_starts(fixture, 2 * 9 * 6).await;
}

/// Claims as [`claim_all`] does, and sorts the keys.
async fn claim_sorted(worker: &mut Worker) -> Vec<Key> {
    let (mut keys, _) = claim_all(worker).await;
    keys.sort_unstable();
    keys
}

/// Returns a Start of an execution in a queue.
fn queued_in(queue: &str, key: Key) -> Start {
    Start { placement: placement(queue, "", 0), ..start(key, queued()) }
}

fn sorted<const N: usize>(mut keys: [Key; N]) -> [Key; N] {
    keys.sort_unstable();
    keys
}

async fn rate_holds_in_every_window(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(3, Duration::from_secs(10)))).await;
    let all: [Key; 8] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(claim_all(&mut worker).await, (all[..3].to_vec(), Some(at(10_000_000))));
    fixture.clock().advance(Duration::from_secs(4));
    assert_eq!(claim_all(&mut other).await, (vec![], Some(at(10_000_000))));
    fixture.clock().advance(Duration::from_secs(6));
    // the claim has capacity for two of three; the last one begins later
    assert_eq!(other.claim_keys(2).await, all[3..5]);
    fixture.clock().advance(Duration::from_secs(1));
    assert_eq!(claim_all(&mut worker).await, (vec![all[5]], Some(at(20_000_000))));
    fixture.clock().advance(Duration::from_secs(9));
    assert_eq!(claim_all(&mut worker).await, (all[6..].to_vec(), None), "no execution is left");
}

async fn even_rate_spaces_starts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(10, Duration::from_secs(1)).evenly())).await;
    declare_queue(fixture, Queue::new("b").rate(Rate::new(10, Duration::from_secs(1)).burst(2))).await;
    let a: [Key; 3] = enqueue_all(&mut worker, "a", "x").await;
    let b: [Key; 4] = enqueue_all(&mut worker, "b", "").await;
    let (first, retry_at) = claim_all(&mut worker).await;
    assert_eq!((first, retry_at), (vec![a[0], b[0], b[1]], Some(at(100_000))));
    fixture.clock().advance(Duration::from_millis(99));
    assert!(claim_all(&mut worker).await.0.is_empty());
    fixture.clock().advance(Duration::from_millis(3));
    assert_eq!(
        claim_all(&mut worker).await,
        (vec![a[1], b[2]], Some(at(200_000))),
        "a late claim does not shift the following starts"
    );
    fixture.clock().advance(Duration::from_millis(98));
    assert_eq!(claim_all(&mut worker).await.0, [a[2], b[3]]);
}

async fn key_rate_holds_for_each_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let rate = |n| Rate::new(n, Duration::from_secs(10));
    declare_queue(fixture, Queue::new("a").key_rate(rate(2)).rate(rate(5))).await;
    let x: [Key; 4] = enqueue_all(&mut worker, "a", "x").await;
    let y: [Key; 1] = enqueue_all(&mut worker, "a", "y").await;
    let z: [Key; 3] = enqueue_all(&mut worker, "a", "z").await;
    assert_eq!(claim_sorted(&mut worker).await, sorted([x[0], x[1], y[0], z[0], z[1]]));
    assert_eq!(claim_all(&mut worker).await, (vec![], Some(at(10_000_000))));
    fixture.clock().advance(Duration::from_secs(10));
    assert_eq!(claim_sorted(&mut worker).await, sorted([x[2], x[3], z[2]]));
}

async fn key_rate_holds_over_several_claims(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").key_rate(Rate::new(2, Duration::from_secs(10)))).await;
    let x: [Key; 4] = enqueue_all(&mut worker, "a", "x").await;
    assert_eq!(worker.claim_keys(1).await, x[..1]);
    assert_eq!(other.claim_keys(1).await, x[1..2]);
    assert_eq!(claim_all(&mut worker).await, (vec![], Some(at(10_000_000))));
    let y: [Key; 1] = enqueue_all(&mut worker, "a", "y").await;
    assert_eq!(other.claim_keys(9).await, y);
    fixture.clock().advance(Duration::from_secs(10));
    assert_eq!(claim_all(&mut worker).await.0, x[2..]);
}

async fn begun_execution_consumes_no_start(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(1, Duration::from_hours(1)))).await;
    let all: [Key; 2] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, all[..1]);
    worker.apply(vec![queue_transition(all[0], "a", "", sleeping(at(50)))]).await;
    fixture.clock().advance(Duration::from_micros(60));
    assert_eq!(claim_all(&mut worker).await, (vec![all[0]], Some(at(3_600_000_000))));
    let child = Key::mint(0);
    worker.apply(vec![start_queued(child), queue_transition(all[0], "a", "", awaiting(&[child]))]).await;
    assert_eq!(claim_all(&mut worker).await.0, [child]);
    worker.apply(vec![queue_transition(child, DEFAULT_QUEUE, "", completed())]).await;
    worker.apply(vec![Write::Wake(all[0])]).await;
    assert_eq!(claim_all(&mut worker).await.0, [all[0]]);
    complete(&mut worker, all[0], "a", "").await;
    assert!(claim_all(&mut worker).await.0.is_empty());
    fixture.clock().advance(Duration::from_hours(1));
    assert_eq!(claim_all(&mut worker).await.0, all[1..]);
}

async fn begun_execution_without_capacity_blocks_no_start(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let rate = Rate::new(10, Duration::from_secs(1));
    declare_queue(fixture, Queue::new("a").rate(rate).key_concurrency(1)).await;
    let [sleeps, runs]: [Key; 2] = enqueue_all(&mut worker, "a", "x").await;
    assert_eq!(claim_all(&mut worker).await.0, [sleeps]);
    worker.apply(vec![queue_transition(sleeps, "a", "x", sleeping(at(50)))]).await;
    assert_eq!(claim_all(&mut worker).await.0, [runs]);
    fixture.clock().advance(Duration::from_micros(60));
    let [other]: [Key; 1] = enqueue_all(&mut worker, "a", "y").await;
    assert_eq!(claim_all(&mut worker).await.0, [other], "the key of the execution has capacity");
    complete(&mut worker, runs, "a", "x").await;
    assert_eq!(claim_all(&mut worker).await.0, [sleeps]);
}

async fn begun_execution_without_worker_blocks_no_start(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(10, Duration::from_secs(1)))).await;
    let [first, gone, old] = keys();
    let of_others = [
        Start { workflow: "gone".into(), placement: placement("a", "", -1), ..start(first, queued()) },
        Start { workflow: "gone".into(), ..queued_in("a", gone) },
        Start { app_version: Some("1".into()), ..queued_in("a", old) },
    ];
    worker.apply(of_others.map(write).to_vec()).await;
    let mut former = Worker::register(&fixture.store()).await;
    former.workflows = [WORKFLOW.into(), "gone".into()].into();
    assert_eq!(former.claim_keys(9).await, [first, gone, old]);
    let wait = |key| queue_transition(key, "a", "", sleeping(at(50)));
    former.apply([first, gone, old].map(wait).to_vec()).await;
    fixture.clock().advance(Duration::from_micros(60));
    assert_eq!(former.claim_keys(1).await, [first], "the others are queued again");
    let [fresh]: [Key; 1] = enqueue_all(&mut worker, "a", "").await;
    let claim = Claim { app_version: Some("2".into()), ..worker.new_claim(9) };
    let claimed = worker.try_claim(&claim).await.unwrap();
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [fresh]);
}

async fn begun_and_new_executions_share_a_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(3, Duration::from_hours(1))).concurrency(3)).await;
    let all: [Key; 5] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_keys(1).await, all[..1]);
    worker.apply(vec![queue_transition(all[0], "a", "", sleeping(at(50)))]).await;
    fixture.clock().advance(Duration::from_micros(60));
    let claimed = worker.send_claim(&worker.new_claim(10)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    assert_eq!(taken, all[..3], "one that has begun, and two of three starts");
    for key in taken {
        complete(&mut worker, key, "a", "").await;
    }
    assert!(claim_all(&mut worker).await.0.is_empty(), "the rate is used up");
}

async fn begun_execution_precedes_keys_with_exhausted_rate(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(1, Duration::from_hours(1)))).await;
    let [sleeps]: [Key; 1] = enqueue_all(&mut worker, "a", "z").await;
    assert_eq!(worker.claim_keys(1).await, [sleeps]);
    worker.apply(vec![queue_transition(sleeps, "a", "z", sleeping(at(50)))]).await;
    for key in ["w", "x", "y"] {
        let [_]: [Key; 1] = enqueue_all(&mut worker, "a", key).await;
    }
    fixture.clock().advance(Duration::from_micros(60));
    assert_eq!(worker.claim_keys(1).await, [sleeps], "no other key has a start left");
}

async fn start_between_woken_executions_stays_ready(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(9, Duration::from_hours(1)))).await;
    let [first, new, last] = keys();
    worker.apply(vec![enqueue(first, "a", "", 0), enqueue(last, "a", "", 2)]).await;
    assert_eq!(worker.claim_keys(9).await, [first, last]);
    let wait = |key| queue_transition(key, "a", "", sleeping(at(50)));
    worker.apply(vec![wait(first), wait(last), enqueue(new, "a", "", 1)]).await;
    fixture.clock().advance(Duration::from_micros(60));
    assert_eq!(worker.claim_keys(2).await, [first, last], "woken executions come first");
    assert_eq!(worker.claim_keys(9).await, [new]);
}

async fn taken_over_execution_begins_again_and_counts(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(2, Duration::from_secs(100)))).await;
    let all: [Key; 3] = enqueue_all(&mut dead, "a", "").await;
    assert_eq!(claim_all(&mut dead).await.0, all[..2]);
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 2);
    assert!(
        claim_all(&mut other).await.0.is_empty(),
        "a second beginning in the window would exceed the rate"
    );
    fixture.clock().advance(Duration::from_secs(100));
    assert_eq!(claim_sorted(&mut other).await, sorted([all[0], all[1]]));
}

async fn execution_tried_in_quarantine_counts(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let starts = QUARANTINE_STRIKES + 1;
    let rate = Rate::new(starts, Duration::from_hours(1));
    declare_queue(fixture, Queue::new("a").rate(rate).key_rate(rate)).await;
    let [tried]: [Key; 1] = enqueue_all(&mut worker, "a", "").await;
    for _ in 0..QUARANTINE_STRIKES {
        assert_eq!(worker.claim_keys(1).await, [tried]);
        replace_dead_worker(fixture, &mut worker, &survivor).await;
    }
    let [fresh]: [Key; 1] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(worker.claim_from_quarantine(1).await.len(), 1);
    assert!(claim_all(&mut worker).await.0.is_empty(), "the trial was the last start of the hour");
    fixture.clock().advance(Duration::from_hours(2));
    assert_eq!(claim_all(&mut worker).await.0, [fresh]);
}

async fn changed_rate_resets_its_window(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").rate(Rate::new(1, Duration::from_hours(1)))).await;
    let all: [Key; 4] = enqueue_all(&mut worker, "a", "").await;
    assert_eq!(claim_all(&mut worker).await.0, all[..1]);
    declare_queue(fixture, Queue::new("a").rate(Rate::new(1, Duration::from_hours(1))).concurrency(9)).await;
    assert!(claim_all(&mut worker).await.0.is_empty(), "the rate is the same");
    declare_queue(fixture, Queue::new("a").rate(Rate::new(2, Duration::from_hours(1)))).await;
    assert_eq!(claim_all(&mut worker).await.0, all[1..3]);
    declare_queue(fixture, Queue::new("a")).await;
    assert_eq!(claim_all(&mut worker).await, (all[3..].to_vec(), None));
}
