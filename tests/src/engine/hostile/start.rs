//! Options of a start.

use std::time::Duration;

use stepfast_core::clock::{MAX_STORED_DURATION, Timestamp};
use stepfast_core::store::{Execution, Status};
use stepfast_core::{Error, StartBuilder};

use super::stage::{QUEUE, HostileHarness};
use super::values::{durations, instants, texts};
use crate::StoreFixture;

/// Starts `noop` with an option; returns its row.
async fn started<'s>(
    stage: &'s HostileHarness<'_>,
    with: impl FnOnce(StartBuilder<'s, i64, i64>) -> StartBuilder<'s, i64, i64>,
) -> Result<Execution, Error> {
    let handle = with(stage.engine.start(&stage.innocent, 7)).await?;
    Ok(stage.row(&handle.workflow_id()).await)
}

pub(super) async fn starts_take_a_text_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    stage
        .check("workflow_id", &["workflow_id"], texts(), async |text| {
            let row = started(&stage, |it| it.workflow_id(text)).await?;
            assert_eq!(row.given_id.as_deref(), Some(&**text));
            // a second start is the first one
            let again = started(&stage, |it| it.workflow_id(text)).await?;
            assert_eq!((again.key, again.workflow_id()), (row.key, text.clone()));
            let run = stage.engine.run(&stage.innocent, 7).workflow_id(text).await?;
            assert_eq!(run, 7);
            Ok(())
        })
        .await;
    stage
        .check("queue", &["queue"], texts(), async |text| started(&stage, |it| it.queue(text)).await.map(drop))
        .await;
    stage
        .check("key", &["queue key"], texts(), async |text| {
            let row = started(&stage, |it| it.queue(QUEUE).key(text)).await?;
            assert_eq!(row.placement.unwrap().key.as_ref(), text);
            Ok(())
        })
        .await;
    stage
        .check("dedup_id", &["dedup_id"], texts(), async |text| {
            let hour = Duration::from_secs(3600);
            let row = started(&stage, |it| it.queue(QUEUE).dedup_id(text).delay(hour)).await?;
            assert_eq!(row.given_dedup_id(), Some(&**text));
            let again = started(&stage, |it| it.queue(QUEUE).dedup_id(text).delay(hour)).await;
            assert!(matches!(again, Err(Error::Deduplicated { .. })));
            again.map(drop)
        })
        .await;
    stage
        .check("debounce", &["debounce"], texts(), async |text| {
            let hour = Duration::from_secs(3600);
            let row = started(&stage, |it| it.queue(QUEUE).debounce(text).delay(hour)).await?;
            assert_eq!(row.debounce_id(), Some(&**text));
            let again = started(&stage, |it| it.queue(QUEUE).debounce(text).delay(hour)).await?;
            assert_eq!(again.key, row.key);
            Ok(())
        })
        .await;
    stage
        .check("name of an attribute", &["name of an attribute"], texts(), async |text| {
            let row = started(&stage, |it| it.attribute(text, "x").attribute(text, "value")).await?;
            assert_eq!((row.attributes.len(), row.attributes.get(text)), (1, Some("value")));
            Ok(())
        })
        .await;
    stage
        .check("value of an attribute", &["value of an attribute"], texts(), async |text| {
            let row = started(&stage, |it| it.attribute("name", text)).await?;
            assert_eq!(row.attributes.get("name"), Some(&**text));
            Ok(())
        })
        .await;
    stage
        .check("attributes", &["attributes"], [0, 1, 64, 65, 100_000], async |count| {
            let row = started(&stage, |it| {
                (0..*count).fold(it, |it, n| it.attribute(format!("name {n}"), "value"))
            })
            .await?;
            assert_eq!(row.attributes.len(), *count);
            Ok(())
        })
        .await;
    stage.end().await;
}

/// Returns true if `at` is later than `created_at` by this delay, or by the longest one that counts.
fn is_so_late(at: Timestamp, created_at: Timestamp, delay: Duration) -> bool {
    at == created_at.plus(delay.min(MAX_STORED_DURATION))
}

pub(super) async fn starts_take_a_time_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    stage
        .check("execution_timeout", &["timeout"], durations(), async |limit| {
            let row = started(&stage, |it| it.execution_timeout(*limit)).await?;
            assert!(is_so_late(row.deadline_at.unwrap(), row.created_at, *limit), "{row:?}");
            Ok(())
        })
        .await;
    stage
        .check("run_timeout", &["run_timeout"], durations(), async |limit| {
            let row = started(&stage, |it| it.queue(QUEUE).delay(Duration::MAX).run_timeout(*limit)).await?;
            let stored = row.run_timeout.unwrap();
            assert!(
                stored.abs_diff((*limit).min(MAX_STORED_DURATION)) < Duration::from_millis(1),
                "{stored:?}"
            );
            started(&stage, |it| it.run_timeout(*limit)).await.map(drop)
        })
        .await;
    stage
        .check("delay", &["delay"], durations(), async |delay| {
            let row = started(&stage, |it| it.delay(*delay)).await?;
            if row.status == Status::Scheduled {
                assert!(is_so_late(row.wake_at.unwrap(), row.created_at, *delay), "{row:?}");
            }
            started(&stage, |it| it.queue(QUEUE).delay(*delay)).await.map(drop)
        })
        .await;
    stage
        .check("start_at", &["start_at"], instants(), async |at| {
            let row = started(&stage, |it| it.start_at(*at)).await?;
            if row.status == Status::Scheduled {
                assert_eq!(row.wake_at, Some(at.clamp_near(row.created_at)));
            } else {
                assert!(*at < row.created_at.plus(MAX_STORED_DURATION));
            }
            Ok(())
        })
        .await;
    stage
        .check("max_delay", &["max_delay"], durations(), async |most| {
            let id = stage.fresh_name();
            started(&stage, |it| it.queue(QUEUE).debounce(&id).delay(Duration::ZERO).max_delay(*most))
                .await?;
            let id = stage.fresh_name();
            let (hour, most) = (Duration::from_secs(3600), *most);
            started(&stage, |it| it.queue(QUEUE).debounce(&id).delay(hour).max_delay(most)).await?;
            started(&stage, |it| it.queue(QUEUE).debounce(&id).delay(hour).max_delay(most)).await.map(drop)
        })
        .await;
    stage
        .check("wait_timeout", &["within"], durations(), async |patience| {
            match started(&stage, |it| it.queue(QUEUE).wait_timeout(*patience)).await {
                // the message names the time
                Err(Error::Unavailable(_)) if *patience < Duration::from_secs(1) => Ok(()),
                started => started.map(drop),
            }
        })
        .await;
    stage
        .check("priority", &["priority"], [i32::MIN, -1, 0, 1, i32::MAX], async |priority| {
            let row = started(&stage, |it| it.queue(QUEUE).priority(*priority)).await?;
            assert_eq!(row.placement.unwrap().priority, *priority);
            Ok(())
        })
        .await;
    stage.end().await;
}
