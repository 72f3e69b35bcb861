//! Faults: the behaviour of an engine on a database that is unreachable, slow, rejects Writes, or returns corrupt data.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::failure::OUTCOME_REJECTED;
use stepfast_core::store::{Filter, Outcome, RequestResult, State, Status, StoreError, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, fresh_number, is_suspension_of, latched_workflow, noop, open, open_engine,
    open_second_engine, record, row, shut_down, steps,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    workflows_complete_when_any_call_fails,
    workflows_complete_when_any_reply_is_lost,
    workflows_complete_when_any_call_hangs,
    rejected_checkpoint_is_the_error_of_its_step,
    rejected_start_fails_only_its_caller,
    rejected_end_fails_only_its_execution,
    blocked_write_delays_no_others,
    database_outage_loses_nothing,
    executions_begin_only_after_a_database_outage,
    callers_wait_at_the_staging_limit,
    duplicate_start_commits_no_other_writes,
    duplicate_start_stops_its_tree,
    end_never_overtakes_writes_held_behind_its_start,
    requests_in_separate_flushes_delay_no_others,
    execution_with_dependent_writes_delays_no_others,
    lost_history_stops_the_engine,
    corrupt_reply_stops_the_engine,
    shutdown_ends_without_a_database,
    shutdown_ends_while_the_database_hangs,
];

/// The workflows that every case with a single fault runs.
struct FaultWorkflows {
    steps: Workflow<usize, Vec<usize>>,
    flaky: Workflow<(), usize>,
    echo: Workflow<String, String>,
    parent: Workflow<usize, usize>,
    sleeper: Workflow<(), ()>,
    stuck: Workflow<i64, i64>,
    begun: Count,
}

impl FaultWorkflows {
    fn new() -> Self {
        let (steps, begun) = (steps(), Count::new());
        let child = steps.clone();
        Self {
            stuck: latched_workflow("stuck", &begun, &Latch::new()),
            begun,
            flaky: Workflow::new("flaky", |mut cx: Context, (): ()| async move {
                let mut calls = 0;
                cx.step("flaky", || {
                    calls += 1;
                    std::future::ready(if calls < 3 { Err(Failure::new("no")) } else { Ok(calls) })
                })
                .retries(3)
                .backoff(Duration::ZERO, Duration::ZERO)
                .await
            }),
            echo: Workflow::new("echo", |mut cx: Context, text: String| async move {
                cx.step("echo", || std::future::ready(BodyResult::Ok(text.clone()))).await
            }),
            parent: Workflow::new("parent", move |mut cx: Context, n: usize| {
                let child = child.clone();
                async move {
                    let one = cx.start_child(&child, n).await?;
                    let two = cx.child(&child, n).await?;
                    BodyResult::Ok(one.result(&mut cx).await?.len() + two.len())
                }
            }),
            sleeper: Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
                cx.step("before", async || BodyResult::Ok(())).await?;
                cx.sleep(Duration::from_millis(60)).await;
                cx.step("after", async || BodyResult::Ok(())).await
            }),
            steps,
        }
    }

    async fn engine(&self, store: Arc<FaultStore>) -> Engine {
        open(store, |b| {
            b.register(&self.steps)
                .register(&self.flaky)
                .register(&self.echo)
                .register(&self.parent)
                .register(&self.sleeper)
                .register(&self.stuck)
                .suspend_after(Duration::from_millis(5))
        })
        .await
    }

    /// Runs every operation of an engine, and asserts each result.
    async fn run_all(&self, engine: &Engine, id: &str) {
        let named = |what: &str| format!("{id} {what}");
        let values = retry(async || engine.run(&self.steps, 2).workflow_id(named("steps")).await).await;
        assert_eq!(values.len(), 2);
        assert_eq!(
            retry(async || engine.run(&self.steps, 2).workflow_id(named("steps")).await).await,
            values
        );
        assert_eq!(retry(async || engine.run(&self.flaky, ()).workflow_id(named("flaky")).await).await, 3);
        let text = "x".repeat(200_000);
        let echo =
            retry(async || engine.start(&self.echo, text.clone()).workflow_id(named("echo")).await).await;
        let parent = retry(async || engine.start(&self.parent, 1).workflow_id(named("parent")).await).await;
        let sleeper =
            retry(async || engine.start(&self.sleeper, ()).workflow_id(named("sleeper")).await).await;
        let begun = self.begun.get();
        let stuck = retry(async || engine.start(&self.stuck, 1).workflow_id(named("stuck")).await).await;
        self.begun.wait_for(begun + 1).await;
        retry(async || stuck.cancel().await).await;
        assert_eq!(retry(async || parent.result().await).await, 2);
        retry(async || sleeper.result().await).await;
        assert!(retry(async || echo.result().await).await == text);
        let error = stuck.result().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        let filter = Filter { id_prefix: Some(format!("{id} ").into()), limit: 99, ..Filter::default() };
        let rows = retry(async || engine.list(&filter).await).await.executions;
        assert_eq!(rows.len(), 6, "an execution was started twice");
        assert!(rows.iter().all(|row| row.status.is_terminal()));
        let shown = retry(async || engine.show(&named("parent")).await).await;
        let children = Filter { parent: Some(shown.execution.key), limit: 99, ..Filter::default() };
        assert_eq!(retry(async || engine.list(&children).await).await.executions.len(), 2);
    }
}

