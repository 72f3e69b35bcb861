//! What one execution of a queue alone may have: its dedup_id, until it has ended.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{ExistingExecution, Flush, Outcome, Start, Status, Write};

use super::queue::end;
use crate::fixtures::builders::{
    at, cancel, completed, ended, keys, queue_transition, transition, parked, queued, resume, running, scheduled,
    sleeping, start, placement, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    a_second_one_is_refused_while_the_first_has_not_ended,
    every_end_frees_it,
    it_is_kept_through_waits_and_takeovers,
    other_queues_have_their_own_and_keys_do_not,
    the_same_start_again_is_itself,
    a_flush_with_one_that_loses_applies_the_rest,
    two_of_one_flush_cannot_both_have_it,
    a_resent_loser_still_loses_or_hears_that_it_may_try_again,
    it_is_shown_until_the_end,
];

fn deduplicated(key: Key, queue: &str, of: &str, id: &str) -> Start {
    Start {
        dedup_id: Some(id.into()),
        is_guarded: true,
        placement: placement(queue, of, 0),
        ..start(key, queued())
    }
}

/// Starts one, and says whom it lost against.
async fn loses(worker: &mut Worker, start: Start) -> Option<Key> {
    match worker.commit_one(write(start)).await {
        Outcome::Applied => None,
        Outcome::Deduplicated(Some(existing)) => Some(existing.key),
        other => panic!("{other:?}"),
    }
}

async fn a_second_one_is_refused_while_the_first_has_not_ended(fixture: &dyn StoreFixture) {
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
    assert_eq!(loses(&mut worker, one).await, None);
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
    assert_eq!(loses(&mut other, deduplicated(second, "a", "", "x")).await, Some(first));
    end(&mut worker, first, "a", "").await;
    assert_eq!(loses(&mut other, deduplicated(third, "a", "", "x")).await, None);
    assert_eq!(loses(&mut worker, deduplicated(second, "a", "", "x")).await, Some(third));
}

async fn every_end_frees_it(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let key = Key::mint(0);
        assert_eq!(loses(&mut worker, deduplicated(key, "a", "", "x")).await, None, "{status:?}");
        assert_eq!(worker.claim_keys(9).await, [key]);
        worker.apply(vec![queue_transition(key, "a", "", ended(status, "over"))]).await;
    }
    // cancelled where nobody runs it
    let states = [queued(), scheduled(at(1_000_000)), sleeping(at(1_000_000)), parked("why")];
    for state in states {
        let key = Key::mint(0);
        let held = Start { state: state.clone(), ..deduplicated(key, "a", "", "x") };
        assert_eq!(loses(&mut worker, held).await, None, "{state:?}");
        worker.commit_one(cancel(key)).await;
        assert_eq!(worker.execution(key).await.status, Status::Cancelled, "{state:?}");
    }
    // ended before it left
    let key = Key::mint(0);
    let over = Start { state: completed(), ..deduplicated(key, "a", "", "x") };
    assert_eq!(loses(&mut worker, over).await, None);
    let last = Key::mint(0);
    assert_eq!(loses(&mut worker, deduplicated(last, "a", "", "x")).await, None);
    // who is resumed after the end has it no more
    worker.commit_one(cancel(last)).await;
    worker.commit_one(resume(last)).await;
    assert_eq!(worker.execution(last).await.status, Status::Queued);
    assert_eq!(loses(&mut worker, deduplicated(Key::mint(0), "a", "", "x")).await, None);
}

