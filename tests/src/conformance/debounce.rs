//! Starts that come soon after one another are one, with the input of the last.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::queue::debounce::debounce_id;
use stepfast_core::store::{Flush, Outcome, Start, Status, Write};

use super::queue::{end, set};
use crate::fixtures::builders::{at, cancel, enqueue, keys, payload, scheduled, start, placement, write};
use crate::{StoreFixture, Worker};

super::cases![
    the_last_input_wins_and_every_start_puts_it_off,
    it_is_not_put_off_for_ever,
    when_it_is_due_the_next_start_is_another,
    a_cancelled_one_takes_no_more,
    ids_of_other_queues_and_workflows_are_others,
    what_one_flush_has_of_an_id_is_one,
    many_ids_at_a_time,
    a_resent_flush_says_again_what_became_of_it,
    what_is_staged_again_is_not_started_twice,
    it_enters_a_full_queue_and_counts,
    starts_of_several_workers_are_one,
];

/// Begins not before `due`, in microseconds, and at most `most` after the first.
fn debounced(key: Key, id: &str, input: &str, due: i64, most: Duration) -> Start {
    Start {
        dedup_id: Some(format!("\u{1}checkout\u{1}{id}").into()),
        debounce_window: Some(most),
        is_guarded: true,
        placement: placement("a", "", 0),
        input: payload(input),
        ..start(key, scheduled(at(due)))
    }
}

const LONG: Duration = Duration::from_secs(3600);
/// Not in these tests.
const FAR: i64 = 1_000_000_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// What became of a start: the execution that it is.
async fn put(worker: &mut Worker, start: Start) -> Key {
    let key = start.key;
    match worker.commit_one(write(start)).await {
        Outcome::Applied => key,
        Outcome::Duplicate(existing) => existing.key,
        other => panic!("{other:?}"),
    }
}

/// In microseconds since the beginning.
fn now_of(fixture: &dyn StoreFixture) -> i64 {
    fixture.now().as_micros() - at(0).as_micros()
}

/// Time goes by until so many microseconds after the beginning.
fn until(fixture: &dyn StoreFixture, micros: i64) {
    let by = at(micros).since(fixture.now());
    fixture.clock().advance(by);
}

async fn the_last_input_wins_and_every_start_puts_it_off(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let start_at = now_of(fixture);
    let [first, second, third] = keys();
    let seconds = |n: i64| start_at + n * 1_000_000;
    assert_eq!(put(&mut worker, debounced(first, "x", "one", seconds(5), LONG)).await, first);
    until(fixture, seconds(4));
    assert_eq!(put(&mut worker, debounced(second, "x", "two", seconds(9), LONG)).await, first);
    until(fixture, seconds(8));
    let last = Start { placement: placement("a", "k", 7), ..debounced(third, "x", "three", seconds(13), LONG) };
    assert_eq!(put(&mut worker, last).await, first);
    until(fixture, seconds(12));
    assert_eq!(worker.claim_keys(9).await, []);
    let row = worker.execution(first).await;
    assert_eq!((row.status, row.debounce_id(), row.given_dedup_id()), (Status::Scheduled, Some("x"), None));
    assert!(!worker.exists(second).await && !worker.exists(third).await);
    until(fixture, seconds(13));
    let record = worker.claim(9).await.remove(0);
    assert_eq!((record.execution.key, record.execution.input), (first, payload("three")));
    let place = record.execution.placement.unwrap();
    assert_eq!((&*place.key, place.priority), ("k", 7));
}

async fn it_is_not_put_off_for_ever(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let start_at = now_of(fixture);
    let created_at = at(start_at);
    let first = Key::mint(0);
    for n in 0..6_i64 {
        until(fixture, start_at + n * 1_000_000);
        let key = if n == 0 { first } else { Key::mint(0) };
        let due = start_at + (n + 2) * 1_000_000;
        let start = debounced(key, "x", &n.to_string(), due, 5 * SECOND);
        let created_at = if n == 0 { created_at } else { fixture.now() };
        assert_eq!(put(&mut worker, Start { created_at, ..start }).await, first, "{n}");
        if n < 5 {
            assert_eq!(worker.claim_keys(9).await, []);
        }
    }
    let record = worker.claim(9).await.remove(0);
    assert_eq!((record.execution.key, record.execution.input), (first, payload("5")));
}

