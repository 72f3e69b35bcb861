//! Waits: sleeps and children, in memory and suspended.

use std::time::Duration;

use stepfast_core::store::{Filter, State, Status, Write};
use stepfast_core::{Context, Elapsed, Error, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_end_of, is_suspension_of, latched_workflow, open_engine, open_second_engine,
    record, row, shut_down, sleeper, steps,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    short_sleep_never_ends_early,
    sleep_in_memory_never_ends_early_after_a_slow_heartbeat,
    long_sleep_is_suspended_and_never_ends_early,
    suspended_sleep_is_continued_by_another_engine,
    sleep_beside_a_step_keeps_its_due_time_across_a_restart,
    sleeps_of_branches_end_in_the_order_of_their_due_times,
    sleep_of_zero_ends_at_once,
    child_returns_its_output,
    child_error_is_the_error_of_its_parent,
    cancelled_child_is_an_error_of_its_parent,
    suspended_parent_is_woken_by_its_child,
    child_end_during_suspension_wakes_its_parent,
    child_end_on_another_engine_wakes_a_suspending_parent,
    children_are_awaited_in_any_order,
    child_continues_after_its_parent_stops_waiting,
    detached_child_outlives_its_parent,
    child_is_started_once_across_a_restart,
    nested_children_complete_with_a_small_max_running,
    suspended_parent_uses_no_capacity,
    wait_ends_at_its_timeout_or_with_its_child,
];

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

async fn short_sleep_never_ends_early(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) = open_engine(fixture, |b| b.register(&sleeper)).await;
    for millis in [1, 7, 25] {
        let before = fixture.now();
        engine.run(&sleeper, millis).await.unwrap();
        let took = fixture.now().since(before);
        assert!(took >= Duration::from_millis(millis), "a sleep of {millis} ms took {took:?}");
    }
    shut_down(engine).await;
}

async fn sleep_in_memory_never_ends_early_after_a_slow_heartbeat(fixture: &dyn StoreFixture) {
    // longer than `CLOCK_RECHECK_INTERVAL`, after which the run reads the store's time again
    const SLEEP: Duration = Duration::from_millis(5350);
    let sleeper = sleeper();
    let (engine, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(HOUR)).await;
    let before = fixture.now();
    let run = engine.start(&sleeper, SLEEP.as_millis() as u64).await.unwrap();
    engine.run(&sleeper, 3_300).await.unwrap();
    let heartbeats = store.hold_calls(&[Call::Heartbeat]);
    store.wait_until_called(Call::Heartbeat, heartbeats + 1).await;
    let rest = 4_800_u64.saturating_sub(fixture.now().since(before).as_millis() as u64);
    engine.run(&sleeper, rest).await.unwrap();
    // the store's clock is faster than this machine's: the reply raises the estimate by the whole time of the heartbeat
    fixture.clock().advance(Duration::from_millis(20));
    store.release();
    run.result().await.unwrap();
    let took = fixture.now().since(before);
    assert!(took >= SLEEP, "a sleep of {SLEEP:?} took {took:?}");
    shut_down(engine).await;
}

async fn long_sleep_is_suspended_and_never_ends_early(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(SHORT)).await;
    let before = fixture.now();
    let handle = engine.start(&sleeper, 3_600_000).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    let waiting = row(&engine, &handle.workflow_id()).await;
    assert_eq!((waiting.status, waiting.owner), (Status::Waiting, None));
    assert!(waiting.wake_at.unwrap() >= before.plus(HOUR));
    fixture.clock().advance(HOUR.checked_sub(Duration::from_mins(1)).unwrap());
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    assert_eq!(handle.status().await.unwrap(), Status::Waiting);
    assert_eq!(engine.running_count(), 0);
    fixture.clock().advance(Duration::from_mins(1));
    handle.result().await.unwrap();
    let record = record(&engine, &handle.workflow_id()).await;
    assert!(record.checkpoints[0].at >= waiting.wake_at.unwrap());
    assert_eq!(record.execution.recoveries, 0);
    shut_down(engine).await;
}

