//! Bundles: the records that claims and loads return, their packs, and the items of a batch in numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepfast_core::key::{Key, MAX_BATCH_ITEMS};
use stepfast_core::payload::Payload;
use stepfast_core::queue::Queue;
use stepfast_core::queue::rate::Rate;
use stepfast_core::store::{
    Attempt, BatchItems, BundleRecord, BundledItems, Checkpoint, Detail, EndedItems, ExecutionId, Filter,
    Heartbeat, ItemOutcome, Outcome, Pack, Record, Request, RequestKind, RequestResult, Start, State, Status,
    StoreError, Write, decode_pack,
};

use super::queue::declare_queue;
use crate::fixtures::builders::{
    at, attempt, bundle, bundle_start, cancel, checkpoint, child_of, closed_batch, completed, ended,
    new_pack, open_batch, pack, parked, payload, placement, promoted_item, queued, resume, running, sleeping,
    start_queued, transition, write,
};
use crate::{StoreFixture, Worker};

super::cases![
    claim_returns_a_new_bundle_with_its_number_of_items,
    claim_returns_the_items_of_a_bundle_only,
    claimed_bundle_knows_whether_its_queue_has_limits,
    takeover_keeps_the_record_of_a_bundle,
    unheld_bundle_has_its_items,
    bundle_loads_in_both_details,
    request_to_a_bundle_is_claimed_with_it,
    cancel_of_an_item_stays_until_its_bundle_ends,
    pack_is_recorded_once,
    large_packs_load_unchanged,
    items_are_loaded_by_their_keys,
    bundles_are_listed_by_page,
    bundles_are_missing_in_lists_and_counts,
    keys_of_any_bytes_are_listed,
    items_of_a_batch_are_counted_by_state,
    items_of_unfinished_and_ended_batches_are_counted,
    retried_item_overrides_its_packed_failure,
    racing_bundles_never_overlap,
];

/// The items of the bundle whose record the tests fill.
const FIRST: u32 = 10;
const COUNT: u32 = 10;

/// The record of the middle one of three bundles, as [`fill_bundle`] writes it.
struct FilledBundle {
    batch: Key,
    key: Key,
    checkpoints: Vec<Checkpoint>,
    attempts: Vec<Attempt>,
    packs: Vec<Pack>,
}

impl FilledBundle {
    fn assert_details_of(&self, record: &Record) {
        assert_eq!(record.checkpoints, self.checkpoints);
        assert_eq!(record.attempts, self.attempts);
        self.assert_bundle_of(record);
    }

    fn assert_bundle_of(&self, record: &Record) {
        let bundle = record.bundle.as_ref().expect("the record of a bundle");
        assert_eq!((bundle.item_count, &bundle.promoted), (u64::from(COUNT), &vec![12, 19]));
        let packs: Vec<_> = bundle.packs.iter().map(|bytes| decode_pack(bytes).unwrap()).collect();
        let expected: Vec<_> = self.packs.iter().map(|pack| pack.outcomes.clone()).collect();
        assert_eq!(packs, expected);
    }
}

/// Runs three bundles of ten items each, and records packs, checkpoints, attempts and promoted items of all.
async fn fill_bundle(worker: &mut Worker) -> FilledBundle {
    let (before, batch, after) = (Key::mint_batch(0), Key::mint_batch(0), Key::mint_batch(0));
    let mut writes = vec![open_batch(batch)];
    writes.extend((0..3).map(|n| write(bundle_start(batch, n * COUNT, COUNT, running()))));
    for neighbour in [before, after] {
        writes.extend([open_batch(neighbour), write(bundle_start(neighbour, 0, 30, running()))]);
    }
    worker.apply(writes).await;
    let neighbours =
        [batch.item(9), batch.item(20), before.item(12), after.item(12), batch, batch.bundle(19)];
    let mut writes: Vec<Write> = neighbours
        .into_iter()
        .flat_map(|key| [Write::Checkpoint(checkpoint(key, 1, "no")), Write::Attempt(attempt(key, 2, 1))])
        .collect();
    for (batch, index) in [(before, 12), (after, 12), (batch, 9), (batch, 20)] {
        writes.push(promoted_item(batch, index, sleeping(at(90))));
    }
    writes.push(pack(batch.bundle(9), &[(0, Status::Completed)]));
    writes.push(pack(batch.bundle(29), &[(20, Status::Completed)]));
    worker.apply(writes).await;
    let item = |index| batch.item(index);
    let checkpoints = [(10, 1), (10, 2), (12, 1), (15, 3), (15, 7), (19, 1)]
        .map(|(index, n)| checkpoint(item(index), n, "x"));
    let attempts =
        [(10, 3, 1), (10, 3, 2), (19, 1, 1)].map(|(index, n, number)| attempt(item(index), n, number));
    let key = batch.bundle(FIRST + COUNT - 1);
    let packs = vec![
        new_pack(key, &[(10, Status::Completed), (11, Status::Completed), (13, Status::Failed)]),
        new_pack(key, &[(14, Status::Cancelled)]),
        new_pack(key, &[(16, Status::Completed), (19, Status::Completed)]),
    ];
    // in another order than that of the record
    let mut writes: Vec<Write> = checkpoints.iter().rev().cloned().map(Write::Checkpoint).collect();
    writes.extend(attempts.iter().rev().cloned().map(Write::Attempt));
    writes.push(promoted_item(batch, 19, completed()));
    worker.apply(writes).await;
    let packed = packs.iter().rev().cloned().map(Write::Pack);
    worker.apply(packed.chain([promoted_item(batch, 12, running())]).collect()).await;
    FilledBundle { batch, key, checkpoints: checkpoints.to_vec(), attempts: attempts.to_vec(), packs }
}

