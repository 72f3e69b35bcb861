//! Batches: how they are closed, end, and are cancelled.

use stepfast_core::key::Key;
use stepfast_core::store::{
    Filter, Heartbeat, Outcome, Request, RequestKind, RequestResult, Start, Status, Write,
};

use super::batches::{start_small_batch, status};
use crate::fixtures::builders::{
    at, batch_start, bundle, bundle_start, cancel, close_batch, closed_batch, completed, ended, open_batch,
    pack, parked, pause, payload, promoted_item, queued, resume, running, sleeping, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    batch_is_closed_once,
    ended_batch_is_closed_with_its_number_of_items_only,
    batch_is_closed_in_the_flush_of_its_last_bundle,
    wake_ends_a_complete_batch_once,
    wake_of_an_open_batch_is_not_applied,
    wake_of_a_batch_with_missing_bundles_is_not_applied,
    wake_of_a_batch_with_unfinished_bundles_is_not_applied,
    wake_of_a_batch_with_unfinished_items_is_not_applied,
    wake_of_an_unknown_batch_is_not_applied,
    wakes_of_batches_and_executions_share_a_flush,
    batch_without_items_ends,
    batch_that_starts_closed_ends,
    end_of_one_batch_leaves_its_neighbours_unaffected,
    cancel_ends_a_batch_with_its_bundles_and_items,
    expired_batch_ends_with_its_bundles,
    pause_and_resume_are_not_applicable_to_a_batch,
    batch_that_starts_ended_is_not_open,
    watched_batch_is_reported_when_it_has_ended,
    takeover_ends_complete_batches,
    close_ends_complete_batches,
];

async fn batch_is_closed_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let (open, closed) = (Key::mint_batch(0), Key::mint_batch(0));
    worker.apply(vec![open_batch(open), closed_batch(closed, 4)]).await;
    worker.apply(vec![bundle(open, 0, 2), bundle(open, 2, 2)]).await;
    for item_count in [0, 2, 5] {
        assert_eq!(other.commit_one(close_batch(open, item_count)).await, Outcome::NotFound);
        assert_eq!(worker.store.batch_items(open).await.unwrap().closed_with, None);
    }
    for batch in [open, closed] {
        worker.apply(vec![close_batch(batch, 4)]).await;
        assert_eq!(worker.store.batch_items(batch).await.unwrap().closed_with, Some(4));
        assert_eq!(other.commit_one(close_batch(batch, 4)).await, Outcome::Applied);
        for item_count in [0, 2, 5] {
            assert_eq!(other.commit_one(close_batch(batch, item_count)).await, Outcome::NotFound);
        }
        assert_eq!(worker.store.batch_items(batch).await.unwrap().closed_with, Some(4));
        assert_eq!(status(&worker, batch).await, Status::Waiting);
    }
    assert_eq!(worker.commit_one(close_batch(Key::mint_batch(0), 4)).await, Outcome::NotFound);
}

async fn ended_batch_is_closed_with_its_number_of_items_only(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (complete, only) = start_small_batch(&mut worker).await;
    worker.apply(vec![transition(only, completed())]).await;
    worker.apply(vec![Write::Wake(complete)]).await;
    let (cancelled, empty) = (Key::mint_batch(0), Key::mint_batch(0));
    worker
        .apply(vec![
            open_batch(cancelled),
            bundle(cancelled, 0, 1),
            bundle(cancelled, 1, 1),
            open_batch(empty),
        ])
        .await;
    worker.commit(vec![cancel(cancelled), cancel(empty)]).await;
    for (batch, item_count) in [(complete, 2), (cancelled, 2), (empty, 0)] {
        assert_eq!(worker.commit_one(close_batch(batch, item_count)).await, Outcome::Applied);
        assert_eq!(worker.commit_one(close_batch(batch, item_count + 1)).await, Outcome::NotFound);
        assert_eq!(worker.store.batch_items(batch).await.unwrap().closed_with, None);
    }
}

async fn batch_is_closed_in_the_flush_of_its_last_bundle(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 2)]).await;
    // in any order: a flush is a set
    worker.apply(vec![close_batch(batch, 4), bundle(batch, 2, 2)]).await;
    assert_eq!(worker.store.batch_items(batch).await.unwrap().closed_with, Some(4));
    assert_eq!(worker.commit_one(bundle(batch, 4, 2)).await, Outcome::NotFound);
}