async fn suspended_sleep_is_continued_by_another_engine(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (one, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(SHORT)).await;
    let handle = one.start(&sleeper, 3_600_000).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    shut_down(one).await;
    fixture.clock().advance(HOUR);
    let (two, _) = open_engine(fixture, |b| b.register(&sleeper)).await;
    two.get::<()>("x").await.unwrap().result().await.unwrap();
    let slept_ms = record(&two, "x").await.checkpoints[0].duration_ms;
    assert!(
        slept_ms >= 3_600_000,
        "the whole sleep counts, not only the part in the second engine: {slept_ms}"
    );
    shut_down(two).await;
}

async fn sleep_beside_a_step_keeps_its_due_time_across_a_restart(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                let work = |mut cx: Context| async move {
                    cx.step("work", || {
                        let (count, latch) = (count.clone(), latch.clone());
                        async move {
                            count.increment();
                            latch.wait().await;
                            BodyResult::Ok(1)
                        }
                    })
                    .await
                };
                let ((), worked) = cx.join(|mut cx: Context| async move { cx.sleep(HOUR).await }, work).await;
                worked
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = one.start(&workflow, ()).workflow_id("x").await.unwrap();
    let key = handle.key();
    store
        .wait_until_committed(|write| match write {
            Write::Transition(change) => {
                change.key == key && matches!(&change.state, State::Running { pending_sleeps } if !pending_sleeps.is_empty())
            }
            _ => false,
        })
        .await;
    count.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    fixture.clock().advance(HOUR);
    // the hour has passed: a sleep that began again would hang here
    let (two, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    shut_down(two).await;
}

async fn sleeps_of_branches_end_in_the_order_of_their_due_times(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let hours = cx
            .map([3u32, 1, 2], 3, |mut cx, hours| async move {
                cx.sleep(HOUR * hours).await;
                cx.step(format!("{hours}"), async || BodyResult::Ok(())).await.map(|()| hours)
            })
            .await;
        hours.into_iter().collect::<Result<Vec<_>, _>>()
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    for hour in 0..3 {
        // it suspends before each hour, perhaps more than once: its worker may not know the current time yet
        loop {
            let record = engine.show(&handle.workflow_id()).await.unwrap();
            if record.execution.status == Status::Waiting && record.checkpoints.len() == 2 * hour {
                break;
            }
            tokio::task::yield_now().await;
        }
        fixture.clock().advance(HOUR);
    }
    assert_eq!(handle.result().await.unwrap(), [3, 1, 2]);
    let record = record(&engine, &handle.workflow_id()).await;
    let names: Vec<&str> = record.checkpoints.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["sleep", "1", "sleep", "2", "sleep", "3"]);
    shut_down(engine).await;
}

async fn sleep_of_zero_ends_at_once(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::ZERO)).await;
    engine.run(&sleeper, 0).await.unwrap();
    shut_down(engine).await;
}

/// Returns a workflow `parent` that returns its child's output.
fn parent<I, O>(child: &Workflow<I, O>) -> Workflow<I, O>
where
    I: serde::Serialize + serde::de::DeserializeOwned + Send + 'static,
    O: serde::Serialize + serde::de::DeserializeOwned + Send + 'static,
{
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, input: I| {
        let child = child.clone();
        async move { cx.child(&child, input).await }
    })
}

async fn child_returns_its_output(fixture: &dyn StoreFixture) {
    let child = steps();
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, 3).await.unwrap();
    assert_eq!(handle.result().await.unwrap().len(), 3);
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let children = engine.list(&filter).await.unwrap().executions;
    assert_eq!(children.len(), 1);
    assert_eq!((children[0].status, &*children[0].workflow), (Status::Completed, "steps"));
    assert_eq!((children[0].root, children[0].parent.as_ref().unwrap().key), (handle.key(), handle.key()));
    assert_eq!(engine.run(&parent, 2).await.unwrap().len(), 2);
    shut_down(engine).await;
}

