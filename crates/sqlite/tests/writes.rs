//! Each Write's guard and outcome, the fence, and flushes that are sent again.

#![allow(clippy::unwrap_used)]

mod kit;

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use kit::*;
use rusqlite::Connection;
use smallvec::smallvec;
use stepfast_core::failure::Failure;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::{ChunkRef, Payload};
use stepfast_core::queue::Placement;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{
    PendingSleep, Attempt, Chunk, Detail, DeleteChunks, ExecutionId, Filter, Flush, Move, Outcome, Start, State, Status,
    Store, StoreError, Write,
};

fn attempt(execution: Key, attempt: u32) -> Attempt {
    let failure = Payload::encode(&Failure::new("boom")).unwrap();
    Attempt { execution, path: Path::root().child(1), attempt, failure, at: later(3) }
}

fn chunk(execution: Key, value: u64, n: u32, bytes: &'static [u8]) -> Chunk {
    Chunk { execution, value, n, bytes: Bytes::from_static(bytes), is_unowned: false }
}

fn resent(flush: &Flush) -> Flush {
    Flush { is_resent: true, ..flush.clone() }
}

#[tokio::test]
async fn all_that_is_written_is_read_back() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let parent = Key::mint(0);
    let armed = vec![PendingSleep { path: Path::root().child(300), due_at: later(60) }];
    let mut full = child(
        parent,
        true,
        State::Waiting { wake_at: Some(later(50)), children: vec![Key::mint(0)], armed: armed.clone() },
    );
    full.workflow_id = Some(Arc::from("order/7 \u{1f980} ' \" \0 end"));
    full.fingerprint = Some(u64::MAX);
    full.deadline_at = Some(later(99));
    let checkpoints = vec![checkpoint(full.key, 1, "one"), checkpoint(full.key, 2, "two")];
    let attempts = vec![attempt(full.key, 1), attempt(full.key, 2)];
    let mut writes = vec![put(start(parent, running())), put(full.clone())];
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
    assert_eq!((row.deadline_at, row.wake_at, &row.pending_sleeps), (full.deadline_at, Some(later(50)), &armed));
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
async fn an_end_frees_its_dedup_id_whether_its_move_names_the_queue_or_not() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let ticket = Arc::new(Placement { queue: "mail".into(), key: "".into(), priority: 0 });
    for named in [None, Some(ticket.clone())] {
        let first = Start {
            placement: Some(ticket.clone()),
            dedup_id: Some("ann".into()),
            ..start(Key::mint(0), running())
        };
        let second = Start { key: Key::mint(0), ..first.clone() };
        assert_eq!(worker.one(put(first.clone())).await, Outcome::Applied);
        let lost = worker.one(put(second)).await;
        assert!(matches!(lost, Outcome::Deduplicated(_)), "{lost:?}");
        let end = Move { key: first.key, ticket: named, state: completed("done") };
        assert_eq!(worker.one(Write::Transition(end)).await, Outcome::Applied);
        assert_eq!(worker.record(first.key).await.execution.dedup_id, None);
    }
}

#[tokio::test]
async fn a_start_loses_to_its_key_and_to_its_workflow_id_and_neighbours_commit() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let mut first = start(Key::mint(0), completed("done"));
    first.workflow_id = Some(Arc::from("order-7"));
    first.fingerprint = Some(7);
    let mut same_id = start(Key::mint(0), running());
    same_id.workflow_id = first.workflow_id.clone();
    let mut same_key = start(first.key, running());
    same_key.created_at = later(5);
    let neighbour = start(Key::mint(0), running());
    assert_eq!(worker.commit(vec![put(first.clone())]).await, []);
    let outcomes = worker.commit(vec![put(same_id.clone()), put(neighbour.clone()), put(same_key)]).await;
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
async fn a_second_outcome_of_a_step_is_refused_and_the_first_stays() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let first = checkpoint(id, 1, "one");
    worker.commit(vec![put(start(id, running())), Write::Checkpoint(first.clone())]).await;
    assert_eq!(worker.one(Write::Checkpoint(first.clone())).await, Outcome::Applied, "the same once more");
    let outcome = worker.one(Write::Checkpoint(checkpoint(id, 1, "another"))).await;
    assert!(matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
    assert_eq!(worker.record(id).await.checkpoints, [first]);
}

