//! Claims of bundles: their sizes, their turns among other executions, and their queues.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::queue::Queue;
use stepfast_core::store::{CLAIMED_ITEM_BYTES, Claim, ItemOutcome, Outcome, Pack, Start, Status, Write};

use super::queue::declare_queue;
use crate::fixtures::builders::{
    bundle, bundle_start, enqueue, open_batch, placement, queued, running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    claim_takes_bundles_up_to_its_bytes,
    packs_count_towards_the_bytes_of_a_claim,
    bundles_are_claimed_by_priority_and_key,
    claim_takes_as_many_bundles_as_it_may,
    bundles_enter_a_full_queue,
    concurrency_limit_counts_bundles,
];

async fn claim_takes_bundles_up_to_its_bytes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let bundles = (0..8).map(|n| bundle(batch, n * 100, 100));
    worker.apply([open_batch(batch)].into_iter().chain(bundles).collect()).await;
    let mut total = 0;
    while total < 8 {
        let claim = Claim { max_bytes: 250 * CLAIMED_ITEM_BYTES, ..worker.new_claim(10) };
        let count = worker.try_claim(&claim).await.unwrap().len();
        // a store may find the size of the last one only after it has taken it
        assert!((2..=3).contains(&count), "{count} claimed");
        total += count;
    }
}

async fn packs_count_towards_the_bytes_of_a_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let large = Payload::from_bytes(Bytes::from(vec![1; 50_000]));
    let bundles = (0..6).map(|n| write(bundle_start(batch, n, 1, running())));
    worker.apply([open_batch(batch)].into_iter().chain(bundles).collect()).await;
    for index in 0..6 {
        let outcomes = vec![ItemOutcome { index, status: Status::Completed, outcome: large.clone() }];
        let bundle = batch.bundle(index);
        worker.apply(vec![Write::Pack(Pack { bundle, outcomes }), transition(bundle, queued())]).await;
    }
    let mut total = 0;
    while total < 6 {
        let claim = Claim { max_bytes: 120_000, ..worker.new_claim(10) };
        let count = worker.try_claim(&claim).await.unwrap().len();
        assert!((2..=3).contains(&count), "{count} claimed");
        total += count;
    }
}

async fn bundles_are_claimed_by_priority_and_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (urgent, usual) = (Key::mint_batch(0), Key::mint_batch(0));
    let in_queue = |batch: Key, first_item, key, priority| {
        let placement = placement("a", key, priority);
        write(Start { placement, ..bundle_start(batch, first_item, 2, queued()) })
    };
    let single = Key::mint(0);
    worker.apply(vec![open_batch(urgent), open_batch(usual)]).await;
    for write in [
        in_queue(usual, 0, "k", 0),
        in_queue(usual, 2, "k", 0),
        enqueue(single, "a", "k", 0),
        in_queue(urgent, 0, "k", -1),
        in_queue(urgent, 2, "k", 1),
    ] {
        worker.apply(vec![write]).await;
    }
    let expected = [urgent.bundle(1), usual.bundle(1), usual.bundle(3), single, urgent.bundle(3)];
    assert_eq!(worker.claim_keys(3).await, expected[..3]);
    // a bundle that has begun comes before other executions of its priority
    worker
        .apply(vec![crate::fixtures::builders::queue_transition(usual.bundle(3), "a", "k", queued())])
        .await;
    assert_eq!(worker.claim_keys(10).await, expected[2..]);
    // keys share claims, however many bundles of one key wait
    let (x, y) = (Key::mint_batch(0), Key::mint_batch(0));
    let of_x = (0..10).map(|n| in_queue(x, n * 2, "x", 0));
    worker.apply([open_batch(x), open_batch(y)].into_iter().chain(of_x).collect()).await;
    worker.apply((0..2).map(|n| in_queue(y, n * 2, "y", 0)).collect()).await;
    let claimed = worker.claim_keys(4).await;
    let of_batch = |batch| claimed.iter().filter(|key| key.batch() == Some(batch)).count();
    assert_eq!((of_batch(x), of_batch(y)), (2, 2));
}

async fn claim_takes_as_many_bundles_as_it_may(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batches = [Key::mint_batch(0), Key::mint_batch(0)];
    let in_queue = |n: usize, first_item| {
        let placement = placement("a", ["x", "y"][n], 0);
        write(Start { placement, ..bundle_start(batches[n], first_item, 2, queued()) })
    };
    let [before, behind, urgent] = [(); 3].map(|()| Key::mint(0));
    worker.apply(batches.map(open_batch).to_vec()).await;
    for write in [
        enqueue(before, "a", "x", 0),
        in_queue(0, 0),
        in_queue(0, 2),
        in_queue(0, 4),
        enqueue(behind, "a", "x", 0),
        in_queue(1, 0),
        in_queue(1, 2),
    ] {
        worker.apply(vec![write]).await;
    }
    let busy = |keys: &[&str]| keys.iter().map(|key| (Arc::from("a"), Arc::from(*key))).collect();
    let claim =
        |worker: &Worker, max_bundles, busy_keys| Claim { max_bundles, busy_keys, ..worker.new_claim(10) };
    let keys = async |worker: &mut Worker, claim: Claim| {
        let claimed = worker.try_claim(&claim).await.unwrap();
        claimed.iter().map(|record| record.execution.key).collect::<BTreeSet<Key>>()
    };
    let [x, y] = batches;
    let first = claim(&worker, 0, busy(&["x"]));
    assert_eq!(
        keys(&mut worker, first).await,
        [before, y.bundle(1)].into(),
        "one from a key without bundles"
    );
    let none = claim(&worker, 0, busy(&["x", "y"]));
    assert_eq!(keys(&mut worker, none).await, [].into());
    worker.apply(vec![enqueue(urgent, "a", "x", -1)]).await;
    let other = claim(&worker, 0, busy(&["x", "y"]));
    assert_eq!(keys(&mut worker, other).await, [urgent].into(), "what stands before the bundles");
    let two = claim(&worker, 2, busy(&["x", "y"]));
    assert_eq!(keys(&mut worker, two).await, [x.bundle(1), x.bundle(3), y.bundle(3)].into());
    let rest = claim(&worker, 1, busy(&[]));
    assert_eq!(keys(&mut worker, rest).await, [x.bundle(5), behind].into());
}

async fn bundles_enter_a_full_queue(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").max_depth(1)).await;
    let batch = Key::mint_batch(0);
    let of_queue = |first_item| {
        let placement = placement("a", "", 0);
        write(Start { placement, ..bundle_start(batch, first_item, 2, queued()) })
    };
    worker.apply(vec![open_batch(batch), of_queue(0), of_queue(2)]).await;
    worker.apply(vec![of_queue(4)]).await;
    assert_eq!(worker.commit_one(enqueue(Key::mint(0), "a", "", 0)).await, Outcome::Full);
    assert_eq!(worker.claim(10).await.len(), 3);
}

async fn concurrency_limit_counts_bundles(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").concurrency(2)).await;
    let batch = Key::mint_batch(0);
    let of_queue = |n: u32| {
        let placement = placement("a", "", 0);
        write(Start { placement, ..bundle_start(batch, n * 2, 2, queued()) })
    };
    worker.apply([open_batch(batch)].into_iter().chain((0..3).map(of_queue)).collect()).await;
    assert_eq!(worker.claim_keys(10).await, [batch.bundle(1), batch.bundle(3)]);
    assert!(worker.claim(10).await.is_empty());
    super::queue::complete(&mut worker, batch.bundle(1), "a", "").await;
    assert_eq!(worker.claim_keys(10).await, [batch.bundle(5)]);
}
