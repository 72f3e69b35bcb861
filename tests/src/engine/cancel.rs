//! A cancel against an end, in two engines: one of them wins, and everybody hears of the same.

use std::sync::Arc;

use futures_util::future::join_all;
use stepfast_core::store::{RequestResult, Status};
use stepfast_core::{Context, Engine, Error, Handle, Workflow};

use super::support::{Count, Latch, Returns, ends, engine, record, second_engine, shut_down, waiting};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    an_end_that_is_durable_before_a_cancel_wins,
    a_cancel_wins_over_an_end_on_its_way,
    a_cancel_that_is_seen_before_an_end_wins,
    of_an_end_and_a_cancel_at_once_one_wins,
];

/// How the execution has ended, for those who wait for it here.
async fn heard(engine: &Engine, id: &str) -> Status {
    let handle: Handle<i64> = engine.get(id).await.unwrap();
    status(handle.result().await)
}

fn status(result: Result<i64, Error>) -> Status {
    match result {
        Ok(_) => Status::Completed,
        Err(Error::Cancelled(_)) => Status::Cancelled,
        Err(error) => panic!("{error}"),
    }
}

/// All who wait, in both engines, and the database say the same.
async fn assert_agreed(engines: [&Engine; 2], id: &str, first: Status) {
    for engine in engines {
        assert_eq!(heard(engine, id).await, first);
        let record = record(engine, id).await;
        assert_eq!((record.execution.status, record.requests.len()), (first, 0));
        assert_eq!(engine.cancel(id).await.unwrap(), RequestResult::NotApplicable(first), "it is over");
    }
}

/// An execution `x` in a body that waits for the latch, the engine that runs it, and another one.
struct Running {
    one: Engine,
    store: Arc<FaultStore>,
    two: Engine,
    handle: Handle<i64>,
    latch: Latch,
}

async fn running(fixture: &dyn StoreFixture) -> Running {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, store) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let handle = one.start(&workflow, 7).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    Running { one, store, two, handle, latch }
}

async fn an_end_that_is_durable_before_a_cancel_wins(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    // the engine that runs it has not heard of its own flush
    store.hold_write_replies(ends(handle.key()));
    latch.open();
    store.wait_until_committed(ends(handle.key())).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    assert_eq!(heard(&two, "x").await, Status::Completed);
    store.release();
    assert_eq!(handle.result().await.unwrap(), 7);
    assert_agreed([&one, &two], "x", Status::Completed).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn a_cancel_wins_over_an_end_on_its_way(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    store.hold_writes(ends(handle.key()));
    latch.open();
    store.wait_until_hanging().await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    // the engine that runs it has seen the request, and cannot take back the end on its way: the store heeds it
    let looks = store.call_count(Call::Heartbeat);
    store.wait_until_called(Call::Heartbeat, looks + 2).await;
    store.release();
    assert_eq!(status(handle.result().await), Status::Cancelled);
    assert_agreed([&one, &two], "x", Status::Cancelled).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn a_cancel_that_is_seen_before_an_end_wins(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    store.hold_writes(ends(handle.key()));
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    // the end that says so is on its way; what the body returns now comes too late
    store.wait_until_hanging().await;
    latch.open();
    store.release();
    assert_eq!(status(handle.result().await), Status::Cancelled);
    assert!(record(&two, "x").await.checkpoints.is_empty());
    assert_agreed([&one, &two], "x", Status::Cancelled).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn of_an_end_and_a_cancel_at_once_one_wins(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("quick", |mut cx: Context, x: i64| async move {
        for _ in 0..x % 5 {
            cx.step("s", async || Returns::Ok(())).await?;
        }
        Returns::Ok(x)
    });
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&workflow)).await;
    let round = |x: i64| {
        let (one, two, workflow) = (&one, &two, &workflow);
        async move {
            let id = x.to_string();
            let handle = one.start(workflow, x).workflow_id(id.clone()).await.unwrap();
            let (result, there, answer, second) =
                tokio::join!(handle.result(), heard(two, &id), two.cancel(&id), async {
                    if x % 3 == 0 { Some(one.cancel(&id).await) } else { None }
                },);
            let end = status(result);
            assert_eq!(there, end);
            for answer in [Some(answer), second].into_iter().flatten() {
                match answer.unwrap() {
                    RequestResult::NotApplicable(status) => assert_eq!(status, end),
                    RequestResult::Done => assert_eq!(end, Status::Cancelled),
                    RequestResult::Pending => {}
                }
            }
            assert_agreed([one, two], &id, end).await;
        }
    };
    for wave in 0..5 {
        join_all((0..20).map(|n| round(wave * 20 + n))).await;
    }
    shut_down(one).await;
    shut_down(two).await;
}