/// Repeats a request while the database is unavailable.
async fn retry<T>(request: impl AsyncFn() -> Result<T, Error>) -> T {
    for _ in 0..100 {
        match request().await {
            Ok(output) => return output,
            Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the database stayed unavailable after a single fault");
}

/// Lets the first, second, … call fail, until a run makes fewer calls.
async fn fail_every_call(fixture: &dyn StoreFixture, fault: Fault) {
    let all = FaultWorkflows::new();
    let handle = fixture.store();
    for n in 1..500 {
        let store = FaultStore::wrap(handle.clone());
        let engine = all.engine(store.clone()).await;
        store.fail_nth_call(n, fault);
        let id = format!("{fault:?} {n}");
        let run_all = all.run_all(&engine, &id);
        if fault == Fault::Hang {
            let release = async {
                store.wait_until_hanging().await;
                store.release();
                std::future::pending::<()>().await;
            };
            tokio::select! { () = run_all => {}, () = release => {} }
        } else {
            run_all.await;
        }
        let has_fired = store.has_fired();
        shut_down(engine).await;
        if !has_fired {
            assert!(n > 15, "only {n} calls");
            return;
        }
    }
    panic!("the number of calls has no end");
}

async fn workflows_complete_when_any_call_fails(fixture: &dyn StoreFixture) {
    fail_every_call(fixture, Fault::Before).await;
}

async fn workflows_complete_when_any_reply_is_lost(fixture: &dyn StoreFixture) {
    fail_every_call(fixture, Fault::After).await;
}

async fn workflows_complete_when_any_call_hangs(fixture: &dyn StoreFixture) {
    fail_every_call(fixture, Fault::Hang).await;
}

/// Starts `count` executions at once, with the inputs from zero, so that they share flushes.
async fn run_concurrently<O: serde::de::DeserializeOwned + Send + 'static>(
    engine: &Engine,
    store: &FaultStore,
    workflow: &Workflow<usize, O>,
    count: usize,
) -> Vec<Result<O, Error>> {
    store.hold_calls(&[Call::Commit]);
    let mut runs = Vec::new();
    for n in 0..count {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        runs.push(tokio::spawn(async move { engine.run(&workflow, n).await }));
    }
    store.wait_until_hanging().await;
    store.release();
    let mut outputs = Vec::new();
    for run in runs {
        outputs.push(run.await.unwrap());
    }
    outputs
}

async fn rejected_checkpoint_is_the_error_of_its_step(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, n: usize| {
            let bodies = bodies.clone();
            async move {
                let value = cx
                    .step(format!("value {n}"), || {
                        bodies.increment();
                        std::future::ready(BodyResult::Ok(n))
                    })
                    .await;
                let next = cx.step("next", async || BodyResult::Ok(1)).await?;
                BodyResult::Ok((value, next))
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    store.reject(|write| {
        matches!(write, Write::Checkpoint(c) if &*c.name == "value 7" && c.outcome.decode::<usize>().is_ok())
    });
    for (n, output) in run_concurrently(&engine, &store, &workflow, 20).await.into_iter().enumerate() {
        let (value, next) = output.unwrap();
        assert_eq!(next, 1);
        if n == 7 {
            let failure = value.unwrap_err();
            assert_eq!(failure.code(), Some(OUTCOME_REJECTED));
            assert!(failure.message.contains("a test rejects it"), "{failure}");
        } else {
            assert_eq!(value.unwrap(), n);
        }
    }
    assert_eq!(bodies.get(), 20);
    shut_down(engine).await;
}

async fn rejected_start_fails_only_its_caller(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    for id in [None, Some("given")] {
        let is_seventh = |write: &Write| matches!(write, Write::Start(start) if start.input.decode::<usize>().unwrap() == 7);
        store.reject(is_seventh);
        for (n, output) in run_concurrently(&engine, &store, &steps, 12).await.into_iter().enumerate() {
            match output {
                Ok(values) => assert_eq!(values.len(), n),
                Err(error) => {
                    assert!(n == 7 && error.to_string().contains("a test rejects it"), "{n}: {error}");
                }
            }
        }
        let start = engine.start(&steps, 7);
        let start = if let Some(id) = id { start.workflow_id(id) } else { start };
        let error = start.await.map(drop).unwrap_err();
        assert!(error.to_string().contains("a test rejects it"), "{error}");
        store.accept_all();
        let start = engine.start(&steps, 7);
        let start = if let Some(id) = id { start.workflow_id(id) } else { start };
        assert_eq!(start.await.unwrap().result().await.unwrap().len(), 7);
    }
    assert_eq!(engine.running_count(), 0);
    shut_down(engine).await;
}

async fn rejected_end_fails_only_its_execution(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.reject(|write| match write {
        Write::Transition(change) => match &change.state {
            State::Ended { outcome, .. } => {
                outcome.decode::<Vec<usize>>().is_ok_and(|values| values.len() == 7)
            }
            _ => false,
        },
        _ => false,
    });
    for (n, output) in run_concurrently(&engine, &store, &steps, 12).await.into_iter().enumerate() {
        match output {
            Ok(values) => assert_eq!(values.len(), n),
            Err(error) => {
                let Error::Failed(failure) = &error else { panic!("{n}: {error}") };
                assert_eq!((n, failure.code()), (7, Some(OUTCOME_REJECTED)));
            }
        }
    }
    shut_down(engine).await;
}

async fn blocked_write_delays_no_others(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.block(
        |write| matches!(write, Write::Start(start) if start.workflow_id.as_deref() == Some("blocked")),
    );
    let blocked = {
        let (engine, steps) = (engine.clone(), steps.clone());
        tokio::spawn(async move { engine.run(&steps, 2).workflow_id("blocked").await })
    };
    for (n, output) in run_concurrently(&engine, &store, &steps, 12).await.into_iter().enumerate() {
        assert_eq!(output.unwrap().len(), n);
    }
    for n in 0..5 {
        let id = format!("other {n}");
        assert_eq!(engine.run(&steps, n).workflow_id(id).await.unwrap().len(), n);
    }
    assert!(!blocked.is_finished());
    store.accept_all();
    assert_eq!(blocked.await.unwrap().unwrap().len(), 2);
    shut_down(engine).await;
}

const ALL_CALLS: &[Call] =
    &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::LoadValue, Call::List];

async fn database_outage_loses_nothing(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    let mut runs = Vec::new();
    for round in 0..3 {
        for n in 0..10 {
            let (engine, steps) = (engine.clone(), steps.clone());
            let id = format!("{round} {n}");
            runs.push((n, tokio::spawn(async move { engine.run(&steps, n).workflow_id(id).await })));
        }
        store.make_unavailable(ALL_CALLS);
        store.wait_until_called(Call::Commit, store.call_count(Call::Commit) + 3).await;
        let (engine, steps) = (engine.clone(), steps.clone());
        runs.push((4, tokio::spawn(async move { engine.run(&steps, 4).await })));
        store.wait_until_called(Call::Commit, store.call_count(Call::Commit) + 3).await;
        store.make_unavailable(&[]);
    }
    for (n, run) in runs {
        assert_eq!(run.await.unwrap().unwrap().len(), n);
    }
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 33);
    shut_down(engine).await;
}

async fn executions_begin_only_after_a_database_outage(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    store.make_unavailable(ALL_CALLS);
    let run = {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, 3).await })
    };
    let error =
        engine.start(&workflow, 1).wait_timeout(Duration::from_millis(30)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    store.wait_until_called(Call::Commit, store.call_count(Call::Commit) + 3).await;
    assert_eq!((count.get(), run.is_finished()), (0, false));
    store.make_unavailable(&[]);
    assert_eq!(run.await.unwrap().unwrap(), 3);
    count.wait_for(2).await;
    shut_down(engine).await;
}

