//! Rejected and blocked Writes: a database that also rejects the replacement of a rejected Write, and a lock that blocks
//! all Writes.

use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use stepfast_core::failure::OUTCOME_REJECTED;
use stepfast_core::queue::Queue;
use stepfast_core::store::{RequestResult, State, Status, Write};
use stepfast_core::{Context, EngineBuilder, Error, Failure, Workflow};

use super::support::{BodyResult, Count, GRACE, noop, open_engine, record, row, shut_down, steps};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    rejected_failure_parks_the_execution,
    rejected_parking_leaves_the_execution_to_the_next_engine,
    rejected_chunk_parks_the_execution,
    rejected_chunk_of_an_output_parks_the_execution,
    rejected_attempt_parks_the_execution,
    rejected_child_start_is_the_error_of_its_call,
    parked_execution_frees_its_slot,
    blocked_neighbours_wait_in_one_flush,
    many_blocked_rows_delay_no_others,
];

fn is_end(write: &Write) -> bool {
    matches!(write, Write::Transition(change) if matches!(change.state, State::Ended { .. }))
}

fn is_park(write: &Write) -> bool {
    matches!(write, Write::Transition(change) if matches!(change.state, State::Parked { .. }))
}

fn assert_rejected(error: &Error) {
    let Error::Parked { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(OUTCOME_REJECTED));
    assert!(failure.message.contains("a test rejects it"), "{failure}");
}

async fn rejected_failure_parks_the_execution(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.reject(is_end);
    let error = engine.run(&steps, 2).workflow_id("x").await.unwrap_err();
    assert_rejected(&error);
    let execution = row(&engine, "x").await;
    assert_eq!((execution.status, execution.is_parked), (Status::Queued, true));
    store.accept_all();
    let values: Vec<usize> = record(&engine, "x")
        .await
        .checkpoints
        .iter()
        .map(|checkpoint| checkpoint.outcome.decode().unwrap())
        .collect();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<Vec<usize>>("x").await.unwrap().result().await.unwrap(), values);
    shut_down(engine).await;
}

async fn rejected_parking_leaves_the_execution_to_the_next_engine(fixture: &dyn StoreFixture) {
    let (steps, noop, attempts, parks) = (steps(), noop(), Count::new(), Count::new());
    let (one, store) = open_engine(fixture, |b| b.register(&steps).register(&noop)).await;
    let counted = (attempts.clone(), parks.clone());
    store.reject(move |write| {
        let (attempts, parks) = &counted;
        if is_park(write) {
            parks.increment();
        }
        let is_rejected = is_end(write) || is_park(write);
        if is_rejected {
            attempts.increment();
        }
        is_rejected
    });
    let run = {
        let (one, steps) = (one.clone(), steps.clone());
        tokio::spawn(async move { one.run(&steps, 2).workflow_id("x").await })
    };
    parks.wait_for(1).await;
    for x in 0..50 {
        assert_eq!(one.run(&noop, x).await.unwrap(), x);
    }
    // its end, its failure and its parking, each alone and perhaps among others
    assert!(attempts.get() <= 12, "{} attempts", attempts.get());
    let execution = row(&one, "x").await;
    assert_eq!((execution.status, execution.is_parked), (Status::Running, false));
    assert!(!run.is_finished());
    shut_down(one).await;
    assert!(matches!(run.await.unwrap().unwrap_err(), Error::Shutdown));
    let (two, _) = open_engine(fixture, |b| b.register(&steps)).await;
    assert_eq!(two.get::<Vec<usize>>("x").await.unwrap().result().await.unwrap().len(), 2);
    shut_down(two).await;
}

/// Returns a workflow with a step that counts its bodies, fails twice if the input is true, and returns a large value.
fn large(bodies: &Count) -> Workflow<bool, usize> {
    let bodies = bodies.clone();
    Workflow::new("large", move |mut cx: Context, fails: bool| {
        let bodies = bodies.clone();
        async move {
            let value = cx.step("large", || {
                let n = bodies.increment();
                let failure = (fails && n < 3).then(|| Failure::new("no"));
                std::future::ready(failure.map_or_else(|| Ok("l".repeat(3 << 20)), Err))
            });
            value
                .retries(1)
                .backoff(std::time::Duration::ZERO, std::time::Duration::ZERO)
                .await
                .map(|text| text.len())
        }
    })
}

