//! Deduplication: at most one execution of a queue holds a dedup_id, until the execution ends.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{ExistingExecution, Flush, Outcome, Start, Status, Write};

use super::queue::complete;
use crate::fixtures::builders::{
    at, cancel, completed, ended, keys, parked, placement, queue_transition, queued, resume, running,
    scheduled, sleeping, start, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    second_start_is_deduplicated_until_the_first_ends,
    every_end_frees_the_dedup_id,
    dedup_id_is_held_through_waits_and_takeovers,
    dedup_ids_are_separate_per_queue_but_not_per_key,
    workflow_id_is_checked_before_dedup_id,
    flush_with_deduplicated_start_applies_the_rest,
    starts_of_one_flush_cannot_share_a_dedup_id,
    resent_deduplicated_start_is_not_applied,
    dedup_id_is_listed_until_the_execution_ends,
];

fn deduplicated(key: Key, queue: &str, of: &str, id: &str) -> Start {
    Start {
        dedup_id: Some(id.into()),
        is_guarded: true,
        placement: placement(queue, of, 0),
        ..start(key, queued())
    }
}

/// Commits a Start. Returns the execution that already holds its dedup_id, `None` if the Start was applied.
async fn dedup_holder(worker: &mut Worker, start: Start) -> Option<Key> {
    match worker.commit_one(write(start)).await {
        Outcome::Applied => None,
        Outcome::Deduplicated(Some(existing)) => Some(existing.key),
        other => panic!("{other:?}"),
    }
}

async fn second_start_is_deduplicated_until_the_first_ends(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [first, second, third] = keys();
    let given: Option<Arc<str>> = Some("given".into());
    let one = Start {
        workflow_id: given.clone(),
        fingerprint: Some(7),
        created_at: at(1),
        ..deduplicated(first, "a", "", "x")
    };
    assert_eq!(dedup_holder(&mut worker, one).await, None);
    let outcome = other.commit_one(write(deduplicated(second, "a", "", "x"))).await;
    let existing = ExistingExecution {
        key: first,
        given_id: given,
        workflow: "checkout".into(),
        fingerprint: Some(7),
        parent: None,
        status: Status::Queued,
    };
    assert_eq!(outcome, Outcome::Deduplicated(Some(Box::new(existing))));
    assert!(!worker.exists(second).await);
    assert_eq!(worker.claim_keys(9).await, [first]);
    assert_eq!(dedup_holder(&mut other, deduplicated(second, "a", "", "x")).await, Some(first));
    complete(&mut worker, first, "a", "").await;
    assert_eq!(dedup_holder(&mut other, deduplicated(third, "a", "", "x")).await, None);
    assert_eq!(dedup_holder(&mut worker, deduplicated(second, "a", "", "x")).await, Some(third));
}

async fn every_end_frees_the_dedup_id(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let key = Key::mint(0);
        assert_eq!(dedup_holder(&mut worker, deduplicated(key, "a", "", "x")).await, None, "{status:?}");
        assert_eq!(worker.claim_keys(9).await, [key]);
        worker.apply(vec![queue_transition(key, "a", "", ended(status, "over"))]).await;
    }
    // cancelled while no worker runs it
    let states = [queued(), scheduled(at(1_000_000)), sleeping(at(1_000_000)), parked("why")];
    for state in states {
        let key = Key::mint(0);
        let held = Start { state: state.clone(), ..deduplicated(key, "a", "", "x") };
        assert_eq!(dedup_holder(&mut worker, held).await, None, "{state:?}");
        worker.commit_one(cancel(key)).await;
        assert_eq!(worker.execution(key).await.status, Status::Cancelled, "{state:?}");
    }
    // ended before its Start was sent
    let key = Key::mint(0);
    let over = Start { state: completed(), ..deduplicated(key, "a", "", "x") };
    assert_eq!(dedup_holder(&mut worker, over).await, None);
    let last = Key::mint(0);
    assert_eq!(dedup_holder(&mut worker, deduplicated(last, "a", "", "x")).await, None);
    // an execution that is resumed after its end no longer holds the dedup_id
    worker.commit_one(cancel(last)).await;
    worker.commit_one(resume(last)).await;
    assert_eq!(worker.execution(last).await.status, Status::Queued);
    assert_eq!(dedup_holder(&mut worker, deduplicated(Key::mint(0), "a", "", "x")).await, None);
}

