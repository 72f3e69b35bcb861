//! Steps: attempts, errors, sizes, and the time at which a body may begin.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfast_core::payload::INLINE_LIMIT;
use stepfast_core::store::{CheckpointKind, StoreError, Write};
use stepfast_core::{Context, Error, Failure, RetryPolicy, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, fresh_number, open_engine, open_second_engine, record, shut_down,
    steps, wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    step_runs_once_and_is_recorded,
    failed_attempt_is_recorded_and_retried,
    last_error_is_the_outcome_when_attempts_are_exhausted,
    permanent_or_excluded_error_is_not_retried,
    attempt_fails_after_its_timeout,
    panic_in_a_body_fails_its_step,
    panic_in_a_workflow_fails_its_execution,
    panic_in_a_destructor_changes_nothing,
    errors_keep_type_message_and_causes,
    error_is_replayed_unchanged,
    attempts_are_counted_across_a_restart,
    backoff_is_not_prolonged_by_a_clock_that_was_ahead,
    value_over_the_limit_is_an_error_of_its_step,
    output_over_the_limit_fails_its_execution,
    values_of_every_size_are_returned,
    values_of_every_size_are_replayed,
    body_begins_after_earlier_checkpoints_are_durable,
    speculative_body_waits_for_no_checkpoint,
    attempt_is_durable_before_the_next_begins,
    durable_reads_show_only_durable_outcomes,
    durable_reads_show_no_fenced_outcome,
    invalid_step_names_are_errors,
    execution_completes_a_thousand_steps,
];

async fn step_runs_once_and_is_recorded(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, _) = open_engine(fixture, |b| b.register(&steps)).await;
    let handle = engine.start(&steps, 3).await.unwrap();
    let values = handle.result().await.unwrap();
    let record = record(&engine, &handle.workflow_id()).await;
    let recorded: Vec<usize> = record.checkpoints.iter().map(|c| c.outcome.decode().unwrap()).collect();
    assert_eq!(recorded, values);
    let step = |n: usize| (CheckpointKind::Step, format!("step {n}"));
    assert_eq!(deliveries(&record), [step(0), step(1), step(2)]);
    assert!(record.attempts.is_empty() && record.requests.is_empty());
    shut_down(engine).await;
}

/// Returns a workflow with one step, whose attempt `n` fails with `fail(n)`.
fn failing(
    policy: RetryPolicy,
    count: &Count,
    fail: impl Fn(usize) -> Option<Failure> + Send + Sync + 'static,
) -> Workflow<(), usize> {
    let (count, fail) = (count.clone(), Arc::new(fail));
    let policy = RetryPolicy { backoff: Duration::from_millis(1), ..policy };
    Workflow::new("failing", move |mut cx: Context, (): ()| {
        let (count, fail) = (count.clone(), fail.clone());
        async move {
            cx.step("fail", || {
                let n = count.increment();
                let failure = fail(n);
                async move { failure.map_or(Ok(n), Err) }
            })
            .retry(policy)
            .await
        }
    })
}

fn retries(retries: u32) -> RetryPolicy {
    RetryPolicy { retries, ..RetryPolicy::default() }
}

async fn failed_attempt_is_recorded_and_retried(fixture: &dyn StoreFixture) {
    let count = Count::new();
    let workflow =
        failing(retries(5), &count, |n| (n < 4).then(|| Failure::new(format!("no, not the {n}th"))));
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 4);
    let record = record(&engine, &handle.workflow_id()).await;
    let attempts: Vec<(u32, String)> = record
        .attempts
        .iter()
        .map(|attempt| (attempt.attempt, attempt.failure.decode::<Failure>().unwrap().message))
        .collect();
    let expected: Vec<(u32, String)> = (1..4).map(|n| (n, format!("no, not the {n}th"))).collect();
    assert_eq!(attempts, expected);
    assert_eq!(deliveries(&record), [(CheckpointKind::Step, "fail".into())]);
    shut_down(engine).await;
}

