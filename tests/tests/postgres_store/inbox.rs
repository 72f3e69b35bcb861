//! The inbox: starts that foreign transactions have put there.

use std::time::Duration;

use stepfast_core::queue::{Queue, QueueChange};
use stepfast_core::record::Status;
use stepfast_core::store::Claim;
use stepfast_core::write::Outcome;
use stepfast_core::{Key, Store};
use tokio_postgres::Client;

use super::support::*;

const PUT: &str = "INSERT INTO inbox (shard, key, workflow, workflow_id, queue, queue_key, priority, dedup_id, due_at, input) \
                   VALUES (1, $1, 'order', $2, $3, $4, $5, $6, clock_timestamp() + $7::bigint * interval '1 second', '\\x00')";

struct Letter {
    key: Key,
    id: Option<&'static str>,
    queue: Option<&'static str>,
    dedup_id: Option<&'static str>,
    delay: Option<i64>,
}

fn letter() -> Letter {
    Letter { key: Key::mint(), id: None, queue: None, dedup_id: None, delay: None }
}

async fn put(sql: &Client, letter: &Letter) {
    let Letter { key, id, queue, dedup_id, delay } = letter;
    let of = queue.map(|_| "k");
    let priority = queue.map(|_| 3_i32);
    sql.execute(PUT, &[&uuid(*key), id, queue, &of, &priority, dedup_id, delay]).await.unwrap();
}

#[tokio::test]
async fn what_is_put_there_becomes_an_execution_when_its_transaction_commits() {
    let db = Fixture::new().await;
    let foreign = client(&db.schema).await;
    let [gone, first, second] = [(); 3].map(|()| letter());
    foreign.batch_execute("BEGIN").await.unwrap();
    put(&foreign, &gone).await;
    foreign.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    put(&foreign, &first).await;
    put(&foreign, &Letter { queue: Some("a"), ..letter() }).await;
    assert!(!db.look().await.has_ready);
    assert_eq!(db.take(9).await, []);
    foreign.batch_execute("COMMIT").await.unwrap();
    put(&foreign, &second).await;
    assert!(db.look().await.has_ready);
    let taken = db.take(9).await;
    assert_eq!(taken.len(), 3);
    assert!([first.key, second.key].iter().all(|key| taken.iter().any(|it| it.execution.key == *key)));
    let queued = taken.iter().find_map(|it| it.execution.ticket.as_deref()).unwrap();
    assert_eq!((&*queued.queue, &*queued.key, queued.priority), ("a", "k", 3));
    assert_eq!((db.count("inbox").await, db.count("executions").await), (0, 3));
    assert!(!db.look().await.has_ready);
}

#[tokio::test]
async fn what_is_there_already_is_started_once() {
    let db = Fixture::new().await;
    let both = [Some("x"), Some("x")];
    for id in both {
        put(&db.sql, &Letter { id, ..letter() }).await;
        put(&db.sql, &Letter { dedup_id: id, queue: Some("a"), ..letter() }).await;
    }
    assert_eq!(db.take(9).await.len(), 2);
    put(&db.sql, &Letter { id: Some("x"), ..letter() }).await;
    put(&db.sql, &Letter { dedup_id: Some("x"), queue: Some("a"), ..letter() }).await;
    assert_eq!(db.take(9).await.len(), 0);
    assert_eq!((db.count("inbox").await, db.count("executions").await), (0, 2));
}

#[tokio::test]
async fn what_is_delayed_comes_later() {
    let db = Fixture::new().await;
    let late = Letter { delay: Some(3600), queue: Some("a"), ..letter() };
    put(&db.sql, &late).await;
    let now = Letter { delay: Some(-1_000_000_000), ..letter() };
    put(&db.sql, &now).await;
    assert_eq!(db.take(9).await[0].execution.key, now.key);
    assert_eq!(db.status(late.key).await, Status::Scheduled);
    assert_eq!((db.count("timers").await, db.count("ready").await), (1, 0));
}

#[tokio::test]
async fn it_enters_a_full_queue_and_counts() {
    let db = Fixture::new().await;
    let queue = Queue::new("a").max_depth(2);
    let change = QueueChange { queue, is_paused: false, seen_version: 0 };
    db.store.change_queue(&change).await.unwrap();
    for _ in 0..3 {
        put(&db.sql, &Letter { queue: Some("a"), ..letter() }).await;
    }
    assert_eq!(db.take(1).await.len(), 1);
    let more = || {
        let ticket = stepfast_core::queue::Ticket { queue: "a".into(), key: "".into(), priority: 0 };
        let mut start = start(Key::mint(), QUEUED);
        if let stepfast_core::write::Write::Start(start) = &mut start {
            start.ticket = Some(ticket.into());
        }
        start
    };
    assert_eq!(db.outcome(more()).await, Outcome::Full);
    assert_eq!(db.take(1).await.len(), 1);
    assert_eq!(db.outcome(more()).await, Outcome::Applied);
}

