//! Debounced starts: Starts of one id within a window share one execution, with the input of the last.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::queue::debounce::debounce_id;
use stepfast_core::store::{Flush, Outcome, Start, Status, Write};

use super::queue::{complete, set_queue};
use crate::fixtures::builders::{at, cancel, enqueue, keys, payload, placement, scheduled, start, write};
use crate::{StoreFixture, Worker};

super::cases![
    every_start_defers_execution_and_replaces_input,
    execution_is_deferred_at_most_by_its_window,
    start_after_due_time_creates_another_execution,
    cancelled_execution_takes_no_more_starts,
    debounce_ids_are_separate_per_queue_and_from_dedup_ids,
    starts_of_one_flush_and_id_share_an_execution,
    flush_debounces_fifty_ids,
    resent_flush_repeats_its_outcomes,
    start_sent_by_another_worker_is_not_repeated,
    debounced_start_enters_a_full_queue_and_counts,
    starts_of_several_workers_share_an_execution,
];

/// Returns a Start that is due at `due`, in microseconds. If the Start is merged into an earlier one, the execution
/// becomes due at most `window` after that one.
fn debounced(key: Key, id: &str, input: &str, due: i64, window: Duration) -> Start {
    Start {
        dedup_id: Some(format!("\u{1}checkout\u{1}{id}").into()),
        debounce_window: Some(window),
        is_guarded: true,
        placement: placement("a", "", 0),
        input: payload(input),
        ..start(key, scheduled(at(due)))
    }
}

const LONG_WINDOW: Duration = Duration::from_secs(3600);
/// A due time that no case reaches.
const FAR_FUTURE: i64 = 1_000_000_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// Commits a Start. Returns the execution that it created or joined.
async fn start_or_join(worker: &mut Worker, start: Start) -> Key {
    let key = start.key;
    match worker.commit_one(write(start)).await {
        Outcome::Applied => key,
        Outcome::Duplicate(existing) => existing.key,
        other => panic!("{other:?}"),
    }
}

/// Returns the fixture's time in microseconds since the beginning.
fn now_micros(fixture: &dyn StoreFixture) -> i64 {
    fixture.now().as_micros() - at(0).as_micros()
}

/// Advances the clock to `micros` microseconds after the beginning.
fn advance_to(fixture: &dyn StoreFixture, micros: i64) {
    let by = at(micros).since(fixture.now());
    fixture.clock().advance(by);
}

async fn every_start_defers_execution_and_replaces_input(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let start_at = now_micros(fixture);
    let [first, second, third] = keys();
    let seconds = |n: i64| start_at + n * 1_000_000;
    assert_eq!(
        start_or_join(&mut worker, debounced(first, "x", "one", seconds(5), LONG_WINDOW)).await,
        first
    );
    advance_to(fixture, seconds(4));
    assert_eq!(
        start_or_join(&mut worker, debounced(second, "x", "two", seconds(9), LONG_WINDOW)).await,
        first
    );
    advance_to(fixture, seconds(8));
    let last = Start {
        placement: placement("a", "k", 7),
        ..debounced(third, "x", "three", seconds(13), LONG_WINDOW)
    };
    assert_eq!(start_or_join(&mut worker, last).await, first);
    advance_to(fixture, seconds(12));
    assert_eq!(worker.claim_keys(9).await, []);
    let row = worker.execution(first).await;
    assert_eq!((row.status, row.debounce_id(), row.given_dedup_id()), (Status::Scheduled, Some("x"), None));
    assert!(!worker.exists(second).await && !worker.exists(third).await);
    advance_to(fixture, seconds(13));
    let record = worker.claim(9).await.remove(0);
    assert_eq!((record.execution.key, record.execution.input), (first, payload("three")));
    let placement = record.execution.placement.unwrap();
    assert_eq!((&*placement.key, placement.priority), ("k", 7));
}

async fn execution_is_deferred_at_most_by_its_window(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let start_at = now_micros(fixture);
    let created_at = at(start_at);
    let first = Key::mint(0);
    for n in 0..6_i64 {
        advance_to(fixture, start_at + n * 1_000_000);
        let key = if n == 0 { first } else { Key::mint(0) };
        let due = start_at + (n + 2) * 1_000_000;
        let start = debounced(key, "x", &n.to_string(), due, 5 * SECOND);
        let created_at = if n == 0 { created_at } else { fixture.now() };
        assert_eq!(start_or_join(&mut worker, Start { created_at, ..start }).await, first, "{n}");
        if n < 5 {
            assert_eq!(worker.claim_keys(9).await, []);
        }
    }
    let record = worker.claim(9).await.remove(0);
    assert_eq!((record.execution.key, record.execution.input), (first, payload("5")));
}

