//! Room: the bound on staged bytes. Whatever becomes of a Write, the room that was taken for it comes back,
//! all of it and once: afterwards a Write that needs the entire bound passes, and not a byte beside it.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use stepfast_core::payload::CHUNK_SIZE;
use stepfast_core::store::{State, StoreError, Write};
use stepfast_core::{Context, Either, Engine, EngineBuilder, Error, ErrorKind, Handle, Payload, Workflow};

use super::support::{Count, Latch, Returns, engine, row, second_engine, shut_down, waiting};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    room_comes_back_when_writes_land,
    room_comes_back_when_writes_fold,
    room_comes_back_when_writes_are_refused,
    room_comes_back_when_a_start_loses,
    room_comes_back_from_the_slow_lane,
    room_comes_back_after_a_fence,
    room_comes_back_from_large_values,
    room_comes_back_when_a_run_gives_up,
    room_comes_back_when_a_caller_gives_up,
    what_is_larger_than_the_bound_passes_alone,
    who_waits_for_room_hears_of_a_shutdown,
    who_waits_for_room_hears_of_a_shutdown_without_a_database,
];

/// How much may be staged per lane.
const BOUND: usize = 60_000;
/// What values have: three of them are within the bound, and leave no place for a fourth.
const SIZE: usize = 17_000;

fn value() -> String {
    "v".repeat(SIZE)
}

/// An input whose Start needs the entire bound.
fn entire() -> String {
    let encoded = |n: usize| Payload::encode(&"x".repeat(n)).unwrap().len();
    let length = BOUND - 256 - (encoded(SIZE) - SIZE);
    assert_eq!(encoded(length) + 256, BOUND);
    "x".repeat(length)
}

/// The workflow that the bound is measured with.
fn length() -> Workflow<String, usize> {
    Workflow::new("length", |_cx: Context, text: String| async move { Returns::Ok(text.len()) })
}

fn bounded(b: EngineBuilder) -> EngineBuilder {
    b.register(&length()).staged_bytes(BOUND)
}

fn waiters(engine: &Engine) -> usize {
    engine.lane_load().iter().map(|lane| lane.waiters).sum()
}

/// Nothing runs, is staged, or is waited for.
async fn until_idle(engine: &Engine) {
    let is_idle = || {
        engine.running_count() == 0
            && engine.lane_load().iter().all(|lane| (lane.staged, lane.held, lane.waiters) == (0, 0, 0))
    };
    while !is_idle() {
        tokio::task::yield_now().await;
    }
}

type Starting<'e> = LocalBoxFuture<'e, Result<Handle<usize>, Error>>;

/// Starts with the entire bound as long as a lane takes one. The commits of `store` are held, and nobody else
/// is waiting to be acknowledged.
async fn fill<'e>(engine: &'e Engine, length: &'e Workflow<String, usize>) -> Vec<Starting<'e>> {
    let lanes = engine.lane_load().len();
    let mut filling = Vec::new();
    while filling.len() < lanes {
        filling.extend(staged(engine, length, &entire()).await);
        tokio::task::yield_now().await;
    }
    filling
}

/// A start that is staged, if there is room for it now in the lane that it comes to.
async fn staged<'e>(
    engine: &'e Engine,
    length: &'e Workflow<String, usize>,
    input: &str,
) -> Option<Starting<'e>> {
    let before = waiters(engine);
    let mut start: Starting<'e> = Box::pin(engine.start(length, input.to_owned()).into_future());
    // one turn stages it, unless it has to wait for room
    assert!(std::future::poll_fn(|cx| Poll::Ready(start.poll_unpin(cx))).await.is_pending());
    (waiters(engine) > before).then_some(start)
}

/// All of the room is back; once everything that the engine had to do is done. Hangs if it is not.
async fn assert_all_is_back(engine: &Engine, store: &FaultStore) {
    let length = length();
    until_idle(engine).await;
    store.hold_calls(&[Call::Commit]);
    let filling = fill(engine, &length).await;
    for _ in 0..64 {
        assert!(staged(engine, &length, "").await.is_none(), "more has come back than was taken");
    }
    store.release();
    for handle in join_all(filling).await {
        assert_eq!(handle.unwrap().result().await.unwrap(), entire().len());
    }
}

