//! Cancelling, resuming, and deadlines, wherever the execution is.

use std::time::Duration;

use stepfast_core::store::{Filter, RequestResult, Status, Write};
use stepfast_core::{Context, Engine, Error, ErrorKind, Failure, Handle, Key, Workflow};

use super::support::{
    Count, Latch, Returns, ends, engine, noop, record, row, second_engine, shut_down, suspends, waiting,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    a_queued_one_is_cancelled_at_once,
    a_running_one_is_stopped,
    one_that_runs_in_another_engine_is_stopped,
    a_waiting_one_is_cancelled_at_once,
    a_suspended_one_is_cancelled_by_another_engine,
    an_ended_one_declines,
    an_unknown_one_is_not_found,
    no_further_body_begins_after_a_cancel,
    a_pause_between_attempts_is_cut_short,
    a_cancel_goes_down_to_awaited_children_only,
    a_cancel_of_a_waiting_parent_stops_its_children_everywhere,
    a_cancelled_one_is_resumed_with_what_it_had,
    a_failed_one_is_resumed_with_what_it_had,
    a_step_that_ended_it_is_tried_again,
    a_failure_that_was_dealt_with_stands,
    a_parent_is_resumed_after_the_child_that_ended_it,
    a_resumed_one_starts_its_children_anew,
    what_goes_on_is_not_resumed,
    who_asks_for_a_resumed_one_hears_of_its_new_run,
    a_cancel_that_meets_a_new_child_wins,
    a_deadline_cancels_a_running_one,
    a_deadline_cancels_a_suspended_one,
    a_deadline_cancels_a_queued_one,
    a_deadline_goes_down_to_children,
    a_deadline_goes_down_to_children_of_a_suspended_one,
    whoever_is_first_of_the_end_and_a_cancel_wins,
];

const HOUR: Duration = Duration::from_hours(1);
const BRIEF: Duration = Duration::from_millis(10);

async fn assert_cancelled(handle: &Handle<i64>, code: &str) {
    let error = handle.result().await.unwrap_err();
    let Error::Cancelled(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.code(), error.kind()), (Some(code), ErrorKind::Cancelled));
    assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
}

async fn a_queued_one_is_cancelled_at_once(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    let queued = engine.start(&workflow, 2).await.unwrap();
    assert_eq!(queued.cancel().await.unwrap(), RequestResult::Done);
    assert_cancelled(&queued, "SF-0022").await;
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_eq!(count.get(), 1);
    shut_down(engine).await;
}

async fn a_running_one_is_stopped(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    assert_eq!(engine.cancel("x").await.unwrap(), RequestResult::Pending);
    assert_cancelled(&handle, "SF-0022").await;
    let record = record(&engine, "x").await;
    assert!(record.checkpoints.is_empty() && record.requests.is_empty());
    shut_down(engine).await;
}

async fn one_that_runs_in_another_engine_is_stopped(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let handle = one.start(&workflow, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    assert_cancelled(&two.get("x").await.unwrap(), "SF-0022").await;
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(one).await;
    shut_down(two).await;
}

fn sleeper() -> Workflow<i64, i64> {
    Workflow::new("sleeper", |mut cx: Context, x: i64| async move {
        cx.sleep(HOUR).await;
        Returns::Ok(x)
    })
}

async fn a_waiting_one_is_cancelled_at_once(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = engine(fixture, |b| b.register(&sleeper).suspend_after(BRIEF)).await;
    let handle = engine.start(&sleeper, 1).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    assert_eq!(handle.cancel().await.unwrap(), RequestResult::Done);
    assert_cancelled(&handle, "SF-0022").await;
    fixture.clock().advance(HOUR * 2);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(engine).await;
}

async fn a_suspended_one_is_cancelled_by_another_engine(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (one, store) = engine(fixture, |b| b.register(&sleeper).suspend_after(BRIEF)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let handle = one.start(&sleeper, 1).workflow_id("x").await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Done);
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(one).await;
    shut_down(two).await;
}

async fn an_ended_one_declines(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).await.unwrap();
    handle.result().await.unwrap();
    assert_eq!(handle.cancel().await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
}

async fn an_unknown_one_is_not_found(fixture: &dyn StoreFixture) {
    let (engine, _) = engine(fixture, |b| b).await;
    for id in ["nobody", &Key::mint(0).to_string()] {
        for error in [engine.cancel(id).await.unwrap_err(), engine.resume(id).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(id), "{error}");
        }
    }
    shut_down(engine).await;
}

