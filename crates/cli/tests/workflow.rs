//! `stepfast workflow` as its users see it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stepfast::prelude::*;
use stepfast::{EngineBuilder, SqliteOptions, SqliteStore};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(20);

fn stepfast(store: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.arg("workflow").args(arguments).args(["--store", store]).env_remove("STEPFAST_STORE");
    command.output().unwrap()
}

/// Runs a command that must succeed. Returns what it prints.
fn output_of(store: &str, arguments: &[&str]) -> String {
    let output = stepfast(store, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn failure_of(store: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = stepfast(store, arguments);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn empty_directory() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = url(directory.path());
    (directory, url)
}

fn url(directory: &Path) -> String {
    format!("sqlite:{}", directory.join("shop.db").display())
}

async fn engine<I, O>(store: &str, workflows: &[&Workflow<I, O>]) -> Engine {
    let builder = Engine::builder(stepfast::connect(store).await.unwrap());
    workflows.iter().fold(builder, |builder, workflow| builder.register(workflow)).open().await.unwrap()
}

const COMMANDS: [&[&str]; 4] = [&["list"], &["show", "x"], &["cancel", "x"], &["resume", "x"]];

#[test]
fn missing_database_is_not_created() {
    let (directory, store) = empty_directory();
    for command in COMMANDS {
        let (code, message) = failure_of(&store, command);
        assert_eq!(code, Some(1));
        assert!(message.contains("no such file") && message.contains("[SF-0013]"), "{message}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn unreachable_server_has_its_own_exit_code() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for command in COMMANDS {
        let (code, message) = failure_of(&format!("postgres://me:secret@127.0.0.1:{port}/shop"), command);
        assert_eq!(code, Some(5), "{message}");
        assert!(message.contains("cannot reach postgres://me@127.0.0.1") && message.contains("[SF-0035]"));
        assert!(!message.contains("secret"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contradicting_options_have_the_exit_code_of_usage() {
    let (_directory, store) = empty_directory();
    engine::<(), ()>(&store, &[]).await.shutdown(GRACE).await.unwrap();
    for (command, says) in [
        (&["cancel", "x", "--queue", "mails"][..], "filters need --all"),
        (&["cancel", "--all"], "--all needs a filter"),
        (&["resume", "--all", "--queue", "mails"], "resume --all needs a status"),
    ] {
        let (code, message) = failure_of(&store, command);
        assert_eq!(code, Some(2), "{command:?}: {message}");
        assert!(message.contains(says), "{command:?}: {message}");
    }
}

#[test]
fn memory_store_is_rejected() {
    for command in COMMANDS {
        let (code, message) = failure_of("memory:", command);
        assert_eq!(code, Some(1));
        assert!(message.contains("empty in every process"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_shown_if_there_are_any() {
    let (_directory, store) = empty_directory();
    let noop = Workflow::new("noop", |_cx: Context, (): ()| async move { Ok::<(), Failure>(()) });
    let open = async |version: Option<&str>| {
        let builder = Engine::builder(stepfast::connect(&store).await.unwrap()).register(&noop);
        version.into_iter().fold(builder, EngineBuilder::app_version).open().await.unwrap()
    };
    let engine = open(None).await;
    engine.run(&noop, ()).workflow_id("free").await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    assert!(!output_of(&store, &["list"]).contains("version"));
    assert!(!output_of(&store, &["show", "free"]).contains("version"));
    let engine = open(Some("v7")).await;
    engine.run(&noop, ()).workflow_id("pinned").await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    let all = output_of(&store, &["list"]);
    assert!(["version", "v7", "any"].iter().all(|word| all.contains(word)), "{all}");
    let some = output_of(&store, &["list", "--app-version", "v7"]);
    assert!(some.contains("pinned") && !some.contains("free"), "{some}");
    assert_eq!(output_of(&store, &["list", "--app-version", "v8", "--count"]), "0\n");
    assert!(output_of(&store, &["show", "pinned"]).contains("version     v7"));
    assert!(output_of(&store, &["show", "pinned", "--json"]).contains("\"app_version\": \"v7\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_pipe_ends_program_quietly() {
    let (_directory, store) = empty_directory();
    let noop = Workflow::new("noop", |_cx: Context, (): ()| async move { Ok::<(), Failure>(()) });
    let engine = engine(&store, &[&noop]).await;
    engine.run(&noop, ()).await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    for json in [&[] as &[&str], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        // the reader has ended
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
        command.args(["workflow", "list", "--store", &store]).args(json).stdout(writer);
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_attempts_are_shown_under_their_step() {
    let (_directory, store) = empty_directory();
    let pay = Workflow::new("pay", |mut cx: Context, (): ()| async move {
        let mut calls = 0;
        cx.step("charge", || {
            calls += 1;
            let call = calls;
            async move {
                if call < 3 { Err(Failure::new(format!("the bank is shut, call {call}"))) } else { Ok(call) }
            }
        })
        .retries(5)
        .backoff(Duration::ZERO, Duration::ZERO)
        .await
    });
    let engine = engine(&store, &[&pay]).await;
    engine.run(&pay, ()).workflow_id("order-7").await.unwrap();
    let text = output_of(&store, &["show", "order-7"]);
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("charge") || line.contains("attempt")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains("charge") && lines[0].contains(" 3 "), "{text}");
    assert!(lines[1].contains("attempt 1") && lines[1].contains("the bank is shut, call 1"), "{text}");
    assert!(lines[2].contains("attempt 2") && lines[2].contains("the bank is shut, call 2"), "{text}");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn children_are_shown_with_id_status_and_outcome() {
    let (_directory, store) = empty_directory();
    let pack = Workflow::new("pack", |_cx: Context, item: String| async move {
        if item == "feather" { Err(Failure::new("too light")) } else { Ok(format!("{item}, packed")) }
    });
    let child = pack.clone();
    let ship = Workflow::new("ship", move |mut cx: Context, item: String| {
        let child = child.clone();
        async move {
            let _ = cx.child(&child, "feather".to_owned()).await;
            cx.child(&child, item).await
        }
    });
    let engine = engine(&store, &[&pack, &ship]).await;
    engine.run(&ship, "hammer".to_owned()).workflow_id("order-7").await.unwrap();
    let text = output_of(&store, &["show", "order-7"]);
    assert!(text.contains("failed: too light"), "{text}");
    assert!(text.contains("completed: \"hammer, packed\""), "{text}");
    let parent = engine.show("order-7").await.unwrap().execution.key;
    let children = engine.list(&stepfast::store::Filter { parent: Some(parent), ..Default::default() }).await;
    for child in children.unwrap().executions {
        assert!(text.contains(&child.workflow_id()), "{text}");
        assert!(output_of(&store, &["show", &child.workflow_id()]).contains("pack"));
    }
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_execution_is_shown_in_words() {
    let (_directory, store) = empty_directory();
    let sleeper = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        cx.sleep(Duration::from_hours(1)).await;
        Ok::<_, Failure>(())
    });
    let engine = engine(&store, &[&sleeper]).await;
    engine.start(&sleeper, ()).workflow_id("nap").await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    assert!(output_of(&store, &["cancel", "nap"]).contains("nap: done"));
    let text = output_of(&store, &["show", "nap"]);
    assert!(text.contains("[SF-0022]") && !text.contains("is_retryable") && !text.contains('{'), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn execution_of_dead_worker_is_marked() {
    let (directory, url) = empty_directory();
    let store = SqliteStore::open(directory.path().join("shop.db"), SqliteOptions::default()).unwrap();
    let store = Arc::new(store);
    let (begun, has_begun) = tokio::sync::watch::channel(false);
    let hang = Workflow::new("hang", move |mut cx: Context, (): ()| {
        let begun = begun.clone();
        async move {
            cx.step("hang", async || {
                begun.send_replace(true);
                std::future::pending::<Result<(), Failure>>().await
            })
            .await
        }
    });
    let engine = Engine::builder(store.clone()).register(&hang).open().await.unwrap();
    engine.start(&hang, ()).workflow_id("x").await.unwrap();
    has_begun.clone().wait_for(|begun| *begun).await.unwrap();
    let owner = engine.show("x").await.unwrap().execution.owner.unwrap();
    assert!(output_of(&url, &["show", "x"]).contains(&format!("worker      {}\n", owner.0)));
    assert!(!output_of(&url, &["list"]).contains("dead"));
    store.simulate_death(owner);
    assert!(output_of(&url, &["show", "x"]).contains(&format!("worker      {} (dead)\n", owner.0)));
    assert!(output_of(&url, &["list"]).contains("running (worker dead)"));
    assert!(output_of(&url, &["list", "--json"]).contains("\"is_owner_dead\": true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_log_pipe_does_not_stop_program() {
    let (_directory, store) = empty_directory();
    drop(stepfast::connect(&store).await.unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.args(["workflow", "cancel", "x", "--store", &store]).env("STEPFAST_LOG", "debug");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // as `head` does
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));

    let output = command.env("STEPFAST_LOG", "=,x").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && text.contains("STEPFAST_LOG=\"=,x\" is neither a level"),
        "{text}"
    );
}
