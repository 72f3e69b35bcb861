//! Strays: what a claim has taken whose answer was lost is adopted, once.

use std::time::Duration;

use stepfast_core::store::Write;
use stepfast_core::{Context, Engine, Workflow};

use super::support::{Count, Latch, Returns, engine, shut_down, sleeper, stop_here, suspends, waiting};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    what_a_lost_claim_took_is_adopted,
    what_its_former_run_still_holds_is_adopted_when_that_is_gone,
    what_a_claim_has_not_yet_brought_is_no_stray,
    a_child_whose_start_is_on_its_way_is_no_stray,
];

const HOUR: Duration = Duration::from_hours(1);
const MILLIS: u64 = 3_600_000;

async fn looks(store: &FaultStore, times: usize) {
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + times).await;
}

async fn what_a_lost_claim_took_is_adopted(fixture: &dyn StoreFixture) {
    let (first, second, latch) = (Count::new(), Count::new(), Latch::new());
    let (ahead, queued) = (waiting("ahead", &first, &latch), waiting("queued", &second, &latch));
    let (engine, store) = engine(fixture, |b| b.register(&ahead).register(&queued).max_running(1)).await;
    let one = engine.start(&ahead, 1).await.unwrap();
    first.reaches(1).await;
    let two = engine.start(&queued, 2).await.unwrap();
    store.drop_next_claim_reply();
    latch.open();
    assert_eq!((one.result().await.unwrap(), two.result().await.unwrap()), (1, 2));
    store.wait_until_claim_reply_dropped().await;
    assert_eq!(second.get(), 1);
    shut_down(engine).await;
}

async fn what_its_former_run_still_holds_is_adopted_when_that_is_gone(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::ZERO)).await;
    store.hold_write_replies(|write| matches!(write, Write::Transition(_)));
    let handle = engine.start(&sleeper, MILLIS).await.unwrap();
    // the suspension is durable, and the run has not heard of it
    store.wait_until_committed(suspends(handle.key())).await;
    store.drop_next_claim_reply();
    fixture.clock().advance(HOUR);
    store.wait_until_claim_reply_dropped().await;
    assert_eq!(engine.running_count(), 1);
    looks(&store, 2).await;
    store.release();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn what_a_claim_has_not_yet_brought_is_no_stray(fixture: &dyn StoreFixture) {
    let (bodies, latch, sleeper) = (Count::new(), Latch::new(), sleeper());
    let napper = {
        let (bodies, latch) = (bodies.clone(), latch.clone());
        Workflow::new("napper", move |mut cx: Context, (): ()| {
            let (bodies, latch) = (bodies.clone(), latch.clone());
            async move {
                cx.sleep(HOUR).await;
                stop_here(&mut cx, &bodies, &latch).await
            }
        })
    };
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&napper).register(&sleeper).suspend_after(Duration::ZERO)
    };
    let (engine, store) = engine(fixture, with).await;
    let handle = engine.start(&napper, ()).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    // as long as this one does not hear that it is suspended, the search for strays goes on
    let waker = handle.key();
    store.hold_write_replies(move |write| matches!(write, Write::Transition(change) if change.key != waker));
    let other = engine.start(&sleeper, 2 * MILLIS).await.unwrap();
    store.wait_until_committed(suspends(other.key())).await;
    store.fail_next(Call::Claim, Fault::Before);
    store.hold_claim_replies();
    fixture.clock().advance(HOUR);
    store.wait_until_hanging_calls(2).await;
    looks(&store, 3).await;
    assert_eq!(bodies.get(), 0);
    store.release();
    bodies.reaches(1).await;
    looks(&store, 2).await;
    latch.open();
    handle.result().await.unwrap();
    assert_eq!(bodies.get(), 1);
    fixture.clock().advance(HOUR);
    other.result().await.unwrap();
    shut_down(engine).await;
}

async fn a_child_whose_start_is_on_its_way_is_no_stray(fixture: &dyn StoreFixture) {
    let (begun, go, bodies, latch) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let child = waiting("child", &bodies, &latch);
    let parent = {
        let (begun, go, child) = (begun.clone(), go.clone(), child.clone());
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let (begun, go, child) = (begun.clone(), go.clone(), child.clone());
            async move {
                cx.sleep(HOUR).await;
                stop_here(&mut cx, &begun, &go).await?;
                let value = cx.child(&child, 7).await?;
                Returns::Ok(value)
            }
        })
    };
    let sleeper = sleeper();
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&parent).register(&child).register(&sleeper).suspend_after(Duration::ZERO)
    };
    let (engine, store) = engine(fixture, with).await;
    let handle = engine.start(&parent, ()).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    // claimed: from here on its run cannot know what an earlier one has started
    fixture.clock().advance(HOUR);
    begun.reaches(1).await;
    let other = slept(&engine, &store, &sleeper).await;
    store.hold_write_replies(|write| matches!(write, Write::Start(start) if start.parent.is_some()));
    go.open();
    store.wait_until_hanging().await;
    // the child's row is there, and its run is not
    store.drop_next_claim_reply();
    fixture.clock().advance(HOUR);
    store.wait_until_claim_reply_dropped().await;
    looks(&store, 4).await;
    latch.open();
    store.release();
    assert_eq!(handle.result().await.unwrap(), 7);
    other.result().await.unwrap();
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}

/// A sleeper that is suspended.
async fn slept(
    engine: &Engine,
    store: &FaultStore,
    sleeper: &Workflow<u64, ()>,
) -> stepfast_core::Handle<()> {
    let handle = engine.start(sleeper, MILLIS).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    handle
}