/// A workflow with so many steps that each return a large value, and such an output.
fn steps() -> Workflow<(usize, String), String> {
    Workflow::new("steps", |mut cx: Context, (n, input): (usize, String)| async move {
        for i in 0..n {
            // its checkpoint is staged behind those before it
            let step = cx.step(format!("step {i}"), || std::future::ready(Returns::Ok(input.clone())));
            step.speculative().await?;
        }
        Returns::Ok(input)
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

async fn room_comes_back_when_writes_land(fixture: &dyn StoreFixture) {
    let steps = steps();
    let child = steps.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, input: String| {
        let child = child.clone();
        async move {
            cx.start_detached(&child, (1, input.clone())).await?;
            cx.child(&child, (2, input.clone())).await
        }
    });
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps).register(&parent)).await;
    let mut runs: Vec<_> = (0..12).map(|n| run(&engine, &steps, (n % 4, value()), None)).collect();
    runs.extend((0..12).map(|n| run(&engine, &steps, (n % 4, value()), Some(n.to_string()))));
    runs.extend((0..6).map(|_| run(&engine, &parent, value(), None)));
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap(), value());
    }
    assert_all_is_back(&engine, &store).await;
    shut_down(engine).await;
}

async fn room_comes_back_when_writes_fold(fixture: &dyn StoreFixture) {
    let steps = steps();
    let child = steps.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, input: String| {
        let child = child.clone();
        async move { cx.child(&child, (0, input)).await.map(|output| output.len()) }
    });
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps).register(&parent)).await;
    // an end in its Start, before it is staged; and one in the Start of a child that is staged already
    assert_eq!(engine.run(&steps, (0, value())).await.unwrap(), value());
    store.hold_calls(&[Call::Commit]);
    let ahead = run(&engine, &steps, (0, String::new()), None);
    store.wait_until_hanging().await;
    let parents: Vec<_> = (0..8).map(|_| run(&engine, &parent, "p".repeat(1000), None)).collect();
    // one Lsn waited for by each parent's end, when all have folded
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
    assert_all_is_back(&engine, &store).await;
    shut_down(engine).await;
}

async fn room_comes_back_when_writes_are_refused(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps)).await;
    let is_start: fn(&Write) -> bool =
        |write| matches!(write, Write::Start(start) if start.input.len() > SIZE);
    let is_value: fn(&Write) -> bool =
        |write| matches!(write, Write::Checkpoint(checkpoint) if checkpoint.outcome.len() > SIZE);
    let is_end: fn(&Write) -> bool = |write| match write {
        Write::Transition(change) => {
            matches!(&change.state, State::Ended { outcome, .. } if outcome.len() > SIZE)
        }
        _ => false,
    };
    for (what, refused) in [("start", is_start), ("value", is_value), ("end", is_end)] {
        store.reject(refused);
        let runs: Vec<_> = (0..12)
            .map(|n| {
                let id = (n % 2 == 0).then(|| format!("{what} {n}"));
                run(&engine, &steps, (1 + n % 3, value()), id)
            })
            .collect();
        for run in runs {
            let result = run.await.unwrap();
            let Err(error) = result else { panic!("what is refused has happened: {what}") };
            assert!(error.to_string().contains("does not like it"), "{error}");
        }
        store.accept_all();
        assert_all_is_back(&engine, &store).await;
    }
    shut_down(engine).await;
}

/// A workflow that stages something large while the outcome of its Start is not known: the Start of a child.
/// Counts when it has.
fn eager(staged: &Count, child: &Workflow<(usize, String), String>) -> Workflow<String, String> {
    let (staged, child) = (staged.clone(), child.clone());
    Workflow::new("eager", move |mut cx: Context, input: String| {
        let (staged, child) = (staged.clone(), child.clone());
        async move {
            cx.start_detached(&child, (0, input.clone())).await?;
            staged.more();
            cx.step("last", || std::future::ready(Returns::Ok(input.clone()))).await
        }
    })
}

