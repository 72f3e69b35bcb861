//! Single items of batches: their cancels and their handles.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use stepfast_core::queue::Queue;
use stepfast_core::store::{Execution, Filter, RequestResult, Status};
use stepfast_core::{BatchHandle, Context, EndedItems, Engine, Error, Failure, ItemResult, Workflow};

use super::batch::{all_completed, ended, waiting_workflow};
use super::support::{Count, Latch, noop, open_engine, open_second_engine, shut_down, sleeper};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    blocked_item_is_cancelled_alone,
    waiting_item_is_cancelled_alone,
    item_of_another_engine_is_cancelled_alone,
    item_is_cancelled_before_its_bundle_begins,
    item_of_a_limited_queue_is_cancelled_alone,
    ended_and_missing_items_cannot_be_cancelled,
    failed_item_is_resumed_alone,
    item_is_cancelled_at_the_end_of_its_run_timeout,
    suspended_item_is_cancelled_at_the_end_of_its_run_timeout,
    run_timeout_of_an_item_begins_with_the_item,
    result_of_an_item_is_awaited,
    result_of_an_item_outlives_its_promotion,
    item_that_is_promoted_while_it_is_searched_is_found,
    results_end_although_an_item_is_parked,
    parked_retried_item_ends_the_wait_for_its_batch,
    submission_without_a_first_item_leaves_no_batch,
    conflict_ends_a_submission_before_all_inputs_are_read,
];

/// Cancels item 3 of a batch of five, opens the latch on which its items may wait, and waits for the end of all items.
async fn cancel_third(engine: &Engine, batch: &BatchHandle<u32>, latch: &Latch) {
    assert_eq!(engine.cancel("b#3").await.unwrap(), RequestResult::Pending);
    // a second cancel changes nothing
    let again = engine.cancel("b#3").await.unwrap();
    assert!(matches!(again, RequestResult::Pending | RequestResult::NotApplicable(_)), "{again:?}");
    latch.open();
    assert_eq!(ended(batch).await, EndedItems { completed: 4, failed: 0, cancelled: 1 });
    assert_eq!(engine.show("b#3").await.unwrap().execution.status, Status::Cancelled);
    let results: Vec<ItemResult<u32>> = batch.results().try_collect().await.unwrap();
    for (index, item) in results.iter().enumerate() {
        assert_eq!(matches!(item.result, Err(Error::Cancelled(_))), index == 3, "{item:?}");
    }
}

async fn blocked_item_is_cancelled_alone(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |_| true);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let batch = engine.submit_batch(&waiting, 0..5).batch_id("b").await.unwrap();
    begun.wait_for(5).await;
    cancel_third(&engine, &batch, &latch).await;
    shut_down(engine).await;
}

/// The item has not begun, because the engine has too few slots.
async fn waiting_item_is_cancelled_alone(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |_| true);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting).max_running(2)).await;
    let batch = engine.submit_batch(&waiting, 0..5).batch_id("b").await.unwrap();
    begun.wait_for(1).await;
    cancel_third(&engine, &batch, &latch).await;
    assert_eq!(begun.get(), 4, "the cancelled item never began");
    shut_down(engine).await;
}

async fn item_of_another_engine_is_cancelled_alone(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x == 3);
    let (worker, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let batch = worker.submit_batch(&waiting, 0..5).batch_id("b").await.unwrap();
    begun.wait_for(1).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    assert_eq!(other.cancel("b#3").await.unwrap(), RequestResult::Pending);
    // the latch stays closed: only the request ends the item
    assert_eq!(ended(&batch).await, EndedItems { completed: 4, failed: 0, cancelled: 1 });
    shut_down(other).await;
    shut_down(worker).await;
}

