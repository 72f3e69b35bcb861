//! Guards and outcomes of all Writes, the fence, and flushes that are sent again.

#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::Connection;
use smallvec::smallvec;
use stepfast_core::failure::Failure;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::{ChunkRef, Payload};
use stepfast_core::queue::Placement;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    Attempt, Chunk, DeleteChunks, Detail, ExecutionId, Filter, Flush, Outcome, PendingSleep, Start, State,
    Status, Store, StoreError, Transition, Wait, Write, outcomes_to_keep,
};
use support::*;

fn attempt(execution: Key, attempt: u32) -> Attempt {
    let failure = Payload::encode(&Failure::new("boom")).unwrap();
    Attempt { execution, path: Path::root().child(1), attempt, failure, at: later(3) }
}

fn chunk(execution: Key, value: u64, n: u32, bytes: &'static [u8]) -> Chunk {
    Chunk { execution, value, index: n, bytes: Bytes::from_static(bytes), is_unowned: false }
}

fn resent(flush: &Flush) -> Flush {
    Flush { is_resent: true, ..flush.clone() }
}

#[tokio::test]
async fn writes_are_read_back_unchanged() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let parent = Key::mint(0);
    let pending_sleeps = vec![PendingSleep { path: Path::root().child(300), due_at: later(60) }];
    let mut full = child(
        parent,
        true,
        State::Waiting {
            wake_at: Some(later(50)),
            waits: Wait::for_children([Key::mint(0)]),
            pending_sleeps: pending_sleeps.clone(),
        },
    );
    full.workflow_id = Some(Arc::from("order/7 \u{1f980} ' \" \0 end"));
    full.fingerprint = Some(u64::MAX);
    full.deadline_at = Some(later(99));
    let checkpoints = vec![checkpoint(full.key, 1, "one"), checkpoint(full.key, 2, "two")];
    let attempts = vec![attempt(full.key, 1), attempt(full.key, 2)];
    let mut writes = vec![start_write(start(parent, running())), start_write(full.clone())];
    writes.extend(checkpoints.iter().rev().cloned().map(Write::Checkpoint));
    writes.extend(attempts.iter().rev().cloned().map(Write::Attempt));
    assert_eq!(worker.commit(writes).await, []);

    let record = worker.record(full.key).await;
    let row = &record.execution;
    assert_eq!((row.key, row.root, &row.parent), (full.key, parent, &full.parent));
    assert_eq!((&row.given_id, &row.workflow), (&full.workflow_id, &full.workflow));
    assert_eq!((row.fingerprint, row.status, row.is_parked), (full.fingerprint, Status::Waiting, false));
    assert_eq!((&row.input, row.outcome.is_empty(), row.owner), (&full.input, true, None));
    assert_eq!((row.run_no, row.recoveries, row.created_at, row.ended_at), (1, 0, NOON, None));
    assert_eq!(
        (row.deadline_at, row.wake_at, &row.pending_sleeps),
        (full.deadline_at, Some(later(50)), &pending_sleeps)
    );
    assert_eq!(record.checkpoints, checkpoints);
    assert_eq!(record.attempts, attempts);

    let given = ExecutionId::Given(full.workflow_id.clone().unwrap());
    let ids = [given, ExecutionId::Key(Key::mint(0)), ExecutionId::Key(parent)];
    let found = worker.store.load(&ids, Detail::Outcome).await.unwrap();
    let keys: Vec<_> = found.iter().map(|found| found.as_ref().map(|record| record.execution.key)).collect();
    assert_eq!(keys, [Some(full.key), None, Some(parent)]);
    let found = found[0].as_ref().unwrap();
    assert!(found.execution.input.is_empty() && found.checkpoints.is_empty());
}

