//! Takeover: what a lost worker ran is continued elsewhere; what a closed one ran, at once.

use stepfast_core::clock::Clock;
use stepfast_core::key::Key;
use stepfast_core::store::{Heartbeat, State, Status, StoreError, WorkerId, Write};

use crate::fixtures::builders::{
    pending_sleeps, at, attempt, awaiting, checkpoint, child_of, completed, keys, transition, parked, queued, running,
    sleeping, start_in, start_queued, start_running, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    what_a_lost_worker_ran_is_queued_and_counted,
    a_lost_worker_is_told_before_anybody_takes_it_over,
    a_lost_worker_is_fenced,
    only_what_it_ran_is_touched,
    it_happens_once,
    live_workers_are_left_alone,
    several_lost_workers_are_taken_over_together,
    recoveries_add_up,
    a_worker_that_had_nothing_is_taken_over_too,
    closing_hands_on_at_once_without_a_recovery,
    a_closed_worker_is_fenced,
    closing_twice_or_after_a_takeover_does_nothing,
    worker_ids_are_never_used_again,
    a_lost_worker_can_register_anew,
    thousands_are_recovered,
    a_handle_sees_the_takeover_by_another,
    what_a_lost_worker_should_have_woken_is_woken,
    what_a_closed_worker_should_have_woken_is_woken,
];

async fn what_a_lost_worker_ran_is_queued_and_counted(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [started, claimed] = keys();
    lost.apply(vec![start_queued(claimed)]).await;
    assert_eq!(lost.claim_keys(1).await, [claimed]);
    let sleeps = pending_sleeps(&[(2, 50)]);
    lost.apply(vec![
        start_in(started, State::Running { pending_sleeps: sleeps.clone() }),
        Write::Checkpoint(checkpoint(started, 1, "x")),
        Write::Attempt(attempt(started, 2, 1)),
    ])
    .await;
    let before = lost.record(started).await;
    fixture.mark_dead(lost.id).await;
    assert_eq!(other.take_over_dead_workers().await, 2);
    let mut expected = before.clone();
    expected.execution.status = Status::Queued;
    expected.execution.owner = None;
    expected.execution.recoveries = 1;
    expected.execution.strikes = 1;
    assert_eq!(other.record(started).await, expected);
    assert!(other.heartbeat().await.has_ready);
    let mut again = other.claim(10).await;
    again.sort_by_key(|record| record.execution.key);
    assert_eq!(again.len(), 2);
    for record in &again {
        let row = &record.execution;
        assert_eq!((row.status, row.owner, row.recoveries), (Status::Running, Some(other.id), 1));
    }
    let record = again.iter().find(|record| record.execution.key == started).unwrap();
    assert_eq!((&record.checkpoints, &record.attempts), (&before.checkpoints, &before.attempts));
    assert_eq!(record.execution.pending_sleeps, sleeps);
}

async fn a_lost_worker_is_told_before_anybody_takes_it_over(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let closed = Worker::register(&fixture.store()).await;
    let stranger = WorkerId(other.id.0 + 1_000);
    let [key] = keys();
    lost.apply(vec![start_running(key)]).await;
    let all = [lost.id, other.id, closed.id, stranger];
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [stranger]);
    assert!(other.store.dead_workers(&[]).await.unwrap().is_empty());
    fixture.mark_dead(lost.id).await;
    closed.store.close(closed.id).await.unwrap();
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [lost.id, closed.id, stranger]);
    // telling is not taking over
    assert_eq!(other.execution(key).await.owner, Some(lost.id));
    other.take_over_dead_workers().await;
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [lost.id, closed.id, stranger]);
}

async fn a_lost_worker_is_fenced(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let [key, ready, fresh] = keys();
    lost.apply(vec![start_running(key), start_queued(ready)]).await;
    fixture.mark_dead(lost.id).await;
    other.take_over_dead_workers().await;
    let writes =
        vec![Write::Checkpoint(checkpoint(key, 1, "x")), start_running(fresh), transition(key, completed())];
    for writes in [writes, vec![start_queued(fresh)], vec![]] {
        let result = lost.try_commit(writes).await;
        assert!(matches!(result, Err(StoreError::Fenced)), "{result:?}");
    }
    assert!(matches!(lost.try_claim(&lost.new_claim(10)).await, Err(StoreError::Fenced)));
    assert!(lost.heartbeat().await.is_fenced);
    let record = other.record(key).await;
    assert_eq!((record.execution.status, record.checkpoints.len()), (Status::Queued, 0));
    assert!(!other.exists(fresh).await);
    assert_eq!(other.execution(ready).await.owner, None);
}

