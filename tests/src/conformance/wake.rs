//! Wakes: a waiting execution is queued when one of the events that it waits for has occurred.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{Outcome, State, Status, Wait, Write};

use crate::fixtures::builders::{
    at, awaiting, child_of, completed, ended, keys, parked, queued, running, sleeping, start_in,
    start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    every_child_end_wakes_its_parent,
    wake_is_not_applied_before_a_child_has_ended,
    wake_is_applied_at_the_due_time_and_never_early,
    wake_is_applied_on_any_of_several_conditions,
    wake_is_applied_only_to_waiting_executions,
    execution_is_woken_once,
    woken_execution_drops_its_former_conditions,
    parent_is_woken_in_any_order_of_wait_and_child_end,
];

async fn every_child_end_wakes_its_parent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let [parent, child] = keys();
        worker
            .apply(vec![start_in(parent, awaiting(&[child])), write(child_of(parent, child, running()))])
            .await;
        assert_eq!(worker.commit_one(Write::Wake(parent)).await, Outcome::NotFound);
        worker.apply(vec![transition(child, ended(status, "x"))]).await;
        assert_eq!(
            worker.execution(parent).await.status,
            Status::Waiting,
            "the end of a child woke its parent without a Wake"
        );
        worker.apply(vec![Write::Wake(parent)]).await;
        assert_eq!(worker.execution(parent).await.status, Status::Queued);
        assert_eq!(worker.claim_keys(10).await, [parent]);
    }
}

async fn wake_is_not_applied_before_a_child_has_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [parent, ran, waited, was_parked, missing] = keys();
    worker
        .apply(vec![
            start_in(parent, awaiting(&[ran, waited, was_parked, missing])),
            write(child_of(parent, ran, running())),
            write(child_of(parent, waited, sleeping(at(-1)))),
            write(child_of(parent, was_parked, parked("why"))),
        ])
        .await;
    assert_eq!(worker.commit_one(Write::Wake(parent)).await, Outcome::NotFound);
    let row = worker.execution(parent).await;
    assert_eq!((row.status, row.wake_at), (Status::Waiting, None));
}

async fn wake_is_applied_at_the_due_time_and_never_early(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_in(key, sleeping(at(1_000)))]).await;
    fixture.clock().advance(Duration::from_micros(999));
    assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound);
    fixture.clock().advance(Duration::from_micros(1));
    worker.apply(vec![Write::Wake(key)]).await;
    assert_eq!(worker.execution(key).await.status, Status::Queued);
}

async fn wake_is_applied_on_any_of_several_conditions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [by_time, by_child, parent, unfinished, finished] = keys();
    let wait = |wake_at| State::Waiting {
        wake_at: Some(at(wake_at)),
        waits: Wait::for_children([unfinished, finished]),
        pending_sleeps: Vec::new(),
    };
    let never = i64::from(u32::MAX);
    worker
        .apply(vec![
            start_running(parent),
            write(child_of(parent, unfinished, running())),
            write(child_of(parent, finished, running())),
            start_in(by_time, wait(0)),
            start_in(by_child, wait(never)),
        ])
        .await;
    let outcomes = worker.commit(vec![Write::Wake(by_time), Write::Wake(by_child)]).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::NotFound]);
    worker.apply(vec![transition(finished, completed())]).await;
    worker.apply(vec![Write::Wake(by_child)]).await;
}

async fn wake_is_applied_only_to_waiting_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for state in [running(), queued(), parked("why"), completed(), ended(Status::Cancelled, "x")] {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state)]).await;
        let before = worker.record(key).await;
        assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound);
        assert_eq!(worker.record(key).await, before);
    }
    assert_eq!(worker.commit_one(Write::Wake(Key::mint(0))).await, Outcome::NotFound);
    assert_eq!(worker.claim(10).await.len(), 1);
}

async fn execution_is_woken_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_in(key, sleeping(at(0)))]).await;
    worker.apply(vec![Write::Wake(key)]).await;
    assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound);
    assert_eq!(worker.claim_keys(10).await, [key]);
    assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound);
    assert!(worker.claim(10).await.is_empty());
}

async fn woken_execution_drops_its_former_conditions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, child] = keys();
    worker.apply(vec![start_in(child, completed())]).await;
    let wait = State::Waiting {
        wake_at: Some(at(1_000)),
        waits: Wait::for_children([child]),
        pending_sleeps: Vec::new(),
    };
    worker.apply(vec![start_in(key, wait)]).await;
    worker.apply(vec![Write::Wake(key)]).await;
    assert_eq!(worker.execution(key).await.wake_at, None);
    assert_eq!(worker.heartbeat().await.next_due, None);
    assert_eq!(worker.claim_keys(10).await, [key]);
    worker.apply(vec![transition(key, sleeping(at(2_000)))]).await;
    assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound, "the former child still counts");
    assert_eq!(worker.heartbeat().await.next_due, Some(at(2_000)));
    fixture.clock().advance(Duration::from_micros(1_500));
    assert!(worker.claim(10).await.is_empty(), "the former due time still counts");
}

async fn parent_is_woken_in_any_order_of_wait_and_child_end(fixture: &dyn StoreFixture) {
    let mut waiter = Worker::register(&fixture.store()).await;
    let mut waker = Worker::register(&fixture.second_store().await).await;
    for waits_first in [true, false] {
        let [parent, child] = keys();
        waiter.apply(vec![start_running(parent)]).await;
        waker.apply(vec![write(child_of(parent, child, running()))]).await;
        if waits_first {
            waiter.apply(vec![transition(parent, awaiting(&[child]))]).await;
            assert_eq!(waiter.commit_one(Write::Wake(parent)).await, Outcome::NotFound);
            waker.apply(vec![transition(child, completed())]).await;
            assert_eq!(waker.commit_one(Write::Wake(parent)).await, Outcome::Applied);
        } else {
            waker.apply(vec![transition(child, completed())]).await;
            assert_eq!(waker.commit_one(Write::Wake(parent)).await, Outcome::NotFound);
            waiter.apply(vec![transition(parent, awaiting(&[child]))]).await;
            assert_eq!(waiter.commit_one(Write::Wake(parent)).await, Outcome::Applied);
        }
        assert_eq!(waker.claim_keys(10).await, [parent]);
    }
}
