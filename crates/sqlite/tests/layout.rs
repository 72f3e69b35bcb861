//! Storage of payloads: inline in the rows that refer to them, or in pieces.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use rusqlite::Connection;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Attempt, CheckpointKind, Detail, ExecutionId, Flush, ItemOutcome, Outcome, Pack, Parent, Start, State,
    Status, Store, Write,
};
use support::*;

/// Returns a payload of this length, including its header.
fn payload(len: usize) -> Payload {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    bytes[0] = 1;
    Payload::from_slice(&bytes)
}

/// Returns the number of stored pieces.
fn pieces(path: &Path) -> i64 {
    let conn = Connection::open(path).unwrap();
    conn.query_row("SELECT count(*) FROM payloads", [], |row| row.get(0)).unwrap()
}

/// Returns the number of pieces of payloads of these lengths.
fn pieces_of(lengths: &[usize]) -> i64 {
    lengths.iter().map(|len| len.div_ceil(668) as i64).sum()
}

/// Returns a failed attempt whose failure has this length.
fn attempt(execution: Key, len: usize) -> Attempt {
    let at = later(len as u64);
    Attempt {
        execution,
        path: stepfast_core::path::Path::root().child(1),
        attempt: 1,
        failure: payload(len),
        at,
    }
}

/// Returns the size of the file in bytes, after a checkpoint of its log.
fn size(path: &Path) -> f64 {
    let conn = Connection::open(path).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    std::fs::metadata(path).unwrap().len() as f64
}

const SIZES: [usize; 14] =
    [1, 23, 399, 400, 401, 668, 669, 1_336, 1_337, 2_000, 4_096, 16_001, 65_536, 65_537];

#[tokio::test]
async fn payloads_of_all_sizes_are_read_back_unchanged() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    for is_alone in [true, false] {
        let mut keys = Vec::new();
        let mut writes = Vec::new();
        for len in SIZES {
            let (one, two) = (Key::mint(0), Key::mint(0));
            writes.push(start_write(Start { input: payload(len), ..start(one, queued()) }));
            let ended = State::Ended { status: Status::Completed, outcome: payload(len + 1), at: later(1) };
            writes.push(start_write(Start { input: payload(len), ..start(two, ended) }));
            let mut written = checkpoint(one, 1, "");
            written.outcome = payload(len);
            writes.push(Write::Checkpoint(written));
            writes.push(Write::Attempt(attempt(one, len)));
            keys.push((len, one, two));
        }
        if is_alone {
            for write in writes {
                assert_eq!(worker.commit(vec![write]).await, []);
            }
        } else {
            let flush = worker.flush(writes);
            assert_eq!(worker.send(&flush).await.unwrap(), []);
            let (again, before) = (Flush { is_resent: true, ..flush }, pieces(&path));
            assert_eq!(worker.send(&again).await.unwrap(), [], "the flush was applied before");
            assert_eq!(pieces(&path), before);
        }
        for (len, one, two) in &keys {
            let found = worker.record(*one).await;
            assert_eq!(found.execution.input.as_bytes(), payload(*len).as_bytes(), "{len}");
            assert_eq!(found.checkpoints[0].outcome.as_bytes(), payload(*len).as_bytes(), "{len}");
            assert_eq!(found.attempts[0].failure.as_bytes(), payload(*len).as_bytes(), "{len}");
            let found = worker.record(*two).await;
            assert_eq!(found.execution.outcome.as_bytes(), payload(len + 1).as_bytes(), "{len}");
        }
        let claimed = worker.claim(99, &["w"]).await;
        assert_eq!(claimed.len(), SIZES.len());
        for (record, (len, ..)) in claimed.iter().zip(&keys) {
            assert_eq!(record.execution.input.as_bytes(), payload(*len).as_bytes(), "{len}");
        }
        let ended = |len| State::Ended { status: Status::Completed, outcome: payload(len), at: later(1) };
        worker.commit(keys.iter().map(|(len, one, _)| transition(*one, ended(*len))).collect()).await;
        for (len, one, _) in &keys {
            let found = worker.record(*one).await;
            assert_eq!(found.execution.outcome.as_bytes(), payload(*len).as_bytes(), "{len}");
        }
    }
}

