//! Graphs that failed and are resumed: which tasks run again, and which failures are kept.

use futures_util::future::BoxFuture;
use stepfast_core::graph::{Graph, Rule};
use stepfast_core::store::{RequestResult, Write};
use stepfast_core::{Engine, Error, Failure, Workflow};

use super::support::{BodyResult, Count, Latch, Peak, open_engine, open_second_engine, record, shut_down};
use crate::StoreFixture;

super::cases![
    failure_is_kept_without_a_resume,
    failure_is_kept_if_a_mapped_dependent_ran,
    failure_is_kept_if_a_task_ran_because_another_was_skipped,
    failure_is_kept_if_a_dependent_of_an_empty_map_ran,
    repeated_task_with_recorded_dependents_is_replayed,
    repeated_items_hold_back_no_recorded_item,
    repeated_tasks_are_limited,
];

/// Returns a body that increments `count`, and fails as long as `count` is at most `failures`.
fn failing_body(
    count: &Count,
    failures: usize,
) -> impl Fn(()) -> BoxFuture<'static, BodyResult<i64>> + Send + Sync + 'static {
    let count = count.clone();
    move |()| {
        let number = count.increment();
        Box::pin(async move { if number <= failures { Err(Failure::new("no")) } else { Ok(1) } })
    }
}

/// Waits for the end of `x`, which must be the failure of this task.
async fn assert_fails(engine: &Engine, task: &str) {
    let error = engine.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    let Error::Failed(failure) = &error else { panic!("{error}") };
    assert!(failure.message.starts_with(&format!("task \"{task}")), "{failure}");
}

async fn resume(engine: &Engine) {
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
}

/// Asserts that the graph fails with `charge` before and after a resume. `charge` would succeed if repeated.
async fn assert_failure_is_kept(fixture: &dyn StoreFixture, graph: &Workflow<(), i64>, charges: &Count) {
    let (engine, _) = open_engine(fixture, |b| b.register(graph)).await;
    engine.start(graph, ()).workflow_id("x").await.unwrap();
    assert_fails(&engine, "charge").await;
    let before = record(&engine, "x").await.checkpoints;
    resume(&engine).await;
    assert_fails(&engine, "charge").await;
    assert_eq!(charges.get(), 1, "the failure is kept");
    assert_eq!(record(&engine, "x").await.checkpoints, before);
    shut_down(engine).await;
}

/// An engine shuts down after a task has failed, and another engine continues the graph.
async fn failure_is_kept_without_a_resume(fixture: &dyn StoreFixture) {
    let (charges, waiting, latch) = (Count::new(), Count::new(), Latch::new());
    let mut graph = Graph::<()>::new("g");
    let charge = graph.task("charge").run((), failing_body(&charges, 1));
    let (waits, opened, failed) = (waiting.clone(), latch.clone(), charges.clone());
    graph.task("log").run((), move |()| {
        let (waits, opened, failed) = (waits.clone(), opened.clone(), failed.clone());
        async move {
            failed.wait_for(1).await;
            waits.increment();
            opened.wait().await;
            BodyResult::Ok(())
        }
    });
    let graph = graph.build(charge).unwrap();
    let (one, store) = open_engine(fixture, |b| b.register(&graph)).await;
    one.start(&graph, ()).workflow_id("x").await.unwrap();
    waiting.wait_for(1).await;
    store.wait_until_committed(|write| matches!(write, Write::Checkpoint(_))).await;
    shut_down(one).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&graph)).await;
    waiting.wait_for(2).await;
    latch.open();
    assert_fails(&two, "charge").await;
    assert_eq!(charges.get(), 1, "the failure is kept");
    shut_down(two).await;
}

async fn failure_is_kept_if_a_mapped_dependent_ran(fixture: &dyn StoreFixture) {
    let charges = Count::new();
    let mut graph = Graph::<()>::new("g");
    let orders = graph.task("orders").run((), async |()| BodyResult::Ok(vec![1, 2]));
    let charge = graph.task("charge").run((), failing_body(&charges, 1));
    let rule = Rule::failed("charge") & Rule::succeeded("orders");
    let refund = graph.task("refund").when(rule).map_over(&orders);
    refund.run((), async |order: i64, ()| BodyResult::Ok(order));
    let graph = graph.build(charge).unwrap();
    assert_failure_is_kept(fixture, &graph, &charges).await;
}

async fn failure_is_kept_if_a_task_ran_because_another_was_skipped(fixture: &dyn StoreFixture) {
    let charges = Count::new();
    let mut graph = Graph::<()>::new("g");
    let charge = graph.task("charge").run((), failing_body(&charges, 1));
    graph.task("ship").run(charge.clone(), async |x: i64| BodyResult::Ok(x));
    graph.task("excuse").when(Rule::skipped("ship")).run((), async |()| BodyResult::Ok(0));
    let graph = graph.build(charge).unwrap();
    assert_failure_is_kept(fixture, &graph, &charges).await;
}

