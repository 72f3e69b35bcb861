//! Chunks: large values that are stored in parts, apart from their execution.

use smallvec::SmallVec;
use stepfast_core::key::Key;
use stepfast_core::payload::ChunkRef;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Chunk, DeleteChunks, StoreError, Write};

use crate::fixtures::builders::{chunk, keys, start_running};
use crate::{StoreFixture, Worker};

super::cases![
    value_loads_whole_from_its_chunks,
    missing_chunks_are_reported_as_corrupt,
    existing_chunk_is_never_overwritten,
    orphaned_chunks_are_deleted,
    chunks_of_withdrawn_values_are_deleted,
    chunks_of_values_and_executions_stay_separate,
    chunk_holds_a_megabyte,
    chunks_may_precede_their_execution,
];

fn reference(value: u64, len: u64, count: u32) -> ChunkRef {
    ChunkRef { value, len, count }
}

fn delete_except(execution: Key, keep: &[u64]) -> Write {
    Write::DeleteChunks(DeleteChunks { execution, keep: SmallVec::from_slice(keep) })
}

async fn is_corrupt(worker: &Worker, key: Key, chunks: ChunkRef) -> bool {
    matches!(worker.store.load_value(key, chunks).await, Err(StoreError::Corrupt(_)))
}

async fn value_loads_whole_from_its_chunks(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    for value in [0, 7, u64::MAX, 1 << 63] {
        // chunks arrive in any order, over several flushes
        worker.apply(vec![chunk(key, value, 2, b"ef"), chunk(key, value, 0, b"a\0")]).await;
        worker.apply(vec![chunk(key, value, 1, b"cd")]).await;
        let bytes = worker.store.load_value(key, reference(value, 6, 3)).await.unwrap();
        assert_eq!(&bytes[..], b"a\0cdef");
    }
    let chunks: Vec<Write> = (0..300).map(|n: u32| chunk(key, 9, n, &n.to_be_bytes())).collect();
    worker.apply(chunks).await;
    let expected: Vec<u8> = (0..300u32).flat_map(u32::to_be_bytes).collect();
    assert_eq!(worker.store.load_value(key, reference(9, 1_200, 300)).await.unwrap(), expected);
}

async fn chunks_of_withdrawn_values_are_deleted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, other] = keys();
    worker.apply(vec![start_running(key), start_running(other)]).await;
    let values = [0, 7, u64::MAX, 1 << 63];
    for value in values {
        worker.apply(vec![chunk(key, value, 0, b"ab"), chunk(key, value, 1, b"c")]).await;
        worker.apply(vec![chunk(other, value, 0, b"ab"), chunk(other, value, 1, b"c")]).await;
    }
    for (n, withdrawn) in values.into_iter().enumerate() {
        let before = worker.store.counters().snapshot();
        // a piece of the value may be in the same flush, and pieces of other values too
        worker
            .apply(vec![
                chunk(key, withdrawn, 2, b"d"),
                chunk(key, 8, n as u32, b"8"),
                Write::Chunk(Chunk::withdrawal(key, withdrawn)),
            ])
            .await;
        let cost = worker.store.counters().snapshot().since(&before);
        assert_eq!(cost.row_changes(Table::Chunks), (2, 0, 3));
        for value in values {
            let is_gone = values[..=n].contains(&value);
            assert_eq!(is_corrupt(&worker, key, reference(value, 3, 2)).await, is_gone);
            assert!(!is_corrupt(&worker, other, reference(value, 3, 2)).await);
        }
    }
    assert_eq!(&worker.store.load_value(key, reference(8, 4, 4)).await.unwrap()[..], b"8888");
    // a value without pieces
    worker.apply(vec![Write::Chunk(Chunk::withdrawal(key, 7))]).await;
}

