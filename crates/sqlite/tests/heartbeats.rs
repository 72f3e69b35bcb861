//! Heartbeats: dead workers, unheld and watched executions; several engines in one process.

#![allow(clippy::unwrap_used)]

mod support;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::queue::{Placement, Queue, QueueChange};
use stepfast_core::store::{Heartbeat, Start, Status, Store, StoreError, Write};
use support::*;

#[tokio::test]
async fn engines_of_one_process_count_as_alive() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let same_store = Worker::on(one.store.clone(), one.clock.clone()).await;
    assert_ne!(one.registration.worker, two.registration.worker);
    let id = Key::mint(0);
    one.commit(vec![start_write(start(id, running()))]).await;
    for worker in [&one, &two, &same_store] {
        let reply = worker.heartbeat().await;
        assert!(!reply.is_fenced && reply.recovered == 0);
    }
    assert_eq!(one.record(id).await.execution.owner, Some(one.registration.worker));
}

#[tokio::test]
async fn dropped_engine_is_taken_over_by_peer() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let backlog = Key::mint(0);
    two.clock.advance(std::time::Duration::from_mins(1));
    two.commit(vec![start_write(start(backlog, queued()))]).await;
    let keys: Vec<Key> = (0..2500).map(|_| Key::mint(0)).collect();
    let ended = Key::mint(0);
    one.commit(keys.iter().map(|key| start_write(start(*key, running()))).collect()).await;
    one.commit(vec![start_write(start(ended, completed("done")))]).await;
    let flush = one.flush(vec![transition(keys[0], completed("too late"))]);
    drop(one);
    assert_eq!(two.heartbeat().await.recovered, 2500);
    assert_eq!(two.heartbeat().await.recovered, 0);
    assert!(matches!(two.send(&flush).await, Err(StoreError::Fenced)));
    let row = two.record(keys[0]).await.execution;
    assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 1));
    assert_eq!(two.status(ended).await, Status::Completed);
    let claimed = two.claim_keys(9999, &["w"]).await;
    assert_eq!(claimed.len(), 2501);
    assert_eq!(claimed.last(), Some(&backlog), "requeued executions precede the later backlog");
}

#[tokio::test]
async fn interrupted_takeover_is_finished_after_next_heartbeat() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    one.commit(vec![start_write(start(id, running()))]).await;
    // as if the peer had died between the two steps of the takeover
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM lanes WHERE worker_id = ?1", [one.registration.worker.0]).unwrap();
    conn.execute("UPDATE workers SET epoch = epoch + 1 WHERE worker_id = ?1", [one.registration.worker.0])
        .unwrap();
    assert!(one.heartbeat().await.is_fenced);
    assert!(matches!(one.try_commit(vec![transition(id, completed("x"))]).await, Err(StoreError::Fenced)));
    drop(one);
    assert_eq!(two.heartbeat().await.recovered, 1);
    assert_eq!(two.claim_keys(9, &["w"]).await, [id]);
    let count = |table: &str| {
        let query = format!("SELECT count(*) FROM {table}");
        conn.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!((count("workers"), count("assignments")), (1, 1), "those of the worker that claimed");
}

#[tokio::test]
async fn close_requeues_executions_without_counting_recovery() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    one.commit(vec![start_write(start(id, running()))]).await;
    for _ in 0..2 {
        one.store.close(one.registration.worker).await.unwrap();
    }
    let claimed = two.claim(9, &["w"]).await;
    assert_eq!((claimed[0].execution.key, claimed[0].execution.recoveries), (id, 0));
    // the registration has ended: a second close must not change the execution of another worker
    one.store.close(one.registration.worker).await.unwrap();
    assert_eq!(two.record(id).await.execution.owner, Some(two.registration.worker));
    assert!(one.heartbeat().await.is_fenced);
}

#[tokio::test]
async fn worker_ids_are_never_reused() {
    let (_dir, path) = temp_database();
    let mut last = 0;
    for _ in 0..3 {
        let worker = Worker::at(&path).await;
        assert!(worker.registration.worker.0 > last);
        last = worker.registration.worker.0;
        worker.store.close(worker.registration.worker).await.unwrap();
    }
}

#[tokio::test]
async fn heartbeat_reports_finished_and_unheld_executions() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let [held, unheld, ended, parked_id, asleep] = std::array::from_fn(|_| Key::mint(0));
    worker
        .commit(vec![
            start_write(start(held, running())),
            start_write(start(unheld, running())),
            start_write(start(ended, completed("done"))),
            start_write(start(parked_id, parked("why"))),
            start_write(start(asleep, waiting(None, &[]))),
            Write::Checkpoint(checkpoint(unheld, 1, "one")),
        ])
        .await;
    let heartbeat = Heartbeat {
        watched: vec![held, ended, parked_id, asleep, Key::mint(0)],
        held: Some(vec![held]),
        ..worker.heartbeat_request(&["w"])
    };
    let reply = worker.store.heartbeat(&heartbeat).await.unwrap();
    assert_eq!(reply.finished, [ended, parked_id]);
    assert_eq!(reply.unheld, [worker.record(unheld).await]);
    assert_eq!(reply.now, NOON);
    assert_eq!(worker.heartbeat().await.unheld, []);
}

#[tokio::test]
async fn commit_wakes_other_stores_of_process_only() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    one.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    two.store.next_hint(two.registration.worker).await;
    for (worker, cause) in [(&one, "its own commit"), (&two, "nothing new")] {
        let mut changed = pin!(worker.store.next_hint(worker.registration.worker));
        let woken = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_ready())).await;
        assert!(!woken, "woken by {cause}");
    }
}

#[tokio::test]
async fn orphaned_slots_are_deleted() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let queue = Queue::new("a").concurrency(3);
    worker.store.change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 }).await.unwrap();
    for _ in 0..3 {
        let placement = Placement { queue: "a".into(), key: "".into(), priority: 0 };
        worker
            .commit(vec![start_write(Start {
                placement: Some(placement.into()),
                ..start(Key::mint(0), queued())
            })])
            .await;
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    // one slot of a finished execution, one of a deleted execution
    let [finished, deleted] = [(); 2].map(|()| Key::mint(0));
    worker.commit(vec![start_write(start(finished, completed("done")))]).await;
    let conn = Connection::open(&path).unwrap();
    for key in [finished, deleted] {
        let leak = "INSERT INTO slots (queue, queue_key, execution, worker_id) VALUES ('a', '', ?1, 7)";
        conn.execute(leak, [key.as_bytes()]).unwrap();
    }
    let slots = || -> i64 { conn.query_row("SELECT count(*) FROM slots", [], |row| row.get(0)).unwrap() };
    assert_eq!((worker.claim(9, &["w"]).await.len(), slots()), (0, 3));
    for _ in 0..60 {
        worker.heartbeat().await;
    }
    assert_eq!(slots(), 1);
    assert_eq!(worker.claim(9, &["w"]).await.len(), 2);
    for _ in 0..60 {
        worker.heartbeat().await;
    }
    assert_eq!(slots(), 3);
}
