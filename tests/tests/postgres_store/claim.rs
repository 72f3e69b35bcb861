//! Claims: order, limits, concurrency and rates.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::queue::rate::Rate;
use stepfast_core::queue::{Placement, Queue, QueueChange};
use stepfast_core::store::{Claim, RequestKind, Start, Status, StoreError, Write};
use stepfast_core::{Key, Store};

use super::support::*;

#[tokio::test]
async fn due_timers_precede_ready_rows_ordered_by_age() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    // younger keys first: the order of acceptance counts, not the order of keys
    db.write(vec![start(keys[3], QUEUED), start(keys[2], QUEUED)]).await;
    db.write(vec![
        start(keys[1], QUEUED),
        start(keys[0], waiting(Some(later(20)), &[keys[1]])),
        start(keys[4], waiting(Some(later(10)), &[])),
        start(keys[5], waiting(Some(later(99)), &[])),
    ])
    .await;
    db.clock.advance(Duration::from_secs(30));
    let records = db.take(4).await;
    let order: Vec<Key> = records.iter().map(|record| record.execution.key).collect();
    assert_eq!(order, [keys[4], keys[0], keys[3], keys[2]]);
    for record in &records {
        assert_eq!((record.execution.status, owner(record)), (Status::Running, Some(db.worker.worker)));
        assert_eq!((&record.execution.input, record.execution.wake_at), (&payload(&7), None));
        assert_eq!(db.load(record.execution.key).await.as_ref(), Some(record));
    }
    assert_eq!(db.take(4).await.len(), 1);
    assert_eq!((db.count("ready").await, db.count("timers").await, db.count("waits").await), (0, 1, 0));
    assert_eq!(db.take(4).await, []);
}

#[tokio::test]
async fn claim_returns_recorded_history() {
    let db = Fixture::new().await;
    let (key, fresh) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(key, RUNNING), start(fresh, QUEUED)]).await;
    db.write(vec![checkpoint(key, 2), checkpoint(key, 1), attempt(key, 2), attempt(key, 1)]).await;
    db.write(vec![cancel(key)]).await;
    db.write(vec![transition(key, QUEUED)]).await;
    let records = db.take(10).await;
    assert_eq!(records.len(), 2);
    let record = records.iter().find(|record| record.execution.key == key).unwrap();
    assert_eq!(record.checkpoints.iter().map(|c| c.order).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(record.attempts.iter().map(|a| a.attempt).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(record.requests, [RequestKind::Cancel]);
    assert_eq!(db.load(key).await.as_ref(), Some(record));
}

#[tokio::test]
async fn claim_stops_at_byte_limit_after_first_record() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..4).map(|_| Key::mint(0)).collect();
    let big = |key: Key| {
        let input = payload(&"x".repeat(1000));
        Write::Start(Box::new(Start { input, ..start_of(key, QUEUED) }))
    };
    db.write(keys.iter().map(|key| big(*key)).collect()).await;
    for (max_bytes, expected) in [(1, 1), (2_500, 2), (1 << 20, 1)] {
        let claim = Claim { max_bytes, ..db.claim(10) };
        let claim = Claim { number: claim.number + i64::try_from(max_bytes).unwrap(), ..claim };
        assert_eq!(db.store.claim(&claim).await.unwrap().records.len(), expected, "{max_bytes}");
    }
}

#[tokio::test]
async fn unknown_and_parked_executions_are_not_claimed() {
    let db = Fixture::new().await;
    let (unknown, sleeping) = (Key::mint(0), Key::mint(0));
    let of = |key: Key, state| {
        Write::Start(Box::new(Start { workflow: "unknown".into(), ..start_of(key, state) }))
    };
    db.write(vec![
        of(unknown, QUEUED),
        of(sleeping, waiting(Some(NOON), &[])),
        start(Key::mint(0), parked()),
    ])
    .await;
    let reply = db.heartbeat().await;
    assert_eq!((reply.has_ready, reply.next_due), (false, None));
    assert_eq!(db.take(10).await, []);
    assert_eq!(db.count("ready").await, 1);
}

#[tokio::test]
async fn stale_ready_rows_are_deleted() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..3).map(|_| Key::mint(0)).collect();
    db.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
    db.sql.execute("UPDATE executions SET status = 4 WHERE key = $1", &[&uuid(keys[0])]).await.unwrap();
    db.sql.execute("UPDATE executions SET is_paused = true WHERE key = $1", &[&uuid(keys[1])]).await.unwrap();
    db.sql.execute("DELETE FROM executions WHERE key = $1", &[&uuid(keys[2])]).await.unwrap();
    assert!(db.heartbeat().await.has_ready);
    assert_eq!(db.take(10).await, []);
    assert!(!db.heartbeat().await.has_ready);
}

#[tokio::test]
async fn concurrent_claims_share_ready_rows_without_waiting() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..200).map(|_| Key::mint(0)).collect();
    db.write(keys.iter().map(|key| start(*key, QUEUED)).collect()).await;
    let other = db.other().await;
    let second = other.register(3, &worker_info(&[])).await.unwrap();
    // a foreign transaction locks one row
    let sql = client(&db.schema).await;
    sql.batch_execute("BEGIN").await.unwrap();
    sql.execute("SELECT FROM executions WHERE key = $1 FOR UPDATE", &[&uuid(keys[0])]).await.unwrap();
    let mut claimed = Vec::new();
    for number in 1.. {
        let mine = Claim { number, ..db.claim(30) };
        let theirs = Claim { worker: second.worker, epoch: second.epoch, ..mine.clone() };
        let (mine, theirs) = tokio::join!(db.store.claim(&mine), other.claim(&theirs));
        let (mine, theirs) = (mine.unwrap().records, theirs.unwrap().records);
        if mine.is_empty() && theirs.is_empty() {
            break;
        }
        claimed.extend(mine.iter().chain(&theirs).map(|record| record.execution.key));
    }
    let distinct: HashSet<Key> = claimed.iter().copied().collect();
    assert_eq!((claimed.len(), distinct.len()), (199, 199));
    sql.batch_execute("ROLLBACK").await.unwrap();
    let last = db.store.claim(&Claim { number: 1000, ..db.claim(1) }).await.unwrap().records;
    assert_eq!(last[0].execution.key, keys[0]);
}

