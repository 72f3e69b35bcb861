//! Resends: a flush whose reply was lost is applied once, and its outcomes are returned again.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Flush, Outcome, RequestResult, Start, Status, StoreError, Write};

use super::queue::{complete, set_queue};
use crate::fixtures::builders::{
    at, attempt, awaiting, cancel, checkpoint, child_of, chunk, completed, ended, enqueue, keys,
    outcomes_of_resend, pause, placement, queued, resume, running, scheduled, self_claiming, sleeping, start,
    start_in, start_queued, start_running, transition, write,
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
    duplicate_is_repeated_after_the_winner_has_ended,
    deduplicated_is_repeated_after_the_holder_has_ended,
    debounced_start_is_repeated_after_it_has_been_claimed,
    full_is_repeated_after_the_queue_has_emptied,
    queued_is_repeated_after_the_execution_has_ended,
    missing_execution_is_repeated_after_it_was_started,
    request_is_repeated_after_its_execution_has_changed,
    lost_transition_is_repeated_after_the_worker_owns_the_execution,
    wake_is_not_applied_again_after_the_execution_was_woken,
    cancel_of_a_record_is_repeated_after_it_was_handled,
    cancelled_end_is_repeated_after_a_resume,
    outcomes_of_every_kind_are_repeated_together,
    outcomes_are_kept_until_the_next_flush,
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

/// Asserts that a resend returns these outcomes, also after all executions were deleted.
async fn assert_repeated(
    fixture: &dyn StoreFixture,
    worker: &mut Worker,
    flush: &Flush,
    outcomes: &[Outcome],
) {
    let outcomes = outcomes_of_resend(flush, outcomes);
    assert_eq!(worker.send(&resend_of(flush)).await.unwrap(), outcomes);
    fixture.execute("DELETE FROM executions").await;
    assert_eq!(worker.send(&resend_of(flush)).await.unwrap(), outcomes, "the executions were deleted");
}

fn handled(result: RequestResult) -> Outcome {
    Outcome::RequestHandled(result, None)
}

fn named(key: Key, id: &str) -> Start {
    Start { workflow_id: Some(id.into()), fingerprint: Some(7), is_guarded: true, ..start(key, queued()) }
}

fn deduplicated(key: Key, id: &str) -> Start {
    Start {
        dedup_id: Some(id.into()),
        is_guarded: true,
        placement: placement("a", "", 0),
        ..start(key, queued())
    }
}

fn debounced(key: Key, id: &str, due: i64) -> Start {
    let state = scheduled(at(due));
    Start { debounce_window: Some(Duration::from_secs(3600)), state, ..deduplicated(key, id) }
}

async fn duplicate_is_repeated_after_the_winner_has_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [parent, winner, loser, same_key, beside] = keys();
    other.apply(vec![write(named(winner, "x")), start_queued(same_key)]).await;
    let child = Start { is_guarded: true, ..child_of(parent, same_key, queued()) };
    let flush = worker.new_flush(vec![
        write(named(loser, "x")),
        start_queued(beside),
        write(Start { created_at: at(1), ..child }),
    ]);
    let outcomes = worker.send(&flush).await.unwrap();
    let Outcome::Duplicate(existing) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!((existing.key, existing.status, existing.fingerprint), (winner, Status::Queued, Some(7)));
    assert_eq!(existing.given_id.as_deref(), Some("x"));
    assert!(matches!(&outcomes[2], Outcome::Duplicate(existing) if existing.key == same_key), "{outcomes:?}");
    assert_eq!(other.claim(9).await.len(), 3);
    other
        .apply(vec![transition(winner, completed()), transition(same_key, ended(Status::Failed, "x"))])
        .await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn deduplicated_is_repeated_after_the_holder_has_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [holder, loser, next] = keys();
    other.apply(vec![write(deduplicated(holder, "x"))]).await;
    let flush = worker.new_flush(vec![write(deduplicated(loser, "x"))]);
    let outcomes = worker.send(&flush).await.unwrap();
    assert!(
        matches!(&outcomes[..], [Outcome::Deduplicated(Some(existing))] if existing.key == holder),
        "{outcomes:?}"
    );
    other.commit_one(cancel(holder)).await;
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), outcomes, "the holder has ended");
    other.apply(vec![write(deduplicated(next, "x"))]).await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn debounced_start_is_repeated_after_it_has_been_claimed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let due = fixture.now().as_micros() - at(0).as_micros() + 5;
    let [first, second, third, fourth] = keys();
    worker.apply(vec![write(debounced(first, "x", due))]).await;
    let flush = worker.new_flush(vec![
        write(debounced(second, "x", due)),
        write(debounced(third, "y", due)),
        write(debounced(fourth, "x", due)),
    ]);
    let outcomes = worker.send(&flush).await.unwrap();
    for i in [0, 2] {
        assert!(
            matches!(&outcomes[i], Outcome::Duplicate(existing) if existing.key == first),
            "{outcomes:?}"
        );
    }
    assert_eq!(outcomes[1], Outcome::Applied);
    fixture.clock().advance(Duration::from_micros(5));
    assert_eq!(worker.claim(9).await.len(), 2);
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn full_is_repeated_after_the_queue_has_emptied(fixture: &dyn StoreFixture) {
    set_queue(&*fixture.store(), &Queue::new("a").max_depth(1), false).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [waits, rejected, later] = keys();
    other.apply(vec![enqueue(waits, "a", "", 0)]).await;
    let entry = |key| write(Start { placement: placement("a", "", 0), ..named(key, "x") });
    let flush = worker.new_flush(vec![entry(rejected)]);
    assert_eq!(worker.send(&flush).await.unwrap(), [Outcome::Full]);
    assert_eq!(other.claim_keys(9).await, [waits]);
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Full], "the queue is empty");
    assert!(!worker.exists(rejected).await, "the Start is not applied by a resend");
    // an execution with the same id, which a fresh look would report
    other.apply(vec![entry(later)]).await;
    assert_repeated(fixture, &mut worker, &flush, &[Outcome::Full]).await;
}

