//! Batches that workflows submit.

use std::time::Duration;

use stepfast_core::attributes::Attributes;
use stepfast_core::store::{CheckpointKind, Execution, Filter, Status, Write};
use stepfast_core::{Context, EndedItems, Engine, Error, Failure, Handle, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, latched_workflow, noop, open, open_engine,
    open_second_engine, record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    workflow_waits_for_its_batch,
    empty_batch_of_a_workflow_is_completed,
    failed_items_are_failures_of_the_results,
    suspended_workflow_is_woken_by_its_batch,
    workflow_is_woken_by_a_batch_on_another_engine,
    batch_is_submitted_once_across_a_restart,
    interrupted_submission_is_continued,
    unrecorded_submission_is_repeated,
    other_inputs_in_a_replay_fail_the_submission,
    fewer_inputs_in_a_replay_fail_the_submission,
    cancel_reaches_the_batch_of_a_workflow,
    cancel_reaches_the_batch_of_a_suspended_workflow,
    cancelled_batch_fails_the_wait,
    cancelled_batch_wakes_a_suspended_workflow,
    batch_outlives_a_workflow_that_does_not_wait,
    invalid_submissions_are_failures,
    many_batches_of_one_moment_differ,
];

const SHORT: Duration = Duration::from_millis(10);

/// A workflow that submits a batch of `count` items, and returns the sum of their outputs.
fn submitter(item: &Workflow<i64, i64>) -> Workflow<i64, i64> {
    let item = item.clone();
    Workflow::new("submitter", move |mut cx: Context, count: i64| {
        let item = item.clone();
        async move {
            let batch = cx.submit_batch(&item, 0..count).await?;
            let ended = batch.wait(&mut cx).await?.ended;
            assert_eq!(ended, EndedItems { completed: count as u64, failed: 0, cancelled: 0 });
            let outputs = batch.results(&mut cx).await?.into_iter().collect::<Result<Vec<i64>, _>>()?;
            assert_eq!(outputs.len() as i64, count);
            BodyResult::Ok(outputs.into_iter().sum())
        }
    })
}

/// Returns the only batch of the store.
async fn only_batch(engine: &Engine) -> Execution {
    let listed = engine.list(&Filter::default()).await.unwrap().executions;
    let mut batches = listed.into_iter().filter(|execution| execution.key.is_batch());
    let batch = batches.next().unwrap();
    assert_eq!(batches.count(), 0, "there is one batch");
    batch
}

async fn workflow_waits_for_its_batch(fixture: &dyn StoreFixture) {
    let noop = noop();
    let submitter = submitter(&noop);
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&submitter)).await;
    let handle = engine.start(&submitter, 2_500).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), (0..2_500).sum::<i64>());
    let batch = only_batch(&engine).await;
    assert_eq!((batch.status, &*batch.workflow), (Status::Completed, "noop"));
    let parent = batch.parent.unwrap();
    assert_eq!((parent.key, parent.is_detached, batch.root), (handle.key(), false, handle.key()));
    shut_down(engine).await;
}

async fn empty_batch_of_a_workflow_is_completed(fixture: &dyn StoreFixture) {
    let noop = noop();
    let submitter = submitter(&noop);
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&submitter)).await;
    assert_eq!(engine.run(&submitter, 0).await.unwrap(), 0);
    shut_down(engine).await;
}

