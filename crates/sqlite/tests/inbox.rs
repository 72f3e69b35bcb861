//! The inbox: starts that others have put there in transactions of their own.

#![allow(clippy::unwrap_used)]

mod kit;

use std::time::Duration;

use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::queue::{Queue, QueueChange, Ticket};
use stepfast_core::record::Status;
use stepfast_core::store::Store;
use stepfast_core::write::{Outcome, Start};

/// Puts a start there that is to stand in queue `a`, and may not begin before this time.
fn post(conn: &Connection, key: Key, id: Option<&str>, dedup_id: Option<&str>, due_at: Option<i64>) {
    let insert = "INSERT INTO inbox (put_at, shard, key, workflow, workflow_id, queue, queue_key, priority, dedup_id, due_at, input)
                  VALUES (?1, 1, ?2, 'w', ?3, 'a', 'k', 3, ?4, ?5, x'00')";
    conn.execute(insert, (NOON.as_micros(), key.as_bytes(), id, dedup_id, due_at)).unwrap();
}

#[tokio::test]
async fn what_is_put_there_becomes_an_execution_when_its_transaction_commits() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let [gone, first, second] = [(); 3].map(|()| Key::mint());
    foreign.execute_batch("BEGIN").unwrap();
    post(&foreign, gone, None, None, None);
    foreign.execute_batch("ROLLBACK; BEGIN").unwrap();
    post(&foreign, first, None, None, None);
    post(&foreign, second, None, None, None);
    foreign.execute_batch("COMMIT").unwrap();
    assert!(worker.look().await.has_ready);
    let taken = worker.claim(9, &["w"]).await;
    let keys: Vec<Key> = taken.iter().map(|record| record.execution.key).collect();
    assert_eq!(keys, [first, second]);
    let place = taken[0].execution.ticket.as_deref().unwrap();
    assert_eq!((&*place.queue, &*place.key, place.priority), ("a", "k", 3));
    assert_eq!(count(&path, "inbox"), 0);
    assert!(!worker.look().await.has_ready);
}

#[tokio::test]
async fn what_is_there_already_is_started_once_and_what_is_delayed_comes_later() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    for _ in 0..2 {
        post(&foreign, Key::mint(), Some("x"), None, None);
        post(&foreign, Key::mint(), None, Some("x"), None);
    }
    assert_eq!(worker.claim(9, &["w"]).await.len(), 2);
    let late = Key::mint();
    post(&foreign, Key::mint(), Some("x"), None, None);
    post(&foreign, late, None, None, Some(NOON.plus(Duration::from_secs(60)).as_micros()));
    assert_eq!(worker.claim(9, &["w"]).await.len(), 0);
    assert_eq!((count(&path, "executions"), count(&path, "inbox")), (3, 0));
    assert_eq!(worker.record(late).await.execution.status, Status::Scheduled);
    worker.clock.advance(Duration::from_secs(60));
    assert_eq!(worker.claim_keys(9, &["w"]).await, [late]);
}

#[tokio::test]
async fn it_enters_a_full_queue_and_counts() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let queue = Queue::new("a").max_depth(2);
    worker.store.change_queue(&QueueChange { queue, is_paused: false, seen_version: 0 }).await.unwrap();
    let foreign = Connection::open(&path).unwrap();
    for _ in 0..3 {
        post(&foreign, Key::mint(), None, None, None);
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    let more = || {
        let ticket = Ticket { queue: "a".into(), key: "".into(), priority: 0 };
        put(Start { ticket: Some(ticket.into()), ..start(Key::mint(), queued()) })
    };
    assert_eq!(worker.one(more()).await, Outcome::Full);
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    assert_eq!(worker.one(more()).await, Outcome::Applied);
}

#[tokio::test]
async fn what_cannot_become_an_execution_is_refused_at_once() {
    let (_dir, path) = place();
    let _worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let long = "x".repeat(1025);
    for (column, value) in [
        ("workflow_id", format!("'{long}'")),
        ("queue", "'default'".to_owned()),
        ("queue_key", "'k'".to_owned()),
        ("dedup_id", "'x'".to_owned()),
    ] {
        let sql = format!(
            "INSERT INTO inbox (put_at, shard, key, input, workflow, {column}) VALUES (1, 1, randomblob(16), x'00', 'w', {value})"
        );
        let error = foreign.execute(&sql, []).unwrap_err().to_string();
        assert!(error.contains("CHECK constraint failed"), "{error}");
    }
    assert_eq!(count(&path, "inbox"), 0);
}

fn count(path: &std::path::Path, table: &str) -> i64 {
    let conn = Connection::open(path).unwrap();
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

/// Rows that an application may leave, each beside an innocent one that is claimed.
#[tokio::test]
async fn no_value_of_a_row_stops_a_claim() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let insert = |column: &str, value: &str, key: Key| {
        let sql = format!(
            "INSERT INTO inbox (shard, key, workflow, input, {column}) VALUES (1, ?1, 'w', x'00', {value})"
        );
        let sql = if column == "put_at" {
            sql
        } else {
            sql.replace("(shard,", "(put_at, shard,").replace("(1, ?1", "(1, 1, ?1")
        };
        foreign.execute(&sql, [key.as_bytes()]).unwrap();
    };
    let (most, least) = ("9223372036854775807", "-9223372036854775808");
    let mut values = vec![("attributes", r#"'{"a":"x","a":"y","b":1,"":"z"}'"#)];
    for column in ["put_at", "due_at", "deadline_at", "run_timeout_ms"] {
        values.extend([(column, most), (column, least), (column, "0")]);
    }
    for (column, value) in values {
        let [odd, innocent] = [Key::mint(), Key::mint()];
        insert(column, value, odd);
        // a copy of it
        insert(column, value, odd);
        insert("fingerprint", "1", innocent);
        let taken = worker.claim(9, &["w"]).await;
        let keys: Vec<Key> = taken.iter().map(|record| record.execution.key).collect();
        assert!(keys.contains(&innocent), "{column} {value}: {keys:?}");
        assert_eq!(keys.contains(&odd), (column, value) != ("due_at", most), "{column} {value}");
        assert_eq!(count(&path, "inbox"), 0, "{column} {value}");
    }
}
