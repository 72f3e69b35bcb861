//! Lost claim replies: an execution that a claim has taken is launched once, even if the reply to the claim is lost.

use std::time::Duration;

use stepfast_core::store::Write;
use stepfast_core::{Context, Engine, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, latched_workflow, open_engine, shut_down, sleeper,
    wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    execution_of_a_lost_claim_reply_is_launched,
    lost_claim_is_launched_after_former_run_ends,
    execution_of_a_pending_claim_is_not_launched_twice,
    child_with_a_start_in_flight_is_not_launched_twice,
];

const HOUR: Duration = Duration::from_hours(1);
const MILLIS: u64 = 3_600_000;

async fn wait_for_heartbeats(store: &FaultStore, times: usize) {
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + times).await;
}

async fn execution_of_a_lost_claim_reply_is_launched(fixture: &dyn StoreFixture) {
    let (first, second, latch) = (Count::new(), Count::new(), Latch::new());
    let (ahead, queued) =
        (latched_workflow("ahead", &first, &latch), latched_workflow("queued", &second, &latch));
    let (engine, store) = open_engine(fixture, |b| b.register(&ahead).register(&queued).max_running(1)).await;
    let one = engine.start(&ahead, 1).await.unwrap();
    first.wait_for(1).await;
    let two = engine.start(&queued, 2).await.unwrap();
    store.drop_next_claim_reply();
    latch.open();
    assert_eq!((one.result().await.unwrap(), two.result().await.unwrap()), (1, 2));
    store.wait_until_claim_reply_dropped().await;
    assert_eq!(second.get(), 1);
    shut_down(engine).await;
}

async fn lost_claim_is_launched_after_former_run_ends(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::ZERO)).await;
    store.hold_write_replies(|write| matches!(write, Write::Transition(_)));
    let handle = engine.start(&sleeper, MILLIS).await.unwrap();
    // the suspension is durable, and the run has not received its reply
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    store.drop_next_claim_reply();
    fixture.clock().advance(HOUR);
    store.wait_until_claim_reply_dropped().await;
    assert_eq!(engine.running_count(), 1);
    wait_for_heartbeats(&store, 2).await;
    store.release();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn execution_of_a_pending_claim_is_not_launched_twice(fixture: &dyn StoreFixture) {
    let (bodies, latch, sleeper) = (Count::new(), Latch::new(), sleeper());
    let napper = {
        let (bodies, latch) = (bodies.clone(), latch.clone());
        Workflow::new("napper", move |mut cx: Context, (): ()| {
            let (bodies, latch) = (bodies.clone(), latch.clone());
            async move {
                cx.sleep(HOUR).await;
                wait_in_step(&mut cx, &bodies, &latch).await
            }
        })
    };
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&napper).register(&sleeper).suspend_after(Duration::ZERO)
    };
    let (engine, store) = open_engine(fixture, with).await;
    let handle = engine.start(&napper, ()).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    // while this execution waits for the reply to its suspension, the search for lost claims continues
    let waker = handle.key();
    store.hold_write_replies(move |write| matches!(write, Write::Transition(change) if change.key != waker));
    let other = engine.start(&sleeper, 2 * MILLIS).await.unwrap();
    store.wait_until_committed(is_suspension_of(other.key())).await;
    store.fail_next(Call::Claim, Fault::Before);
    store.hold_claim_replies();
    fixture.clock().advance(HOUR);
    store.wait_until_hanging_calls(2).await;
    wait_for_heartbeats(&store, 3).await;
    assert_eq!(bodies.get(), 0);
    store.release();
    bodies.wait_for(1).await;
    wait_for_heartbeats(&store, 2).await;
    latch.open();
    handle.result().await.unwrap();
    assert_eq!(bodies.get(), 1);
    fixture.clock().advance(HOUR);
    other.result().await.unwrap();
    shut_down(engine).await;
}

async fn child_with_a_start_in_flight_is_not_launched_twice(fixture: &dyn StoreFixture) {
    let (begun, go, bodies, latch) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let child = latched_workflow("child", &bodies, &latch);
    let parent = {
        let (begun, go, child) = (begun.clone(), go.clone(), child.clone());
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let (begun, go, child) = (begun.clone(), go.clone(), child.clone());
            async move {
                cx.sleep(HOUR).await;
                wait_in_step(&mut cx, &begun, &go).await?;
                let value = cx.child(&child, 7).await?;
                BodyResult::Ok(value)
            }
        })
    };
    let sleeper = sleeper();
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&parent).register(&child).register(&sleeper).suspend_after(Duration::ZERO)
    };
    let (engine, store) = open_engine(fixture, with).await;
    let handle = engine.start(&parent, ()).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    // the execution was claimed: its run cannot know which children an earlier run has started
    fixture.clock().advance(HOUR);
    begun.wait_for(1).await;
    let other = start_suspended_sleeper(&engine, &store, &sleeper).await;
    store.hold_write_replies(|write| matches!(write, Write::Start(start) if start.parent.is_some()));
    go.open();
    store.wait_until_hanging().await;
    // the child's row exists, and its run does not
    store.drop_next_claim_reply();
    fixture.clock().advance(HOUR);
    store.wait_until_claim_reply_dropped().await;
    wait_for_heartbeats(&store, 4).await;
    latch.open();
    store.release();
    assert_eq!(handle.result().await.unwrap(), 7);
    other.result().await.unwrap();
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}

/// Starts a sleeper and waits until it is suspended.
async fn start_suspended_sleeper(
    engine: &Engine,
    store: &FaultStore,
    sleeper: &Workflow<u64, ()>,
) -> stepfast_core::Handle<()> {
    let handle = engine.start(sleeper, MILLIS).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    handle
}