async fn start_after_due_time_creates_another_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_micros(fixture);
    let [first, second, third] = keys();
    assert_eq!(
        start_or_join(&mut worker, debounced(first, "x", "one", now + 1_000, LONG_WINDOW)).await,
        first
    );
    advance_to(fixture, now + 2_000);
    // queued and not begun: the execution keeps its input
    set_queue(&*worker.store, &Queue::new("a"), true).await;
    assert_eq!(worker.claim_keys(9).await, []);
    set_queue(&*worker.store, &Queue::new("a"), false).await;
    assert_eq!(worker.execution(first).await.status, Status::Queued);
    assert_eq!(
        start_or_join(&mut worker, debounced(second, "x", "two", now + 5_000, LONG_WINDOW)).await,
        second
    );
    assert_eq!(worker.claim_keys(9).await, [first]);
    assert_eq!(worker.execution(first).await.input, payload("one"));
    assert_eq!(worker.execution(first).await.dedup_id, None);
    assert_eq!(
        start_or_join(&mut worker, debounced(third, "x", "three", now + 5_000, LONG_WINDOW)).await,
        second
    );
    complete(&mut worker, first, "a", "").await;
    advance_to(fixture, now + 5_000);
    assert_eq!(worker.claim_keys(9).await, [second]);
}

async fn cancelled_execution_takes_no_more_starts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, second] = keys();
    assert_eq!(
        start_or_join(&mut worker, debounced(first, "x", "one", FAR_FUTURE, LONG_WINDOW)).await,
        first
    );
    worker.commit_one(cancel(first)).await;
    assert_eq!(
        start_or_join(&mut worker, debounced(second, "x", "two", FAR_FUTURE, LONG_WINDOW)).await,
        second
    );
    assert_eq!(worker.execution(first).await.input, payload("one"));
}

async fn debounce_ids_are_separate_per_queue_and_from_dedup_ids(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, second, third, plain] = keys();
    let far = FAR_FUTURE;
    assert_eq!(start_or_join(&mut worker, debounced(first, "x", "one", far, LONG_WINDOW)).await, first);
    let in_other_queue =
        Start { placement: placement("b", "", 0), ..debounced(second, "x", "two", far, LONG_WINDOW) };
    assert_eq!(start_or_join(&mut worker, in_other_queue).await, second);
    assert_eq!(start_or_join(&mut worker, debounced(third, "y", "three", far, LONG_WINDOW)).await, third);
    // a dedup_id with the same text is independent
    let dedup = Start {
        dedup_id: Some("x".into()),
        is_guarded: true,
        ..debounced(plain, "x", "four", far, LONG_WINDOW)
    };
    worker.apply(vec![write(Start { debounce_window: None, ..dedup })]).await;
    assert_eq!(worker.execution(plain).await.given_dedup_id(), Some("x"));
    assert_eq!(debounce_id("x"), None);
}

