//! Faults: what an engine makes of a database that is away, slow, choosy, or not to be trusted.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::failure::OUTCOME_REJECTED;
use stepfast_core::store::{Filter, Outcome, RequestResult, State, Status, StoreError, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Failure, Workflow};

use super::support::{
    Count, Latch, Returns, engine, fresh_number, noop, open, record, row, second_engine, shut_down, steps,
    suspends, waiting,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, Fault, FaultStore};

super::cases![
    any_call_may_fail_before_it_happens,
    any_answer_may_be_lost,
    any_call_may_hang,
    a_refused_checkpoint_is_the_steps_error,
    a_refused_start_fails_its_caller_only,
    a_refused_end_fails_its_execution_only,
    a_blocked_write_waits_aside,
    a_database_that_is_down_for_a_while_loses_nothing,
    nothing_begins_while_the_database_is_down,
    callers_wait_at_the_bound,
    nothing_of_a_start_that_lost_lands,
    a_tree_stops_with_a_start_that_lost,
    an_end_does_not_overtake_what_is_held_behind_its_start,
    requests_that_cannot_share_a_flush_do_not_hold_up_others,
    one_whose_writes_wait_for_each_other_does_not_hold_up_others,
    lost_history_stops_the_engine,
    a_database_that_cannot_be_trusted_stops_the_engine,
    shutting_down_without_a_database_ends,
    shutting_down_with_a_database_that_hangs_ends,
];

/// What the scenario runs.
struct All {
    steps: Workflow<usize, Vec<usize>>,
    flaky: Workflow<(), usize>,
    echo: Workflow<String, String>,
    parent: Workflow<usize, usize>,
    sleeper: Workflow<(), ()>,
    stuck: Workflow<i64, i64>,
    begun: Count,
}

impl All {
    fn new() -> Self {
        let (steps, begun) = (steps(), Count::new());
        let child = steps.clone();
        Self {
            stuck: waiting("stuck", &begun, &Latch::new()),
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
                cx.step("echo", || std::future::ready(Returns::Ok(text.clone()))).await
            }),
            parent: Workflow::new("parent", move |mut cx: Context, n: usize| {
                let child = child.clone();
                async move {
                    let one = cx.start_child(&child, n).await?;
                    let two = cx.child(&child, n).await?;
                    Returns::Ok(one.result(&mut cx).await?.len() + two.len())
                }
            }),
            sleeper: Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
                cx.step("before", async || Returns::Ok(())).await?;
                cx.sleep(Duration::from_millis(60)).await;
                cx.step("after", async || Returns::Ok(())).await
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

    /// Everything that an engine can be asked for, with what must come of it.
    async fn happen(&self, engine: &Engine, id: &str) {
        let named = |what: &str| format!("{id} {what}");
        let values = again(async || engine.run(&self.steps, 2).workflow_id(named("steps")).await).await;
        assert_eq!(values.len(), 2);
        assert_eq!(
            again(async || engine.run(&self.steps, 2).workflow_id(named("steps")).await).await,
            values
        );
        assert_eq!(again(async || engine.run(&self.flaky, ()).workflow_id(named("flaky")).await).await, 3);
        let text = "x".repeat(200_000);
        let echo =
            again(async || engine.start(&self.echo, text.clone()).workflow_id(named("echo")).await).await;
        let parent = again(async || engine.start(&self.parent, 1).workflow_id(named("parent")).await).await;
        let sleeper =
            again(async || engine.start(&self.sleeper, ()).workflow_id(named("sleeper")).await).await;
        let begun = self.begun.get();
        let stuck = again(async || engine.start(&self.stuck, 1).workflow_id(named("stuck")).await).await;
        self.begun.reaches(begun + 1).await;
        again(async || stuck.cancel().await).await;
        assert_eq!(again(async || parent.result().await).await, 2);
        again(async || sleeper.result().await).await;
        assert!(again(async || echo.result().await).await == text);
        let error = stuck.result().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        let filter = Filter { id_prefix: Some(format!("{id} ").into()), limit: 99, ..Filter::default() };
        let rows = again(async || engine.list(&filter).await).await.executions;
        assert_eq!(rows.len(), 6, "each was started once");
        assert!(rows.iter().all(|row| row.status.is_terminal()));
        let shown = again(async || engine.show(&named("parent")).await).await;
        let children = Filter { parent: Some(shown.execution.key), limit: 99, ..Filter::default() };
        assert_eq!(again(async || engine.list(&children).await).await.executions.len(), 2);
    }
}

