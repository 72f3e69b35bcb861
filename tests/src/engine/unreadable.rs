//! Rows that this version of the program cannot read: they park their own execution, and stop no others.

use stepfast_core::store::{Filter, RequestResult, Status};
use stepfast_core::{Context, Error, Workflow};

use super::support::{
    BodyResult, Count, Latch, open_engine, open_second_engine, row, shut_down, wait_in_step,
};
use crate::StoreFixture;

super::cases![
    unreadable_row_parks_only_its_execution,
    unknown_request_stops_nothing,
    unknown_status_stops_nothing,
];

/// Returns a workflow with a step, a failed attempt of another step, and a wait for the latch.
fn workflow(begun: &Count, latch: &Latch) -> Workflow<i64, i64> {
    let (begun, latch) = (begun.clone(), latch.clone());
    Workflow::new("w", move |mut cx: Context, x: i64| {
        let (begun, latch) = (begun.clone(), latch.clone());
        async move {
            cx.step("one", async || BodyResult::Ok(x)).await?;
            let mut attempts = 0;
            cx.step("two", move || {
                attempts += 1;
                std::future::ready(if attempts == 1 { Err(stepfast_core::Failure::new("no")) } else { Ok(x) })
            })
            .retries(1)
            .backoff(std::time::Duration::ZERO, std::time::Duration::ZERO)
            .await?;
            wait_in_step(&mut cx, &begun, &latch).await?;
            BodyResult::Ok(x)
        }
    })
}

/// Statements that damage rows, each with the column that the reason names. `{key}` stands for the execution's key,
/// `{bytes}` for bytes that no version writes.
const DAMAGES: &[(&str, &str)] = &[
    ("UPDATE checkpoints SET kind = 99 WHERE execution = {key} AND order_no = 1", "kind of checkpoints"),
    (
        "UPDATE checkpoints SET order_no = -7 WHERE execution = {key} AND order_no = 1",
        "order_no of checkpoints",
    ),
    ("UPDATE checkpoints SET path = {bytes} WHERE execution = {key} AND order_no = 1", "path of checkpoints"),
    ("UPDATE attempts SET path = {bytes} WHERE execution = {key}", "path of attempts"),
    ("UPDATE attempts SET attempt = 5000000000 WHERE execution = {key}", "attempt of attempts"),
    ("UPDATE executions SET armed = {bytes} WHERE key = {key}", "armed of executions"),
];

async fn unreadable_row_parks_only_its_execution(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = workflow(&begun, &latch);
    let (first, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    for n in 0..DAMAGES.len() + 20 {
        first.start(&workflow, n as i64).workflow_id(format!("x-{n}")).await.unwrap();
    }
    begun.wait_for(DAMAGES.len() + 20).await;
    shut_down(first).await;
    let bytes = if stepfast_core::Store::info(&*store).kind == "sqlite" { "x'ff'" } else { "'\\xff'::bytea" };
    for (n, (sql, _)) in DAMAGES.iter().enumerate() {
        let key = format!("(SELECT key FROM executions WHERE workflow_id = 'x-{n}')");
        if !fixture.execute(&sql.replace("{key}", &key).replace("{bytes}", bytes)).await {
            // a store without SQL has no rows that another version wrote
            return;
        }
    }
    latch.open();
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    for n in DAMAGES.len()..DAMAGES.len() + 20 {
        assert_eq!(two.get::<i64>(&format!("x-{n}")).await.unwrap().result().await.unwrap(), n as i64);
    }
    for (n, (_, column)) in DAMAGES.iter().enumerate() {
        let id = format!("x-{n}");
        let error = one.get::<i64>(&id).await.unwrap().result().await.unwrap_err();
        let Error::Parked { failure, .. } = &error else { panic!("{column}: {error}") };
        assert_eq!(failure.code(), Some("SF-0026"), "{error}");
        assert!(error.to_string().contains(column), "{column}: {error}");
    }
    let parked = Filter { is_parked: Some(true), limit: 99, ..Filter::default() };
    assert_eq!(one.list(&parked).await.unwrap().executions.len(), DAMAGES.len());
    // after a repair, the execution continues from its record
    fixture.execute("UPDATE checkpoints SET kind = 1 WHERE kind = 99").await;
    assert_eq!(two.resume("x-0").await.unwrap(), RequestResult::Done);
    assert_eq!(one.get::<i64>("x-0").await.unwrap().result().await.unwrap(), 0);
    assert_eq!(one.run(&workflow, 77).await.unwrap(), 77);
    shut_down(one).await;
    shut_down(two).await;
}

async fn unknown_request_stops_nothing(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let workflow = super::support::latched_workflow("w", &begun, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 1).workflow_id("x").await.unwrap();
    begun.wait_for(1).await;
    let now = if stepfast_core::Store::info(&*store).kind == "sqlite" { "0" } else { "now()" };
    let key = "(SELECT key FROM executions WHERE workflow_id = 'x')";
    let sql =
        format!("INSERT INTO requests (requested_at, kind, execution, n) VALUES ({now}, 77, {key}, {key})");
    fixture.execute(&sql).await;
    store
        .wait_until_called(
            crate::faults::fault_store::Call::Heartbeat,
            store.call_count(crate::faults::fault_store::Call::Heartbeat) + 2,
        )
        .await;
    assert_eq!(row(&engine, "x").await.status, Status::Running);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 1);
    assert_eq!(row(&engine, "x").await.status, Status::Completed);
    shut_down(engine).await;
}