async fn when_it_is_due_the_next_start_is_another(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_of(fixture);
    let [first, second, third] = keys();
    assert_eq!(put(&mut worker, debounced(first, "x", "one", now + 1_000, LONG)).await, first);
    until(fixture, now + 2_000);
    // in its queue, and not begun: it stays as it is
    set(&*worker.store, &Queue::new("a"), true).await;
    assert_eq!(worker.claim_keys(9).await, []);
    set(&*worker.store, &Queue::new("a"), false).await;
    assert_eq!(worker.execution(first).await.status, Status::Queued);
    assert_eq!(put(&mut worker, debounced(second, "x", "two", now + 5_000, LONG)).await, second);
    assert_eq!(worker.claim_keys(9).await, [first]);
    assert_eq!(worker.execution(first).await.input, payload("one"));
    assert_eq!(worker.execution(first).await.dedup_id, None);
    assert_eq!(put(&mut worker, debounced(third, "x", "three", now + 5_000, LONG)).await, second);
    end(&mut worker, first, "a", "").await;
    until(fixture, now + 5_000);
    assert_eq!(worker.claim_keys(9).await, [second]);
}

async fn a_cancelled_one_takes_no_more(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, second] = keys();
    assert_eq!(put(&mut worker, debounced(first, "x", "one", FAR, LONG)).await, first);
    worker.commit_one(cancel(first)).await;
    assert_eq!(put(&mut worker, debounced(second, "x", "two", FAR, LONG)).await, second);
    assert_eq!(worker.execution(first).await.input, payload("one"));
}

async fn ids_of_other_queues_and_workflows_are_others(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, second, third, plain] = keys();
    let far = FAR;
    assert_eq!(put(&mut worker, debounced(first, "x", "one", far, LONG)).await, first);
    let elsewhere = Start { placement: placement("b", "", 0), ..debounced(second, "x", "two", far, LONG) };
    assert_eq!(put(&mut worker, elsewhere).await, second);
    assert_eq!(put(&mut worker, debounced(third, "y", "three", far, LONG)).await, third);
    // a dedup_id of the same text is another thing
    let dedup =
        Start { dedup_id: Some("x".into()), is_guarded: true, ..debounced(plain, "x", "four", far, LONG) };
    worker.apply(vec![write(Start { debounce_window: None, ..dedup })]).await;
    assert_eq!(worker.execution(plain).await.given_dedup_id(), Some("x"));
    assert_eq!(debounce_id("x"), None);
}