async fn item_is_cancelled_before_its_bundle_begins(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x == 3);
    // an engine without the workflow of the items does not claim them
    let (submitter, _) =
        open_engine(fixture, |b| b.register(&waiting).queue(Queue::new("q")).serve_queues(["other"])).await;
    let batch = submitter.submit_batch(&waiting, 0..5).batch_id("b").queue("q").await.unwrap();
    assert_eq!(submitter.cancel("b#3").await.unwrap(), RequestResult::Pending);
    let (worker, _) = open_second_engine(fixture, |b| b.register(&waiting)).await;
    assert_eq!(ended(&batch).await, EndedItems { completed: 4, failed: 0, cancelled: 1 });
    assert_eq!(begun.get(), 0);
    shut_down(submitter).await;
    shut_down(worker).await;
}

/// The items of a limited queue get rows of their own when their bundle is claimed.
async fn item_of_a_limited_queue_is_cancelled_alone(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |_| true);
    let queue = Queue::new("limited").concurrency(1);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting).queue(queue)).await;
    let batch = engine.submit_batch(&waiting, 0..5).batch_id("b").queue("limited").await.unwrap();
    begun.wait_for(1).await;
    assert_eq!(engine.cancel("b#3").await.unwrap(), RequestResult::Done);
    latch.open();
    assert_eq!(ended(&batch).await, EndedItems { completed: 4, failed: 0, cancelled: 1 });
    shut_down(engine).await;
}

async fn ended_and_missing_items_cannot_be_cancelled(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let batch = engine.submit_batch(&noop, 0..5).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(5));
    let result = engine.cancel("b#3").await.unwrap();
    assert_eq!(result, RequestResult::NotApplicable(Status::Completed));
    assert!(matches!(engine.cancel("b#5").await, Err(Error::NotFound { .. })));
    let error = engine.pause("b#3").await.unwrap_err();
    assert!(error.to_string().contains("not paused"), "{error}");
    let result = engine.resume("b#3").await.unwrap();
    assert_eq!(result, RequestResult::NotApplicable(Status::Completed));
    shut_down(engine).await;
}

async fn failed_item_is_resumed_alone(fixture: &dyn StoreFixture) {
    let tries = Count::new();
    let flaky = {
        let tries = tries.clone();
        Workflow::new("flaky", move |mut cx: Context, x: u32| {
            let tries = tries.clone();
            async move {
                let body = || {
                    let n = if x == 0 { 0 } else { tries.increment() };
                    async move { if (1..=2).contains(&n) { Err(Failure::new("no")) } else { Ok(x) } }
                };
                cx.step("flaky", body).await
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&flaky)).await;
    let hour = Duration::from_secs(3_600);
    let batch = engine.submit_batch(&flaky, 0..3).batch_id("b").run_timeout(hour).await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 1, failed: 2, cancelled: 0 });
    let minute = Duration::from_secs(60);
    fixture.clock().advance(minute);
    assert_eq!(engine.resume("b#2").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<u32>("b#2").await.unwrap().result().await.unwrap(), 2);
    let retried = engine.show("b#2").await.unwrap().execution;
    let restarted_at = retried.deadline_at.unwrap().minus(hour);
    assert!(restarted_at > retried.created_at.plus(minute / 2), "the time starts again");
    assert_eq!(ended(&batch).await, EndedItems { completed: 2, failed: 1, cancelled: 0 });
    assert_eq!(batch.retry_failed().await.unwrap(), 1);
    assert_eq!(ended(&batch).await, all_completed(3));
    shut_down(engine).await;
}

/// Time within which an item that does not wait ends.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Asserts that the deadline of an item has passed, and ended the item.
async fn assert_expired(engine: &Engine, item: &str) {
    let handle = engine.get::<u32>(item).await.unwrap();
    let error = handle.result().await.unwrap_err();
    assert!(matches!(&error, Error::Cancelled(_)) && error.to_string().contains("deadline"), "{error}");
}

async fn item_is_cancelled_at_the_end_of_its_run_timeout(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x == 3);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let batch = engine.submit_batch(&waiting, 0..5).batch_id("b").run_timeout(TIMEOUT).await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 4, failed: 0, cancelled: 1 });
    assert_expired(&engine, "b#3").await;
    let row = engine.show("b#3").await.unwrap().execution;
    assert!(row.ended_at.unwrap() >= row.created_at.plus(TIMEOUT));
    shut_down(engine).await;
}