async fn child_error_is_the_error_of_its_parent(fixture: &dyn StoreFixture) {
    let child = Workflow::new("child", |mut cx: Context, (): ()| async move {
        cx.step("fail", async || Err::<(), _>(Failure::with_kind("Odd", "no").permanent())).await
    });
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let Error::Failed(failure) = engine.run(&parent, ()).await.unwrap_err() else { panic!() };
    assert_eq!(failure, Failure::with_kind("Odd", "no").permanent());
    shut_down(engine).await;
}

async fn only_child(engine: &stepfast_core::Engine, parent: stepfast_core::Key) -> String {
    let filter = Filter { parent: Some(parent), limit: 9, ..Filter::default() };
    let children = engine.list(&filter).await.unwrap().executions;
    assert_eq!(children.len(), 1);
    children[0].workflow_id()
}

async fn cancelled_child_is_an_error_of_its_parent(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    for suspend_after in [SHORT, HOUR] {
        let before = count.get();
        let (engine, store) =
            open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(suspend_after)).await;
        let handle = engine.start(&parent, 1).await.unwrap();
        count.wait_for(before + 1).await;
        if suspend_after == SHORT {
            store.wait_until_committed(is_suspension_of(handle.key())).await;
        }
        engine.cancel(&only_child(&engine, handle.key()).await).await.unwrap();
        let Error::Failed(failure) = handle.result().await.unwrap_err() else { panic!() };
        assert_eq!(failure.code(), Some("SF-0022"));
        shut_down(engine).await;
    }
}

async fn suspended_parent_is_woken_by_its_child(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(SHORT)).await;
    let handle = engine.start(&parent, 5).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(handle.status().await.unwrap(), Status::Waiting);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert_eq!(count.get(), 1);
    shut_down(engine).await;
}

/// Returns whether the Write is a suspension.
fn is_suspension(write: &Write) -> bool {
    matches!(write, Write::Transition(change) if matches!(change.state, State::Waiting { .. }))
}

async fn child_end_during_suspension_wakes_its_parent(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(SHORT)).await;
    store.hold_writes(is_suspension);
    let handle = engine.start(&parent, 5).await.unwrap();
    store.wait_until_hanging().await;
    latch.open();
    store.release();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert!(store.committed_writes().iter().any(|(write, _)| is_suspension_of(handle.key())(write)));
    shut_down(engine).await;
}

async fn child_end_on_another_engine_wakes_a_suspending_parent(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (one, store) =
        open_engine(fixture, |b| b.register(&child).register(&parent).max_running(1).suspend_after(SHORT))
            .await;
    let (two, other) = open_second_engine(fixture, |b| b.register(&child)).await;
    store.hold_writes(is_suspension);
    let handle = one.start(&parent, 5).await.unwrap();
    store.wait_until_hanging().await;
    latch.open();
    let key = handle.key();
    // the child's Wake finds no waiting parent
    other.wait_until_committed(|write| matches!(write, Write::Wake(woken) if *woken == key)).await;
    store.release();
    assert_eq!(handle.result().await.unwrap(), 5);
    shut_down(one).await;
    shut_down(two).await;
}

async fn children_are_awaited_in_any_order(fixture: &dyn StoreFixture) {
    let child = Workflow::new("child", |mut cx: Context, x: u32| async move {
        cx.step("s", || std::future::ready(BodyResult::Ok(x))).await
    });
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, n: u32| {
            let child = child.clone();
            async move {
                let mut handles = Vec::new();
                for x in 0..n {
                    handles.push(cx.start_child(&child, x).await?);
                }
                let mut outputs = Vec::new();
                for handle in handles.into_iter().rev() {
                    outputs.push(handle.result(&mut cx).await?);
                }
                BodyResult::Ok(outputs)
            }
        })
    };
    for (max_running, suspend_after) in [(100, HOUR), (1, SHORT), (100, Duration::ZERO)] {
        let (engine, _) = open_engine(fixture, |b| {
            b.register(&child).register(&parent).max_running(max_running).suspend_after(suspend_after)
        })
        .await;
        let handle = engine.start(&parent, 5).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), [4, 3, 2, 1, 0]);
        record(&engine, &handle.workflow_id()).await;
        shut_down(engine).await;
    }
}