async fn callers_wait_at_the_staging_limit(fixture: &dyn StoreFixture) {
    let length = Workflow::new("length", |mut cx: Context, text: String| async move {
        cx.step("length", || std::future::ready(BodyResult::Ok(text.clone()))).await.map(|text| text.len())
    });
    let bound = 1 << 20;
    let (engine, store) = open_engine(fixture, |b| b.register(&length).staged_bytes(bound)).await;
    store.hold_calls(&[Call::Commit]);
    let size = 20_000;
    let mut starts = Vec::new();
    for _ in 0..200 {
        let (engine, length) = (engine.clone(), length.clone());
        starts.push(tokio::spawn(async move {
            engine.start(&length, "x".repeat(size)).await.unwrap().result().await
        }));
    }
    store.wait_until_hanging().await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let staged: usize = engine.lane_load().iter().map(|lane| lane.staged).sum();
    let lanes = engine.lane_load().len();
    assert!(staged * size <= bound * lanes, "{staged} starts of {size} bytes are staged");
    store.release();
    for start in starts {
        assert_eq!(start.await.unwrap().unwrap(), size);
    }
    shut_down(engine).await;
}

async fn duplicate_start_commits_no_other_writes(fixture: &dyn StoreFixture) {
    let child = noop();
    let (bodies, workflow) = (Count::new(), child.clone());
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let (bodies, child) = (bodies.clone(), workflow.clone());
            async move {
                let value = cx
                    .step("guess", || {
                        bodies.increment();
                        std::future::ready(BodyResult::Ok(fresh_number()))
                    })
                    .speculative()
                    .await?;
                cx.start_detached(&child, x).await?;
                cx.step("act", || std::future::ready(BodyResult::Ok(value))).await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).register(&child)).await;
    let (two, other) = open_second_engine(fixture, |b| b.register(&workflow).register(&child)).await;
    for round in 0..5 {
        let id = format!("{round}");
        store.hold_calls(&[Call::Commit]);
        let duplicate_run = {
            let (one, workflow, id) = (one.clone(), workflow.clone(), id.clone());
            tokio::spawn(async move { one.run(&workflow, 1).workflow_id(id).await })
        };
        store.wait_until_hanging().await;
        let expected = two.run(&workflow, 1).workflow_id(id.clone()).await.unwrap();
        store.release();
        assert_eq!(duplicate_run.await.unwrap().unwrap(), expected);
        assert_eq!(
            record(&two, &id).await.checkpoints.last().unwrap().outcome.decode::<usize>().unwrap(),
            expected
        );
    }
    assert_eq!(bodies.get(), 5);
    let applied = store
        .committed_writes()
        .into_iter()
        .filter(|(write, outcome)| *outcome == Outcome::Applied && !matches!(write, Write::Wake(_)));
    assert_eq!(applied.count(), 0, "a Write of the first engine was applied");
    assert_eq!(one.count(&Filter::default()).await.unwrap(), 10);
    drop(other);
    shut_down(one).await;
    shut_down(two).await;
}

