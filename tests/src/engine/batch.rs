//! Batches: many executions that are submitted, run, counted and cancelled as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use stepfast_core::guest::{GuestInput, GuestWorkflow, StartOptions};
use stepfast_core::queue::Queue;
use stepfast_core::store::{CheckpointKind, Execution, Filter, RequestResult, Status};
use stepfast_core::{
    BatchCounts, BatchHandle, Context, EndedItems, Error, Failure, ItemResult, Payload, Workflow,
};

use super::support::{Count, GRACE, Latch, noop, open_engine, open_second_engine, shut_down};
use crate::StoreFixture;

super::cases![
    items_run_and_their_results_are_in_order,
    empty_batch_is_completed,
    items_with_steps_are_recorded_each,
    failed_items_do_not_fail_the_batch,
    items_that_suspend_are_promoted,
    items_start_children,
    large_inputs_and_outputs_are_chunked,
    item_is_shown_by_its_id,
    repeated_submission_continues_the_batch,
    other_inputs_are_refused_and_named,
    id_of_another_execution_is_refused,
    stream_that_fails_leaves_an_open_batch,
    full_bundle_outlives_a_stream_that_fails,
    other_inputs_add_nothing_to_an_open_batch,
    given_fingerprints_of_inputs_are_compared,
    input_that_cannot_be_encoded_is_named,
    ids_of_items_are_reserved,
    cancelled_batch_ends_its_items,
    limited_queue_limits_items,
    bundle_of_a_closed_engine_continues_elsewhere,
    finished_items_do_not_run_again,
    cancel_reaches_promoted_items,
    batch_ends_on_another_engine,
    failed_items_are_retried,
    retried_items_are_cancelled_after_the_end_of_their_batch,
    retried_item_keeps_its_other_steps,
];

/// Waits until the batch has ended, and returns the counts of items that have ended.
pub(super) async fn ended<O>(batch: &BatchHandle<O>) -> EndedItems {
    let counts = batch.wait().await.unwrap();
    assert_eq!(
        counts,
        BatchCounts { submitted: counts.submitted, ended: counts.ended, ..BatchCounts::default() }
    );
    assert_eq!(counts.ended.total(), counts.submitted);
    counts.ended
}

pub(super) fn all_completed(items: u64) -> EndedItems {
    EndedItems { completed: items, failed: 0, cancelled: 0 }
}

async fn outputs<O>(batch: &BatchHandle<O>) -> Vec<O>
where
    O: serde::de::DeserializeOwned + Send + 'static,
{
    let results: Vec<ItemResult<O>> = batch.results().try_collect().await.unwrap();
    let in_order = results.iter().enumerate().all(|(i, item)| item.index as usize == i);
    assert!(in_order, "the results are in order");
    results.into_iter().map(|item| item.result.unwrap()).collect()
}

/// A workflow that doubles its input in a step.
fn doubling() -> Workflow<i64, i64> {
    Workflow::new("double", |mut cx: Context, x: i64| async move {
        cx.step("double", move || async move { Ok::<_, Failure>(x * 2) }).await
    })
}

/// A workflow whose items with `waits` count themselves and wait for the latch, in a step. The others end at once.
pub(super) fn waiting_workflow(begun: &Count, latch: &Latch, waits: fn(u32) -> bool) -> Workflow<u32, u32> {
    let (begun, latch) = (begun.clone(), latch.clone());
    Workflow::new("waiting", move |mut cx: Context, x: u32| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            if !waits(x) {
                return Ok(x);
            }
            cx.step("wait", move || {
                let (begun, latch) = (begun.clone(), latch.clone());
                async move {
                    begun.increment();
                    latch.wait().await;
                    Ok::<_, Failure>(x)
                }
            })
            .await
        }
    })
}

