//! `stepfast batch` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;
use stepfast::queue::Queue;
use tempfile::TempDir;

use crate::program::{output_of, stepfast};

const GRACE: Duration = Duration::from_secs(20);

/// A workflow that doubles its input, and fails for negative inputs.
fn double() -> Workflow<i64, i64> {
    Workflow::new("double", |_cx: Context, x: i64| async move {
        if x < 0 { Err(Failure::new("it is negative")) } else { Ok(2 * x) }
    })
}

/// Creates a database. Returns the directory, and the URL.
async fn database() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    drop(stepfast::connect(&url).await.unwrap());
    (directory, url)
}

/// Opens an engine that runs the items of batches.
async fn worker(store: &str) -> Engine {
    Engine::builder(stepfast::connect(store).await.unwrap()).register(&double()).open().await.unwrap()
}

/// Writes a file of lines. Returns its path.
fn write_lines(directory: &Path, name: &str, lines: impl IntoIterator<Item = impl Display>) -> String {
    let path = directory.join(name);
    let lines: Vec<String> = lines.into_iter().map(|line| line.to_string()).collect();
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    path.display().to_string()
}

/// Runs a `batch` command that must succeed. Returns what it prints.
fn batch(store: &str, arguments: &[&str]) -> String {
    output_of(store, &[&["batch"], arguments].concat())
}

fn batch_json(store: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&batch(store, &[arguments, &["--json"]].concat())).unwrap()
}

