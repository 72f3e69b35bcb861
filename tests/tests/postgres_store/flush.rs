//! The effect of each Write on the rows, and its outcomes.

use std::time::Duration;

use bytes::Bytes;
use stepfast_core::clock::Timestamp;
use stepfast_core::payload::ChunkRef;
use stepfast_core::store::{
    Chunk, DeleteChunks, Detail, ExecutionId, Filter, Outcome, PendingSleep, Start, State, Status,
    StoreError, Wait, Write,
};
use stepfast_core::{Key, Path, Payload, Store};

use super::support::*;

#[tokio::test]
async fn start_loses_to_existing_key_and_workflow_id() {
    let db = Fixture::new().await;
    let (a, b, c) = (Key::mint(0), Key::mint(0), Key::mint(0));
    assert_eq!(db.outcome(start_id(a, "order-1", RUNNING)).await, Outcome::Applied);
    let outcomes = db
        .write(vec![
            start_id(b, "order-1", QUEUED),
            start(a, waiting(Some(NOON), &[c])),
            start(c, ended(Status::Completed)),
        ])
        .await;
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1]);
    for (_, outcome) in &outcomes {
        let Outcome::Duplicate(existing) = outcome else { panic!("{outcome:?}") };
        assert_eq!((existing.key, existing.status), (a, Status::Running));
        assert_eq!((&*existing.workflow, existing.fingerprint), ("order", Some(u64::MAX)));
    }
    assert_eq!(db.load(b).await, None);
    // the duplicates left no rows in the role tables, and did not change the first execution
    assert_eq!((db.count("ready").await, db.count("timers").await, db.count("waits").await), (0, 0, 0));
    assert_eq!(db.status(a).await, Status::Running);
    assert_eq!(db.status(c).await, Status::Completed);
}

#[tokio::test]
async fn one_of_two_starts_with_same_id_in_flush_wins() {
    let db = Fixture::new().await;
    let (a, b) = (Key::mint(0), Key::mint(0));
    let outcomes = db.write(vec![start_id(a, "twice", QUEUED), start_id(b, "twice", QUEUED)]).await;
    assert_eq!(outcomes.len(), 1);
    assert_eq!(db.count("executions").await, 1);
    assert_eq!(db.count("ready").await, 1);
    let winner = if outcomes[0].0 == 0 { b } else { a };
    assert_eq!(duplicate_of(&outcomes[0].1), Some(winner));
}

#[tokio::test]
async fn execution_row_is_read_back_unchanged() {
    let db = Fixture::new().await;
    let (root, key) = (Key::mint(0), Key::mint(0));
    let pending_sleeps = vec![
        PendingSleep { path: Path::root().child(3).child(300), due_at: later(1) },
        PendingSleep { path: Path::root().child(4), due_at: Timestamp::from_micros(i64::MAX) },
    ];
    let start = Start {
        root,
        parent: Some(stepfast_core::store::Parent { key: root, is_detached: true }),
        workflow_id: Some("Bestellung \u{1f980} '\"\\".into()),
        fingerprint: Some(u64::MAX - 5),
        input: payload(&vec![0u8; 100_000]),
        created_at: Timestamp::from_micros(-1),
        deadline_at: Some(Timestamp::from_micros(i64::MAX)),
        is_guarded: true,
        ..start_of(
            key,
            State::Waiting {
                wake_at: Some(later(2)),
                waits: Wait::for_children([root]),
                pending_sleeps: pending_sleeps.clone(),
            },
        )
    };
    db.write(vec![Write::Start(Box::new(start.clone()))]).await;
    let loaded = db.load(key).await.unwrap().execution;
    assert_eq!(loaded.root, root);
    assert_eq!(loaded.parent, start.parent);
    assert_eq!(loaded.given_id, start.workflow_id);
    assert_eq!(loaded.workflow, start.workflow);
    assert_eq!(loaded.fingerprint, start.fingerprint);
    assert_eq!(loaded.input, start.input);
    assert_eq!(loaded.outcome, Payload::empty());
    assert_eq!((loaded.created_at, loaded.deadline_at), (start.created_at, start.deadline_at));
    assert_eq!((loaded.wake_at, loaded.ended_at), (Some(later(2)), None));
    assert_eq!((loaded.status, loaded.owner, loaded.run_no), (Status::Waiting, None, 1));
    assert_eq!(loaded.pending_sleeps, pending_sleeps);
    // loaded by its id, twice, without its input
    let given = ExecutionId::Given("Bestellung \u{1f980} '\"\\".into());
    let ids = [given.clone(), ExecutionId::Given("no\0such".into()), given];
    let records = db.store.load(&ids, Detail::Outcome).await.unwrap();
    assert_eq!(records[0], records[2]);
    assert_eq!(records[1], None);
    let found = &records[0].as_ref().unwrap().execution;
    assert_eq!((found.key, found.input.len()), (key, 0));
}

