//! Several engines on one database, and engines that end.

use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::guest::GuestWorkflow;
use stepfast_core::queue::Queue;
use stepfast_core::store::{Filter, Status};
use stepfast_core::{Engine, EngineBuilder, Error, ErrorKind, Payload};

use super::support::{
    Count, GRACE, Latch, fresh_number, latched_workflow, noop, open, open_engine, open_second_engine, record,
    row, shut_down, steps,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    engine_awaits_an_execution_started_by_another,
    queued_executions_run_on_every_engine_with_capacity,
    dead_engine_is_taken_over_and_registers_again,
    shutdown_flushes_staged_writes,
    shutdown_requeues_running_executions,
    dropped_engine_requeues_its_executions,
    engine_rejects_calls_after_a_shutdown,
    waiting_callers_receive_an_error_at_shutdown,
    repeated_shutdown_waits_for_the_first,
    new_engine_runs_executions_left_queued,
    lease_is_renewed_once_a_second_under_many_hints,
    worker_claims_only_what_its_threads_can_begin,
];

async fn engine_awaits_an_execution_started_by_another(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    one.start(&workflow, 5).workflow_id("x").await.unwrap();
    let handle = two.get::<i64>("x").await.unwrap();
    let waiting = tokio::spawn(async move { handle.result().await });
    count.wait_for(1).await;
    latch.open();
    assert_eq!(waiting.await.unwrap().unwrap(), 5);
    shut_down(one).await;
    shut_down(two).await;
}

async fn queued_executions_run_on_every_engine_with_capacity(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow).max_running(2)).await;
    let mut handles = Vec::new();
    for x in 0..3 {
        handles.push(one.start(&workflow, x).await.unwrap());
    }
    count.wait_for(3).await;
    assert_eq!((one.running_count(), two.running_count()), (1, 2));
    latch.open();
    for (x, handle) in (0..).zip(handles) {
        assert_eq!(handle.result().await.unwrap(), x);
    }
    shut_down(one).await;
    shut_down(two).await;
}

const ALL_CALLS: &[Call] = &[Call::Commit, Call::Claim, Call::Heartbeat, Call::Load, Call::List];

async fn dead_engine_is_taken_over_and_registers_again(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (workflow, steps) = (latched_workflow("w", &count, &latch), steps());
    let (one, store) = open_engine(fixture, |b| b.register(&workflow).register(&steps)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = one.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let former_owner = row(&two, "x").await.owner.unwrap();
    // the engine stalls, like a stopped process
    store.hold_calls(ALL_CALLS);
    let staged: Vec<_> = (0..5)
        .map(|n| {
            let (one, steps) = (one.clone(), steps.clone());
            tokio::spawn(async move { one.run(&steps, n).workflow_id(format!("staged {n}")).await })
        })
        .collect();
    fixture.mark_dead(former_owner).await;
    count.wait_for(2).await;
    let taken_over = row(&two, "x").await;
    assert_eq!((taken_over.status, taken_over.recoveries), (Status::Running, 1));
    assert_ne!(taken_over.owner, Some(former_owner));
    // the body that continued in the first engine ends first: its result must not be recorded
    store.release();
    for (n, run) in staged.into_iter().enumerate() {
        assert_eq!(run.await.unwrap().unwrap().len(), n, "a Start was lost with the registration");
    }
    assert_eq!(row(&two, "x").await.owner, taken_over.owner);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(record(&two, "x").await.checkpoints.len(), 1);
    assert_eq!(one.run(&steps, 2).await.unwrap().len(), 2);
    assert_eq!(one.count(&Filter::default()).await.unwrap(), 7);
    shut_down(one).await;
    shut_down(two).await;
}

async fn shutdown_flushes_staged_writes(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, store) = open_engine(fixture, |b| b.register(&steps)).await;
    store.hold_calls(&[Call::Commit]);
    let starts: Vec<_> = (0..50)
        .map(|n| {
            let (one, steps) = (one.clone(), steps.clone());
            tokio::spawn(async move { one.start(&steps, n).workflow_id(format!("{n}")).await.map(drop) })
        })
        .collect();
    store.wait_until_hanging().await;
    let ending = {
        let one = one.clone();
        tokio::spawn(async move { one.shutdown(GRACE).await })
    };
    store.release();
    ending.await.unwrap().unwrap();
    let (two, _) = open_engine(fixture, |b| b.register(&steps)).await;
    for (n, start) in starts.into_iter().enumerate() {
        match start.await.unwrap() {
            Ok(()) => {
                let handle = two.get::<Vec<usize>>(&n.to_string()).await.unwrap();
                assert_eq!(handle.result().await.unwrap().len(), n, "an acknowledged Start was lost");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
    shut_down(two).await;
}

/// Ends `one` by `end` while it runs executions, and asserts that `two` continues them.
async fn assert_requeued_by(fixture: &dyn StoreFixture, end: impl AsyncFnOnce(Engine)) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    for x in 0..5 {
        one.start(&workflow, x).workflow_id(format!("{x}")).await.unwrap();
    }
    count.wait_for(5).await;
    end(one).await;
    count.wait_for(10).await;
    latch.open();
    for x in 0..5 {
        let id = x.to_string();
        assert_eq!(two.get::<i64>(&id).await.unwrap().result().await.unwrap(), x);
        assert_eq!(record(&two, &id).await.execution.recoveries, 0, "a shutdown is not a death");
    }
    shut_down(two).await;
}

async fn shutdown_requeues_running_executions(fixture: &dyn StoreFixture) {
    assert_requeued_by(fixture, shut_down).await;
}

async fn dropped_engine_requeues_its_executions(fixture: &dyn StoreFixture) {
    assert_requeued_by(fixture, async |engine| drop(engine)).await;
}

async fn engine_rejects_calls_after_a_shutdown(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).workflow_id("x").await.unwrap();
    handle.result().await.unwrap();
    engine.shutdown(GRACE).await.unwrap();
    let committed = store.committed_writes().len();
    for error in [
        engine.start(&noop, 1).await.map(drop).unwrap_err(),
        engine.run(&noop, 1).workflow_id("y").await.map(drop).unwrap_err(),
        engine.cancel("x").await.map(drop).unwrap_err(),
        engine.resume("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0012"), "{error}");
    }
    assert_eq!(handle.result().await.unwrap(), 1, "a known result stays available");
    assert_eq!(row(&engine, "x").await.status, Status::Completed);
    assert_eq!(store.committed_writes().len(), committed);
}

