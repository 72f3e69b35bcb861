//! Children that wait in queues.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::{DEFAULT_QUEUE, Queue};
use stepfast_core::store::{CheckpointKind, Filter, Status, Write};
use stepfast_core::{Context, Engine, Error, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, latched_workflow, noop, open, open_engine, open_second_engine,
    record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    queued_children_respect_queue_limits,
    queued_children_run_on_a_worker_that_serves_their_queue,
    child_is_queued_once_after_a_crash,
    detached_queued_child_outlives_its_parent,
    parent_frees_its_slot_for_its_children,
    delayed_child_begins_when_due,
    invalid_child_options_are_recorded_as_failures,
    cancel_reaches_queued_children,
];

/// Returns a workflow `parent` that starts as many children as its input in queue `a`, awaits them, and returns their
/// outputs.
fn parent_of(child: &Workflow<i64, i64>) -> Workflow<i64, Vec<i64>> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, count: i64| {
        let child = child.clone();
        async move {
            let mut started = Vec::new();
            for n in 0..count {
                started.push(cx.start_child(&child, n).queue("a").key(format!("k{}", n % 2)).await?);
            }
            let mut outputs = Vec::new();
            for child in started {
                outputs.push(child.result(&mut cx).await?);
            }
            BodyResult::Ok(outputs)
        }
    })
}

async fn children_of(engine: &Engine, parent: Key) -> Vec<stepfast_core::store::Execution> {
    let filter = Filter { parent: Some(parent), limit: 100, ..Filter::default() };
    engine.list(&filter).await.unwrap().executions
}

async fn queued_children_respect_queue_limits(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent_of(&child);
    let queue = Queue::new("a").concurrency(2);
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent).queue(queue)).await;
    let handle = engine.start(&parent, 10).await.unwrap();
    count.wait_for(2).await;
    let states = |children: &[stepfast_core::store::Execution], status| {
        children.iter().filter(|child| child.status == status).count()
    };
    let children = loop {
        let children = children_of(&engine, handle.key()).await;
        if children.len() == 10 {
            break children;
        }
    };
    assert_eq!((states(&children, Status::Running), states(&children, Status::Queued)), (2, 8));
    assert!(
        children
            .iter()
            .all(|child| child.placement.as_ref().is_some_and(|placement| &*placement.queue == "a"))
    );
    assert_eq!(count.get(), 2);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), (0..10).collect::<Vec<_>>());
    shut_down(engine).await;
}

async fn queued_children_run_on_a_worker_that_serves_their_queue(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let both = |b: stepfast_core::EngineBuilder| b.register(&child).register(&parent);
    let (one, _) =
        open_engine(fixture, |b| both(b).queue(Queue::new("a")).serve_queues([DEFAULT_QUEUE])).await;
    let handle = one.start(&parent, 5).await.unwrap();
    while children_of(&one, handle.key()).await.len() < 5 {
        tokio::task::yield_now().await;
    }
    let children = children_of(&one, handle.key()).await;
    assert!(children.iter().all(|child| child.status == Status::Queued));
    let (two, _) = open_second_engine(fixture, |b| both(b).serve_queues(["a"])).await;
    assert_eq!(handle.result().await.unwrap(), [0, 1, 2, 3, 4]);
    shut_down(two).await;
    shut_down(one).await;
}

async fn child_is_queued_once_after_a_crash(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let store = FaultStore::with_flush_writes(fixture.store(), 1);
    let one = open(store.clone(), |b| b.register(&child).register(&parent).queue(Queue::new("a"))).await;
    one.pause_queue("a").await.unwrap();
    store.hold_writes(
        |write| matches!(write, Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Started),
    );
    let handle = one.start(&parent, 1).workflow_id("parent").await.unwrap();
    store.wait_until_committed(|write| matches!(write, Write::Start(start) if start.parent.is_some())).await;
    store.wait_until_hanging().await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&child).register(&parent)).await;
    store.hold_calls(&[Call::Heartbeat, Call::Register, Call::Claim]);
    fixture.mark_dead(record(&two, "parent").await.execution.owner.unwrap()).await;
    while record(&two, "parent").await.checkpoints.is_empty() {
        tokio::task::yield_now().await;
    }
    two.resume_queue("a").await.unwrap();
    assert_eq!(two.get::<Vec<i64>>("parent").await.unwrap().result().await.unwrap(), [0]);
    store.release();
    assert_eq!(handle.result().await.unwrap(), [0]);
    assert_eq!(children_of(&two, handle.key()).await.len(), 1);
    let kinds: Vec<_> = deliveries(&record(&two, "parent").await).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [CheckpointKind::Started, CheckpointKind::Child]);
    shut_down(one).await;
    shut_down(two).await;
}

