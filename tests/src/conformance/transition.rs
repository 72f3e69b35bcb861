//! Moves: an owner changes the state of what it runs.

use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Outcome, RequestKind, State, Status, Write};

use crate::fixtures::builders::{
    pending_sleeps, at, awaiting, cancel, checkpoint, completed, ended, keys, transition, parked, payload, queued,
    running, sleeping, start_in, start_queued, start_running,
};
use crate::{StoreFixture, Worker};

super::cases![
    a_running_execution_can_reach_each_state,
    only_the_owner_moves_it,
    only_a_running_execution_is_moved,
    a_refused_move_leaves_its_neighbours_alone,
    staying_running_replaces_what_is_armed,
    a_parked_execution_is_not_claimed,
    a_queued_execution_goes_to_any_worker,
    due_times_are_kept_across_moves,
    the_last_checkpoint_and_the_end_share_a_flush,
    a_request_is_not_slept_through,
];

async fn a_running_execution_can_reach_each_state(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let sleeps = pending_sleeps(&[(1, 100)]);
    let states = [
        State::Running { pending_sleeps: sleeps.clone() },
        State::Queued { pending_sleeps: sleeps.clone() },
        State::Waiting {
            wake_at: Some(at(100)),
            children: keys::<3>().to_vec(),
            pending_sleeps: sleeps.clone(),
        },
        State::Waiting { wake_at: None, children: keys::<1>().to_vec(), pending_sleeps: Vec::new() },
        State::Parked { reason: payload("why"), pending_sleeps: sleeps.clone() },
        completed(),
        ended(Status::Failed, "boom"),
        ended(Status::Cancelled, "stop"),
    ];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, State::Running { pending_sleeps: pending_sleeps(&[(9, 9)]) })]).await;
        let before = worker.execution(key).await;
        worker.apply(vec![transition(key, state.clone())]).await;
        let mut expected = before;
        expected.status = state.status();
        expected.pending_sleeps = state.pending_sleeps().to_vec();
        expected.owner = matches!(state, State::Running { .. }).then_some(worker.id);
        match &state {
            State::Waiting { wake_at, .. } => expected.wake_at = *wake_at,
            State::Parked { reason, .. } => {
                expected.is_parked = true;
                expected.outcome = reason.clone();
            }
            State::Ended { outcome, at, .. } => {
                expected.outcome = outcome.clone();
                expected.ended_at = Some(*at);
            }
            State::Scheduled { due_at } => expected.wake_at = Some(*due_at),
            State::Running { .. } | State::Queued { .. } => {}
        }
        assert_eq!(worker.execution(key).await, expected);
    }
}

async fn only_the_owner_moves_it(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    for state in [running(), queued(), sleeping(at(1)), parked("no"), completed()] {
        assert_eq!(other.commit_one(transition(key, state)).await, Outcome::NotFound);
    }
    let row = owner.execution(key).await;
    assert_eq!((row.status, row.owner, row.outcome), (Status::Running, Some(owner.id), Payload::empty()));
    owner.apply(vec![transition(key, completed())]).await;
}

async fn only_a_running_execution_is_moved(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let states = [queued(), sleeping(at(50)), parked("why"), completed(), ended(Status::Failed, "boom")];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state)]).await;
        let before = worker.record(key).await;
        for next in [running(), queued(), awaiting(&[key]), parked("no"), completed()] {
            assert_eq!(worker.commit_one(transition(key, next)).await, Outcome::NotFound);
        }
        assert_eq!(worker.record(key).await, before);
    }
    assert_eq!(worker.commit_one(transition(Key::mint(0), completed())).await, Outcome::NotFound);
    assert_eq!(worker.claim(10).await.len(), 1, "no second ready row came of it");
}

async fn a_refused_move_leaves_its_neighbours_alone(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, over, b, missing] = keys();
    worker.apply(vec![start_running(a), start_in(over, completed()), start_running(b)]).await;
    let moves = [a, over, missing, b].map(|key| transition(key, ended(Status::Failed, "x"))).to_vec();
    let outcomes = worker.commit(moves).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::NotFound, Outcome::NotFound, Outcome::Applied]);
    assert_eq!(worker.execution(a).await.status, Status::Failed);
    assert_eq!(worker.execution(over).await.status, Status::Completed);
    assert_eq!(worker.execution(b).await.status, Status::Failed);
}

async fn staying_running_replaces_what_is_armed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for sleeps in [pending_sleeps(&[(1, 10)]), pending_sleeps(&[(1, 10), (70_000, 20)]), pending_sleeps(&[])] {
        worker.apply(vec![transition(key, State::Running { pending_sleeps: sleeps.clone() })]).await;
        let row = worker.execution(key).await;
        assert_eq!((row.pending_sleeps, row.owner, row.wake_at), (sleeps, Some(worker.id), None));
    }
    assert_eq!(worker.heartbeat().await.next_due, None);
}

