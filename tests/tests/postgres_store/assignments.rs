//! Assignments: a takeover finds running executions by the rows that their flushes and claims have written, in every
//! interleaving.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stepfast_core::store::{Heartbeat, Outcome, Status, StoreError, WorkerId};
use stepfast_core::{Key, Store};

use super::proxy::Proxy;
use super::support::*;

impl Fixture {
    /// Takes over the worker, and checks that exactly these executions are claimable then.
    pub(crate) async fn expect_taken_over(&self, keys: &[Key]) {
        let other = self.other().await;
        assert!(other.end_registration(self.worker.worker).await.unwrap());
        assert_eq!(other.requeue(self.worker.worker).await.unwrap(), keys.len() as u64);
        for key in keys {
            assert_eq!(self.status(*key).await, Status::Queued);
        }
        assert_eq!(self.count("ready").await, keys.len() as i64);
        for table in ["workers", "assignments"] {
            assert_eq!(self.count(table).await, 0, "{table}");
        }
    }

    /// Queues `N` executions as if that was long ago, and claims them.
    async fn claimed<const N: usize>(&self) -> [Key; N] {
        let from = Key::mint(0).as_u128() - (3_600_000 << 80);
        let keys = std::array::from_fn(|n| Key::from_bytes((from + n as u128).to_be_bytes()));
        self.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
        assert_eq!(self.take(N).await.len(), N);
        keys
    }

    /// Returns the keys that the assignments list, with the rows' lanes, in order.
    async fn assignments(&self) -> Vec<(i16, Vec<Key>)> {
        let query = "SELECT lane, executions FROM assignments ORDER BY lane, number";
        let rows = self.sql.query(query, &[]).await.unwrap();
        let keys = |row: &tokio_postgres::Row| row.get::<_, Vec<uuid::Uuid>>(1);
        let to_key = |key: uuid::Uuid| Key::from_bytes(key.into_bytes());
        rows.iter().map(|row| (row.get(0), keys(row).into_iter().map(to_key).collect())).collect()
    }

    async fn send_heartbeats(&self, times: usize) {
        for _ in 0..times {
            self.heartbeat().await;
        }
    }
}

fn new_keys<const N: usize>() -> [Key; N] {
    std::array::from_fn(|_| Key::mint(0))
}

#[tokio::test]
async fn each_kind_of_start_is_found() {
    let db = Fixture::new().await;
    let [plain, named, old, ended_at_once] = new_keys();
    let old = Key::from_bytes((old.as_u128() - (3_600_000 << 80)).to_be_bytes());
    db.write(vec![start(plain, RUNNING), start_id(named, "a", RUNNING), start(old, RUNNING)]).await;
    db.write(vec![start(ended_at_once, ended(Status::Completed))]).await;
    assert_eq!(db.count("assignments").await, 1, "a flush that sets nothing running writes no row");
    db.expect_taken_over(&[plain, named, old]).await;
}

#[tokio::test]
async fn duplicate_start_is_not_running() {
    let db = Fixture::new().await;
    let [first, loses, wins] = new_keys();
    db.write(vec![start_id(first, "a", ended(Status::Completed))]).await;
    let outcomes = db.write(vec![start_id(wins, "b", RUNNING), start_id(loses, "a", RUNNING)]).await;
    assert!(matches!(outcomes.as_slice(), [(1, Outcome::Duplicate(_))]), "{outcomes:?}");
    db.write(vec![transition(wins, ended(Status::Completed))]).await;
    db.heartbeat().await;
    assert_eq!(db.count("assignments").await, 0);
    db.expect_taken_over(&[]).await;
}

/// A locked execution of the first assignment keeps no other assignment from being requeued.
#[tokio::test]
async fn locked_execution_delays_no_other_assignment() {
    let db = Fixture::new().await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let started: [Key; 3_000] = new_keys();
        db.write(started.iter().map(|key| start(*key, RUNNING)).collect()).await;
        keys.extend(started);
    }
    let lock = format!("BEGIN; SELECT FROM executions WHERE key = '{}' FOR UPDATE", keys[0]);
    db.sql.batch_execute(&lock).await.unwrap();
    let other = db.other().await;
    assert!(other.end_registration(db.worker.worker).await.unwrap());
    assert_eq!(other.requeue(db.worker.worker).await.unwrap(), 5_999);
    db.sql.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(other.requeue(db.worker.worker).await.unwrap(), 1);
    assert_eq!((db.count("assignments").await, db.count("workers").await), (0, 0));
}