async fn wake_ends_a_complete_batch_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    for end in [Status::Completed, Status::Failed, Status::Cancelled] {
        let (batch, key) = start_small_batch(&mut worker).await;
        worker.apply(vec![transition(key, ended(end, "x"))]).await;
        assert_eq!(status(&worker, batch).await, Status::Waiting, "a batch ends only by its Wake");
        fixture.clock().advance(std::time::Duration::from_secs(1));
        assert_eq!(other.commit_one(Write::Wake(batch)).await, Outcome::Applied);
        let row = worker.execution(batch).await;
        assert_eq!((row.status, row.ended_at), (Status::Completed, Some(fixture.now())));
        assert!(row.outcome.is_empty());
        assert_eq!(other.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
        assert_eq!(worker.execution(batch).await, row);
    }
}

async fn wake_of_an_open_batch_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch)]).await;
    assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
    worker.apply(vec![write(bundle_start(batch, 0, 2, completed()))]).await;
    assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
    worker.apply(vec![close_batch(batch, 2)]).await;
    assert_eq!(status(&worker, batch).await, Status::Waiting);
    worker.apply(vec![Write::Wake(batch)]).await;
    assert_eq!(status(&worker, batch).await, Status::Completed);
}

async fn wake_of_a_batch_with_missing_bundles_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![closed_batch(batch, 4), write(bundle_start(batch, 0, 2, completed()))]).await;
    assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
    worker.apply(vec![write(bundle_start(batch, 2, 2, completed()))]).await;
    worker.apply(vec![Write::Wake(batch)]).await;
    assert_eq!(status(&worker, batch).await, Status::Completed);
}

async fn wake_of_a_batch_with_unfinished_bundles_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for unfinished in [running(), queued(), parked("why")] {
        for place in 0..3 {
            let batch = Key::mint_batch(0);
            let state = |n| if n == place { unfinished.clone() } else { completed() };
            let bundles = (0..3).map(|n| write(bundle_start(batch, n * 2, 2, state(n))));
            worker.apply([closed_batch(batch, 6)].into_iter().chain(bundles).collect()).await;
            assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
            assert_eq!(status(&worker, batch).await, Status::Waiting);
        }
    }
}

async fn wake_of_a_batch_with_unfinished_items_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for unfinished in [running(), queued(), sleeping(at(90))] {
        let (batch, key) = start_small_batch(&mut worker).await;
        worker
            .apply(vec![
                promoted_item(batch, 0, unfinished),
                promoted_item(batch, 1, ended(Status::Failed, "x")),
            ])
            .await;
        worker.apply(vec![transition(key, completed())]).await;
        assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
        worker.commit(vec![cancel(batch.item(0))]).await;
        if status(&worker, batch.item(0)).await == Status::Running {
            worker.commit(vec![transition(batch.item(0), completed())]).await;
        }
        worker.apply(vec![Write::Wake(batch)]).await;
        assert_eq!(status(&worker, batch).await, Status::Completed);
    }
}

async fn wake_of_an_unknown_batch_is_not_applied(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
    assert!(!worker.exists(batch).await);
}

async fn wakes_of_batches_and_executions_share_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (complete, only) = start_small_batch(&mut worker).await;
    let (incomplete, _) = start_small_batch(&mut worker).await;
    let [due, early] = crate::fixtures::builders::keys();
    worker.apply(vec![transition(only, completed())]).await;
    let sleepers = [(due, at(-1)), (early, at(90))];
    let start = |(key, until)| crate::fixtures::builders::start_in(key, sleeping(until));
    worker.apply(sleepers.into_iter().map(start).collect()).await;
    let wakes = [early, complete, due, incomplete].map(Write::Wake);
    let outcomes = worker.commit(wakes.to_vec()).await;
    assert_eq!(outcomes, [Outcome::NotFound, Outcome::Applied, Outcome::Applied, Outcome::NotFound]);
    assert_eq!(status(&worker, complete).await, Status::Completed);
    assert_eq!(status(&worker, incomplete).await, Status::Waiting);
    assert_eq!(worker.claim_keys(10).await, [due]);
}

async fn batch_without_items_ends(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (starts_closed, closed_later) = (Key::mint_batch(0), Key::mint_batch(0));
    worker.apply(vec![closed_batch(starts_closed, 0), open_batch(closed_later)]).await;
    worker.apply(vec![close_batch(closed_later, 0)]).await;
    for batch in [starts_closed, closed_later] {
        worker.apply(vec![Write::Wake(batch)]).await;
        assert_eq!(status(&worker, batch).await, Status::Completed);
    }
}