/// Asks again as long as the answer is that nobody knows.
async fn again<T>(ask: impl AsyncFn() -> Result<T, Error>) -> T {
    for _ in 0..100 {
        match ask().await {
            Ok(answer) => return answer,
            Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a single fault has made the database unavailable for good");
}

/// Lets the first, second, ... call fail, until there are no more calls.
async fn every_call(fixture: &dyn StoreFixture, fault: Fault) {
    let all = All::new();
    let handle = fixture.store();
    for n in 1..500 {
        let store = FaultStore::wrap(handle.clone());
        let engine = all.engine(store.clone()).await;
        store.fail_nth_call(n, fault);
        let id = format!("{fault:?} {n}");
        let happen = all.happen(&engine, &id);
        if fault == Fault::Hang {
            let release = async {
                store.wait_until_hanging().await;
                store.release();
                std::future::pending::<()>().await;
            };
            tokio::select! { () = happen => {}, () = release => {} }
        } else {
            happen.await;
        }
        let has_fired = store.has_fired();
        shut_down(engine).await;
        if !has_fired {
            assert!(n > 15, "only {n} calls");
            return;
        }
    }
    panic!("the scenario does not end");
}

async fn any_call_may_fail_before_it_happens(fixture: &dyn StoreFixture) {
    every_call(fixture, Fault::Before).await;
}

async fn any_answer_may_be_lost(fixture: &dyn StoreFixture) {
    every_call(fixture, Fault::After).await;
}

async fn any_call_may_hang(fixture: &dyn StoreFixture) {
    every_call(fixture, Fault::Hang).await;
}

/// Starts one execution of each input at once, so that they share flushes.
async fn at_once<O: serde::de::DeserializeOwned + Send + 'static>(
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

async fn a_refused_checkpoint_is_the_steps_error(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, n: usize| {
            let bodies = bodies.clone();
            async move {
                let value = cx
                    .step(format!("value {n}"), || {
                        bodies.more();
                        std::future::ready(Returns::Ok(n))
                    })
                    .await;
                let next = cx.step("next", async || Returns::Ok(1)).await?;
                Returns::Ok((value, next))
            }
        })
    };
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    store.reject(|write| {
        matches!(write, Write::Checkpoint(c) if &*c.name == "value 7" && c.outcome.decode::<usize>().is_ok())
    });
    for (n, output) in at_once(&engine, &store, &workflow, 20).await.into_iter().enumerate() {
        let (value, next) = output.unwrap();
        assert_eq!(next, 1);
        if n == 7 {
            let failure = value.unwrap_err();
            assert_eq!(failure.code(), Some(OUTCOME_REJECTED));
            assert!(failure.message.contains("does not like it"), "{failure}");
        } else {
            assert_eq!(value.unwrap(), n);
        }
    }
    assert_eq!(bodies.get(), 20);
    shut_down(engine).await;
}

async fn a_refused_start_fails_its_caller_only(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
    for id in [None, Some("given")] {
        let is_seventh = |write: &Write| matches!(write, Write::Start(start) if start.input.decode::<usize>().unwrap() == 7);
        store.reject(is_seventh);
        for (n, output) in at_once(&engine, &store, &steps, 12).await.into_iter().enumerate() {
            match output {
                Ok(values) => assert_eq!(values.len(), n),
                Err(error) => {
                    assert!(n == 7 && error.to_string().contains("does not like it"), "{n}: {error}");
                }
            }
        }
        let start = engine.start(&steps, 7);
        let start = if let Some(id) = id { start.workflow_id(id) } else { start };
        let error = start.await.map(drop).unwrap_err();
        assert!(error.to_string().contains("does not like it"), "{error}");
        store.accept_all();
        let start = engine.start(&steps, 7);
        let start = if let Some(id) = id { start.workflow_id(id) } else { start };
        assert_eq!(start.await.unwrap().result().await.unwrap().len(), 7);
    }
    assert_eq!(engine.running_count(), 0);
    shut_down(engine).await;
}