async fn detached_queued_child_outlives_its_parent(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, (): ()| {
            let child = child.clone();
            async move { cx.start_detached(&child, 7).queue("a").priority(-3).await }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&child).register(&parent).queue(Queue::new("a"))).await;
    engine.pause_queue("a").await.unwrap();
    let id = engine.run(&parent, ()).await.unwrap();
    let row = record(&engine, &id).await.execution;
    assert_eq!((row.status, row.placement.as_ref().unwrap().priority), (Status::Queued, -3));
    engine.resume_queue("a").await.unwrap();
    assert_eq!(engine.get::<i64>(&id).await.unwrap().result().await.unwrap(), 7);
    shut_down(engine).await;
}

/// With a concurrency of one, a parent in the queue of its child could wait for itself.
async fn parent_frees_its_slot_for_its_children(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let queue = Queue::new("a").concurrency(1);
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).queue(queue).suspend_after(Duration::from_millis(1))
    })
    .await;
    assert_eq!(engine.run(&parent, 3).queue("a").await.unwrap(), [0, 1, 2]);
    shut_down(engine).await;
}

async fn delayed_child_begins_when_due(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, seconds: u64| {
            let child = child.clone();
            async move { cx.child(&child, 7).queue("a").delay(Duration::from_secs(seconds)).await }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&child).register(&parent).queue(Queue::new("a"))).await;
    let handle = engine.start(&parent, 3600).await.unwrap();
    while children_of(&engine, handle.key()).await.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(children_of(&engine, handle.key()).await[0].status, Status::Scheduled);
    fixture.clock().advance(Duration::from_secs(3600));
    assert_eq!(handle.result().await.unwrap(), 7);
    shut_down(engine).await;
}

async fn invalid_child_options_are_recorded_as_failures(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, queue: String| {
            let child = child.clone();
            async move {
                let unknown_queue = cx.child(&child, 7).queue(&queue).await;
                let key_without_queue = cx.child(&child, 8).key("k").await;
                let messages = [unknown_queue, key_without_queue].map(|outcome| outcome.unwrap_err().message);
                BodyResult::Ok(messages.to_vec())
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let messages = engine.run(&parent, "undeclared".to_owned()).workflow_id("p").await.unwrap();
    assert!(
        messages[0].contains("queue \"undeclared\" does not exist") && messages[1].contains("needs a queue"),
        "{messages:?}"
    );
    let kinds: Vec<_> = deliveries(&record(&engine, "p").await).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [CheckpointKind::Failed, CheckpointKind::Failed]);
    assert!(children_of(&engine, record(&engine, "p").await.execution.key).await.is_empty());
    shut_down(engine).await;
}

async fn cancel_reaches_queued_children(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = parent_of(&child);
    let (engine, _) =
        open_engine(fixture, |b| b.register(&child).register(&parent).queue(Queue::new("a"))).await;
    engine.pause_queue("a").await.unwrap();
    let handle = engine.start(&parent, 3).await.unwrap();
    while children_of(&engine, handle.key()).await.len() < 3 {
        tokio::task::yield_now().await;
    }
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await, Err(Error::Cancelled(_))));
    for child in children_of(&engine, handle.key()).await {
        assert_eq!(record(&engine, &child.workflow_id()).await.execution.status, Status::Cancelled);
    }
    engine.resume_queue("a").await.unwrap();
    shut_down(engine).await;
}
