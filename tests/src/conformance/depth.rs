//! How many may wait in a queue for their beginning.

use futures_util::future::join_all;
use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Flush, Outcome, Start, Status, Write};

use super::queue::{end, set};
use crate::fixtures::builders::{
    at, cancel, child_of, enqueue, keys, queue_transition, queued, running, scheduled, sleeping, start, placement, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    what_more_is_put_into_a_full_queue_is_refused,
    the_first_of_a_flush_enter,
    what_is_claimed_or_cancelled_makes_room,
    what_is_delayed_counts,
    what_has_begun_does_not_count,
    what_a_workflow_starts_enters_a_full_queue_and_counts,
    who_is_there_already_is_no_refusal,
    a_limit_holds_from_when_it_is_set_and_until_it_is_gone,
    nothing_begins_at_once_in_a_queue_with_a_depth,
    a_resent_flush_says_again_what_was_refused,
    other_queues_have_room,
    several_lanes_and_workers_do_not_exceed_it,
];

async fn declare(fixture: &dyn StoreFixture, max_depth: u32) {
    set(&*fixture.store(), &Queue::new("a").max_depth(max_depth), false).await;
}

/// How many of these were refused; the others are there.
async fn refused(worker: &mut Worker, starts: Vec<Write>) -> usize {
    let outcomes = worker.commit(starts.clone()).await;
    let mut refused = 0;
    for (start, outcome) in starts.iter().zip(outcomes) {
        assert!(matches!(outcome, Outcome::Applied | Outcome::Full), "{outcome:?}");
        assert_eq!(worker.exists(start.execution()).await, outcome == Outcome::Applied);
        refused += usize::from(outcome == Outcome::Full);
    }
    refused
}

fn in_queue(key: Key) -> Start {
    Start { placement: placement("a", "", 0), ..start(key, queued()) }
}

fn some<const N: usize>() -> Vec<Write> {
    keys::<N>().into_iter().map(|key| enqueue(key, "a", "", 0)).collect()
}

async fn what_more_is_put_into_a_full_queue_is_refused(fixture: &dyn StoreFixture) {
    declare(fixture, 3).await;
    let mut worker = Worker::register(&fixture.store()).await;
    for _ in 0..3 {
        assert_eq!(refused(&mut worker, some::<1>()).await, 0);
    }
    for _ in 0..3 {
        assert_eq!(refused(&mut worker, some::<2>()).await, 2);
    }
    assert_eq!(worker.claim(9).await.len(), 3);
}

async fn the_first_of_a_flush_enter(fixture: &dyn StoreFixture) {
    declare(fixture, 5).await;
    let mut worker = Worker::register(&fixture.store()).await;
    assert_eq!(refused(&mut worker, some::<2>()).await, 0);
    let all: [Key; 7] = keys();
    let mut writes: Vec<Write> = all.iter().map(|key| enqueue(*key, "a", "k", 0)).collect();
    let beside = Key::mint(0);
    writes.insert(5, write(start(beside, queued())));
    let outcomes = worker.commit(writes).await;
    let entered: Vec<bool> = outcomes.iter().map(|outcome| *outcome == Outcome::Applied).collect();
    assert_eq!(entered, [true, true, true, false, false, true, false, false]);
    let mut taken = worker.claim_keys(20).await;
    taken.sort_unstable();
    assert_eq!(taken.len(), 6);
    assert!(all[..3].iter().chain([&beside]).all(|key| taken.contains(key)));
}

async fn what_is_claimed_or_cancelled_makes_room(fixture: &dyn StoreFixture) {
    declare(fixture, 4).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, rest @ ..]: [Key; 4] = keys();
    for key in [first].into_iter().chain(rest) {
        worker.apply(vec![enqueue(key, "a", "", 0)]).await;
    }
    assert_eq!(worker.claim_keys(1).await, [first]);
    assert_eq!(refused(&mut worker, some::<3>()).await, 2);
    worker.commit_one(cancel(rest[1])).await;
    worker.commit_one(cancel(rest[2])).await;
    assert_eq!(refused(&mut worker, some::<3>()).await, 1);
    assert_eq!(worker.claim(9).await.len(), 4);
    assert_eq!(refused(&mut worker, some::<5>()).await, 1);
}

