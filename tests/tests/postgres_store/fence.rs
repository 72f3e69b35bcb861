//! Flushes are atomic, applied once, and never applied for a worker that was taken over.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Chunk, DeleteChunks, Flush, Outcome, RequestResult, Status, StoreError, Transition, Write,
    outcomes_to_keep,
};
use stepfast_core::{Key, Store};
use tokio_postgres::IsolationLevel;

use super::proxy::Proxy;
use super::support::*;

/// The executions for a flush that writes to every table.
struct AllTables {
    run: Key,
    queue: Key,
    wait: Key,
    ask: Key,
}

impl AllTables {
    async fn prepare(db: &Fixture) -> Self {
        let [run, queue, wait, ask] = [(); 4].map(|()| Key::mint(0));
        let keys = [run, queue, wait, ask];
        db.write(keys.iter().map(|key| start(*key, RUNNING)).collect()).await;
        Self { run, queue, wait, ask }
    }

    fn writes(&self, fresh: Key) -> Vec<Write> {
        vec![
            start(fresh, RUNNING),
            checkpoint(self.run, 1),
            attempt(self.run, 1),
            transition(self.queue, QUEUED),
            transition(self.wait, waiting(Some(later(1)), &[self.run])),
            cancel(self.ask),
            Write::Chunk(Chunk { execution: fresh, value: 1, index: 0, bytes: "x".into(), is_unowned: true }),
        ]
    }
}

#[tokio::test]
async fn stale_epoch_applies_nothing_of_pipeline() {
    let db = Fixture::new().await;
    let all_tables = AllTables::prepare(&db).await;
    let before = db.counts().await;
    let flush = db.flush(all_tables.writes(Key::mint(0)));
    assert!(db.store.end_registration(db.worker.worker).await.unwrap());
    for is_resent in [false, true] {
        let error = db.commit(&Flush { is_resent, ..flush.clone() }).await.unwrap_err();
        assert!(matches!(error, StoreError::Fenced), "{error}");
        assert_eq!(db.counts().await, before);
        assert_eq!(db.status(all_tables.queue).await, Status::Running);
    }
}

#[tokio::test]
async fn unknown_lane_is_fenced() {
    let db = Fixture::new().await;
    let error = db.store.commit(&db.flush_on(2, vec![])).await;
    assert!(error.is_ok(), "{error:?}");
    let error = db.store.commit(&Flush { lane: 9, ..db.flush(vec![]) }).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced), "{error}");
}

/// Creates a trigger that rejects `event` until it is dropped.
async fn create_rejecting_trigger(db: &Fixture, event: &str) {
    db.sql
        .batch_execute(&format!(
            "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'not today'; END $$; \
             CREATE TRIGGER reject BEFORE {event} EXECUTE FUNCTION reject()"
        ))
        .await
        .unwrap();
}

/// Checks that the trigger rejects the flush, that nothing of it is applied, and that another flush can use its number.
async fn expect_whole_flush_rejected(db: &Fixture, flush: &Flush, before: &[i64], what: &str) {
    let error = db.commit(flush).await.unwrap_err();
    let StoreError::Rejected(reason) = &error else { panic!("{what}: {error}") };
    assert!(reason.contains("not today"), "{what}: {reason}");
    assert_eq!(db.counts().await, before, "{what}");
    db.sql.batch_execute("DROP FUNCTION reject CASCADE").await.unwrap();
    // the same number, other contents
    let other = Key::mint(0);
    assert_eq!(db.commit(&db.flush(vec![start(other, ended(Status::Completed))])).await.unwrap(), []);
    db.sql.execute("DELETE FROM executions WHERE key = $1", &[&uuid(other)]).await.unwrap();
}

#[tokio::test]
async fn failed_statement_applies_nothing_and_next_flush_works() {
    let db = Fixture::new().await;
    let all_tables = AllTables::prepare(&db).await;
    let before = db.counts().await;
    let fresh = Key::mint(0);
    // the lane's row is the fence
    for table in TABLES.into_iter().chain(["lanes"]) {
        for event in ["INSERT", "UPDATE"] {
            if (event == "UPDATE") != (table == "lanes") && table != "executions" {
                continue;
            }
            let what = format!("{event} ON {table}");
            create_rejecting_trigger(&db, &what).await;
            expect_whole_flush_rejected(&db, &db.flush(all_tables.writes(fresh)), &before, &what).await;
        }
    }
    let outcomes = db.write(all_tables.writes(fresh)).await;
    assert_eq!(outcomes, [(5, Outcome::RequestHandled(RequestResult::Pending, None))]);
    let counts: Vec<i64> = before.iter().map(|count| count + 1).collect();
    assert_eq!(db.counts().await, counts);
}