async fn duplicate_start_stops_its_tree(fixture: &dyn StoreFixture) {
    let (begun, go) = (Count::new(), Latch::new());
    let child = {
        let (begun, go) = (begun.clone(), go.clone());
        Workflow::new("child", move |mut cx: Context, waits_forever: bool| {
            let (begun, go) = (begun.clone(), go.clone());
            async move {
                begun.increment();
                if waits_forever {
                    // a wait for an event that is never recorded
                    std::future::pending::<()>().await;
                }
                // code that blocks its thread receives no cancel
                while !go.is_open() {
                    std::thread::yield_now();
                }
                cx.sleep(Duration::ZERO).await;
                cx.step("act", || std::future::ready(BodyResult::Ok(1))).speculative().await
            }
        })
    };
    let root = {
        let child = child.clone();
        Workflow::new("root", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move {
                let _ = cx.start_child(&child, true).await?;
                cx.child(&child, false).await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&root).register(&child)).await;
    let other_root = Workflow::new("root", |_cx: Context, (): ()| async move { BodyResult::Ok(2) });
    let (two, _) = open_second_engine(fixture, |b| b.register(&other_root)).await;
    store.hold_calls(&[Call::Commit]);
    let duplicate_run = {
        let (one, root) = (one.clone(), root.clone());
        tokio::spawn(async move { one.run(&root, ()).workflow_id("x").await })
    };
    begun.wait_for(2).await;
    assert_eq!(two.run(&other_root, ()).workflow_id("x").await.unwrap(), 2);
    store.release();
    assert_eq!(duplicate_run.await.unwrap().unwrap(), 2);
    go.open();
    while one.running_count() > 0 {
        tokio::task::yield_now().await;
    }
    shut_down(one).await;
    let applied = store.committed_writes().into_iter().filter(|(write, outcome)| {
        *outcome == Outcome::Applied
            && matches!(write, Write::Start(_) | Write::Checkpoint(_) | Write::Transition(_))
    });
    assert_eq!(applied.count(), 0, "a Write of the first engine was applied");
    assert_eq!(two.count(&Filter::default()).await.unwrap(), 1);
    shut_down(two).await;
}

async fn end_never_overtakes_writes_held_behind_its_start(fixture: &dyn StoreFixture) {
    let noop = noop();
    let sleeper = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        // recorded without waiting for the Start
        cx.sleep(Duration::from_millis(1)).await;
        BodyResult::Ok(())
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&noop).register(&sleeper)).await;
    store.hold_calls(&[Call::Commit]);
    let (one, first) = (engine.clone(), noop.clone());
    let first = tokio::spawn(async move { one.run(&first, 1).await });
    store.wait_until_hanging().await;
    // its Start waits in the next flush without an outcome; the timer's checkpoint is held, and the end follows it
    let one = engine.clone();
    let run = tokio::spawn(async move { one.run(&sleeper, ()).workflow_id("x").await });
    while engine.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < 3 {
        tokio::task::yield_now().await;
    }
    store.release();
    first.await.unwrap().unwrap();
    run.await.unwrap().unwrap();
    let key = row(&engine, "x").await.key;
    let committed: Vec<Write> = store.committed_writes().into_iter().map(|(write, _)| write).collect();
    let of_x: Vec<&Write> = committed.iter().filter(|write| write.execution() == key).collect();
    assert!(
        matches!(&of_x[..], [Write::Start(start), Write::Checkpoint(_), Write::Transition(_)]
            if start.state.status() == Status::Running),
        "{of_x:?}"
    );
    shut_down(engine).await;
}

