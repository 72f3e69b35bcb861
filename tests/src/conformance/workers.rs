//! Surveys: who is registered, and what waits for a worker.

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
    it_shows_what_each_worker_said_of_itself,
    it_shows_how_much_each_runs,
    a_lost_worker_is_not_alive,
    it_counts_what_waits_for_a_worker,
    it_counts_no_more_than_it_is_asked_for,
];

async fn survey(worker: &Worker) -> WorkerOverview {
    worker.store.workers(u64::MAX).await.unwrap()
}

fn row(survey: &WorkerOverview, worker: &Worker) -> RegisteredWorker {
    survey.workers.iter().find(|row| row.worker == worker.id).unwrap().clone()
}

fn waiting(workflow: &str, app_version: Option<&str>, executions: u64) -> WaitingWork {
    WaitingWork { workflow: workflow.into(), app_version: app_version.map(Into::into), executions }
}

async fn it_shows_what_each_worker_said_of_itself(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    assert_eq!(store.workers(10).await.unwrap(), WorkerOverview::default());
    let worker = WorkerInfo { app_version: Some("v7".into()), ..worker_info(&["a", "b c"]) };
    let client = WorkerInfo { is_client: true, ..WorkerInfo::default() };
    let ids = [store.register(1, &worker).await.unwrap(), store.register(1, &client).await.unwrap()];
    let survey = fixture.second_store().await.workers(10).await.unwrap();
    let told: Vec<_> = survey.workers.iter().map(|row| (row.worker, &row.info, row.is_alive)).collect();
    assert_eq!(told, [(ids[0].worker, &worker, true), (ids[1].worker, &client, true)]);
    assert!(survey.workers.iter().all(|row| row.registered_at == fixture.now() && row.running == 0));
    assert!(survey.waiting.is_empty());
}

async fn it_shows_how_much_each_runs(fixture: &dyn StoreFixture) {
    let mut one = Worker::register(&fixture.store()).await;
    let two = Worker::register(&fixture.second_store().await).await;
    one.apply((0..5).map(|_| start_running(Key::mint(0))).collect()).await;
    let survey = survey(&two).await;
    assert_eq!((row(&survey, &one).running, row(&survey, &two).running), (5, 0));
}

async fn a_lost_worker_is_not_alive(fixture: &dyn StoreFixture) {
    let lost = Worker::register(&fixture.store()).await;
    let other = Worker::register(&fixture.second_store().await).await;
    fixture.mark_dead(lost.id).await;
    let seen = survey(&other).await;
    assert_eq!((row(&seen, &lost).is_alive, row(&seen, &other).is_alive), (false, true));
    other.take_over_dead_workers().await;
    assert_eq!(survey(&other).await.workers.len(), 1);
}

async fn it_counts_what_waits_for_a_worker(fixture: &dyn StoreFixture) {
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
    let seen = survey(&worker).await;
    let expected = [waiting(WORKFLOW, None, 2), waiting(WORKFLOW, Some("2"), 1), waiting("other", None, 1)];
    let mut found = seen.waiting.clone();
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let stranded: Vec<_> = seen.unclaimable().into_iter().map(|it| it.workflow).collect();
    assert_eq!(stranded, [Arc::from("other")]);
}

async fn it_counts_no_more_than_it_is_asked_for(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    worker.apply((0..50).map(|_| start_queued(Key::mint(0))).collect()).await;
    assert_eq!(worker.store.workers(20).await.unwrap().waiting, [waiting(WORKFLOW, None, 20)]);
}
