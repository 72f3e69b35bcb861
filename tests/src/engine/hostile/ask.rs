//! Ids and filters of questions.

use stepfast_core::store::{Filter, Status};
use stepfast_core::{Error, Key};

use super::stage::HostileHarness;
use super::values::{SIZES, UUID, instants, texts};
use crate::StoreFixture;

pub(super) async fn questions_take_any_text(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    let engine = &stage.engine;
    stage.check("get", &["workflow_id"], texts(), async |id| engine.get::<i64>(id).await.map(drop)).await;
    stage.check("show", &["workflow_id"], texts(), async |id| engine.show(id).await.map(drop)).await;
    stage.check("cancel", &["workflow_id"], texts(), async |id| engine.cancel(id).await.map(drop)).await;
    stage
        .check("limit of dead letters", &["limit"], SIZES, async |limit| {
            assert!(engine.dead_letters(*limit).await?.is_empty());
            Ok(())
        })
        .await;
    stage.check("resume", &["workflow_id"], texts(), async |id| engine.resume(id).await.map(drop)).await;
    stage.end().await;
}

/// Lists and counts all that match, and acts on children of an execution that is not there.
async fn listed(stage: &HostileHarness<'_>, filter: Filter) -> Result<(), Error> {
    let page = stage.engine.list(&filter).await?;
    assert!(page.executions.len() <= filter.limit);
    let count = stage.engine.count(&filter).await?;
    assert!(count >= page.executions.len() as u64 || filter.after.is_some());
    let orphans = Filter { parent: Some(Key::from_bytes([7; 16])), ..filter };
    stage.engine.cancel_all(&orphans, |_| {}).await?;
    stage.engine.resume_all(&orphans, |_| {}).await?;
    Ok(())
}

pub(super) async fn filters_take_any_value(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    stage.engine.run(&stage.innocent, 7).attribute("name", "value").await.unwrap();
    let text = |text: &String| Some(text.as_str().into());
    stage
        .check("workflow", &["workflow"], texts(), async |value| {
            listed(&stage, Filter { workflow: text(value), ..Filter::default() }).await
        })
        .await;
    stage
        .check("id_prefix", &["id_prefix"], texts(), async |value| {
            listed(&stage, Filter { id_prefix: text(value), ..Filter::default() }).await
        })
        .await;
    stage
        .check("app_version", &["app_version"], texts(), async |value| {
            listed(&stage, Filter { app_version: text(value), ..Filter::default() }).await
        })
        .await;
    stage
        .check("queue", &["queue"], texts(), async |value| {
            listed(&stage, Filter { queue: text(value), ..Filter::default() }).await
        })
        .await;
    stage
        .check("attribute", &["attribute"], texts(), async |value| {
            let of = |name: &str, value: &str| [(name, value), ("name", "value")].into_iter().collect();
            listed(&stage, Filter { attributes: of(value, "value"), ..Filter::default() }).await?;
            listed(&stage, Filter { attributes: of("x", value), ..Filter::default() }).await
        })
        .await;
    stage
        .check("attributes", &["attributes"], [0, 1, 64, 65, 2_000, 100_000], async |count| {
            let attributes = (0..*count).map(|n| (format!("name {n}"), "value")).collect();
            listed(&stage, Filter { attributes, ..Filter::default() }).await
        })
        .await;
    stage
        .check("created_from", &["created_from"], instants(), async |at| {
            listed(&stage, Filter { created_from: Some(*at), ..Filter::default() }).await
        })
        .await;
    stage
        .check("created_before", &["created_before"], instants(), async |at| {
            listed(&stage, Filter { created_before: Some(*at), ..Filter::default() }).await
        })
        .await;
    stage
        .check("limit", &["limit"], SIZES, async |limit| {
            listed(&stage, Filter { limit: *limit, ..Filter::default() }).await
        })
        .await;
    stage
        .check("after", &["after"], [Key::from_bytes([0; 16]), Key::from_bytes([255; 16])], async |after| {
            listed(&stage, Filter { after: Some(*after), ..Filter::default() }).await?;
            listed(&stage, Filter { parent: Some(*after), ..Filter::default() }).await
        })
        .await;
    stage
        .check("statuses", &["status"], [0, 1, 2, 100_000], async |times| {
            let statuses = std::iter::repeat_n(Status::ALL, *times).flatten().collect();
            listed(&stage, Filter { statuses, ..Filter::default() }).await
        })
        .await;
    let found = Filter { id_prefix: Some(UUID.into()), ..Filter::default() };
    assert_eq!(stage.engine.count(&found).await.unwrap(), 0);
    stage.end().await;
}