async fn claim_returns_a_new_bundle_with_its_number_of_items(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![open_batch(batch), bundle(batch, 0, 3)]).await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    let claimed = worker.claim(10).await;
    let bundles: Vec<_> = claimed.iter().map(|record| record.bundle.as_deref().cloned()).collect();
    assert_eq!(bundles, [Some(BundleRecord { item_count: 3, ..BundleRecord::default() }), None]);
    let row = &claimed[0].execution;
    assert_eq!((row.status, row.owner, row.key), (Status::Running, Some(worker.id), batch.bundle(2)));
    assert_eq!(row.input, bundle_start(batch, 0, 3, queued()).input);
    assert_eq!(worker.record(batch.bundle(2)).await, claimed[0]);
}

async fn claim_returns_the_items_of_a_bundle_only(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let filled = fill_bundle(&mut first).await;
    first.apply(vec![transition(filled.key, queued())]).await;
    let record = second.claim(10).await.remove(0);
    assert_eq!((record.execution.key, record.execution.owner), (filled.key, Some(second.id)));
    filled.assert_details_of(&record);
    assert_eq!(second.record(filled.key).await, record, "a load returns the same record");
    // the records of items and of the batch contain only what belongs to their own keys
    let item = second.record(filled.batch.item(12)).await;
    assert_eq!((item.bundle, item.attempts.len()), (None, 0));
    assert_eq!(item.checkpoints, [checkpoint(filled.batch.item(12), 1, "x")]);
    let batch = second.record(filled.batch).await;
    assert_eq!((batch.bundle, batch.checkpoints.len(), batch.attempts.len()), (None, 1, 1));
    // the other bundles are claimed with theirs
    first.apply(vec![transition(filled.batch.bundle(29), queued())]).await;
    let last = second.claim(10).await.remove(0);
    let bundle = last.bundle.expect("the record of a bundle");
    assert_eq!((bundle.promoted, bundle.packs.len()), (vec![20], 1));
    assert_eq!(last.checkpoints, [checkpoint(filled.batch.item(20), 1, "no")]);
}

async fn claimed_bundle_knows_whether_its_queue_has_limits(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let second = std::time::Duration::from_secs(1);
    let limited = [
        Queue::new("running").concurrency(8),
        Queue::new("worker").worker_concurrency(8),
        Queue::new("key").key_concurrency(8),
        Queue::new("rate").rate(Rate::new(8, second)),
        Queue::new("depth").max_depth(8),
        Queue::new("free"),
    ];
    for queue in limited {
        declare_queue(fixture, queue).await;
    }
    for (name, has_limits) in [
        ("running", true),
        ("worker", true),
        ("key", true),
        ("rate", true),
        ("depth", false),
        ("free", false),
        ("undeclared", false),
    ] {
        let batch = Key::mint_batch(0);
        let of_queue = |first_item| Start {
            placement: placement(name, "k", 0),
            ..bundle_start(batch, first_item, 2, queued())
        };
        worker.apply(vec![open_batch(batch), write(of_queue(0)), write(of_queue(2))]).await;
        let records = worker.claim(10).await;
        assert_eq!(records.len(), 2, "{name}");
        for mut record in records {
            assert_eq!(record.bundle.as_ref().map(|it| it.has_queue_limits), Some(has_limits), "{name}");
            record.bundle.as_mut().unwrap().has_queue_limits = false;
            assert_eq!(worker.record(record.execution.key).await, record, "{name}");
        }
    }
}