/// Runs a `batch` command that must fail with this exit code. Returns what it prints, and its error.
fn failure_of(store: &str, code: i32, arguments: &[&str]) -> (String, String) {
    let Output { status, stdout, stderr } = stepfast(store, &[&["batch"], arguments].concat());
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

/// Returns the values of the lines that `batch results` prints.
fn results(store: &str, arguments: &[&str]) -> Vec<Value> {
    let lines = batch(store, &[&["results"], arguments].concat());
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_become_items_and_results_are_printed() {
    let (directory, store) = database().await;
    assert_eq!(batch(&store, &["list"]), "no batches\n");
    let file = write_lines(directory.path(), "items.jsonl", 0..2_500);
    assert_eq!(batch(&store, &["submit", "double", &file, "--id", "import"]), "import\n");
    let shown = batch(&store, &["show", "import"]);
    assert!(
        shown.starts_with("batch import\nworkflow    double\nstatus      waiting\ncreated at  "),
        "{shown}"
    );
    assert!(shown.contains("\nitems       2500\n"), "{shown}");
    assert_eq!(batch_json(&store, &["show", "import"])["items"]["queued"], 2_500);

    let engine = worker(&store).await;
    let watched = batch(&store, &["watch", "import"]);
    let last = "import  completed  2500 of 2500 ended: 2500 completed";
    assert_eq!(watched.lines().last(), Some(last));
    let expected = |index: i64| json!({ "index": index, "status": "completed", "output": 2 * index });
    assert_eq!(results(&store, &["import"]), (0..2_500).map(expected).collect::<Vec<_>>());
    assert!(results(&store, &["import", "--failed"]).is_empty());
    let shown = batch_json(&store, &["watch", "import"]);
    assert_eq!(shown, batch_json(&store, &["show", "import"]));
    assert_eq!((&shown["status"], &shown["total"]), (&"completed".into(), &2_500.into()));
    assert_eq!(shown["items"]["completed"], 2_500);
    assert!(shown["ended_at"].is_string() && shown["queue"].is_null(), "{shown}");

    // an item is shown like any other execution
    let shown = output_of(&store, &["workflow", "show", "import#7"]);
    for line in ["\nstatus      completed\n", "\ninput       7\n", "\noutcome     14\n"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    assert_eq!(stepfast(&store, &["workflow", "show", "import#2500"]).status.code(), Some(3));
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_items_are_retried() {
    let (directory, store) = database().await;
    let may_complete = Arc::new(AtomicBool::new(false));
    let is_open = may_complete.clone();
    let workflow = Workflow::new("double", move |_cx: Context, x: i64| {
        let may_complete = is_open.clone();
        async move {
            if x % 2 == 1 && !may_complete.load(SeqCst) { Err(Failure::new("it is odd")) } else { Ok(2 * x) }
        }
    });
    let engine =
        Engine::builder(stepfast::connect(&store).await.unwrap()).register(&workflow).open().await.unwrap();
    let file = write_lines(directory.path(), "items.jsonl", 0..10);
    batch(&store, &["submit", "double", &file, "--id", "import"]);
    let (watched, _) = failure_of(&store, 1, &["watch", "import"]);
    assert!(watched.ends_with("import  completed  10 of 10 ended: 5 completed, 5 failed\n"), "{watched}");

    may_complete.store(true, SeqCst);
    assert_eq!(batch(&store, &["retry", "import"]), "import: 5 failed items retried\n");
    assert!(batch(&store, &["watch", "import"]).ends_with("10 of 10 ended: 10 completed\n"));
    assert_eq!(batch_json(&store, &["retry", "import"]), json!({ "batch_id": "import", "retried": 0 }));
    assert_eq!(stepfast(&store, &["batch", "retry", "absent"]).status.code(), Some(3));
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_line_is_named_and_batch_continues() {
    let (directory, store) = database().await;
    let mut lines: Vec<String> = (0..1_500).map(|x| x.to_string()).collect();
    "{oops".clone_into(&mut lines[1_200]);
    let file = write_lines(directory.path(), "items.jsonl", &lines);
    let submit = ["submit", "double", &*file, "--id", "import"];
    let (_, error) = failure_of(&store, 1, &submit);
    assert!(error.contains("items.jsonl, line 1201: \"{oops\" is no JSON"), "{error}");
    assert!(error.contains("--id import"), "{error}");
    let shown = batch_json(&store, &["show", "import"]);
    assert_eq!((&shown["is_open"], &shown["submitted"]), (&true.into(), &1_000.into()));
    let shown = batch(&store, &["show", "import"]);
    assert!(shown.contains("\nitems       1000 so far\n"), "{shown}");

    "1200".clone_into(&mut lines[1_200]);
    write_lines(directory.path(), "items.jsonl", &lines);
    // a repetition of the whole submission changes nothing
    for _ in 0..2 {
        let submitted = batch_json(&store, &submit);
        assert_eq!(submitted, json!({ "batch_id": "import", "items": 1_500 }));
    }
    assert_eq!(batch_json(&store, &["show", "import"])["is_open"], false);
    let other = write_lines(directory.path(), "other.jsonl", 1..1_501);
    let (_, error) = failure_of(&store, 4, &["submit", "double", &other, "--id", "import"]);
    assert!(error.contains("item 0 is the first that differs"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_is_read_and_failures_are_reported() {
    let (_directory, store) = database().await;
    let engine = worker(&store).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.args(["batch", "submit", "double", "-", "--store", &store]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // empty lines are no items, and the last line needs no end
    child.stdin.take().unwrap().write_all(b"1\n\n-2\r\n  \n3").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let id = String::from_utf8(output.stdout).unwrap();
    let id = id.trim_end();
    assert!(id.starts_with("batch-"), "{id}");
    let (watched, _) = failure_of(&store, 1, &["watch", id]);
    let last = format!("{id}  completed  3 of 3 ended: 2 completed, 1 failed");
    assert_eq!(watched.lines().last(), Some(&*last));
    let all = results(&store, &[id]);
    let failed = results(&store, &[id, "--failed"]);
    assert_eq!((all.len(), &failed[..]), (3, &all[1..2]));
    assert_eq!((&failed[0]["index"], &failed[0]["status"]), (&1.into(), &"failed".into()));
    assert_eq!(failed[0]["error"]["message"], "it is negative");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_cancelled() {
    let (directory, store) = database().await;
    let file = write_lines(directory.path(), "items.jsonl", 0..3);
    batch(&store, &["submit", "double", &file, "--id", "import"]);
    assert_eq!(batch(&store, &["cancel", "import"]), "import: done\n");
    let (watched, _) = failure_of(&store, 1, &["watch", "import"]);
    assert_eq!(watched, "import  cancelled  3 of 3 ended: 3 cancelled\n");
    let items = results(&store, &["import"]);
    assert!(items.len() == 3 && items.iter().all(|item| item["status"] == "cancelled"), "{items:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_listed_and_other_ids_refused() {
    let (directory, store) = database().await;
    let file = write_lines(directory.path(), "items.jsonl", 0..3);
    let engine = worker(&store).await;
    engine.run(&double(), 1).workflow_id("single").await.unwrap();
    for id in ["a", "b"] {
        batch(&store, &["submit", "double", &file, "--id", id]);
        batch(&store, &["watch", id]);
    }
    batch(&store, &["submit", "other", &file, "--id", "c"]);
    let (stdout, _) = failure_of(&store, 4, &["cancel", "a"]);
    assert_eq!(stdout, "a: not_applicable: its status is completed\n");
    let ids = |arguments: &[&str]| -> Vec<String> {
        let listed = batch_json(&store, &[&["list"], arguments].concat());
        let batches = listed["batches"].as_array().unwrap();
        batches.iter().map(|batch| batch["batch_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["c", "b", "a"]);
    assert_eq!(ids(&["--workflow", "double"]), ["b", "a"]);
    assert_eq!(ids(&["--limit", "1"]), ["c"]);
    let listed = batch(&store, &["list"]);
    for word in ["batch_id", "workflow", "completed", "queued", "waiting"] {
        assert!(listed.contains(word), "{word} in {listed}");
    }
    assert!(!listed.contains("single"), "{listed}");
    for command in ["show", "watch", "results", "cancel"] {
        let (_, error) = failure_of(&store, 3, &[command, "unknown"]);
        assert!(error.contains("[SF-0004]"), "{error}");
        let (_, error) = failure_of(&store, 1, &[command, "single"]);
        assert!(error.contains("\"single\" is an execution, not a batch"), "{error}");
    }
    let (_, error) = failure_of(&store, 1, &["submit", "double", "missing.jsonl"]);
    assert!(error.contains("cannot open \"missing.jsonl\""), "{error}");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_arguments_are_passed_to_items() {
    let (directory, store) = database().await;
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap()).queue(Queue::new("emails"));
    builder.open().await.unwrap().shutdown(GRACE).await.unwrap();
    let lines = [json!([1, "a"]), json!({ "to": "ann" })];
    let file = write_lines(directory.path(), "items.jsonl", &lines);
    let options = ["--queue", "emails", "--key", "ann", "--priority", "-1", "--attribute", "tenant=a"];
    let timeout = ["--run-timeout", "0.5"];
    let submit = ["submit", "send", &file, "--id", "import", "--arguments"];
    batch(&store, &[&submit[..], &options, &timeout].concat());
    let shown = batch_json(&store, &["show", "import"]);
    assert_eq!((&shown["queue"], &shown["queue_key"]), (&"emails".into(), &"ann".into()));
    assert_eq!((&shown["priority"], &shown["attributes"]), (&(-1).into(), &json!({ "tenant": "a" })));
    let shown = batch(&store, &["show", "import"]);
    assert!(shown.contains("\nqueue       emails, key ann, priority -1\nattributes  tenant=a\n"), "{shown}");
    let item = |id: &str| -> Value {
        let shown = output_of(&store, &["workflow", "show", id, "--json"]);
        serde_json::from_str(&shown).unwrap()
    };
    assert_eq!(item("import#0")["input"], json!([[1, "a"], {}]));
    assert_eq!(item("import#0")["run_timeout_ms"], 500);
    assert_eq!(item("import#1")["input"], json!([[], { "to": "ann" }]));
    for seconds in ["-1", "nan", "inf", "1e300", "soon"] {
        let timeout = format!("--run-timeout={seconds}");
        let (_, error) = failure_of(&store, 2, &["submit", "send", &file, &timeout]);
        assert!(error.contains("--run-timeout") && error.contains(seconds), "{error}");
    }
    let file = write_lines(directory.path(), "numbers.jsonl", [7]);
    let (_, error) = failure_of(&store, 1, &["submit", "send", &file, "--id", "numbers", "--arguments"]);
    assert!(error.contains("numbers.jsonl, line 1: the arguments must be a JSON array"), "{error}");
}
