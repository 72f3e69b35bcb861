//! The staging budget: the limit on staged bytes. The budget that a Write takes is returned completely and once,
//! however the Write ends. Afterwards a Write that needs the entire budget is staged, and no byte beside it.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use stepfast_core::payload::CHUNK_SIZE;
use stepfast_core::store::{State, StoreError, Write};
use stepfast_core::{Context, Either, Engine, EngineBuilder, Error, ErrorKind, Handle, Payload, Workflow};

use super::support::{
    BodyResult, Count, Latch, latched_workflow, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    budget_is_returned_when_writes_are_committed,
    budget_is_returned_when_writes_fold,
    budget_is_returned_when_writes_are_rejected,
    budget_is_returned_when_a_start_is_not_applied,
    budget_is_returned_from_the_slow_lane,
    budget_is_returned_after_a_fence,
    budget_is_returned_from_large_values,
    budget_is_returned_when_a_run_abandons_a_step,
    budget_is_returned_when_a_caller_times_out,
    value_larger_than_the_budget_passes_alone,
    attributes_take_budget,
    children_get_budget_while_parents_wait,
    waiting_callers_receive_an_error_at_shutdown,
    waiting_callers_receive_an_error_at_a_forced_shutdown,
];

/// The staging budget of a lane, in bytes.
const BUDGET: usize = 60_000;
/// The size of values: three fit into the budget, and a fourth does not.
const VALUE_SIZE: usize = 17_000;

fn value() -> String {
    "v".repeat(VALUE_SIZE)
}

/// Returns an input whose Start needs the entire budget.
fn input_of_entire_budget() -> String {
    let encoded = |n: usize| Payload::encode(&"x".repeat(n)).unwrap().len();
    let length = BUDGET - 256 - (encoded(VALUE_SIZE) - VALUE_SIZE);
    assert_eq!(encoded(length) + 256, BUDGET);
    "x".repeat(length)
}

/// Returns the workflow with which the budget is measured.
fn length() -> Workflow<String, usize> {
    Workflow::new("length", |_cx: Context, text: String| async move { BodyResult::Ok(text.len()) })
}

fn with_budget(b: EngineBuilder) -> EngineBuilder {
    b.register(&length()).staged_bytes(BUDGET)
}

fn waiters(engine: &Engine) -> usize {
    engine.lane_load().iter().map(|lane| lane.waiters).sum()
}

/// Waits until nothing runs, is staged, or is awaited.
async fn wait_until_idle(engine: &Engine) {
    let is_idle = || {
        engine.running_count() == 0
            && engine.lane_load().iter().all(|lane| (lane.staged, lane.held, lane.waiters) == (0, 0, 0))
    };
    while !is_idle() {
        tokio::task::yield_now().await;
    }
}

type Starting<'e> = LocalBoxFuture<'e, Result<Handle<usize>, Error>>;

/// Starts executions that need an entire budget, until every lane has one. The commits of `store` are held, and no
/// other caller waits for an acknowledgement.
async fn fill_budget<'e>(engine: &'e Engine, length: &'e Workflow<String, usize>) -> Vec<Starting<'e>> {
    let lanes = engine.lane_load().len();
    let mut pending_starts = Vec::new();
    while pending_starts.len() < lanes {
        pending_starts.extend(try_stage(engine, length, &input_of_entire_budget()).await);
        tokio::task::yield_now().await;
    }
    pending_starts
}

/// Stages a start if the budget of its lane has capacity for it now. Returns `None` otherwise.
async fn try_stage<'e>(
    engine: &'e Engine,
    length: &'e Workflow<String, usize>,
    input: &str,
) -> Option<Starting<'e>> {
    let before = waiters(engine);
    let mut start: Starting<'e> = Box::pin(engine.start(length, input.to_owned()).into_future());
    // one turn stages it, unless it has to wait for budget
    assert!(std::future::poll_fn(|cx| Poll::Ready(start.poll_unpin(cx))).await.is_pending());
    (waiters(engine) > before).then_some(start)
}