async fn requests_in_separate_flushes_delay_no_others(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        cx.sleep(Duration::from_hours(1)).await;
        BodyResult::Ok(())
    });
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| {
        b.register(&sleeper).register(&steps).suspend_after(Duration::from_millis(1))
    })
    .await;
    let handle = engine.start(&sleeper, ()).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    let mut requesters = Vec::new();
    for n in 0..30 {
        let engine = engine.clone();
        requesters.push(tokio::spawn(async move {
            if n % 2 == 0 { engine.cancel("x").await } else { engine.resume("x").await }
        }));
    }
    for (n, output) in run_concurrently(&engine, &store, &steps, 12).await.into_iter().enumerate() {
        assert_eq!(output.unwrap().len(), n);
    }
    for requester in requesters {
        let result = requester.await.unwrap().unwrap();
        assert!(
            !matches!(result, RequestResult::NotApplicable(Status::Completed | Status::Failed)),
            "{result:?}"
        );
    }
    while !row(&engine, "x").await.status.is_terminal() {
        engine.cancel("x").await.unwrap();
    }
    shut_down(engine).await;
}

async fn execution_with_dependent_writes_delays_no_others(fixture: &dyn StoreFixture) {
    let (noop, steps, started, enough) = (noop(), steps(), Count::new(), Latch::new());
    let busy = {
        let (child, started, enough) = (noop.clone(), started.clone(), enough.clone());
        Workflow::new("busy", move |mut cx: Context, (): ()| {
            let (child, started, enough) = (child.clone(), started.clone(), enough.clone());
            async move {
                cx.sleep(Duration::from_hours(1)).await;
                while !enough.is_open() {
                    // claimed: each Start holds its tree until the store has reported whether the child exists
                    cx.start_detached(&child, 1).await?;
                    started.increment();
                }
                BodyResult::Ok(())
            }
        })
    };
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&noop).register(&steps).register(&busy).suspend_after(Duration::ZERO)
    };
    let (engine, store) = open_engine(fixture, with).await;
    let handle = engine.start(&busy, ()).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    fixture.clock().advance(Duration::from_hours(1));
    started.wait_for(1).await;
    for n in 0..20 {
        let before = started.get();
        assert_eq!(engine.run(&steps, n % 4).await.unwrap().len(), n % 4);
        // both continue
        started.wait_for(before + 1).await;
    }
    assert!(!handle.status().await.unwrap().is_terminal());
    enough.open();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn lost_history_stops_the_engine(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| b.register(&steps)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&steps)).await;
    engine.run(&steps, 2).workflow_id("x").await.unwrap();
    store.fail_next_commit_with(StoreError::Corrupt("flush 7 follows on 3".into()));
    let error = engine.run(&steps, 3).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Corrupt, "SF-0015"), "{error}");
    assert!(error.to_string().contains("flush 7 follows on 3"), "{error}");
    for error in [
        engine.run(&steps, 3).await.map(drop).unwrap_err(),
        engine.start(&steps, 3).workflow_id("y").await.map(drop).unwrap_err(),
        engine.cancel("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(two.run(&steps, 1).await.unwrap().len(), 1, "other engines are unaffected");
    shut_down(two).await;
}

async fn corrupt_reply_stops_the_engine(fixture: &dyn StoreFixture) {
    for call in [Call::Heartbeat, Call::Claim] {
        let (count, latch) = (Count::new(), Latch::new());
        let workflow = latched_workflow("w", &count, &latch);
        let (engine, store) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
        engine.start(&workflow, 1).await.unwrap();
        count.wait_for(1).await;
        let queued = engine.start(&workflow, 2).await.unwrap();
        let waiting = tokio::spawn(async move { queued.result().await });
        store.fail_next_with(call, StoreError::Corrupt("an answer".into()));
        if call == Call::Claim {
            // the engine has capacity for the queued execution
            latch.open();
        }
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Corrupt, "SF-0015"), "{call:?}: {error}");
        assert!(error.to_string().contains("an answer"), "{error}");
        latch.open();
        engine.shutdown(Duration::from_secs(5)).await.unwrap();
        let (next, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
        while next.count(&unfinished()).await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
        shut_down(next).await;
    }
}

