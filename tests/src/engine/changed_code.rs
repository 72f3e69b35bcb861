//! Changed code: what no longer matches its record is parked, shown, and goes on after a fix.

use std::time::Duration;

use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Context, Engine, EngineBuilder, Error, ErrorKind, Failure, Workflow};

use super::support::{Count, Latch, Returns, engine, record, row, shut_down, stop_here, suspends};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    another_step_name,
    another_order,
    a_missing_call,
    a_sleep_for_a_step,
    a_step_for_a_sleep_that_is_under_way,
    other_arguments,
    an_unreadable_value,
    an_unreadable_input,
    a_workflow_that_ends_early,
    a_parked_one_is_cancelled,
    a_parked_one_is_cancelled_at_its_deadline,
    a_name_that_nobody_knows_stays_queued_and_is_shown,
];

type Variant = fn(Context, i64, Count, Latch) -> futures_util::future::BoxFuture<'static, Returns<i64>>;

/// The workflow `w` with this body.
fn workflow(body: Variant, count: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new("w", move |cx: Context, x: i64| body(cx, x, count.clone(), latch.clone()))
}

fn original(
    mut cx: Context,
    x: i64,
    count: Count,
    latch: Latch,
) -> futures_util::future::BoxFuture<'static, Returns<i64>> {
    Box::pin(async move {
        let a = cx.step("charge", async || Returns::Ok(x + 1)).args(&x).await?;
        let b = cx.step("ship", async || Returns::Ok(a + 1)).await?;
        stop_here(&mut cx, &count, &latch).await?;
        Ok(b)
    })
}

/// Starts the original as `x` and stops it in the middle.
async fn begin(fixture: &dyn StoreFixture) {
    begin_within(fixture, None).await;
}

/// The same with a deadline.
async fn begin_within(fixture: &dyn StoreFixture, timeout: Option<Duration>) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = workflow(original, &count, &latch);
    let (engine, _) = engine(fixture, |b| b.register(&workflow)).await;
    let mut start = engine.start(&workflow, 40).workflow_id("x");
    if let Some(timeout) = timeout {
        start = start.execution_timeout(timeout);
    }
    start.await.unwrap();
    count.reaches(1).await;
    shut_down(engine).await;
}

/// `x` is parked under `changed`, with all of `said`, and goes on under the original.
async fn is_parked(fixture: &dyn StoreFixture, changed: Workflow<i64, i64>, code: &str, said: &[&str]) {
    let (two, _) = engine(fixture, |b| b.register(&changed)).await;
    let failure = assert_parked(&two, code).await;
    for part in said {
        assert!(failure.message.contains(part), "{part}: {failure}");
    }
    let filter = Filter { is_parked: Some(true), limit: 9, ..Filter::default() };
    let parked = two.list(&filter).await.unwrap().executions;
    assert_eq!(parked.len(), 1);
    assert!(parked[0].is_parked && parked[0].workflow_id() == "x");
    // resumed without a fix it is parked again
    assert_eq!(two.resume("x").await.unwrap(), RequestResult::Done);
    assert_parked(&two, code).await;
    shut_down(two).await;
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let fixed = workflow(original, &count, &latch);
    let (three, _) = engine(fixture, |b| b.register(&fixed)).await;
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
            // it was about to be parked again
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

async fn another_step_name(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || Returns::Ok(x)).await
    });
    is_parked(fixture, changed, "SF-0023", &["\"charge\"", "\"bill\"", "position 1"]).await;
}

async fn another_order(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("ship", async || Returns::Ok(x)).await?;
        cx.step("charge", async || Returns::Ok(x)).await
    });
    is_parked(fixture, changed, "SF-0023", &["\"charge\"", "\"ship\"", "position 1", "position 2"]).await;
}

async fn a_missing_call(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, count: Count, latch: Latch| {
        let a = cx.step("charge", async || Returns::Ok(x + 1)).args(&x).await?;
        stop_here(&mut cx, &count, &latch).await?;
        Returns::Ok(a)
    });
    is_parked(fixture, changed, "SF-0023", &["\"ship\"", "\"stop\"", "position 2"]).await;
}

async fn a_sleep_for_a_step(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.sleep(std::time::Duration::ZERO).await;
        Returns::Ok(x)
    });
    is_parked(fixture, changed, "SF-0023", &["step \"charge\"", "sleep"]).await;
}