#[tokio::test]
async fn many_rows_of_one_shape_land_as_each_alone_would_and_losers_are_told() {
    let (_dir, path) = place();
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
        .flat_map(|(row, step)| [put(row.clone()), Write::Checkpoint(step.clone())])
        .collect();
    assert_eq!(worker.commit(flush.clone()).await, []);
    for (row, step) in rows.iter().zip(&steps) {
        let record = worker.record(row.key).await;
        let execution = &record.execution;
        assert_eq!((&execution.workflow, &execution.input), (&row.workflow, &row.input));
        assert_eq!((execution.created_at, execution.root), (row.created_at, row.key));
        assert_eq!(
            execution.owner,
            row.state
                .armed()
                .is_empty()
                .then_some(worker.registration.worker)
                .filter(|_| matches!(row.state, State::Running { .. }))
        );
        assert_eq!(record.checkpoints, std::slice::from_ref(step));
    }
    let resent = Flush { is_resent: true, ..worker.flush(flush.clone()) };
    assert_eq!(worker.store.commit(&resent).await.unwrap(), []);

    // among many new ones, some that are there
    let mut again: Vec<_> = (0..60).map(|_| put(start(Key::mint(0), running()))).collect();
    again[33] = flush[10].clone();
    again[44] = flush[11].clone();
    let mut another = steps[3].clone();
    another.outcome = value("another");
    again[55] = Write::Checkpoint(another);
    again.extend((0..20).map(|i| Write::Checkpoint(checkpoint(rows[0].key, 100 + i, "new"))));
    let before = worker.store.counters().counted();
    let outcomes = worker.commit(again).await;
    assert!(
        matches!(&outcomes[..], [(33, Outcome::Duplicate(_)), (55, Outcome::Rejected(_))]),
        "{outcomes:?}"
    );
    let counted = worker.store.counters().counted().since(&before);
    assert_eq!((counted.of(Table::Executions), counted.of(Table::Checkpoints)), ((57, 0, 0), (20, 0, 0)));
    assert_eq!(worker.record(rows[3].key).await.checkpoints, [steps[3].clone()]);
}

#[tokio::test]
async fn a_move_needs_a_running_execution_of_its_own() {
    let (_dir, path) = place();
    let (one, two) = (Worker::at(&path).await, Worker::at(&path).await);
    let (id, other) = (Key::mint(0), Key::mint(0));
    one.commit(vec![put(start(id, running())), put(start(other, queued()))]).await;
    assert_eq!(two.one(change(id, completed("stolen"))).await, Outcome::NotFound);
    assert_eq!(one.one(change(other, completed("not running"))).await, Outcome::NotFound);
    assert_eq!(one.one(change(Key::mint(0), queued())).await, Outcome::NotFound);
    let armed = vec![PendingSleep { path: Path::root().child(1), due_at: later(4) }];
    assert_eq!(one.one(change(id, State::Running { armed: armed.clone() })).await, Outcome::Applied);
    assert_eq!(one.record(id).await.execution.pending_sleeps, armed);
    assert_eq!(one.one(change(id, completed("done"))).await, Outcome::Applied);
    assert_eq!(one.one(change(id, completed("twice"))).await, Outcome::NotFound);
    let row = one.record(id).await.execution;
    assert_eq!((row.status, row.owner, row.ended_at), (Status::Completed, None, Some(later(1))));
    assert_eq!((row.outcome, row.pending_sleeps), (value("done"), Vec::new()));
}

