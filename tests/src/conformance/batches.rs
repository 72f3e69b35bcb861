//! Batches: the bundles that fit into them, and the search for batches.

use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Heartbeat, Outcome, Start, State, Status, Write};

use super::resend::resend_of;
use crate::fixtures::builders::{
    batch_start, bundle, bundle_start, cancel, close_batch, closed_batch, completed, open_batch, pack,
    parked, queued, running, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    newest_batches_are_found,
    bundles_of_one_flush_fit,
    bundles_of_several_flushes_fit,
    hundreds_of_bundles_start_in_one_flush,
    bundle_without_an_unfinished_batch_does_not_fit,
    bundle_with_gap_or_overlap_does_not_fit,
    bundle_beyond_the_end_of_a_closed_batch_does_not_fit,
    bundle_after_one_that_does_not_fit_does_not_fit,
    bundle_that_does_not_fit_changes_nothing,
    bundles_of_several_batches_share_a_flush,
    duplicate_bundle_is_a_duplicate,
    duplicate_bundles_precede_new_ones_in_a_flush,
    duplicate_bundle_is_a_duplicate_after_the_end,
    duplicate_batch_changes_nothing,
    resent_flush_repeats_the_outcomes_of_bundles,
    rows_of_batches_are_counted,
];

/// The status of an execution; panics if the execution does not exist.
pub(super) async fn status(worker: &Worker, key: Key) -> Status {
    worker.execution(key).await.status
}

/// Starts a closed batch with one running bundle of two items.
pub(super) async fn start_small_batch(worker: &mut Worker) -> (Key, Key) {
    let batch = Key::mint_batch(0);
    let only = bundle_start(batch, 0, 2, running());
    let key = only.key;
    worker.apply(vec![closed_batch(batch, 2), write(only)]).await;
    (batch, key)
}

async fn newest_batches_are_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    assert_eq!(worker.store.newest_batch(None).await.unwrap(), None);
    let batches: [Key; 4] = std::array::from_fn(|_| {
        let batch = Key::mint_batch(0);
        // keys of one millisecond are in no order
        while uuid_millis(Key::mint(0)) == uuid_millis(batch) {}
        batch
    });
    let single = Start { key: Key::mint(0), ..bundle_start(batches[3], 0, 1, queued()) };
    let single = Start { root: single.key, parent: None, item_count: None, ..single };
    worker.apply(batches.iter().rev().map(|batch| open_batch(*batch)).collect()).await;
    worker
        .apply(vec![
            bundle(batches[0], 0, 2),
            bundle(batches[0], 2, 2),
            bundle(batches[3], 0, 2),
            write(single),
        ])
        .await;
    // a batch that has ended is found by its bundles, so the empty one is not
    worker.commit(vec![cancel(batches[0]), cancel(batches[2])]).await;
    let mut found = Vec::new();
    while let Some(batch) = worker.store.newest_batch(found.last().copied()).await.unwrap() {
        found.push(batch);
    }
    assert_eq!(found, [batches[3], batches[1], batches[0]]);
}

fn uuid_millis(key: Key) -> [u8; 6] {
    *key.as_bytes().first_chunk().unwrap()
}

async fn bundles_of_one_flush_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 10), bundle(batch, 10, 5)]).await;
    let row = worker.execution(batch).await;
    assert_eq!((row.status, row.parent, row.wake_at, row.owner), (Status::Waiting, None, None, None));
    for (first_item, count) in [(0, 10), (10, 5)] {
        let given = bundle_start(batch, first_item, count, queued());
        let row = worker.execution(given.key).await;
        assert_eq!((row.status, row.parent, row.root), (Status::Queued, given.parent, batch));
        assert_eq!(row.input, given.input);
    }
    assert_eq!(worker.claim_keys(10).await, [batch.bundle(9), batch.bundle(14)]);
}

async fn bundles_of_several_flushes_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch)]).await;
    worker.apply(vec![bundle(batch, 0, 1)]).await;
    other.apply(vec![bundle(batch, 1, 1), bundle(batch, 2, 100)]).await;
    worker.apply(vec![bundle(batch, 102, 3)]).await;
    let keys = [0, 1, 101, 104].map(|last_index| batch.bundle(last_index));
    assert_eq!(worker.store.bundles(batch, 0, 10).await.unwrap(), keys);
    assert_eq!(worker.claim_keys(10).await, keys);
}

