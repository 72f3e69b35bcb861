//! A database that has less than it acknowledged, as after a failover to a lagging standby.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stepfast_core::store::{Claim, Flush, Heartbeat, Registration, Renewal, Status, StoreError, Write};
use stepfast_core::{Key, Store};
use stepfast_postgres::PostgresOptions;

use super::proxy::Proxy;
use super::support::*;

fn expect_loss<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let error = answer.expect_err("nothing is built on it");
    let StoreError::Corrupt(reason) = &error else { panic!("{error}") };
    assert!(reason.contains("lost history"), "{reason}");
}

/// Names the connections of a store after its schema, to distinguish them from those of other tests.
fn named_after_schema(mut options: PostgresOptions) -> PostgresOptions {
    options.application_name.clone_from(&options.schema);
    options
}

impl Fixture {
    /// Undoes the last claim of the worker, which had claimed this execution.
    async fn lose_claim(&self, key: Key) {
        self.sql
            .batch_execute(&format!(
                "BEGIN; \
                 UPDATE lanes SET last_number = last_number - 1 WHERE lane = 2 AND worker_id = {worker}; \
                 DELETE FROM assignments WHERE worker_id = {worker}; \
                 UPDATE executions SET status = 1, owner = NULL WHERE key = '{key}'; \
                 INSERT INTO ready (execution, route) VALUES ('{key}', E'order\\x01\\x01default'); \
                 COMMIT",
                worker = self.worker.worker.0,
                key = uuid(key),
            ))
            .await
            .unwrap();
    }

    /// Ends the session of renewals, as a server does that loses history, and renews on another one.
    async fn renew_on_new_session(&self) -> Result<Renewal, StoreError> {
        end_sessions(&self.sql, &format!("{} control", self.schema)).await;
        match self.renew().await {
            // the end of the session was not known yet
            Err(StoreError::Unavailable(_)) => self.renew().await,
            renewed => renewed,
        }
    }

    /// Registers another worker, which claims the execution. Returns its registration, and a constructor of its next
    /// flush.
    async fn claim_by_other_worker(&self, key: Key) -> (Registration, impl Fn(Vec<Write>) -> Flush + use<>) {
        let other = self.store.register(3, &worker_info(&[])).await.unwrap();
        let (worker, epoch) = (other.worker, other.epoch);
        let claim = Claim { worker, epoch, number: 1, ..self.claim(1) };
        let records = self.store.claim(&claim).await.unwrap().records;
        assert_eq!(records.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [key]);
        let flush = move |writes| Flush {
            worker,
            lane: 0,
            epoch,
            number: 1,
            is_resent: false,
            is_bisecting: false,
            writes,
        };
        (other, flush)
    }
}

#[tokio::test]
async fn flush_after_lost_claim_applies_nothing() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, QUEUED)]).await;
    assert_eq!(db.take(1).await.len(), 1);
    db.lose_claim(key).await;
    let (_, flush) = db.claim_by_other_worker(key).await;
    // the numbers of the lanes have no gap, and no known number is missing
    for lane in [0, 1] {
        expect_loss(db.commit(&db.flush_on(lane, vec![checkpoint(key, 1)])).await);
    }
    assert_eq!(db.count("checkpoints").await, 0);
    // only the worker that has claimed the execution since writes to it
    let writes = vec![checkpoint(key, 1), transition(key, ended(Status::Completed))];
    assert_eq!(db.store.commit(&flush(writes)).await.unwrap(), []);
}

#[tokio::test]
async fn claim_after_lost_claim_takes_nothing() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    db.write(vec![start(key, QUEUED)]).await;
    assert_eq!(db.take(1).await.len(), 1);
    db.lose_claim(key).await;
    expect_loss(db.store.claim(&db.claim(1)).await);
    assert_eq!(db.status(key).await, Status::Queued);
}