#[tokio::test]
async fn payload_that_resembles_reference_is_read_back_unchanged() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    worker.commit(vec![start_write(Start { input: payload(5_000), ..start(Key::mint(0), running()) })]).await;
    // a reference to the pieces of another payload, and byte strings that are nearly one
    let foreign = |len: usize| {
        let conn = Connection::open(&path).unwrap();
        let select = "SELECT input FROM executions WHERE length(input) = 17";
        let mut bytes: Vec<u8> = conn.query_row(select, [], |row| row.get(0)).unwrap();
        assert_eq!(bytes[0], 0xff);
        bytes.resize(len, 0xff);
        Payload::from_slice(&bytes)
    };
    let lengths = [1, 16, 17, 18, 400, 401, 65_536, 65_537];
    let inputs = lengths.map(foreign);
    for input in &inputs {
        let key = Key::mint(0);
        worker.commit(vec![start_write(Start { input: input.clone(), ..start(key, running()) })]).await;
        let mut written = checkpoint(key, 1, "");
        written.outcome = input.clone();
        worker.commit(vec![Write::Checkpoint(written)]).await;
        let found = worker.record(key).await;
        assert_eq!(found.execution.input.as_bytes(), input.as_bytes(), "{}", input.len());
        assert_eq!(found.checkpoints[0].outcome.as_bytes(), input.as_bytes(), "{}", input.len());
    }
}

#[tokio::test]
async fn equal_checkpoint_is_recorded_once_and_another_is_rejected() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    worker.commit(vec![start_write(start(id, running()))]).await;
    let of = |len: usize| {
        let mut written = checkpoint(id, 2, "");
        written.outcome = payload(len);
        [Write::Attempt(Attempt { at: later(3), ..attempt(id, len) }), Write::Checkpoint(written)]
    };
    for write in of(3_000).into_iter().chain(of(3_000)) {
        assert_eq!(worker.commit_one(write).await, Outcome::Applied);
    }
    for write in of(3_001) {
        assert!(matches!(worker.commit_one(write).await, Outcome::Rejected(_)));
    }
    assert_eq!(pieces(&path), pieces_of(&[3_000, 3_000]));
}

#[tokio::test]
async fn payload_byte_takes_at_most_one_and_a_half_bytes_on_disk() {
    const ROWS: usize = 400;
    let written = async |len: usize| {
        let (_dir, path) = temp_database();
        let worker = Worker::at(&path).await;
        let before = size(&path);
        for _ in 0..ROWS / 20 {
            let checkpoints = (0..20).map(|n| {
                let mut checkpoint = checkpoint(Key::mint(0), n, "");
                checkpoint.outcome = payload(len);
                Write::Checkpoint(checkpoint)
            });
            worker.commit(checkpoints.collect()).await;
        }
        (size(&path) - before) / ROWS as f64
    };
    let small = written(512).await;
    for len in
        [600, 700, 850, 1_024, 1_200, 1_400, 1_800, 2_048, 2_100, 2_700, 3_100, 4_096, 5_000, 8_192, 33_000]
    {
        let each = (written(len).await - small) / (len - 512) as f64;
        assert!(each < 1.5, "{len}: {each} bytes for each byte above 512");
    }
}

#[tokio::test]
async fn replaced_or_retracted_payload_leaves_no_pieces() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let long = payload(5_000);
    // the failure that finished the execution, and its outcome
    let failed = Key::mint(0);
    let mut failure = checkpoint(failed, 1, "");
    (failure.outcome, failure.kind) = (long.clone(), CheckpointKind::Failed);
    let ended = State::Ended { status: Status::Failed, outcome: long.clone(), at: later(1) };
    let attempt = Write::Attempt(attempt(failed, 3_000));
    worker.commit(vec![start_write(start(failed, running())), attempt, Write::Checkpoint(failure)]).await;
    worker.commit(vec![transition(failed, ended)]).await;
    assert_eq!(pieces(&path), pieces_of(&[5_000, 3_000, 5_000]));
    worker.commit(vec![Write::Request(resume(failed))]).await;
    assert_eq!(pieces(&path), 0);
    // the reason of a parked execution, which is then cancelled
    let parked = Key::mint(0);
    worker.commit(vec![start_write(start(parked, running()))]).await;
    worker
        .commit(vec![transition(
            parked,
            State::Parked { reason: long.clone(), pending_sleeps: Vec::new(), is_pause: false },
        )])
        .await;
    assert_eq!(pieces(&path), pieces_of(&[5_000]));
    worker.commit(vec![Write::Request(cancel(parked))]).await;
    assert_eq!(pieces(&path), 0);
    // the input of a debounced start, also within one flush
    let debounced = |input: &Payload| Start {
        input: input.clone(),
        placement: Some(std::sync::Arc::new(Placement { queue: "mail".into(), key: "".into(), priority: 0 })),
        dedup_id: Some("ann".into()),
        debounce_window: Some(std::time::Duration::from_secs(60)),
        ..start(Key::mint(0), State::Scheduled { due_at: later(5) })
    };
    let first = debounced(&long);
    let id = first.key;
    worker.commit(vec![start_write(first)]).await;
    for len in [6_000, 7_000] {
        worker.commit(vec![start_write(debounced(&payload(len)))]).await;
    }
    assert_eq!(pieces(&path), pieces_of(&[7_000]));
    assert_eq!(worker.record(id).await.execution.input.as_bytes(), payload(7_000).as_bytes());
}

