//! The fence: who is not (or no longer) registered writes nothing.

use stepfast_core::key::Key;
use stepfast_core::store::{Flush, StoreError};

use crate::fixtures::builders::{cancel, chunk, keys, start_queued};
use crate::fixtures::registration::CLAIM_LANE;
use crate::{StoreFixture, Worker};

super::cases![
    a_wrong_epoch_a_stranger_and_an_unknown_lane_are_fenced,
    a_fenced_flush_leaves_nothing,
    lanes_count_on_their_own,
    registrations_do_not_share_their_numbers,
    any_handle_serves_a_registration,
];

async fn a_wrong_epoch_a_stranger_and_an_unknown_lane_are_fenced(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let fine = worker.new_flush(vec![start_queued(Key::mint(0))]);
    let mut stranger = fine.clone();
    stranger.worker.0 += 1_000;
    let flushes = [
        Flush { epoch: worker.epoch + 1, ..fine.clone() },
        Flush { epoch: worker.epoch - 1, ..fine.clone() },
        stranger,
        Flush { lane: 2, ..fine.clone() },
    ];
    for flush in flushes {
        for is_resent in [false, true] {
            let result = worker.store.commit(&Flush { is_resent, ..flush.clone() }).await;
            assert!(matches!(result, Err(StoreError::Fenced)), "{result:?}");
        }
    }
    assert_eq!(worker.count().await, 0);
    worker.send(&fine).await.unwrap();
}

async fn a_fenced_flush_leaves_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [kept, lost] = keys();
    worker.apply(vec![start_queued(kept)]).await;
    worker.store.close(worker.id).await.unwrap();
    let writes = vec![start_queued(lost), cancel(kept), chunk(kept, 1, 0, b"x")];
    assert!(matches!(worker.try_commit(writes).await, Err(StoreError::Fenced)));
    let other = Worker::register(&fixture.store()).await;
    assert!(other.exists(kept).await && !other.exists(lost).await);
    assert!(other.heartbeat().await.has_ready, "it was not cancelled");
}

async fn lanes_count_on_their_own(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for number in 1..=3 {
        let flush = worker.new_flush(vec![start_queued(Key::mint(0))]);
        let twin = Flush { lane: CLAIM_LANE, number, writes: vec![start_queued(Key::mint(0))], ..flush.clone() };
        worker.store.commit(&twin).await.unwrap();
        worker.send(&flush).await.unwrap();
    }
    assert_eq!(worker.count().await, 6);
}

async fn registrations_do_not_share_their_numbers(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    for _ in 0..3 {
        let mut worker = Worker::register(&store).await;
        worker.apply(vec![start_queued(Key::mint(0))]).await;
        worker.apply(vec![start_queued(Key::mint(0))]).await;
    }
    assert_eq!(Worker::register(&store).await.count().await, 6);
}

async fn any_handle_serves_a_registration(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    worker.store = fixture.second_store().await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    assert_eq!(worker.claim(10).await.len(), 2);
    assert!(!worker.heartbeat().await.is_fenced);
}
