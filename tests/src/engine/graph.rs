//! Graphs: the order of their tasks, rules, failures, limits, and restarts with changed graphs.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::graph::{Graph, GraphDeclaration, Rule};
use stepfast_core::store::{CheckpointKind, RequestResult};
use stepfast_core::{Context, Engine, Error, Failure, RetryPolicy, Status, Workflow};

use super::support::{BodyResult, Count, Latch, Peak, open_engine, record, shut_down};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    tasks_receive_values_of_their_dependencies,
    independent_tasks_run_concurrently,
    concurrency_limit_is_kept,
    failure_skips_dependents_and_names_the_task,
    allowed_failure_is_compensated,
    failed_attempts_are_retried,
    cancel_ends_a_graph,
    graph_is_a_child,
    task_is_a_graph,
    resume_starts_a_failed_child_again,
    condition_on_a_value_decides_what_runs,
    callbacks_run_after_the_ends_of_tasks,
    mapped_task_joins_values_in_order,
    mapped_items_are_limited,
    unreachable_store_is_reported_when_graphs_are_stored,
    failed_item_fails_its_task_after_the_others,
    mapped_items_are_recorded_once_across_engines,
    graph_with_new_tasks_continues,
    declaration_is_stored_when_an_engine_opens,
    graph_without_a_recorded_task_parks,
    graph_with_changed_dependencies_parks,
    graph_whose_recorded_task_depends_on_a_new_one_parks,
];

/// Returns a task's body that increments `begun`, waits for `latch`, and returns `value`.
fn waiting_body(
    begun: &Count,
    latch: &Latch,
    value: i64,
) -> impl Fn(()) -> BodyFuture + Send + Sync + 'static {
    let (begun, latch) = (begun.clone(), latch.clone());
    move |()| {
        let (begun, latch) = (begun.clone(), latch.clone());
        Box::pin(async move {
            begun.increment();
            latch.wait().await;
            Ok(value)
        })
    }
}

type BodyFuture = futures_util::future::BoxFuture<'static, BodyResult<i64>>;

async fn tasks_receive_values_of_their_dependencies(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<i64>::new("g");
    let input = graph.input();
    let double = graph.task("double").run(input, async |x: i64| BodyResult::Ok(x * 2));
    let text =
        graph.task("text").run((input, double.clone()), async |(x, y)| BodyResult::Ok(format!("{x} {y}")));
    let last =
        graph.task("last").run((double, text), async |(x, text)| BodyResult::Ok(format!("{x} {text}")));
    let graph = graph.build(last).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, 4).workflow_id("x").await.unwrap(), "8 4 8");
    let names: Vec<String> =
        record(&engine, "x").await.checkpoints.iter().map(|checkpoint| checkpoint.name.to_string()).collect();
    assert_eq!(names, ["double", "text", "last"]);
    shut_down(engine).await;
}

async fn independent_tasks_run_concurrently(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let mut graph = Graph::<()>::new("g");
    let tasks: Vec<_> =
        (0..10).map(|n| graph.task(format!("t{n}")).run((), waiting_body(&begun, &latch, n))).collect();
    let sum = graph.task("sum").run(tasks, async |all: Vec<i64>| BodyResult::Ok(all.iter().sum::<i64>()));
    let graph = graph.build(sum).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let handle = engine.start(&graph, ()).await.unwrap();
    begun.wait_for(10).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 45);
    shut_down(engine).await;
}

async fn concurrency_limit_is_kept(fixture: &dyn StoreFixture) {
    let peak = Peak::default();
    let mut graph = Graph::<()>::new("g");
    graph.max_concurrency(3);
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let peak = peak.clone();
            graph.task(format!("t{n}")).run((), move |()| {
                let peak = peak.clone();
                async move {
                    peak.count(3).await;
                    BodyResult::Ok(n)
                }
            })
        })
        .collect();
    let graph = graph.build(tasks).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, ()).await.unwrap(), (0..20).collect::<Vec<i64>>());
    assert_eq!(peak.get(), 3);
    shut_down(engine).await;
}

