//! Moments: when a result is returned, and from when on no body begins.

use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::{Context, Workflow};
use tokio::time::Instant;

use super::support::{BodyResult, Count, Latch, latched_workflow, open_engine, shut_down};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![result_waits_until_the_end_is_durable, body_waits_for_no_poll_to_notice_its_deadline];

async fn result_waits_until_the_end_is_durable(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    begun.wait_for(1).await;
    store.hold_calls(&[Call::Commit]);
    latch.open();
    store.wait_until_hanging().await;
    while engine.lane_load().iter().all(|lane| lane.waiters == 0) {
        tokio::task::yield_now().await;
    }
    let mut result = std::pin::pin!(handle.result());
    for _ in 0..100 {
        assert!((&mut result).now_or_never().is_none(), "the end is not durable");
        tokio::task::yield_now().await;
    }
    store.release();
    assert_eq!(result.await.unwrap(), 1);
    shut_down(engine).await;
}

/// The deadline passes within the poll of a run in which a body ends and the next one would begin.
async fn body_waits_for_no_poll_to_notice_its_deadline(fixture: &dyn StoreFixture) {
    let timeout = Duration::from_millis(200);
    let second = Count::new();
    let workflow = {
        let second = second.clone();
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let second = second.clone();
            async move {
                let first = || {
                    let begun = Instant::now();
                    while begun.elapsed() < 2 * timeout {
                        std::hint::spin_loop();
                    }
                    std::future::ready(BodyResult::Ok(()))
                };
                cx.step("first", first).speculative().await?;
                let body = || {
                    second.increment();
                    std::future::ready(BodyResult::Ok(()))
                };
                cx.step("second", body).speculative().await
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).execution_timeout(timeout).await.unwrap();
    let error = handle.result().await.unwrap_err();
    assert!(error.to_string().contains("SF-0021"), "{error}");
    assert_eq!(second.get(), 0);
    shut_down(engine).await;
}