async fn it_is_kept_through_waits_and_takeovers(fixture: &dyn StoreFixture) {
    let mut lost = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.second_store().await).await;
    let [key, other] = keys();
    assert_eq!(loses(&mut lost, deduplicated(key, "a", "", "x")).await, None);
    assert_eq!(lost.claim_keys(9).await, [key]);
    lost.apply(vec![queue_transition(key, "a", "", sleeping(at(5)))]).await;
    assert_eq!(loses(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    fixture.clock().advance(std::time::Duration::from_secs(1));
    assert_eq!(lost.claim_keys(9).await, [key]);
    lost.apply(vec![queue_transition(key, "a", "", running())]).await;
    fixture.mark_dead(lost.id).await;
    worker.take_over_dead_workers().await;
    assert_eq!(loses(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    assert_eq!(worker.claim_keys(9).await, [key]);
    worker.apply(vec![queue_transition(key, "a", "", parked("why"))]).await;
    worker.commit_one(resume(key)).await;
    assert_eq!(loses(&mut worker, deduplicated(other, "a", "", "x")).await, Some(key));
    assert_eq!(worker.claim_keys(9).await, [key]);
    end(&mut worker, key, "a", "").await;
    assert_eq!(loses(&mut worker, deduplicated(other, "a", "", "x")).await, None);
}

async fn other_queues_have_their_own_and_keys_do_not(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, of_key, other_id] = keys();
    assert_eq!(loses(&mut worker, deduplicated(a, "a", "k", "x")).await, None);
    assert_eq!(loses(&mut worker, deduplicated(b, "b", "k", "x")).await, None);
    assert_eq!(loses(&mut worker, deduplicated(of_key, "a", "another", "x")).await, Some(a));
    assert_eq!(loses(&mut worker, deduplicated(other_id, "a", "k", "X")).await, None);
}

async fn the_same_start_again_is_itself(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let named = |key| Start {
        workflow_id: Some("given".into()),
        fingerprint: Some(1),
        ..deduplicated(key, "a", "", "x")
    };
    assert_eq!(loses(&mut worker, named(key)).await, None);
    // the id of its caller counts first
    let outcome = worker.commit_one(write(named(Key::mint(0)))).await;
    assert!(matches!(&outcome, Outcome::Duplicate(existing) if existing.key == key), "{outcome:?}");
}

async fn a_flush_with_one_that_loses_applies_the_rest(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 30] = keys();
    assert_eq!(loses(&mut worker, deduplicated(all[7], "a", "", "7")).await, None);
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

async fn two_of_one_flush_cannot_both_have_it(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    let both = vec![write(deduplicated(one, "a", "", "x")), write(deduplicated(two, "a", "", "x"))];
    let outcomes = worker.commit(both).await;
    let winners: Vec<Key> = worker.claim_keys(9).await;
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let lost = if winners[0] == one { &outcomes[1] } else { &outcomes[0] };
    assert!(
        matches!(lost, Outcome::Deduplicated(Some(existing)) if existing.key == winners[0]),
        "{outcomes:?}"
    );
}

async fn a_resent_loser_still_loses_or_hears_that_it_may_try_again(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [holder, loser, beside] = keys();
    assert_eq!(loses(&mut other, deduplicated(holder, "a", "", "x")).await, None);
    let writes = vec![write(deduplicated(loser, "a", "", "x")), write(start(beside, queued()))];
    let flush = worker.new_flush(writes);
    let sent = worker.send(&flush).await.unwrap();
    assert!(matches!(&sent[0], Outcome::Deduplicated(Some(existing)) if existing.key == holder), "{sent:?}");
    let again = Flush { is_resent: true, ..flush };
    assert_eq!(worker.send(&again).await.unwrap(), sent);
    other.commit_one(cancel(holder)).await;
    let sent = worker.send(&again).await.unwrap();
    assert!(
        match &sent[0] {
            Outcome::Deduplicated(None) => true,
            // a store that remembers what it has said
            Outcome::Deduplicated(Some(existing)) => existing.key == holder,
            _ => false,
        },
        "{sent:?}"
    );
    assert!(!worker.exists(loser).await, "nothing is applied twice");
    assert_eq!(worker.claim_keys(9).await, [beside]);
}

async fn it_is_shown_until_the_end(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    assert_eq!(loses(&mut worker, deduplicated(key, "a", "", "x")).await, None);
    assert_eq!(worker.execution(key).await.dedup_id.as_deref(), Some("x"));
    let record = worker.claim(9).await.remove(0);
    assert_eq!(record.execution.dedup_id.as_deref(), Some("x"));
    let listed =
        worker.store.list(&stepfast_core::store::Filter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(listed.executions[0].dedup_id.as_deref(), Some("x"));
    end(&mut worker, key, "a", "").await;
    assert_eq!(worker.execution(key).await.dedup_id, None);
    let plain = Key::mint(0);
    worker.apply(vec![write(start(plain, running())), Write::Wake(key)][..1].to_vec()).await;
    assert_eq!(worker.execution(plain).await.dedup_id, None);
    worker.apply(vec![transition(plain, completed())]).await;
}
