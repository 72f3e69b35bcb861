//! Values too large for a row.

use stepfast_core::counters::Table;
use stepfast_core::write::Write;
use stepfast_core::{Context, Error, Workflow};

use super::kit::{Count, Latch, Returns, engine, open, record, row, second_engine, shut_down};
use crate::StoreFixture;
use crate::fault_store::{Call, FaultStore};

super::cases![what_a_lost_run_left_behind_is_swept, the_input_of_a_start_that_lost_is_swept];

/// Three chunks.
const SIZE: usize = 5 << 19;

async fn what_a_lost_run_left_behind_is_swept(fixture: &dyn StoreFixture) {
    let (bodies, first, later) = (Count::new(), Latch::new(), Latch::new());
    let workflow = {
        let all = (bodies.clone(), first.clone(), later.clone());
        Workflow::new("w", move |mut cx: Context, input: String| {
            let all = all.clone();
            async move {
                let kept: String =
                    cx.step("kept", async || Returns::Ok(input.replace('i', "k"))).await?;
                cx.step("lost", || {
                    let (bodies, first, later) = all.clone();
                    async move {
                        if bodies.more() == 1 { first } else { later }.passed().await;
                        Returns::Ok("l".repeat(SIZE))
                    }
                })
                .await?;
                Returns::Ok(kept == "k".repeat(SIZE))
            }
        })
    };
    // each Write alone in its flush
    let store = FaultStore::flushing(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, "i".repeat(SIZE)).workflow_id("x").await.unwrap();
    bodies.reaches(1).await;
    // its worker is lost after the pieces of an outcome, before the checkpoint that refers to them
    store.hold_writes(|write| matches!(write, Write::Checkpoint(_)));
    first.open();
    store.until_hanging().await;
    let owner = row(&two, "x").await.owner.unwrap();
    store.hold(&[Call::Look]);
    fixture.lose(owner).await;
    bodies.reaches(2).await;
    store.release();
    later.open();
    assert!(handle.result().await.unwrap());
    assert_eq!(record(&two, "x").await.execution.recoveries, 1);
    let (one_counted, two_counted) = (one.store().counters().counted(), two.store().counters().counted());
    let (inserted, _, deleted) = one_counted.of(Table::Chunks);
    let (inserted_too, _, deleted_too) = two_counted.of(Table::Chunks);
    // the memory store's handles share their counters
    let (inserted, deleted) = if (inserted, deleted) == (inserted_too, deleted_too) {
        (inserted, deleted)
    } else {
        (inserted + inserted_too, deleted + deleted_too)
    };
    assert_eq!((inserted, deleted), (3 * 4, 3), "input, kept, lost twice: one of them is swept");
    shut_down(one).await;
    shut_down(two).await;
}

async fn the_input_of_a_start_that_lost_is_swept(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |_cx: Context, input: String| async move { Returns::Ok(input.len()) });
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(engine.run(&workflow, String::new()).workflow_id("x").await.unwrap(), 0);
    let is_discard = |write: &Write| matches!(write, Write::Discard(_));
    for round in 1..=2 {
        let (input, id) = ("i".repeat(SIZE), "x");
        let error = match round {
            1 => engine.start(&workflow, input).workflow_id(id).await.map(|_| ()).unwrap_err(),
            _ => engine.run(&workflow, input).workflow_id(id).await.map(|_| ()).unwrap_err(),
        };
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        store.until_landed_times(round, is_discard).await;
        let counted = engine.store().counters().counted();
        let (inserted, _, deleted) = counted.of(Table::Chunks);
        assert_eq!((inserted, deleted), (3 * round as u64, 3 * round as u64));
    }
    shut_down(engine).await;
}