async fn failure_skips_dependents_and_names_the_task(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let mut graph = Graph::<()>::new("etl");
    let extract = graph.task("extract").run((), async |()| BodyResult::<i64>::Err(Failure::new("no rows")));
    let counted = bodies.clone();
    let load = graph.task("load").run(extract, move |_| {
        counted.increment();
        std::future::ready(BodyResult::Ok(1))
    });
    let counted = bodies.clone();
    let other = graph.task("other").run((), move |()| {
        counted.increment();
        std::future::ready(BodyResult::Ok(2))
    });
    let graph = graph.build((load, other)).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let error = engine.run(&graph, ()).workflow_id("x").await.unwrap_err();
    let Error::Failed(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.message, "task \"extract\" of graph \"etl\" failed: no rows");
    assert_eq!(bodies.get(), 1, "the independent task runs, and the dependent does not");
    assert_eq!(record(&engine, "x").await.checkpoints.len(), 2);
    // a resume keeps what has succeeded, and repeats the failed task
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let again = engine.get::<(i64, i64)>("x").await.unwrap().result().await.unwrap_err();
    assert!(matches!(again, Error::Failed(_)), "{again}");
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}

async fn allowed_failure_is_compensated(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<bool>::new("order");
    let fails = graph.input();
    let charge = graph.task("charge").run((), async |()| BodyResult::Ok(10));
    let ship = graph.task("ship").may_fail().run((fails, charge.clone()), async |(fails, _)| {
        if fails { Err(Failure::new("out of stock")) } else { Ok("shipped".to_owned()) }
    });
    let refund = graph
        .task("refund")
        .when(Rule::failed("ship") & Rule::succeeded("charge"))
        .run(charge, async |amount: i64| BodyResult::Ok(amount));
    let graph = graph.build((ship.optional(), refund.optional())).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, false).await.unwrap(), (Some("shipped".to_owned()), None));
    assert_eq!(engine.run(&graph, true).await.unwrap(), (None, Some(10)));
    shut_down(engine).await;
}

async fn failed_attempts_are_retried(fixture: &dyn StoreFixture) {
    let attempts = Count::new();
    let counted = attempts.clone();
    let policy = RetryPolicy { retries: 2, backoff: Duration::ZERO, ..RetryPolicy::default() };
    let mut graph = Graph::<()>::new("g");
    let task = graph.task("flaky").retry(policy).run((), move |()| {
        let attempt = counted.increment();
        async move { if attempt < 3 { Err(Failure::new("again")) } else { Ok(attempt) } }
    });
    let graph = graph.build(task).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, ()).workflow_id("x").await.unwrap(), 3);
    assert_eq!(record(&engine, "x").await.attempts.len(), 2);
    shut_down(engine).await;
}

async fn cancel_ends_a_graph(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let mut graph = Graph::<()>::new("g");
    let first = graph.task("first").run((), waiting_body(&begun, &latch, 1));
    let counted = begun.clone();
    let second = graph.task("second").run(first, move |x: i64| {
        counted.increment();
        std::future::ready(BodyResult::Ok(x))
    });
    let graph = graph.build(second).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let handle = engine.start(&graph, ()).await.unwrap();
    begun.wait_for(1).await;
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await.unwrap_err(), Error::Cancelled(_)));
    latch.open();
    assert_eq!((begun.get(), handle.status().await.unwrap()), (1, Status::Cancelled));
    shut_down(engine).await;
}

async fn graph_is_a_child(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<i64>::new("inner");
    let input = graph.input();
    let double = graph.task("double").run(input, async |x: i64| BodyResult::Ok(x * 2));
    let inner = graph.build(double).unwrap();
    let outer = {
        let inner = inner.clone();
        Workflow::new("outer", move |mut cx: Context, x: i64| {
            let inner = inner.clone();
            async move { BodyResult::Ok(cx.child(&inner, x).await? + 1) }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&inner).register(&outer)).await;
    assert_eq!(engine.run(&outer, 20).await.unwrap(), 41);
    shut_down(engine).await;
}

async fn condition_on_a_value_decides_what_runs(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<i64>::new("g");
    let input = graph.input();
    let count = graph.task("count").run(input, async |n: i64| BodyResult::Ok(n));
    let large = graph
        .task("large")
        .when(Rule::value("count").gt(10))
        .run(count.clone(), async |n: i64| BodyResult::Ok(n * 100));
    let small = graph
        .task("small")
        .when(Rule::value("count").le(10))
        .run(count.clone(), async |n: i64| BodyResult::Ok(n));
    let graph = graph.build((large.optional(), small.optional())).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, 10).await.unwrap(), (None, Some(10)));
    assert_eq!(engine.run(&graph, 11).await.unwrap(), (Some(1100), None));
    shut_down(engine).await;
}

