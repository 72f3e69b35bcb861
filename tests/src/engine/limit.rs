//! Limits in time and cancels, while code goes from step to step.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Client, Context, Engine, Error, Handle, Workflow};
use tokio::time::Instant;

use super::support::{Count, GRACE, Latch, Returns, ends, engine, noop, second_engine, shut_down, stop_here};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    no_body_begins_after_the_deadline,
    code_that_returns_after_the_deadline_is_cancelled,
    a_deadline_strikes_between_attempts,
    no_body_begins_after_a_cancel_that_no_look_has_seen,
    no_attempt_begins_after_a_cancel_that_no_look_has_seen,
    an_end_that_no_look_came_before_is_cancelled,
    a_cancel_that_meets_the_end_goes_down_to_children,
    an_accepted_cancel_is_kept_near_the_end,
    what_waits_in_a_paused_queue_ends_at_its_deadline,
    what_is_scheduled_ends_at_its_deadline,
    what_nobody_can_run_ends_at_its_deadline,
];

const MINUTE: Duration = Duration::from_mins(1);

async fn assert_cancelled(handle: &Handle<i64>, code: &str) {
    let error = handle.result().await.unwrap_err();
    let Error::Cancelled(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(code), "{error}");
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
}

/// A workflow that waits for the latch in its first step; its second step counts.
fn two_steps(begun: &Count, latch: &Latch, second: &Count) -> Workflow<i64, i64> {
    let (begun, latch, second) = (begun.clone(), latch.clone(), second.clone());
    Workflow::new("two steps", move |mut cx: Context, x: i64| {
        let (begun, latch, second) = (begun.clone(), latch.clone(), second.clone());
        async move {
            stop_here(&mut cx, &begun, &latch).await?;
            cx.step("second", async || Returns::Ok(second.more())).await?;
            Returns::Ok(x)
        }
    })
}

/// Waits until the engine's estimate of the store's time follows the test's clock.
async fn until_it_looks(store: &FaultStore) {
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
}

