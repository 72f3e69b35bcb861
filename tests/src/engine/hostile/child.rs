//! Options of a child.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfast_core::clock::MAX_STORED_DURATION;
use stepfast_core::store::Execution;
use stepfast_core::{Context, Error, Workflow};

use super::stage::{QUEUE, Stage};
use super::values::{durations, texts};
use crate::StoreFixture;
use crate::engine::support::{Returns, noop};

/// The options of a child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Options {
    queue: Option<String>,
    key: Option<String>,
    priority: Option<i32>,
    delay: Option<Duration>,
    run_timeout: Option<Duration>,
    attribute: Option<(String, String)>,
}

/// The workflow `parent`, which starts a child with these options; returns the child's workflow_id.
fn parent() -> Workflow<Options, String> {
    Workflow::new("parent", |mut cx: Context, options: Options| async move {
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
        // and the parent goes on
        cx.step("after", async || Returns::Ok(())).await?;
        child
    })
}

pub(super) async fn children_take_an_option_or_refuse_it(fixture: &dyn StoreFixture) {
    let parent = parent();
    let stage = Stage::with(fixture, |it| it.register(&parent)).await;
    let started = async |options: Options| -> Result<Execution, Error> {
        let child = stage.engine.run(&parent, options).await?;
        Ok(stage.row(&child).await)
    };
    let queued = || Options { queue: Some(QUEUE.into()), ..Options::default() };
    stage
        .door("queue of a child", &["queue"], texts(), async |text| {
            let options = Options { queue: Some(text.clone()), ..Options::default() };
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
    stage
        .door("key of a child", &["queue key"], texts(), async |text| {
            let row = started(Options { key: Some(text.clone()), ..queued() }).await?;
            assert_eq!(row.placement.unwrap().key.as_ref(), text);
            Ok(())
        })
        .await;
    stage
        .door("priority of a child", &["priority"], [i32::MIN, -1, 0, 1, i32::MAX], async |priority| {
            let row = started(Options { priority: Some(*priority), ..queued() }).await?;
            assert_eq!(row.placement.unwrap().priority, *priority);
            Ok(())
        })
        .await;
    stage
        .door("delay of a child", &["delay"], durations(), async |delay| {
            let row = started(Options { delay: Some(*delay), ..Options::default() }).await?;
            if *delay > Duration::from_secs(3_600) {
                assert_eq!(row.wake_at, Some(row.created_at.plus((*delay).min(MAX_STORED_DURATION))));
            }
            Ok(())
        })
        .await;
    stage
        .door("run_timeout of a child", &["run_timeout"], durations(), async |limit| {
            let options =
                Options { run_timeout: Some(*limit), delay: Some(Duration::MAX), ..Options::default() };
            let stored = started(options).await?.run_timeout.unwrap();
            assert!(
                stored.abs_diff((*limit).min(MAX_STORED_DURATION)) < Duration::from_millis(1),
                "{stored:?}"
            );
            let options = Options { run_timeout: Some(*limit), ..Options::default() };
            started(options).await.map(drop)
        })
        .await;
    stage
        .door("attribute of a child", &["name of an attribute"], texts(), async |text| {
            let options = Options { attribute: Some((text.clone(), "value".into())), ..Options::default() };
            assert_eq!(started(options).await?.attributes.get(text), Some("value"));
            Ok(())
        })
        .await;
    stage
        .door("value of a child's attribute", &["value of an attribute"], texts(), async |text| {
            let options = Options { attribute: Some(("name".into(), text.clone())), ..Options::default() };
            assert_eq!(started(options).await?.attributes.get("name"), Some(&**text));
            Ok(())
        })
        .await;
    stage.end().await;
}
