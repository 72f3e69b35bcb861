//! What is put into a queue that nothing stands in the way of begins at once, in the engine that it is put in by.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::future::join_all;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Outcome, Status, Write};

use super::support::{Count, GRACE, Latch, ends, engine, noop, row, second_engine, shut_down, waiting};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    it_begins_without_a_claim,
    a_limit_sends_it_through_the_queue,
    it_does_not_overtake_what_waits_for_a_place,
    who_does_not_serve_the_queue_leaves_it_there,
    a_caller_that_goes_away_ends_nothing,
    what_a_claim_takes_before_its_start_is_known_runs_once,
    what_a_claim_takes_before_its_start_is_sent_again_runs_once,
    a_lost_answer_does_not_make_it_run_twice,
    it_is_handed_on_when_the_engine_ends,
    it_is_cancelled_like_everything,
];

fn yields(write: &Write) -> bool {
    matches!(write, Write::Start(start) if start.self_claims)
}

/// How many Starts that yield have come to this.
fn landed(store: &FaultStore, what: &Outcome) -> usize {
    store.committed_writes().iter().filter(|(write, outcome)| yields(write) && outcome == what).count()
}

async fn it_begins_without_a_claim(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    engine.run(&noop, 0).queue("a").await.unwrap();
    store.hold_calls(&[Call::Claim]);
    assert_eq!(engine.run(&noop, 7).queue("a").key("k").priority(3).await.unwrap(), 7);
    let handle = engine.start(&noop, 8).queue("a").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 8);
    let all = join_all((0..200).map(|x| engine.run(&noop, x).queue("a").into_future())).await;
    assert!(all.into_iter().zip(0..).all(|(output, x)| output.unwrap() == x));
    assert_eq!((engine.running_count(), landed(&store, &Outcome::Queued)), (0, 0));
    store.release();
    shut_down(engine).await;
}

async fn a_limit_sends_it_through_the_queue(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    let (other, _) = second_engine(fixture, |b| b.register(&noop)).await;
    engine.run(&noop, 0).queue("a").await.unwrap();
    other.pause_queue("a").await.unwrap();
    let handle = engine.start(&noop, 1).queue("a").await.unwrap();
    assert_eq!((landed(&store, &Outcome::Queued), handle.status().await.unwrap()), (1, Status::Queued));
    assert_eq!(engine.running_count(), 0);
    other.set_queue(&Queue::new("a").concurrency(1)).await.unwrap();
    other.resume_queue("a").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1);
    assert_eq!(engine.run(&noop, 2).queue("a").await.unwrap(), 2);
    shut_down(engine).await;
    shut_down(other).await;
}

async fn it_does_not_overtake_what_waits_for_a_place(fixture: &dyn StoreFixture) {
    let (noop, count, latch) = (noop(), Count::new(), Latch::new());
    let first = waiting("w", &count, &latch);
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&noop).register(&first).queue(Queue::new("a")).max_running(1)
    };
    let (engine, store) = engine(fixture, with).await;
    let running = engine.start(&first, 1).queue("a").await.unwrap();
    count.reaches(1).await;
    let waits = engine.start(&noop, 2).queue("a").workflow_id("waits").await.unwrap();
    store.hold_calls(&[Call::Claim]);
    latch.open();
    running.result().await.unwrap();
    // there is a place now, but somebody waits for it
    let later = engine.start(&noop, 3).queue("a").await.unwrap();
    assert_eq!(later.status().await.unwrap(), Status::Queued);
    store.release();
    assert_eq!((waits.result().await.unwrap(), later.result().await.unwrap()), (2, 3));
    shut_down(engine).await;
}

async fn who_does_not_serve_the_queue_leaves_it_there(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = engine(fixture, |b| {
        b.register(&noop).queue(Queue::new("a")).queue(Queue::new("b")).serve_queues(["b"])
    })
    .await;
    let handle = engine.start(&noop, 1).queue("a").await.unwrap();
    assert_eq!(engine.run(&noop, 2).queue("b").await.unwrap(), 2);
    assert_eq!(handle.status().await.unwrap(), Status::Queued);
    let (other, _) = second_engine(fixture, |b| b.register(&noop)).await;
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
    shut_down(other).await;
}