#[tokio::test]
async fn failed_delete_applies_nothing() {
    let db = Fixture::new().await;
    let [holder, ending, answered, queued, sleeper, parent, limited] = [(); 7].map(|()| Key::mint(0));
    let chunk = Chunk { execution: holder, value: 1, index: 0, bytes: "x".into(), is_unowned: true };
    db.write(vec![
        start(holder, RUNNING),
        start(ending, RUNNING),
        start(answered, RUNNING),
        start(queued, QUEUED),
        start(sleeper, waiting(Some(later(1)), &[])),
        start(parent, waiting(None, &[holder])),
        Write::Chunk(chunk),
        start(limited, RUNNING),
    ])
    .await;
    let slot = "INSERT INTO slots (worker_id, execution, queue, queue_key) VALUES ($1, $2, 'a', '')";
    db.sql.execute(slot, &[&db.worker.worker.0, &uuid(limited)]).await.unwrap();
    db.write(vec![cancel(ending), cancel(answered)]).await;
    let before = db.counts().await;
    let placement = Arc::new(Placement { queue: "a".into(), key: "".into(), priority: 0 });
    let flush = || {
        db.flush(vec![
            Write::DeleteChunks(DeleteChunks { execution: holder, keep: std::iter::empty().collect() }),
            transition(ending, ended(Status::Cancelled)),
            Write::ClearRequests(answered),
            cancel(queued),
            cancel(sleeper),
            cancel(parent),
            Write::Transition(Transition {
                key: limited,
                placement: Some(placement.clone()),
                state: ended(Status::Completed),
            }),
        ])
    };
    // each row represents the statement that deletes it
    let deleted = [
        ("chunks", holder),
        ("requests", ending),
        ("requests", answered),
        ("ready", queued),
        ("timers", sleeper),
        ("waits", parent),
        ("slots", limited),
    ];
    for (table, execution) in deleted {
        let execution = uuid(execution);
        let what = format!("DELETE ON {table} FOR EACH ROW WHEN (OLD.execution = '{execution}')");
        create_rejecting_trigger(&db, &what).await;
        expect_whole_flush_rejected(&db, &flush(), &before, &what).await;
        assert_eq!(db.status(ending).await, Status::Running, "{what}");
        assert_eq!(db.status(queued).await, Status::Queued, "{what}");
    }
    db.commit(&flush()).await.unwrap();
    for table in ["chunks", "requests", "ready", "timers", "waits", "slots"] {
        assert_eq!(db.count(table).await, 0, "{table}");
    }
    for key in [ending, queued, sleeper, parent] {
        assert_eq!(db.status(key).await, Status::Cancelled);
    }
}

#[tokio::test]
async fn resent_flush_is_applied_once_with_same_outcomes() {
    let db = Fixture::new().await;
    let all_tables = AllTables::prepare(&db).await;
    let (winner, loser, timer) = (Key::mint(0), Key::mint(0), Key::mint(0));
    db.write(vec![start_id(winner, "mine", QUEUED), start(timer, waiting(Some(later(1)), &[]))]).await;
    let mut writes = all_tables.writes(Key::mint(0));
    writes.extend([
        start_id(loser, "mine", QUEUED),
        Write::Wake(timer),
        cancel(winner),
        resume(Key::mint(0)),
    ]);
    let flush = db.flush(writes);
    let mut first = db.commit(&flush).await.unwrap();
    assert_eq!(first.len(), 5, "{first:?}");
    // that of the Wake is not kept
    first = outcomes_to_keep(&flush, &first).cloned().collect();
    let counts = db.counts().await;
    let again = db.commit(&Flush { is_resent: true, ..flush.clone() }).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(again.len(), 4, "{again:?}");
    assert_eq!(db.counts().await, counts);
    // also after a takeover
    assert!(db.store.end_registration(db.worker.worker).await.unwrap());
    let later = db.commit(&Flush { is_resent: true, ..flush.clone() }).await.unwrap();
    assert_eq!(later, first);
    let next = Flush { number: flush.number + 1, is_resent: true, ..flush };
    assert!(matches!(db.commit(&next).await, Err(StoreError::Fenced)));
}

