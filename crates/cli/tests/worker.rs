//! `stepfast worker` as its users see it.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::time::Duration;

use serde_json::Value;
use stepfast::prelude::*;
use stepfast::{Client, Store};

use crate::program::output_of;

const GRACE: Duration = Duration::from_secs(20);

/// Returns what `worker list` prints.
fn list_output(store: &str, arguments: &[&str]) -> String {
    output_of(store, &[&["worker", "list"], arguments].concat())
}

async fn store(url: &str) -> std::sync::Arc<dyn Store> {
    stepfast::connect(url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_unclaimable_executions_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    drop(store(&url).await);
    assert_eq!(list_output(&url, &[]), "no workers are registered\n");

    let noop = Workflow::new("noop", |_cx: Context, (): ()| async move { Ok::<(), Failure>(()) });
    let engine = Engine::builder(store(&url).await).register(&noop).app_version("v7").open().await.unwrap();
    let client = Client::open(store(&url).await).await.unwrap();
    let pid = std::process::id().to_string();
    let text = list_output(&url, &[]);
    for word in ["alive", "client", "v7", "noop", &pid] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains("no live worker"), "{text}");

    let elsewhere = Workflow::<(), ()>::named("elsewhere");
    client.start(&elsewhere, ()).await.unwrap();
    let text = list_output(&url, &[]);
    assert!(text.contains("1 execution of workflow \"elsewhere\" waits: no live"), "{text}");
    assert!(
        text.contains("no live worker has registered \"elsewhere\": start a worker with its code\n"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&list_output(&url, &["--json"])).unwrap();
    let workers = json["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    assert_eq!((&workers[0]["app_version"], &workers[0]["is_client"]), (&"v7".into(), &false.into()));
    assert_eq!((&workers[1]["state"], &workers[1]["is_alive"]), (&"client".into(), &true.into()));
    let unclaimable = &json["unclaimable"];
    assert_eq!(
        (&unclaimable[0]["workflow"], &unclaimable[0]["executions"]),
        (&"elsewhere".into(), &1.into())
    );
    assert_eq!((&unclaimable[0]["reason"], unclaimable[1].is_null()), (&"workflow".into(), true));

    client.shutdown(GRACE).await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    assert!(list_output(&url, &[]).contains("no workers are registered"));
}

#[tokio::test(flavor = "multi_thread")]
async fn execution_pinned_to_missing_version_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    let slow = Workflow::new("slow", |mut cx: Context, (): ()| async move {
        cx.step("wait", std::future::pending::<Result<(), Failure>>).await
    });
    let old = Engine::builder(store(&url).await).register(&slow).app_version("1").open().await.unwrap();
    old.start(&slow, ()).workflow_id("pinned").await.unwrap();
    old.drain(Duration::ZERO).await.unwrap();
    let text = list_output(&url, &[]);
    assert!(text.starts_with("no workers are registered\n"), "{text}");
    assert!(
        text.contains(
            "no live worker has registered \"slow\": start a worker with its code, of version \"1\""
        ),
        "{text}"
    );
    let new = Engine::builder(store(&url).await).register(&slow).app_version("2").open().await.unwrap();
    let text = list_output(&url, &[]);
    assert!(text.contains("no live worker that has registered \"slow\" runs version \"1\""), "{text}");
    assert_eq!(new.running_count(), 0);
    // `workflow show` gives the same reason
    let text = output_of(&url, &["workflow", "show", "pinned"]);
    assert!(
        text.contains("unclaimable no live worker that has registered \"slow\" runs version \"1\""),
        "{text}"
    );
    let json: Value =
        serde_json::from_str(&output_of(&url, &["workflow", "show", "pinned", "--json"])).unwrap();
    assert!(json["unclaimable"].as_str().unwrap().contains("version \"1\""), "{json}");
    new.start(&slow, ()).workflow_id("runs").await.unwrap();
    assert!(!output_of(&url, &["workflow", "show", "runs"]).contains("no live worker"));
    new.shutdown(GRACE).await.unwrap();
}
