//! Detached children with a workflow_id or a dedup_id.

use std::time::Duration;

use stepfast_core::queue::{OnDuplicate, Queue};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{CheckpointKind, Filter, Status, Write};
use stepfast_core::{Context, Engine, EngineBuilder, Error, Failure, Workflow};

use super::support::{
    BodyResult, Count, deliveries, noop, open, open_engine, open_second_engine, record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    detached_child_has_its_given_id,
    start_with_a_taken_id_leads_to_the_same_execution,
    start_with_the_id_of_another_start_fails,
    root_and_child_share_an_id,
    child_with_an_id_starts_once_after_a_crash,
    replay_repeats_a_conflict,
    dedup_id_is_held_until_the_child_ends,
    large_input_of_a_duplicate_child_is_deleted,
    awaited_child_cannot_have_an_id,
    child_ends_at_its_execution_timeout,
];

/// The id and the input of the child.
type Given = (String, i64);

/// Returns a workflow `parent` whose input is the id and the input of a detached `child`. The parent starts the child,
/// and returns the workflow_id or the kind of the failure.
fn parent_of(child: &Workflow<i64, i64>) -> Workflow<Given, String> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, (id, input): Given| {
        let child = child.clone();
        async move {
            let started = cx.start_detached(&child, input).workflow_id(&id).await;
            BodyResult::Ok(started.unwrap_or_else(|failure| failure.kind))
        }
    })
}

fn given(id: &str, input: i64) -> Given {
    (id.to_owned(), input)
}

async fn count_of(engine: &Engine, workflow: &str) -> u64 {
    engine.count(&Filter { workflow: Some(workflow.into()), ..Filter::default() }).await.unwrap()
}

async fn detached_child_has_its_given_id(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, given("a", 7)).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), "a");
    assert_eq!(engine.get::<i64>("a").await.unwrap().result().await.unwrap(), 7);
    let row = record(&engine, "a").await.execution;
    let started_by = row.parent.unwrap();
    assert_eq!((row.given_id.as_deref(), started_by.key), (Some("a"), handle.key()));
    assert!(started_by.is_detached && row.key != handle.key());
    // an execution that began in the same flush, and one that was queued by another engine
    let queued = engine.start(&parent, given("b", 8)).delay(Duration::from_millis(1)).await.unwrap();
    assert_eq!(queued.result().await.unwrap(), "b");
    assert_eq!(engine.get::<i64>("b").await.unwrap().result().await.unwrap(), 8);
    shut_down(engine).await;
}

async fn start_with_a_taken_id_leads_to_the_same_execution(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let both = |b: EngineBuilder| b.register(&child).register(&parent);
    let (one, _) = open_engine(fixture, both).await;
    let (two, _) = open_second_engine(fixture, both).await;
    let mut handles = Vec::new();
    for n in 0..20 {
        let engine = if n % 2 == 0 { &one } else { &two };
        handles.push(engine.start(&parent, given("shared", 7)).await.unwrap());
    }
    for handle in handles {
        assert_eq!(handle.result().await.unwrap(), "shared");
    }
    assert_eq!(count_of(&one, "noop").await, 1);
    assert_eq!(one.get::<i64>("shared").await.unwrap().result().await.unwrap(), 7);
    shut_down(two).await;
    shut_down(one).await;
}

async fn start_with_the_id_of_another_start_fails(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    assert_eq!(engine.run(&parent, given("a", 7)).await.unwrap(), "a");
    // another input, and another workflow
    assert_eq!(engine.run(&parent, given("a", 8)).await.unwrap(), "SF-0003");
    assert_eq!(engine.run(&parent, given("p", 7)).workflow_id("p").await.unwrap(), "SF-0003");
    let kinds: Vec<_> = deliveries(&record(&engine, "p").await).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [CheckpointKind::Failed]);
    assert_eq!(count_of(&engine, "noop").await, 1);
    shut_down(engine).await;
}

async fn root_and_child_share_an_id(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let root = engine.start(&child, 7).workflow_id("root first").await.unwrap();
    assert_eq!(engine.run(&parent, given("root first", 7)).await.unwrap(), "root first");
    assert_eq!(engine.run(&parent, given("child first", 7)).await.unwrap(), "child first");
    let started = engine.start(&child, 7).workflow_id("child first").await.unwrap();
    assert_eq!((root.result().await.unwrap(), started.result().await.unwrap()), (7, 7));
    let other = engine.start(&child, 8).workflow_id("child first").await;
    assert!(matches!(other, Err(Error::Conflict { .. })), "{other:?}");
    assert_eq!(count_of(&engine, "noop").await, 2);
    shut_down(engine).await;
}

async fn child_with_an_id_starts_once_after_a_crash(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&child).register(&parent)).await;
    store.hold_writes(
        |write| matches!(write, Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Started),
    );
    let handle = one.start(&parent, given("a", 7)).workflow_id("parent").await.unwrap();
    store.wait_until_committed(|write| matches!(write, Write::Start(start) if start.parent.is_some())).await;
    store.wait_until_hanging().await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&child).register(&parent)).await;
    store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
    fixture.mark_dead(record(&two, "parent").await.execution.owner.unwrap()).await;
    assert_eq!(two.get::<String>("parent").await.unwrap().result().await.unwrap(), "a");
    store.release();
    assert_eq!(handle.result().await.unwrap(), "a");
    assert_eq!(two.get::<i64>("a").await.unwrap().result().await.unwrap(), 7);
    assert_eq!(count_of(&two, "noop").await, 1);
    shut_down(one).await;
    shut_down(two).await;
}

