//! The inbox: starts that foreign transactions insert.

use std::time::Duration;

use stepfast_core::queue::{Placement, Queue, QueueChange};
use stepfast_core::store::{Claim, Outcome, Status, Write};
use stepfast_core::{Key, Store};
use tokio_postgres::Client;

use super::support::*;

const INSERT_ROW: &str = "INSERT INTO inbox (key, workflow, workflow_id, queue, queue_key, priority, dedup_id, due_at, input) \
                   VALUES ($1, 'order', $2, $3, $4, $5, $6, clock_timestamp() + $7::bigint * interval '1 second', '\\x00')";

struct InboxStart {
    key: Key,
    id: Option<&'static str>,
    queue: Option<&'static str>,
    dedup_id: Option<&'static str>,
    delay: Option<i64>,
}

fn inbox_start() -> InboxStart {
    InboxStart { key: Key::mint(0), id: None, queue: None, dedup_id: None, delay: None }
}

async fn insert_start(sql: &Client, inbox_start: &InboxStart) {
    let InboxStart { key, id, queue, dedup_id, delay } = inbox_start;
    let of = queue.map(|_| "k");
    let priority = queue.map(|_| 3_i32);
    sql.execute(INSERT_ROW, &[&uuid(*key), id, queue, &of, &priority, dedup_id, delay]).await.unwrap();
}

#[tokio::test]
async fn inbox_row_becomes_execution_once_committed() {
    let db = Fixture::new().await;
    let foreign = client(&db.schema).await;
    let [gone, first, second] = [(); 3].map(|()| inbox_start());
    foreign.batch_execute("BEGIN").await.unwrap();
    insert_start(&foreign, &gone).await;
    foreign.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    insert_start(&foreign, &first).await;
    insert_start(&foreign, &InboxStart { queue: Some("a"), ..inbox_start() }).await;
    assert!(!db.heartbeat().await.has_ready);
    assert_eq!(db.take(9).await, []);
    foreign.batch_execute("COMMIT").await.unwrap();
    insert_start(&foreign, &second).await;
    assert!(db.heartbeat().await.has_ready);
    let claimed = db.take(9).await;
    assert_eq!(claimed.len(), 3);
    assert!([first.key, second.key].iter().all(|key| claimed.iter().any(|it| it.execution.key == *key)));
    let queued = claimed.iter().find_map(|it| it.execution.placement.as_deref()).unwrap();
    assert_eq!((&*queued.queue, &*queued.key, queued.priority), ("a", "k", 3));
    assert_eq!((db.count("inbox").await, db.count("executions").await), (0, 3));
    assert!(!db.heartbeat().await.has_ready);
}

#[tokio::test]
async fn duplicate_rows_start_once() {
    let db = Fixture::new().await;
    let both = [Some("x"), Some("x")];
    for id in both {
        insert_start(&db.sql, &InboxStart { id, ..inbox_start() }).await;
        insert_start(&db.sql, &InboxStart { dedup_id: id, queue: Some("a"), ..inbox_start() }).await;
    }
    assert_eq!(db.take(9).await.len(), 2);
    insert_start(&db.sql, &InboxStart { id: Some("x"), ..inbox_start() }).await;
    insert_start(&db.sql, &InboxStart { dedup_id: Some("x"), queue: Some("a"), ..inbox_start() }).await;
    assert_eq!(db.take(9).await.len(), 0);
    assert_eq!((db.count("inbox").await, db.count("executions").await), (0, 2));
}

#[tokio::test]
async fn delayed_row_waits_until_due() {
    let db = Fixture::new().await;
    let late = InboxStart { delay: Some(3600), queue: Some("a"), ..inbox_start() };
    insert_start(&db.sql, &late).await;
    let now = InboxStart { delay: Some(-1_000_000_000), ..inbox_start() };
    insert_start(&db.sql, &now).await;
    assert_eq!(db.take(9).await[0].execution.key, now.key);
    assert_eq!(db.status(late.key).await, Status::Scheduled);
    assert_eq!((db.count("timers").await, db.count("ready").await), (1, 0));
}

