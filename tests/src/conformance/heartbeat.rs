//! Looks: what a worker is told once a second.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{Heartbeat, RequestKind, Start, State, Status, Write};

use crate::fixtures::builders::{
    at, awaiting, cancel, checkpoint, completed, ended, keys, transition, parked, queued, running, sleeping,
    start, start_in, start_queued, start_running, write,
};
use crate::fixtures::registration::worker_info;
use crate::{StoreFixture, Worker};

super::cases![
    it_tells_the_stores_time,
    it_shows_what_is_asked_of_those_it_runs,
    it_shows_which_watched_ones_have_ended_or_are_parked,
    it_shows_strays_only_when_told_what_is_held,
    it_shows_what_is_ready_of_its_workflows,
    it_shows_the_earliest_due_time_of_its_workflows,
    a_quiet_look_sees_nothing,
    it_shows_the_same_if_it_does_not_renew,
    a_stranger_is_fenced,
    it_watches_thousands,
];

async fn it_tells_the_stores_time(fixture: &dyn StoreFixture) {
    let registration = fixture.store().register(2, &worker_info(&[])).await.unwrap();
    assert_eq!(registration.now, fixture.now());
    let worker = Worker::register(&fixture.store()).await;
    for _ in 0..3 {
        fixture.clock().advance(Duration::from_micros(1_234_567));
        assert_eq!(worker.heartbeat().await.now, fixture.now());
    }
}

async fn it_shows_what_is_asked_of_those_it_runs(fixture: &dyn StoreFixture) {
    let mut owner = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [mine, also_mine, quiet, theirs, ready] = keys();
    owner.apply(vec![start_running(mine), start_running(also_mine), start_running(quiet)]).await;
    other.apply(vec![start_running(theirs), start_queued(ready)]).await;
    other.commit(vec![cancel(mine), cancel(theirs)]).await;
    owner.commit(vec![cancel(also_mine)]).await;
    let mut requests = owner.heartbeat().await.reply.requests;
    requests.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(requests, [(mine, RequestKind::Cancel), (also_mine, RequestKind::Cancel)]);
    assert_eq!(other.heartbeat().await.requests, [(theirs, RequestKind::Cancel)]);
    assert_eq!(owner.heartbeat().await.requests.len(), 2, "they stay until they are answered");
    owner.apply(vec![Write::ClearRequests(mine), transition(mine, ended(Status::Cancelled, "x"))]).await;
    assert_eq!(owner.heartbeat().await.requests, [(also_mine, RequestKind::Cancel)]);
    owner.apply(vec![transition(also_mine, queued())]).await;
    assert!(owner.heartbeat().await.requests.is_empty(), "it does not run it any more");
}

async fn it_shows_which_watched_ones_have_ended_or_are_parked(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let watched: [Key; 8] = keys();
    let states = [
        running(),
        queued(),
        sleeping(at(90)),
        awaiting(&[Key::mint(0)]),
        parked("why"),
        completed(),
        ended(Status::Failed, "x"),
        ended(Status::Cancelled, "x"),
    ];
    worker.apply(watched.into_iter().zip(states).map(|(key, state)| start_in(key, state)).collect()).await;
    worker.apply(vec![start_in(Key::mint(0), completed())]).await;
    let mut watch = watched.to_vec();
    watch.push(Key::mint(0));
    let look = Heartbeat { watched: watch, ..worker.new_heartbeat() };
    let mut over = worker.store.heartbeat(&look).await.unwrap().finished;
    over.sort_unstable();
    assert_eq!(over, watched[4..]);
}

async fn it_shows_strays_only_when_told_what_is_held(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.store()).await;
    let [held, stray, handed, theirs, gone] = keys();
    other.apply(vec![start_running(theirs)]).await;
    worker
        .apply(vec![
            start_running(held),
            start_running(stray),
            start_running(handed),
            Write::Checkpoint(checkpoint(stray, 1, "x")),
        ])
        .await;
    worker.apply(vec![transition(handed, queued())]).await;
    assert!(worker.heartbeat().await.unheld.is_empty());
    let look = Heartbeat { held: Some(vec![held, gone, theirs]), ..worker.new_heartbeat() };
    let strays = worker.store.heartbeat(&look).await.unwrap().unheld;
    assert_eq!(strays, [worker.record(stray).await]);
    let look = Heartbeat { held: Some(Vec::new()), ..worker.new_heartbeat() };
    assert_eq!(worker.store.heartbeat(&look).await.unwrap().unheld.len(), 2);
}

