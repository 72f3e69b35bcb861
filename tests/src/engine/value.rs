//! Values that are too large for a row.

use stepfast_core::payload::ChunkRef;
use stepfast_core::store::Write;
use stepfast_core::store::counters::Table;
use stepfast_core::{Context, Error, ErrorKind, Failure, Key, Workflow};

use super::support::{
    BodyResult, Count, Latch, open, open_engine, open_second_engine, record, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    chunks_of_a_dead_run_are_deleted,
    chunks_of_a_start_that_is_not_applied_are_deleted,
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