async fn a_parked_execution_is_not_claimed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b] = keys();
    worker.apply(vec![start_running(a), start_in(b, parked("why"))]).await;
    worker.apply(vec![transition(a, parked("why"))]).await;
    assert!(!worker.heartbeat().await.has_ready);
    assert!(worker.claim(10).await.is_empty());
}

async fn a_queued_execution_goes_to_any_worker(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    first.apply(vec![start_running(key)]).await;
    first.apply(vec![transition(key, queued())]).await;
    assert_eq!(second.claim_keys(10).await, [key]);
    assert_eq!(first.commit_one(transition(key, completed())).await, Outcome::NotFound);
    second.apply(vec![transition(key, completed())]).await;
    let row = second.execution(key).await;
    assert_eq!((row.recoveries, row.run_no), (0, 1), "handing on is not a recovery");
}

async fn due_times_are_kept_across_moves(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [slept, woken, handed, lost, child] = keys();
    let sleeps = pending_sleeps(&[(1, 0), (2, 1_000_000_000), (3, -5)]);
    let waiting = |wake_at, children| State::Waiting { wake_at, children, pending_sleeps: sleeps.clone() };
    worker.apply(vec![start_in(child, completed())]).await;
    worker.apply([slept, woken, handed, lost].map(start_running).to_vec()).await;
    worker
        .apply(vec![
            transition(slept, waiting(Some(at(0)), vec![])),
            transition(woken, waiting(None, vec![child])),
            transition(handed, State::Queued { pending_sleeps: sleeps.clone() }),
            transition(lost, State::Running { pending_sleeps: sleeps.clone() }),
        ])
        .await;
    worker.apply(vec![Write::Wake(woken)]).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    fixture.mark_dead(worker.id).await;
    other.take_over_dead_workers().await;
    let claimed = other.claim(10).await;
    assert_eq!(claimed.len(), 4);
    for record in claimed {
        assert_eq!(record.execution.pending_sleeps, sleeps);
        assert_eq!(other.execution(record.execution.key).await.pending_sleeps, sleeps);
    }
}

async fn the_last_checkpoint_and_the_end_share_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b] = keys();
    worker.apply(vec![start_queued(a), start_running(b)]).await;
    assert_eq!(worker.claim_keys(1).await, [a]);
    worker
        .apply(vec![
            transition(a, completed()),
            Write::Checkpoint(checkpoint(b, 1, "x")),
            Write::Checkpoint(checkpoint(a, 1, "y")),
            transition(b, completed()),
        ])
        .await;
    for key in [a, b] {
        let record = worker.record(key).await;
        assert_eq!((record.execution.status, record.checkpoints.len()), (Status::Completed, 1));
    }
}

async fn a_request_is_not_slept_through(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let some: [Key; 5] = keys();
    let [sleeps, awaits, parks, answered, quiet] = some;
    let later = 3_600_000_000;
    let sleeping_until = |micros| State::Waiting {
        wake_at: Some(at(micros)),
        children: vec![quiet],
        pending_sleeps: pending_sleeps(&[(1, micros)]),
    };
    worker.apply(some.map(start_running).to_vec()).await;
    worker.commit(vec![cancel(sleeps), cancel(awaits), cancel(parks), cancel(answered)]).await;
    // the owner suspends them before it has seen that they shall be cancelled
    worker
        .apply(vec![
            transition(sleeps, sleeping_until(later)),
            transition(awaits, awaiting(&[quiet])),
            transition(parks, parked("why")),
            transition(answered, sleeping_until(later + 1)),
            transition(quiet, sleeping_until(later + 2)),
            Write::ClearRequests(answered),
        ])
        .await;
    assert!(worker.heartbeat().await.has_ready);
    assert_eq!(worker.heartbeat().await.next_due, Some(at(later + 1)));
    for key in [sleeps, awaits, parks] {
        let row = worker.execution(key).await;
        assert_eq!((row.status, row.is_parked, row.wake_at), (Status::Queued, false, None));
        assert_eq!((row.owner, row.outcome), (None, Payload::empty()));
    }
    let mut claimed = worker.claim(10).await;
    claimed.sort_by_key(|record| record.execution.key);
    let claimed_keys: Vec<Key> = claimed.iter().map(|record| record.execution.key).collect();
    assert_eq!(claimed_keys, [sleeps, awaits, parks]);
    assert!(claimed.iter().all(|record| record.requests == [RequestKind::Cancel]));
    assert_eq!(claimed[0].execution.pending_sleeps, pending_sleeps(&[(1, later)]));
}
