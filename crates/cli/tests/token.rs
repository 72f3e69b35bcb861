//! `stepfast token` and `stepfast ask` as their users see them.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;

use crate::program::{output_of, stepfast};

/// Returns the exit code of the program, and its error.
fn error_of(store: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = stepfast(store, arguments);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_answered() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let (sender, mut ids) = tokio::sync::mpsc::unbounded_channel();
    let approve = Workflow::new("approve", move |mut cx: Context, (): ()| {
        let sender = sender.clone();
        async move {
            let token = cx.create_token::<Value>().await?;
            cx.step("hand out", async || Ok::<_, Failure>(sender.send(token.id().to_owned()).is_ok()))
                .await?;
            token.result(&mut cx).await
        }
    });
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap()).register(&approve);
    let engine = builder.suspend_after(Duration::from_millis(10)).open().await.unwrap();
    let handle = engine.start(&approve, ()).workflow_id("order-7").await.unwrap();
    let token = ids.recv().await.unwrap();
    let secret = token.rsplit_once('.').unwrap().1;
    while handle.status().await.unwrap() != Status::Waiting {}
    for arguments in [&["workflow", "show", "order-7"][..], &["workflow", "show", "order-7", "--json"]] {
        let shown = output_of(&store, arguments);
        assert!(shown.contains("token 1") && !shown.contains(secret), "{shown}");
        assert!(!shown.contains("\\u{1}") && !shown.contains("\\u0001"), "{shown}");
    }
    let shown = output_of(&store, &["workflow", "show", "order-7"]);
    assert!(shown.contains("\nwaits for   message \"token 1\"\n"), "{shown}");
    assert_eq!(output_of(&store, &["event", "list", "order-7"]), "");
    assert_eq!(output_of(&store, &["token", "complete", &token, "{\"by\": \"Ada\"}"]), "completed\n");
    assert_eq!(handle.result().await.unwrap(), json!({ "by": "Ada" }));
    let shown: Value =
        serde_json::from_str(&output_of(&store, &["workflow", "show", "order-7", "--json"])).unwrap();
    let answer = &shown["checkpoints"][2];
    assert_eq!((&answer["name"], &answer["outcome"]), (&json!("token 1"), &json!({ "by": "Ada" })));
    let (code, error) = error_of(&store, &["token", "complete", &token, "1"]);
    assert!(code == Some(4) && error.contains("has an answer already"), "{code:?} {error}");
    let handle = engine.start(&approve, ()).await.unwrap();
    let token = ids.recv().await.unwrap();
    let failed = output_of(&store, &["token", "fail", &token, "too expensive", "--json"]);
    let failed: Value = serde_json::from_str(&failed).unwrap();
    assert_eq!(failed, json!({ "token": token, "result": "failed" }));
    let error = handle.result().await.unwrap_err().to_string();
    assert!(error.contains("too expensive"), "{error}");
    let (code, error) = error_of(&store, &["token", "complete", "order-7", "1"]);
    assert!(code == Some(1) && error.contains("is not the id of a token"), "{code:?} {error}");
    let (code, error) = error_of(&store, &["token", "complete", &token, "yes"]);
    assert!(code == Some(1) && error.contains("the value of the token is JSON"), "{code:?} {error}");
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let desk = Workflow::new("desk", |mut cx: Context, (): ()| async move {
        let question = cx.receive_question::<i64>().topic("sums").await?;
        cx.answer(&question, &(question.value + 1)).await?;
        let question = cx.receive_question::<i64>().topic("sums").await?;
        cx.refuse(&question, Failure::new("closed")).await?;
        cx.receive::<()>().await
    });
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap()).register(&desk);
    let engine = builder.suspend_after(Duration::from_millis(10)).open().await.unwrap();
    let handle = engine.start(&desk, ()).workflow_id("desk").await.unwrap();
    while handle.status().await.unwrap() != Status::Waiting {}
    let shown = output_of(&store, &["workflow", "show", "desk"]);
    assert!(shown.contains("\nwaits for   message \"question sums\"\n"), "{shown}");
    let ask = ["ask", "desk", "7", "--topic", "sums", "--id", "first"];
    assert_eq!(output_of(&store, &ask), "8\n");
    // the same question again
    let answer: Value = serde_json::from_str(&output_of(&store, &[&ask[..], &["--json"]].concat())).unwrap();
    assert_eq!(answer, json!({ "workflow_id": "desk", "answer": 8 }));
    let (code, error) = error_of(&store, &["ask", "desk", "8", "--topic", "sums"]);
    assert!(code == Some(1) && error.contains("the question was refused: "), "{code:?} {error}");
    assert!(error.contains("closed") && !error.contains("the workflow failed"), "{error}");
    let (code, error) = error_of(&store, &["ask", "desk", "8", "--timeout", "0.05"]);
    assert!(code == Some(1) && error.contains("has not answered the question in time"), "{code:?} {error}");
    engine.send("desk", &()).await.unwrap();
    handle.result().await.unwrap();
    assert_eq!(error_of(&store, &["ask", "desk", "8"]).0, Some(4));
    assert_eq!(error_of(&store, &["ask", "missing", "8"]).0, Some(3));
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
}
