//! Claims: their selection, order and size.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Start, Status, Store, Write};
use support::*;

fn of(key: Key, workflow: &str) -> Write {
    let mut start = start(key, queued());
    start.workflow = Arc::from(workflow);
    start_write(start)
}

#[tokio::test]
async fn claim_takes_oldest_of_all_requested_workflows() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    // keys in another order than that of queueing, and more than a page per workflow
    let mut keys: Vec<Key> = (0..300).map(|_| Key::mint(0)).collect();
    let seed = fastrand::u64(..);
    fastrand::Rng::with_seed(seed).shuffle(&mut keys);
    let names = ["a", "b", "c"];
    for (i, key) in keys.iter().enumerate() {
        worker.commit(vec![of(*key, names[(i / 7) % 3])]).await;
    }
    let wanted: Vec<Key> =
        keys.iter().enumerate().filter(|(i, _)| (i / 7) % 3 != 1).map(|(_, key)| *key).collect();
    let mut claimed = worker.claim_keys(11, &["c", "a", "unknown"]).await;
    assert_eq!(claimed.len(), 11);
    claimed.extend(worker.claim_keys(1000, &["c", "a", "unknown"]).await);
    assert_eq!(claimed, wanted, "seed {seed}");
    assert_eq!(worker.claim_keys(1000, &["a", "c"]).await, []);
    assert_eq!(worker.claim_keys(1000, &[]).await, []);
    assert_eq!(worker.claim_keys(1000, &["b"]).await.len(), 300 - wanted.len());
}

#[tokio::test]
async fn claim_returns_record_and_sets_running() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let begun = Start { has_begun: true, ..start(id, queued()) };
    worker.commit(vec![start_write(begun), Write::Checkpoint(checkpoint(id, 1, "one"))]).await;
    let reply = worker.heartbeat().await;
    assert!(reply.has_ready);
    let claimed = worker.claim(5, &["w"]).await;
    assert_eq!(claimed, [worker.record(id).await]);
    let row = &claimed[0].execution;
    assert_eq!((row.status, row.owner), (Status::Running, Some(worker.registration.worker)));
    assert_eq!((&row.input, claimed[0].checkpoints.len()), (&value("input"), 1));
    assert!(!worker.heartbeat().await.has_ready);
}

#[tokio::test]
async fn due_timers_precede_ready_rows_and_are_never_early() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let [first, second, third, ready, foreign] = std::array::from_fn(|_| Key::mint(0));
    let mut unknown = start(foreign, waiting(Some(later(1)), &[]));
    unknown.workflow = Arc::from("unknown");
    worker
        .commit(vec![
            start_write(start(ready, queued())),
            start_write(start(third, waiting(Some(later(30)), &[]))),
            start_write(start(second, waiting(Some(later(20)), &[Key::mint(0)]))),
            start_write(start(first, waiting(Some(later(10)), &[]))),
            start_write(unknown),
        ])
        .await;
    assert_eq!(worker.heartbeat().await.next_due, Some(later(10)));
    worker.clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(worker.claim_keys(1, &["w"]).await, [ready]);
    assert_eq!(worker.claim_keys(1, &["w"]).await, []);
    worker.clock.advance(Duration::from_secs(11));
    worker.commit(vec![transition(ready, queued())]).await;
    assert_eq!(worker.claim_keys(3, &["w"]).await, [first, second, ready]);
    let reply = worker.heartbeat().await;
    assert_eq!(reply.next_due, Some(later(30)));
    assert_eq!(worker.record(second).await.execution.wake_at, None);
    let conn = Connection::open(&path).unwrap();
    let waits: i64 = conn.query_row("SELECT count(*) FROM waits", [], |row| row.get(0)).unwrap();
    assert_eq!(waits, 0);
}

#[tokio::test]
async fn claim_stops_at_byte_limit_after_first_record() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    for _ in 0..5 {
        let mut start = start(Key::mint(0), queued());
        start.input = Payload::encode(&"x".repeat(1000)).unwrap();
        worker.commit(vec![start_write(start)]).await;
    }
    let mut claim = worker.claim_request(5, &["w"]);
    claim.max_bytes = 0;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 1);
    claim.max_bytes = 1500;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 2);
    claim.max_bytes = 1 << 20;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 2);
}

#[tokio::test]
async fn stale_ready_rows_are_deleted_and_use_no_capacity() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let [ended, held, parked_id, good] = std::array::from_fn(|_| Key::mint(0));
    worker
        .commit(vec![
            start_write(start(ended, completed("done"))),
            start_write(start(held, running())),
            start_write(start(parked_id, parked("why"))),
            start_write(start(good, queued())),
        ])
        .await;
    let conn = Connection::open(&path).unwrap();
    for id in [ended, held, parked_id, Key::mint(0)] {
        conn.execute(
            "INSERT INTO ready (execution, seq, route) VALUES (?1, 0, 'w' || char(1, 1) || 'default')",
            [&id.as_bytes()[..]],
        )
        .unwrap();
    }
    assert_eq!(worker.claim_keys(1, &["w"]).await, [good]);
    let rows: i64 = conn.query_row("SELECT count(*) FROM ready", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn hot_statements_never_scan_tables() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    worker.commit((0..100).map(|_| start_write(start(Key::mint(0), queued()))).collect()).await;
    let conn = Connection::open(&path).unwrap();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/queries")).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let sql = std::fs::read_to_string(&file).unwrap();
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Vec<String> =
            statement.raw_query().mapped(|row| row.get(3)).collect::<Result<_, _>>().unwrap();
        let scans: Vec<_> = plan
            .iter()
            // json_each is a virtual table, and `p` is the alias of a common table expression
            .filter(|line| line.starts_with("SCAN") && !line.contains("VIRTUAL TABLE"))
            .filter(|line| {
                !["CONSTANT ROW", "p"].contains(&&line[5..]) && !line.starts_with("SCAN (subquery")
            })
            .collect();
        // These statements may scan. The filters determine the plan of `list`. Only sweeps, and the end of a registration, scan all waits. Slots are few, and a sweep scans them.
        // Overviews and lists are for people. Of the inbox, the first rows are needed.
        let meant = [
            "list.sql",
            "satisfied_waits.sql",
            "delete_orphaned_slots.sql",
            "workers.sql",
            "queues.sql",
            "graphs.sql",
            "waiting_work.sql",
            "inbox_rows.sql",
            "dead_letters.sql",
        ];
        let is_meant = meant.contains(&&*name);
        assert!(is_meant || scans.is_empty(), "{name}: {plan:?}");
        assert!(!plan.iter().any(|line| line.contains("AUTOMATIC")), "{name}: {plan:?}");
    }
}