async fn callbacks_run_after_the_ends_of_tasks(fixture: &dyn StoreFixture) {
    let (successes, failures) = (Count::new(), Count::new());
    let mut graph = Graph::<()>::new("g");
    let (on_success, on_failure) = (successes.clone(), failures.clone());
    let good = graph
        .task("good")
        .on_success(move |value: i64| {
            assert_eq!(value, 7);
            on_success.increment();
            // the failure of a callback is recorded, and changes nothing else
            async { Err(Failure::new("callback")) }
        })
        .run((), async |()| BodyResult::Ok(7_i64));
    let bad = graph
        .task("bad")
        .may_fail()
        .on_failure(move |failure| {
            assert_eq!(failure.message, "bad");
            on_failure.increment();
            async { BodyResult::Ok(()) }
        })
        .run(good.clone(), async |_: i64| Err::<i64, _>(Failure::new("bad")));
    let graph = graph.build((good, bad.optional())).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.run(&graph, ()).workflow_id("x").await.unwrap(), (7, None));
    assert_eq!((successes.get(), failures.get()), (1, 1));
    let checkpoints = record(&engine, "x").await.checkpoints;
    let names: Vec<&str> = checkpoints.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["good", "good.on_success", "bad", "bad.on_failure"]);
    shut_down(engine).await;
}

/// Returns a graph that squares the numbers below its input, at most `max_items` at a time, and adds them up.
fn squares(
    max_items: usize,
    body: impl Fn(u64) -> futures_util::future::BoxFuture<'static, BodyResult<u64>> + Send + Sync + 'static,
) -> Workflow<u64, (u64, u64)> {
    let mut graph = Graph::<u64>::new("squares");
    let input = graph.input();
    let numbers = graph.task("numbers").run(input, async |n: u64| BodyResult::Ok((0..n).collect::<Vec<_>>()));
    let squares =
        graph.task("square").map_over(&numbers).max_items(max_items).run(input, move |x, _n: u64| body(x));
    let last = graph
        .task("last")
        .run(squares.clone(), async |all: Vec<u64>| BodyResult::Ok(all.last().copied().unwrap_or_default()));
    let sum = graph.task("sum").run(squares, async |all: Vec<u64>| BodyResult::Ok(all.iter().sum::<u64>()));
    graph.build((sum, last)).unwrap()
}

async fn task_is_a_graph(fixture: &dyn StoreFixture) {
    let mut inner = Graph::<(i64, String)>::new("inner");
    let input = inner.input();
    let text = inner.task("text").run(input, async |(n, text)| BodyResult::Ok(format!("{text} {n}")));
    let inner = inner.build(text).unwrap();
    let mut outer = Graph::<i64>::new("outer");
    let input = outer.input();
    let word = outer.task("word").run((), async |()| BodyResult::Ok("number".to_owned()));
    let text = outer.task("inner").include((input, word), &inner);
    let last = outer.task("last").run(text, async |text| BodyResult::Ok(format!("{text}!")));
    let outer = outer.build(last).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&inner).register(&outer)).await;
    assert_eq!(engine.run(&outer, 4).workflow_id("x").await.unwrap(), "number 4!");
    let checkpoints = record(&engine, "x").await.checkpoints;
    let kinds: Vec<CheckpointKind> = checkpoints.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [CheckpointKind::Step, CheckpointKind::Child, CheckpointKind::Step]);
    shut_down(engine).await;
}

async fn resume_starts_a_failed_child_again(fixture: &dyn StoreFixture) {
    let begun = Count::new();
    let child = {
        let begun = begun.clone();
        Workflow::new("child", move |_: Context, n: i64| {
            let begun = begun.clone();
            async move { if begun.increment() == 1 { Err(Failure::new("once")) } else { Ok(n) } }
        })
    };
    let mut graph = Graph::<i64>::new("g");
    let input = graph.input();
    let number = graph.task("number").include(input, &child);
    let double = graph.task("double").run(number, async |n: i64| BodyResult::Ok(2 * n));
    let graph = graph.build(double).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&graph)).await;
    let handle = engine.start(&graph, 4).await.unwrap();
    let failure = handle.result().await.unwrap_err().to_string();
    assert!(failure.contains("task \"number\" of graph \"g\" failed: once"), "{failure}");
    assert_eq!(handle.resume().await.unwrap(), RequestResult::Done);
    let output: i64 = engine.get(&handle.workflow_id()).await.unwrap().result().await.unwrap();
    assert_eq!((output, begun.get()), (8, 2));
    shut_down(engine).await;
}

async fn mapped_task_joins_values_in_order(fixture: &dyn StoreFixture) {
    let graph = squares(50, |x| Box::pin(async move { Ok(x * x) }));
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    for n in [0, 1, 300_u64] {
        let sum = (0..n).map(|x| x * x).sum();
        let last = n.saturating_sub(1).pow(2);
        assert_eq!(engine.run(&graph, n).await.unwrap(), (sum, last));
    }
    shut_down(engine).await;
}