/// Waits until an item is suspended or has ended, and returns its row.
async fn wait_until_suspended(engine: &Engine, item: &str) -> Execution {
    loop {
        let row = engine.show(item).await.unwrap().execution;
        if row.status == Status::Waiting || row.status.is_terminal() {
            return row;
        }
        tokio::task::yield_now().await;
    }
}

async fn suspended_item_is_cancelled_at_the_end_of_its_run_timeout(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    let batch =
        engine.submit_batch(&sleeper, [0, 3_600_000]).batch_id("b").run_timeout(TIMEOUT).await.unwrap();
    let row = wait_until_suspended(&engine, "b#1").await;
    assert!(row.deadline_at.is_some() && row.run_timeout.is_none(), "{row:?}");
    assert_eq!(ended(&batch).await, EndedItems { completed: 1, failed: 0, cancelled: 1 });
    assert_expired(&engine, "b#1").await;
    shut_down(engine).await;
}

/// The items of a limited queue get rows of their own, in which they wait for their turn.
async fn run_timeout_of_an_item_begins_with_the_item(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x < 2);
    let queue = Queue::new("limited").concurrency(1);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting).queue(queue)).await;
    let batch = engine.submit_batch(&waiting, 0..4).batch_id("b").queue("limited").run_timeout(TIMEOUT);
    let batch = batch.await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 2, failed: 0, cancelled: 2 });
    for item in ["b#0", "b#1"] {
        assert_expired(&engine, item).await;
    }
    shut_down(engine).await;
}

async fn result_of_an_item_is_awaited(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x >= 3);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    let batch = engine.submit_batch(&waiting, 0..5).batch_id("b").await.unwrap();
    begun.wait_for(2).await;
    // item 1 has ended, although its bundle runs
    assert_eq!(engine.get::<u32>("b#1").await.unwrap().result().await.unwrap(), 1);
    let handle = engine.get::<u32>("b#3").await.unwrap();
    assert_eq!((handle.workflow_id(), handle.status().await.unwrap()), ("b#3".to_owned(), Status::Running));
    let elsewhere = other.get::<u32>("b#4").await.unwrap();
    let results = tokio::spawn(async move { (handle.result().await, elsewhere.result().await) });
    latch.open();
    let (here, elsewhere) = results.await.unwrap();
    assert_eq!((here.unwrap(), elsewhere.unwrap()), (3, 4));
    assert_eq!(ended(&batch).await, all_completed(5));
    shut_down(other).await;
    shut_down(engine).await;
}

async fn result_of_an_item_outlives_its_promotion(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    engine.submit_batch(&sleeper, [0, 50]).batch_id("b").await.unwrap();
    let handle = engine.get::<()>("b#1").await.unwrap();
    handle.result().await.unwrap();
    assert_eq!(handle.status().await.unwrap(), Status::Completed);
    shut_down(engine).await;
}

/// The row of the item appears after the search for it, and before the search for its bundle.
async fn item_that_is_promoted_while_it_is_searched_is_found(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |_| true);
    let limited = || Queue::new("limited").concurrency(1);
    let (reader, store) =
        open_engine(fixture, |b| b.register(&waiting).queue(limited()).serve_queues(["other"])).await;
    let batch = reader.submit_batch(&waiting, 0..5).batch_id("b").queue("limited").await.unwrap();
    store.hold_calls(&[Call::List]);
    let search = tokio::spawn({
        let reader = reader.clone();
        async move { reader.show("b#0").await }
    });
    store.wait_until_hanging().await;
    let (worker, _) = open_second_engine(fixture, |b| b.register(&waiting).queue(limited())).await;
    begun.wait_for(1).await;
    store.release();
    let found = search.await.unwrap().unwrap().execution;
    assert_eq!((found.workflow_id(), found.status), ("b#0".into(), Status::Running));
    assert_eq!(found.input.decode::<u32>().unwrap(), 0);
    latch.open();
    assert_eq!(ended(&batch).await, all_completed(5));
    shut_down(reader).await;
    shut_down(worker).await;
}