async fn no_further_body_begins_after_a_cancel(fixture: &dyn StoreFixture) {
    let (count, latch, later) = (Count::new(), Latch::new(), Count::new());
    let workflow = {
        let (count, latch, later) = (count.clone(), latch.clone(), later.clone());
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let (count, latch, later) = (count.clone(), latch.clone(), later.clone());
            async move {
                cx.step("first", || {
                    let (count, latch) = (count.clone(), latch.clone());
                    async move {
                        count.more();
                        latch.passed().await;
                        Returns::Ok(())
                    }
                })
                .await?;
                later.more();
                cx.step("second", async || Returns::Ok(())).await?;
                Returns::Ok(x)
            }
        })
    };
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    count.reaches(1).await;
    handle.cancel().await.unwrap();
    latch.open();
    assert_cancelled(&handle, "SF-0022").await;
    assert_eq!(later.get(), 0);
    shut_down(engine).await;
}

async fn a_pause_between_attempts_is_cut_short(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, _x: i64| async move {
        cx.step("fail", async || Err::<i64, _>(Failure::new("no"))).retries(9).backoff(HOUR, HOUR).await
    });
    let (engine, store) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    store.wait_until_committed(|write| matches!(write, Write::Attempt(_))).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    shut_down(engine).await;
}

/// A workflow that starts a detached `child`, and awaits another.
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

/// Statuses of the executions of this workflow, by input sign: detached ones have negative inputs.
async fn children(engine: &Engine, workflow: &str) -> Vec<(bool, Status)> {
    let filter = Filter { workflow: Some(workflow.into()), limit: 99, ..Filter::default() };
    let mut statuses = Vec::new();
    for row in engine.list(&filter).await.unwrap().executions {
        statuses.push((row.parent.is_some_and(|parent| parent.is_detached), row.status));
    }
    statuses.sort_unstable();
    statuses
}

async fn a_cancel_goes_down_to_awaited_children_only(fixture: &dyn StoreFixture) {
    for suspend_after in [HOUR, BRIEF] {
        let (count, latch) = (Count::new(), Latch::new());
        let name = format!("child {suspend_after:?}");
        let child = waiting(&name, &count, &latch);
        let parent = parent(&child);
        let (engine, store) =
            engine(fixture, |b| b.register(&child).register(&parent).suspend_after(suspend_after)).await;
        let handle = engine.start(&parent, -1).await.unwrap();
        count.reaches(2).await;
        if suspend_after == BRIEF {
            store.wait_until_committed(suspends(handle.key())).await;
        }
        handle.cancel().await.unwrap();
        assert_cancelled(&handle, "SF-0022").await;
        // the child that is stopped ends on its own
        let filter = Filter { workflow: Some(name.as_str().into()), limit: 9, ..Filter::default() };
        for row in engine.list(&filter).await.unwrap().executions {
            let is_detached = row.parent.as_ref().unwrap().is_detached;
            if !is_detached {
                store.wait_until_committed(ends(row.key)).await;
            }
        }
        assert_eq!(children(&engine, &name).await, [(false, Status::Cancelled), (true, Status::Running)]);
        latch.open();
        shut_down(engine).await;
    }
}

