//! Resends: a flush whose reply was lost is applied once, and its outcomes are returned again.

use stepfast_core::key::Key;
use stepfast_core::store::{Flush, Outcome, Start, Status, StoreError, Write};

use crate::fixtures::builders::{
    at, attempt, cancel, checkpoint, chunk, completed, ended, keys, queued, resume, running, sleeping, start,
    start_queued, start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    applied_flush_is_not_applied_again,
    lost_flush_is_applied_when_resent,
    resent_flush_repeats_its_outcomes,
    resent_duplicate_start_is_a_duplicate_again,
    resent_start_is_applied_though_its_execution_has_ended,
    writes_of_every_kind_can_be_resent,
    empty_flush_can_be_resent,
    next_flush_is_accepted_after_a_resend,
    flush_can_be_resent_repeatedly,
    flush_can_be_resent_through_another_handle,
    flush_with_wrong_number_is_not_applied,
    resend_leaves_later_changes_unaffected,
];

pub(super) fn resend_of(flush: &Flush) -> Flush {
    Flush { is_resent: true, ..flush.clone() }
}

async fn applied_flush_is_not_applied_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let flush = worker.new_flush(vec![start_queued(key)]);
    assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Applied]);
    let mut claimer = Worker::register(&fixture.store()).await;
    assert_eq!(claimer.claim_keys(10).await, [key]);
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied]);
    assert!(claimer.claim(10).await.is_empty(), "a second ready row");
    assert_eq!(claimer.execution(key).await.owner, Some(claimer.id));
}

async fn lost_flush_is_applied_when_resent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for _ in 0..2 {
        let key = Key::mint(0);
        let flush = worker.new_flush(vec![start_queued(key), Write::Checkpoint(checkpoint(key, 1, "x"))]);
        assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied, Outcome::Applied]);
        assert_eq!(worker.record(key).await.checkpoints.len(), 1);
    }
    assert_eq!(worker.claim(10).await.len(), 2);
}

async fn resent_flush_repeats_its_outcomes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [first, a, b, c] = keys();
    let given = |key, micros| {
        let workflow_id = Some("order-7".into());
        write(Start { workflow_id, is_guarded: true, created_at: at(micros), ..start(key, queued()) })
    };
    worker.apply(vec![given(first, 0), start_queued(c)]).await;
    let repeated = write(Start { is_guarded: true, created_at: at(1), ..start(c, queued()) });
    let flush = worker.new_flush(vec![start_queued(a), given(b, 1), repeated, start_queued(Key::mint(0))]);
    let outcomes = worker.send(&flush).await.unwrap();
    assert!(matches!(&outcomes[1], Outcome::Duplicate(existing) if existing.key == first));
    assert!(matches!(&outcomes[2], Outcome::Duplicate(existing) if existing.key == c));
    assert_eq!((&outcomes[0], &outcomes[3]), (&Outcome::Applied, &Outcome::Applied));
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), outcomes);
    assert_eq!(worker.count().await, 4);
}

async fn resent_duplicate_start_is_a_duplicate_again(fixture: &dyn StoreFixture) {
    let mut winner = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    let given = |key, micros| {
        let workflow_id = Some("order-7".into());
        write(Start { workflow_id, is_guarded: true, created_at: at(micros), ..start(key, running()) })
    };
    let flush = worker.new_flush(vec![given(b, 1)]);
    winner.apply(vec![given(a, 0)]).await;
    for _ in 0..2 {
        let outcomes = worker.send(&resend_of(&flush)).await.unwrap();
        assert!(matches!(&outcomes[0], Outcome::Duplicate(existing) if existing.key == a));
    }
    assert_eq!(winner.count().await, 1);
}

async fn resent_start_is_applied_though_its_execution_has_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    let given = Start { workflow_id: Some("order-7".into()), is_guarded: true, ..start(key, queued()) };
    let flush = worker.new_flush(vec![write(given)]);
    worker.send(&flush).await.unwrap();
    assert_eq!(other.claim_keys(1).await, [key]);
    other.apply(vec![transition(key, completed())]).await;
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied]);
    assert_eq!(worker.execution(key).await.status, Status::Completed);
}