async fn no_body_begins_after_the_deadline(fixture: &dyn StoreFixture) {
    let (begun, latch, second) = (Count::new(), Latch::new(), Count::new());
    let workflow = two_steps(&begun, &latch, &second);
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.reaches(1).await;
    fixture.clock().advance(MINUTE);
    until_it_looks(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    assert_eq!(second.get(), 0);
    shut_down(engine).await;
}

async fn code_that_returns_after_the_deadline_is_cancelled(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = super::support::waiting("w", &begun, &latch);
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.reaches(1).await;
    fixture.clock().advance(MINUTE);
    until_it_looks(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

/// A workflow whose only step fails again and again, each time after the latch has opened.
fn failing(begun: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (begun, latch) = (begun.clone(), latch.clone());
    Workflow::new("failing", move |mut cx: Context, _: i64| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            cx.step("fail", || {
                let (begun, latch) = (begun.clone(), latch.clone());
                async move {
                    begun.more();
                    latch.passed().await;
                    Err::<i64, _>(stepfast_core::Failure::new("no"))
                }
            })
            .retries(u32::MAX)
            .backoff(Duration::ZERO, Duration::ZERO)
            .await
        }
    })
}

async fn a_deadline_strikes_between_attempts(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = failing(&begun, &latch);
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(MINUTE).await.unwrap();
    begun.reaches(1).await;
    fixture.clock().advance(MINUTE);
    until_it_looks(&store).await;
    latch.open();
    assert_cancelled(&handle, "SF-0021").await;
    assert_eq!(begun.get(), 1);
    shut_down(engine).await;
}

/// Two engines; the first one has begun what the handle is of, and from here on its looks hang.
async fn unseen(
    fixture: &dyn StoreFixture,
    workflow: &Workflow<i64, i64>,
    begun: &Count,
) -> (Engine, Arc<FaultStore>, Engine, Handle<i64>) {
    let (one, store) = engine(fixture, |b| b.register(workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let handle = one.start(workflow, 1).await.unwrap();
    begun.reaches(1).await;
    store.hold_calls(&[Call::Heartbeat]);
    (one, store, two, handle)
}

/// The second engine cancels what the first one runs, which no look tells; then the latch opens.
async fn cancel_unseen(
    fixture: &dyn StoreFixture,
    workflow: &Workflow<i64, i64>,
    begun: &Count,
    latch: &Latch,
) {
    let (one, store, two, handle) = unseen(fixture, workflow, begun).await;
    assert_eq!(two.cancel(&handle.workflow_id()).await.unwrap(), RequestResult::Pending);
    latch.open();
    store.wait_until_committed(ends(handle.key())).await;
    assert_cancelled(&handle, "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

async fn no_body_begins_after_a_cancel_that_no_look_has_seen(fixture: &dyn StoreFixture) {
    let (begun, latch, second) = (Count::new(), Latch::new(), Count::new());
    cancel_unseen(fixture, &two_steps(&begun, &latch, &second), &begun, &latch).await;
    assert_eq!(second.get(), 0);
}

async fn no_attempt_begins_after_a_cancel_that_no_look_has_seen(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    cancel_unseen(fixture, &failing(&begun, &latch), &begun, &latch).await;
    assert_eq!(begun.get(), 1);
}

async fn an_end_that_no_look_came_before_is_cancelled(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = super::support::waiting("w", &begun, &latch);
    let (one, store, two, handle) = unseen(fixture, &workflow, &begun).await;
    let elsewhere = two.get::<i64>(&handle.workflow_id()).await.unwrap();
    assert_eq!(elsewhere.cancel().await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    assert_cancelled(&elsewhere, "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

async fn a_cancel_that_meets_the_end_goes_down_to_children(fixture: &dyn StoreFixture) {
    let (begun, latch, never) = (Count::new(), Latch::new(), Latch::new());
    let child = super::support::waiting("child", &Count::new(), &never);
    let parent = {
        let (begun, latch, child) = (begun.clone(), latch.clone(), child.clone());
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let (begun, latch, child) = (begun.clone(), latch.clone(), child.clone());
            async move {
                let _ = cx.start_child(&child, x).await?;
                stop_here(&mut cx, &begun, &latch).await?;
                Returns::Ok(x)
            }
        })
    };
    let (one, store) = engine(fixture, |b| b.register(&parent).register(&child)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let handle = one.start(&parent, 1).await.unwrap();
    begun.reaches(1).await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let child = one.list(&filter).await.unwrap().executions.remove(0);
    store.hold_calls(&[Call::Heartbeat]);
    assert_eq!(two.cancel(&handle.workflow_id()).await.unwrap(), RequestResult::Pending);
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    store.wait_until_committed(ends(child.key)).await;
    assert_cancelled(&two.get(&child.workflow_id()).await.unwrap(), "SF-0022").await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

/// Three hundred cancels from another engine, each within the last of four steps or after it.
async fn an_accepted_cancel_is_kept_near_the_end(fixture: &dyn StoreFixture) {
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
                            third[x as usize].more();
                        }
                        std::future::ready(Returns::Ok(()))
                    })
                    .await?;
                }
                Returns::Ok(x)
            }
        })
    };
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let mut late = Vec::new();
    for few in (0..ALL).collect::<Vec<_>>().chunks(10) {
        let cancels = few.iter().map(|&x| {
            let (one, two, workflow, begun, third) = (&one, &two, &workflow, &begun, &third);
            async move {
                let handle = one.start(workflow, x as i64).await.unwrap();
                third[x].reaches(1).await;
                let answer = two.cancel(&handle.workflow_id()).await.unwrap();
                let answered_at = Instant::now();
                let result = handle.result().await;
                let status = handle.status().await.unwrap();
                match (answer, result) {
                    (RequestResult::NotApplicable(Status::Completed), Ok(_)) => {
                        assert_eq!(status, Status::Completed);
                    }
                    (RequestResult::Pending, Err(Error::Cancelled(_))) => {
                        assert_eq!(status, Status::Cancelled);
                    }
                    (answer, result) => panic!("{answer:?}, and {result:?}"),
                }
                let begun = begun[x].lock().unwrap();
                begun.iter().filter_map(|at| at.checked_duration_since(answered_at)).max()
            }
        });
        late.extend(futures_util::future::join_all(cancels).await.into_iter().flatten());
    }
    // a body that begins after the answer had leave to begin before it
    late.sort_unstable();
    assert!(late.last().is_none_or(|at| *at < Duration::from_secs(1)), "{late:?}");
    shut_down(one).await;
    shut_down(two).await;
}

async fn what_waits_in_a_paused_queue_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let noop = noop();
    let queue = Queue::new("a").max_depth(1);
    let (engine, _) = engine(fixture, |b| b.register(&noop).queue(queue)).await;
    engine.pause_queue("a").await.unwrap();
    let put = |x: i64| engine.start(&noop, x).queue("a").dedup_id("the one").execution_timeout(MINUTE);
    let handle = put(1).await.unwrap();
    assert!(put(2).await.is_err());
    fixture.clock().advance(MINUTE);
    // its turn never comes
    assert_cancelled(&handle, "SF-0021").await;
    // its dedup_id and its place are free
    let next = put(3).await.unwrap();
    engine.resume_queue("a").await.unwrap();
    assert_eq!(next.result().await.unwrap(), 3);
    shut_down(engine).await;
}

async fn what_is_scheduled_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).delay(MINUTE * 60).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

async fn what_nobody_can_run_ends_at_its_deadline(fixture: &dyn StoreFixture) {
    let named = Workflow::<i64, i64>::named("known to nobody");
    let client = Client::open(fixture.second_store().await).await.unwrap();
    let other = noop();
    let (engine, _) = engine(fixture, |b| b.register(&other)).await;
    let handle = client.start(&named, 1).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
    // clients see to what they wait for when there is no worker
    let handle = client.start(&named, 2).execution_timeout(MINUTE).await.unwrap();
    fixture.clock().advance(MINUTE);
    assert_cancelled(&handle, "SF-0021").await;
    client.shutdown(GRACE).await.unwrap();
}