async fn items_run_and_their_results_are_in_order(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let batch = engine.submit_batch(&noop, 0..2_500).batch_id("b").await.unwrap();
    assert_eq!(batch.batch_id(), "b");
    assert_eq!(ended(&batch).await, all_completed(2_500));
    assert_eq!(batch.status().await.unwrap(), Status::Completed);
    assert_eq!(outputs(&batch).await, (0..2_500).collect::<Vec<i64>>());
    assert_eq!(engine.get_batch::<i64>("b").await.unwrap().key(), batch.key());
    let listed = engine.list(&Filter::default()).await.unwrap().executions;
    assert_eq!(listed.iter().map(Execution::workflow_id).collect::<Vec<_>>(), ["b"], "no bundles are listed");
    shut_down(engine).await;
}

async fn empty_batch_is_completed(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let exact = engine.submit_batch(&noop, Vec::<i64>::new()).await.unwrap();
    let streamed = engine.submit_batch_stream(&noop, stream::empty()).await.unwrap();
    for batch in [exact, streamed] {
        assert_eq!(ended(&batch).await, all_completed(0));
        assert_eq!(batch.status().await.unwrap(), Status::Completed);
        assert!(outputs(&batch).await.is_empty());
    }
    shut_down(engine).await;
}

async fn items_with_steps_are_recorded_each(fixture: &dyn StoreFixture) {
    let double = doubling();
    let (engine, _) = open_engine(fixture, |b| b.register(&double)).await;
    let batch = engine.submit_batch(&double, 0..1_200).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(1_200));
    assert_eq!(outputs(&batch).await, (0..1_200).map(|x| x * 2).collect::<Vec<i64>>());
    for index in [0, 999, 1_000, 1_199] {
        let record = engine.show(&batch.item_id(index)).await.unwrap();
        assert_eq!(record.execution.status, Status::Completed);
        let checkpoint = record.checkpoints.first().unwrap();
        assert_eq!(checkpoint.kind, CheckpointKind::Step);
        assert_eq!(checkpoint.outcome.decode::<i64>().unwrap(), i64::from(index) * 2);
    }
    shut_down(engine).await;
}

async fn failed_items_do_not_fail_the_batch(fixture: &dyn StoreFixture) {
    let odd = Workflow::new("odd", |_: Context, x: u32| async move {
        if x % 100 == 7 { Err(Failure::new(format!("no {x}"))) } else { Ok(x) }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&odd)).await;
    let batch = engine.submit_batch(&odd, 0..1_500).await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 1_485, failed: 15, cancelled: 0 });
    assert_eq!(batch.status().await.unwrap(), Status::Completed);
    let failures: Vec<ItemResult<u32>> = batch.failures().try_collect().await.unwrap();
    let indexes: Vec<u32> = failures.iter().map(|item| item.index).collect();
    assert_eq!(indexes, (0..15).map(|n| n * 100 + 7).collect::<Vec<_>>());
    for ItemResult { index, result } in failures {
        let Err(Error::Failed(failure)) = result else { panic!("{result:?}") };
        assert_eq!(failure.message, format!("no {index}"));
    }
    shut_down(engine).await;
}

async fn items_that_suspend_are_promoted(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeper", |mut cx: Context, x: u32| async move {
        if x.is_multiple_of(10) {
            cx.sleep(Duration::from_millis(300)).await;
        }
        Ok::<_, Failure>(x)
    });
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    let batch = engine.submit_batch(&sleeper, 0..100).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(100));
    assert_eq!(outputs(&batch).await, (0..100).collect::<Vec<u32>>());
    let promoted = engine.count(&Filter { parent: Some(batch.key()), ..Filter::default() }).await.unwrap();
    assert_eq!(promoted, 10);
    let record = engine.show("b#10").await.unwrap();
    assert_eq!(record.execution.workflow_id(), "b#10");
    assert_eq!(engine.show(&format!("{}#10", batch.key())).await.unwrap(), record);
    shut_down(engine).await;
}

async fn items_start_children(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let child = child.clone();
            async move { cx.child(&child, x).await }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let batch = engine.submit_batch(&parent, 0..50).await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(50));
    assert_eq!(outputs(&batch).await, (0..50).collect::<Vec<i64>>());
    shut_down(engine).await;
}

