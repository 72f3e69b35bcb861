//! Depth: the number of executions that may wait in a queue before they begin.

use futures_util::future::join_all;
use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Flush, Outcome, Start, Status, Write};

use super::queue::{complete, set_queue};
use crate::fixtures::builders::{
    at, cancel, child_of, enqueue, keys, placement, queue_transition, queued, running, scheduled, sleeping,
    start, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    start_is_rejected_by_a_full_queue,
    first_starts_of_a_flush_enter_the_queue,
    claimed_and_cancelled_executions_free_capacity,
    delayed_starts_count_towards_depth,
    begun_executions_do_not_count_towards_depth,
    children_enter_a_full_queue_and_count,
    duplicate_start_is_reported_before_a_full_queue,
    depth_limit_holds_while_it_is_declared,
    self_claiming_start_is_queued_in_a_queue_with_depth,
    resent_flush_repeats_full_outcomes,
    depth_limit_applies_per_queue,
    concurrent_workers_never_exceed_the_depth_limit,
];

async fn declare(fixture: &dyn StoreFixture, max_depth: u32) {
    set_queue(&*fixture.store(), &Queue::new("a").max_depth(max_depth), false).await;
}

/// Commits `starts` and returns how many the full queue rejected. Asserts that exactly the others exist.
async fn rejected_count(worker: &mut Worker, starts: Vec<Write>) -> usize {
    let outcomes = worker.commit(starts.clone()).await;
    let mut rejected_count = 0;
    for (start, outcome) in starts.iter().zip(outcomes) {
        assert!(matches!(outcome, Outcome::Applied | Outcome::Full), "{outcome:?}");
        assert_eq!(worker.exists(start.execution()).await, outcome == Outcome::Applied);
        rejected_count += usize::from(outcome == Outcome::Full);
    }
    rejected_count
}

fn in_queue(key: Key) -> Start {
    Start { placement: placement("a", "", 0), ..start(key, queued()) }
}

fn new_starts<const N: usize>() -> Vec<Write> {
    keys::<N>().into_iter().map(|key| enqueue(key, "a", "", 0)).collect()
}

async fn start_is_rejected_by_a_full_queue(fixture: &dyn StoreFixture) {
    declare(fixture, 3).await;
    let mut worker = Worker::register(&fixture.store()).await;
    for _ in 0..3 {
        assert_eq!(rejected_count(&mut worker, new_starts::<1>()).await, 0);
    }
    for _ in 0..3 {
        assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 2);
    }
    assert_eq!(worker.claim(9).await.len(), 3);
}

async fn first_starts_of_a_flush_enter_the_queue(fixture: &dyn StoreFixture) {
    declare(fixture, 5).await;
    let mut worker = Worker::register(&fixture.store()).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 0);
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

async fn claimed_and_cancelled_executions_free_capacity(fixture: &dyn StoreFixture) {
    declare(fixture, 4).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, rest @ ..]: [Key; 4] = keys();
    for key in [first].into_iter().chain(rest) {
        worker.apply(vec![enqueue(key, "a", "", 0)]).await;
    }
    assert_eq!(worker.claim_keys(1).await, [first]);
    assert_eq!(rejected_count(&mut worker, new_starts::<3>()).await, 2);
    worker.commit_one(cancel(rest[1])).await;
    worker.commit_one(cancel(rest[2])).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<3>()).await, 1);
    assert_eq!(worker.claim(9).await.len(), 4);
    assert_eq!(rejected_count(&mut worker, new_starts::<5>()).await, 1);
}

async fn delayed_starts_count_towards_depth(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let delayed = |key| write(Start { placement: placement("a", "", 0), ..start(key, scheduled(at(5))) });
    let [first, second, third] = keys();
    assert_eq!(rejected_count(&mut worker, vec![delayed(first), delayed(second), delayed(third)]).await, 1);
    assert_eq!(rejected_count(&mut worker, new_starts::<1>()).await, 1);
    // due now: the execution is queued instead
    fixture.clock().advance(std::time::Duration::from_secs(1));
    assert_eq!(worker.claim(1).await.len(), 1);
    assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 1);
    // delayed executions without a queue or of another queue do not count
    assert_eq!(worker.claim(9).await.len(), 2);
    worker.apply(vec![write(start(Key::mint(0), scheduled(at(5_000_000))))]).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<3>()).await, 1);
}

async fn begun_executions_do_not_count_towards_depth(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let [waits, taken_over] = keys();
    worker.apply(vec![enqueue(waits, "a", "", 0)]).await;
    assert_eq!(worker.claim_keys(1).await, [waits]);
    worker.apply(vec![queue_transition(waits, "a", "", sleeping(at(5)))]).await;
    worker.apply(vec![enqueue(taken_over, "a", "", 0)]).await;
    assert_eq!(dead.claim_keys(1).await, [taken_over]);
    fixture.mark_dead(dead.id).await;
    worker.take_over_dead_workers().await;
    fixture.clock().advance(std::time::Duration::from_secs(1));
    worker.commit_one(Write::Wake(waits)).await;
    assert_eq!(worker.execution(waits).await.status, Status::Queued);
    assert_eq!(worker.execution(taken_over).await.status, Status::Queued);
    assert_eq!(rejected_count(&mut worker, new_starts::<3>()).await, 1);
    assert_eq!(rejected_count(&mut worker, new_starts::<1>()).await, 1);
    assert_eq!(worker.claim(9).await.len(), 4);
}