#[tokio::test]
async fn lost_history_is_detected() {
    let db = Fixture::new().await;
    db.write(vec![]).await;
    db.write(vec![]).await;
    db.sql.execute("UPDATE lanes SET last_number = 1 WHERE lane = 0", &[]).await.unwrap();
    let error = db.commit(&db.flush(vec![start(Key::mint(0), RUNNING)])).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(reason) if reason.contains("lost history")), "{error}");
    db.sql.execute("UPDATE lanes SET last_number = 9 WHERE lane = 0", &[]).await.unwrap();
    let error = db.commit(&db.flush(vec![start(Key::mint(0), RUNNING)])).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(_)), "{error}");
    assert_eq!(db.count("executions").await, 0);
}

#[tokio::test]
async fn rollback_in_reply_to_commit_is_no_success() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING), checkpoint(key, 1)]).await;
    // the error of the second checkpoint never reaches the client: only the reply to COMMIT shows the failure
    proxy.faults.hide_errors.store(true, SeqCst);
    let flush = db.flush(vec![checkpoint(key, 1), transition(key, ended(Status::Completed))]);
    let error = db.commit(&flush).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    proxy.faults.hide_errors.store(false, SeqCst);
    assert_eq!(db.status(key).await, Status::Running);
    let error = db.commit(&Flush { is_resent: true, ..flush }).await.unwrap_err();
    assert!(matches!(error, StoreError::Rejected(_)), "{error}");
    db.write(vec![transition(key, ended(Status::Completed))]).await;
}

#[tokio::test]
async fn commit_without_reply_is_resolved_by_resending() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let all_tables = AllTables::prepare(&db).await;
    let (winner, loser) = (Key::mint(0), Key::mint(0));
    db.write(vec![start_id(winner, "mine", RUNNING)]).await;
    let before = db.counts().await;
    let mut writes = all_tables.writes(Key::mint(0));
    writes.push(start_id(loser, "mine", QUEUED));
    let flush = db.flush(writes);
    proxy.faults.drop_commit_reply.store(true, SeqCst);
    let error = db.commit(&flush).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let outcomes = db.commit(&Flush { is_resent: true, ..flush }).await.unwrap();
    assert_eq!(outcomes.len(), 2);
    assert_eq!(outcomes[0], (5, Outcome::RequestHandled(RequestResult::Pending, None)));
    assert_eq!((outcomes[1].0, duplicate_of(&outcomes[1].1)), (7, Some(winner)));
    let counts: Vec<i64> = before.iter().map(|count| count + 1).collect();
    assert_eq!(db.counts().await, counts);
}

#[tokio::test]
async fn flush_without_commit_is_applied_when_resent() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let key = Key::mint(0);
    let flush = db.flush(vec![start_id(key, "once", QUEUED)]);
    proxy.faults.drop_commit.store(true, SeqCst);
    let error = db.commit(&flush).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert_eq!(db.commit(&Flush { is_resent: true, ..flush }).await.unwrap(), []);
    assert_eq!((db.count("executions").await, db.count("ready").await), (1, 1));
}

#[tokio::test]
async fn lane_reconnects_after_its_runtime_ended() {
    let db = Fixture::new().await;
    let (store, flush) = (db.store.clone(), db.flush(vec![start(Key::mint(0), RUNNING)]));
    let next = Flush { number: 2, ..db.flush(vec![start(Key::mint(0), RUNNING)]) };
    tokio::task::spawn_blocking(move || {
        for flush in [flush, next] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(store.commit(&flush)).unwrap();
        }
    })
    .await
    .unwrap();
    assert_eq!(db.count("executions").await, 2);
}