#[tokio::test]
async fn duplicate_start_leaves_no_pieces() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let given = |input: Payload| Start {
        input,
        workflow_id: Some("order-7".into()),
        fingerprint: Some(7),
        ..start(Key::mint(0), running())
    };
    worker.commit(vec![start_write(given(value("first")))]).await;
    let plain = start(Key::mint(0), running());
    worker.commit(vec![start_write(plain.clone())]).await;
    let duplicate = worker.commit_one(start_write(given(payload(3_000)))).await;
    assert!(matches!(duplicate, Outcome::Duplicate(_)), "{duplicate:?}");
    // in a batch, which is then applied row by row
    let again = Start { input: payload(3_000), ..plain };
    let mut writes = vec![start_write(again)];
    writes.extend(
        (0..40).map(|_| start_write(Start { input: payload(1_500), ..start(Key::mint(0), running()) })),
    );
    let duplicate = worker.commit(writes).await;
    assert!(matches!(duplicate[..], [(0, Outcome::Duplicate(_))]), "{duplicate:?}");
    assert_eq!(pieces(&path), 40 * pieces_of(&[1_500]));
}

#[tokio::test]
async fn payload_with_missing_pieces_is_unreadable_alone() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (damaged, whole) = (Key::mint(0), Key::mint(0));
    for key in [damaged, whole] {
        worker.commit(vec![start_write(Start { input: payload(3_000), ..start(key, queued()) })]).await;
    }
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM payloads WHERE id = 2", []).unwrap();
    drop(conn);
    let ids = [ExecutionId::Key(damaged), ExecutionId::Key(whole)];
    let found = worker.store.load(&ids, Detail::Full).await.unwrap();
    let execution = |i: usize| &found[i].as_ref().unwrap().execution;
    assert_eq!(
        execution(0).unreadable.as_deref().map(|reason| reason.contains("input of executions")),
        Some(true)
    );
    assert_eq!(execution(1).unreadable, None);
    assert_eq!(execution(1).input.as_bytes(), payload(3_000).as_bytes());
    assert_eq!(worker.claim_keys(9, &["w"]).await, [damaged, whole]);
}

#[tokio::test]
async fn search_for_an_item_reads_its_piece_of_the_pack_only() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let batch = Key::mint_batch(0);
    let parent = Some(Parent { key: batch, is_detached: false });
    let bundle = Start { parent, item_count: Some(400), ..start(batch.bundle(399), running()) };
    let open = start_write(Start { item_count: None, ..start(batch, waiting(None, &[])) });
    let outcomes = (0..400).map(|index| {
        let outcome = Payload::encode(&format!("{index:08}")).unwrap();
        ItemOutcome { index, status: Status::Completed, outcome }
    });
    let pack = Write::Pack(Pack { bundle: bundle.key, outcomes: outcomes.collect() });
    worker.commit(vec![open, start_write(bundle), pack]).await;
    let count = pieces(&path);
    assert!(count > 4, "{count}");
    // neither the head of the group nor the last item is in these pieces
    let conn = Connection::open(&path).unwrap();
    conn.execute("DELETE FROM payloads WHERE id BETWEEN 2 AND ?1", [count - 1]).unwrap();
    let items = [0, 200, 399].map(|index| batch.item(index));
    let found = async |item| worker.store.load_items(&[item]).await.unwrap().pop().flatten().unwrap();
    for (item, value) in [(items[0], "00000000"), (items[2], "00000399")] {
        let item = found(item).await;
        assert_eq!((item.status, item.unreadable.as_deref()), (Status::Completed, None));
        assert_eq!(item.outcome, Payload::encode(value).unwrap());
    }
    let missing = found(items[1]).await.unreadable.unwrap();
    assert!(missing.contains("outcomes of packs"), "{missing}");
}

#[tokio::test]
async fn inbox_rejects_input_that_resembles_reference() {
    let (_dir, path) = temp_database();
    let _worker = Worker::at(&path).await;
    let conn = Connection::open(&path).unwrap();
    let insert = "INSERT INTO inbox (put_at, key, workflow, input) VALUES (1, randomblob(16), 'w', ?1)";
    let rejection = conn.execute(insert, [&[0xff_u8; 17][..]]).unwrap_err().to_string();
    assert!(rejection.contains("first byte"), "{rejection}");
    conn.execute(insert, [&[0x01_u8, 0xff][..]]).unwrap();
}
