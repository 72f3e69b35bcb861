//! Hints: which workers they wake, and when they are sent.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::store::{
    ClaimHint, EndedExecutions, Flush, Hint, Registration, RequestKind, Start, Status, WorkerId, WorkerInfo,
    Write,
};
use stepfast_core::{Key, Store};
use stepfast_postgres::PostgresStore;
use stepfast_tests::fixtures::builders;

use super::support::*;

/// Registers a worker on a store of its own, and returns both once the store listens.
async fn listening_worker(db: &Fixture, workflows: &[&str]) -> (PostgresStore, Registration) {
    let other = db.other().await;
    let registration = other.register(1, &worker_info(workflows)).await.unwrap();
    // the first hint is for changes before the store listened
    assert!(other.next_hint(registration.worker).await.has_other);
    (other, registration)
}

async fn expect_hint(store: &PostgresStore, worker: WorkerId) -> Hint {
    let hint = tokio::time::timeout(Duration::from_secs(20), store.next_hint(worker)).await;
    hint.expect("no hint")
}

#[tokio::test]
async fn other_processes_receive_hints() {
    let db = Fixture::new().await;
    let (other, Registration { worker: listener, .. }) = listening_worker(&db, &["order"]).await;
    let key = Key::mint(0);
    let ready = Hint { claim: ClaimHint::AtOnce, ..Hint::default() };
    let over = Hint { ended: EndedExecutions::Tagged(vec![key.tag()]), ..Hint::default() };
    for (state, key, expected) in [(QUEUED, Key::mint(0), ready), (ended(Status::Completed), key, over)] {
        let (hint, _) = tokio::join!(other.next_hint(listener), db.write(vec![start(key, state)]));
        assert_eq!(hint, expected);
    }
}

#[tokio::test]
async fn hints_wake_only_workers_that_can_act() {
    let db = Fixture::new().await;
    let other = db.other().await;
    let [foreign, client] = [(false, "foreign"), (true, "order")].map(|(is_client, workflow)| {
        let info = worker_info(&[workflow]);
        WorkerInfo { is_client, workflows: if is_client { Arc::new([]) } else { info.workflows }, ..info }
    });
    let foreign = other.register(1, &foreign).await.unwrap().worker;
    let client = other.register(1, &client).await.unwrap().worker;
    let own = other.register(1, &worker_info(&["order"])).await.unwrap().worker;
    // the first hint says that the store listens now
    for worker in [foreign, client, own] {
        assert!(other.next_hint(worker).await.has_other);
    }
    let (hint, _) = tokio::join!(other.next_hint(own), db.write(vec![start(Key::mint(0), QUEUED)]));
    assert_eq!(hint.claim, ClaimHint::AtOnce);
    // all workers of a store receive a hint at the same time
    for worker in [foreign, client] {
        let is_woken = other.next_hint(worker).now_or_never().is_some();
        assert!(!is_woken, "{worker:?} cannot claim the execution");
    }
}

/// Registers `count` workers of the workflow `order`, and on a store of its own a worker that listens and has counted them.
async fn worker_beside(db: &Fixture, count: usize, workflows: &[&str]) -> (PostgresStore, WorkerId) {
    for _ in 0..count {
        db.store.register(1, &worker_info(&["order"])).await.unwrap();
    }
    let (other, registration) = listening_worker(db, workflows).await;
    // the first maintenance counts the workers
    other.maintain(registration.worker, registration.epoch).await.unwrap();
    (other, registration.worker)
}

/// Many workers share a workflow, and one of them is the only one that can run another one too.
#[tokio::test]
async fn worker_that_alone_can_run_an_execution_is_always_woken() {
    let db = Fixture::new().await;
    let (other, rare) = worker_beside(&db, 60, &["order", "rare"]).await;
    for i in 0..8 {
        let start = Start { workflow: "rare".into(), ..builders::start(Key::mint(0), QUEUED) };
        db.write(vec![builders::write(start)]).await;
        assert_eq!(expect_hint(&other, rare).await.claim, ClaimHint::AtOnce, "execution {i}");
    }
}

/// The first workers of many claim at once. The others look soon after, because more executions are ready than workers exist.
#[tokio::test]
async fn as_many_workers_as_executions_are_woken() {
    let db = Fixture::new().await;
    let (other, worker) = worker_beside(&db, 39, &["order"]).await;
    for i in 0..6 {
        db.write((0..41).map(|_| start(Key::mint(0), QUEUED)).collect()).await;
        let hint = expect_hint(&other, worker).await;
        assert!(hint.claim == ClaimHint::AtOnce || hint.has_other, "hint {i}");
    }
}