async fn what_is_delayed_counts(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let delayed = |key| write(Start { placement: placement("a", "", 0), ..start(key, scheduled(at(5))) });
    let [first, second, third] = keys();
    assert_eq!(refused(&mut worker, vec![delayed(first), delayed(second), delayed(third)]).await, 1);
    assert_eq!(refused(&mut worker, some::<1>()).await, 1);
    // due now: it stands in the queue instead
    fixture.clock().advance(std::time::Duration::from_secs(1));
    assert_eq!(worker.claim(1).await.len(), 1);
    assert_eq!(refused(&mut worker, some::<2>()).await, 1);
    // what was delayed in no queue or another is none of its
    assert_eq!(worker.claim(9).await.len(), 2);
    worker.apply(vec![write(start(Key::mint(0), scheduled(at(5_000_000))))]).await;
    assert_eq!(refused(&mut worker, some::<3>()).await, 1);
}

async fn what_has_begun_does_not_count(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut lost = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let [waits, is_lost] = keys();
    worker.apply(vec![enqueue(waits, "a", "", 0)]).await;
    assert_eq!(worker.claim_keys(1).await, [waits]);
    worker.apply(vec![queue_transition(waits, "a", "", sleeping(at(5)))]).await;
    worker.apply(vec![enqueue(is_lost, "a", "", 0)]).await;
    assert_eq!(lost.claim_keys(1).await, [is_lost]);
    fixture.mark_dead(lost.id).await;
    worker.take_over_dead_workers().await;
    fixture.clock().advance(std::time::Duration::from_secs(1));
    worker.commit_one(Write::Wake(waits)).await;
    assert_eq!(worker.execution(waits).await.status, Status::Queued);
    assert_eq!(worker.execution(is_lost).await.status, Status::Queued);
    assert_eq!(refused(&mut worker, some::<3>()).await, 1);
    assert_eq!(refused(&mut worker, some::<1>()).await, 1);
    assert_eq!(worker.claim(9).await.len(), 4);
}

async fn what_a_workflow_starts_enters_a_full_queue_and_counts(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let parent = Key::mint(0);
    worker.apply(vec![write(start(parent, running()))]).await;
    let started = |key| write(Start { placement: placement("a", "", 0), ..child_of(parent, key, queued()) });
    let [first, second, third] = keys();
    worker.apply(vec![started(first)]).await;
    assert_eq!(refused(&mut worker, some::<2>()).await, 1);
    worker.apply(vec![started(second), started(third)]).await;
    assert_eq!(worker.claim(2).await.len(), 2);
    // there are two still
    assert_eq!(refused(&mut worker, some::<1>()).await, 1);
    assert_eq!(worker.claim(1).await.len(), 1);
    assert_eq!(refused(&mut worker, some::<2>()).await, 1);
}

async fn who_is_there_already_is_no_refusal(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [named, held] = keys();
    let with_id = |key| {
        let workflow_id = Some("given".into());
        Start { workflow_id, fingerprint: Some(1), is_guarded: true, ..in_queue(key) }
    };
    let with_dedup = |key, id: &str| Start { dedup_id: Some(id.into()), is_guarded: true, ..in_queue(key) };
    worker.apply(vec![write(with_id(named)), write(with_dedup(held, "x"))]).await;
    let [again, other, third] = keys();
    let writes = vec![write(with_id(again)), write(with_dedup(other, "x")), write(with_dedup(third, "y"))];
    let outcomes = worker.commit(writes).await;
    assert!(matches!(&outcomes[0], Outcome::Duplicate(existing) if existing.key == named), "{outcomes:?}");
    assert!(
        matches!(&outcomes[1], Outcome::Deduplicated(Some(existing)) if existing.key == held),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[2], Outcome::Full);
    assert_eq!(worker.claim(9).await.len(), 2);
    // what was refused has left nothing behind
    worker.apply(vec![write(with_dedup(third, "y"))]).await;
}