#[tokio::test]
async fn inbox_row_enters_full_queue_and_counts() {
    let db = Fixture::new().await;
    declare_depth(&db, 2).await;
    for _ in 0..3 {
        insert_start(&db.sql, &InboxStart { queue: Some("a"), ..inbox_start() }).await;
    }
    assert_eq!(db.take(1).await.len(), 1);
    assert_eq!(db.outcome(start_in_queue()).await, Outcome::Full);
    assert_eq!(db.take(1).await.len(), 1);
    assert_eq!(db.outcome(start_in_queue()).await, Outcome::Applied);
}

/// Declares the queue `a` with a depth.
async fn declare_depth(db: &Fixture, max_depth: u32) {
    let queue = Queue::new("a").max_depth(max_depth);
    let change = QueueChange { queue, is_paused: false, expected_version: 0 };
    db.store.change_queue(&change).await.unwrap();
}

/// Returns a Start in the queue `a`.
fn start_in_queue() -> Write {
    let mut start = start(Key::mint(0), QUEUED);
    if let Write::Start(start) = &mut start {
        start.placement = Some(Placement { queue: "a".into(), key: "".into(), priority: 0 }.into());
    }
    start
}

/// The store knows the number of waiting executions without counting them, until rows of the inbox add to it. A delayed row
/// counts too.
#[tokio::test]
async fn inbox_rows_count_where_the_depth_was_known() {
    let db = Fixture::new().await;
    declare_depth(&db, 3).await;
    assert_eq!(db.outcome(start_in_queue()).await, Outcome::Applied);
    for delay in [None, Some(3600)] {
        insert_start(&db.sql, &InboxStart { queue: Some("a"), delay, ..inbox_start() }).await;
    }
    assert_eq!(db.take(1).await.len(), 1);
    let outcomes = [db.outcome(start_in_queue()).await, db.outcome(start_in_queue()).await];
    assert_eq!(outcomes, [Outcome::Applied, Outcome::Full]);
}

#[tokio::test]
async fn attributes_of_an_inbox_row_are_kept() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    let insert = r#"INSERT INTO inbox (key, workflow, input, attributes)
                    VALUES ($1, 'order', '\x00', '{"tenant": "acme", "region": "eu"}')"#;
    db.sql.execute(insert, &[&uuid(key)]).await.unwrap();
    assert_eq!(db.take(9).await.len(), 1);
    let attributes = db.load(key).await.unwrap().execution.attributes;
    assert_eq!(attributes, [("tenant", "acme"), ("region", "eu")].into_iter().collect());
}

#[tokio::test]
async fn two_workers_drain_each_row_once() {
    let db = Fixture::with(|options| options.lock_timeout(Duration::from_secs(30))).await;
    let other = db.other().await;
    let second = other.register(3, &worker_info(&[])).await.unwrap();
    for n in 0..300 {
        let queue = (n % 3 == 0).then_some("a");
        insert_start(&db.sql, &InboxStart { queue, ..inbox_start() }).await;
    }
    let mut claimed = std::collections::HashSet::new();
    for number in 1.. {
        let mine = Claim { number, ..db.claim(40) };
        let theirs = Claim { worker: second.worker, epoch: second.epoch, ..mine.clone() };
        let (mine, theirs) = tokio::join!(db.store.claim(&mine), other.claim(&theirs));
        let (mine, theirs) = (mine.unwrap().records, theirs.unwrap().records);
        if mine.is_empty() && theirs.is_empty() {
            break;
        }
        for record in mine.iter().chain(&theirs) {
            assert!(claimed.insert(record.execution.key));
        }
    }
    assert_eq!(claimed.len(), 300);
    assert_eq!(db.count("inbox").await, 0);
}

#[tokio::test]
async fn invalid_row_is_rejected_by_insert() {
    let db = Fixture::new().await;
    let long = "x".repeat(1025);
    for (column, value) in [
        ("workflow", "''".to_owned()),
        ("workflow_id", format!("'{long}'")),
        ("queue", "'default'".to_owned()),
        ("queue_key", "'k'".to_owned()),
        ("dedup_id", "'x'".to_owned()),
    ] {
        let workflow = if column == "workflow" { "" } else { "workflow, " };
        let order = if column == "workflow" { "" } else { "'order', " };
        let sql = format!(
            "INSERT INTO inbox (key, input, {workflow}{column}) \
             VALUES (gen_random_uuid(), '', {order}{value})"
        );
        let error = db.sql.execute(&sql, &[]).await.unwrap_err();
        let constraint = error.as_db_error().and_then(|error| error.constraint()).unwrap_or_default();
        assert_eq!(constraint, format!("inbox_{column}"), "{error:?}");
    }
}

