//! Takeover: another worker continues the executions of a dead worker. A closed worker requeues its executions at once.

use stepfast_core::clock::Clock;
use stepfast_core::key::Key;
use stepfast_core::store::{Heartbeat, State, Status, StoreError, WorkerId, Write};

use crate::fixtures::builders::{
    at, attempt, awaiting, checkpoint, child_of, completed, keys, parked, pending_sleeps, queued, running,
    sleeping, start_in, start_queued, start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    executions_of_dead_worker_are_queued_and_counted,
    dead_worker_is_reported_before_its_takeover,
    dead_worker_is_fenced_after_its_takeover,
    takeover_affects_only_executions_of_the_dead_worker,
    takeover_happens_once,
    live_workers_are_not_taken_over,
    dead_workers_are_taken_over_together,
    recoveries_are_summed_over_takeovers,
    dead_worker_without_executions_is_taken_over,
    close_requeues_executions_without_a_recovery,
    closing_worker_is_not_taken_over,
    closed_worker_is_fenced,
    repeated_close_changes_nothing,
    worker_ids_are_never_reused,
    dead_worker_can_register_again,
    takeover_requeues_thousands_of_executions,
    takeover_is_visible_to_other_store_handles,
    takeover_wakes_parents_of_ended_children,
    close_wakes_parents_of_ended_children,
];

async fn executions_of_dead_worker_are_queued_and_counted(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [started, claimed] = keys();
    dead.apply(vec![start_queued(claimed)]).await;
    assert_eq!(dead.claim_keys(1).await, [claimed]);
    let sleeps = pending_sleeps(&[(2, 50)]);
    dead.apply(vec![
        start_in(started, State::Running { pending_sleeps: sleeps.clone() }),
        Write::Checkpoint(checkpoint(started, 1, "x")),
        Write::Attempt(attempt(started, 2, 1)),
    ])
    .await;
    let before = dead.record(started).await;
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 2);
    let mut expected = before.clone();
    expected.execution.status = Status::Queued;
    expected.execution.owner = None;
    expected.execution.recoveries = 1;
    expected.execution.strikes = 1;
    assert_eq!(other.record(started).await, expected);
    assert!(other.heartbeat().await.has_ready);
    let mut reclaimed = other.claim(10).await;
    reclaimed.sort_by_key(|record| record.execution.key);
    assert_eq!(reclaimed.len(), 2);
    for record in &reclaimed {
        let row = &record.execution;
        assert_eq!((row.status, row.owner, row.recoveries), (Status::Running, Some(other.id), 1));
    }
    let record = reclaimed.iter().find(|record| record.execution.key == started).unwrap();
    assert_eq!((&record.checkpoints, &record.attempts), (&before.checkpoints, &before.attempts));
    assert_eq!(record.execution.pending_sleeps, sleeps);
}

async fn dead_worker_is_reported_before_its_takeover(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let closed = Worker::register(&fixture.store()).await;
    let unknown = WorkerId(other.id.0 + 1_000);
    let [key] = keys();
    dead.apply(vec![start_running(key)]).await;
    let all = [dead.id, other.id, closed.id, unknown];
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [unknown]);
    assert!(other.store.dead_workers(&[]).await.unwrap().is_empty());
    fixture.mark_dead(dead.id).await;
    closed.store.close(closed.id).await.unwrap();
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [dead.id, closed.id, unknown]);
    // reporting is not taking over
    assert_eq!(other.execution(key).await.owner, Some(dead.id));
    other.take_over_dead_workers().await;
    assert_eq!(other.store.dead_workers(&all).await.unwrap(), [dead.id, closed.id, unknown]);
}

async fn dead_worker_is_fenced_after_its_takeover(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let [key, ready, fresh] = keys();
    dead.apply(vec![start_running(key), start_queued(ready)]).await;
    fixture.mark_dead(dead.id).await;
    other.take_over_dead_workers().await;
    let writes =
        vec![Write::Checkpoint(checkpoint(key, 1, "x")), start_running(fresh), transition(key, completed())];
    for writes in [writes, vec![start_queued(fresh)], vec![]] {
        let result = dead.try_commit(writes).await;
        assert!(matches!(result, Err(StoreError::Fenced)), "{result:?}");
    }
    assert!(matches!(dead.try_claim(&dead.new_claim(10)).await, Err(StoreError::Fenced)));
    assert!(dead.heartbeat().await.is_fenced);
    let record = other.record(key).await;
    assert_eq!((record.execution.status, record.checkpoints.len()), (Status::Queued, 0));
    assert!(!other.exists(fresh).await);
    assert_eq!(other.execution(ready).await.owner, None);
}