#[tokio::test]
async fn a_wake_needs_a_condition_that_holds() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let (sleeper, parent) = (Key::mint(0), Key::mint(0));
    let kid = child(parent, false, running());
    worker
        .commit(vec![
            put(start(sleeper, waiting(Some(later(10)), &[]))),
            put(start(parent, waiting(None, &[kid.key, Key::mint(0)]))),
            put(kid.clone()),
        ])
        .await;
    assert_eq!(worker.one(Write::Wake(sleeper)).await, Outcome::NotFound, "not due");
    assert_eq!(worker.one(Write::Wake(parent)).await, Outcome::NotFound, "no child has ended");
    assert_eq!(worker.one(Write::Wake(Key::mint(0))).await, Outcome::NotFound);
    worker.clock.advance(std::time::Duration::from_secs(10));
    worker.commit(vec![change(kid.key, completed("kid"))]).await;
    for id in [sleeper, parent] {
        assert_eq!(worker.one(Write::Wake(id)).await, Outcome::Applied);
        assert_eq!(worker.one(Write::Wake(id)).await, Outcome::NotFound, "only once");
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
async fn chunks_come_back_in_order_and_what_is_missing_is_corrupt() {
    let (_dir, path) = place();
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
    assert_eq!(worker.one(Write::Chunk(chunk(id, kept, 0, b"zzz"))).await, Outcome::Applied);
    let all = ChunkRef { value: kept, len: 6, count: 2 };
    assert_eq!(worker.store.load_value(id, all).await.unwrap(), "abcdef");
    for wrong in [ChunkRef { len: 7, ..all }, ChunkRef { count: 3, ..all }, ChunkRef { value: 9, ..all }] {
        let error = worker.store.load_value(id, wrong).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    }
    worker.commit(vec![Write::DeleteChunks(DeleteChunks { execution: id, keep: smallvec![kept] })]).await;
    assert_eq!(worker.store.load_value(id, all).await.unwrap(), "abcdef");
    assert_eq!(worker.store.counters().counted().of(Table::Chunks), (4, 0, 2));
    for value in [dropped, 5] {
        assert!(worker.store.load_value(id, ChunkRef { value, len: 1, count: 1 }).await.is_err());
    }
}

#[tokio::test]
async fn an_item_that_is_too_large_is_rejected_and_nothing_of_its_flush_lands() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let (good, bad) = (Key::mint(0), Key::mint(0));
    let mut start_of_bad = start(bad, running());
    start_of_bad.input = Payload::from_bytes(Bytes::from(vec![0; 1_000_000_001]));
    let writes = vec![put(start(good, running())), put(start_of_bad)];
    let error = worker.try_commit(writes).await.unwrap_err();
    assert!(matches!(error, StoreError::Rejected(_)), "{error}");
    let ids = [ExecutionId::Key(good), ExecutionId::Key(bad)];
    assert_eq!(worker.store.load(&ids, Detail::Outcome).await.unwrap(), [None, None]);
    assert_eq!(worker.commit(vec![put(start(good, running()))]).await, []);
}

#[tokio::test]
async fn a_lane_whose_row_or_epoch_is_gone_is_fenced() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    let mut flush = worker.flush(vec![put(start(id, running()))]);
    flush.epoch += 1;
    assert!(matches!(worker.store.commit(&flush).await, Err(StoreError::Fenced)));
    flush.epoch -= 1;
    flush.lane = 9;
    assert!(matches!(worker.store.commit(&flush).await, Err(StoreError::Fenced)));
    let mut claim = worker.claim_of(1, &["w"]);
    claim.epoch += 1;
    assert!(matches!(worker.store.claim(&claim).await, Err(StoreError::Fenced)));
    worker.store.close(worker.registration.worker).await.unwrap();
    flush.lane = 0;
    for flush in [resent(&flush), flush] {
        assert!(matches!(worker.store.commit(&flush).await, Err(StoreError::Fenced)));
    }
    assert_eq!(worker.store.load(&[ExecutionId::Key(id)], Detail::Outcome).await.unwrap(), [None]);
}

/// A flush of every kind of Write, to a database in which each has something to do.
async fn one_of_each(worker: &Worker) -> Flush {
    let keys: [Key; 8] = std::array::from_fn(|_| Key::mint(0));
    let [mine, done, asked, parked_one, sleeper, given, fresh, idle] = keys;
    let mut taken = start(given, running());
    taken.workflow_id = Some(Arc::from("taken"));
    worker
        .commit(vec![
            put(start(mine, running())),
            put(start(done, running())),
            put(start(asked, running())),
            put(start(parked_one, parked("why"))),
            put(start(sleeper, waiting(Some(NOON), &[]))),
            put(start(idle, queued())),
            put(taken),
        ])
        .await;
    let mut loser = start(Key::mint(0), running());
    loser.workflow_id = Some(Arc::from("taken"));
    worker.flush(vec![
        put(loser),
        put(start(fresh, running())),
        Write::Checkpoint(checkpoint(mine, 1, "one")),
        Write::Attempt(attempt(mine, 1)),
        change(mine, waiting(Some(later(60)), &[])),
        change(done, completed("done")),
        Write::Wake(sleeper),
        Write::Request(cancel(asked)),
        Write::Request(cancel(idle)),
        Write::Request(resume(parked_one)),
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
                // the position in `ready` is the moment of queueing, not part of the outcome
                if table != Table::Ready || i != 4 {
                    write!(text, "{:?} ", row.get_ref(i).unwrap()).unwrap();
                }
            }
            text.push('\n');
        }
    }
    text
}

