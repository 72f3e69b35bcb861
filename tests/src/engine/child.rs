//! Children and branches where their parent's run, or its start, comes to nothing.

use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Filter, Outcome, Status, Write};
use stepfast_core::{Context, Workflow};

use super::support::{
    Count, Latch, Returns, deliveries, ends, engine, open, record, second_engine, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    a_crash_between_a_childs_start_and_the_parents_record_starts_it_once,
    a_start_that_loses_takes_its_children_with_it,
    a_branch_that_is_spawned_and_not_awaited_ends_with_its_workflow,
    a_child_whose_workflow_is_not_registered_says_who_wanted_it,
];

/// A workflow `child` with one step, which returns how many bodies there have been when the latch of its
/// body is open.
fn counting(bodies: &Count, latches: &[Latch; 2]) -> Workflow<(), usize> {
    let all = (bodies.clone(), latches.clone());
    Workflow::new("child", move |mut cx: Context, (): ()| {
        let all = all.clone();
        async move {
            cx.step("wait", || {
                let (bodies, latches) = all.clone();
                async move {
                    let number = bodies.more();
                    latches[number - 1].passed().await;
                    Returns::Ok(number)
                }
            })
            .await
        }
    })
}

/// A workflow `parent` that starts a child, counts, and awaits it.
fn parent(child: &Workflow<(), usize>, started: &Count) -> Workflow<(), usize> {
    let (child, started) = (child.clone(), started.clone());
    Workflow::new("parent", move |mut cx: Context, (): ()| {
        let (child, started) = (child.clone(), started.clone());
        async move {
            let handle = cx.start_child(&child, ()).await?;
            started.more();
            handle.result(&mut cx).await
        }
    })
}

/// The same behind a step: the key of the child depends on when that was recorded.
fn parent_behind_a_step(child: &Workflow<(), usize>) -> Workflow<(), usize> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, (): ()| {
        let child = child.clone();
        async move {
            cx.step("before", || async { Returns::Ok(()) }).await?;
            cx.start_child(&child, ()).await?.result(&mut cx).await
        }
    })
}

async fn a_crash_between_a_childs_start_and_the_parents_record_starts_it_once(fixture: &dyn StoreFixture) {
    // the lost engine's child hangs, or has ended as far as that engine knows
    for (id, ends_there) in [("hangs", false), ("ended", true)] {
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
        let is_childs = |write: &Write| matches!(write, Write::Start(start) if start.parent.as_ref().is_some_and(|it| it.key == key));
        store.wait_until_committed(is_childs).await;
        store.wait_until_hanging().await;
        bodies.reaches(1).await;
        if ends_there {
            latches[0].open();
        }
        let (two, other) = second_engine(fixture, |b| b.register(&child).register(&parent)).await;
        assert_eq!(record(&two, id).await.checkpoints.len(), 1, "the child's start is not recorded");
        // the lost engine must not be the one that goes on: it would come back under another registration
        store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
        fixture.mark_dead(record(&two, id).await.execution.owner.unwrap()).await;
        bodies.reaches(2).await;
        // it attaches to the child that is there
        other
            .wait_until_committed(
                |write| matches!(write, Write::Checkpoint(it) if it.kind == CheckpointKind::Started),
            )
            .await;
        let again = other.committed_writes().into_iter().find(|(write, _)| is_childs(write));
        assert!(matches!(again, Some((_, Outcome::Duplicate(_)))), "{again:?}");
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

async fn a_start_that_loses_takes_its_children_with_it(fixture: &dyn StoreFixture) {
    let (losers, winners) = (Count::new(), Count::new());
    let started = Count::new();
    // any body of theirs may go on at once
    let latches = [Latch::new(), Latch::new()];
    latches.iter().for_each(Latch::open);
    let (child, others_child) = (counting(&losers, &latches), counting(&winners, &latches));
    let awaiting = parent(&child, &started);
    let others_parent = parent(&others_child, &Count::new());
    let (one, store) = engine(fixture, |b| b.register(&child).register(&awaiting)).await;
    let (two, _) = second_engine(fixture, |b| b.register(&others_child).register(&others_parent)).await;
    store.hold_calls(&[Call::Commit]);
    let run = {
        let (one, awaiting) = (one.clone(), awaiting.clone());
        tokio::spawn(async move { one.run(&awaiting, ()).workflow_id("x").await })
    };
    // its own Start hangs; the child is staged behind that, and runs up to its step
    started.reaches(1).await;
    store.wait_until_hanging().await;
    while one.running_count() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(two.run(&others_parent, ()).workflow_id("x").await.unwrap(), 1);
    assert_eq!((losers.get(), winners.get()), (0, 1));
    store.release();
    assert_eq!(run.await.unwrap().unwrap(), 1, "the outcome of the one that was first");
    while one.running_count() > 0 {
        tokio::task::yield_now().await;
    }
    let all = two.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions;
    assert_eq!(all.len(), 2);
    let key = record(&two, "x").await.execution.key;
    assert!(all.iter().all(|it| it.root == key && it.status == Status::Completed));
    let is_of_child = |write: &Write| matches!(write, Write::Start(start) if start.parent.is_some());
    assert!(!store.committed_writes().iter().any(|(write, _)| is_of_child(write)));
    assert_eq!((losers.get(), winners.get()), (0, 1));
    shut_down(one).await;
    shut_down(two).await;
}

/// Counts when it is dropped.
struct Dropped(Count);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.more();
    }
}

