//! Deadlines and cancels while code continues from step to step.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Client, Context, Engine, Error, Handle, Workflow};
use tokio::time::Instant;

use super::support::{
    BodyResult, Count, GRACE, Latch, is_end_of, noop, open_engine, open_second_engine, shut_down,
    wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    body_never_begins_after_the_deadline,
    execution_that_returns_after_its_deadline_is_cancelled,
    deadline_applies_between_attempts,
    body_never_begins_after_an_unreported_cancel,
    attempt_never_begins_after_an_unreported_cancel,
    end_after_an_unreported_cancel_is_cancelled,
    cancel_at_the_end_reaches_children,
    cancel_accepted_near_the_end_is_kept,
    execution_in_a_paused_queue_ends_at_its_deadline,
    scheduled_execution_ends_at_its_deadline,
    execution_without_a_worker_ends_at_its_deadline,
];

const MINUTE: Duration = Duration::from_mins(1);

async fn assert_cancelled(handle: &Handle<i64>, code: &str) {
    let error = handle.result().await.unwrap_err();
    let Error::Cancelled(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(code), "{error}");
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
}

/// Returns a workflow that waits for the latch in its first step and increments `second` in its second step.
fn two_steps(begun: &Count, latch: &Latch, second: &Count) -> Workflow<i64, i64> {
    let (begun, latch, second) = (begun.clone(), latch.clone(), second.clone());
    Workflow::new("two steps", move |mut cx: Context, x: i64| {
        let (begun, latch, second) = (begun.clone(), latch.clone(), second.clone());
        async move {
            wait_in_step(&mut cx, &begun, &latch).await?;
            cx.step("second", async || BodyResult::Ok(second.increment())).await?;
            BodyResult::Ok(x)
        }
    })
}

/// Waits until the engine's estimate of the store's time follows the test's clock.
async fn wait_for_heartbeats(store: &FaultStore) {
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
}

