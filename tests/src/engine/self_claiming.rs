//! Self-claiming Starts: an execution in a queue without obstacles begins at once, in the engine that starts it.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::join_all;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Outcome, Status, Write};

use super::support::{
    Count, GRACE, Latch, is_end_of, latched_workflow, noop, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    self_claiming_start_begins_without_a_claim,
    self_claiming_start_is_queued_by_a_limit,
    self_claiming_start_never_overtakes_waiting_executions,
    start_stays_queued_if_its_engine_does_not_serve_the_queue,
    dropped_caller_cancels_nothing,
    execution_claimed_before_its_start_reply_runs_once,
    execution_claimed_before_its_start_is_resent_runs_once,
    lost_start_reply_causes_no_second_run,
    self_claimed_execution_is_requeued_at_shutdown,
    self_claimed_execution_is_cancelled,
];

fn is_self_claiming_start(write: &Write) -> bool {
    matches!(write, Write::Start(start) if start.self_claims)
}

/// Returns how many self-claiming Starts were committed with this outcome.
fn committed_count(store: &FaultStore, expected: &Outcome) -> usize {
    store
        .committed_writes()
        .iter()
        .filter(|(write, outcome)| is_self_claiming_start(write) && outcome == expected)
        .count()
}

async fn self_claiming_start_begins_without_a_claim(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    engine.run(&noop, 0).queue("a").await.unwrap();
    store.hold_calls(&[Call::Claim]);
    assert_eq!(engine.run(&noop, 7).queue("a").key("k").priority(3).await.unwrap(), 7);
    let handle = engine.start(&noop, 8).queue("a").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 8);
    let all = join_all((0..200).map(|x| engine.run(&noop, x).queue("a").into_future())).await;
    assert!(all.into_iter().zip(0..).all(|(output, x)| output.unwrap() == x));
    assert_eq!((engine.running_count(), committed_count(&store, &Outcome::Queued)), (0, 0));
    store.release();
    shut_down(engine).await;
}

async fn self_claiming_start_is_queued_by_a_limit(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop)).await;
    engine.run(&noop, 0).queue("a").await.unwrap();
    other.pause_queue("a").await.unwrap();
    let handle = engine.start(&noop, 1).queue("a").await.unwrap();
    assert_eq!(
        (committed_count(&store, &Outcome::Queued), handle.status().await.unwrap()),
        (1, Status::Queued)
    );
    assert_eq!(engine.running_count(), 0);
    other.set_queue(&Queue::new("a").concurrency(1)).await.unwrap();
    other.resume_queue("a").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1);
    assert_eq!(engine.run(&noop, 2).queue("a").await.unwrap(), 2);
    shut_down(engine).await;
    shut_down(other).await;
}

async fn self_claiming_start_never_overtakes_waiting_executions(fixture: &dyn StoreFixture) {
    let (noop, count, latch) = (noop(), Count::new(), Latch::new());
    let first = latched_workflow("w", &count, &latch);
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&noop).register(&first).queue(Queue::new("a")).max_running(1)
    };
    let (engine, store) = open_engine(fixture, with).await;
    let running = engine.start(&first, 1).queue("a").await.unwrap();
    count.wait_for(1).await;
    let waits = engine.start(&noop, 2).queue("a").workflow_id("waits").await.unwrap();
    store.hold_calls(&[Call::Claim]);
    latch.open();
    running.result().await.unwrap();
    // the engine has capacity now, but another execution waits for it
    let later = engine.start(&noop, 3).queue("a").await.unwrap();
    assert_eq!(later.status().await.unwrap(), Status::Queued);
    store.release();
    assert_eq!((waits.result().await.unwrap(), later.result().await.unwrap()), (2, 3));
    shut_down(engine).await;
}

async fn start_stays_queued_if_its_engine_does_not_serve_the_queue(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&noop).queue(Queue::new("a")).queue(Queue::new("b")).serve_queues(["b"])
    })
    .await;
    let handle = engine.start(&noop, 1).queue("a").await.unwrap();
    assert_eq!(engine.run(&noop, 2).queue("b").await.unwrap(), 2);
    assert_eq!(handle.status().await.unwrap(), Status::Queued);
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop)).await;
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
    shut_down(other).await;
}