async fn failed_items_are_failures_of_the_results(fixture: &dyn StoreFixture) {
    let odd = Workflow::new("odd", |_cx: Context, x: i64| async move {
        if x % 2 == 0 { Err(Failure::new(format!("{x} is even"))) } else { Ok(x) }
    });
    let submitter = {
        let odd = odd.clone();
        Workflow::new("submitter", move |mut cx: Context, (): ()| {
            let odd = odd.clone();
            async move {
                let batch = cx.submit_batch(&odd, 0..4).await?;
                assert_eq!(batch.wait(&mut cx).await?.ended.failed, 2);
                let results = batch.results(&mut cx).await?;
                let texts = results.into_iter().map(|it| match it {
                    Ok(x) => x.to_string(),
                    Err(failure) => failure.message,
                });
                BodyResult::Ok(texts.collect::<Vec<_>>())
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&odd).register(&submitter)).await;
    assert_eq!(engine.run(&submitter, ()).await.unwrap(), ["0 is even", "1", "2 is even", "3"]);
    shut_down(engine).await;
}

async fn suspended_workflow_is_woken_by_its_batch(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let item = latched_workflow("item", &count, &latch);
    let submitter = submitter(&item);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&item).register(&submitter).suspend_after(SHORT)).await;
    let handle = engine.start(&submitter, 3).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 3);
    assert_eq!(count.get(), 3);
    shut_down(engine).await;
}

async fn workflow_is_woken_by_a_batch_on_another_engine(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let item = latched_workflow("item", &count, &latch);
    let submitter = submitter(&item);
    // the submitter takes the only slot of its engine
    let (one, store) = open_engine(fixture, |b| {
        b.register(&item).register(&submitter).max_running(1).suspend_after(Duration::from_hours(1))
    })
    .await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&item)).await;
    let handle = one.start(&submitter, 3).await.unwrap();
    count.wait_for(3).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 3);
    assert!(!store.committed_writes().iter().any(|(write, _)| is_suspension_of(handle.key())(write)));
    shut_down(one).await;
    shut_down(two).await;
}

async fn batch_is_submitted_once_across_a_restart(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let item = latched_workflow("item", &count, &latch);
    let submitter = submitter(&item);
    let (one, _) = open_engine(fixture, |b| b.register(&item).register(&submitter)).await;
    one.start(&submitter, 3).workflow_id("x").await.unwrap();
    count.wait_for(3).await;
    let batch = only_batch(&one).await.key;
    shut_down(one).await;
    let (two, _) = open_engine(fixture, |b| b.register(&item).register(&submitter)).await;
    count.wait_for(6).await;
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 3);
    assert_eq!(only_batch(&two).await.key, batch);
    shut_down(two).await;
}

/// A workflow that submits as many items as `counts` says for this run of its code, from `first`, and waits for them.
fn changing_submitter(item: &Workflow<i64, i64>, runs: &Count, inputs: [(i64, i64); 2]) -> Workflow<(), u64> {
    let (item, runs) = (item.clone(), runs.clone());
    Workflow::new("submitter", move |mut cx: Context, (): ()| {
        let item = item.clone();
        let (first, count) = inputs[(runs.increment() - 1).min(1)];
        async move {
            let batch = cx.submit_batch(&item, first..first + count).await?;
            BodyResult::Ok(batch.wait(&mut cx).await?.ended.completed)
        }
    })
}

/// Runs the workflow until a Write that `is_held` hangs, and again on another engine, as if the first process had died.
/// Returns the result of the second run.
async fn interrupt(
    fixture: &dyn StoreFixture,
    submitter: &Workflow<(), u64>,
    is_held: fn(&Write) -> bool,
) -> Result<u64, Error> {
    let noop = noop();
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&noop).register(submitter).max_running(1)).await;
    store.hold_writes(is_held);
    one.start(submitter, ()).workflow_id("x").await.unwrap();
    store.wait_until_hanging().await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&noop).register(submitter)).await;
    store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
    fixture.mark_dead(record(&two, "x").await.execution.owner.unwrap()).await;
    let result = two.get::<u64>("x").await.unwrap().result().await;
    only_batch(&two).await;
    store.release();
    shut_down(one).await;
    shut_down(two).await;
    result
}

fn is_second_bundle(write: &Write) -> bool {
    matches!(write, Write::Start(start) if start.key.last_index().is_some_and(|last| last >= 1_000))
}

fn is_record_of_start(write: &Write) -> bool {
    matches!(write, Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Started)
}

