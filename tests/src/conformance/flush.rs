//! Flushes: their sizes, and the counters of a store.

use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Durability, State, Status, Wait, Write};

use crate::fixtures::builders::{
    at, attempt, checkpoint, chunk, completed, keys, queued, sleeping, start_in, start_queued, start_running,
    transition,
};
use crate::{StoreFixture, Worker};

super::cases![
    empty_flush_is_accepted,
    flush_carries_a_thousand_rows_of_each_kind,
    largest_flush_is_accepted,
    row_changes_are_counted,
    store_describes_itself,
];

async fn empty_flush_is_accepted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for _ in 0..3 {
        worker.apply(vec![]).await;
    }
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    worker.apply(vec![]).await;
    assert_eq!(worker.count().await, 1);
}

async fn flush_carries_a_thousand_rows_of_each_kind(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: Vec<Key> = (0..1_000).map(|_| Key::mint(0)).collect();
    let sleepers: Vec<Key> = (0..1_000).map(|_| Key::mint(0)).collect();
    worker.apply(all.iter().map(|key| start_running(*key)).collect()).await;
    worker.apply(sleepers.iter().map(|key| start_in(*key, sleeping(at(-1)))).collect()).await;
    let mut writes = Vec::new();
    for (i, key) in all.iter().enumerate() {
        writes.push(Write::Checkpoint(checkpoint(*key, 1, &i.to_string())));
        writes.push(Write::Attempt(attempt(*key, 2, 1)));
        writes.push(chunk(*key, i as u64, 0, &i.to_be_bytes()));
        writes.push(match i % 3 {
            0 => transition(*key, completed()),
            1 => transition(*key, queued()),
            _ => transition(
                *key,
                State::Waiting { wake_at: None, waits: Wait::for_children([all[0]]), pending_sleeps: vec![] },
            ),
        });
        writes.push(start_queued(Key::mint(0)));
        writes.push(Write::Wake(sleepers[i]));
    }
    worker.apply(writes).await;
    for (i, key) in all.iter().enumerate() {
        let record = worker.record(*key).await;
        assert_eq!(record.checkpoints, [checkpoint(*key, 1, &i.to_string())]);
        assert_eq!(record.attempts.len(), 1);
        let status = [Status::Completed, Status::Queued, Status::Waiting][i % 3];
        assert_eq!(record.execution.status, status);
    }
    assert_eq!(worker.claim(10_000).await.len(), 333 + 1_000 + 1_000);
}

async fn largest_flush_is_accepted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (writes, bytes) = (worker.store.info().max_flush_writes, worker.store.info().max_flush_bytes);
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    worker.apply((1..=writes as u32).map(|n| Write::Checkpoint(checkpoint(key, n, ""))).collect()).await;
    assert_eq!(worker.record(key).await.checkpoints.len(), writes);
    let chunks = (bytes >> 20).max(1) as u32;
    worker.apply((0..chunks).map(|n| chunk(key, 1, n, &vec![7; 1 << 20])).collect()).await;
}

async fn row_changes_are_counted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [direct, folded, ready, sleeper] = keys();
    let store = worker.store.clone();
    let before = store.counters().snapshot();
    worker.apply(vec![start_running(direct), start_in(folded, completed()), start_queued(ready)]).await;
    let counted = store.counters().snapshot().since(&before);
    assert_eq!((counted.flushes, counted.writes, counted.claims), (1, 3, 0));
    assert_eq!(counted.row_changes(Table::Executions), (3, 0, 0));
    assert_eq!(counted.row_changes(Table::Ready), (1, 0, 0));

    let before = store.counters().snapshot();
    worker.apply(vec![transition(direct, completed()), Write::Checkpoint(checkpoint(direct, 1, "x"))]).await;
    let counted = store.counters().snapshot().since(&before);
    assert_eq!(counted.row_changes(Table::Executions), (0, 1, 0));
    assert_eq!(counted.row_changes(Table::Checkpoints), (1, 0, 0));
    assert_eq!(counted.reads, 0, "a flush read from the store");

    let before = store.counters().snapshot();
    worker.apply(vec![start_in(sleeper, sleeping(at(-1)))]).await;
    assert_eq!(worker.claim(10).await.len(), 2);
    let counted = store.counters().snapshot().since(&before);
    assert_eq!(counted.claims, 1);
    assert_eq!(counted.row_changes(Table::Executions), (1, 2, 0));
    assert_eq!(counted.row_changes(Table::Ready), (0, 0, 1));
    assert_eq!(counted.row_changes(Table::Timers), (1, 0, 1));
    assert_eq!(store.counters().snapshot().since(&store.counters().snapshot()).flushes, 0);
}

async fn store_describes_itself(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let info = store.info();
    assert!(["memory", "sqlite", "postgres"].contains(&info.kind));
    assert!(
        !info.version.is_empty() && info.lanes > 0 && info.max_flush_writes > 0 && info.max_flush_bytes > 0
    );
    assert_eq!(info.durability == Durability::None, info.kind == "memory");
}
