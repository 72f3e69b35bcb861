//! Children and branches whose parent's run, or its Start, is discarded.

use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Filter, Outcome, Status, Write};
use stepfast_core::{Context, EngineBuilder, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, is_end_of, is_suspension_of, open, open_engine, open_second_engine,
    record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

super::cases![
    child_starts_once_if_a_crash_precedes_the_parents_record,
    duplicate_start_discards_its_children,
    unawaited_branch_ends_with_its_workflow,
    unregistered_child_error_names_the_parent,
    duration_of_a_child_includes_the_suspension_of_its_parent,
];

/// Returns a workflow `child` with one step. The body increments a count, waits for the latch of that number, and
/// returns the number.
fn counting(bodies: &Count, latches: &[Latch; 2]) -> Workflow<(), usize> {
    let all = (bodies.clone(), latches.clone());
    Workflow::new("child", move |mut cx: Context, (): ()| {
        let all = all.clone();
        async move {
            cx.step("wait", || {
                let (bodies, latches) = all.clone();
                async move {
                    let number = bodies.increment();
                    latches[number - 1].wait().await;
                    BodyResult::Ok(number)
                }
            })
            .await
        }
    })
}

/// Returns a workflow `parent` that starts a child, increments a count, and awaits the child.
fn parent(child: &Workflow<(), usize>, started: &Count) -> Workflow<(), usize> {
    let (child, started) = (child.clone(), started.clone());
    Workflow::new("parent", move |mut cx: Context, (): ()| {
        let (child, started) = (child.clone(), started.clone());
        async move {
            let handle = cx.start_child(&child, ()).await?;
            started.increment();
            handle.result(&mut cx).await
        }
    })
}

/// Returns a workflow `parent` that runs a step, then starts and awaits a child. The key of the child depends on the
/// time at which the step was recorded.
fn parent_behind_a_step(child: &Workflow<(), usize>) -> Workflow<(), usize> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, (): ()| {
        let child = child.clone();
        async move {
            cx.step("before", || async { BodyResult::Ok(()) }).await?;
            cx.start_child(&child, ()).await?.result(&mut cx).await
        }
    })
}

async fn child_starts_once_if_a_crash_precedes_the_parents_record(fixture: &dyn StoreFixture) {
    // the dead engine's child hangs, or has ended as far as that engine can observe
    for (id, ends_before_crash) in [("hangs", false), ("ended", true)] {
        let (bodies, latches) = (Count::new(), [Latch::new(), Latch::new()]);
        let child = counting(&bodies, &latches);
        let parent = parent_behind_a_step(&child);
        let store = FaultStore::with_flush_writes(fixture.store(), 1);
        let one = open(store.clone(), |b| b.register(&child).register(&parent)).await;
        store.hold_writes(|write| {
            matches!(write, Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Started)
        });
        let handle = one.start(&parent, ()).workflow_id(id).await.unwrap();
        let key = handle.key();
        let is_child_start = |write: &Write| matches!(write, Write::Start(start) if start.parent.as_ref().is_some_and(|it| it.key == key));
        store.wait_until_committed(is_child_start).await;
        store.wait_until_hanging().await;
        bodies.wait_for(1).await;
        if ends_before_crash {
            latches[0].open();
        }
        let (two, other) = open_second_engine(fixture, |b| b.register(&child).register(&parent)).await;
        assert_eq!(record(&two, id).await.checkpoints.len(), 1, "the parent has recorded the child's start");
        // the dead engine must not continue the execution: it would return under another registration
        store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
        fixture.mark_dead(record(&two, id).await.execution.owner.unwrap()).await;
        bodies.wait_for(2).await;
        // the second engine attaches to the existing child, whose run may have begun there already
        other
            .wait_until_committed(
                |write| matches!(write, Write::Checkpoint(it) if it.kind == CheckpointKind::Started),
            )
            .await;
        let restart = other.committed_writes().into_iter().find(|(write, _)| is_child_start(write));
        assert!(matches!(restart, None | Some((_, Outcome::Duplicate(_)))), "{restart:?}");
        store.release();
        latches[1].open();
        assert_eq!(two.get::<usize>(id).await.unwrap().result().await.unwrap(), 2);
        assert_eq!(handle.result().await.unwrap(), 2);
        let filter = Filter { parent: Some(key), limit: 9, ..Filter::default() };
        let children = two.list(&filter).await.unwrap().executions;
        assert_eq!(children.len(), 1);
        assert_eq!((children[0].status, children[0].recoveries), (Status::Completed, 1));
        let parents = deliveries(&record(&two, id).await);
        let kinds: Vec<CheckpointKind> = parents.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [CheckpointKind::Step, CheckpointKind::Started, CheckpointKind::Child]);
        assert_eq!(record(&two, &children[0].workflow_id()).await.checkpoints.len(), 1);
        assert_eq!(bodies.get(), 2);
        shut_down(one).await;
        shut_down(two).await;
    }
}