async fn body_never_begins_after_the_deadline(fixture: &dyn StoreFixture) {
    let (begun, latch, second) = (Count::new(), Latch::new(), Count::new());
    let workflow = two_steps(&begun, &latch, &second);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.wait_for(1).await;
    fixture.clock().advance(MINUTE);
    wait_for_heartbeats(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    assert_eq!(second.get(), 0);
    shut_down(engine).await;
}

async fn execution_that_returns_after_its_deadline_is_cancelled(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = super::support::latched_workflow("w", &begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.wait_for(1).await;
    fixture.clock().advance(MINUTE);
    wait_for_heartbeats(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

/// Returns a workflow whose only step fails repeatedly, each time after the latch has opened.
fn failing(begun: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (begun, latch) = (begun.clone(), latch.clone());
    Workflow::new("failing", move |mut cx: Context, _: i64| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            cx.step("fail", || {
                let (begun, latch) = (begun.clone(), latch.clone());
                async move {
                    begun.increment();
                    latch.wait().await;
                    Err::<i64, _>(stepfast_core::Failure::new("no"))
                }
            })
            .retries(u32::MAX)
            .backoff(Duration::ZERO, Duration::ZERO)
            .await
        }
    })
}

async fn deadline_applies_between_attempts(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = failing(&begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.wait_for(1).await;
    fixture.clock().advance(MINUTE);
    wait_for_heartbeats(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    assert_eq!(begun.get(), 1);
    shut_down(engine).await;
}

/// Opens two engines and starts an execution in the first one, whose heartbeats hang from then on.
async fn start_with_held_heartbeats(
    fixture: &dyn StoreFixture,
    workflow: &Workflow<i64, i64>,
    begun: &Count,
) -> (Engine, Arc<FaultStore>, Engine, Handle<i64>) {
    let (one, store) = open_engine(fixture, |b| b.register(workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(workflow, 1).await.unwrap();
    begun.wait_for(1).await;
    store.hold_calls(&[Call::Heartbeat]);
    (one, store, two, handle)
}

/// Cancels an execution of the first engine from the second one, with no heartbeat to report it; then opens the latch.
async fn cancel_without_heartbeats(
    fixture: &dyn StoreFixture,
    workflow: &Workflow<i64, i64>,
    begun: &Count,
    latch: &Latch,
) {
    let (one, store, two, handle) = start_with_held_heartbeats(fixture, workflow, begun).await;
    assert_eq!(two.cancel(&handle.workflow_id()).await.unwrap(), RequestResult::Pending);
    latch.open();
    store.wait_until_committed(is_end_of(handle.key())).await;
    assert_cancelled(&handle, "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

async fn body_never_begins_after_an_unreported_cancel(fixture: &dyn StoreFixture) {
    let (begun, latch, second) = (Count::new(), Latch::new(), Count::new());
    cancel_without_heartbeats(fixture, &two_steps(&begun, &latch, &second), &begun, &latch).await;
    assert_eq!(second.get(), 0);
}

async fn attempt_never_begins_after_an_unreported_cancel(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    cancel_without_heartbeats(fixture, &failing(&begun, &latch), &begun, &latch).await;
    assert_eq!(begun.get(), 1);
}

async fn end_after_an_unreported_cancel_is_cancelled(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = super::support::latched_workflow("w", &begun, &latch);
    let (one, store, two, handle) = start_with_held_heartbeats(fixture, &workflow, &begun).await;
    let second_handle = two.get::<i64>(&handle.workflow_id()).await.unwrap();
    assert_eq!(second_handle.cancel().await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    assert_cancelled(&second_handle, "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

async fn cancel_at_the_end_reaches_children(fixture: &dyn StoreFixture) {
    let (begun, latch, never) = (Count::new(), Latch::new(), Latch::new());
    let child = super::support::latched_workflow("child", &Count::new(), &never);
    let parent = {
        let (begun, latch, child) = (begun.clone(), latch.clone(), child.clone());
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let (begun, latch, child) = (begun.clone(), latch.clone(), child.clone());
            async move {
                let _ = cx.start_child(&child, x).await?;
                wait_in_step(&mut cx, &begun, &latch).await?;
                BodyResult::Ok(x)
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&parent).register(&child)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(&parent, 1).await.unwrap();
    begun.wait_for(1).await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let child = one.list(&filter).await.unwrap().executions.remove(0);
    store.hold_calls(&[Call::Heartbeat]);
    assert_eq!(two.cancel(&handle.workflow_id()).await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    store.wait_until_committed(is_end_of(child.key)).await;
    assert_cancelled(&two.get(&child.workflow_id()).await.unwrap(), "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

/// Sends three hundred cancels from another engine, each during the last of four steps or after it.
async fn cancel_accepted_near_the_end_is_kept(fixture: &dyn StoreFixture) {
    const ALL: usize = 300;
    type Begun = Arc<Vec<Mutex<Vec<Instant>>>>;
    let begun: Begun = Arc::new((0..ALL).map(|_| Mutex::default()).collect());
    let third: Arc<Vec<Count>> = Arc::new((0..ALL).map(|_| Count::new()).collect());
    let workflow = {
        let (begun, third) = (begun.clone(), third.clone());
        Workflow::new("steps", move |mut cx: Context, x: i64| {
            let (begun, third) = (begun.clone(), third.clone());
            async move {
                for n in 0..4 {
                    let (begun, third) = (begun.clone(), third.clone());
                    cx.step("s", move || {
                        begun[x as usize].lock().unwrap().push(Instant::now());
                        if n == 2 {
                            third[x as usize].increment();
                        }
                        std::future::ready(BodyResult::Ok(()))
                    })
                    .await?;
                }
                BodyResult::Ok(x)
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let mut late = Vec::new();
    for batch in (0..ALL).collect::<Vec<_>>().chunks(10) {
        let cancels = batch.iter().map(|&x| {
            let (one, two, workflow, begun, third) = (&one, &two, &workflow, &begun, &third);
            async move {
                let handle = one.start(workflow, x as i64).await.unwrap();
                third[x].wait_for(1).await;
                let reply = two.cancel(&handle.workflow_id()).await.unwrap();
                let replied_at = Instant::now();
                let result = handle.result().await;
                let status = handle.status().await.unwrap();
                match (reply, result) {
                    (RequestResult::NotApplicable(Status::Completed), Ok(_)) => {
                        assert_eq!(status, Status::Completed);
                    }
                    (RequestResult::Pending, Err(Error::Cancelled(_))) => {
                        assert_eq!(status, Status::Cancelled);
                    }
                    (reply, result) => panic!("{reply:?}, and {result:?}"),
                }
                let begun = begun[x].lock().unwrap();
                begun.iter().filter_map(|at| at.checked_duration_since(replied_at)).max()
            }
        });
        late.extend(futures_util::future::join_all(cancels).await.into_iter().flatten());
    }
    // a body that begins after the reply had its permission to begin before the reply
    late.sort_unstable();
    assert!(late.last().is_none_or(|at| *at < Duration::from_secs(1)), "{late:?}");
    shut_down(one).await;
    shut_down(two).await;
}

async fn execution_in_a_paused_queue_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let noop = noop();
    let queue = Queue::new("a").max_depth(1);
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).queue(queue)).await;
    engine.pause_queue("a").await.unwrap();
    let start = |x: i64| engine.start(&noop, x).queue("a").dedup_id("only").execution_timeout(MINUTE);
    let handle = start(1).await.unwrap();
    assert!(start(2).await.is_err());
    fixture.clock().advance(MINUTE);
    // the execution has no turn in a paused queue
    assert_cancelled(&handle, "SF-0021").await;
    // its dedup_id and its capacity are free
    let next = start(3).await.unwrap();
    engine.resume_queue("a").await.unwrap();
    assert_eq!(next.result().await.unwrap(), 3);
    shut_down(engine).await;
}

async fn scheduled_execution_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).delay(MINUTE * 60).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

async fn execution_without_a_worker_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let named = Workflow::<i64, i64>::named("unknown");
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let other = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&other)).await;
    let handle = client.start(&named, 1).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
    // without a worker, clients apply the deadlines of the executions that they await
    let handle = client.start(&named, 2).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    client.shutdown(GRACE).await.unwrap();
}