#[tokio::test]
async fn finish_frees_dedup_id_with_and_without_placement() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let placement = Arc::new(Placement { queue: "mail".into(), key: "".into(), priority: 0 });
    for named in [None, Some(placement.clone())] {
        let first = Start {
            placement: Some(placement.clone()),
            dedup_id: Some("ann".into()),
            ..start(Key::mint(0), running())
        };
        let second = Start { key: Key::mint(0), ..first.clone() };
        assert_eq!(worker.commit_one(start_write(first.clone())).await, Outcome::Applied);
        let duplicate = worker.commit_one(start_write(second)).await;
        assert!(matches!(duplicate, Outcome::Deduplicated(_)), "{duplicate:?}");
        let end = Transition { key: first.key, placement: named, state: completed("done") };
        assert_eq!(worker.commit_one(Write::Transition(end)).await, Outcome::Applied);
        assert_eq!(worker.record(first.key).await.execution.dedup_id, None);
    }
}

#[tokio::test]
async fn start_loses_to_existing_key_and_workflow_id() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let mut first = start(Key::mint(0), completed("done"));
    first.workflow_id = Some(Arc::from("order-7"));
    first.fingerprint = Some(7);
    let mut same_id = start(Key::mint(0), running());
    same_id.workflow_id = first.workflow_id.clone();
    let mut same_key = start(first.key, running());
    same_key.created_at = later(5);
    let neighbour = start(Key::mint(0), running());
    assert_eq!(worker.commit(vec![start_write(first.clone())]).await, []);
    let outcomes = worker
        .commit(vec![start_write(same_id.clone()), start_write(neighbour.clone()), start_write(same_key)])
        .await;
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 2]);
    for (_, outcome) in outcomes {
        let Outcome::Duplicate(existing) = outcome else { panic!("{outcome:?}") };
        assert_eq!((existing.key, &*existing.workflow), (first.key, "w"));
        assert_eq!((existing.fingerprint, existing.parent), (Some(7), None));
        assert_eq!(existing.status, Status::Completed);
    }
    assert_eq!(worker.status(neighbour.key).await, Status::Running);
    assert_eq!(worker.store.load(&[ExecutionId::Key(same_id.key)], Detail::Full).await.unwrap(), [None]);
}

#[tokio::test]
async fn second_outcome_of_step_is_rejected() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let first = checkpoint(id, 1, "one");
    worker.commit(vec![start_write(start(id, running())), Write::Checkpoint(first.clone())]).await;
    assert_eq!(
        worker.commit_one(Write::Checkpoint(first.clone())).await,
        Outcome::Applied,
        "an equal checkpoint is accepted again"
    );
    let outcome = worker.commit_one(Write::Checkpoint(checkpoint(id, 1, "another"))).await;
    assert!(matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
    assert_eq!(worker.record(id).await.checkpoints, [first]);
}

#[tokio::test]
async fn batched_rows_are_applied_like_single_rows() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let names: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
    let rows: Vec<_> = (0..50usize)
        .map(|i| {
            let mut row = start(Key::mint(0), if i % 3 == 0 { running() } else { completed(&i.to_string()) });
            row.workflow = names[i * i % 3].clone();
            row.created_at = later(i as u64);
            row.input = value(&"x".repeat(i * 40));
            row
        })
        .collect();
    let steps: Vec<_> = (0..50usize)
        .map(|i| {
            let mut step = checkpoint(rows[i].key, i as u32, &"y".repeat(i));
            step.name = names[i % 2].clone().into();
            step.fingerprint = (i % 5 > 0).then_some(i as u64);
            step
        })
        .collect();
    let flush: Vec<_> = rows
        .iter()
        .zip(&steps)
        .flat_map(|(row, step)| [start_write(row.clone()), Write::Checkpoint(step.clone())])
        .collect();
    let first = worker.flush(flush.clone());
    assert_eq!(worker.send(&first).await.unwrap(), []);
    for (row, step) in rows.iter().zip(&steps) {
        let record = worker.record(row.key).await;
        let execution = &record.execution;
        assert_eq!((&execution.workflow, &execution.input), (&row.workflow, &row.input));
        assert_eq!((execution.created_at, execution.root), (row.created_at, row.key));
        assert_eq!(
            execution.owner,
            row.state
                .pending_sleeps()
                .is_empty()
                .then_some(worker.registration.worker)
                .filter(|_| matches!(row.state, State::Running { .. }))
        );
        assert_eq!(record.checkpoints, std::slice::from_ref(step));
    }
    assert_eq!(worker.send(&resent(&first)).await.unwrap(), []);

    // a few existing rows among many new ones
    let mut again: Vec<_> = (0..60).map(|_| start_write(start(Key::mint(0), running()))).collect();
    again[33] = flush[10].clone();
    again[44] = flush[11].clone();
    let mut another = steps[3].clone();
    another.outcome = value("another");
    again[55] = Write::Checkpoint(another);
    again.extend((0..20).map(|i| Write::Checkpoint(checkpoint(rows[0].key, 100 + i, "new"))));
    let before = worker.store.counters().snapshot();
    let outcomes = worker.commit(again).await;
    assert!(
        matches!(&outcomes[..], [(33, Outcome::Duplicate(_)), (55, Outcome::Rejected(_))]),
        "{outcomes:?}"
    );
    let counted = worker.store.counters().snapshot().since(&before);
    assert_eq!(
        (counted.row_changes(Table::Executions), counted.row_changes(Table::Checkpoints)),
        ((57, 0, 0), (20, 0, 0))
    );
    assert_eq!(worker.record(rows[3].key).await.checkpoints, [steps[3].clone()]);
}

