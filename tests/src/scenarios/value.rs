//! Values too large for a row.

use stepfast_core::counters::Table;
use stepfast_core::{Context, Workflow};

use super::kit::{Count, Latch, Returns, open, record, row, second_engine, shut_down};
use crate::StoreFixture;
use crate::fault_store::{Call, FaultStore};

super::cases![what_a_lost_run_left_behind_is_swept];

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
    store.hold_writes(|write| matches!(write, stepfast_core::write::Write::Checkpoint(_)));
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