#[tokio::test]
async fn second_outcome_of_step_is_rejected_and_next_flush_works() {
    let db = Fixture::new().await;
    let (a, b) = (Key::mint(0), Key::mint(0));
    db.write(vec![start(a, RUNNING), checkpoint(a, 1), attempt(a, 1)]).await;
    for again in [checkpoint(a, 1), attempt(a, 1)] {
        let flush = db.flush(vec![again, start(b, RUNNING)]);
        let error = db.commit(&flush).await.unwrap_err();
        assert!(matches!(&error, StoreError::Rejected(_)), "{error}");
        assert_eq!(db.load(b).await, None);
    }
    db.write(vec![start(b, RUNNING), checkpoint(a, 2), attempt(a, 2)]).await;
    let record = db.load(a).await.unwrap();
    assert_eq!(record.checkpoints.len(), 2);
    assert_eq!(record.attempts.len(), 2);
    assert_eq!(Write::Checkpoint(record.checkpoints[0].clone()).execution(), a);
    let Write::Checkpoint(expected) = checkpoint(a, 1) else { unreachable!() };
    assert_eq!(record.checkpoints[0], expected);
    let Write::Attempt(expected) = attempt(a, 1) else { unreachable!() };
    assert_eq!(record.attempts[0], expected);
}

#[tokio::test]
async fn transition_requires_running_execution_of_same_worker() {
    let db = Fixture::new().await;
    let other = db.store.register(1, &worker_info(&[])).await.unwrap();
    let (mine, theirs, queued) = (Key::mint(0), Key::mint(0), Key::mint(0));
    db.write(vec![start(mine, RUNNING), start(queued, QUEUED)]).await;
    let flush = stepfast_core::store::Flush {
        worker: other.worker,
        epoch: other.epoch,
        ..db.flush(vec![start(theirs, RUNNING)])
    };
    db.store.commit(&stepfast_core::store::Flush { number: 1, ..flush }).await.unwrap();
    let end = || ended(Status::Completed);
    let outcomes = db
        .write(vec![
            transition(theirs, end()),
            transition(mine, waiting(Some(later(5)), &[theirs, queued])),
            transition(queued, end()),
            transition(Key::mint(0), end()),
        ])
        .await;
    assert_eq!(outcomes, [(0, Outcome::NotFound), (2, Outcome::NotFound), (3, Outcome::NotFound)]);
    assert_eq!(db.status(theirs).await, Status::Running);
    assert_eq!(db.status(queued).await, Status::Queued);
    let waits = db.load(mine).await.unwrap().execution;
    assert_eq!((waits.status, waits.owner, waits.wake_at), (Status::Waiting, None, Some(later(5))));
    assert_eq!((db.count("timers").await, db.count("waits").await, db.count("ready").await), (1, 2, 1));
}