#[tokio::test]
async fn transition_requires_running_execution_of_same_worker() {
    let (_dir, path) = temp_database();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let (id, other) = (Key::mint(0), Key::mint(0));
    one.commit(vec![start_write(start(id, running())), start_write(start(other, queued()))]).await;
    assert_eq!(two.commit_one(transition(id, completed("foreign"))).await, Outcome::NotFound);
    assert_eq!(one.commit_one(transition(other, completed("not running"))).await, Outcome::NotFound);
    assert_eq!(one.commit_one(transition(Key::mint(0), queued())).await, Outcome::NotFound);
    let pending_sleeps = vec![PendingSleep { path: Path::root().child(1), due_at: later(4) }];
    assert_eq!(
        one.commit_one(transition(id, State::Running { pending_sleeps: pending_sleeps.clone() })).await,
        Outcome::Applied
    );
    assert_eq!(one.record(id).await.execution.pending_sleeps, pending_sleeps);
    assert_eq!(one.commit_one(transition(id, completed("done"))).await, Outcome::Applied);
    assert_eq!(one.commit_one(transition(id, completed("twice"))).await, Outcome::NotFound);
    let row = one.record(id).await.execution;
    assert_eq!((row.status, row.owner, row.ended_at), (Status::Completed, None, Some(later(1))));
    assert_eq!((row.outcome, row.pending_sleeps), (value("done"), Vec::new()));
}

#[tokio::test]
async fn wake_requires_satisfied_condition() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (sleeper, parent) = (Key::mint(0), Key::mint(0));
    let child_start = child(parent, false, running());
    worker
        .commit(vec![
            start_write(start(sleeper, waiting(Some(later(10)), &[]))),
            start_write(start(parent, waiting(None, &[child_start.key, Key::mint(0)]))),
            start_write(child_start.clone()),
        ])
        .await;
    assert_eq!(worker.commit_one(Write::Wake(sleeper)).await, Outcome::NotFound, "not due");
    assert_eq!(worker.commit_one(Write::Wake(parent)).await, Outcome::NotFound, "no child has ended");
    assert_eq!(worker.commit_one(Write::Wake(Key::mint(0))).await, Outcome::NotFound);
    worker.clock.advance(std::time::Duration::from_secs(10));
    worker.commit(vec![transition(child_start.key, completed("child_start"))]).await;
    for id in [sleeper, parent] {
        assert_eq!(worker.commit_one(Write::Wake(id)).await, Outcome::Applied);
        assert_eq!(worker.commit_one(Write::Wake(id)).await, Outcome::NotFound, "only once");
    }
    assert_eq!(worker.claim_keys(9, &["w"]).await, [sleeper, parent]);
    let conn = Connection::open(&path).unwrap();
    for table in ["timers", "waits", "ready"] {
        let rows: i64 =
            conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}

