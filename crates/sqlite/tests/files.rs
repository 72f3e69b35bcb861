//! Deleted, replaced and truncated files: their detection, and the messages.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{Store, StoreError, WorkerInfo};
use stepfast_core::{Context, Engine, Failure, Workflow};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use support::*;

/// Returns the path of a file that belongs to the database.
fn companion_path(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// Replaces a file by a copy.
fn replace(path: &Path) {
    let copy = companion_path(path, "-copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
}

/// Returns the reason of a `Corrupt` error.
fn reason<T>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Corrupt(reason)) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("no damage was detected"),
    }
}

async fn commit(worker: &Worker) -> Key {
    let key = Key::mint(0);
    worker.commit(vec![start_write(start(key, queued()))]).await;
    key
}

#[tokio::test]
async fn commit_to_replaced_file_is_not_acknowledged() {
    for suffix in ["", "-wal"] {
        for (damage, word) in
            [(replace as fn(&Path), "replaced"), (|path| fs::remove_file(path).unwrap(), "deleted")]
        {
            let (_dir, path) = temp_database();
            let worker = Worker::at(&path).await;
            commit(&worker).await;
            damage(&companion_path(worker.store.path(), suffix));
            let error = reason(worker.try_commit(vec![start_write(start(Key::mint(0), queued()))]).await);
            assert!(error.contains(word) && error.contains(&format!("test.db{suffix} ")), "{error}");
            let reply = worker.renew().await;
            if suffix.is_empty() {
                assert!(reason(reply).contains(word));
            }
        }
    }
}

#[tokio::test]
async fn engine_stops_with_reason_when_database_is_replaced() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let echo = Workflow::new("echo", |_: Context, text: String| async move { Ok::<_, Failure>(text) });
    let engine = Engine::builder(worker.store.clone()).register(&echo).open().await.unwrap();
    assert_eq!(engine.run(&echo, "one".to_owned()).await.unwrap(), "one");
    replace(worker.store.path());
    let error = engine.run(&echo, "two".to_owned()).await.unwrap_err();
    assert!(
        matches!(&error, stepfast_core::Error::Corrupt(reason) if reason.contains("replaced")),
        "{error}"
    );
    let error = engine.start(&echo, "three".to_owned()).await.unwrap_err();
    assert!(matches!(&error, stepfast_core::Error::Corrupt(_)), "{error}");
}

#[tokio::test]
async fn replaced_presence_file_is_detected_by_next_renewal() {
    for damage in [replace as fn(&Path), |path| fs::remove_file(path).unwrap()] {
        let (_dir, path) = temp_database();
        let worker = Worker::at(&path).await;
        worker.heartbeat().await;
        damage(&companion_path(worker.store.path(), "-presence"));
        let error = reason(worker.renew().await);
        assert!(error.contains("test.db-presence was"), "{error}");
    }
}

#[tokio::test]
async fn database_behind_acknowledged_count_is_rejected() {
    let (dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let backup = dir.path().join("backup");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    drop(conn);
    commit(&worker).await;
    // another program changes the file in place
    let conn = rusqlite::Connection::open(&path).unwrap();
    let count: i64 = conn.query_row("SELECT count FROM flushes", [], |row| row.get(0)).unwrap();
    conn.execute("UPDATE flushes SET count = count - 1", []).unwrap();
    let error = reason(worker.renew().await);
    assert!(error.contains("less than was acknowledged"), "{error}");
    conn.execute("UPDATE flushes SET count = ?1, nonce = nonce + 1", [count]).unwrap();
    let error = reason(worker.renew().await);
    assert!(error.contains("another database"), "{error}");
    drop((conn, worker));

    fs::copy(&backup, &path).unwrap();
    let rejection = match SqliteStore::open(&path, SqliteOptions::default()) {
        Err(StoreError::Open { reason, .. }) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    assert!(rejection.contains("remove") && rejection.contains("test.db-presence"), "{rejection}");
    // at another path, the former count is unknown
    let elsewhere = dir.path().join("elsewhere.db");
    fs::copy(&backup, &elsewhere).unwrap();
    commit(&Worker::at(&elsewhere).await).await;
    fs::remove_file(companion_path(&path, "-presence")).unwrap();
    commit(&Worker::at(&path).await).await;
    // a new database at the same path has another nonce
    fs::remove_file(&path).unwrap();
    commit(&Worker::at(&path).await).await;
}

#[tokio::test]
async fn outdated_engine_requeues_executions_before_migration() {
    let (_dir, path) = temp_database();
    let nap = Duration::from_millis(50);
    let workflow = Workflow::new("order", move |mut cx: Context, naps: u32| async move {
        for _ in 0..naps {
            cx.sleep(nap).await;
        }
        cx.step("end", async || Ok::<_, Failure>(naps)).await
    });
    let open = async || {
        let store = Arc::new(SqliteStore::open(&path, SqliteOptions::default())?);
        Ok::<_, StoreError>(Engine::builder(store).register(&workflow).open().await.unwrap())
    };
    let old = open().await.unwrap();
    old.start(&workflow, 5).workflow_id("short").await.unwrap();
    old.start(&workflow, 100_000).workflow_id("long").await.unwrap();
    // as a newer program does before it changes the schema
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("UPDATE shard SET oldest_engine = 99", []).unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(30), async {
        let mut every = tokio::time::interval(nap);
        while conn.query_row("SELECT count(*) FROM workers", [], |row| row.get::<_, i64>(0)).unwrap() > 0 {
            every.tick().await;
        }
    });
    closed.await.expect("the engine closes its registration");
    let error = old.start(&workflow, 1).await.unwrap_err();
    assert!(matches!(error, stepfast_core::Error::NewerSchema { found: 99, supported: 10 }), "{error}");
    let error = open().await.err().unwrap();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, supported: 10 }), "{error}");
    let rows: Vec<(String, i64, i64)> = conn
        .prepare("SELECT workflow_id, status, recoveries FROM executions ORDER BY workflow_id")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows, [("long".to_owned(), 1, 0), ("short".to_owned(), 4, 0)]);
    conn.execute("UPDATE shard SET oldest_engine = 4", []).unwrap();
    let new = open().await.unwrap();
    assert_eq!(new.run(&workflow, 1).await.unwrap(), 1);
    new.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn store_opened_before_migration_registers_no_worker() {
    let (_dir, path) = temp_database();
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let conn = rusqlite::Connection::open(&path).unwrap();
    let later =
        "INSERT INTO schema_version SELECT 99, 'later', applied_on, checksum FROM schema_version LIMIT 1";
    conn.execute(later, []).unwrap();
    let error = store.register(1, &WorkerInfo::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, supported: 10 }), "{error}");
}

#[tokio::test]
async fn store_that_must_exist_is_not_migrated() {
    let (_dir, path) = temp_database();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("DELETE FROM schema_version WHERE version >= 3", []).unwrap();
    let options = SqliteOptions { must_exist: true, ..SqliteOptions::default() };
    let Err(StoreError::Open { reason, .. }) = SqliteStore::open(&path, options) else { panic!() };
    let words = ["has version 2", "needs version 10", "stepfast db migrate"];
    assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
}

#[tokio::test]
async fn migration_is_rejected_while_older_processes_run() {
    let (_dir, path) = temp_database();
    let _worker = Worker::at(&path).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute("DELETE FROM schema_version WHERE version >= 3", []).unwrap();
    let Err(StoreError::Open { reason, .. }) = SqliteStore::open(&path, SqliteOptions::default()) else {
        panic!()
    };
    assert!(
        reason.contains("processes of an older program") && reason.contains("end them, then open it again"),
        "{reason}"
    );
}