#[tokio::test]
async fn transition_leaves_no_trace_of_former_state() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..5).map(|_| Key::mint(0)).collect();
    db.write(keys.iter().map(|key| start(*key, RUNNING)).collect()).await;
    let pending_sleeps = vec![PendingSleep { path: Path::root().child(1), due_at: later(9) }];
    let states = [
        State::Running { pending_sleeps: pending_sleeps.clone() },
        State::Queued { pending_sleeps: pending_sleeps.clone() },
        State::Waiting { wake_at: Some(later(9)), waits: Vec::new(), pending_sleeps: pending_sleeps.clone() },
        State::Parked { reason: payload("why"), pending_sleeps: pending_sleeps.clone(), is_pause: false },
        ended(Status::Failed),
    ];
    let writes = keys.iter().zip(states.clone()).map(|(key, state)| transition(*key, state)).collect();
    assert_eq!(db.write(writes).await, []);
    for (key, state) in keys.iter().zip(states) {
        let row = db.load(*key).await.unwrap().execution;
        assert_eq!(row.status, state.status());
        assert_eq!(row.pending_sleeps, state.pending_sleeps());
        assert_eq!(row.owner.is_some(), row.status == Status::Running);
        assert_eq!(row.is_parked, matches!(state, State::Parked { .. }));
        assert_eq!(row.ended_at.is_some(), row.status.is_terminal());
        assert_eq!(row.outcome.is_empty(), !row.is_parked && !row.status.is_terminal());
    }
    assert_eq!((db.count("ready").await, db.count("timers").await), (1, 1));
}

#[tokio::test]
async fn wake_requires_due_timer_or_finished_child() {
    let db = Fixture::new().await;
    let (timer, parent, never, child_of) = (Key::mint(0), Key::mint(0), Key::mint(0), Key::mint(0));
    db.write(vec![
        start(timer, waiting(Some(later(10)), &[])),
        start(parent, waiting(Some(later(1000)), &[child_of, never])),
        start(never, waiting(None, &[])),
        child(child_of, parent, false, RUNNING),
    ])
    .await;
    let wakes = || vec![Write::Wake(timer), Write::Wake(parent), Write::Wake(never), Write::Wake(child_of)];
    let all = [0, 1, 2, 3].map(|i| (i, Outcome::NotFound));
    assert_eq!(db.write(wakes()).await, all);
    db.clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(db.write(wakes()).await, all, "a microsecond early");
    db.clock.advance(Duration::from_micros(1));
    assert_eq!(db.write(wakes()).await, all[1..]);
    db.write(vec![transition(child_of, ended(Status::Failed))]).await;
    assert_eq!(db.write(wakes()).await, [0, 2, 3].map(|i| (i, Outcome::NotFound)));
    assert_eq!(db.status(parent).await, Status::Queued);
    assert_eq!((db.count("ready").await, db.count("timers").await, db.count("waits").await), (2, 0, 0));
}

#[tokio::test]
async fn chunks_are_read_back_and_deleted() {
    let db = Fixture::new().await;
    let key = Key::mint(0);
    let piece = |value: u64, n: u32, byte: u8| {
        let bytes = Bytes::from(vec![byte; 1000]);
        Write::Chunk(Chunk { execution: key, value, index: n, bytes, is_unowned: true })
    };
    let (one, two) = (u64::MAX, 7);
    db.write(vec![piece(one, 1, b'b'), piece(one, 0, b'a'), piece(two, 0, b'c')]).await;
    assert_eq!(db.outcome(piece(one, 0, b'x')).await, Outcome::Applied);
    let value = db.store.load_value(key, ChunkRef { value: one, len: 2000, count: 2 }).await.unwrap();
    assert_eq!((value[0], value[999], value[1000], value.len()), (b'a', b'a', b'b', 2000));
    let error = db.store.load_value(key, ChunkRef { value: two, len: 2000, count: 2 }).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    db.write(vec![Write::DeleteChunks(DeleteChunks { execution: key, keep: [two].into_iter().collect() })])
        .await;
    assert_eq!(db.count("chunks").await, 1);
    db.write(vec![Write::DeleteChunks(DeleteChunks { execution: key, keep: std::iter::empty().collect() })])
        .await;
    assert_eq!(db.count("chunks").await, 0);
}