async fn room_comes_back_when_a_start_loses(fixture: &dyn StoreFixture) {
    let (steps, staged) = (steps(), Count::new());
    let eager = eager(&staged, &steps);
    let with = |b: EngineBuilder| bounded(b).register(&steps).register(&eager);
    let (one, store) = engine(fixture, with).await;
    let (two, _) = second_engine(fixture, with).await;
    for round in 0..3 {
        let (id, before) = (format!("{round}"), staged.get());
        store.hold_calls(&[Call::Commit]);
        let loser = run(&one, &eager, value(), Some(id.clone()));
        staged.reaches(before + 1).await;
        store.wait_until_hanging().await;
        // to another engine, or to the database's taste
        if round < 2 {
            two.run(&eager, value()).workflow_id(id).await.unwrap();
        } else {
            store.reject(|write| matches!(write, Write::Start(start) if start.workflow_id.is_some()));
        }
        store.release();
        assert_eq!(loser.await.unwrap().is_ok(), round < 2);
        store.accept_all();
        assert_all_is_back(&one, &store).await;
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn room_comes_back_from_the_slow_lane(fixture: &dyn StoreFixture) {
    let (steps, staged) = (steps(), Count::new());
    let eager = eager(&staged, &steps);
    let held = waiting("held", &Count::new(), &Latch::new());
    let with = |b: EngineBuilder| bounded(b).register(&steps).register(&eager).register(&held);
    let (one, store) = engine(fixture, with).await;
    let (two, _) = second_engine(fixture, with).await;
    let is_given: fn(&Write) -> bool =
        |write| matches!(write, Write::Start(start) if start.workflow_id.is_some());
    for what in ["applied", "lost", "refused", "fenced"] {
        let owned = if what == "fenced" { Some(one.start(&held, 1).await.unwrap()) } else { None };
        store.block(is_given);
        let (commits, before) = (store.call_count(Call::Commit), staged.get());
        let blocked = run(&one, &eager, value(), Some(what.into()));
        // the lane, and then the slow lane again and again
        store.wait_until_called(Call::Commit, commits + 4).await;
        staged.reaches(before + 1).await;
        match what {
            "lost" => drop(two.run(&eager, value()).workflow_id(what).await.unwrap()),
            "refused" => store.reject(is_given),
            _ => {}
        }
        if let Some(owned) = owned {
            let id = owned.workflow_id();
            let owner = row(&two, &id).await.owner.unwrap();
            store.hold_calls(&[Call::Heartbeat]);
            fixture.mark_dead(owner).await;
            while row(&two, &id).await.owner.is_none_or(|now| now == owner) {
                tokio::task::yield_now().await;
            }
            store.hold_calls(&[]);
        }
        store.block(|_| false);
        let result = blocked.await.unwrap();
        assert_eq!(result.is_ok(), what != "refused", "{what}: {result:?}");
        store.accept_all();
        assert_all_is_back(&one, &store).await;
    }
    shut_down(one).await;
    shut_down(two).await;
}

async fn room_comes_back_after_a_fence(fixture: &dyn StoreFixture) {
    let (steps, begun) = (steps(), Count::new());
    let (latch, calls) = (Latch::new(), begun.clone());
    let gate = latch.clone();
    // its first run waits in the workflow for what makes the output, which is too large for the room there is
    let output = Workflow::new("output", move |_cx: Context, input: String| {
        let (calls, gate) = (calls.clone(), gate.clone());
        async move {
            calls.more();
            gate.passed().await;
            calls.more();
            Returns::Ok(input)
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
                    calls.more();
                    gate.passed().await;
                    calls.more();
                    Returns::Ok(input)
                }
            })
            .await?;
            Returns::Ok(String::new())
        }
    });
    let (engine, store) =
        engine(fixture, |b| bounded(b).register(&steps).register(&output).register(&outcome)).await;
    let mut ended = Vec::new();
    for n in 0..12 {
        let workflow = if n % 3 == 0 { &output } else { &outcome };
        ended.push(engine.start(workflow, value()).await.unwrap());
    }
    begun.reaches(12).await;
    // some outcomes and callers' Starts are staged, others wait for room
    store.hold_calls(&[Call::Commit]);
    let ahead = run(&engine, &length(), String::new(), None);
    store.wait_until_hanging().await;
    latch.open();
    begun.reaches(24).await;
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
    assert_all_is_back(&engine, &store).await;
    shut_down(engine).await;
}

async fn room_comes_back_from_large_values(fixture: &dyn StoreFixture) {
    // room for one chunk, and little more
    let bound = CHUNK_SIZE + 1000;
    let steps = steps();
    let (engine, _) = engine(fixture, |b| b.register(&length()).register(&steps).staged_bytes(bound)).await;
    let large = "l".repeat(5 << 19);
    let runs: Vec<_> = (0..4).map(|_| run(&engine, &steps, (1, large.clone()), None)).collect();
    for run in runs {
        assert!(run.await.unwrap().unwrap() == large);
    }
    // each lane still takes a chunk
    let mut lanes = vec![false; engine.lane_load().len()];
    while lanes.contains(&false) {
        let handle = engine.start(&length(), large.clone()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), large.len());
        let lane = (handle.key().stable_hash() % lanes.len() as u64) as usize;
        lanes[lane] = true;
    }
    shut_down(engine).await;
}

