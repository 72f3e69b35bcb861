//! Pauses: an execution is parked on request, at once or by its owner.

use stepfast_core::key::Key;
use stepfast_core::store::{Execution, Outcome, RequestKind, RequestResult, State, Status, Wait, Write};

use super::resend::resend_of;
use crate::fixtures::builders::{
    at, attempt, awaiting, cancel, checkpoint, child_of, completed, ended, keys, parked, pause, paused,
    payload, pending_sleeps, queued, resume, scheduled, sleeping, start_in, start_running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    pause_parks_an_execution_that_is_not_running,
    pause_of_other_states_is_not_applicable,
    pause_of_running_execution_is_left_to_its_owner,
    resent_pause_of_a_requeued_execution_is_pending,
    suspension_after_a_pending_pause_is_queued,
    end_after_a_pending_pause_stays,
    pending_cancel_counts_beside_a_pause,
    pending_cancel_outlives_a_pause_and_a_resume,
    resume_withdraws_pending_pauses,
    parking_for_a_pause_by_others_than_the_owner_keeps_the_pause,
    parked_execution_has_no_pending_pause,
    pause_spares_children,
];

fn handled(result: RequestResult) -> Outcome {
    Outcome::RequestHandled(result, None)
}

async fn pause_parks_an_execution_that_is_not_running(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let sleeps = pending_sleeps(&[(1, 5)]);
    let states = [
        queued(),
        State::Queued { pending_sleeps: sleeps.clone() },
        State::Waiting {
            wake_at: Some(at(90)),
            waits: Wait::for_children(keys::<2>()),
            pending_sleeps: sleeps,
        },
        awaiting(&keys::<1>()),
    ];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state)]).await;
        let before = worker.execution(key).await;
        let request = worker.new_flush(vec![pause(key)]);
        assert_eq!(worker.send(&request).await.unwrap(), [handled(RequestResult::Done)]);
        assert_eq!(worker.send(&resend_of(&request)).await.unwrap(), [handled(RequestResult::Done)]);
        let parked = Execution {
            status: Status::Queued,
            is_parked: true,
            outcome: payload("paused"),
            wake_at: None,
            ..before
        };
        let record = worker.record(key).await;
        assert_eq!(record.execution, parked);
        assert!(record.requests.is_empty());
        let reply = worker.heartbeat().await;
        assert_eq!((reply.has_ready, reply.next_due), (false, None));
        assert!(worker.claim(10).await.is_empty());
        assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
        let [claimed] = &worker.claim(10).await[..] else { panic!("it continues") };
        assert_eq!((claimed.execution.key, &claimed.execution.pending_sleeps), (key, &parked.pending_sleeps));
        worker.apply(vec![transition(key, completed())]).await;
    }
    // the reason of a parked execution stays
    let key = Key::mint(0);
    worker.apply(vec![start_in(key, parked("why"))]).await;
    assert_eq!(worker.commit_one(pause(key)).await, handled(RequestResult::Done));
    assert_eq!(worker.execution(key).await.outcome, payload("why"));
}

async fn pause_of_other_states_is_not_applicable(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let states =
        [scheduled(at(90)), completed(), ended(Status::Failed, "no"), ended(Status::Cancelled, "no")];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state.clone())]).await;
        let before = worker.record(key).await;
        let expected = [handled(RequestResult::NotApplicable(state.status()))];
        let request = worker.new_flush(vec![pause(key)]);
        assert_eq!(worker.send(&request).await.unwrap(), expected);
        assert_eq!(worker.send(&resend_of(&request)).await.unwrap(), expected);
        assert_eq!(worker.record(key).await, before);
    }
    assert_eq!(worker.commit_one(pause(Key::mint(0))).await, Outcome::NotFound);
}

