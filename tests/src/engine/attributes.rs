//! Attributes and queues in the programming interface: executions are found by them, and processed in bulk.

use std::time::Duration;

use stepfast_core::attributes::{Attributes, MAX_ATTRIBUTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use stepfast_core::queue::Queue;
use stepfast_core::store::{Execution, Filter, Status, Store};
use stepfast_core::{BulkResult, Context, Engine, EngineBuilder, Error, Failure, Workflow};

use super::support::{Count, Latch, latched_workflow, noop, open_engine, open_second_engine, row, shut_down};
use crate::StoreFixture;

super::cases![
    execution_is_found_by_its_attributes,
    outcomes_are_found_by_thousands_of_values,
    children_have_their_own_attributes,
    attributes_out_of_bounds_are_rejected,
    resume_all_continues_failed_executions_of_a_queue,
    cancel_all_cancels_matching_executions,
];

fn of(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().copied().collect()
}

fn filter(pairs: &[(&str, &str)]) -> Filter {
    Filter { attributes: of(pairs), ..Filter::default() }
}

async fn found(engine: &Engine, filter: &Filter) -> Vec<String> {
    let executions = engine.list(filter).await.unwrap().executions;
    executions.iter().map(Execution::workflow_id).collect()
}

async fn execution_is_found_by_its_attributes(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("mail"))).await;
    engine.run(&noop, 1).workflow_id("run").attribute("customer", "acme").await.unwrap();
    let start = |id| engine.start(&noop, 2).workflow_id(id).attribute("customer", "acme");
    start("started")
        .attribute("region", "eu")
        .attribute("region", "us")
        .await
        .unwrap()
        .result()
        .await
        .unwrap();
    start("queued").queue("mail").await.unwrap().result().await.unwrap();
    for handle in engine.start_many(&noop, [1, 2, 3]).queue("mail").attribute("batch", "7").await.unwrap() {
        handle.result().await.unwrap();
    }
    engine.run(&noop, 3).await.unwrap();
    let acme = filter(&[("customer", "acme")]);
    assert_eq!(found(&engine, &acme).await, ["queued", "started", "run"]);
    assert_eq!(found(&engine, &filter(&[("customer", "acme"), ("region", "us")])).await, ["started"]);
    assert_eq!(engine.count(&filter(&[("batch", "7")])).await.unwrap(), 3);
    let in_mail = Filter { queue: Some("mail".into()), ..acme };
    assert_eq!(found(&engine, &in_mail).await, ["queued"]);
    assert_eq!(row(&engine, "started").await.attributes, of(&[("customer", "acme"), ("region", "us")]));
    shut_down(engine).await;
}

async fn outcomes_are_found_by_thousands_of_values(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    for n in 0..3 {
        for customer in 0..4 {
            engine.run(&noop, n).attribute("customer", customer.to_string()).await.unwrap();
        }
    }
    // a batch has attributes, and its items have none
    let batch = engine.submit_batch(&noop, 0..3).batch_id("b").attribute("customer", "0").await.unwrap();
    batch.wait().await.unwrap();
    // the engine may still load the outcome of the batch, for its waits; another engine has no such reads
    let (reader, store) = open_second_engine(fixture, |b| b).await;
    let reads = store.counters().snapshot().reads;
    let values: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    let found = reader.find("customer", &values, 2).await.unwrap();
    assert_eq!(
        store.counters().snapshot().reads - reads,
        8 + 1,
        "250 values a query, and one for the outcomes"
    );
    let outputs = |found: &[Execution]| -> Vec<Option<i64>> {
        found.iter().map(|it| it.outcome.decode().ok()).collect()
    };
    assert_eq!(found.len(), 2_000);
    assert_eq!((found[0][0].workflow_id(), found[0][0].status), ("b".into(), Status::Completed));
    assert_eq!(outputs(&found[0][1..]), [Some(2)]);
    for of_customer in &found[1..4] {
        assert_eq!(outputs(of_customer), [Some(2), Some(1)]);
    }
    assert!(found[4..].iter().all(Vec::is_empty));
    shut_down(reader).await;
    assert!(engine.find("customer", &[] as &[&str], 1).await.unwrap().is_empty());
    let refused =
        [("customer", "1", 0), ("a=b", "1", 1), ("", "1", 1), ("customer", "", 1), ("n", "a\0b", 1)];
    for (name, value, limit) in refused {
        let error = engine.find(name, &[value], limit).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{name} {value} {limit}: {error}");
    }
    shut_down(engine.clone()).await;
    assert!(matches!(engine.find("customer", &["1"], 1).await, Err(Error::Shutdown)));
}

