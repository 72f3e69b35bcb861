//! Requests: cancel and resume, in every state of an execution and from every worker.

use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    Checkpoint, CheckpointKind, Detail, Execution, ExecutionId, Outcome, Parent, Request, RequestKind,
    RequestResult, Start, State, Status, Wait, Write, cancel_outcome,
};

use super::resend::resend_of;
use crate::fixtures::builders::{
    at, attempt, awaiting, cancel, checkpoint, child_of, completed, ended, keys, parked, payload,
    pending_sleeps, queued, resume, running, sleeping, start, start_in, start_queued, start_running,
    transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    cancel_ends_an_execution_that_is_not_running,
    cancel_of_running_execution_is_left_to_its_owner,
    end_after_a_pending_cancel_becomes_cancelled,
    owners_own_cancelled_end_is_kept,
    records_report_a_pending_cancel_to_their_owner,
    cancel_of_ended_execution_is_not_applicable,
    request_to_unknown_execution_is_not_found,
    cancel_returns_the_parent,
    cancel_reaches_awaited_children,
    cancel_passes_through_running_executions,
    cancel_spares_detached_and_ended_children,
    cancel_reaches_deep_descendants,
    cancel_affects_no_other_tree,
    flush_carries_hundreds_of_cancels,
    clearing_deletes_requests_of_one_execution,
    request_survives_the_death_of_its_executions_owner,
    repeated_request_is_recorded_once,
    resume_continues_a_parked_execution,
    resume_runs_an_ended_execution_again,
    resume_withdraws_trailing_failures,
    cancel_of_queued_execution_clears_earlier_requests,
    foreign_worker_deletes_no_request,
    resume_of_other_states_is_not_applicable,
    resumed_execution_can_end_and_be_resumed_again,
];

fn handled(result: RequestResult) -> Outcome {
    Outcome::RequestHandled(result, None)
}

async fn status(worker: &Worker, key: Key) -> Status {
    worker.execution(key).await.status
}

async fn cancel_ends_an_execution_that_is_not_running(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let sleeps = pending_sleeps(&[(1, 5)]);
    let states = [
        queued(),
        State::Queued { pending_sleeps: sleeps.clone() },
        State::Waiting {
            wake_at: Some(at(90)),
            waits: Wait::for_children(keys::<2>()),
            pending_sleeps: sleeps.clone(),
        },
        awaiting(&keys::<1>()),
        State::Parked { reason: payload("why"), pending_sleeps: sleeps, is_pause: false },
    ];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state)]).await;
        let before = worker.execution(key).await;
        assert_eq!(worker.commit_one(cancel(key)).await, handled(RequestResult::Done));
        let expected = Execution {
            status: Status::Cancelled,
            is_parked: false,
            outcome: payload("cancelled"),
            ended_at: Some(at(7)),
            wake_at: None,
            pending_sleeps: Vec::new(),
            ..before
        };
        let record = worker.record(key).await;
        assert_eq!(record.execution, expected);
        assert!(record.requests.is_empty());
    }
    let reply = worker.heartbeat().await;
    assert_eq!((reply.has_ready, reply.next_due), (false, None));
    assert!(worker.claim(10).await.is_empty());
}

async fn cancel_of_running_execution_is_left_to_its_owner(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    let before = owner.execution(key).await;
    assert_eq!(other.commit_one(cancel(key)).await, handled(RequestResult::Pending));
    let record = other.record(key).await;
    assert_eq!((record.execution, record.requests), (before, vec![RequestKind::Cancel]));
}

async fn end_after_a_pending_cancel_becomes_cancelled(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for end in [completed(), ended(Status::Failed, "no")] {
        let [cancelled, unrelated] = keys();
        owner.apply(vec![start_running(cancelled), start_running(unrelated)]).await;
        assert_eq!(other.commit_one(cancel(cancelled)).await, handled(RequestResult::Pending));
        let flush =
            owner.new_flush(vec![transition(unrelated, end.clone()), transition(cancelled, end.clone())]);
        let expected = [Outcome::Applied, Outcome::Cancelled];
        assert_eq!(owner.send(&flush).await.unwrap(), expected);
        assert_eq!(owner.send(&resend_of(&flush)).await.unwrap(), expected, "after a resend");
        let record = other.record(cancelled).await;
        let State::Ended { at, .. } = &end else { panic!("{end:?}") };
        assert_eq!((record.execution.status, record.execution.ended_at), (Status::Cancelled, Some(*at)));
        assert_eq!(record.execution.outcome, cancel_outcome());
        assert!(record.requests.is_empty());
        assert_eq!(other.execution(unrelated).await.status, end.status());
        assert_eq!(
            other.commit_one(cancel(cancelled)).await,
            handled(RequestResult::NotApplicable(Status::Cancelled))
        );
    }
}