async fn batch_that_starts_closed_ends(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![closed_batch(batch, 5), bundle(batch, 0, 3), bundle(batch, 3, 2)]).await;
    for key in worker.claim_keys(10).await {
        assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
        worker.apply(vec![transition(key, completed())]).await;
    }
    worker.apply(vec![Write::Wake(batch)]).await;
    assert_eq!(status(&worker, batch).await, Status::Completed);
}

async fn end_of_one_batch_leaves_its_neighbours_unaffected(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (before, _) = start_small_batch(&mut worker).await;
    let (batch, key) = start_small_batch(&mut worker).await;
    let (after, _) = start_small_batch(&mut worker).await;
    worker.apply(vec![promoted_item(before, 1, running()), promoted_item(after, 0, running())]).await;
    worker.apply(vec![transition(key, completed())]).await;
    let wakes = [before, batch, after].map(Write::Wake);
    let outcomes = worker.commit(wakes.to_vec()).await;
    assert_eq!(outcomes, [Outcome::NotFound, Outcome::Applied, Outcome::NotFound]);
    for neighbour in [before, after] {
        assert_eq!(worker.store.batch_items(neighbour).await.unwrap().closed_with, Some(2));
    }
}

async fn cancel_ends_a_batch_with_its_bundles_and_items(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let batch = Key::mint_batch(0);
    let states = [completed(), queued(), running()];
    let bundles = states.into_iter().zip(0..).map(|(state, n)| write(bundle_start(batch, n * 2, 2, state)));
    worker.apply([closed_batch(batch, 8)].into_iter().chain(bundles).collect()).await;
    worker
        .apply(vec![
            promoted_item(batch, 0, sleeping(at(90))),
            promoted_item(batch, 1, completed()),
            promoted_item(batch, 4, running()),
        ])
        .await;
    let outcome = other.commit_one(cancel(batch)).await;
    assert_eq!(outcome, Outcome::RequestHandled(RequestResult::Done, None));
    let row = worker.execution(batch).await;
    assert_eq!(
        (row.status, row.ended_at, row.outcome),
        (Status::Cancelled, Some(at(7)), payload("cancelled"))
    );
    for (key, expected) in [
        (batch.bundle(1), Status::Completed),
        (batch.bundle(3), Status::Cancelled),
        (batch.bundle(5), Status::Running),
        (batch.item(0), Status::Cancelled),
        (batch.item(1), Status::Completed),
        (batch.item(4), Status::Running),
    ] {
        assert_eq!(status(&worker, key).await, expected, "{key}");
    }
    let mut requests = worker.heartbeat().await.reply.requests;
    requests.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(requests, [batch.item(4), batch.bundle(5)].map(|key| (key, RequestKind::Cancel)));
    let late = vec![bundle(batch, 6, 2), Write::Wake(batch)];
    assert_eq!(worker.commit(late).await, [Outcome::NotFound, Outcome::NotFound]);
    assert!(worker.claim(10).await.is_empty());
    // the running bundle still records outcomes
    worker.apply(vec![pack(batch.bundle(5), &[(5, Status::Cancelled)])]).await;
    let outcome = worker.commit_one(transition(batch.bundle(5), completed())).await;
    assert_eq!(outcome, Outcome::Cancelled);
    let again = worker.commit_one(cancel(batch)).await;
    let not_applicable = RequestResult::NotApplicable(Status::Cancelled);
    assert_eq!(again, Outcome::RequestHandled(not_applicable, None));
}

async fn expired_batch_ends_with_its_bundles(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let given = Start { deadline_at: Some(at(-1)), ..batch_start(batch, None) };
    worker.apply(vec![write(given), bundle(batch, 0, 2)]).await;
    assert_eq!(worker.heartbeat().await.expired, [batch]);
    let request = Request {
        execution: batch,
        id: Key::mint(0),
        kind: RequestKind::Expire,
        at: at(0),
        reason: payload("expired"),
    };
    let outcome = worker.commit_one(Write::Request(request)).await;
    assert_eq!(outcome, Outcome::RequestHandled(RequestResult::Done, None));
    for key in [batch, batch.bundle(1)] {
        assert_eq!(status(&worker, key).await, Status::Cancelled);
    }
    assert_eq!(worker.commit_one(bundle(batch, 2, 2)).await, Outcome::NotFound);
}

