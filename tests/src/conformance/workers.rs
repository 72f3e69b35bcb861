//! Worker overviews: the registered workers, and the executions that wait for a worker.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{RegisteredWorker, Start, WaitingWork, WorkerInfo, WorkerOverview};

use crate::fixtures::builders::{
    WORKFLOW, at, completed, keys, parked, queued, running, sleeping, start, start_in, start_queued,
    start_running, write,
};
use crate::fixtures::registration::worker_info;
use crate::{StoreFixture, Worker};

super::cases![
    overview_returns_the_info_of_each_worker,
    overview_counts_running_executions_per_worker,
    dead_worker_is_not_alive,
    overview_counts_waiting_executions,
    overview_counts_at_most_its_limit,
];

async fn overview(worker: &Worker) -> WorkerOverview {
    worker.store.workers(u64::MAX, true).await.unwrap()
}

fn row(overview: &WorkerOverview, worker: &Worker) -> RegisteredWorker {
    overview.workers.iter().find(|row| row.worker == worker.id).unwrap().clone()
}

fn waiting(workflow: &str, app_version: Option<&str>, executions: u64) -> WaitingWork {
    WaitingWork { workflow: workflow.into(), app_version: app_version.map(Into::into), executions }
}

async fn overview_returns_the_info_of_each_worker(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    assert_eq!(store.workers(10, true).await.unwrap(), WorkerOverview::default());
    let worker = WorkerInfo { app_version: Some("v7".into()), ..worker_info(&["a", "b c"]) };
    let client = WorkerInfo { is_client: true, ..WorkerInfo::default() };
    let ids = [store.register(1, &worker).await.unwrap(), store.register(1, &client).await.unwrap()];
    let overview = fixture.second_store().await.workers(10, true).await.unwrap();
    let rows: Vec<_> = overview.workers.iter().map(|row| (row.worker, &row.info, row.is_alive)).collect();
    assert_eq!(rows, [(ids[0].worker, &worker, true), (ids[1].worker, &client, true)]);
    assert!(overview.workers.iter().all(|row| row.registered_at == fixture.now() && row.running == 0));
    assert!(overview.waiting.is_empty());
}

async fn overview_counts_running_executions_per_worker(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    one.apply((0..5).map(|_| start_running(Key::mint(0))).collect()).await;
    let overview = overview(&two).await;
    assert_eq!((row(&overview, &one).running, row(&overview, &two).running), (5, 0));
}

async fn dead_worker_is_not_alive(fixture: &dyn StoreFixture) {
    let dead = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    fixture.mark_dead(dead.id).await;
    let before = overview(&other).await;
    assert_eq!((row(&before, &dead).is_alive, row(&before, &other).is_alive), (false, true));
    other.take_over_dead_workers().await;
    assert_eq!(overview(&other).await.workers.len(), 1);
}

async fn overview_counts_waiting_executions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let all: [Key; 6] = keys();
    worker
        .apply(vec![
            start_queued(all[0]),
            start_queued(all[1]),
            write(Start { app_version: Some("2".into()), ..start(all[2], queued()) }),
            write(Start { workflow: "other".into(), ..start(all[3], sleeping(at(-5))) }),
            start_in(all[4], sleeping(at(1_000_000_000))),
            start_in(all[5], parked("why")),
            start_in(Key::mint(0), running()),
            start_in(Key::mint(0), completed()),
        ])
        .await;
    let before = overview(&worker).await;
    let expected = [waiting(WORKFLOW, None, 2), waiting(WORKFLOW, Some("2"), 1), waiting("other", None, 1)];
    let mut found = before.waiting.clone();
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let unclaimable: Vec<_> = before.unclaimable().into_iter().map(|work| work.workflow).collect();
    assert_eq!(unclaimable, [Arc::from("other")]);
}

async fn overview_counts_at_most_its_limit(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let start_other = |state| write(Start { workflow: "other".into(), ..start(Key::mint(0), state) });
    worker.apply((0..50).map(|_| start_queued(Key::mint(0))).collect()).await;
    worker.apply((0..30).map(|_| start_other(queued())).collect()).await;
    worker.apply((0..30).map(|_| start_other(sleeping(at(-5)))).collect()).await;
    // the executions of one workflow hide no other
    let mut found = worker.store.workers(20, true).await.unwrap().waiting;
    found.sort();
    let mut expected = [waiting(WORKFLOW, None, 20), waiting("other", None, 40)];
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(worker.store.workers(0, true).await.unwrap().waiting, []);
}