async fn a_refused_end_fails_its_execution_only(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
    store.reject(|write| match write {
        Write::Transition(change) => match &change.state {
            State::Ended { outcome, .. } => {
                outcome.decode::<Vec<usize>>().is_ok_and(|values| values.len() == 7)
            }
            _ => false,
        },
        _ => false,
    });
    for (n, output) in at_once(&engine, &store, &steps, 12).await.into_iter().enumerate() {
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

async fn a_blocked_write_waits_aside(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
    store.block(
        |write| matches!(write, Write::Start(start) if start.workflow_id.as_deref() == Some("blocked")),
    );
    let blocked = {
        let (engine, steps) = (engine.clone(), steps.clone());
        tokio::spawn(async move { engine.run(&steps, 2).workflow_id("blocked").await })
    };
    for (n, output) in at_once(&engine, &store, &steps, 12).await.into_iter().enumerate() {
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

const ALL: &[Call] = &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::LoadValue, Call::List];

async fn a_database_that_is_down_for_a_while_loses_nothing(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
    let mut runs = Vec::new();
    for round in 0..3 {
        for n in 0..10 {
            let (engine, steps) = (engine.clone(), steps.clone());
            let id = format!("{round} {n}");
            runs.push((n, tokio::spawn(async move { engine.run(&steps, n).workflow_id(id).await })));
        }
        store.make_unavailable(ALL);
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

async fn nothing_begins_while_the_database_is_down(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let workflow = waiting("w", &count, &latch);
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    store.make_unavailable(ALL);
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
    count.reaches(2).await;
    shut_down(engine).await;
}

async fn callers_wait_at_the_bound(fixture: &dyn StoreFixture) {
    let length = Workflow::new("length", |mut cx: Context, text: String| async move {
        cx.step("length", || std::future::ready(Returns::Ok(text.clone()))).await.map(|text| text.len())
    });
    let bound = 1 << 20;
    let (engine, store) = engine(fixture, |b| b.register(&length).staged_bytes(bound)).await;
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

async fn nothing_of_a_start_that_lost_lands(fixture: &dyn StoreFixture) {
    let child = noop();
    let (bodies, workflow) = (Count::new(), child.clone());
    let workflow = {
        let bodies = bodies.clone();
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let (bodies, child) = (bodies.clone(), workflow.clone());
            async move {
                let value = cx
                    .step("guess", || {
                        bodies.more();
                        std::future::ready(Returns::Ok(fresh_number()))
                    })
                    .speculative()
                    .await?;
                cx.start_detached(&child, x).await?;
                cx.step("act", || std::future::ready(Returns::Ok(value))).await
            }
        })
    };
    let (one, store) = engine(fixture, |b| b.register(&workflow).register(&child)).await;
    let (two, other) = second_engine(fixture, |b| b.register(&workflow).register(&child)).await;
    for round in 0..5 {
        let id = format!("{round}");
        store.hold_calls(&[Call::Commit]);
        let loser = {
            let (one, workflow, id) = (one.clone(), workflow.clone(), id.clone());
            tokio::spawn(async move { one.run(&workflow, 1).workflow_id(id).await })
        };
        store.wait_until_hanging().await;
        let won = two.run(&workflow, 1).workflow_id(id.clone()).await.unwrap();
        store.release();
        assert_eq!(loser.await.unwrap().unwrap(), won);
        assert_eq!(
            record(&two, &id).await.checkpoints.last().unwrap().outcome.decode::<usize>().unwrap(),
            won
        );
    }
    assert_eq!(bodies.get(), 5);
    let applied = store
        .committed_writes()
        .into_iter()
        .filter(|(write, outcome)| *outcome == Outcome::Applied && !matches!(write, Write::Wake(_)));
    assert_eq!(applied.count(), 0, "what the first engine did has all lost");
    assert_eq!(one.count(&Filter::default()).await.unwrap(), 10);
    drop(other);
    shut_down(one).await;
    shut_down(two).await;
}

async fn a_tree_stops_with_a_start_that_lost(fixture: &dyn StoreFixture) {
    let (begun, go) = (Count::new(), Latch::new());
    let child = {
        let (begun, go) = (begun.clone(), go.clone());
        Workflow::new("child", move |mut cx: Context, is_patient: bool| {
            let (begun, go) = (begun.clone(), go.clone());
            async move {
                begun.more();
                if is_patient {
                    // for something that nobody records
                    std::future::pending::<()>().await;
                }
                // code that blocks its thread hears of nothing
                while !go.is_open() {
                    std::thread::yield_now();
                }
                cx.sleep(Duration::ZERO).await;
                cx.step("act", || std::future::ready(Returns::Ok(1))).speculative().await
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
    let (one, store) = engine(fixture, |b| b.register(&root).register(&child)).await;
    let there = Workflow::new("root", |_cx: Context, (): ()| async move { Returns::Ok(2) });
    let (two, _) = second_engine(fixture, |b| b.register(&there)).await;
    store.hold_calls(&[Call::Commit]);
    let loser = {
        let (one, root) = (one.clone(), root.clone());
        tokio::spawn(async move { one.run(&root, ()).workflow_id("x").await })
    };
    begun.reaches(2).await;
    assert_eq!(two.run(&there, ()).workflow_id("x").await.unwrap(), 2);
    store.release();
    assert_eq!(loser.await.unwrap().unwrap(), 2);
    go.open();
    while one.running_count() > 0 {
        tokio::task::yield_now().await;
    }
    shut_down(one).await;
    let written = store.committed_writes().into_iter().filter(|(write, outcome)| {
        *outcome == Outcome::Applied
            && matches!(write, Write::Start(_) | Write::Checkpoint(_) | Write::Transition(_))
    });
    assert_eq!(written.count(), 0, "what the first engine did has all lost");
    assert_eq!(two.count(&Filter::default()).await.unwrap(), 1);
    shut_down(two).await;
}

async fn an_end_does_not_overtake_what_is_held_behind_its_start(fixture: &dyn StoreFixture) {
    let noop = noop();
    let sleeper = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        // recorded without waiting for the Start
        cx.sleep(Duration::from_millis(1)).await;
        Returns::Ok(())
    });
    let (engine, store) = engine(fixture, |b| b.register(&noop).register(&sleeper)).await;
    store.hold_calls(&[Call::Commit]);
    let (one, first) = (engine.clone(), noop.clone());
    let first = tokio::spawn(async move { one.run(&first, 1).await });
    store.wait_until_hanging().await;
    // its Start waits in the next flush, its outcome unknown; the timer's checkpoint is held, then comes the end
    let one = engine.clone();
    let run = tokio::spawn(async move { one.run(&sleeper, ()).workflow_id("x").await });
    while engine.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < 2 {
        tokio::task::yield_now().await;
    }
    store.release();
    first.await.unwrap().unwrap();
    run.await.unwrap().unwrap();
    let key = row(&engine, "x").await.key;
    let landed: Vec<Write> = store.committed_writes().into_iter().map(|(write, _)| write).collect();
    let of_x: Vec<&Write> = landed.iter().filter(|write| write.execution() == key).collect();
    assert!(
        matches!(&of_x[..], [Write::Start(start), Write::Checkpoint(_), Write::Transition(_)]
            if start.state.status() == Status::Running),
        "{of_x:?}"
    );
    shut_down(engine).await;
}

async fn requests_that_cannot_share_a_flush_do_not_hold_up_others(fixture: &dyn StoreFixture) {
    let sleeper = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        cx.sleep(Duration::from_hours(1)).await;
        Returns::Ok(())
    });
    let steps = steps();
    let (engine, store) =
        engine(fixture, |b| b.register(&sleeper).register(&steps).suspend_after(Duration::from_millis(1)))
            .await;
    let handle = engine.start(&sleeper, ()).workflow_id("x").await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    let mut askers = Vec::new();
    for n in 0..30 {
        let engine = engine.clone();
        askers.push(tokio::spawn(async move {
            if n % 2 == 0 { engine.cancel("x").await } else { engine.resume("x").await }
        }));
    }
    for (n, output) in at_once(&engine, &store, &steps, 12).await.into_iter().enumerate() {
        assert_eq!(output.unwrap().len(), n);
    }
    for asker in askers {
        let answer = asker.await.unwrap().unwrap();
        assert!(
            !matches!(answer, RequestResult::NotApplicable(Status::Completed | Status::Failed)),
            "{answer:?}"
        );
    }
    while !row(&engine, "x").await.status.is_terminal() {
        engine.cancel("x").await.unwrap();
    }
    shut_down(engine).await;
}

async fn one_whose_writes_wait_for_each_other_does_not_hold_up_others(fixture: &dyn StoreFixture) {
    let (noop, steps, started, enough) = (noop(), steps(), Count::new(), Latch::new());
    let busy = {
        let (child, started, enough) = (noop.clone(), started.clone(), enough.clone());
        Workflow::new("busy", move |mut cx: Context, (): ()| {
            let (child, started, enough) = (child.clone(), started.clone(), enough.clone());
            async move {
                cx.sleep(Duration::from_hours(1)).await;
                while !enough.is_open() {
                    // claimed: each Start holds its tree until it is known whether the child was there
                    cx.start_detached(&child, 1).await?;
                    started.more();
                }
                Returns::Ok(())
            }
        })
    };
    let with = |b: stepfast_core::EngineBuilder| {
        b.register(&noop).register(&steps).register(&busy).suspend_after(Duration::ZERO)
    };
    let (engine, store) = engine(fixture, with).await;
    let handle = engine.start(&busy, ()).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    fixture.clock().advance(Duration::from_hours(1));
    started.reaches(1).await;
    for n in 0..20 {
        let before = started.get();
        assert_eq!(engine.run(&steps, n % 4).await.unwrap().len(), n % 4);
        // both go on
        started.reaches(before + 1).await;
    }
    assert!(!handle.status().await.unwrap().is_terminal());
    enough.open();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn lost_history_stops_the_engine(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| b.register(&steps)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&steps)).await;
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
    assert_eq!(two.run(&steps, 1).await.unwrap().len(), 1, "others are not concerned");
    shut_down(two).await;
}

async fn a_database_that_cannot_be_trusted_stops_the_engine(fixture: &dyn StoreFixture) {
    for call in [Call::Heartbeat, Call::Claim] {
        let (count, latch) = (Count::new(), Latch::new());
        let workflow = waiting("w", &count, &latch);
        let (engine, store) = engine(fixture, |b| b.register(&workflow).max_running(1)).await;
        engine.start(&workflow, 1).await.unwrap();
        count.reaches(1).await;
        let queued = engine.start(&workflow, 2).await.unwrap();
        let waiting = tokio::spawn(async move { queued.result().await });
        store.fail_next_with(call, StoreError::Corrupt("an answer".into()));
        if call == Call::Claim {
            // there is a place for the other
            latch.open();
        }
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Corrupt, "SF-0015"), "{call:?}: {error}");
        assert!(error.to_string().contains("an answer"), "{error}");
        latch.open();
        engine.shutdown(Duration::from_secs(5)).await.unwrap();
        let (next, _) = second_engine(fixture, |b| b.register(&workflow)).await;
        while next.count(&unended()).await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
        shut_down(next).await;
    }
}

fn unended() -> Filter {
    let statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    Filter { statuses, ..Filter::default() }
}

async fn shutting_down_without_a_database_ends(fixture: &dyn StoreFixture) {
    stop_without(fixture, |store| {
        store.make_unavailable(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::Close]);
    })
    .await;
}

async fn shutting_down_with_a_database_that_hangs_ends(fixture: &dyn StoreFixture) {
    stop_without(fixture, |store| {
        store.hold_calls(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::Close]);
    })
    .await;
}

async fn stop_without(fixture: &dyn StoreFixture, fail: impl FnOnce(&FaultStore)) {
    let (count, latch) = (Count::new(), Latch::new());
    let (workflow, steps) = (waiting("w", &count, &latch), steps());
    let (engine, store) = engine(fixture, |b| b.register(&workflow).register(&steps)).await;
    let running = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
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
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    for error in [start.await.unwrap().unwrap_err(), waiting.await.unwrap().map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(engine.run(&steps, 1).await.unwrap_err().code(), "SF-0012");
    store.make_unavailable(&[]);
    store.release();
}