async fn large_inputs_and_outputs_are_chunked(fixture: &dyn StoreFixture) {
    let echo = Workflow::new("echo", |mut cx: Context, text: String| async move {
        cx.step("echo", move || std::future::ready(Ok::<_, Failure>(text.clone()))).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&echo)).await;
    let texts: Vec<String> = [10, 70_000, 20, 65_000, 30, 1_200_000].map(|len| "x".repeat(len)).into();
    let batch = engine.submit_batch(&echo, texts.clone()).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(6));
    assert_eq!(outputs(&batch).await, texts);
    let input = engine.show("b#1").await.unwrap().execution.input;
    assert_eq!(input.decode::<String>().unwrap().len(), 70_000);
    shut_down(engine).await;
}

async fn item_is_shown_by_its_id(fixture: &dyn StoreFixture) {
    let begun = Count::new();
    let latch = Latch::new();
    let waiting = waiting_workflow(&begun, &latch, |_| true);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let batch = engine.submit_batch(&waiting, 10..20).batch_id("b").await.unwrap();
    begun.wait_for(10).await;
    let record = engine.show("b#3").await.unwrap();
    assert_eq!(record.execution.status, Status::Running);
    assert_eq!(record.execution.input.decode::<u32>().unwrap(), 13);
    assert_eq!(record.execution.parent.unwrap().key, batch.key());
    let counts = batch.counts().await.unwrap();
    assert_eq!((counts.submitted, counts.running), (10, 10));
    for unknown in ["b#10", "b#03", "c#3", "b#", "b#4294967295"] {
        assert!(matches!(engine.show(unknown).await, Err(Error::NotFound { .. })), "{unknown}");
    }
    latch.open();
    assert_eq!(ended(&batch).await, all_completed(10));
    assert_eq!(engine.show("b#3").await.unwrap().execution.outcome.decode::<u32>().unwrap(), 13);
    shut_down(engine).await;
}

async fn repeated_submission_continues_the_batch(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let failing = stream::iter(
        (0..2_300).map(Ok).chain([Err(Error::Invalid { input: "stream", reason: "it ends".to_owned() })]),
    );
    let error = engine.submit_batch_stream(&noop, failing).batch_id("b").await.unwrap_err();
    assert!(error.to_string().contains("it ends"), "{error}");
    let batch = engine.get_batch::<i64>("b").await.unwrap();
    assert_eq!(batch.counts().await.unwrap().submitted, 2_000);
    assert_eq!(batch.status().await.unwrap(), Status::Waiting);
    for _ in 0..2 {
        let again = engine.submit_batch(&noop, 0..3_100).batch_id("b").await.unwrap();
        assert_eq!(again.key(), batch.key());
        assert_eq!(ended(&again).await, all_completed(3_100));
    }
    let streamed = stream::iter((0..3_100).map(Ok));
    engine.submit_batch_stream(&noop, streamed).batch_id("b").await.unwrap();
    assert_eq!(outputs(&batch).await, (0..3_100).collect::<Vec<i64>>());
    shut_down(engine).await;
}

async fn other_inputs_are_refused_and_named(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let inputs = |changed: Option<usize>, count| {
        let mut inputs: Vec<i64> = (0..count).collect();
        if let Some(index) = changed {
            inputs[index] = -1;
        }
        inputs
    };
    engine.submit_batch(&noop, inputs(None, 2_500)).batch_id("b").await.unwrap();
    for index in [0, 1, 999, 1_000, 2_499] {
        let again = engine.submit_batch(&noop, inputs(Some(index), 2_500)).batch_id("b").await;
        let error = again.unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        assert!(error.to_string().contains(&format!("item {index} is the first")), "{error}");
    }
    for count in [0, 999, 2_000, 2_400, 2_501, 3_000, 4_000] {
        let error = engine.submit_batch(&noop, inputs(None, count)).batch_id("b").await.unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{count}: {error}");
    }
    let double = doubling();
    let other = engine.submit_batch(&double, inputs(None, 2_500)).batch_id("b").await;
    assert!(other.is_err(), "the workflow is not registered");
    let batch = engine.get_batch::<i64>("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(2_500));
    shut_down(engine).await;
}

async fn id_of_another_execution_is_refused(fixture: &dyn StoreFixture) {
    let (noop, double) = (noop(), doubling());
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&double)).await;
    engine.run(&noop, 1).workflow_id("single").await.unwrap();
    engine.submit_batch(&noop, [1]).batch_id("batch").await.unwrap();
    for error in [
        engine.submit_batch(&noop, [1]).batch_id("single").await.unwrap_err(),
        engine.submit_batch(&double, [1]).batch_id("batch").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
    }
    for workflow in [&noop, &double] {
        let error = engine.start(workflow, 1).workflow_id("batch").await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
    }
    let error = engine.get::<i64>("batch").await.unwrap().result().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("get_batch"), "{error}");
    let error = engine.get_batch::<i64>("single").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    shut_down(engine).await;
}

