//! Timeouts that begin with the execution: the claim that lets it begin sets its deadline.

use std::time::Duration;

use stepfast_core::clock::{MAX_STORED_DURATION, Timestamp};
use stepfast_core::key::Key;
use stepfast_core::store::{Filter, Start, State};

use crate::fixtures::builders::{
    at, keys, queue_transition, queued, running, scheduled, sleeping, start, placement, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    a_huge_one_stops_no_claim,
    it_counts_from_the_claim,
    it_counts_once,
    an_earlier_deadline_stays,
    what_has_no_queue_or_is_scheduled_has_it_too,
];

const TIMEOUT: Duration = Duration::from_secs(10);

fn timed(key: Key, state: State) -> Start {
    Start { run_timeout: Some(TIMEOUT), placement: placement("a", "", 0), ..start(key, state) }
}

async fn deadline(worker: &Worker, key: Key) -> (Option<Duration>, Option<Timestamp>) {
    let row = worker.execution(key).await;
    (row.run_timeout, row.deadline_at)
}

async fn it_counts_from_the_claim(fixture: &dyn StoreFixture) {
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

async fn it_counts_once(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    lost.apply(vec![write(timed(key, queued()))]).await;
    let due = fixture.now().plus(TIMEOUT);
    assert_eq!(lost.claim_keys(9).await, [key]);
    // waiting, being handed on and being recovered change nothing
    lost.apply(vec![queue_transition(key, "a", "", sleeping(at(1)))]).await;
    fixture.clock().advance(Duration::from_secs(1));
    assert_eq!(lost.claim_keys(9).await, [key]);
    lost.apply(vec![queue_transition(key, "a", "", queued())]).await;
    assert_eq!(lost.claim_keys(9).await, [key]);
    lost.apply(vec![queue_transition(key, "a", "", running())]).await;
    fixture.mark_dead(lost.id).await;
    worker.take_over_dead_workers().await;
    assert_eq!(worker.claim_keys(9).await, [key]);
    assert_eq!(deadline(&worker, key).await, (None, Some(due)));
}

async fn an_earlier_deadline_stays(fixture: &dyn StoreFixture) {
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

async fn what_has_no_queue_or_is_scheduled_has_it_too(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [plain, of_queue, without] = keys();
    worker.apply(vec![write(Start { placement: None, ..timed(plain, queued()) })]).await;
    let due_at = fixture.now().plus(Duration::from_secs(60));
    worker.apply(vec![write(timed(of_queue, scheduled(due_at)))]).await;
    worker.apply(vec![write(Start { placement: None, ..timed(without, scheduled(due_at)) })]).await;
    assert_eq!(worker.claim_keys(9).await, [plain]);
    fixture.clock().advance(Duration::from_secs(70));
    let begun = fixture.now();
    worker.heartbeat().await;
    assert_eq!(worker.claim(9).await.len(), 2);
    for key in [of_queue, without] {
        assert_eq!(deadline(&worker, key).await, (None, Some(begun.plus(TIMEOUT))));
    }
}

/// Limits that no store can count to: they are the longest one, and what is beside them is claimed.
async fn a_huge_one_stops_no_claim(fixture: &dyn StoreFixture) {
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
