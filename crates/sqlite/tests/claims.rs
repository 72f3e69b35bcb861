//! What is claimed, in which order, and how much.

#![allow(clippy::unwrap_used)]

mod kit;

use std::sync::Arc;
use std::time::Duration;

use kit::*;
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{Start, Status, Store, Write};

fn of(key: Key, workflow: &str) -> Write {
    let mut start = start(key, queued());
    start.workflow = Arc::from(workflow);
    put(start)
}

#[tokio::test]
async fn the_oldest_comes_first_over_all_workflows_and_only_those_asked_for() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    // keys in another order than queueing, and more than a page of each
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
async fn a_claim_brings_the_record_and_makes_it_running() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let begun = Start { has_begun: true, ..start(id, queued()) };
    worker.commit(vec![put(begun), Write::Checkpoint(checkpoint(id, 1, "one"))]).await;
    let seen = worker.look().await;
    assert!(seen.has_ready);
    let claimed = worker.claim(5, &["w"]).await;
    assert_eq!(claimed, [worker.record(id).await]);
    let row = &claimed[0].execution;
    assert_eq!((row.status, row.owner), (Status::Running, Some(worker.registration.worker)));
    assert_eq!((&row.input, claimed[0].checkpoints.len()), (&value("input"), 1));
    assert!(!worker.look().await.has_ready);
}

#[tokio::test]
async fn timers_that_are_due_come_before_what_is_ready_and_never_early() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let [first, second, third, ready, foreign] = std::array::from_fn(|_| Key::mint(0));
    let mut unknown = start(foreign, waiting(Some(later(1)), &[]));
    unknown.workflow = Arc::from("unknown");
    worker
        .commit(vec![
            put(start(ready, queued())),
            put(start(third, waiting(Some(later(30)), &[]))),
            put(start(second, waiting(Some(later(20)), &[Key::mint(0)]))),
            put(start(first, waiting(Some(later(10)), &[]))),
            put(unknown),
        ])
        .await;
    assert_eq!(worker.look().await.next_due, Some(later(10)));
    worker.clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(worker.claim_keys(1, &["w"]).await, [ready]);
    assert_eq!(worker.claim_keys(1, &["w"]).await, []);
    worker.clock.advance(Duration::from_secs(11));
    worker.commit(vec![change(ready, queued())]).await;
    assert_eq!(worker.claim_keys(2, &["w"]).await, [first, second]);
    assert_eq!(worker.claim_keys(9, &["w"]).await, [ready]);
    let seen = worker.look().await;
    assert_eq!(seen.next_due, Some(later(30)));
    assert_eq!(worker.record(second).await.execution.wake_at, None);
    let conn = Connection::open(&path).unwrap();
    let waits: i64 = conn.query_row("SELECT count(*) FROM waits", [], |row| row.get(0)).unwrap();
    assert_eq!(waits, 0);
}

#[tokio::test]
async fn a_claim_stops_when_it_has_enough_bytes_but_brings_one() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    for _ in 0..5 {
        let mut start = start(Key::mint(0), queued());
        start.input = Payload::encode(&"x".repeat(1000)).unwrap();
        worker.commit(vec![put(start)]).await;
    }
    let mut claim = worker.claim_of(5, &["w"]);
    claim.max_bytes = 0;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 1);
    claim.max_bytes = 1500;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 2);
    claim.max_bytes = 1 << 20;
    assert_eq!(worker.store.claim(&claim).await.unwrap().records.len(), 2);
}

#[tokio::test]
async fn stale_ready_rows_are_removed_and_cost_nobody_a_place() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let [ended, held, parked_one, good] = std::array::from_fn(|_| Key::mint(0));
    worker
        .commit(vec![
            put(start(ended, completed("done"))),
            put(start(held, running())),
            put(start(parked_one, parked("why"))),
            put(start(good, queued())),
        ])
        .await;
    let conn = Connection::open(&path).unwrap();
    for id in [ended, held, parked_one, Key::mint(0)] {
        conn.execute(
            "INSERT INTO ready (execution, seq, workflow) VALUES (?1, 0, 'w')",
            [&id.as_bytes()[..]],
        )
        .unwrap();
    }
    assert_eq!(worker.claim_keys(1, &["w"]).await, [good]);
    let rows: i64 = conn.query_row("SELECT count(*) FROM ready", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn hot_statements_never_scan_a_table() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    worker.commit((0..100).map(|_| put(start(Key::mint(0), queued()))).collect()).await;
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
            // a virtual table is what json_each makes of a text
            .filter(|line| line.starts_with("SCAN") && !line.contains("VIRTUAL TABLE"))
            .filter(|line| !["CONSTANT ROW", "w"].contains(&&line[5..]))
            .collect();
        // `list` is what its filters make of it; `requests` is small, and all of it is wanted; all that waits
        // is looked through when a worker was lost, and only then; slots are few, and a sweep looks through them; surveys and
        // lists are for people; of the inbox the first are wanted; and `w` is no table
        let meant = [
            "list.sql",
            "asked.sql",
            "called.sql",
            "stray_slots.sql",
            "workers.sql",
            "queues.sql",
            "waiting.sql",
            "inbox.sql",
            "dead_letters.sql",
        ];
        let is_meant = meant.contains(&&*name);
        assert!(is_meant || scans.is_empty(), "{name}: {plan:?}");
        assert!(!plan.iter().any(|line| line.contains("AUTOMATIC")), "{name}: {plan:?}");
    }
}
