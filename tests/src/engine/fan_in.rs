//! Fan-in: a parent that waits for thousands of children.

use std::time::Duration;

use stepfast_core::queue::{DEFAULT_QUEUE, Queue};
use stepfast_core::store::counters::Table;
use stepfast_core::store::{State, Write};
use stepfast_core::{Context, EngineBuilder, Store, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, latched_workflow, open, open_engine, open_second_engine,
    shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    children_that_end_together_wake_their_parent_in_few_flushes,
    children_that_end_one_by_one_suspend_their_parent_rarely,
    children_on_another_engine_stage_few_wakes,
    parent_of_20_000_children_completes,
];

/// Returns a workflow `parent` that runs as many children as its input concurrently, and adds up their outputs.
fn parent_of(child: &Workflow<i64, i64>) -> Workflow<i64, i64> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, count: i64| {
        let child = child.clone();
        async move {
            let outputs = cx
                .map(0..count, usize::MAX, |mut cx, n| {
                    let child = child.clone();
                    async move { cx.child(&child, n).await }
                })
                .await;
            outputs.into_iter().sum::<BodyResult<i64>>()
        }
    })
}

/// Returns the sum of the outputs of `count` children that return their inputs.
fn sum_below(count: i64) -> i64 {
    count * (count - 1) / 2
}

/// Returns the number of flushes behind the first `skipped` ones that contain neither a checkpoint, nor an end, nor a Start of
/// a replay.
fn flushes_without_progress(store: &FaultStore, skipped: usize) -> usize {
    let (writes, sizes) = (store.committed_writes(), store.flush_sizes());
    let mut rest = &writes[..];
    let mut count = 0;
    for (n, size) in sizes.into_iter().enumerate() {
        let (flush, others) = rest.split_at(size);
        rest = others;
        let is_progress = |write: &Write| match write {
            // a replay stages its Starts in turns, and a fast store may flush each turn by itself
            Write::Checkpoint(_) | Write::Start(_) => true,
            Write::Transition(change) => matches!(change.state, State::Ended { .. }),
            _ => false,
        };
        count += usize::from(n >= skipped && !flush.iter().any(|(write, _)| is_progress(write)));
    }
    count
}

async fn children_that_end_together_wake_their_parent_in_few_flushes(fixture: &dyn StoreFixture) {
    const CHILDREN: i64 = 4_096;
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent_of(&child);
    let (engine, store) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).suspend_after(Duration::from_millis(1))
    })
    .await;
    let handle = engine.start(&parent, CHILDREN).await.unwrap();
    count.wait_for(CHILDREN as usize).await;
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    store.hold_calls(&[Call::Commit]);
    latch.open();
    while engine.lane_load().iter().map(|lane| lane.waiters).sum::<usize>() < CHILDREN as usize {
        tokio::task::yield_now().await;
    }
    let (before, flushes) = (engine.store().counters().snapshot(), store.flush_sizes().len());
    store.release();
    assert_eq!(handle.result().await.unwrap(), sum_below(CHILDREN));
    let cost = engine.store().counters().snapshot().since(&before);
    assert_eq!(cost.row_changes(Table::Waits), (0, 0, CHILDREN as u64));
    // the Wakes: while the engine handles the ends, each Wake waits for the flush of the one before
    let others = flushes_without_progress(&store, flushes);
    // a store in memory commits so fast that few Wakes share a flush
    let limit = if store.info().kind == "memory" { CHILDREN as usize / 16 } else { CHILDREN as usize / 64 };
    assert!(others < limit, "{others} of {} flushes record no progress: {cost:?}", cost.flushes);
    // a turn of the parent's task makes up to 64 deliveries
    assert!(cost.flushes <= CHILDREN as u64 / 16, "{cost:?}");
    shut_down(engine).await;
}

