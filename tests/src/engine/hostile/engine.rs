//! Options of engines and clients.

use std::time::Duration;

use stepfast_core::queue::{OnConflict, Queue};
use stepfast_core::{Client, Engine, EngineBuilder, Error, Workflow};

use super::stage::HostileHarness;
use super::values::{COUNTS, SIZES, durations, texts};
use crate::StoreFixture;
use crate::engine::support::{BodyResult, noop};

/// Opens an engine, which runs an execution, and ends it.
async fn works(stage: &HostileHarness<'_>, with: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Result<(), Error> {
    let engine = with(Engine::builder(stage.fixture.store()).register(&stage.innocent)).open().await?;
    let output = engine.run(&stage.innocent, 7).await;
    engine.shutdown(Duration::from_secs(20)).await?;
    assert_eq!(output?, 7);
    Ok(())
}

pub(super) async fn engines_take_an_option_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    stage
        .check("max_running", &["max_running"], SIZES, async |n| works(&stage, |it| it.max_running(*n)).await)
        .await;
    stage
        .check("max_threads", &["max_threads"], SIZES, async |n| works(&stage, |it| it.max_threads(*n)).await)
        .await;
    stage
        .check("max_recoveries", &["max_recoveries"], COUNTS, async |n| {
            works(&stage, |it| it.max_recoveries(*n)).await
        })
        .await;
    stage
        .check("value_limit", &["value_limit"], SIZES, async |n| works(&stage, |it| it.value_limit(*n)).await)
        .await;
    stage
        .check("staged_bytes", &["staged_bytes"], SIZES, async |n| {
            works(&stage, |it| it.staged_bytes(*n)).await
        })
        .await;
    stage
        .check("suspend_after", &["suspend_after"], durations(), async |wait| {
            works(&stage, |it| it.suspend_after(*wait)).await
        })
        .await;
    stage
        .check("app_version", &["app_version"], texts(), async |version| {
            works(&stage, |it| it.app_version(version)).await
        })
        .await;
    stage
        .check("serve", &["queue name"], texts(), async |queue| {
            works(&stage, |it| it.serve_queues([queue, queue])).await
        })
        .await;
    stage
        .check("queues", &["queue name"], texts(), async |name| {
            works(&stage, |it| it.queue(Queue::new(name)).queue(Queue::new(name))).await?;
            works(&stage, |it| it.declare_queue(Queue::new(name), OnConflict::Refuse)).await
        })
        .await;
    stage
        .check("queues", &["queue"], [1], async |_| {
            let twice = |limit| Queue::new("twice").concurrency(limit);
            let opened = works(&stage, |it| it.queue(twice(1)).queue(twice(2))).await;
            assert!(opened.is_err(), "a queue is declared with two limits");
            opened
        })
        .await;
    stage
        .check("workflow name", &["workflow name"], texts(), async |name| {
            let named = Workflow::new(name, |_cx, x: i64| async move { BodyResult::Ok(x) });
            let engine = Engine::builder(stage.fixture.store()).register(&named).open().await?;
            let output = engine.run(&named, 7).await;
            engine.shutdown(Duration::from_secs(20)).await?;
            assert_eq!(output?, 7);
            Ok(())
        })
        .await;
    for is_drain in [false, true] {
        stage
            .check("grace", &["grace"], durations(), async |grace| {
                let engine = Engine::builder(stage.fixture.store()).register(&stage.innocent).open().await?;
                engine.run(&stage.innocent, 7).await?;
                if is_drain { engine.drain(*grace).await } else { engine.shutdown(*grace).await }
            })
            .await;
    }
    stage.end().await;
}

pub(super) async fn clients_take_a_name_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    let client = Client::open(fixture.store()).await.unwrap();
    stage
        .check("workflow of a client", &["workflow name"], texts(), async |name| {
            let handle = client.start(&Workflow::<i64, i64>::named(name), 7).await?;
            assert_eq!(stage.row(&handle.workflow_id()).await.workflow.as_ref(), name);
            handle.cancel().await.map(drop)
        })
        .await;
    stage
        .check("workflow of an engine", &["workflow"], texts(), async |name| {
            stage.engine.start(&Workflow::<i64, i64>::named(name), 7).await.map(drop)
        })
        .await;
    stage
        .check("patience of a client", &["within"], durations(), async |patience| {
            let elsewhere = Workflow::<i64, i64>::named("elsewhere");
            match client.start(&elsewhere, 7).wait_timeout(*patience).await {
                Err(Error::Unavailable(_)) if *patience < Duration::from_secs(1) => Ok(()),
                started => started?.cancel().await.map(drop),
            }
        })
        .await;
    let many = client.start_many(&noop(), [] as [i64; 0]).await.unwrap();
    assert!(many.is_empty());
    client.shutdown(Duration::from_secs(20)).await.unwrap();
    stage.end().await;
}