async fn dedup_id_is_held_through_waits_and_takeovers(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let [key, other] = keys();
    assert_eq!(dedup_holder(&mut dead, deduplicated(key, "a", "", "x")).await, None);
    assert_eq!(dead.claim_keys(9).await, [key]);
    dead.apply(vec![queue_transition(key, "a", "", sleeping(at(5)))]).await;
    assert_eq!(dedup_holder(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    fixture.clock().advance(std::time::Duration::from_secs(1));
    assert_eq!(dead.claim_keys(9).await, [key]);
    dead.apply(vec![queue_transition(key, "a", "", running())]).await;
    fixture.mark_dead(dead.id).await;
    worker.take_over_dead_workers().await;
    assert_eq!(dedup_holder(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    assert_eq!(worker.claim_keys(9).await, [key]);
    worker.apply(vec![queue_transition(key, "a", "", parked("why"))]).await;
    worker.commit_one(resume(key)).await;
    assert_eq!(dedup_holder(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    assert_eq!(worker.claim_keys(9).await, [key]);
    complete(&mut worker, key, "a", "").await;
    assert_eq!(dedup_holder(&mut worker, deduplicated(other, "a", "", "x")).await, None);
}

async fn dedup_ids_are_separate_per_queue_but_not_per_key(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, of_key, other_id] = keys();
    assert_eq!(dedup_holder(&mut worker, deduplicated(a, "a", "k", "x")).await, None);
    assert_eq!(dedup_holder(&mut worker, deduplicated(b, "b", "k", "x")).await, None);
    assert_eq!(dedup_holder(&mut worker, deduplicated(of_key, "a", "another", "x")).await, Some(a));
    assert_eq!(dedup_holder(&mut worker, deduplicated(other_id, "a", "k", "X")).await, None);
}

async fn workflow_id_is_checked_before_dedup_id(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let named = |key| Start {
        workflow_id: Some("given".into()),
        fingerprint: Some(1),
        ..deduplicated(key, "a", "", "x")
    };
    assert_eq!(dedup_holder(&mut worker, named(key)).await, None);
    // the workflow_id is checked first
    let outcome = worker.commit_one(write(named(Key::mint(0)))).await;
    assert!(matches!(&outcome, Outcome::Duplicate(existing) if existing.key == key), "{outcome:?}");
}

async fn flush_with_deduplicated_start_applies_the_rest(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 30] = keys();
    assert_eq!(dedup_holder(&mut worker, deduplicated(all[7], "a", "", "7")).await, None);
    let rest = all.iter().enumerate().map(|(i, key)| {
        let key = if i == 7 { Key::mint(0) } else { *key };
        write(deduplicated(key, "a", "", &i.to_string()))
    });
    let outcomes = worker.commit(rest.collect()).await;
    for (i, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Outcome::Applied => assert_ne!(i, 7),
            Outcome::Deduplicated(Some(existing)) => assert_eq!((i, existing.key), (7, all[7])),
            other => panic!("{i}: {other:?}"),
        }
    }
    assert_eq!(worker.claim(100).await.len(), 30);
}

async fn starts_of_one_flush_cannot_share_a_dedup_id(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    let both = vec![write(deduplicated(one, "a", "", "x")), write(deduplicated(two, "a", "", "x"))];
    let outcomes = worker.commit(both).await;
    let winners: Vec<Key> = worker.claim_keys(9).await;
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let deduplicated = if winners[0] == one { &outcomes[1] } else { &outcomes[0] };
    assert!(
        matches!(deduplicated, Outcome::Deduplicated(Some(existing)) if existing.key == winners[0]),
        "{outcomes:?}"
    );
}

async fn resent_deduplicated_start_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [holder, deduplicated_key, beside] = keys();
    assert_eq!(dedup_holder(&mut other, deduplicated(holder, "a", "", "x")).await, None);
    let writes = vec![write(deduplicated(deduplicated_key, "a", "", "x")), write(start(beside, queued()))];
    let flush = worker.new_flush(writes);
    let sent = worker.send(&flush).await.unwrap();
    assert!(matches!(&sent[0], Outcome::Deduplicated(Some(existing)) if existing.key == holder), "{sent:?}");
    let resent = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    other.commit_one(cancel(holder)).await;
    assert_eq!(worker.send(&resent).await.unwrap(), sent);
    assert!(!worker.exists(deduplicated_key).await, "nothing is applied twice");
    assert_eq!(worker.claim_keys(9).await, [beside]);
}

async fn dedup_id_is_listed_until_the_execution_ends(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    assert_eq!(dedup_holder(&mut worker, deduplicated(key, "a", "", "x")).await, None);
    assert_eq!(worker.execution(key).await.dedup_id.as_deref(), Some("x"));
    let record = worker.claim(9).await.remove(0);
    assert_eq!(record.execution.dedup_id.as_deref(), Some("x"));
    let listed =
        worker.store.list(&stepfast_core::store::Filter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(listed.executions[0].dedup_id.as_deref(), Some("x"));
    complete(&mut worker, key, "a", "").await;
    assert_eq!(worker.execution(key).await.dedup_id, None);
    let plain = Key::mint(0);
    worker.apply(vec![write(start(plain, running())), Write::Wake(key)][..1].to_vec()).await;
    assert_eq!(worker.execution(plain).await.dedup_id, None);
    worker.apply(vec![transition(plain, completed())]).await;
}