fn unfinished() -> Filter {
    let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    Filter { statuses, ..Filter::default() }
}

async fn shutdown_ends_without_a_database(fixture: &dyn StoreFixture) {
    stop_without(fixture, |store| {
        store.make_unavailable(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::Close]);
    })
    .await;
}

async fn shutdown_ends_while_the_database_hangs(fixture: &dyn StoreFixture) {
    stop_without(fixture, |store| {
        store.hold_calls(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::Close]);
    })
    .await;
}

async fn stop_without(fixture: &dyn StoreFixture, fail: impl FnOnce(&FaultStore)) {
    let (count, latch) = (Count::new(), Latch::new());
    let (workflow, steps) = (latched_workflow("w", &count, &latch), steps());
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).register(&steps)).await;
    let running = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let called = store.call_count(Call::Commit);
    fail(&store);
    let start = {
        let (engine, steps) = (engine.clone(), steps.clone());
        tokio::spawn(async move { engine.start(&steps, 1).await.map(drop) })
    };
    let waiting = tokio::spawn(async move { running.result().await });
    store.wait_until_called(Call::Commit, called + 1).await;
    let began = tokio::time::Instant::now();
    engine.shutdown(Duration::from_millis(300)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "the shutdown took {:?}", began.elapsed());
    for error in [start.await.unwrap().unwrap_err(), waiting.await.unwrap().map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(engine.run(&steps, 1).await.unwrap_err().code(), "SF-0012");
    store.make_unavailable(&[]);
    store.release();
}