async fn waiting_callers_receive_an_error_at_shutdown(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let run = {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        tokio::spawn(async move { engine.run(&workflow, 1).workflow_id("x").await })
    };
    let handle = engine.start(&workflow, 2).await.unwrap();
    let result = tokio::spawn(async move { handle.result().await });
    count.wait_for(2).await;
    let (second_caller, same_workflow) = (engine.clone(), workflow.clone());
    let attached = tokio::spawn(async move { second_caller.run(&same_workflow, 1).workflow_id("x").await });
    shut_down(engine).await;
    for waiter in [run, result, attached] {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Shutdown), "{error}");
    }
}

async fn repeated_shutdown_waits_for_the_first(fixture: &dyn StoreFixture) {
    let (engine, store) = open_engine(fixture, |b| b).await;
    store.hold_calls(&[Call::Close]);
    let mut both = [engine.clone(), engine.clone()]
        .map(|engine| tokio::spawn(async move { engine.shutdown(GRACE).await.unwrap() }));
    store.wait_until_hanging().await;
    for shutdown in &mut both {
        assert!((&mut *shutdown).now_or_never().is_none(), "the shutdown returned early");
    }
    store.release();
    for shutdown in both {
        shutdown.await.unwrap();
    }
    engine.shutdown(Duration::ZERO).await.unwrap();
}

async fn new_engine_runs_executions_left_queued(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let ids: Vec<String> = (0..20).map(|n| format!("{n} {}", fresh_number())).collect();
    for (x, id) in (0..).zip(&ids) {
        one.start(&workflow, x).workflow_id(id.clone()).await.unwrap();
    }
    count.wait_for(1).await;
    shut_down(one).await;
    latch.open();
    let (two, _) = open_engine(fixture, |b| b.register(&workflow).max_running(3)).await;
    for (x, id) in (0..).zip(&ids) {
        assert_eq!(two.get::<i64>(id).await.unwrap().result().await.unwrap(), x);
    }
    shut_down(two).await;
}

async fn lease_is_renewed_once_a_second_under_many_hints(fixture: &dyn StoreFixture) {
    let store = FaultStore::wrap(fixture.store());
    store.send_endless_hints();
    let begun = tokio::time::Instant::now();
    let engine = open(store.clone(), |b| b).await;
    store.wait_until_called(Call::Heartbeat, 100).await;
    let max_renewals = 2 + 2 * begun.elapsed().as_secs() as usize;
    assert!(
        store.renewal_count() <= max_renewals,
        "{} renewals in {:?}",
        store.renewal_count(),
        begun.elapsed()
    );
    // and the lease is still renewed
    store.wait_until_renewed(3).await;
    shut_down(engine).await;
}

/// A worker claims the executions that its threads can begin soon: twice as many as it has threads. Executions of
/// workflows without threads are claimed without this limit.
async fn worker_claims_only_what_its_threads_can_begin(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let in_thread = {
        let (count, latch) = (count.clone(), latch.clone());
        GuestWorkflow::new_guest("in thread", true, true, "", move |_branch, input| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                count.increment();
                latch.wait().await;
                Ok(input)
            }
        })
    };
    let noop = noop();
    let (busy, _) = open_engine(fixture, |b| b.register(&in_thread).max_running(1)).await;
    let mut handles = Vec::new();
    for n in 0..21_i64 {
        let input = Payload::encode(&n).unwrap();
        handles.push(busy.start_guest(&in_thread, input.into(), None).await.unwrap());
    }
    count.wait_for(1).await;
    let with = |threads: usize| {
        let (in_thread, noop) = (in_thread.clone(), noop.clone());
        move |b: EngineBuilder| b.register(&in_thread).register(&noop).max_threads(threads)
    };
    let (one, store) = open_second_engine(fixture, with(2)).await;
    count.wait_for(1 + 4).await;
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    assert_eq!((count.get(), one.running_count()), (5, 4));
    let (two, _) = open_second_engine(fixture, with(3)).await;
    count.wait_for(1 + 4 + 6).await;
    // executions of workflows without threads are still claimed
    let (starter, _) = open_second_engine(fixture, |b| b.register(&noop).serve_queues(["elsewhere"])).await;
    starter.set_queue(&Queue::new("q")).await.unwrap();
    let other = starter.start(&noop, 7).queue("q").await.unwrap();
    assert_eq!(other.result().await.unwrap(), 7);
    assert_eq!(count.get(), 11);
    latch.open();
    for (n, handle) in (0..21_i64).zip(handles) {
        assert_eq!(handle.payload().await.unwrap().decode::<i64>().unwrap(), n);
    }
    assert_eq!(count.get(), 21);
    for engine in [busy, one, two, starter] {
        shut_down(engine).await;
    }
}
