//! Self-claiming Starts: they run at once in a queue without limits, and are queued in a limited or paused queue.

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Flush, Outcome, Start, Status};

use super::queue::{complete, set_queue};
use crate::fixtures::builders::{
    at, completed, keys, placement, queue_transition, queued, self_claiming, start, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    self_claiming_start_runs_at_once_without_limits,
    self_claiming_start_is_queued_by_limited_or_paused_queue,
    queues_of_one_flush_decide_separately,
    flush_carries_a_hundred_self_claiming_starts,
    new_limit_counts_self_claimed_executions,
    self_claimed_execution_is_taken_over,
    resent_self_claiming_start_repeats_its_outcome,
    resent_start_does_not_run_a_claimed_execution,
    restaged_start_is_queued,
];

async fn self_claiming_start_runs_at_once_without_limits(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    assert_eq!(worker.commit_one(self_claiming(key, "a", "k")).await, Outcome::Applied);
    let row = worker.execution(key).await;
    assert_eq!((row.status, row.owner), (Status::Running, Some(worker.id)));
    let stored = row.placement.unwrap();
    assert_eq!((&*stored.queue, &*stored.key), ("a", "k"));
    assert!(worker.claim_keys(9).await.is_empty());
    complete(&mut worker, key, "a", "k").await;
    assert_eq!(worker.execution(key).await.status, Status::Completed);
}

async fn self_claiming_start_is_queued_by_limited_or_paused_queue(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let store = fixture.store();
    set_queue(&*store, &Queue::new("limited").concurrency(5), false).await;
    set_queue(&*store, &Queue::new("key-limited").key_concurrency(5), false).await;
    set_queue(&*store, &Queue::new("worker-limited").worker_concurrency(5), false).await;
    set_queue(&*store, &Queue::new("rated").rate("5/1s".parse().unwrap()), false).await;
    set_queue(&*store, &Queue::new("paused"), true).await;
    let queues = ["limited", "key-limited", "worker-limited", "rated", "paused", "undeclared"];
    let all: [Key; 6] = keys();
    for (key, queue) in all.into_iter().zip(queues) {
        assert_eq!(worker.commit_one(self_claiming(key, queue, "")).await, Outcome::Queued, "{queue}");
        let row = worker.execution(key).await;
        assert_eq!((row.status, row.owner), (Status::Queued, None), "{queue}");
    }
    let mut claimed = worker.claim_keys(9).await;
    claimed.extend(worker.claim_keys(9).await);
    claimed.sort_unstable();
    assert_eq!(claimed, [all[0], all[1], all[2], all[3], all[5]]);
    set_queue(&*store, &Queue::new("paused"), false).await;
    assert_eq!(worker.claim_keys(9).await, [all[4]]);
}

async fn queues_of_one_flush_decide_separately(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("free"), false).await;
    set_queue(&*fixture.store(), &Queue::new("limited").concurrency(1), false).await;
    let all: [Key; 40] = keys();
    let queue = |i: usize| if i.is_multiple_of(2) { "free" } else { "limited" };
    let writes = all.iter().enumerate().map(|(i, key)| self_claiming(*key, queue(i), "")).collect();
    let outcomes = worker.commit(writes).await;
    for (i, outcome) in outcomes.iter().enumerate() {
        assert_eq!(*outcome, if i.is_multiple_of(2) { Outcome::Applied } else { Outcome::Queued }, "{i}");
    }
    for (i, key) in all.iter().enumerate() {
        let status = worker.execution(*key).await.status;
        assert_eq!(status, if i.is_multiple_of(2) { Status::Running } else { Status::Queued }, "{i}");
    }
    assert_eq!(worker.claim_keys(9).await, all[1..2], "in the order of their Starts");
}

async fn flush_carries_a_hundred_self_claiming_starts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("a"), false).await;
    let all: [Key; 100] = keys();
    let outcomes = worker.commit(all.iter().map(|key| self_claiming(*key, "a", "")).collect()).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
    worker.apply(all.iter().map(|key| queue_transition(*key, "a", "", completed())).collect()).await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn new_limit_counts_self_claimed_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set_queue(&*fixture.store(), &Queue::new("a"), false).await;
    let [one, two, three, four] = keys();
    assert_eq!(worker.commit_one(self_claiming(one, "a", "")).await, Outcome::Applied);
    assert_eq!(other.commit_one(self_claiming(two, "a", "")).await, Outcome::Applied);
    set_queue(&*fixture.store(), &Queue::new("a").concurrency(3), false).await;
    assert_eq!(worker.commit_one(self_claiming(three, "a", "")).await, Outcome::Queued);
    assert_eq!(other.commit_one(self_claiming(four, "a", "")).await, Outcome::Queued);
    assert_eq!(other.claim_keys(9).await, [three]);
    complete(&mut worker, one, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [four]);
}

async fn self_claimed_execution_is_taken_over(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    set_queue(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    assert_eq!(dead.commit_one(self_claiming(key, "a", "")).await, Outcome::Applied);
    fixture.mark_dead(dead.id).await;
    assert_eq!(worker.take_over_dead_workers().await, 1);
    assert_eq!(worker.claim_keys(9).await, [key]);
    assert_eq!(worker.execution(key).await.recoveries, 1);
}

async fn resent_self_claiming_start_repeats_its_outcome(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("free"), false).await;
    set_queue(&*fixture.store(), &Queue::new("limited").concurrency(1), false).await;
    for (queue, outcome) in [("free", Outcome::Applied), ("limited", Outcome::Queued)] {
        let flush = worker.new_flush(vec![self_claiming(Key::mint(0), queue, "")]);
        assert_eq!(worker.send(&flush).await.unwrap(), std::slice::from_ref(&outcome));
        let resent = Flush { is_resent: true, ..flush };
        assert_eq!(worker.send(&resent).await.unwrap(), [outcome]);
    }
    let never_applied =
        Flush { is_resent: true, ..worker.new_flush(vec![self_claiming(Key::mint(0), "free", "")]) };
    assert_eq!(worker.send(&never_applied).await.unwrap(), [Outcome::Applied]);
}

async fn resent_start_does_not_run_a_claimed_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set_queue(&*fixture.store(), &Queue::new("limited").concurrency(9), false).await;
    for ends in [false, true] {
        let key = Key::mint(0);
        let flush = worker.new_flush(vec![self_claiming(key, "limited", "")]);
        assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Queued]);
        assert_eq!(other.claim_keys(9).await, [key]);
        if ends {
            complete(&mut other, key, "limited", "").await;
        }
        let resent = Flush { is_resent: true, ..flush };
        assert_eq!(worker.send(&resent).await.unwrap(), [Outcome::Queued]);
    }
    // the worker's own claim took the execution before the resend, so the Start must not run it a second time
    let key = Key::mint(0);
    let flush = worker.new_flush(vec![self_claiming(key, "limited", "")]);
    assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Queued]);
    assert_eq!(worker.claim_keys(9).await, [key]);
    let resent = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&resent).await.unwrap(), [Outcome::Queued]);
}

async fn restaged_start_is_queued(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set_queue(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    // the code that would have run the execution is gone
    let restaged = Start {
        self_claims: true,
        placement: placement("a", "", 0),
        created_at: at(1),
        ..start(key, queued())
    };
    assert_eq!(worker.commit_one(write(restaged)).await, Outcome::Applied);
    assert_eq!(worker.execution(key).await.status, Status::Queued);
    assert_eq!(worker.claim_keys(9).await, [key]);
}
