//! The inbox: starts that others have put there in transactions of their own.

#![allow(clippy::unwrap_used)]

mod kit;

use std::time::Duration;

use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::queue::{Queue, QueueChange, Placement};
use stepfast_core::store::{Filter, Outcome, Start, Status, Store};

/// Puts a start there that is to stand in queue `a`, and may not begin before this time.
fn post(conn: &Connection, key: Key, id: Option<&str>, dedup_id: Option<&str>, due_at: Option<i64>) {
    let insert = "INSERT INTO inbox (put_at, key, workflow, workflow_id, queue, queue_key, priority, dedup_id, due_at, input)
                  VALUES (?1, ?2, 'w', ?3, 'a', 'k', 3, ?4, ?5, x'00')";
    conn.execute(insert, (NOON.as_micros(), key.as_bytes(), id, dedup_id, due_at)).unwrap();
}

#[tokio::test]
async fn what_is_put_there_becomes_an_execution_when_its_transaction_commits() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let [gone, first, second] = [(); 3].map(|()| Key::mint(0));
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
    let place = taken[0].execution.placement.as_deref().unwrap();
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
        post(&foreign, Key::mint(0), Some("x"), None, None);
        post(&foreign, Key::mint(0), None, Some("x"), None);
    }
    assert_eq!(worker.claim(9, &["w"]).await.len(), 2);
    let late = Key::mint(0);
    post(&foreign, Key::mint(0), Some("x"), None, None);
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
        post(&foreign, Key::mint(0), None, None, None);
    }
    assert_eq!(worker.claim(1, &["w"]).await.len(), 1);
    let more = || {
        let ticket = Placement { queue: "a".into(), key: "".into(), priority: 0 };
        put(Start { placement: Some(ticket.into()), ..start(Key::mint(0), queued()) })
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

/// Rows that no execution can be made of: refused at the door, or kept as dead letters.
#[tokio::test]
async fn no_value_of_a_row_stops_a_claim() {
    let (_dir, path) = place();
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
    let far = (13_569_465_600_000_000_i64 - 1).to_string();
    let odd_values = [
        ("put_at", &*far, "put_at"),
        ("deadline_at", &far, "deadline_at"),
        ("attributes", r#"'{"a":"x","b":1}'"#, "an attribute"),
        ("attributes", r#"'{"":"z"}'"#, "an attribute"),
    ];
    for (n, (column, value, words)) in odd_values.into_iter().enumerate() {
        let [odd, innocent] = [Key::mint(0), Key::mint(0)];
        insert(column, value, odd).unwrap();
        insert("fingerprint", "1", innocent).unwrap();
        let taken = worker.claim(9, &["w"]).await;
        let keys: Vec<Key> = taken.iter().map(|record| record.execution.key).collect();
        assert_eq!(keys, [innocent], "{column} {value}");
        let dead = worker.store.dead_letters(9).await.unwrap();
        assert_eq!((dead.len(), dead[0].key), (n + 1, odd));
        assert!(dead[0].reason.contains(words), "{dead:?}");
        assert_eq!(count(&path, "inbox"), 0, "{column} {value}");
    }
    for (column, value) in
        [("run_timeout_ms", "0"), ("attributes", r#"'{"a":"x","a":"y"}'"#), ("due_at", "0"), ("put_at", "0")]
    {
        let key = Key::mint(0);
        insert(column, value, key).unwrap();
        // a copy of it
        insert(column, value, key).unwrap();
        let taken = worker.claim(9, &["w"]).await;
        assert_eq!(taken.iter().map(|it| it.execution.key).collect::<Vec<_>>(), [key], "{column}");
    }
    assert_eq!(count(&path, "dead_letters"), 4);
}

#[tokio::test]
async fn a_start_that_asks_for_something_else_is_a_dead_letter() {
    let (_dir, path) = place();
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
        let reasons: Vec<&str> = dead.iter().rev().map(|letter| &*letter.reason).collect();
        let words =
            ["its workflow_id", "its workflow_id", "its key is", "shard 1023, and this store is shard 0"];
        for (reason, words) in reasons.iter().zip(words) {
            assert!(reason.contains(words), "{reasons:?}");
        }
        assert_eq!((count(&path, "inbox"), count(&path, "dead_letters")), (0, 4 * (round as i64 + 1)));
    }
}

/// A row of the key that came first, and of which nothing has come, decides nothing about the others.
#[tokio::test]
async fn a_row_behind_one_that_came_to_nothing_becomes_an_execution() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    post(&foreign, Key::mint(0), Some("x"), Some("d"), None);
    assert_eq!(worker.claim(9, &["w"]).await.len(), 1);
    // columns and values of the first row, and of the second one
    let cases = [
        ("attributes", r#"'{"d":""}'"#, "attributes", r#"'{"d":"x"}'"#),
        ("queue, dedup_id", "'a', 'd'", "queue, dedup_id", "'a', 'e'"),
        ("queue, dedup_id", "'a', 'd'", "queue, due_at", "'a', 1"),
        ("workflow_id", "'x'", "workflow_id", "'y'"),
    ];
    for (n, (first, odd, second, valid)) in cases.into_iter().enumerate() {
        let key = Key::mint(0);
        for (columns, values) in [(first, odd), (second, valid), (first, odd), (second, valid)] {
            let sql = format!(
                "INSERT INTO inbox (put_at, key, workflow, input, {columns}) VALUES (?1, ?2, 'w', x'00', {values})"
            );
            foreign.execute(&sql, (NOON.as_micros(), key.as_bytes())).unwrap();
        }
        assert_eq!(worker.claim_keys(9, &["w"]).await, [key], "{second}");
        assert_eq!(count(&path, "inbox"), 0, "{second}");
        // the first row of the first case, each time that it comes, and of the last case, once the key is taken
        assert_eq!(count(&path, "dead_letters"), if n < 3 { 2 } else { 3 }, "{second}");
        assert_eq!(count(&path, "executions"), n as i64 + 2, "{second}");
    }
    let copy = Key::mint(0);
    for _ in 0..20 {
        post(&foreign, copy, None, Some("d"), None);
    }
    assert_eq!(worker.claim(9, &["w"]).await.len(), 0);
    assert_eq!((count(&path, "inbox"), count(&path, "dead_letters")), (0, 3));
}

#[tokio::test]
async fn a_row_that_the_database_refuses_is_a_dead_letter() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let foreign = Connection::open(&path).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON attributes WHEN NEW.name = 'odd'
                  BEGIN SELECT raise(ABORT, 'not this one'); END";
    foreign.execute_batch(refuse).unwrap();
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

/// SQLite keeps text that is not UTF-8, and makes some of the escapes in a JSON text; control characters are no part of
/// names and ids.
#[tokio::test]
async fn no_text_that_an_execution_cannot_have_stops_a_claim() {
    let (_dir, path) = place();
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
    let (w, a, odd) = (("workflow", "'w'"), ("queue", "'a'"), "CAST(x'6fff64' AS TEXT)");
    let many: Vec<String> = (0..65).map(|n| format!("\"{n}\":\"x\"")).collect();
    let many = format!("'{{{}}}'", many.join(","));
    let rows: [(&str, &[(&str, &str)]); 17] = [
        ("workflow", &[("workflow", odd)]),
        ("workflow_id", &[w, ("workflow_id", odd)]),
        ("app_version", &[w, ("app_version", odd)]),
        ("queue", &[w, ("queue", odd)]),
        ("queue_key", &[w, a, ("queue_key", odd)]),
        ("dedup_id", &[w, a, ("dedup_id", odd)]),
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
        let [odd, innocent] = [Key::mint(0), Key::mint(0)];
        insert(odd, values);
        insert(innocent, &[w]);
        assert_eq!(worker.claim_keys(9, &["w"]).await, [innocent], "{values:?}");
        let dead = worker.store.dead_letters(99).await.unwrap();
        assert_eq!((dead.len(), dead[0].key), (n + 1, odd), "{values:?}");
        assert!(dead[0].reason.contains(words), "{dead:?}");
        assert_eq!(count(&path, "inbox"), 0);
    }
    let listed = worker.store.list(&Filter::default()).await.unwrap().executions;
    assert_eq!(listed.len(), rows.len());
}