async fn child_continues_after_its_parent_stops_waiting(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move {
                let timed = cx
                    .timeout(Duration::from_millis(30), async move |mut cx: Context| {
                        cx.child(&child, 1).await
                    })
                    .await;
                BodyResult::Ok(timed == Err(Elapsed))
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, ()).await.unwrap();
    assert!(handle.result().await.unwrap());
    let child = only_child(&engine, handle.key()).await;
    assert_eq!(row(&engine, &child).await.status, Status::Running);
    latch.open();
    store.wait_until_committed(is_end_of(row(&engine, &child).await.key)).await;
    assert_eq!(engine.get::<i64>(&child).await.unwrap().result().await.unwrap(), 1);
    shut_down(engine).await;
}

async fn detached_child_outlives_its_parent(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move { cx.start_detached(&child, 3).await }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let id = engine.run(&parent, ()).await.unwrap();
    latch.open();
    assert_eq!(engine.get::<i64>(&id).await.unwrap().result().await.unwrap(), 3);
    shut_down(engine).await;
}

async fn child_is_started_once_across_a_restart(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (one, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = one.start(&parent, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let key = handle.key();
    shut_down(one).await;
    let (two, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    count.wait_for(2).await;
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    only_child(&two, key).await;
    shut_down(two).await;
}

async fn nested_children_complete_with_a_small_max_running(fixture: &dyn StoreFixture) {
    let slot: std::sync::Arc<std::sync::OnceLock<Workflow<u32, u32>>> = std::sync::Arc::default();
    let workflow = {
        let slot = slot.clone();
        Workflow::new("nest", move |mut cx: Context, depth: u32| {
            let slot = slot.clone();
            async move {
                if depth == 0 {
                    return BodyResult::Ok(0);
                }
                let nested = slot.get().unwrap().clone();
                BodyResult::Ok(cx.child(&nested, depth - 1).await? + 1)
            }
        })
    };
    slot.set(workflow.clone()).unwrap();
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&workflow).max_running(2).suspend_after(Duration::from_millis(5))
    })
    .await;
    let handle = engine.start(&workflow, 20).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 20);
    shut_down(engine).await;
}

async fn suspended_parent_uses_no_capacity(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let (parent, other) = (parent(&child), steps());
    let (one, store) = open_engine(fixture, |b| {
        b.register(&parent).register(&child).register(&other).max_running(2).suspend_after(SHORT)
    })
    .await;
    let handle = one.start(&parent, 5).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    // the child uses a slot of the engine, the parent none
    assert_eq!(one.run(&other, 1).await.unwrap().len(), 1);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    shut_down(one).await;
}

async fn wait_ends_at_its_timeout_or_with_its_child(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move {
                BodyResult::Ok(
                    cx.timeout(HOUR, async |mut cx: Context| cx.child(&child, 1).await).await.is_ok(),
                )
            }
        })
    };
    let (engine, store) =
        open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(SHORT)).await;
    let late = engine.start(&parent, ()).await.unwrap();
    store.wait_until_committed(is_suspension_of(late.key())).await;
    fixture.clock().advance(HOUR);
    assert!(!late.result().await.unwrap());
    let early = engine.start(&parent, ()).await.unwrap();
    store.wait_until_committed(is_suspension_of(early.key())).await;
    latch.open();
    assert!(early.result().await.unwrap());
    shut_down(engine).await;
}
