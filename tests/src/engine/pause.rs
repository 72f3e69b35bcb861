//! Pauses: executions are parked between their bodies, and continue after a resume.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast_core::failure::PAUSED;
use stepfast_core::graph::Graph;
use stepfast_core::store::{RequestResult, Status, Write};
use stepfast_core::{Client, Context, Error, Failure, Handle, RetryPolicy, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, is_parking_of, is_suspension_of, latched_workflow, open_engine,
    open_second_engine, record, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    execution_parks_between_its_steps,
    graph_parks_when_no_task_runs,
    execution_parks_although_a_branch_waits_for_another_one,
    other_engine_pauses_a_running_execution,
    resume_withdraws_a_pending_pause,
    resume_begins_steps_that_a_pause_holds,
    resume_begins_tasks_that_a_pause_holds,
    resume_by_other_engine_withdraws_a_pending_pause,
    resume_withdraws_a_pause_whose_parking_is_under_way,
    backoff_continues_after_a_withdrawn_pause,
    suspended_execution_parks_at_once,
    short_sleep_keeps_its_due_time,
    queued_execution_parks_at_once,
    step_between_attempts_keeps_its_attempts,
    child_of_a_paused_parent_continues,
    next_owner_parks_a_paused_execution,
    cancel_ends_a_paused_execution,
    pause_before_the_last_end_has_no_effect,
    pause_of_ended_execution_is_not_applicable,
];

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

/// Waits until the execution is parked, and asserts that it was paused.
async fn assert_paused<O: serde::de::DeserializeOwned + std::fmt::Debug>(handle: &Handle<O>) {
    let error = handle.result().await.unwrap_err();
    let Error::Parked { failure, .. } = &error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(PAUSED));
    assert_eq!(handle.status().await.unwrap(), Status::Queued);
}

/// Returns a workflow of two steps. The body of the first one increments `begun` and waits for the latch.
fn two_steps(begun: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (begun, latch) = (begun.clone(), latch.clone());
    Workflow::new("two steps", move |mut cx: Context, x: i64| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            let first = cx
                .step("first", || {
                    let (begun, latch) = (begun.clone(), latch.clone());
                    async move {
                        begun.increment();
                        latch.wait().await;
                        BodyResult::Ok(x)
                    }
                })
                .await?;
            let second = cx.step("second", || {
                let begun = begun.clone();
                async move { BodyResult::Ok(begun.increment() as i64) }
            });
            Ok::<_, Failure>(first + second.await?)
        }
    })
}

async fn execution_parks_between_its_steps(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    assert_eq!(handle.status().await.unwrap(), Status::Running, "a body runs");
    latch.open();
    assert_paused(&handle).await;
    assert_eq!(begun.get(), 1);
    assert_eq!(record(&engine, "x").await.checkpoints.len(), 1, "the outcome of the body is recorded");
    assert_eq!(engine.pause("x").await.unwrap(), RequestResult::Done, "the execution is paused already");
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 12);
    assert_eq!(begun.get(), 2);
    shut_down(engine).await;
}

/// Returns a graph in which the tasks `left` and `right` increment `begun` and wait for a latch each. The task `after left`
/// also increments `begun`.
fn joined_graph(begun: &Count, latches: &[Latch; 2]) -> Workflow<(), usize> {
    let mut graph = Graph::<()>::new("g");
    let [left, right] = [("left", 0), ("right", 1)].map(|(name, n)| {
        let (begun, latch) = (begun.clone(), latches[n].clone());
        graph.task(name).run((), move |()| {
            let (begun, latch) = (begun.clone(), latch.clone());
            async move {
                begun.increment();
                latch.wait().await;
                BodyResult::Ok(n)
            }
        })
    });
    let counted = begun.clone();
    let after_left = graph.task("after left").run(left, move |n: usize| {
        counted.increment();
        std::future::ready(BodyResult::Ok(n))
    });
    let join =
        graph.task("join").run((after_left, right), async |(a, b): (usize, usize)| BodyResult::Ok(a + b));
    graph.build(join).unwrap()
}

