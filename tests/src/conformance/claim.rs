//! Claims: which worker receives which executions, and in which order.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::Payload;
use stepfast_core::store::{
    Attempt, CLAIMED_ROW_BYTES, Checkpoint, CheckpointKind, Claim, Detail, ExecutionId, RequestKind, Start,
    State, Status, StoreError, Write,
};

use crate::fixtures::builders::{
    at, attempt, awaiting, cancel, checkpoint, completed, continuation, keys, parked, part_path, payload,
    pending_sleeps, queued, running, sleeping, start, start_in, start_queued, start_running, transition,
    write,
};
use crate::{StoreFixture, Worker};

super::cases![
    ready_executions_are_claimed_oldest_first,
    due_sleepers_are_claimed_first_by_due_time,
    timers_never_fire_early,
    due_and_ready_executions_share_claims,
    claim_takes_at_most_its_limit,
    claim_takes_only_its_workflows,
    claim_returns_the_whole_record,
    claim_returns_the_last_part_of_an_execution,
    execution_is_claimed_once,
    claim_takes_at_least_one_execution_of_any_size,
    claim_takes_at_most_its_bytes,
    rows_count_towards_the_bytes_of_a_claim,
    rows_of_earlier_parts_do_not_count_towards_the_bytes_of_a_claim,
    claim_with_limit_zero_takes_nothing,
    claim_succeeds_after_empty_claims,
    sleeper_without_due_time_is_not_claimed,
    claim_is_durable_when_it_returns,
    suspended_execution_is_claimed_again_when_due,
    claim_takes_a_thousand_at_once,
    cancelled_and_parked_executions_are_not_claimed,
    claim_of_wrong_registration_is_fenced,
];

async fn ready_executions_are_claimed_oldest_first(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [a, b, c, d]: [Key; 4] = keys();
    // not in the order of their keys: executions are ordered by the time at which they became ready
    for key in [c, a, d, b] {
        worker.apply(vec![start_queued(key)]).await;
    }
    assert_eq!(worker.claim_keys(2).await, [c, a]);
    // an execution that has begun continues before another begins
    worker.apply(vec![transition(c, queued())]).await;
    assert_eq!(worker.claim_keys(10).await, [c, d, b]);
}

async fn due_sleepers_are_claimed_first_by_due_time(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [ready, late, early, never] = keys();
    worker
        .apply(vec![
            start_queued(ready),
            start_in(late, sleeping(at(20))),
            start_in(early, sleeping(at(10))),
            start_in(never, sleeping(at(1_000))),
        ])
        .await;
    fixture.clock().advance(Duration::from_micros(30));
    assert_eq!(worker.claim_keys(1).await, [early]);
    assert_eq!(worker.claim_keys(10).await, [late, ready]);
}

async fn timers_never_fire_early(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_in(key, sleeping(at(3_600_000_000)))]).await;
    assert!(worker.claim(10).await.is_empty());
    fixture.clock().advance(Duration::from_micros(3_599_999_999));
    assert!(worker.claim(10).await.is_empty());
    assert!(!worker.heartbeat().await.has_ready);
    fixture.clock().advance(Duration::from_micros(1));
    let claimed = worker.claim(10).await;
    assert_eq!(claimed.len(), 1);
    let row = &claimed[0].execution;
    assert_eq!((row.key, row.status, row.wake_at), (key, Status::Running, None));
    assert_eq!(worker.heartbeat().await.next_due, None);
}

async fn claim_takes_at_most_its_limit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let ready: [Key; 5] = keys();
    let due: [Key; 5] = keys();
    worker.apply(ready.map(start_queued).to_vec()).await;
    worker.apply(due.map(|key| start_in(key, sleeping(at(-1)))).to_vec()).await;
    let mut all = Vec::new();
    for count in [3, 3, 3, 1, 0] {
        let claimed = worker.claim_keys(3).await;
        assert_eq!(claimed.len(), count);
        all.extend(claimed);
    }
    all.sort_unstable();
    let mut expected = [ready, due].concat();
    expected.sort_unstable();
    assert_eq!(all, expected);
}

