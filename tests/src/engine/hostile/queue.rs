//! Names and limits of queues.

use std::time::Duration;

use stepfast_core::Error;
use stepfast_core::queue::Queue;
use stepfast_core::queue::rate::Rate;

use super::stage::HostileHarness;
use super::values::{COUNTS, durations, texts};
use crate::StoreFixture;

/// Stores a queue, finds it as it was given, and runs an execution in it.
async fn works(stage: &HostileHarness<'_>, queue: &Queue) -> Result<(), Error> {
    let stored = stage.engine.set_queue(queue).await?;
    let found = stage.engine.queues().await?.into_iter().find(|row| row.queue.name == queue.name).unwrap();
    assert_eq!(found.queue, *queue);
    assert_eq!(
        stage.engine.set_queue(queue).await?.version,
        stored.version,
        "the same queue is stored again"
    );
    let start = stage.engine.run(&stage.innocent, 7).queue(&queue.name).key("k");
    assert_eq!(start.await?, 7);
    Ok(())
}

pub(super) async fn queues_take_a_limit_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    let queue = || Queue::new(stage.fresh_name());
    let second = Duration::from_secs(1);
    stage
        .check("concurrency", &["concurrency"], COUNTS, async |n| {
            works(&stage, &queue().concurrency(*n)).await
        })
        .await;
    stage
        .check("worker_concurrency", &["worker_concurrency"], COUNTS, async |n| {
            works(&stage, &queue().worker_concurrency(*n)).await
        })
        .await;
    stage
        .check("key_concurrency", &["key_concurrency"], COUNTS, async |n| {
            works(&stage, &queue().key_concurrency(*n)).await
        })
        .await;
    stage
        .check("max_depth", &["max_depth"], COUNTS, async |n| works(&stage, &queue().max_depth(*n)).await)
        .await;
    stage
        .check("starts of a rate", &["rate"], COUNTS, async |n| {
            works(&stage, &queue().rate(Rate::new(*n, second))).await?;
            works(&stage, &queue().key_rate(Rate::new(*n, second))).await
        })
        .await;
    stage
        .check("period of a rate", &["rate"], durations(), async |period| {
            works(&stage, &queue().rate(Rate::new(1, *period))).await?;
            works(&stage, &queue().key_rate(Rate::new(1, *period).evenly())).await
        })
        .await;
    stage
        .check("burst of a rate", &["rate"], COUNTS, async |n| {
            works(&stage, &queue().rate(Rate::new(1, second).burst(*n))).await?;
            works(&stage, &queue().key_rate(Rate::new(u32::MAX >> 1, Duration::from_secs(86_400)).burst(*n)))
                .await
        })
        .await;
    stage
        .check("key_weight", &["key_weights"], COUNTS, async |n| {
            works(&stage, &queue().key_weight("k", 7).key_weight("k", *n)).await
        })
        .await;
    stage
        .check("key_weights", &["key_weights"], [0, 1_000, 1_001, 100_000], async |keys| {
            works(&stage, &(0..*keys).fold(queue(), |it, n| it.key_weight(n.to_string(), 2))).await
        })
        .await;
    stage
        .check("key of a weight", &["key_weights", "queue key"], texts(), async |key| {
            works(&stage, &queue().key_weight(key, 7)).await
        })
        .await;
    stage.end().await;
}

pub(super) async fn queues_take_a_name_or_refuse_it(fixture: &dyn StoreFixture) {
    let stage = HostileHarness::on(fixture).await;
    stage
        .check("name of a queue", &["queue name"], texts(), async |name| {
            works(&stage, &Queue::new(name)).await
        })
        .await;
    stage
        .check("change_queue", &["queue name"], texts(), async |name| {
            stage.engine.change_queue(name, |it| it).await.map(drop)
        })
        .await;
    stage
        .check("pause_queue", &["queue"], texts(), async |name| {
            stage.engine.pause_queue(name).await?;
            assert!(!stage.engine.resume_queue(name).await?.is_paused);
            Ok(())
        })
        .await;
    stage
        .check("resume_queue", &["queue"], texts(), async |name| {
            stage.engine.resume_queue(name).await.map(drop)
        })
        .await;
    stage
        .check("pause of none", &["queue"], texts(), async |name| {
            stage.engine.pause_queue(&format!("no {name}")).await.map(drop)
        })
        .await;
    stage.end().await;
}