async fn what_one_flush_has_of_an_id_is_one(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_of(fixture);
    let all: [Key; 5] = keys();
    let starts: Vec<Write> = (all.iter().enumerate())
        .map(|(n, key)| write(debounced(*key, "x", &n.to_string(), now + 1_000 + n as i64, LONG)))
        .collect();
    let outcomes = worker.commit(starts).await;
    until(fixture, now + 1_004);
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

async fn many_ids_at_a_time(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_of(fixture);
    for round in 0..3 {
        let ids = 0..50;
        let starts = ids
            .map(|n| write(debounced(Key::mint(0), &n.to_string(), &format!("{n} {round}"), now + 9, LONG)));
        let mut writes: Vec<Write> = starts.collect();
        writes.insert(20, enqueue(Key::mint(0), "a", "", 0));
        worker.commit(writes).await;
    }
    until(fixture, now + 9);
    let mut inputs: Vec<_> =
        worker.claim(200).await.into_iter().map(|record| record.execution.input).collect();
    inputs.retain(|input| (0..50).any(|n| *input == payload(&format!("{n} 2"))));
    assert_eq!(inputs.len(), 50);
    assert_eq!(worker.count().await, 53);
}

async fn a_resent_flush_says_again_what_became_of_it(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let now = now_of(fixture);
    let [first, second, other] = keys();
    assert_eq!(put(&mut worker, debounced(first, "x", "one", now + 5, LONG)).await, first);
    let flush = worker.new_flush(vec![
        write(debounced(second, "x", "two", now + 7, LONG)),
        write(debounced(other, "y", "three", now + 7, LONG)),
    ]);
    let sent = worker.send(&flush).await.unwrap();
    assert!(matches!(&sent[..], [Outcome::Duplicate(existing), Outcome::Applied] if existing.key == first));
    let again = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&again).await.unwrap(), sent);
    until(fixture, now + 7);
    assert_eq!(worker.claim(9).await.len(), 2);
    let sent = worker.send(&again).await.unwrap();
    assert!(
        match &sent[0] {
            // it cannot be told any more
            Outcome::Deduplicated(None) => true,
            Outcome::Duplicate(existing) => existing.key == first,
            _ => false,
        },
        "{sent:?}"
    );
    assert_eq!(sent[1], Outcome::Applied);
    assert_eq!(worker.count().await, 2);
}

async fn what_is_staged_again_is_not_started_twice(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut next = Worker::register(&fixture.second_store().await).await;
    let now = now_of(fixture);
    let key = Key::mint(0);
    assert_eq!(put(&mut worker, debounced(key, "x", "one", now + 5, LONG)).await, key);
    until(fixture, now + 5);
    assert_eq!(worker.claim_keys(9).await, [key]);
    // its worker was fenced, and does not know that it has landed
    assert_eq!(put(&mut next, debounced(key, "x", "one", now + 5, LONG)).await, key);
    assert_eq!(worker.execution(key).await.status, Status::Running);
    assert_eq!(next.claim_keys(9).await, []);
    let waits = Key::mint(0);
    assert_eq!(put(&mut worker, debounced(waits, "x", "two", now + 9, LONG)).await, waits);
    assert_eq!(put(&mut next, debounced(waits, "x", "two", now + 9, LONG)).await, waits);
    assert_eq!(worker.count().await, 2);
}

async fn it_enters_a_full_queue_and_counts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*worker.store, &Queue::new("a").max_depth(1), false).await;
    worker.apply(vec![enqueue(Key::mint(0), "a", "", 0)]).await;
    let [first, second] = keys();
    let far = now_of(fixture) + 1_000_000_000;
    assert_eq!(put(&mut worker, debounced(first, "x", "one", far, LONG)).await, first);
    assert_eq!(put(&mut worker, debounced(second, "x", "two", far, LONG)).await, first);
    assert_eq!(worker.claim(9).await.len(), 1);
    assert_eq!(worker.commit_one(enqueue(Key::mint(0), "a", "", 0)).await, Outcome::Full);
    worker.commit_one(cancel(first)).await;
    worker.apply(vec![enqueue(Key::mint(0), "a", "", 0)]).await;
}

async fn starts_of_several_workers_are_one(fixture: &dyn StoreFixture) {
    let mut workers = Vec::new();
    for store in [fixture.store(), fixture.second_store().await, fixture.store()] {
        workers.push(Worker::register(&store).await);
    }
    let now = now_of(fixture);
    let all = workers.iter_mut().map(|worker| async move {
        let mut found = Vec::new();
        for n in 0..10 {
            let id = if n % 2 == 0 { "x" } else { "y" };
            found.push((id, put(worker, debounced(Key::mint(0), id, "same", now + 5, LONG)).await));
        }
        found
    });
    let found: std::collections::BTreeSet<_> =
        futures_util::future::join_all(all).await.into_iter().flatten().collect();
    assert_eq!(found.len(), 2, "{found:?}");
    until(fixture, now + 5);
    assert_eq!(workers[1].claim(9).await.len(), 2);
}