/// A limit of a queue may hold back hundreds of workers, but a free slot is work for one.
#[tokio::test]
async fn free_slots_make_few_workers_claim() {
    let db = Fixture::new().await;
    let (other, worker) = worker_beside(&db, 39, &["order"]).await;
    let mut claims = 0;
    for _ in 0..12 {
        let end = ended(Status::Completed);
        let (hint, _) = tokio::join!(
            other.next_hint(worker),
            db.write(vec![builders::queue_transition(Key::mint(0), "mail", "", end)])
        );
        assert!(hint.has_free_slots && hint.claim <= ClaimHint::IfLimited, "{hint:?}");
        claims += u32::from(hint.claim == ClaimHint::IfLimited);
    }
    // each of 40 workers claims with a probability of a fourth
    assert!(claims < 12, "the worker claimed after each end");
}

#[tokio::test]
async fn requests_wake_only_the_workers_that_run_the_executions() {
    let db = Fixture::new().await;
    let other = db.other().await;
    let info = worker_info(&["order"]);
    let runner = other.register(1, &info).await.unwrap();
    let idle = other.register(1, &info).await.unwrap().worker;
    let key = Key::mint(0);
    let flush = Flush { worker: runner.worker, epoch: runner.epoch, ..db.flush(vec![start(key, RUNNING)]) };
    other.commit(&Flush { number: 1, ..flush }).await.unwrap();
    for worker in [runner.worker, idle] {
        // the first hint says that the store listens now
        assert!(other.next_hint(worker).await.has_other);
    }
    for kind in [RequestKind::Pause, RequestKind::Resume, RequestKind::Cancel] {
        let (hint, _) = tokio::join!(other.next_hint(runner.worker), db.write(vec![request(key, kind)]));
        assert_eq!(hint, Hint { has_other: true, ..Hint::default() });
        // all workers of a store receive a hint at the same time
        assert!(other.next_hint(idle).now_or_never().is_none());
    }
}

/// A worker starts or drains executions that only workers of another service can run.
#[tokio::test]
async fn starts_for_other_services_are_announced_to_them() {
    let db = Fixture::new().await;
    let (other, Registration { worker: foreign, .. }) = listening_worker(&db, &["foreign"]).await;
    let scheduled =
        Start { workflow: "foreign".into(), ..builders::start(Key::mint(0), builders::scheduled(later(60))) };
    let (hint, _) = tokio::join!(other.next_hint(foreign), db.write(vec![builders::write(scheduled)]));
    assert!(hint.has_other, "the due time");
    for workflow in ["foreign", "order"] {
        let key = Key::mint(0);
        let insert =
            format!(r"INSERT INTO inbox (key, workflow, input) VALUES ('{key}', '{workflow}', '\x00')");
        db.sql.batch_execute(&insert).await.unwrap();
    }
    let (hint, claimed) = tokio::join!(other.next_hint(foreign), db.take(9));
    assert_eq!((hint.claim, claimed.len()), (ClaimHint::AtOnce, 1));
}

/// A process renews its lease seldom or now and then, and others may come in between.
#[tokio::test]
async fn process_that_was_alone_sends_hints() {
    for is_client in [false, true] {
        let db = Fixture::new().await;
        db.store.close(db.worker.worker).await.unwrap();
        let info = WorkerInfo { is_client, ..worker_info(&[]) };
        let lone = db.store.register(3, &info).await.unwrap();
        db.store.renew(lone.worker, lone.epoch).await.unwrap();
        let (other, listener) = listening_worker(&db, &["order"]).await;
        for number in 1..=3 {
            let flush = db.flush(vec![start(Key::mint(0), QUEUED)]);
            db.store
                .commit(&Flush { worker: lone.worker, epoch: lone.epoch, number, ..flush })
                .await
                .unwrap();
            assert_eq!(expect_hint(&other, listener.worker).await.claim, ClaimHint::AtOnce);
        }
        // the process ends during the pause after its last hint
        let flush = db.flush(vec![start(Key::mint(0), RUNNING)]);
        let flush = Flush { worker: lone.worker, epoch: lone.epoch, number: 4, ..flush };
        db.store.commit(&flush).await.unwrap();
        db.store.close(lone.worker).await.unwrap();
        assert_eq!(expect_hint(&other, listener.worker).await.claim, ClaimHint::AtOnce);
    }
}