async fn owners_own_cancelled_end_is_kept(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    other.commit(vec![cancel(key)]).await;
    let end = ended(Status::Cancelled, "its deadline");
    assert_eq!(owner.commit_one(transition(key, end)).await, Outcome::Applied);
    let record = other.record(key).await;
    assert_eq!(record.execution.outcome, payload("its deadline"));
    assert!(record.requests.is_empty());
}

async fn records_report_a_pending_cancel_to_their_owner(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [cancelled, unrelated] = keys();
    owner.apply(vec![start_running(cancelled), start_running(unrelated)]).await;
    let records = |n: u32| {
        let of =
            |key| [Write::Checkpoint(checkpoint(key, n, "x")), Write::Attempt(attempt(key, n + 1_000, 1))];
        [of(cancelled), of(unrelated)].concat()
    };
    owner.apply(records(1)).await;
    assert_eq!(other.commit_one(cancel(cancelled)).await, handled(RequestResult::Pending));
    let expected = [Outcome::CancelRequested, Outcome::CancelRequested, Outcome::Applied, Outcome::Applied];
    assert_eq!(owner.commit(records(2)).await, expected);
    // in a flush whose rows are inserted in batches
    let outcomes = owner.commit((3..43).flat_map(records).collect()).await;
    assert_eq!(outcomes, vec![expected.clone(); 40].concat());
    owner.apply(vec![Write::ClearRequests(cancelled)]).await;
    owner.apply(records(50)).await;
    // a request of the same flush is not reported yet
    let outcomes = owner.commit([vec![cancel(cancelled)], records(51)].concat()).await;
    assert_eq!(outcomes[0], handled(RequestResult::Pending));
    assert_eq!(outcomes[1..], [const { Outcome::Applied }; 4]);
    assert_eq!(owner.commit(records(52)).await, expected);
}

async fn cancel_of_ended_execution_is_not_applicable(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let [parent, key] = keys();
        worker.apply(vec![start_running(parent), write(child_of(parent, key, ended(status, "x")))]).await;
        let before = worker.record(key).await;
        assert_eq!(worker.commit_one(cancel(key)).await, handled(RequestResult::NotApplicable(status)));
        assert_eq!(worker.record(key).await, before);
    }
}

async fn request_to_unknown_execution_is_not_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [missing, there] = keys();
    worker.apply(vec![start_queued(there)]).await;
    let outcomes = worker.commit(vec![cancel(missing), cancel(there)]).await;
    assert_eq!(outcomes, [Outcome::NotFound, handled(RequestResult::Done)]);
    assert_eq!(worker.commit_one(resume(missing)).await, Outcome::NotFound);
}

async fn cancel_returns_the_parent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [parent, child, runs] = keys();
    worker
        .apply(vec![
            start_in(parent, awaiting(&[child])),
            write(child_of(parent, child, sleeping(at(90)))),
            write(child_of(parent, runs, running())),
        ])
        .await;
    assert_eq!(
        worker.commit_one(cancel(child)).await,
        Outcome::RequestHandled(RequestResult::Done, Some(parent))
    );
    worker.apply(vec![Write::Wake(parent)]).await;
    assert_eq!(worker.claim_keys(10).await, [parent]);
    assert_eq!(
        worker.commit_one(cancel(runs)).await,
        handled(RequestResult::Pending),
        "the child has not ended"
    );
}

