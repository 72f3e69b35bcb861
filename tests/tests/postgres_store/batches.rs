//! Batches: races of transactions that change one batch, and the number of statements.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::MAX_BATCH_ITEMS;
use stepfast_core::store::{Outcome, RequestResult, Status};
use stepfast_core::{Key, Store};
use stepfast_tests::fixtures::builders::{bundle, close_batch, closed_batch, open_batch};
use tokio_postgres::Client;

use super::support::*;

/// Opens a store whose flushes wait long for locks.
async fn patient_store() -> Arc<Fixture> {
    Arc::new(Fixture::with(|options| options.lock_timeout(Duration::from_mins(1))).await)
}

/// Locks the rows of `batches` until the returned connection commits.
async fn lock_batches(db: &Fixture) -> Client {
    let holder = client(&db.schema).await;
    holder.batch_execute("BEGIN; SELECT FROM batches FOR UPDATE").await.unwrap();
    holder
}

/// Waits until this number of sessions of the test's schema waits for rows of `batches`.
async fn wait_until_queued(db: &Fixture, sessions: i64) {
    let query = "SELECT count(DISTINCT w.pid) FROM pg_locks AS w JOIN pg_locks AS r USING (pid) \
                 JOIN pg_class AS c ON c.oid = r.relation \
                 WHERE NOT w.granted AND c.oid = 'batches'::regclass";
    while db.sql.query_one(query, &[]).await.unwrap().get::<_, i64>(0) < sessions {}
}

#[tokio::test]
async fn only_one_of_two_flushes_appends_at_a_position() {
    let db = patient_store().await;
    let batch = Key::mint_batch(0);
    db.write(vec![open_batch(batch)]).await;
    let holder = lock_batches(&db).await;
    let one = spawn_flush(&db, 0, vec![bundle(batch, 0, 10), bundle(batch, 10, 5)]);
    wait_until_queued(&db, 1).await;
    let other = spawn_flush(&db, 1, vec![bundle(batch, 0, 5), bundle(batch, 5, 4)]);
    wait_until_queued(&db, 2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(one.await.unwrap(), []);
    assert_eq!(other.await.unwrap(), [(0, Outcome::NotFound), (1, Outcome::NotFound)]);
    let keys = db.store.bundles(batch, 0, MAX_BATCH_ITEMS).await.unwrap();
    assert_eq!(keys, [batch.bundle(9), batch.bundle(14)]);
}

#[tokio::test]
async fn cancel_of_a_batch_reaches_a_bundle_that_starts_meanwhile() {
    let db = patient_store().await;
    let batch = Key::mint_batch(0);
    db.write(vec![open_batch(batch), bundle(batch, 0, 10)]).await;
    let holder = lock_batches(&db).await;
    let append = spawn_flush(&db, 0, vec![bundle(batch, 10, 10)]);
    wait_until_queued(&db, 1).await;
    let cancelling = spawn_flush(&db, 1, vec![cancel(batch)]);
    wait_until_queued(&db, 2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(append.await.unwrap(), []);
    let done = Outcome::RequestHandled(RequestResult::Done, None);
    assert_eq!(cancelling.await.unwrap(), [(0, done)]);
    for key in [batch, batch.bundle(9), batch.bundle(19)] {
        assert_eq!(db.status(key).await, Status::Cancelled);
    }
    assert_eq!((db.count("batches").await, db.count("ready").await), (0, 0));
}

#[tokio::test]
async fn cancel_of_a_parent_reaches_bundles_of_its_batch() {
    let db = patient_store().await;
    let (parent, batch) = (Key::mint(0), Key::mint_batch(0));
    let awaited = child(batch, parent, false, waiting(None, &[]));
    db.write(vec![start(parent, waiting(None, &[batch])), awaited]).await;
    let holder = lock_batches(&db).await;
    let append = spawn_flush(&db, 0, vec![bundle(batch, 0, 10)]);
    wait_until_queued(&db, 1).await;
    let cancelling = spawn_flush(&db, 1, vec![cancel(parent)]);
    wait_until_queued(&db, 2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(append.await.unwrap(), []);
    assert_eq!(cancelling.await.unwrap().len(), 1);
    for key in [parent, batch, batch.bundle(9)] {
        assert_eq!(db.status(key).await, Status::Cancelled);
    }
    assert_eq!((db.count("batches").await, db.count("ready").await), (0, 0));
}

#[tokio::test]
async fn closed_batch_admits_no_bundle_that_waited_for_the_close() {
    let db = patient_store().await;
    let batch = Key::mint_batch(0);
    db.write(vec![open_batch(batch), bundle(batch, 0, 10)]).await;
    let holder = lock_batches(&db).await;
    let close = spawn_flush(&db, 0, vec![close_batch(batch, 10)]);
    wait_until_queued(&db, 1).await;
    let append = spawn_flush(&db, 1, vec![bundle(batch, 10, 10)]);
    wait_until_queued(&db, 2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(close.await.unwrap(), []);
    assert_eq!(append.await.unwrap(), [(0, Outcome::NotFound)]);
}

#[tokio::test]
async fn flush_of_4096_bundles_takes_few_statements() {
    let db = Fixture::new().await;
    let count = db.store.info().max_flush_writes as u32;
    let of_one_batch = Key::mint_batch(0);
    db.write(vec![closed_batch(of_one_batch, u64::from(count))]).await;
    let batches: Vec<Key> = (0..count / 2).map(|_| Key::mint_batch(0)).collect();
    let flushes = [
        (0..count).map(|i| bundle(of_one_batch, i, 1)).collect::<Vec<_>>(),
        batches.iter().flat_map(|batch| [closed_batch(*batch, 2), bundle(*batch, 0, 2)]).collect(),
    ];
    for flush in flushes {
        let before = db.store.counters().snapshot();
        assert_eq!(db.write(flush).await, []);
        let statements = db.store.counters().snapshot().since(&before).statements;
        assert!(statements <= 10, "{statements} statements");
    }
    assert_eq!(db.count("bundles").await, i64::from(count + count / 2));
    assert_eq!(db.count("ready").await, i64::from(count + count / 2));
}