async fn takeover_keeps_the_record_of_a_bundle(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let filled = fill_bundle(&mut dead).await;
    fixture.mark_dead(dead.id).await;
    // five bundles, and a promoted item
    assert_eq!(other.take_over_dead_workers().await, 6);
    let late = dead.try_commit(vec![pack(filled.key, &[(15, Status::Completed)])]).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    let claimed = other.claim(10).await;
    assert_eq!(claimed.len(), 6);
    let record = claimed.iter().find(|record| record.execution.key == filled.key).unwrap();
    assert_eq!((record.execution.owner, record.execution.recoveries), (Some(other.id), 1));
    filled.assert_details_of(record);
    other
        .apply(vec![pack(filled.key, &[(15, Status::Completed)]), transition(filled.key, completed())])
        .await;
    assert_eq!(other.record(filled.key).await.bundle.unwrap().packs.len(), 4);
}

async fn unheld_bundle_has_its_items(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let filled = fill_bundle(&mut worker).await;
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    let unheld = worker.store.heartbeat(&heartbeat).await.unwrap().unheld;
    assert_eq!(unheld.len(), 6, "five bundles, and a promoted item");
    let record = unheld.iter().find(|record| record.execution.key == filled.key).unwrap();
    filled.assert_details_of(record);
    assert_eq!(*record, worker.record(filled.key).await);
}

async fn bundle_loads_in_both_details(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let filled = fill_bundle(&mut worker).await;
    let ids = [filled.batch, filled.key, filled.batch.item(11), filled.batch.item(12)].map(ExecutionId::Key);
    for detail in [Detail::Full, Detail::Outcome] {
        let loaded = worker.store.load(&ids, detail).await.unwrap();
        assert_eq!(loaded.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true]);
        let record = loaded[1].as_ref().unwrap();
        if detail == Detail::Full {
            filled.assert_details_of(record);
            assert!(!record.execution.input.is_empty());
        } else {
            filled.assert_bundle_of(record);
            assert!(record.execution.input.is_empty());
            assert!(record.checkpoints.is_empty() && record.attempts.is_empty());
        }
        assert!(loaded[0].as_ref().unwrap().bundle.is_none());
        assert!(loaded[3].as_ref().unwrap().bundle.is_none());
    }
}

async fn request_to_a_bundle_is_claimed_with_it(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let filled = fill_bundle(&mut worker).await;
    worker.commit(vec![cancel(filled.key)]).await;
    worker.apply(vec![transition(filled.key, queued())]).await;
    let record = worker.claim(10).await.remove(0);
    assert_eq!((record.execution.key, &record.requests), (filled.key, &vec![RequestKind::Cancel]));
    filled.assert_details_of(&record);
    assert_eq!(worker.heartbeat().await.requests, [(filled.key, RequestKind::Cancel)]);
}

async fn cancel_of_an_item_stays_until_its_bundle_ends(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let key = batch.bundle(3);
    worker.apply(vec![open_batch(batch), write(bundle_start(batch, 0, 4, queued()))]).await;
    let cancel_item = |index| {
        let (kind, reason) = (RequestKind::CancelItem(index), payload("cancelled"));
        Write::Request(Request { execution: key, id: batch.item(index), kind, at: at(1), reason })
    };
    let handled = |result| vec![Outcome::RequestHandled(result, None)];
    for index in [2, 0, 2] {
        assert_eq!(worker.commit(vec![cancel_item(index)]).await, handled(RequestResult::Pending));
    }
    let items = [RequestKind::CancelItem(0), RequestKind::CancelItem(2)];
    let claimed = worker.claim(10).await.remove(0);
    assert_eq!((claimed.execution.key, &claimed.requests[..]), (key, &items[..]));
    assert_eq!(worker.heartbeat().await.requests, items.map(|kind| (key, kind)));
    worker.apply(vec![transition(key, queued())]).await;
    assert_eq!(worker.claim(10).await.remove(0).requests, items, "they stay after a requeue");
    worker.apply(vec![transition(key, parked("pause"))]).await;
    assert_eq!(worker.commit(vec![cancel_item(3)]).await, handled(RequestResult::Pending));
    worker.commit(vec![resume(key)]).await;
    assert_eq!(worker.claim(10).await.remove(0).requests.len(), 3);
    worker.apply(vec![transition(key, completed())]).await;
    let after = handled(RequestResult::NotApplicable(Status::Completed));
    assert_eq!(worker.commit(vec![cancel_item(1)]).await, after);
    assert!(worker.record(key).await.requests.is_empty());
}