async fn a_cancel_of_a_waiting_parent_stops_its_children_everywhere(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = waiting("child", &count, &latch);
    let parent = parent(&child);
    let (one, store) =
        engine(fixture, |b| b.register(&parent).register(&child).max_running(1).suspend_after(BRIEF)).await;
    let (two, other) = second_engine(fixture, |b| b.register(&child)).await;
    let handle = one.start(&parent, 1).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    count.reaches(1).await;
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

/// A workflow with a step that counts, then what the latch and the flag say.
fn resumable(bodies: &Count, waits: &Count, latch: &Latch, is_bad: &Latch) -> Workflow<i64, i64> {
    let (bodies, waits, latch, is_bad) = (bodies.clone(), waits.clone(), latch.clone(), is_bad.clone());
    Workflow::new("resumable", move |mut cx: Context, x: i64| {
        let (bodies, waits, latch, is_bad) = (bodies.clone(), waits.clone(), latch.clone(), is_bad.clone());
        async move {
            cx.step("first", || {
                bodies.more();
                async { Returns::Ok(()) }
            })
            .await?;
            if is_bad.is_open() {
                return Err(Failure::new("not yet"));
            }
            cx.step("wait", || {
                let (waits, latch) = (waits.clone(), latch.clone());
                async move {
                    waits.more();
                    latch.passed().await;
                    Returns::Ok(())
                }
            })
            .await?;
            Ok(x)
        }
    })
}

async fn a_cancelled_one_is_resumed_with_what_it_had(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    let workflow = resumable(&bodies, &waits, &latch, &is_bad);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 5).workflow_id("x").await.unwrap();
    waits.reaches(1).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    latch.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 1, "what was recorded is not repeated");
    let record = record(&engine, "x").await;
    assert_eq!(record.execution.run_no, 2);
    assert_eq!(record.checkpoints.iter().map(|c| c.run_no).collect::<Vec<_>>(), [1, 2]);
    shut_down(engine).await;
}

async fn a_failed_one_is_resumed_with_what_it_had(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    is_bad.open();
    latch.open();
    let workflow = resumable(&bodies, &waits, &latch, &is_bad);
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let error = one.run(&workflow, 5).workflow_id("x").await.unwrap_err();
    assert!(matches!(error, Error::Failed(_)));
    shut_down(one).await;
    let workflow = resumable(&bodies, &waits, &latch, &Latch::new());
    let (two, _) = engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 1, "what was recorded is not repeated");
    shut_down(two).await;
}

/// A workflow with a step that fails twice, and once more if it is tried again, unless `is_up`.
fn calls(bodies: &Count, is_up: &Latch, is_caught: bool) -> Workflow<i64, i64> {
    let (bodies, is_up) = (bodies.clone(), is_up.clone());
    Workflow::new("calls", move |mut cx: Context, x: i64| {
        let (bodies, is_up) = (bodies.clone(), is_up.clone());
        async move {
            let call = cx.step("call", || {
                bodies.more();
                let is_up = is_up.is_open();
                async move { if is_up { Ok(x) } else { Err(Failure::new("it is down")) } }
            });
            let called = call.retries(1).backoff(BRIEF, BRIEF).await;
            if !is_caught {
                return called;
            }
            cx.step("make up for it", async || Returns::Ok(())).await?;
            called
        }
    })
}

async fn a_step_that_ended_it_is_tried_again(fixture: &dyn StoreFixture) {
    let (bodies, is_up) = (Count::new(), Latch::new());
    let workflow = calls(&bodies, &is_up, false);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    assert!(engine.run(&workflow, 5).workflow_id("x").await.is_err());
    assert_eq!(bodies.get(), 2);
    // with all of its attempts
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let error = engine.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert!(error.to_string().contains("it is down"), "{error}");
    assert_eq!(bodies.get(), 4);
    is_up.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!(bodies.get(), 5);
    let record = record(&engine, "x").await;
    assert_eq!((record.execution.run_no, record.checkpoints.len(), record.attempts.len()), (3, 1, 0));
    shut_down(engine).await;
}

async fn a_failure_that_was_dealt_with_stands(fixture: &dyn StoreFixture) {
    let (bodies, is_up) = (Count::new(), Latch::new());
    let workflow = calls(&bodies, &is_up, true);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    assert!(engine.run(&workflow, 5).workflow_id("x").await.is_err());
    is_up.open();
    assert_eq!(engine.resume("x").await.unwrap(), RequestResult::Done);
    let error = engine.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert!(error.to_string().contains("it is down"), "{error}");
    assert_eq!(bodies.get(), 2, "it was made up for");
    shut_down(engine).await;
}

