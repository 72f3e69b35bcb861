//! Options of a start.

use std::time::Duration;

use stepfast_core::clock::{MAX_STORED_DURATION, Timestamp};
use stepfast_core::store::{Execution, Status};
use stepfast_core::{Error, StartBuilder};

use super::harness::{HostileHarness, QUEUE};
use super::values::{durations, instants, texts};
use crate::StoreFixture;

/// Starts `noop` with an option, and returns its row.
async fn started<'s>(
    harness: &'s HostileHarness<'_>,
    with: impl FnOnce(StartBuilder<'s, i64, i64>) -> StartBuilder<'s, i64, i64>,
) -> Result<Execution, Error> {
    let handle = with(harness.engine.start(&harness.unrelated, 7)).await?;
    Ok(harness.row(&handle.workflow_id()).await)
}

pub(super) async fn start_texts_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    harness
        .check("workflow_id", &["workflow_id"], texts(), async |text| {
            let row = started(&harness, |start| start.workflow_id(text)).await?;
            assert_eq!(row.given_id.as_deref(), Some(&**text));
            // a second Start returns the first execution
            let repeated = started(&harness, |start| start.workflow_id(text)).await?;
            assert_eq!((repeated.key, repeated.workflow_id()), (row.key, text.clone()));
            let run = harness.engine.run(&harness.unrelated, 7).workflow_id(text).await?;
            assert_eq!(run, 7);
            Ok(())
        })
        .await;
    harness
        .check("queue", &["queue"], texts(), async |text| {
            started(&harness, |start| start.queue(text)).await.map(drop)
        })
        .await;
    harness
        .check("key", &["queue key"], texts(), async |text| {
            let row = started(&harness, |start| start.queue(QUEUE).key(text)).await?;
            assert_eq!(row.placement.unwrap().key.as_ref(), text);
            Ok(())
        })
        .await;
    harness
        .check("dedup_id", &["dedup_id"], texts(), async |text| {
            let hour = Duration::from_secs(3600);
            let row = started(&harness, |start| start.queue(QUEUE).dedup_id(text).delay(hour)).await?;
            assert_eq!(row.given_dedup_id(), Some(&**text));
            let repeated = started(&harness, |start| start.queue(QUEUE).dedup_id(text).delay(hour)).await;
            assert!(matches!(repeated, Err(Error::Deduplicated { .. })));
            repeated.map(drop)
        })
        .await;
    harness
        .check("debounce", &["debounce"], texts(), async |text| {
            let hour = Duration::from_secs(3600);
            let row = started(&harness, |start| start.queue(QUEUE).debounce(text).delay(hour)).await?;
            assert_eq!(row.debounce_id(), Some(&**text));
            let repeated = started(&harness, |start| start.queue(QUEUE).debounce(text).delay(hour)).await?;
            assert_eq!(repeated.key, row.key);
            Ok(())
        })
        .await;
    harness
        .check("name of an attribute", &["name of an attribute"], texts(), async |text| {
            let row = started(&harness, |start| start.attribute(text, "x").attribute(text, "value")).await?;
            assert_eq!((row.attributes.len(), row.attributes.get(text)), (1, Some("value")));
            Ok(())
        })
        .await;
    harness
        .check("value of an attribute", &["value of an attribute"], texts(), async |text| {
            let row = started(&harness, |start| start.attribute("name", text)).await?;
            assert_eq!(row.attributes.get("name"), Some(&**text));
            Ok(())
        })
        .await;
    harness
        .check("attributes", &["attributes"], [0, 1, 64, 65, 100_000], async |count| {
            let row = started(&harness, |start| {
                (0..*count).fold(start, |start, n| start.attribute(format!("name {n}"), "value"))
            })
            .await?;
            assert_eq!(row.attributes.len(), *count);
            Ok(())
        })
        .await;
    harness.end().await;
}

/// Returns whether `at` is `delay` after `created_at`, or after it by the longest storable duration.
fn is_delayed_by(at: Timestamp, created_at: Timestamp, delay: Duration) -> bool {
    at == created_at.plus(delay.min(MAX_STORED_DURATION))
}

pub(super) async fn start_times_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    harness
        .check("execution_timeout", &["timeout"], durations(), async |limit| {
            let row = started(&harness, |start| start.execution_timeout(*limit)).await?;
            assert!(is_delayed_by(row.deadline_at.unwrap(), row.created_at, *limit), "{row:?}");
            Ok(())
        })
        .await;
    harness
        .check("run_timeout", &["run_timeout"], durations(), async |limit| {
            let row = started(&harness, |start| start.queue(QUEUE).delay(Duration::MAX).run_timeout(*limit))
                .await?;
            let stored = row.run_timeout.unwrap();
            assert!(
                stored.abs_diff((*limit).min(MAX_STORED_DURATION)) < Duration::from_millis(1),
                "{stored:?}"
            );
            started(&harness, |start| start.run_timeout(*limit)).await.map(drop)
        })
        .await;
    harness
        .check("delay", &["delay"], durations(), async |delay| {
            let row = started(&harness, |start| start.delay(*delay)).await?;
            if row.status == Status::Scheduled {
                assert!(is_delayed_by(row.wake_at.unwrap(), row.created_at, *delay), "{row:?}");
            }
            started(&harness, |start| start.queue(QUEUE).delay(*delay)).await.map(drop)
        })
        .await;
    harness
        .check("start_at", &["start_at"], instants(), async |at| {
            let row = started(&harness, |start| start.start_at(*at)).await?;
            if row.status == Status::Scheduled {
                assert_eq!(row.wake_at, Some(at.clamp_near(row.created_at)));
            } else {
                assert!(*at < row.created_at.plus(MAX_STORED_DURATION));
            }
            Ok(())
        })
        .await;
    harness
        .check("max_delay", &["max_delay"], durations(), async |max_delay| {
            let id = harness.fresh_name();
            started(&harness, |start| {
                start.queue(QUEUE).debounce(&id).delay(Duration::ZERO).max_delay(*max_delay)
            })
            .await?;
            let id = harness.fresh_name();
            let (hour, max_delay) = (Duration::from_secs(3600), *max_delay);
            started(&harness, |start| start.queue(QUEUE).debounce(&id).delay(hour).max_delay(max_delay))
                .await?;
            started(&harness, |start| start.queue(QUEUE).debounce(&id).delay(hour).max_delay(max_delay))
                .await
                .map(drop)
        })
        .await;
    harness
        .check("wait_timeout", &["within"], durations(), async |timeout| {
            match started(&harness, |start| start.queue(QUEUE).wait_timeout(*timeout)).await {
                // the message names the timeout
                Err(Error::Unavailable(_)) if *timeout < Duration::from_secs(1) => Ok(()),
                started => started.map(drop),
            }
        })
        .await;
    harness
        .check("priority", &["priority"], [i32::MIN, -1, 0, 1, i32::MAX], async |priority| {
            let row = started(&harness, |start| start.queue(QUEUE).priority(*priority)).await?;
            assert_eq!(row.placement.unwrap().priority, *priority);
            Ok(())
        })
        .await;
    harness.end().await;
}