async fn pause_of_running_execution_is_left_to_its_owner(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    let before = owner.execution(key).await;
    let request = other.new_flush(vec![pause(key)]);
    assert_eq!(other.send(&request).await.unwrap(), [handled(RequestResult::Pending)]);
    assert_eq!(other.send(&resend_of(&request)).await.unwrap(), [handled(RequestResult::Pending)]);
    let record = other.record(key).await;
    assert_eq!((record.execution, record.requests), (before, vec![RequestKind::Pause]));
    assert_eq!(owner.heartbeat().await.requests, [(key, RequestKind::Pause)]);
    // records go on as before, and the owner parks the execution
    let recorded = vec![Write::Checkpoint(checkpoint(key, 1, "a")), Write::Attempt(attempt(key, 2, 1))];
    assert_eq!(owner.commit(recorded).await, [Outcome::Applied, Outcome::Applied]);
    assert_eq!(owner.commit_one(transition(key, paused("why"))).await, Outcome::Applied);
    let record = other.record(key).await;
    assert_eq!((record.execution.is_parked, &record.requests[..]), (true, &[][..]));
    assert!(other.claim(10).await.is_empty());
    assert_eq!(other.commit_one(resume(key)).await, handled(RequestResult::Done));
    let [claimed] = &other.claim(10).await[..] else { panic!("it continues") };
    assert!(claimed.requests.is_empty());
}

async fn resent_pause_of_a_requeued_execution_is_pending(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    let request = other.new_flush(vec![pause(key)]);
    assert_eq!(other.send(&request).await.unwrap(), [handled(RequestResult::Pending)]);
    owner.apply(vec![transition(key, queued())]).await;
    assert_eq!(other.send(&resend_of(&request)).await.unwrap(), [handled(RequestResult::Pending)]);
    let [claimed] = &owner.claim(10).await[..] else { panic!("the next owner parks it") };
    assert_eq!(claimed.requests, [RequestKind::Pause]);
}

async fn suspension_after_a_pending_pause_is_queued(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for state in [sleeping(at(900)), awaiting(&keys::<1>())] {
        let key = Key::mint(0);
        owner.apply(vec![start_running(key)]).await;
        assert_eq!(other.commit_one(pause(key)).await, handled(RequestResult::Pending));
        assert_eq!(owner.commit_one(transition(key, state)).await, Outcome::Applied);
        let [claimed] = &other.claim(10).await[..] else { panic!("the next owner parks it") };
        assert_eq!((claimed.execution.key, &claimed.requests[..]), (key, &[RequestKind::Pause][..]));
        other.apply(vec![transition(key, paused("why"))]).await;
    }
}

async fn end_after_a_pending_pause_stays(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    for end in [completed(), ended(Status::Failed, "no")] {
        let key = Key::mint(0);
        owner.apply(vec![start_running(key)]).await;
        assert_eq!(owner.commit_one(pause(key)).await, handled(RequestResult::Pending));
        let flush = owner.new_flush(vec![transition(key, end.clone())]);
        assert_eq!(owner.send(&flush).await.unwrap(), [Outcome::Applied]);
        assert_eq!(owner.send(&resend_of(&flush)).await.unwrap(), [Outcome::Applied]);
        let record = owner.record(key).await;
        assert_eq!(record.execution.status, end.status());
        assert!(record.requests.is_empty());
    }
}

async fn pending_cancel_counts_beside_a_pause(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [ended, parked_first] = keys();
    owner.apply(vec![start_running(ended), start_running(parked_first)]).await;
    for key in [ended, parked_first] {
        assert_eq!(other.commit_one(pause(key)).await, handled(RequestResult::Pending));
        assert_eq!(other.commit_one(cancel(key)).await, handled(RequestResult::Pending));
    }
    assert_eq!(owner.commit_one(transition(ended, completed())).await, Outcome::Cancelled);
    assert_eq!(owner.commit_one(transition(parked_first, paused("why"))).await, Outcome::Applied);
    let [claimed] = &other.claim(10).await[..] else { panic!("the next owner cancels it") };
    assert_eq!(claimed.requests, [RequestKind::Pause, RequestKind::Cancel]);
}