/// Asserts that the whole budget is returned when the engine has no more work. Hangs otherwise.
async fn assert_budget_is_returned(engine: &Engine, store: &FaultStore) {
    let length = length();
    wait_until_idle(engine).await;
    // a flush under way, for example of a Wake, holds budget until it ends
    store.hold_writes(|write| matches!(write, Write::Start(_)));
    let pending_starts = fill_budget(engine, &length).await;
    for _ in 0..64 {
        assert!(try_stage(engine, &length, "").await.is_none(), "more budget was returned than was taken");
    }
    store.release();
    for handle in join_all(pending_starts).await {
        assert_eq!(handle.unwrap().result().await.unwrap(), input_of_entire_budget().len());
    }
}

/// Returns a workflow whose steps each return a large value, and which also returns that value. Its input is the number
/// of steps and the value.
fn steps() -> Workflow<(usize, String), String> {
    Workflow::new("steps", |mut cx: Context, (n, input): (usize, String)| async move {
        for i in 0..n {
            // its checkpoint is staged behind the former ones
            let step = cx.step(format!("step {i}"), || std::future::ready(BodyResult::Ok(input.clone())));
            step.speculative().await?;
        }
        BodyResult::Ok(input)
    })
}

fn run<I, O>(
    engine: &Engine,
    workflow: &Workflow<I, O>,
    input: I,
    id: Option<String>,
) -> tokio::task::JoinHandle<Result<O, Error>>
where
    I: serde::Serialize + Send + Sync + 'static,
    O: serde::de::DeserializeOwned + Send + 'static,
{
    let (engine, workflow) = (engine.clone(), workflow.clone());
    tokio::spawn(async move {
        let run = engine.run(&workflow, input);
        match id {
            Some(id) => run.workflow_id(id).await,
            None => run.await,
        }
    })
}

async fn budget_is_returned_when_writes_are_committed(fixture: &dyn StoreFixture) {
    let steps = steps();
    let child = steps.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, input: String| {
        let child = child.clone();
        async move {
            cx.start_detached(&child, (1, input.clone())).await?;
            cx.child(&child, (2, input.clone())).await
        }
    });
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps).register(&parent)).await;
    let mut runs: Vec<_> = (0..12).map(|n| run(&engine, &steps, (n % 4, value()), None)).collect();
    runs.extend((0..12).map(|n| run(&engine, &steps, (n % 4, value()), Some(n.to_string()))));
    runs.extend((0..6).map(|_| run(&engine, &parent, value(), None)));
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap(), value());
    }
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

async fn budget_is_returned_when_writes_fold(fixture: &dyn StoreFixture) {
    let steps = steps();
    let child = steps.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, input: String| {
        let child = child.clone();
        async move { cx.child(&child, (0, input)).await.map(|output| output.len()) }
    });
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps).register(&parent)).await;
    // an end folds into its Start before it is staged, or into the Start of a child that is staged already
    assert_eq!(engine.run(&steps, (0, value())).await.unwrap(), value());
    store.hold_calls(&[Call::Commit]);
    let ahead = run(&engine, &steps, (0, String::new()), None);
    store.wait_until_hanging().await;
    let parents: Vec<_> = (0..8).map(|_| run(&engine, &parent, "p".repeat(1000), None)).collect();
    // one waiter per end of a parent, when all have folded
    while waiters(&engine) < 9 {
        tokio::task::yield_now().await;
    }
    store.release();
    ahead.await.unwrap().unwrap();
    for parent in parents {
        assert_eq!(parent.await.unwrap().unwrap(), 1000);
    }
    let folded = store.committed_writes().into_iter().filter(|(write, _)| {
        matches!(write, Write::Start(start) if start.parent.is_some() && start.state.status().is_terminal())
    });
    assert!(folded.count() > 0, "no end has folded into the Start of a child");
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

