//! Cancels, resumes and deadlines, in every state of an execution and from every engine.

use std::time::Duration;

use stepfast_core::store::{Filter, RequestResult, Status, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Failure, Handle, Key, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_end_of, is_suspension_of, latched_workflow, noop, open_engine,
    open_second_engine, record, row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    queued_execution_is_cancelled_at_once,
    handle_cancels_its_own_execution,
    running_execution_is_cancelled,
    execution_of_another_engine_is_cancelled,
    suspended_execution_is_cancelled_at_once,
    suspended_execution_is_cancelled_by_another_engine,
    cancel_of_ended_execution_is_not_applicable,
    request_to_unknown_execution_is_not_found,
    body_never_begins_after_a_cancel,
    backoff_is_interrupted_by_a_cancel,
    cancel_reaches_only_awaited_children,
    cancel_of_waiting_parent_stops_children_on_every_engine,
    cancelled_execution_is_resumed_from_its_record,
    failed_execution_is_resumed_from_its_record,
    failed_step_is_retried_after_a_resume,
    handled_failure_is_kept_after_a_resume,
    parent_is_resumed_after_its_failed_child,
    resumed_parent_starts_its_cancelled_child_again,
    resume_of_running_execution_is_not_applicable,
    handle_of_resumed_execution_returns_its_new_run,
    cancel_during_the_start_of_a_child_wins,
    deadline_cancels_a_running_execution,
    deadline_cancels_a_suspended_execution,
    deadline_cancels_a_queued_execution,
    deadline_reaches_awaited_children,
    deadline_of_suspended_parent_reaches_awaited_children,
    racing_end_and_cancel_have_one_winner,
];

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

async fn assert_cancelled(handle: &Handle<i64>, code: &str) {
    let error = handle.result().await.unwrap_err();
    let Error::Cancelled(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.code(), error.kind()), (Some(code), ErrorKind::Cancelled));
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
}

async fn queued_execution_is_cancelled_at_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    let queued = engine.start(&workflow, 2).await.unwrap();
    assert_eq!(queued.cancel().await.unwrap(), RequestResult::Done);
    assert_cancelled(&queued, "SF-0022").await;
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_eq!(count.get(), 1);
    shut_down(engine).await;
}

async fn handle_cancels_its_own_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    // another execution has the first one's generated id as its given id
    let second = engine.start(&workflow, 2).workflow_id(first.workflow_id()).await.unwrap();
    count.wait_for(2).await;
    first.cancel().await.unwrap();
    assert_cancelled(&first, "SF-0022").await;
    assert_eq!(second.status().await.unwrap(), Status::Running);
    latch.open();
    assert_eq!(second.result().await.unwrap(), 2);
    assert_eq!(first.resume().await.unwrap(), RequestResult::Done);
    shut_down(engine).await;
}

async fn running_execution_is_cancelled(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    assert_eq!(engine.cancel("x").await.unwrap(), RequestResult::Pending);
    assert_cancelled(&handle, "SF-0022").await;
    let record = record(&engine, "x").await;
    assert!(record.checkpoints.is_empty() && record.requests.is_empty());
    shut_down(engine).await;
}

async fn execution_of_another_engine_is_cancelled(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    assert_cancelled(&two.get("x").await.unwrap(), "SF-0022").await;
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(one).await;
    shut_down(two).await;
}

fn sleeper() -> Workflow<i64, i64> {
    Workflow::new("sleeper", |mut cx: Context, x: i64| async move {
        cx.sleep(HOUR).await;
        BodyResult::Ok(x)
    })
}

async fn suspended_execution_is_cancelled_at_once(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(SHORT)).await;
    let handle = engine.start(&sleeper, 1).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(handle.cancel().await.unwrap(), RequestResult::Done);
    assert_cancelled(&handle, "SF-0022").await;
    fixture.clock().advance(HOUR * 2);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(engine).await;
}