async fn cancel_reaches_awaited_children(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, ready, waits, was_parked, runs] = keys();
    worker
        .apply(vec![
            start_in(root, awaiting(&[ready, waits, was_parked, runs])),
            write(child_of(root, ready, queued())),
            write(child_of(root, waits, sleeping(at(90)))),
            write(child_of(root, was_parked, parked("why"))),
            write(child_of(root, runs, running())),
        ])
        .await;
    assert_eq!(worker.commit_one(cancel(root)).await, handled(RequestResult::Done));
    for key in [root, ready, waits, was_parked] {
        let row = worker.execution(key).await;
        assert_eq!((row.status, row.ended_at), (Status::Cancelled, Some(at(7))));
        assert_eq!((row.outcome, row.is_parked), (payload("cancelled"), false));
    }
    let record = worker.record(runs).await;
    assert_eq!((record.execution.status, record.requests), (Status::Running, vec![RequestKind::Cancel]));
    let reply = worker.heartbeat().await;
    assert_eq!(reply.requests, [(runs, RequestKind::Cancel)]);
    assert_eq!((reply.has_ready, reply.next_due), (false, None));
}

async fn cancel_passes_through_running_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, middle, leaf] = keys();
    worker
        .apply(vec![
            start_running(root),
            write(child_of(root, middle, running())),
            write(Start { root, ..child_of(middle, leaf, queued()) }),
        ])
        .await;
    assert_eq!(worker.commit_one(cancel(root)).await, handled(RequestResult::Pending));
    assert_eq!(status(&worker, leaf).await, Status::Cancelled);
    let mut cancelled: Vec<Key> =
        worker.heartbeat().await.reply.requests.into_iter().map(|(key, _)| key).collect();
    cancelled.sort_unstable();
    assert_eq!(cancelled, [root, middle]);
}

async fn cancel_spares_detached_and_ended_children(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, detached, below_detached, finished, below_finished] = keys();
    let detached_parent = Some(Parent { key: root, is_detached: true });
    worker
        .apply(vec![
            start_in(root, awaiting(&[finished])),
            write(Start { parent: detached_parent, ..child_of(root, detached, queued()) }),
            write(Start { root, ..child_of(detached, below_detached, sleeping(at(90))) }),
            write(child_of(root, finished, ended(Status::Failed, "x"))),
            write(Start { root, ..child_of(finished, below_finished, queued()) }),
        ])
        .await;
    assert_eq!(worker.commit_one(cancel(root)).await, handled(RequestResult::Done));
    for (key, expected) in [
        (detached, Status::Queued),
        (below_detached, Status::Waiting),
        (finished, Status::Failed),
        (below_finished, Status::Queued),
    ] {
        assert_eq!(status(&worker, key).await, expected);
    }
}

async fn cancel_reaches_deep_descendants(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let chain: [Key; 60] = keys();
    let root = chain[0];
    let mut writes = vec![start_in(root, awaiting(&chain[1..2]))];
    for pair in chain.windows(2) {
        writes.push(write(Start { root, ..child_of(pair[0], pair[1], sleeping(at(90))) }));
    }
    let wide: [Key; 100] = keys();
    writes.extend(wide.map(|key| write(Start { root, ..child_of(chain[59], key, queued()) })));
    worker.apply(writes).await;
    assert_eq!(worker.commit_one(cancel(root)).await, handled(RequestResult::Done));
    let ids: Vec<_> = chain.iter().chain(&wide).map(|key| ExecutionId::Key(*key)).collect();
    for record in worker.store.load(&ids, Detail::Outcome).await.unwrap() {
        assert_eq!(record.unwrap().execution.status, Status::Cancelled);
    }
}

async fn cancel_affects_no_other_tree(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, sibling, target, other] = keys();
    worker
        .apply(vec![
            start_in(root, awaiting(&[sibling, target])),
            write(child_of(root, sibling, queued())),
            write(child_of(root, target, queued())),
            start_queued(other),
        ])
        .await;
    assert_eq!(
        worker.commit_one(cancel(target)).await,
        Outcome::RequestHandled(RequestResult::Done, Some(root))
    );
    for (key, expected) in [
        (root, Status::Waiting),
        (sibling, Status::Queued),
        (target, Status::Cancelled),
        (other, Status::Queued),
    ] {
        assert_eq!(status(&worker, key).await, expected);
    }
}