async fn a_branch_that_is_spawned_and_not_awaited_ends_with_its_workflow(fixture: &dyn StoreFixture) {
    const HOUR: Duration = Duration::from_hours(1);
    let (begun, late, dropped, after) = (Count::new(), Count::new(), Count::new(), Count::new());
    let latch = Latch::new();
    let workflow = {
        let all = (begun.clone(), late.clone(), dropped.clone(), after.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (begun, late, dropped, after, latch) = all.clone();
            async move {
                let in_body = {
                    let (begun, after) = (begun.clone(), after.clone());
                    let (dropped, latch) = (Dropped(dropped.clone()), latch.clone());
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        let body = || {
                            let (begun, latch) = (begun.clone(), latch.clone());
                            async move {
                                begun.more();
                                latch.passed().await;
                                Returns::Ok(())
                            }
                        };
                        let result = cx.step("body", body).await;
                        after.more();
                        result
                    })
                };
                let asleep = {
                    let (after, dropped) = (after.clone(), Dropped(dropped.clone()));
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        cx.sleep(HOUR).await;
                        after.more();
                    })
                };
                cx.step("main", || {
                    let begun = begun.clone();
                    async move {
                        begun.reaches(1).await;
                        Returns::Ok(())
                    }
                })
                .await?;
                let not_polled = {
                    let dropped = Dropped(dropped.clone());
                    cx.spawn(move |mut cx: Context| async move {
                        let _dropped = dropped;
                        late.more();
                        cx.step("late", async || Returns::Ok(())).await
                    })
                };
                drop((in_body, asleep, not_polled));
                Returns::Ok(7)
            }
        })
    };
    let (engine, store) = engine(fixture, |b| b.register(&workflow).suspend_after(Duration::ZERO)).await;
    let handle = engine.start(&workflow, ()).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 7);
    // nothing of it is left to go on
    dropped.reaches(3).await;
    assert_eq!(engine.running_count(), 0);
    latch.open();
    fixture.clock().advance(HOUR);
    store.wait_until_called(Call::Heartbeat, store.call_count(Call::Heartbeat) + 2).await;
    shut_down(engine).await;
    assert_eq!((begun.get(), late.get(), after.get(), dropped.get()), (1, 0, 0, 3));
    let mut landed = store.committed_writes().into_iter().map(|(write, _)| write);
    assert!(landed.by_ref().any(|write| ends(handle.key())(&write)));
    assert_eq!(landed.count(), 0, "nothing lands after the end");
    let (two, _) = second_engine(fixture, |b| b).await;
    let record = record(&two, "x").await;
    assert_eq!(deliveries(&record), [(CheckpointKind::Step, "main".to_owned())]);
    assert_eq!(record.execution.status, Status::Completed);
    shut_down(two).await;
}

async fn a_child_whose_workflow_is_not_registered_says_who_wanted_it(fixture: &dyn StoreFixture) {
    let child = counting(&Count::new(), &[Latch::new(), Latch::new()]);
    let parent = parent(&child, &Count::new());
    let (engine, _) = engine(fixture, |b| b.register(&parent)).await;
    let error = engine.run(&parent, ()).await.unwrap_err();
    assert_eq!(error.code(), "SF-0008");
    for said in ["\"parent\"", "child", "\"child\" is not registered", "(registered: parent)"] {
        assert!(error.to_string().contains(said), "{error}");
    }
    shut_down(engine).await;
}