async fn graph_parks_when_no_task_runs(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let graph = joined_graph(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&graph)).await;
    let handle = engine.start(&graph, ()).workflow_id("x").await.unwrap();
    begun.wait_for(2).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    latches[0].open();
    store.wait_until_committed(|write| matches!(write, Write::Checkpoint(it) if &*it.name == "left")).await;
    assert_eq!(handle.status().await.unwrap(), Status::Running, "the other task runs");
    latches[1].open();
    assert_paused(&handle).await;
    assert_eq!(begun.get(), 2, "no further task began");
    let names: Vec<String> =
        deliveries(&record(&engine, "x").await).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["left", "right"]);
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<usize>("x").await.unwrap().result().await.unwrap(), 1);
    assert_eq!(begun.get(), 3);
    shut_down(engine).await;
}

async fn execution_parks_although_a_branch_waits_for_another_one(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (begun, latch) = (begun.clone(), latch.clone());
        Workflow::new("channel", move |mut cx: Context, x: i64| {
            let (begun, latch) = (begun.clone(), latch.clone());
            async move {
                let first = cx.step("first", || {
                    let (begun, latch) = (begun.clone(), latch.clone());
                    async move {
                        begun.increment();
                        latch.wait().await;
                        BodyResult::Ok(x)
                    }
                });
                let first = first.await?;
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let _branch = cx.spawn(move |mut cx: Context| async move {
                    let second = cx.step("second", async || BodyResult::Ok(2)).await?;
                    let _ = sender.send(second);
                    BodyResult::Ok(())
                });
                // no durable wait: the other branch sends the value after its step
                let second: i64 = receiver.await.map_err(|_| Failure::new("closed"))?;
                Ok::<_, Failure>(first + second)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_paused(&handle).await;
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 12);
    shut_down(engine).await;
}

async fn other_engine_pauses_a_running_execution(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(client.pause("x").await.unwrap(), RequestResult::Pending);
    // the owner receives the request with a heartbeat
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    latch.open();
    assert_paused(&handle).await;
    assert_eq!(begun.get(), 1);
    assert_eq!(client.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(client.get::<i64>("x").await.unwrap().result().await.unwrap(), 12);
    client.shutdown(HOUR).await.unwrap();
    shut_down(engine).await;
}

async fn resume_withdraws_a_pending_pause(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.resume().await.unwrap(), RequestResult::NotApplicable(Status::Running));
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    assert_eq!(handle.resume().await.unwrap(), RequestResult::Done);
    assert!(record(&engine, "x").await.requests.is_empty());
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 12);
    let writes = store.committed_writes();
    assert!(!writes.iter().any(|(write, _)| is_parking_of(handle.key())(write)), "the run continued");
    shut_down(engine).await;
}

/// Returns a workflow of two branches. The body of the first step of each branch increments `begun` and waits for its
/// latch. The second branch has another step, whose body also increments `begun`.
fn two_branches(begun: &Count, latches: &[Latch; 2]) -> Workflow<i64, i64> {
    let (begun, latches) = (begun.clone(), latches.clone());
    Workflow::new("two branches", move |mut cx: Context, x: i64| {
        let (begun, latches) = (begun.clone(), latches.clone());
        async move {
            let first_step = |mut cx: Context, n: usize| {
                let (begun, latch) = (begun.clone(), latches[n].clone());
                async move {
                    let value = cx.step("first", || {
                        let (begun, latch) = (begun.clone(), latch.clone());
                        async move {
                            begun.increment();
                            latch.wait().await;
                            BodyResult::Ok(x)
                        }
                    });
                    value.await.map(|value| (cx, value))
                }
            };
            let second = async |cx: Context| {
                let (mut cx, value) = first_step(cx, 1).await?;
                let other = cx.step("second", || {
                    begun.increment();
                    std::future::ready(BodyResult::Ok(1))
                });
                BodyResult::Ok(value + other.await?)
            };
            let (first, second) = cx.join(|cx| first_step(cx, 0), second).await;
            Ok::<_, Failure>(first?.1 + second?)
        }
    })
}

/// Returns a predicate for the first checkpoint of an execution.
fn is_first_checkpoint(write: &Write) -> bool {
    matches!(write, Write::Checkpoint(_))
}

async fn resume_begins_steps_that_a_pause_holds(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = two_branches(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(2).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    latches[1].open();
    store.wait_until_committed(is_first_checkpoint).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
    assert_eq!(begun.get(), 2, "the second step does not begin");
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    begun.wait_for(3).await;
    latches[0].open();
    assert_eq!(handle.result().await.unwrap(), 21);
    assert_eq!(begun.get(), 3);
    shut_down(engine).await;
}

async fn resume_begins_tasks_that_a_pause_holds(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let graph = joined_graph(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&graph)).await;
    let handle = engine.start(&graph, ()).workflow_id("x").await.unwrap();
    begun.wait_for(2).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    latches[0].open();
    store.wait_until_committed(is_first_checkpoint).await;
    // the run polls the task after `left`, and holds it
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
    assert_eq!(begun.get(), 2);
    assert_eq!(handle.resume().await.unwrap(), RequestResult::Done);
    begun.wait_for(3).await;
    latches[1].open();
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
}

async fn resume_by_other_engine_withdraws_a_pending_pause(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = two_branches(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(2).await;
    assert_eq!(client.pause("x").await.unwrap(), RequestResult::Pending);
    // the owner receives the request with a heartbeat
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    latches[1].open();
    store.wait_until_committed(is_first_checkpoint).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 1).await;
    assert_eq!(begun.get(), 2, "the second step does not begin");
    assert_eq!(client.resume("x").await.unwrap(), RequestResult::Done);
    begun.wait_for(3).await;
    latches[0].open();
    assert_eq!(handle.result().await.unwrap(), 21);
    assert_eq!(begun.get(), 3);
    client.shutdown(HOUR).await.unwrap();
    shut_down(engine).await;
}

async fn resume_withdraws_a_pause_whose_parking_is_under_way(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let handle = engine.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    store.hold_writes(is_parking_of(handle.key()));
    latch.open();
    store.wait_until_hanging().await;
    assert_eq!(client.resume("x").await.unwrap(), RequestResult::Done);
    store.release();
    assert_eq!(client.get::<i64>("x").await.unwrap().result().await.unwrap(), 12);
    assert_eq!(begun.get(), 2);
    client.shutdown(HOUR).await.unwrap();
    shut_down(engine).await;
}

async fn backoff_continues_after_a_withdrawn_pause(fixture: &dyn StoreFixture) {
    let backoff = Duration::from_millis(500);
    let policy = RetryPolicy { retries: 1, jitter: 0.0, ..RetryPolicy::fixed(backoff) };
    let (attempts, begun, latch) = (Count::new(), Count::new(), Latch::new());
    let begun_at = Arc::new(Mutex::new(Vec::new()));
    let graph = {
        let mut graph = Graph::<()>::new("g");
        let (begun, latch, attempts) = (begun.clone(), latch.clone(), attempts.clone());
        let begun_at = begun_at.clone();
        let _ = graph.task("running").run((), move |()| {
            let (begun, latch) = (begun.clone(), latch.clone());
            async move {
                begun.increment();
                latch.wait().await;
                BodyResult::Ok(1)
            }
        });
        let failing = graph.task("failing").retry(policy).run((), move |()| {
            begun_at.lock().unwrap().push(tokio::time::Instant::now());
            let attempt = attempts.increment();
            async move { if attempt == 1 { Err(Failure::new("no")) } else { Ok(5) } }
        });
        graph.build(failing).unwrap()
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&graph)).await;
    let handle = engine.start(&graph, ()).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    attempts.wait_for(2).await;
    let [first, second] = begun_at.lock().unwrap()[..] else { panic!("two attempts") };
    assert!(second - first >= backoff);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    shut_down(engine).await;
}