/// A step whose value does not find room, in a branch that is given up then; and two steps at once of which
/// the second is given up when it has room.
async fn room_comes_back_when_a_run_gives_up(fixture: &dyn StoreFixture) {
    let (ready, gate, waiting, over) = (Count::new(), Latch::new(), Count::new(), Latch::new());
    let shared = (ready.clone(), gate.clone(), waiting.clone(), over.clone());
    let gives_up = Workflow::new("gives up", move |mut cx: Context, input: String| {
        let (ready, gate, waiting, over) = shared.clone();
        async move {
            ready.more();
            gate.passed().await;
            let input = &input;
            let body = || std::future::ready(Returns::Ok(input.clone()));
            let step = |mut cx: Context| async move { cx.step("waits for room", body).await };
            let other = |_| async {
                // polled after the step in the same turn: that has come to where it waits
                waiting.more();
                over.passed().await;
            };
            let is_given_up = matches!(cx.race(step, other).await, Either::Second(()));
            let both = |mut cx: Context| async move { cx.step("has room", body).await };
            let won = cx.race(both, both).await;
            let (Either::First(won) | Either::Second(won)) = won;
            won.map(|_| is_given_up)
        }
    });
    // a value that is there when the workflow returns
    let returns = Workflow::new("returns", |mut cx: Context, input: String| async move {
        let done = Latch::new();
        let opens = done.clone();
        let branch = cx.spawn(move |mut cx: Context| async move {
            cx.step("late", || {
                opens.open();
                std::future::ready(Returns::Ok(input.clone()))
            })
            .await
        });
        done.passed().await;
        drop(branch);
        Returns::Ok(true)
    });
    let (engine, store) = engine(fixture, |b| bounded(b).register(&gives_up).register(&returns)).await;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(engine.start(&gives_up, value()).await.unwrap());
    }
    ready.reaches(6).await;
    while waiters(&engine) > 0 {
        tokio::task::yield_now().await;
    }
    store.hold_calls(&[Call::Commit]);
    let length = length();
    let filling = fill(&engine, &length).await;
    gate.open();
    waiting.reaches(6).await;
    over.open();
    store.release();
    for run in runs {
        assert!(run.result().await.unwrap(), "the step's value has found room");
    }
    for handle in join_all(filling).await {
        handle.unwrap().result().await.unwrap();
    }
    for _ in 0..4 {
        assert!(engine.run(&returns, value()).await.unwrap());
    }
    assert_all_is_back(&engine, &store).await;
    shut_down(engine).await;
}

async fn room_comes_back_when_a_caller_gives_up(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let length = length();
    let filling = fill(&engine, &length).await;
    let brief = Duration::from_millis(10);
    for n in 0..6 {
        // without room, and then on its way
        let start = engine.start(&steps, (1, value())).workflow_id(format!("{n}")).wait_timeout(brief);
        let error = start.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = engine.run(&steps, (1, value())).wait_timeout(brief).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    store.release();
    for handle in join_all(filling).await {
        handle.unwrap().result().await.unwrap();
    }
    assert_all_is_back(&engine, &store).await;
    store.hold_calls(&[Call::Commit]);
    for n in 0..2 {
        let start = engine.start(&steps, (1, value())).workflow_id(format!("{n}")).wait_timeout(brief);
        start.await.map(drop).unwrap_err();
    }
    store.release();
    for n in 0..2 {
        assert_eq!(engine.run(&steps, (1, value())).workflow_id(format!("{n}")).await.unwrap(), value());
    }
    assert_all_is_back(&engine, &store).await;
    shut_down(engine).await;
}

async fn what_is_larger_than_the_bound_passes_alone(fixture: &dyn StoreFixture) {
    let steps = steps();
    for bound in [1000, 0] {
        let (engine, _) = engine(fixture, |b| b.register(&steps).staged_bytes(bound)).await;
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

/// Callers at the bound: of some the Start is staged, others wait for room.
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

fn assert_over(result: Result<String, Error>) {
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

async fn who_waits_for_room_hears_of_a_shutdown(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps)).await;
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
        assert_over(caller.await.unwrap());
    }
}

async fn who_waits_for_room_hears_of_a_shutdown_without_a_database(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, store) = engine(fixture, |b| bounded(b).register(&steps)).await;
    let callers = callers(&engine, &store, &steps).await;
    engine.shutdown(Duration::from_millis(100)).await.unwrap();
    for caller in callers {
        assert_over(caller.await.unwrap());
    }
    store.release();
}