async fn starts_of_one_flush_and_id_share_an_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_micros(fixture);
    let all: [Key; 5] = keys();
    let starts: Vec<Write> = (all.iter().enumerate())
        .map(|(n, key)| write(debounced(*key, "x", &n.to_string(), now + 1_000 + n as i64, LONG_WINDOW)))
        .collect();
    let outcomes = worker.commit(starts).await;
    advance_to(fixture, now + 1_004);
    let record = worker.claim(9).await.remove(0);
    let only = record.execution.key;
    assert_eq!(record.execution.input, payload("4"));
    for (key, outcome) in all.iter().zip(outcomes) {
        match outcome {
            Outcome::Applied => assert_eq!(*key, only),
            Outcome::Duplicate(existing) => assert_eq!(existing.key, only),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(worker.count().await, 1);
}

async fn flush_debounces_fifty_ids(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_micros(fixture);
    for round in 0..3 {
        let ids = 0..50;
        let starts = ids.map(|n| {
            write(debounced(Key::mint(0), &n.to_string(), &format!("{n} {round}"), now + 9, LONG_WINDOW))
        });
        let mut writes: Vec<Write> = starts.collect();
        writes.insert(20, enqueue(Key::mint(0), "a", "", 0));
        worker.commit(writes).await;
    }
    advance_to(fixture, now + 9);
    let mut inputs: Vec<_> =
        worker.claim(200).await.into_iter().map(|record| record.execution.input).collect();
    inputs.retain(|input| (0..50).any(|n| *input == payload(&format!("{n} 2"))));
    assert_eq!(inputs.len(), 50);
    assert_eq!(worker.count().await, 53);
}

async fn resent_flush_repeats_its_outcomes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_micros(fixture);
    let [first, second, other] = keys();
    assert_eq!(start_or_join(&mut worker, debounced(first, "x", "one", now + 5, LONG_WINDOW)).await, first);
    let flush = worker.new_flush(vec![
        write(debounced(second, "x", "two", now + 7, LONG_WINDOW)),
        write(debounced(other, "y", "three", now + 7, LONG_WINDOW)),
    ]);
    let sent = worker.send(&flush).await.unwrap();
    assert!(matches!(&sent[..], [Outcome::Duplicate(existing), Outcome::Applied] if existing.key == first));
    let resent = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    advance_to(fixture, now + 7);
    assert_eq!(worker.claim(9).await.len(), 2);
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    assert_eq!(worker.count().await, 2);
}

async fn start_sent_by_another_worker_is_not_repeated(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut next = Worker::register(&fixture.second_store().await).await;
    let now = now_micros(fixture);
    let key = Key::mint(0);
    assert_eq!(start_or_join(&mut worker, debounced(key, "x", "one", now + 5, LONG_WINDOW)).await, key);
    advance_to(fixture, now + 5);
    assert_eq!(worker.claim_keys(9).await, [key]);
    // the Start is sent again under another registration: its worker was fenced, and the caller has no reply
    assert_eq!(start_or_join(&mut next, debounced(key, "x", "one", now + 5, LONG_WINDOW)).await, key);
    assert_eq!(worker.execution(key).await.status, Status::Running);
    assert_eq!(next.claim_keys(9).await, []);
    let waits = Key::mint(0);
    assert_eq!(start_or_join(&mut worker, debounced(waits, "x", "two", now + 9, LONG_WINDOW)).await, waits);
    assert_eq!(start_or_join(&mut next, debounced(waits, "x", "two", now + 9, LONG_WINDOW)).await, waits);
    assert_eq!(worker.count().await, 2);
}

async fn debounced_start_enters_a_full_queue_and_counts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*worker.store, &Queue::new("a").max_depth(1), false).await;
    worker.apply(vec![enqueue(Key::mint(0), "a", "", 0)]).await;
    let [first, second] = keys();
    let far = now_micros(fixture) + 1_000_000_000;
    assert_eq!(start_or_join(&mut worker, debounced(first, "x", "one", far, LONG_WINDOW)).await, first);
    assert_eq!(start_or_join(&mut worker, debounced(second, "x", "two", far, LONG_WINDOW)).await, first);
    assert_eq!(worker.claim(9).await.len(), 1);
    assert_eq!(worker.commit_one(enqueue(Key::mint(0), "a", "", 0)).await, Outcome::Full);
    worker.commit_one(cancel(first)).await;
    worker.apply(vec![enqueue(Key::mint(0), "a", "", 0)]).await;
}

async fn starts_of_several_workers_share_an_execution(fixture: &dyn StoreFixture) {
    let mut workers = Vec::new();
    for store in [fixture.store(), fixture.second_store().await, fixture.store()] {
        workers.push(Worker::register(&store).await);
    }
    let now = now_micros(fixture);
    let all = workers.iter_mut().map(|worker| async move {
        let mut found = Vec::new();
        for n in 0..10 {
            let id = if n % 2 == 0 { "x" } else { "y" };
            found.push((
                id,
                start_or_join(worker, debounced(Key::mint(0), id, "same", now + 5, LONG_WINDOW)).await,
            ));
        }
        found
    });
    let found: std::collections::BTreeSet<_> =
        futures_util::future::join_all(all).await.into_iter().flatten().collect();
    assert_eq!(found.len(), 2, "{found:?}");
    advance_to(fixture, now + 5);
    assert_eq!(workers[1].claim(9).await.len(), 2);
}
