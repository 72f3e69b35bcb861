//! Fences: an engine whose registration has ended, by its own fault or by the fault of another.

use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::store::{Filter, Status, StoreError, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Handle, Key, Workflow};

use super::support::{
    BodyResult, Count, Latch, latched_workflow, noop, open, open_engine, open_second_engine, record, row,
    shut_down, steps,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    fence_loses_no_start,
    fence_keeps_the_delay_of_a_start,
    start_survives_a_registration_that_ends_before_staging,
    execution_claimed_under_a_lost_registration_does_not_run,
    writes_of_a_lost_registration_are_never_committed_later,
    fence_does_not_delay_a_shutdown,
    registration_is_retried_until_it_succeeds,
    fence_received_by_two_lanes_at_once_loses_no_start,
    fence_received_late_by_one_lane_loses_no_start,
    worker_that_was_taken_over_drops_its_runs,
];

async fn fence_loses_no_start(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = open_engine(fixture, |b| b.register(&steps)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    // as after a long stall: the engine sends no heartbeat and counts as dead
    let mut runs = Vec::new();
    for n in 0..6 {
        let (one, steps) = (one.clone(), steps.clone());
        runs.push((n, tokio::spawn(async move { one.run(&steps, n).workflow_id(format!("{n}")).await })));
    }
    store.wait_until_hanging().await;
    store.fail_next_commit_with(StoreError::Fenced);
    store.release();
    for (n, run) in runs {
        assert_eq!(run.await.unwrap().unwrap().len(), n);
    }
    for n in 0..6 {
        let id = format!("{n}");
        assert_eq!(two.get::<Vec<usize>>(&id).await.unwrap().result().await.unwrap().len(), n);
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn fence_keeps_the_delay_of_a_start(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let start = {
        let (engine, steps) = (engine.clone(), steps.clone());
        let delay = Duration::from_hours(1);
        tokio::spawn(async move { engine.start(&steps, 2).workflow_id("later").delay(delay).await.map(drop) })
    };
    store.wait_until_hanging().await;
    store.fail_next_commit_with(StoreError::Fenced);
    store.release();
    start.await.unwrap().unwrap();
    assert_eq!(row(&engine, "later").await.status, Status::Scheduled);
    shut_down(engine).await;
}

async fn registration_is_retried_until_it_succeeds(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    for call in [Call::Close, Call::Register] {
        for fault in [Fault::Before, Fault::After] {
            store.hold_calls(&[Call::Commit]);
            let run = {
                let (engine, steps) = (engine.clone(), steps.clone());
                tokio::spawn(async move { engine.run(&steps, 2).await })
            };
            store.wait_until_hanging().await;
            let called = store.call_count(call);
            store.fail_next(call, fault);
            store.fail_next_commit_with(StoreError::Fenced);
            store.release();
            assert_eq!(run.await.unwrap().unwrap().len(), 2, "{call:?} {fault:?}");
            assert!(store.call_count(call) >= called + 2, "the call was not repeated");
        }
    }
    shut_down(engine).await;
}

async fn start_survives_a_registration_that_ends_before_staging(fixture: &dyn StoreFixture) {
    let (begun, held) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = {
        let (begun, held) = (begun.clone(), held.clone());
        Workflow::new("w", move |mut cx: Context, n: usize| {
            let (begun, held) = (begun.clone(), held.clone());
            async move {
                begun.increment();
                // code that blocks its thread: no Write of the execution is staged yet
                while !held[n].is_open() {
                    std::thread::yield_now();
                }
                cx.step("step", async || BodyResult::Ok(7)).await
            }
        })
    };
    let owned = latched_workflow("owned", &Count::new(), &Latch::new());
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).register(&owned)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    one.start(&owned, 1).workflow_id("owned").await.unwrap();
    for (n, id) in [None, Some("x")].into_iter().enumerate() {
        while row(&two, "owned").await.owner.is_none() {
            tokio::task::yield_now().await;
        }
        let before = begun.get();
        let run = {
            let (one, workflow) = (one.clone(), workflow.clone());
            tokio::spawn(async move {
                let run = one.run(&workflow, n);
                match id {
                    Some(id) => run.workflow_id(id).await,
                    None => run.await,
                }
            })
        };
        begun.wait_for(before + 1).await;
        let registered = store.call_count(Call::Register);
        end_registration(fixture, &store, &two, "owned", &[]).await;
        store.wait_until_called(Call::Register, registered + 1).await;
        held[n].open();
        assert_eq!(run.await.unwrap().unwrap(), 7);
    }
    shut_down(one).await;
    shut_down(two).await;
}

/// Ends the registration of the owner of the execution `id`, whose engine runs on `store`, by a takeover of `other`.
/// Afterwards calls of the kinds `held` hang.
async fn end_registration(
    fixture: &dyn StoreFixture,
    store: &FaultStore,
    other: &Engine,
    id: &str,
    held: &[Call],
) {
    let owner = row(other, id).await.owner.unwrap();
    // the lease is not renewed; a flush that is fenced before the loop below ends does not register again
    store.hold_calls(&[&[Call::Heartbeat], held].concat());
    fixture.mark_dead(owner).await;
    while row(other, id).await.owner == Some(owner) {
        tokio::task::yield_now().await;
    }
    store.hold_calls(held);
}

async fn execution_claimed_under_a_lost_registration_does_not_run(fixture: &dyn StoreFixture) {
    let (first, never, latch, never_opened) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    let (ahead, queued) =
        (latched_workflow("ahead", &first, &latch), latched_workflow("queued", &never, &never_opened));
    let (one, store) = open_engine(fixture, |b| b.register(&ahead).register(&queued).max_running(1)).await;
    let (other_bodies, later) = (Count::new(), Latch::new());
    let other_workflow = latched_workflow("queued", &other_bodies, &later);
    one.start(&ahead, 1).await.unwrap();
    first.wait_for(1).await;
    let handle = one.start(&queued, 2).workflow_id("x").await.unwrap();
    store.hold_claim_replies();
    latch.open();
    store.wait_until_hanging().await;
    // the execution is claimed, and its worker has not received the reply
    let (two, _) = open_second_engine(fixture, |b| b.register(&other_workflow)).await;
    // the first engine cannot claim the execution again before the second claims it
    end_registration(fixture, &store, &two, "x", &[Call::Register]).await;
    other_bodies.wait_for(1).await;
    let (engine, last) = (one.clone(), ahead.clone());
    let last = tokio::spawn(async move { engine.run(&last, 3).await });
    // the engine has received the fence from its lane or a heartbeat, and no longer waits for the claim
    store.wait_until_called(Call::Register, 2).await;
    store.release();
    assert_eq!(last.await.unwrap().unwrap(), 3);
    later.open();
    assert_eq!(handle.result().await.unwrap(), 2);
    assert_eq!((never.get(), other_bodies.get()), (0, 1));
    assert_eq!(record(&two, "x").await.checkpoints.len(), 1);
    shut_down(one).await;
    shut_down(two).await;
}

async fn writes_of_a_lost_registration_are_never_committed_later(fixture: &dyn StoreFixture) {
    const EXECUTIONS: usize = 12;
    let (bodies, latch, later) = (Count::new(), Latch::new(), Latch::new());
    let workflow = {
        let all = (bodies.clone(), latch.clone(), later.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let all = all.clone();
            async move {
                cx.step("wait", || {
                    let (bodies, latch, later) = all.clone();
                    async move {
                        let number = bodies.increment();
                        if number > EXECUTIONS { later } else { latch }.wait().await;
                        BodyResult::Ok(number)
                    }
                })
                .await
            }
        })
    };
    let noop = noop();
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).register(&noop)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    for n in 0..EXECUTIONS {
        one.start(&workflow, ()).workflow_id(format!("{n}")).await.unwrap();
    }
    bodies.wait_for(EXECUTIONS).await;
    // all results of the bodies are staged behind a flush that hangs, and their own flush hangs too
    store.hold_calls(&[Call::Commit]);
    let (engine, first) = (one.clone(), noop.clone());
    let first = tokio::spawn(async move { engine.run(&first, 1).await });
    store.wait_until_hanging().await;
    store.hold_writes(|write| matches!(write, Write::Checkpoint(_)));
    latch.open();
    while one.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() <= EXECUTIONS {
        tokio::task::yield_now().await;
    }
    store.hold_calls(&[]);
    first.await.unwrap().unwrap();
    store.wait_until_hanging().await;
    let former_owner = row(&two, "0").await.owner.unwrap();
    end_registration(fixture, &store, &two, "0", &[]).await;
    // the worker that claims the executions runs them again
    for n in 0..EXECUTIONS {
        while row(&two, &n.to_string()).await.owner.is_none_or(|owner| owner == former_owner) {
            tokio::task::yield_now().await;
        }
    }
    store.wait_until_called(Call::Register, 2).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
    store.fail_next_commit_with(StoreError::Rejected("flush rejected".into()));
    store.release();
    for n in 0..16 {
        one.run(&noop, n).await.unwrap();
    }
    later.open();
    for n in 0..EXECUTIONS {
        let handle = two.get::<usize>(&n.to_string()).await.unwrap();
        assert!(handle.result().await.unwrap() > EXECUTIONS, "a result of the dead worker was recorded");
        assert_eq!(record(&two, &n.to_string()).await.execution.recoveries, 1);
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn fence_does_not_delay_a_shutdown(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let mut starts = {
        let (one, steps) = (one.clone(), steps.clone());
        Box::pin(async move {
            let start = |n: usize| one.start(&steps, n).workflow_id(format!("{n}")).into_future();
            futures_util::future::join_all((0..6).map(start)).await
        })
    };
    // one turn stages all of them
    assert!(std::future::poll_fn(|cx| Poll::Ready(starts.poll_unpin(cx))).await.is_pending());
    let starts = tokio::spawn(starts);
    store.wait_until_hanging().await;
    let ending = {
        let one = one.clone();
        tokio::spawn(async move { shut_down(one).await })
    };
    let error = loop {
        if let Err(error) = one.run(&steps, 1).wait_timeout(Duration::from_millis(1)).await
            && matches!(error, Error::Shutdown)
        {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    store.fail_next_commit_with(StoreError::Fenced);
    store.release();
    ending.await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&steps)).await;
    for (n, start) in starts.await.unwrap().into_iter().enumerate() {
        start.unwrap();
        let handle = two.get::<Vec<usize>>(&n.to_string()).await.unwrap();
        assert_eq!(handle.result().await.unwrap().len(), n);
    }
    shut_down(two).await;
}

/// Returns the lane of an execution's tree in a store with two lanes.
fn lane(root: Key) -> usize {
    (root.stable_hash() % 2) as usize
}

async fn fence_received_by_two_lanes_at_once_loses_no_start(fixture: &dyn StoreFixture) {
    fence_of_two_lanes(fixture, false).await;
}

async fn fence_received_late_by_one_lane_loses_no_start(fixture: &dyn StoreFixture) {
    fence_of_two_lanes(fixture, true).await;
}

/// Takes over an engine with two lanes, while outcomes and callers' Starts are in flight in both lanes.
async fn fence_of_two_lanes(fixture: &dyn StoreFixture, is_one_lane_late: bool) {
    const STARTS: usize = 24;
    let (begun, latch, other_bodies, later) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let (owned, taken) =
        (latched_workflow("owned", &begun, &latch), latched_workflow("owned", &other_bodies, &later));
    let (steps, noop) = (steps(), noop());
    let store = FaultStore::with_lanes(fixture.store(), 2);
    let one = open(store.clone(), |b| b.register(&owned).register(&steps).register(&noop)).await;
    let mut handles: Vec<Handle<i64>> = Vec::new();
    while (0..2).any(|n| handles.iter().filter(|handle| lane(handle.key()) == n).count() < 3) {
        handles.push(one.start(&owned, handles.len() as i64).await.unwrap());
    }
    begun.wait_for(handles.len()).await;
    store.hold_calls(&[Call::Commit]);
    let mut runs = Vec::new();
    for n in 0..STARTS {
        let (one, steps) = (one.clone(), steps.clone());
        runs.push(tokio::spawn(async move { one.run(&steps, 1 + n % 3).workflow_id(format!("{n}")).await }));
    }
    store.wait_until_hanging_calls(2).await;
    latch.open();
    while one.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < handles.len() + STARTS {
        tokio::task::yield_now().await;
    }
    // the lease of the engine is not renewed
    store.hold_calls(&[Call::Commit, Call::Heartbeat]);
    let (two, _) = open_second_engine(fixture, |b| b.register(&taken)).await;
    let owner = row(&two, &handles[0].workflow_id()).await.owner.unwrap();
    fixture.mark_dead(owner).await;
    other_bodies.wait_for(handles.len()).await;
    if is_one_lane_late {
        store.hold_writes(|write| lane(write.execution()) == 1);
    }
    store.hold_calls(&[]);
    store.wait_until_called(Call::Register, 2).await;
    if is_one_lane_late {
        // the other lane continues under the new registration
        let mut continued = 0;
        while continued < 3 {
            let run = one.start(&noop, 1).wait_timeout(Duration::from_millis(20)).await;
            continued += usize::from(run.is_ok_and(|handle| lane(handle.key()) == 0));
        }
        store.wait_until_hanging().await;
        store.release();
    }
    for (n, run) in runs.into_iter().enumerate() {
        assert_eq!(run.await.unwrap().unwrap().len(), 1 + n % 3);
        let record = record(&two, &n.to_string()).await;
        assert_eq!((record.checkpoints.len(), record.execution.recoveries), (1 + n % 3, 0));
    }
    let filter = Filter { workflow: Some("steps".into()), ..Filter::default() };
    assert_eq!(two.count(&filter).await.unwrap(), STARTS as u64);
    // another engine repeats the work of the lost registration
    for handle in &handles {
        let record = record(&two, &handle.workflow_id()).await;
        assert_eq!((record.checkpoints.len(), record.execution.recoveries), (0, 1));
    }
    later.open();
    for (x, handle) in (0..).zip(handles) {
        assert_eq!(handle.result().await.unwrap(), x);
    }
    shut_down(one).await;
    shut_down(two).await;
    assert_eq!(store.call_count(Call::Register), 2, "the engine registers again once");
}

/// A value that counts when it is dropped.
struct CountedDrop(Count);

impl Drop for CountedDrop {
    fn drop(&mut self) {
        self.0.increment();
    }
}

async fn worker_that_was_taken_over_drops_its_runs(fixture: &dyn StoreFixture) {
    let (begun, dropped, latch) = (Count::new(), Count::new(), Latch::new());
    let workflow = {
        let (begun, dropped, latch) = (begun.clone(), dropped.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (begun, dropped, latch) = (begun.clone(), dropped.clone(), latch.clone());
            async move {
                cx.step("s", || {
                    let (begun, dropped, latch) =
                        (begun.clone(), CountedDrop(dropped.clone()), latch.clone());
                    async move {
                        let _dropped = dropped;
                        begun.increment();
                        latch.wait().await;
                        BodyResult::Ok(())
                    }
                })
                .await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, ()).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    let owner = row(&two, "x").await.owner.unwrap();
    store.hold_calls(&[Call::Heartbeat]);
    fixture.mark_dead(owner).await;
    begun.wait_for(2).await;
    assert_eq!(dropped.get(), 0, "the worker has not noticed the takeover");
    store.release();
    // the body that waits in the first engine stages nothing by itself
    dropped.wait_for(1).await;
    latch.open();
    handle.result().await.unwrap();
    assert_eq!((begun.get(), row(&two, "x").await.recoveries), (2, 1));
    shut_down(one).await;
    shut_down(two).await;
}