async fn a_parent_is_resumed_after_the_child_that_ended_it(fixture: &dyn StoreFixture) {
    let (bodies, waits, latch, is_bad) = (Count::new(), Count::new(), Latch::new(), Latch::new());
    is_bad.open();
    let child = resumable(&bodies, &waits, &latch, &is_bad);
    let parent = parent(&child);
    let (one, _) = engine(fixture, |b| b.register(&parent).register(&child)).await;
    assert!(one.run(&parent, 5).workflow_id("x").await.is_err());
    let of = one.get::<i64>("x").await.unwrap().key();
    let filter = Filter { parent: Some(of), limit: 9, ..Filter::default() };
    let child_key = one.list(&filter).await.unwrap().executions[0].key;
    shut_down(one).await;

    let child = resumable(&bodies, &waits, &latch, &Latch::new());
    let (two, store) = engine(fixture, |b| b.register(&parent).register(&child).suspend_after(BRIEF)).await;
    assert_eq!(two.resume(&child_key.to_string()).await.unwrap(), RequestResult::Done);
    waits.reaches(1).await;
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    // it waits for the child once more
    store.wait_until_committed(suspends(of)).await;
    latch.open();
    assert_eq!(two.get::<i64>("x").await.unwrap().result().await.unwrap(), 5);
    assert_eq!((bodies.get(), waits.get()), (1, 1), "and starts no other");
    shut_down(two).await;
}

async fn a_resumed_one_starts_its_children_anew(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = waiting("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) = engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, 1).workflow_id("x").await.unwrap();
    count.reaches(1).await;
    handle.cancel().await.unwrap();
    assert_cancelled(&handle, "SF-0022").await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    let first = engine.list(&filter).await.unwrap().executions[0].key;
    store.wait_until_committed(ends(first)).await;
    latch.open();
    engine.resume("x").await.unwrap();
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    let children = children(&engine, "child").await;
    assert_eq!(children, [(false, Status::Completed), (false, Status::Cancelled)]);
    shut_down(engine).await;
}

async fn who_asks_for_a_resumed_one_hears_of_its_new_run(fixture: &dyn StoreFixture) {
    let (tries, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (tries, latch) = (tries.clone(), latch.clone());
        Workflow::new("w", move |_cx: Context, (): ()| {
            let (tries, latch) = (tries.clone(), latch.clone());
            async move {
                latch.passed().await;
                let n = tries.more();
                if n == 1 { Err(Failure::new("no")) } else { Ok(n) }
            }
        })
    };
    let (one, store) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    let first = one.start(&workflow, ()).workflow_id("x").await.unwrap();
    // the engine that runs it has not heard of its end, which another one sees and acts upon
    store.hold_write_replies(ends(first.key()));
    store.hold_calls(&[Call::Claim]);
    latch.open();
    store.wait_until_committed(ends(first.key())).await;
    assert!(matches!(two.get::<usize>("x").await.unwrap().result().await, Err(Error::Failed(_))));
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    let second = one.get::<usize>("x").await.unwrap();
    store.release();
    assert!(matches!(first.result().await, Err(Error::Failed(_))));
    assert_eq!(second.result().await.unwrap(), 2);
    shut_down(one).await;
    shut_down(two).await;
}

async fn what_goes_on_is_not_resumed(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).await.unwrap();
    count.reaches(1).await;
    assert_eq!(handle.resume().await.unwrap(), RequestResult::NotApplicable(Status::Running));
    latch.open();
    handle.result().await.unwrap();
    assert_eq!(handle.resume().await.unwrap(), RequestResult::NotApplicable(Status::Completed));
    shut_down(engine).await;
}

/// The child is cancelled too, and its end must not be taken for the parent's own.
async fn a_cancel_that_meets_a_new_child_wins(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let child = sleeper.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, x: i64| {
        let child = child.clone();
        async move {
            cx.step("one", async || Returns::Ok(())).await?;
            cx.child(&child, x).await
        }
    });
    let (engine, _) = engine(fixture, |b| b.register(&sleeper).register(&parent)).await;
    let asked = (0..100).map(|x| {
        let (engine, parent) = (&engine, &parent);
        async move {
            let handle = engine.start(parent, x).await.unwrap();
            engine.cancel(&handle.workflow_id()).await.unwrap();
            assert_cancelled(&handle, "SF-0022").await;
        }
    });
    futures_util::future::join_all(asked).await;
    shut_down(engine).await;
}