async fn stream_that_fails_leaves_an_open_batch(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let failing =
        stream::iter([Ok(1), Err(Error::Invalid { input: "stream", reason: "it ends".to_owned() })]);
    engine.submit_batch_stream(&noop, failing).batch_id("b").await.unwrap_err();
    let batch = engine.get_batch::<i64>("b").await.unwrap();
    assert_eq!(batch.status().await.unwrap(), Status::Waiting);
    assert_eq!(batch.counts().await.unwrap(), BatchCounts::default());
    assert_eq!(batch.cancel().await.unwrap(), RequestResult::Done);
    assert_eq!(batch.status().await.unwrap(), Status::Cancelled);
    let error = engine.submit_batch(&noop, 0..10).batch_id("b").await.unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    shut_down(engine).await;
}

async fn full_bundle_outlives_a_stream_that_fails(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let failing = stream::iter(
        (0..1_000).map(Ok).chain([Err(Error::Invalid { input: "stream", reason: "it ends".to_owned() })]),
    );
    engine.submit_batch_stream(&noop, failing).batch_id("b").await.unwrap_err();
    let batch = engine.get_batch::<i64>("b").await.unwrap();
    assert_eq!(batch.counts().await.unwrap().submitted, 1_000);
    shut_down(engine).await;
}

/// Returns this number of inputs, and then an error.
fn failing_inputs(count: i64) -> impl Stream<Item = Result<i64, Error>> {
    let error = Error::Invalid { input: "stream", reason: "it ends".to_owned() };
    stream::iter((0..count).map(Ok).chain([Err(error)]))
}

async fn other_inputs_add_nothing_to_an_open_batch(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    engine.submit_batch_stream(&noop, failing_inputs(2_500)).batch_id("b").await.unwrap_err();
    let batch = engine.get_batch::<i64>("b").await.unwrap();
    // other inputs, from the first or the last known item on, and fewer inputs
    let wrong: [Vec<i64>; 6] = [
        (7..3_600).collect(),
        (0..1_999).chain(7..3_600).collect(),
        (7..1_500).collect(),
        (0..1_000).collect(),
        (0..1_500).collect(),
        Vec::new(),
    ];
    for inputs in wrong {
        let count = inputs.len();
        for is_stream in [false, true] {
            let submitted = if is_stream {
                let inputs = stream::iter(inputs.clone().into_iter().map(Ok));
                engine.submit_batch_stream(&noop, inputs).batch_id("b").await
            } else {
                engine.submit_batch(&noop, inputs.clone()).batch_id("b").await
            };
            let error = submitted.unwrap_err();
            assert!(matches!(error, Error::Conflict { .. }), "{count}: {error}");
            assert_eq!(batch.counts().await.unwrap().submitted, 2_000, "{count}");
            assert_eq!(batch.status().await.unwrap(), Status::Waiting, "{count}");
        }
    }
    // the same inputs continue the batch, also in several parts
    engine.submit_batch_stream(&noop, failing_inputs(3_100)).batch_id("b").await.unwrap_err();
    assert_eq!(batch.counts().await.unwrap().submitted, 3_000);
    engine.submit_batch(&noop, 0..5_000).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(5_000));
    engine.submit_batch(&noop, 0..5_000).batch_id("b").await.unwrap();
    shut_down(engine).await;
}