/// A resent Start of a child finds the execution, which runs elsewhere or has ended.
#[tokio::test]
async fn existing_execution_is_in_no_second_assignment() {
    let db = Fixture::new().await;
    let [child] = new_keys();
    db.write(vec![start_id(child, "a", ended(Status::Completed))]).await;
    let outcomes = db.write(vec![start_id(child, "a", RUNNING)]).await;
    assert!(matches!(outcomes.as_slice(), [(0, Outcome::Duplicate(_))]), "{outcomes:?}");
    db.heartbeat().await;
    assert_eq!(db.count("assignments").await, 0);
}

#[tokio::test]
async fn finished_and_moved_executions_are_not_found() {
    let db = Fixture::new().await;
    let [ends, waits, stays] = new_keys();
    db.write([ends, waits, stays].map(|key| start(key, RUNNING)).to_vec()).await;
    let all = vec![
        transition(ends, ended(Status::Completed)),
        transition(waits, waiting(None, &[])),
        transition(stays, RUNNING),
    ];
    db.write(all).await;
    assert_eq!(owner(&db.load(ends).await.unwrap()), None);
    db.expect_taken_over(&[stays]).await;
    assert_eq!(db.status(ends).await, Status::Completed);
    assert_eq!(db.status(waits).await, Status::Waiting);
}

#[tokio::test]
async fn flush_without_reply_is_found() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let key = Key::mint(0);
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let lost = db.commit(&db.flush(vec![start(key, RUNNING)])).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    db.send_heartbeats(10).await;
    db.expect_taken_over(&[key]).await;
}

#[tokio::test]
async fn executions_of_sparse_assignments_are_moved() {
    let db = Fixture::new().await;
    let mut remaining = Vec::new();
    for _ in 0..3 {
        let keys: [Key; 8] = new_keys();
        db.write(keys.map(|key| start(key, RUNNING)).to_vec()).await;
        db.write(keys[1..].iter().map(|key| transition(*key, ended(Status::Completed))).collect()).await;
        remaining.push(keys[0]);
    }
    assert_eq!(db.count("assignments").await, 3);
    db.heartbeat().await;
    assert_eq!(db.assignments().await, [(i16::MAX, remaining.clone())]);
    db.expect_taken_over(&remaining).await;
}

#[tokio::test]
async fn fenced_worker_moves_no_executions() {
    let db = Fixture::new().await;
    let keys: [Key; 8] = new_keys();
    db.write(keys.map(|key| start(key, RUNNING)).to_vec()).await;
    db.write(keys[1..].iter().map(|key| transition(*key, ended(Status::Completed))).collect()).await;
    let other = db.other().await;
    assert!(other.end_registration(db.worker.worker).await.unwrap());
    let before = db.assignments().await;
    assert!(db.heartbeat().await.is_fenced);
    assert_eq!(db.assignments().await, before);
    assert_eq!(other.requeue(db.worker.worker).await.unwrap(), 1);
}

#[tokio::test]
async fn takeover_returns_for_locked_executions() {
    let db = Fixture::new().await;
    let [locked, free] = new_keys();
    db.write(vec![start(locked, RUNNING), start(free, RUNNING)]).await;
    let mut other_session = client(&db.schema).await;
    let lock = other_session.transaction().await.unwrap();
    lock.execute("SELECT FROM executions WHERE key = $1 FOR UPDATE", &[&uuid(locked)]).await.unwrap();
    let other = db.other().await;
    let worker = db.worker.worker;
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 1);
    assert_eq!((db.status(free).await, db.status(locked).await), (Status::Queued, Status::Running));
    // the worker is fenced
    let flush = db.flush(vec![transition(locked, ended(Status::Completed))]);
    assert!(matches!(db.store.commit(&flush).await, Err(StoreError::Fenced)));
    assert!(db.heartbeat().await.is_fenced);
    lock.rollback().await.unwrap();
    assert_eq!(db.count("workers").await, 1);
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 1);
    assert_eq!((db.status(locked).await, db.count("workers").await), (Status::Queued, 0));
}

#[tokio::test]
async fn unheld_execution_is_listed() {
    let db = Fixture::new().await;
    let [held, unheld] = new_keys();
    db.write(vec![start(held, RUNNING), start(unheld, RUNNING)]).await;
    let heartbeat = Heartbeat { held: Some(vec![held]), ..heartbeat_request(&db.worker) };
    let reply = heartbeat_and_take_over(&*db.store, &heartbeat).await;
    assert_eq!(reply.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [unheld]);
}