async fn last_error_is_the_outcome_when_attempts_are_exhausted(fixture: &dyn StoreFixture) {
    let count = Count::new();
    let workflow = failing(retries(2), &count, |n| Some(Failure::new(format!("no {n}"))));
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    let Error::Failed(failure) = handle.result().await.unwrap_err() else { panic!() };
    assert_eq!((failure.message.as_str(), count.get()), ("no 3", 3));
    let record = record(&engine, &handle.workflow_id()).await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Failed, "fail".into())]);
    assert_eq!(record.attempts.len(), 2);
    shut_down(engine).await;
}

async fn permanent_or_excluded_error_is_not_retried(fixture: &dyn StoreFixture) {
    let (one, two) = (Count::new(), Count::new());
    let permanent = failing(retries(5), &one, |n| {
        Some(if n == 2 { Failure::new("permanent").permanent() } else { Failure::new("again") })
    });
    let selective = RetryPolicy { retry_if: Some(|failure| failure.message == "again"), ..retries(5) };
    let selective = failing(selective, &two, |n| Some(Failure::new(if n < 3 { "again" } else { "else" })));
    for (workflow, count, calls, message) in [(permanent, one, 2, "permanent"), (selective, two, 3, "else")] {
        let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
        let Error::Failed(failure) = engine.run(&workflow, ()).await.unwrap_err() else { panic!() };
        assert_eq!((failure.message.as_str(), count.get()), (message, calls));
        shut_down(engine).await;
    }
}

