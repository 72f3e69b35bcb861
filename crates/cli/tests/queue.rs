//! `stepfast queue` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;
use stepfast::queue::Queue;
use stepfast::{Key, Store};
use tempfile::TempDir;

use crate::program::{output_of, stepfast};

const GRACE: Duration = Duration::from_secs(20);

/// Runs a `queue` command that must succeed. Returns what it prints.
fn queue_output(store: &str, arguments: &[&str]) -> String {
    output_of(store, &[&["queue"], arguments].concat())
}

fn json_output(store: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&queue_output(store, &[arguments, &["--json"]].concat())).unwrap()
}

fn failure_of(store: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = stepfast(store, &[&["queue"], arguments].concat());
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

async fn connect(url: &str) -> Arc<dyn Store> {
    stepfast::connect(url).await.unwrap()
}

/// Creates a database without queues.
async fn empty_database() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    drop(connect(&url).await);
    (directory, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_created_shown_and_changed() {
    let (_directory, store) = empty_database().await;
    assert_eq!(queue_output(&store, &["list"]), "no queues\n");
    assert_eq!(json_output(&store, &["list"]), json!({ "queues": [] }));

    let text = queue_output(&store, &["set", "emails", "--concurrency", "100", "--key-concurrency", "1"]);
    assert_eq!(text, "emails: created (concurrency 100, per key 1, open)\n");
    // limits that are not given stay as they are
    let text =
        queue_output(&store, &["set", "emails", "--worker-concurrency", "10", "--concurrency", "none"]);
    assert_eq!(text, "emails: changed (per worker 10, per key 1, open)\n");
    let set = ["set", "emails", "--rate", "100/1m", "--key-rate", "10/s burst 1"];
    let text = queue_output(&store, &set);
    assert_eq!(
        text,
        "emails: changed (per worker 10, per key 1, rate 100/1m, rate per key 10/1s burst 1, open)\n"
    );
    let rate = &json_output(&store, &["show", "emails"])["key_rate"];
    assert_eq!(*rate, json!({ "starts": 10, "period_ms": 1_000, "burst": 1 }));
    queue_output(&store, &["set", "emails", "--rate", "none", "--key-rate", "none"]);
    let text = queue_output(&store, &["set", "emails", "--max-depth", "500"]);
    assert_eq!(text, "emails: changed (per worker 10, per key 1, depth 500, open)\n");
    assert_eq!(json_output(&store, &["show", "emails"])["max_depth"], 500);
    queue_output(&store, &["set", "emails", "--max-depth", "none"]);
    let text = queue_output(&store, &["set", "emails", "--key-weight", "a=b=5", "--key-weight", "ann=2"]);
    assert_eq!(text, "emails: changed (per worker 10, per key 1, weights a=b=5 ann=2, open)\n");
    assert_eq!(json_output(&store, &["show", "emails"])["key_weights"], json!({ "a=b": 5, "ann": 2 }));
    assert!(queue_output(&store, &["show", "emails"]).contains("\nweights      a=b=5 ann=2\n"));
    queue_output(&store, &["set", "emails", "--key-weight", "a=b=1", "--key-weight", "ann=1"]);
    let text = queue_output(&store, &["set", "emails", "--worker-concurrency", "10"]);
    assert_eq!(text, "emails: unchanged (per worker 10, per key 1, open)\n");
    let shown = json_output(&store, &["set", "plain"]);
    assert_eq!((&shown["queue"], &shown["is_changed"]), (&"plain".into(), &true.into()));

    let text = queue_output(&store, &["list"]);
    for word in ["queue", "concurrency", "per worker", "per key", "state", "changed", "emails", "plain"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let queues = json_output(&store, &["list"])["queues"].clone();
    assert_eq!((&queues[0]["queue"], &queues[1]["queue"]), (&"emails".into(), &"plain".into()));
    let text = queue_output(&store, &["show", "emails"]);
    let start = "queue emails\nconcurrency  none\nper worker   10\nper key      1\nrate         none\nrate per key none\ndepth        none\n\
         weights      none\n\
         state        open\n\
         changed      2";
    assert!(text.starts_with(start), "{text}");
    let shown = json_output(&store, &["show", "emails"]);
    assert_eq!(shown, queues[0]);
    assert_eq!((&shown["concurrency"], &shown["worker_concurrency"]), (&Value::Null, &10.into()));
    assert_eq!((&shown["key_concurrency"], &shown["version"]), (&1.into(), &8.into()));
    assert!(shown["changed_at"].as_str().unwrap().ends_with('Z'), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_paused_and_resumed() {
    let (_directory, store) = empty_database().await;
    let noop = Workflow::new("noop", |_cx: Context, x: i64| async move { Ok::<i64, Failure>(x) });
    let engine = Engine::builder(connect(&store).await)
        .register(&noop)
        .queue(Queue::new("emails").concurrency(1))
        .open()
        .await
        .unwrap();
    let limits = "(concurrency 1";
    assert_eq!(queue_output(&store, &["pause", "emails"]), format!("emails: paused {limits}, paused)\n"));
    assert_eq!(
        queue_output(&store, &["pause", "emails"]),
        format!("emails: already paused {limits}, paused)\n")
    );
    assert!(queue_output(&store, &["list"]).contains("paused"));
    let handle = engine.start(&noop, 1).queue("emails").key("ann").priority(-1).await.unwrap();
    let text = output_of(&store, &["workflow", "show", &handle.workflow_id()]);
    assert!(text.contains("\nqueue       emails, key ann, priority -1\n"), "{text}");
    let json: Value = serde_json::from_str(&output_of(&store, &["workflow", "list", "--json"])).unwrap();
    let listed = &json["executions"][0];
    assert_eq!((&listed["queue"], &listed["queue_key"]), (&"emails".into(), &"ann".into()));
    assert_eq!(listed["priority"], -1);
    // the limits of a paused queue can be changed
    let text = queue_output(&store, &["set", "emails", "--concurrency", "2"]);
    assert_eq!(text, "emails: changed (concurrency 2, paused)\n");
    assert_eq!(handle.status().await.unwrap(), Status::Queued);
    let shown = json_output(&store, &["resume", "emails"]);
    assert_eq!((&shown["is_paused"], &shown["is_changed"]), (&false.into(), &true.into()));
    assert_eq!(handle.result().await.unwrap(), 1);
    let shown = json_output(&store, &["resume", "emails"]);
    assert_eq!((&shown["is_paused"], &shown["is_changed"]), (&false.into(), &false.into()));
    assert!(queue_output(&store, &["resume", "emails"]).starts_with("emails: already open ("));
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_commands_are_rejected() {
    let (directory, store) = empty_database().await;
    queue_output(&store, &["set", "emails"]);
    for command in ["show", "pause", "resume"] {
        let (code, message) = failure_of(&store, &[command, "mail"]);
        assert_eq!(code, Some(3), "{message}");
        assert!(message.contains("queue \"mail\" does not exist (existing queues: emails)"), "{message}");
        assert!(message.contains("[SF-0037]"), "{message}");
    }
    for command in ["show", "pause", "resume", "set"] {
        let (code, message) = failure_of(&store, &[command, "default"]);
        assert_eq!(code, Some(1), "{message}");
        assert!(
            message.contains("holds the executions without a queue") && message.contains("[SF-0001]"),
            "{message}"
        );
    }
    let (code, message) = failure_of(&store, &["set", "emails", "--concurrency", "0"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("must be at least 1; to stop a queue, pause it"), "{message}");
    for limit in ["few", "1.5", "99999999999"] {
        let (code, message) = failure_of(&store, &["set", "emails", "--key-concurrency", limit]);
        assert_eq!(code, Some(2));
        assert!(message.contains("give a whole number"), "{message}");
    }
    // and no client of a failed command stays registered
    let workers = connect(&store).await.workers(0, true).await.unwrap().workers;
    assert!(workers.is_empty(), "{} are registered", workers.len());

    let nowhere = format!("sqlite:{}", directory.path().join("other.db").display());
    for command in
        [&["list"][..], &["show", "x"], &["pause", "x"], &["resume", "x"], &["set", "x"], &["dead-letters"]]
    {
        let (code, message) = failure_of(&nowhere, command);
        assert_eq!(code, Some(1));
        assert!(message.contains("no such file") && message.contains("[SF-0013]"), "{message}");
    }
}

/// Text that a terminal would obey: it clears the screen, sets the window's title, writes backwards, forges a line.
const HOSTILE: &str = "pay\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}\n1 all is well\r'; DROP TABLE executions; --";

/// Inserts a start into the inbox by plain SQL, like a program that knows the table.
async fn put(store: &str, key: Key, workflow: &str, workflow_id: Option<&str>, queue: Option<&str>) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let text = |text: Option<&str>| text.map_or_else(|| "NULL".to_owned(), quoted);
    let (id, queue) = (text(workflow_id), text(queue));
    let values = format!("{}, {id}, {queue}", quoted(workflow));
    let columns = "key, workflow, workflow_id, queue, input";
    if let Some(path) = store.strip_prefix("sqlite:") {
        let key = format!("x'{:032x}'", key.as_u128());
        let sql = format!(
            "INSERT INTO inbox (put_at, {columns}) VALUES (1700000000000000, {key}, {values}, x'0107')"
        );
        rusqlite::Connection::open(path).unwrap().execute_batch(&sql).unwrap();
    } else {
        let (_, schema) = store.split_once("?schema=").unwrap();
        let values = format!("'{key}', {values}, '\\x0107'");
        let sql = format!("INSERT INTO {schema}.inbox ({columns}) VALUES ({values})");
        support::execute(store, &sql).await.unwrap();
    }
}

async fn check_dead_letters(store: &str) {
    drop(connect(store).await);
    assert_eq!(queue_output(store, &["dead-letters"]), "no dead letters\n");
    assert_eq!(json_output(store, &["dead-letters"]), json!({ "dead_letters": [] }));

    // keys that name shard 1023
    let [plain, hostile] = [Key::from_bytes([0xff; 16]), Key::mint(1023)];
    put(store, plain, "order", None, None).await;
    put(store, hostile, HOSTILE, Some(HOSTILE), Some(HOSTILE)).await;
    put(store, Key::mint(0), "order", Some("innocent"), None).await;
    let (ran, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let order = Workflow::new("order", move |_cx: Context, n: i64| {
        let ran = ran.clone();
        async move {
            ran.send(n).unwrap();
            Ok::<i64, Failure>(n)
        }
    });
    let engine = Engine::builder(connect(store).await).register(&order).open().await.unwrap();
    // the claim that takes the valid row has rejected the others
    assert_eq!(runs.recv().await, Some(7));
    assert_eq!(engine.get::<i64>("innocent").await.unwrap().result().await.unwrap(), 7);

    let text = queue_output(store, &["dead-letters"]);
    for word in
        ["letter", "rejected at", "workflow_id", "queue", "reason", &plain.to_string(), "pay\\u{1b}[2J"]
    {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(text.matches("its key names shard").count(), 2, "{text}");
    assert!(text.lines().all(|line| !line.starts_with("1 all is well")), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{text:?}");
    // a heading with its lines, then one line per letter
    assert_eq!(text.lines().count(), 3 + 2 + 2, "{text}");

    let letters = json_output(store, &["dead-letters"])["dead_letters"].clone();
    assert_eq!(letters.as_array().unwrap().len(), 2);
    let [last, first] = [&letters[0], &letters[1]];
    for name in ["workflow", "workflow_id", "queue"] {
        assert_eq!(last[name], HOSTILE);
    }
    assert_eq!((&first["workflow"], &first["queue"]), (&"order".into(), &Value::Null));
    // the row has no workflow_id, so the text of its key is shown: an outbox returns this text to its program
    assert_eq!(
        (&first["workflow_id"], &first["key"]),
        (&plain.to_string().into(), &plain.to_string().into())
    );
    assert_eq!(first["reason"], "its key names shard 1023, and this store is shard 0");
    for time in ["put_at", "rejected_at"] {
        assert!(first[time].as_str().unwrap().ends_with('Z'), "{first}");
    }
    assert!(last["id"].as_i64() > first["id"].as_i64(), "{letters}");
    assert_eq!(json_output(store, &["dead-letters", "--limit", "1"])["dead_letters"], json!([last]));
    assert_eq!(json_output(store, &["dead-letters", "--limit", "2"])["dead_letters"], letters);

    // the API returns the same dead letters
    let [last, first] = &*engine.dead_letters(9).await.unwrap() else { panic!("two dead letters") };
    assert_eq!((&*last.workflow, last.key, last.requested_id()), (HOSTILE, hostile, HOSTILE.to_owned()));
    assert_eq!((&*first.workflow, first.key, first.requested_id()), ("order", plain, plain.to_string()));
    assert_eq!(engine.dead_letters(1).await.unwrap(), std::slice::from_ref(last));
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_on_sqlite() {
    let (_directory, store) = empty_database().await;
    check_dead_letters(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_on_postgres() {
    let (store, _) = support::postgres();
    check_dead_letters(&store).await;
}
