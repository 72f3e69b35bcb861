//! Changed code: an execution that no longer matches its code is parked and listed, and continues after a fix.

use std::time::Duration;

use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Context, Engine, EngineBuilder, Error, ErrorKind, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, noop, open_engine, record, row, shut_down, wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    renamed_step_parks_the_execution,
    reordered_steps_park_the_execution,
    missing_step_parks_the_execution,
    sleep_instead_of_a_step_parks_the_execution,
    step_before_a_pending_sleep_parks_the_execution,
    changed_arguments_park_the_execution,
    changed_input_of_a_child_parks_the_execution,
    changed_input_of_a_started_child_parks_the_execution,
    unreadable_value_parks_the_execution,
    unreadable_input_parks_the_execution,
    early_end_parks_the_execution,
    parked_execution_can_be_cancelled,
    parked_execution_is_cancelled_at_its_deadline,
    unregistered_workflow_stays_queued_and_is_listed,
];

type Variant = fn(Context, i64, Count, Latch) -> futures_util::future::BoxFuture<'static, BodyResult<i64>>;

/// Returns the workflow `w` with this body.
fn workflow(body: Variant, count: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new("w", move |cx: Context, x: i64| body(cx, x, count.clone(), latch.clone()))
}

fn original(
    mut cx: Context,
    x: i64,
    count: Count,
    latch: Latch,
) -> futures_util::future::BoxFuture<'static, BodyResult<i64>> {
    Box::pin(async move {
        let a = cx.step("charge", async || BodyResult::Ok(x + 1)).args(&x).await?;
        let b = cx.step("ship", async || BodyResult::Ok(a + 1)).await?;
        wait_in_step(&mut cx, &count, &latch).await?;
        Ok(b)
    })
}

/// Starts the original as `x` and stops it in the middle.
async fn begin(fixture: &dyn StoreFixture) {
    begin_with_timeout(fixture, None).await;
}

/// Does the same as [`begin`], with a deadline.
async fn begin_with_timeout(fixture: &dyn StoreFixture, timeout: Option<Duration>) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = workflow(original, &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let mut start = engine.start(&workflow, 40).workflow_id("x");
    if let Some(timeout) = timeout {
        start = start.execution_timeout(timeout);
    }
    start.await.unwrap();
    count.wait_for(1).await;
    shut_down(engine).await;
}

/// Asserts that `x` is parked under `changed` with all `fragments` in its failure, and continues under the original.
async fn assert_parks_and_resumes(
    fixture: &dyn StoreFixture,
    changed: Workflow<i64, i64>,
    code: &str,
    fragments: &[&str],
) {
    let (two, _) = open_engine(fixture, |b| b.register(&changed)).await;
    let failure = assert_parked(&two, code).await;
    for fragment in fragments {
        assert!(failure.message.contains(fragment), "{fragment}: {failure}");
    }
    let filter = Filter { is_parked: Some(true), limit: 9, ..Filter::default() };
    let parked = two.list(&filter).await.unwrap().executions;
    assert_eq!(parked.len(), 1);
    assert!(parked[0].is_parked && parked[0].workflow_id() == "x");
    // resumed without a fix, it is parked again
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    assert_parked(&two, code).await;
    shut_down(two).await;
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let fixed = workflow(original, &count, &latch);
    let (three, _) = open_engine(fixture, |b| b.register(&fixed)).await;
    assert_parked(&three, code).await;
    assert_eq!(three.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 42);
    assert_eq!(record(&three, "x").await.checkpoints.len(), 3);
    shut_down(three).await;
}

async fn assert_parked(engine: &Engine, code: &str) -> Failure {
    let error = loop {
        let handle = engine.get::<i64>("x").await.unwrap();
        match handle.result().await.unwrap_err() {
            // the execution was about to be parked again
            Error::Shutdown => {}
            error => break error,
        }
    };
    assert_eq!((error.kind(), error.code()), (ErrorKind::Parked, "SF-0010"));
    assert!(error.to_string().contains("resume"), "{error}");
    let row = row(engine, "x").await;
    assert_eq!((row.status, row.is_parked, row.owner), (Status::Queued, true, None));
    let Error::Parked { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.code(), Some(code));
    *failure
}

