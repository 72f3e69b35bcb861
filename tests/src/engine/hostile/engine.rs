//! Options of engines and clients.

use std::time::Duration;

use stepfast_core::queue::{OnConflict, Queue};
use stepfast_core::{Client, Engine, EngineBuilder, Error, Workflow};

use super::harness::HostileHarness;
use super::values::{COUNTS, SIZES, durations, texts};
use crate::StoreFixture;
use crate::engine::support::{BodyResult, noop};

/// Opens an engine, runs an execution on it, and shuts it down.
async fn run_on_engine(
    harness: &HostileHarness<'_>,
    with: impl FnOnce(EngineBuilder) -> EngineBuilder,
) -> Result<(), Error> {
    let engine = with(Engine::builder(harness.fixture.store()).register(&harness.unrelated)).open().await?;
    let output = engine.run(&harness.unrelated, 7).await;
    engine.shutdown(Duration::from_secs(20)).await?;
    assert_eq!(output?, 7);
    Ok(())
}

pub(super) async fn engine_options_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    harness
        .check("max_running", &["max_running"], SIZES, async |n| {
            run_on_engine(&harness, |b| b.max_running(*n)).await
        })
        .await;
    harness
        .check("max_threads", &["max_threads"], SIZES, async |n| {
            run_on_engine(&harness, |b| b.max_threads(*n)).await
        })
        .await;
    harness
        .check("max_recoveries", &["max_recoveries"], COUNTS, async |n| {
            run_on_engine(&harness, |b| b.max_recoveries(*n)).await
        })
        .await;
    harness
        .check("value_limit", &["value_limit"], SIZES, async |n| {
            run_on_engine(&harness, |b| b.value_limit(*n)).await
        })
        .await;
    harness
        .check("staged_bytes", &["staged_bytes"], SIZES, async |n| {
            run_on_engine(&harness, |b| b.staged_bytes(*n)).await
        })
        .await;
    harness
        .check("suspend_after", &["suspend_after"], durations(), async |wait| {
            run_on_engine(&harness, |b| b.suspend_after(*wait)).await
        })
        .await;
    harness
        .check("app_version", &["app_version"], texts(), async |version| {
            run_on_engine(&harness, |b| b.app_version(version)).await
        })
        .await;
    harness
        .check("serve", &["queue name"], texts(), async |queue| {
            run_on_engine(&harness, |b| b.serve_queues([queue, queue])).await
        })
        .await;
    harness
        .check("queues", &["queue name"], texts(), async |name| {
            run_on_engine(&harness, |b| b.queue(Queue::new(name)).queue(Queue::new(name))).await?;
            run_on_engine(&harness, |b| b.declare_queue(Queue::new(name), OnConflict::Reject)).await
        })
        .await;
    harness
        .check("queues", &["queue"], [1], async |_| {
            let twice = |limit| Queue::new("twice").concurrency(limit);
            let opened = run_on_engine(&harness, |b| b.queue(twice(1)).queue(twice(2))).await;
            assert!(opened.is_err(), "a queue was declared with two limits");
            opened
        })
        .await;
    harness
        .check("workflow name", &["workflow name"], texts(), async |name| {
            let named = Workflow::new(name, |_cx, x: i64| async move { BodyResult::Ok(x) });
            let engine = Engine::builder(harness.fixture.store()).register(&named).open().await?;
            let output = engine.run(&named, 7).await;
            engine.shutdown(Duration::from_secs(20)).await?;
            assert_eq!(output?, 7);
            Ok(())
        })
        .await;
    for is_drain in [false, true] {
        harness
            .check("grace", &["grace"], durations(), async |grace| {
                let engine =
                    Engine::builder(harness.fixture.store()).register(&harness.unrelated).open().await?;
                engine.run(&harness.unrelated, 7).await?;
                if is_drain { engine.drain(*grace).await } else { engine.shutdown(*grace).await }
            })
            .await;
    }
    harness.end().await;
}

pub(super) async fn client_names_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let client = Client::open(fixture.store()).await.unwrap();
    harness
        .check("workflow of a client", &["workflow name"], texts(), async |name| {
            let handle = client.start(&Workflow::<i64, i64>::named(name), 7).await?;
            assert_eq!(harness.row(&handle.workflow_id()).await.workflow.as_ref(), name);
            handle.cancel().await.map(drop)
        })
        .await;
    harness
        .check("workflow of an engine", &["workflow"], texts(), async |name| {
            harness.engine.start(&Workflow::<i64, i64>::named(name), 7).await.map(drop)
        })
        .await;
    harness
        .check("wait_timeout of a client", &["within"], durations(), async |timeout| {
            let unregistered = Workflow::<i64, i64>::named("elsewhere");
            match client.start(&unregistered, 7).wait_timeout(*timeout).await {
                Err(Error::Unavailable(_)) if *timeout < Duration::from_secs(1) => Ok(()),
                started => started?.cancel().await.map(drop),
            }
        })
        .await;
    let handles = client.start_many(&noop(), [] as [i64; 0]).await.unwrap();
    assert!(handles.is_empty());
    client.shutdown(Duration::from_secs(20)).await.unwrap();
    harness.end().await;
}