async fn rejected_chunk_parks_the_execution(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let large = large(&bodies);
    let (engine, store) = open_engine(fixture, |b| b.register(&large)).await;
    store.reject(|write| matches!(write, Write::Chunk(chunk) if chunk.index == 1));
    let error = engine.run(&large, false).workflow_id("x").await.unwrap_err();
    assert_rejected(&error);
    assert_eq!(bodies.get(), 1, "the body was repeated");
    store.accept_all();
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<usize>("x").await.unwrap().result().await.unwrap(), 3 << 20);
    assert_eq!(bodies.get(), 2);
    shut_down(engine).await;
}

async fn rejected_chunk_of_an_output_parks_the_execution(fixture: &dyn StoreFixture) {
    let large = Workflow::new("large", |_cx: Context, n: usize| async move { BodyResult::Ok("l".repeat(n)) });
    let (engine, store) = open_engine(fixture, |b| b.register(&large)).await;
    for id in [None, Some("x")] {
        store.reject(|write| matches!(write, Write::Chunk(chunk) if chunk.index == 1));
        // the end of the execution has folded into its Start
        let run = engine.run(&large, 3 << 20);
        let run = if let Some(id) = id { run.workflow_id(id) } else { run };
        let error = tokio::time::timeout(GRACE, run.into_future()).await.unwrap().unwrap_err();
        assert_rejected(&error);
        store.accept_all();
        let Error::Parked { workflow_id, .. } = &error else { panic!("{error}") };
        engine.resume(workflow_id).await.unwrap();
        let output = engine.get::<String>(workflow_id).await.unwrap().result().await.unwrap();
        assert_eq!(output.len(), 3 << 20);
    }
    shut_down(engine).await;
}

async fn rejected_attempt_parks_the_execution(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let large = large(&bodies);
    let (engine, store) = open_engine(fixture, |b| b.register(&large)).await;
    store.reject(|write| matches!(write, Write::Attempt(_)));
    let error = engine.run(&large, true).workflow_id("x").await.unwrap_err();
    assert_rejected(&error);
    assert_eq!(bodies.get(), 1, "an attempt followed one that was not recorded");
    store.accept_all();
    assert!(record(&engine, "x").await.attempts.is_empty());
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<usize>("x").await.unwrap().result().await.unwrap(), 3 << 20);
    shut_down(engine).await;
}

async fn rejected_child_start_is_the_error_of_its_call(fixture: &dyn StoreFixture) {
    let inner = noop();
    let middle = {
        let inner = inner.clone();
        Workflow::new("middle", move |mut cx: Context, x: i64| {
            let inner = inner.clone();
            async move { cx.child(&inner, x).await }
        })
    };
    let outer = {
        let middle = middle.clone();
        Workflow::new("outer", move |mut cx: Context, form: String| {
            let middle = middle.clone();
            async move {
                cx.step("before", async || BodyResult::Ok(1)).await?;
                let started = match &*form {
                    "awaited" => cx.child(&middle, 7).await.map(drop),
                    "started" => match cx.start_child(&middle, 7).await {
                        Ok(handle) => handle.result(&mut cx).await.map(drop),
                        Err(failure) => Err(failure),
                    },
                    "queued" => cx.child(&middle, 7).queue("a").await.map(drop),
                    _ => cx.start_detached(&middle, 7).await.map(drop),
                };
                cx.step("after", async || BodyResult::Ok(1)).await?;
                BodyResult::Ok(started.map_or_else(|failure| failure.message, |()| "started".to_owned()))
            }
        })
    };
    let builder = |b: EngineBuilder| {
        b.register(&inner).register(&middle).register(&outer).queue(Queue::new("a").concurrency(1))
    };
    let (engine, store) = open_engine(fixture, builder).await;
    store.reject(|write| matches!(write, Write::Start(start) if &*start.workflow == "middle"));
    for form in ["awaited", "started", "queued", "detached"] {
        let run = engine.run(&outer, form.to_owned()).workflow_id(form);
        let message = tokio::time::timeout(GRACE, run.into_future()).await.expect(form).unwrap();
        assert!(message.contains("a test rejects it"), "{form}: {message}");
        let names = record(&engine, form).await.checkpoints;
        assert_eq!(names.iter().filter(|checkpoint| &*checkpoint.name == "before").count(), 1);
    }
    store.accept_all();
    assert_eq!(tokio::time::timeout(GRACE, engine.run(&middle, 7).into_future()).await.unwrap().unwrap(), 7);
    // disowned runs end by themselves
    while engine.running_count() > 0 {
        tokio::task::yield_now().await;
    }
    shut_down(engine).await;
}