async fn writes_of_every_kind_can_be_resent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [runs, waits, fresh] = keys();
    worker.apply(vec![start_running(runs), write(start(waits, sleeping(at(-1))))]).await;
    let single = [
        Write::Checkpoint(checkpoint(runs, 1, "x")),
        Write::Attempt(attempt(runs, 2, 1)),
        chunk(runs, 1, 0, b"x"),
        Write::Wake(waits),
        cancel(runs),
        Write::ClearRequests(runs),
        Write::DeleteChunks(stepfast_core::store::DeleteChunks {
            execution: runs,
            keep: smallvec::SmallVec::new(),
        }),
        start_running(fresh),
        transition(fresh, completed()),
    ];
    for writes in single.into_iter().map(|write| vec![write]) {
        let flush = worker.new_flush(writes);
        worker.send(&flush).await.unwrap();
        worker.send(&resend_of(&flush)).await.unwrap();
    }
    let record = worker.record(runs).await;
    assert_eq!((record.checkpoints.len(), record.attempts.len(), record.requests.len()), (1, 1, 0));
    assert_eq!(worker.execution(fresh).await.status, Status::Completed);
    assert_eq!(worker.claim_keys(10).await, [waits]);
}

async fn empty_flush_can_be_resent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let flush = worker.new_flush(vec![]);
    for flush in [&flush, &resend_of(&flush), &resend_of(&flush)] {
        assert!(worker.send(flush).await.unwrap().is_empty());
    }
    worker.apply(vec![start_queued(Key::mint(0))]).await;
}

async fn next_flush_is_accepted_after_a_resend(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for count in 1..=5 {
        let flush = worker.new_flush(vec![start_queued(Key::mint(0))]);
        worker.send(&flush).await.unwrap();
        worker.send(&resend_of(&flush)).await.unwrap();
        assert_eq!(worker.count().await, count);
    }
}

async fn flush_can_be_resent_repeatedly(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let flush = resend_of(&worker.new_flush(vec![start_running(Key::mint(0)), start_running(Key::mint(0))]));
    for _ in 0..4 {
        assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Applied, Outcome::Applied]);
    }
    assert_eq!(worker.count().await, 2);
}

async fn flush_can_be_resent_through_another_handle(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    let flush =
        worker.new_flush(vec![Write::Checkpoint(checkpoint(key, 1, "x")), start_queued(Key::mint(0))]);
    worker.send(&flush).await.unwrap();
    worker.store = fixture.second_store().await;
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied, Outcome::Applied]);
    assert_eq!((worker.count().await, worker.record(key).await.checkpoints.len()), (2, 1));
    worker.apply(vec![transition(key, completed())]).await;
}

async fn flush_with_wrong_number_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    if !fixture.checks_flush_numbers() {
        return;
    }
    let flush = worker.new_flush(vec![start_queued(Key::mint(0))]);
    for number in [worker.flush_number + 1, worker.flush_number - 2] {
        for is_resent in [true, false] {
            let result = worker.store.commit(&Flush { number, is_resent, ..flush.clone() }).await;
            assert!(matches!(result, Err(StoreError::Corrupt(_))), "{number}: {result:?}");
        }
    }
    assert_eq!(worker.count().await, 1);
    worker.send(&flush).await.unwrap();
}

async fn resend_leaves_later_changes_unaffected(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [sleeps, requeued, cancelled, failed] = keys();
    worker.apply([sleeps, requeued, cancelled].map(start_running).to_vec()).await;
    worker.apply(vec![write(start(failed, ended(Status::Failed, "x")))]).await;
    other.commit(vec![cancel(cancelled)]).await;
    for writes in [
        vec![transition(sleeps, sleeping(at(-1)))],
        vec![transition(requeued, queued()), Write::Wake(sleeps)],
        vec![Write::ClearRequests(cancelled)],
        vec![resume(failed)],
    ] {
        let flush = worker.new_flush(writes);
        worker.send(&flush).await.unwrap();
        // the reply is lost; the worker claims the execution that it requeued, and another worker sends a cancel
        worker.claim(10).await;
        other.commit(vec![cancel(cancelled)]).await;
        let all = [sleeps, requeued, cancelled, failed];
        let mut expected = Vec::new();
        for key in all {
            expected.push(worker.record(key).await);
        }
        worker.send(&resend_of(&flush)).await.unwrap();
        for (key, expected) in all.into_iter().zip(expected) {
            assert_eq!(worker.record(key).await, expected);
        }
    }
}
