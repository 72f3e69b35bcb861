//! Speculative steps: the Writes for which a body waits although the step is speculative.

use stepfast_core::{Context, Workflow};

use super::support::{BodyResult, Count, Latch, open_engine, shut_down, wait_in_step};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![speculative_body_waits_for_the_start, speculative_body_waits_for_the_end_of_a_child,];

/// Runs a speculative step whose body counts. `passed` counts when the code has reached the step.
async fn guess(cx: &mut Context, passed: &Count, bodies: &Count) -> BodyResult<()> {
    let step = |mut cx: Context| async move {
        let body = || {
            bodies.increment();
            std::future::ready(BodyResult::Ok(()))
        };
        cx.step("guess", body).speculative().await
    };
    // polled after the step, in the same turn
    let last = |_| async { passed.increment() };
    cx.join(step, last).await.0
}

async fn speculative_body_waits_for_the_start(fixture: &dyn StoreFixture) {
    let (passed, bodies) = (Count::new(), Count::new());
    let workflow = {
        let (passed, bodies) = (passed.clone(), bodies.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (passed, bodies) = (passed.clone(), bodies.clone());
            async move { guess(&mut cx, &passed, &bodies).await }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    store.hold_calls(&[Call::Commit]);
    let run = {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, ()).await })
    };
    passed.wait_for(1).await;
    store.wait_until_hanging().await;
    assert_eq!(bodies.get(), 0, "the execution may not exist");
    store.release();
    run.await.unwrap().unwrap();
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}

async fn speculative_body_waits_for_the_end_of_a_child(fixture: &dyn StoreFixture) {
    let (begun, latch, passed, bodies) = (Count::new(), Latch::new(), Count::new(), Count::new());
    let child = {
        let (begun, latch) = (begun.clone(), latch.clone());
        Workflow::new("child", move |mut cx: Context, (): ()| {
            let (begun, latch) = (begun.clone(), latch.clone());
            async move { wait_in_step(&mut cx, &begun, &latch).await }
        })
    };
    let parent = {
        let (child, passed, bodies) = (child.clone(), passed.clone(), bodies.clone());
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let (child, passed, bodies) = (child.clone(), passed.clone(), bodies.clone());
            async move {
                cx.child(&child, ()).await?;
                guess(&mut cx, &passed, &bodies).await
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, ()).await.unwrap();
    begun.wait_for(1).await;
    store.hold_calls(&[Call::Commit]);
    latch.open();
    passed.wait_for(1).await;
    store.wait_until_hanging().await;
    assert_eq!(bodies.get(), 0, "the child may not have ended");
    store.release();
    handle.result().await.unwrap();
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}
