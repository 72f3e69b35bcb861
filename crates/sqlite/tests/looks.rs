//! Looking: lost workers, strays, what is watched; several engines in one process.

#![allow(clippy::unwrap_used)]

mod kit;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::queue::{Queue, QueueChange, Placement};
use stepfast_core::store::{Heartbeat, Start, Status, Store, StoreError, Write};

#[tokio::test]
async fn two_engines_of_one_process_know_each_other_to_be_alive() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let same_store = Worker::on(one.store.clone(), one.clock.clone()).await;
    assert_ne!(one.registration.worker, two.registration.worker);
    let id = Key::mint(0);
    one.commit(vec![put(start(id, running()))]).await;
    for worker in [&one, &two, &same_store] {
        let seen = worker.look().await;
        assert!(!seen.is_fenced && seen.recovered == 0);
    }
    assert_eq!(one.record(id).await.execution.owner, Some(one.registration.worker));
}

#[tokio::test]
async fn an_engine_that_is_dropped_is_taken_over_by_its_neighbour() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let backlog = Key::mint(0);
    two.clock.advance(std::time::Duration::from_mins(1));
    two.commit(vec![put(start(backlog, queued()))]).await;
    let keys: Vec<Key> = (0..2500).map(|_| Key::mint(0)).collect();
    let ended = Key::mint(0);
    one.commit(keys.iter().map(|key| put(start(*key, running()))).collect()).await;
    one.commit(vec![put(start(ended, completed("done")))]).await;
    let flush = one.flush(vec![change(keys[0], completed("too late"))]);
    drop(one);
    assert_eq!(two.look().await.recovered, 2500);
    assert_eq!(two.look().await.recovered, 0);
    assert!(matches!(two.store.commit(&flush).await, Err(StoreError::Fenced)));
    let row = two.record(keys[0]).await.execution;
    assert_eq!((row.status, row.owner, row.recoveries), (Status::Queued, None, 1));
    assert_eq!(two.status(ended).await, Status::Completed);
    let claimed = two.claim_keys(9999, &["w"]).await;
    assert_eq!(claimed.len(), 2501);
    assert_eq!(claimed.last(), Some(&backlog), "what was accepted first is not put behind the backlog");
}

#[tokio::test]
async fn a_takeover_that_was_interrupted_is_finished_by_the_next_look() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    one.commit(vec![put(start(id, running()))]).await;
    // the first step was done, by somebody who died before the second
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM lanes WHERE worker_id = ?1", [one.registration.worker.0]).unwrap();
    conn.execute("DELETE FROM workers WHERE worker_id = ?1", [one.registration.worker.0]).unwrap();
    assert_eq!(two.look().await.recovered, 1);
    assert_eq!(two.claim_keys(9, &["w"]).await, [id]);
    assert!(one.look().await.is_fenced);
    assert!(matches!(one.try_commit(vec![change(id, completed("x"))]).await, Err(StoreError::Fenced)));
}

#[tokio::test]
async fn closing_hands_executions_on_without_counting_a_recovery() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let id = Key::mint(0);
    one.commit(vec![put(start(id, running()))]).await;
    for _ in 0..2 {
        one.store.close(one.registration.worker).await.unwrap();
    }
    let claimed = two.claim(9, &["w"]).await;
    assert_eq!((claimed[0].execution.key, claimed[0].execution.recoveries), (id, 0));
    // its own is over: closing again must not touch what another runs now
    one.store.close(one.registration.worker).await.unwrap();
    assert_eq!(two.record(id).await.execution.owner, Some(two.registration.worker));
    assert!(one.look().await.is_fenced);
}

#[tokio::test]
async fn worker_ids_are_never_used_twice() {
    let (_dir, path) = place();
    let mut last = 0;
    for _ in 0..3 {
        let worker = Worker::at(&path).await;
        assert!(worker.registration.worker.0 > last);
        last = worker.registration.worker.0;
        worker.store.close(worker.registration.worker).await.unwrap();
    }
}

#[tokio::test]
async fn a_look_reports_what_is_watched_and_what_is_not_held() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let [held, stray, ended, parked_one, asleep] = std::array::from_fn(|_| Key::mint(0));
    worker
        .commit(vec![
            put(start(held, running())),
            put(start(stray, running())),
            put(start(ended, completed("done"))),
            put(start(parked_one, parked("why"))),
            put(start(asleep, waiting(None, &[]))),
            Write::Checkpoint(checkpoint(stray, 1, "one")),
        ])
        .await;
    let look = Heartbeat {
        watched: vec![held, ended, parked_one, asleep, Key::mint(0)],
        held: Some(vec![held]),
        ..worker.look_of(&["w"])
    };
    let seen = worker.store.heartbeat(&look).await.unwrap();
    assert_eq!(seen.finished, [ended, parked_one]);
    assert_eq!(seen.unheld, [worker.record(stray).await]);
    assert_eq!(seen.now, NOON);
    assert_eq!(worker.look().await.unheld, []);
}

#[tokio::test]
async fn a_commit_wakes_the_other_stores_of_the_process_and_not_its_own() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    one.commit(vec![put(start(Key::mint(0), running()))]).await;
    two.store.next_hint().await;
    for (store, what) in [(&one.store, "its own commit"), (&two.store, "nothing new")] {
        let mut changed = pin!(store.next_hint());
        let woken = poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_ready())).await;
        assert!(!woken, "woken by {what}");
    }
}

#[tokio::test]
async fn a_slot_of_what_does_not_run_is_freed() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let queue = Queue::new("a").concurrency(3);
    worker.store.change_queue(&QueueChange { queue, is_paused: false, seen_version: 0 }).await.unwrap();
    for _ in 0..3 {
        let ticket = Placement { queue: "a".into(), key: "".into(), priority: 0 };
        worker
            .commit(vec![put(Start { placement: Some(ticket.into()), ..start(Key::mint(0), queued()) })])
            .await;
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    // one of an execution that has ended, one of an execution that was deleted
    let [over, gone] = [(); 2].map(|()| Key::mint(0));
    worker.commit(vec![put(start(over, completed("done")))]).await;
    let conn = Connection::open(&path).unwrap();
    for key in [over, gone] {
        let leak = "INSERT INTO slots (queue, queue_key, execution, worker_id) VALUES ('a', '', ?1, 7)";
        conn.execute(leak, [key.as_bytes()]).unwrap();
    }
    let slots = || -> i64 { conn.query_row("SELECT count(*) FROM slots", [], |row| row.get(0)).unwrap() };
    assert_eq!((worker.claim(9, &["w"]).await.len(), slots()), (0, 3));
    for _ in 0..60 {
        worker.look().await;
    }
    assert_eq!(slots(), 1);
    assert_eq!(worker.claim(9, &["w"]).await.len(), 2);
    for _ in 0..60 {
        worker.look().await;
    }
    assert_eq!(slots(), 3);
}
