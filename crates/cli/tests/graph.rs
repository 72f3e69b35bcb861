//! `stepfast graph`, and the trees of `stepfast workflow show`, as their users see them.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepfast::graph::{Graph, Rule};
use stepfast::prelude::*;
use stepfast::store::GraphRow;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::program::{output_of, stepfast};

const GRACE: Duration = Duration::from_secs(20);

fn json_of(store: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&output_of(store, &[arguments, &["--json"]].concat())).unwrap()
}

/// Runs a command that must fail with this exit code. Returns the error.
fn failure_of(store: &str, code: i32, arguments: &[&str]) -> String {
    let output = stepfast(store, arguments);
    assert_eq!(output.status.code(), Some(code));
    String::from_utf8(output.stderr).unwrap()
}

/// Returns a graph whose task `charge` adds a permit to `begun`, waits for one of `permits`, and fails for negative
/// amounts.
fn order(begun: Arc<Semaphore>, permits: Arc<Semaphore>) -> Workflow<i64, i64> {
    let mut graph = Graph::<i64>::new("order");
    let amount = graph.input();
    let reserve = graph.task("reserve").run(amount, async |amount: i64| Ok::<_, Failure>(amount));
    let charge = graph.task("charge").may_fail().run(reserve.clone(), move |amount: i64| {
        let (begun, permits) = (begun.clone(), permits.clone());
        async move {
            begun.add_permits(1);
            permits.acquire().await.unwrap().forget();
            if amount < 0 { Err(Failure::new("no such amount")) } else { Ok(amount) }
        }
    });
    let release = graph
        .task("release")
        .when(Rule::succeeded("reserve") & Rule::failed("charge"))
        .run(reserve.clone(), async |_: i64| Ok::<_, Failure>(()));
    let ship = graph.task("ship").after(&charge).run((), async |()| Ok::<_, Failure>(()));
    let _ = (release, ship);
    graph.build(reserve).unwrap()
}

/// Creates a database in which an engine runs the graph `order`.
async fn worker() -> (TempDir, String, Engine, [Arc<Semaphore>; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    let [begun, permits] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    let store = stepfast::connect(&url).await.unwrap();
    let engine =
        Engine::builder(store).register(&order(begun.clone(), permits.clone())).open().await.unwrap();
    (directory, url, engine, [begun, permits])
}

async fn in_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(body).await.unwrap()
}

