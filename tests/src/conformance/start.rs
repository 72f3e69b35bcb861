//! Starts: the rows that they create, and the outcomes of duplicates.

use std::sync::Arc;

use bytes::Bytes;
use stepfast_core::attributes::Attributes;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    Detail, ExecutionId, ExistingExecution, Heartbeat, Outcome, Parent, Start, State, Status, StoreError,
    Wait,
};

use crate::fixtures::builders::{
    at, awaiting, child_of, completed, ended, incompressible_text, keys, nasty_texts, parked, payload,
    pending_sleeps, placement, queued, running, sleeping, start, start_queued, start_running, transition,
    write,
};
use crate::{StoreFixture, Worker};

super::cases![
    start_creates_a_row_in_each_state,
    start_stores_every_column,
    duplicate_key_returns_the_existing_execution,
    duplicate_workflow_id_returns_the_existing_execution,
    duplicate_start_returns_the_current_status,
    duplicate_start_leaves_the_rest_of_its_flush_unaffected,
    duplicate_start_changes_nothing,
    duplicate_start_of_a_child_returns_its_parent,
    workflow_id_accepts_any_text,
    workflow_name_accepts_any_text,
    longest_names_of_a_start_are_claimable,
    text_with_nul_is_stored_or_rejected_cleanly,
    payload_bytes_load_unchanged,
    extreme_numbers_load_unchanged,
    folded_execution_has_no_owner,
];

async fn start_creates_a_row_in_each_state(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [run, queue, wait, park, complete, fail, cancel, child] = keys();
    let sleeps = pending_sleeps(&[(1, 50), (300, 90)]);
    let waiting = State::Waiting {
        wake_at: Some(at(50)),
        waits: Wait::for_children([child]),
        pending_sleeps: sleeps.clone(),
    };
    worker
        .apply(vec![
            write(start(run, State::Running { pending_sleeps: sleeps.clone() })),
            write(start(queue, queued())),
            write(start(wait, waiting)),
            write(start(park, parked("why"))),
            write(start(complete, completed())),
            write(start(fail, ended(Status::Failed, "boom"))),
            write(start(cancel, ended(Status::Cancelled, "stop"))),
        ])
        .await;

    let row = worker.execution(run).await;
    assert_eq!((row.status, row.owner, row.is_parked), (Status::Running, Some(worker.id), false));
    assert_eq!((row.pending_sleeps, row.wake_at, row.ended_at), (sleeps.clone(), None, None));
    let row = worker.execution(queue).await;
    assert_eq!((row.status, row.owner, row.is_parked), (Status::Queued, None, false));
    let row = worker.execution(wait).await;
    assert_eq!((row.status, row.owner, row.is_parked), (Status::Waiting, None, false));
    assert_eq!((row.pending_sleeps, row.wake_at), (sleeps, Some(at(50))));
    let row = worker.execution(park).await;
    assert_eq!((row.status, row.owner, row.is_parked), (Status::Queued, None, true));
    assert_eq!((row.outcome, row.ended_at), (payload("why"), None));
    for (key, status, outcome) in [
        (complete, Status::Completed, "output"),
        (fail, Status::Failed, "boom"),
        (cancel, Status::Cancelled, "stop"),
    ] {
        let row = worker.execution(key).await;
        assert_eq!((row.status, row.owner, row.is_parked), (status, None, false));
        assert_eq!((row.outcome, row.ended_at), (payload(outcome), Some(at(5))));
    }
}