async fn pack_is_recorded_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let key = batch.bundle(3);
    let unrelated = Key::mint(0);
    let first = new_pack(key, &[(0, Status::Completed), (1, Status::Failed)]);
    worker.apply(vec![open_batch(batch), write(bundle_start(batch, 0, 4, running()))]).await;
    worker.apply(vec![Write::Pack(first.clone())]).await;
    let second = vec![start_queued(unrelated), pack(key, &[(0, Status::Failed), (2, Status::Completed)])];
    match worker.try_commit(second).await {
        Ok(outcomes) => assert!(matches!(outcomes[1], Outcome::Rejected(_)), "{outcomes:?}"),
        Err(error) => {
            assert!(matches!(error, StoreError::Rejected(_)), "{error}");
            assert!(!worker.exists(unrelated).await, "the flush was applied in part");
        }
    }
    let bundle = worker.record(key).await.bundle.unwrap();
    assert_eq!(bundle.packs.len(), 1);
    assert_eq!(bundle.outcomes(), Some(first.outcomes));
    // the same number in another bundle, and another number in this one
    worker.apply(vec![write(bundle_start(batch, 4, 2, running()))]).await;
    worker
        .apply(vec![pack(batch.bundle(5), &[(0, Status::Completed)]), pack(key, &[(2, Status::Completed)])])
        .await;
}

async fn large_packs_load_unchanged(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let mut rng = fastrand::Rng::with_seed(11);
    let mut bytes =
        |len: usize| Payload::from_bytes((0..len).map(|_| rng.u8(..)).collect::<Vec<u8>>().into());
    let outcomes: Vec<ItemOutcome> = [0, 1, 17, 400, 401, 1_000, 70_000, 300_000]
        .into_iter()
        .zip(0..)
        .map(|(len, index)| ItemOutcome { index, status: Status::Completed, outcome: bytes(len) })
        .collect();
    let equal = (8..2_000).map(|index| {
        let outcome = payload("equal");
        ItemOutcome { index, status: Status::Failed, outcome }
    });
    // neighbours have one length or several, with gaps between them
    let lengths = [9, 9, 9, 9, 30, 600, 1_400, 0];
    let mixed = (2_000..2_500).filter(|index: &u32| !index.is_multiple_of(97)).map(|index| {
        let status = if index.is_multiple_of(41) { Status::Cancelled } else { Status::Completed };
        let outcome = bytes(lengths[(index as usize / 8) % lengths.len()]);
        ItemOutcome { index, status, outcome }
    });
    let key = batch.bundle(2_499);
    let (equal, mixed) = (equal.collect(), mixed.collect());
    let each = outcomes.into_iter().map(|it| vec![it]);
    let packs: Vec<Pack> =
        each.chain([equal, mixed]).map(|outcomes| Pack { bundle: key, outcomes }).collect();
    worker.apply(vec![open_batch(batch), write(bundle_start(batch, 0, 2_500, running()))]).await;
    worker.apply(packs.iter().cloned().map(Write::Pack).collect()).await;
    let record = worker.record(key).await;
    let bundle = record.bundle.unwrap();
    assert!(bundle.packs.iter().zip(&packs).all(|(bytes, pack)| **bytes == *pack.encode()));
    assert_eq!(bundle.packs.len(), packs.len());
    let items = worker.store.batch_items(batch).await.unwrap();
    let packed = EndedItems { completed: 491, failed: 1_992, cancelled: 12 };
    assert_eq!(items.bundles, [(Status::Running, BundledItems { items: 2_500, packed })]);
    let ended: BTreeMap<u32, ItemOutcome> =
        packs.into_iter().flat_map(|pack| pack.outcomes).map(|it| (it.index, it)).collect();
    for share in [1, 3, 200] {
        let keys: Vec<Key> =
            (0..2_500).filter(|_| rng.u32(..share) == 0).map(|index| batch.item(index)).collect();
        for (key, found) in keys.iter().zip(worker.store.load_items(&keys).await.unwrap()) {
            let (found, end) = (found.unwrap(), ended.get(&key.item_index().unwrap()));
            let expected =
                end.map_or((Status::Running, Payload::empty()), |it| (it.status, it.outcome.clone()));
            assert_eq!(
                (found.status, found.outcome, found.unreadable),
                (expected.0, expected.1, None),
                "{key}"
            );
        }
    }
}