async fn interrupted_submission_is_continued(fixture: &dyn StoreFixture) {
    let submitter = changing_submitter(&noop(), &Count::new(), [(0, 2_500), (0, 2_500)]);
    assert_eq!(interrupt(fixture, &submitter, is_second_bundle).await.unwrap(), 2_500);
}

async fn unrecorded_submission_is_repeated(fixture: &dyn StoreFixture) {
    let submitter = changing_submitter(&noop(), &Count::new(), [(0, 2_500), (0, 2_500)]);
    assert_eq!(interrupt(fixture, &submitter, is_record_of_start).await.unwrap(), 2_500);
}

async fn other_inputs_in_a_replay_fail_the_submission(fixture: &dyn StoreFixture) {
    let submitter = changing_submitter(&noop(), &Count::new(), [(0, 2_500), (7, 2_500)]);
    let error = interrupt(fixture, &submitter, is_second_bundle).await.unwrap_err();
    assert!(matches!(&error, Error::Failed(failure) if failure.kind == "SF-0003"), "{error:?}");
    assert!(error.to_string().contains("item 0 is the first that differs"), "{error}");
}

async fn fewer_inputs_in_a_replay_fail_the_submission(fixture: &dyn StoreFixture) {
    let submitter = changing_submitter(&noop(), &Count::new(), [(0, 2_500), (0, 1_000)]);
    let error = interrupt(fixture, &submitter, is_second_bundle).await.unwrap_err();
    assert!(error.to_string().contains("submitted with 2500 items; the inputs have 1000"), "{error}");
}

/// Starts a workflow that waits for the three items of its batch, and that is suspended if `is_suspended`. `cancel` cancels
/// the workflow or its batch. Returns the error of the workflow.
async fn cancel_while_waiting(
    fixture: &dyn StoreFixture,
    is_suspended: bool,
    cancel: impl AsyncFnOnce(&Engine, &Handle<i64>),
) -> Error {
    let (count, latch) = (Count::new(), Latch::new());
    let item = latched_workflow("item", &count, &latch);
    let submitter = submitter(&item);
    let suspend_after = if is_suspended { SHORT } else { Duration::from_hours(1) };
    let (engine, store) =
        open_engine(fixture, |b| b.register(&item).register(&submitter).suspend_after(suspend_after)).await;
    let handle = engine.start(&submitter, 3).await.unwrap();
    count.wait_for(3).await;
    if is_suspended {
        store.wait_until_committed(is_suspension_of(handle.key())).await;
    }
    cancel(&engine, &handle).await;
    let error = handle.result().await.unwrap_err();
    let batch = only_batch(&engine).await.workflow_id();
    let counts = engine.get_batch::<i64>(&batch).await.unwrap().wait().await.unwrap();
    assert_eq!(counts.ended, EndedItems { completed: 0, failed: 0, cancelled: 3 });
    shut_down(engine).await;
    error
}

async fn cancel_reaches_the_batch_of_a_workflow(fixture: &dyn StoreFixture) {
    let error = cancel_while_waiting(fixture, false, cancel_workflow).await;
    assert!(matches!(error, Error::Cancelled(_)), "{error:?}");
}

async fn cancel_reaches_the_batch_of_a_suspended_workflow(fixture: &dyn StoreFixture) {
    let error = cancel_while_waiting(fixture, true, cancel_workflow).await;
    assert!(matches!(error, Error::Cancelled(_)), "{error:?}");
}

async fn cancelled_batch_fails_the_wait(fixture: &dyn StoreFixture) {
    let error = cancel_while_waiting(fixture, false, cancel_batch).await;
    assert!(matches!(&error, Error::Failed(it) if it.message == "cancelled on request"), "{error:?}");
}

async fn cancelled_batch_wakes_a_suspended_workflow(fixture: &dyn StoreFixture) {
    let error = cancel_while_waiting(fixture, true, cancel_batch).await;
    assert!(matches!(&error, Error::Failed(it) if it.message == "cancelled on request"), "{error:?}");
}