async fn dropped_caller_cancels_nothing(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    let first = engine.start(&noop, 0).queue("a").await.unwrap().key();
    store.wait_until_committed(is_end_of(first)).await;
    store.hold_write_replies(is_self_claiming_start);
    tokio::select! {
        _ = engine.start(&noop, 5).queue("a").into_future() => panic!("the Start is not durable yet"),
        () = store.wait_until_hanging() => {}
    }
    store.release();
    let begun = move |write: &Write| is_self_claiming_start(write) && write.execution() != first;
    store.wait_until_committed(begun).await;
    let key = store.committed_writes().into_iter().find(|(write, _)| begun(write)).unwrap().0.execution();
    store.wait_until_committed(is_end_of(key)).await;
    shut_down(engine).await;
}

async fn execution_claimed_before_its_start_reply_runs_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(2))).await;
    store.hold_write_replies(is_self_claiming_start);
    let start = engine.start(&workflow, 1).queue("a").into_future();
    let (handle, ()) = tokio::join!(start, async {
        store.wait_until_hanging().await;
        // the execution is queued, and this engine has not received the reply
        engine.set_queue(&Queue::new("b")).await.unwrap();
        count.wait_for(1).await;
        store.release();
    });
    latch.open();
    assert_eq!(handle.unwrap().result().await.unwrap(), 1);
    assert_eq!((count.get(), committed_count(&store, &Outcome::Queued)), (1, 1));
    shut_down(engine).await;
}

async fn execution_claimed_before_its_start_is_resent_runs_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(2))).await;
    let sent = AtomicUsize::new(0);
    store.fail_next(Call::Commit, Fault::After);
    store.hold_writes(move |write| is_self_claiming_start(write) && sent.fetch_add(1, SeqCst) > 0);
    let start = engine.start(&workflow, 1).queue("a").into_future();
    let (handle, ()) = tokio::join!(start, async {
        store.wait_until_hanging().await;
        engine.set_queue(&Queue::new("b")).await.unwrap();
        count.wait_for(1).await;
        store.release();
    });
    // the database reports that the execution runs, and that this engine runs it
    latch.open();
    assert_eq!(handle.unwrap().result().await.unwrap(), 1);
    assert_eq!(engine.run(&workflow, 2).queue("a").await.unwrap(), 2);
    assert_eq!(count.get(), 2);
    shut_down(engine).await;
}

async fn lost_start_reply_causes_no_second_run(fixture: &dyn StoreFixture) {
    for limit in [None, Some(5)] {
        let (count, latch) = (Count::new(), Latch::new());
        let workflow = latched_workflow("w", &count, &latch);
        let queue = match limit {
            None => Queue::new("a"),
            Some(limit) => Queue::new("a").concurrency(limit),
        };
        let (engine, store) = open_engine(fixture, |b| {
            b.register(&workflow).declare_queue(queue, stepfast_core::queue::OnConflict::Update)
        })
        .await;
        latch.open();
        engine.run(&workflow, 0).queue("a").await.unwrap();
        store.fail_next(Call::Commit, Fault::After);
        let all = join_all((0..20).map(|x| engine.run(&workflow, x).queue("a").into_future())).await;
        assert!(all.into_iter().zip(0..).all(|(output, x)| output.unwrap() == x));
        assert_eq!(count.get(), 21);
        shut_down(engine).await;
    }
}

async fn self_claimed_execution_is_requeued_at_shutdown(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let with = |b: stepfast_core::EngineBuilder| b.register(&workflow).queue(Queue::new("a"));
    let (one, _) = open_engine(fixture, with).await;
    let handle = one.start(&workflow, 4).queue("a").await.unwrap();
    count.wait_for(1).await;
    let id = handle.workflow_id();
    one.shutdown(std::time::Duration::ZERO).await.unwrap();
    let (two, _) = open_second_engine(fixture, with).await;
    count.wait_for(2).await;
    latch.open();
    assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), 4);
    two.shutdown(GRACE).await.unwrap();
}

async fn self_claimed_execution_is_cancelled(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    let handle = engine.start(&workflow, 4).queue("a").await.unwrap();
    count.wait_for(1).await;
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await, Err(stepfast_core::Error::Cancelled(_))));
    assert_eq!(row(&engine, &handle.workflow_id()).await.status, Status::Cancelled);
    shut_down(engine).await;
}