async fn items_are_loaded_by_their_keys(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut batches = [Key::mint_batch(0), Key::mint_batch(0)];
    batches.sort_unstable();
    let [batch, other] = batches;
    let placed =
        Start { placement: placement("mail", &batch.to_string(), 3), ..bundle_start(batch, 5, 5, running()) };
    worker.apply(vec![open_batch(batch), open_batch(other)]).await;
    worker.apply(vec![bundle(batch, 0, 5), write(placed), bundle(batch, 10, 3), bundle(other, 0, 2)]).await;
    let first_pack: Vec<(u32, Status)> = (5..8).map(|index| (index, Status::Completed)).collect();
    worker
        .apply(vec![pack(batch.bundle(9), &first_pack), pack(batch.bundle(9), &[(9, Status::Failed)])])
        .await;
    // a row overrides a packed outcome
    worker.apply(vec![promoted_item(batch, 3, sleeping(at(7))), promoted_item(batch, 6, queued())]).await;
    let store = fixture.second_store().await;
    let last_item = u32::try_from(MAX_BATCH_ITEMS - 1).unwrap();
    let mut keys: Vec<Key> =
        [0, 3, 4, 5, 5, 6, 8, 9, 10, 12, 13, 14, last_item].map(|index| batch.item(index)).into();
    keys.extend([0, 1, 2].map(|index| other.item(index)));
    keys.push(Key::mint_batch(0).item(0));
    let found = store.load_items(&keys).await.unwrap();
    let facts: Vec<Option<(Status, Payload)>> =
        found.iter().map(|it| it.as_ref().map(|it| (it.status, it.outcome.clone()))).collect();
    let queued = || Some((Status::Queued, Payload::empty()));
    let ended = |status, index| Some((status, payload(&format!("output of {index}"))));
    let expected = [
        queued(),
        Some((Status::Waiting, Payload::empty())),
        queued(),
        ended(Status::Completed, 5),
        ended(Status::Completed, 5),
        queued(),
        Some((Status::Running, Payload::empty())),
        ended(Status::Failed, 9),
        queued(),
        queued(),
        None,
        None,
        None,
        queued(),
        queued(),
        None,
        None,
    ];
    assert_eq!(facts, expected);
    for (key, execution) in keys.iter().zip(found) {
        let Some(execution) = execution else { continue };
        assert_eq!((execution.key, execution.parent.unwrap().key), (*key, key.batch().unwrap()));
        assert!(execution.input.is_empty(), "{key}");
    }
    // the bundle between these has no item that is searched for
    let apart = store.load_items(&[batch.item(0), batch.item(12)]).await.unwrap();
    assert!(apart.iter().all(Option::is_some), "{apart:?}");
    // the queue key that stands for the batch is none of the item
    let placed = store.load_items(&[batch.item(8)]).await.unwrap().pop().flatten().unwrap();
    assert_eq!(placed.placement, placement("mail", "", 3));
    // keys that are no items, alone and beside others
    let [execution, unknown] = [Key::mint(0), batch.bundle(9)];
    for keys in [&[execution][..], &[unknown], &[batch], &[]] {
        assert_eq!(store.load_items(keys).await.unwrap(), vec![None; keys.len()]);
    }
    let before = store.counters().snapshot().reads;
    store.load_items(&keys).await.unwrap();
    let reads = store.counters().snapshot().reads - before;
    // SQLite has a query of its own
    assert!(reads <= if store.info().kind == "sqlite" { 1 } else { 8 }, "{reads} reads");
}

