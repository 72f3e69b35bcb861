//! The write budget: the cost of each operation in rows and flushes.

use std::time::Duration;

use stepfast_core::graph::{Graph, TaskRef};
use stepfast_core::store::counters::{CounterSnapshot, Table};
use stepfast_core::{Context, Engine, Failure, Workflow};

use super::support::{BodyResult, noop, open_engine, shut_down, steps};
use crate::StoreFixture;

super::cases![
    run_without_steps_costs_one_flush,
    start_and_result_cost_two_flushes,
    sequential_steps_cost_one_flush_each,
    workflow_id_costs_no_extra_flush,
    failed_attempt_costs_one_flush,
    short_sleep_costs_no_suspension,
    suspended_sleep_costs_three_flushes_and_a_claim,
    child_in_memory_costs_at_most_three_flushes,
    suspended_parent_costs_two_claims,
    large_value_costs_a_row_per_chunk,
    hundred_concurrent_runs_share_flushes,
    writes_held_behind_a_start_cost_two_flushes,
    graph_costs_a_row_per_task_and_a_flush_per_level,
    layers_of_10_000_tasks_cost_a_row_each_and_few_flushes,
    fan_out_of_10_000_tasks_costs_a_row_each_and_few_flushes,
];

/// Waits until no execution runs: a caller may see an end in the database before the counters contain its flush.
async fn wait_until_idle(engine: &Engine) {
    while engine.running_count() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Returns the cost of `work` in an otherwise idle engine.
async fn cost(engine: &Engine, work: impl Future<Output = ()>) -> CounterSnapshot {
    let cost = cost_with_reads(engine, work).await;
    assert_eq!(cost.reads, 0, "the engine read from the store: {cost:?}");
    cost
}

/// Returns the cost of `work` that may take so long that the engine reads meanwhile.
async fn cost_with_reads(engine: &Engine, work: impl Future<Output = ()>) -> CounterSnapshot {
    let before = engine.store().counters().snapshot();
    work.await;
    wait_until_idle(engine).await;
    engine.store().counters().snapshot().since(&before)
}

fn assert_rows(cost: &CounterSnapshot, expected: &[(Table, (u64, u64, u64))]) {
    for table in Table::ALL {
        let of = expected.iter().find(|(other, _)| *other == table).map_or((0, 0, 0), |(_, rows)| *rows);
        assert_eq!(cost.row_changes(table), of, "inserted, updated, deleted in {}: {cost:?}", table.as_str());
    }
}

/// Runs `work` repeatedly, asserts the same cost in rows each time, and returns the fewest flushes. Stops at `expected`
/// flushes. A thread that is delayed at the wrong moment may find fewer writes that could share a flush.
async fn fewest_flushes(
    engine: &Engine,
    rows: &[(Table, (u64, u64, u64))],
    expected: u64,
    work: impl AsyncFn(),
) -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        let cost = cost(engine, work()).await;
        assert_rows(&cost, rows);
        assert_eq!(cost.claims, 0);
        fewest = fewest.min(cost.flushes);
        if fewest <= expected {
            break;
        }
    }
    fewest
}

async fn run_without_steps_costs_one_flush(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let cost = cost(&engine, async {
        engine.run(&noop, 1).await.unwrap();
    })
    .await;
    assert_rows(&cost, &[(Table::Executions, (1, 0, 0))]);
    assert_eq!((cost.flushes, cost.claims, cost.held), (1, 0, 0));
    assert!(cost.waits <= 1 && (1..1_000).contains(&cost.bytes), "{cost:?}");
    shut_down(engine).await;
}

async fn start_and_result_cost_two_flushes(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let cost = cost(&engine, async {
        engine.start(&noop, 1).await.unwrap().result().await.unwrap();
    })
    .await;
    assert_rows(&cost, &[(Table::Executions, (1, 1, 0))]);
    assert_eq!((cost.flushes, cost.claims), (2, 0));
    shut_down(engine).await;
}

async fn sequential_steps_cost_one_flush_each(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, _) = open_engine(fixture, |b| b.register(&steps)).await;
    for n in [1, 2, 7] {
        let rows = [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (n, 0, 0))];
        let run = async || drop(engine.run(&steps, n as usize).await.unwrap());
        assert_eq!(fewest_flushes(&engine, &rows, n + 1, run).await, n + 1);
    }
    shut_down(engine).await;
}

async fn workflow_id_costs_no_extra_flush(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let cost = cost(&engine, async {
        engine.run(&noop, 1).workflow_id("x").await.unwrap();
    })
    .await;
    assert_rows(&cost, &[(Table::Executions, (1, 0, 0))]);
    assert_eq!(cost.flushes, 1);
    shut_down(engine).await;
}