async fn cancel_workflow(_engine: &Engine, handle: &Handle<i64>) {
    handle.cancel().await.unwrap();
}

async fn cancel_batch(engine: &Engine, _handle: &Handle<i64>) {
    engine.cancel(&only_batch(engine).await.workflow_id()).await.unwrap();
}

async fn batch_outlives_a_workflow_that_does_not_wait(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let item = latched_workflow("item", &count, &latch);
    let submitter = {
        let item = item.clone();
        Workflow::new("submitter", move |mut cx: Context, (): ()| {
            let item = item.clone();
            async move {
                let batch = cx.submit_batch(&item, 0..3).attribute("kind", "late").await?;
                BodyResult::Ok((batch.batch_id(), batch.item_id(1)))
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&item).register(&submitter)).await;
    let (batch, item_id) = engine.run(&submitter, ()).await.unwrap();
    latch.open();
    let handle = engine.get_batch::<i64>(&batch).await.unwrap();
    assert_eq!(handle.wait().await.unwrap().ended.completed, 3);
    assert_eq!(
        (handle.item_id(1), engine.show(&item_id).await.unwrap().execution.status),
        (item_id, Status::Completed)
    );
    let mut attributes = Attributes::default();
    attributes.set("kind", "late");
    let of_kind = Filter { attributes, ..Filter::default() };
    assert_eq!(engine.count(&of_kind).await.unwrap(), 1);
    shut_down(engine).await;
}

async fn invalid_submissions_are_failures(fixture: &dyn StoreFixture) {
    let item = Workflow::new("item", |_cx: Context, text: String| async move { BodyResult::Ok(text) });
    let submitter = {
        let item = item.clone();
        Workflow::new("submitter", move |mut cx: Context, (): ()| {
            let item = item.clone();
            async move {
                let unknown = Workflow::new("unknown", |_cx: Context, (): ()| async { BodyResult::Ok(()) });
                let large = ["x".to_owned(), "x".repeat(2_000)];
                let failures = [
                    cx.submit_batch(&unknown, [()]).await.unwrap_err(),
                    cx.submit_batch(&item, large).await.unwrap_err(),
                    cx.submit_batch(&item, ["x".to_owned()]).queue("missing").await.unwrap_err(),
                    cx.submit_batch(&item, ["x".to_owned()]).key("k").await.unwrap_err(),
                ];
                BodyResult::Ok(failures.map(|failure| failure.message).to_vec())
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&item).register(&submitter).value_limit(1_500)).await;
    let messages = engine.run(&submitter, ()).await.unwrap();
    let parts = ["\"unknown\"", "the input of item 1 of the batch", "missing", "needs a queue"];
    for (message, part) in messages.iter().zip(parts) {
        assert!(message.contains(part), "{message}");
    }
    let left = Filter { statuses: vec![Status::Queued, Status::Waiting], ..Filter::default() };
    assert_eq!(engine.count(&left).await.unwrap(), 0, "the batch of the large item is cancelled");
    shut_down(engine).await;
}

async fn many_batches_of_one_moment_differ(fixture: &dyn StoreFixture) {
    let noop = noop();
    let submitter = {
        let noop = noop.clone();
        Workflow::new("submitter", move |mut cx: Context, count: i64| {
            let noop = noop.clone();
            async move {
                let submit = |mut cx: Context, first: i64| {
                    let noop = noop.clone();
                    async move {
                        let batch = cx.submit_batch(&noop, first..first + 2).await?;
                        let outputs = batch.results(&mut cx).await?;
                        outputs.into_iter().collect::<Result<Vec<i64>, Failure>>()
                    }
                };
                let outputs = cx.map(0..count, 50, submit).await;
                outputs.into_iter().collect::<Result<Vec<_>, _>>()
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&submitter)).await;
    let outputs = engine.run(&submitter, 50).await.unwrap();
    assert_eq!(outputs, (0..50).map(|first| vec![first, first + 1]).collect::<Vec<_>>());
    shut_down(engine).await;
}