async fn hundreds_of_bundles_start_in_one_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (one, two) = (Key::mint_batch(0), Key::mint_batch(0));
    let bundles = |batch: Key, from: u32| (from..from + 300).map(move |n| bundle(batch, n * 3, 3));
    let writes = [open_batch(one), open_batch(two)];
    worker.apply(writes.into_iter().chain(bundles(one, 0)).chain(bundles(two, 0)).collect()).await;
    worker.apply(bundles(one, 300).collect()).await;
    for (batch, count) in [(one, 600), (two, 300)] {
        assert_eq!(worker.store.bundles(batch, 0, 1_000).await.unwrap().len(), count);
    }
    let claimed = worker.claim(1_000).await;
    assert_eq!(claimed.len(), 900);
    assert!(claimed.iter().all(|record| record.bundle.as_ref().is_some_and(|it| it.item_count == 3)));
}

async fn bundle_without_an_unfinished_batch_does_not_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let unknown = Key::mint_batch(0);
    assert_eq!(worker.commit_one(bundle(unknown, 0, 2)).await, Outcome::NotFound);
    let (complete, only) = start_small_batch(&mut worker).await;
    worker.apply(vec![transition(only, completed())]).await;
    worker.apply(vec![Write::Wake(complete)]).await;
    let cancelled = Key::mint_batch(0);
    worker.apply(vec![open_batch(cancelled)]).await;
    worker.commit(vec![cancel(cancelled)]).await;
    for (batch, first_item) in [(complete, 2), (cancelled, 0)] {
        assert_eq!(worker.commit_one(bundle(batch, first_item, 2)).await, Outcome::NotFound);
    }
    assert!(worker.claim(10).await.is_empty());
}

async fn bundle_with_gap_or_overlap_does_not_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch)]).await;
    assert_eq!(worker.commit_one(bundle(batch, 1, 2)).await, Outcome::NotFound, "a gap at the beginning");
    worker.apply(vec![bundle(batch, 0, 10)]).await;
    for (first_item, count) in [(11, 2), (9, 2), (5, 2), (0, 12), (0, 1)] {
        let outcome = worker.commit_one(bundle(batch, first_item, count)).await;
        assert_eq!(outcome, Outcome::NotFound, "{count} items from {first_item}");
    }
    let uncounted = Start { item_count: None, ..bundle_start(batch, 10, 2, queued()) };
    assert_eq!(worker.commit_one(write(uncounted)).await, Outcome::NotFound);
    let negative = Start { item_count: Some(100), ..bundle_start(batch, 10, 2, queued()) };
    assert_eq!(worker.commit_one(write(negative)).await, Outcome::NotFound, "more items than its last index");
    worker.apply(vec![bundle(batch, 10, 2)]).await;
    assert_eq!(worker.store.bundles(batch, 0, 10).await.unwrap(), [batch.bundle(9), batch.bundle(11)]);
}

async fn bundle_beyond_the_end_of_a_closed_batch_does_not_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (starts_closed, closed_later) = (Key::mint_batch(0), Key::mint_batch(0));
    worker.apply(vec![closed_batch(starts_closed, 15), open_batch(closed_later)]).await;
    worker.apply(vec![bundle(starts_closed, 0, 10), bundle(closed_later, 0, 10)]).await;
    assert_eq!(worker.commit_one(bundle(starts_closed, 10, 6)).await, Outcome::NotFound);
    worker.apply(vec![bundle(closed_later, 10, 5), bundle(starts_closed, 10, 5)]).await;
    worker.apply(vec![close_batch(closed_later, 15)]).await;
    for batch in [starts_closed, closed_later] {
        assert_eq!(worker.commit_one(bundle(batch, 15, 1)).await, Outcome::NotFound);
    }
}

