//! Leftovers: what days of work leave in the tables. The clock moves ahead, nothing waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::queue::Queue;
use stepfast_core::queue::rate::Rate;
use stepfast_core::store::Status;
use stepfast_core::{Context, Either, Engine, EngineBuilder, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, latched_workflow, noop, open_engine, open_second_engine, row, shut_down,
};
use crate::StoreFixture;
use crate::crash::leftovers;
use crate::faults::fault_store::Call;

super::cases![days_of_work_leave_nothing_behind];

const DAY: Duration = Duration::from_hours(24);
/// The size of a value that is stored in chunks, more than a run stages at once.
const LARGE: usize = 11 << 19;

/// Waits until the execution has this status.
async fn wait_for_status(engine: &Engine, id: &str, status: Status) {
    while row(engine, id).await.status != status {
        tokio::task::yield_now().await;
    }
}

/// Waits until every execution has ended.
async fn wait_until_all_ended(engine: &Engine) {
    while engine.count(&leftovers::unfinished_filter()).await.unwrap() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Returns a workflow whose step and whose end fail with a large error, until `is_mended`.
fn failing(is_mended: &Arc<AtomicBool>) -> Workflow<(), ()> {
    let is_mended = is_mended.clone();
    Workflow::new("failing", move |mut cx: Context, (): ()| {
        let is_mended = is_mended.clone();
        async move {
            cx.step("fails", || {
                let result =
                    if is_mended.load(SeqCst) { Ok(()) } else { Err(Failure::new("f".repeat(100_000))) };
                std::future::ready(result)
            })
            .await
        }
    })
}

/// Returns a workflow that abandons a step while its large value is stored.
fn abandoning() -> Workflow<(), bool> {
    Workflow::new("abandoning", |mut cx: Context, (): ()| async move {
        let step = |mut cx: Context| async move {
            cx.step("large", async || BodyResult::Ok("l".repeat(LARGE))).await
        };
        let other = |_| tokio::task::yield_now();
        BodyResult::Ok(matches!(cx.race(step, other).await, Either::Second(())))
    })
}

async fn days_of_work_leave_nothing_behind(fixture: &dyn StoreFixture) {
    let is_mended = Arc::new(AtomicBool::new(false));
    let (noop, failing, abandoning) = (noop(), failing(&is_mended), abandoning());
    let sleeper = Workflow::new("sleeper", |mut cx: Context, hours: u64| async move {
        cx.sleep(Duration::from_hours(hours)).await;
        BodyResult::Ok(())
    });
    for day in 0..3 {
        let (begun, latch) = (Count::new(), Latch::new());
        let held = latched_workflow("held", &begun, &latch);
        let with = |b: EngineBuilder| {
            b.register(&noop)
                .register(&failing)
                .register(&abandoning)
                .register(&sleeper)
                .register(&held)
                .queue(Queue::new("window").key_rate(Rate::new(2, Duration::from_mins(1))))
                .queue(Queue::new("even").key_rate(Rate::new(2, Duration::from_mins(1)).burst(3)))
                .suspend_after(Duration::from_millis(1))
        };
        let (one, store) = open_engine(fixture, with).await;
        let (two, _) = open_second_engine(fixture, with).await;
        // keys that come once
        for n in 0..30 {
            for queue in ["window", "even"] {
                one.start(&noop, n).queue(queue).key(format!("{day} {n}")).await.unwrap();
            }
        }
        // a failure that is resumed, and one that is not
        is_mended.store(false, SeqCst);
        let (fails, stays) = (format!("fails {day}"), format!("stays failed {day}"));
        for id in [&fails, &stays] {
            one.start(&failing, ()).workflow_id(id).await.unwrap().result().await.unwrap_err();
        }
        is_mended.store(true, SeqCst);
        one.resume(&fails).await.unwrap();
        wait_for_status(&one, &fails, Status::Completed).await;
        // large values that are abandoned
        for _ in 0..4 {
            one.start(&abandoning, ()).await.unwrap().result().await.unwrap();
        }
        // sleeps that are cancelled, reach their deadline, or end
        let (cancelled, expired) = (format!("cancelled {day}"), format!("expired {day}"));
        one.start(&sleeper, 100).workflow_id(&cancelled).await.unwrap();
        let hour = Duration::from_hours(1);
        one.start(&sleeper, 100).workflow_id(&expired).execution_timeout(hour).await.unwrap();
        one.start(&sleeper, 20).execution_timeout(2 * DAY).await.unwrap();
        wait_for_status(&one, &cancelled, Status::Waiting).await;
        one.cancel(&cancelled).await.unwrap();
        wait_for_status(&one, &expired, Status::Waiting).await;
        // a worker that dies, and registers again
        let id = format!("held {day}");
        one.start(&held, 1).workflow_id(&id).await.unwrap();
        begun.wait_for(1).await;
        let owner = row(&two, &id).await.owner.unwrap();
        store.hold_calls(&[Call::Heartbeat]);
        fixture.mark_dead(owner).await;
        begun.wait_for(2).await;
        store.release();
        latch.open();
        wait_for_status(&two, &id, Status::Completed).await;
        fixture.clock().advance(DAY);
        wait_until_all_ended(&two).await;
        assert_eq!(row(&two, &expired).await.status, Status::Cancelled);
        shut_down(one).await;
        shut_down(two).await;
    }
    // the claims of a last day delete the starts of earlier days
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    for n in 0..60 {
        let queue = ["window", "even"][n % 2];
        engine.start(&noop, n as i64).queue(queue).key("last").await.unwrap();
    }
    while engine.count(&leftovers::unfinished_filter()).await.unwrap() > 0 {
        fixture.clock().advance(Duration::from_mins(1));
        tokio::task::yield_now().await;
    }
    shut_down(engine).await;
    assert_eq!(leftovers::find_in_fixture(fixture).await, Vec::<String>::new());
}