async fn it_shows_what_is_ready_of_its_workflows(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    assert!(!worker.heartbeat().await.has_ready);
    let other = Start { workflow: "other".into(), ..start(Key::mint(0), queued()) };
    worker.apply(vec![write(other), start_running(Key::mint(0)), start_in(Key::mint(0), parked("x"))]).await;
    assert!(!worker.heartbeat().await.has_ready);
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    assert!(worker.heartbeat().await.has_ready);
    worker.claim(1).await;
    assert!(!worker.heartbeat().await.has_ready);
    worker.workflows = Arc::from(["x".into(), "other".into()]);
    assert!(worker.heartbeat().await.has_ready);
}

async fn it_shows_the_earliest_due_time_of_its_workflows(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let other = Start { workflow: "other".into(), ..start(Key::mint(0), sleeping(at(10))) };
    let both =
        State::Waiting { wake_at: Some(at(40)), children: keys::<2>().to_vec(), pending_sleeps: Vec::new() };
    let first = Key::mint(0);
    worker
        .apply(vec![
            write(other),
            start_in(Key::mint(0), awaiting(&keys::<1>())),
            start_in(Key::mint(0), both),
            start_in(first, sleeping(at(30))),
        ])
        .await;
    assert_eq!(worker.heartbeat().await.next_due, Some(at(30)));
    worker.commit(vec![cancel(first)]).await;
    assert_eq!(worker.heartbeat().await.next_due, Some(at(40)));
    worker.workflows = Arc::from(["other".into()]);
    assert_eq!(worker.heartbeat().await.next_due, Some(at(10)));
    worker.workflows = Arc::from(["nobody".into()]);
    assert_eq!(worker.heartbeat().await.next_due, None);
}

async fn a_quiet_look_sees_nothing(fixture: &dyn StoreFixture) {
    let worker = Worker::register(&fixture.store()).await;
    let look = Heartbeat {
        watched: vec![Key::mint(0)],
        held: Some(vec![Key::mint(0)]),
        workflows: Arc::from([]),
        ..worker.new_heartbeat()
    };
    let seen = worker.store.heartbeat(&look).await.unwrap();
    assert!(
        !seen.is_fenced && !seen.has_ready && seen.next_due.is_none() && seen.quarantined_until.is_none()
    );
    assert!(seen.requests.is_empty() && seen.finished.is_empty() && seen.unheld.is_empty());
}

async fn it_shows_the_same_if_it_does_not_renew(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [stray, over] = keys();
    let states = [(stray, running()), (over, completed()), (Key::mint(0), sleeping(at(30)))];
    worker.apply(states.into_iter().map(|(key, state)| start_in(key, state)).collect()).await;
    worker.apply(vec![start_queued(Key::mint(0))]).await;
    worker.commit(vec![cancel(stray)]).await;
    let watch = vec![over];
    let look = Heartbeat { renews_lease: false, watched: watch, held: Some(Vec::new()), ..worker.new_heartbeat() };
    let seen = worker.store.heartbeat(&look).await.unwrap();
    assert_eq!((seen.now, seen.is_fenced, seen.has_ready), (fixture.now(), false, true));
    assert_eq!((seen.next_due, seen.requests), (Some(at(30)), vec![(stray, RequestKind::Cancel)]));
    assert_eq!((seen.finished, seen.unheld), (vec![over], vec![worker.record(stray).await]));
}

async fn a_stranger_is_fenced(fixture: &dyn StoreFixture) {
    let worker = Worker::register(&fixture.store()).await;
    let mut unknown = worker.new_heartbeat();
    unknown.worker.0 += 1_000;
    let stale = Heartbeat { epoch: worker.epoch + 1, ..worker.new_heartbeat() };
    for look in [unknown, stale] {
        for is_renewal in [false, true] {
            let look = Heartbeat { renews_lease: is_renewal, ..look.clone() };
            assert!(worker.store.heartbeat(&look).await.unwrap().is_fenced);
        }
    }
    assert!(!worker.heartbeat().await.is_fenced);
}

async fn it_watches_thousands(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: Vec<Key> = (0..5_000).map(|_| Key::mint(0)).collect();
    let state = |i: usize| if i.is_multiple_of(2) { running() } else { completed() };
    worker.apply(all.iter().enumerate().map(|(i, key)| start_in(*key, state(i))).collect()).await;
    let holds = Some(all.iter().copied().skip(2).collect());
    let look = Heartbeat { watched: all.clone(), held: holds, ..worker.new_heartbeat() };
    let seen = worker.store.heartbeat(&look).await.unwrap();
    assert_eq!(seen.finished.len(), 2_500);
    assert_eq!(seen.unheld.iter().map(|it| it.execution.key).collect::<Vec<_>>(), [all[0]]);
}
