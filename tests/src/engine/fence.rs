//! Fences: an engine whose registration is over, by its own fault or not.

use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::store::{Filter, Status, StoreError, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Handle, Key, Workflow};

use super::support::{
    Count, Latch, Returns, engine, noop, open, record, row, second_engine, shut_down, steps, waiting,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    a_fence_costs_no_start,
    a_fence_costs_no_delay,
    a_start_outlives_a_registration_that_ends_before_it_is_staged,
    what_was_claimed_under_a_lost_registration_does_not_run,
    what_was_staged_under_a_lost_registration_never_lands_under_the_next,
    a_fence_does_not_hold_up_a_shutdown,
    registering_anew_is_tried_until_it_is_answered,
    a_fence_that_two_lanes_see_at_once_costs_no_start,
    a_fence_that_one_lane_sees_long_after_the_other_costs_no_start,
];

async fn a_fence_costs_no_start(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = engine(fixture, |b| b.register(&steps)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    // as after a long stall: it does not look, and is taken for dead
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

async fn a_fence_costs_no_delay(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
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

async fn registering_anew_is_tried_until_it_is_answered(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
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
            assert!(store.call_count(call) >= called + 2, "it was asked again");
        }
    }
    shut_down(engine).await;
}

async fn a_start_outlives_a_registration_that_ends_before_it_is_staged(fixture: &dyn StoreFixture) {
    let (begun, held) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = {
        let (begun, held) = (begun.clone(), held.clone());
        Workflow::new("w", move |mut cx: Context, n: usize| {
            let (begun, held) = (begun.clone(), held.clone());
            async move {
                begun.more();
                // code that blocks its thread: nothing of the execution is staged yet
                while !held[n].is_open() {
                    std::thread::yield_now();
                }
                cx.step("step", async || Returns::Ok(7)).await
            }
        })
    };
    let owned = waiting("owned", &Count::new(), &Latch::new());
    let (one, store) = engine(fixture, |b| b.register(&workflow).register(&owned)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
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
        begun.reaches(before + 1).await;
        let registered = store.call_count(Call::Register);
        lose(fixture, &store, &two, "owned").await;
        store.wait_until_called(Call::Register, registered + 1).await;
        held[n].open();
        assert_eq!(run.await.unwrap().unwrap(), 7);
    }
    shut_down(one).await;
    shut_down(two).await;
}

/// Makes the owner of the execution `id` lose its registration, whose engine runs on `store`, to `other`.
async fn lose(fixture: &dyn StoreFixture, store: &FaultStore, other: &Engine, id: &str) {
    let owner = row(other, id).await.owner.unwrap();
    // a lease is not renewed meanwhile
    store.hold_calls(&[Call::Heartbeat]);
    fixture.mark_dead(owner).await;
    while row(other, id).await.owner == Some(owner) {
        tokio::task::yield_now().await;
    }
    store.hold_calls(&[]);
}

async fn what_was_claimed_under_a_lost_registration_does_not_run(fixture: &dyn StoreFixture) {
    let (first, never, latch, never_opened) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    let (ahead, queued) = (waiting("ahead", &first, &latch), waiting("queued", &never, &never_opened));
    let (one, store) = engine(fixture, |b| b.register(&ahead).register(&queued).max_running(1)).await;
    let (elsewhere, later) = (Count::new(), Latch::new());
    let there = waiting("queued", &elsewhere, &later);
    one.start(&ahead, 1).await.unwrap();
    first.reaches(1).await;
    let handle = one.start(&queued, 2).workflow_id("x").await.unwrap();
    store.hold_claim_replies();
    latch.open();
    store.wait_until_hanging().await;
    // claimed, and its worker does not know yet
    let (two, _) = second_engine(fixture, |b| b.register(&there)).await;
    lose(fixture, &store, &two, "x").await;
    elsewhere.reaches(1).await;
    let (engine, last) = (one.clone(), ahead.clone());
    let last = tokio::spawn(async move { engine.run(&last, 3).await });
    // it has heard of the fence, from its lane or a look, and does not wait for the claim any more
    store.wait_until_called(Call::Register, 2).await;
    store.release();
    assert_eq!(last.await.unwrap().unwrap(), 3);
    later.open();
    assert_eq!(handle.result().await.unwrap(), 2);
    assert_eq!((never.get(), elsewhere.get()), (0, 1));
    assert_eq!(record(&two, "x").await.checkpoints.len(), 1);
    shut_down(one).await;
    shut_down(two).await;
}

async fn what_was_staged_under_a_lost_registration_never_lands_under_the_next(fixture: &dyn StoreFixture) {
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
                        let number = bodies.more();
                        if number > EXECUTIONS { later } else { latch }.passed().await;
                        Returns::Ok(number)
                    }
                })
                .await
            }
        })
    };
    let noop = noop();
    let (one, store) = engine(fixture, |b| b.register(&workflow).register(&noop)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    for n in 0..EXECUTIONS {
        one.start(&workflow, ()).workflow_id(format!("{n}")).await.unwrap();
    }
    bodies.reaches(EXECUTIONS).await;
    // all that the bodies return is staged behind a flush that hangs, and hangs itself when it is taken
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
    let lost = row(&two, "0").await.owner.unwrap();
    lose(fixture, &store, &two, "0").await;
    // whoever claims them runs them anew
    for n in 0..EXECUTIONS {
        while row(&two, &n.to_string()).await.owner.is_none_or(|owner| owner == lost) {
            tokio::task::yield_now().await;
        }
    }
    store.wait_until_called(Call::Register, 2).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
    store.fail_next_commit_with(StoreError::Rejected("in parts, please".into()));
    store.release();
    for n in 0..16 {
        one.run(&noop, n).await.unwrap();
    }
    later.open();
    for n in 0..EXECUTIONS {
        let handle = two.get::<usize>(&n.to_string()).await.unwrap();
        assert!(handle.result().await.unwrap() > EXECUTIONS, "what the lost worker had done is done again");
        assert_eq!(record(&two, &n.to_string()).await.execution.recoveries, 1);
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn a_fence_does_not_hold_up_a_shutdown(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let mut starts = {
        let (one, steps) = (one.clone(), steps.clone());
        Box::pin(async move {
            let start = |n: usize| one.start(&steps, n).workflow_id(format!("{n}")).into_future();
            futures_util::future::join_all((0..6).map(start)).await
        })
    };
    // one turn stages them all
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
    let (two, _) = second_engine(fixture, |b| b.register(&steps)).await;
    for (n, start) in starts.await.unwrap().into_iter().enumerate() {
        start.unwrap();
        let handle = two.get::<Vec<usize>>(&n.to_string()).await.unwrap();
        assert_eq!(handle.result().await.unwrap().len(), n);
    }
    shut_down(two).await;
}

/// Which of two lanes an execution's tree is on.
fn lane(root: Key) -> usize {
    (root.stable_hash() % 2) as usize
}

async fn a_fence_that_two_lanes_see_at_once_costs_no_start(fixture: &dyn StoreFixture) {
    fence_of_two_lanes(fixture, false).await;
}

async fn a_fence_that_one_lane_sees_long_after_the_other_costs_no_start(fixture: &dyn StoreFixture) {
    fence_of_two_lanes(fixture, true).await;
}

/// An engine with two lanes is taken over, with outcomes and callers' Starts on their way in both.
async fn fence_of_two_lanes(fixture: &dyn StoreFixture, is_late: bool) {
    const STARTS: usize = 24;
    let (begun, latch, there, later) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let (owned, taken) = (waiting("owned", &begun, &latch), waiting("owned", &there, &later));
    let (steps, noop) = (steps(), noop());
    let store = FaultStore::with_lanes(fixture.store(), 2);
    let one = open(store.clone(), |b| b.register(&owned).register(&steps).register(&noop)).await;
    let mut handles: Vec<Handle<i64>> = Vec::new();
    while (0..2).any(|n| handles.iter().filter(|handle| lane(handle.key()) == n).count() < 3) {
        handles.push(one.start(&owned, handles.len() as i64).await.unwrap());
    }
    begun.reaches(handles.len()).await;
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
    // its lease is not renewed meanwhile
    store.hold_calls(&[Call::Commit, Call::Heartbeat]);
    let (two, _) = second_engine(fixture, |b| b.register(&taken)).await;
    let owner = row(&two, &handles[0].workflow_id()).await.owner.unwrap();
    fixture.mark_dead(owner).await;
    there.reaches(handles.len()).await;
    if is_late {
        store.hold_writes(|write| lane(write.execution()) == 1);
    }
    store.hold_calls(&[]);
    store.wait_until_called(Call::Register, 2).await;
    if is_late {
        // the other lane goes on under the new registration
        let mut passed = 0;
        while passed < 3 {
            let run = one.start(&noop, 1).wait_timeout(Duration::from_millis(20)).await;
            passed += usize::from(run.is_ok_and(|handle| lane(handle.key()) == 0));
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
    // what the lost registration had done is done again, elsewhere
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
    assert_eq!(store.call_count(Call::Register), 2, "it registers anew once");
}