macro_rules! changed {
    ($body:expr) => {{
        let body: Variant = |cx, x, count, latch| Box::pin($body(cx, x, count, latch));
        workflow(body, &Count::new(), &Latch::new())
    }};
}

async fn renamed_step_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || BodyResult::Ok(x)).await
    });
    assert_parks_and_resumes(fixture, changed, "SF-0023", &["\"charge\"", "\"bill\"", "position 1"]).await;
}

async fn reordered_steps_park_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("ship", async || BodyResult::Ok(x)).await?;
        cx.step("charge", async || BodyResult::Ok(x)).await
    });
    assert_parks_and_resumes(
        fixture,
        changed,
        "SF-0023",
        &["\"charge\"", "\"ship\"", "position 1", "position 2"],
    )
    .await;
}

async fn missing_step_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, count: Count, latch: Latch| {
        let a = cx.step("charge", async || BodyResult::Ok(x + 1)).args(&x).await?;
        wait_in_step(&mut cx, &count, &latch).await?;
        BodyResult::Ok(a)
    });
    assert_parks_and_resumes(fixture, changed, "SF-0023", &["\"ship\"", "\"stop\"", "position 2"]).await;
}

async fn sleep_instead_of_a_step_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.sleep(std::time::Duration::ZERO).await;
        BodyResult::Ok(x)
    });
    assert_parks_and_resumes(fixture, changed, "SF-0023", &["step \"charge\"", "sleep"]).await;
}

async fn step_before_a_pending_sleep_parks_the_execution(fixture: &dyn StoreFixture) {
    const HOUR: Duration = Duration::from_hours(1);
    let with_short_suspension = |b: EngineBuilder| b.suspend_after(Duration::from_millis(10));
    let sleeper = Workflow::new("w", |mut cx: Context, x: i64| async move {
        cx.sleep(HOUR).await;
        BodyResult::Ok(x)
    });
    let (one, store) = open_engine(fixture, |b| with_short_suspension(b.register(&sleeper))).await;
    let handle = one.start(&sleeper, 42).workflow_id("x").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    shut_down(one).await;
    let changed = Workflow::new("w", |mut cx: Context, x: i64| async move {
        cx.step("before", async || BodyResult::Ok(())).await?;
        cx.sleep(HOUR).await;
        BodyResult::Ok(x)
    });
    let (two, _) = open_engine(fixture, |b| with_short_suspension(b.register(&changed))).await;
    fixture.clock().advance(HOUR);
    let failure = assert_parked(&two, "SF-0023").await;
    for fragment in ["position 1", "a sleep is pending", "step \"before\""] {
        assert!(failure.message.contains(fragment), "{fragment}: {failure}");
    }
    shut_down(two).await;
    // under the original code it continues at the same position: its hour has passed
    let (three, _) = open_engine(fixture, |b| with_short_suspension(b.register(&sleeper))).await;
    assert_eq!(three.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 42);
    shut_down(three).await;
}

async fn changed_arguments_park_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || BodyResult::Ok(x)).args(&(x + 1)).await
    });
    assert_parks_and_resumes(fixture, changed, "SF-0023", &["\"charge\"", "arguments"]).await;
}

async fn changed_input_of_a_child_parks_the_execution(fixture: &dyn StoreFixture) {
    assert_changed_input_parks(fixture, true).await;
}

async fn changed_input_of_a_started_child_parks_the_execution(fixture: &dyn StoreFixture) {
    assert_changed_input_parks(fixture, false).await;
}

