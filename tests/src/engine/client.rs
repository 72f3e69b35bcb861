//! Clients: they start, await, cancel and list executions, and run none.

use futures_util::FutureExt;
use futures_util::future::join_all;
use stepfast_core::store::{Filter, RegisteredWorker, Status};
use stepfast_core::{Client, Error, Workflow};

use super::support::{
    Count, GRACE, Latch, latched_workflow, noop, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    worker_runs_executions_that_a_client_starts,
    client_runs_no_executions,
    client_cancels_lists_and_counts,
    workflow_without_code_cannot_be_registered,
    awaited_handles_share_load_calls,
    client_is_listed_as_a_client,
    engine_leaves_named_workflow_to_another_worker,
];

async fn client(fixture: &dyn StoreFixture) -> (Client, std::sync::Arc<FaultStore>) {
    let store = FaultStore::wrap(fixture.second_store().await);
    (Client::open(store.clone()).await.unwrap(), store)
}

async fn worker_runs_executions_that_a_client_starts(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (worker, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let (client, _) = client(fixture).await;
    let named = Workflow::<i64, i64>::named(noop.name());
    let handle = client.start(&named, 20).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 20);
    assert_eq!(client.run(&named, 21).await.unwrap(), 21);
    assert_eq!(client.get::<i64>("x").await.unwrap().result().await.unwrap(), 20);
    // a second Start with the same id returns the same execution
    assert_eq!(client.start(&named, 20).workflow_id("x").await.unwrap().key(), handle.key());
    let other = client.start(&named, 21).workflow_id("x").await;
    assert!(matches!(other, Err(Error::Conflict { .. })), "{other:?}");
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn client_runs_no_executions(fixture: &dyn StoreFixture) {
    let (client, _) = client(fixture).await;
    let noop = noop();
    client.start(&noop, 1).workflow_id("x").await.unwrap();
    let row = row(&client, "x").await;
    assert_eq!((row.status, row.owner, client.running_count()), (Status::Queued, None, 0));
    client.shutdown(GRACE).await.unwrap();
    let (worker, _) = open_engine(fixture, |b| b.register(&noop)).await;
    worker.get::<i64>("x").await.unwrap().result().await.unwrap();
    shut_down(worker).await;
}

async fn client_cancels_lists_and_counts(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (worker, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (client, _) = client(fixture).await;
    let handle = client.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    assert_eq!(client.list(&Filter::default()).await.unwrap().executions.len(), 1);
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await, Err(Error::Cancelled(_))));
    let cancelled = Filter { statuses: vec![Status::Cancelled], ..Filter::default() };
    assert_eq!(client.count(&cancelled).await.unwrap(), 1);
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn workflow_without_code_cannot_be_registered(fixture: &dyn StoreFixture) {
    let named = Workflow::<i64, i64>::named("elsewhere");
    let opened = stepfast_core::Engine::builder(fixture.store()).register(&named).open().await;
    let error = opened.map(drop).unwrap_err();
    assert!(error.to_string().contains("\"elsewhere\" has no code"), "{error}");
    let (client, _) = client(fixture).await;
    let empty = Workflow::<(), ()>::named("");
    assert!(matches!(client.start(&empty, ()).await, Err(Error::Invalid { .. })));
    client.shutdown(GRACE).await.unwrap();
}

async fn awaited_handles_share_load_calls(fixture: &dyn StoreFixture) {
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
    // all end while the first load hangs
    let (worker, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let ends =
        handles.iter().map(|handle| async { worker.get::<i64>(&handle.workflow_id()).await?.result().await });
    for end in join_all(ends).await {
        end.unwrap();
    }
    store.release();
    for result in join_all(results).await {
        result.unwrap();
    }
    let loads = store.call_count(Call::Load);
    assert!(loads < 50, "{loads} loads for 500 handles and 500 ends");
    client.shutdown(GRACE).await.unwrap();
    shut_down(worker).await;
}

async fn client_is_listed_as_a_client(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (worker, _) = open_engine(fixture, |b| b.register(&noop).app_version("7")).await;
    let (client, _) = client(fixture).await;
    let summary = |row: &RegisteredWorker| {
        let version = row.info.app_version.as_deref().map(str::to_owned);
        (row.info.is_client, version, row.info.workflows.len())
    };
    let expected = [(false, Some("7".to_owned()), 1), (true, None, 0)];
    // on a machine that was suspended, a worker renews late and is alive again
    let overview = loop {
        let overview = client.workers().await.unwrap();
        if overview.workers.iter().all(|row| row.is_alive) {
            break overview;
        }
        tokio::task::yield_now().await;
    };
    let mut summaries: Vec<_> = overview.workers.iter().map(summary).collect();
    summaries.sort();
    assert_eq!(summaries, expected);
    assert!(
        overview.workers.iter().all(|row| row.info.pid == std::process::id() && !row.info.host.is_empty())
    );
    client.shutdown(GRACE).await.unwrap();
    assert_eq!(worker.workers().await.unwrap().workers.len(), 1);
    shut_down(worker).await;
}

async fn engine_leaves_named_workflow_to_another_worker(fixture: &dyn StoreFixture) {
    let noop = noop();
    let named = Workflow::<i64, i64>::named(noop.name());
    let (one, _) =
        open_engine(fixture, |b| b.register(&latched_workflow("other", &Count::new(), &Latch::new()))).await;
    let handle = one.start(&named, 1).workflow_id("x").await.unwrap();
    let many = one.start_many(&named, [2, 3]).await.unwrap();
    let queued = row(&one, "x").await;
    assert_eq!((queued.status, queued.owner, one.running_count()), (Status::Queued, None, 0));
    let (two, _) = open_second_engine(fixture, |b| b.register(&noop)).await;
    assert_eq!(handle.result().await.unwrap(), 1);
    assert_eq!(one.run(&named, 4).await.unwrap(), 4);
    for (handle, output) in many.iter().zip([2, 3]) {
        assert_eq!(handle.result().await.unwrap(), output);
    }
    // an engine that has registered the workflow runs the execution itself
    assert_eq!(two.run(&named, 5).await.unwrap(), 5);
    let unknown = one.start(&noop, 1).await;
    assert!(matches!(unknown, Err(Error::UnknownWorkflow { .. })), "{unknown:?}");
    shut_down(two).await;
    shut_down(one).await;
}