async fn attempt_fails_after_its_timeout(fixture: &dyn StoreFixture) {
    let count = Count::new();
    let workflow = {
        let count = count.clone();
        Workflow::new("slow", move |mut cx: Context, (): ()| {
            let count = count.clone();
            async move {
                cx.step("slow", || {
                    let n = count.increment();
                    async move {
                        if n < 3 {
                            std::future::pending::<()>().await;
                        }
                        BodyResult::Ok(n)
                    }
                })
                .retries(2)
                .backoff(Duration::from_millis(1), Duration::from_millis(1))
                .timeout(Duration::from_millis(20))
                .await
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 3);
    for attempt in record(&engine, &handle.workflow_id()).await.attempts {
        let failure: Failure = attempt.failure.decode().unwrap();
        assert_eq!(failure.code(), Some("SF-0020"));
        assert!(failure.message.contains("20ms"), "{failure}");
    }
    shut_down(engine).await;
}

async fn panic_in_a_body_fails_its_step(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("panics", |mut cx: Context, late: bool| async move {
        let failure = cx
            .step("panics", move || {
                assert!(late, "at once, {}", 1);
                async move {
                    tokio::task::yield_now().await;
                    assert!(!late, "later");
                    BodyResult::Ok(1)
                }
            })
            .await
            .unwrap_err();
        let next = cx.step("next", async || BodyResult::Ok(1)).await?;
        BodyResult::Ok((failure, next))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for (late, expected) in [(false, "at once, 1"), (true, "later")] {
        let (failure, next) = engine.run(&workflow, late).await.unwrap();
        assert_eq!((failure.code(), next), (Some("SF-0024"), 1));
        assert!(failure.message.contains(expected), "{failure}");
    }
    shut_down(engine).await;
}

async fn panic_in_a_workflow_fails_its_execution(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("panics", |mut cx: Context, place: usize| {
        assert_ne!(place, 0, "before it began");
        async move {
            assert_ne!(place, 1, "at once");
            cx.step("s", async || BodyResult::Ok(1)).await?;
            assert_ne!(place, 2, "after a step");
            let branch = cx.spawn(move |mut cx: Context| async move {
                cx.step("t", async || BodyResult::Ok(1)).await.unwrap();
                assert_ne!(place, 3, "in a branch");
                place
            });
            branch.output().await
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for (place, expected) in (0..).zip(["before it began", "at once", "after a step", "in a branch"]) {
        let handle = engine.start(&workflow, place).await.unwrap();
        let Error::Failed(failure) = handle.result().await.unwrap_err() else { panic!() };
        assert_eq!(failure.code(), Some("SF-0024"));
        assert!(failure.message.contains(expected), "{failure}");
        assert_eq!(record(&engine, &handle.workflow_id()).await.execution.recoveries, 0);
    }
    assert_eq!(engine.run(&workflow, 4).await.unwrap(), 4);
    assert_eq!(engine.running_count(), 0);
    shut_down(engine).await;
}

async fn panic_in_a_destructor_changes_nothing(fixture: &dyn StoreFixture) {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let child = Workflow::new("child", |mut cx: Context, is_spawned: bool| async move {
        let panics = Panics;
        if is_spawned {
            let _branch = cx.spawn(|_cx: Context| async move {
                std::future::pending::<()>().await;
                drop(panics);
            });
            return BodyResult::Ok(1);
        }
        std::mem::forget(panics);
        BodyResult::Ok(2)
    });
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move { BodyResult::Ok(cx.child(&child, true).await? + cx.child(&child, false).await?) }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&parent).register(&child)).await;
    assert_eq!(engine.run(&parent, ()).await.unwrap(), 3);
    shut_down(engine).await;
}

async fn errors_keep_type_message_and_causes(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("parse", |mut cx: Context, text: String| async move {
        cx.step("parse", || {
            let parsed = text.parse::<u8>();
            async move { parsed }
        })
        .await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(engine.run(&workflow, "7".into()).await.unwrap(), 7);
    let Error::Failed(failure) = engine.run(&workflow, "x".into()).await.unwrap_err() else { panic!() };
    assert_eq!(failure, Failure::from("x".parse::<u8>().unwrap_err()));
    shut_down(engine).await;
}

async fn error_is_replayed_unchanged(fixture: &dyn StoreFixture) {
    let (count, latch, bodies) = (Count::new(), Latch::new(), Count::new());
    let workflow = {
        let (count, latch, bodies) = (count.clone(), latch.clone(), bodies.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch, bodies) = (count.clone(), latch.clone(), bodies.clone());
            async move {
                let failure = cx
                    .step("fail", || {
                        let n = bodies.increment();
                        async move { Err::<(), _>(Failure::with_kind("Odd", format!("{n}")).permanent()) }
                    })
                    .await
                    .unwrap_err();
                wait_in_step(&mut cx, &count, &latch).await?;
                BodyResult::Ok(failure)
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, ()).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let failure: Failure = two.get("x").await.unwrap().result().await.unwrap();
    assert_eq!(failure, Failure::with_kind("Odd", "1").permanent());
    assert_eq!(bodies.get(), 1);
    shut_down(two).await;
}

async fn attempts_are_counted_across_a_restart(fixture: &dyn StoreFixture) {
    let (bodies, third, latch) = (Count::new(), Count::new(), Latch::new());
    let workflow = {
        let (bodies, third, latch) = (bodies.clone(), third.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (bodies, third, latch) = (bodies.clone(), third.clone(), latch.clone());
            async move {
                let policy = RetryPolicy { backoff: Duration::from_millis(1), ..retries(3) };
                cx.step("fail", || {
                    let (n, third, latch) = (bodies.increment(), third.clone(), latch.clone());
                    async move {
                        if n == 3 {
                            third.increment();
                            latch.wait().await;
                        }
                        Err::<(), _>(Failure::new(format!("{n}")))
                    }
                })
                .retry(policy)
                .await
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, ()).workflow_id("x").await.unwrap();
    third.wait_for(1).await;
    shut_down(one).await;
    let (two, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let Error::Failed(failure) = two.get::<()>("x").await.unwrap().result().await.unwrap_err() else {
        panic!()
    };
    // bodies 1 and 2 failed, 3 was interrupted and is repeated by 4, 5 is the last
    assert_eq!((failure.message.as_str(), bodies.get()), ("5", 5));
    let record = record(&two, "x").await;
    let attempts: Vec<(u32, String)> =
        record.attempts.iter().map(|a| (a.attempt, a.failure.decode::<Failure>().unwrap().message)).collect();
    assert_eq!(attempts, [(1, "1".into()), (2, "2".into()), (3, "4".into())]);
    assert_eq!(record.execution.recoveries, 0, "a shutdown requeues and is no recovery");
    latch.open();
    shut_down(two).await;
}

async fn backoff_is_not_prolonged_by_a_clock_that_was_ahead(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                cx.step("s", || {
                    let (n, latch) = (count.increment(), latch.clone());
                    async move {
                        if n == 1 {
                            return Err(Failure::new("again"));
                        }
                        latch.wait().await;
                        Ok(n)
                    }
                })
                .retries(1)
                .backoff(Duration::from_millis(1), Duration::from_millis(1))
                .await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, behind_store) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    // one engine receives the new time of the clock with a heartbeat, and the other does not
    behind_store.make_unavailable(&[Call::Heartbeat]);
    behind_store.wait_until_called(Call::Heartbeat, behind_store.call_count(Call::Heartbeat) + 1).await;
    fixture.clock().advance(Duration::from_hours(1));
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    let handle = one.start(&workflow, ()).await.unwrap();
    count.wait_for(2).await;
    shut_down(one).await;
    // makes the engine claim
    two.resume(&handle.workflow_id()).await.unwrap();
    behind_store.wait_until_called(Call::Claim, 1).await;
    count.wait_for(3).await;
    behind_store.make_unavailable(&[]);
    latch.open();
    assert_eq!(two.get::<usize>(&handle.workflow_id()).await.unwrap().result().await.unwrap(), 3);
    shut_down(two).await;
}

async fn value_over_the_limit_is_an_error_of_its_step(fixture: &dyn StoreFixture) {
    let count = Count::new();
    let workflow = {
        let count = count.clone();
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let count = count.clone();
            async move {
                let failure = cx
                    .step("large", || {
                        count.increment();
                        async { BodyResult::Ok("x".repeat(3000)) }
                    })
                    .retries(3)
                    .await
                    .unwrap_err();
                cx.step("next", async || BodyResult::Ok(())).await?;
                BodyResult::Ok(failure)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).value_limit(2000)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    let failure = handle.result().await.unwrap();
    for part in ["\"large\"", "3004 bytes", "2000", "value_limit"] {
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(count.get(), 1, "the step was retried");
    let kinds: Vec<CheckpointKind> =
        record(&engine, &handle.workflow_id()).await.checkpoints.iter().map(|c| c.kind).collect();
    assert_eq!(kinds, [CheckpointKind::Failed, CheckpointKind::Step]);
    shut_down(engine).await;
}

async fn output_over_the_limit_fails_its_execution(fixture: &dyn StoreFixture) {
    let workflow =
        Workflow::new("large", |_cx: Context, n: usize| async move { BodyResult::Ok("x".repeat(n)) });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).value_limit(2000)).await;
    let Error::Failed(failure) = engine.run(&workflow, 3000).await.unwrap_err() else { panic!() };
    for part in ["output", "\"large\"", "3004 bytes", "2000"] {
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(engine.run(&workflow, 1000).await.unwrap().len(), 1000);
    shut_down(engine).await;
}

/// Returns lengths of texts whose encodings are small, around the limit of a row, and large.
fn lengths() -> [usize; 6] {
    let inline = INLINE_LIMIT - 4;
    [0, 1, inline - 1, inline, inline + 1, 5 << 20]
}

/// Returns a text of this length with varying content.
fn text(length: usize) -> String {
    (0..length).map(|n| char::from(b'a' + (n / 1000 % 26) as u8)).collect()
}

async fn values_of_every_size_are_returned(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("echo", |mut cx: Context, text: String| async move {
        let first = cx.step("a", || std::future::ready(BodyResult::Ok(text.clone()))).await?;
        cx.step("b", || std::future::ready(BodyResult::Ok(first.clone()))).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for (n, length) in lengths().into_iter().enumerate() {
        let text = text(length);
        assert!(engine.run(&workflow, text.clone()).await.unwrap() == text, "{length}");
        let id = format!("given {n}");
        let handle = engine.start(&workflow, text.clone()).workflow_id(id.clone()).await.unwrap();
        assert!(handle.result().await.unwrap() == text, "{length}");
        let repeated = engine.start(&workflow, text.clone()).workflow_id(id.clone()).await.unwrap();
        assert!(repeated.key() == handle.key() && repeated.result().await.unwrap() == text, "{length}");
        let record = record(&engine, &id).await;
        for payload in
            [&record.checkpoints[0].outcome, &record.checkpoints[1].outcome, &record.execution.outcome]
        {
            let value = engine.load_value(record.execution.key, payload.clone()).await.unwrap();
            assert!(value.decode::<String>().unwrap() == text, "{length}");
            assert_eq!(payload.chunk_ref().is_some(), value.len() > INLINE_LIMIT, "{length}");
        }
        let input = engine.load_value(record.execution.key, record.execution.input).await.unwrap();
        assert!(input.decode::<String>().unwrap() == text, "{length}");
    }
    shut_down(engine).await;
}

async fn values_of_every_size_are_replayed(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("echo", move |mut cx: Context, text: String| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                let first = cx.step("a", || std::future::ready(BodyResult::Ok(text.clone()))).await?;
                let failure = cx
                    .step("b", || std::future::ready(Err::<(), _>(Failure::new(first.clone()))))
                    .await
                    .unwrap_err();
                wait_in_step(&mut cx, &count, &latch).await?;
                BodyResult::Ok((first, failure.message))
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for length in lengths() {
        one.start(&workflow, text(length)).workflow_id(format!("{length}")).await.unwrap();
    }
    count.wait_for(lengths().len()).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for length in lengths() {
        let handle = two.get::<(String, String)>(&length.to_string()).await.unwrap();
        let (first, second) = handle.result().await.unwrap();
        assert!(first == text(length) && second == first, "{length}");
    }
    shut_down(two).await;
}

/// Returns the number of committed checkpoints.
fn checkpoints(store: &FaultStore) -> usize {
    store.committed_writes().iter().filter(|(write, _)| matches!(write, Write::Checkpoint(_))).count()
}

async fn body_begins_after_earlier_checkpoints_are_durable(fixture: &dyn StoreFixture) {
    let store = FaultStore::wrap(fixture.store());
    let observed = store.clone();
    let workflow = Workflow::new("w", move |mut cx: Context, n: usize| {
        let store = observed.clone();
        async move {
            let mut committed = Vec::new();
            for _ in 0..n {
                committed
                    .push(cx.step("s", || std::future::ready(BodyResult::Ok(checkpoints(&store)))).await?);
            }
            BodyResult::Ok(committed)
        }
    });
    let engine = super::support::open(store, |b| b.register(&workflow)).await;
    assert_eq!(engine.run(&workflow, 5).await.unwrap(), [0, 1, 2, 3, 4]);
    shut_down(engine).await;
}

async fn speculative_body_waits_for_no_checkpoint(fixture: &dyn StoreFixture) {
    let store = FaultStore::wrap(fixture.store());
    let (observed, first, latch, second, third) =
        (store.clone(), Count::new(), Latch::new(), Count::new(), Count::new());
    let workflow = {
        let (first, latch, second, third) = (first.clone(), latch.clone(), second.clone(), third.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (first, latch, second, third) = (first.clone(), latch.clone(), second.clone(), third.clone());
            let store = observed.clone();
            async move {
                wait_in_step(&mut cx, &first, &latch).await?;
                let before = cx
                    .step("guess", || {
                        second.increment();
                        std::future::ready(BodyResult::Ok(checkpoints(&store)))
                    })
                    .speculative()
                    .await?;
                let after = cx
                    .step("act", || {
                        third.increment();
                        std::future::ready(BodyResult::Ok(checkpoints(&store)))
                    })
                    .await?;
                BodyResult::Ok((before, after))
            }
        })
    };
    let engine = super::support::open(store.clone(), |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).await.unwrap();
    first.wait_for(1).await;
    store.hold_calls(&[Call::Commit]);
    latch.open();
    second.wait_for(1).await;
    assert_eq!((checkpoints(&store), third.get()), (0, 0));
    store.release();
    assert_eq!(handle.result().await.unwrap(), (0, 2));
    shut_down(engine).await;
}

async fn attempt_is_durable_before_the_next_begins(fixture: &dyn StoreFixture) {
    for is_speculative in [false, true] {
        let (store, bodies) = (FaultStore::wrap(fixture.store()), Count::new());
        let workflow = {
            let (store, bodies) = (store.clone(), bodies.clone());
            Workflow::new("w", move |mut cx: Context, (): ()| {
                let (store, bodies) = (store.clone(), bodies.clone());
                async move {
                    let body = || {
                        // the failure of this attempt is not durable before the test releases it
                        store.hold_calls(&[Call::Commit]);
                        let n = bodies.increment();
                        std::future::ready(if n < 4 { Err(Failure::new("again")) } else { Ok(n) })
                    };
                    let step = cx.step("s", body).retries(3).backoff(Duration::ZERO, Duration::ZERO);
                    if is_speculative { step.speculative().await } else { step.await }
                }
            })
        };
        let engine = super::support::open(store.clone(), |b| b.register(&workflow)).await;
        let run = {
            let (engine, workflow) = (engine.clone(), workflow.clone());
            tokio::spawn(async move { engine.run(&workflow, ()).await })
        };
        for n in 1..=4 {
            bodies.wait_for(n).await;
            store.wait_until_hanging().await;
            // the next attempt, or the caller after the last one, waits until the failure is durable
            while bodies.get() == n && engine.lane_load().iter().all(|lane| lane.waiters == 0) {
                tokio::task::yield_now().await;
            }
            assert_eq!(bodies.get(), n, "the failure of attempt {n} is not durable");
            store.release();
        }
        assert_eq!(run.await.unwrap().unwrap(), 4);
        assert_eq!(attempts(&store), 3);
        shut_down(engine).await;
    }
}

fn attempts(store: &FaultStore) -> usize {
    store.committed_writes().iter().filter(|(write, _)| matches!(write, Write::Attempt(_))).count()
}

async fn durable_reads_show_only_durable_outcomes(fixture: &dyn StoreFixture) {
    let store = FaultStore::wrap(fixture.store());
    let observed = store.clone();
    let workflow = Workflow::new("w", move |mut cx: Context, n: usize| {
        let store = observed.clone();
        async move {
            let mut committed = Vec::new();
            for _ in 0..n {
                cx.step("s", async || BodyResult::Ok(fresh_number())).speculative().await?;
                committed.push(checkpoints(&store));
            }
            BodyResult::Ok(committed)
        }
    })
    .durable_reads(true);
    let engine = super::support::open(store, |b| b.register(&workflow)).await;
    assert_eq!(engine.run(&workflow, 4).await.unwrap(), [1, 2, 3, 4]);
    shut_down(engine).await;
}

async fn durable_reads_show_no_fenced_outcome(fixture: &dyn StoreFixture) {
    let (seen, bodies) = (Arc::new(Mutex::new(Vec::new())), Count::new());
    let workflow = {
        let (seen, bodies) = (seen.clone(), bodies.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (seen, bodies) = (seen.clone(), bodies.clone());
            async move {
                let value = cx.step("s", || std::future::ready(BodyResult::Ok(bodies.increment()))).await?;
                seen.lock().unwrap().push(value);
                BodyResult::Ok(value)
            }
        })
        .durable_reads(true)
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    store.hold_writes(|write| matches!(write, Write::Checkpoint(_)));
    let handle = engine.start(&workflow, ()).await.unwrap();
    store.wait_until_hanging().await;
    // the worker is busy, and does not receive the fence at once
    let before = store.hold_calls(&[Call::Heartbeat]);
    store.wait_until_called(Call::Heartbeat, before + 1).await;
    store.fail_next_commit_with(StoreError::Fenced);
    store.hold_writes(|_| false);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    store.release();
    assert_eq!(handle.result().await.unwrap(), 2);
    assert_eq!(*seen.lock().unwrap(), [2], "the workflow saw an outcome that was not recorded");
    shut_down(engine).await;
}

async fn invalid_step_names_are_errors(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, name: String| async move {
        cx.step(name, async || BodyResult::Ok(1)).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for name in [String::new(), "a\0b".into(), "x".repeat(256)] {
        let Error::Failed(failure) = engine.run(&workflow, name).await.unwrap_err() else { panic!() };
        assert!(failure.message.contains("step name"), "{failure}");
    }
    for name in ["🦀".to_owned(), "it's \"quoted\"".into(), "x".repeat(255)] {
        assert_eq!(engine.run(&workflow, name).await.unwrap(), 1);
    }
    shut_down(engine).await;
}

async fn execution_completes_a_thousand_steps(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("thousand", |mut cx: Context, n: usize| async move {
        for i in 0..n {
            cx.step("s", || std::future::ready(BodyResult::Ok(i))).speculative().await?;
        }
        BodyResult::Ok(n)
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1000).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1000);
    assert_eq!(record(&engine, &handle.workflow_id()).await.checkpoints.len(), 1000);
    shut_down(engine).await;
}
