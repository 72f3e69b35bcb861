//! Ownership windows: a takeover finds running executions that are not in the index of owners by their keys, in every
//! interleaving.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stepfast_core::store::{Outcome, Status, StoreError};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

impl Fixture {
    async fn window(&self) -> (Key, Key) {
        let query = "SELECT from_key, to_key FROM workers WHERE worker_id = $1";
        let row = self.sql.query_one(query, &[&self.worker.worker.0]).await.unwrap();
        let [from, to]: [uuid::Uuid; 2] = [row.get(0), row.get(1)];
        (Key::from_bytes(from.into_bytes()), Key::from_bytes(to.into_bytes()))
    }

    /// Returns keys at the window's lower end: the oldest that it covers.
    async fn oldest_keys<const N: usize>(&self) -> [Key; N] {
        let from = self.window().await.0.as_u128();
        std::array::from_fn(|n| Key::from_bytes((from + n as u128).to_be_bytes()))
    }

    /// Whether the execution is in the index of owners, instead of being found through `started_by`. Checks that the
    /// worker runs it.
    pub(crate) async fn is_indexed(&self, key: Key) -> bool {
        assert_eq!(owner(&self.load(key).await.unwrap()), Some(self.worker.worker));
        let query = "SELECT owner, started_by FROM executions WHERE key = $1 AND status = 2";
        let row = self.sql.query_one(query, &[&uuid(key)]).await.unwrap();
        let id = Some(self.worker.worker.0);
        match (row.get::<_, Option<i64>>(0), row.get::<_, Option<i64>>(1)) {
            (owner, None) if owner == id => true,
            (None, started_by) if started_by == id => false,
            other => panic!("{other:?}"),
        }
    }

    /// Takes over the worker, and checks that exactly these executions are claimable then.
    pub(crate) async fn expect_taken_over(&self, keys: &[Key]) {
        let other = self.other().await;
        assert!(other.end_registration(self.worker.worker).await.unwrap());
        assert_eq!(other.requeue(self.worker.worker).await.unwrap(), keys.len() as u64);
        for key in keys {
            assert_eq!(self.status(*key).await, Status::Queued);
        }
        assert_eq!(self.count("ready").await, keys.len() as i64);
        assert_eq!(self.count("workers").await, 0);
    }
}

#[tokio::test]
async fn recent_start_is_found_by_key() {
    let fixture = Fixture::new().await;
    let [oldest] = fixture.oldest_keys().await;
    let newest = Key::mint(0);
    fixture.write(vec![start(oldest, RUNNING), start(newest, RUNNING)]).await;
    assert!(!fixture.is_indexed(oldest).await && !fixture.is_indexed(newest).await);
    fixture.expect_taken_over(&[oldest, newest]).await;
}

#[tokio::test]
async fn start_with_workflow_id_is_found_by_key() {
    let fixture = Fixture::new().await;
    let [with_id, long, outside] = fixture.oldest_keys().await;
    let outside = Key::from_bytes((outside.as_u128() - (1 << 80)).to_be_bytes());
    fixture.write(vec![start_id(with_id, "a", RUNNING), start(Key::mint(0), ended(Status::Completed))]).await;
    assert!(!fixture.is_indexed(with_id).await);
    fixture.write(vec![start_id(long, &"x".repeat(1_025), RUNNING)]).await;
    assert!(!fixture.is_indexed(long).await);
    // keys outside the window need the general statement, and so does every id of the same flush, for one lock order
    fixture.write(vec![start_id(outside, "b", RUNNING)]).await;
    assert!(fixture.is_indexed(outside).await);
    let beside = Key::mint(0);
    let late = Key::from_bytes((outside.as_u128() + 1).to_be_bytes());
    let mixed = vec![start_id(beside, "c", RUNNING), start_id(late, "y", RUNNING)];
    fixture.write(mixed).await;
    assert!(fixture.is_indexed(beside).await);
    let taken = Key::mint(0);
    for id in ["a", "b", "c"] {
        let outcome = fixture.outcome(start_id(taken, id, RUNNING)).await;
        assert!(
            matches!(&outcome, Outcome::Duplicate(existing) if existing.key != taken),
            "{id}: {outcome:?}"
        );
    }
    fixture.expect_taken_over(&[with_id, long, outside, beside, late]).await;
}