#[tokio::test]
async fn launched_claim_that_is_lost_later_is_detected() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let key = Key::mint(0);
    db.write(vec![start(key, QUEUED)]).await;
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let claim = db.claim(1);
    assert!(matches!(db.store.claim(&claim).await, Err(StoreError::Unavailable(_))));
    db.numbers[2].store(claim.number, Relaxed);
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..heartbeat_request(&db.worker) };
    assert_eq!(db.store.heartbeat(&heartbeat).await.unwrap().unheld.len(), 1);
    db.lose_claim(key).await;
    expect_loss(db.commit(&db.flush(vec![checkpoint(key, 1)])).await);
}

#[tokio::test]
async fn lost_flush_is_detected_by_lease_renewal() {
    let db = Fixture::with(named_after_schema).await;
    for lane in [0, 1] {
        let flush = db.flush_on(lane, vec![start(Key::mint(0), RUNNING)]);
        db.commit(&flush).await.unwrap();
    }
    for _ in 0..3 {
        db.renew().await.unwrap();
    }
    // the worker sends nothing more on that lane
    db.sql.batch_execute("UPDATE lanes SET last_number = 0 WHERE lane = 1").await.unwrap();
    expect_loss(db.renew_on_new_session().await);
}

#[tokio::test]
async fn idle_lane_is_checked_once_per_session() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, named_after_schema).await;
    let count_renewals = async |renewals: u64| {
        let before = proxy.faults.statements.load(SeqCst);
        for _ in 0..renewals {
            db.renew().await.unwrap();
        }
        proxy.faults.statements.load(SeqCst) - before
    };
    count_renewals(1).await;
    assert_eq!(count_renewals(5).await, 5);
    for lane in [0, 1] {
        db.commit(&db.flush_on(lane, vec![start(Key::mint(0), RUNNING)])).await.unwrap();
    }
    // both lanes are checked at once, when they have been idle from one renewal to the next
    assert_eq!(count_renewals(1).await, 1);
    assert_eq!(count_renewals(1).await, 2);
    assert_eq!(count_renewals(5).await, 5);
    // another session may belong to another server
    db.renew_on_new_session().await.unwrap();
    assert_eq!(count_renewals(5).await, 5);
    db.commit(&db.flush_on(1, vec![start(Key::mint(0), RUNNING)])).await.unwrap();
    assert_eq!(count_renewals(7).await, 8);
}

#[tokio::test]
async fn advancing_lane_is_no_loss() {
    let db = Fixture::new().await;
    for n in 0..5 {
        db.write(vec![start(Key::mint(0), RUNNING)]).await;
        db.commit(&db.flush_on(1, vec![start(Key::mint(0), QUEUED)])).await.unwrap();
        assert_eq!(db.take(1).await.len(), 1, "{n}");
        for _ in 0..n {
            db.renew().await.unwrap();
        }
    }
    // a worker that was taken over registers again
    assert!(db.store.end_registration(db.worker.worker).await.unwrap());
    assert!(db.renew().await.unwrap().is_fenced);
}

#[tokio::test]
async fn reused_worker_id_names_another_registration() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    // the registration is lost, and the sequence is reset
    db.sql
        .batch_execute(&format!(
            "DELETE FROM workers; DELETE FROM lanes; ALTER TABLE workers ALTER worker_id RESTART WITH {}",
            db.worker.worker.0
        ))
        .await
        .unwrap();
    let other = db.other().await;
    let second = other.register(3, &worker_info(&[])).await.unwrap();
    assert_eq!(second.worker, db.worker.worker);
    let flush = db.flush(vec![start(key, RUNNING)]);
    for is_resent in [false, true] {
        let answer = db.commit(&Flush { is_resent, ..flush.clone() }).await;
        assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
    }
    let answer = db.store.claim(&db.claim(1)).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
    assert!(db.store.heartbeat(&heartbeat_request(&db.worker)).await.unwrap().is_fenced);
    // the heartbeat of the other registration is not fenced
    assert!(!other.heartbeat(&heartbeat_request(&second)).await.unwrap().is_fenced);
    other.commit(&Flush { epoch: second.epoch, ..flush.clone() }).await.unwrap();
    let answer = db.commit(&Flush { is_resent: true, ..flush }).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
}
