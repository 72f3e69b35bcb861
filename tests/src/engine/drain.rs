//! Draining: an engine ends as a deploy should end it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use stepfast_core::store::Status;
use stepfast_core::{Context, Engine, EngineBuilder, Error, Workflow};

use super::support::{Count, GRACE, Latch, engine, noop, row, second_engine, shut_down, waiting};
use crate::StoreFixture;

super::cases![
    what_runs_comes_to_its_end,
    what_does_not_end_in_time_is_handed_on_at_once,
    what_is_started_meanwhile_waits_for_another_worker,
    children_of_what_runs_are_run_elsewhere,
    what_a_claim_brings_meanwhile_is_handed_back,
    an_idle_engine_drains_at_once,
    a_grace_may_be_endless,
];

/// Longer than any test.
const LONG: Duration = Duration::from_secs(1_000);

/// A drain that has begun.
fn begun(engine: &Engine) -> LocalBoxFuture<'static, Result<(), Error>> {
    let engine = engine.clone();
    let mut draining = async move { engine.drain(LONG).await }.boxed_local();
    assert!((&mut draining).now_or_never().is_none());
    draining
}

async fn what_runs_comes_to_its_end(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    let draining = tokio::spawn({
        let one = one.clone();
        async move { one.drain(LONG).await }
    });
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    draining.await.unwrap().unwrap();
    assert!(matches!(one.start(&workflow, 5).await, Err(Error::Shutdown)));
    let (two, _) = second_engine(fixture, |b| b).await;
    assert_eq!(row(&two, "x").await.status, Status::Completed);
    assert_eq!(count.get(), 1);
    shut_down(two).await;
}

async fn what_does_not_end_in_time_is_handed_on_at_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    one.drain(Duration::ZERO).await.unwrap();
    // it runs there before the lease of the first is over, and that is no recovery
    count.reaches(2).await;
    let row = row(&two, "x").await;
    assert_eq!((row.status, row.recoveries), (Status::Running, 0));
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    shut_down(two).await;
}

async fn what_is_started_meanwhile_waits_for_another_worker(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    let draining = begun(&one);
    // a claim that was under way may still take some, which are handed back
    let mut id = "y".to_owned();
    loop {
        one.start(&workflow, 2).workflow_id(&id).await.unwrap();
        if row(&one, &id).await.status == Status::Queued {
            break;
        }
        id.push('y');
    }
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    count.reaches(id.len() + 1).await;
    latch.open();
    draining.await.unwrap();
    assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), 2);
    shut_down(two).await;
}

async fn children_of_what_runs_are_run_elsewhere(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = waiting("child", &Count::new(), &latch);
    let (counted, go, called) = (count.clone(), Latch::new(), child.clone());
    let gone = go.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, x: i64| {
        let (count, go, child) = (counted.clone(), gone.clone(), called.clone());
        async move {
            count.more();
            go.passed().await;
            cx.child(&child, x).await
        }
    });
    let suspended = Duration::from_millis(1);
    let (one, _) = engine(fixture, |b| b.register(&parent).register(&child).suspend_after(suspended)).await;
    one.start(&parent, 7).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    let draining = begun(&one);
    go.open();
    // the parent gives up its place while it waits for the child that nobody runs here
    draining.await.unwrap();
    latch.open();
    let (two, _) = second_engine(fixture, |b| b.register(&parent).register(&child)).await;
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 7);
    shut_down(two).await;
}

async fn what_a_claim_brings_meanwhile_is_handed_back(fixture: &dyn StoreFixture) {
    let (first, second, third) = (Count::new(), Count::new(), Count::new());
    let (latch, last) = (Latch::new(), Latch::new());
    let (ahead, busy) = (waiting("ahead", &first, &latch), waiting("busy", &second, &last));
    let queued = waiting("queued", &third, &Latch::new());
    let all = |b: EngineBuilder| b.register(&ahead).register(&busy).register(&queued).max_running(2);
    let (one, store) = engine(fixture, all).await;
    one.start(&ahead, 1).await.unwrap();
    one.start(&busy, 1).await.unwrap();
    first.reaches(1).await;
    second.reaches(1).await;
    one.start(&queued, 2).workflow_id("x").await.unwrap();
    store.hold_claim_replies();
    latch.open();
    store.wait_until_hanging().await;
    // claimed, and not brought yet
    let draining = begun(&one);
    store.release();
    while row(&one, "x").await.status == Status::Running {
        tokio::task::yield_now().await;
    }
    last.open();
    draining.await.unwrap();
    let (two, _) = second_engine(fixture, |b| b).await;
    let row = row(&two, "x").await;
    assert_eq!((row.status, row.recoveries, third.get()), (Status::Queued, 0, 0));
    shut_down(two).await;
}

async fn an_idle_engine_drains_at_once(fixture: &dyn StoreFixture) {
    let workflow = waiting("w", &Count::new(), &Latch::new());
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    tokio::time::timeout(GRACE, one.drain(LONG)).await.unwrap().unwrap();
    one.drain(LONG).await.unwrap();
}

async fn a_grace_may_be_endless(fixture: &dyn StoreFixture) {
    let workflow = noop();
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(one.run(&workflow, 1).await.unwrap(), 1);
    one.shutdown(Duration::MAX).await.unwrap();
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(two.run(&workflow, 2).await.unwrap(), 2);
    two.drain(Duration::MAX).await.unwrap();
}
