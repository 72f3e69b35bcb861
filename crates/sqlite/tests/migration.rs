//! Migrations of databases with older schemas and their content.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write as _};
use std::path::Path;

use refinery::{Migration, Runner};
use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::path::Path as CallPath;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    Checkpoint, Detail, ExecutionId, Outcome, State, Status, Store, StoreError, Write,
};
use stepfast_sqlite::{SqliteOptions, SqliteStore};

use support::{Worker, checkpoint, later, resume, running, start, start_write, temp_database, transition};

/// The stored bytes of an arbitrary payload.
const INPUT: &[u8] = &[0, 1];

const VERSIONS: [(&str, &str); 9] = [
    ("V1__initial", include_str!("../migrations/V1__initial.sql")),
    ("V2__queues", include_str!("../migrations/V2__queues.sql")),
    ("V3__hardening", include_str!("../migrations/V3__hardening.sql")),
    ("V4__graphs", include_str!("../migrations/V4__graphs.sql")),
    ("V5__neighbours", include_str!("../migrations/V5__neighbours.sql")),
    ("V6__batches", include_str!("../migrations/V6__batches.sql")),
    ("V7__messages", include_str!("../migrations/V7__messages.sql")),
    ("V8__events", include_str!("../migrations/V8__events.sql")),
    ("V9__streams", include_str!("../migrations/V9__streams.sql")),
];

/// Creates the schema of a version.
fn create_schema(conn: &mut Connection, version: usize) {
    let of = |(name, text): &(&str, &str)| Migration::unapplied(name, text).unwrap();
    let migrations: Vec<Migration> = VERSIONS[..version].iter().map(of).collect();
    let mut runner = Runner::new(&migrations);
    runner.set_migration_table_name("schema_version");
    runner.run(conn).unwrap();
}