async fn results_end_although_an_item_is_parked(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeper", |mut cx: Context, x: u32| async move {
        if x == 1 {
            cx.sleep(Duration::from_secs(3_600)).await;
        }
        Ok::<_, Failure>(x)
    });
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    let batch = engine.submit_batch(&sleeper, 0..3).batch_id("b").await.unwrap();
    wait_until_suspended(&engine, "b#1").await;
    assert_eq!(engine.pause("b#1").await.unwrap(), RequestResult::Done);
    let results: Vec<ItemResult<u32>> = batch.results().try_collect().await.unwrap();
    let outputs: Vec<Option<u32>> = results.iter().map(|item| item.result.as_ref().ok().copied()).collect();
    assert_eq!(outputs, [Some(0), None, Some(2)]);
    let parked = results[1].result.as_ref().unwrap_err();
    assert!(matches!(parked, Error::Parked { workflow_id, .. } if workflow_id == "b#1"), "{parked}");
    batch.cancel().await.unwrap();
    shut_down(engine).await;
}

async fn parked_retried_item_ends_the_wait_for_its_batch(fixture: &dyn StoreFixture) {
    let tries = Count::new();
    let flaky = {
        let tries = tries.clone();
        Workflow::new("flaky", move |mut cx: Context, _: u32| {
            let tries = tries.clone();
            async move {
                if tries.increment() == 1 {
                    return Err(Failure::new("no"));
                }
                cx.sleep(Duration::from_secs(3_600)).await;
                Ok(0)
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&flaky).suspend_after(Duration::from_millis(1))).await;
    let batch = engine.submit_batch(&flaky, [1]).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 0, failed: 1, cancelled: 0 });
    assert_eq!(batch.retry_failed().await.unwrap(), 1);
    wait_until_suspended(&engine, "b#0").await;
    assert_eq!(engine.pause("b#0").await.unwrap(), RequestResult::Done);
    let error = batch.wait().await.unwrap_err();
    assert!(matches!(&error, Error::Parked { workflow_id, .. } if workflow_id == "b#0"), "{error}");
    assert_eq!(batch.cancel().await.unwrap(), RequestResult::Done);
    assert_eq!(ended(&batch).await, EndedItems { completed: 0, failed: 0, cancelled: 1 });
    shut_down(engine).await;
}

async fn submission_without_a_first_item_leaves_no_batch(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let error = || Error::Invalid { input: "stream", reason: "it ends".to_owned() };
    let failing = stream::once(async move {
        // the stream is not ready at once
        tokio::task::yield_now().await;
        Err::<i64, Error>(error())
    });
    engine.submit_batch_stream(&noop, failing.boxed()).await.unwrap_err();
    engine.submit_batch_stream(&noop, stream::iter([Err::<i64, Error>(error())])).await.unwrap_err();
    // with everything that was staged
    engine.run(&noop, 1).await.unwrap();
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 1);
    shut_down(engine).await;
}

async fn conflict_ends_a_submission_before_all_inputs_are_read(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let batch = engine.submit_batch(&noop, 0..100_000).batch_id("b").await.unwrap();
    let read = Count::new();
    let others = stream::unfold(engine.clone(), |engine| {
        let (read, noop) = (read.clone(), noop.clone());
        async move {
            let n = read.increment() as i64;
            if n % 1_000 == 1 {
                // all that was staged before becomes durable
                engine.run(&noop, n).await.ok()?;
            }
            Some((Ok(-n), engine))
        }
    });
    let error = engine.submit_batch_stream(&noop, others.boxed()).batch_id("b").await.unwrap_err();
    assert!(error.to_string().contains("item 0 is the first that differs"), "{error}");
    assert!(read.get() <= 10_000, "{} inputs were read", read.get());
    assert_eq!(ended(&batch).await, all_completed(100_000));
    shut_down(engine).await;
}