#[tokio::test]
async fn a_flush_that_was_applied_is_not_applied_again_and_has_the_same_outcomes() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    let outcomes = worker.store.commit(&flush).await.unwrap();
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 7, 8, 9, 11]);
    let before = dump(&path);
    assert_eq!(worker.store.commit(&resent(&flush)).await.unwrap(), outcomes);
    assert_eq!(dump(&path), before);
}

#[tokio::test]
async fn a_flush_that_was_not_applied_is_applied_when_sent_again() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    let outcomes = worker.store.commit(&resent(&flush)).await.unwrap();
    assert_eq!(outcomes.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 7, 8, 9, 11]);
    assert_eq!(worker.store.commit(&resent(&flush)).await.unwrap(), outcomes);
}

#[tokio::test]
async fn a_start_of_an_earlier_registration_proves_no_flush() {
    let (_dir, path) = place();
    let first = Worker::at(&path).await;
    let again = start(Key::mint(0), queued());
    // it has landed, but its worker was fenced before the answer came
    first.commit(vec![put(again.clone())]).await;
    first.store.close(first.registration.worker).await.unwrap();
    let worker = Worker::on(first.store.clone(), first.clock.clone()).await;
    let mine = Key::mint(0);
    worker.commit(vec![put(start(mine, running()))]).await;
    let ended = Write::Chunk(chunk(mine, 77, 0, b"abc"));
    let flush = worker.flush(vec![put(again), ended, change(mine, completed("done"))]);
    // of the first try nothing has landed
    let outcomes = worker.store.commit(&resent(&flush)).await.unwrap();
    assert_eq!(worker.status(mine).await, Status::Completed);
    assert_eq!(worker.store.commit(&resent(&flush)).await.unwrap(), []);
    assert!(matches!(outcomes[..], [(0, Outcome::Duplicate(_))]), "{outcomes:?}");
}

#[tokio::test]
async fn each_write_alone_survives_being_sent_twice() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let flush = one_of_each(&worker).await;
    for write in flush.writes {
        let single = worker.flush(vec![write]);
        let outcomes = worker.store.commit(&single).await.unwrap();
        let before = dump(&path);
        let again = worker.store.commit(&resent(&single)).await.unwrap();
        assert_eq!(dump(&path), before, "{single:?}");
        assert_eq!(again, outcomes, "{single:?}");
    }
}

#[tokio::test]
async fn readers_do_not_wait_for_a_write_that_is_going_on() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let id = Key::mint(0);
    worker.commit(vec![put(start(id, completed("done")))]).await;
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE executions SET status = 5").unwrap();
    // each would hang here
    assert_eq!(worker.status(id).await, Status::Completed);
    let all = Filter { limit: 10, ..Filter::default() };
    assert_eq!(worker.store.list(&all).await.unwrap().executions.len(), 1);
    assert_eq!(worker.look().await.recovered, 0);
    writer.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn lists_are_filtered_paged_and_counted() {
    let (_dir, path) = place();
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
    worker.commit(starts.into_iter().map(put).collect()).await;
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
    assert_eq!(list(Filter { is_paused: Some(true), ..all() }).await, [3]);
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
async fn rows_and_statements_are_counted_as_they_are() {
    let (_dir, path) = place();
    let worker = Worker::at(&path).await;
    let before = worker.store.counters().counted();
    let id = Key::mint(0);
    worker.commit(vec![put(start(id, running())), put(start(Key::mint(0), completed("x")))]).await;
    worker.commit(vec![Write::Checkpoint(checkpoint(id, 1, "one")), change(id, completed("done"))]).await;
    let counted = worker.store.counters().counted().since(&before);
    assert_eq!(counted.of(Table::Executions), (2, 1, 0));
    assert_eq!(counted.of(Table::Checkpoints), (1, 0, 0));
    assert_eq!(counted.of(Table::Ready), (0, 0, 0));
    assert_eq!((counted.flushes, counted.writes, counted.reads), (2, 4, 0));
    // BEGIN, fence, two rows, COMMIT; the second also looks once whether anything is asked for
    assert_eq!(counted.statements, 5 + 6);
}