#[tokio::test]
async fn lane_row_is_found_directly_while_snapshot_keeps_versions() {
    let db = Fixture::new().await;
    let mut other = client(&db.schema).await;
    let snapshot = other.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.unwrap();
    snapshot.query_one("SELECT count(*) FROM lanes", &[]).await.unwrap();
    for _ in 0..50 {
        db.write(vec![start(Key::mint(0), QUEUED)]).await;
        assert_eq!(db.take(1).await.len(), 1);
    }
    // the server counts the work of a session when it ends
    let Fixture { store, schema, sql, .. } = db;
    drop(store);
    let query = "SELECT n_tup_upd, coalesce(idx_scan, 0), coalesce(seq_scan, 0) FROM pg_stat_user_tables \
                 WHERE schemaname = $1 AND relname = 'lanes'";
    let (found_by_key, walked) = loop {
        let row = sql.query_one(query, &[&schema]).await.unwrap();
        if row.get::<_, i64>(0) >= 100 {
            break (row.get::<_, i64>(1), row.get::<_, i64>(2));
        }
        sql.execute("SELECT pg_sleep(0.05)", &[]).await.unwrap();
    };
    // once per lane, before the location of its row is known, and by migrations
    assert!(found_by_key + walked <= 8, "{found_by_key} searches by key, {walked} walks");
    snapshot.rollback().await.unwrap();
}

#[tokio::test]
async fn lane_finds_its_row_after_table_is_rewritten() {
    let db = Fixture::new().await;
    let others = [
        db.store.register(3, &worker_info(&[])).await.unwrap(),
        db.store.register(3, &worker_info(&[])).await.unwrap(),
    ];
    let row_locations = async || {
        let query = "SELECT array_agg(ctid::text ORDER BY worker_id, lane) FROM lanes";
        db.sql.query_one(query, &[]).await.unwrap().get::<_, Vec<String>>(0)
    };
    let mut moved = 0;
    for _ in 0..4 {
        for _ in 0..7 {
            db.write(vec![start(Key::mint(0), QUEUED)]).await;
        }
        assert_eq!(db.take(7).await.len(), 7);
        // the rows change their locations: another row takes the place of each
        let before = row_locations().await;
        db.sql.batch_execute("VACUUM FULL lanes").await.unwrap();
        moved +=
            before.iter().zip(row_locations().await).filter(|(before, after)| **before != *after).count();
        let lane = "SELECT last_number FROM lanes WHERE worker_id = $1 AND lane = 0";
        for other in &others {
            let number: i64 = db.sql.query_one(lane, &[&other.worker.0]).await.unwrap().get(0);
            assert_eq!(number, 0, "a lane used the row of another lane");
        }
    }
    assert!(moved > 0, "no row changed its location");
    assert!(db.store.end_registration(db.worker.worker).await.unwrap());
    let rejected = db.commit(&db.flush(vec![start(Key::mint(0), QUEUED)])).await;
    assert!(matches!(rejected, Err(StoreError::Fenced)), "{rejected:?}");
}

#[tokio::test]
async fn flush_without_synchronous_commit_applies_nothing() {
    let proxy = Proxy::start().await;
    let db = Fixture::at(&proxy.url, |options| options).await;
    let key = Key::mint(0);
    db.write(vec![start(key, RUNNING)]).await;
    let before = db.counts().await;
    // a pooler assigns sessions per transaction without notice
    for setting in ["off", "local"] {
        let set = format!("SET LOCAL synchronous_commit TO {setting}").leak();
        *proxy.faults.after_begin.lock().unwrap() = Some(set);
        let error = db.commit(&db.flush(vec![checkpoint(key, 1)])).await.unwrap_err();
        let StoreError::Corrupt(reason) = &error else { panic!("{error}") };
        assert!(reason.contains("synchronous_commit") && reason.contains("pooling=transaction"), "{reason}");
        assert_eq!(db.counts().await, before);
    }
    *proxy.faults.after_begin.lock().unwrap() = None;
    assert_eq!(db.write(vec![checkpoint(key, 1)]).await, []);
    // relaxed durability accepts losses
    let relaxed =
        Fixture::with(|options| options.durability(stepfast_core::store::Durability::Relaxed)).await;
    assert_eq!(relaxed.write(vec![start(Key::mint(0), RUNNING)]).await, []);
}