async fn flush_carries_hundreds_of_cancels(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: Vec<Key> = (0..300).map(|_| Key::mint(0)).collect();
    let states = [queued(), running(), completed()];
    let starts = all.iter().enumerate().map(|(i, key)| {
        let reason = State::Parked { reason: payload("why"), pending_sleeps: Vec::new(), is_pause: false };
        start_in(*key, states.get(i % 4).cloned().unwrap_or(reason))
    });
    worker.apply(starts.collect()).await;
    let cancels = all.iter().enumerate().map(|(i, key)| {
        Write::Request(Request {
            execution: *key,
            id: Key::mint(0),
            kind: RequestKind::Cancel,
            at: at(i as i64),
            reason: payload(&i.to_string()),
        })
    });
    let outcomes = worker.commit(cancels.collect()).await;
    for (i, outcome) in outcomes.into_iter().enumerate() {
        let expected = match i % 4 {
            0 | 3 => RequestResult::Done,
            1 => RequestResult::Pending,
            _ => RequestResult::NotApplicable(Status::Completed),
        };
        assert_eq!(outcome, handled(expected), "{i}");
        if i % 4 == 0 {
            let row = worker.execution(all[i]).await;
            assert_eq!((row.outcome, row.ended_at), (payload(&i.to_string()), Some(at(i as i64))));
        }
    }
}

async fn clearing_deletes_requests_of_one_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b] = keys();
    worker.apply(vec![start_running(a), start_running(b)]).await;
    worker.commit(vec![cancel(a), cancel(b)]).await;
    worker.commit(vec![cancel(a)]).await;
    assert_eq!(worker.record(a).await.requests.len(), 2);
    worker.apply(vec![Write::ClearRequests(a)]).await;
    assert!(worker.record(a).await.requests.is_empty());
    assert_eq!(worker.record(b).await.requests, [RequestKind::Cancel]);
    worker.apply(vec![Write::ClearRequests(a), Write::ClearRequests(Key::mint(0))]).await;
}

async fn request_survives_the_death_of_its_executions_owner(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    dead.apply(vec![start_running(key)]).await;
    assert_eq!(other.commit_one(cancel(key)).await, handled(RequestResult::Pending));
    fixture.mark_dead(dead.id).await;
    assert_eq!(other.take_over_dead_workers().await, 1);
    let record = other.claim(1).await.remove(0);
    assert_eq!((record.execution.key, record.requests), (key, vec![RequestKind::Cancel]));
    assert_eq!(other.heartbeat().await.requests, [(key, RequestKind::Cancel)]);
}

async fn repeated_request_is_recorded_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    let request = cancel(key);
    for _ in 0..2 {
        assert_eq!(worker.commit_one(request.clone()).await, handled(RequestResult::Pending));
    }
    assert_eq!(worker.record(key).await.requests, [RequestKind::Cancel]);
}

async fn resume_continues_a_parked_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let sleeps = pending_sleeps(&[(1, 5)]);
    worker.apply(vec![start_running(key), Write::Checkpoint(checkpoint(key, 1, "x"))]).await;
    worker
        .apply(vec![transition(
            key,
            State::Parked { reason: payload("why"), pending_sleeps: sleeps.clone(), is_pause: false },
        )])
        .await;
    let before = worker.record(key).await;
    assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
    let mut expected = before;
    expected.execution.is_parked = false;
    expected.execution.outcome = Payload::empty();
    assert_eq!(worker.record(key).await, expected);
    assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::NotApplicable(Status::Queued)));
    assert_eq!(worker.claim_keys(10).await, [key], "the execution is ready once");
}

async fn resume_runs_an_ended_execution_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Failed, Status::Cancelled] {
        let key = Key::mint(0);
        let given = Start { deadline_at: Some(at(90)), ..start(key, running()) };
        worker.apply(vec![write(given), Write::Checkpoint(checkpoint(key, 1, "x"))]).await;
        worker.apply(vec![transition(key, ended(status, "finished"))]).await;
        let before = worker.record(key).await;
        assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
        let mut expected = before;
        let row = &mut expected.execution;
        (row.status, row.run_no) = (Status::Queued, 2);
        (row.outcome, row.ended_at, row.deadline_at) = (Payload::empty(), None, None);
        assert_eq!(worker.record(key).await, expected, "the record after a resume");
        assert_eq!(worker.claim_keys(10).await, [key]);
    }
}

