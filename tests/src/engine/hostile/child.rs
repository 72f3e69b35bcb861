//! Options of a child.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfast_core::clock::MAX_STORED_DURATION;
use stepfast_core::store::Execution;
use stepfast_core::{Context, Error, Workflow};

use super::harness::{HostileHarness, QUEUE};
use super::values::{durations, texts};
use crate::StoreFixture;
use crate::engine::support::{BodyResult, noop};

/// The options of a child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ChildStartOptions {
    queue: Option<String>,
    key: Option<String>,
    priority: Option<i32>,
    delay: Option<Duration>,
    run_timeout: Option<Duration>,
    attribute: Option<(String, String)>,
}

/// Returns the workflow `parent`, which starts a child with these options and returns the child's workflow_id.
fn parent() -> Workflow<ChildStartOptions, String> {
    Workflow::new("parent", |mut cx: Context, options: ChildStartOptions| async move {
        let mut child = cx.start_detached(&noop(), 7);
        if let Some(queue) = options.queue {
            child = child.queue(queue);
        }
        if let Some(key) = options.key {
            child = child.key(key);
        }
        if let Some(priority) = options.priority {
            child = child.priority(priority);
        }
        if let Some(delay) = options.delay {
            child = child.delay(delay);
        }
        if let Some(limit) = options.run_timeout {
            child = child.run_timeout(limit);
        }
        if let Some((name, value)) = options.attribute {
            child = child.attribute(name, value);
        }
        let child = child.await;
        // and the parent continues
        cx.step("after", async || BodyResult::Ok(())).await?;
        child
    })
}

pub(super) async fn child_options_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let parent = parent();
    let harness = HostileHarness::with(fixture, |b| b.register(&parent)).await;
    let started = async |options: ChildStartOptions| -> Result<Execution, Error> {
        let child = harness.engine.run(&parent, options).await?;
        Ok(harness.row(&child).await)
    };
    let queued = || ChildStartOptions { queue: Some(QUEUE.into()), ..ChildStartOptions::default() };
    harness
        .check("queue of a child", &["queue"], texts(), async |text| {
            let options = ChildStartOptions { queue: Some(text.clone()), ..ChildStartOptions::default() };
            match started(options).await {
                Err(Error::Failed(failure))
                    if failure.code() == Some("SF-0037") && failure.message.len() < 4_000 =>
                {
                    Ok(())
                }
                started => started.map(drop),
            }
        })
        .await;
    harness
        .check("key of a child", &["queue key"], texts(), async |text| {
            let row = started(ChildStartOptions { key: Some(text.clone()), ..queued() }).await?;
            assert_eq!(row.placement.unwrap().key.as_ref(), text);
            Ok(())
        })
        .await;
    harness
        .check("priority of a child", &["priority"], [i32::MIN, -1, 0, 1, i32::MAX], async |priority| {
            let row = started(ChildStartOptions { priority: Some(*priority), ..queued() }).await?;
            assert_eq!(row.placement.unwrap().priority, *priority);
            Ok(())
        })
        .await;
    harness
        .check("delay of a child", &["delay"], durations(), async |delay| {
            let row =
                started(ChildStartOptions { delay: Some(*delay), ..ChildStartOptions::default() }).await?;
            if *delay > Duration::from_secs(3_600) {
                assert_eq!(row.wake_at, Some(row.created_at.plus((*delay).min(MAX_STORED_DURATION))));
            }
            Ok(())
        })
        .await;
    harness
        .check("run_timeout of a child", &["run_timeout"], durations(), async |limit| {
            let options = ChildStartOptions {
                run_timeout: Some(*limit),
                delay: Some(Duration::MAX),
                ..ChildStartOptions::default()
            };
            let stored = started(options).await?.run_timeout.unwrap();
            assert!(
                stored.abs_diff((*limit).min(MAX_STORED_DURATION)) < Duration::from_millis(1),
                "{stored:?}"
            );
            let options = ChildStartOptions { run_timeout: Some(*limit), ..ChildStartOptions::default() };
            started(options).await.map(drop)
        })
        .await;
    harness
        .check("attribute of a child", &["name of an attribute"], texts(), async |text| {
            let options = ChildStartOptions {
                attribute: Some((text.clone(), "value".into())),
                ..ChildStartOptions::default()
            };
            assert_eq!(started(options).await?.attributes.get(text), Some("value"));
            Ok(())
        })
        .await;
    harness
        .check("value of a child's attribute", &["value of an attribute"], texts(), async |text| {
            let options = ChildStartOptions {
                attribute: Some(("name".into(), text.clone())),
                ..ChildStartOptions::default()
            };
            assert_eq!(started(options).await?.attributes.get("name"), Some(&**text));
            Ok(())
        })
        .await;
    harness.end().await;
}
