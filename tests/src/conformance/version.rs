//! Application versions: an execution that is pinned to a version runs on no other.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{Claim, Heartbeat, Record, Start, State, Write};

use crate::fixtures::builders::{
    at, awaiting, child_of, completed, keys, queued, running, sleeping, start, transition, write,
};
use crate::fixtures::registration::heartbeat_and_take_over;
use crate::{StoreFixture, Worker};

super::cases![
    pinned_execution_is_claimed_only_by_its_version,
    worker_without_version_claims_every_version,
    pinned_version_is_kept_through_wakes_and_takeovers,
    heartbeat_reports_only_executions_of_its_version,
];

fn pinned(key: Key, version: &str, state: State) -> Write {
    write(Start { app_version: Some(version.into()), ..start(key, state) })
}

async fn claim(worker: &mut Worker, version: Option<&str>) -> Vec<Record> {
    let claim = Claim { app_version: version.map(Into::into), ..worker.new_claim(10) };
    worker.try_claim(&claim).await.unwrap()
}

async fn claimed(worker: &mut Worker, version: Option<&str>) -> Vec<Key> {
    let mut keys: Vec<Key> = claim(worker, version).await.iter().map(|record| record.execution.key).collect();
    keys.sort_unstable();
    keys
}

async fn pinned_execution_is_claimed_only_by_its_version(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two, any, due] = keys();
    worker
        .apply(vec![
            pinned(one, "1", queued()),
            pinned(two, "2", queued()),
            write(start(any, queued())),
            pinned(due, "2", sleeping(at(0))),
        ])
        .await;
    let first = claim(&mut worker, Some("1")).await;
    let versions: Vec<_> = first.iter().map(|record| record.execution.app_version.as_deref()).collect();
    assert_eq!(versions, [Some("1"), None], "not in the order in which they became ready");
    assert!(claimed(&mut worker, Some("1")).await.is_empty());
    assert!(claimed(&mut worker, Some("3")).await.is_empty());
    assert_eq!(claimed(&mut worker, Some("2")).await, [two, due]);
}

async fn worker_without_version_claims_every_version(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, any, due] = keys();
    worker
        .apply(vec![
            pinned(one, "1", queued()),
            write(start(any, queued())),
            pinned(due, "2", sleeping(at(0))),
        ])
        .await;
    assert_eq!(claimed(&mut worker, None).await, [one, any, due]);
}

async fn pinned_version_is_kept_through_wakes_and_takeovers(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let mut other = Worker::register(&fixture.second_store().await).await;
    let [requeued, parent, child, taken_over] = keys();
    worker
        .apply(vec![
            pinned(requeued, "1", running()),
            pinned(parent, "1", awaiting(&[child])),
            write(child_of(parent, child, running())),
            pinned(taken_over, "1", running()),
        ])
        .await;
    worker.apply(vec![transition(requeued, queued()), transition(child, completed())]).await;
    worker.apply(vec![Write::Wake(parent)]).await;
    fixture.mark_dead(worker.id).await;
    other.take_over_dead_workers().await;
    assert!(claimed(&mut other, Some("2")).await.is_empty());
    assert_eq!(claimed(&mut other, Some("1")).await, [requeued, parent, taken_over]);
}

async fn heartbeat_reports_only_executions_of_its_version(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [ready, due] = keys();
    worker.apply(vec![pinned(ready, "1", queued()), pinned(due, "1", sleeping(at(9)))]).await;
    for (version, is_reported) in [(Some("1"), true), (Some("2"), false), (None, true)] {
        let app_version: Option<Arc<str>> = version.map(Into::into);
        let reply =
            heartbeat_and_take_over(&*worker.store, &Heartbeat { app_version, ..worker.new_heartbeat() })
                .await
                .reply;
        assert_eq!(
            (reply.has_ready, reply.next_due),
            (is_reported, is_reported.then_some(at(9))),
            "{version:?}"
        );
    }
}
