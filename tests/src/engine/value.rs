//! Values that are too large for a row.

use std::time::Duration;

use stepfast_core::payload::ChunkRef;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Status, Write};
use stepfast_core::{Context, Either, Engine, Error, ErrorKind, Failure, Key, Payload, Workflow};

use super::support::{
    BodyResult, Count, Latch, open, open_engine, open_second_engine, record, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    chunks_of_a_dead_run_are_deleted,
    chunks_of_a_start_that_is_not_applied_are_deleted,
    chunks_of_an_abandoned_step_are_deleted,
    chunks_of_a_requeued_run_are_deleted,
    chunks_of_an_input_are_stored_once_when_a_parent_dies,
    failures_of_attempts_are_kept_when_a_worker_dies,
    value_over_the_limit_is_recorded_with_its_code,
];

/// The size of a value with three chunks.
const SIZE: usize = 5 << 19;

async fn chunks_of_a_dead_run_are_deleted(fixture: &dyn StoreFixture) {
    let (bodies, first, later) = (Count::new(), Latch::new(), Latch::new());
    let workflow = {
        let all = (bodies.clone(), first.clone(), later.clone());
        Workflow::new("w", move |mut cx: Context, input: String| {
            let all = all.clone();
            async move {
                let kept: String = cx.step("kept", async || BodyResult::Ok(input.replace('i', "k"))).await?;
                cx.step("interrupted", || {
                    let (bodies, first, later) = all.clone();
                    async move {
                        if bodies.increment() == 1 { first } else { later }.wait().await;
                        BodyResult::Ok("l".repeat(SIZE))
                    }
                })
                .await?;
                BodyResult::Ok(kept == "k".repeat(SIZE))
            }
        })
    };
    // one Write per flush
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, "i".repeat(SIZE)).workflow_id("x").await.unwrap();
    bodies.wait_for(1).await;
    // the worker dies after the chunks of an outcome, before the checkpoint that refers to them
    store.hold_writes(|write| matches!(write, Write::Checkpoint(_)));
    first.open();
    store.wait_until_hanging().await;
    let owner = row(&two, "x").await.owner.unwrap();
    store.hold_calls(&[Call::Heartbeat]);
    fixture.mark_dead(owner).await;
    bodies.wait_for(2).await;
    store.release();
    later.open();
    assert!(handle.result().await.unwrap());
    assert_eq!(record(&two, "x").await.execution.recoveries, 1);
    let (one_counted, two_counted) = (one.store().counters().snapshot(), two.store().counters().snapshot());
    let (inserted, _, deleted) = one_counted.row_changes(Table::Chunks);
    let (inserted_too, _, deleted_too) = two_counted.row_changes(Table::Chunks);
    // the handles of the memory store share their counters
    let (inserted, deleted) = if (inserted, deleted) == (inserted_too, deleted_too) {
        (inserted, deleted)
    } else {
        (inserted + inserted_too, deleted + deleted_too)
    };
    assert_eq!((inserted, deleted), (3 * 4, 3), "four values are stored; that of the dead run is deleted");
    shut_down(one).await;
    shut_down(two).await;
}

/// Returns the values that were stored in chunks through `store`, by execution.
fn values(store: &FaultStore) -> Vec<(Key, ChunkRef)> {
    let mut values: Vec<(Key, ChunkRef)> = Vec::new();
    for (write, _) in store.committed_writes() {
        let Write::Chunk(chunk) = write else { continue };
        if chunk.is_withdrawal() {
            continue;
        }
        let len = chunk.bytes.len() as u64;
        match values.iter_mut().find(|(key, value)| (*key, value.value) == (chunk.execution, chunk.value)) {
            Some((_, value)) => {
                value.len += len;
                value.count += 1;
            }
            None => values.push((chunk.execution, ChunkRef { value: chunk.value, len, count: 1 })),
        }
    }
    values
}