async fn missing_chunks_are_reported_as_corrupt(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, other] = keys();
    worker.apply(vec![start_running(key)]).await;
    worker.apply(vec![chunk(key, 1, 0, b"ab"), chunk(key, 1, 2, b"ef")]).await;
    assert!(is_corrupt(&worker, key, reference(1, 6, 3)).await, "a chunk is missing");
    assert!(is_corrupt(&worker, key, reference(1, 4, 3)).await, "a chunk is missing, though the length fits");
    assert!(
        is_corrupt(&worker, key, reference(1, 4, 2)).await,
        "a chunk is missing, though length and count fit"
    );
    assert!(is_corrupt(&worker, key, reference(1, 3, 1)).await, "too short");
    assert!(is_corrupt(&worker, key, reference(2, 2, 1)).await, "another value");
    assert!(is_corrupt(&worker, other, reference(1, 2, 1)).await, "another execution");
    assert_eq!(&worker.store.load_value(key, reference(1, 2, 1)).await.unwrap()[..], b"ab");
}

async fn existing_chunk_is_never_overwritten(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key), chunk(key, 1, 0, b"first")]).await;
    worker.apply(vec![chunk(key, 1, 0, b"other"), chunk(key, 1, 1, b"!")]).await;
    assert_eq!(&worker.store.load_value(key, reference(1, 6, 2)).await.unwrap()[..], b"first!");
}

async fn orphaned_chunks_are_deleted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [key, other] = keys();
    worker.apply(vec![start_running(key), start_running(other)]).await;
    for value in [1, 2, 3, u64::MAX] {
        for n in 0..2 {
            worker.apply(vec![chunk(key, value, n, b"x"), chunk(other, value, n, b"x")]).await;
        }
    }
    worker.apply(vec![delete_except(key, &[2, u64::MAX, 77]), delete_except(Key::mint(0), &[])]).await;
    for (value, is_kept) in [(1, false), (2, true), (3, false), (u64::MAX, true)] {
        assert_eq!(is_corrupt(&worker, key, reference(value, 2, 2)).await, !is_kept, "{value}");
        assert!(!is_corrupt(&worker, other, reference(value, 2, 2)).await);
    }
    worker.apply(vec![delete_except(key, &[]), delete_except(other, &[1, 2, 3, u64::MAX])]).await;
    for value in [2, u64::MAX] {
        assert!(is_corrupt(&worker, key, reference(value, 2, 2)).await);
        assert!(!is_corrupt(&worker, other, reference(value, 2, 2)).await);
    }
}

async fn chunks_of_values_and_executions_stay_separate(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b] = keys();
    worker.apply(vec![start_running(a), start_running(b)]).await;
    worker
        .apply(vec![
            chunk(a, 1, 0, b"a10"),
            chunk(a, 1, 1, b"a11"),
            chunk(a, 2, 0, b"a20"),
            chunk(b, 1, 0, b"b10"),
        ])
        .await;
    let store = &worker.store;
    assert_eq!(&store.load_value(a, reference(1, 6, 2)).await.unwrap()[..], b"a10a11");
    assert_eq!(&store.load_value(a, reference(2, 3, 1)).await.unwrap()[..], b"a20");
    assert_eq!(&store.load_value(b, reference(1, 3, 1)).await.unwrap()[..], b"b10");
}

async fn chunk_holds_a_megabyte(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let mut rng = fastrand::Rng::with_seed(3);
    let mib: Vec<u8> = (0..1 << 20).map(|_| rng.u8(..)).collect();
    worker.apply(vec![start_running(key), chunk(key, 1, 0, &mib), chunk(key, 1, 1, &mib)]).await;
    let bytes = worker.store.load_value(key, reference(1, 2 << 20, 2)).await.unwrap();
    assert!(bytes[..1 << 20] == mib && bytes[1 << 20..] == mib);
}

async fn chunks_may_precede_their_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![chunk(key, 1, 0, b"input")]).await;
    worker.apply(vec![start_running(key)]).await;
    assert_eq!(&worker.store.load_value(key, reference(1, 5, 1)).await.unwrap()[..], b"input");
}