async fn start_stores_every_column(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [root, parent, key] = keys();
    let given = Start {
        key,
        root,
        parent: Some(Parent { key: parent, is_detached: true }),
        workflow_id: Some("order-7".into()),
        workflow: "ship".into(),
        app_version: Some("v7".into()),
        placement: placement("emails", "acme", -3),
        fingerprint: Some(77),
        input: payload("in"),
        created_at: at(-3),
        deadline_at: Some(at(1_000_001)),
        item_count: None,
        is_guarded: true,
        has_begun: false,
        self_claims: false,
        dedup_id: None,
        debounce_window: None,
        run_timeout: None,
        attributes: Attributes::NONE,
        state: running(),
    };
    worker.apply(vec![write(given.clone())]).await;
    let record = worker.record(key).await;
    let row = record.execution;
    assert_eq!((row.key, row.root, row.parent), (key, root, given.parent));
    assert_eq!((row.given_id, row.workflow, row.fingerprint), (given.workflow_id, given.workflow, Some(77)));
    assert_eq!((row.input, row.outcome), (given.input, Payload::empty()));
    assert_eq!((row.created_at, row.deadline_at, row.ended_at), (at(-3), Some(at(1_000_001)), None));
    assert_eq!((row.run_no, row.recoveries, row.wake_at, row.pending_sleeps), (1, 0, None, Vec::new()));
    assert_eq!((row.strikes, row.app_version, row.placement), (0, given.app_version, given.placement));
    assert!(record.checkpoints.is_empty() && record.attempts.is_empty() && record.requests.is_empty());
}

async fn duplicate_key_returns_the_existing_execution(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let key = Key::mint(0);
    first.apply(vec![start_running(key)]).await;
    let duplicate = Start { workflow: "other".into(), is_guarded: true, ..start(key, queued()) };
    let existing = ExistingExecution {
        given_id: None,
        key,
        workflow: "checkout".into(),
        fingerprint: None,
        parent: None,
        status: Status::Running,
    };
    assert_eq!(second.commit_one(write(duplicate)).await, Outcome::Duplicate(Box::new(existing)));
}

async fn duplicate_workflow_id_returns_the_existing_execution(fixture: &dyn StoreFixture) {
    let mut first = Worker::register(&fixture.store()).await;
    let mut second = Worker::register(&fixture.second_store().await).await;
    let [a, b] = keys();
    let one = Start {
        workflow_id: Some("order-7".into()),
        fingerprint: Some(u64::MAX - 1),
        is_guarded: true,
        ..start(a, completed())
    };
    let two = Start { key: b, root: b, workflow: "other".into(), fingerprint: Some(2), ..one.clone() };
    first.apply(vec![write(one)]).await;
    let existing = ExistingExecution {
        given_id: Some("order-7".into()),
        key: a,
        workflow: "checkout".into(),
        fingerprint: Some(u64::MAX - 1),
        parent: None,
        status: Status::Completed,
    };
    assert_eq!(second.commit_one(write(two)).await, Outcome::Duplicate(Box::new(existing)));
    assert!(!second.exists(b).await);
}

async fn duplicate_start_returns_the_current_status(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for state in [running(), queued(), sleeping(at(90)), parked("why"), completed()] {
        let key = Key::mint(0);
        worker.apply(vec![start_running(key)]).await;
        worker.apply(vec![transition(key, state.clone())]).await;
        let duplicate = Start { is_guarded: true, ..start(key, queued()) };
        let Outcome::Duplicate(existing) = worker.commit_one(write(duplicate)).await else {
            panic!("not a duplicate")
        };
        assert_eq!(existing.status, state.status());
    }
}

async fn duplicate_start_leaves_the_rest_of_its_flush_unaffected(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let keys: [Key; 9] = keys();
    worker.apply(vec![start_queued(keys[2]), start_queued(keys[7])]).await;
    // a Start whose row may exist is guarded
    let guarded = |key| write(Start { is_guarded: true, ..start(key, queued()) });
    let outcomes = worker.commit(keys.map(guarded).to_vec()).await;
    for (i, outcome) in outcomes.iter().enumerate() {
        match i {
            2 | 7 => assert!(matches!(outcome, Outcome::Duplicate(existing) if existing.key == keys[i])),
            _ => assert_eq!(*outcome, Outcome::Applied),
        }
    }
    assert_eq!(worker.count().await, 9);
    assert_eq!(worker.claim(100).await.len(), 9);
}