async fn suspended_execution_is_cancelled_by_another_engine(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (one, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(SHORT)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(&sleeper, 1).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Done);
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn cancel_of_ended_execution_is_not_applicable(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).await.unwrap();
    handle.result().await.unwrap();
    assert_eq!(handle.cancel().await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
}

async fn request_to_unknown_execution_is_not_found(fixture: &dyn StoreFixture) {
    let (engine, _) = open_engine(fixture, |b| b).await;
    for id in ["unknown", &Key::mint(0).to_string()] {
        for error in [engine.cancel(id).await.unwrap_err(), engine.resume(id).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(id), "{error}");
        }
    }
    shut_down(engine).await;
}

async fn body_never_begins_after_a_cancel(fixture: &dyn StoreFixture) {
    let (count, latch, later) = (Count::new(), Latch::new(), Count::new());
    let workflow = {
        let (count, latch, later) = (count.clone(), latch.clone(), later.clone());
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let (count, latch, later) = (count.clone(), latch.clone(), later.clone());
            async move {
                cx.step("first", || {
                    let (count, latch) = (count.clone(), latch.clone());
                    async move {
                        count.increment();
                        latch.wait().await;
                        BodyResult::Ok(())
                    }
                })
                .await?;
                later.increment();
                cx.step("second", async || BodyResult::Ok(())).await?;
                BodyResult::Ok(x)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    count.wait_for(1).await;
    handle.cancel().await.unwrap();
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    assert_eq!(later.get(), 0);
    shut_down(engine).await;
}

async fn backoff_is_interrupted_by_a_cancel(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, _x: i64| async move {
        cx.step("fail", async || Err::<i64, _>(Failure::new("no"))).retries(9).backoff(HOUR, HOUR).await
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(engine).await;
}

/// Returns a workflow that starts a detached `child` if its input is negative, and awaits another.
fn parent(child: &Workflow<i64, i64>) -> Workflow<i64, i64> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, x: i64| {
        let child = child.clone();
        async move {
            if x < 0 {
                cx.start_detached(&child, x).await?;
            }
            cx.child(&child, x).await
        }
    })
}

/// Returns whether each execution of the workflow is detached, and its status, in sorted order.
async fn children(engine: &Engine, workflow: &str) -> Vec<(bool, Status)> {
    let filter = Filter { workflow: Some(workflow.into()), limit: 99, ..Filter::default() };
    let mut statuses = Vec::new();
    for row in engine.list(&filter).await.unwrap().executions {
        statuses.push((row.parent.is_some_and(|parent| parent.is_detached), row.status));
    }
    statuses.sort_unstable();
    statuses
}

async fn cancel_reaches_only_awaited_children(fixture: &dyn StoreFixture) {
    for suspend_after in [HOUR, SHORT] {
        let (count, latch) = (Count::new(), Latch::new());
        let name = format!("child {suspend_after:?}");
        let child = latched_workflow(&name, &count, &latch);
        let parent = parent(&child);
        let (engine, store) =
            open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(suspend_after)).await;
        let handle = engine.start(&parent, -1).await.unwrap();
        count.wait_for(2).await;
        if suspend_after == SHORT {
            store.wait_until_committed(is_suspension_of(handle.key())).await;
        }
        handle.cancel().await.unwrap();
        assert_cancelled(&handle, "SF-0022").await;
        // the stopped child ends on its own
        let filter = Filter { workflow: Some(name.as_str().into()), limit: 9, ..Filter::default() };
        for row in engine.list(&filter).await.unwrap().executions {
            let is_detached = row.parent.as_ref().unwrap().is_detached;
            if !is_detached {
                store.wait_until_committed(is_end_of(row.key)).await;
            }
        }
        assert_eq!(children(&engine, &name).await, [(false, Status::Cancelled), (true, Status::Running)]);
        latch.open();
        shut_down(engine).await;
    }
}

async fn cancel_of_waiting_parent_stops_children_on_every_engine(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (one, store) =
        open_engine(fixture, |b| b.register(&parent).register(&child).max_running(1).suspend_after(SHORT))
            .await;
    let (two, other) = open_second_engine(fixture, |b| b.register(&child)).await;
    let handle = one.start(&parent, 1).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    count.wait_for(1).await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let child = two.list(&filter).await.unwrap().executions[0].key;
    assert_eq!(handle.cancel().await.unwrap(), RequestResult::Done);
    assert_cancelled(&handle, "SF-0022").await;
    let child = one.get::<i64>(&child.to_string()).await.unwrap();
    assert_cancelled(&child, "SF-0022").await;
    drop(other);
    shut_down(one).await;
    shut_down(two).await;
}