async fn takeover_affects_only_executions_of_the_dead_worker(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let mut untouched = Vec::new();
    for state in [queued(), sleeping(at(90)), parked("why"), completed()] {
        let key = Key::mint(0);
        dead.apply(vec![start_running(key)]).await;
        dead.apply(vec![transition(key, state)]).await;
        untouched.push(dead.record(key).await);
    }
    let [foreign, ran] = keys();
    other.apply(vec![start_running(foreign)]).await;
    untouched.push(other.record(foreign).await);
    dead.apply(vec![start_running(ran)]).await;
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 1);
    for record in untouched {
        assert_eq!(other.record(record.execution.key).await, record);
    }
}

async fn takeover_happens_once(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    dead.apply(vec![start_running(key)]).await;
    fixture.mark_dead(dead.id).await;
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

async fn live_workers_are_not_taken_over(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    one.apply(vec![start_running(a)]).await;
    two.apply(vec![start_running(b)]).await;
    for _ in 0..5 {
        for worker in [&one, &two] {
            let reply = worker.heartbeat().await;
            assert_eq!((reply.recovered, reply.is_fenced), (0, false));
        }
    }
    one.apply(vec![transition(a, completed())]).await;
    two.apply(vec![transition(b, completed())]).await;
}

async fn dead_workers_are_taken_over_together(fixture: &dyn StoreFixture) {
    let other = Worker::register(&fixture.second_store().await).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut dead = Worker::register(&fixture.store()).await;
        let executions: [Key; 2] = keys();
        dead.apply(executions.map(start_running).to_vec()).await;
        fixture.mark_dead(dead.id).await;
        all.extend(executions);
    }
    assert_eq!(other.take_over_dead_workers().await, 6);
    for key in all {
        let row = other.execution(key).await;
        assert_eq!((row.status, row.recoveries), (Status::Queued, 1));
    }
}

async fn recoveries_are_summed_over_takeovers(fixture: &dyn StoreFixture) {
    let key = Key::mint(0);
    let survivor = Worker::register(&fixture.second_store().await).await;
    let mut dead = Worker::register(&fixture.store()).await;
    dead.apply(vec![start_running(key)]).await;
    for recoveries in 1..=3 {
        fixture.mark_dead(dead.id).await;
        assert_eq!(survivor.take_over_dead_workers().await, 1);
        dead = Worker::register(&fixture.store()).await;
        let record = dead.claim(1).await.remove(0);
        assert_eq!((record.execution.key, record.execution.recoveries), (key, recoveries));
        assert_eq!(record.execution.run_no, 1, "a recovery is not a run");
        // the execution makes progress, so it does not enter quarantine
        dead.apply(vec![Write::Checkpoint(checkpoint(key, recoveries, "x"))]).await;
    }
}

async fn dead_worker_without_executions_is_taken_over(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 0);
    assert!(matches!(dead.try_commit(vec![start_queued(Key::mint(0))]).await, Err(StoreError::Fenced)));
    assert_eq!(other.count().await, 0);
}

async fn close_requeues_executions_without_a_recovery(fixture: &dyn StoreFixture) {
    let mut closing = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let executions: [Key; 3] = keys();
    closing.apply(executions.map(start_running).to_vec()).await;
    let sleeps = pending_sleeps(&[(2, 50)]);
    closing.apply(vec![transition(executions[0], State::Running { pending_sleeps: sleeps.clone() })]).await;
    closing.store.close(closing.id).await.unwrap();
    let mut claimed = other.claim(10).await;
    claimed.sort_by_key(|record| record.execution.key);
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), executions);
    assert!(claimed.iter().all(|record| record.execution.recoveries == 0));
    assert_eq!(claimed[0].execution.pending_sleeps, sleeps);
    assert_eq!(other.take_over_dead_workers().await, 0);
}

async fn closing_worker_is_not_taken_over(fixture: &dyn StoreFixture) {
    let mut closing = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for _ in 0..10 {
        closing.apply((0..2_000).map(|_| start_running(Key::mint(0))).collect()).await;
    }
    let (store, id) = (closing.store.clone(), closing.id);
    // a task of its own: a store may block its thread
    let close = tokio::spawn(async move { store.close(id).await });
    let mut recovered = 0;
    while !close.is_finished() {
        recovered += other.heartbeat().await.recovered;
    }
    close.await.unwrap().unwrap();
    assert_eq!(recovered, 0, "executions that other workers requeued");
    let claimed = other.claim(20_000).await;
    assert_eq!(claimed.len(), 20_000);
    assert!(claimed.iter().all(|record| record.execution.recoveries == 0));
}