async fn chunks_of_a_start_that_is_not_applied_are_deleted(fixture: &dyn StoreFixture) {
    let length =
        Workflow::new("length", |_cx: Context, text: String| async move { BodyResult::Ok(text.len()) });
    let (one, store) = open_engine(fixture, |b| b.register(&length)).await;
    let large = "i".repeat(SIZE);
    let first = one.start(&length, large.clone()).workflow_id("taken").await.unwrap();
    assert_eq!(first.result().await.unwrap(), SIZE);
    // a repeated Start attaches to the first, and another input is rejected
    let repeated = one.start(&length, large.clone()).workflow_id("taken").await.unwrap();
    assert_eq!(repeated.key(), first.key());
    let other = one.start(&length, "o".repeat(SIZE)).workflow_id("taken").await.map(drop).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict, "{other}");
    store.reject(|write| matches!(write, Write::Start(_)));
    one.start(&length, large).await.map(drop).unwrap_err();
    store.accept_all();
    let other = one.run(&length, "o".repeat(SIZE)).workflow_id("taken").await.map(drop).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict, "{other}");
    let inputs = values(&store);
    assert_eq!(inputs.len(), 5);
    shut_down(one).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&length)).await;
    for (key, value) in inputs {
        assert_eq!(value.len as usize, SIZE + 6, "header and length, then the text");
        let exists = two.show(&key.to_string()).await.is_ok();
        assert_eq!(exists, key == first.key());
        assert_eq!(two.store().load_value(key, value).await.is_ok(), exists);
    }
    shut_down(two).await;
}

/// The size of a value with six chunks, more than a run stages at once.
const LONG_SIZE: usize = 11 << 19;

/// Asserts that exactly those values have chunks to which a record of these executions refers.
async fn assert_all_are_referenced(engine: &Engine, values: Vec<(Key, ChunkRef)>, executions: &[Key]) {
    let mut referenced = Vec::new();
    for key in executions {
        let record = record(engine, &key.to_string()).await;
        let outcomes = record.checkpoints.iter().map(|checkpoint| &checkpoint.outcome);
        let payloads = outcomes.chain([&record.execution.input, &record.execution.outcome]);
        referenced.extend(payloads.filter_map(Payload::chunk_ref).map(|chunks| (*key, chunks.value)));
    }
    for (key, value) in values {
        let is_stored = engine.store().load_value(key, value).await.is_ok();
        assert_eq!(is_stored, referenced.contains(&(key, value.value)), "{value:?} of {key}");
    }
}

/// Waits until this number of Writes are staged behind a flush. A run stages three chunks behind a flush with one.
async fn wait_until_staged(engine: &Engine, writes: usize) {
    while engine.lane_load().iter().map(|lane| lane.staged).sum::<usize>() < writes {
        tokio::task::yield_now().await;
    }
}

fn is_chunk(write: &Write) -> bool {
    matches!(write, Write::Chunk(_))
}

async fn chunks_of_an_abandoned_step_are_deleted(fixture: &dyn StoreFixture) {
    let gate = Latch::new();
    let winner = gate.clone();
    let workflow = Workflow::new("w", move |mut cx: Context, (): ()| {
        let winner = winner.clone();
        async move {
            let step = |mut cx: Context| async move {
                cx.step("large", async || BodyResult::Ok("l".repeat(LONG_SIZE))).await
            };
            let won = |_| async { winner.wait().await };
            BodyResult::Ok(matches!(cx.race(step, won).await, Either::Second(())))
        }
    });
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let engine = open(store.clone(), |b| b.register(&workflow)).await;
    store.hold_writes(is_chunk);
    let handle = engine.start(&workflow, ()).await.unwrap();
    wait_until_staged(&engine, 3).await;
    gate.open();
    // the call is recorded as abandoned behind its chunks
    wait_until_staged(&engine, 4).await;
    store.release();
    assert!(handle.result().await.unwrap());
    assert!(!values(&store).is_empty());
    assert_all_are_referenced(&engine, values(&store), &[handle.key()]).await;
    shut_down(engine).await;
}

async fn chunks_of_a_requeued_run_are_deleted(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let value = cx.step("large", async || BodyResult::Ok("l".repeat(LONG_SIZE))).await?;
        BodyResult::Ok(value.len())
    });
    let first_store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(first_store.clone(), |b| b.register(&workflow)).await;
    first_store.hold_writes(is_chunk);
    let key = one.start(&workflow, ()).await.unwrap().key();
    wait_until_staged(&one, 3).await;
    let ending = {
        let one = one.clone();
        tokio::spawn(async move { shut_down(one).await })
    };
    // the run leaves its execution while the flush of its first chunks is under way
    wait_until_staged(&one, 4).await;
    first_store.release();
    ending.await.unwrap();
    let (two, second_store) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    while row(&two, &key.to_string()).await.status != Status::Completed {
        tokio::task::yield_now().await;
    }
    let stored = [first_store, second_store].iter().flat_map(|store| values(store)).collect();
    assert_all_are_referenced(&two, stored, &[key]).await;
    shut_down(two).await;
}

