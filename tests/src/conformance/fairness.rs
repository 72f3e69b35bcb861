//! Whose turn it is: priorities, and queues and keys that share a claim's places.

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;

use super::queue::{declare, end, put};
use crate::fixtures::builders::{enqueue, keys, queue_transition, queued, start_queued};
use crate::{StoreFixture, Worker};

super::cases![
    smaller_priorities_come_first,
    what_has_begun_comes_first_within_its_priority,
    queues_take_turns,
    keys_take_turns,
    keys_have_as_many_turns_as_their_weights_say,
    a_few_of_one_key_do_not_wait_behind_many_of_another,
    more_keys_than_one_claim_looks_at_all_have_their_turn,
];

async fn smaller_priorities_come_first(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 6] = keys();
    for (key, priority) in all.into_iter().zip([0, 5, -1, i32::MIN, 0, i32::MAX]) {
        worker.apply(vec![enqueue(key, "a", "", priority)]).await;
    }
    let expected = [3, 2, 0, 4, 1, 5].map(|i| all[i]);
    for key in expected {
        assert_eq!(worker.claim_keys(1).await, [key]);
    }
}

async fn what_has_begun_comes_first_within_its_priority(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [low, high, begun] = keys();
    worker.apply(vec![enqueue(begun, "a", "", 0)]).await;
    assert_eq!(worker.claim_keys(1).await, [begun]);
    worker.apply(vec![enqueue(low, "a", "", 0), enqueue(high, "a", "", -1)]).await;
    worker.apply(vec![queue_transition(begun, "a", "", queued())]).await;
    for key in [high, begun, low] {
        assert_eq!(worker.claim_keys(1).await, [key]);
    }
}

async fn queues_take_turns(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let many: [Key; 8] = put(&mut worker, "a", "").await;
    let few: [Key; 2] = put(&mut worker, "b", "").await;
    let plain = Key::mint(0);
    worker.apply(vec![start_queued(plain)]).await;
    let mut first = worker.claim_keys(3).await;
    first.sort_unstable();
    let mut expected = vec![many[0], few[0], plain];
    expected.sort_unstable();
    assert_eq!(first, expected);
    let claimed = worker.send_claim(&worker.new_claim(4)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    // half of the places each, and one cannot use them
    assert_eq!(taken, [many[1], many[2], few[1]]);
    assert!(claimed.has_more, "the others may");
    assert_eq!(worker.claim_keys(10).await, many[3..]);
}

async fn keys_take_turns(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let x: [Key; 3] = put(&mut worker, "a", "x").await;
    let y: [Key; 3] = put(&mut worker, "a", "y").await;
    let bare: [Key; 1] = put(&mut worker, "a", "").await;
    let z: [Key; 1] = put(&mut worker, "a", "z").await;
    let mut taken = Vec::new();
    for _ in 0..8 {
        taken.extend(worker.claim_keys(1).await);
    }
    assert_eq!(taken, [x[0], y[0], z[0], bare[0], x[1], y[1], x[2], y[2]]);
}

async fn keys_have_as_many_turns_as_their_weights_say(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").key_weight("x", 2).key_weight("", 3)).await;
    let x: [Key; 6] = put(&mut worker, "a", "x").await;
    let y: [Key; 6] = put(&mut worker, "a", "y").await;
    let bare: [Key; 6] = put(&mut worker, "a", "").await;
    let mut taken = Vec::new();
    for _ in 0..8 {
        taken.extend(worker.claim_keys(1).await);
    }
    assert_eq!(taken, [x[0], x[1], y[0], bare[0], bare[1], bare[2], x[2], x[3]]);
    // the rest of a round, and who has nothing left gives up its turns
    let mut rest = worker.claim_keys(6).await;
    rest.sort_unstable();
    let mut expected = [y[1], bare[3], bare[4], bare[5], x[4], x[5]];
    expected.sort_unstable();
    assert_eq!(rest, expected);
    // another worker hears of other weights with its next claim
    declare(fixture, Queue::new("a")).await;
    assert_eq!(worker.claim_keys(9).await, y[2..]);
}

async fn a_few_of_one_key_do_not_wait_behind_many_of_another(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let many: Vec<Key> = (0..3_000).map(|_| Key::mint(0)).collect();
    worker.apply(many.iter().map(|key| enqueue(*key, "a", "large", 0)).collect()).await;
    let few: [Key; 10] = put(&mut worker, "a", "small").await;
    let taken = worker.claim_keys(100).await;
    let of_few: Vec<Key> = taken.iter().copied().filter(|key| few.contains(key)).collect();
    assert_eq!((of_few, taken.len()), (few.to_vec(), 60));
    assert_eq!(worker.claim_keys(100).await, many[50..150]);
}

async fn more_keys_than_one_claim_looks_at_all_have_their_turn(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare(fixture, Queue::new("a").key_concurrency(1)).await;
    let all: Vec<Key> = (0..5_000).map(|_| Key::mint(0)).collect();
    let writes = |all: &[Key]| {
        let each = |(i, key): (usize, &Key)| enqueue(*key, "a", &format!("{:04}", i % 2_500), 0);
        all.iter().enumerate().map(each).collect()
    };
    worker.apply(writes(&all)).await;
    let mut taken = 0;
    for _ in 0..20 {
        taken += worker.claim_keys(1_000).await.len();
    }
    assert_eq!(taken, 2_500, "one of each");
    end(&mut worker, all[2_400], "a", "2400").await;
    end(&mut worker, all[7], "a", "0007").await;
    let mut next = Vec::new();
    for _ in 0..5 {
        next.extend(worker.claim_keys(1_000).await);
    }
    next.sort_unstable();
    assert_eq!(next, [all[2_507], all[4_900]]);
}
