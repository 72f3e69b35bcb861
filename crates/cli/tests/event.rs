//! `stepfast event` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;

use crate::program::{output_of, stepfast};

#[tokio::test(flavor = "multi_thread")]
async fn events_are_read_and_listed() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let order = Workflow::new("order", |mut cx: Context, (): ()| async move {
        cx.set_event("progress", &json!({ "done": 1 })).await?;
        cx.set_event("progress", &json!({ "done": 2 })).await?;
        cx.receive::<()>().await?;
        cx.set_event("shipped", "by train").await
    });
    let reader = Workflow::new("reader", |mut cx: Context, (): ()| async move {
        let shipped: String = cx.get_event("order-7", "shipped").await?;
        Ok::<_, Failure>(shipped)
    });
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap());
    let builder = builder.register(&order).register(&reader).suspend_after(Duration::from_millis(10));
    let engine = builder.open().await.unwrap();
    let handle = engine.start(&order, ()).workflow_id("order-7").await.unwrap();
    while handle.status().await.unwrap() != Status::Waiting {}
    let read = engine.start(&reader, ()).workflow_id("r").await.unwrap();
    while read.status().await.unwrap() != Status::Waiting {}
    let shown = output_of(&store, &["workflow", "show", "r"]);
    let waits = format!("\nwaits for   event \"shipped\" of {}\n", handle.key());
    assert!(shown.contains(&waits), "{shown}");
    let shown: Value =
        serde_json::from_str(&output_of(&store, &["workflow", "show", "r", "--json"])).unwrap();
    let wait = json!({ "kind": "event", "key": handle.key().to_string(), "name": "shipped" });
    assert_eq!(shown["waits"], json!([wait]));
    assert_eq!(output_of(&store, &["event", "get", "order-7", "progress"]), "{\"done\":2}\n");
    let output = stepfast(&store, &["event", "get", "order-7", "shipped", "--timeout", "0"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("execution \"order-7\" has not set the event \"shipped\""), "{error}");
    engine.send("order-7", &()).await.unwrap();
    let shipped: Value =
        serde_json::from_str(&output_of(&store, &["event", "get", "order-7", "shipped", "--json"])).unwrap();
    assert_eq!(shipped, json!({ "workflow_id": "order-7", "name": "shipped", "value": "by train" }));
    assert_eq!(read.result().await.unwrap(), "by train");
    let listed = output_of(&store, &["event", "list", "order-7"]);
    let ends: Vec<&str> = listed.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    assert_eq!(ends, ["progress  {\"done\":1}", "progress  {\"done\":2}", "shipped  \"by train\""]);
    let listed = output_of(&store, &["event", "list", "order-7", "--json"]);
    let last: Value = serde_json::from_str(listed.lines().last().unwrap()).unwrap();
    assert_eq!((&last["name"], &last["value"]), (&json!("shipped"), &json!("by train")));
    assert!(last["set_at"].is_string());
    handle.result().await.unwrap();
    assert_eq!(stepfast(&store, &["event", "get", "order-7", "other"]).status.code(), Some(4));
    assert_eq!(stepfast(&store, &["event", "get", "missing", "e"]).status.code(), Some(3));
    assert_eq!(stepfast(&store, &["event", "list", "missing"]).status.code(), Some(3));
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
}