/// A parent that sleeps after its start is replayed, while the execution with the id may have ended.
async fn replay_repeats_a_conflict(fixture: &dyn StoreFixture) {
    let (child, runs) = (noop(), Count::new());
    let parent = {
        let (child, runs) = (child.clone(), runs.clone());
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let (child, runs) = (child.clone(), runs.clone());
            async move {
                runs.increment();
                let first = cx.start_detached(&child, 7).workflow_id("a").await?;
                let again = cx.start_detached(&child, 7).workflow_id("a").await?;
                let other = cx.start_detached(&child, 8).workflow_id("a").await.unwrap_err();
                cx.sleep(Duration::from_millis(20)).await;
                BodyResult::Ok((first, again, other.kind))
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).suspend_after(Duration::from_millis(1))
    })
    .await;
    let ids = engine.run(&parent, ()).workflow_id("p").await.unwrap();
    assert_eq!(ids, ("a".to_owned(), "a".to_owned(), "SF-0003".to_owned()));
    assert!(runs.get() > 1, "the parent was not replayed");
    let kinds: Vec<_> = deliveries(&record(&engine, "p").await).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds[..3], [CheckpointKind::Started, CheckpointKind::Started, CheckpointKind::Failed]);
    assert_eq!(count_of(&engine, "noop").await, 1);
    shut_down(engine).await;
}

async fn dedup_id_is_held_until_the_child_ends(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, returns_existing: bool| {
            let child = child.clone();
            async move {
                let start = cx.start_detached(&child, 7).queue("q").dedup_id("d");
                let policy = if returns_existing { OnDuplicate::ReturnExisting } else { OnDuplicate::Reject };
                let started = start.on_duplicate(policy).await;
                BodyResult::Ok(started.unwrap_or_else(|failure: Failure| failure.kind))
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&child).register(&parent).queue(Queue::new("q"))).await;
    engine.pause_queue("q").await.unwrap();
    let first = engine.run(&parent, false).await.unwrap();
    assert_eq!(engine.run(&parent, true).await.unwrap(), first);
    assert_eq!(engine.run(&parent, false).await.unwrap(), "SF-0039");
    assert_eq!(record(&engine, &first).await.execution.dedup_id.as_deref(), Some("d"));
    engine.resume_queue("q").await.unwrap();
    assert_eq!(engine.get::<i64>(&first).await.unwrap().result().await.unwrap(), 7);
    let next = engine.run(&parent, false).await.unwrap();
    assert_ne!(next, first);
    assert_eq!(engine.get::<i64>(&next).await.unwrap().result().await.unwrap(), 7);
    shut_down(engine).await;
}

async fn large_input_of_a_duplicate_child_is_deleted(fixture: &dyn StoreFixture) {
    let child =
        Workflow::new("large", |_cx: Context, text: String| async move { BodyResult::Ok(text.len()) });
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move { cx.start_detached(&child, "x".repeat(5 << 19)).workflow_id("a").await }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    for _ in 0..3 {
        assert_eq!(engine.run(&parent, ()).await.unwrap(), "a");
    }
    assert_eq!(engine.get::<usize>("a").await.unwrap().result().await.unwrap(), 5 << 19);
    // the chunks of the first start remain, and the chunks of the two others are deleted
    let chunks = loop {
        let (inserted, _, deleted) = engine.store().counters().snapshot().row_changes(Table::Chunks);
        if deleted > 0 && inserted == 3 * (inserted - deleted) {
            break inserted - deleted;
        }
        tokio::task::yield_now().await;
    };
    assert!(chunks > 1, "the input was not stored in chunks");
    shut_down(engine).await;
}

async fn awaited_child_cannot_have_an_id(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move {
                let failure = cx.start_detached(&child, 7).workflow_id("").await.unwrap_err();
                let limited = cx.child(&child, 7).execution_timeout(Duration::from_secs(60)).await?;
                BodyResult::Ok((failure.kind, limited))
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    assert_eq!(engine.run(&parent, ()).await.unwrap(), ("SF-0001".to_owned(), 7));
    shut_down(engine).await;
}

async fn child_ends_at_its_execution_timeout(fixture: &dyn StoreFixture) {
    let child = Workflow::new("sleeper", |mut cx: Context, (): ()| async move {
        cx.sleep(Duration::from_secs(3600)).await;
        BodyResult::Ok(())
    });
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move {
                let limit = Duration::from_millis(20);
                let awaited = cx.child(&child, ()).execution_timeout(limit).await.unwrap_err();
                let queued = cx.start_child(&child, ()).queue("q").execution_timeout(limit).await?;
                let queued = queued.result(&mut cx).await.unwrap_err();
                let detached = cx.start_detached(&child, ()).execution_timeout(limit).await?;
                BodyResult::Ok((awaited.kind, queued.kind, detached))
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&child).register(&parent).queue(Queue::new("q"))).await;
    engine.pause_queue("q").await.unwrap();
    let (awaited, queued, detached) = engine.run(&parent, ()).await.unwrap();
    assert_eq!((&*awaited, &*queued), ("SF-0021", "SF-0021"));
    let ended = engine.get::<()>(&detached).await.unwrap().result().await;
    assert!(matches!(ended, Err(Error::Cancelled(_))), "{ended:?}");
    assert_eq!(record(&engine, &detached).await.execution.status, Status::Cancelled);
    shut_down(engine).await;
}