async fn bundles_are_listed_by_page(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (batch, other) = (Key::mint_batch(0), Key::mint_batch(0));
    let bundles = (0..10).map(|n| bundle(batch, n * 5, 5));
    worker.apply([open_batch(batch), open_batch(other)].into_iter().chain(bundles).collect()).await;
    worker
        .apply(vec![
            bundle(other, 0, 7),
            promoted_item(batch, 4, running()),
            promoted_item(batch, 7, queued()),
        ])
        .await;
    let all: Vec<Key> = (0..10).map(|n| batch.bundle(n * 5 + 4)).collect();
    let store = fixture.second_store().await;
    let last_item = u32::try_from(MAX_BATCH_ITEMS - 1).unwrap();
    for (first_item, limit, expected) in [
        (0, 100, &all[..]),
        (0, 3, &all[..3]),
        (14, 3, &all[2..5]),
        (15, 3, &all[3..6]),
        (49, 3, &all[9..]),
        (50, 3, &[]),
        (last_item, 3, &[]),
        (u32::MAX, 3, &[]),
        (0, 0, &[]),
        (0, u64::MAX, &all[..]),
    ] {
        let found = store.bundles(batch, first_item, limit).await.unwrap();
        assert_eq!(found, expected, "{limit} from item {first_item}");
    }
    assert_eq!(store.bundles(other, 0, 10).await.unwrap(), [other.bundle(6)]);
    for key in [Key::mint_batch(0), Key::mint(0), batch.item(0), batch.bundle(4)] {
        assert!(store.bundles(key, 0, 10).await.unwrap().is_empty());
    }
}

async fn bundles_are_missing_in_lists_and_counts(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    let execution = Key::from_bytes([0xff; 16].map(|byte: u8| byte & 0xbf)); // sorts last
    worker
        .apply(vec![
            open_batch(batch),
            bundle(batch, 0, 5),
            write(bundle_start(batch, 5, 5, completed())),
            start_queued(execution),
            promoted_item(batch, 0, queued()),
            promoted_item(batch, 6, completed()),
        ])
        .await;
    let filter = Filter::default();
    let of_queue = Some(stepfast_core::queue::DEFAULT_QUEUE.into());
    let all = vec![batch.item(0), batch.item(6), batch, execution];
    for (filter, expected) in [
        (filter.clone(), all.clone()),
        (Filter { statuses: vec![Status::Queued], ..filter.clone() }, vec![batch.item(0), execution]),
        (Filter { statuses: vec![Status::Completed], ..filter.clone() }, vec![batch.item(6)]),
        (Filter { statuses: vec![Status::Waiting], ..filter.clone() }, vec![batch]),
        (Filter { statuses: Status::ALL.to_vec(), ..filter.clone() }, all.clone()),
        (Filter { parent: Some(batch), ..filter.clone() }, vec![batch.item(0), batch.item(6)]),
        (
            Filter { parent: Some(batch), statuses: vec![Status::Queued], ..filter.clone() },
            vec![batch.item(0)],
        ),
        (Filter { workflow: Some(Arc::from("checkout")), ..filter.clone() }, all.clone()),
        (Filter { queue: of_queue, ..filter.clone() }, all.clone()),
        (Filter { is_parked: Some(false), ..filter.clone() }, all.clone()),
        (Filter { id_prefix: Some(batch.to_string().into()), ..filter.clone() }, vec![batch]),
        (Filter { id_prefix: Some(batch.bundle(4).to_string().into()), ..filter.clone() }, vec![]),
        (Filter { created_from: Some(at(0)), ..filter.clone() }, all.clone()),
        (Filter { after: Some(batch), ..filter.clone() }, vec![batch.item(0), batch.item(6)]),
    ] {
        let page = worker.store.list(&filter).await.unwrap();
        let listed: BTreeSet<Key> = page.executions.iter().map(|row| row.key).collect();
        assert_eq!(listed, expected.iter().copied().collect(), "{filter:?}");
        let count = Filter { limit: 0, after: None, ..filter.clone() };
        let total = if filter.after.is_some() { all.len() } else { expected.len() };
        assert_eq!(worker.store.list(&count).await.unwrap().total, Some(total as u64), "{filter:?}");
    }
    // a page is full although bundles are skipped
    let page = worker.store.list(&Filter { limit: 2, after: Some(execution), ..filter }).await.unwrap();
    let listed: Vec<Key> = page.executions.iter().map(|row| row.key).collect();
    assert_eq!(listed, [batch, batch.item(6)]);
}