#[tokio::test]
async fn claim_with_stale_epoch_takes_nothing() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    for is_ready in [false, true] {
        if is_ready {
            db.write(vec![start(key, QUEUED)]).await;
        }
        let error = db.store.claim(&Claim { epoch: 7, ..db.claim(1) }).await.unwrap_err();
        assert!(matches!(error, StoreError::Fenced), "{error}");
    }
    assert_eq!(db.status(key).await, Status::Queued);
    assert_eq!(db.take(1).await.len(), 1);
}

#[tokio::test]
async fn empty_claim_keeps_number_and_repeated_claim_takes_nothing() {
    let db = Fixture::new().await;
    let claim = db.claim(1);
    assert_eq!(db.store.claim(&claim).await.unwrap().records, []);
    db.write(vec![start(Key::mint(0), QUEUED), start(Key::mint(0), QUEUED)]).await;
    assert_eq!(db.store.claim(&claim).await.unwrap().records.len(), 1);
    assert_eq!(db.store.claim(&claim).await.unwrap().records, []);
    // a number may be skipped: that of a claim of unknown outcome
    assert_eq!(db.store.claim(&Claim { number: claim.number + 5, ..claim }).await.unwrap().records.len(), 1);
}

/// Returns a queue with a rate of three in ten seconds, and with six executions.
async fn fixture_with_rate() -> Fixture {
    let db = Fixture::with(|options| options.lock_timeout(Duration::from_secs(60))).await;
    let queue = Queue::new("a").rate(Rate::new(3, Duration::from_secs(10)));
    db.store
        .change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 })
        .await
        .unwrap()
        .unwrap();
    let placement = Arc::new(Placement { queue: "a".into(), key: "".into(), priority: 0 });
    let queued = |_| {
        Write::Start(Box::new(Start { placement: Some(placement.clone()), ..start_of(Key::mint(0), QUEUED) }))
    };
    db.write((0..6).map(queued).collect()).await;
    db
}

/// Runs a claim that waits for `lock` while the clock advances by four seconds.
async fn claim_delayed_by_lock(db: &Fixture, claim: Claim, lock: &str, waits_for: &str) {
    let mut other = client(&db.schema).await;
    let locked = other.transaction().await.unwrap();
    locked.batch_execute(lock).await.unwrap();
    let waiting = tokio::spawn({
        let (store, claim) = (db.store.clone(), claim.clone());
        async move { store.claim(&claim).await.unwrap().records.len() }
    });
    let ask = format!("SELECT FROM pg_locks WHERE NOT granted AND {waits_for}");
    while db.sql.query(&ask, &[]).await.unwrap().is_empty() {}
    db.clock.advance(Duration::from_secs(4));
    locked.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap(), 3);
    db.numbers[2].store(claim.number, std::sync::atomic::Ordering::Relaxed);
}

/// Checks that the starts count for ten seconds, and no longer.
async fn expect_starts_counted_from_claim(db: &Fixture) {
    db.clock.advance(Duration::from_secs(7));
    assert_eq!(db.take(10).await, [], "three began seven seconds ago");
    db.clock.advance(Duration::from_secs(4));
    assert_eq!(db.take(10).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_counts_from_claim_time_after_lock_wait() {
    let db = fixture_with_rate().await;
    let class = format!("hashtext('stepfast queues {}')", db.schema);
    let waits = format!("locktype = 'advisory' AND classid::bigint = ({class}::bigint & 4294967295)");
    let lock = format!("SELECT pg_advisory_xact_lock({class}, hashtext('a') & 255)");
    claim_delayed_by_lock(&db, db.claim(10), &lock, &waits).await;
    expect_starts_counted_from_claim(&db).await;
}

/// Runs a claim that needs four seconds for its updates.
async fn take_delayed_by_lock(db: &Fixture, claim: Claim) {
    let lock = fastrand::i32(1..);
    db.sql
        .batch_execute(&format!(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock({lock}, 11); RETURN NULL; END $$; \
             CREATE TRIGGER dawdle AFTER UPDATE ON executions EXECUTE FUNCTION dawdle()"
        ))
        .await
        .unwrap();
    let waits = format!("locktype = 'advisory' AND classid = {lock} AND objid = 11");
    let lock = format!("SELECT pg_advisory_xact_lock({lock}, 11)");
    claim_delayed_by_lock(db, claim, &lock, &waits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_counts_from_claim_time_after_slow_claim() {
    let db = fixture_with_rate().await;
    take_delayed_by_lock(&db, db.claim(10)).await;
    expect_starts_counted_from_claim(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_counts_from_claim_time_after_slow_quarantine_claim() {
    let db = fixture_with_rate().await;
    let three = "WITH chosen AS (DELETE FROM ready WHERE seq IN (SELECT seq FROM ready ORDER BY seq LIMIT 3) \
                                 RETURNING execution) \
                 INSERT INTO quarantine (due_at, execution, workflow) SELECT '2000-01-01', execution, 'order' FROM chosen";
    db.sql.batch_execute(three).await.unwrap();
    take_delayed_by_lock(&db, Claim { from_quarantine: true, ..db.claim(10) }).await;
    expect_starts_counted_from_claim(&db).await;
}
