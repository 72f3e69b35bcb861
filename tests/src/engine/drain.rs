//! Draining: the shutdown of an engine during a deployment.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use stepfast_core::store::Status;
use stepfast_core::{Context, Engine, EngineBuilder, Error, Workflow};

use super::support::{
    Count, GRACE, Latch, latched_workflow, noop, open, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;

super::cases![
    drain_waits_for_running_executions,
    execution_is_requeued_at_once_when_grace_ends,
    execution_started_during_drain_waits_for_another_worker,
    child_started_during_drain_runs_on_another_worker,
    execution_claimed_during_drain_is_requeued,
    idle_engine_drains_at_once,
    unlimited_grace_is_accepted,
    engine_ends_with_its_runtime,
];

/// A grace that no test reaches.
const LONG_GRACE: Duration = Duration::from_secs(1_000);

/// Returns a drain that has begun.
fn begin_drain(engine: &Engine) -> LocalBoxFuture<'static, Result<(), Error>> {
    let engine = engine.clone();
    let mut draining = async move { engine.drain(LONG_GRACE).await }.boxed_local();
    assert!((&mut draining).now_or_never().is_none());
    draining
}

/// A program drops the runtime of an open engine. Nothing can run in it any more, so another engine continues.
async fn engine_ends_with_its_runtime(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (store, registered) = (fixture.store(), workflow.clone());
    let opening = runtime.spawn(async move { open(store, |b| b.register(&registered)).await });
    let one = opening.await.unwrap();
    let first = one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    runtime.shutdown_background();
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    count.wait_for(2).await;
    latch.open();
    while row(&two, "x").await.status != Status::Completed {
        tokio::task::yield_now().await;
    }
    drop(first);
    assert!(matches!(one.start(&workflow, 5).await, Err(Error::Shutdown)));
    shut_down(two).await;
}

async fn drain_waits_for_running_executions(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let draining = tokio::spawn({
        let one = one.clone();
        async move { one.drain(LONG_GRACE).await }
    });
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    draining.await.unwrap().unwrap();
    assert!(matches!(one.start(&workflow, 5).await, Err(Error::Shutdown)));
    let (two, _) = open_second_engine(fixture, |b| b).await;
    assert_eq!(row(&two, "x").await.status, Status::Completed);
    assert_eq!(count.get(), 1);
    shut_down(two).await;
}

async fn execution_is_requeued_at_once_when_grace_ends(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    one.drain(Duration::ZERO).await.unwrap();
    // the second engine runs the execution before the lease of the first has expired, and no recovery is counted
    count.wait_for(2).await;
    let row = row(&two, "x").await;
    assert_eq!((row.status, row.recoveries), (Status::Running, 0));
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    shut_down(two).await;
}

async fn execution_started_during_drain_waits_for_another_worker(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let draining = begin_drain(&one);
    // a claim in flight may still take some executions, which are requeued
    let mut id = "y".to_owned();
    loop {
        one.start(&workflow, 2).workflow_id(&id).await.unwrap();
        if row(&one, &id).await.status == Status::Queued {
            break;
        }
        id.push('y');
    }
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    count.wait_for(id.len() + 1).await;
    latch.open();
    draining.await.unwrap();
    assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), 2);
    shut_down(two).await;
}

async fn child_started_during_drain_runs_on_another_worker(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &Count::new(), &latch);
    let (counted, go, called) = (count.clone(), Latch::new(), child.clone());
    let gone = go.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, x: i64| {
        let (count, go, child) = (counted.clone(), gone.clone(), called.clone());
        async move {
            count.increment();
            go.wait().await;
            cx.child(&child, x).await
        }
    });
    let suspended = Duration::from_millis(1);
    let (one, _) =
        open_engine(fixture, |b| b.register(&parent).register(&child).suspend_after(suspended)).await;
    one.start(&parent, 7).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let draining = begin_drain(&one);
    go.open();
    // the parent is suspended while it waits for the child, which this engine does not run
    draining.await.unwrap();
    latch.open();
    let (two, _) = open_second_engine(fixture, |b| b.register(&parent).register(&child)).await;
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 7);
    shut_down(two).await;
}

async fn execution_claimed_during_drain_is_requeued(fixture: &dyn StoreFixture) {
    let (first, second, third) = (Count::new(), Count::new(), Count::new());
    let (latch, last) = (Latch::new(), Latch::new());
    let (ahead, busy) = (latched_workflow("ahead", &first, &latch), latched_workflow("busy", &second, &last));
    let queued = latched_workflow("queued", &third, &Latch::new());
    let all = |b: EngineBuilder| b.register(&ahead).register(&busy).register(&queued).max_running(2);
    let (one, store) = open_engine(fixture, all).await;
    one.start(&ahead, 1).await.unwrap();
    one.start(&busy, 1).await.unwrap();
    first.wait_for(1).await;
    second.wait_for(1).await;
    one.start(&queued, 2).workflow_id("x").await.unwrap();
    store.hold_claim_replies();
    latch.open();
    store.wait_until_hanging().await;
    // claimed, and the reply is not received yet
    let draining = begin_drain(&one);
    store.release();
    while row(&one, "x").await.status == Status::Running {
        tokio::task::yield_now().await;
    }
    last.open();
    draining.await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let row = row(&two, "x").await;
    assert_eq!((row.status, row.recoveries, third.get()), (Status::Queued, 0, 0));
    shut_down(two).await;
}

async fn idle_engine_drains_at_once(fixture: &dyn StoreFixture) {
    let workflow = latched_workflow("w", &Count::new(), &Latch::new());
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    tokio::time::timeout(GRACE, one.drain(LONG_GRACE)).await.unwrap().unwrap();
    one.drain(LONG_GRACE).await.unwrap();
}

async fn unlimited_grace_is_accepted(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(one.run(&workflow, 1).await.unwrap(), 1);
    one.shutdown(Duration::MAX).await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(two.run(&workflow, 2).await.unwrap(), 2);
    two.drain(Duration::MAX).await.unwrap();
}
