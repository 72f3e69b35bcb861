//! The context of graphs: values that tasks share by key, merges of parallel changes, takeovers and resumes.

use std::collections::BTreeMap;
use std::future::ready;

use serde::{Deserialize, Serialize};
use stepfast_core::graph::{ContextRef, Graph, GraphContext, Merge, Rule, TaskRef};
use stepfast_core::payload::Payload;
use stepfast_core::store::RequestResult;
use stepfast_core::{Error, Failure, Workflow};

use super::support::{BodyResult, Count, Latch, open_engine, open_second_engine, record, row, shut_down};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    values_flow_along_edges,
    input_has_the_first_values,
    parallel_changes_of_one_key_are_an_error,
    policy_merges_parallel_values,
    merged_values_are_merged_once,
    later_task_overwrites_an_earlier_one,
    removed_key_is_missing_afterwards,
    failed_attempt_changes_nothing,
    failed_and_skipped_tasks_pass_the_context_on,
    value_is_separate_from_the_changes,
    rules_read_the_context_before_their_tasks,
    rule_about_a_conflict_fails_its_task,
    takeover_replays_recorded_changes,
    resume_keeps_recorded_changes,
    value_without_changes_parks,
    tasks_that_cannot_change_the_context_are_rejected,
];

/// The output of a graph: its context at the end.
type Values = BTreeMap<String, i64>;