async fn keys_of_any_bytes_are_listed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut keys = Vec::new();
    for variant in [0x00, 0x3f, 0x40, 0x7f, 0x80, 0xbf, 0xc0, 0xff] {
        for number in [0, 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff_u32] {
            let mut bytes = [7; 16];
            bytes[8] = variant;
            bytes[10..14].copy_from_slice(&number.to_be_bytes());
            keys.push(Key::from_bytes(bytes));
        }
    }
    // what is no bundle by its key is an ordinary execution
    keys.retain(|key| key.last_index().is_none());
    keys.sort_unstable();
    worker.apply(keys.iter().map(|key| start_queued(*key)).collect()).await;
    let page = worker.store.list(&Filter { limit: 100, ..Filter::default() }).await.unwrap();
    let listed: Vec<Key> = page.executions.iter().rev().map(|row| row.key).collect();
    assert_eq!(listed, keys);
    assert_eq!(worker.count().await, keys.len() as u64);
}

async fn items_of_a_batch_are_counted_by_state(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (batch, other) = (Key::mint_batch(0), Key::mint_batch(0));
    let states = [
        queued(),
        running(),
        parked("why"),
        completed(),
        ended(Status::Failed, "x"),
        ended(Status::Cancelled, "x"),
    ];
    // two bundles of each state, of 10 and of 20 items
    let mut writes = vec![closed_batch(batch, 1_000), open_batch(other)];
    let mut packs = Vec::new();
    for (state, n) in states.iter().zip(0..) {
        let first = n * 30;
        for (first, count) in [(first, 10), (first + 10, 20)] {
            writes.push(write(bundle_start(batch, first, count, state.clone())));
            let bundle = batch.bundle(first + count - 1);
            packs.push(pack(bundle, &[(first, Status::Completed), (first + 1, Status::Failed)]));
            packs.push(pack(bundle, &[(first + 2, Status::Cancelled), (first + 3, Status::Completed)]));
        }
    }
    writes.extend([write(bundle_start(other, 0, 5, running())), promoted_item(other, 1, running())]);
    packs.push(pack(other.bundle(4), &[(0, Status::Completed)]));
    worker.apply(writes).await;
    worker.apply(packs).await;
    let mut promoted: Vec<State> = states.to_vec();
    promoted.extend([sleeping(at(90)), State::Scheduled { due_at: at(90) }, completed()]);
    let promoted =
        promoted.into_iter().zip(0..).map(|(state, index)| promoted_item(batch, index * 13, state));
    worker.apply(promoted.collect()).await;
    let items = worker.store.batch_items(batch).await.unwrap();
    let of_two = BundledItems { items: 30, packed: EndedItems { completed: 4, failed: 2, cancelled: 2 } };
    let of_four = BundledItems { items: 60, packed: EndedItems { completed: 8, failed: 4, cancelled: 4 } };
    let expected = BatchItems {
        closed_with: Some(1_000),
        bundles: vec![
            (Status::Queued, of_four),
            (Status::Running, of_two),
            (Status::Completed, of_two),
            (Status::Failed, of_two),
            (Status::Cancelled, of_two),
        ],
        promoted: vec![
            (Status::Scheduled, 1),
            (Status::Queued, 2),
            (Status::Running, 1),
            (Status::Waiting, 1),
            (Status::Completed, 2),
            (Status::Failed, 1),
            (Status::Cancelled, 1),
        ],
        retried: 0,
    };
    assert_eq!(items, expected);
    let of_other = worker.store.batch_items(other).await.unwrap();
    let packed = EndedItems { completed: 1, ..EndedItems::default() };
    assert_eq!(of_other.bundles, [(Status::Running, BundledItems { items: 5, packed })]);
    assert_eq!((of_other.promoted, of_other.closed_with), (vec![(Status::Running, 1)], None));
}

async fn items_of_unfinished_and_ended_batches_are_counted(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let (batch, empty) = (Key::mint_batch(0), Key::mint_batch(0));
    worker
        .apply(vec![open_batch(empty), closed_batch(batch, 3), write(bundle_start(batch, 0, 3, running()))])
        .await;
    let store = fixture.second_store().await;
    assert_eq!(store.batch_items(empty).await.unwrap(), BatchItems::default());
    let mut expected = BatchItems {
        closed_with: Some(3),
        bundles: vec![(Status::Running, BundledItems { items: 3, packed: EndedItems::default() })],
        promoted: Vec::new(),
        retried: 0,
    };
    assert_eq!(store.batch_items(batch).await.unwrap(), expected);
    worker
        .apply(vec![
            pack(batch.bundle(2), &[(0, Status::Completed), (1, Status::Failed), (2, Status::Completed)]),
            transition(batch.bundle(2), completed()),
        ])
        .await;
    worker.apply(vec![Write::Wake(batch)]).await;
    let packed = EndedItems { completed: 2, failed: 1, cancelled: 0 };
    expected.closed_with = None;
    expected.bundles = vec![(Status::Completed, BundledItems { items: 3, packed })];
    assert_eq!(store.batch_items(batch).await.unwrap(), expected);
    for key in [Key::mint_batch(0), Key::mint(0), batch.item(0), batch.bundle(2)] {
        assert_eq!(store.batch_items(key).await.unwrap(), BatchItems::default(), "{key}");
    }
}