#[tokio::test]
async fn unstorable_text_is_rejected_with_reason() {
    let db = Fixture::new().await;
    let error = db.commit(&db.flush(vec![start_id(Key::mint(0), "a\0b", RUNNING)])).await.unwrap_err();
    assert!(matches!(&error, StoreError::Rejected(reason) if reason.contains("executions")), "{error}");
    db.write(vec![start_id(Key::mint(0), "good", RUNNING)]).await;
}

#[tokio::test]
async fn workflow_ids_of_any_length_are_unique() {
    let db = Fixture::new().await;
    // lengths around the limit from which ids are distinguished by their hash; with characters that the hash must
    // escape
    for length in [1023, 1024, 1025, 300_000] {
        let noise: String = (0..length).map(|i: u64| char::from(b'!' + (i * i % 89) as u8)).collect();
        let key = Key::mint(0);
        assert_eq!(db.outcome(start_id(key, &noise, QUEUED)).await, Outcome::Applied);
        assert_eq!(duplicate_of(&db.outcome(start_id(Key::mint(0), &noise, QUEUED)).await), Some(key));
        let near = noise.replacen('!', "\\\\", 1);
        assert_eq!(db.outcome(start_id(Key::mint(0), &near, QUEUED)).await, Outcome::Applied);
        let given = [ExecutionId::Given(noise.as_str().into())];
        let found = db.store.load(&given, Detail::Outcome).await.unwrap().remove(0).unwrap();
        assert_eq!((found.execution.key, found.execution.given_id.as_deref()), (key, Some(noise.as_str())));
    }
}

#[tokio::test]
async fn lists_are_filtered_paged_and_counted() {
    let db = Fixture::new().await;
    let keys: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    db.write(vec![
        start(keys[0], QUEUED),
        start_id(keys[1], "a_b", parked()),
        child(keys[2], keys[0], false, RUNNING),
        start_id(keys[3], "axb", ended(Status::Completed)),
        child(keys[4], keys[0], true, waiting(Some(later(3)), &[])),
        start(keys[5], ended(Status::Cancelled)),
    ])
    .await;
    let list = async |filter: Filter| {
        let page = db.store.list(&Filter { limit: 10, ..filter.clone() }).await.unwrap();
        let total = db.store.list(&Filter { limit: 0, ..filter }).await.unwrap().total;
        assert_eq!(total, Some(page.executions.len() as u64));
        let indexes = page.executions.iter().map(|row| keys.iter().position(|key| *key == row.key).unwrap());
        indexes.collect::<Vec<_>>()
    };
    assert_eq!(list(Filter::default()).await, [5, 4, 3, 2, 1, 0]);
    let statuses = vec![Status::Queued, Status::Running];
    assert_eq!(list(Filter { statuses, ..Filter::default() }).await, [2, 1, 0]);
    assert_eq!(list(Filter { is_parked: Some(true), ..Filter::default() }).await, [1]);
    assert_eq!(list(Filter { workflow: Some("child".into()), ..Filter::default() }).await, [4, 2]);
    assert_eq!(list(Filter { parent: Some(keys[0]), ..Filter::default() }).await, [4, 2]);
    assert_eq!(list(Filter { id_prefix: Some("a_".into()), ..Filter::default() }).await, [1]);
    let prefix = keys[4].to_string()[..30].into();
    assert_eq!(list(Filter { id_prefix: Some(prefix), ..Filter::default() }).await.last(), Some(&4));
    assert_eq!(list(Filter { created_from: Some(later(1)), ..Filter::default() }).await, [0; 0]);
    let page = db.store.list(&Filter { after: Some(keys[3]), limit: 2, ..Filter::default() }).await.unwrap();
    assert_eq!(page.executions.iter().map(|row| row.key).collect::<Vec<_>>(), [keys[2], keys[1]]);
    assert!(page.executions.iter().all(|row| row.input.is_empty() && row.outcome.is_empty()));
}