async fn bundle_after_one_that_does_not_fit_does_not_fit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (gap, closed, unknown) = (Key::mint_batch(0), Key::mint_batch(0), Key::mint_batch(0));
    let outcomes = worker
        .commit(vec![
            open_batch(gap),
            closed_batch(closed, 20),
            bundle(gap, 1, 2),
            bundle(gap, 3, 2),
            bundle(closed, 0, 10),
            bundle(closed, 10, 11),
            bundle(closed, 21, 2),
            bundle(unknown, 0, 2),
            bundle(unknown, 2, 2),
        ])
        .await;
    let mut expected = vec![Outcome::NotFound; 9];
    for applied in [0, 1, 4] {
        expected[applied] = Outcome::Applied;
    }
    assert_eq!(outcomes, expected);
    assert_eq!(worker.claim_keys(10).await, [closed.bundle(9)]);
}

async fn bundle_that_does_not_fit_changes_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let states = [queued(), running(), parked("why"), completed()];
    for state in states {
        let outcomes = worker
            .commit(vec![
                write(bundle_start(batch, 0, 2, state)),
                write(Start { is_guarded: true, ..batch_start(Key::mint_batch(0), None) }),
            ])
            .await;
        assert_eq!(outcomes, [Outcome::NotFound, Outcome::Applied]);
    }
    assert!(!worker.exists(batch.bundle(1)).await);
    assert!(worker.store.bundles(batch, 0, 10).await.unwrap().is_empty());
    assert!(worker.claim(10).await.is_empty());
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    assert!(worker.store.heartbeat(&heartbeat).await.unwrap().unheld.is_empty());
    // the key is still free
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 2)]).await;
}

async fn bundles_of_several_batches_share_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batches: [Key; 3] = std::array::from_fn(|_| Key::mint_batch(0));
    worker.apply(batches[..2].iter().map(|batch| open_batch(*batch)).collect()).await;
    let mut writes = vec![open_batch(batches[2])];
    for first_item in [0, 4] {
        writes.extend(batches.iter().map(|batch| bundle(*batch, first_item, 4)));
    }
    worker.apply(writes).await;
    for batch in batches {
        let keys = [batch.bundle(3), batch.bundle(7)];
        assert_eq!(worker.store.bundles(batch, 0, 10).await.unwrap(), keys);
    }
}

async fn duplicate_bundle_is_a_duplicate(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 10), bundle(batch, 10, 10)]).await;
    for (first_item, count) in [(0, 10), (10, 10), (15, 5)] {
        let duplicate = Start { is_guarded: true, ..bundle_start(batch, first_item, count, queued()) };
        let key = duplicate.key;
        let Outcome::Duplicate(existing) = other.commit_one(write(duplicate)).await else {
            panic!("not a duplicate")
        };
        assert_eq!((existing.key, existing.parent, existing.status), (key, Some(batch), Status::Queued));
    }
    assert_eq!(worker.claim(10).await.len(), 2);
}

async fn duplicate_bundles_precede_new_ones_in_a_flush(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let batch = Key::mint_batch(0);
    let guarded = |first_item, count| {
        write(Start { is_guarded: true, ..bundle_start(batch, first_item, count, queued()) })
    };
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 10), bundle(batch, 10, 10)]).await;
    // a process that repeats its calls after a crash
    let batch_again = write(Start { is_guarded: true, ..batch_start(batch, None) });
    let repeated = vec![batch_again, guarded(0, 10), guarded(10, 10), guarded(20, 10), guarded(30, 10)];
    let outcomes = other.commit(repeated).await;
    for outcome in &outcomes[..3] {
        assert!(matches!(outcome, Outcome::Duplicate(_)), "{outcome:?}");
    }
    assert_eq!(outcomes[3..], [Outcome::Applied, Outcome::Applied]);
    assert_eq!(worker.claim(10).await.len(), 4);
}

async fn duplicate_bundle_is_a_duplicate_after_the_end(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (batch, key) = start_small_batch(&mut worker).await;
    worker.apply(vec![transition(key, completed())]).await;
    worker.apply(vec![Write::Wake(batch)]).await;
    let duplicates =
        [write(Start { is_guarded: true, ..bundle_start(batch, 0, 2, queued()) }), closed_batch(batch, 2)];
    for duplicate in duplicates {
        let key = duplicate.execution();
        let Outcome::Duplicate(existing) = worker.commit_one(duplicate).await else {
            panic!("not a duplicate")
        };
        assert_eq!((existing.key, existing.status), (key, Status::Completed));
    }
}