async fn a_step_for_a_sleep_that_is_under_way(fixture: &dyn StoreFixture) {
    const HOUR: Duration = Duration::from_hours(1);
    let brief = |b: EngineBuilder| b.suspend_after(Duration::from_millis(10));
    let sleeper = Workflow::new("w", |mut cx: Context, x: i64| async move {
        cx.sleep(HOUR).await;
        Returns::Ok(x)
    });
    let (one, store) = engine(fixture, |b| brief(b.register(&sleeper))).await;
    let handle = one.start(&sleeper, 42).workflow_id("x").await.unwrap();
    store.wait_until_committed(suspends(handle.key())).await;
    shut_down(one).await;
    let changed = Workflow::new("w", |mut cx: Context, x: i64| async move {
        cx.step("before", async || Returns::Ok(())).await?;
        cx.sleep(HOUR).await;
        Returns::Ok(x)
    });
    let (two, _) = engine(fixture, |b| brief(b.register(&changed))).await;
    fixture.clock().advance(HOUR);
    let failure = assert_parked(&two, "SF-0023").await;
    for part in ["position 1", "a sleep is pending", "step \"before\""] {
        assert!(failure.message.contains(part), "{part}: {failure}");
    }
    shut_down(two).await;
    // under the code that began it, it goes on where it was: its hour is over
    let (three, _) = engine(fixture, |b| brief(b.register(&sleeper))).await;
    assert_eq!(three.resume("x").await.unwrap(), RequestResult::Done);
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 42);
    shut_down(three).await;
}

async fn other_arguments(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || Returns::Ok(x)).args(&(x + 1)).await
    });
    is_parked(fixture, changed, "SF-0023", &["\"charge\"", "arguments"]).await;
}

async fn an_unreadable_value(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || Returns::Ok("text".to_owned())).args(&x).await?;
        Returns::Ok(x)
    });
    is_parked(fixture, changed, "SF-0026", &["\"w\"", "\"charge\"", "position 1", "String", "an integer"])
        .await;
}

async fn an_unreadable_input(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = Workflow::new("w", |_cx: Context, _text: String| async move { Returns::Ok(1i64) });
    let (two, _) = engine(fixture, |b| b.register(&changed)).await;
    let failure = assert_parked(&two, "SF-0026").await.to_string();
    for said in ["the input of workflow \"w\"", "String", "an integer"] {
        assert!(failure.contains(said), "{failure}");
    }
    shut_down(two).await;
}

async fn a_workflow_that_ends_early(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("charge", async || Returns::Ok(x + 1)).args(&x).await
    });
    is_parked(fixture, changed, "SF-0023", &["\"ship\"", "position 2"]).await;
}

async fn a_parked_one_is_cancelled(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || Returns::Ok(x)).await
    });
    let (two, _) = engine(fixture, |b| b.register(&changed)).await;
    assert_parked(&two, "SF-0023").await;
    assert_eq!(two.cancel("x").await.unwrap(), RequestResult::Done);
    let error = two.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(!row(&two, "x").await.is_parked);
    shut_down(two).await;
}

async fn a_parked_one_is_cancelled_at_its_deadline(fixture: &dyn StoreFixture) {
    // long enough to be parked before it
    begin_within(fixture, Some(Duration::from_secs(4))).await;
    let changed = changed!(async |mut cx: Context, x: i64, _: Count, _: Latch| {
        cx.step("bill", async || Returns::Ok(x)).await
    });
    let (two, store) = engine(fixture, |b| b.register(&changed)).await;
    assert_parked(&two, "SF-0023").await;
    let mut looks = 1;
    while row(&two, "x").await.status != Status::Cancelled {
        looks += 1;
        store.wait_until_called(Call::Heartbeat, looks).await;
    }
    let error = two.get::<i64>("x").await.unwrap().result().await.unwrap_err();
    let Error::Cancelled(failure) = error else { panic!("{error}") };
    assert_eq!(failure.code(), Some("SF-0021"));
    assert!(!row(&two, "x").await.is_parked);
    shut_down(two).await;
}

async fn a_name_that_nobody_knows_stays_queued_and_is_shown(fixture: &dyn StoreFixture) {
    begin(fixture).await;
    let other = super::support::noop();
    let (two, store) = engine(fixture, |b| b.register(&other)).await;
    store.wait_until_called(Call::Heartbeat, 3).await;
    let filter = Filter { statuses: vec![Status::Queued], limit: 9, ..Filter::default() };
    let queued = two.list(&filter).await.unwrap().executions;
    assert_eq!(queued.len(), 1);
    assert_eq!((&*queued[0].workflow, queued[0].is_parked, queued[0].owner), ("w", false, None));
    shut_down(two).await;
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let workflow = workflow(original, &count, &latch);
    let (three, _) = engine(fixture, |b| b.register(&workflow)).await;
    assert_eq!(three.get::<i64>("x").await.unwrap().result().await.unwrap(), 42);
    shut_down(three).await;
}