/// Returns a workflow with a step that counts, then a step that waits for `latch`. The workflow fails between them if
/// `is_bad` is open.
fn resumable(bodies: &Count, waits: &Count, latch: &Latch, is_bad: &Latch) -> Workflow<i64, i64> {
    let (bodies, waits, latch, is_bad) = (bodies.clone(), waits.clone(), latch.clone(), is_bad.clone());
    Workflow::new("resumable", move |mut cx: Context, x: i64| {
        let (bodies, waits, latch, is_bad) = (bodies.clone(), waits.clone(), latch.clone(), is_bad.clone());
        async move {
            cx.step("first", || {
                bodies.increment();
                async { BodyResult::Ok(()) }
            })
            .await?;
            if is_bad.is_open() {
                return Err(Failure::new("not yet"));
            }
            cx.step("wait", || {
                let (waits, latch) = (waits.clone(), latch.clone());
                async move {
                    waits.increment();
                    latch.wait().await;
                    BodyResult::Ok(())
                }
            })
            .await?;
            Ok(x)
        }
    })
}

async fn cancelled_execution_is_resumed_from_its_record(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    let workflow = resumable(&bodies, &waits, &latch, &is_bad);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 5).workflow_id("x").await.unwrap();
    waits.wait_for(1).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    latch.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 1, "a recorded step was repeated");
    let record = record(&engine, "x").await;
    assert_eq!(record.execution.run_no, 2);
    assert_eq!(record.checkpoints.iter().map(|c| c.run_no).collect::<Vec<_>>(), [1, 2]);
    shut_down(engine).await;
}

async fn failed_execution_is_resumed_from_its_record(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    is_bad.open();
    latch.open();
    let workflow = resumable(&bodies, &waits, &latch, &is_bad);
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let error = one.run(&workflow, 5).workflow_id("x").await.unwrap_err();
    assert!(matches!(error, Error::Failed(_)));
    shut_down(one).await;
    let workflow = resumable(&bodies, &waits, &latch, &Latch::new());
    let (two, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 1, "a recorded step was repeated");
    shut_down(two).await;
}

/// Returns a workflow with a step that fails on both of its attempts while `is_up` is closed.
fn calls(bodies: &Count, is_up: &Latch, is_caught: bool) -> Workflow<i64, i64> {
    let (bodies, is_up) = (bodies.clone(), is_up.clone());
    Workflow::new("calls", move |mut cx: Context, x: i64| {
        let (bodies, is_up) = (bodies.clone(), is_up.clone());
        async move {
            let call = cx.step("call", || {
                bodies.increment();
                let is_up = is_up.is_open();
                async move { if is_up { Ok(x) } else { Err(Failure::new("service unavailable")) } }
            });
            let called = call.retries(1).backoff(SHORT, SHORT).await;
            if !is_caught {
                return called;
            }
            cx.step("compensate", async || BodyResult::Ok(())).await?;
            called
        }
    })
}

async fn failed_step_is_retried_after_a_resume(fixture: &dyn StoreFixture) {
    let (bodies, is_up) = (Count::new(), Latch::new());
    let workflow = calls(&bodies, &is_up, false);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert!(engine.run(&workflow, 5).workflow_id("x").await.is_err());
    assert_eq!(bodies.get(), 2);
    // with all of its attempts
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let error = engine.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert!(error.to_string().contains("service unavailable"), "{error}");
    assert_eq!(bodies.get(), 4);
    is_up.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 5);
    let record = record(&engine, "x").await;
    assert_eq!((record.execution.run_no, record.checkpoints.len(), record.attempts.len()), (3, 1, 0));
    shut_down(engine).await;
}