async fn duplicate_start_changes_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [existing, rejected, child] = keys();
    let id: Option<Arc<str>> = Some("order-7".into());
    worker.apply(vec![write(Start { workflow_id: id.clone(), ..start(existing, completed()) })]).await;
    let before = worker.record(existing).await;
    for state in [queued(), running(), awaiting(&[child]), sleeping(at(-1)), parked("no")] {
        for key in [existing, rejected] {
            let duplicate = Start {
                workflow_id: id.clone(),
                input: payload("another"),
                created_at: at(9),
                deadline_at: Some(at(10)),
                is_guarded: true,
                ..start(key, state.clone())
            };
            assert!(matches!(worker.commit_one(write(duplicate)).await, Outcome::Duplicate(_)));
        }
    }
    assert_eq!(worker.record(existing).await, before);
    assert!(!worker.exists(rejected).await);
    let reply = worker.heartbeat().await;
    assert_eq!((reply.has_ready, reply.next_due), (false, None));
    assert!(worker.claim(10).await.is_empty());
}

async fn duplicate_start_of_a_child_returns_its_parent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [parent, child] = keys();
    worker.apply(vec![start_running(parent), write(child_of(parent, child, running()))]).await;
    let duplicate = Start { is_guarded: true, ..child_of(parent, child, queued()) };
    let Outcome::Duplicate(existing) = worker.commit_one(write(duplicate)).await else {
        panic!("not a duplicate")
    };
    assert_eq!((existing.key, existing.parent), (child, Some(parent)));
}

async fn workflow_id_accepts_any_text(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let ids = nasty_texts();
    let starts: Vec<_> = ids
        .iter()
        .map(|id| Start { workflow_id: Some(id.clone()), is_guarded: true, ..start(Key::mint(0), queued()) })
        .collect();
    worker.apply(starts.iter().cloned().map(write).collect()).await;
    let named: Vec<_> = ids.iter().cloned().map(ExecutionId::Given).collect();
    let loaded = worker.store.load(&named, Detail::Full).await.unwrap();
    for ((id, start), record) in ids.iter().zip(&starts).zip(loaded) {
        let row = record.unwrap_or_else(|| panic!("{id:?} is not found")).execution;
        assert_eq!((row.key, row.given_id.as_ref()), (start.key, Some(id)));
        assert_eq!(row.workflow_id(), **id);
    }
    for id in &ids {
        let duplicate =
            Start { workflow_id: Some(id.clone()), is_guarded: true, ..start(Key::mint(0), queued()) };
        assert!(matches!(worker.commit_one(write(duplicate)).await, Outcome::Duplicate(_)), "{id:?}");
    }
    let similar: Arc<str> = format!("{}x", incompressible_text(10 * 1024)).into();
    worker.apply(vec![write(Start { workflow_id: Some(similar), ..start(Key::mint(0), queued()) })]).await;
}

async fn workflow_name_accepts_any_text(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    // engines register no longer names
    let names: Vec<Arc<str>> = nasty_texts().into_iter().filter(|name| name.len() <= 255).collect();
    let starts = names.iter().map(|name| Start { workflow: name.clone(), ..start(Key::mint(0), queued()) });
    worker.apply(starts.map(write).collect()).await;
    for name in &names {
        worker.workflows = Arc::from([name.clone()]);
        assert!(worker.heartbeat().await.has_ready, "{name:?}");
        let claimed = worker.claim(10).await;
        assert_eq!(claimed.len(), 1, "{name:?}");
        assert_eq!(claimed[0].execution.workflow, *name);
    }
}