async fn a_caller_that_goes_away_ends_nothing(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = engine(fixture, |b| b.register(&noop).queue(Queue::new("a"))).await;
    let first = engine.start(&noop, 0).queue("a").await.unwrap().key();
    store.wait_until_committed(ends(first)).await;
    store.hold_write_replies(yields);
    tokio::select! {
        _ = engine.start(&noop, 5).queue("a").into_future() => panic!("nothing is durable yet"),
        () = store.wait_until_hanging() => {}
    }
    store.release();
    let begun = move |write: &Write| yields(write) && write.execution() != first;
    store.wait_until_committed(begun).await;
    let key = store.committed_writes().into_iter().find(|(write, _)| begun(write)).unwrap().0.execution();
    store.wait_until_committed(ends(key)).await;
    shut_down(engine).await;
}

async fn what_a_claim_takes_before_its_start_is_known_runs_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, store) =
        engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(2))).await;
    store.hold_write_replies(yields);
    let start = engine.start(&workflow, 1).queue("a").into_future();
    let (handle, ()) = tokio::join!(start, async {
        store.wait_until_hanging().await;
        // it is in the queue, and this engine does not know it
        engine.set_queue(&Queue::new("b")).await.unwrap();
        count.reaches(1).await;
        store.release();
    });
    latch.open();
    assert_eq!(handle.unwrap().result().await.unwrap(), 1);
    assert_eq!((count.get(), landed(&store, &Outcome::Queued)), (1, 1));
    shut_down(engine).await;
}

async fn what_a_claim_takes_before_its_start_is_sent_again_runs_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, store) =
        engine(fixture, |b| b.register(&workflow).queue(Queue::new("a").concurrency(2))).await;
    let sent = AtomicUsize::new(0);
    store.fail_next(Call::Commit, Fault::After);
    store.hold_writes(move |write| yields(write) && sent.fetch_add(1, SeqCst) > 0);
    let start = engine.start(&workflow, 1).queue("a").into_future();
    let (handle, ()) = tokio::join!(start, async {
        store.wait_until_hanging().await;
        engine.set_queue(&Queue::new("b")).await.unwrap();
        count.reaches(1).await;
        store.release();
    });
    // the database says that it runs, and that this engine runs it
    latch.open();
    assert_eq!(handle.unwrap().result().await.unwrap(), 1);
    assert_eq!(engine.run(&workflow, 2).queue("a").await.unwrap(), 2);
    assert_eq!(count.get(), 2);
    shut_down(engine).await;
}

async fn a_lost_answer_does_not_make_it_run_twice(fixture: &dyn StoreFixture) {
    for limit in [None, Some(5)] {
        let (count, latch) = (Count::new(), Latch::new());
        let workflow = waiting("w", &count, &latch);
        let queue = match limit {
            None => Queue::new("a"),
            Some(limit) => Queue::new("a").concurrency(limit),
        };
        let (engine, store) = engine(fixture, |b| {
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

async fn it_is_handed_on_when_the_engine_ends(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let with = |b: stepfast_core::EngineBuilder| b.register(&workflow).queue(Queue::new("a"));
    let (one, _) = engine(fixture, with).await;
    let handle = one.start(&workflow, 4).queue("a").await.unwrap();
    count.reaches(1).await;
    let id = handle.workflow_id();
    one.shutdown(std::time::Duration::ZERO).await.unwrap();
    let (two, _) = second_engine(fixture, with).await;
    count.reaches(2).await;
    latch.open();
    assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), 4);
    two.shutdown(GRACE).await.unwrap();
}

async fn it_is_cancelled_like_everything(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow).queue(Queue::new("a"))).await;
    let handle = engine.start(&workflow, 4).queue("a").await.unwrap();
    count.reaches(1).await;
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await, Err(stepfast_core::Error::Cancelled(_))));
    assert_eq!(row(&engine, &handle.workflow_id()).await.status, Status::Cancelled);
    shut_down(engine).await;
}