async fn resume_withdraws_trailing_failures(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let unaffected = Key::mint(0);
    let failed = Checkpoint { kind: CheckpointKind::Failed, ..checkpoint(unaffected, 1, "x") };
    worker.apply(vec![start_running(unaffected), Write::Checkpoint(failed)]).await;
    worker
        .apply(vec![
            Write::Attempt(attempt(unaffected, 1, 1)),
            transition(unaffected, ended(Status::Failed, "finished")),
        ])
        .await;
    let untouched = worker.record(unaffected).await;
    // the kinds of the records, the end, and the number of records that remain
    for (kinds, status, remaining) in [
        ("sfsf", Status::Failed, 3),
        ("sf", Status::Cancelled, 2),
        ("sffaf", Status::Failed, 1),
        ("afa", Status::Failed, 1),
        ("fa", Status::Failed, 0),
        ("sfc", Status::Failed, 3),
        ("sft", Status::Failed, 3),
        ("saa", Status::Failed, 3),
        // many calls, which a store may keep in different places
        ("ssssssssssffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", Status::Failed, 10),
    ] {
        let key = Key::mint(0);
        let kind = |letter| match letter {
            's' => CheckpointKind::Step,
            'f' => CheckpointKind::Failed,
            'a' => CheckpointKind::Abandoned,
            'c' => CheckpointKind::Child,
            _ => CheckpointKind::Timer,
        };
        let mut writes = vec![start_running(key)];
        for (n, letter) in (1..).zip(kinds.chars()) {
            writes.push(Write::Attempt(attempt(key, n, 1)));
            writes.push(Write::Checkpoint(Checkpoint { kind: kind(letter), ..checkpoint(key, n, "x") }));
        }
        worker.apply(writes).await;
        worker.apply(vec![transition(key, ended(status, "finished"))]).await;
        let before = worker.record(key).await;
        assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
        let after = worker.record(key).await;
        assert_eq!(after.checkpoints, before.checkpoints[..remaining], "{kinds}");
        let is_withdrawn = |n: usize| n > remaining && kinds.as_bytes()[n - 1] == b'f';
        let kept = (1..=kinds.len()).filter(|n| !is_withdrawn(*n)).count();
        assert_eq!(after.attempts.len(), kept, "{kinds}");
    }
    assert_eq!(worker.record(unaffected).await, untouched);
}

async fn cancel_of_queued_execution_clears_earlier_requests(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    worker.commit(vec![cancel(key)]).await;
    worker.apply(vec![transition(key, queued())]).await;
    assert_eq!(worker.record(key).await.requests, [RequestKind::Cancel]);
    assert_eq!(worker.commit_one(cancel(key)).await, handled(RequestResult::Done));
    assert!(worker.record(key).await.requests.is_empty());
    assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
    let record = worker.claim(10).await.remove(0);
    assert_eq!((record.execution.key, record.requests), (key, vec![]));
}

async fn foreign_worker_deletes_no_request(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    owner.commit(vec![cancel(key)]).await;
    for state in [completed(), sleeping(at(90)), parked("why")] {
        assert_eq!(other.commit_one(transition(key, state)).await, Outcome::NotFound);
    }
    let record = owner.record(key).await;
    assert_eq!((record.execution.status, record.requests), (Status::Running, vec![RequestKind::Cancel]));
}

async fn resume_of_other_states_is_not_applicable(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for state in [queued(), running(), sleeping(at(90)), awaiting(&keys::<1>()), completed()] {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state.clone())]).await;
        let before = worker.record(key).await;
        let outcome = worker.commit_one(resume(key)).await;
        assert_eq!(outcome, handled(RequestResult::NotApplicable(state.status())));
        assert_eq!(worker.record(key).await, before);
    }
    assert_eq!(worker.claim(10).await.len(), 1);
}

async fn resumed_execution_can_end_and_be_resumed_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for run_no in 1..=3 {
        worker.apply(vec![transition(key, ended(Status::Failed, "again"))]).await;
        assert_eq!(worker.execution(key).await.run_no, run_no);
        assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
        assert_eq!(worker.claim_keys(1).await, [key]);
    }
    worker.apply(vec![transition(key, completed())]).await;
    assert_eq!(
        worker.commit_one(resume(key)).await,
        handled(RequestResult::NotApplicable(Status::Completed))
    );
}