#[tokio::test]
async fn two_workers_receive_everything_once() {
    let db = Fixture::with(|options| options.lock_timeout(Duration::from_secs(30))).await;
    let other = db.other().await;
    let second = other.register(3, &info(&[])).await.unwrap();
    for n in 0..300 {
        let queue = (n % 3 == 0).then_some("a");
        put(&db.sql, &Letter { queue, ..letter() }).await;
    }
    let mut taken = std::collections::HashSet::new();
    for number in 1.. {
        let mine = Claim { number, ..db.claim(40) };
        let theirs = Claim { worker: second.worker, epoch: second.epoch, ..mine.clone() };
        let (mine, theirs) = tokio::join!(db.store.claim(&mine), other.claim(&theirs));
        let (mine, theirs) = (mine.unwrap().records, theirs.unwrap().records);
        if mine.is_empty() && theirs.is_empty() {
            break;
        }
        for record in mine.iter().chain(&theirs) {
            assert!(taken.insert(record.execution.key));
        }
    }
    assert_eq!(taken.len(), 300);
    assert_eq!(db.count("inbox").await, 0);
}

#[tokio::test]
async fn what_cannot_become_an_execution_is_refused_at_once() {
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
            "INSERT INTO inbox (shard, key, input, {workflow}{column}) \
             VALUES (1, gen_random_uuid(), '', {order}{value})"
        );
        let error = db.sql.execute(&sql, &[]).await.unwrap_err();
        let constraint = error.as_db_error().and_then(|error| error.constraint()).unwrap_or_default();
        assert_eq!(constraint, format!("inbox_{column}"), "{error:?}");
    }
}

/// Rows that an application with the right to insert may leave, each beside an innocent one that is claimed.
#[tokio::test]
async fn no_value_of_a_row_stops_a_claim() {
    let db = Fixture::new().await;
    let columns = "shard, key, workflow, input";
    let twice = Key::mint();
    let values = [
        ("put_at", "'infinity'"),
        ("put_at", "'-infinity'"),
        ("due_at", "'infinity'"),
        ("due_at", "'-infinity'"),
        ("deadline_at", "'infinity'"),
        ("deadline_at", "'294000-01-01'"),
        ("deadline_at", "'-infinity'"),
        ("run_timeout_ms", "9223372036854775807"),
        ("run_timeout_ms", "-9223372036854775808"),
        ("run_timeout_ms", "0"),
        ("fingerprint", "-1"),
        ("attributes", "'{\"a\": 1, \"b\": null, \"c\": {}, \"\": \"x\", \"d\": \"\"}'"),
    ];
    for (column, value) in values {
        let [odd, innocent] = [Key::mint(), Key::mint()];
        db.sql
            .batch_execute(&format!(
                "INSERT INTO inbox ({columns}, {column}) VALUES (1, '{odd}', 'order', '\\x00', {value}); \
                 INSERT INTO inbox ({columns}) VALUES (1, '{innocent}', 'order', '\\x00')"
            ))
            .await
            .unwrap();
        let taken: Vec<Key> = db.take(9).await.iter().map(|record| record.execution.key).collect();
        assert!(taken.contains(&innocent), "{column} {value}: {taken:?}");
        assert_eq!(taken.contains(&odd), value != "'infinity'" || column != "due_at", "{column} {value}");
        assert_eq!(db.count("inbox").await, 0, "{column} {value}");
    }
    // a copied row, with all that is inserted beside it
    for more in ["attributes", "due_at"] {
        let value =
            if more == "attributes" { "'{\"a\": \"x\"}'" } else { "clock_timestamp() + interval '1 hour'" };
        let (key, innocent) = (if more == "due_at" { Key::mint() } else { twice }, Key::mint());
        let copy =
            format!("INSERT INTO inbox ({columns}, {more}) VALUES (1, '{key}', 'order', '\\x00', {value})");
        let next = format!("INSERT INTO inbox ({columns}) VALUES (1, '{innocent}', 'order', '\\x00')");
        db.sql.batch_execute(&format!("{copy}; {copy}; {next}")).await.unwrap();
        let taken: Vec<Key> = db.take(9).await.iter().map(|record| record.execution.key).collect();
        assert!(taken.contains(&innocent), "{more}: {taken:?}");
        assert_eq!(db.count("inbox").await, 0, "{more}");
    }
    // what has an infinite time goes on like others: it is woken, handed back, and taken over
    assert!(db.look().await.next_due.is_some());
}
