//! Fairness: priorities, and the shares of a claim that queues and keys receive.

use std::collections::HashSet;

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Outcome, Start, Write};

use super::queue::{complete, declare_queue, enqueue_all};
use crate::fixtures::builders::{
    enqueue, keys, placement, queue_transition, queued, sleeping, start, start_queued, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    smaller_priorities_are_claimed_first,
    executions_of_two_workflows_are_claimed_in_the_order_of_their_starts,
    each_key_of_two_workflows_has_its_turn,
    claim_of_several_pages_leaves_the_rest,
    begun_executions_come_first_within_their_priority,
    priority_is_kept_through_a_wait,
    priority_is_kept_through_a_requeue,
    priority_is_kept_through_a_takeover,
    queues_take_turns,
    keys_take_turns,
    keys_take_turns_by_weight,
    small_key_does_not_wait_behind_large_key,
    keys_beyond_the_scan_of_one_claim_have_their_turn,
];

async fn smaller_priorities_are_claimed_first(fixture: &dyn StoreFixture) {
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

/// Returns the Start of an execution of a workflow in a queue.
fn enqueue_workflow(key: Key, workflow: &str, queue_key: &str) -> Write {
    let placement = placement("a", queue_key, 0);
    write(Start { workflow: workflow.into(), placement, ..start(key, queued()) })
}

async fn executions_of_two_workflows_are_claimed_in_the_order_of_their_starts(fixture: &dyn StoreFixture) {
    for limit in [1, 8] {
        let mut worker = Worker::register_for(&fixture.store(), &["one", "two"]).await;
        let all: [Key; 40] = keys();
        for (n, key) in all.iter().enumerate() {
            let workflow = if n < 20 { "two" } else { "one" };
            worker.apply(vec![enqueue_workflow(*key, workflow, "")]).await;
        }
        let mut claimed = Vec::new();
        while claimed.len() < all.len() {
            claimed.extend(worker.claim_keys(limit).await);
        }
        assert_eq!(claimed, all, "{limit} at a time");
    }
}

async fn each_key_of_two_workflows_has_its_turn(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register_for(&fixture.store(), &["one", "two"]).await;
    for n in 0..50 {
        let queue_key = format!("{n:02}");
        for workflow in ["one", "two"] {
            let starts = (0..5).map(|_| enqueue_workflow(Key::mint(0), workflow, &queue_key)).collect();
            worker.apply(starts).await;
        }
    }
    let claimed = worker.claim(50).await;
    let served: HashSet<String> = (claimed.iter())
        .filter_map(|record| record.execution.placement.as_ref().map(|placement| placement.key.to_string()))
        .collect();
    assert_eq!((claimed.len(), served.len()), (50, 50));
}

async fn claim_of_several_pages_leaves_the_rest(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register_for(&fixture.store(), &["one", "two"]).await;
    let mut other = Worker::register_for(&fixture.store(), &["one", "two", "three"]).await;
    let all: Vec<Key> = (0..300).map(|_| Key::mint(0)).collect();
    for (n, key) in all.iter().enumerate() {
        let workflow = ["one", "three", "two"][n % 3];
        worker.apply(vec![enqueue_workflow(*key, workflow, "")]).await;
    }
    let served = |n: usize| n % 3 != 1;
    let expected: Vec<Key> = (0..300).filter(|n| served(*n)).map(|n| all[n]).collect();
    assert_eq!(worker.claim_keys(170).await, expected[..170]);
    let probe = "CREATE TABLE probe (n integer, CONSTRAINT exactly_130 CHECK (n = 130)); \
                 INSERT INTO probe SELECT count(*) FROM ready; \
                 DROP TABLE probe;";
    fixture.execute(probe).await;
    let rest: Vec<Key> = all.iter().copied().filter(|key| !expected[..170].contains(key)).collect();
    assert_eq!(other.claim_keys(300).await, rest);
    assert!(other.claim_keys(300).await.is_empty());
}

async fn begun_executions_come_first_within_their_priority(fixture: &dyn StoreFixture) {
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

/// Claims an execution of priority 5, then starts executions of a higher and of a lower priority. Returns the three keys
/// in the order of their priorities.
async fn begin_between_priorities(worker: &mut Worker, owner: &mut Worker) -> [Key; 3] {
    let [high, begun, low] = keys();
    worker.apply(vec![enqueue(begun, "a", "", 5)]).await;
    assert_eq!(owner.claim_keys(1).await, [begun]);
    worker.apply(vec![enqueue(low, "a", "", 9), enqueue(high, "a", "", 1)]).await;
    [high, begun, low]
}

async fn priority_is_kept_through_a_wait(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut owner = Worker::register(&fixture.store()).await;
    // woken by a Wake, or by the next claim
    for has_wake in [true, false] {
        let all = begin_between_priorities(&mut worker, &mut owner).await;
        owner.apply(vec![queue_transition(all[1], "a", "", sleeping(fixture.now()))]).await;
        if has_wake {
            assert_eq!(worker.commit_one(Write::Wake(all[1])).await, Outcome::Applied);
        }
        for key in all {
            assert_eq!(worker.claim_keys(1).await, [key]);
        }
    }
}

async fn priority_is_kept_through_a_requeue(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut owner = Worker::register(&fixture.store()).await;
    // by the run itself, or by the end of its worker
    for is_closing in [false, true] {
        let all = begin_between_priorities(&mut worker, &mut owner).await;
        if is_closing {
            owner.store.close(owner.id).await.unwrap();
        } else {
            owner.apply(vec![queue_transition(all[1], "a", "", queued())]).await;
        }
        for key in all {
            assert_eq!(worker.claim_keys(1).await, [key]);
        }
    }
}

async fn priority_is_kept_through_a_takeover(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let mut dead = Worker::register(&fixture.store()).await;
    let all = begin_between_priorities(&mut worker, &mut dead).await;
    fixture.mark_dead(dead.id).await;
    assert_eq!(worker.take_over_dead_workers().await, 1);
    for key in all {
        assert_eq!(worker.claim_keys(1).await, [key]);
    }
}

async fn queues_take_turns(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let large: [Key; 8] = enqueue_all(&mut worker, "a", "").await;
    let small: [Key; 2] = enqueue_all(&mut worker, "b", "").await;
    let plain = Key::mint(0);
    worker.apply(vec![start_queued(plain)]).await;
    let mut first = worker.claim_keys(3).await;
    first.sort_unstable();
    let mut expected = vec![large[0], small[0], plain];
    expected.sort_unstable();
    assert_eq!(first, expected);
    let claimed = worker.send_claim(&worker.new_claim(4)).await.unwrap();
    let taken: Vec<Key> = claimed.records.iter().map(|record| record.execution.key).collect();
    // each queue may fill half of the claim; one cannot use its share
    assert_eq!(taken, [large[1], large[2], small[1]]);
    assert!(claimed.has_more, "other queues may have more");
    assert_eq!(worker.claim_keys(10).await, large[3..]);
}

async fn keys_take_turns(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let x: [Key; 3] = enqueue_all(&mut worker, "a", "x").await;
    let y: [Key; 3] = enqueue_all(&mut worker, "a", "y").await;
    let bare: [Key; 1] = enqueue_all(&mut worker, "a", "").await;
    let z: [Key; 1] = enqueue_all(&mut worker, "a", "z").await;
    let mut taken = Vec::new();
    for _ in 0..8 {
        taken.extend(worker.claim_keys(1).await);
    }
    assert_eq!(taken, [x[0], y[0], z[0], bare[0], x[1], y[1], x[2], y[2]]);
}

async fn keys_take_turns_by_weight(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").key_weight("x", 2).key_weight("", 3)).await;
    let x: [Key; 6] = enqueue_all(&mut worker, "a", "x").await;
    let y: [Key; 6] = enqueue_all(&mut worker, "a", "y").await;
    let bare: [Key; 6] = enqueue_all(&mut worker, "a", "").await;
    let mut taken = Vec::new();
    for _ in 0..8 {
        taken.extend(worker.claim_keys(1).await);
    }
    assert_eq!(taken, [x[0], x[1], y[0], bare[0], bare[1], bare[2], x[2], x[3]]);
    // the rest of a round; a key without waiting executions yields its turns
    let mut rest = worker.claim_keys(6).await;
    rest.sort_unstable();
    let mut expected = [y[1], bare[3], bare[4], bare[5], x[4], x[5]];
    expected.sort_unstable();
    assert_eq!(rest, expected);
    // another worker sees the new weights with its next claim
    declare_queue(fixture, Queue::new("a")).await;
    assert_eq!(worker.claim_keys(9).await, y[2..]);
}

async fn small_key_does_not_wait_behind_large_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let large: Vec<Key> = (0..3_000).map(|_| Key::mint(0)).collect();
    worker.apply(large.iter().map(|key| enqueue(*key, "a", "large", 0)).collect()).await;
    let small: [Key; 10] = enqueue_all(&mut worker, "a", "small").await;
    let taken = worker.claim_keys(100).await;
    let of_small: Vec<Key> = taken.iter().copied().filter(|key| small.contains(key)).collect();
    assert_eq!((of_small, taken.len()), (small.to_vec(), 60));
    assert_eq!(worker.claim_keys(100).await, large[50..150]);
}

async fn keys_beyond_the_scan_of_one_claim_have_their_turn(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    declare_queue(fixture, Queue::new("a").key_concurrency(1)).await;
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
    complete(&mut worker, all[2_400], "a", "2400").await;
    complete(&mut worker, all[7], "a", "0007").await;
    let mut next = Vec::new();
    for _ in 0..5 {
        next.extend(worker.claim_keys(1_000).await);
    }
    next.sort_unstable();
    assert_eq!(next, [all[2_507], all[4_900]]);
}
