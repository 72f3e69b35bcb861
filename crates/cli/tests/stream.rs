//! `stepfast stream` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::{Value, json};
use stepfast::prelude::*;

use crate::program::{output_of, stepfast};

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_read_and_followed() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let answer = Workflow::new("answer", |mut cx: Context, (): ()| async move {
        let words = cx.stream_writer("words");
        cx.write_stream("words", &json!({ "question": "why?" })).await?;
        cx.step("write", async || {
            for word in ["be", "cause\n"] {
                words.write(word).await?;
            }
            Ok::<_, Failure>(())
        })
        .await?;
        cx.receive::<()>().await?;
        cx.write_stream("words", "end").await
    });
    let builder = Engine::builder(stepfast::connect(&store).await.unwrap());
    let engine = builder.register(&answer).suspend_after(Duration::from_millis(10)).open().await.unwrap();
    let handle = engine.start(&answer, ()).workflow_id("a").await.unwrap();
    while handle.status().await.unwrap() != Status::Waiting {}
    let first = "{\"question\":\"why?\"}\n\"be\"\n\"cause\\n\"\n";
    assert_eq!(output_of(&store, &["stream", "read", "a", "words"]), first);
    assert_eq!(output_of(&store, &["stream", "read", "a", "words", "--offset", "2"]), "\"cause\\n\"\n");
    assert_eq!(output_of(&store, &["stream", "read", "a", "words", "--offset", "3"]), "");
    assert_eq!(output_of(&store, &["stream", "read", "a", "other"]), "");
    let lines = output_of(&store, &["stream", "read", "a", "words", "--json"]);
    let values: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(values.iter().all(|value| value["written_at"].is_string()));
    let places: Vec<_> = values
        .iter()
        .map(|it| json!([it["offset"], it["value"], it["step"], it["attempt_offset"]]))
        .collect();
    let expected = [
        json!([0, { "question": "why?" }, null, 0]),
        json!([1, "be", "2", 1]),
        json!([2, "cause\n", "2", 1]),
    ];
    assert_eq!(places, expected);
    let followed = {
        let store = store.clone();
        tokio::task::spawn_blocking(move || output_of(&store, &["stream", "read", "a", "words", "--follow"]))
    };
    handle.send(&()).await.unwrap();
    assert_eq!(followed.await.unwrap(), format!("{first}\"end\"\n"));
    handle.result().await.unwrap();
    assert_eq!(stepfast(&store, &["stream", "read", "missing", "words"]).status.code(), Some(3));
    assert_eq!(stepfast(&store, &["stream", "read", "a", "words", "--offset=-1"]).status.code(), Some(2));
    engine.shutdown(Duration::from_secs(20)).await.unwrap();
}