/// Returns the state of a task in a tree.
fn state_of(tree: &str, task: &str) -> String {
    let line =
        tree.lines().find_map(|line| line.trim_start_matches([' ', '│', '├', '└', '─']).strip_prefix(task));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_are_listed_and_shown_without_their_program() {
    let (_directory, url, engine, _) = worker().await;
    engine.shutdown(GRACE).await.unwrap();
    let list = output_of(&url, &["graph", "list"]);
    assert!(
        list.lines().any(|line| line.split_whitespace().eq(["order", "4", "3", "one", "value"])),
        "{list}"
    );
    assert_eq!(
        output_of(&url, &["graph", "show", "order"]),
        "order\n\
         └─ reserve\n   \
            └─ charge\n      \
               ├─ release  when succeeded(\"reserve\") & failed(\"charge\")  (also after reserve)\n      \
               └─ ship\n"
    );
    assert!(
        output_of(&url, &["graph", "show", "order", "--format", "mermaid"]).starts_with("flowchart TD\n")
    );
    assert!(
        output_of(&url, &["graph", "show", "order", "--format", "dot"]).starts_with("digraph \"order\" {\n")
    );
    assert!(output_of(&url, &["graph", "show", "order", "--format", "svg"]).starts_with("<svg "));
    let shown = json_of(&url, &["graph", "show", "order"]);
    assert_eq!(shown["levels"], json!([["reserve"], ["charge"], ["release", "ship"]]));
    assert_eq!(
        shown["tasks"][1],
        json!({ "name": "charge", "dependencies": ["reserve"], "rule": "all_success()" })
    );
    assert_eq!(json_of(&url, &["graph", "list"])["graphs"], json!([shown]));
    let unknown = failure_of(&url, 3, &["graph", "show", "ordre"]);
    assert!(unknown.contains("the store has no graph \"ordre\"; the graphs are order"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_of_a_later_version_is_listed_as_unreadable() {
    let (_directory, url, engine, _) = worker().await;
    let declaration = r#"{"tasks":[{"name":"a","rule":"later"}]}"#.into();
    let later = GraphRow { name: "later".into(), declaration };
    engine.store().store_graphs(&[later]).await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    let list = output_of(&url, &["graph", "list"]);
    assert!(list.lines().any(|line| line.trim_start().starts_with("order ")), "{list}");
    assert!(list.lines().any(|line| line.trim_start().starts_with("later ")), "{list}");
    assert!(list.contains("unreadable") && list.contains("newer version"), "{list}");
    let graphs = json_of(&url, &["graph", "list"])["graphs"].clone();
    assert_eq!((&graphs[0]["name"], &graphs[1]["name"]), (&json!("later"), &json!("order")));
    assert!(graphs[0]["error"].as_str().unwrap().contains("newer version"), "{graphs}");
    let error = failure_of(&url, 1, &["graph", "show", "later"]);
    assert!(error.contains("the stored declaration of \"later\" cannot be read"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_without_graphs_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    drop(stepfast::connect(&url).await.unwrap());
    assert!(output_of(&url, &["graph", "list"]).contains("no graphs: a program that opens an engine"));
    assert!(failure_of(&url, 3, &["graph", "run", "order"]).contains("the store has no graph \"order\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_is_run_and_followed() {
    let (_directory, url, engine, [begun, permits]) = worker().await;
    let start = ["graph", "run", "order", "--input", "-1", "--workflow-id", "order-1"];
    assert_eq!(output_of(&url, &start), "order-1\n");
    let show = ["workflow", "show", "order-1"];
    begun.acquire().await.unwrap().forget();
    let tree = output_of(&url, &show);
    let states = ["reserve", "charge", "release", "ship"].map(|task| state_of(&tree, task));
    assert_eq!(states, ["succeeded", "running", "pending", "pending"], "{tree}");
    let followed = {
        let url = url.clone();
        tokio::task::spawn_blocking(move || output_of(&url, &["workflow", "show", "order-1", "--follow"]))
    };
    permits.add_permits(1);
    let followed = followed.await.unwrap();
    let last = followed.split("order order-1  ").last().unwrap();
    assert!(last.starts_with("completed\norder\n"), "{followed}");
    let states = ["reserve", "charge", "release", "ship"].map(|task| state_of(last, task));
    assert_eq!(states, ["succeeded", "failed", "succeeded", "skipped"], "{last}");
    assert!(last.contains("no such amount"), "{last}");
    // the same start again is the same execution
    let url_again = url.clone();
    let again = in_thread(move || output_of(&url_again, &[&start[..], &["--follow"]].concat())).await;
    assert!(again.starts_with("order order-1  completed\n"), "{again}");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ends_when_the_execution_is_parked() {
    let (_directory, url, engine, [begun, permits]) = worker().await;
    output_of(&url, &["graph", "run", "order", "--input", "5", "--workflow-id", "order-2"]);
    begun.acquire().await.unwrap().forget();
    engine.pause("order-2").await.unwrap();
    permits.add_permits(1);
    let show = ["workflow", "show", "order-2", "--follow"];
    let followed = in_thread(move || stepfast(&url, &show)).await;
    assert_eq!(followed.status.code(), Some(1));
    let shown = String::from_utf8(followed.stdout).unwrap();
    let last = shown.split("order order-2  ").last().unwrap();
    assert!(last.starts_with("queued (parked)\npaused on request"), "{shown}");
    assert_eq!(state_of(last, "charge"), "succeeded", "{shown}");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_inputs_are_rejected() {
    let (_directory, url, engine, _) = worker().await;
    let no_json = failure_of(&url, 2, &["graph", "run", "order", "--input", "{"]);
    assert!(no_json.contains("\"{\" is no JSON"), "{no_json}");
    let failed = stepfast(&url, &["graph", "run", "order", "--input", "\"text\"", "--follow"]);
    assert_eq!(failed.status.code(), Some(1), "an execution that failed: {failed:?}");
    assert!(String::from_utf8_lossy(&failed.stdout).contains("failed"));
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn integers_that_would_become_floats_are_rejected() {
    let (_directory, url, engine, _) = worker().await;
    engine.shutdown(GRACE).await.unwrap();
    for input in
        ["18446744073709551616", "[-9223372036854775809]", r#"{"a": ["\\\"", 100000000000000000000]}"#]
    {
        let error = failure_of(&url, 2, &["graph", "run", "order", "--input", input]);
        assert!(error.contains("is no integer of 64 bits"), "{error}");
    }
    for (n, input) in ["18446744073709551615", "-9223372036854775808", "1e20", r#""100000000000000000000""#]
        .into_iter()
        .enumerate()
    {
        let id = n.to_string();
        output_of(&url, &["graph", "run", "order", "--input", input, "--workflow-id", &id]);
        let shown = json_of(&url, &["workflow", "show", &id]);
        let expected: Value = serde_json::from_str(input).unwrap();
        assert_eq!(shown["input"], expected, "{shown}");
    }
}