async fn handled_failure_is_kept_after_a_resume(fixture: &dyn StoreFixture) {
    let (bodies, is_up) = (Count::new(), Latch::new());
    let workflow = calls(&bodies, &is_up, true);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert!(engine.run(&workflow, 5).workflow_id("x").await.is_err());
    is_up.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let error = engine.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert!(error.to_string().contains("service unavailable"), "{error}");
    assert_eq!(bodies.get(), 2, "a handled failure was retried");
    shut_down(engine).await;
}

async fn parent_is_resumed_after_its_failed_child(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    is_bad.open();
    let child = resumable(&bodies, &waits, &latch, &is_bad);
    let parent = parent(&child);
    let (one, _) = open_engine(fixture, |b| b.register(&parent).register(&child)).await;
    assert!(one.run(&parent, 5).workflow_id("x").await.is_err());
    let of = one.get::<i64>("x").await.unwrap().key();
    let filter = Filter { parent: Some(of), limit: 9, ..Filter::default() };
    let child_key = one.list(&filter).await.unwrap().executions[0].key;
    shut_down(one).await;

    let child = resumable(&bodies, &waits, &latch, &Latch::new());
    let (two, store) =
        open_engine(fixture, |b| b.register(&parent).register(&child).suspend_after(SHORT)).await;
    assert_eq!(two.resume(&child_key.to_string()).await.unwrap(), RequestResult::Done);
    waits.wait_for(1).await;
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    // the parent waits for the child again
    store.wait_until_committed(is_suspension_of(of)).await;
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!((bodies.get(), waits.get()), (1, 1), "the parent started another child");
    shut_down(two).await;
}

async fn resumed_parent_starts_its_cancelled_child_again(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, 1).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let first = engine.list(&filter).await.unwrap().executions[0].key;
    store.wait_until_committed(is_end_of(first)).await;
    latch.open();
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    let children = children(&engine, "child").await;
    assert_eq!(children, [(false, Status::Completed), (false, Status::Cancelled)]);
    shut_down(engine).await;
}