/// Neither a burst of due executions nor many ready ones keep the others waiting. The capacity that one kind leaves goes to
/// the other.
async fn due_and_ready_executions_share_claims(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let due: [Key; 8] = keys();
    let ready: [Key; 8] = keys();
    worker.apply(due.map(|key| start_in(key, sleeping(at(-1)))).to_vec()).await;
    worker.apply(ready.map(start_queued).to_vec()).await;
    let due_in = |claimed: &[Key]| claimed.iter().filter(|key| due.contains(key)).count();
    let claimed = [worker.claim_keys(1).await, worker.claim_keys(1).await].concat();
    assert_eq!((claimed.len(), due_in(&claimed)), (2, 1), "one of each kind in two claims");
    let claimed = worker.claim_keys(4).await;
    assert_eq!((claimed.len(), due_in(&claimed)), (4, 2));
    assert!(due.contains(&claimed[0]), "due ones come first");
    worker.apply((0..4).map(|_| start_queued(Key::mint(0))).collect()).await;
    let claimed = worker.claim_keys(8).await;
    assert_eq!((claimed.len(), due_in(&claimed)), (8, 4));
    let claimed = worker.claim_keys(8).await;
    assert_eq!((claimed.len(), due_in(&claimed)), (6, 1));
    // ready executions leave room for more due ones than their share
    let due: [Key; 6] = keys();
    let ready = Key::mint(0);
    worker.apply(due.map(|key| start_in(key, sleeping(at(-1)))).to_vec()).await;
    worker.apply(vec![start_queued(ready)]).await;
    let claimed = worker.claim_keys(6).await;
    assert_eq!((claimed.len(), claimed.contains(&ready)), (6, true));
    assert_eq!(worker.claim_keys(6).await.len(), 1);
}

async fn claim_takes_only_its_workflows(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let named = |name: &str, state| write(Start { workflow: name.into(), ..start(Key::mint(0), state) });
    for name in ["a", "b", "A", "a "] {
        worker.apply(vec![named(name, queued()), named(name, sleeping(at(-1)))]).await;
    }
    for (names, count) in
        [(vec![], 0), (vec!["c"], 0), (vec!["a"], 2), (vec!["a", "b", "a "], 4), (vec!["A"], 2)]
    {
        worker.workflows = names.iter().map(|name| Arc::from(*name)).collect();
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), count, "{names:?}");
        assert!(claimed.iter().all(|record| names.contains(&&*record.execution.workflow)));
    }
}

async fn claim_returns_the_whole_record(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    let sleeps = pending_sleeps(&[(4, 44)]);
    let given = Start {
        workflow_id: Some("order-7".into()),
        input: payload("in"),
        deadline_at: Some(at(999)),
        ..start(key, running())
    };
    first.apply(vec![write(given)]).await;
    first
        .apply(vec![
            Write::Checkpoint(checkpoint(key, 2, "b")),
            Write::Checkpoint(checkpoint(key, 1, "a")),
            Write::Attempt(attempt(key, 3, 2)),
            Write::Attempt(attempt(key, 3, 1)),
        ])
        .await;
    first.commit(vec![cancel(key)]).await;
    first.apply(vec![transition(key, State::Queued { pending_sleeps: sleeps.clone() })]).await;

    let mut second = Worker::register(&fixture.second_store().await).await;
    let record = second.claim(1).await.remove(0);
    let row = &record.execution;
    assert_eq!((row.key, row.status, row.owner), (key, Status::Running, Some(second.id)));
    assert_eq!((row.given_id.as_deref(), &row.input), (Some("order-7"), &payload("in")));
    assert_eq!((row.deadline_at, &row.pending_sleeps), (Some(at(999)), &sleeps));
    assert_eq!(record.checkpoints, [checkpoint(key, 1, "a"), checkpoint(key, 2, "b")]);
    assert_eq!(record.attempts, [attempt(key, 3, 1), attempt(key, 3, 2)]);
    assert_eq!(record.requests, [RequestKind::Cancel]);
    assert_eq!(second.record(key).await, record, "a load returns the same record");
}