async fn a_deadline_cancels_a_running_one(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).execution_timeout(Duration::from_millis(40)).await.unwrap();
    assert_cancelled(&handle, "SF-0021").await;
    let error = engine.run(&workflow, 1).execution_timeout(BRIEF).await.unwrap_err();
    assert!(matches!(&error, Error::Cancelled(failure) if failure.code() == Some("SF-0021")), "{error}");
    latch.open();
    let in_time = engine.run(&workflow, 7).execution_timeout(HOUR).await.unwrap();
    assert_eq!(in_time, 7);
    shut_down(engine).await;
}

async fn a_deadline_cancels_a_suspended_one(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let (engine, store) = engine(fixture, |b| b.register(&sleeper).suspend_after(BRIEF)).await;
    let minute = Duration::from_mins(1);
    let handle = engine.start(&sleeper, 1).execution_timeout(minute).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    let waiting = row(&engine, &handle.workflow_id()).await;
    assert_eq!(waiting.wake_at, waiting.deadline_at);
    fixture.clock().advance(minute);
    assert_cancelled(&handle, "SF-0021").await;
    shut_down(engine).await;
}

async fn a_deadline_cancels_a_queued_one(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = waiting("w", &count, &latch);
    let (engine, store) = engine(fixture, |b| b.register(&workflow).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    let minute = Duration::from_mins(1);
    let queued = engine.start(&workflow, 2).execution_timeout(minute).await.unwrap();
    count.reaches(1).await;
    fixture.clock().advance(minute);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_cancelled(&queued, "SF-0021").await;
    assert_eq!(count.get(), 1, "its body has not begun");
    shut_down(engine).await;
}

async fn a_deadline_goes_down_to_children(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = waiting("child", &count, &latch);
    let parent = parent(&child);
    let (engine, store) = engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, -1).execution_timeout(Duration::from_millis(100)).await.unwrap();
    assert_cancelled(&handle, "SF-0021").await;
    let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
    for row in engine.list(&filter).await.unwrap().executions {
        if !row.parent.as_ref().unwrap().is_detached {
            store.wait_until_committed(ends(row.key)).await;
        }
    }
    assert_eq!(children(&engine, "child").await, [(false, Status::Cancelled), (true, Status::Running)]);
    latch.open();
    shut_down(engine).await;
}

/// Its code does not run again before the end, so the children are known to nobody but the database.
async fn a_deadline_goes_down_to_children_of_a_suspended_one(fixture: &dyn StoreFixture) {
    let sleeper = sleeper();
    let parent = parent(&sleeper);
    let (engine, store) =
        engine(fixture, |b| b.register(&sleeper).register(&parent).suspend_after(BRIEF)).await;
    // by the machine's clock: when it is claimed, everybody knows that its time is up
    let handle = engine.start(&parent, -1).execution_timeout(Duration::from_millis(300)).await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
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

async fn whoever_is_first_of_the_end_and_a_cancel_wins(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("quick", |mut cx: Context, x: i64| async move {
        for _ in 0..x % 4 {
            cx.step("s", async || Returns::Ok(())).await?;
        }
        Returns::Ok(x)
    });
    let (one, _) = engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = second_engine(fixture, |b| b).await;
    for x in 0..24 {
        let handle = one.start(&workflow, x).await.unwrap();
        let id = handle.workflow_id();
        let asker = if x % 2 == 0 { &one } else { &two };
        let (answer, result) = tokio::join!(asker.cancel(&id), handle.result());
        let status = handle.status().await.unwrap();
        match (answer.unwrap(), result) {
            (RequestResult::NotApplicable(Status::Completed), Ok(output)) => assert_eq!(output, x),
            (RequestResult::Pending | RequestResult::Done, Err(Error::Cancelled(_))) => {
                assert_eq!(status, Status::Cancelled);
            }
            (answer, result) => panic!("{answer:?}, and {result:?}"),
        }
    }
    shut_down(one).await;
    shut_down(two).await;
}
