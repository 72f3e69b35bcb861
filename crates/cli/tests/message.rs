//! `stepfast message` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::Value;
use stepfast::Client;
use stepfast::prelude::*;

use crate::program::{output_of, stepfast};

const GRACE: Duration = Duration::from_secs(20);

fn error_of(store: &str, code: i32, arguments: &[&str]) -> String {
    let output = stepfast(store, arguments);
    assert_eq!(output.status.code(), Some(code));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn message_is_sent_to_a_suspended_execution() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let collect = Workflow::new("collect", |mut cx: Context, (): ()| async move {
        let first: Value = cx.receive().await?;
        let second: Value = cx.receive().topic("approval").await?;
        Ok::<_, Failure>(vec![first, second])
    });
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap());
    let builder = builder.register(&collect).suspend_after(Duration::from_millis(10));
    let engine = builder.open().await.unwrap();
    let handle = engine.start(&collect, ()).workflow_id("order-7").await.unwrap();
    while handle.status().await.unwrap() != Status::Waiting {}
    let shown = output_of(&store, &["workflow", "show", "order-7"]);
    assert!(shown.contains("\nwaits for   message \"default\"\n"), "{shown}");
    let shown: Value =
        serde_json::from_str(&output_of(&store, &["workflow", "show", "order-7", "--json"])).unwrap();
    assert_eq!(shown["waits"], serde_json::json!([{ "kind": "message", "topic": "default" }]));
    let sent = output_of(&store, &["message", "send", "order-7", "{\"n\": [1, null]}"]);
    assert_eq!(sent, "order-7: sent\n");
    for effect in ["sent", "sent before"] {
        let arguments = ["message", "send", "order-7", "true", "--topic", "approval", "--id", "m1", "--json"];
        let sent: Value = serde_json::from_str(&output_of(&store, &arguments)).unwrap();
        assert_eq!(sent, serde_json::json!({ "workflow_id": "order-7", "result": effect }));
    }
    assert_eq!(handle.result().await.unwrap(), [serde_json::json!({ "n": [1, null] }), true.into()]);
    let error = error_of(&store, 4, &["message", "send", "order-7", "1"]);
    assert!(error.contains("has ended with status completed") && error.contains("[SF-0042]"), "{error}");
    let error = error_of(&store, 3, &["message", "send", "missing", "1"]);
    assert!(error.contains("[SF-0004]"), "{error}");
    let error = error_of(&store, 1, &["message", "send", "order-7", "yes"]);
    assert!(error.contains("the value of the message") && error.contains("'\"yes\"'"), "{error}");
    let error = error_of(&store, 1, &["message", "send", "order-7", "1", "--topic", ""]);
    assert!(error.contains("topic: must not be empty"), "{error}");
    assert!(!output_of(&store, &["workflow", "show", "order-7"]).contains("pending"));
    let noop = Workflow::new("noop", async |_: Context, (): ()| Ok::<_, Failure>(()));
    let client = Client::open(stepfast::connect(&store).await.unwrap()).await.unwrap();
    client.start(&noop, ()).workflow_id("order-9").await.unwrap();
    for topic in ["approval", "aproval", "aproval"] {
        output_of(&store, &["message", "send", "order-9", "1", "--topic", topic]);
    }
    let shown = output_of(&store, &["workflow", "show", "order-9"]);
    assert!(shown.contains("\npending     1 message \"approval\", 2 messages \"aproval\"\n"), "{shown}");
    let shown: Value =
        serde_json::from_str(&output_of(&store, &["workflow", "show", "order-9", "--json"])).unwrap();
    assert_eq!(shown["pending"][1], serde_json::json!({ "topic": "aproval", "messages": 2 }));
    client.shutdown(GRACE).await.unwrap();
    let kept = output_of(&store, &["message", "send", "order-8", "7", "--keep"]);
    assert_eq!(kept, "order-8: kept\n");
    output_of(&store, &["message", "send", "order-8", "8", "--topic", "approval", "--keep"]);
    let received = engine.run(&collect, ()).workflow_id("order-8").await.unwrap();
    assert_eq!(received, [7.into(), Value::from(8)]);
    let error = error_of(&store, 1, &["message", "send", "order#8", "7", "--keep"]);
    assert!(error.contains("no message can be kept for \"order#8\""), "{error}");
    engine.shutdown(GRACE).await.unwrap();
}