/// Asserts that a parent is parked if its code gives its child another input than in the record.
async fn assert_changed_input_parks(fixture: &dyn StoreFixture, is_awaited: bool) {
    let (count, latch) = (Count::new(), Latch::new());
    let child = noop();
    let parent = |added: i64| {
        let (child, count, latch) = (child.clone(), count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, x: i64| {
            let (child, count, latch) = (child.clone(), count.clone(), latch.clone());
            async move {
                let output = if is_awaited {
                    cx.child(&child, x + added).await?
                } else {
                    cx.start_child(&child, x + added).await?.result(&mut cx).await?
                };
                wait_in_step(&mut cx, &count, &latch).await?;
                BodyResult::Ok(output)
            }
        })
    };
    let (original, changed) = (parent(0), parent(1));
    let (one, _) = open_engine(fixture, |b| b.register(&original).register(&child)).await;
    one.start(&original, 40).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    shut_down(one).await;
    let (two, _) = open_engine(fixture, |b| b.register(&changed).register(&child)).await;
    let failure = assert_parked(&two, "SF-0023").await;
    for fragment in ["position 1", "\"noop\"", "arguments"] {
        assert!(failure.message.contains(fragment), "{fragment}: {failure}");
    }
    shut_down(two).await;
    latch.open();
    let (three, _) = open_engine(fixture, |b| b.register(&original).register(&child)).await;
    assert_eq!(three.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 40);
    shut_down(three).await;
}

async fn unreadable_value_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || BodyResult::Ok("text".to_owned())).args(&x).await?;
        BodyResult::Ok(x)
    });
    assert_parks_and_resumes(
        fixture,
        changed,
        "SF-0026",
        &["\"w\"", "\"charge\"", "position 1", "String", "an integer"],
    )
    .await;
}

async fn unreadable_input_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = Workflow::new("w", |_cx: Context, _text: String| async move { BodyResult::Ok(1i64) });
    let (two, _) = open_engine(fixture, |b| b.register(&changed)).await;
    let failure = assert_parked(&two, "SF-0026").await.to_string();
    for fragment in ["the input of workflow \"w\"", "String", "an integer"] {
        assert!(failure.contains(fragment), "{failure}");
    }
    shut_down(two).await;
}

async fn early_end_parks_the_execution(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || BodyResult::Ok(x + 1)).args(&x).await
    });
    assert_parks_and_resumes(fixture, changed, "SF-0023", &["\"ship\"", "position 2"]).await;
}

async fn parked_execution_can_be_cancelled(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || BodyResult::Ok(x)).await
    });
    let (two, _) = open_engine(fixture, |b| b.register(&changed)).await;
    assert_parked(&two, "SF-0023").await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Done);
    let error = two.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(!row(&two, "x").await.is_parked);
    shut_down(two).await;
}

async fn parked_execution_is_cancelled_at_its_deadline(fixture: &dyn StoreFixture) {
    // long enough for the execution to be parked first
    begin_with_timeout(fixture, Some(Duration::from_secs(4))).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || BodyResult::Ok(x)).await
    });
    let (two, store) = open_engine(fixture, |b| b.register(&changed)).await;
    assert_parked(&two, "SF-0023").await;
    let mut heartbeats = 1;
    while row(&two, "x").await.status != Status::Cancelled {
        heartbeats += 1;
        store.wait_until_called(Call::Heartbeat, heartbeats).await;
    }
    let error = two.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    let Error::Cancelled(failure) = error else { panic!("{error}") };
    assert_eq!(failure.code(), Some("SF-0021"));
    assert!(!row(&two, "x").await.is_parked);
    shut_down(two).await;
}

async fn unregistered_workflow_stays_queued_and_is_listed(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let other = super::support::noop();
    let (two, store) = open_engine(fixture, |b| b.register(&other)).await;
    store.wait_until_called(Call::Heartbeat, 3).await;
    let filter = Filter { statuses: vec![Status::Queued], limit: 9, ..Filter::default() };
    let queued = two.list(&filter).await.unwrap().executions;
    assert_eq!(queued.len(), 1);
    assert_eq!((&*queued[0].workflow, queued[0].is_parked, queued[0].owner), ("w", false, None));
    shut_down(two).await;
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let workflow = workflow(original, &count, &latch);
    let (three, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 42);
    shut_down(three).await;
}
