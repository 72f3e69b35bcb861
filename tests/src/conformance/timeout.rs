//! Run timeouts: the claim with which an execution begins sets its deadline.

use std::time::Duration;

use stepfast_core::clock::{MAX_STORED_DURATION, Timestamp};
use stepfast_core::key::Key;
use stepfast_core::store::{Filter, QUARANTINE_STRIKES, Start, State};

use super::quarantine::replace_dead_worker;
use crate::fixtures::builders::{
    at, bundle_start, keys, open_batch, placement, queue_transition, queued, running, scheduled, sleeping,
    start, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    huge_timeout_blocks_no_claim,
    run_timeout_counts_from_the_first_claim,
    run_timeout_is_set_once,
    bundle_keeps_the_timeout_of_its_items,
    earlier_deadline_is_kept,
    run_timeout_applies_without_a_queue_and_when_scheduled,
];

const TIMEOUT: Duration = Duration::from_secs(10);

fn timed(key: Key, state: State) -> Start {
    Start { run_timeout: Some(TIMEOUT), placement: placement("a", "", 0), ..start(key, state) }
}

async fn deadline(worker: &Worker, key: Key) -> (Option<Duration>, Option<Timestamp>) {
    let row = worker.execution(key).await;
    (row.run_timeout, row.deadline_at)
}

async fn run_timeout_counts_from_the_first_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, plain] = keys();
    worker.apply(vec![write(timed(key, queued())), write(start(plain, queued()))]).await;
    assert_eq!(deadline(&worker, key).await, (Some(TIMEOUT), None));
    let listed = worker.store.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions;
    let timeouts: Vec<_> = listed.iter().filter_map(|row| row.run_timeout).collect();
    assert_eq!(timeouts, [TIMEOUT]);
    fixture.clock().advance(Duration::from_secs(100));
    let begun = fixture.now();
    let records = worker.claim(9).await;
    for record in &records {
        let is_timed = record.execution.key == key;
        let expected = is_timed.then(|| begun.plus(TIMEOUT));
        assert_eq!((record.execution.run_timeout, record.execution.deadline_at), (None, expected));
    }
    assert_eq!(deadline(&worker, key).await, (None, Some(begun.plus(TIMEOUT))));
    assert_eq!(deadline(&worker, plain).await, (None, None));
}

async fn run_timeout_is_set_once(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    dead.apply(vec![write(timed(key, queued()))]).await;
    let due = fixture.now().plus(TIMEOUT);
    assert_eq!(dead.claim_keys(9).await, [key]);
    // waiting, a requeue and a recovery change nothing
    dead.apply(vec![queue_transition(key, "a", "", sleeping(at(1)))]).await;
    fixture.clock().advance(Duration::from_secs(1));
    assert_eq!(dead.claim_keys(9).await, [key]);
    dead.apply(vec![queue_transition(key, "a", "", queued())]).await;
    assert_eq!(dead.claim_keys(9).await, [key]);
    dead.apply(vec![queue_transition(key, "a", "", running())]).await;
    fixture.mark_dead(dead.id).await;
    worker.take_over_dead_workers().await;
    assert_eq!(worker.claim_keys(9).await, [key]);
    assert_eq!(deadline(&worker, key).await, (None, Some(due)));
}

async fn earlier_deadline_is_kept(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [early, late] = keys();
    let now = fixture.now();
    let (before, after) = (now.plus(TIMEOUT / 2), now.plus(TIMEOUT * 2));
    for (key, deadline_at) in [(early, before), (late, after)] {
        worker.apply(vec![write(Start { deadline_at: Some(deadline_at), ..timed(key, queued()) })]).await;
    }
    assert_eq!(worker.claim(9).await.len(), 2);
    assert_eq!(deadline(&worker, early).await, (None, Some(before)));
    assert_eq!(deadline(&worker, late).await, (None, Some(now.plus(TIMEOUT))));
}

async fn run_timeout_applies_without_a_queue_and_when_scheduled(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [plain, queued_later, without_queue] = keys();
    worker.apply(vec![write(Start { placement: None, ..timed(plain, queued()) })]).await;
    let due_at = fixture.now().plus(Duration::from_secs(60));
    worker.apply(vec![write(timed(queued_later, scheduled(due_at)))]).await;
    worker.apply(vec![write(Start { placement: None, ..timed(without_queue, scheduled(due_at)) })]).await;
    assert_eq!(worker.claim_keys(9).await, [plain]);
    fixture.clock().advance(Duration::from_secs(70));
    let begun = fixture.now();
    worker.heartbeat().await;
    assert_eq!(worker.claim(9).await.len(), 2);
    for key in [queued_later, without_queue] {
        assert_eq!(deadline(&worker, key).await, (None, Some(begun.plus(TIMEOUT))));
    }
}

/// Tests timeouts above the range of every store: the longest storable timeout applies, and others are still claimed.
async fn huge_timeout_blocks_no_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let huge = [Duration::from_secs(10_u64.pow(13)), Duration::from_millis(i64::MAX as u64), Duration::MAX];
    let all: [Key; 4] = keys();
    for (key, run_timeout) in all.iter().zip(huge) {
        worker.apply(vec![write(Start { run_timeout: Some(run_timeout), ..start(*key, queued()) })]).await;
        assert_eq!(deadline(&worker, *key).await, (Some(MAX_STORED_DURATION), None));
    }
    worker.apply(vec![write(start(all[3], queued()))]).await;
    let now = fixture.now();
    assert_eq!(worker.claim_keys(9).await, all);
    for key in &all[..3] {
        assert_eq!(deadline(&worker, *key).await, (None, Some(now.plus(MAX_STORED_DURATION))));
    }
}

async fn bundle_keeps_the_timeout_of_its_items(fixture: &dyn StoreFixture) {
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let bundle = Start { run_timeout: Some(TIMEOUT), ..bundle_start(batch, 0, 5, queued()) };
    let key = bundle.key;
    worker.apply(vec![open_batch(batch), write(bundle)]).await;
    let kept = (Some(TIMEOUT), None);
    for _ in 0..QUARANTINE_STRIKES {
        let claimed = worker.claim(9).await;
        let execution = &claimed[0].execution;
        assert_eq!((execution.run_timeout, execution.deadline_at), kept);
        assert_eq!(deadline(&worker, key).await, kept);
        replace_dead_worker(fixture, &mut worker, &survivor).await;
    }
    let claimed = worker.claim_from_quarantine(9).await;
    assert_eq!((claimed[0].execution.run_timeout, claimed[0].execution.deadline_at), kept);
    assert_eq!(deadline(&worker, key).await, kept);
}