async fn duplicate_start_discards_its_children(fixture: &dyn StoreFixture) {
    let (discarded_bodies, other_bodies) = (Count::new(), Count::new());
    let started = Count::new();
    // every body may continue at once
    let latches = [Latch::new(), Latch::new()];
    latches.iter().for_each(Latch::open);
    let (child, other_child) = (counting(&discarded_bodies, &latches), counting(&other_bodies, &latches));
    let awaiting = parent(&child, &started);
    let other_parent = parent(&other_child, &Count::new());
    let (one, store) = open_engine(fixture, |b| b.register(&child).register(&awaiting)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&other_child).register(&other_parent)).await;
    store.hold_calls(&[Call::Commit]);
    let run = {
        let (one, awaiting) = (one.clone(), awaiting.clone());
        tokio::spawn(async move { one.run(&awaiting, ()).workflow_id("x").await })
    };
    // the parent's Start hangs; the child is staged behind it, and runs up to its step
    started.wait_for(1).await;
    store.wait_until_hanging().await;
    while one.running_count() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(two.run(&other_parent, ()).workflow_id("x").await.unwrap(), 1);
    assert_eq!((discarded_bodies.get(), other_bodies.get()), (0, 1));
    store.release();
    assert_eq!(run.await.unwrap().unwrap(), 1, "the outcome of the existing execution");
    while one.running_count() > 0 {
        tokio::task::yield_now().await;
    }
    let all = two.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions;
    assert_eq!(all.len(), 2);
    let key = record(&two, "x").await.execution.key;
    assert!(all.iter().all(|it| it.root == key && it.status == Status::Completed));
    let is_child_start = |write: &Write| matches!(write, Write::Start(start) if start.parent.is_some());
    assert!(!store.committed_writes().iter().any(|(write, _)| is_child_start(write)));
    assert_eq!((discarded_bodies.get(), other_bodies.get()), (0, 1));
    shut_down(one).await;
    shut_down(two).await;
}

/// A branch's value that increments a count when it is dropped.
struct BranchDropCounter(Count);

impl Drop for BranchDropCounter {
    fn drop(&mut self) {
        self.0.increment();
    }
}

async fn unawaited_branch_ends_with_its_workflow(fixture: &dyn StoreFixture) {
    let (begun, late, dropped, after) = (Count::new(), Count::new(), Count::new(), Count::new());
    let latch = Latch::new();
    let workflow = {
        let all = (begun.clone(), late.clone(), dropped.clone(), after.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (begun, late, dropped, after, latch) = all.clone();
            async move {
                let branch_in_body = {
                    let (begun, after) = (begun.clone(), after.clone());
                    let (dropped, latch) = (BranchDropCounter(dropped.clone()), latch.clone());
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        let body = || {
                            let (begun, latch) = (begun.clone(), latch.clone());
                            async move {
                                begun.increment();
                                latch.wait().await;
                                BodyResult::Ok(())
                            }
                        };
                        let result = cx.step("body", body).await;
                        after.increment();
                        result
                    })
                };
                let sleeping_branch = {
                    let (after, dropped) = (after.clone(), BranchDropCounter(dropped.clone()));
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        cx.sleep(HOUR).await;
                        after.increment();
                    })
                };
                cx.step("main", || {
                    let begun = begun.clone();
                    async move {
                        begun.wait_for(1).await;
                        BodyResult::Ok(())
                    }
                })
                .await?;
                let unpolled_branch = {
                    let dropped = BranchDropCounter(dropped.clone());
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        late.increment();
                        cx.step("late", async || BodyResult::Ok(())).await
                    })
                };
                drop((branch_in_body, sleeping_branch, unpolled_branch));
                BodyResult::Ok(7)
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(Duration::ZERO)).await;
    let handle = engine.start(&workflow, ()).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    // no part of the branches is left to continue
    dropped.wait_for(3).await;
    assert_eq!(engine.running_count(), 0);
    latch.open();
    fixture.clock().advance(HOUR);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    shut_down(engine).await;
    assert_eq!((begun.get(), late.get(), after.get(), dropped.get()), (1, 0, 0, 3));
    let mut committed = store.committed_writes().into_iter().map(|(write, _)| write);
    assert!(committed.by_ref().any(|write| is_end_of(handle.key())(&write)));
    assert_eq!(committed.count(), 0, "a write was committed after the end");
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let record = record(&two, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Step, "main".to_owned())]);
    assert_eq!(record.execution.status, Status::Completed);
    shut_down(two).await;
}

async fn duration_of_a_child_includes_the_suspension_of_its_parent(fixture: &dyn StoreFixture) {
    let child = Workflow::new("child", |mut cx: Context, (): ()| async move {
        cx.sleep(HOUR).await;
        BodyResult::Ok(7)
    });
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move { cx.child(&child, ()).await }
        })
    };
    let register = |b: EngineBuilder| b.register(&child).register(&parent).suspend_after(SHORT);
    let (one, store) = open_engine(fixture, register).await;
    let handle = one.start(&parent, ()).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    shut_down(one).await;
    fixture.clock().advance(HOUR);
    let (two, _) = open_second_engine(fixture, register).await;
    assert_eq!(two.get::<i32>("x").await.unwrap().result().await.unwrap(), 7);
    let waited_ms = record(&two, "x").await.checkpoints[0].duration_ms;
    assert!(waited_ms >= 3_600_000, "{waited_ms}");
    shut_down(two).await;
}

async fn unregistered_child_error_names_the_parent(fixture: &dyn StoreFixture) {
    let child = counting(&Count::new(), &[Latch::new(), Latch::new()]);
    let parent = parent(&child, &Count::new());
    let (engine, _) = open_engine(fixture, |b| b.register(&parent)).await;
    let error = engine.run(&parent, ()).await.unwrap_err();
    assert_eq!(error.code(), "SF-0008");
    for fragment in ["\"parent\"", "child", "\"child\" is not registered", "(registered: parent)"] {
        assert!(error.to_string().contains(fragment), "{error}");
    }
    shut_down(engine).await;
}