async fn handle_of_resumed_execution_returns_its_new_run(fixture: &dyn StoreFixture) {
    let (tries, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (tries, latch) = (tries.clone(), latch.clone());
        Workflow::new("w", move |_cx: Context, (): ()| {
            let (tries, latch) = (tries.clone(), latch.clone());
            async move {
                latch.wait().await;
                let n = tries.increment();
                if n == 1 { Err(Failure::new("no")) } else { Ok(n) }
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let first = one.start(&workflow, ()).workflow_id("x").await.unwrap();
    // the engine that runs the execution has not received its end, which another engine sees and acts on
    store.hold_write_replies(is_end_of(first.key()));
    store.hold_calls(&[Call::Claim]);
    latch.open();
    store.wait_until_committed(is_end_of(first.key())).await;
    assert!(matches!(two.get::<usize>("x").await.unwrap().result().await, Err(Error::Failed(_))));
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    let second = one.get::<usize>("x").await.unwrap();
    store.release();
    assert!(matches!(first.result().await, Err(Error::Failed(_))));
    assert_eq!(second.result().await.unwrap(), 2);
    shut_down(one).await;
    shut_down(two).await;
}

async fn resume_of_running_execution_is_not_applicable(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    count.wait_for(1).await;
    assert_eq!(handle.resume().await.unwrap(), RequestResult::NotApplicable(Status::Running));
    latch.open();
    handle.result().await.unwrap();
    assert_eq!(handle.resume().await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    shut_down(engine).await;
}

/// Cancels parents while they start a child. The child's end must not be taken for the end of its parent.
async fn cancel_during_the_start_of_a_child_wins(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let child = sleeper.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, x: i64| {
        let child = child.clone();
        async move {
            cx.step("one", async || BodyResult::Ok(())).await?;
            cx.child(&child, x).await
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&sleeper).register(&parent)).await;
    let cancels = (0..100).map(|x| {
        let (engine, parent) = (&engine, &parent);
        async move {
            let handle = engine.start(parent, x).await.unwrap();
            engine.cancel(&handle.workflow_id()).await.unwrap();
            assert_cancelled(&handle, "SF-0022").await;
        }
    });
    futures_util::future::join_all(cancels).await;
    shut_down(engine).await;
}

async fn deadline_cancels_a_running_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(Duration::from_millis(40)).await.unwrap();
    assert_cancelled(&handle, "SF-0021").await;
    let error = engine.run(&workflow, 1).execution_timeout(SHORT).await.unwrap_err();
    assert!(matches!(&error, Error::Cancelled(failure) if failure.code() == Some("SF-0021")), "{error}");
    latch.open();
    let in_time = engine.run(&workflow, 7).execution_timeout(HOUR).await.unwrap();
    assert_eq!(in_time, 7);
    shut_down(engine).await;
}

async fn deadline_cancels_a_suspended_execution(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = open_engine(fixture, |b| b.register(&sleeper).suspend_after(SHORT)).await;
    let minute = Duration::from_mins(1);
    let handle = engine.start(&sleeper, 1).execution_timeout(minute).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    let waiting = row(&engine, &handle.workflow_id()).await;
    assert_eq!(waiting.wake_at, waiting.deadline_at);
    fixture.clock().advance(minute);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

async fn deadline_cancels_a_queued_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    let minute = Duration::from_mins(1);
    let queued = engine.start(&workflow, 2).execution_timeout(minute).await.unwrap();
    count.wait_for(1).await;
    fixture.clock().advance(minute);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_cancelled(&queued, "SF-0021").await;
    assert_eq!(count.get(), 1, "the body has begun");
    shut_down(engine).await;
}

async fn deadline_reaches_awaited_children(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    // on a slow machine, too, both children begin before the deadline
    let handle = engine.start(&parent, -1).execution_timeout(Duration::from_secs(1)).await.unwrap();
    assert_cancelled(&handle, "SF-0021").await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    for row in engine.list(&filter).await.unwrap().executions {
        if !row.parent.as_ref().unwrap().is_detached {
            store.wait_until_committed(is_end_of(row.key)).await;
        }
    }
    assert_eq!(children(&engine, "child").await, [(false, Status::Cancelled), (true, Status::Running)]);
    latch.open();
    shut_down(engine).await;
}

/// The code of the parent does not run again before the end, so only the database knows the children.
async fn deadline_of_suspended_parent_reaches_awaited_children(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let parent = parent(&sleeper);
    let (engine, store) =
        open_engine(fixture, |b| b.register(&sleeper).register(&parent).suspend_after(SHORT)).await;
    // by the machine's clock: when the parent is claimed, its deadline has passed for every observer
    let handle = engine.start(&parent, -1).execution_timeout(Duration::from_millis(300)).await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let children = engine.list(&filter).await.unwrap().executions;
    assert_eq!(children.len(), 2);
    assert_cancelled(&handle, "SF-0021").await;
    for child in children {
        if child.parent.as_ref().unwrap().is_detached {
            engine.cancel(&child.workflow_id()).await.unwrap();
        }
        let child: Handle<i64> = engine.get(&child.workflow_id()).await.unwrap();
        let error = child.result().await.unwrap_err();
        assert!(matches!(error, Error::Cancelled(_)), "{error}");
    }
    shut_down(engine).await;
}

async fn racing_end_and_cancel_have_one_winner(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("quick", |mut cx: Context, x: i64| async move {
        for _ in 0..x % 4 {
            cx.step("s", async || BodyResult::Ok(())).await?;
        }
        BodyResult::Ok(x)
    });
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    for x in 0..24 {
        let handle = one.start(&workflow, x).await.unwrap();
        let id = handle.workflow_id();
        let requester = if x % 2 == 0 { &one } else { &two };
        let (reply, result) = tokio::join!(requester.cancel(&id), handle.result());
        let status = handle.status().await.unwrap();
        match (reply.unwrap(), result) {
            (RequestResult::NotApplicable(Status::Completed), Ok(output)) => assert_eq!(output, x),
            (RequestResult::Pending | RequestResult::Done, Err(Error::Cancelled(_))) => {
                assert_eq!(status, Status::Cancelled);
            }
            (reply, result) => panic!("{reply:?}, and {result:?}"),
        }
    }
    shut_down(one).await;
    shut_down(two).await;
}
