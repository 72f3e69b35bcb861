//! The fence: a worker whose registration is not valid writes nothing.

use stepfast_core::key::Key;
use stepfast_core::store::{Flush, StoreError};

use crate::fixtures::builders::{cancel, chunk, keys, start_queued};
use crate::fixtures::registration::CLAIM_LANE;
use crate::{StoreFixture, Worker};

super::cases![
    flush_with_wrong_epoch_worker_or_lane_is_fenced,
    fenced_flush_applies_nothing,
    lanes_number_their_flushes_separately,
    registrations_number_their_flushes_separately,
    any_store_handle_serves_a_registration,
];

async fn flush_with_wrong_epoch_worker_or_lane_is_fenced(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let valid = worker.new_flush(vec![start_queued(Key::mint(0))]);
    let mut unknown = valid.clone();
    unknown.worker.0 += 1_000;
    let flushes = [
        Flush { epoch: worker.epoch + 1, ..valid.clone() },
        Flush { epoch: worker.epoch - 1, ..valid.clone() },
        unknown,
        Flush { lane: 2, ..valid.clone() },
    ];
    for flush in flushes {
        for is_resent in [false, true] {
            let result = worker.store.commit(&Flush { is_resent, ..flush.clone() }).await;
            assert!(matches!(result, Err(StoreError::Fenced)), "{result:?}");
        }
    }
    assert_eq!(worker.count().await, 0);
    worker.send(&valid).await.unwrap();
}

async fn fenced_flush_applies_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [kept, rejected] = keys();
    worker.apply(vec![start_queued(kept)]).await;
    worker.store.close(worker.id).await.unwrap();
    let writes = vec![start_queued(rejected), cancel(kept), chunk(kept, 1, 0, b"x")];
    assert!(matches!(worker.try_commit(writes).await, Err(StoreError::Fenced)));
    let other = Worker::register(&fixture.store()).await;
    assert!(other.exists(kept).await && !other.exists(rejected).await);
    assert!(other.heartbeat().await.has_ready, "the execution was cancelled");
}

async fn lanes_number_their_flushes_separately(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for number in 1..=3 {
        let flush = worker.new_flush(vec![start_queued(Key::mint(0))]);
        let on_claim_lane =
            Flush { lane: CLAIM_LANE, number, writes: vec![start_queued(Key::mint(0))], ..flush.clone() };
        worker.store.commit(&on_claim_lane).await.unwrap();
        worker.send(&flush).await.unwrap();
    }
    assert_eq!(worker.count().await, 6);
}

async fn registrations_number_their_flushes_separately(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    for _ in 0..3 {
        let mut worker = Worker::register(&store).await;
        worker.apply(vec![start_queued(Key::mint(0))]).await;
        worker.apply(vec![start_queued(Key::mint(0))]).await;
    }
    assert_eq!(Worker::register(&store).await.count().await, 6);
}

async fn any_store_handle_serves_a_registration(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    worker.store = fixture.second_store().await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    assert_eq!(worker.claim(10).await.len(), 2);
    assert!(!worker.heartbeat().await.is_fenced);
}