#[tokio::test]
async fn duplicate_workflow_id_does_not_hold_window() {
    let fixture = Fixture::new().await;
    fixture.write(vec![start_id(Key::mint(0), "a", ended(Status::Completed))]).await;
    let [loses, wins] = fixture.oldest_keys().await;
    let outcomes = fixture.write(vec![start_id(wins, "b", RUNNING), start_id(loses, "a", RUNNING)]).await;
    assert!(matches!(outcomes.as_slice(), [(1, Outcome::Duplicate(_))]), "{outcomes:?}");
    fixture.heartbeat().await;
    assert!(fixture.window().await.0 <= wins);
    fixture.write(vec![transition(wins, ended(Status::Completed))]).await;
    fixture.heartbeat().await;
    assert!(fixture.window().await.0 > wins);
    fixture.expect_taken_over(&[]).await;
}

#[tokio::test]
async fn finished_and_moved_executions_are_not_found() {
    let fixture = Fixture::new().await;
    let [ends, waits, stays]: [Key; 3] = fixture.oldest_keys().await;
    fixture.write([ends, waits, stays].map(|key| start(key, RUNNING)).to_vec()).await;
    let all = vec![
        transition(ends, ended(Status::Completed)),
        transition(waits, waiting(None, &[])),
        transition(stays, RUNNING),
    ];
    fixture.write(all).await;
    assert!(!fixture.is_indexed(stays).await);
    assert_eq!(owner(&fixture.load(ends).await.unwrap()), None);
    fixture.expect_taken_over(&[stays]).await;
    assert_eq!(fixture.status(ends).await, Status::Completed);
    assert_eq!(fixture.status(waits).await, Status::Waiting);
}

#[tokio::test]
async fn start_outside_window_is_indexed_at_once() {
    let fixture = Fixture::new().await;
    let (from, to) = fixture.window().await;
    let early = Key::from_bytes((from.as_u128() - 1).to_be_bytes());
    let within = Key::mint(0);
    fixture.write(vec![start(to, RUNNING), start(early, RUNNING), start(within, RUNNING)]).await;
    assert!(fixture.is_indexed(early).await && fixture.is_indexed(to).await);
    assert!(!fixture.is_indexed(within).await);
    fixture.expect_taken_over(&[early, to, within]).await;
}

#[tokio::test]
async fn long_running_execution_is_indexed_and_window_advances() {
    let fixture = Fixture::new().await;
    let [runs, ends, moves] = fixture.oldest_keys().await;
    fixture.write([runs, ends, moves].map(|key| start(key, RUNNING)).to_vec()).await;
    fixture.heartbeat().await;
    fixture.write(vec![transition(ends, ended(Status::Completed)), transition(moves, RUNNING)]).await;
    let before = fixture.window().await;
    assert!(before.0 <= runs);
    for _ in 0..10 {
        fixture.heartbeat().await;
    }
    assert!(fixture.is_indexed(runs).await && fixture.is_indexed(moves).await);
    let after = fixture.window().await;
    assert!(after.0 > moves && after.1 > before.1);
    fixture.write(vec![start(before.1, RUNNING)]).await;
    assert!(!fixture.is_indexed(before.1).await, "the window was widened");
    // late, but found
    let late = Key::from_bytes((moves.as_u128() + 1).to_be_bytes());
    fixture.write(vec![start(late, RUNNING)]).await;
    assert!(fixture.is_indexed(late).await);
    fixture.expect_taken_over(&[runs, moves, late, before.1]).await;
}