async fn claim_returns_the_last_part_of_an_execution(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [continued, plain] = keys();
    let part = part_path;
    let at_path = |path: Path, kind: CheckpointKind, order: u32| {
        let recorded = checkpoint(continued, order, &format!("value {order}"));
        Checkpoint { path, kind, order, ..recorded }
    };
    let step = |path: Path, order: u32| at_path(path, CheckpointKind::Step, order);
    let checkpoints = [
        step(Path::root().child(1), 1),
        step(Path::root().child(300), 2),
        at_path(part(1), CheckpointKind::Continued, 3),
        step(part(1).child(1), 4),
        at_path(part(2), CheckpointKind::Continued, 5),
        step(part(2).child(1), 6),
        // a call that the code has abandoned begins no part
        at_path(part(3), CheckpointKind::Abandoned, 7),
        step(part(2).child(2), 8),
    ];
    let failed = |path: Path, number: u32| Attempt { path, ..attempt(continued, 0, number) };
    let attempts =
        [failed(Path::root().child(1), 1), failed(part(1).child(1), 1), failed(part(2).child(2), 1)];
    worker.apply(vec![start_running(continued), start_running(plain)]).await;
    worker.apply(checkpoints.iter().cloned().map(Write::Checkpoint).collect()).await;
    worker.apply(attempts.iter().cloned().map(Write::Attempt).collect()).await;
    worker.apply(vec![Write::Checkpoint(checkpoint(plain, 1, "plain"))]).await;
    worker.apply(vec![transition(continued, queued()), transition(plain, queued())]).await;
    let mut records = worker.claim(10).await;
    records.sort_by_key(|record| record.execution.key != continued);
    assert_eq!(records[0].checkpoints, checkpoints[4..]);
    assert_eq!(records[0].attempts, attempts[2..]);
    assert_eq!(records[1].checkpoints.len(), 1);
    let ids = [ExecutionId::Key(continued), ExecutionId::Key(plain)];
    let loaded = fixture.store().load(&ids, Detail::LastPart).await.unwrap();
    assert_eq!(loaded, records.into_iter().map(Some).collect::<Vec<_>>());
    // the whole record is shown
    let whole = worker.record(continued).await;
    assert_eq!((&whole.checkpoints[..], &whole.attempts[..]), (&checkpoints[..], &attempts[..]));
}

async fn execution_is_claimed_once(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let [ready, due] = keys();
    first.apply(vec![start_queued(ready), start_in(due, sleeping(at(-1)))]).await;
    assert_eq!(first.claim_keys(10).await, [due, ready]);
    assert!(second.claim(10).await.is_empty());
    assert!(first.claim(10).await.is_empty());
    assert_eq!(second.execution(ready).await.owner, Some(first.id));
}

async fn claim_takes_at_least_one_execution_of_any_size(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for key in keys::<3>() {
        worker.apply(vec![start_queued(key)]).await;
    }
    for count in [1, 1, 1, 0] {
        let claim = Claim { max_bytes: 1, ..worker.new_claim(10) };
        assert_eq!(worker.try_claim(&claim).await.unwrap().len(), count);
    }
}

async fn claim_takes_at_most_its_bytes(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let large = Payload::from_bytes(Bytes::from(vec![1; 50_000]));
    // half of the bytes in inputs, half in checkpoints
    for i in 0..20 {
        let key = Key::mint(0);
        if i % 2 == 0 {
            worker.apply(vec![write(Start { input: large.clone(), ..start(key, queued()) })]).await;
        } else {
            let mut step = checkpoint(key, 1, "");
            step.outcome = large.clone();
            worker.apply(vec![start_running(key), Write::Checkpoint(step)]).await;
            worker.apply(vec![transition(key, queued())]).await;
        }
    }
    let mut total = 0;
    while total < 20 {
        let claim = Claim { max_bytes: 200_000, ..worker.new_claim(100) };
        let count = worker.try_claim(&claim).await.unwrap().len();
        assert!((1..=5).contains(&count), "{count} claimed");
        total += count;
    }
    assert!(worker.claim(100).await.is_empty());
}

/// Many small rows take much memory.
async fn rows_count_towards_the_bytes_of_a_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for _ in 0..6 {
        let key = Key::mint(0);
        let steps = (0..50).map(|n| Write::Checkpoint(checkpoint(key, n, "")));
        worker.apply([start_running(key)].into_iter().chain(steps).collect()).await;
        worker.apply(vec![transition(key, queued())]).await;
    }
    let mut total = 0;
    while total < 6 {
        let claim = Claim { max_bytes: 2 * 50 * CLAIMED_ROW_BYTES + 1_000, ..worker.new_claim(10) };
        let count = worker.try_claim(&claim).await.unwrap().len();
        // a store may find the size of the last one only after it has taken it
        assert!((2..=3).contains(&count), "{count} claimed");
        total += count;
    }
}