async fn given_fingerprints_of_inputs_are_compared(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let guest = GuestWorkflow::named("noop");
    let submit = |input: fn(i64) -> GuestInput| {
        let options = StartOptions { workflow_id: Some("b".into()), ..StartOptions::default() };
        engine.submit_batch_guest(
            &guest,
            stream::iter((0..1_500).map(input).map(Ok)),
            Some(Box::new(options)),
        )
    };
    let batch = submit(plain_input).await.unwrap();
    assert_eq!(batch.wait().await.unwrap().ended, all_completed(1_500));
    let again = submit(respelled_input).await.unwrap();
    assert_eq!(again.key(), batch.key());
    let payloads: Vec<ItemResult<Payload>> = again.payloads().try_collect().await.unwrap();
    assert_eq!(payloads[1_499].result.as_ref().unwrap().decode::<i64>().unwrap(), 1_499);
    let error =
        submit(|n| if n == 1_234 { respelled_input(-1) } else { respelled_input(n) }).await.unwrap_err();
    assert!(error.to_string().contains("item 1234 is the first"), "{error}");
    shut_down(engine).await;
}

fn plain_input(n: i64) -> GuestInput {
    Payload::encode(&n).unwrap().into()
}

/// Returns an input with another payload than that of the plain input, and with its fingerprint.
fn respelled_input(n: i64) -> GuestInput {
    let fingerprint = Some(plain_input(n).payload.fingerprint());
    GuestInput { payload: Payload::encode(&(n, "spelled")).unwrap(), fingerprint }
}

/// A value that cannot be encoded if it is negative.
#[derive(Deserialize)]
struct Unencodable(i64);

impl Serialize for Unencodable {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 < 0 {
            return Err(serde::ser::Error::custom("it is negative"));
        }
        self.0.serialize(serializer)
    }
}

async fn input_that_cannot_be_encoded_is_named(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |_: Context, x: Unencodable| async move { Ok::<_, Failure>(x.0) });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let inputs = (0..2_000).map(|x| Unencodable(if x == 1_234 { -1 } else { x }));
    let error = engine.submit_batch(&workflow, inputs).batch_id("b").await.unwrap_err();
    assert!(error.to_string().contains("item 1234 of the batch: it is negative"), "{error}");
    let inputs = (0..2_000).map(Unencodable);
    let batch = engine.submit_batch(&workflow, inputs).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(2_000));
    shut_down(engine).await;
}

async fn ids_of_items_are_reserved(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    for error in [
        engine.start(&noop, 1).workflow_id("b#7").await.unwrap_err(),
        engine.run(&noop, 1).workflow_id("b#7").await.unwrap_err(),
        engine.submit_batch(&noop, [1]).batch_id("b#7").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("item of a batch"), "{error}");
    }
    shut_down(engine).await;
}

async fn cancelled_batch_ends_its_items(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x >= 10);
    let (engine, _) = open_engine(fixture, |b| b.register(&waiting).max_running(100)).await;
    let batch = engine.submit_batch(&waiting, 0..3_000).batch_id("b").await.unwrap();
    begun.wait_for(1).await;
    batch.cancel().await.unwrap();
    let ended = ended(&batch).await;
    assert_eq!(ended.completed + ended.cancelled, 3_000);
    assert_eq!(batch.status().await.unwrap(), Status::Cancelled);
    let results: Vec<ItemResult<u32>> = batch.results().try_collect().await.unwrap();
    assert_eq!(results.len(), 3_000);
    assert!(matches!(results[2_999].result, Err(Error::Cancelled(_))));
    assert_eq!(engine.show("b#2999").await.unwrap().execution.status, Status::Cancelled);
    latch.open();
    shut_down(engine).await;
}