/// Invalid rows are rejected by the INSERT; existing ones are kept as dead letters.
#[tokio::test]
async fn claim_survives_any_column_value() {
    let db = Fixture::new().await;
    let far = "'2399-01-01'";
    let values = [
        ("put_at", "'infinity'", true),
        ("put_at", "'-infinity'", true),
        ("put_at", far, false),
        ("due_at", "'infinity'", true),
        ("due_at", "'-infinity'", true),
        ("deadline_at", "'infinity'", true),
        ("deadline_at", "'294000-01-01'", true),
        ("deadline_at", far, false),
        ("run_timeout_ms", "9223372036854775807", true),
        ("run_timeout_ms", "-9223372036854775808", true),
        ("attributes", "'{\"a\": 1}'", true),
        ("attributes", "'{\"\": \"x\"}'", false),
        ("attributes", "'{\"d\": \"\"}'", false),
        ("attributes", "'{\"d\": \"a\\nb\"}'", false),
        ("attributes", "'{\"d=e\": \"x\"}'", false),
        ("attributes", "(SELECT jsonb_object_agg(n, 'x') FROM generate_series(1, 65) AS n)", false),
        ("workflow_id", "E'a\\nb'", false),
        ("app_version", "E'\\x1b'", false),
        ("queue", "E'\\x7f'", false),
    ];
    let insert = |key: Key, column: &str, value: &str| {
        format!(
            "INSERT INTO inbox (key, workflow, input, {column}) VALUES ('{key}', 'order', '\\x00', {value})"
        )
    };
    for (column, value, _) in values.iter().filter(|(.., at_the_door)| *at_the_door) {
        let error = db.sql.execute(&insert(Key::mint(0), column, value), &[]).await.unwrap_err();
        let constraint = error.as_db_error().and_then(|error| error.constraint()).unwrap_or_default();
        assert!(constraint.starts_with(&format!("inbox_{column}")), "{column} {value}: {error:?}");
    }
    for name in ["put_at", "due_at", "deadline_at", "run_timeout_ms", "attributes_are_texts"] {
        db.sql.batch_execute(&format!("ALTER TABLE inbox DROP CONSTRAINT inbox_{name}")).await.unwrap();
    }
    for (n, (column, value, _)) in values.into_iter().enumerate() {
        let [invalid, valid] = [Key::mint(0), Key::mint(0)];
        db.sql.execute(&insert(invalid, column, value), &[]).await.unwrap();
        db.sql.execute(&insert(valid, "fingerprint", "-1"), &[]).await.unwrap();
        let claimed: Vec<Key> = db.take(9).await.iter().map(|record| record.execution.key).collect();
        assert_eq!(claimed, [valid], "{column} {value}");
        assert_eq!(db.count("inbox").await, 0, "{column} {value}");
        let dead = db.store.dead_letters(100).await.unwrap();
        assert_eq!((dead.len(), dead[0].key), (n + 1, invalid));
        let names = match column {
            "attributes" => "attribute",
            "workflow_id" | "app_version" | "queue" => "a control character",
            column => column,
        };
        assert!(dead[0].reason.contains(names), "{:?}", dead[0]);
    }
    // extreme values within the bounds
    for (column, value) in [("run_timeout_ms", "0"), ("fingerprint", "-9223372036854775808")] {
        let key = Key::mint(0);
        db.sql.execute(&insert(key, column, value), &[]).await.unwrap();
        assert_eq!(db.take(9).await[0].execution.key, key);
    }
}

#[tokio::test]
async fn copied_row_is_no_conflicting_start() {
    let db = Fixture::new().await;
    for more in ["attributes", "due_at", "fingerprint"] {
        let value = match more {
            "attributes" => "'{\"a\": \"x\"}'",
            "due_at" => "clock_timestamp() + interval '1 hour'",
            _ => "7",
        };
        let (key, valid) = (Key::mint(0), Key::mint(0));
        let copy = format!(
            "INSERT INTO inbox (key, workflow, input, {more}) VALUES ('{key}', 'order', '\\x00', {value})"
        );
        let next = format!("INSERT INTO inbox (key, workflow, input) VALUES ('{valid}', 'order', '\\x00')");
        db.sql.batch_execute(&format!("{copy}; {copy}; {next}")).await.unwrap();
        let claimed: Vec<Key> = db.take(9).await.iter().map(|record| record.execution.key).collect();
        assert_eq!(claimed.contains(&key), more != "due_at", "{more}: {claimed:?}");
        assert!(claimed.contains(&valid), "{more}: {claimed:?}");
        db.sql.batch_execute(&copy).await.unwrap();
        assert_eq!(db.take(9).await, []);
        assert_eq!((db.count("inbox").await, db.count("dead_letters").await), (0, 0), "{more}");
    }
}