/// Most Wakes of a fan-in find a parent that runs or waits for more, and no Wake concerns another service.
#[tokio::test]
async fn wakes_announce_only_what_they_have_woken() {
    let db = Fixture::new().await;
    let (other, own) = listening_worker(&db, &["order"]).await;
    let foreign = other.register(1, &worker_info(&["foreign"])).await.unwrap().worker;
    other.next_hint(foreign).await;
    let [runs, waits] = [(); 2].map(|()| Key::mint(0));
    db.write(vec![start(runs, RUNNING), start(waits, waiting(Some(NOON), &[]))]).await;
    db.write(vec![Write::Wake(runs)]).await;
    // hints arrive in the order in which they are sent
    let marker = Key::mint(0);
    db.write(vec![start(marker, ended(Status::Completed))]).await;
    let expected = Hint { ended: EndedExecutions::Tagged(vec![marker.tag()]), ..Hint::default() };
    assert_eq!(expect_hint(&other, own.worker).await, expected);
    assert_eq!(other.next_hint(foreign).now_or_never(), Some(expected));
    db.write(vec![Write::Wake(runs), Write::Wake(waits)]).await;
    assert_eq!(expect_hint(&other, own.worker).await, Hint { claim: ClaimHint::AtOnce, ..Hint::default() });
    // all workers of a store receive a hint at the same time
    assert_eq!(other.next_hint(foreign).now_or_never(), None);
}

/// A takeover that is blocked half-way announces what it has requeued before.
#[tokio::test]
async fn blocked_takeover_announces_what_became_ready() {
    let db = Fixture::new().await;
    let (other, listener) = listening_worker(&db, &["order"]).await;
    let dead = db.other().await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let worker = dead.register(3, &worker_info(&["order"])).await.unwrap();
        let key = Key::mint(0);
        let flush = db.flush(vec![start(key, RUNNING)]);
        let flush = Flush { worker: worker.worker, epoch: worker.epoch, number: 1, ..flush };
        dead.commit(&flush).await.unwrap();
        keys.push((worker, key));
    }
    let (parent, of) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(parent, waiting(None, &[of])), child(of, parent, false, RUNNING)]).await;
    db.write(vec![transition(of, ended(Status::Completed))]).await;
    while other.next_hint(listener.worker).now_or_never().is_some() {}
    // its session is prepared before the lock
    db.store.take_over(db.worker.worker).await.unwrap();
    let mut foreign = client(&db.schema).await;
    let lock = foreign.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE waits IN ACCESS EXCLUSIVE MODE").await.unwrap();
    db.clock.advance(Duration::from_secs(4));
    for _ in 0..3 {
        other.renew(listener.worker, listener.epoch).await.unwrap();
        db.renew().await.unwrap();
        db.store.maintain(db.worker.worker, db.worker.epoch).await.unwrap();
    }
    let taken_over = db.store.take_over(db.worker.worker).await;
    lock.rollback().await.unwrap();
    assert_eq!(taken_over.unwrap(), 2, "the parent is left to a later sweep");
    for (_, key) in keys {
        assert_eq!(db.status(key).await, Status::Queued);
    }
    while expect_hint(&other, listener.worker).await.claim != ClaimHint::AtOnce {}
}

/// A lock of a parent delays the wakes of no other parent.
#[tokio::test]
async fn locked_parent_delays_no_other_wake() {
    let db = Fixture::new().await;
    let parents: Vec<Key> = (0..3).map(|_| Key::mint(0)).collect();
    for parent in &parents {
        let of = Key::mint(0);
        db.write(vec![start(*parent, waiting(None, &[of])), child(of, *parent, false, RUNNING)]).await;
        db.write(vec![transition(of, ended(Status::Completed))]).await;
    }
    let mut foreign = client(&db.schema).await;
    let lock = foreign.transaction().await.unwrap();
    let sql = format!("SELECT 1 FROM executions WHERE key = '{}' FOR UPDATE", parents[1]);
    lock.batch_execute(&sql).await.unwrap();
    db.store.close(db.worker.worker).await.unwrap();
    for (i, parent) in parents.iter().enumerate() {
        assert_eq!(db.status(*parent).await, if i == 1 { Status::Waiting } else { Status::Queued });
    }
}
