//! Starts that yield to their queue: they run at once where it has no limits and is not paused, and are queued where it
//! has, or is.

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Flush, Outcome, Start, Status, Write};

use super::queue::{end, set};
use crate::fixtures::builders::{at, completed, keys, queue_transition, queued, running, start, placement, write};
use crate::{StoreFixture, Worker};

super::cases![
    a_queue_without_limits_lets_begin,
    a_queue_that_has_limits_or_is_paused_or_not_there_does_not,
    the_queues_of_one_flush_decide_for_themselves,
    many_at_once_begin,
    a_limit_counts_what_has_begun,
    what_has_begun_is_taken_over_like_everything,
    a_resent_start_has_begun_or_waits,
    what_was_claimed_meanwhile_does_not_begin_again,
    staged_again_it_is_queued,
];

fn yielding(key: Key, queue: &str, of: &str) -> Write {
    write(Start { self_claims: true, placement: placement(queue, of, 0), ..start(key, running()) })
}

async fn a_queue_without_limits_lets_begin(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    assert_eq!(worker.commit_one(yielding(key, "a", "k")).await, Outcome::Applied);
    let row = worker.execution(key).await;
    assert_eq!((row.status, row.owner), (Status::Running, Some(worker.id)));
    let stored = row.placement.unwrap();
    assert_eq!((&*stored.queue, &*stored.key), ("a", "k"));
    assert!(worker.claim_keys(9).await.is_empty());
    end(&mut worker, key, "a", "k").await;
    assert_eq!(worker.execution(key).await.status, Status::Completed);
}

async fn a_queue_that_has_limits_or_is_paused_or_not_there_does_not(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let store = fixture.store();
    set(&*store, &Queue::new("few").concurrency(5), false).await;
    set(&*store, &Queue::new("each").key_concurrency(5), false).await;
    set(&*store, &Queue::new("here").worker_concurrency(5), false).await;
    set(&*store, &Queue::new("rated").rate("5/1s".parse().unwrap()), false).await;
    set(&*store, &Queue::new("paused"), true).await;
    let queues = ["few", "each", "here", "rated", "paused", "nowhere"];
    let all: [Key; 6] = keys();
    for (key, queue) in all.into_iter().zip(queues) {
        assert_eq!(worker.commit_one(yielding(key, queue, "")).await, Outcome::Queued, "{queue}");
        let row = worker.execution(key).await;
        assert_eq!((row.status, row.owner), (Status::Queued, None), "{queue}");
    }
    let mut claimed = worker.claim_keys(9).await;
    claimed.extend(worker.claim_keys(9).await);
    claimed.sort_unstable();
    assert_eq!(claimed, [all[0], all[1], all[2], all[3], all[5]]);
    set(&*store, &Queue::new("paused"), false).await;
    assert_eq!(worker.claim_keys(9).await, [all[4]]);
}

async fn the_queues_of_one_flush_decide_for_themselves(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("free"), false).await;
    set(&*fixture.store(), &Queue::new("few").concurrency(1), false).await;
    let all: [Key; 40] = keys();
    let queue = |i: usize| if i.is_multiple_of(2) { "free" } else { "few" };
    let writes = all.iter().enumerate().map(|(i, key)| yielding(*key, queue(i), "")).collect();
    let outcomes = worker.commit(writes).await;
    for (i, outcome) in outcomes.iter().enumerate() {
        assert_eq!(*outcome, if i.is_multiple_of(2) { Outcome::Applied } else { Outcome::Queued }, "{i}");
    }
    for (i, key) in all.iter().enumerate() {
        let status = worker.execution(*key).await.status;
        assert_eq!(status, if i.is_multiple_of(2) { Status::Running } else { Status::Queued }, "{i}");
    }
    assert_eq!(worker.claim_keys(9).await, all[1..2], "as they came");
}

async fn many_at_once_begin(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("a"), false).await;
    let all: [Key; 100] = keys();
    let outcomes = worker.commit(all.iter().map(|key| yielding(*key, "a", "")).collect()).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
    worker.apply(all.iter().map(|key| queue_transition(*key, "a", "", completed())).collect()).await;
    assert!(worker.claim_keys(9).await.is_empty());
}

async fn a_limit_counts_what_has_begun(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set(&*fixture.store(), &Queue::new("a"), false).await;
    let [one, two, three, four] = keys();
    assert_eq!(worker.commit_one(yielding(one, "a", "")).await, Outcome::Applied);
    assert_eq!(other.commit_one(yielding(two, "a", "")).await, Outcome::Applied);
    set(&*fixture.store(), &Queue::new("a").concurrency(3), false).await;
    assert_eq!(worker.commit_one(yielding(three, "a", "")).await, Outcome::Queued);
    assert_eq!(other.commit_one(yielding(four, "a", "")).await, Outcome::Queued);
    assert_eq!(other.claim_keys(9).await, [three]);
    end(&mut worker, one, "a", "").await;
    assert_eq!(worker.claim_keys(9).await, [four]);
}

async fn what_has_begun_is_taken_over_like_everything(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    set(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    assert_eq!(lost.commit_one(yielding(key, "a", "")).await, Outcome::Applied);
    fixture.mark_dead(lost.id).await;
    assert_eq!(worker.take_over_dead_workers().await, 1);
    assert_eq!(worker.claim_keys(9).await, [key]);
    assert_eq!(worker.execution(key).await.recoveries, 1);
}

async fn a_resent_start_has_begun_or_waits(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("free"), false).await;
    set(&*fixture.store(), &Queue::new("few").concurrency(1), false).await;
    for (queue, outcome) in [("free", Outcome::Applied), ("few", Outcome::Queued)] {
        let flush = worker.new_flush(vec![yielding(Key::mint(0), queue, "")]);
        assert_eq!(worker.send(&flush).await.unwrap(), std::slice::from_ref(&outcome));
        let again = Flush { is_resent: true, ..flush };
        assert_eq!(worker.send(&again).await.unwrap(), [outcome]);
    }
    let lost = Flush { is_resent: true, ..worker.new_flush(vec![yielding(Key::mint(0), "free", "")]) };
    assert_eq!(worker.send(&lost).await.unwrap(), [Outcome::Applied]);
}

async fn what_was_claimed_meanwhile_does_not_begin_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    set(&*fixture.store(), &Queue::new("few").concurrency(9), false).await;
    for ends in [false, true] {
        let key = Key::mint(0);
        let flush = worker.new_flush(vec![yielding(key, "few", "")]);
        assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Queued]);
        assert_eq!(other.claim_keys(9).await, [key]);
        if ends {
            end(&mut other, key, "few", "").await;
        }
        let again = Flush { is_resent: true, ..flush };
        assert_eq!(worker.send(&again).await.unwrap(), [Outcome::Queued]);
    }
    // its own claim was faster: whoever has that runs it
    let key = Key::mint(0);
    let flush = worker.new_flush(vec![yielding(key, "few", "")]);
    assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Queued]);
    assert_eq!(worker.claim_keys(9).await, [key]);
    let again = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&again).await.unwrap(), [Outcome::Queued]);
}

async fn staged_again_it_is_queued(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    set(&*fixture.store(), &Queue::new("a"), false).await;
    let key = Key::mint(0);
    // the code that would have run it is gone
    let again =
        Start { self_claims: true, placement: placement("a", "", 0), created_at: at(1), ..start(key, queued()) };
    assert_eq!(worker.commit_one(write(again)).await, Outcome::Applied);
    assert_eq!(worker.execution(key).await.status, Status::Queued);
    assert_eq!(worker.claim_keys(9).await, [key]);
}