/// A rejected row does not decide about later rows of the same key.
#[tokio::test]
async fn row_becomes_execution_after_rejected_row_of_same_key() {
    let db = Fixture::new().await;
    let there = InboxStart { id: Some("x"), dedup_id: Some("d"), queue: Some("a"), ..inbox_start() };
    insert_start(&db.sql, &there).await;
    assert_eq!(db.take(9).await.len(), 1);
    // columns and values of the first row, and of the second row
    let cases = [
        ("attributes", "'{\"d\": \"\"}'", "attributes", "'{\"d\": \"x\"}'"),
        ("queue, dedup_id", "'a', 'd'", "queue, dedup_id", "'a', 'e'"),
        ("queue, dedup_id", "'a', 'd'", "queue, due_at", "'a', '2020-01-01'"),
        ("workflow_id", "'x'", "workflow_id", "'y'"),
    ];
    for (n, (first, invalid, second, valid)) in cases.into_iter().enumerate() {
        let key = Key::mint(0);
        let insert = |columns: &str, values: &str| {
            format!(
                "INSERT INTO inbox (key, workflow, input, {columns}) VALUES ('{key}', 'order', '\\x00', {values}); "
            )
        };
        let both = [insert(first, invalid), insert(second, valid)].concat();
        db.sql.batch_execute(&format!("BEGIN; {both} {both} COMMIT")).await.unwrap();
        let mut claimed = Vec::new();
        for _ in 0..3 {
            claimed.extend(db.take(9).await.iter().map(|record| record.execution.key));
        }
        assert_eq!(claimed, [key], "{second}");
        assert_eq!(db.count("inbox").await, 0, "{second}");
        // the first row of the first case, each time, and that of the last case, once its key is taken
        assert_eq!(db.count("dead_letters").await, if n < 3 { 2 } else { 3 }, "{second}");
        assert_eq!(db.count("executions").await, n as i64 + 2, "{second}");
    }
    // copies of existing executions are removed soon
    let copy = InboxStart { dedup_id: Some("d"), queue: Some("a"), ..inbox_start() };
    for _ in 0..20 {
        insert_start(&db.sql, &copy).await;
    }
    for _ in 0..2 {
        assert_eq!(db.take(9).await, []);
    }
    assert_eq!((db.count("inbox").await, db.count("dead_letters").await), (0, 3));
}

#[tokio::test]
async fn conflicting_start_becomes_dead_letter() {
    let db = Fixture::new().await;
    let first = Key::mint(0);
    let insert = |key: Key, workflow: &str, id: &str, fingerprint: i64| {
        format!(
            "INSERT INTO inbox (key, workflow, workflow_id, fingerprint, input) \
             VALUES ('{key}', '{workflow}', '{id}', {fingerprint}, '\\x00')"
        )
    };
    // in one claim, and in a later claim
    for round in 0..2 {
        let rows = [
            insert(first, "order", "x", 7),
            insert(Key::mint(0), "order", "x", 7),
            insert(Key::mint(0), "order", "x", 8),
            insert(Key::mint(0), "other", "x", 7),
            insert(first, "order", "y", 7),
            insert(Key::from_bytes([0xff; 16]), "order", "z", 7),
        ];
        db.sql.batch_execute(&rows.join("; ")).await.unwrap();
        let claimed: Vec<Key> = db.take(9).await.iter().map(|record| record.execution.key).collect();
        assert_eq!(claimed, if round == 0 { vec![first] } else { vec![] });
        let dead = db.store.dead_letters(4).await.unwrap();
        let reasons: Vec<&str> = dead.iter().rev().map(|letter| &*letter.reason).collect();
        let words =
            ["its workflow_id", "its workflow_id", "its key is", "shard 1023, and this store is shard 0"];
        for (reason, words) in reasons.iter().zip(words) {
            assert!(reason.contains(words), "{reasons:?}");
        }
        assert_eq!((db.count("inbox").await, db.count("dead_letters").await), (0, 4 * (round + 1)));
    }
}