#[tokio::test]
async fn claimed_executions_are_found_by_claim() {
    let db = Fixture::new().await;
    let [first, second] = db.claimed().await;
    assert_eq!(db.count("assignments").await, 1);
    db.expect_taken_over(&[first, second]).await;
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
async fn finished_claims_are_deleted() {
    let db = Fixture::new().await;
    for _ in 0..3 {
        let keys: [Key; 2] = db.claimed().await;
        db.write(keys.map(|key| transition(key, ended(Status::Completed))).to_vec()).await;
    }
    assert_eq!(db.count("assignments").await, 3);
    db.heartbeat().await;
    assert_eq!(db.count("assignments").await, 0);
    db.expect_taken_over(&[]).await;
}

#[tokio::test]
async fn claim_without_reply_is_kept_until_nothing_runs() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let [runs, ends] = new_keys();
    db.write(vec![start(runs, QUEUED), start(ends, QUEUED)]).await;
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let claim = db.claim(2);
    let answer = db.store.claim(&claim).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    db.numbers[2].store(claim.number, Relaxed);
    db.send_heartbeats(10).await;
    assert_eq!(db.count("assignments").await, 1);
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..heartbeat_request(&db.worker) };
    let reply = heartbeat_and_take_over(&*db.store, &heartbeat).await;
    assert_eq!(reply.unheld.iter().map(|record| record.execution.key).collect::<Vec<_>>(), [runs, ends]);
    db.write(vec![transition(ends, ended(Status::Completed))]).await;
    db.heartbeat().await;
    assert_eq!(db.count("assignments").await, 1);
    db.write(vec![transition(runs, ended(Status::Completed))]).await;
    db.heartbeat().await;
    assert_eq!(db.count("assignments").await, 0);
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
    assert_eq!((db.count("ready").await, db.count("assignments").await), (2, 0));
    db.sql.batch_execute("DROP FUNCTION gone() CASCADE").await.unwrap();
    assert_eq!(db.take(2).await.len(), 2);
}

/// The statement that requeues executions is repeated for fewer of them at a time if it exceeds its time limit.
#[tokio::test]
async fn requeue_that_exceeds_its_time_limit_is_repeated_in_smaller_parts() {
    let db = Fixture::new().await;
    let keys: [Key; 40] = new_keys();
    db.write(keys.iter().map(|key| start(*key, RUNNING)).collect()).await;
    // the error of a statement that exceeds its time limit
    db.sql
        .batch_execute(
            "CREATE FUNCTION limit_rows() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN IF (SELECT count(*) FROM added) > 10 THEN \
                RAISE EXCEPTION 'too long' USING ERRCODE = 'query_canceled'; END IF; RETURN NULL; END $$; \
             CREATE TRIGGER limit_rows AFTER INSERT ON ready REFERENCING NEW TABLE AS added \
             FOR EACH STATEMENT EXECUTE FUNCTION limit_rows()",
        )
        .await
        .unwrap();
    let (worker, other) = (db.worker.worker, db.other().await);
    assert!(other.end_registration(worker).await.unwrap());
    assert_eq!(other.requeue(worker).await.unwrap(), 40);
    assert_eq!((db.count("ready").await, db.count("assignments").await), (40, 0));
    assert_eq!(db.count("workers").await, 0);
}

/// The lanes of a registration stay for a day after its end. Later ends of registrations delete them.
#[tokio::test]
async fn lanes_of_ended_registrations_are_deleted_a_day_later() {
    let db = Fixture::new().await;
    let lanes = "SELECT count(*) FROM lanes WHERE worker_id = $1";
    let ended = db.worker.worker;
    db.store.close(ended).await.unwrap();
    let rows: i64 = db.sql.query_one(lanes, &[&ended.0]).await.unwrap().get(0);
    assert_eq!(rows, 3);
    let next = register(&db).await;
    db.sql.batch_execute("UPDATE lanes SET ended_at = ended_at - interval '25 hours'").await.unwrap();
    let living = register(&db).await;
    db.store.close(next).await.unwrap();
    for (worker, expected) in [(ended, 0), (next, 3), (living, 3)] {
        let rows: i64 = db.sql.query_one(lanes, &[&worker.0]).await.unwrap().get(0);
        assert_eq!(rows, expected, "{worker:?}");
    }
}

async fn register(db: &Fixture) -> WorkerId {
    db.store.register(3, &worker_info(&["order"])).await.unwrap().worker
}