async fn limited_queue_limits_items(fixture: &dyn StoreFixture) {
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = {
        let (running, peak) = (running.clone(), peak.clone());
        Workflow::new("counting", move |mut cx: Context, x: u32| {
            let (running, peak) = (running.clone(), peak.clone());
            async move {
                peak.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                let x = cx.step("yield", move || async move {
                    tokio::task::yield_now().await;
                    Ok::<_, Failure>(x)
                });
                let x = x.await?;
                running.fetch_sub(1, SeqCst);
                Ok::<_, Failure>(x)
            }
        })
    };
    let queue = || Queue::new("limited").concurrency(3);
    let (engine, _) = open_engine(fixture, |b| b.register(&counting).queue(queue())).await;
    let batch = engine.submit_batch(&counting, 0..60).queue("limited").key("k").await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(60));
    assert!(peak.load(SeqCst) <= 3, "{} ran at a time", peak.load(SeqCst));
    assert_eq!(outputs(&batch).await, (0..60).collect::<Vec<u32>>());
    shut_down(engine).await;
}

async fn bundle_of_a_closed_engine_continues_elsewhere(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let waiting = waiting_workflow(&begun, &latch, |x| x % 2 == 1);
    let (first, _) = open_engine(fixture, |b| b.register(&waiting)).await;
    let batch = first.submit_batch(&waiting, 0..1_500).batch_id("b").await.unwrap();
    begun.wait_for(750).await;
    shut_down(first).await;
    latch.open();
    let (second, _) = open_second_engine(fixture, |b| b.register(&waiting)).await;
    let batch = second.get_batch::<u32>(&batch.batch_id()).await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(1_500));
    assert_eq!(outputs(&batch).await, (0..1_500).collect::<Vec<u32>>());
    shut_down(second).await;
}

async fn finished_items_do_not_run_again(fixture: &dyn StoreFixture) {
    let (runs, latch, begun) = (Arc::new(AtomicUsize::new(0)), Latch::new(), Count::new());
    let workflow = {
        let (runs, latch, begun) = (runs.clone(), latch.clone(), begun.clone());
        Workflow::new("w", move |mut cx: Context, x: u32| {
            let (runs, latch, begun) = (runs.clone(), latch.clone(), begun.clone());
            async move {
                if x < 400 {
                    runs.fetch_add(1, SeqCst);
                    return Ok(x);
                }
                let counted = runs.clone();
                cx.step("count", move || {
                    counted.fetch_add(1, SeqCst);
                    std::future::ready(Ok::<_, Failure>(()))
                })
                .await?;
                cx.step("wait", move || {
                    let (begun, latch) = (begun.clone(), latch.clone());
                    async move {
                        begun.increment();
                        latch.wait().await;
                        Ok::<_, Failure>(())
                    }
                })
                .await?;
                Ok::<_, Failure>(x)
            }
        })
    };
    let (first, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let batch = first.submit_batch(&workflow, 0..800).batch_id("b").await.unwrap();
    begun.wait_for(400).await;
    first.shutdown(GRACE).await.unwrap();
    latch.open();
    let (second, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let batch = second.get_batch::<u32>(&batch.batch_id()).await.unwrap();
    assert_eq!(ended(&batch).await, all_completed(800));
    assert_eq!(runs.load(SeqCst), 800, "each item and each step ran once");
    shut_down(second).await;
}

async fn cancel_reaches_promoted_items(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeper", |mut cx: Context, x: u32| async move {
        if x == 3 {
            cx.sleep(Duration::from_hours(1)).await;
        }
        Ok::<_, Failure>(x)
    });
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    let batch = engine.submit_batch(&sleeper, 0..5).batch_id("b").await.unwrap();
    let results = batch.results();
    let mut results = std::pin::pin!(results);
    // the bundle has ended when its first result is read, except for the promoted item
    assert_eq!(engine.cancel("b").await.unwrap(), RequestResult::Done);
    let first = results.next().await.unwrap().unwrap();
    assert_eq!(first.index, 0);
    let counts = batch.wait().await.unwrap();
    assert_eq!(counts.ended.total(), 5);
    for kind in [engine.pause("b").await.unwrap(), engine.resume("b").await.unwrap()] {
        assert!(matches!(kind, RequestResult::NotApplicable(_)), "{kind:?}");
    }
    shut_down(engine).await;
}

