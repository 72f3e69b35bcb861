//! A database of an older schema is brought up to date with all that is in it.

#![allow(clippy::unwrap_used)]

mod kit;

use refinery::{Migration, Runner};
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::record::{Detail, ExecutionId, Status};
use stepfast_core::store::Store;
use stepfast_sqlite::{SqliteOptions, SqliteStore};

use kit::{Worker, place};

/// The bytes of a payload that says nothing special: what a column holds, not what it means.
const INPUT: &[u8] = &[0, 1];

fn first_version(conn: &mut Connection) {
    let initial = include_str!("../migrations/V1__initial.sql");
    let mut runner = Runner::new(&[Migration::unapplied("V1__initial", initial).unwrap()]);
    runner.set_migration_table_name("schema_version");
    runner.run(conn).unwrap();
}

#[tokio::test]
async fn what_was_ready_before_there_were_queues_goes_on() {
    let (_dir, path) = place();
    let mut conn = Connection::open(&path).unwrap();
    first_version(&mut conn);
    let [ended, begun, fresh] = [(); 3].map(|()| Key::mint());
    let insert = "INSERT INTO executions (key, shard, workflow, status, created_at, input) VALUES (?1, 1, 'w', ?2, ?3, ?4)";
    for (n, (key, status)) in [(ended, 4), (begun, 1), (fresh, 1)].into_iter().enumerate() {
        conn.execute(insert, (key.as_bytes(), status, n as i64, INPUT)).unwrap();
    }
    for (key, seq) in [(begun, 7), (fresh, 8)] {
        let ready = "INSERT INTO ready (execution, seq, workflow) VALUES (?1, ?2, 'w')";
        conn.execute(ready, (key.as_bytes(), seq)).unwrap();
    }
    let checkpoint = "INSERT INTO checkpoints (execution, path, run_no, order_no, kind, step_name, recorded_at, took_ms, outcome)
                      VALUES (?1, x'01', 1, 1, 1, 'charge', 5, 6, ?2)";
    conn.execute(checkpoint, (begun.as_bytes(), INPUT)).unwrap();
    drop(conn);

    let worker = Worker::at(&path).await;
    let claimed = worker.claim(9, &["w"]).await;
    let keys: Vec<Key> = claimed.iter().map(|record| record.execution.key).collect();
    assert_eq!(keys, [begun, fresh], "as old as they were");
    assert_eq!(claimed[0].checkpoints.len(), 1, "what it had done is not done again");
    assert!(claimed.iter().all(|record| record.execution.ticket.is_none()));
    let ids = [ExecutionId::Key(ended)];
    let loaded = worker.store.load(&ids, Detail::Full).await.unwrap().remove(0).unwrap();
    assert_eq!((loaded.execution.status, loaded.execution.input.as_bytes()), (Status::Completed, INPUT));
    drop(worker);
    // and nothing is left of the way there
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let conn = Connection::open(&path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    let left: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%\\_2' ESCAPE '\\'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!((check.as_str(), left), ("ok", 0));
}