async fn closed_worker_is_fenced(fixture: &dyn StoreFixture) {
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

async fn repeated_close_changes_nothing(fixture: &dyn StoreFixture) {
    let mut closed = Worker::register(&fixture.store()).await;
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    closed.apply(vec![start_running(a)]).await;
    dead.apply(vec![start_running(b)]).await;
    closed.store.close(closed.id).await.unwrap();
    fixture.mark_dead(dead.id).await;
    other.take_over_dead_workers().await;
    assert_eq!(other.claim(10).await.len(), 2);
    let before = (other.record(a).await, other.record(b).await);
    let store = fixture.second_store().await;
    store.close(closed.id).await.unwrap();
    store.close(dead.id).await.unwrap();
    assert_eq!((other.record(a).await, other.record(b).await), before);
    assert_eq!(other.take_over_dead_workers().await, 0);
}

async fn worker_ids_are_never_reused(fixture: &dyn StoreFixture) {
    let mut ids = Vec::new();
    let survivor = Worker::register(&fixture.second_store().await).await;
    for i in 0..6 {
        let worker = Worker::register(&fixture.store()).await;
        ids.push(worker.id);
        match i % 3 {
            0 => worker.store.close(worker.id).await.unwrap(),
            1 => {
                fixture.mark_dead(worker.id).await;
                survivor.take_over_dead_workers().await;
            }
            _ => {}
        }
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    assert!(!ids.contains(&survivor.id));
}

async fn dead_worker_can_register_again(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    dead.apply(vec![start_running(key)]).await;
    fixture.mark_dead(dead.id).await;
    other.take_over_dead_workers().await;
    let mut registered_again = Worker::register(&fixture.store()).await;
    assert_ne!(registered_again.id, dead.id);
    assert_eq!(registered_again.claim_keys(1).await, [key]);
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..dead.new_heartbeat() };
    let reply = dead.store.heartbeat(&heartbeat).await.unwrap();
    assert!(reply.is_fenced && reply.unheld.is_empty());
    registered_again.apply(vec![transition(key, completed())]).await;
}

async fn takeover_requeues_thousands_of_executions(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for _ in 0..3 {
        dead.apply((0..2_000).map(|_| start_running(Key::mint(0))).collect()).await;
    }
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 6_000);
    assert_eq!(other.claim(10_000).await.len(), 6_000);
}

async fn takeover_is_visible_to_other_store_handles(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    dead.apply(vec![start_running(key)]).await;
    fixture.mark_dead(dead.id).await;
    other.take_over_dead_workers().await;
    // the handle that registered the dead worker sees the takeover, and still serves other workers
    let mut other_worker = Worker::register(&dead.store).await;
    assert_eq!(other_worker.claim_keys(1).await, [key]);
    assert!(fixture.clock().now() >= at(0));
}

async fn takeover_wakes_parents_of_ended_children(fixture: &dyn StoreFixture) {
    assert_parents_are_woken(fixture, true).await;
}

async fn close_wakes_parents_of_ended_children(fixture: &dyn StoreFixture) {
    assert_parents_are_woken(fixture, false).await;
}

/// Removes a worker between the end of a child and the Wake of its parent, by death or by a close.
async fn assert_parents_are_woken(fixture: &dyn StoreFixture, is_dead: bool) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    other.heartbeat().await;
    let [parent, child, other_parent, cancelled] = keys();
    dead.apply(vec![
        start_in(parent, awaiting(&[child])),
        write(child_of(parent, child, running())),
        start_in(other_parent, awaiting(&[cancelled])),
        write(child_of(other_parent, cancelled, running())),
    ])
    .await;
    dead.apply(vec![transition(child, completed())]).await;
    if is_dead {
        fixture.mark_dead(dead.id).await;
        other.take_over_dead_workers().await;
    } else {
        dead.store.close(dead.id).await.unwrap();
    }
    let mut claimed = other.claim_keys(10).await;
    claimed.sort_unstable();
    assert_eq!(claimed, [parent, cancelled], "the parent of the ended child, and the child that ran");
    assert_eq!(other.execution(parent).await.recoveries, 0, "the parent was not running");
    assert_eq!(other.execution(other_parent).await.status, Status::Waiting);
}
