//! Claimed executions are not in the index of owners at first: a takeover finds them through the row of their claim, in
//! every interleaving.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stepfast_core::store::{Heartbeat, Status, StoreError};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

impl Fixture {
    /// Queues `N` executions as if that was long ago, and claims them.
    async fn claimed<const N: usize>(&self) -> [Key; N] {
        let from = Key::mint(0).as_u128() - (3_600_000 << 80);
        let keys = std::array::from_fn(|n| Key::from_bytes((from + n as u128).to_be_bytes()));
        self.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
        assert_eq!(self.take(N).await.len(), N);
        keys
    }

    async fn send_heartbeats(&self, times: usize) {
        for _ in 0..times {
            self.heartbeat().await;
        }
    }
}

#[tokio::test]
async fn claimed_executions_are_found_by_claim() {
    let db = Fixture::new().await;
    let [first, second] = db.claimed().await;
    assert!(!db.is_indexed(first).await && !db.is_indexed(second).await);
    assert_eq!(db.count("claims").await, 1);
    db.expect_taken_over(&[first, second]).await;
    assert_eq!(db.count("claims").await, 0);
}

#[tokio::test]
async fn finished_claimed_executions_are_not_found() {
    let db = Fixture::new().await;
    let [ends, waits, stays, comes_back] = db.claimed().await;
    let moves = vec![
        transition(ends, ended(Status::Completed)),
        transition(waits, waiting(None, &[])),
        transition(stays, RUNNING),
        transition(comes_back, QUEUED),
    ];
    db.write(moves).await;
    // another worker owns it now
    let other = db.other().await;
    let registration = other.register(3, &worker_info(&["order"])).await.unwrap();
    let claim = stepfast_core::store::Claim {
        worker: registration.worker,
        epoch: registration.epoch,
        number: 1,
        ..db.claim(10)
    };
    assert_eq!(other.claim(&claim).await.unwrap().records.len(), 1);
    assert!(other.end_registration(db.worker.worker).await.unwrap());
    assert_eq!(other.requeue(db.worker.worker).await.unwrap(), 1);
    assert_eq!(db.status(ends).await, Status::Completed);
    assert_eq!(db.status(waits).await, Status::Waiting);
    assert_eq!(db.status(stays).await, Status::Queued);
    assert_eq!(owner(&db.load(comes_back).await.unwrap()), Some(registration.worker));
}

#[tokio::test]
async fn long_running_execution_is_indexed_and_claim_deleted() {
    let db = Fixture::new().await;
    let [runs, ends] = db.claimed().await;
    db.heartbeat().await;
    db.write(vec![transition(ends, ended(Status::Completed))]).await;
    assert!(!db.is_indexed(runs).await);
    db.send_heartbeats(10).await;
    assert!(db.is_indexed(runs).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_taken_over(&[runs]).await;
}

#[tokio::test]
async fn finished_claims_are_deleted() {
    let db = Fixture::new().await;
    for _ in 0..3 {
        let keys: [Key; 2] = db.claimed().await;
        db.write(keys.map(|key| transition(key, ended(Status::Completed))).to_vec()).await;
    }
    assert_eq!(db.count("claims").await, 3);
    db.send_heartbeats(10).await;
    assert_eq!(db.count("claims").await, 0);
    db.expect_taken_over(&[]).await;
}

#[tokio::test]
async fn claim_is_kept_while_its_execution_is_locked() {
    let db = Fixture::new().await;
    let [key] = db.claimed().await;
    let mut other_session = client(&db.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM executions FOR UPDATE", &[]).await.unwrap();
    db.send_heartbeats(10).await;
    assert!(!db.is_indexed(key).await);
    assert_eq!(db.count("claims").await, 1);
    lock.rollback().await.unwrap();
    db.send_heartbeats(2).await;
    assert!(db.is_indexed(key).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn claim_without_reply_is_kept_until_outcome_is_known() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let (lost, known) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(lost, QUEUED)]).await;
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let claim = db.claim(1);
    let answer = db.store.claim(&claim).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    db.numbers[2].store(claim.number, Relaxed);
    // the claim may still be in flight
    db.send_heartbeats(10).await;
    assert_eq!(db.count("claims").await, 1);
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..heartbeat_request(&db.worker) };
    let reply = heartbeat_and_take_over(&*db.store, &heartbeat).await;
    assert_eq!(reply.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [lost]);
    // the next claim waits for the end of the unresolved claim
    db.write(vec![start(known, QUEUED)]).await;
    assert_eq!(db.take(1).await.len(), 1);
    assert!(!db.is_indexed(lost).await && !db.is_indexed(known).await);
    db.send_heartbeats(10).await;
    assert!(db.is_indexed(lost).await && db.is_indexed(known).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_taken_over(&[lost, known]).await;
}

#[tokio::test]
async fn claim_rolls_back_if_ready_row_cannot_be_deleted() {
    let db = Fixture::new().await;
    let (gone, there) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(gone, QUEUED), start(there, QUEUED)]).await;
    // as if the row had been deleted between the statement's snapshot and its end
    db.sql
        .batch_execute(&format!(
            "CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RETURN CASE WHEN OLD.execution = '{gone}' THEN NULL ELSE OLD END; END $$; \
             CREATE TRIGGER gone BEFORE DELETE ON ready FOR EACH ROW EXECUTE FUNCTION gone()",
            gone = uuid(gone)
        ))
        .await
        .unwrap();
    let claimed = db.store.claim(&db.claim(2)).await.unwrap();
    assert!(claimed.records.is_empty() && claimed.has_more);
    assert_eq!((db.status(gone).await, db.status(there).await), (Status::Queued, Status::Queued));
    assert_eq!((db.count("ready").await, db.count("claims").await), (2, 0));
    db.sql.batch_execute("DROP FUNCTION gone() CASCADE").await.unwrap();
    assert_eq!(db.take(2).await.len(), 2);
}