#[tokio::test]
async fn row_rejected_by_trigger_becomes_dead_letter() {
    let db = Fixture::new().await;
    // triggers that were added to the tables, with any error code
    db.sql
        .batch_execute(
            "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ \
             BEGIN RAISE 'not this one' USING ERRCODE = NEW.workflow_id; END $$; \
             CREATE TRIGGER reject BEFORE INSERT ON executions FOR EACH ROW WHEN (NEW.workflow_id IS NOT NULL) \
             EXECUTE FUNCTION reject()",
        )
        .await
        .unwrap();
    let (codes, mut valid_keys) = (["P0001", "23505", "0A000"], Vec::new());
    for n in 0..400 {
        let invalid = codes.get(n / 100).filter(|_| n % 100 == 50);
        let inbox_start = InboxStart { id: invalid.copied(), ..inbox_start() };
        insert_start(&db.sql, &inbox_start).await;
        valid_keys.extend(invalid.is_none().then_some(inbox_start.key));
    }
    let mut claimed = Vec::new();
    while claimed.len() < valid_keys.len() {
        // an engine claims again
        claimed.extend(db.try_take(1000).await.into_iter().flatten().map(|it| it.execution.key));
    }
    assert_eq!(claimed, valid_keys);
    let dead = db.store.dead_letters(9).await.unwrap();
    assert_eq!(dead.len(), codes.len());
    assert!(dead.iter().all(|letter| letter.reason.contains("not this one")), "{dead:?}");
    assert_eq!(db.count("inbox").await, 0);
}

#[tokio::test]
async fn claim_survives_caller_chosen_row_id() {
    let db = Fixture::new().await;
    for round in 1..=3 {
        let (invalid, valid) = (Key::from_bytes([0xff; 16]), Key::mint(0));
        // the INSERT privilege is enough for this
        let insert = |id: i64, key: Key| {
            format!(
                "INSERT INTO inbox (id, key, workflow, input) OVERRIDING SYSTEM VALUE VALUES ({id}, '{key}', 'order', '\\x00')"
            )
        };
        db.sql.batch_execute(&format!("{}; {}", insert(7, invalid), insert(8, valid))).await.unwrap();
        assert_eq!(db.take(9).await[0].execution.key, valid);
        assert_eq!((db.count("inbox").await, db.count("dead_letters").await), (0, round));
    }
    // a claim that isolates a single row
    let reject = "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$; \
                  CREATE TRIGGER reject BEFORE INSERT ON executions FOR EACH ROW EXECUTE FUNCTION reject(); \
                  INSERT INTO inbox (id, key, workflow, input) OVERRIDING SYSTEM VALUE \
                  VALUES (7, gen_random_uuid(), 'order', '\\x00'); \
                  UPDATE inbox SET key = overlay(key::text PLACING '0000' FROM 33)::uuid";
    db.sql.batch_execute(reject).await.unwrap();
    for _ in 0..20 {
        // an engine claims again
        let _ = db.try_take(9).await;
    }
    assert_eq!(db.count("inbox").await, 0);
    let dead = db.store.dead_letters(9).await.unwrap();
    assert_eq!(dead.len(), 4);
    assert!(dead[0].reason.contains("not this one"), "{dead:?}");
    assert!(dead.windows(2).all(|pair| pair[0].id > pair[1].id), "{dead:?}");
}

#[tokio::test]
async fn deadline_expires_while_inbox_row_waits() {
    let db = Fixture::new().await;
    let queue = QueueChange { queue: Queue::new("a"), is_paused: true, expected_version: 0 };
    db.store.change_queue(&queue).await.unwrap();
    let [with, without] = [inbox_start(), inbox_start()].map(|it| InboxStart { queue: Some("a"), ..it });
    for it in [&with, &without] {
        insert_start(&db.sql, it).await;
    }
    let limit = "UPDATE inbox SET deadline_at = to_timestamp($2::float8 / 1000000) WHERE key = $1";
    db.sql.execute(limit, &[&uuid(with.key), &(later(10).as_micros() as f64)]).await.unwrap();
    assert_eq!(db.take(9).await, []);
    db.clock.advance(Duration::from_secs(11));
    assert_eq!(db.store.heartbeat(&heartbeat_request(&db.worker)).await.unwrap().expired, [with.key]);
}
