//! What was claimed is not in the index of owners at first: it is found by the row of its claim, whatever comes in
//! between.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stepfast_core::store::{Heartbeat, Status, StoreError};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

impl Fixture {
    /// Queues so many, as if that was long ago, and claims them.
    async fn claimed<const N: usize>(&self) -> [Key; N] {
        let from = Key::mint(0).as_u128() - (3_600_000 << 80);
        let keys = std::array::from_fn(|n| Key::from_bytes((from + n as u128).to_be_bytes()));
        self.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
        assert_eq!(self.take(N).await.len(), N);
        keys
    }

    async fn looks(&self, times: usize) {
        for _ in 0..times {
            self.look().await;
        }
    }
}

#[tokio::test]
async fn claimed_executions_are_found_by_claim() {
    let db = Fixture::new().await;
    let [first, second] = db.claimed().await;
    assert!(!db.is_entered(first).await && !db.is_entered(second).await);
    assert_eq!(db.count("claims").await, 1);
    db.expect_found(&[first, second]).await;
    assert_eq!(db.count("claims").await, 0);
}

#[tokio::test]
async fn finished_claimed_executions_are_not_found() {
    let db = Fixture::new().await;
    let [ends, waits, stays, comes_back] = db.claimed().await;
    let moves = vec![
        moved(ends, ended(Status::Completed)),
        moved(waits, waiting(None, &[])),
        moved(stays, RUNNING),
        moved(comes_back, QUEUED),
    ];
    db.write(moves).await;
    // another worker has it now
    let other = db.other().await;
    let registration = other.register(3, &info(&["order"])).await.unwrap();
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
    db.look().await;
    db.write(vec![moved(ends, ended(Status::Completed))]).await;
    assert!(!db.is_entered(runs).await);
    db.looks(10).await;
    assert!(db.is_entered(runs).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_found(&[runs]).await;
}

#[tokio::test]
async fn finished_claims_are_deleted() {
    let db = Fixture::new().await;
    for _ in 0..3 {
        let keys: [Key; 2] = db.claimed().await;
        db.write(keys.map(|key| moved(key, ended(Status::Completed))).to_vec()).await;
    }
    assert_eq!(db.count("claims").await, 3);
    db.looks(10).await;
    assert_eq!(db.count("claims").await, 0);
    db.expect_found(&[]).await;
}

#[tokio::test]
async fn claim_is_kept_while_its_execution_is_locked() {
    let db = Fixture::new().await;
    let [key] = db.claimed().await;
    let mut somebody = client(&db.schema).await;
    let lock = somebody.transaction().await.unwrap();
    lock.execute("SELECT FROM executions FOR UPDATE", &[]).await.unwrap();
    db.looks(10).await;
    assert!(!db.is_entered(key).await);
    assert_eq!(db.count("claims").await, 1);
    lock.rollback().await.unwrap();
    db.looks(2).await;
    assert!(db.is_entered(key).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_found(&[key]).await;
}

#[tokio::test]
async fn claim_without_reply_is_kept_until_outcome_is_known() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let (lost, known) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(lost, QUEUED)]).await;
    proxy.faults.lose_commit.store(true, SeqCst);
    let claim = db.claim(1);
    let answer = db.store.claim(&claim).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    db.numbers[2].store(claim.number, Relaxed);
    // it may be on its way still
    db.looks(10).await;
    assert_eq!(db.count("claims").await, 1);
    let look = Heartbeat { held: Some(Vec::new()), ..look(&db.worker) };
    let seen = looks_through(&*db.store, &look).await;
    assert_eq!(seen.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [lost]);
    // the next claim waits for its end
    db.write(vec![start(known, QUEUED)]).await;
    assert_eq!(db.take(1).await.len(), 1);
    assert!(!db.is_entered(lost).await && !db.is_entered(known).await);
    db.looks(10).await;
    assert!(db.is_entered(lost).await && db.is_entered(known).await);
    assert_eq!(db.count("claims").await, 0);
    db.expect_found(&[lost, known]).await;
}

#[tokio::test]
async fn claim_rolls_back_if_ready_row_cannot_be_deleted() {
    let db = Fixture::new().await;
    let (gone, there) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(gone, QUEUED), start(there, QUEUED)]).await;
    // as if the row had been deleted between the moment that the statement sees and its end
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
