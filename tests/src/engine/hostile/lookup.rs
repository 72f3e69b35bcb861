//! Ids and filters of lookups.

use stepfast_core::store::{Filter, Status};
use stepfast_core::{Error, Key};

use super::harness::HostileHarness;
use super::values::{SIZES, UUID, instants, texts};
use crate::StoreFixture;

pub(super) async fn lookups_accept_any_text(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let engine = &harness.engine;
    harness.check("get", &["workflow_id"], texts(), async |id| engine.get::<i64>(id).await.map(drop)).await;
    harness.check("show", &["workflow_id"], texts(), async |id| engine.show(id).await.map(drop)).await;
    harness.check("cancel", &["workflow_id"], texts(), async |id| engine.cancel(id).await.map(drop)).await;
    harness
        .check("limit of dead letters", &["limit"], SIZES, async |limit| {
            assert!(engine.dead_letters(*limit).await?.is_empty());
            Ok(())
        })
        .await;
    harness.check("resume", &["workflow_id"], texts(), async |id| engine.resume(id).await.map(drop)).await;
    harness.end().await;
}

/// Lists and counts the matching executions, and acts on the children of an unknown execution.
async fn apply_filter(harness: &HostileHarness<'_>, filter: Filter) -> Result<(), Error> {
    let page = harness.engine.list(&filter).await?;
    assert!(page.executions.len() <= filter.limit);
    let count = harness.engine.count(&filter).await?;
    assert!(count >= page.executions.len() as u64 || filter.after.is_some());
    let orphans = Filter { parent: Some(Key::from_bytes([7; 16])), ..filter };
    harness.engine.cancel_all(&orphans, |_| {}).await?;
    harness.engine.resume_all(&orphans, |_| {}).await?;
    Ok(())
}

pub(super) async fn filters_accept_any_value(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    harness.engine.run(&harness.unrelated, 7).attribute("name", "value").await.unwrap();
    let text = |text: &String| Some(text.as_str().into());
    harness
        .check("workflow", &["workflow"], texts(), async |value| {
            apply_filter(&harness, Filter { workflow: text(value), ..Filter::default() }).await
        })
        .await;
    harness
        .check("id_prefix", &["id_prefix"], texts(), async |value| {
            apply_filter(&harness, Filter { id_prefix: text(value), ..Filter::default() }).await
        })
        .await;
    harness
        .check("app_version", &["app_version"], texts(), async |value| {
            apply_filter(&harness, Filter { app_version: text(value), ..Filter::default() }).await
        })
        .await;
    harness
        .check("queue", &["queue"], texts(), async |value| {
            apply_filter(&harness, Filter { queue: text(value), ..Filter::default() }).await
        })
        .await;
    harness
        .check("attribute", &["attribute"], texts(), async |value| {
            let of = |name: &str, value: &str| [(name, value), ("name", "value")].into_iter().collect();
            apply_filter(&harness, Filter { attributes: of(value, "value"), ..Filter::default() }).await?;
            apply_filter(&harness, Filter { attributes: of("x", value), ..Filter::default() }).await
        })
        .await;
    harness
        .check("attributes", &["attributes"], [0, 1, 64, 65, 2_000, 100_000], async |count| {
            let attributes = (0..*count).map(|n| (format!("name {n}"), "value")).collect();
            apply_filter(&harness, Filter { attributes, ..Filter::default() }).await
        })
        .await;
    harness
        .check("created_from", &["created_from"], instants(), async |at| {
            apply_filter(&harness, Filter { created_from: Some(*at), ..Filter::default() }).await
        })
        .await;
    harness
        .check("created_before", &["created_before"], instants(), async |at| {
            apply_filter(&harness, Filter { created_before: Some(*at), ..Filter::default() }).await
        })
        .await;
    harness
        .check("limit", &["limit"], SIZES, async |limit| {
            apply_filter(&harness, Filter { limit: *limit, ..Filter::default() }).await
        })
        .await;
    harness
        .check("after", &["after"], [Key::from_bytes([0; 16]), Key::from_bytes([255; 16])], async |after| {
            apply_filter(&harness, Filter { after: Some(*after), ..Filter::default() }).await?;
            apply_filter(&harness, Filter { parent: Some(*after), ..Filter::default() }).await
        })
        .await;
    harness
        .check("statuses", &["status"], [0, 1, 2, 100_000], async |times| {
            let statuses = std::iter::repeat_n(Status::ALL, *times).flatten().collect();
            apply_filter(&harness, Filter { statuses, ..Filter::default() }).await
        })
        .await;
    let found = Filter { id_prefix: Some(UUID.into()), ..Filter::default() };
    assert_eq!(harness.engine.count(&found).await.unwrap(), 0);
    harness.end().await;
}
