//! Searches: many executions found by their workflow_ids in few queries.

use std::time::Duration;

use stepfast_core::store::{Execution, Status};
use stepfast_core::{Context, Engine, Error, Failure, Workflow};

use super::support::{Count, GRACE, Latch, noop, open_engine, open_second_engine, shut_down};
use crate::StoreFixture;

super::cases![
    ids_are_found_in_their_order,
    thousands_of_items_are_found_in_few_queries,
    virtual_and_promoted_items_are_found,
    large_outcome_stays_a_reference,
    closed_engine_finds_nothing,
];

/// Asserts that the search finds the same as `show` for each id.
async fn assert_found(engine: &Engine, ids: &[&str]) -> Vec<Option<Execution>> {
    let found = engine.get_many(ids).await.unwrap();
    assert_eq!(found.len(), ids.len());
    for (id, execution) in ids.iter().zip(&found) {
        match engine.show(id).await {
            Ok(record) => {
                let shown = record.execution;
                let found = execution.as_ref().unwrap_or_else(|| panic!("{id} is not found"));
                assert!(found.input.is_empty(), "{id}");
                let facts = |it: &Execution| {
                    let ends = (it.status, it.outcome.clone(), it.ended_at, it.is_parked);
                    (it.key, it.workflow_id(), it.workflow.clone(), it.parent.clone(), it.owner, ends)
                };
                assert_eq!(facts(found), facts(&shown), "{id}");
            }
            Err(Error::NotFound { .. }) => assert_eq!(*execution, None, "{id}"),
            Err(error) => panic!("{id}: {error}"),
        }
    }
    found
}

async fn ids_are_found_in_their_order(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    assert!(engine.get_many(&[] as &[&str]).await.unwrap().is_empty());
    engine.run(&noop, 1).workflow_id("one").await.unwrap();
    let unnamed = engine.start(&noop, 2).await.unwrap();
    unnamed.result().await.unwrap();
    let batch = engine.submit_batch(&noop, 10..13).batch_id("b").await.unwrap();
    batch.wait().await.unwrap();
    let unnamed_batch = engine.submit_batch(&noop, 20..22).await.unwrap();
    unnamed_batch.wait().await.unwrap();
    // the text of a key may be the id of another execution, which comes first
    let text = unnamed_batch.key().to_string();
    let (key, item) = (unnamed.key().to_string(), format!("{text}#1"));
    let bundle = unnamed_batch.key().bundle(1).to_string();
    let ids = [
        "b#2",
        "absent",
        &key,
        "one",
        "b",
        "b#3",
        "b#0",
        "one",
        &item,
        "b#2",
        "b#02",
        "c#1",
        &text,
        "one#0",
        &bundle,
        "",
        "b#4294967295",
    ];
    let found = assert_found(&engine, &ids).await;
    let outputs: Vec<Option<i64>> =
        found.iter().map(|it| it.as_ref()?.outcome.decode::<i64>().ok()).collect();
    let [no, one, two] = [None, Some(1), Some(2)];
    let expected =
        [Some(12), no, two, one, no, no, Some(10), one, Some(21), Some(12), no, no, no, no, no, no, no];
    assert_eq!(outputs, expected);
    assert!(found[4].as_ref().is_some_and(|batch| batch.key.is_batch()));
    assert_eq!(found[14], None, "a bundle is no execution for people");
    let ids_found = [0, 6, 8].map(|at| found[at].as_ref().unwrap().workflow_id());
    assert_eq!(ids_found, [ids[0], ids[6], ids[8]]);
    // the id of an item contains the id of its batch, also if the batch is named by its key
    let by_key = format!("{}#2", batch.key());
    assert_eq!(assert_found(&engine, &[&by_key]).await[0].as_ref().unwrap().workflow_id(), "b#2");
    // owned texts are ids too
    let owned: Vec<String> = ids.map(str::to_owned).into();
    assert_eq!(engine.get_many(&owned).await.unwrap(), found);
    engine.run(&noop, 3).workflow_id(&key).await.unwrap();
    let found = assert_found(&engine, &[&key]).await;
    assert_eq!(found[0].as_ref().unwrap().outcome.decode::<i64>().unwrap(), 3, "the given id comes first");
    shut_down(engine).await;
}