async fn pending_cancel_outlives_a_pause_and_a_resume(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    assert_eq!(worker.commit_one(cancel(key)).await, handled(RequestResult::Pending));
    worker.apply(vec![transition(key, queued())]).await;
    assert_eq!(worker.commit_one(pause(key)).await, handled(RequestResult::Done));
    assert!(worker.claim(10).await.is_empty());
    assert_eq!(worker.commit_one(resume(key)).await, handled(RequestResult::Done));
    let [claimed] = &worker.claim(10).await[..] else { panic!("it continues") };
    assert_eq!(claimed.execution.key, key);
    assert_eq!(worker.record(key).await.requests, [RequestKind::Cancel]);
    worker.commit_one(transition(key, completed())).await;
    assert_eq!(worker.execution(key).await.status, Status::Cancelled);
}

async fn resume_withdraws_pending_pauses(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [key, also] = keys();
    owner.apply(vec![start_running(key), start_running(also)]).await;
    let not_applicable = handled(RequestResult::NotApplicable(Status::Running));
    assert_eq!(other.commit_one(resume(key)).await, not_applicable);
    for pending in [pause(key), pause(key), cancel(also), pause(also)] {
        assert_eq!(other.commit_one(pending).await, handled(RequestResult::Pending));
    }
    let before = other.execution(key).await;
    for resumed in [key, also] {
        let request = other.new_flush(vec![resume(resumed)]);
        assert_eq!(other.send(&request).await.unwrap(), [handled(RequestResult::Done)]);
        assert_eq!(other.send(&resend_of(&request)).await.unwrap(), [handled(RequestResult::Done)]);
    }
    let record = other.record(key).await;
    assert_eq!((record.execution, record.requests), (before, vec![]));
    assert_eq!(owner.heartbeat().await.requests, [(also, RequestKind::Cancel)], "a cancel stays");
    assert_eq!(other.commit_one(resume(key)).await, not_applicable);
    // the owner of an execution does not know yet that the pause was withdrawn
    assert_eq!(owner.commit_one(transition(key, paused("why"))).await, Outcome::Applied);
    let [claimed] = &other.claim(10).await[..] else { panic!("it continues") };
    assert_eq!((claimed.execution.key, claimed.execution.outcome.len()), (key, 0));
    // a pause that is pending when the execution is requeued
    assert_eq!(owner.commit_one(pause(key)).await, handled(RequestResult::Pending));
    other.apply(vec![transition(key, queued())]).await;
    assert_eq!(owner.commit_one(resume(key)).await, handled(RequestResult::Done));
    let [claimed] = &other.claim(10).await[..] else { panic!("it continues") };
    assert!(claimed.requests.is_empty());
}

async fn parking_for_a_pause_by_others_than_the_owner_keeps_the_pause(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    owner.apply(vec![start_running(key)]).await;
    assert_eq!(other.commit_one(pause(key)).await, handled(RequestResult::Pending));
    assert_eq!(other.commit_one(transition(key, paused("why"))).await, Outcome::NotFound);
    assert_eq!(owner.heartbeat().await.requests, [(key, RequestKind::Pause)]);
}

async fn parked_execution_has_no_pending_pause(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [by_pause, by_code, requeued] = keys();
    for key in [by_pause, by_code, requeued] {
        worker.apply(vec![start_running(key)]).await;
        assert_eq!(worker.commit_one(pause(key)).await, handled(RequestResult::Pending));
    }
    worker.apply(vec![transition(by_pause, paused("why")), transition(by_code, parked("why"))]).await;
    worker.apply(vec![transition(requeued, queued())]).await;
    assert_eq!(worker.commit_one(pause(requeued)).await, handled(RequestResult::Done));
    for key in [by_pause, by_code, requeued] {
        let record = worker.record(key).await;
        assert_eq!((record.execution.is_parked, &record.requests[..]), (true, &[][..]));
    }
}

async fn pause_spares_children(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [parent, child] = keys();
    worker.apply(vec![start_in(parent, awaiting(&[child])), write(child_of(parent, child, queued()))]).await;
    assert_eq!(worker.commit_one(pause(parent)).await, handled(RequestResult::Done));
    let [claimed] = &worker.claim(10).await[..] else { panic!("the child continues") };
    assert_eq!(claimed.execution.key, child);
    worker.apply(vec![transition(child, completed())]).await;
    assert_eq!(worker.commit_one(Write::Wake(parent)).await, Outcome::NotFound);
    assert!(worker.execution(parent).await.is_parked);
}
