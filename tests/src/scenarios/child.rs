//! Children and branches where their parent's run, or its start, comes to nothing.

use stepfast_core::record::{Filter, Status};
use stepfast_core::write::{CheckpointKind, Outcome, Write};
use stepfast_core::{Context, Workflow};

use super::fence::lose;
use super::kit::{
    Count, Latch, Returns, deliveries, open, record, second_engine, shut_down,
};
use crate::StoreFixture;
use crate::fault_store::FaultStore;

super::cases![
    a_crash_between_a_childs_start_and_the_parents_record_starts_it_once,
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

async fn a_crash_between_a_childs_start_and_the_parents_record_starts_it_once(fixture: &dyn StoreFixture) {
    // the lost engine's child hangs, or has ended as far as that engine knows
    for (id, ends_there) in [("hangs", false), ("ended", true)] {
        let (bodies, latches) = (Count::new(), [Latch::new(), Latch::new()]);
        let child = counting(&bodies, &latches);
        let parent = parent(&child, &Count::new());
        let store = FaultStore::flushing(fixture.store(), 1);
        let one = open(store.clone(), |b| b.register(&child).register(&parent)).await;
        store.hold_writes(|write| {
            matches!(write, Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Started)
        });
        let handle = one.start(&parent, ()).workflow_id(id).await.unwrap();
        let key = handle.key();
        let is_childs =
            |write: &Write| matches!(write, Write::Start(start) if start.parent.as_ref().is_some_and(|it| it.key == key));
        store.until_landed(is_childs).await;
        store.until_hanging().await;
        bodies.reaches(1).await;
        if ends_there {
            latches[0].open();
        }
        let (two, other) = second_engine(fixture, |b| b.register(&child).register(&parent)).await;
        assert!(record(&two, id).await.checkpoints.is_empty());
        lose(fixture, &store, &two, id).await;
        bodies.reaches(2).await;
        // it attaches to the child that is there
        other
            .until_landed(|write| matches!(write, Write::Checkpoint(it) if it.kind == CheckpointKind::Started))
            .await;
        let again = other.landed().into_iter().find(|(write, _)| is_childs(write));
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
        assert_eq!(kinds, [CheckpointKind::Started, CheckpointKind::Child]);
        assert_eq!(record(&two, &children[0].workflow_id()).await.checkpoints.len(), 1);
        assert_eq!(bodies.get(), 2);
        shut_down(one).await;
        shut_down(two).await;
    }
}