#[tokio::test]
async fn chunks_are_ordered_and_missing_chunks_are_corrupt() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let (kept, dropped) = (u64::MAX, 1 << 63);
    let pieces = [
        chunk(id, kept, 1, b"def"),
        chunk(id, kept, 0, b"abc"),
        chunk(id, dropped, 0, b"x"),
        chunk(id, 5, 0, b"y"),
    ];
    worker.commit(pieces.map(Write::Chunk).to_vec()).await;
    assert_eq!(worker.commit_one(Write::Chunk(chunk(id, kept, 0, b"zzz"))).await, Outcome::Applied);
    let all = ChunkRef { value: kept, len: 6, count: 2 };
    assert_eq!(worker.store.load_value(id, all).await.unwrap(), "abcdef");
    for wrong in [ChunkRef { len: 7, ..all }, ChunkRef { count: 3, ..all }, ChunkRef { value: 9, ..all }] {
        let error = worker.store.load_value(id, wrong).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    }
    worker.commit(vec![Write::DeleteChunks(DeleteChunks { execution: id, keep: smallvec![kept] })]).await;
    assert_eq!(worker.store.load_value(id, all).await.unwrap(), "abcdef");
    assert_eq!(worker.store.counters().snapshot().row_changes(Table::Chunks), (4, 0, 2));
    for value in [dropped, 5] {
        assert!(worker.store.load_value(id, ChunkRef { value, len: 1, count: 1 }).await.is_err());
    }
}

#[tokio::test]
async fn oversized_payload_rejects_whole_flush() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (good, bad) = (Key::mint(0), Key::mint(0));
    let mut start_of_bad = start(bad, running());
    start_of_bad.input = Payload::from_bytes(Bytes::from(vec![0; 1_000_000_001]));
    let writes = vec![start_write(start(good, running())), start_write(start_of_bad)];
    let error = worker.try_commit(writes).await.unwrap_err();
    assert!(matches!(error, StoreError::Rejected(_)), "{error}");
    let ids = [ExecutionId::Key(good), ExecutionId::Key(bad)];
    assert_eq!(worker.store.load(&ids, Detail::Outcome).await.unwrap(), [None, None]);
    assert_eq!(worker.commit(vec![start_write(start(good, running()))]).await, []);
}

#[tokio::test]
async fn lane_with_stale_epoch_or_missing_row_is_fenced() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let mut flush = worker.flush(vec![start_write(start(id, running()))]);
    flush.epoch += 1;
    assert!(matches!(worker.send(&flush).await, Err(StoreError::Fenced)));
    flush.epoch -= 1;
    flush.lane = 9;
    assert!(matches!(worker.send(&flush).await, Err(StoreError::Fenced)));
    let mut claim = worker.claim_request(1, &["w"]);
    claim.epoch += 1;
    assert!(matches!(worker.store.claim(&claim).await, Err(StoreError::Fenced)));
    worker.store.close(worker.registration.worker).await.unwrap();
    flush.lane = 0;
    for flush in [resent(&flush), flush] {
        assert!(matches!(worker.send(&flush).await, Err(StoreError::Fenced)));
    }
    assert_eq!(worker.store.load(&[ExecutionId::Key(id)], Detail::Outcome).await.unwrap(), [None]);
}

/// Returns a flush with Writes of most kinds: two of them lose, and the database is prepared so that the others apply.
async fn one_of_each(worker: &Worker) -> Flush {
    let keys: [Key; 8] = std::array::from_fn(|_| Key::mint(0));
    let [mine, done, asked, parked_id, sleeper, given, fresh, idle] = keys;
    let mut taken = start(given, running());
    taken.workflow_id = Some(Arc::from("taken"));
    worker
        .commit(vec![
            start_write(start(mine, running())),
            start_write(start(done, running())),
            start_write(start(asked, running())),
            start_write(start(parked_id, parked("why"))),
            start_write(start(sleeper, waiting(Some(NOON), &[]))),
            start_write(start(idle, queued())),
            start_write(taken),
        ])
        .await;
    let mut loser = start(Key::mint(0), running());
    loser.workflow_id = Some(Arc::from("taken"));
    worker.flush(vec![
        start_write(loser),
        start_write(start(fresh, running())),
        Write::Checkpoint(checkpoint(mine, 1, "one")),
        Write::Attempt(attempt(mine, 1)),
        transition(mine, waiting(Some(later(60)), &[])),
        transition(done, completed("done")),
        Write::Wake(sleeper),
        Write::Request(cancel(asked)),
        Write::Request(cancel(idle)),
        Write::Request(resume(parked_id)),
        Write::Chunk(chunk(mine, 77, 0, b"abc")),
        Write::Wake(Key::mint(0)),
    ])
}

