//! Cancel and resume.

#![allow(clippy::unwrap_used)]

mod support;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{Outcome, RequestKind, RequestResult, Status, Write};
use support::*;

fn done(parent: Option<Key>) -> Outcome {
    Outcome::RequestHandled(RequestResult::Done, parent)
}

fn not_applicable(status: Status) -> Outcome {
    Outcome::RequestHandled(RequestResult::NotApplicable(status), None)
}

const PENDING: Outcome = Outcome::RequestHandled(RequestResult::Pending, None);

#[tokio::test]
async fn cancel_finishes_executions_that_do_not_run() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    for state in [queued(), waiting(Some(later(5)), &[Key::mint(0)]), parked("why")] {
        let id = Key::mint(0);
        worker.commit(vec![start_write(start(id, state))]).await;
        assert_eq!(worker.commit_one(Write::Request(cancel(id))).await, done(None));
        let row = worker.record(id).await.execution;
        assert_eq!((row.status, row.is_parked), (Status::Cancelled, false));
        assert_eq!((row.outcome, row.ended_at, row.wake_at), (value("stop"), Some(later(9)), None));
        assert_eq!(worker.commit_one(Write::Request(cancel(id))).await, not_applicable(Status::Cancelled));
    }
    assert_eq!(worker.commit_one(Write::Request(cancel(Key::mint(0)))).await, Outcome::NotFound);
    let conn = Connection::open(&path).unwrap();
    for table in ["timers", "waits", "ready", "requests"] {
        let rows: i64 =
            conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn cancel_of_running_execution_is_left_to_owner() {
    let (_dir, path) = temp_database();
    let (owner, other) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    owner.commit(vec![start_write(start(id, running()))]).await;
    assert_eq!(other.commit_one(Write::Request(cancel(id))).await, PENDING);
    assert_eq!(owner.status(id).await, Status::Running);
    assert_eq!(owner.heartbeat().await.requests, [(id, RequestKind::Cancel)]);
    assert_eq!(other.heartbeat().await.requests, []);
    assert_eq!(owner.record(id).await.requests, [RequestKind::Cancel]);
    assert_eq!(owner.commit_one(Write::ClearRequests(id)).await, Outcome::Applied);
    assert_eq!(owner.heartbeat().await.requests, []);
    // of finish and cancel, the first commit wins
    owner.commit(vec![transition(id, completed("done"))]).await;
    assert_eq!(other.commit_one(Write::Request(cancel(id))).await, not_applicable(Status::Completed));
}

#[tokio::test]
async fn request_survives_suspension_and_is_deleted_at_end() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let [suspends, parks, finishes, clears] = std::array::from_fn(|_| Key::mint(0));
    for id in [suspends, parks, finishes, clears] {
        worker.commit(vec![start_write(start(id, running()))]).await;
        worker.commit(vec![Write::Request(cancel(id))]).await;
    }
    worker
        .commit(vec![
            transition(suspends, waiting(Some(later(60)), &[Key::mint(0)])),
            transition(parks, parked("why")),
            transition(finishes, completed("done")),
            transition(clears, waiting(Some(later(60)), &[])),
            Write::ClearRequests(clears),
        ])
        .await;
    assert_eq!(worker.status(clears).await, Status::Waiting, "cleared in the same flush");
    assert_eq!(worker.record(finishes).await.requests, []);
    let claimed = worker.claim(9, &["w"]).await;
    assert_eq!(claimed.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [suspends, parks]);
    assert!(claimed.iter().all(|record| record.requests == [RequestKind::Cancel]));
}

#[tokio::test]
async fn cancel_reaches_awaited_children_only() {
    let (_dir, path) = temp_database();
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
    worker.commit(vec![start_write(start(root, waiting(None, &[busy.key, asleep.key])))]).await;
    worker.commit(all.iter().map(|start| start_write((*start).clone())).collect()).await;
    assert_eq!(worker.commit_one(Write::Request(cancel(root))).await, done(None));
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
    assert_eq!(worker.heartbeat().await.requests, [(busy.key, RequestKind::Cancel)]);
}

#[tokio::test]
async fn cancel_returns_parent_of_finished_child() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let parent = Key::mint(0);
    let child_start = child(parent, false, queued());
    worker
        .commit(vec![
            start_write(start(parent, waiting(None, &[child_start.key]))),
            start_write(child_start.clone()),
        ])
        .await;
    assert_eq!(worker.commit_one(Write::Request(cancel(child_start.key))).await, done(Some(parent)));
    assert_eq!(worker.commit_one(Write::Wake(parent)).await, Outcome::Applied);
}

#[tokio::test]
async fn resume_continues_parked_and_cancelled_executions() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (parked_id, cancelled) = (Key::mint(0), Key::mint(0));
    let mut with_deadline = start(cancelled, running());
    with_deadline.deadline_at = Some(later(5));
    worker.commit(vec![start_write(start(parked_id, parked("why"))), start_write(with_deadline)]).await;
    assert_eq!(worker.claim_keys(9, &["w"]).await, [], "a parked execution is not claimed");
    assert_eq!(worker.commit_one(Write::Request(resume(parked_id))).await, done(None));
    let row = worker.record(parked_id).await.execution;
    assert_eq!((row.status, row.is_parked, row.run_no), (Status::Queued, false, 1));
    assert!(row.outcome.is_empty());

    assert_eq!(worker.commit_one(Write::Request(resume(cancelled))).await, not_applicable(Status::Running));
    worker.commit(vec![transition(cancelled, queued())]).await;
    worker.commit_one(Write::Request(cancel(cancelled))).await;
    assert_eq!(worker.commit_one(Write::Request(resume(cancelled))).await, done(None));
    let row = worker.record(cancelled).await.execution;
    assert_eq!((row.status, row.run_no, row.ended_at), (Status::Queued, 2, None));
    assert_eq!((row.deadline_at, row.outcome.is_empty()), (None, true));
    assert_eq!(worker.commit_one(Write::Request(resume(cancelled))).await, not_applicable(Status::Queued));
    assert_eq!(worker.claim_keys(9, &["w"]).await, [parked_id, cancelled]);

    worker.commit(vec![transition(parked_id, completed("done"))]).await;
    assert_eq!(worker.commit_one(Write::Request(resume(parked_id))).await, not_applicable(Status::Completed));
    assert_eq!(worker.commit_one(Write::Request(resume(Key::mint(0)))).await, Outcome::NotFound);
}