async fn retried_item_overrides_its_packed_failure(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let batch = Key::mint_batch(0);
    worker.apply(vec![closed_batch(batch, 3), write(bundle_start(batch, 0, 3, running()))]).await;
    worker
        .apply(vec![
            pack(batch.bundle(2), &[(0, Status::Completed), (1, Status::Failed), (2, Status::Failed)]),
            transition(batch.bundle(2), completed()),
        ])
        .await;
    worker.apply(vec![Write::Wake(batch)]).await;
    let failed = ended(Status::Failed, "output of 1");
    let retried = Start { item_count: Some(1), is_guarded: true, ..child_of(batch, batch.item(1), failed) };
    assert!(!write(retried.clone()).is_owned(), "a caller retries it");
    assert_eq!(worker.commit_one(write(retried.clone())).await, Outcome::Applied);
    assert!(matches!(worker.commit_one(write(retried)).await, Outcome::Duplicate(_)));
    let counts = worker.store.batch_items(batch).await.unwrap().counts();
    assert_eq!((counts.submitted, counts.ended.total(), counts.ended.failed), (3, 3, 2));
    worker.apply(vec![Write::Checkpoint(checkpoint(batch.item(1), 1, "v"))]).await;
    let resumed = worker.commit_one(resume(batch.item(1))).await;
    assert_eq!(resumed, Outcome::RequestHandled(RequestResult::Done, None));
    let items = worker.store.batch_items(batch).await.unwrap();
    assert_eq!((items.retried, &*items.promoted), (1, &[(Status::Queued, 1)][..]));
    let counts = items.counts();
    assert_eq!((counts.queued, counts.ended.total(), counts.ended.failed), (1, 2, 1));
    let claimed = worker.claim(10).await;
    let loaded = worker.record(batch.item(1)).await;
    assert_eq!(claimed, std::slice::from_ref(&loaded));
    assert_eq!((loaded.bundle, loaded.checkpoints.len()), (None, 1));
    worker.apply(vec![transition(batch.item(1), completed())]).await;
    let counts = worker.store.batch_items(batch).await.unwrap().counts();
    assert_eq!((counts.ended.completed, counts.ended.failed), (2, 1));
    let record = worker.record(batch.bundle(2)).await.bundle.unwrap();
    assert_eq!(record.promoted, [1]);
    let counted = worker.store.list(&Filter { limit: 0, ..Filter::default() }).await.unwrap();
    assert_eq!(counted.total, Some(2), "the batch and the retried item");
}

/// Two processes that append to one batch at once never create overlapping bundles.
async fn racing_bundles_never_overlap(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let mut two = Worker::register(&fixture.second_store().await).await;
    let batch = Key::mint_batch(0);
    one.apply(vec![open_batch(batch)]).await;
    let mut next = 0;
    for _ in 0..25 {
        let append = |mut worker: Worker, count: u32| async move {
            let writes = vec![bundle(batch, next, count), bundle(batch, next + count, count)];
            let outcomes = worker.commit_with_retry(writes).await;
            (worker, outcomes)
        };
        let (first, second) = (tokio::spawn(append(one, 2)), tokio::spawn(append(two, 3)));
        let (of_one, of_two);
        (one, of_one) = first.await.unwrap();
        (two, of_two) = second.await.unwrap();
        let (applied, missing) =
            ([Outcome::Applied, Outcome::Applied], [Outcome::NotFound, Outcome::NotFound]);
        assert!(
            of_one == applied && of_two == missing || of_one == missing && of_two == applied,
            "{of_one:?}, {of_two:?}"
        );
        next += if of_one == applied { 4 } else { 6 };
    }
    let items = one.store.batch_items(batch).await.unwrap();
    assert_eq!(items.counts().submitted, u64::from(next));
}