async fn failure_is_kept_if_a_dependent_of_an_empty_map_ran(fixture: &dyn StoreFixture) {
    let charges = Count::new();
    let mut graph = Graph::<()>::new("g");
    let orders = graph.task("orders").run((), async |()| BodyResult::Ok(Vec::<i64>::new()));
    let charge = graph.task("charge").run((), failing_body(&charges, 1));
    let rule = Rule::failed("charge") & Rule::succeeded("orders");
    let refund = graph.task("refund").when(rule).map_over(&orders);
    let refund = refund.run((), async |order: i64, ()| BodyResult::Ok(order));
    graph.task("report").run(refund, async |all: Vec<i64>| BodyResult::Ok(all.len()));
    let graph = graph.build(charge).unwrap();
    assert_failure_is_kept(fixture, &graph, &charges).await;
}

async fn repeated_task_with_recorded_dependents_is_replayed(fixture: &dyn StoreFixture) {
    let (charges, waiting, latch) = (Count::new(), Count::new(), Latch::new());
    let mut graph = Graph::<()>::new("g");
    let charge = graph.task("charge").run((), failing_body(&charges, 1));
    // this task ends after `charge`, whose failure is not withdrawn therefore
    let waited = charges.clone();
    let log = graph.task("log").run((), move |()| {
        let charges = waited.clone();
        async move {
            charges.wait_for(1).await;
            tokio::task::yield_now().await;
            BodyResult::Ok(())
        }
    });
    let ship = graph.task("ship").after(&log).run(charge, async |x: i64| BodyResult::Ok(x + 1));
    let (waits, opened) = (waiting.clone(), latch.clone());
    let last = graph.task("last").run(ship, move |x: i64| {
        let (waits, opened) = (waits.clone(), opened.clone());
        async move {
            waits.increment();
            opened.wait().await;
            BodyResult::Ok(x + 1)
        }
    });
    let graph = graph.build(last).unwrap();
    let (one, _) = open_engine(fixture, |b| b.register(&graph)).await;
    one.start(&graph, ()).workflow_id("x").await.unwrap();
    assert_fails(&one, "charge").await;
    resume(&one).await;
    // `charge` was repeated, and `ship` is recorded
    waiting.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 3);
    assert_eq!(charges.get(), 2);
    shut_down(two).await;
}

async fn repeated_items_hold_back_no_recorded_item(fixture: &dyn StoreFixture) {
    let (bodies, peak) = (Count::new(), Peak::default());
    let counts = (bodies.clone(), peak.clone());
    let mut graph = Graph::<()>::new("g");
    let numbers = graph.task("numbers").run((), async |()| BodyResult::Ok((0..6).collect::<Vec<i64>>()));
    let squares = graph.task("square").map_over(&numbers).max_items(1).run((), move |x: i64, ()| {
        let (bodies, peak) = counts.clone();
        async move {
            // all items but the last fail in the first run
            let number = bodies.increment();
            peak.count(1).await;
            if number < 6 { Err(Failure::new("no")) } else { Ok(x * x) }
        }
    });
    let sum = graph.task("sum").run(squares, async |all: Vec<i64>| BodyResult::Ok(all.iter().sum::<i64>()));
    let graph = graph.build(sum).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    engine.start(&graph, ()).workflow_id("x").await.unwrap();
    assert_fails(&engine, "square").await;
    resume(&engine).await;
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 55);
    assert_eq!((bodies.get(), peak.get()), (11, 1), "five items run again, one at a time");
    shut_down(engine).await;
}

async fn repeated_tasks_are_limited(fixture: &dyn StoreFixture) {
    let (bodies, peak) = (Count::new(), Peak::default());
    let mut graph = Graph::<()>::new("g");
    graph.max_concurrency(2);
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let (bodies, peak) = (bodies.clone(), peak.clone());
            graph.task(format!("t{n}")).run((), move |()| {
                let (bodies, peak) = (bodies.clone(), peak.clone());
                async move {
                    let number = bodies.increment();
                    peak.count(2).await;
                    if number < 10 { Err(Failure::new("no")) } else { Ok(n) }
                }
            })
        })
        .collect();
    let sum = graph.task("sum").run(tasks, async |all: Vec<i64>| BodyResult::Ok(all.iter().sum::<i64>()));
    let graph = graph.build(sum).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    engine.start(&graph, ()).workflow_id("x").await.unwrap();
    assert_fails(&engine, "t").await;
    resume(&engine).await;
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 45);
    assert_eq!((bodies.get(), peak.get()), (19, 2), "nine tasks run again, two at a time");
    shut_down(engine).await;
}
