//! The inbox: starts that other programs insert in their own transactions.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::queue::{Placement, Queue, QueueChange};
use stepfast_core::store::{Filter, Outcome, Start, Status, Store};
use support::*;

/// Inserts a start for queue `a` that may not begin before `due_at`.
fn insert_row(conn: &Connection, key: Key, id: Option<&str>, dedup_id: Option<&str>, due_at: Option<i64>) {
    let insert = "INSERT INTO inbox (put_at, key, workflow, workflow_id, queue, queue_key, priority, dedup_id, due_at, input)
                  VALUES (?1, ?2, 'w', ?3, 'a', 'k', 3, ?4, ?5, x'00')";
    conn.execute(insert, (NOON.as_micros(), key.as_bytes(), id, dedup_id, due_at)).unwrap();
}

#[tokio::test]
async fn inbox_row_becomes_execution_once_committed() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let [rolled_back, first, second] = [(); 3].map(|()| Key::mint(0));
    foreign.execute_batch("BEGIN").unwrap();
    insert_row(&foreign, rolled_back, None, None, None);
    foreign.execute_batch("ROLLBACK; BEGIN").unwrap();
    insert_row(&foreign, first, None, None, None);
    insert_row(&foreign, second, None, None, None);
    foreign.execute_batch("COMMIT").unwrap();
    assert!(worker.heartbeat().await.has_ready);
    let taken = worker.claim(9, &["w"]).await;
    let keys: Vec<Key> = taken.iter().map(|record| record.execution.key).collect();
    assert_eq!(keys, [first, second]);
    let placement = taken[0].execution.placement.as_deref().unwrap();
    assert_eq!((&*placement.queue, &*placement.key, placement.priority), ("a", "k", 3));
    assert_eq!(count(&path, "inbox"), 0);
    assert!(!worker.heartbeat().await.has_ready);
}

#[tokio::test]
async fn duplicate_rows_start_once_and_delayed_rows_wait() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    for _ in 0..2 {
        insert_row(&foreign, Key::mint(0), Some("x"), None, None);
        insert_row(&foreign, Key::mint(0), None, Some("x"), None);
    }
    assert_eq!(worker.claim(9, &["w"]).await.len(), 2);
    let late = Key::mint(0);
    insert_row(&foreign, Key::mint(0), Some("x"), None, None);
    insert_row(&foreign, late, None, None, Some(NOON.plus(Duration::from_secs(60)).as_micros()));
    assert_eq!(worker.claim(9, &["w"]).await.len(), 0);
    assert_eq!((count(&path, "executions"), count(&path, "inbox")), (3, 0));
    assert_eq!(worker.record(late).await.execution.status, Status::Scheduled);
    worker.clock.advance(Duration::from_secs(60));
    assert_eq!(worker.claim_keys(9, &["w"]).await, [late]);
}

#[tokio::test]
async fn inbox_row_enters_full_queue_and_counts() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let queue = Queue::new("a").max_depth(2);
    worker.store.change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 }).await.unwrap();
    let foreign = Connection::open(&path).unwrap();
    for _ in 0..3 {
        insert_row(&foreign, Key::mint(0), None, None, None);
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    let next_start = || {
        let placement = Placement { queue: "a".into(), key: "".into(), priority: 0 };
        start_write(Start { placement: Some(placement.into()), ..start(Key::mint(0), queued()) })
    };
    assert_eq!(worker.commit_one(next_start()).await, Outcome::Full);
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    assert_eq!(worker.commit_one(next_start()).await, Outcome::Applied);
}

/// The store knows the number of waiting executions without counting them, until rows of the inbox add to it. A delayed row
/// counts too.
#[tokio::test]
async fn inbox_rows_count_where_the_depth_was_known() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let queue = Queue::new("a").max_depth(3);
    worker.store.change_queue(&QueueChange { queue, is_paused: false, expected_version: 0 }).await.unwrap();
    let next_start = || {
        let placement = Placement { queue: "a".into(), key: "".into(), priority: 0 };
        start_write(Start { placement: Some(placement.into()), ..start(Key::mint(0), queued()) })
    };
    assert_eq!(worker.commit_one(next_start()).await, Outcome::Applied);
    let foreign = Connection::open(&path).unwrap();
    for due_at in [None, Some(NOON.plus(Duration::from_secs(60)).as_micros())] {
        insert_row(&foreign, Key::mint(0), None, None, due_at);
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    let outcomes = [worker.commit_one(next_start()).await, worker.commit_one(next_start()).await];
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Full]);
}