async fn duplicate_batch_changes_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch)]).await;
    let duplicate = Start { is_guarded: true, ..batch_start(batch, Some(1)) };
    let outcome = worker.commit_one(write(duplicate)).await;
    assert!(matches!(outcome, Outcome::Duplicate(_)), "{outcome:?}");
    assert_eq!(worker.store.batch_items(batch).await.unwrap().closed_with, None);
    worker.apply(vec![bundle(batch, 0, 2)]).await;
}

async fn resent_flush_repeats_the_outcomes_of_bundles(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (batch, unknown) = (Key::mint_batch(0), Key::mint_batch(0));
    let first = worker.new_flush(vec![open_batch(batch), write(bundle_start(batch, 0, 2, running()))]);
    worker.send(&first).await.unwrap();
    assert_eq!(worker.send(&resend_of(&first)).await.unwrap(), [Outcome::Applied, Outcome::Applied]);
    let duplicate = Start { is_guarded: true, ..bundle_start(batch, 0, 2, queued()) };
    let flush = worker.new_flush(vec![
        write(duplicate),
        bundle(batch, 2, 2),
        bundle(batch, 5, 2),
        bundle(unknown, 0, 2),
        pack(batch.bundle(1), &[(0, Status::Completed)]),
        close_batch(batch, 4),
        close_batch(unknown, 4),
    ]);
    let outcomes = worker.send(&flush).await.unwrap();
    assert!(matches!(&outcomes[0], Outcome::Duplicate(existing) if existing.key == batch.bundle(1)));
    let others = [false, true, true, false, false, true]
        .map(|is_missing| if is_missing { Outcome::NotFound } else { Outcome::Applied });
    assert_eq!(outcomes[1..], others);
    // the batch and its bundles change in the meantime
    let mut other = Worker::register(&fixture.second_store().await).await;
    assert_eq!(other.claim_keys(10).await, [batch.bundle(3)]);
    assert_eq!(worker.send(&resend_of(&flush)).await.unwrap(), outcomes);
    assert_eq!(status(&worker, batch.bundle(3)).await, Status::Running);
    let wake = worker.new_flush(vec![Write::Wake(batch)]);
    worker.send(&wake).await.unwrap();
    assert_eq!(worker.send(&resend_of(&wake)).await.unwrap(), [Outcome::Applied]);
    assert_eq!(worker.record(batch.bundle(1)).await.bundle.unwrap().packs.len(), 1);
}

async fn rows_of_batches_are_counted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let store = worker.store.clone();
    let (batch, cancelled, starts_ended) = (Key::mint_batch(0), Key::mint_batch(0), Key::mint_batch(0));
    let count = async |worker: &mut Worker, writes| {
        let before = store.counters().snapshot();
        worker.commit(writes).await;
        let counted = store.counters().snapshot().since(&before);
        [Table::Batches, Table::Bundles, Table::Packs].map(|table| {
            let table = table as usize;
            (counted.inserted[table], counted.updated[table], counted.deleted[table])
        })
    };
    let state: State = completed();
    let starts = vec![
        open_batch(batch),
        open_batch(cancelled),
        write(Start { state, ..batch_start(starts_ended, None) }),
        write(bundle_start(batch, 0, 2, running())),
        write(bundle_start(batch, 2, 2, completed())),
        bundle(batch, 5, 2),
    ];
    assert_eq!(count(&mut worker, starts).await, [(2, 0, 0), (2, 0, 0), (0, 0, 0)]);
    let packed = vec![
        pack(batch.bundle(1), &[(0, Status::Completed)]),
        pack(batch.bundle(1), &[(1, Status::Failed)]),
        transition(batch.bundle(1), completed()),
    ];
    assert_eq!(count(&mut worker, packed).await, [(0, 0, 0), (0, 0, 0), (2, 0, 0)]);
    assert_eq!(count(&mut worker, vec![close_batch(batch, 4)]).await[0], (0, 1, 0));
    assert_eq!(count(&mut worker, vec![close_batch(batch, 4)]).await[0], (0, 0, 0));
    let ends = vec![Write::Wake(batch), cancel(cancelled)];
    assert_eq!(count(&mut worker, ends).await, [(0, 0, 2), (0, 0, 0), (0, 0, 0)]);
}
