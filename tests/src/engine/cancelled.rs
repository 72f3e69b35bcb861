//! Cancelled executions: the end of their code and of their children's, and the result that their callers receive.

use std::time::Duration;

use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Context, Engine, Error, Handle, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, open, open_engine, open_second_engine, record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    cancelled_parent_stops_its_code_and_its_children,
    cancel_by_another_engine_needs_no_flush_and_no_hint,
];

const HOUR: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(10);

/// The most heartbeats that may begin between the reply to a cancel and the end of the body: one is in flight, the next
/// receives the cancel, and one more may begin before the body is dropped.
const MAX_HEARTBEATS: usize = 3;

/// A value that increments a count when it is dropped.
struct DropCounter(Count);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.increment();
    }
}

/// Counts of the actions of the code.
#[derive(Clone, Default)]
struct Counts {
    begun: Count,
    dropped: Count,
    after: Count,
    latch: Latch,
}

/// Returns a workflow with a body that waits for the latch.
fn child(counts: &Counts) -> Workflow<i64, i64> {
    let counts = counts.clone();
    Workflow::new("child", move |mut cx: Context, x: i64| {
        let counts = counts.clone();
        async move {
            let Counts { begun, dropped, after, latch } = counts;
            let body = || {
                let (begun, latch, dropped) = (begun.clone(), latch.clone(), DropCounter(dropped.clone()));
                async move {
                    begun.increment();
                    latch.wait().await;
                    drop(dropped);
                    BodyResult::Ok(())
                }
            };
            cx.step("wait", body).await?;
            after.increment();
            BodyResult::Ok(x)
        }
    })
}

/// Returns a workflow that handles every error of its child.
fn parent(child: &Workflow<i64, i64>, counts: &Counts) -> Workflow<i64, i64> {
    let (child, counts) = (child.clone(), counts.clone());
    Workflow::new("parent", move |mut cx: Context, x: i64| {
        let (child, counts) = (child.clone(), counts.clone());
        async move {
            let _dropped = DropCounter(counts.dropped);
            let output = cx.child(&child, x).await;
            counts.after.increment();
            cx.step("compensate", async || BodyResult::Ok(())).await?;
            BodyResult::Ok(output.unwrap_or(-1))
        }
    })
}

async fn assert_cancelled(engine: &Engine, handle: &Handle<i64>, code: &str) {
    let error = handle.result().await.unwrap_err();
    let Error::Cancelled(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(code));
    let record = record(engine, &handle.workflow_id()).await;
    assert_eq!((record.execution.status, record.requests.len()), (Status::Cancelled, 0));
}

async fn cancelled_parent_stops_its_code_and_its_children(fixture: &dyn StoreFixture) {
    for suspend_after in [HOUR, SHORT] {
        let counts = Counts::default();
        let child = child(&counts);
        let parent = parent(&child, &counts);
        let (engine, store) =
            open_engine(fixture, |b| b.register(&child).register(&parent).suspend_after(suspend_after)).await;
        let handle = engine.start(&parent, 1).await.unwrap();
        counts.begun.wait_for(1).await;
        if suspend_after == SHORT {
            store.wait_until_committed(is_suspension_of(handle.key())).await;
        }
        let filter = Filter { parent: Some(handle.key()), limit: 9, ..Filter::default() };
        let children = engine.list(&filter).await.unwrap().executions;
        assert_eq!(children.len(), 1);
        handle.cancel().await.unwrap();
        assert_cancelled(&engine, &handle, "SF-0022").await;
        let child: Handle<i64> = engine.get(&children[0].workflow_id()).await.unwrap();
        assert_cancelled(&engine, &child, "SF-0022").await;
        // the code of the parent and the body of the child
        counts.dropped.wait_for(2).await;
        counts.latch.open();
        shut_down(engine).await;
        assert_eq!((counts.begun.get(), counts.dropped.get(), counts.after.get()), (1, 2, 0));
    }
}

async fn cancel_by_another_engine_needs_no_flush_and_no_hint(fixture: &dyn StoreFixture) {
    let counts = Counts::default();
    let workflow = child(&counts);
    let store = FaultStore::wrap(fixture.store());
    store.suppress_hints();
    let one = open(store.clone(), |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b).await;
    let handle = one.start(&workflow, 1).workflow_id("x").await.unwrap();
    counts.begun.wait_for(1).await;
    store.hold_calls(&[Call::Commit]);
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Pending);
    let heartbeats = store.call_count(Call::Heartbeat);
    counts.dropped.wait_for(1).await;
    let heartbeats = store.call_count(Call::Heartbeat) - heartbeats;
    assert!(heartbeats <= MAX_HEARTBEATS, "{heartbeats} heartbeats");
    store.release();
    assert_cancelled(&one, &handle, "SF-0022").await;
    assert_cancelled(&two, &two.get("x").await.unwrap(), "SF-0022").await;
    assert_eq!(counts.after.get(), 0);
    shut_down(one).await;
    shut_down(two).await;
}