/// Stores keep indexes over these texts, whose entries must not become too long.
async fn longest_names_of_a_start_are_claimable(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    // random letters, so that no store can compress them
    let text =
        |len: usize| -> Arc<str> { (0..len).map(|_| fastrand::alphanumeric()).collect::<String>().into() };
    let (workflow, version) = (text(255), text(1024));
    let placement = Placement { queue: text(255), key: text(1024), priority: i32::MIN };
    let [ready, due] = keys();
    let long = |key, state| Start {
        workflow: workflow.clone(),
        app_version: Some(version.clone()),
        placement: Some(placement.clone().into()),
        ..start(key, state)
    };
    worker
        .apply(vec![write(long(ready, queued())), write(long(due, State::Scheduled { due_at: at(0) }))])
        .await;
    worker.workflows = Arc::from([workflow.clone()]);
    assert!(worker.heartbeat().await.has_ready);
    let mut claimed = worker.claim_keys(10).await;
    claimed.sort_unstable();
    assert_eq!(claimed, [ready, due]);
}

async fn text_with_nul_is_stored_or_rejected_cleanly(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [unrelated, nul] = keys();
    let given = Start { workflow_id: Some("a\0b".into()), ..start(nul, queued()) };
    match worker.try_commit(vec![start_queued(unrelated), write(given)]).await {
        Ok(outcomes) => {
            assert_eq!(outcomes, [Outcome::Applied, Outcome::Applied]);
            assert_eq!(worker.execution(nul).await.given_id.as_deref(), Some("a\0b"));
        }
        Err(StoreError::Rejected(reason)) => {
            assert!(!reason.is_empty());
            assert_eq!(worker.count().await, 0, "the flush was applied in part");
            worker.apply(vec![start_queued(unrelated)]).await;
        }
        Err(error) => panic!("neither stored nor rejected: {error}"),
    }
}

async fn payload_bytes_load_unchanged(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut rng = fastrand::Rng::with_seed(11);
    let mut contents: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0xff; 3], (0..=255).collect()];
    contents.extend([b"\\x41".to_vec(), b"NULL".to_vec(), "\u{1f600}'\"".into()]);
    contents.push((0..1 << 20).map(|_| rng.u8(..)).collect());
    for content in contents {
        let [key, transitioned] = keys();
        let bytes = Payload::from_bytes(Bytes::from(content.clone()));
        let end = State::Ended { status: Status::Completed, outcome: bytes.clone(), at: at(1) };
        let both = Start { input: bytes.clone(), ..start(key, end.clone()) };
        worker.apply(vec![write(both), start_running(transitioned)]).await;
        worker.apply(vec![transition(transitioned, end)]).await;
        let row = worker.execution(key).await;
        assert!(row.input == bytes && row.outcome == bytes, "{} bytes", content.len());
        assert!(worker.execution(transitioned).await.outcome == bytes, "{} bytes", content.len());
    }
}

async fn extreme_numbers_load_unchanged(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let year_9999 = Timestamp::from_micros(253_402_300_799_999_999);
    for (fingerprint, micros) in [(0, 0), (1, 1), (1 << 63, -1), (u64::MAX, 999_999), (i64::MAX as u64, 7)] {
        let key = Key::mint(0);
        let given = Start {
            fingerprint: Some(fingerprint),
            created_at: Timestamp::from_micros(micros),
            deadline_at: Some(year_9999),
            ..start(key, queued())
        };
        worker.apply(vec![write(given)]).await;
        let row = worker.execution(key).await;
        assert_eq!(row.fingerprint, Some(fingerprint));
        assert_eq!((row.created_at.as_micros(), row.deadline_at), (micros, Some(year_9999)));
    }
    for bytes in [[0; 16], [0xff; 16]] {
        let key = Key::from_bytes(bytes);
        worker.apply(vec![start_queued(key)]).await;
        assert_eq!(worker.execution(key).await.root, key);
    }
}

async fn folded_execution_has_no_owner(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![write(start(key, completed()))]).await;
    let heartbeat = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    assert!(worker.store.heartbeat(&heartbeat).await.unwrap().unheld.is_empty());
    assert!(worker.claim(10).await.is_empty());
}