async fn only_what_it_ran_is_touched(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let mut untouched = Vec::new();
    for state in [queued(), sleeping(at(90)), parked("why"), completed()] {
        let key = Key::mint(0);
        lost.apply(vec![start_running(key)]).await;
        lost.apply(vec![transition(key, state)]).await;
        untouched.push(lost.record(key).await);
    }
    let [theirs, ran] = keys();
    other.apply(vec![start_running(theirs)]).await;
    untouched.push(other.record(theirs).await);
    lost.apply(vec![start_running(ran)]).await;
    fixture.mark_dead(lost.id).await;
    assert_eq!(other.take_over_dead_workers().await, 1);
    for record in untouched {
        assert_eq!(other.record(record.execution.key).await, record);
    }
}

async fn it_happens_once(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    lost.apply(vec![start_running(key)]).await;
    fixture.mark_dead(lost.id).await;
    let mut recovered = 0;
    for _ in 0..5 {
        recovered += first.heartbeat().await.recovered;
        recovered += second.heartbeat().await.recovered;
    }
    assert_eq!(recovered, 1);
    assert_eq!(second.execution(key).await.recoveries, 1);
    assert_eq!(second.claim_keys(10).await, [key]);
    assert_eq!(first.take_over_dead_workers().await, 0);
    assert_eq!(second.execution(key).await.owner, Some(second.id));
}

async fn live_workers_are_left_alone(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    one.apply(vec![start_running(a)]).await;
    two.apply(vec![start_running(b)]).await;
    for _ in 0..5 {
        for worker in [&one, &two] {
            let seen = worker.heartbeat().await;
            assert_eq!((seen.recovered, seen.is_fenced), (0, false));
        }
    }
    one.apply(vec![transition(a, completed())]).await;
    two.apply(vec![transition(b, completed())]).await;
}

async fn several_lost_workers_are_taken_over_together(fixture: &dyn StoreFixture) {
    let other = Worker::register(&fixture.second_store().await).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut lost = Worker::register(&fixture.store()).await;
        let some: [Key; 2] = keys();
        lost.apply(some.map(start_running).to_vec()).await;
        fixture.mark_dead(lost.id).await;
        all.extend(some);
    }
    assert_eq!(other.take_over_dead_workers().await, 6);
    for key in all {
        let row = other.execution(key).await;
        assert_eq!((row.status, row.recoveries), (Status::Queued, 1));
    }
}

async fn recoveries_add_up(fixture: &dyn StoreFixture) {
    let key = Key::mint(0);
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut lost = Worker::register(&fixture.store()).await;
    lost.apply(vec![start_running(key)]).await;
    for recoveries in 1..=3 {
        fixture.mark_dead(lost.id).await;
        assert_eq!(survivor.take_over_dead_workers().await, 1);
        lost = Worker::register(&fixture.store()).await;
        let record = lost.claim(1).await.remove(0);
        assert_eq!((record.execution.key, record.execution.recoveries), (key, recoveries));
        assert_eq!(record.execution.run_no, 1, "a recovery is not a run");
        // it gets on: no quarantine
        lost.apply(vec![Write::Checkpoint(checkpoint(key, recoveries, "x"))]).await;
    }
}

async fn a_worker_that_had_nothing_is_taken_over_too(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    fixture.mark_dead(lost.id).await;
    assert_eq!(other.take_over_dead_workers().await, 0);
    assert!(matches!(lost.try_commit(vec![start_queued(Key::mint(0))]).await, Err(StoreError::Fenced)));
    assert_eq!(other.count().await, 0);
}

async fn closing_hands_on_at_once_without_a_recovery(fixture: &dyn StoreFixture) {
    let mut closing = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let some: [Key; 3] = keys();
    closing.apply(some.map(start_running).to_vec()).await;
    let sleeps = pending_sleeps(&[(2, 50)]);
    closing.apply(vec![transition(some[0], State::Running { pending_sleeps: sleeps.clone() })]).await;
    closing.store.close(closing.id).await.unwrap();
    let mut claimed = other.claim(10).await;
    claimed.sort_by_key(|record| record.execution.key);
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), some);
    assert!(claimed.iter().all(|record| record.execution.recoveries == 0));
    assert_eq!(claimed[0].execution.pending_sleeps, sleeps);
    assert_eq!(other.take_over_dead_workers().await, 0);
}