async fn budget_is_returned_when_writes_are_rejected(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps)).await;
    let is_start: fn(&Write) -> bool =
        |write| matches!(write, Write::Start(start) if start.input.len() > VALUE_SIZE);
    let is_value: fn(&Write) -> bool =
        |write| matches!(write, Write::Checkpoint(checkpoint) if checkpoint.outcome.len() > VALUE_SIZE);
    let is_end: fn(&Write) -> bool = |write| match write {
        Write::Transition(change) => {
            matches!(&change.state, State::Ended { outcome, .. } if outcome.len() > VALUE_SIZE)
        }
        _ => false,
    };
    for (name, is_rejected) in [("start", is_start), ("value", is_value), ("end", is_end)] {
        store.reject(is_rejected);
        let runs: Vec<_> = (0..12)
            .map(|n| {
                let id = (n % 2 == 0).then(|| format!("{name} {n}"));
                run(&engine, &steps, (1 + n % 3, value()), id)
            })
            .collect();
        for run in runs {
            let result = run.await.unwrap();
            let Err(error) = result else { panic!("a rejected Write was applied: {name}") };
            assert!(error.to_string().contains("a test rejects it"), "{error}");
        }
        store.accept_all();
        assert_budget_is_returned(&engine, &store).await;
    }
    shut_down(engine).await;
}

/// Returns a workflow that stages a large Write, the Start of a child, while the outcome of its own Start is unknown.
/// Afterwards it increments `staged`.
fn eager(staged: &Count, child: &Workflow<(usize, String), String>) -> Workflow<String, String> {
    let (staged, child) = (staged.clone(), child.clone());
    Workflow::new("eager", move |mut cx: Context, input: String| {
        let (staged, child) = (staged.clone(), child.clone());
        async move {
            cx.start_detached(&child, (0, input.clone())).await?;
            staged.increment();
            cx.step("last", || std::future::ready(BodyResult::Ok(input.clone()))).await
        }
    })
}