async fn parked_execution_frees_its_slot(fixture: &dyn StoreFixture) {
    let (steps, noop) = (steps(), noop());
    let queue = Queue::new("a").concurrency(1);
    let (engine, store) = open_engine(fixture, |b| b.register(&steps).register(&noop).queue(queue)).await;
    // the checkpoint is rejected, and so is the failure that replaces it
    store.reject(|write| matches!(write, Write::Checkpoint(_)));
    for id in ["x", "y"] {
        let handle = engine.start(&steps, 2).queue("a").workflow_id(id).await.unwrap();
        assert_rejected(&handle.result().await.unwrap_err());
    }
    store.accept_all();
    let unrelated = engine.start(&noop, 7).queue("a").await.unwrap();
    assert_eq!(tokio::time::timeout(GRACE, unrelated.result()).await.unwrap().unwrap(), 7);
    shut_down(engine).await;
}

/// Locks on many rows delay only the executions that need these rows, although no Write of a flush passes.
async fn many_blocked_rows_delay_no_others(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    store.block(|write| matches!(write, Write::Start(start) if start.workflow_id.is_some()));
    let later = Duration::from_hours(1);
    let mut blocked: Vec<_> = (0..60)
        .map(|n| {
            let start = engine.start(&steps, n).workflow_id(format!("blocked {n}")).delay(later);
            Box::pin(start.into_future())
        })
        .collect();
    for start in &mut blocked {
        // one turn stages it
        assert!(std::future::poll_fn(|cx| Poll::Ready(start.poll_unpin(cx))).await.is_pending());
    }
    store.release();
    for n in 0..20 {
        assert_eq!(engine.run(&steps, n).await.unwrap().len(), n);
    }
    store.accept_all();
    for start in join_all(blocked).await {
        start.unwrap();
    }
    shut_down(engine).await;
}

/// A lock on a table blocks all Writes of a flush. They do not queue up in the slow lane, which commits one at a time.
async fn blocked_neighbours_wait_in_one_flush(fixture: &dyn StoreFixture) {
    const STARTS: usize = 200;
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let later = Duration::from_hours(1);
    let mut starts: Vec<_> =
        (0..STARTS).map(|n| Box::pin(engine.start(&steps, n).delay(later).into_future())).collect();
    for start in &mut starts {
        // one turn stages it
        assert!(std::future::poll_fn(|cx| Poll::Ready(start.poll_unpin(cx))).await.is_pending());
    }
    store.lock_table(|_| true);
    store.release();
    store.wait_until_called(Call::Commit, store.call_count(Call::Commit) + 200).await;
    let before = store.flush_sizes().len();
    store.accept_all();
    for start in join_all(starts).await {
        start.unwrap();
    }
    let sizes = store.flush_sizes();
    let alone = sizes[before..].iter().filter(|size| **size == 1).count();
    // each lane may have been trying a few by themselves
    assert!(alone <= 2 * 9, "{alone} Writes were committed alone: {sizes:?}");
    shut_down(engine).await;
}