#[tokio::test]
async fn attributes_of_an_inbox_row_are_kept() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let key = Key::mint(0);
    let insert = r#"INSERT INTO inbox (put_at, key, workflow, input, attributes)
                    VALUES (?1, ?2, 'w', x'00', '{"tenant": "acme", "region": "eu"}')"#;
    foreign.execute(insert, (NOON.as_micros(), key.as_bytes())).unwrap();
    assert_eq!(worker.claim_keys(9, &["w"]).await, [key]);
    let attributes = worker.record(key).await.execution.attributes;
    assert_eq!(attributes, [("tenant", "acme"), ("region", "eu")].into_iter().collect());
}

#[tokio::test]
async fn invalid_row_is_rejected_by_insert() {
    let (_dir, path) = temp_database();
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
            "INSERT INTO inbox (put_at, key, input, workflow, {column}) VALUES (1, randomblob(16), x'00', 'w', {value})"
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

/// Invalid rows are rejected by the INSERT, or kept as dead letters.
#[tokio::test]
async fn claim_survives_any_column_value() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let insert = |column: &str, value: &str, key: Key| {
        let put_at = NOON.as_micros();
        let sql = match column {
            "put_at" => {
                format!("INSERT INTO inbox (key, workflow, input, put_at) VALUES (?1, 'w', x'00', {value})")
            }
            _ => format!(
                "INSERT INTO inbox (key, workflow, input, put_at, {column}) VALUES (?1, 'w', x'00', {put_at}, {value})"
            ),
        };
        foreign.execute(&sql, [key.as_bytes()])
    };
    for column in ["put_at", "due_at", "deadline_at", "run_timeout_ms", "priority"] {
        for value in [i64::MAX, i64::MIN] {
            let error = insert(column, &value.to_string(), Key::mint(0)).unwrap_err().to_string();
            assert!(error.contains("CHECK constraint failed") && error.contains(column), "{error}");
        }
    }
    let far_future = (13_569_465_600_000_000_i64 - 1).to_string();
    let invalid_values = [
        ("put_at", &*far_future, "put_at"),
        ("deadline_at", &far_future, "deadline_at"),
        ("attributes", r#"'{"a":"x","b":1}'"#, "an attribute"),
        ("attributes", r#"'{"":"z"}'"#, "an attribute"),
    ];
    for (n, (column, value, words)) in invalid_values.into_iter().enumerate() {
        let [invalid, valid] = [Key::mint(0), Key::mint(0)];
        insert(column, value, invalid).unwrap();
        insert("fingerprint", "1", valid).unwrap();
        let taken = worker.claim(9, &["w"]).await;
        let keys: Vec<Key> = taken.iter().map(|record| record.execution.key).collect();
        assert_eq!(keys, [valid], "{column} {value}");
        let dead = worker.store.dead_letters(9).await.unwrap();
        assert_eq!((dead.len(), dead[0].key), (n + 1, invalid));
        assert!(dead[0].reason.contains(words), "{dead:?}");
        assert_eq!(count(&path, "inbox"), 0, "{column} {value}");
    }
    for (column, value) in
        [("run_timeout_ms", "0"), ("attributes", r#"'{"a":"x","a":"y"}'"#), ("due_at", "0"), ("put_at", "0")]
    {
        let key = Key::mint(0);
        insert(column, value, key).unwrap();
        // a copy of the row
        insert(column, value, key).unwrap();
        let taken = worker.claim(9, &["w"]).await;
        assert_eq!(taken.iter().map(|it| it.execution.key).collect::<Vec<_>>(), [key], "{column}");
    }
    assert_eq!(count(&path, "dead_letters"), 4);
}

#[tokio::test]
async fn conflicting_start_becomes_dead_letter() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let first = Key::mint(0);
    let insert = |key: Key, workflow: &str, id: &str, fingerprint: i64| {
        let sql = "INSERT INTO inbox (put_at, key, workflow, workflow_id, fingerprint, input) VALUES (?1, ?2, ?3, ?4, ?5, x'00')";
        foreign.execute(sql, (NOON.as_micros(), key.as_bytes(), workflow, id, fingerprint)).unwrap();
    };
    for round in 0..2 {
        insert(first, "w", "x", 7);
        insert(Key::mint(0), "w", "x", 7);
        insert(Key::mint(0), "w", "x", 8);
        insert(Key::mint(0), "other", "x", 7);
        insert(first, "w", "y", 7);
        insert(Key::from_bytes([0xff; 16]), "w", "z", 7);
        let taken = worker.claim(9, &["w"]).await;
        assert_eq!(taken.len(), 1 - round);
        let dead = worker.store.dead_letters(4).await.unwrap();
        let reasons: Vec<&str> = dead.iter().rev().map(|row| &*row.reason).collect();
        let words =
            ["its workflow_id", "its workflow_id", "its key is", "shard 1023, and this store is shard 0"];
        for (reason, words) in reasons.iter().zip(words) {
            assert!(reason.contains(words), "{reasons:?}");
        }
        assert_eq!((count(&path, "inbox"), count(&path, "dead_letters")), (0, 4 * (round as i64 + 1)));
    }
}

/// A rejected row does not affect later rows of the same key.
#[tokio::test]
async fn row_becomes_execution_after_rejected_row_of_same_key() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    insert_row(&foreign, Key::mint(0), Some("x"), Some("d"), None);
    assert_eq!(worker.claim(9, &["w"]).await.len(), 1);
    // columns and values of the first row, and of the second row
    let cases = [
        ("attributes", r#"'{"d":""}'"#, "attributes", r#"'{"d":"x"}'"#),
        ("queue, dedup_id", "'a', 'd'", "queue, dedup_id", "'a', 'e'"),
        ("queue, dedup_id", "'a', 'd'", "queue, due_at", "'a', 1"),
        ("workflow_id", "'x'", "workflow_id", "'y'"),
    ];
    for (n, (first, invalid, second, valid)) in cases.into_iter().enumerate() {
        let key = Key::mint(0);
        for (columns, values) in [(first, invalid), (second, valid), (first, invalid), (second, valid)] {
            let sql = format!(
                "INSERT INTO inbox (put_at, key, workflow, input, {columns}) VALUES (?1, ?2, 'w', x'00', {values})"
            );
            foreign.execute(&sql, (NOON.as_micros(), key.as_bytes())).unwrap();
        }
        assert_eq!(worker.claim_keys(9, &["w"]).await, [key], "{second}");
        assert_eq!(count(&path, "inbox"), 0, "{second}");
        // dead letters: both invalid rows of the first case, and the second invalid row of the last case, because an
        // execution with another workflow_id has its key by then
        assert_eq!(count(&path, "dead_letters"), if n < 3 { 2 } else { 3 }, "{second}");
        assert_eq!(count(&path, "executions"), n as i64 + 2, "{second}");
    }
    let copy = Key::mint(0);
    for _ in 0..20 {
        insert_row(&foreign, copy, None, Some("d"), None);
    }
    assert_eq!(worker.claim(9, &["w"]).await.len(), 0);
    assert_eq!((count(&path, "inbox"), count(&path, "dead_letters")), (0, 3));
}

#[tokio::test]
async fn row_rejected_by_trigger_becomes_dead_letter() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let trigger = "CREATE TRIGGER reject BEFORE INSERT ON attributes WHEN NEW.name = 'odd'
                  BEGIN SELECT raise(ABORT, 'not this one'); END";
    foreign.execute_batch(trigger).unwrap();
    let keys = [(); 3].map(|()| Key::mint(0));
    for (n, key) in keys.iter().enumerate() {
        let insert =
            "INSERT INTO inbox (put_at, key, workflow, attributes, input) VALUES (?1, ?2, 'w', ?3, x'00')";
        let attributes = if n == 1 { r#"{"odd":"x"}"# } else { r#"{"even":"x"}"# };
        foreign.execute(insert, (NOON.as_micros(), key.as_bytes(), attributes)).unwrap();
    }
    let taken = worker.claim(9, &["w"]).await;
    assert_eq!(taken.iter().map(|it| it.execution.key).collect::<Vec<_>>(), [keys[0], keys[2]]);
    let dead = worker.store.dead_letters(9).await.unwrap();
    assert_eq!((dead.len(), dead[0].key), (1, keys[1]));
    assert!(dead[0].reason.contains("not this one"), "{dead:?}");
    assert_eq!((count(&path, "inbox"), count(&path, "executions"), count(&path, "attributes")), (0, 2, 2));
}

/// SQLite stores text that is not UTF-8, and derives such text from escapes in a JSON text. Names and ids must not
/// contain control characters.
#[tokio::test]
async fn claim_survives_invalid_text() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let insert = |key: Key, values: &[(&str, &str)]| {
        let mut all = vec![("put_at", NOON.as_micros().to_string()), ("input", "x'00'".to_owned())];
        all.push(("key", format!("x'{:032x}'", key.as_u128())));
        all.extend(values.iter().map(|(column, value)| (*column, (*value).to_owned())));
        let (columns, values): (Vec<&str>, Vec<String>) = all.into_iter().unzip();
        let sql = format!("INSERT INTO inbox ({}) VALUES ({})", columns.join(", "), values.join(", "));
        foreign.execute(&sql, []).unwrap();
    };
    let (w, a, invalid_utf8) = (("workflow", "'w'"), ("queue", "'a'"), "CAST(x'6fff64' AS TEXT)");
    let many: Vec<String> = (0..65).map(|n| format!("\"{n}\":\"x\"")).collect();
    let many = format!("'{{{}}}'", many.join(","));
    let rows: [(&str, &[(&str, &str)]); 17] = [
        ("workflow", &[("workflow", invalid_utf8)]),
        ("workflow_id", &[w, ("workflow_id", invalid_utf8)]),
        ("app_version", &[w, ("app_version", invalid_utf8)]),
        ("queue", &[w, ("queue", invalid_utf8)]),
        ("queue_key", &[w, a, ("queue_key", invalid_utf8)]),
        ("dedup_id", &[w, a, ("dedup_id", invalid_utf8)]),
        ("attribute", &[w, ("attributes", "CAST(x'7b2261223a22ff227d' AS TEXT)")]),
        ("attribute", &[w, ("attributes", r#"'{"a":"\ud800"}'"#)]),
        ("attribute", &[w, ("attributes", r#"'{"\ud800":"a"}'"#)]),
        ("workflow has a control", &[("workflow", "'w' || char(27)")]),
        ("workflow_id has a control", &[w, ("workflow_id", "'a' || char(0)")]),
        ("queue has a control", &[w, ("queue", "char(155)")]),
        ("dedup_id has a control", &[w, a, ("dedup_id", "char(1) || 'w' || char(1) || 'x'")]),
        ("attribute", &[w, ("attributes", r#"'{"a":"\n"}'"#)]),
        ("attribute", &[w, ("attributes", r#"'{"a\u0000":"b"}'"#)]),
        ("attribute", &[w, ("attributes", r#"'{"a=b":"c"}'"#)]),
        ("more than 64 attributes", &[w, ("attributes", &many)]),
    ];
    for (n, (words, values)) in rows.iter().enumerate() {
        let [invalid, valid] = [Key::mint(0), Key::mint(0)];
        insert(invalid, values);
        insert(valid, &[w]);
        assert_eq!(worker.claim_keys(9, &["w"]).await, [valid], "{values:?}");
        let dead = worker.store.dead_letters(99).await.unwrap();
        assert_eq!((dead.len(), dead[0].key), (n + 1, invalid), "{values:?}");
        assert!(dead[0].reason.contains(words), "{dead:?}");
        assert_eq!(count(&path, "inbox"), 0);
    }
    let listed = worker.store.list(&Filter::default()).await.unwrap().executions;
    assert_eq!(listed.len(), rows.len());
}