#[tokio::test]
async fn ready_executions_of_version_1_continue() {
    let (_dir, path) = temp_database();
    let mut conn = Connection::open(&path).unwrap();
    create_schema(&mut conn, 1);
    let [ended, begun, fresh] = [(); 3].map(|()| Key::mint(0));
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
    assert_eq!(keys, [begun, fresh], "ordered by their age");
    assert_eq!(claimed[0].checkpoints.len(), 1, "the recorded step is kept");
    assert!(claimed.iter().all(|record| record.execution.placement.is_none()));
    let ids = [ExecutionId::Key(ended)];
    let loaded = worker.store.load(&ids, Detail::Full).await.unwrap().remove(0).unwrap();
    assert_eq!((loaded.execution.status, loaded.execution.input.as_bytes()), (Status::Completed, INPUT));
    drop(worker);
    // the migration leaves no temporary table
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let conn = Connection::open(&path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    let leftovers: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%\\_2' ESCAPE '\\'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!((check.as_str(), leftovers), ("ok", 0));
}

/// Enlarges a database to more than 1 GiB: its header counts pages that occupy no space on the disk.
fn enlarge(path: &Path) {
    let (size, pages) = (4_096, (1_u32 << 18) + 100);
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(u64::from(pages) * size).unwrap();
    file.seek(SeekFrom::Start(28)).unwrap();
    file.write_all(&pages.to_be_bytes()).unwrap();
}

#[tokio::test]
async fn large_database_is_migrated_by_operator_only() {
    let (_dir, path) = temp_database();
    let mut conn = Connection::open(&path).unwrap();
    create_schema(&mut conn, 2);
    let key = Key::mint(0);
    let insert = "INSERT INTO executions (key, shard, workflow, status, created_at, input) VALUES (?1, 1, 'w', 4, 1, ?2)";
    conn.execute(insert, (key.as_bytes(), INPUT)).unwrap();
    drop(conn);
    enlarge(&path);
    let found = || SqliteStore::migrate(&path, true).unwrap().found_version;
    for _ in 0..2 {
        let Err(StoreError::Open { reason, .. }) = SqliteStore::open(&path, SqliteOptions::default()) else {
            panic!("it was opened")
        };
        let words = ["has version 2", "needs version 10", "1.0 GiB", "run stepfast db migrate"];
        assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
        assert_eq!(found(), Some(2));
    }
    assert_eq!(SqliteStore::migrate(&path, false).unwrap().migrations.len(), 8);
    assert_eq!(found(), Some(10));
    // the size does not matter once the schema is up to date
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    assert!(store.load(&[ExecutionId::Key(key)], Detail::Full).await.unwrap().remove(0).is_some());
    drop(store);
    assert!(std::fs::metadata(&path).unwrap().len() > 1 << 30);
}

#[tokio::test]
async fn long_payloads_of_version_2_stay_readable_and_replaceable() {
    let (_dir, path) = temp_database();
    let mut conn = Connection::open(&path).unwrap();
    create_schema(&mut conn, 2);
    let long = |len: usize| {
        let mut bytes = vec![0xff; len];
        bytes[0] = 1;
        bytes
    };
    let [ready, failed] = [(); 2].map(|()| Key::mint(0));
    let insert = "INSERT INTO executions (key, shard, workflow, status, created_at, ended_at, input, outcome)
                  VALUES (?1, 1, 'w', ?2, 1, ?3, ?4, ?5)";
    let none: Option<i64> = None;
    conn.execute(insert, (ready.as_bytes(), 1, none, long(5_000), None::<Vec<u8>>)).unwrap();
    conn.execute(insert, (failed.as_bytes(), 5, 2, long(700), long(9_000))).unwrap();
    let failure = "INSERT INTO checkpoints (execution, path, run_no, order_no, kind, step_name, recorded_at, took_ms, outcome)
                   VALUES (?1, x'01', 1, 1, 2, 'charge', 5, 6, ?2)";
    conn.execute(failure, (failed.as_bytes(), long(9_000))).unwrap();
    let attempt =
        "INSERT INTO attempts (execution, path, attempt, failed_at, failure) VALUES (?1, x'01', 1, 5, ?2)";
    conn.execute(attempt, (failed.as_bytes(), long(8_000))).unwrap();
    conn.execute("INSERT INTO ready (execution, seq, workflow) VALUES (?1, 1, 'w')", [ready.as_bytes()])
        .unwrap();
    let insert = "INSERT INTO inbox (put_at, shard, key, workflow, input) VALUES (1, 1, ?1, 'w', ?2)";
    let received = Key::mint(0);
    conn.execute(insert, (received.as_bytes(), long(3_000))).unwrap();
    drop(conn);

    let worker = Worker::at(&path).await;
    let found = worker.record(failed).await;
    assert_eq!(found.execution.input.as_bytes(), long(700));
    assert_eq!(found.execution.outcome.as_bytes(), long(9_000));
    assert_eq!(found.checkpoints[0].outcome.as_bytes(), long(9_000));
    assert_eq!(found.attempts[0].failure.as_bytes(), long(8_000));
    worker.commit(vec![Write::Request(resume(failed))]).await;
    let claimed = worker.claim(9, &["w"]).await;
    let inputs = [(ready, long(5_000)), (failed, long(700)), (received, long(3_000))];
    assert_eq!(claimed.len(), inputs.len());
    for (key, input) in inputs {
        let record = claimed.iter().find(|record| record.execution.key == key).unwrap();
        assert_eq!(record.execution.input.as_bytes(), input);
        assert!(record.execution.outcome.is_empty() && record.checkpoints.is_empty());
        let outcome = Payload::from_slice(&long(6_000));
        let ended = State::Ended { status: Status::Completed, outcome: outcome.clone(), at: later(1) };
        worker.commit(vec![transition(key, ended)]).await;
        assert_eq!(worker.record(key).await.execution.outcome.as_bytes(), outcome.as_bytes());
    }
}

/// Keys of version 2 end in ten random bits. A row whose input resembles a reference to a payload cannot stay.
#[tokio::test]
async fn inbox_rows_of_version_2_become_executions_or_dead_letters() {
    let (_dir, path) = temp_database();
    let mut conn = Connection::open(&path).unwrap();
    create_schema(&mut conn, 2);
    let mut received = Vec::new();
    let tails = [[0xff, 0xff], [0xbe, 0x05], [0x81, 0x00], [0x80, 0x00], [0x93, 0x07]];
    for (n, tail) in tails.into_iter().enumerate() {
        let mut bytes = *Key::mint(0).as_bytes();
        bytes[14..].copy_from_slice(&tail);
        received.push(Key::from_bytes(bytes));
        let id = (n == 1).then_some("mine");
        let input: &[u8] = if n == 4 { &[0xff, 1] } else { INPUT };
        let insert = "INSERT INTO inbox (put_at, shard, key, workflow, workflow_id, attributes, input)
                    VALUES (1, 1, ?1, 'w', ?2, ?3, ?4)";
        conn.execute(insert, (received[n].as_bytes(), id, r#"{"a":"x"}"#, input)).unwrap();
    }
    drop(conn);

    let worker = Worker::at(&path).await;
    let keys = worker.claim_keys(9, &["w"]).await;
    assert!(keys.iter().all(|key| key.shard() == 0), "{keys:?}");
    let begins = |key: &Key| key.as_bytes()[..14].to_vec();
    assert_eq!(
        keys.iter().map(begins).collect::<Vec<_>>(),
        received[..4].iter().map(begins).collect::<Vec<_>>()
    );
    // an outbox returned the text of the key as the workflow_id
    for (n, key) in received[..4].iter().enumerate() {
        let id = if n == 1 { "mine".to_owned() } else { key.to_string() };
        let id = if n == 3 { ExecutionId::Key(*key) } else { ExecutionId::Given(id.into()) };
        let found = worker.store.load(&[id], Detail::Full).await.unwrap().remove(0).unwrap().execution;
        assert_eq!(found.key, keys[n]);
        assert_eq!(found.attributes.iter().collect::<Vec<_>>(), [("a", "x")]);
    }
    let dead = worker.store.dead_letters(9).await.unwrap();
    assert_eq!((dead.len(), dead[0].key.shard(), begins(&dead[0].key)), (1, 0, begins(&received[4])));
    assert!(dead[0].reason.contains("its input begins with byte ff"), "{dead:?}");
    let conn = Connection::open(&path).unwrap();
    let (letter, input): (String, Vec<u8>) = conn
        .query_row("SELECT letter ->> 'attributes', input FROM dead_letters", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!((&*letter, &*input), (r#"{"a":"x"}"#, &[0xff, 1][..]));
}

/// A checkpoint that the migration put into another stripe than the program would not be found by its path: the same
/// checkpoint would be recorded twice.
#[tokio::test]
async fn checkpoints_of_version_9_are_found_by_their_paths() {
    let (_dir, path) = temp_database();
    create_schema(&mut Connection::open(&path).unwrap(), 9);
    let root = CallPath::root();
    let numbers = [0, 1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 240, 241, 300, 2_287, 2_288, 67_823, 67_824];
    let parts = [1 << 23, (1 << 23) + 1, (1 << 23) + 0x3ff].map(|part| root.child(part));
    let calls = numbers.iter().flat_map(|n| [root.child(*n), root.child(1).child(*n), parts[1].child(*n)]);
    let paths: Vec<CallPath> = calls.chain(parts.clone()).chain([root.child(u32::MAX).child(5)]).collect();
    let key = Key::mint(0);
    let of = |index: usize| Checkpoint {
        path: paths[index].clone(),
        order: index as u32 + 1,
        fingerprint: None,
        ..checkpoint(key, 1, "value")
    };
    let conn = Connection::open(&path).unwrap();
    for written in (0..paths.len()).map(of) {
        let insert = "INSERT INTO checkpoints VALUES (?1, ?2, 1, ?3, 1, 'step', NULL, ?4, 7, ?5)";
        let outcome = written.outcome.as_bytes();
        let at = written.at.as_micros();
        conn.execute(insert, (key.as_bytes(), written.path.as_bytes(), written.order, at, outcome)).unwrap();
    }
    let count =
        || conn.query_row("SELECT count(*) FROM checkpoints", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), paths.len() as i64);

    let worker = Worker::at(&path).await;
    worker.commit(vec![start_write(start(key, running()))]).await;
    let found: Vec<CallPath> = worker.record(key).await.checkpoints.into_iter().map(|it| it.path).collect();
    assert_eq!(found, paths, "in their order");
    for (index, path) in paths.iter().enumerate() {
        assert_eq!(worker.commit(vec![Write::Checkpoint(of(index))]).await, [], "{path}");
        let other = Checkpoint { order: 9_999, ..of(index) };
        let outcomes = worker.commit(vec![Write::Checkpoint(other)]).await;
        assert!(matches!(&outcomes[..], [(0, Outcome::Rejected(_))]), "{path}: {outcomes:?}");
    }
    assert_eq!(count(), paths.len() as i64);
}