async fn failed_attempt_costs_one_flush(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("flaky", |mut cx: Context, fails: u32| async move {
        let mut calls = 0;
        cx.step("flaky", || {
            calls += 1;
            std::future::ready(if calls <= fails { Err(Failure::new("no")) } else { Ok(()) })
        })
        .retries(9)
        .backoff(Duration::ZERO, Duration::ZERO)
        .await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let rows =
        [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (1, 0, 0)), (Table::Attempts, (3, 0, 0))];
    let run = async || engine.run(&workflow, 3).await.unwrap();
    assert_eq!(fewest_flushes(&engine, &rows, 1 + 3 + 1, run).await, 1 + 3 + 1);
    shut_down(engine).await;
}

fn sleeper() -> Workflow<u64, ()> {
    Workflow::new("sleeper", |mut cx: Context, millis: u64| async move {
        cx.sleep(Duration::from_millis(millis)).await;
        BodyResult::Ok(())
    })
}

async fn short_sleep_costs_no_suspension(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) = open_engine(fixture, |b| b.register(&sleeper)).await;
    let cost = cost(&engine, async { engine.run(&sleeper, 20).await.unwrap() }).await;
    // the Start is flushed during the sleep; on a slow machine one flush takes everything, or the end is flushed alone
    let (_, updated, _) = cost.row_changes(Table::Executions);
    assert!(updated <= 1 && cost.flushes <= 3, "{cost:?}");
    assert_rows(&cost, &[(Table::Executions, (1, updated, 0)), (Table::Checkpoints, (1, 0, 0))]);
    assert_eq!(cost.claims, 0);
    shut_down(engine).await;
}

async fn suspended_sleep_costs_three_flushes_and_a_claim(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, _) =
        open_engine(fixture, |b| b.register(&sleeper).suspend_after(Duration::from_millis(1))).await;
    let before = engine.store().counters().snapshot();
    engine.start(&sleeper, 100).await.unwrap().result().await.unwrap();
    wait_until_idle(&engine).await;
    let cost = engine.store().counters().snapshot().since(&before);
    // started, suspended, claimed, ended
    let rows = [(Table::Executions, (1, 3, 0)), (Table::Checkpoints, (1, 0, 0)), (Table::Timers, (1, 0, 1))];
    assert_rows(&cost, &rows);
    assert_eq!((cost.flushes, cost.claims), (3, 1));
    shut_down(engine).await;
}

fn parent(child: &Workflow<usize, Vec<usize>>) -> Workflow<usize, usize> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, n: usize| {
        let child = child.clone();
        async move { cx.child(&child, n).await.map(|values| values.len()) }
    })
}

async fn child_in_memory_costs_at_most_three_flushes(fixture: &dyn StoreFixture) {
    let child = steps();
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    // two executions, a step of the child, the child's end in the parent
    let rows = [(Table::Executions, (2, 2, 0)), (Table::Checkpoints, (2, 0, 0))];
    let run = async || assert_eq!(engine.run(&parent, 1).await.unwrap(), 1);
    // the parent continues in a task of its own while the child's end is being flushed
    let flushes = fewest_flushes(&engine, &rows, 3, run).await;
    assert!((2..=3).contains(&flushes), "{flushes}");
    shut_down(engine).await;
}

async fn suspended_parent_costs_two_claims(fixture: &dyn StoreFixture) {
    let child = Workflow::new("child", |mut cx: Context, n: usize| async move {
        // the child is far from its end when its parent suspends
        cx.sleep(Duration::from_millis(300)).await;
        BodyResult::Ok(vec![n])
    });
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).suspend_after(Duration::from_millis(1))
    })
    .await;
    let before = engine.store().counters().snapshot();
    assert_eq!(engine.start(&parent, 1).await.unwrap().result().await.unwrap(), 1);
    let cost = engine.store().counters().snapshot().since(&before);
    // each is started, suspended, claimed and ended; the parent is queued before; the child may start suspended
    let updated = cost.row_changes(Table::Executions).1;
    assert!((6..=7).contains(&updated), "{cost:?}");
    let rows = [
        (Table::Executions, (2, updated, 0)),
        (Table::Checkpoints, (2, 0, 0)),
        (Table::Timers, (1, 0, 1)),
        (Table::Waits, (1, 0, 1)),
        (Table::Ready, (1, 0, 1)),
    ];
    assert_rows(&cost, &rows);
    assert_eq!(cost.claims, 2);
    shut_down(engine).await;
}

