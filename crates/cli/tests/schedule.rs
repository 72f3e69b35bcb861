//! `stepfast schedule` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;
use stepfast::queue::Queue;
use stepfast::{Client, Overlap, Schedule};
use tempfile::TempDir;

use crate::program::{output_of, stepfast};

const GRACE: Duration = Duration::from_secs(20);

/// Runs a `schedule` command that must succeed. Returns what it prints.
fn schedule_output(store: &str, arguments: &[&str]) -> String {
    output_of(store, &[&["schedule"], arguments].concat())
}

fn json_output(store: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&schedule_output(store, &[arguments, &["--json"]].concat())).unwrap()
}

fn failure_of(store: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = stepfast(store, &[&["schedule"], arguments].concat());
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn file() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    (directory, store)
}

/// Returns the workflow `double`, which doubles its input.
fn double() -> Workflow<i64, i64> {
    Workflow::new("double", |_: Context, number: i64| async move { Ok::<_, Failure>(2 * number) })
}

async fn open_engine<I, O>(store: &str, workflow: &Workflow<I, O>) -> Engine {
    let builder = Engine::builder(stepfast::connect(store).await.unwrap()).register(workflow);
    builder.suspend_after(Duration::from_millis(10)).open().await.unwrap()
}

/// Runs a command that prints JSON until its result fulfils a condition.
async fn wait_for(store: &str, arguments: &[&str], is_met: impl Fn(&Value) -> bool) -> Value {
    loop {
        let shown = json_output(store, arguments);
        if is_met(&shown) {
            return shown;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_created_changed_and_shown() {
    let (_directory, store) = file();
    let client = Client::open(stepfast::connect(&store).await.unwrap()).await.unwrap();
    client.set_queue(&Queue::new("reports")).await.unwrap();
    client.shutdown(GRACE).await.unwrap();
    assert_eq!(schedule_output(&store, &["list"]), "no schedules\n");
    assert_eq!(json_output(&store, &["list"]), json!({ "schedules": [] }));

    let set = ["set", "nightly", "--workflow", "double", "--input", "21", "--cron", "0 2 1 1 *"];
    let text = schedule_output(&store, &set);
    assert!(text.starts_with("nightly: created (double, 0 2 1 1 * UTC, next 2"), "{text}");
    assert!(schedule_output(&store, &set).starts_with("nightly: unchanged ("));
    let values = [
        "--timezone",
        "Europe/Berlin",
        "--overlap",
        "buffer_all",
        "--catch-up",
        "all",
        "--jitter",
        "5m",
        "--starts-at",
        "2026-01-01T00:00:00Z",
        "--ends-at",
        "2090-01-01T00:00:00Z",
        "--pause-after",
        "3",
        "--queue",
        "reports",
        "--key",
        "ann",
        "--priority",
        "-1",
        "--execution-timeout",
        "2h",
        "--run-timeout",
        "90",
        "--attribute",
        "tenant=acme",
        "--attribute",
        "kind=a=b",
    ];
    let shown = json_output(&store, &[&["set", "nightly"], &values[..]].concat());
    let expected = json!({
        "schedule": "nightly", "state": "active", "workflow": "double", "input": 21,
        "timing": "0 2 1 1 * Europe/Berlin", "cron": "0 2 1 1 *", "timezone": "Europe/Berlin",
        "every_ms": null, "at": null, "starts_at": "2026-01-01T00:00:00Z",
        "ends_at": "2090-01-01T00:00:00Z", "jitter_ms": 300_000, "overlap": "buffer_all",
        "catch_up": "all", "pause_after": 3, "queue": "reports", "queue_key": "ann", "priority": -1,
        "execution_timeout_ms": 7_200_000, "run_timeout_ms": 90_000,
        "attributes": { "tenant": "acme", "kind": "a=b" }, "pause": null, "next": shown["next"],
        "last_started": null, "started": 0, "skipped": 0, "skips": [], "buffered": 0, "backfills": 0,
        "failures": 0, "error": null, "stopped": null, "workflow_id": "schedule:nightly",
        "is_changed": true,
        "is_late": false,
    });
    assert_eq!(shown, expected);
    // values that are not given stay as they are, and the time zone stays with a new expression
    let shown =
        json_output(&store, &["set", "nightly", "--cron", "30 2 15 7 *", "--attribute", "tenant=bob"]);
    assert_eq!(shown["timing"], "30 2 15 7 * Europe/Berlin");
    assert_eq!(shown["attributes"], json!({ "tenant": "bob", "kind": "a=b" }));
    assert_eq!((&shown["input"], &shown["jitter_ms"]), (&json!(21), &json!(300_000)));

    let shown = json_output(&store, &["show", "nightly"]);
    let instants = shown["instants"].as_array().unwrap();
    assert_eq!((instants.len(), &instants[0]["instant"]), (5, &shown["next"]));
    for instant in instants {
        let local = instant["local"].as_str().unwrap();
        assert!(local.contains("-07-15T02:30") && local.ends_with(":00+02:00[Europe/Berlin]"), "{local}");
    }
    let text = schedule_output(&store, &["show", "nightly"]);
    for line in [
        "schedule nightly\n",
        "\nstate        active\n",
        "\nworkflow     double\n",
        "\ninput        21\n",
        "\ntiming       30 2 15 7 * Europe/Berlin\n",
        "\nstarts at    2026-01-01T00:00:00Z\n",
        "\njitter       5 min 0 s\n",
        "\noverlap      buffer_all\n",
        "\ncatch-up     all\n",
        "\npause after  3 failures\n",
        "\nqueue        reports\n",
        "\nkey          ann\n",
        "\npriority     -1\n",
        "\ntimeout      2 h 0 min\n",
        "\nrun timeout  1 min 30 s\n",
        "\nattributes   kind=a=b tenant=bob\n",
        "\nexecution    schedule:nightly\n",
        "\nstarted      0\n",
        "\nnext instants\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert_eq!(text.matches("[Europe/Berlin]\n").count(), 5, "{text}");

    let text = schedule_output(&store, &["list"]);
    for word in ["schedule", "workflow", "timing", "next", "last started", "skipped", "nightly", "active"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let listed = &json_output(&store, &["list"])["schedules"];
    assert_eq!(listed[0]["schedule"], "nightly");

    // "none" removes values
    let values = [
        "--timezone",
        "--jitter",
        "--starts-at",
        "--ends-at",
        "--pause-after",
        "--queue",
        "--key",
        "--priority",
        "--execution-timeout",
        "--run-timeout",
        "--attribute",
    ];
    let values: Vec<&str> = values.into_iter().flat_map(|option| [option, "none"]).collect();
    let shown = json_output(&store, &[&["set", "nightly"], &values[..], &["--attribute", "a=b"]].concat());
    assert_eq!(shown["attributes"], json!({ "a": "b" }));
    for value in [
        "timezone",
        "starts_at",
        "ends_at",
        "pause_after",
        "queue",
        "queue_key",
        "priority",
        "execution_timeout_ms",
        "run_timeout_ms",
    ] {
        assert_eq!(shown[value], Value::Null, "{value}");
    }
    assert_eq!((&shown["jitter_ms"], &shown["overlap"]), (&json!(0), &json!("buffer_all")));

    // another timing replaces the expression and its time zone
    schedule_output(&store, &["set", "nightly", "--timezone", "Asia/Tokyo"]);
    let shown = json_output(&store, &["set", "nightly", "--every", "90s"]);
    assert_eq!((&shown["timing"], &shown["every_ms"]), (&json!("every 90s"), &json!(90_000)));
    assert_eq!((&shown["cron"], &shown["timezone"]), (&Value::Null, &Value::Null));
    let shown = json_output(&store, &["set", "nightly", "--at", "2080-01-01T00:00:00+01:00"]);
    assert_eq!((&shown["at"], &shown["every_ms"]), (&json!("2079-12-31T23:00:00Z"), &Value::Null));
    assert_eq!(json_output(&store, &["show", "nightly"])["instants"].as_array().unwrap().len(), 1);
    let shown = json_output(&store, &["set", "nightly", "--cron", "@daily", "--arguments", "{\"day\": 1}"]);
    assert_eq!((&shown["timing"], &shown["input"]), (&json!("@daily UTC"), &json!([[], { "day": 1 }])));
    let shown = json_output(&store, &["set", "nightly", "--arguments", "[1, \"x\"]", "--workflow", "other"]);
    assert_eq!((&shown["workflow"], &shown["input"]), (&json!("other"), &json!([[1, "x"], {}])));

    assert_eq!(schedule_output(&store, &["delete", "nightly"]), "nightly: deleted\n");
    assert_eq!(json_output(&store, &["list"]), json!({ "schedules": [] }));
    let shown = json_output(&store, &["set", "nightly", "--workflow", "double", "--every", "1h"]);
    assert_eq!((&shown["is_changed"], &shown["input"]), (&json!(true), &Value::Null));
    let deleted = json_output(&store, &["delete", "nightly"]);
    assert_eq!(deleted, json!({ "schedule": "nightly", "result": "deleted" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn executions_start_by_schedule_trigger_and_backfill() {
    let (_directory, store) = file();
    let engine = open_engine(&store, &double()).await;
    let set = ["set", "s", "--workflow", "double", "--input", "21", "--every", "1s"];
    schedule_output(&store, &set);
    let shown = wait_for(&store, &["show", "s"], |shown| shown["started"].as_u64() >= Some(2)).await;
    let last = shown["last_started"].as_str().unwrap();
    let handle = engine.get::<i64>(&format!("s@{last}")).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 42);

    let text = schedule_output(&store, &["pause", "s", "--reason", "maintenance"]);
    assert_eq!(text, "s: paused (double, every 1s, paused)\n");
    assert!(
        schedule_output(&store, &["pause", "s", "--reason", "maintenance"])
            .starts_with("s: already paused (")
    );
    let shown = json_output(&store, &["show", "s"]);
    assert_eq!(shown["pause"], json!({ "reason": "maintenance", "is_automatic": false }));
    assert_eq!((&shown["state"], &shown["next"]), (&json!("paused"), &Value::Null));
    let text = schedule_output(&store, &["show", "s"]);
    assert!(text.contains("\nstate        paused: maintenance\n"), "{text}");

    // a paused schedule starts an execution on demand
    let triggered = schedule_output(&store, &["trigger", "s"]);
    let triggered = triggered.trim();
    assert!(triggered.starts_with("s@trigger-"), "{triggered}");
    assert_eq!(engine.get::<i64>(triggered).await.unwrap().result().await.unwrap(), 42);
    let shown = json_output(&store, &["trigger", "s", "--timeout", "20"]);
    let second = shown["workflow_id"].as_str().unwrap();
    engine.get::<i64>(second).await.unwrap().result().await.unwrap();

    let history = json_output(&store, &["history", "s"])["executions"].clone();
    let history = history.as_array().unwrap();
    assert_eq!(history[0]["workflow_id"], second);
    let started = json_output(&store, &["show", "s"])["started"].as_u64().unwrap();
    assert_eq!(history.len() as u64, started);
    for execution in history {
        let (id, instant) = (execution["workflow_id"].as_str().unwrap(), &execution["instant"]);
        let is_triggered = execution["is_triggered"].as_bool().unwrap();
        assert_eq!(
            instant.as_str().map(|instant| format!("s@{instant}")),
            (!is_triggered).then(|| id.to_owned())
        );
        assert_eq!(execution["status"], "completed");
        assert!(execution["duration_ms"].is_number() && execution["ended_at"].is_string(), "{execution}");
    }
    let limited = json_output(&store, &["history", "s", "--limit", "1"]);
    assert_eq!(limited["executions"], json!([history[0]]));
    let text = schedule_output(&store, &["history", "s"]);
    for word in ["instant", "workflow_id", "status", "duration", "triggered", "completed", last, triggered] {
        assert!(text.contains(word), "{word} in {text}");
    }

    schedule_output(&store, &["set", "s", "--every", "1h", "--overlap", "allow"]);
    let text = schedule_output(&store, &["resume", "s"]);
    assert!(text.starts_with("s: resumed (double, every 1h, next 2"), "{text}");
    assert!(schedule_output(&store, &["resume", "s"]).starts_with("s: already resumed ("));
    let text = schedule_output(&store, &["backfill", "s", "--from", "3h", "--to", "0s"]);
    assert_eq!(text, "s: 3 instants; executions start for those that have none\n");
    let is_done = |shown: &Value| shown["started"] == started + 3 && shown["backfills"] == 0;
    wait_for(&store, &["show", "s"], is_done).await;
    let from = ["backfill", "s", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T05:00:00Z"];
    assert_eq!(json_output(&store, &from), json!({ "schedule": "s", "instants": 6 }));
    wait_for(&store, &["show", "s"], |shown| shown["started"] == started + 9).await;
    let handle = engine.get::<i64>("s@2026-01-01T05:00:00Z").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 42);

    // the history of a deleted schedule stays
    schedule_output(&store, &["delete", "s"]);
    let history = json_output(&store, &["history", "s"]);
    assert_eq!(history["executions"].as_array().unwrap().len() as u64, started + 9);
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_shown() {
    let (_directory, store) = file();
    let failing =
        Workflow::new("failing", |_: Context, (): ()| async move { Err::<(), _>(Failure::new("no paper")) });
    let engine = open_engine(&store, &failing).await;
    let schedule = |name: &str| Schedule::new(name, &failing, &()).unwrap();
    let second = Duration::from_secs(1);
    engine.set_schedule(&schedule("a failing").every(second).pause_after(1)).await.unwrap();
    let soon = stepfast::clock::Clock::now(&stepfast::clock::SystemClock).plus(second);
    engine.set_schedule(&schedule("b once").at(soon)).await.unwrap();
    let hourly = schedule("c stopped").every(3_600 * second).overlap(Overlap::Allow);
    engine.set_schedule(&hourly).await.unwrap();
    // no worker has the code of this workflow
    let unknown = ["set", "d unknown", "--workflow", "missing", "--every", "1h"];
    schedule_output(&store, &unknown);
    engine.cancel("schedule:c stopped").await.unwrap();
    let state_of = |shown: &Value| -> Vec<String> {
        let schedules = shown["schedules"].as_array().unwrap();
        schedules.iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["paused itself", "finished", "stopped", "active"];
    wait_for(&store, &["list"], |shown| state_of(shown) == expected).await;
    let text = schedule_output(&store, &["list"]);
    assert!(expected.iter().all(|state| text.contains(state)), "{text}");
    let text = schedule_output(&store, &["show", "a failing"]);
    assert!(text.contains("\nstate        paused itself: an execution failed\n"), "{text}");
    assert!(schedule_output(&store, &["show", "b once"]).ends_with("\nno further instants\n"));
    let text = schedule_output(&store, &["show", "c stopped"]);
    assert!(
        text.contains("\nstate        stopped: its execution \"schedule:c stopped\" is cancelled"),
        "{text}"
    );
    for command in ["pause", "resume", "trigger", "delete"] {
        let (code, message) = failure_of(&store, &[command, "c stopped"]);
        assert!(code == Some(1) && message.contains("resume it to continue"), "{code:?} {message}");
    }
    let text = schedule_output(&store, &["history", "a failing"]);
    assert!(text.contains("failed"), "{text}");
    assert_eq!(schedule_output(&store, &["history", "d unknown"]), "no executions\n");
    schedule_output(&store, &["trigger", "d unknown"]);
    let history = json_output(&store, &["history", "d unknown"]);
    assert_eq!(history["executions"][0]["status"], "queued");
    assert_eq!(json_output(&store, &["show", "d unknown"])["state"], "active");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_commands_are_rejected() {
    let (directory, store) = file();
    drop(stepfast::connect(&store).await.unwrap());
    let named: &[&[&str]] = &[
        &["show", "x"],
        &["pause", "x"],
        &["resume", "x"],
        &["delete", "x"],
        &["trigger", "x"],
        &["backfill", "x", "--from", "2h", "--to", "1h"],
        &["history", "x"],
    ];
    for command in named {
        let (code, message) = failure_of(&store, command);
        assert_eq!(code, Some(3), "{message}");
        assert!(
            message.contains("schedule \"x\" does not exist") && message.contains("[SF-0044]"),
            "{message}"
        );
    }
    let (code, message) = failure_of(&store, &["set", "x", "--every", "1h"]);
    assert!(code == Some(3) && message.contains("give --workflow to create it"), "{code:?} {message}");

    // refused by the engine
    for (arguments, expected) in [
        (&["--cron", "every day"][..], "\"every day\" is not a cron expression"),
        (&["--cron", "60 * * * *"], "is not a cron expression"),
        (&["--cron", "0 0 31 2 *"], "has no instant after now"),
        (&["--cron", "0 2 * * *", "--timezone", "Europe/Atlantis"], "is not an IANA time zone"),
        (&["--every", "1h", "--timezone", "UTC"], "goes with `cron` only"),
        (&["--every", "0s"], "give one second to a hundred years"),
        (&["--at", "2001-01-01T00:00:00Z"], "has no instant after now"),
        (&[], "has 0 timings"),
        (&["--every", "1h", "--pause-after", "0"], "is 0; give the number of failures"),
        (&["--every", "1h", "--attribute", "schedule=x"], "is the name of the schedule"),
    ] {
        let set = [&["set", "s", "--workflow", "double"], arguments].concat();
        let (code, message) = failure_of(&store, &set);
        assert_eq!(code, Some(1), "{arguments:?}: {message}");
        assert!(message.contains(expected) && message.contains("[SF-0001]"), "{message}");
    }
    let (code, message) =
        failure_of(&store, &["set", "s", "--workflow", "double", "--every", "1h", "--queue", "none at all"]);
    assert!(code == Some(3) && message.contains("[SF-0037]"), "{code:?} {message}");
    let (code, message) =
        failure_of(&store, &["set", "s", "--workflow", "double", "--every", "1h", "--arguments", "1"]);
    assert!(code == Some(1) && message.contains("must be a JSON array or a JSON object"), "{message}");
    let large = format!("\"{}\"", "x".repeat(40_000));
    let (code, message) =
        failure_of(&store, &["set", "s", "--workflow", "double", "--every", "1h", "--input", &large]);
    assert!(code == Some(1) && message.contains("the limit for schedules is 32768"), "{message}");
    assert_eq!(json_output(&store, &["list"]), json!({ "schedules": [] }));

    // refused as a wrong command line
    for arguments in [
        &["--every", "1h", "--cron", "* * * * *"][..],
        &["--every", "1h", "--at", "2080-01-01T00:00:00Z"],
        &["--every", "soon"],
        &["--at", "tomorrow"],
        &["--starts-at", "90s"],
        &["--overlap", "queue"],
        &["--catch-up", "some"],
        &["--pause-after", "-1"],
        &["--priority", "high"],
        &["--attribute", "tenant"],
        &["--input", "{"],
        &["--input", "1", "--arguments", "[1]"],
    ] {
        let set = [&["set", "s", "--workflow", "double"], arguments].concat();
        let (code, message) = failure_of(&store, &set);
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
    }

    schedule_output(&store, &["set", "s", "--workflow", "double", "--every", "1h"]);
    for (from, to, expected) in [
        ("1h", "2h", "after its end"),
        ("1m", "2080-01-01T00:00:00Z", "ends in the future"),
        ("2026-01-01T00:00:01Z", "2026-01-01T00:59:59Z", "has no instant"),
        ("2001-01-01T00:00:00Z", "1h", "has more than 10000 instants"),
    ] {
        let (code, message) = failure_of(&store, &["backfill", "s", "--from", from, "--to", to]);
        assert!(code == Some(1) && message.contains(expected), "{code:?} {message}");
    }
    assert_eq!(failure_of(&store, &["backfill", "s", "--from", "2h"]).0, Some(2));
    assert_eq!(failure_of(&store, &["backfill", "s", "--from", "x", "--to", "1h"]).0, Some(2));
    // no worker runs
    let (code, message) = failure_of(&store, &["trigger", "s", "--timeout", "0.1"]);
    assert!(code == Some(1) && message.contains("no worker has started the execution in time"), "{message}");
    // and no client of a failed command stays registered
    let workers = stepfast::connect(&store).await.unwrap().workers(0, true).await.unwrap().workers;
    assert!(workers.is_empty(), "{} are registered", workers.len());

    let nowhere = format!("sqlite:{}", directory.path().join("other.db").display());
    for command in [named, &[&["list"], &["set", "x", "--workflow", "w", "--every", "1h"]]].concat() {
        let (code, message) = failure_of(&nowhere, command);
        assert!(code == Some(1) && message.contains("[SF-0013]"), "{code:?} {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_are_escaped() {
    let (_directory, store) = file();
    drop(stepfast::connect(&store).await.unwrap());
    let hostile = "w\u{202e}or";
    let set = ["set", "s", "--workflow", hostile, "--every", "1h", "--attribute", "a=\u{202e}b"];
    schedule_output(&store, &set);
    let text = schedule_output(&store, &["list"]);
    assert!(text.contains("w\\u{202e}or") && !text.contains('\u{202e}'), "{text:?}");
    let shown = json_output(&store, &["show", "s"]);
    assert_eq!(shown["workflow"], hostile);
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_schedule_leaves_or_cancels_its_executions() {
    let (_directory, store) = file();
    let patient =
        Workflow::new("patient", |mut cx: Context, (): ()| async move { cx.receive::<i64>().await });
    let engine = open_engine(&store, &patient).await;
    let set = ["set", "s", "--workflow", "patient", "--every", "1d"];
    let trigger = || schedule_output(&store, &["trigger", "s"]).trim().to_owned();
    schedule_output(&store, &set);
    let kept = trigger();
    schedule_output(&store, &["delete", "s"]);
    engine.send(&*kept, &7).await.unwrap();
    assert_eq!(engine.get::<i64>(&kept).await.unwrap().result().await.unwrap(), 7);
    schedule_output(&store, &set);
    let cancelled = trigger();
    output_of(&store, &["workflow", "cancel", "schedule:s"]);
    let ended = engine.get::<i64>(&cancelled).await.unwrap().result().await;
    assert!(matches!(ended, Err(stepfast::Error::Cancelled(_))), "{ended:?}");
    wait_for(&store, &["show", "s"], |shown| shown["state"] == "stopped").await;
    output_of(&store, &["workflow", "resume", "schedule:s"]);
    let last = trigger();
    assert!(last != cancelled && json_output(&store, &["show", "s"])["started"] == 2);
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_input_reaches_the_workflow() {
    let (_directory, store) = file();
    let engine = open_engine(&store, &double()).await;
    // a value of Rust is the input itself
    let shown = json_output(
        &store,
        &["set", "s", "--workflow", "double", "--input", "-3", "--at", "2080-01-01T00:00:00Z"],
    );
    assert_eq!(shown["input"], -3);
    let id = schedule_output(&store, &["trigger", "s"]);
    assert_eq!(engine.get::<i64>(id.trim()).await.unwrap().result().await.unwrap(), -6);
    engine.shutdown(GRACE).await.unwrap();
}
