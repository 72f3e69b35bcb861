//! Requests: cancels, including descendants, and resumes.

use stepfast_core::Key;
use stepfast_core::store::{Outcome, RequestKind, RequestResult, Status, Write};

use super::support::*;

fn done(parent: Option<Key>) -> Outcome {
    Outcome::RequestHandled(RequestResult::Done, parent)
}

fn not_applicable(status: Status) -> Outcome {
    Outcome::RequestHandled(RequestResult::NotApplicable(status), None)
}

const PENDING: Outcome = Outcome::RequestHandled(RequestResult::Pending, None);

#[tokio::test]
async fn cancel_finishes_idle_executions_and_asks_owners() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    let states = [
        QUEUED,
        waiting(Some(later(9)), &[keys[0]]),
        parked(),
        RUNNING,
        ended(Status::Completed),
        ended(Status::Cancelled),
    ];
    db.write(keys.iter().zip(states).map(|(key, state)| start(*key, state)).collect()).await;
    let mut writes: Vec<Write> = keys.iter().map(|key| cancel(*key)).collect();
    writes.push(cancel(Key::mint(0)));
    let outcomes: Vec<Outcome> = db.write(writes).await.into_iter().map(|(_, outcome)| outcome).collect();
    let expected = [
        done(None),
        done(None),
        done(None),
        PENDING,
        not_applicable(Status::Completed),
        not_applicable(Status::Cancelled),
        Outcome::NotFound,
    ];
    assert_eq!(outcomes, expected);
    for key in &keys[..3] {
        let row = db.load(*key).await.unwrap().execution;
        assert_eq!((row.status, row.is_parked, row.ended_at), (Status::Cancelled, false, Some(NOON)));
        assert_eq!(row.outcome, payload("cancelled"));
        assert!(row.pending_sleeps.is_empty());
    }
    assert_eq!(db.load(keys[3]).await.unwrap().requests, [RequestKind::Cancel]);
    assert_eq!((db.count("ready").await, db.count("timers").await, db.count("waits").await), (0, 0, 0));
    db.write(vec![Write::ClearRequests(keys[3])]).await;
    assert_eq!(db.count("requests").await, 0);
}

#[tokio::test]
async fn cancel_reaches_awaited_children_only() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..8).map(|_| Key::mint(0)).collect();
    let [root, running, below, detached, ended_one, under_ended, queued, deep] = keys[..] else { panic!() };
    db.write(vec![
        start(root, waiting(None, &[running, queued])),
        child(running, root, false, RUNNING),
        child(below, running, false, waiting(Some(later(1)), &[])),
        child(detached, root, true, QUEUED),
        child(ended_one, root, false, ended(Status::Completed)),
        child(under_ended, ended_one, false, QUEUED),
        child(queued, root, false, QUEUED),
        child(deep, below, false, QUEUED),
    ])
    .await;
    assert_eq!(db.outcome(cancel(root)).await, done(None));
    let statuses: Vec<Status> = {
        let mut statuses = Vec::new();
        for key in &keys {
            statuses.push(db.status(*key).await);
        }
        statuses
    };
    let (c, q) = (Status::Cancelled, Status::Queued);
    assert_eq!(statuses, [c, Status::Running, c, q, Status::Completed, q, c, c]);
    assert_eq!(db.load(running).await.unwrap().requests, [RequestKind::Cancel]);
    assert_eq!(db.count("requests").await, 1);
    assert_eq!(db.count("ready").await, 2);
}

#[tokio::test]
async fn cancel_returns_parent_of_finished_child() {
    let db = Fixture::new().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, waiting(None, &[of])), child(of, parent, false, QUEUED)]).await;
    assert_eq!(db.outcome(cancel(of)).await, done(Some(parent)));
    assert_eq!(db.outcome(Write::Wake(parent)).await, Outcome::Applied);
}

#[tokio::test]
async fn cancels_of_parent_and_child_agree_within_flush() {
    let db = Fixture::new().await;
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, waiting(None, &[of])), child(of, parent, false, QUEUED)]).await;
    let outcomes = db.write(vec![cancel(parent), cancel(of)]).await;
    assert_eq!(outcomes, [(0, done(None)), (1, not_applicable(Status::Cancelled))]);
    assert_eq!(db.status(of).await, Status::Cancelled);
}

#[tokio::test]
async fn cancel_reaches_children_started_or_moved_by_same_flush() {
    let db = Fixture::new().await;
    let (parent, of, fresh) = (Key::mint(0), Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, RUNNING), child(of, parent, false, RUNNING)]).await;
    db.write(vec![
        cancel(parent),
        transition(of, waiting(Some(later(1)), &[])),
        child(fresh, parent, false, QUEUED),
    ])
    .await;
    assert_eq!(db.status(parent).await, Status::Running);
    assert_eq!(db.status(of).await, Status::Cancelled);
    assert_eq!(db.status(fresh).await, Status::Cancelled);
    assert_eq!((db.count("timers").await, db.count("ready").await, db.count("requests").await), (0, 0, 1));
}

#[tokio::test]
async fn resume_continues_parked_and_failed_executions() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..7).map(|_| Key::mint(0)).collect();
    let states = [
        parked(),
        ended(Status::Failed),
        ended(Status::Cancelled),
        ended(Status::Completed),
        QUEUED,
        waiting(None, &[]),
        RUNNING,
    ];
    db.write(keys.iter().zip(states).map(|(key, state)| start(*key, state)).collect()).await;
    db.sql.execute("UPDATE executions SET deadline_at = now()", &[]).await.unwrap();
    let outcomes: Vec<Outcome> =
        db.write(keys.iter().map(|key| resume(*key)).collect()).await.into_iter().map(|(_, o)| o).collect();
    let no = [Status::Completed, Status::Queued, Status::Waiting, Status::Running].map(not_applicable);
    assert_eq!(outcomes[..3], [done(None), done(None), done(None)]);
    assert_eq!(outcomes[3..], no);
    for (key, run_no, has_deadline) in [(keys[0], 1, true), (keys[1], 2, false), (keys[2], 2, false)] {
        let row = db.load(key).await.unwrap().execution;
        assert_eq!((row.status, row.is_parked, row.run_no), (Status::Queued, false, run_no));
        assert_eq!((row.outcome.is_empty(), row.ended_at), (true, None));
        assert_eq!(row.deadline_at.is_some(), has_deadline);
    }
    assert_eq!(db.count("ready").await, 4);
    assert_eq!(db.count("requests").await, 0);
}
