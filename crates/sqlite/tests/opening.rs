//! Opening: clear errors, and no way to bypass durability.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::store::{Durability, Filter, Store, StoreError};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use support::{Worker, queued, running, start, start_write, temp_database};

fn rejection(path: &std::path::Path) -> String {
    match SqliteStore::open(path, SqliteOptions::default()) {
        Err(StoreError::Open { store, reason }) => {
            assert!(!store.is_empty());
            reason
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[test]
fn new_file_is_created_with_companions_and_reopens() {
    let (dir, path) = temp_database();
    for _ in 0..2 {
        let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        assert_eq!(store.info().kind, "sqlite");
        assert_eq!(store.info().durability, Durability::Full);
        assert_eq!(store.path(), path.canonicalize().unwrap());
    }
    for name in ["test.db", "test.db-presence", "test.db-turnstile", "test.db-wake"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
}

#[test]
fn directory_path_is_rejected_with_advice() {
    let (dir, _) = temp_database();
    let reason = rejection(&dir.path().join("missing").join("test.db"));
    assert!(reason.contains("create it first"), "{reason}");
    let reason = rejection(dir.path());
    assert!(reason.contains("directory"), "{reason}");
}

#[test]
fn store_that_must_exist_is_not_created() {
    let (dir, path) = temp_database();
    let options = || SqliteOptions { must_exist: true, ..SqliteOptions::default() };
    let rejection = |path: &std::path::Path| match SqliteStore::open(path, options()) {
        Err(StoreError::Open { reason, .. }) => reason,
        other => panic!("{:?}", other.map(drop)),
    };
    assert!(rejection(&path).contains("no such file"));
    assert!(rejection(&dir.path().join("missing").join("test.db")).contains("no directory"));
    let entries = || fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries(), 0);
    // the database of another program stays unchanged
    Connection::open(&path).unwrap().execute("CREATE TABLE t (a)", []).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(rejection(&path).contains("another program"));
    assert_eq!((fs::read(&path).unwrap(), entries()), (before, 1));
    fs::write(&path, "no database at all".repeat(100)).unwrap();
    assert!(rejection(&path).contains("not a SQLite database"));
    fs::remove_file(&path).unwrap();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    SqliteStore::open(&path, options()).unwrap();
}

#[test]
fn foreign_file_is_rejected_and_left_unchanged() {
    let (_dir, path) = temp_database();
    let text = "once upon a time ".repeat(500);
    fs::write(&path, &text).unwrap();
    let reason = rejection(&path);
    assert!(reason.contains("not a SQLite database"), "{reason}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn damaged_database_is_rejected() {
    let (_dir, path) = temp_database();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..4096].fill(0xee);
    fs::write(&path, bytes).unwrap();
    let reason = rejection(&path);
    assert!(reason.contains("damaged"), "{reason}");
}

#[test]
fn read_only_file_is_rejected() {
    let (_dir, path) = temp_database();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let reason = rejection(&path);
    assert!(reason.contains("read-only"), "{reason}");
}

#[test]
fn newer_schema_is_rejected_and_left_unchanged() {
    let (_dir, path) = temp_database();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let conn = Connection::open(&path).unwrap();
    conn.execute(
        "INSERT INTO schema_version SELECT 99, 'future', applied_on, checksum FROM schema_version LIMIT 1",
        [],
    )
    .unwrap();
    drop(conn);
    match SqliteStore::open(&path, SqliteOptions::default()) {
        Err(StoreError::NewerSchema { found: 99, supported: 10 }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn database_of_another_program_is_rejected() {
    let (_dir, path) = temp_database();
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("CREATE TABLE executions (id INTEGER); CREATE TABLE mine (a);").unwrap();
    drop(conn);
    let reason = rejection(&path);
    assert!(reason.contains("another program"), "{reason}");
    let conn = Connection::open(&path).unwrap();
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'checkpoints'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 0, "a failed migration leaves no table");
}

#[test]
fn store_without_durability_is_rejected() {
    let (_dir, path) = temp_database();
    let options = SqliteOptions { durability: Durability::None, ..SqliteOptions::default() };
    assert!(matches!(SqliteStore::open(&path, options), Err(StoreError::Open { .. })));
}

#[test]
fn schema_documents_every_table_and_column() {
    let (_dir, path) = temp_database();
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let conn = Connection::open(&path).unwrap();
    let mut statement = conn
        .prepare("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('schema_version', 'sqlite_sequence')")
        .unwrap();
    let tables: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(tables.len(), 28);
    for table in tables {
        let mut lines = table.lines().skip(1).map(str::trim).peekable();
        assert!(lines.peek().is_some_and(|line| line.starts_with("-- ")), "{table}");
        for line in lines.filter(|line| !line.starts_with("--") && !line.starts_with(')')) {
            let has_comment = line.contains(" -- ") || line.contains(" /* ");
            assert!(has_comment || line.starts_with("PRIMARY KEY"), "{line}");
        }
    }
}

#[tokio::test]
async fn linked_path_shares_registry_of_its_file() {
    let (dir, path) = temp_database();
    let one = support::Worker::at(&path).await;
    let link = dir.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let two = support::Worker::at(&link).await;
    assert_eq!(one.store.path(), two.store.path());
    // without a shared registry, the second worker would take over the first
    one.commit(vec![start_write(start(Key::mint(0), running()))]).await;
    assert_eq!(two.heartbeat().await.recovered, 0);
    assert!(!one.heartbeat().await.is_fenced);
}

/// Returns the database and companion files that this process has open.
#[cfg(target_os = "linux")]
fn open_files(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with(&*path.to_string_lossy())).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn store_without_workers_keeps_no_file_open() {
    let (_dir, path) = temp_database();
    let one = Worker::at(&path).await;
    let two = Worker::on(one.store.clone(), one.clock.clone()).await;
    one.commit(vec![start_write(start(Key::mint(0), queued()))]).await;
    one.store.close(one.registration.worker).await.unwrap();
    assert!(!open_files(&path).is_empty(), "the other worker is still registered");
    // a caller that does not wait for the reply
    let all = Filter { limit: 10, ..Filter::default() };
    for _ in 0..20 {
        let request = one.store.list(&all);
        let _ = tokio::time::timeout(Duration::ZERO, request).await;
    }
    two.store.close(two.registration.worker).await.unwrap();
    assert_eq!(open_files(&path), Vec::<std::path::PathBuf>::new());
    // the store remains usable, and leaves no file open
    assert_eq!(one.store.list(&all).await.unwrap().executions.len(), 1);
    assert_eq!(open_files(&path), Vec::<std::path::PathBuf>::new());
    let again = Worker::on(one.store.clone(), one.clock.clone()).await;
    again.commit(vec![start_write(start(Key::mint(0), queued()))]).await;
    assert!(!open_files(&path).is_empty());
}

#[test]
fn open_reports_no_loss_while_peer_counts_flushes() {
    let (_dir, path) = temp_database();
    let first = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let presence = fs::File::options().write(true).open(path.with_extension("db-presence")).unwrap();
    let counting = Connection::open(&path).unwrap();
    counting.pragma_update(None, "synchronous", "off").unwrap();
    counting.busy_timeout(Duration::from_secs(10)).unwrap();
    let counting = Mutex::new(counting);
    let is_finished = AtomicBool::new(false);
    // counts as another process does, but without a pause
    let count = || {
        let mut counted = 0;
        while !is_finished.load(SeqCst) {
            let sql = "UPDATE flushes SET count = count + 1 RETURNING nonce, count";
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (nonce, count): (i64, i64) = counting.lock().unwrap().query_row(sql, [], row).unwrap();
            let bytes = [nonce.to_be_bytes(), count.to_be_bytes()].concat();
            presence.write_all_at(&bytes, 0).unwrap();
            counted = count;
        }
        counted
    };
    let (opened, counted) = std::thread::scope(|scope| {
        let counting = scope.spawn(count);
        let opened = (0..300).try_for_each(|_| SqliteStore::open(&path, SqliteOptions::default()).map(drop));
        is_finished.store(true, SeqCst);
        (opened, counting.join().unwrap())
    });
    opened.unwrap();
    assert!(counted > 300, "{counted} flushes were counted");
    drop(first);
}