/// Returns a workflow that sleeps for the given milliseconds.
fn sleeping() -> Workflow<u64, u64> {
    Workflow::new("sleeping", |mut cx: Context, millis: u64| async move {
        cx.sleep(Duration::from_millis(millis)).await;
        cx.step("after", async || BodyResult::Ok(millis)).await
    })
}

async fn suspended_execution_parks_at_once(fixture: &dyn StoreFixture) {
    let workflow = sleeping();
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, 3_600_000).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    let sleeps = row(&engine, "x").await.pending_sleeps;
    assert_eq!(engine.pause("x").await.unwrap(), RequestResult::Done);
    let paused = row(&engine, "x").await;
    assert_eq!((paused.is_parked, paused.pending_sleeps), (true, sleeps));
    fixture.clock().advance(HOUR * 2);
    assert!(row(&engine, "x").await.is_parked, "the timer does not wake it");
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<u64>("x").await.unwrap().result().await.unwrap(), 3_600_000);
    shut_down(engine).await;
}

async fn short_sleep_keeps_its_due_time(fixture: &dyn StoreFixture) {
    let workflow = sleeping();
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(HOUR * 9)).await;
    let handle = engine.start(&workflow, 3_600_000).workflow_id("x").await.unwrap();
    let created_at = row(&engine, "x").await.created_at;
    handle.pause().await.unwrap();
    store.wait_until_committed(is_parking_of(handle.key())).await;
    let [sleep] = &row(&engine, "x").await.pending_sleeps[..] else { panic!("the sleep is recorded") };
    assert!(sleep.due_at.since(created_at) >= HOUR);
    fixture.clock().advance(HOUR * 2);
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<u64>("x").await.unwrap().result().await.unwrap(), 3_600_000);
    shut_down(engine).await;
}