/// Declares a task after other ones, which sets keys of the context.
fn set(
    graph: &mut Graph<()>,
    name: &'static str,
    after: &[&TaskRef<()>],
    values: &[(&'static str, serde_json::Value)],
) -> TaskRef<()> {
    let (context, values) = (graph.context(), values.to_vec());
    let task = after.iter().fold(graph.task(name), |task, dependency| task.after(dependency));
    task.run(context, move |cx: GraphContext| {
        ready(values.iter().try_for_each(|(key, value)| cx.set(key, value)))
    })
}

fn json(value: impl Into<serde_json::Value>) -> serde_json::Value {
    value.into()
}

async fn run<O>(fixture: &dyn StoreFixture, graph: &Workflow<(), O>) -> Result<O, Error>
where
    O: Serialize + for<'de> Deserialize<'de> + Send + 'static,
{
    let (engine, _) = open_engine(fixture, |b| b.register(graph)).await;
    let output = engine.run(graph, ()).workflow_id("x").await;
    shut_down(engine).await;
    output
}

async fn values_flow_along_edges(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<String>::new("g");
    let (input, context) = (graph.input(), graph.context());
    let read = graph.task("read").run((context, input), async |(cx, text): (GraphContext, String)| {
        assert!(cx.is_empty());
        cx.insert("words", text.split(' ').collect::<Vec<_>>())?;
        BodyResult::Ok(text.len())
    });
    let longest = graph.task("longest").after(&read).run(context, async |cx: GraphContext| {
        let words: Vec<String> = cx.require("words")?;
        cx.insert("longest", words.iter().max_by_key(|word| word.len()))?;
        BodyResult::Ok(())
    });
    let number = graph.task("number").run((context, read), async |(cx, len): (GraphContext, usize)| {
        assert!(!cx.contains("longest"), "no edge leads from the parallel task");
        cx.set("number", cx.require::<Vec<String>>("words")?.len() + len)?;
        BodyResult::Ok(())
    });
    graph.task("tidy").after(&longest).after(&number).run(context, async |cx: GraphContext| {
        assert_eq!(cx.keys(), ["longest", "number", "words"]);
        cx.remove("words")?;
        BodyResult::Ok(())
    });
    let graph = graph.build(context).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let output = engine.run(&graph, "to be or not".to_owned()).await.unwrap();
    assert_eq!(output.keys(), ["longest", "number"]);
    assert_eq!(output.require::<String>("longest").unwrap(), "not");
    assert_eq!(output.get::<usize>("number").unwrap(), Some(16));
    shut_down(engine).await;
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Stats {
    rows: i64,
    #[serde(default)]
    total: i64,
}

async fn input_has_the_first_values(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<Stats>::new("g");
    let context = graph.context_with_input();
    let numbers = graph
        .task("numbers")
        .run(context.view(), async |stats: Stats| BodyResult::Ok((0..stats.rows).collect::<Vec<_>>()));
    // an item reads the context, and does not change it
    let scaled = graph
        .task("scaled")
        .map_over(&numbers)
        .run(context.view(), async |n: i64, stats: Stats| BodyResult::Ok(n * stats.rows));
    graph.task("sum").run((context, scaled), async |(cx, all): (GraphContext, Vec<i64>)| {
        cx.update("total", all.iter().sum::<i64>())?;
        BodyResult::Ok(())
    });
    let graph = graph.build(context.view::<Stats>()).unwrap();
    let mut wrong = Graph::<i64>::new("wrong");
    let context = wrong.context_with_input();
    let wrong = wrong.build(context).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph).register(&wrong)).await;
    let output = engine.run(&graph, Stats { rows: 4, total: 0 }).await.unwrap();
    assert_eq!(output, Stats { rows: 4, total: 24 });
    let Error::Failed(failure) = engine.run(&wrong, 7).await.unwrap_err() else { panic!() };
    assert!(failure.message.contains("the input of the graph as its context"), "{failure}");
    shut_down(engine).await;
}

/// Returns a graph whose tasks `a` and `b` write the key `k`, and whose task `last` reads it.
fn parallel_graph(policy: Merge, a: serde_json::Value, b: serde_json::Value) -> Workflow<(), GraphContext> {
    let mut graph = Graph::<()>::new("g");
    graph.merge(policy);
    let root = set(&mut graph, "root", &[], &[("k", json(0)), ("other", json(1))]);
    let b = set(&mut graph, "b", &[&root], &[("k", b)]);
    let a = set(&mut graph, "a", &[&root], &[("k", a)]);
    // the edge from `root` adds no value, because `a` and `b` come after `root`
    set(&mut graph, "last", &[&root, &a, &b], &[("done", json(true))]);
    let context = graph.context();
    graph.build(context).unwrap()
}

async fn parallel_changes_of_one_key_are_an_error(fixture: &dyn StoreFixture) {
    let graph = parallel_graph(Merge::Error, json(1), json(2));
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let Error::Failed(failure) = engine.run(&graph, ()).workflow_id("x").await.unwrap_err() else { panic!() };
    for part in ["task \"last\" of graph \"g\" failed", "the tasks \"b\" and \"a\"", "the context key \"k\""]
    {
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(record(&engine, "x").await.checkpoints.len(), 3, "the last task has not begun");
    shut_down(engine).await;
    // a resume of the same execution merges the recorded values by the new policy
    let graph = parallel_graph(Merge::Last, json(1), json(2));
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let output = engine.get::<GraphContext>("x").await.unwrap().result().await.unwrap();
    assert_eq!(output.require::<i64>("k").unwrap(), 1);
    shut_down(engine).await;
}

async fn policy_merges_parallel_values(fixture: &dyn StoreFixture) {
    let join = Merge::with(|key, values| {
        let values = values.iter().map(Payload::decode).collect::<Result<Vec<i64>, Error>>()?;
        Payload::encode(&format!("{key} {values:?}"))
    });
    let object = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    // the values of b come first, because b is defined first
    let cases = [
        (Merge::Last, json(1), json(2), json(1)),
        (Merge::Concatenate, json("a"), json("b"), json("ba")),
        (
            Merge::Deep,
            object(r#"{"x": {"a": 1}}"#),
            object(r#"{"x": {"b": 2}}"#),
            object(r#"{"x": {"a": 1, "b": 2}}"#),
        ),
        (join, json(1), json(2), json("k [2, 1]")),
    ];
    for (policy, a, b, expected) in cases {
        let graph = parallel_graph(policy.clone(), a, b);
        let (engine, _) = open_engine(fixture, |builder| builder.register(&graph)).await;
        let output: BTreeMap<String, serde_json::Value> =
            engine.run(&graph, ()).await.unwrap().view().unwrap();
        assert_eq!((&output["k"], &output["other"]), (&expected, &json(1)), "{policy:?}");
        shut_down(engine).await;
    }
    let graph = parallel_graph(Merge::Concatenate, json("a"), json(2));
    let Error::Failed(failure) = run(fixture, &graph).await.unwrap_err() else { panic!() };
    assert!(failure.message.contains("only two lists or two texts are concatenated"), "{failure}");
}

async fn merged_values_are_merged_once(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    graph.merge(Merge::Concatenate);
    let a = set(&mut graph, "a", &[], &[("k", json("a"))]);
    let b = set(&mut graph, "b", &[], &[("k", json("b"))]);
    // both read the merged value, and pass it on
    let left = set(&mut graph, "left", &[&a, &b], &[("left", json(1))]);
    let right = set(&mut graph, "right", &[&a, &b], &[("right", json(1))]);
    let beside = set(&mut graph, "beside", &[], &[("k", json("c"))]);
    set(&mut graph, "last", &[&left, &right, &beside], &[]);
    let context = graph.context();
    let output = run(fixture, &graph.build(context).unwrap()).await.unwrap();
    assert_eq!(output.require::<String>("k").unwrap(), "abc");
}

async fn later_task_overwrites_an_earlier_one(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    let a = set(&mut graph, "a", &[], &[("k", json(1))]);
    let b = set(&mut graph, "b", &[&a], &[("k", json(2))]);
    // one dependency has the older value, and the other one the newer
    set(&mut graph, "c", &[&a, &b], &[("c", json(3))]);
    let context = graph.context();
    let output = run(fixture, &graph.build(context.view::<Values>()).unwrap()).await.unwrap();
    assert_eq!(output, Values::from([("k".to_owned(), 2), ("c".to_owned(), 3)]));
}

async fn removed_key_is_missing_afterwards(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    graph.merge(Merge::Concatenate);
    let context = graph.context();
    let first = set(&mut graph, "a", &[], &[("gone", json("x")), ("kept", json("x"))]);
    let remove = |key: &'static str| move |cx: GraphContext| ready(cx.remove(key).map_err(Failure::from));
    let one = graph.task("b").after(&first).run(context, remove("gone"));
    let two = graph.task("c").after(&first).run(context, remove("gone"));
    // a removal beside a value leaves the value
    let removing = graph.task("d").after(&first).run(context, remove("kept"));
    let setting = set(&mut graph, "e", &[&first], &[("kept", json("y"))]);
    set(&mut graph, "last", &[&one, &two, &removing, &setting], &[("new", json("z"))]);
    let output = run(fixture, &graph.build(context).unwrap()).await.unwrap();
    assert_eq!(output.keys(), ["kept", "new"]);
    assert_eq!(output.require::<String>("kept").unwrap(), "y");
}

async fn failed_attempt_changes_nothing(fixture: &dyn StoreFixture) {
    let attempts = Count::new();
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    graph.task("flaky").retry(stepfast_core::RetryPolicy::fixed(std::time::Duration::ZERO)).retries(2).run(
        context,
        move |cx: GraphContext| {
            let attempt = attempts.increment();
            ready(
                cx.insert(&format!("attempt {attempt}"), 1)
                    .map_err(Failure::from)
                    .and_then(|()| if attempt < 3 { Err(Failure::new("again")) } else { Ok(()) }),
            )
        },
    );
    let output = run(fixture, &graph.build(context).unwrap()).await.unwrap();
    assert_eq!(output.keys(), ["attempt 3"]);
}

async fn failed_and_skipped_tasks_pass_the_context_on(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    let first = set(&mut graph, "first", &[], &[("k", json(1))]);
    let failing = graph.task("failing").may_fail().after(&first).run(context, async |cx: GraphContext| {
        cx.set("k", 2)?;
        Err::<(), _>(Failure::new("no"))
    });
    let skipped = graph.task("skipped").after(&failing).run(context, async |cx: GraphContext| {
        cx.set("k", 3)?;
        BodyResult::Ok(())
    });
    graph.task("last").when(Rule::all_done()).after(&skipped).run(context, async |cx: GraphContext| {
        cx.insert("seen", cx.require::<i64>("k")?)?;
        BodyResult::Ok(())
    });
    let output = run(fixture, &graph.build(context.view::<Values>()).unwrap()).await.unwrap();
    assert_eq!(output, Values::from([("k".to_owned(), 1), ("seen".to_owned(), 1)]));
}

async fn value_is_separate_from_the_changes(fixture: &dyn StoreFixture) {
    let called = Count::new();
    let counted = called.clone();
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    let on_success = move |value: i64| {
        assert_eq!(value, 7);
        counted.increment();
        ready(BodyResult::Ok(()))
    };
    let count = graph.task("count").on_success(on_success).run(context, async |cx: GraphContext| {
        cx.insert("k", 1)?;
        BodyResult::Ok(7_i64)
    });
    let large = graph
        .task("large")
        .when(Rule::value("count").gt(5))
        .run(count.clone(), async |n: i64| BodyResult::Ok(n));
    let small =
        graph.task("small").when(Rule::value("count").le(5)).run(count, async |n: i64| BodyResult::Ok(n));
    let graph = graph.build((context.view::<Values>(), large.optional(), small.optional())).unwrap();
    let output = run(fixture, &graph).await.unwrap();
    assert_eq!(output, (Values::from([("k".to_owned(), 1)]), Some(7), None));
    assert_eq!(called.get(), 1);
}

async fn rules_read_the_context_before_their_tasks(fixture: &dyn StoreFixture) {
    let mut graph = Graph::<Values>::new("g");
    let context = graph.context_with_input();
    let done = |graph: &mut Graph<Values>, name: &'static str, rule: Rule| {
        graph.task(name).when(rule).run((), async |()| BodyResult::Ok(true))
    };
    let mode = |mode: i64| Rule::context_value("mode").eq(mode);
    // without dependencies, a rule reads the input
    let full = done(&mut graph, "full", mode(1));
    let fast = done(&mut graph, "fast", mode(2));
    let after_fast = graph.task("after_fast").run(fast.clone(), async |_: bool| BodyResult::Ok(true));
    let count = graph.task("count").after(&full).run(context, async |cx: GraphContext| cx.set("rows", 5));
    let rows = || Rule::context_value("rows");
    let large = done(&mut graph, "large", Rule::succeeded("count") & rows().gt(4));
    let small = done(&mut graph, "small", Rule::succeeded("count") & rows().le(4));
    // `fast` does not depend on `count`, so the key does not exist for this task
    let unknown = done(&mut graph, "unknown", Rule::skipped("fast") & rows().ge(0));
    let output =
        (full.optional(), after_fast.optional(), large.optional(), small.optional(), unknown.optional());
    let graph = graph.build(output).unwrap();
    let _ = count;
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    let run = |mode: i64| engine.run(&graph, Values::from([("mode".to_owned(), mode)]));
    assert_eq!(run(1).await.unwrap(), (Some(true), None, Some(true), None, None));
    assert_eq!(run(2).await.unwrap(), (None, Some(true), None, None, None));
    shut_down(engine).await;
}

async fn rule_about_a_conflict_fails_its_task(fixture: &dyn StoreFixture) {
    let called = Count::new();
    let counted = called.clone();
    let mut graph = Graph::<()>::new("g");
    let first = set(&mut graph, "first", &[], &[("k", json(1)), ("alone", json(1))]);
    let second = set(&mut graph, "second", &[], &[("k", json(2))]);
    let rule = |key: &str| Rule::all_success() & !Rule::context_value(key).eq(7);
    let reader = graph.task("reader").after(&first).after(&second).when(rule("k"));
    reader.run((), move |()| {
        counted.increment();
        ready(BodyResult::Ok(()))
    });
    let other = graph.task("other").after(&first).after(&second).when(rule("alone"));
    let other = other.run((), async |()| BodyResult::Ok(()));
    let graph = graph.build(other.optional()).unwrap();
    let message = run(fixture, &graph).await.unwrap_err().to_string();
    assert!(message.contains("task \"reader\" of graph \"g\" failed"), "{message}");
    assert!(message.contains("tasks \"first\" and \"second\""), "{message}");
    assert!(message.contains("context key \"k\""), "{message}");
    assert_eq!(called.get(), 0);
}

/// Declares a task that inserts `key`, waits for the latch, and inserts the number of keys that it has read.
fn waiting_task(
    graph: &mut Graph<()>,
    context: ContextRef,
    after: &TaskRef<()>,
    begun: &Count,
    latch: &Latch,
) {
    let (begun, latch) = (begun.clone(), latch.clone());
    graph.task("waiting").after(after).run(context, move |cx: GraphContext| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            let keys = cx.len() as i64;
            // an interrupted attempt changes nothing
            cx.insert("keys", keys)?;
            begun.increment();
            latch.wait().await;
            BodyResult::Ok(())
        }
    });
}

async fn takeover_replays_recorded_changes(fixture: &dyn StoreFixture) {
    let (bodies, begun, latch) = (Count::new(), Count::new(), Latch::new());
    let mut graph = Graph::<()>::new("g");
    graph.merge(Merge::Last);
    let context = graph.context();
    let counted = bodies.clone();
    let first = graph
        .task("first")
        .run(context, move |cx: GraphContext| ready(cx.insert("bodies", counted.increment())));
    let text = "x".repeat(100_000);
    let large = set(&mut graph, "large", &[&first], &[("k", json(text.clone()))]);
    let other = set(&mut graph, "other", &[&first], &[("k", json(1))]);
    let joined = set(&mut graph, "joined", &[&large, &other], &[]);
    waiting_task(&mut graph, context, &joined, &begun, &latch);
    let graph = graph.build(context.view::<Values>()).unwrap();
    let (one, store) = open_engine(fixture, |b| b.register(&graph)).await;
    one.start(&graph, ()).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    // the dead engine does not notice its death, and does not write
    let owner = row(&one, "x").await.owner.unwrap();
    store.hold_calls(&[Call::Heartbeat, Call::Commit, Call::Claim]);
    fixture.mark_dead(owner).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&graph)).await;
    begun.wait_for(2).await;
    latch.open();
    let output = two.get::<Values>("x").await.unwrap().result().await.unwrap();
    let expected = [("bodies", 1), ("k", 1), ("keys", 2)].map(|(key, value)| (key.to_owned(), value));
    assert_eq!(output, Values::from(expected));
    assert_eq!((bodies.get(), begun.get()), (1, 2), "only the interrupted body ran again");
    store.release();
    shut_down(one).await;
    shut_down(two).await;
}