async fn mapped_items_are_limited(fixture: &dyn StoreFixture) {
    let peak = Peak::default();
    let counted = peak.clone();
    let graph = squares(7, move |x| {
        let peak = counted.clone();
        Box::pin(async move {
            peak.count(7).await;
            Ok(x)
        })
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    engine.run(&graph, 100).await.unwrap();
    assert_eq!(peak.get(), 7);
    shut_down(engine).await;
}

async fn failed_item_fails_its_task_after_the_others(fixture: &dyn StoreFixture) {
    let bodies = Count::new();
    let counted = bodies.clone();
    let graph = squares(3, move |x| {
        let bodies = counted.clone();
        Box::pin(async move {
            // the poison items fail in the first run only
            let n = bodies.increment();
            if (x == 4 || x == 8) && n <= 10 { Err(Failure::new("poison")) } else { Ok(x) }
        })
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let error = engine.run(&graph, 10).workflow_id("x").await.unwrap_err();
    let Error::Failed(failure) = &error else { panic!("{error}") };
    let expected = "task \"square\" of graph \"squares\" failed: item 5 of 10 failed: poison";
    assert_eq!((failure.message.as_str(), bodies.get()), (expected, 10));
    // a resume repeats only the failed items
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<(u64, u64)>("x").await.unwrap().result().await.unwrap(), (45, 9));
    assert_eq!(bodies.get(), 12);
    shut_down(engine).await;
}

async fn mapped_items_are_recorded_once_across_engines(fixture: &dyn StoreFixture) {
    const ITEMS: u64 = 500;
    let (bodies, latch) = (Count::new(), Latch::new());
    let (counted, waited) = (bodies.clone(), latch.clone());
    let graph = squares(20, move |x| {
        let (bodies, latch) = (counted.clone(), waited.clone());
        Box::pin(async move {
            // the first engine stops in the middle
            if bodies.increment() > 250 {
                latch.wait().await;
            }
            Ok(x * x)
        })
    });
    let (one, _) = open_engine(fixture, |b| b.register(&graph)).await;
    one.start(&graph, ITEMS).workflow_id("x").await.unwrap();
    bodies.wait_for(270).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let sum = (0..ITEMS).map(|x| x * x).sum();
    let output = two.get::<(u64, u64)>("x").await.unwrap().result().await.unwrap();
    assert_eq!(output, (sum, (ITEMS - 1).pow(2)));
    assert_eq!(bodies.get(), 520, "only the twenty interrupted items ran again");
    assert_eq!(record(&two, "x").await.checkpoints.len() as u64, ITEMS + 3);
    shut_down(two).await;
}

/// The variants of a graph that is changed while an execution is in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Original,
    /// Four more tasks without dependencies, declared first.
    NewTasks,
    /// The task `first` is missing.
    WithoutFirst,
    /// The task `second` depends on `first`.
    OtherDependency,
    /// The task `second` depends on a new task.
    NewDependency,
}

/// Returns a graph of `first`, `second` and `last`, of which two run at a time. `last` waits for the latch.
fn changing_graph(variant: Variant, begun: &Count, latch: &Latch) -> Workflow<(), i64> {
    let mut graph = Graph::<()>::new("g");
    graph.max_concurrency(2);
    if variant == Variant::NewTasks {
        for n in 0..4 {
            graph.task(format!("new {n}")).run((), move |()| std::future::ready(BodyResult::Ok(n)));
        }
    }
    let other = graph.task("other").run((), async |()| BodyResult::Ok(5));
    let first = (variant != Variant::WithoutFirst)
        .then(|| graph.task("first").after(&other).run((), async |()| BodyResult::Ok(10)));
    let new =
        (variant == Variant::NewDependency).then(|| graph.task("new").run((), async |()| BodyResult::Ok(())));
    let second = graph.task("second").after(&other);
    let second = if let Some(new) = &new { second.after(new) } else { second };
    let second = match (&first, variant) {
        (Some(first), Variant::OtherDependency) => second.after(first),
        _ => second,
    };
    let second = second.run((), async |()| BodyResult::Ok(20));
    let last = graph.task("last").after(&second);
    let last = if let Some(first) = &first { last.after(first) } else { last };
    let last = last.run((), waiting_body(begun, latch, 1));
    graph.build(last).unwrap()
}

/// Starts the original as `x`, and stops it when `first` and `second` are recorded. Opens an engine with the variant.
async fn open_with_changed_graph(fixture: &dyn StoreFixture, variant: Variant) -> Engine {
    let (begun, latch) = (Count::new(), Latch::new());
    let original = changing_graph(Variant::Original, &begun, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&original)).await;
    one.start(&original, ()).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    let changed = changing_graph(variant, &begun, &latch);
    open_engine(fixture, |b| b.register(&changed)).await.0
}

async fn graph_with_new_tasks_continues(fixture: &dyn StoreFixture) {
    let two = open_with_changed_graph(fixture, Variant::NewTasks).await;
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    let record = record(&two, "x").await;
    let mut names: Vec<&str> = record.checkpoints.iter().map(|checkpoint| &*checkpoint.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["first", "last", "new 0", "new 1", "new 2", "new 3", "other", "second"]);
    assert!(record.checkpoints.iter().all(|checkpoint| checkpoint.kind == CheckpointKind::Step));
    shut_down(two).await;
}

async fn assert_parks(fixture: &dyn StoreFixture, variant: Variant, reason: &str) {
    let two = open_with_changed_graph(fixture, variant).await;
    let error = two.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    let Error::Parked { failure, .. } = &error else { panic!("{error}") };
    assert!(failure.message.contains(reason), "{failure}");
    // the original continues
    shut_down(two).await;
    let (begun, latch) = (Count::new(), Latch::new());
    latch.open();
    let original = changing_graph(Variant::Original, &begun, &latch);
    let (three, _) = open_engine(fixture, |b| b.register(&original)).await;
    three.resume("x").await.unwrap();
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    shut_down(three).await;
}

async fn graph_without_a_recorded_task_parks(fixture: &dyn StoreFixture) {
    assert_parks(fixture, Variant::WithoutFirst, "task \"first\" is recorded, but is not in the graph").await;
}

async fn graph_whose_recorded_task_depends_on_a_new_one_parks(fixture: &dyn StoreFixture) {
    let reason = "task \"second\" is recorded, but is not in the graph, or depends on a task that is not recorded; the \
                  code waits for task \"new\"";
    assert_parks(fixture, Variant::NewDependency, reason).await;
}

async fn graph_with_changed_dependencies_parks(fixture: &dyn StoreFixture) {
    let reason = "task \"second\" was recorded with other dependencies";
    assert_parks(fixture, Variant::OtherDependency, reason).await;
}

async fn declaration_is_stored_when_an_engine_opens(fixture: &dyn StoreFixture) {
    let declare = |last: &'static str| {
        let mut graph = Graph::<i64>::new("declared");
        let first = graph.task("first").run((), async |()| BodyResult::Ok(1));
        let last = graph
            .task(last)
            .after(&first)
            .when(Rule::all_done() & Rule::value("first").gt(0))
            .run((), async |()| BodyResult::Ok(2));
        graph.build(last.optional()).unwrap()
    };
    let plain = Workflow::new("plain", async |_: Context, (): ()| BodyResult::Ok(()));
    let store = fixture.store();
    for last in ["last", "last", "later"] {
        let engine = Engine::builder(store.clone()).register(&plain).register(&declare(last));
        shut_down(engine.open().await.unwrap()).await;
        let rows = fixture.second_store().await.graphs(None).await.unwrap();
        assert_eq!(rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["declared"]);
        let declaration = GraphDeclaration::from_row(&rows[0]).unwrap();
        assert_eq!(declaration.inputs, None);
        let shape = declaration.shape("declared").unwrap();
        assert_eq!(shape.topological_order(), ["first", last]);
        assert_eq!(shape.rule(last), Some(&(Rule::all_done() & Rule::value("first").gt(0))));
    }
    // an engine without graphs leaves those of other programs
    shut_down(Engine::builder(store.clone()).register(&plain).open().await.unwrap()).await;
    assert_eq!(store.graphs(None).await.unwrap().len(), 1);
}

async fn unreachable_store_is_reported_when_graphs_are_stored(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    let task = graph.task("a").run((), async |()| BodyResult::Ok(1));
    let graph = graph.build(task).unwrap();
    let store = FaultStore::wrap(fixture.store());
    let opening = |store: &Arc<FaultStore>| Engine::builder(store.clone()).register(&graph).open();
    for call in [Call::Graphs, Call::Register] {
        store.make_unavailable(&[call]);
        let Err(error) = opening(&store).await else { panic!("the store is unreachable") };
        assert!(matches!(error, Error::Unreachable { .. }), "{call:?}: {error}");
    }
    store.heal();
    shut_down(opening(&store).await.unwrap()).await;
}