#[tokio::test]
async fn window_waits_for_inflight_flush() {
    let fixture = Fixture::with(|options| options.lock_timeout(Duration::from_secs(60))).await;
    let [key] = fixture.oldest_keys().await;
    let mut other_session = client(&fixture.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM lanes WHERE lane = 0 FOR UPDATE", &[]).await.unwrap();
    let flush = fixture.flush(vec![start(key, RUNNING)]);
    let (landed, ()) = tokio::join!(fixture.commit(&flush), async {
        wait_until_blocked(&fixture.sql, "last_number").await;
        for _ in 0..10 {
            fixture.heartbeat().await;
        }
        lock.rollback().await.unwrap();
    });
    landed.unwrap();
    fixture.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn window_waits_for_flush_of_unknown_outcome() {
    let fixture = Fixture::with(|options| options.lock_timeout(Duration::from_secs(60))).await;
    let [key] = fixture.oldest_keys().await;
    let mut other_session = client(&fixture.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM lanes WHERE lane = 0 FOR UPDATE", &[]).await.unwrap();
    let flush = fixture.flush(vec![start(key, RUNNING)]);
    tokio::select! {
        landed = fixture.commit(&flush) => panic!("{landed:?}"),
        () = wait_until_blocked(&fixture.sql, "last_number") => {}
    }
    // the caller was dropped, and the server continues the flush
    for _ in 0..10 {
        fixture.heartbeat().await;
    }
    lock.rollback().await.unwrap();
    while fixture.count("executions").await == 0 {
        tokio::task::yield_now().await;
    }
    fixture.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn window_waits_for_flush_without_reply() {
    let proxy = Proxy::start().await;
    let fixture = Fixture::at(&proxy.url, |options| options).await;
    let [key] = fixture.oldest_keys().await;
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let lost = fixture.commit(&fixture.flush(vec![start(key, RUNNING)])).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    for _ in 0..10 {
        fixture.heartbeat().await;
    }
    fixture.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn locked_execution_is_indexed_later() {
    let fixture = Fixture::new().await;
    let [key] = fixture.oldest_keys().await;
    fixture.write(vec![start(key, RUNNING)]).await;
    let mut other_session = client(&fixture.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM executions FOR UPDATE", &[]).await.unwrap();
    for _ in 0..10 {
        fixture.heartbeat().await;
    }
    assert!(!fixture.is_indexed(key).await && fixture.window().await.0 <= key);
    lock.rollback().await.unwrap();
    fixture.heartbeat().await;
    assert!(fixture.is_indexed(key).await);
    fixture.heartbeat().await;
    assert!(fixture.window().await.0 > key);
    fixture.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn takeover_returns_for_locked_executions() {
    let fixture = Fixture::new().await;
    let [locked, free] = fixture.oldest_keys().await;
    fixture.write(vec![start(locked, RUNNING), start(free, RUNNING)]).await;
    let mut other_session = client(&fixture.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM executions WHERE key = $1 FOR UPDATE", &[&uuid(locked)]).await.unwrap();
    let other = fixture.other().await;
    let worker = fixture.worker.worker;
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 1);
    assert_eq!((fixture.status(free).await, fixture.status(locked).await), (Status::Queued, Status::Running));
    // the worker is fenced
    let flush = fixture.flush(vec![transition(locked, ended(Status::Completed))]);
    assert!(matches!(fixture.store.commit(&flush).await, Err(StoreError::Fenced)));
    assert!(fixture.heartbeat().await.is_fenced);
    lock.rollback().await.unwrap();
    assert_eq!(fixture.count("workers").await, 1);
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 1);
    assert_eq!((fixture.status(locked).await, fixture.count("workers").await), (Status::Queued, 0));
}

#[tokio::test]
async fn heartbeat_through_other_store_leaves_window_unchanged() {
    let fixture = Fixture::new().await;
    let [key] = fixture.oldest_keys().await;
    fixture.write(vec![start(key, RUNNING)]).await;
    let (other, before) = (fixture.other().await, fixture.window().await);
    for _ in 0..10 {
        heartbeat_and_take_over(&other, &heartbeat_request(&fixture.worker)).await;
    }
    assert_eq!(fixture.window().await, before);
    fixture.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn unheld_execution_is_found_by_key() {
    let fixture = Fixture::new().await;
    let [held, unheld] = fixture.oldest_keys().await;
    fixture.write(vec![start(held, RUNNING), start(unheld, RUNNING)]).await;
    let heartbeat =
        stepfast_core::store::Heartbeat { held: Some(vec![held]), ..heartbeat_request(&fixture.worker) };
    let reply = heartbeat_and_take_over(&*fixture.store, &heartbeat).await;
    assert_eq!(reply.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [unheld]);
}