async fn queued_execution_parks_at_once(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    let queued = engine.start(&workflow, 2).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(queued.pause().await.unwrap(), RequestResult::Done);
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_paused(&queued).await;
    assert_eq!(begun.get(), 1);
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 2);
    shut_down(engine).await;
}

async fn step_between_attempts_keeps_its_attempts(fixture: &dyn StoreFixture) {
    let begun = Count::new();
    let workflow = {
        let begun = begun.clone();
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let begun = begun.clone();
            async move {
                cx.step("fails once", || {
                    let attempt = begun.increment();
                    async move { if attempt == 1 { Err(Failure::new("no")) } else { Ok(x) } }
                })
                .retries(1)
                .backoff(HOUR, HOUR)
                .await
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 5).workflow_id("x").await.unwrap();
    store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
    handle.pause().await.unwrap();
    assert_paused(&handle).await;
    assert_eq!(record(&engine, "x").await.attempts.len(), 1);
    fixture.clock().advance(HOUR * 2);
    // the engine reads the store's clock with a heartbeat
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(begun.get(), 2);
    shut_down(engine).await;
}

async fn child_of_a_paused_parent_continues(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &begun, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let child = child.clone();
            async move { BodyResult::Ok(cx.child(&child, x).await? + 1) }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&parent).register(&child)).await;
    let handle = engine.start(&parent, 1).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    handle.pause().await.unwrap();
    assert_paused(&handle).await;
    latch.open();
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 2);
    assert_eq!(begun.get(), 1);
    shut_down(engine).await;
}

async fn next_owner_parks_a_paused_execution(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, 10).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
    fixture.mark_dead(row(&two, "x").await.owner.unwrap()).await;
    assert_paused(&two.get::<i64>("x").await.unwrap()).await;
    assert_eq!(begun.get(), 1, "the next owner began no body");
    latch.open();
    two.resume("x").await.unwrap();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 10 + begun.get() as i64);
    store.hold_calls(&[]);
    drop(handle);
    let _ = one.shutdown(HOUR).await;
    shut_down(two).await;
}

async fn cancel_ends_a_paused_execution(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = two_steps(&begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let [pausing, paused] = ["pausing", "paused"];
    for id in [pausing, paused] {
        let handle = engine.start(&workflow, 1).workflow_id(id).await.unwrap();
        handle.pause().await.unwrap();
        if id == paused {
            latch.open();
            assert_paused(&handle).await;
        }
        handle.cancel().await.unwrap();
        assert!(matches!(handle.result().await.unwrap_err(), Error::Cancelled(_)));
    }
    shut_down(engine).await;
}

async fn pause_before_the_last_end_has_no_effect(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &begun, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(handle.pause().await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 1, "no body follows the one that ran");
    assert!(engine.show("x").await.unwrap().requests.is_empty());
    shut_down(engine).await;
}

async fn pause_of_ended_execution_is_not_applicable(fixture: &dyn StoreFixture) {
    let workflow = super::support::noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    engine.start(&workflow, 1).workflow_id("x").await.unwrap().result().await.unwrap();
    let expected = RequestResult::NotApplicable(Status::Completed);
    assert_eq!(engine.pause("x").await.unwrap(), expected);
    engine.start(&workflow, 1).workflow_id("y").delay(HOUR).await.unwrap();
    let expected = RequestResult::NotApplicable(Status::Scheduled);
    assert_eq!(engine.pause("y").await.unwrap(), expected);
    assert!(matches!(engine.pause("nothing").await.unwrap_err(), Error::NotFound { .. }));
    shut_down(engine).await;
}