async fn large_value_costs_a_row_per_chunk(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("large", |mut cx: Context, n: usize| async move {
        cx.step("large", || std::future::ready(BodyResult::Ok("x".repeat(n)))).await.map(|text| text.len())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let cost = cost(&engine, async {
        engine.run(&workflow, 3 << 20).await.unwrap();
    })
    .await;
    let rows = [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (1, 0, 0)), (Table::Chunks, (4, 0, 0))];
    assert_rows(&cost, &rows);
    shut_down(engine).await;
}

async fn hundred_concurrent_runs_share_flushes(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    store.hold_calls(&[crate::faults::fault_store::Call::Commit]);
    let cost = cost(&engine, async {
        let runs: Vec<_> = (0..100)
            .map(|x| {
                let (engine, noop) = (engine.clone(), noop.clone());
                tokio::spawn(async move { engine.run(&noop, x).await.unwrap() })
            })
            .collect();
        while engine.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < 100 {
            tokio::task::yield_now().await;
        }
        store.release();
        for (x, run) in (0..).zip(runs) {
            assert_eq!(run.await.unwrap(), x);
        }
    })
    .await;
    assert_rows(&cost, &[(Table::Executions, (100, 0, 0))]);
    let lanes = engine.lane_load().len() as u64;
    assert!(cost.flushes <= 2 * lanes, "each lane has a flush in flight and one for all others: {cost:?}");
    shut_down(engine).await;
}

async fn writes_held_behind_a_start_cost_two_flushes(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        cx.sleep(Duration::ZERO).await;
        BodyResult::Ok(1)
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    store.hold_calls(&[crate::faults::fault_store::Call::Commit]);
    let cost = cost(&engine, async {
        let run = {
            let (engine, workflow) = (engine.clone(), workflow.clone());
            tokio::spawn(async move { engine.run(&workflow, ()).workflow_id("x").await })
        };
        store.wait_until_hanging().await;
        // a waiter for the end and one for the Start: until the Start is committed, no other engine may start the id
        while engine.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < 2 {
            tokio::task::yield_now().await;
        }
        store.release();
        run.await.unwrap().unwrap();
    })
    .await;
    assert_eq!(
        (cost.flushes, cost.held, cost.waits),
        (2, 2, 2),
        "the Start alone, then its checkpoint and its end"
    );
    shut_down(engine).await;
}

async fn graph_costs_a_row_per_task_and_a_flush_per_level(fixture: &dyn StoreFixture) {
    // three levels of four tasks, each of which depends on all tasks of the level before
    let graph = layered_graph(3, 4, 4);
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let rows = [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (12, 0, 0))];
    let run = async || assert_eq!(engine.run(&graph, ()).await.unwrap(), [21; 4]);
    assert_eq!(fewest_flushes(&engine, &rows, 4, run).await, 4);
    shut_down(engine).await;
}

/// Returns a graph of layers of tasks, each of which depends on tasks of the layer before. The value of a task is the
/// sum of theirs, and 1.
fn layered_graph(layers: usize, width: usize, dependencies: usize) -> Workflow<(), Vec<u32>> {
    let mut graph = Graph::<()>::new("layers");
    let mut layer: Vec<TaskRef<u32>> = Vec::new();
    for depth in 0..layers {
        layer = (0..width)
            .map(|n| {
                let above: Vec<_> =
                    layer.iter().cycle().skip(n).step_by(3).take(dependencies).cloned().collect();
                let task = graph.task(format!("t{depth}.{n}"));
                task.run(above, async |values: Vec<u32>| {
                    Ok::<_, Failure>(values.iter().fold(1, |sum: u32, value| sum.wrapping_add(*value)))
                })
            })
            .collect();
    }
    graph.build(layer).unwrap()
}

/// Runs a wide graph repeatedly until a run takes at most `max_flushes`, and asserts the same cost in rows each time.
async fn assert_wide_graph(
    engine: &Engine,
    rows: &[(Table, (u64, u64, u64))],
    max_flushes: u64,
    run: impl AsyncFn(),
) {
    let mut all = Vec::new();
    while all.len() < 10 {
        let cost = cost_with_reads(engine, run()).await;
        assert_rows(&cost, rows);
        assert_eq!(cost.claims, 0);
        if cost.flushes <= max_flushes {
            return;
        }
        all.push(cost.flushes);
    }
    panic!("more than {max_flushes} flushes in each run: {all:?}");
}

async fn layers_of_10_000_tasks_cost_a_row_each_and_few_flushes(fixture: &dyn StoreFixture) {
    let graph = layered_graph(100, 100, 3);
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let rows = [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (10_000, 0, 0))];
    let value = (0..100).fold(0, |above: u32, depth| if depth == 0 { 1 } else { above.wrapping_mul(3) + 1 });
    let run = async || assert_eq!(engine.run(&graph, ()).await.unwrap(), [value; 100]);
    // a flush wakes more tasks than one turn of the loop runs, so some layers are flushed in two parts, and on a busy
    // machine in more
    assert_wide_graph(&engine, &rows, 4 * 100 + 1, run).await;
    shut_down(engine).await;
}

async fn fan_out_of_10_000_tasks_costs_a_row_each_and_few_flushes(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("fan");
    let root = graph.task("root").run((), async |()| Ok::<_, Failure>(1));
    let all: Vec<_> = (0..10_000)
        .map(|n| graph.task(format!("t{n}")).run(root.clone(), async |x: u32| Ok::<_, Failure>(x)))
        .collect();
    let sum = graph.task("sum").run(all, async |all: Vec<u32>| Ok::<_, Failure>(all.iter().sum::<u32>()));
    let graph = graph.build(sum).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let rows = [(Table::Executions, (1, 1, 0)), (Table::Checkpoints, (10_002, 0, 0))];
    let run = async || assert_eq!(engine.run(&graph, ()).await.unwrap(), 10_000);
    // three levels and the end; the second level needs several turns of the loop, and exceeds the size of a flush. About
    // 7 flushes on a quiet machine; on a busy one the committer finds fewer Writes at a time.
    assert_wide_graph(&engine, &rows, 200, run).await;
    shut_down(engine).await;
}
