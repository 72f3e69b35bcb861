//! Names and limits of queues.

use std::time::Duration;

use stepfast_core::Error;
use stepfast_core::queue::Queue;
use stepfast_core::queue::rate::Rate;

use super::harness::HostileHarness;
use super::values::{COUNTS, durations, texts};
use crate::StoreFixture;

/// Stores a queue, loads it unchanged, and runs an execution in it.
async fn run_in_queue(harness: &HostileHarness<'_>, queue: &Queue) -> Result<(), Error> {
    let stored = harness.engine.set_queue(queue).await?;
    let found = harness.engine.queues().await?.into_iter().find(|row| row.queue.name == queue.name).unwrap();
    assert_eq!(found.queue, *queue);
    assert_eq!(
        harness.engine.set_queue(queue).await?.version,
        stored.version,
        "an unchanged queue was stored again"
    );
    let start = harness.engine.run(&harness.unrelated, 7).queue(&queue.name).key("k");
    assert_eq!(start.await?, 7);
    Ok(())
}

pub(super) async fn queue_limits_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    let queue = || Queue::new(harness.fresh_name());
    let second = Duration::from_secs(1);
    harness
        .check("concurrency", &["concurrency"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().concurrency(*n)).await
        })
        .await;
    harness
        .check("worker_concurrency", &["worker_concurrency"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().worker_concurrency(*n)).await
        })
        .await;
    harness
        .check("key_concurrency", &["key_concurrency"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().key_concurrency(*n)).await
        })
        .await;
    harness
        .check("max_depth", &["max_depth"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().max_depth(*n)).await
        })
        .await;
    harness
        .check("starts of a rate", &["rate"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().rate(Rate::new(*n, second))).await?;
            run_in_queue(&harness, &queue().key_rate(Rate::new(*n, second))).await
        })
        .await;
    harness
        .check("period of a rate", &["rate"], durations(), async |period| {
            run_in_queue(&harness, &queue().rate(Rate::new(1, *period))).await?;
            run_in_queue(&harness, &queue().key_rate(Rate::new(1, *period).evenly())).await
        })
        .await;
    harness
        .check("burst of a rate", &["rate"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().rate(Rate::new(1, second).burst(*n))).await?;
            run_in_queue(
                &harness,
                &queue().key_rate(Rate::new(u32::MAX >> 1, Duration::from_secs(86_400)).burst(*n)),
            )
            .await
        })
        .await;
    harness
        .check("key_weight", &["key_weights"], COUNTS, async |n| {
            run_in_queue(&harness, &queue().key_weight("k", 7).key_weight("k", *n)).await
        })
        .await;
    harness
        .check("key_weights", &["key_weights"], [0, 1_000, 1_001, 100_000], async |keys| {
            run_in_queue(&harness, &(0..*keys).fold(queue(), |queue, n| queue.key_weight(n.to_string(), 2)))
                .await
        })
        .await;
    harness
        .check("key of a weight", &["key_weights", "queue key"], texts(), async |key| {
            run_in_queue(&harness, &queue().key_weight(key, 7)).await
        })
        .await;
    harness.end().await;
}

pub(super) async fn queue_names_are_applied_or_rejected(fixture: &dyn StoreFixture) {
    let harness = HostileHarness::on(fixture).await;
    harness
        .check("name of a queue", &["queue name"], texts(), async |name| {
            run_in_queue(&harness, &Queue::new(name)).await
        })
        .await;
    harness
        .check("change_queue", &["queue name"], texts(), async |name| {
            harness.engine.change_queue(name, |queue| queue).await.map(drop)
        })
        .await;
    harness
        .check("pause_queue", &["queue"], texts(), async |name| {
            harness.engine.pause_queue(name).await?;
            assert!(!harness.engine.resume_queue(name).await?.is_paused);
            Ok(())
        })
        .await;
    harness
        .check("resume_queue", &["queue"], texts(), async |name| {
            harness.engine.resume_queue(name).await.map(drop)
        })
        .await;
    harness
        .check("pause of a missing queue", &["queue"], texts(), async |name| {
            harness.engine.pause_queue(&format!("no {name}")).await.map(drop)
        })
        .await;
    harness.end().await;
}
