//! A cancel against an end, in two engines: one of them wins, and all waiters see the same outcome.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use stepfast_core::store::{RequestResult, Status, Write};
use stepfast_core::{Client, Context, Engine, Error, Handle, Workflow};

use super::support::{
    BodyResult, Count, GRACE, Latch, is_end_of, latched_workflow, open_engine, open_second_engine, record,
    shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    durable_end_wins_over_a_later_cancel,
    cancel_wins_over_an_end_in_flight,
    cancel_wins_when_received_before_the_end,
    racing_end_and_cancel_have_one_winner,
    late_heartbeat_reply_spares_a_later_run,
    late_reply_to_a_cancel_spares_a_later_run,
];

/// Returns the status that a waiter in this engine sees.
async fn awaited_status(engine: &Engine, id: &str) -> Status {
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

/// Asserts that waiters in both engines and the database agree.
async fn assert_agreed(engines: [&Engine; 2], id: &str, expected: Status) {
    for engine in engines {
        assert_eq!(awaited_status(engine, id).await, expected);
        let record = record(engine, id).await;
        assert_eq!((record.execution.status, record.requests.len()), (expected, 0));
        assert_eq!(
            engine.cancel(id).await.unwrap(),
            RequestResult::NotApplicable(expected),
            "the execution has ended"
        );
    }
}

/// An execution `x` in a body that waits for the latch, the engine that runs it, and a second engine.
struct Running {
    one: Engine,
    store: Arc<FaultStore>,
    two: Engine,
    handle: Handle<i64>,
    latch: Latch,
}

async fn running(fixture: &dyn StoreFixture) -> Running {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(&workflow, 7).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    Running { one, store, two, handle, latch }
}

async fn durable_end_wins_over_a_later_cancel(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    // the engine that runs the execution has not received the reply to its own flush
    store.hold_write_replies(is_end_of(handle.key()));
    latch.open();
    store.wait_until_committed(is_end_of(handle.key())).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    assert_eq!(awaited_status(&two, "x").await, Status::Completed);
    store.release();
    assert_eq!(handle.result().await.unwrap(), 7);
    assert_agreed([&one, &two], "x", Status::Completed).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn cancel_wins_over_an_end_in_flight(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    store.hold_writes(is_end_of(handle.key()));
    latch.open();
    store.wait_until_hanging().await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    // the engine has received the request and cannot recall the end in flight; the store applies the request
    let heartbeats = store.call_count(Call::Heartbeat);
    store.wait_until_called(Call::Heartbeat, heartbeats + 2).await;
    store.release();
    assert_eq!(status(handle.result().await), Status::Cancelled);
    assert_agreed([&one, &two], "x", Status::Cancelled).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn cancel_wins_when_received_before_the_end(fixture: &dyn StoreFixture) {
    let Running { one, store, two, handle, latch } = running(fixture).await;
    store.hold_writes(is_end_of(handle.key()));
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    // the cancelled end is in flight; a result of the body comes too late
    store.wait_until_hanging().await;
    latch.open();
    store.release();
    assert_eq!(status(handle.result().await), Status::Cancelled);
    assert!(record(&two, "x").await.checkpoints.is_empty());
    assert_agreed([&one, &two], "x", Status::Cancelled).await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn racing_end_and_cancel_have_one_winner(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("quick", |mut cx: Context, x: i64| async move {
        for _ in 0..x % 5 {
            cx.step("s", async || BodyResult::Ok(())).await?;
        }
        BodyResult::Ok(x)
    });
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let round = |x: i64| {
        let (one, two, workflow) = (&one, &two, &workflow);
        async move {
            let id = x.to_string();
            let handle = one.start(workflow, x).workflow_id(id.clone()).await.unwrap();
            let (result, other_status, first_cancel, second_cancel) =
                tokio::join!(handle.result(), awaited_status(two, &id), two.cancel(&id), async {
                    if x % 3 == 0 { Some(one.cancel(&id).await) } else { None }
                },);
            let end = status(result);
            assert_eq!(other_status, end);
            for cancel in [Some(first_cancel), second_cancel].into_iter().flatten() {
                match cancel.unwrap() {
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

/// Returns a workflow of two steps. The body of each step increments `begun` and waits for a latch of its own.
fn two_steps(begun: &Count, latches: &[Latch; 2]) -> Workflow<i64, i64> {
    let (begun, latches) = (begun.clone(), latches.clone());
    Workflow::new("two steps", move |mut cx: Context, x: i64| {
        let (begun, latches) = (begun.clone(), latches.clone());
        async move {
            for latch in latches {
                cx.step("wait", || {
                    let (begun, latch) = (begun.clone(), latch.clone());
                    async move {
                        begun.increment();
                        latch.wait().await;
                        BodyResult::Ok(())
                    }
                })
                .await?;
            }
            BodyResult::Ok(x)
        }
    })
}

/// Lets the first step of `two_steps` end, so that the cancelled execution ends, and resumes the execution. Returns when
/// the second step of the next run has begun.
async fn end_and_resume(engine: &Engine, begun: &Count, latches: &[Latch; 2]) {
    latches[0].open();
    assert_eq!(awaited_status(engine, "x").await, Status::Cancelled);
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    begun.wait_for(2).await;
}

async fn late_heartbeat_reply_spares_a_later_run(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = two_steps(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let client = Client::open(fixture.second_store().await).await.unwrap();
    engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    store.hold_request_replies();
    assert_eq!(client.cancel("x").await.unwrap(), RequestResult::Pending);
    store.wait_until_hanging().await;
    end_and_resume(&engine, &begun, &latches).await;
    store.release();
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    latches[1].open();
    assert_eq!(awaited_status(&engine, "x").await, Status::Completed);
    client.shutdown(GRACE).await.unwrap();
    shut_down(engine).await;
}

async fn late_reply_to_a_cancel_spares_a_later_run(fixture: &dyn StoreFixture) {
    let (begun, latches) = (Count::new(), [Latch::new(), Latch::new()]);
    let workflow = two_steps(&begun, &latches);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    // the caller is not polled between the commit of its cancel and the resume
    store.hold_writes(|write| matches!(write, Write::Request(_)));
    let mut cancel = Box::pin(handle.cancel());
    assert!((&mut cancel).now_or_never().is_none());
    store.release();
    store.wait_until_committed(|write| matches!(write, Write::Request(_))).await;
    end_and_resume(&engine, &begun, &latches).await;
    assert_eq!(cancel.await.unwrap(), RequestResult::Pending);
    latches[1].open();
    assert_eq!(awaited_status(&engine, "x").await, Status::Completed);
    shut_down(engine).await;
}
