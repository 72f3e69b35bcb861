//! Batches: the statements that their Writes, claims and heartbeats take.

#![allow(clippy::unwrap_used)]

mod support;

use rusqlite::{Connection, StatementStatus};
use stepfast_core::key::Key;
use stepfast_core::store::{ItemOutcome, Outcome, Pack, Parent, Start, State, Status, Store, Write};
use support::*;

/// Number of bundles of a large batch.
const BUNDLES: u32 = 1_600;
/// Number of items in each bundle.
const ITEMS: u32 = 10;
/// Number of statements of a flush without Writes: the transaction, and the number of the flush.
const EMPTY_FLUSH_STATEMENTS: u64 = 3;

fn batch(key: Key, item_count: Option<u64>) -> Write {
    start_write(Start { item_count, ..start(key, waiting(None, &[])) })
}

/// Returns the Start of the bundle with this number.
fn bundle(batch: Key, number: u32, state: State) -> Write {
    let key = batch.bundle((number + 1) * ITEMS - 1);
    let parent = Some(Parent { key: batch, is_detached: false });
    start_write(Start { root: batch, parent, item_count: Some(u64::from(ITEMS)), ..start(key, state) })
}

fn bundles(key: Key, state: &State) -> impl Iterator<Item = Write> {
    (0..BUNDLES).map(move |number| bundle(key, number, state.clone()))
}

/// Commits a flush, and returns the number of its statements.
async fn statements_of(worker: &Worker, writes: Vec<Write>) -> u64 {
    let before = worker.store.counters().snapshot();
    worker.commit(writes).await;
    worker.store.counters().snapshot().since(&before).statements
}

#[tokio::test]
async fn bundles_take_few_statements_each() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let key = Key::mint_batch(0);
    let plain = (0..BUNDLES).map(|_| start_write(start(Key::mint(0), queued()))).collect();
    let of_plain = statements_of(&worker, plain).await;
    worker.commit(vec![batch(key, None)]).await;
    let of_bundles = statements_of(&worker, bundles(key, &queued()).collect()).await;
    assert!(of_bundles <= of_plain + u64::from(BUNDLES) / 16 + 2, "{of_bundles} instead of {of_plain}");
    let found = worker.store.bundles(key, 0, u64::MAX).await.unwrap();
    assert_eq!(found.len(), BUNDLES as usize);
}

#[tokio::test]
async fn wake_of_a_batch_takes_few_statements() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let (key, open) = (Key::mint_batch(0), Key::mint_batch(0));
    let count = u64::from(BUNDLES * ITEMS);
    let writes = [batch(open, None), batch(key, Some(count))];
    let ended = completed("x");
    let all_but_one = bundles(key, &ended).skip(1);
    let first = bundle(key, 0, running());
    worker.commit(writes.into_iter().chain([first]).chain(all_but_one).collect()).await;
    let wake = async |batch, outcome| {
        let before = worker.store.counters().snapshot();
        assert_eq!(worker.commit_one(Write::Wake(batch)).await, outcome);
        worker.store.counters().snapshot().since(&before).statements - EMPTY_FLUSH_STATEMENTS
    };
    assert_eq!(statements_of(&worker, Vec::new()).await, EMPTY_FLUSH_STATEMENTS);
    assert_eq!(wake(open, Outcome::NotFound).await, 1, "the row of the batch");
    assert_eq!(wake(key, Outcome::NotFound).await, 2, "and one search");
    worker.commit(vec![transition(key.bundle(ITEMS - 1), completed("x"))]).await;
    assert_eq!(wake(key, Outcome::Applied).await, 6, "two searches, a sum, and two changes");
    assert_eq!(wake(key, Outcome::NotFound).await, 1);
    // what this costs does not concern other executions
    let sleeper = Key::mint(0);
    worker.commit(vec![start_write(start(sleeper, waiting(Some(later(99)), &[])))]).await;
    assert_eq!(wake(sleeper, Outcome::NotFound).await, 1);
}

#[tokio::test]
async fn search_for_unfinished_bundles_begins_at_the_end() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let key = Key::mint_batch(0);
    worker.commit(vec![batch(key, None)]).await;
    worker.commit(bundles(key, &running()).collect()).await;
    let conn = Connection::open(&path).unwrap();
    let query =
        "SELECT 1 FROM executions WHERE key BETWEEN ?1 AND ?2 AND status < 4 ORDER BY key DESC LIMIT 1";
    let mut statement = conn.prepare(query).unwrap();
    assert!(statement.exists([key.bundle(0).as_bytes(), key.bundle(u32::MAX >> 2).as_bytes()]).unwrap());
    assert!(statement.get_status(StatementStatus::VmStep) < 50);
}

#[tokio::test]
async fn claim_of_a_bundle_takes_statements_per_bundle_only() {
    let (_dir, path) = temp_database();
    let worker = Worker::at(&path).await;
    let key = Key::mint_batch(0);
    let claim = async |number| {
        let before = worker.store.counters().snapshot();
        let claim = stepfast_core::store::Claim { number, ..worker.claim_request(10, &["w"]) };
        let records = worker.store.claim(&claim).await.unwrap().records;
        assert_eq!(records.len(), 1);
        worker.store.counters().snapshot().since(&before).statements
    };
    worker.commit(vec![start_write(start(Key::mint(0), queued()))]).await;
    let of_plain = claim(1).await;
    worker.commit(vec![batch(key, None), bundle(key, 0, queued())]).await;
    assert_eq!(claim(2).await, of_plain + 4, "the number of items, packs, promoted items, requests");
    let outcomes = (0..ITEMS - 1).map(|index| {
        let outcome = value("short");
        ItemOutcome { index, status: Status::Completed, outcome }
    });
    let id = key.bundle(ITEMS - 1);
    let packed = Write::Pack(Pack { bundle: id, outcomes: outcomes.collect() });
    worker.commit(vec![packed, transition(id, queued())]).await;
    // also attributes, requests, checkpoints and attempts, as of any execution that has begun
    assert_eq!(claim(3).await, of_plain + 8);
}
