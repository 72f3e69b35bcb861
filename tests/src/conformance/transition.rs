//! Transitions: an owner changes the state of an execution that it runs.

use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Outcome, RequestKind, State, Status, Wait, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, checkpoint, completed, ended, keys, parked, payload, pending_sleeps, queued,
    running, sleeping, start_in, start_queued, start_running, transition,
};
use crate::{StoreFixture, Worker};

super::cases![
    running_execution_can_reach_each_state,
    transition_is_applied_only_for_the_owner,
    transition_is_applied_only_to_running_executions,
    failed_transition_leaves_the_rest_of_its_flush_unaffected,
    running_transition_replaces_pending_sleeps,
    parked_execution_is_not_claimed,
    requeued_execution_is_claimed_by_any_worker,
    pending_sleeps_are_kept_across_transitions,
    checkpoint_and_end_share_a_flush,
    suspension_with_pending_cancel_is_queued,
];

async fn running_execution_can_reach_each_state(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let sleeps = pending_sleeps(&[(1, 100)]);
    let states = [
        State::Running { pending_sleeps: sleeps.clone() },
        State::Queued { pending_sleeps: sleeps.clone() },
        State::Waiting {
            wake_at: Some(at(100)),
            waits: Wait::for_children(keys::<3>()),
            pending_sleeps: sleeps.clone(),
        },
        State::Waiting { wake_at: None, waits: Wait::for_children(keys::<1>()), pending_sleeps: Vec::new() },
        State::Parked { reason: payload("why"), pending_sleeps: sleeps.clone(), is_pause: false },
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

async fn transition_is_applied_only_for_the_owner(fixture: &dyn StoreFixture) {
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

async fn transition_is_applied_only_to_running_executions(fixture: &dyn StoreFixture) {
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
    assert_eq!(worker.claim(10).await.len(), 1, "a transition created a second ready row");
}

async fn failed_transition_leaves_the_rest_of_its_flush_unaffected(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, finished, b, missing] = keys();
    worker.apply(vec![start_running(a), start_in(finished, completed()), start_running(b)]).await;
    let transitions =
        [a, finished, missing, b].map(|key| transition(key, ended(Status::Failed, "x"))).to_vec();
    let outcomes = worker.commit(transitions).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::NotFound, Outcome::NotFound, Outcome::Applied]);
    assert_eq!(worker.execution(a).await.status, Status::Failed);
    assert_eq!(worker.execution(finished).await.status, Status::Completed);
    assert_eq!(worker.execution(b).await.status, Status::Failed);
}

async fn running_transition_replaces_pending_sleeps(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for sleeps in [pending_sleeps(&[(1, 10)]), pending_sleeps(&[(1, 10), (70_000, 20)]), pending_sleeps(&[])]
    {
        worker.apply(vec![transition(key, State::Running { pending_sleeps: sleeps.clone() })]).await;
        let row = worker.execution(key).await;
        assert_eq!((row.pending_sleeps, row.owner, row.wake_at), (sleeps, Some(worker.id), None));
    }
    assert_eq!(worker.heartbeat().await.next_due, None);
}

async fn parked_execution_is_not_claimed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b] = keys();
    worker.apply(vec![start_running(a), start_in(b, parked("why"))]).await;
    worker.apply(vec![transition(a, parked("why"))]).await;
    assert!(!worker.heartbeat().await.has_ready);
    assert!(worker.claim(10).await.is_empty());
}

async fn requeued_execution_is_claimed_by_any_worker(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    first.apply(vec![start_running(key)]).await;
    first.apply(vec![transition(key, queued())]).await;
    assert_eq!(second.claim_keys(10).await, [key]);
    assert_eq!(first.commit_one(transition(key, completed())).await, Outcome::NotFound);
    second.apply(vec![transition(key, completed())]).await;
    let row = second.execution(key).await;
    assert_eq!((row.recoveries, row.run_no), (0, 1), "a requeue is not a recovery");
}

async fn pending_sleeps_are_kept_across_transitions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [sleeper, woken, requeued, taken_over, child] = keys();
    let sleeps = pending_sleeps(&[(1, 0), (2, 1_000_000_000), (3, -5)]);
    let waiting = |wake_at, children: Vec<Key>| State::Waiting {
        wake_at,
        waits: Wait::for_children(children),
        pending_sleeps: sleeps.clone(),
    };
    worker.apply(vec![start_in(child, completed())]).await;
    worker.apply([sleeper, woken, requeued, taken_over].map(start_running).to_vec()).await;
    worker
        .apply(vec![
            transition(sleeper, waiting(Some(at(0)), vec![])),
            transition(woken, waiting(None, vec![child])),
            transition(requeued, State::Queued { pending_sleeps: sleeps.clone() }),
            transition(taken_over, State::Running { pending_sleeps: sleeps.clone() }),
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

async fn checkpoint_and_end_share_a_flush(fixture: &dyn StoreFixture) {
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

async fn suspension_with_pending_cancel_is_queued(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 5] = keys();
    let [sleeps, awaits, parks, cleared, quiet] = all;
    let later = 3_600_000_000;
    let sleeping_until = |micros| State::Waiting {
        wake_at: Some(at(micros)),
        waits: Wait::for_children([quiet]),
        pending_sleeps: pending_sleeps(&[(1, micros)]),
    };
    worker.apply(all.map(start_running).to_vec()).await;
    worker.commit(vec![cancel(sleeps), cancel(awaits), cancel(parks), cancel(cleared)]).await;
    // the owner suspends them before it has received the cancel
    worker
        .apply(vec![
            transition(sleeps, sleeping_until(later)),
            transition(awaits, awaiting(&[quiet])),
            transition(parks, parked("why")),
            transition(cleared, sleeping_until(later + 1)),
            transition(quiet, sleeping_until(later + 2)),
            Write::ClearRequests(cleared),
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