fn dump(path: &std::path::Path) -> String {
    let conn = Connection::open(path).unwrap();
    let mut text = String::new();
    for table in Table::ALL {
        let order = if table == Table::Ready { "execution" } else { "1, 2" };
        let sql = format!("SELECT * FROM {} ORDER BY {order}", table.as_str());
        let mut statement = conn.prepare(&sql).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for i in 0..columns {
                // `ready.seq` is the time of queueing, not part of the outcome
                if table != Table::Ready || i != 4 {
                    write!(text, "{:?} ", row.get_ref(i).unwrap()).unwrap();
                }
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the outcomes that the store keeps for a resend.
fn kept(flush: &Flush, outcomes: &[(usize, Outcome)]) -> Vec<(usize, Outcome)> {
    outcomes_to_keep(flush, outcomes).cloned().collect()
}

#[tokio::test]
async fn resent_flush_returns_first_outcomes_if_applied() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    let outcomes = worker.send(&flush).await.unwrap();
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 7, 8, 9, 11]);
    let before = dump(&path);
    assert_eq!(worker.send(&resent(&flush)).await.unwrap(), kept(&flush, &outcomes));
    assert_eq!(dump(&path), before);
}

#[tokio::test]
async fn resent_flush_is_applied_if_not_applied_before() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    let outcomes = worker.send(&resent(&flush)).await.unwrap();
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 7, 8, 9, 11]);
    assert_eq!(worker.send(&resent(&flush)).await.unwrap(), kept(&flush, &outcomes));
}

#[tokio::test]
async fn start_of_earlier_registration_is_a_duplicate_in_each_try() {
    let (_dir, path) = temp_database();
    let first = Worker::at(&path).await;
    let again = start(Key::mint(0), queued());
    // the Start was applied, but its worker was fenced before the reply
    first.commit(vec![start_write(again.clone())]).await;
    first.store.close(first.registration.worker).await.unwrap();
    let worker = Worker::on(first.store.clone(), first.clock.clone()).await;
    let mine = Key::mint(0);
    worker.commit(vec![start_write(start(mine, running()))]).await;
    let chunk_write = Write::Chunk(chunk(mine, 77, 0, b"abc"));
    let flush = worker.flush(vec![start_write(again), chunk_write, transition(mine, completed("done"))]);
    // nothing of the first attempt was applied
    let outcomes = worker.send(&resent(&flush)).await.unwrap();
    assert_eq!(worker.status(mine).await, Status::Completed);
    assert_eq!(worker.send(&resent(&flush)).await.unwrap(), outcomes);
    assert!(matches!(outcomes[..], [(0, Outcome::Duplicate(_))]), "{outcomes:?}");
}

#[tokio::test]
async fn single_write_flush_is_applied_once_when_resent() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    for write in flush.writes {
        let single = worker.flush(vec![write]);
        let outcomes = worker.send(&single).await.unwrap();
        let before = dump(&path);
        let again = worker.send(&resent(&single)).await.unwrap();
        assert_eq!(dump(&path), before, "{single:?}");
        assert_eq!(again, kept(&single, &outcomes), "{single:?}");
    }
}