async fn children_have_their_own_attributes(fixture: &dyn StoreFixture) {
    let child = noop();
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let child = child.clone();
            async move {
                let at_once = cx.child(&child, x).attribute("of", "child").await?;
                let handle = cx.start_child(&child, x).attribute("of", "started").await?;
                let detached = cx.start_detached(&child, x).attribute("of", "detached").await?;
                handle.result(&mut cx).await?;
                Ok::<_, Failure>((at_once, detached))
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    let handle = engine.start(&parent, 1).workflow_id("p").attribute("of", "parent").await.unwrap();
    let (_, detached) = handle.result().await.unwrap();
    assert_eq!(found(&engine, &filter(&[("of", "parent")])).await, ["p"]);
    assert_eq!(found(&engine, &filter(&[("of", "detached")])).await, [detached]);
    for of in ["child", "started"] {
        assert_eq!(engine.count(&filter(&[("of", of)])).await.unwrap(), 1, "{of}");
    }
    shut_down(engine).await;
}

async fn attributes_out_of_bounds_are_rejected(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).queue(Queue::new("mail"))).await;
    let longest_name = "n".repeat(MAX_NAME_BYTES);
    engine.run(&noop, 1).attribute(&longest_name, "v".repeat(MAX_VALUE_BYTES)).await.unwrap();
    let assert_invalid = |error: Error, word: &str| {
        let Error::Invalid { .. } = &error else { panic!("{error}") };
        assert!(error.to_string().contains(word), "{error}");
    };
    assert_invalid(engine.run(&noop, 1).attribute(longest_name + "n", "v").await.unwrap_err(), "129 bytes");
    assert_invalid(
        engine.run(&noop, 1).attribute("n", "v".repeat(MAX_VALUE_BYTES + 1)).await.unwrap_err(),
        "1025 bytes",
    );
    assert_invalid(engine.run(&noop, 1).attribute("", "v").await.unwrap_err(), "must not be empty");
    assert_invalid(engine.run(&noop, 1).attribute("n", "").await.unwrap_err(), "must not be empty");
    assert_invalid(engine.run(&noop, 1).attribute("a=b", "v").await.unwrap_err(), "contains '='");
    assert_invalid(engine.run(&noop, 1).attribute("n", "a\nb").await.unwrap_err(), "control character");
    let mut start = engine.start(&noop, 1);
    for n in 0..=MAX_ATTRIBUTES {
        start = start.attribute(n.to_string(), "v");
    }
    assert_invalid(start.await.map(|_| ()).unwrap_err(), "65, at most 64");
    let debounced = engine.start(&noop, 1).queue("mail").debounce("x").delay(Duration::from_secs(9));
    assert_invalid(
        debounced.attribute("n", "v").await.map(|_| ()).unwrap_err(),
        "does not go with attributes",
    );
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 1);
    shut_down(engine).await;
}

async fn resume_all_continues_failed_executions_of_a_queue(fixture: &dyn StoreFixture) {
    let healthy = Latch::new();
    let flaky = {
        let healthy = healthy.clone();
        Workflow::new("flaky", move |_: Context, x: i64| {
            let is_healthy = healthy.is_open();
            async move { if is_healthy { Ok(x) } else { Err(Failure::new("down").permanent()) } }
        })
    };
    let queues = [Queue::new("mail").concurrency(7), Queue::new("other")];
    let (engine, _) =
        open_engine(fixture, |b| queues.into_iter().fold(b.register(&flaky), EngineBuilder::queue)).await;
    let mut handles = engine.start_many(&flaky, 0..1_500).queue("mail").await.unwrap();
    let other = engine.start(&flaky, 1).queue("other").await.unwrap();
    handles.push(other);
    for handle in &handles {
        handle.result().await.unwrap_err();
    }
    healthy.open();
    let failed = Filter { queue: Some("mail".into()), statuses: vec![Status::Failed], ..Filter::default() };
    assert_eq!(engine.count(&failed).await.unwrap(), 1_500);
    let mut totals = Vec::new();
    let result = engine.resume_all(&failed, |so_far| totals.push(so_far.total())).await.unwrap();
    assert_eq!(result, BulkResult { done: 1_500, pending: 0, not_applicable: 0 });
    assert_eq!(totals, [1_000, 1_500]);
    let other = handles.pop().unwrap();
    for (handle, x) in handles.iter().zip(0..) {
        let resumed = engine.get::<i64>(&handle.workflow_id()).await.unwrap();
        assert_eq!(resumed.result().await.unwrap(), x);
    }
    assert_eq!(other.status().await.unwrap(), Status::Failed);
    assert_eq!(engine.count(&failed).await.unwrap(), 0);
    assert_eq!(row(&engine, &handles[0].workflow_id()).await.queue(), "mail");
    shut_down(engine).await;
}

async fn cancel_all_cancels_matching_executions(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (one, _) =
        open_engine(fixture, |b| b.register(&workflow).queue(Queue::new("mail").concurrency(2))).await;
    let start = |x| one.start(&workflow, x).queue("mail");
    let mut handles = Vec::new();
    for x in 0..9 {
        handles.push(start(x).attribute("customer", if x == 4 { "beta" } else { "acme" }).await.unwrap());
    }
    count.wait_for(2).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&workflow).serve_queues([""; 0])).await;
    let acme = filter(&[("customer", "acme")]);
    // otherwise a third execution would begin when one of the two has ended
    other.pause_queue("mail").await.unwrap();
    let result = other.cancel_all(&acme, |_| ()).await.unwrap();
    assert_eq!(result, BulkResult { done: 6, pending: 2, not_applicable: 0 });
    other.resume_queue("mail").await.unwrap();
    for (x, handle) in handles.iter().enumerate().filter(|(x, _)| *x != 4) {
        assert!(matches!(handle.result().await.unwrap_err(), Error::Cancelled(_)), "{x}");
    }
    latch.open();
    assert_eq!(handles[4].result().await.unwrap(), 4);
    let result = other.cancel_all(&acme, |_| ()).await.unwrap();
    assert_eq!(result, BulkResult::default(), "all have ended");
    let repeated =
        other.cancel_all(&Filter { statuses: vec![Status::Cancelled], ..acme }, |_| ()).await.unwrap();
    assert_eq!(repeated, BulkResult { not_applicable: 8, ..BulkResult::default() });
    shut_down(other).await;
    shut_down(one).await;
}
