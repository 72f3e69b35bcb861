//! Streams: entries that executions append, and the search for them.

use std::sync::Arc;

use stepfast_core::Payload;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::store::{
    Append, Checkpoint, CheckpointKind, MAX_ENTRIES_LOADED, StoreError, StreamEntry, StreamQuery, Write,
};

use crate::fixtures::builders::{at, checkpoint, keys, payload, start_running};
use crate::{StoreFixture, Worker};

super::cases![
    entries_are_found_from_an_offset,
    last_entry_is_found,
    streams_are_independent,
    long_streams_are_loaded_in_parts,
    checkpoint_appends_its_value,
    fenced_worker_appends_nothing,
];

fn entry(offset: i64, value: Payload) -> StreamEntry {
    let step = Path::root().child(7).child(300);
    StreamEntry { offset, attempt_offset: offset / 2, step, value, written_at: at(offset) }
}

fn text_entry(offset: i64) -> StreamEntry {
    entry(offset, payload(&format!("value {offset}")))
}

fn append(execution: Key, stream: &str, entry: StreamEntry) -> Write {
    Write::Append(Append { execution, stream: stream.into(), entry }.into())
}

async fn load(worker: &Worker, execution: Key, stream: &str, from: Option<i64>) -> Vec<StreamEntry> {
    let query = StreamQuery { execution, stream: stream.into(), from };
    worker.store.stream_entries(&[query]).await.unwrap().pop().unwrap()
}

async fn entries_are_found_from_an_offset(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one] = keys();
    worker.apply(vec![start_running(one), append(one, "s", text_entry(0))]).await;
    // of a flush in any order
    worker.apply(vec![append(one, "s", text_entry(2)), append(one, "s", text_entry(1))]).await;
    worker.apply(vec![append(one, "s", entry(3, Payload::empty()))]).await;
    let all = [text_entry(0), text_entry(1), text_entry(2), entry(3, Payload::empty())];
    for from in 0..4 {
        assert_eq!(load(&worker, one, "s", Some(from)).await, all[from as usize..]);
    }
    assert_eq!(load(&worker, one, "s", Some(i64::MIN)).await, all);
    for beyond in [4, i64::MAX] {
        assert_eq!(load(&worker, one, "s", Some(beyond)).await, []);
    }
    assert!(all[3].is_end() && !all[2].is_end());
}

async fn last_entry_is_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, other] = keys();
    worker.apply(vec![start_running(one)]).await;
    assert_eq!(load(&worker, one, "s", None).await, []);
    worker.apply((0..3).map(|offset| append(one, "s", text_entry(offset))).collect()).await;
    assert_eq!(load(&worker, one, "s", None).await, [text_entry(2)]);
    assert_eq!(load(&worker, other, "s", None).await, []);
}

async fn streams_are_independent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    let places = [(one, "a"), (one, "b"), (two, "a"), (one, "a b"), (one, "ä")];
    let value = |n: usize| entry(0, payload(&n.to_string()));
    worker
        .apply(places.iter().enumerate().map(|(n, (key, name))| append(*key, name, value(n))).collect())
        .await;
    let queries: Vec<StreamQuery> = places
        .iter()
        .flat_map(|(key, name)| {
            [Some(0), None].map(|from| StreamQuery { execution: *key, stream: Arc::from(*name), from })
        })
        .collect();
    let found = worker.store.stream_entries(&queries).await.unwrap();
    let expected: Vec<_> = (0..places.len()).flat_map(|n| [vec![value(n)], vec![value(n)]]).collect();
    assert_eq!(found, expected);
}

async fn long_streams_are_loaded_in_parts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one] = keys();
    let count = 2 * MAX_ENTRIES_LOADED as i64 + 7;
    worker.apply(vec![start_running(one)]).await;
    worker.apply((0..count).map(|offset| append(one, "s", text_entry(offset))).collect()).await;
    let mut offsets = Vec::new();
    while let Some(last) = load(&worker, one, "s", Some(offsets.len() as i64)).await.last() {
        offsets.extend(offsets.len() as i64..=last.offset);
    }
    assert_eq!(offsets.len() as i64, count);
    assert_eq!(load(&worker, one, "s", Some(1)).await.len(), MAX_ENTRIES_LOADED);
}

async fn checkpoint_appends_its_value(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one] = keys();
    let write = |n: u32, value: Payload| {
        Write::Checkpoint(Checkpoint {
            kind: CheckpointKind::StreamWrite,
            name: Arc::<str>::from("s").into(),
            outcome: value,
            order: n,
            number: Some(i64::from(n)),
            at: at(i64::from(n)),
            ..checkpoint(one, n, "")
        })
    };
    worker.apply(vec![start_running(one), write(0, payload("first"))]).await;
    worker.apply(vec![write(1, Payload::empty())]).await;
    let expected = |offset, value| StreamEntry {
        offset,
        attempt_offset: offset,
        step: Path::root(),
        value,
        written_at: at(offset),
    };
    let entries = [expected(0, payload("first")), expected(1, Payload::empty())];
    assert_eq!(load(&worker, one, "s", Some(0)).await, entries);
    let record = worker.record(one).await;
    for checkpoint in &record.checkpoints {
        // the value is in one row only
        assert_eq!((checkpoint.kind, checkpoint.number), (CheckpointKind::StreamWrite, None));
        assert!(checkpoint.outcome.is_empty());
    }
    assert_eq!(record.checkpoints.len(), 2);
}

async fn fenced_worker_appends_nothing(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let mut worker = Worker::register(&store).await;
    let [one] = keys();
    worker.apply(vec![start_running(one), append(one, "s", text_entry(0))]).await;
    store.close(worker.id).await.unwrap();
    let late = worker.try_commit(vec![append(one, "s", text_entry(1))]).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    assert_eq!(load(&worker, one, "s", Some(0)).await, [text_entry(0)]);
}