async fn children_enter_a_full_queue_and_count(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let parent = Key::mint(0);
    worker.apply(vec![write(start(parent, running()))]).await;
    let started = |key| write(Start { placement: placement("a", "", 0), ..child_of(parent, key, queued()) });
    let [first, second, third] = keys();
    worker.apply(vec![started(first)]).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 1);
    worker.apply(vec![started(second), started(third)]).await;
    assert_eq!(worker.claim(2).await.len(), 2);
    // two are still in the queue
    assert_eq!(rejected_count(&mut worker, new_starts::<1>()).await, 1);
    assert_eq!(worker.claim(1).await.len(), 1);
    assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 1);
}

async fn duplicate_start_is_reported_before_a_full_queue(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [named, held] = keys();
    let with_id = |key| {
        let workflow_id = Some("given".into());
        Start { workflow_id, fingerprint: Some(1), is_guarded: true, ..in_queue(key) }
    };
    let with_dedup = |key, id: &str| Start { dedup_id: Some(id.into()), is_guarded: true, ..in_queue(key) };
    worker.apply(vec![write(with_id(named)), write(with_dedup(held, "x"))]).await;
    let [second, other, third] = keys();
    let writes = vec![write(with_id(second)), write(with_dedup(other, "x")), write(with_dedup(third, "y"))];
    let outcomes = worker.commit(writes).await;
    assert!(matches!(&outcomes[0], Outcome::Duplicate(existing) if existing.key == named), "{outcomes:?}");
    assert!(
        matches!(&outcomes[1], Outcome::Deduplicated(Some(existing)) if existing.key == held),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[2], Outcome::Full);
    assert_eq!(worker.claim(9).await.len(), 2);
    // a rejected start leaves nothing behind
    worker.apply(vec![write(with_dedup(third, "y"))]).await;
}

async fn depth_limit_holds_while_it_is_declared(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let mut worker = Worker::register(&store).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set_queue(&*store, &Queue::new("a"), false).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<5>()).await, 0);
    set_queue(&*store, &Queue::new("a").max_depth(6), false).await;
    assert_eq!(rejected_count(&mut other, new_starts::<2>()).await, 1);
    assert_eq!(rejected_count(&mut worker, new_starts::<1>()).await, 1);
    set_queue(&*store, &Queue::new("a").max_depth(7), false).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<2>()).await, 1);
    set_queue(&*store, &Queue::new("a").max_depth(1), false).await;
    assert_eq!(other.claim(6).await.len(), 6);
    assert_eq!(rejected_count(&mut other, new_starts::<1>()).await, 1);
    set_queue(&*store, &Queue::new("a"), false).await;
    assert_eq!(rejected_count(&mut worker, new_starts::<5>()).await, 0);
    assert_eq!(rejected_count(&mut other, new_starts::<5>()).await, 0);
}

async fn self_claiming_start_is_queued_in_a_queue_with_depth(fixture: &dyn StoreFixture) {
    declare(fixture, 1).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [waits, rejected] = keys();
    let self_claiming =
        |key| write(Start { self_claims: true, placement: placement("a", "", 0), ..start(key, running()) });
    assert_eq!(worker.commit_one(self_claiming(waits)).await, Outcome::Queued);
    assert_eq!(worker.commit_one(self_claiming(rejected)).await, Outcome::Full);
    assert!(!worker.exists(rejected).await);
    assert_eq!(worker.claim_keys(9).await, [waits]);
    complete(&mut worker, waits, "a", "").await;
    assert_eq!(worker.commit_one(self_claiming(rejected)).await, Outcome::Queued);
}

async fn resent_flush_repeats_full_outcomes(fixture: &dyn StoreFixture) {
    declare(fixture, 2).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let mut writes = new_starts::<4>();
    writes.push(write(start(Key::mint(0), queued())));
    let flush = worker.new_flush(writes);
    let sent = worker.send(&flush).await.unwrap();
    let is_full = |outcome: &Outcome| *outcome == Outcome::Full;
    assert_eq!(sent.iter().map(is_full).collect::<Vec<_>>(), [false, false, true, true, false]);
    let resent = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    assert_eq!(worker.claim(9).await.len(), 3);
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    assert_eq!(worker.claim(9).await.len(), 0, "nothing is applied twice");
}

async fn depth_limit_applies_per_queue(fixture: &dyn StoreFixture) {
    declare(fixture, 1).await;
    let store = fixture.store();
    set_queue(&*store, &Queue::new("b").max_depth(2), false).await;
    set_queue(&*store, &Queue::new("c"), false).await;
    let mut worker = Worker::register(&store).await;
    let [a1, b1, c1, a2, b2, c2] = keys();
    let into = [(a1, "a"), (b1, "b"), (c1, "c"), (a2, "a"), (b2, "b"), (c2, "c")];
    let writes: Vec<Write> = into.into_iter().map(|(key, queue)| enqueue(key, queue, "", 0)).collect();
    assert_eq!(rejected_count(&mut worker, writes).await, 1);
    assert!(!worker.exists(a2).await);
    assert_eq!(worker.claim(9).await.len(), 5);
}

async fn concurrent_workers_never_exceed_the_depth_limit(fixture: &dyn StoreFixture) {
    declare(fixture, 40).await;
    let mut workers = Vec::new();
    for store in [fixture.store(), fixture.second_store().await, fixture.store()] {
        workers.push(Worker::register(&store).await);
    }
    let commits = workers.iter_mut().map(|worker| async move {
        let mut entered = 0;
        for _ in 0..10 {
            let outcomes = worker.commit(new_starts::<3>()).await;
            entered += outcomes.iter().filter(|outcome| **outcome == Outcome::Applied).count();
        }
        entered
    });
    let entered: usize = join_all(commits).await.into_iter().sum();
    assert_eq!(entered, 40);
    assert_eq!(workers[0].claim(100).await.len(), 40);
}
