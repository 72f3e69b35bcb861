//! Heartbeats: the reply that a worker receives once a second.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{Heartbeat, RequestKind, Start, State, Status, Wait, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, checkpoint, completed, ended, keys, parked, queued, running, sleeping, start,
    start_in, start_queued, start_running, transition, write,
};
use crate::fixtures::registration::worker_info;
use crate::{StoreFixture, Worker};

super::cases![
    heartbeat_returns_the_stores_time,
    heartbeat_returns_requests_to_its_running_executions,
    heartbeat_returns_finished_and_parked_watched_executions,
    heartbeat_returns_unheld_executions_only_if_asked,
    heartbeat_returns_unheld_execution_once,
    heartbeat_reports_ready_executions_of_its_workflows,
    heartbeat_reports_earliest_due_time_of_its_workflows,
    heartbeat_without_events_returns_nothing,
    heartbeat_reports_all_that_concerns_the_worker,
    unknown_registration_is_fenced,
    heartbeat_watches_thousands_of_executions,
];

async fn heartbeat_returns_the_stores_time(fixture: &dyn StoreFixture) {
    let registration = fixture.store().register(2, &worker_info(&[])).await.unwrap();
    assert_eq!(registration.now, fixture.now());
    let worker = Worker::register(&fixture.store()).await;
    for _ in 0..3 {
        fixture.clock().advance(Duration::from_micros(1_234_567));
        assert_eq!(worker.heartbeat().await.now, fixture.now());
    }
}

async fn heartbeat_returns_requests_to_its_running_executions(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [own, also_own, quiet, foreign, ready] = keys();
    owner.apply(vec![start_running(own), start_running(also_own), start_running(quiet)]).await;
    other.apply(vec![start_running(foreign), start_queued(ready)]).await;
    other.commit(vec![cancel(own), cancel(foreign)]).await;
    owner.commit(vec![cancel(also_own)]).await;
    let mut requests = owner.heartbeat().await.reply.requests;
    requests.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(requests, [(own, RequestKind::Cancel), (also_own, RequestKind::Cancel)]);
    assert_eq!(other.heartbeat().await.requests, [(foreign, RequestKind::Cancel)]);
    assert_eq!(owner.heartbeat().await.requests.len(), 2, "requests stay until they are answered");
    owner.apply(vec![Write::ClearRequests(own), transition(own, ended(Status::Cancelled, "x"))]).await;
    assert_eq!(owner.heartbeat().await.requests, [(also_own, RequestKind::Cancel)]);
    owner.apply(vec![transition(also_own, queued())]).await;
    assert!(owner.heartbeat().await.requests.is_empty(), "the worker no longer runs the execution");
}

async fn heartbeat_returns_finished_and_parked_watched_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let watched: [Key; 8] = keys();
    let states = [
        running(),
        queued(),
        sleeping(at(90)),
        awaiting(&[Key::mint(0)]),
        parked("why"),
        completed(),
        ended(Status::Failed, "x"),
        ended(Status::Cancelled, "x"),
    ];
    worker.apply(watched.into_iter().zip(states).map(|(key, state)| start_in(key, state)).collect()).await;
    worker.apply(vec![start_in(Key::mint(0), completed())]).await;
    let mut watched_keys = watched.to_vec();
    watched_keys.push(Key::mint(0));
    let heartbeat = Heartbeat { watched: watched_keys, ..worker.new_heartbeat() };
    let mut finished = worker.store.heartbeat(&heartbeat).await.unwrap().finished;
    finished.sort_unstable();
    assert_eq!(finished, watched[4..]);
}

async fn heartbeat_returns_unheld_executions_only_if_asked(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.store()).await;
    let [held, unheld, requeued, foreign, gone] = keys();
    other.apply(vec![start_running(foreign)]).await;
    worker
        .apply(vec![
            start_running(held),
            start_running(unheld),
            start_running(requeued),
            Write::Checkpoint(checkpoint(unheld, 1, "x")),
        ])
        .await;
    worker.apply(vec![transition(requeued, queued())]).await;
    assert!(worker.heartbeat().await.unheld.is_empty());
    let heartbeat = Heartbeat { held: Some(vec![held, gone, foreign]), ..worker.new_heartbeat() };
    let unheld_records = worker.store.heartbeat(&heartbeat).await.unwrap().unheld;
    assert_eq!(unheld_records, [worker.record(unheld).await]);
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    assert_eq!(worker.store.heartbeat(&heartbeat).await.unwrap().unheld.len(), 2);
}

async fn heartbeat_returns_unheld_execution_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [beside, twice] = keys();
    worker.apply(vec![start_running(beside), start_running(twice)]).await;
    // the flush and the claim have both set it running
    worker.apply(vec![transition(twice, queued())]).await;
    assert_eq!(worker.claim(1).await.len(), 1);
    let heartbeat = Heartbeat { held: Some(vec![beside]), ..worker.new_heartbeat() };
    let unheld = worker.store.heartbeat(&heartbeat).await.unwrap().unheld;
    assert_eq!(unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [twice]);
    // the assignment of the flush still lists it
    worker.heartbeat().await;
    worker.apply(vec![transition(twice, completed()), transition(beside, completed())]).await;
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    assert!(worker.store.heartbeat(&heartbeat).await.unwrap().unheld.is_empty());
}