async fn batch_ends_on_another_engine(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (worker, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let (client, _) = open_second_engine(fixture, |b| b.register(&noop).max_running(1)).await;
    let submissions = (0..4).map(|n| {
        let (client, noop) = (&client, &noop);
        async move { client.submit_batch(noop, 0..100 * n).await }
    });
    let batches = futures_util::future::try_join_all(submissions).await.unwrap();
    for (n, batch) in batches.iter().enumerate() {
        assert_eq!(ended(batch).await, all_completed(100 * n as u64));
    }
    shut_down(client).await;
    shut_down(worker).await;
}

async fn failed_items_are_retried(fixture: &dyn StoreFixture) {
    let is_broken = Latch::new();
    let workflow = {
        let is_mended = is_broken.clone();
        Workflow::new("w", move |_: Context, x: u32| {
            let is_mended = is_mended.clone();
            async move {
                if x.is_multiple_of(10) && !is_mended.is_open() { Err(Failure::new("broken")) } else { Ok(x) }
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let batch = engine.submit_batch(&workflow, 0..1_200).batch_id("b").await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 1_080, failed: 120, cancelled: 0 });
    // nothing is mended: all fail again
    assert_eq!(batch.retry_failed().await.unwrap(), 120);
    assert_eq!(ended(&batch).await, EndedItems { completed: 1_080, failed: 120, cancelled: 0 });
    is_broken.open();
    let both = futures_util::future::try_join(batch.retry_failed(), batch.retry_failed()).await.unwrap();
    assert!(both.0 + both.1 >= 120, "{both:?}");
    assert_eq!(ended(&batch).await, all_completed(1_200));
    assert_eq!(outputs(&batch).await, (0..1_200).collect::<Vec<u32>>());
    assert_eq!(batch.retry_failed().await.unwrap(), 0);
    assert!(engine.show("b#10").await.unwrap().execution.run_no > 1);
    shut_down(engine).await;
}

async fn retried_items_are_cancelled_after_the_end_of_their_batch(fixture: &dyn StoreFixture) {
    let has_failed = Latch::new();
    let workflow = {
        let has_failed = has_failed.clone();
        Workflow::new("w", move |_: Context, x: u32| {
            let has_failed = has_failed.clone();
            async move {
                if has_failed.is_open() {
                    std::future::pending::<()>().await;
                }
                if x < 3 { Err(Failure::new("broken")) } else { Ok(x) }
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let batch = engine.submit_batch(&workflow, 0..5).await.unwrap();
    assert_eq!(ended(&batch).await, EndedItems { completed: 2, failed: 3, cancelled: 0 });
    let too_late = RequestResult::NotApplicable(Status::Completed);
    assert_eq!(batch.cancel().await.unwrap(), too_late);
    has_failed.open();
    assert_eq!(batch.retry_failed().await.unwrap(), 3);
    assert_ne!(batch.cancel().await.unwrap(), too_late);
    assert_eq!(ended(&batch).await, EndedItems { completed: 2, failed: 0, cancelled: 3 });
    assert_eq!(batch.cancel().await.unwrap(), too_late);
    shut_down(engine).await;
}

async fn retried_item_keeps_its_other_steps(fixture: &dyn StoreFixture) {
    let (first_runs, second_runs) = (Count::new(), Count::new());
    let workflow = {
        let (first_runs, second_runs) = (first_runs.clone(), second_runs.clone());
        Workflow::new("w", move |mut cx: Context, x: u32| {
            let (first_runs, second_runs) = (first_runs.clone(), second_runs.clone());
            async move {
                cx.step("first", || std::future::ready(Ok::<_, Failure>(first_runs.increment()))).await?;
                cx.step("second", || {
                    let is_first = second_runs.increment() == 1;
                    std::future::ready(if is_first { Err(Failure::new("not yet")) } else { Ok(()) })
                })
                .await?;
                Ok::<_, Failure>(x)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let batch = engine.submit_batch(&workflow, [7]).await.unwrap();
    assert_eq!(ended(&batch).await.failed, 1);
    assert_eq!(batch.retry_failed().await.unwrap(), 1);
    assert_eq!(ended(&batch).await, all_completed(1));
    assert_eq!((first_runs.get(), second_runs.get()), (1, 2));
    shut_down(engine).await;
}