async fn a_closed_worker_is_fenced(fixture: &dyn StoreFixture) {
    let mut closed = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    closed.apply(vec![start_running(key)]).await;
    closed.store.close(closed.id).await.unwrap();
    assert!(matches!(closed.try_commit(vec![transition(key, completed())]).await, Err(StoreError::Fenced)));
    assert!(matches!(closed.try_commit(vec![]).await, Err(StoreError::Fenced)));
    assert!(matches!(closed.try_claim(&closed.new_claim(10)).await, Err(StoreError::Fenced)));
    assert!(closed.heartbeat().await.is_fenced);
    assert_eq!(closed.execution(key).await.status, Status::Queued);
}

async fn closing_twice_or_after_a_takeover_does_nothing(fixture: &dyn StoreFixture) {
    let mut closed = Worker::register(&fixture.store()).await;
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    closed.apply(vec![start_running(a)]).await;
    lost.apply(vec![start_running(b)]).await;
    closed.store.close(closed.id).await.unwrap();
    fixture.mark_dead(lost.id).await;
    other.take_over_dead_workers().await;
    assert_eq!(other.claim(10).await.len(), 2);
    let before = (other.record(a).await, other.record(b).await);
    let store = fixture.second_store().await;
    store.close(closed.id).await.unwrap();
    store.close(lost.id).await.unwrap();
    assert_eq!((other.record(a).await, other.record(b).await), before);
    assert_eq!(other.take_over_dead_workers().await, 0);
}

async fn worker_ids_are_never_used_again(fixture: &dyn StoreFixture) {
    let mut ids = Vec::new();
    let looker = Worker::register(&fixture.second_store().await).await;
    for i in 0..6 {
        let worker = Worker::register(&fixture.store()).await;
        ids.push(worker.id);
        match i % 3 {
            0 => worker.store.close(worker.id).await.unwrap(),
            1 => {
                fixture.mark_dead(worker.id).await;
                looker.take_over_dead_workers().await;
            }
            _ => {}
        }
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    assert!(!ids.contains(&looker.id));
}

async fn a_lost_worker_can_register_anew(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    lost.apply(vec![start_running(key)]).await;
    fixture.mark_dead(lost.id).await;
    other.take_over_dead_workers().await;
    let mut anew = Worker::register(&fixture.store()).await;
    assert_ne!(anew.id, lost.id);
    assert_eq!(anew.claim_keys(1).await, [key]);
    let look = Heartbeat { held: Some(Vec::new()), ..lost.new_heartbeat() };
    let seen = lost.store.heartbeat(&look).await.unwrap();
    assert!(seen.is_fenced && seen.unheld.is_empty());
    anew.apply(vec![transition(key, completed())]).await;
}

async fn thousands_are_recovered(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for _ in 0..3 {
        lost.apply((0..2_000).map(|_| start_running(Key::mint(0))).collect()).await;
    }
    fixture.mark_dead(lost.id).await;
    assert_eq!(other.take_over_dead_workers().await, 6_000);
    assert_eq!(other.claim(10_000).await.len(), 6_000);
}

async fn a_handle_sees_the_takeover_by_another(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    lost.apply(vec![start_running(key)]).await;
    fixture.mark_dead(lost.id).await;
    other.take_over_dead_workers().await;
    // the handle that registered the lost worker learns of it, and serves others as before
    let mut neighbour = Worker::register(&lost.store).await;
    assert_eq!(neighbour.claim_keys(1).await, [key]);
    assert!(fixture.clock().now() >= at(0));
}

async fn what_a_lost_worker_should_have_woken_is_woken(fixture: &dyn StoreFixture) {
    should_have_woken(fixture, true).await;
}

async fn what_a_closed_worker_should_have_woken_is_woken(fixture: &dyn StoreFixture) {
    should_have_woken(fixture, false).await;
}

/// A worker goes away between the end of a child and the Wake of its parent.
async fn should_have_woken(fixture: &dyn StoreFixture, is_lost: bool) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    other.heartbeat().await;
    let [parent, child, patient, cancelled] = keys();
    lost.apply(vec![
        start_in(parent, awaiting(&[child])),
        write(child_of(parent, child, running())),
        start_in(patient, awaiting(&[cancelled])),
        write(child_of(patient, cancelled, running())),
    ])
    .await;
    lost.apply(vec![transition(child, completed())]).await;
    if is_lost {
        fixture.mark_dead(lost.id).await;
        other.take_over_dead_workers().await;
    } else {
        lost.store.close(lost.id).await.unwrap();
    }
    let mut claimed = other.claim_keys(10).await;
    claimed.sort_unstable();
    assert_eq!(claimed, [parent, cancelled], "the one that waits for an ended child, and the one that ran");
    assert_eq!(other.execution(parent).await.recoveries, 0, "it was not running");
    assert_eq!(other.execution(patient).await.status, Status::Waiting);
}