async fn chunks_of_an_input_are_stored_once_when_a_parent_dies(fixture: &dyn StoreFixture) {
    let length =
        Workflow::new("length", |_cx: Context, text: String| async move { BodyResult::Ok(text.len()) });
    let child = length.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, size: usize| {
        let child = child.clone();
        async move { cx.child(&child, "i".repeat(size)).await }
    });
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&length).register(&parent)).await;
    let (two, second_store) = open_second_engine(fixture, |b| b.register(&length).register(&parent)).await;
    let is_child = |write: &Write| matches!(write, Write::Start(start) if start.parent.is_some());
    store.hold_writes(is_child);
    let handle = one.start(&parent, SIZE).await.unwrap();
    store.wait_until_hanging().await;
    // the worker dies after the chunks of the child's input, before the child's Start
    let owner = row(&two, &handle.key().to_string()).await.owner.unwrap();
    store.hold_calls(&[Call::Heartbeat]);
    fixture.mark_dead(owner).await;
    second_store.wait_until_committed(is_child).await;
    store.release();
    assert_eq!(handle.result().await.unwrap(), SIZE);
    let stored: Vec<_> = values(&store).into_iter().chain(values(&second_store)).collect();
    let child = stored[0].0;
    assert_eq!(stored, [stored[0], stored[0]], "both runs store the same chunks");
    assert_all_are_referenced(&two, stored, &[handle.key(), child]).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn failures_of_attempts_are_kept_when_a_worker_dies(fixture: &dyn StoreFixture) {
    let (bodies, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (bodies, latch) = (bodies.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (bodies, latch) = (bodies.clone(), latch.clone());
            async move {
                cx.step("s", || {
                    let (n, latch) = (bodies.increment(), latch.clone());
                    async move {
                        if n == 1 {
                            return Err(Failure::new("f".repeat(SIZE)));
                        }
                        latch.wait().await;
                        Ok(n)
                    }
                })
                .retries(1)
                .backoff(Duration::ZERO, Duration::ZERO)
                .await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, ()).workflow_id("x").await.unwrap();
    bodies.wait_for(2).await;
    let owner = row(&two, "x").await.owner.unwrap();
    store.hold_calls(&[Call::Heartbeat]);
    fixture.mark_dead(owner).await;
    // the second engine deletes the chunks to which no row refers, before the next attempt begins there
    bodies.wait_for(3).await;
    store.release();
    let record = record(&two, "x").await;
    assert_eq!((record.attempts.len(), record.execution.recoveries), (1, 1));
    assert_eq!(record.attempts[0].failure.decode::<Failure>().unwrap().message.len(), SIZE);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 3);
    shut_down(one).await;
    shut_down(two).await;
}

async fn value_over_the_limit_is_recorded_with_its_code(fixture: &dyn StoreFixture) {
    let code = |failure: &Failure| failure.code().unwrap_or(&failure.kind).to_owned();
    let long =
        Workflow::new("long", |_cx: Context, size: usize| async move { BodyResult::Ok("x".repeat(size)) });
    let caller = {
        let long = long.clone();
        Workflow::new("caller", move |mut cx: Context, size: usize| {
            let long = long.clone();
            async move {
                let step_failure =
                    cx.step("long step", async || BodyResult::Ok("x".repeat(size))).await.unwrap_err();
                let child_failure = cx.child(&long, size).await.unwrap_err();
                BodyResult::Ok([code(&step_failure), code(&child_failure)])
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&long).register(&caller).value_limit(1000)).await;
    assert_eq!(engine.run(&caller, 2000).await.unwrap(), ["SF-0007", "SF-0007"]);
    let handle = engine.start(&long, 2000).workflow_id("long").await.unwrap();
    let Error::Failed(failure) = handle.result().await.unwrap_err() else {
        panic!("the execution did not fail")
    };
    assert_eq!(code(&failure), "SF-0007");
    assert!(failure.message.starts_with("the output of workflow \"long\" has "), "{failure}");
    shut_down(engine).await;
}