async fn thousands_of_items_are_found_in_few_queries(fixture: &dyn StoreFixture) {
    const ITEMS: i64 = 3_300;
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    engine.submit_batch(&noop, 0..ITEMS).batch_id("b").await.unwrap().wait().await.unwrap();
    engine.submit_batch(&noop, 0..10).batch_id("small").await.unwrap().wait().await.unwrap();
    // another engine reads what this one has written
    let (reader, _) = open_second_engine(fixture, |b| b).await;
    // 7 and the number of items have no common divisor, so the order is mixed, and some ids come twice
    let index_of = |n: i64| n * 7 % ITEMS;
    let ids: Vec<String> = (0..5_000)
        .map(|n| match n % 10 {
            0 => format!("b#{}", ITEMS + n),
            1 => format!("small#{}", index_of(n) % 10),
            _ => format!("b#{}", index_of(n)),
        })
        .collect();
    let reads = || reader.store().counters().snapshot().reads;
    let before = reads();
    let found = reader.get_many(&ids).await.unwrap();
    let queries = reads() - before;
    for (n, execution) in (0..).zip(&found) {
        let expected = match n % 10 {
            0 => None,
            1 => Some(index_of(n) % 10),
            _ => Some(index_of(n)),
        };
        let output = execution.as_ref().map(|it| {
            assert_eq!(it.status, Status::Completed);
            it.outcome.decode::<i64>().unwrap()
        });
        assert_eq!(output, expected, "{}", ids[n as usize]);
    }
    assert!(queries <= 20, "{queries} queries");
    shut_down(reader).await;
    shut_down(engine).await;
}

async fn virtual_and_promoted_items_are_found(fixture: &dyn StoreFixture) {
    let (begun, latch) = (Count::new(), Latch::new());
    let mixed = {
        let (begun, latch) = (begun.clone(), latch.clone());
        Workflow::new("mixed", move |mut cx: Context, x: u32| {
            let (begun, latch) = (begun.clone(), latch.clone());
            async move {
                match x % 4 {
                    0 => cx.sleep(Duration::from_millis(1)).await,
                    1 => return Err(Failure::new("it is odd")),
                    2 => {
                        let wait = async || {
                            begun.increment();
                            latch.wait().await;
                            Ok::<_, Failure>(())
                        };
                        cx.step("wait", wait).await?;
                    }
                    _ => {}
                }
                Ok::<_, Failure>(x)
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&mixed).suspend_after(Duration::from_millis(1))).await;
    let batch = engine.submit_batch(&mixed, 0..40).batch_id("b").await.unwrap();
    begun.wait_for(10).await;
    let running = engine.get_many(&["b#2", "b#38"]).await.unwrap();
    for item in running.iter().flatten() {
        assert!(!item.status.is_terminal() && item.ended_at.is_none(), "{item:?}");
    }
    assert_eq!(running.iter().flatten().count(), 2);
    latch.open();
    batch.wait().await.unwrap();
    let ids: Vec<String> = (0..41).map(|index| format!("b#{index}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let found = assert_found(&engine, &ids).await;
    let failed = found.iter().flatten().filter(|it| it.status == Status::Failed).count();
    assert_eq!((found.iter().flatten().count(), failed), (40, 10));
    shut_down(engine).await;
}

async fn large_outcome_stays_a_reference(fixture: &dyn StoreFixture) {
    let echo =
        Workflow::new("echo", |_: Context, len: usize| async move { Ok::<_, Failure>("x".repeat(len)) });
    let (engine, _) = open_engine(fixture, |b| b.register(&echo)).await;
    engine.submit_batch(&echo, [10, 100_000]).batch_id("b").await.unwrap().wait().await.unwrap();
    engine.run(&echo, 100_000).workflow_id("single").await.unwrap();
    for execution in assert_found(&engine, &["b#1", "single"]).await.into_iter().flatten() {
        assert!(execution.outcome.chunk_ref().is_some(), "{execution:?}");
        let value = engine.load_value(execution.key, execution.outcome).await.unwrap();
        assert_eq!(value.decode::<String>().unwrap().len(), 100_000);
    }
    shut_down(engine).await;
}

async fn closed_engine_finds_nothing(fixture: &dyn StoreFixture) {
    let (engine, _) = open_engine(fixture, |b| b).await;
    engine.shutdown(GRACE).await.unwrap();
    let error = engine.get_many(&["one"]).await.unwrap_err();
    assert!(matches!(error, Error::Shutdown), "{error}");
}