async fn pause_and_resume_are_not_applicable_to_a_batch(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 2)]).await;
    for expected in [Status::Waiting, Status::Cancelled] {
        let before = worker.record(batch).await;
        for request in [pause(batch), resume(batch)] {
            let not_applicable = RequestResult::NotApplicable(expected);
            let outcome = worker.commit_one(request).await;
            assert_eq!(outcome, Outcome::RequestHandled(not_applicable, None));
        }
        assert_eq!(worker.record(batch).await, before);
        worker.commit(vec![cancel(batch)]).await;
    }
}

async fn batch_that_starts_ended_is_not_open(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let state = ended(Status::Cancelled, "why");
    worker.apply(vec![write(Start { state, ..batch_start(batch, None) })]).await;
    let outcomes = worker.commit(vec![bundle(batch, 0, 2), close_batch(batch, 2)]).await;
    assert_eq!(outcomes, [Outcome::NotFound, Outcome::NotFound]);
    assert_eq!(worker.commit_one(close_batch(batch, 0)).await, Outcome::Applied);
    assert_eq!(worker.commit_one(Write::Wake(batch)).await, Outcome::NotFound);
}

async fn watched_batch_is_reported_when_it_has_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    let (woken, key) = start_small_batch(&mut worker).await;
    let (cancelled, _) = start_small_batch(&mut worker).await;
    let mut watched = vec![woken, cancelled];
    watched.sort_unstable();
    let heartbeat = Heartbeat { watched: watched.clone(), ..other.new_heartbeat() };
    worker.apply(vec![transition(key, completed())]).await;
    assert!(other.store.heartbeat(&heartbeat).await.unwrap().finished.is_empty());
    worker.apply(vec![Write::Wake(woken)]).await;
    assert_eq!(other.store.heartbeat(&heartbeat).await.unwrap().finished, [woken]);
    worker.commit(vec![cancel(cancelled)]).await;
    let mut finished = other.store.heartbeat(&heartbeat).await.unwrap().finished;
    finished.sort_unstable();
    assert_eq!(finished, watched);
}

async fn takeover_ends_complete_batches(fixture: &dyn StoreFixture) {
    assert_complete_batches_end(fixture, true).await;
}

async fn close_ends_complete_batches(fixture: &dyn StoreFixture) {
    assert_complete_batches_end(fixture, false).await;
}

/// Removes a worker between the end of the last bundle or item and the Wake of the batch, by death or by a close.
async fn assert_complete_batches_end(fixture: &dyn StoreFixture, is_dead: bool) {
    let mut dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    other.heartbeat().await;
    let (complete, only) = start_small_batch(&mut dead).await;
    let (with_item, its_bundle) = start_small_batch(&mut dead).await;
    let (running_bundle, _) = start_small_batch(&mut dead).await;
    let (running_item, finished_bundle) = start_small_batch(&mut dead).await;
    let (open, missing, empty) = (Key::mint_batch(0), Key::mint_batch(0), Key::mint_batch(0));
    dead.apply(vec![
        open_batch(open),
        closed_batch(missing, 3),
        closed_batch(empty, 0),
        write(bundle_start(missing, 0, 2, completed())),
        promoted_item(with_item, 1, completed()),
        promoted_item(running_item, 1, running()),
    ])
    .await;
    dead.apply([only, its_bundle, finished_bundle].map(|key| transition(key, completed())).to_vec()).await;
    if is_dead {
        fixture.mark_dead(dead.id).await;
        other.take_over_dead_workers().await;
    } else {
        dead.store.close(dead.id).await.unwrap();
    }
    let watched = vec![complete, with_item, running_bundle, running_item, open, missing, empty];
    for key in [complete, with_item, empty] {
        let row = other.execution(key).await;
        assert_eq!((row.status, row.ended_at), (Status::Completed, Some(fixture.now())), "{key}");
        assert!(row.outcome.is_empty());
        assert_eq!(other.store.batch_items(key).await.unwrap().closed_with, None);
    }
    for key in [running_bundle, running_item, open, missing] {
        assert_eq!(status(&other, key).await, Status::Waiting, "{key}");
    }
    let heartbeat = Heartbeat { watched, ..other.new_heartbeat() };
    let mut finished = other.store.heartbeat(&heartbeat).await.unwrap().finished;
    finished.sort_unstable();
    let mut expected = vec![complete, with_item, empty];
    expected.sort_unstable();
    assert_eq!(finished, expected);
    let ended = Filter { statuses: vec![Status::Completed], parent: None, ..Filter::default() };
    // with the promoted item that has ended
    assert_eq!(other.store.list(&ended).await.unwrap().executions.len(), 4);
}