async fn unknown_status_stops_nothing(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let child = super::support::latched_workflow("child", &begun, &latch);
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let child = child.clone();
            async move { cx.child(&child, x).await }
        })
    };
    let unrelated = Workflow::new("unrelated", |mut cx: Context, x: i64| async move {
        cx.step("one", async || BodyResult::Ok(x)).await
    });
    let (first, _) =
        open_engine(fixture, |b| b.register(&parent).register(&child).register(&unrelated)).await;
    for n in 0..4 {
        first.start(&parent, n).workflow_id(format!("p-{n}")).await.unwrap();
    }
    begun.wait_for(4).await;
    for id in ["x", "y"] {
        first.run(&unrelated, 1).workflow_id(id).await.unwrap();
    }
    shut_down(first).await;
    for (status, n, id) in [(99, 0, "x"), (-7, 1, "y")] {
        let of = |id: String| format!("(SELECT key FROM executions WHERE workflow_id = '{id}')");
        for which in [format!("key = {}", of(id.to_owned())), format!("parent = {}", of(format!("p-{n}")))] {
            if !fixture.execute(&format!("UPDATE executions SET status = {status} WHERE {which}")).await {
                // a store without SQL has no rows that another version wrote
                return;
            }
        }
    }
    // the parents and children have no worker from here on
    let (engine, _) = open_engine(fixture, |b| b.register(&unrelated)).await;
    for (n, id) in ["x", "y"].into_iter().enumerate() {
        let [odd, other] = [n, n + 2].map(|n| format!("p-{n}"));
        let (damaged, beside, odd_cancel, other_cancel) = tokio::join!(
            engine.start(&unrelated, 1).workflow_id(id),
            engine.run(&unrelated, 2),
            engine.cancel(&odd),
            engine.cancel(&other),
        );
        assert_eq!(beside.unwrap(), 2);
        let error = damaged.unwrap().result().await.unwrap_err();
        let Error::Parked { failure, .. } = &error else { panic!("{error}") };
        assert_eq!(failure.code(), Some("SF-0026"), "{error}");
        assert!(error.to_string().contains("status of executions"), "{error}");
        assert_eq!((odd_cancel.unwrap(), other_cancel.unwrap()), (RequestResult::Done, RequestResult::Done));
        assert_eq!(row(&engine, &odd).await.status, Status::Cancelled);
        for error in [engine.cancel(id).await.unwrap_err(), engine.resume(id).await.unwrap_err()] {
            assert!(
                error.to_string().contains("a status that this version of Stepfast does not recognise"),
                "{error}"
            );
        }
    }
    let all = Filter { limit: 99, ..Filter::default() };
    let listed = engine.list(&all).await.unwrap().executions;
    assert_eq!(listed.iter().filter(|execution| execution.unreadable.is_some()).count(), 4);
    assert_eq!(engine.run(&unrelated, 3).await.unwrap(), 3);
    shut_down(engine).await;
    // after a repair, the executions have their former results
    fixture.execute("UPDATE executions SET status = 4 WHERE workflow_id = 'x'").await;
    let (engine, _) = open_second_engine(fixture, |b| b.register(&unrelated)).await;
    assert_eq!(engine.get::<i64>("x").await.unwrap().result().await.unwrap(), 1);
    shut_down(engine).await;
}