async fn queued_is_repeated_after_the_execution_has_ended(fixture: &dyn StoreFixture) {
    set_queue(&*fixture.store(), &Queue::new("limited").concurrency(9), false).await;
    set_queue(&*fixture.store(), &Queue::new("free"), false).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [waits, runs] = keys();
    let flush = worker.new_flush(vec![self_claiming(waits, "limited", ""), self_claiming(runs, "free", "")]);
    let outcomes = [Outcome::Queued, Outcome::Applied];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    assert_eq!(other.claim_keys(9).await, [waits]);
    complete(&mut other, waits, "limited", "").await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn missing_execution_is_repeated_after_it_was_started(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let all: [Key; 3] = keys();
    let flush = worker.new_flush(vec![cancel(all[0]), resume(all[1]), pause(all[2])]);
    let outcomes = [Outcome::NotFound, Outcome::NotFound, Outcome::NotFound];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    other.apply(all.map(start_queued).to_vec()).await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn request_is_repeated_after_its_execution_has_changed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [parent, child, runs, done, failed] = keys();
    other
        .apply(vec![
            start_in(parent, awaiting(&[child])),
            write(child_of(parent, child, sleeping(at(900)))),
            start_running(runs),
            start_in(done, completed()),
            start_in(failed, ended(Status::Failed, "x")),
        ])
        .await;
    let flush = worker.new_flush(vec![cancel(child), cancel(runs), resume(done), resume(failed)]);
    let outcomes = [
        Outcome::RequestHandled(RequestResult::Done, Some(parent)),
        handled(RequestResult::Pending),
        handled(RequestResult::NotApplicable(Status::Completed)),
        handled(RequestResult::Done),
    ];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    other.commit(vec![transition(runs, completed()), resume(child), cancel(failed)]).await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn lost_transition_is_repeated_after_the_worker_owns_the_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [ends, sleeps, mine] = keys();
    other.apply(vec![start_running(ends), start_running(sleeps)]).await;
    worker.apply(vec![start_running(mine)]).await;
    let flush = worker.new_flush(vec![
        transition(ends, completed()),
        transition(mine, completed()),
        transition(sleeps, sleeping(at(900))),
    ]);
    let outcomes = [Outcome::NotFound, Outcome::Applied, Outcome::NotFound];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    other.apply(vec![transition(ends, queued()), transition(sleeps, queued())]).await;
    assert_eq!(worker.claim(9).await.len(), 2);
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn wake_is_not_applied_again_after_the_execution_was_woken(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [runs, waits] = keys();
    other.apply(vec![start_running(runs), start_in(waits, sleeping(at(-1)))]).await;
    let flush = worker.new_flush(vec![Write::Wake(runs), Write::Wake(waits)]);
    let outcomes = [Outcome::NotFound, Outcome::Applied];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    other.apply(vec![transition(runs, queued())]).await;
    assert_eq!(other.claim(9).await.len(), 2);
    other.apply(vec![transition(runs, sleeping(at(-1))), transition(waits, sleeping(at(-1)))]).await;
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied, Outcome::Applied]);
    for key in [runs, waits] {
        assert_eq!(worker.execution(key).await.status, Status::Waiting);
    }
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn cancel_of_a_record_is_repeated_after_it_was_handled(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [cancelled, continues] = keys();
    worker.apply(vec![start_running(cancelled), start_running(continues)]).await;
    other.commit_one(cancel(cancelled)).await;
    let flush = worker.new_flush(vec![
        Write::Checkpoint(checkpoint(cancelled, 1, "x")),
        Write::Attempt(attempt(cancelled, 2, 1)),
        Write::Checkpoint(checkpoint(continues, 1, "x")),
    ]);
    let outcomes = [Outcome::CancelRequested, Outcome::CancelRequested, Outcome::Applied];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    fixture.execute("DELETE FROM requests").await;
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn cancelled_end_is_repeated_after_a_resume(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [cancelled, completes] = keys();
    worker.apply(vec![start_running(cancelled), start_running(completes)]).await;
    other.commit_one(cancel(cancelled)).await;
    let flush =
        worker.new_flush(vec![transition(cancelled, completed()), transition(completes, completed())]);
    let outcomes = [Outcome::Cancelled, Outcome::Applied];
    assert_eq!(worker.send(&flush).await.unwrap(), outcomes);
    assert_eq!(other.commit_one(resume(cancelled)).await, handled(RequestResult::Done));
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn outcomes_of_every_kind_are_repeated_together(fixture: &dyn StoreFixture) {
    set_queue(&*fixture.store(), &Queue::new("full").max_depth(1), false).await;
    set_queue(&*fixture.store(), &Queue::new("limited").concurrency(9), false).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [winner, other_winner, holder, waits, foreign, asked, ends] = keys();
    other
        .apply(vec![
            write(named(winner, "x")),
            write(named(other_winner, "y")),
            write(deduplicated(holder, "x")),
            enqueue(waits, "full", "", 0),
            start_running(foreign),
        ])
        .await;
    worker.apply(vec![start_running(asked), start_running(ends)]).await;
    other.commit(vec![cancel(asked), cancel(ends)]).await;
    let flush = worker.new_flush(vec![
        start_queued(Key::mint(0)),
        write(named(Key::mint(0), "x")),
        write(deduplicated(Key::mint(0), "x")),
        enqueue(Key::mint(0), "full", "", 0),
        write(Start { placement: placement("full", "", 0), ..named(Key::mint(0), "y") }),
        self_claiming(Key::mint(0), "limited", ""),
        Write::Checkpoint(checkpoint(asked, 1, "x")),
        transition(ends, completed()),
        transition(foreign, completed()),
        Write::Wake(Key::mint(0)),
        cancel(Key::mint(0)),
        cancel(waits),
        start_running(Key::mint(0)),
    ]);
    let outcomes = worker.send(&flush).await.unwrap();
    assert!(matches!(&outcomes[1], Outcome::Duplicate(existing) if existing.key == winner), "{outcomes:?}");
    assert!(
        matches!(&outcomes[2], Outcome::Deduplicated(Some(existing)) if existing.key == holder),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[3], Outcome::Full);
    assert!(matches!(&outcomes[4], Outcome::Duplicate(existing) if existing.key == other_winner));
    assert_eq!(
        outcomes[5..12],
        [
            Outcome::Queued,
            Outcome::CancelRequested,
            Outcome::Cancelled,
            Outcome::NotFound,
            Outcome::NotFound,
            Outcome::NotFound,
            handled(RequestResult::Done),
        ]
    );
    assert_eq!((&outcomes[0], &outcomes[12]), (&Outcome::Applied, &Outcome::Applied));
    assert_repeated(fixture, &mut worker, &flush, &outcomes).await;
}

async fn outcomes_are_kept_until_the_next_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    other.apply(vec![start_running(key)]).await;
    assert_eq!(worker.commit_one(transition(key, completed())).await, Outcome::NotFound);
    other.apply(vec![transition(key, queued())]).await;
    assert_eq!(worker.claim_keys(9).await, [key]);
    let flush = worker.new_flush(vec![transition(key, completed())]);
    for flush in [&flush, &resend_of(&flush)] {
        assert_eq!(worker.send(flush).await.unwrap(), [Outcome::Applied]);
    }
    assert_eq!(worker.execution(key).await.status, Status::Completed);
}
