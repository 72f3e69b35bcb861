//! Clients: they start, wait, cancel and list, and run nothing.

use futures_util::FutureExt;
use futures_util::future::join_all;
use stepfast_core::store::{Filter, RegisteredWorker, Status};
use stepfast_core::{Client, Error, Workflow};

use super::support::{Count, GRACE, Latch, engine, noop, row, shut_down, waiting};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    what_it_starts_a_worker_runs,
    it_runs_nothing_itself,
    it_cancels_lists_and_counts,
    a_workflow_without_code_cannot_be_registered,
    thousands_who_wait_share_a_question,
    it_is_shown_as_what_it_is,
];

async fn client(fixture: &dyn StoreFixture) -> (Client, std::sync::Arc<FaultStore>) {
    let store = FaultStore::wrap(fixture.second_store().await);
    (Client::open(store.clone()).await.unwrap(), store)
}

async fn what_it_starts_a_worker_runs(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (worker, _) = engine(fixture, |b| b.register(&noop)).await;
    let (client, _) = client(fixture).await;
    let named = Workflow::<i64, i64>::named(noop.name());
    let handle = client.start(&named, 20).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 20);
    assert_eq!(client.run(&named, 21).await.unwrap(), 21);
    assert_eq!(client.get::<i64>("x").await.unwrap().result().await.unwrap(), 20);
    // once more with the same id: the same execution
    assert_eq!(client.start(&named, 20).workflow_id("x").await.unwrap().key(), handle.key());
    let other = client.start(&named, 21).workflow_id("x").await;
    assert!(matches!(other, Err(Error::Conflict { .. })), "{other:?}");
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn it_runs_nothing_itself(fixture: &dyn StoreFixture) {
    let (client, _) = client(fixture).await;
    let noop = noop();
    client.start(&noop, 1).workflow_id("x").await.unwrap();
    let row = row(&client, "x").await;
    assert_eq!((row.status, row.owner, client.running_count()), (Status::Queued, None, 0));
    client.shutdown(GRACE).await.unwrap();
    let (worker, _) = engine(fixture, |b| b.register(&noop)).await;
    worker.get::<i64>("x").await.unwrap().result().await.unwrap();
    shut_down(worker).await;
}

async fn it_cancels_lists_and_counts(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (worker, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (client, _) = client(fixture).await;
    let handle = client.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    assert_eq!(client.list(&Filter::default()).await.unwrap().executions.len(), 1);
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await, Err(Error::Cancelled(_))));
    let cancelled = Filter { statuses: vec![Status::Cancelled], ..Filter::default() };
    assert_eq!(client.count(&cancelled).await.unwrap(), 1);
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn a_workflow_without_code_cannot_be_registered(fixture: &dyn StoreFixture) {
    let named = Workflow::<i64, i64>::named("elsewhere");
    let opened = stepfast_core::Engine::builder(fixture.store()).register(&named).open().await;
    let error = opened.map(drop).unwrap_err();
    assert!(error.to_string().contains("\"elsewhere\" has no code"), "{error}");
    let (client, _) = client(fixture).await;
    let empty = Workflow::<(), ()>::named("");
    assert!(matches!(client.start(&empty, ()).await, Err(Error::Invalid { .. })));
    client.shutdown(GRACE).await.unwrap();
}

async fn thousands_who_wait_share_a_question(fixture: &dyn StoreFixture) {
    let (client, store) = client(fixture).await;
    let noop = noop();
    let mut handles = Vec::new();
    for _ in 0..500 {
        handles.push(client.start(&noop, 1).await.unwrap());
    }
    store.hold_calls(&[Call::Load]);
    let mut results: Vec<_> = handles.iter().map(|handle| Box::pin(handle.result())).collect();
    for result in &mut results {
        assert!(result.now_or_never().is_none());
    }
    store.wait_until_hanging().await;
    // all end while the first question hangs
    let (worker, _) = engine(fixture, |b| b.register(&noop)).await;
    let ends =
        handles.iter().map(|handle| async { worker.get::<i64>(&handle.workflow_id()).await?.result().await });
    for end in join_all(ends).await {
        end.unwrap();
    }
    store.release();
    for result in join_all(results).await {
        result.unwrap();
    }
    let questions = store.call_count(Call::Load);
    assert!(questions < 50, "{questions} questions for 500 who asked at least once, and 500 ends");
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn it_is_shown_as_what_it_is(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (worker, _) = engine(fixture, |b| b.register(&noop).app_version("7")).await;
    let (client, _) = client(fixture).await;
    let told = |row: &RegisteredWorker| {
        let version = row.info.app_version.as_deref().map(str::to_owned);
        (row.info.is_client, version, row.info.workflows.len())
    };
    let expected = [(false, Some("7".to_owned()), 1), (true, None, 0)];
    // on a machine that stood still a worker renews late, and is alive again
    let survey = loop {
        let survey = client.workers().await.unwrap();
        if survey.workers.iter().all(|row| row.is_alive) {
            break survey;
        }
        tokio::task::yield_now().await;
    };
    let mut told: Vec<_> = survey.workers.iter().map(told).collect();
    told.sort();
    assert_eq!(told, expected);
    assert!(survey.workers.iter().all(|row| row.info.pid == std::process::id() && !row.info.host.is_empty()));
    client.shutdown(GRACE).await.unwrap();
    assert_eq!(worker.workers().await.unwrap().workers.len(), 1);
    shut_down(worker).await;
}