async fn heartbeat_reports_ready_executions_of_its_workflows(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    assert!(!worker.heartbeat().await.has_ready);
    let other = Start { workflow: "other".into(), ..start(Key::mint(0), queued()) };
    worker.apply(vec![write(other), start_running(Key::mint(0)), start_in(Key::mint(0), parked("x"))]).await;
    assert!(!worker.heartbeat().await.has_ready);
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    assert!(worker.heartbeat().await.has_ready);
    worker.claim(1).await;
    assert!(!worker.heartbeat().await.has_ready);
    worker.workflows = Arc::from(["x".into(), "other".into()]);
    assert!(worker.heartbeat().await.has_ready);
}

async fn heartbeat_reports_earliest_due_time_of_its_workflows(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let other = Start { workflow: "other".into(), ..start(Key::mint(0), sleeping(at(10))) };
    let both = State::Waiting {
        wake_at: Some(at(40)),
        waits: Wait::for_children(keys::<2>()),
        pending_sleeps: Vec::new(),
    };
    let first = Key::mint(0);
    worker
        .apply(vec![
            write(other),
            start_in(Key::mint(0), awaiting(&keys::<1>())),
            start_in(Key::mint(0), both),
            start_in(first, sleeping(at(30))),
        ])
        .await;
    assert_eq!(worker.heartbeat().await.next_due, Some(at(30)));
    worker.commit(vec![cancel(first)]).await;
    assert_eq!(worker.heartbeat().await.next_due, Some(at(40)));
    worker.workflows = Arc::from(["other".into()]);
    assert_eq!(worker.heartbeat().await.next_due, Some(at(10)));
    worker.workflows = Arc::from(["unknown".into()]);
    assert_eq!(worker.heartbeat().await.next_due, None);
}

async fn heartbeat_without_events_returns_nothing(fixture: &dyn StoreFixture) {
    let worker = Worker::register(&fixture.store()).await;
    let heartbeat = Heartbeat {
        watched: vec![Key::mint(0)],
        held: Some(vec![Key::mint(0)]),
        workflows: Arc::from([]),
        ..worker.new_heartbeat()
    };
    let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
    assert!(
        !reply.is_fenced && !reply.has_ready && reply.next_due.is_none() && reply.quarantined_until.is_none()
    );
    assert!(reply.requests.is_empty() && reply.finished.is_empty() && reply.unheld.is_empty());
}

async fn heartbeat_reports_all_that_concerns_the_worker(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [unheld, finished] = keys();
    let states = [(unheld, running()), (finished, completed()), (Key::mint(0), sleeping(at(30)))];
    worker.apply(states.into_iter().map(|(key, state)| start_in(key, state)).collect()).await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    worker.commit(vec![cancel(unheld)]).await;
    let watched_keys = vec![finished];
    let heartbeat = Heartbeat { watched: watched_keys, held: Some(Vec::new()), ..worker.new_heartbeat() };
    let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
    assert_eq!((reply.now, reply.is_fenced, reply.has_ready), (fixture.now(), false, true));
    assert_eq!((reply.next_due, reply.requests), (Some(at(30)), vec![(unheld, RequestKind::Cancel)]));
    assert_eq!((reply.finished, reply.unheld), (vec![finished], vec![worker.record(unheld).await]));
}

async fn unknown_registration_is_fenced(fixture: &dyn StoreFixture) {
    let worker = Worker::register(&fixture.store()).await;
    let mut unknown = worker.new_heartbeat();
    unknown.worker.0 += 1_000;
    let stale = Heartbeat { epoch: worker.epoch + 1, ..worker.new_heartbeat() };
    for heartbeat in [unknown, stale] {
        assert!(worker.store.renew(heartbeat.worker, heartbeat.epoch).await.unwrap().is_fenced);
        assert!(worker.store.heartbeat(&heartbeat).await.unwrap().is_fenced);
    }
    assert!(!worker.heartbeat().await.is_fenced);
}

async fn heartbeat_watches_thousands_of_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: Vec<Key> = (0..5_000).map(|_| Key::mint(0)).collect();
    let state = |i: usize| if i.is_multiple_of(2) { running() } else { completed() };
    worker.apply(all.iter().enumerate().map(|(i, key)| start_in(*key, state(i))).collect()).await;
    let held = Some(all.iter().copied().skip(2).collect());
    let heartbeat = Heartbeat { watched: all.clone(), held, ..worker.new_heartbeat() };
    let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
    assert_eq!(reply.finished.len(), 2_500);
    assert_eq!(reply.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [all[0]]);
}
