//! Events: the checkpoints that are found by name, and the waits for them.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{
    Checkpoint, CheckpointKind, Event, EventQuery, Outcome, State, Status, Wait, Write,
};

use crate::fixtures::builders::{
    at, checkpoint, completed, keys, payload, start_in, start_running, transition,
};
use crate::{StoreFixture, Worker};

super::cases![
    last_event_of_each_name_is_found,
    all_events_are_found_in_their_order,
    only_events_are_found,
    waiters_of_an_event_are_found,
    event_wakes_the_execution_that_waits_for_it,
    end_of_the_setter_wakes_the_execution_that_waits,
    takeover_wakes_executions_whose_events_are_set,
];

/// Returns the checkpoint that sets an event: the call at position `n`, delivered as number `order`.
fn event(execution: Key, n: u32, order: u32, name: &str, value: &str) -> Write {
    Write::Checkpoint(Checkpoint {
        kind: CheckpointKind::Event,
        name: Arc::<str>::from(name).into(),
        order,
        at: at(i64::from(order)),
        ..checkpoint(execution, n, value)
    })
}

fn found(name: &str, order: i64, value: &str) -> Event {
    Event { name: name.into(), value: payload(value), set_at: at(order) }
}

async fn events(worker: &Worker, execution: Key, name: Option<&str>) -> Vec<Event> {
    let query = EventQuery { execution, name: name.map(Arc::from) };
    worker.store.events(&[query]).await.unwrap().pop().unwrap()
}

/// Returns the state of an execution that waits for an event.
fn awaiting_event(setter: Key, name: &str) -> State {
    State::Waiting {
        wake_at: None,
        waits: vec![Wait::Event(setter, name.into())],
        pending_sleeps: Vec::new(),
    }
}

async fn last_event_of_each_name_is_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    // a parallel branch may set an event later at an earlier position
    worker.apply(vec![event(one, 1, 4, "a", "later"), event(one, 2, 2, "a", "earlier")]).await;
    worker
        .apply(vec![event(one, 3, 5, "A", "x"), event(two, 1, 1, "a", "other"), event(one, 4, 3, "b", "y")])
        .await;
    let queries: Vec<EventQuery> =
        [(two, "a"), (one, "a"), (one, "c"), (Key::mint(0), "a"), (one, "A"), (one, "a")]
            .map(|(execution, name)| EventQuery { execution, name: Some(name.into()) })
            .into();
    let later = || vec![found("a", 4, "later")];
    assert_eq!(
        worker.store.events(&queries).await.unwrap(),
        [vec![found("a", 1, "other")], later(), vec![], vec![], vec![found("A", 5, "x")], later()]
    );
    assert!(worker.store.events(&[]).await.unwrap().is_empty());
}

async fn all_events_are_found_in_their_order(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    worker
        .apply(vec![event(one, 1, 3, "a", "3"), event(one, 2, 1, "b", "1"), event(two, 1, 1, "a", "x")])
        .await;
    // some stores keep long values apart from their rows
    let long = "2".repeat(3_000);
    worker.apply(vec![event(one, 3, 2, "a", &long), transition(one, completed())]).await;
    let all = [found("b", 1, "1"), found("a", 2, &long), found("a", 3, "3")];
    assert_eq!(events(&worker, one, None).await, all);
    assert!(events(&worker, Key::mint(0), None).await.is_empty());
}

async fn only_events_are_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    let of_kind = |n: u32, kind| {
        let name = Arc::<str>::from("e").into();
        Write::Checkpoint(Checkpoint { kind, name, ..checkpoint(key, n, "value") })
    };
    let kinds =
        [CheckpointKind::Step, CheckpointKind::Failed, CheckpointKind::Message, CheckpointKind::EventRead];
    worker.apply((1..).zip(kinds).map(|(n, kind)| of_kind(n, kind)).collect()).await;
    assert!(events(&worker, key, Some("e")).await.is_empty());
    assert!(events(&worker, key, None).await.is_empty());
    let recorded: Vec<CheckpointKind> =
        worker.record(key).await.checkpoints.iter().map(|it| it.kind).collect();
    assert_eq!(recorded, kinds);
}

async fn waiters_of_an_event_are_found(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [setter, one, two, other] = keys();
    let both = State::Waiting {
        wake_at: None,
        waits: vec![
            Wait::Event(setter, "b".into()),
            Wait::Event(setter, "a".into()),
            Wait::Message("a".into()),
        ],
        pending_sleeps: Vec::new(),
    };
    worker
        .apply(vec![
            start_running(setter),
            start_in(one, awaiting_event(setter, "a")),
            start_in(two, both),
            start_in(other, awaiting_event(one, "a")),
        ])
        .await;
    let asked: Vec<(Key, Arc<str>)> = [(setter, "b"), (setter, "a"), (setter, "A"), (two, "a")]
        .map(|(key, name)| (key, name.into()))
        .into();
    let mut waiters = worker.store.event_waiters(&asked).await.unwrap();
    waiters[1].sort_unstable();
    let mut expected = [one, two];
    expected.sort_unstable();
    assert_eq!(waiters, [vec![two], expected.to_vec(), vec![], vec![]]);
    assert!(worker.store.event_waiters(&[]).await.unwrap().is_empty());
}

async fn event_wakes_the_execution_that_waits_for_it(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [setter, one, two] = keys();
    worker
        .apply(vec![
            start_running(setter),
            start_in(one, awaiting_event(setter, "a")),
            start_in(two, awaiting_event(setter, "b")),
        ])
        .await;
    assert_eq!(worker.commit_one(Write::Wake(one)).await, Outcome::NotFound);
    worker.apply(vec![event(setter, 1, 1, "a", "x")]).await;
    let outcomes = worker.commit(vec![Write::Wake(one), Write::Wake(two)]).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::NotFound]);
    assert_eq!(worker.claim_keys(10).await, [one]);
    // an event that was set before the suspension wakes too
    worker.apply(vec![transition(one, awaiting_event(setter, "a"))]).await;
    worker.apply(vec![Write::Wake(one)]).await;
    assert_eq!(worker.claim_keys(10).await, [one]);
}

async fn end_of_the_setter_wakes_the_execution_that_waits(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [setter, one] = keys();
    worker.apply(vec![start_running(setter), start_in(one, awaiting_event(setter, "a"))]).await;
    worker.apply(vec![transition(setter, completed())]).await;
    assert_eq!(worker.execution(one).await.status, Status::Waiting);
    worker.apply(vec![Write::Wake(one)]).await;
    assert_eq!(worker.claim_keys(10).await, [one]);
}

async fn takeover_wakes_executions_whose_events_are_set(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [setter, ended, one, two, three] = keys();
    worker
        .apply(vec![
            start_running(setter),
            start_in(ended, completed()),
            start_in(one, awaiting_event(setter, "a")),
            start_in(two, awaiting_event(setter, "b")),
            start_in(three, awaiting_event(ended, "a")),
        ])
        .await;
    worker.apply(vec![event(setter, 1, 1, "a", "x")]).await;
    dead.apply(vec![start_running(Key::mint(0))]).await;
    worker.store.close(dead.id).await.unwrap();
    let mut claimed = worker.claim_keys(10).await;
    claimed.retain(|key| [one, two, three].contains(key));
    claimed.sort_unstable();
    let mut expected = [one, three];
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}