async fn budget_is_returned_when_a_start_is_not_applied(fixture: &dyn StoreFixture) {
    let (steps, staged) = (steps(), Count::new());
    let eager = eager(&staged, &steps);
    let with = |b: EngineBuilder| with_budget(b).register(&steps).register(&eager);
    let (one, store) = open_engine(fixture, with).await;
    let (two, _) = open_second_engine(fixture, with).await;
    for round in 0..3 {
        let (id, before) = (format!("{round}"), staged.get());
        store.hold_calls(&[Call::Commit]);
        let duplicate_run = run(&one, &eager, value(), Some(id.clone()));
        staged.wait_for(before + 1).await;
        store.wait_until_hanging().await;
        // the Start is a duplicate, or the database rejects it
        if round < 2 {
            two.run(&eager, value()).workflow_id(id).await.unwrap();
        } else {
            store.reject(|write| matches!(write, Write::Start(start) if start.workflow_id.is_some()));
        }
        store.release();
        assert_eq!(duplicate_run.await.unwrap().is_ok(), round < 2);
        store.accept_all();
        assert_budget_is_returned(&one, &store).await;
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn budget_is_returned_from_the_slow_lane(fixture: &dyn StoreFixture) {
    let (steps, staged) = (steps(), Count::new());
    let eager = eager(&staged, &steps);
    let held = latched_workflow("held", &Count::new(), &Latch::new());
    let with = |b: EngineBuilder| with_budget(b).register(&steps).register(&eager).register(&held);
    let (one, store) = open_engine(fixture, with).await;
    let (two, _) = open_second_engine(fixture, with).await;
    let is_given: fn(&Write) -> bool =
        |write| matches!(write, Write::Start(start) if start.workflow_id.is_some());
    for fate in ["applied", "duplicate", "rejected", "fenced"] {
        let owned = if fate == "fenced" { Some(one.start(&held, 1).await.unwrap()) } else { None };
        store.block(is_given);
        let (commits, before) = (store.call_count(Call::Commit), staged.get());
        let blocked = run(&one, &eager, value(), Some(fate.into()));
        // the lane, and then the slow lane repeatedly
        store.wait_until_called(Call::Commit, commits + 4).await;
        staged.wait_for(before + 1).await;
        match fate {
            "duplicate" => drop(two.run(&eager, value()).workflow_id(fate).await.unwrap()),
            "rejected" => store.reject(is_given),
            _ => {}
        }
        if let Some(owned) = owned {
            let id = owned.workflow_id();
            let owner = row(&two, &id).await.owner.unwrap();
            store.hold_calls(&[Call::Heartbeat]);
            fixture.mark_dead(owner).await;
            while row(&two, &id).await.owner.is_none_or(|current| current == owner) {
                tokio::task::yield_now().await;
            }
            store.hold_calls(&[]);
        }
        store.block(|_| false);
        let result = blocked.await.unwrap();
        assert_eq!(result.is_ok(), fate != "rejected", "{fate}: {result:?}");
        store.accept_all();
        assert_budget_is_returned(&one, &store).await;
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn budget_is_returned_after_a_fence(fixture: &dyn StoreFixture) {
    let (steps, begun) = (steps(), Count::new());
    let (latch, calls) = (Latch::new(), begun.clone());
    let gate = latch.clone();
    // the first run waits in the workflow for the output, which is too large for the remaining budget
    let output = Workflow::new("output", move |_cx: Context, input: String| {
        let (calls, gate) = (calls.clone(), gate.clone());
        async move {
            calls.increment();
            gate.wait().await;
            calls.increment();
            BodyResult::Ok(input)
        }
    });
    let gate = latch.clone();
    let calls = begun.clone();
    let outcome = Workflow::new("outcome", move |mut cx: Context, input: String| {
        let (calls, gate) = (calls.clone(), gate.clone());
        async move {
            cx.step("large", || {
                let (calls, gate, input) = (calls.clone(), gate.clone(), input.clone());
                async move {
                    calls.increment();
                    gate.wait().await;
                    calls.increment();
                    BodyResult::Ok(input)
                }
            })
            .await?;
            BodyResult::Ok(String::new())
        }
    });
    let (engine, store) =
        open_engine(fixture, |b| with_budget(b).register(&steps).register(&output).register(&outcome)).await;
    let mut ended = Vec::new();
    for n in 0..12 {
        let workflow = if n % 3 == 0 { &output } else { &outcome };
        ended.push(engine.start(workflow, value()).await.unwrap());
    }
    begun.wait_for(12).await;
    // some outcomes and callers' Starts are staged, others wait for budget
    store.hold_calls(&[Call::Commit]);
    let ahead = run(&engine, &length(), String::new(), None);
    store.wait_until_hanging().await;
    latch.open();
    begun.wait_for(24).await;
    let runs: Vec<_> = (0..12).map(|n| run(&engine, &steps, (1, value()), Some(n.to_string()))).collect();
    store.fail_next_commit_with(StoreError::Fenced);
    store.release();
    assert_eq!(ahead.await.unwrap().unwrap(), 0);
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap(), value());
    }
    for (n, handle) in ended.into_iter().enumerate() {
        let expected = if n % 3 == 0 { value() } else { String::new() };
        assert_eq!(handle.result().await.unwrap(), expected);
    }
    assert_eq!(store.call_count(Call::Register), 2);
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

async fn budget_is_returned_from_large_values(fixture: &dyn StoreFixture) {
    // budget for one chunk, and little more
    let bound = CHUNK_SIZE + 1000;
    let steps = steps();
    let (engine, _) =
        open_engine(fixture, |b| b.register(&length()).register(&steps).staged_bytes(bound)).await;
    let large = "l".repeat(5 << 19);
    let runs: Vec<_> = (0..4).map(|_| run(&engine, &steps, (1, large.clone()), None)).collect();
    for run in runs {
        assert!(run.await.unwrap().unwrap() == large);
    }
    // each lane still accepts a chunk
    let mut lanes = vec![false; engine.lane_load().len()];
    while lanes.contains(&false) {
        let handle = engine.start(&length(), large.clone()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), large.len());
        let lane = (handle.key().stable_hash() % lanes.len() as u64) as usize;
        lanes[lane] = true;
    }
    shut_down(engine).await;
}

/// Abandons a step whose value waits for budget, in a branch; and two steps at once, of which the second is abandoned
/// when it has its budget.
async fn budget_is_returned_when_a_run_abandons_a_step(fixture: &dyn StoreFixture) {
    let (ready, gate, waiting, other_is_done) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let shared = (ready.clone(), gate.clone(), waiting.clone(), other_is_done.clone());
    let abandons = Workflow::new("abandons", move |mut cx: Context, input: String| {
        let (ready, gate, waiting, other_is_done) = shared.clone();
        async move {
            ready.increment();
            gate.wait().await;
            let input = &input;
            let body = || std::future::ready(BodyResult::Ok(input.clone()));
            let step = |mut cx: Context| async move { cx.step("waits for budget", body).await };
            let other = |_| async {
                // polled after the step in the same turn: the step waits for budget already
                waiting.increment();
                other_is_done.wait().await;
            };
            let is_abandoned = matches!(cx.race(step, other).await, Either::Second(()));
            let both = |mut cx: Context| async move { cx.step("has budget", body).await };
            let won = cx.race(both, both).await;
            let (Either::First(won) | Either::Second(won)) = won;
            won.map(|_| is_abandoned)
        }
    });
    // a value that is staged when the workflow returns
    let returns = Workflow::new("returns", |mut cx: Context, input: String| async move {
        let done = Latch::new();
        let opens = done.clone();
        let branch = cx.spawn(move |mut cx: Context| async move {
            cx.step("late", || {
                opens.open();
                std::future::ready(BodyResult::Ok(input.clone()))
            })
            .await
        });
        done.wait().await;
        drop(branch);
        BodyResult::Ok(true)
    });
    let (engine, store) =
        open_engine(fixture, |b| with_budget(b).register(&abandons).register(&returns)).await;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(engine.start(&abandons, value()).await.unwrap());
    }
    ready.wait_for(6).await;
    while waiters(&engine) > 0 {
        tokio::task::yield_now().await;
    }
    store.hold_calls(&[Call::Commit]);
    let length = length();
    let pending_starts = fill_budget(&engine, &length).await;
    gate.open();
    waiting.wait_for(6).await;
    other_is_done.open();
    store.release();
    for run in runs {
        assert!(run.result().await.unwrap(), "the value of the step was staged");
    }
    for handle in join_all(pending_starts).await {
        handle.unwrap().result().await.unwrap();
    }
    for _ in 0..4 {
        assert!(engine.run(&returns, value()).await.unwrap());
    }
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

async fn budget_is_returned_when_a_caller_times_out(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let length = length();
    let pending_starts = fill_budget(&engine, &length).await;
    let short = Duration::from_millis(10);
    for n in 0..6 {
        // without budget, and then in flight
        let start = engine.start(&steps, (1, value())).workflow_id(format!("{n}")).wait_timeout(short);
        let error = start.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = engine.run(&steps, (1, value())).wait_timeout(short).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    store.release();
    for handle in join_all(pending_starts).await {
        handle.unwrap().result().await.unwrap();
    }
    assert_budget_is_returned(&engine, &store).await;
    store.hold_calls(&[Call::Commit]);
    for n in 0..2 {
        let start = engine.start(&steps, (1, value())).workflow_id(format!("{n}")).wait_timeout(short);
        start.await.map(drop).unwrap_err();
    }
    store.release();
    for n in 0..2 {
        assert_eq!(engine.run(&steps, (1, value())).workflow_id(format!("{n}")).await.unwrap(), value());
    }
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

async fn value_larger_than_the_budget_passes_alone(fixture: &dyn StoreFixture) {
    let steps = steps();
    for bound in [1000, 0] {
        let (engine, _) = open_engine(fixture, |b| b.register(&steps).staged_bytes(bound)).await;
        let large = "l".repeat(5 << 19);
        let mut runs = Vec::new();
        for n in 0..12 {
            let input = if n % 4 == 0 { large.clone() } else { value() };
            runs.push((input.len(), run(&engine, &steps, (n % 3, input), None)));
        }
        for (size, run) in runs {
            assert_eq!(run.await.unwrap().unwrap().len(), size);
        }
        shut_down(engine).await;
    }
}

async fn attributes_take_budget(fixture: &dyn StoreFixture) {
    let length = length();
    let (engine, store) = open_engine(fixture, with_budget).await;
    store.hold_calls(&[Call::Commit]);
    let mut starts: Vec<_> = (0..64)
        .map(|_| {
            let attributes = (0..17).map(|n| (format!("a{n}"), "v".repeat(1000)));
            let start = attributes.fold(engine.start(&length, String::new()), |start, (name, value)| {
                start.attribute(name, value)
            });
            Box::pin(start.into_future())
        })
        .collect();
    for start in &mut starts {
        // one turn stages it, unless it has to wait for budget
        assert!(std::future::poll_fn(|cx| Poll::Ready(start.poll_unpin(cx))).await.is_pending());
    }
    let (staged, lanes) = (waiters(&engine), engine.lane_load().len());
    assert!((1..=3 * lanes).contains(&staged), "{staged} Starts were staged");
    store.release();
    for start in join_all(starts).await {
        assert_eq!(start.unwrap().result().await.unwrap(), 0);
    }
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

/// Runs parents that hold budget for their own Starts, which are not staged yet, while their children need budget.
async fn children_get_budget_while_parents_wait(fixture: &dyn StoreFixture) {
    let (child, begun, latch) = (length(), Count::new(), Latch::new());
    let (calls, gate) = (begun.clone(), latch.clone());
    let parent = Workflow::new("parent", move |mut cx: Context, input: String| {
        let (child, calls, gate) = (child.clone(), calls.clone(), gate.clone());
        async move {
            calls.increment();
            gate.wait().await;
            cx.child(&child, input).await
        }
    });
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&parent)).await;
    let mut runs: Vec<_> = (0..40).map(|_| Box::pin(engine.run(&parent, value()).into_future())).collect();
    for run in &mut runs {
        // one turn begins the code, unless the run has to wait for budget
        assert!(std::future::poll_fn(|cx| Poll::Ready(run.poll_unpin(cx))).await.is_pending());
    }
    // a commit may have returned the budget of some Starts meanwhile
    assert!(begun.get() >= 3, "{}", begun.get());
    latch.open();
    for output in join_all(runs).await {
        assert_eq!(output.unwrap(), VALUE_SIZE);
    }
    assert_budget_is_returned(&engine, &store).await;
    shut_down(engine).await;
}

/// Returns callers at the limit: the Starts of some are staged, others wait for budget.
async fn callers(
    engine: &Engine,
    store: &Arc<FaultStore>,
    steps: &Workflow<(usize, String), String>,
) -> Vec<tokio::task::JoinHandle<Result<String, Error>>> {
    store.hold_calls(&[Call::Commit]);
    let ahead = run(engine, steps, (0, String::new()), None);
    store.wait_until_hanging().await;
    let mut callers = vec![ahead];
    for n in 0..40 {
        let id = (n % 2 == 0).then(|| n.to_string());
        callers.push(run(engine, steps, (n % 2, value()), id));
    }
    while engine.lane_load().iter().map(|lane| lane.staged).sum::<usize>() < 2 {
        tokio::task::yield_now().await;
    }
    callers
}

fn assert_unavailable(result: Result<String, Error>) {
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

async fn waiting_callers_receive_an_error_at_shutdown(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps)).await;
    let callers = callers(&engine, &store, &steps).await;
    let ending = {
        let engine = engine.clone();
        tokio::spawn(async move { shut_down(engine).await })
    };
    while !matches!(
        engine.start(&steps, (0, String::new())).into_future().now_or_never(),
        Some(Err(Error::Shutdown))
    ) {
        tokio::task::yield_now().await;
    }
    store.release();
    ending.await.unwrap();
    for caller in callers {
        assert_unavailable(caller.await.unwrap());
    }
}

async fn waiting_callers_receive_an_error_at_a_forced_shutdown(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = open_engine(fixture, |b| with_budget(b).register(&steps)).await;
    let callers = callers(&engine, &store, &steps).await;
    engine.shutdown(Duration::from_millis(100)).await.unwrap();
    for caller in callers {
        assert_unavailable(caller.await.unwrap());
    }
    store.release();
}