async fn children_that_end_one_by_one_suspend_their_parent_rarely(fixture: &dyn StoreFixture) {
    const CHILDREN: i64 = 150;
    let (begun, ended) = (Count::new(), Count::new());
    let child = {
        let (begun, ended) = (begun.clone(), ended.clone());
        Workflow::new("child", move |mut cx: Context, n: i64| {
            let (begun, ended) = (begun.clone(), ended.clone());
            async move {
                cx.step("wait", || {
                    let (begun, ended) = (begun.clone(), ended.clone());
                    async move {
                        begun.increment();
                        ended.wait_for(n as usize + 1).await;
                        BodyResult::Ok(n)
                    }
                })
                .await
            }
        })
    };
    let parent = parent_of(&child);
    let (engine, store) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).suspend_after(Duration::from_millis(1))
    })
    .await;
    let before = engine.store().counters().snapshot();
    let handle = engine.start(&parent, CHILDREN).await.unwrap();
    begun.wait_for(CHILDREN as usize).await;
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    for n in 0..CHILDREN {
        let key = handle.key();
        ended.increment();
        store
            .wait_until_committed_times(
                n as usize + 1,
                |write| matches!(write, Write::Checkpoint(it) if it.execution == key),
            )
            .await;
    }
    assert_eq!(handle.result().await.unwrap(), sum_below(CHILDREN));
    let rows = engine.store().counters().snapshot().since(&before).row_changes(Table::Waits).0;
    // a suspension after each end would write 200 for each child; on a slow machine there are a few
    assert!(rows <= 40 * CHILDREN as u64, "{rows} rows");
    shut_down(engine).await;
}

async fn children_on_another_engine_stage_few_wakes(fixture: &dyn StoreFixture) {
    const CHILDREN: i64 = 4_096;
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, count: i64| {
            let child = child.clone();
            async move {
                let run = async |mut cx: Context, n: i64| cx.child(&child, n).queue("elsewhere").await;
                let outputs = cx.map(0..count, usize::MAX, run).await;
                outputs.into_iter().sum::<BodyResult<i64>>()
            }
        })
    };
    let both = |b: EngineBuilder| b.register(&child).register(&parent);
    let (one, _) =
        open_engine(fixture, |b| both(b).queue(Queue::new("elsewhere")).serve_queues([DEFAULT_QUEUE])).await;
    let (two, other) = open_second_engine(fixture, |b| both(b).serve_queues(["elsewhere"])).await;
    let handle = one.start(&parent, CHILDREN).await.unwrap();
    count.wait_for(CHILDREN as usize).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), sum_below(CHILDREN));
    // all Wakes are committed
    shut_down(two).await;
    let wakes = other.committed_writes().iter().filter(|(write, _)| matches!(write, Write::Wake(_))).count();
    // a store in memory commits so fast that few Wakes share a flush
    let least_shared = if other.info().kind == "memory" { 2 } else { 16 };
    assert!((1..CHILDREN as usize / least_shared).contains(&wakes), "{wakes} Wakes");
    shut_down(one).await;
}

async fn parent_of_20_000_children_completes(fixture: &dyn StoreFixture) {
    const CHILDREN: i64 = 20_000;
    let (count, latch) = (Count::new(), Latch::new());
    let child = latched_workflow("child", &count, &latch);
    let parent = parent_of(&child);
    let max_running = CHILDREN as usize + 1;
    let engine =
        open(fixture.store(), |b| b.max_running(max_running).register(&child).register(&parent)).await;
    let before = engine.store().counters().snapshot();
    let handle = engine.start(&parent, CHILDREN).await.unwrap();
    count.wait_for(CHILDREN as usize).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), sum_below(CHILDREN));
    let cost = engine.store().counters().snapshot().since(&before);
    let (inserted, _, deleted) = cost.row_changes(Table::Waits);
    assert!(inserted <= 2 * CHILDREN as u64 && deleted <= inserted, "{cost:?}");
    assert_eq!(cost.row_changes(Table::Checkpoints).0, 2 * CHILDREN as u64);
    shut_down(engine).await;
}
