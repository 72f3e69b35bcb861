//! Cancel and resume.

#![allow(clippy::unwrap_used)]

mod kit;

use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{RequestResult, Outcome, RequestKind, Status, Write};

fn done(parent: Option<Key>) -> Outcome {
    Outcome::RequestHandled(RequestResult::Done, parent)
}

fn declined(status: Status) -> Outcome {
    Outcome::RequestHandled(RequestResult::NotApplicable(status), None)
}

const REQUESTED: Outcome = Outcome::RequestHandled(RequestResult::Pending, None);

#[tokio::test]
async fn cancel_ends_what_nobody_runs() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    for state in [queued(), waiting(Some(later(5)), &[Key::mint(0)]), parked("why")] {
        let id = Key::mint(0);
        worker.commit(vec![put(start(id, state))]).await;
        assert_eq!(worker.one(Write::Request(cancel(id))).await, done(None));
        let row = worker.record(id).await.execution;
        assert_eq!((row.status, row.is_parked), (Status::Cancelled, false));
        assert_eq!((row.outcome, row.ended_at, row.wake_at), (value("stop"), Some(later(9)), None));
        assert_eq!(worker.one(Write::Request(cancel(id))).await, declined(Status::Cancelled));
    }
    assert_eq!(worker.one(Write::Request(cancel(Key::mint(0)))).await, Outcome::NotFound);
    let conn = Connection::open(&path).unwrap();
    for table in ["timers", "waits", "ready", "requests"] {
        let rows: i64 =
            conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn cancel_of_a_running_one_is_for_its_owner() {
    let (_dir, path) = place();
    let (owner, other) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    owner.commit(vec![put(start(id, running()))]).await;
    assert_eq!(other.one(Write::Request(cancel(id))).await, REQUESTED);
    assert_eq!(owner.status(id).await, Status::Running);
    assert_eq!(owner.look().await.requests, [(id, RequestKind::Cancel)]);
    assert_eq!(other.look().await.requests, []);
    assert_eq!(owner.record(id).await.requests, [RequestKind::Cancel]);
    assert_eq!(owner.one(Write::ClearRequests(id)).await, Outcome::Applied);
    assert_eq!(owner.look().await.requests, []);
    // whatever commits first of Finish and cancel wins
    owner.commit(vec![change(id, completed("done"))]).await;
    assert_eq!(other.one(Write::Request(cancel(id))).await, declined(Status::Completed));
}

#[tokio::test]
async fn a_request_is_not_left_behind_when_its_execution_is_handed_on_or_ends() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let [suspends, parks, ends, answers] = std::array::from_fn(|_| Key::mint(0));
    for id in [suspends, parks, ends, answers] {
        worker.commit(vec![put(start(id, running()))]).await;
        worker.commit(vec![Write::Request(cancel(id))]).await;
    }
    worker
        .commit(vec![
            change(suspends, waiting(Some(later(60)), &[Key::mint(0)])),
            change(parks, parked("why")),
            change(ends, completed("done")),
            change(answers, waiting(Some(later(60)), &[])),
            Write::ClearRequests(answers),
        ])
        .await;
    assert_eq!(worker.status(answers).await, Status::Waiting, "answered in the same flush");
    assert_eq!(worker.record(ends).await.requests, []);
    let claimed = worker.claim(9, &["w"]).await;
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [suspends, parks]);
    assert!(claimed.iter().all(|record| record.requests == [RequestKind::Cancel]));
}

#[tokio::test]
async fn cancel_goes_down_to_awaited_children_at_any_depth_and_no_further() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let root = Key::mint(0);
    let busy = child(root, false, running());
    let grandchild = child(busy.key, false, queued());
    let detached = child(root, true, queued());
    let below_detached = child(detached.key, false, queued());
    let ended = child(root, false, completed("done"));
    let below_ended = child(ended.key, false, queued());
    let asleep = child(root, false, waiting(Some(later(5)), &[]));
    let all = [&busy, &grandchild, &detached, &below_detached, &ended, &below_ended, &asleep];
    worker.commit(vec![put(start(root, waiting(None, &[busy.key, asleep.key])))]).await;
    worker.commit(all.iter().map(|start| put((*start).clone())).collect()).await;
    assert_eq!(worker.one(Write::Request(cancel(root))).await, done(None));
    let statuses = [
        (root, Status::Cancelled),
        (busy.key, Status::Running),
        (grandchild.key, Status::Cancelled),
        (detached.key, Status::Queued),
        (below_detached.key, Status::Queued),
        (ended.key, Status::Completed),
        (below_ended.key, Status::Queued),
        (asleep.key, Status::Cancelled),
    ];
    for (i, (id, status)) in statuses.into_iter().enumerate() {
        assert_eq!(worker.status(id).await, status, "{i}");
    }
    assert_eq!(worker.look().await.requests, [(busy.key, RequestKind::Cancel)]);
}

#[tokio::test]
async fn cancel_names_the_parent_of_what_it_ended() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let parent = Key::mint(0);
    let kid = child(parent, false, queued());
    worker.commit(vec![put(start(parent, waiting(None, &[kid.key]))), put(kid.clone())]).await;
    assert_eq!(worker.one(Write::Request(cancel(kid.key))).await, done(Some(parent)));
    assert_eq!(worker.one(Write::Wake(parent)).await, Outcome::Applied);
}

#[tokio::test]
async fn resume_continues_parked_and_ended_ones() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let (parked_one, cancelled) = (Key::mint(0), Key::mint(0));
    let mut with_deadline = start(cancelled, running());
    with_deadline.deadline_at = Some(later(5));
    worker.commit(vec![put(start(parked_one, parked("why"))), put(with_deadline)]).await;
    assert_eq!(worker.claim_keys(9, &["w"]).await, [], "a parked one is not claimed");
    assert_eq!(worker.one(Write::Request(resume(parked_one))).await, done(None));
    let row = worker.record(parked_one).await.execution;
    assert_eq!((row.status, row.is_parked, row.run_no), (Status::Queued, false, 1));
    assert!(row.outcome.is_empty());

    assert_eq!(worker.one(Write::Request(resume(cancelled))).await, declined(Status::Running));
    worker.commit(vec![change(cancelled, queued())]).await;
    worker.one(Write::Request(cancel(cancelled))).await;
    assert_eq!(worker.one(Write::Request(resume(cancelled))).await, done(None));
    let row = worker.record(cancelled).await.execution;
    assert_eq!((row.status, row.run_no, row.ended_at), (Status::Queued, 2, None));
    assert_eq!((row.deadline_at, row.outcome.is_empty()), (None, true));
    assert_eq!(worker.one(Write::Request(resume(cancelled))).await, declined(Status::Queued));
    assert_eq!(worker.claim_keys(9, &["w"]).await, [parked_one, cancelled]);

    worker.commit(vec![change(parked_one, completed("done"))]).await;
    assert_eq!(worker.one(Write::Request(resume(parked_one))).await, declined(Status::Completed));
    assert_eq!(worker.one(Write::Request(resume(Key::mint(0)))).await, Outcome::NotFound);
}