async fn resume_keeps_recorded_changes(fixture: &dyn StoreFixture) {
    let (bodies, attempts) = (Count::new(), Count::new());
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    let counted = bodies.clone();
    let first = graph
        .task("first")
        .run(context, move |cx: GraphContext| ready(cx.insert("bodies", counted.increment())));
    graph.task("failing").after(&first).run(context, move |cx: GraphContext| {
        let attempt = attempts.increment();
        ready(
            cx.insert("attempt", attempt)
                .map_err(Failure::from)
                .and_then(|()| if attempt == 1 { Err(Failure::new("no")) } else { Ok(()) }),
        )
    });
    let graph = graph.build(context.view::<Values>()).unwrap();
    let (engine, _) = open_engine(fixture, |b| b.register(&graph)).await;
    engine.run(&graph, ()).workflow_id("x").await.unwrap_err();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let output = engine.get::<Values>("x").await.unwrap().result().await.unwrap();
    assert_eq!(output, Values::from([("bodies".to_owned(), 1), ("attempt".to_owned(), 2)]));
    assert_eq!(bodies.get(), 1);
    shut_down(engine).await;
}

async fn value_without_changes_parks(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let graph_of = |takes_context: bool| {
        let mut graph = Graph::<()>::new("g");
        let context = graph.context();
        let first = graph.task("first");
        let first = if takes_context {
            first.run(context, async |_: GraphContext| BodyResult::Ok(()))
        } else {
            first.run((), async |()| BodyResult::Ok(()))
        };
        waiting_task(&mut graph, context, &first, &begun, &latch);
        graph.build(context).unwrap()
    };
    let original = graph_of(false);
    let (one, _) = open_engine(fixture, |b| b.register(&original)).await;
    one.start(&original, ()).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    let changed = graph_of(true);
    let (two, _) = open_engine(fixture, |b| b.register(&changed)).await;
    let error = two.get::<GraphContext>("x").await.unwrap().result().await.unwrap_err();
    let Error::Parked { failure, .. } = &error else { panic!("{error}") };
    assert!(
        failure.message.contains("task \"first\": the value with the changes of the context"),
        "{failure}"
    );
    shut_down(two).await;
}

async fn tasks_that_cannot_change_the_context_are_rejected(_: &dyn StoreFixture) {
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    let numbers = graph.task("numbers").run((), async |()| BodyResult::Ok(vec![1, 2]));
    graph.task("items").map_over(&numbers).run(context, async |n: i64, _: GraphContext| BodyResult::Ok(n));
    let error = graph.build(context).unwrap_err().to_string();
    assert!(error.contains("task \"items\" takes the context and is mapped over items"), "{error}");

    let mut inner = Graph::<GraphContext>::new("inner");
    let input = inner.input();
    let size = inner.task("size").run(input, async |cx: GraphContext| BodyResult::Ok(cx.len()));
    let inner = inner.build(size).unwrap();
    let mut graph = Graph::<()>::new("g");
    let context = graph.context();
    let child = graph.task("child").include(context, &inner);
    let error = graph.build(child).unwrap_err().to_string();
    assert!(error.contains("task \"child\" takes the context and is a workflow"), "{error}");
}