async fn rows_of_earlier_parts_do_not_count_towards_the_bytes_of_a_claim(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for key in keys::<3>() {
        let steps = (1..=50).map(|n| Write::Checkpoint(checkpoint(key, n, "")));
        let failed = (1..=50).map(|n| Write::Attempt(attempt(key, n, 1)));
        let continued = Write::Checkpoint(continuation(key, 1, 51));
        worker.apply([start_running(key), continued].into_iter().chain(steps).chain(failed).collect()).await;
        worker.apply(vec![transition(key, queued())]).await;
    }
    let claim = Claim { max_bytes: 50 * CLAIMED_ROW_BYTES, ..worker.new_claim(10) };
    assert_eq!(worker.try_claim(&claim).await.unwrap().len(), 3);
}

async fn claim_with_limit_zero_takes_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    assert!(worker.claim(0).await.is_empty());
    assert_eq!(worker.claim_keys(1).await, [key]);
}

async fn claim_succeeds_after_empty_claims(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for key in keys::<3>() {
        assert!(worker.claim(10).await.is_empty());
        assert!(worker.claim(10).await.is_empty());
        worker.apply(vec![start_queued(key)]).await;
        assert_eq!(worker.claim_keys(10).await, [key]);
    }
}

async fn sleeper_without_due_time_is_not_claimed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [parent, child] = keys();
    worker.apply(vec![start_in(child, completed()), start_in(parent, awaiting(&[child]))]).await;
    fixture.clock().advance(Duration::from_hours(1));
    assert!(worker.claim(10).await.is_empty());
}

async fn claim_is_durable_when_it_returns(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    let record = worker.claim(10).await.remove(0);
    let other = Worker::register(&fixture.second_store().await).await;
    assert_eq!(other.record(key).await, record);
}

async fn suspended_execution_is_claimed_again_when_due(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    for round in 0..5 {
        assert_eq!(worker.claim_keys(10).await, [key], "round {round}");
        let due = fixture.now().plus(Duration::from_secs(1));
        worker.apply(vec![transition(key, sleeping(due))]).await;
        assert!(worker.claim(10).await.is_empty());
        fixture.clock().advance(Duration::from_secs(1));
    }
}

async fn claim_takes_a_thousand_at_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut expected: Vec<Key> = (0..1_500).map(|_| Key::mint(0)).collect();
    let steps: Vec<Write> =
        expected.iter().map(|key| Write::Checkpoint(checkpoint(*key, 1, &key.to_string()))).collect();
    // they ran for a while, and were requeued before their Start was durable
    let begun = |key: &Key| write(Start { has_begun: true, ..start(*key, queued()) });
    worker.apply(expected.iter().map(begun).chain(steps).collect()).await;
    let mut first = worker.claim(1_000).await;
    assert_eq!(first.len(), 1_000);
    first.extend(worker.claim(1_000).await);
    for record in &first {
        let key = record.execution.key;
        assert_eq!(record.checkpoints, [checkpoint(key, 1, &key.to_string())]);
    }
    let mut claimed: Vec<Key> = first.iter().map(|record| record.execution.key).collect();
    claimed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}

async fn cancelled_and_parked_executions_are_not_claimed(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [ready, sleeper, was_parked, unaffected] = keys();
    worker
        .apply(vec![
            start_queued(ready),
            start_in(sleeper, sleeping(at(-1))),
            start_in(was_parked, parked("why")),
            start_queued(unaffected),
        ])
        .await;
    worker.commit(vec![cancel(ready), cancel(sleeper)]).await;
    let reply = worker.heartbeat().await;
    assert_eq!((reply.has_ready, reply.next_due), (true, None));
    assert_eq!(worker.claim_keys(10).await, [unaffected]);
    assert!(!worker.heartbeat().await.has_ready);
}

async fn claim_of_wrong_registration_is_fenced(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_queued(key)]).await;
    let valid = worker.new_claim(10);
    let mut stale = valid.clone();
    stale.epoch += 1;
    let mut unknown = valid.clone();
    unknown.worker.0 += 1_000;
    for claim in [stale, unknown] {
        assert!(matches!(worker.store.claim(&claim).await, Err(StoreError::Fenced)));
    }
    assert_eq!(worker.claim_keys(10).await, [key]);
}