#[tokio::test]
async fn readers_do_not_wait_for_open_write() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    worker.commit(vec![start_write(start(id, completed("done")))]).await;
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE executions SET status = 5").unwrap();
    // each of these calls would block if it waited for the writer
    assert_eq!(worker.status(id).await, Status::Completed);
    let all = Filter { limit: 10, ..Filter::default() };
    assert_eq!(worker.store.list(&all).await.unwrap().executions.len(), 1);
    assert_eq!(worker.heartbeat().await.recovered, 0);
    writer.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn lists_are_filtered_paged_and_counted() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let keys: Vec<Key> = (0..6).map(|_| Key::mint(0)).collect();
    let mut starts: Vec<_> = keys.iter().map(|key| start(*key, running())).collect();
    starts[0].workflow_id = Some(Arc::from("order-7"));
    starts[1].workflow_id = Some(Arc::from("order_%"));
    starts[2].workflow = Arc::from("other");
    starts[3].state = parked("why");
    starts[4].created_at = later(7);
    starts[4].state = completed("done");
    starts[5].parent = Some(stepfast_core::store::Parent { key: keys[0], is_detached: false });
    worker.commit(starts.into_iter().map(start_write).collect()).await;
    let store = &worker.store;
    let list = async |filter: Filter| -> Vec<usize> {
        let page = store.list(&Filter { limit: 100, ..filter.clone() }).await.unwrap();
        assert_eq!(page.total, None);
        let total = store.list(&Filter { limit: 0, ..filter }).await.unwrap();
        assert_eq!((total.total, total.executions.len()), (Some(page.executions.len() as u64), 0));
        assert!(page.executions.iter().all(|row| row.input.is_empty() && row.outcome.is_empty()));
        page.executions.iter().map(|row| keys.iter().position(|key| *key == row.key).unwrap()).collect()
    };
    let all = Filter::default;
    assert_eq!(list(all()).await, [5, 4, 3, 2, 1, 0]);
    assert_eq!(list(Filter { statuses: vec![Status::Completed, Status::Queued], ..all() }).await, [4, 3]);
    assert_eq!(list(Filter { workflow: Some(Arc::from("other")), ..all() }).await, [2]);
    assert_eq!(list(Filter { is_parked: Some(true), ..all() }).await, [3]);
    assert_eq!(list(Filter { parent: Some(keys[0]), ..all() }).await, [5]);
    assert_eq!(list(Filter { created_from: Some(later(7)), ..all() }).await, [4]);
    assert_eq!(list(Filter { created_before: Some(later(7)), ..all() }).await, [5, 3, 2, 1, 0]);
    assert_eq!(list(Filter { id_prefix: Some(Arc::from("order")), ..all() }).await, [1, 0]);
    assert_eq!(list(Filter { id_prefix: Some(Arc::from("order_")), ..all() }).await, [1]);
    assert_eq!(list(Filter { id_prefix: Some(keys[4].to_string().into()), ..all() }).await, [4]);
    let by_time = keys[0].to_string()[..4].to_owned();
    assert_eq!(list(Filter { id_prefix: Some(by_time.into()), ..all() }).await, [5, 4, 3, 2]);
    assert_eq!(list(Filter { id_prefix: Some("zz\u{10ffff}".into()), ..all() }).await, [0usize; 0]);
    let page = store.list(&Filter { after: Some(keys[4]), limit: 2, ..all() }).await.unwrap();
    assert_eq!(page.executions.iter().map(|row| row.key).collect::<Vec<_>>(), [keys[3], keys[2]]);
    let page = store.list(&Filter { after: Some(keys[4]), limit: 0, ..all() }).await.unwrap();
    assert_eq!(page.total, Some(6), "the count does not depend on the page");
}

#[tokio::test]
async fn counters_match_rows_and_statements() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let before = worker.store.counters().snapshot();
    let id = Key::mint(0);
    worker
        .commit(vec![start_write(start(id, running())), start_write(start(Key::mint(0), completed("x")))])
        .await;
    worker.commit(vec![Write::Checkpoint(checkpoint(id, 1, "one")), transition(id, completed("done"))]).await;
    let counted = worker.store.counters().snapshot().since(&before);
    assert_eq!(counted.row_changes(Table::Executions), (2, 1, 0));
    assert_eq!(counted.row_changes(Table::Checkpoints), (1, 0, 0));
    assert_eq!(counted.row_changes(Table::Ready), (0, 0, 0));
    assert_eq!((counted.flushes, counted.writes, counted.reads), (2, 4, 0));
    // BEGIN, fence, two rows, an assignment, COMMIT; the second flush also queries once whether a request exists
    assert_eq!(counted.statements, 6 + 6);
}