async fn a_limit_holds_from_when_it_is_set_and_until_it_is_gone(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let mut worker = Worker::register(&store).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set(&*store, &Queue::new("a"), false).await;
    assert_eq!(refused(&mut worker, some::<5>()).await, 0);
    set(&*store, &Queue::new("a").max_depth(6), false).await;
    assert_eq!(refused(&mut other, some::<2>()).await, 1);
    assert_eq!(refused(&mut worker, some::<1>()).await, 1);
    set(&*store, &Queue::new("a").max_depth(7), false).await;
    assert_eq!(refused(&mut worker, some::<2>()).await, 1);
    set(&*store, &Queue::new("a").max_depth(1), false).await;
    assert_eq!(other.claim(6).await.len(), 6);
    assert_eq!(refused(&mut other, some::<1>()).await, 1);
    set(&*store, &Queue::new("a"), false).await;
    assert_eq!(refused(&mut worker, some::<5>()).await, 0);
    assert_eq!(refused(&mut other, some::<5>()).await, 0);
}

async fn nothing_begins_at_once_in_a_queue_with_a_depth(fixture: &dyn StoreFixture) {
    declare(fixture, 1).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [waits, is_refused] = keys();
    let yielding =
        |key| write(Start { self_claims: true, placement: placement("a", "", 0), ..start(key, running()) });
    assert_eq!(worker.commit_one(yielding(waits)).await, Outcome::Queued);
    assert_eq!(worker.commit_one(yielding(is_refused)).await, Outcome::Full);
    assert!(!worker.exists(is_refused).await);
    assert_eq!(worker.claim_keys(9).await, [waits]);
    end(&mut worker, waits, "a", "").await;
    assert_eq!(worker.commit_one(yielding(is_refused)).await, Outcome::Queued);
}

async fn a_resent_flush_says_again_what_was_refused(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let mut writes = some::<4>();
    writes.push(write(start(Key::mint(0), queued())));
    let flush = worker.new_flush(writes);
    let sent = worker.send(&flush).await.unwrap();
    let is_full = |outcome: &Outcome| *outcome == Outcome::Full;
    assert_eq!(sent.iter().map(is_full).collect::<Vec<_>>(), [false, false, true, true, false]);
    let again = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&again).await.unwrap(), sent);
    assert_eq!(worker.claim(9).await.len(), 3);
    assert_eq!(worker.send(&again).await.unwrap(), sent);
    assert_eq!(worker.claim(9).await.len(), 0, "nothing is applied twice");
}

async fn other_queues_have_room(fixture: &dyn StoreFixture) {
    declare(fixture, 1).await;
    let store = fixture.store();
    set(&*store, &Queue::new("b").max_depth(2), false).await;
    set(&*store, &Queue::new("c"), false).await;
    let mut worker = Worker::register(&store).await;
    let [a1, b1, c1, a2, b2, c2] = keys();
    let into = [(a1, "a"), (b1, "b"), (c1, "c"), (a2, "a"), (b2, "b"), (c2, "c")];
    let writes: Vec<Write> = into.into_iter().map(|(key, queue)| enqueue(key, queue, "", 0)).collect();
    assert_eq!(refused(&mut worker, writes).await, 1);
    assert!(!worker.exists(a2).await);
    assert_eq!(worker.claim(9).await.len(), 5);
}

async fn several_lanes_and_workers_do_not_exceed_it(fixture: &dyn StoreFixture) {
    declare(fixture, 40).await;
    let mut workers = Vec::new();
    for store in [fixture.store(), fixture.second_store().await, fixture.store()] {
        workers.push(Worker::register(&store).await);
    }
    let put = workers.iter_mut().map(|worker| async move {
        let mut entered = 0;
        for _ in 0..10 {
            let outcomes = worker.commit(some::<3>()).await;
            entered += outcomes.iter().filter(|outcome| **outcome == Outcome::Applied).count();
        }
        entered
    });
    let entered: usize = join_all(put).await.into_iter().sum();
    assert_eq!(entered, 40);
    assert_eq!(workers[0].claim(100).await.len(), 40);
}
