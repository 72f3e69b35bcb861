//! Starts: ids, duplicates, wait timeouts, and capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::store::{Filter, Write};
use stepfast_core::{Context, Error, ErrorKind, Status, Workflow};

use super::support::{
    BodyResult, Count, Latch, fresh_number, is_end_of, latched_workflow, noop, open_engine,
    open_second_engine, record, row, shut_down, steps,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    workflow_id_has_one_start_in_flight_after_wait_timeouts,
    run_returns_the_output,
    start_returns_a_handle_of_the_running_execution,
    repeated_start_returns_the_existing_execution,
    concurrent_starts_share_one_execution,
    concurrent_starts_of_two_engines_share_one_execution,
    start_attaches_to_a_run_whose_code_waits,
    run_with_an_existing_id_returns_the_existing_outcome,
    start_with_another_workflow_or_input_is_a_conflict,
    invalid_workflow_ids_are_rejected,
    unusual_workflow_ids_are_found,
    unknown_workflow_is_an_error,
    output_read_as_another_type_names_its_own_type,
    dropped_run_call_cancels_nothing,
    dropped_start_call_cancels_nothing,
    start_is_kept_after_its_wait_timeout,
    max_running_limits_concurrent_executions,
    runs_beyond_max_running_are_queued_and_return,
    hundred_parents_complete_with_a_small_max_running,
    waiting_parents_complete_with_a_max_running_of_one,
    workflow_id_in_the_form_of_a_key_is_an_id,
    input_over_the_limit_is_rejected,
    keys_contain_the_shard_of_their_store,
];

async fn run_returns_the_output(fixture: &dyn StoreFixture) {
    let (noop, steps) = (noop(), steps());
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&steps)).await;
    assert_eq!(engine.run(&noop, 7).await.unwrap(), 7);
    assert_eq!(engine.run(&steps, 3).await.unwrap().len(), 3);
    assert_eq!(engine.running_count(), 0);
    shut_down(engine).await;
}

async fn start_returns_a_handle_of_the_running_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 5).await.unwrap();
    assert_eq!(handle.status().await.unwrap(), Status::Running);
    count.wait_for(1).await;
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert_eq!(handle.status().await.unwrap(), Status::Completed);
    assert_eq!(engine.get::<i64>(&handle.workflow_id()).await.unwrap().result().await.unwrap(), 5);
    shut_down(engine).await;
}

async fn repeated_start_returns_the_existing_execution(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, _) = open_engine(fixture, |b| b.register(&steps)).await;
    let first = engine.start(&steps, 2).workflow_id("order-7").await.unwrap();
    let values = first.result().await.unwrap();
    let second = engine.start(&steps, 2).workflow_id("order-7").await.unwrap();
    assert_eq!((second.key(), second.workflow_id()), (first.key(), "order-7".into()));
    assert_eq!(second.result().await.unwrap(), values);
    assert_eq!(engine.run(&steps, 2).workflow_id("order-7").await.unwrap(), values);
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 1);
    assert_eq!(engine.running_count(), 0, "a duplicate Start left a run behind");
    shut_down(engine).await;
}

async fn concurrent_starts_share_one_execution(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (engine, _) = open_engine(fixture, |b| b.register(&steps)).await;
    for round in 0..10 {
        let id = format!("id-{round}");
        let (a, b, c) = tokio::join!(
            async { engine.start(&steps, 1).workflow_id(id.clone()).await.unwrap().result().await },
            async { engine.start(&steps, 1).workflow_id(id.clone()).await.unwrap().result().await },
            async { engine.run(&steps, 1).workflow_id(id.clone()).await },
        );
        let values = a.unwrap();
        assert_eq!((b.unwrap(), c.unwrap()), (values.clone(), values));
    }
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 10);
    assert_eq!(engine.running_count(), 0);
    shut_down(engine).await;
}

async fn concurrent_starts_of_two_engines_share_one_execution(fixture: &dyn StoreFixture) {
    let steps = steps();
    let (one, _) = open_engine(fixture, |b| b.register(&steps)).await;
    let (two, _) = open_second_engine(fixture, |b| b.register(&steps)).await;
    for round in 0..10 {
        let id = format!("id-{round}");
        let (a, b, c) = tokio::join!(
            async { one.start(&steps, 2).workflow_id(id.clone()).await.unwrap().result().await },
            async { two.start(&steps, 2).workflow_id(id.clone()).await.unwrap().result().await },
            async { two.run(&steps, 2).workflow_id(id.clone()).await },
        );
        let values = a.unwrap();
        assert_eq!((b.unwrap(), c.unwrap()), (values.clone(), values));
        assert_eq!(record(&two, &id).await.checkpoints.len(), 2);
    }
    assert_eq!(one.count(&Filter::default()).await.unwrap(), 10);
    assert_eq!((one.running_count(), two.running_count()), (0, 0));
    shut_down(one).await;
    shut_down(two).await;
}

async fn start_attaches_to_a_run_whose_code_waits(fixture: &dyn StoreFixture) {
    let latch = Latch::new();
    let body_latch = latch.clone();
    // the code waits for an event outside the engine
    let outside = Workflow::new("outside", move |_: Context, x: i64| {
        let latch = body_latch.clone();
        async move {
            latch.wait().await;
            BodyResult::Ok(x)
        }
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&outside)).await;
    let running = tokio::spawn({
        let (engine, outside) = (engine.clone(), outside.clone());
        async move { engine.run(&outside, 7).workflow_id("x").await }
    });
    while engine.running_count() == 0 {
        tokio::task::yield_now().await;
    }
    let handle = engine.start(&outside, 7).workflow_id("x").await.unwrap();
    assert!(!latch.is_open());
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 7);
    assert_eq!(running.await.unwrap().unwrap(), 7);
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 1);
    shut_down(engine).await;
}

async fn run_with_an_existing_id_returns_the_existing_outcome(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let first = engine.start(&workflow, 5).workflow_id("x").await.unwrap();
    count.wait_for(1).await;
    let second = engine.clone();
    let (id, same) = ("x", workflow.clone());
    let second = tokio::spawn(async move { second.run(&same, 5).workflow_id(id).await });
    let third = engine.start(&workflow, 5).workflow_id("x").await.unwrap();
    latch.open();
    assert_eq!(second.await.unwrap().unwrap(), 5);
    assert_eq!(first.result().await.unwrap() + third.result().await.unwrap(), 10);
    assert_eq!(count.get(), 1, "more than one body has run");
    shut_down(engine).await;
}

async fn start_with_another_workflow_or_input_is_a_conflict(fixture: &dyn StoreFixture) {
    let (noop, steps) = (noop(), steps());
    let (engine, _) = open_engine(fixture, |b| b.register(&noop).register(&steps)).await;
    engine.run(&steps, 2).workflow_id("x").await.unwrap();
    for error in [
        engine.start(&steps, 3).workflow_id("x").await.map(drop).unwrap_err(),
        engine.run(&steps, 3).workflow_id("x").await.map(drop).unwrap_err(),
        engine.start(&noop, 2).workflow_id("x").await.map(drop).unwrap_err(),
        engine.run(&noop, 2).workflow_id("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "SF-0003"));
        assert!(error.to_string().contains("\"x\"") && error.to_string().contains("steps"), "{error}");
    }
    assert_eq!((engine.count(&Filter::default()).await.unwrap(), engine.running_count()), (1, 0));
    shut_down(engine).await;
}

async fn invalid_workflow_ids_are_rejected(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    let long = "x".repeat(10_000);
    for (id, expected) in [
        ("", "empty"),
        (long.as_str(), "10000 bytes"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("\u{1b}[31m", "control"),
        ("\u{7f}", "control"),
        ("a\u{85}", "control"),
    ] {
        let error = engine.start(&noop, 1).workflow_id(id).await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Invalid, "SF-0001"));
        assert!(error.to_string().contains(expected) && error.to_string().contains("workflow_id"), "{error}");
        let error = engine.run(&noop, 1).workflow_id(id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = engine.get::<i64>(id).await.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound), "{error}");
    }
    assert_eq!((store.committed_writes().len(), engine.running_count()), (0, 0));
    assert_eq!(engine.run(&noop, 1).await.unwrap(), 1);
    shut_down(engine).await;
}

async fn unusual_workflow_ids_are_found(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let longest = "ö".repeat(512);
    let ids =
        ["it's", "\"quoted\"", "emoji 🦀👩‍👩‍👧", "%_\\", "a b", "1'; DROP TABLE executions; --", "ü", &longest];
    for (n, id) in (0..).zip(ids) {
        let handle = engine.start(&noop, n).workflow_id(id).await.unwrap();
        assert_eq!(handle.workflow_id(), id);
        assert_eq!(handle.result().await.unwrap(), n);
        assert_eq!(engine.get::<i64>(id).await.unwrap().key(), handle.key());
        assert_eq!(row(&engine, id).await.given_id.as_deref(), Some(id));
        let filter = Filter { id_prefix: Some(id.into()), limit: 9, ..Filter::default() };
        let page = engine.list(&filter).await.unwrap();
        let found: Vec<String> =
            page.executions.iter().map(stepfast_core::store::Execution::workflow_id).collect();
        assert_eq!(found, [id]);
        let repeated = engine.start(&noop, n).workflow_id(id).await.unwrap();
        assert_eq!(repeated.key(), handle.key());
    }
    shut_down(engine).await;
}

async fn unknown_workflow_is_an_error(fixture: &dyn StoreFixture) {
    let (noop, steps) = (noop(), steps());
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    for error in [
        engine.start(&steps, 1).await.map(drop).unwrap_err(),
        engine.run(&steps, 1).workflow_id("x").await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::NotFound, "SF-0002"));
        assert!(error.to_string().contains("steps") && error.to_string().contains("noop"), "{error}");
    }
    let error = engine.get::<i64>("x").await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotFound, "SF-0004"));
    assert_eq!(store.committed_writes().len(), 0);
    shut_down(engine).await;
}

async fn output_read_as_another_type_names_its_own_type(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    engine.run(&noop, 5).workflow_id("order-7").await.unwrap();
    let error = engine.get::<String>("order-7").await.unwrap().result().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Corrupt, "SF-0006"));
    for expected in
        ["the output of execution \"order-7\", workflow \"noop\"", "String", "an integer", "read it with"]
    {
        assert!(error.to_string().contains(expected), "{error}");
    }
    shut_down(engine).await;
}

async fn dropped_run_call_cancels_nothing(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = latched_workflow("w", &count, &latch);
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    for id in [None, Some("given")] {
        let before = count.get();
        let run = engine.run(&workflow, 5);
        let run = if let Some(id) = id { run.workflow_id(id) } else { run };
        tokio::select! {
            _ = run => panic!("the latch is closed"),
            () = count.wait_for(before + 1) => {}
        }
    }
    latch.open();
    for row in engine.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions {
        store.wait_until_committed(is_end_of(row.key)).await;
        assert_eq!(engine.get::<i64>(&row.workflow_id()).await.unwrap().result().await.unwrap(), 5);
    }
    assert_eq!(count.get(), 2);
    shut_down(engine).await;
}

async fn dropped_start_call_cancels_nothing(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    for id in [None, Some("given")] {
        store.hold_calls(&[Call::Commit]);
        let called = store.call_count(Call::Commit);
        let start = engine.start(&noop, 5);
        let start = if let Some(id) = id { start.workflow_id(id) } else { start };
        tokio::select! {
            _ = start => panic!("the Start is not durable yet"),
            () = store.wait_until_called(Call::Commit, called + 1) => {}
        }
        store.release();
        if let Some(id) = id {
            // a repeated Start waits for the outcome of the first
            assert_eq!(engine.run(&noop, 5).workflow_id(id).await.unwrap(), 5);
        }
        engine.run(&noop, 1).await.unwrap();
        for row in engine.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions {
            store.wait_until_committed(is_end_of(row.key)).await;
        }
    }
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 4);
    shut_down(engine).await;
}

async fn start_is_kept_after_its_wait_timeout(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, store) = open_engine(fixture, |b| b.register(&noop)).await;
    store.hold_calls(&[Call::Commit]);
    let short = Duration::from_millis(30);
    let error = engine.start(&noop, 5).workflow_id("s").wait_timeout(short).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0011"));
    let error = engine.run(&noop, 6).workflow_id("r").wait_timeout(short).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "SF-0011"));
    assert!(error.to_string().contains("retrying it with the same workflow_id is safe"), "{error}");
    store.release();
    assert_eq!(engine.run(&noop, 5).workflow_id("s").await.unwrap(), 5);
    assert_eq!(engine.run(&noop, 6).workflow_id("r").await.unwrap(), 6);
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 2);
    shut_down(engine).await;
}

async fn max_running_limits_concurrent_executions(fixture: &dyn StoreFixture) {
    let (running, highest) = (Count::new(), Arc::new(AtomicUsize::new(0)));
    let workflow = {
        let (running, highest) = (running.clone(), highest.clone());
        Workflow::new("w", move |mut cx: Context, x: usize| {
            let (running, highest) = (running.clone(), highest.clone());
            async move {
                highest.fetch_max(running.increment(), SeqCst);
                for _ in 0..3 {
                    cx.step("s", async || {
                        tokio::task::yield_now().await;
                        BodyResult::Ok(fresh_number())
                    })
                    .await?;
                }
                running.decrement();
                BodyResult::Ok(x)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).max_running(4)).await;
    let mut handles = Vec::new();
    for n in 0..60 {
        handles.push((n, engine.start(&workflow, n).await.unwrap()));
    }
    for (n, handle) in handles {
        assert_eq!(handle.result().await.unwrap(), n);
    }
    let highest = highest.load(SeqCst);
    assert!((1..=4).contains(&highest), "{highest} ran at once");
    shut_down(engine).await;
}

async fn runs_beyond_max_running_are_queued_and_return(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (workflow, noop) = (latched_workflow("w", &count, &latch), noop());
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).register(&noop).max_running(1)).await;
    let first = engine.start(&workflow, 1).await.unwrap();
    count.wait_for(1).await;
    let queued = engine.start(&noop, 2).await.unwrap();
    assert_eq!(queued.status().await.unwrap(), Status::Queued);
    let (other, workflow) = (engine.clone(), noop.clone());
    let run = tokio::spawn(async move { other.run(&workflow, 3).workflow_id("third").await });
    latch.open();
    assert_eq!(first.result().await.unwrap(), 1);
    assert_eq!(queued.result().await.unwrap(), 2);
    assert_eq!(run.await.unwrap().unwrap(), 3);
    shut_down(engine).await;
}

fn parent(child: &Workflow<usize, Vec<usize>>) -> Workflow<usize, usize> {
    let child = child.clone();
    Workflow::new("parent", move |mut cx: Context, n: usize| {
        let child = child.clone();
        async move {
            let mut sum = 0;
            for _ in 0..2 {
                sum += cx.child(&child, n).await?.len();
            }
            BodyResult::Ok(sum)
        }
    })
}

async fn hundred_parents_complete_with_a_small_max_running(fixture: &dyn StoreFixture) {
    let child = steps();
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).max_running(4).suspend_after(Duration::from_millis(20))
    })
    .await;
    let mut handles = Vec::new();
    for _ in 0..100 {
        handles.push(engine.start(&parent, 1).await.unwrap());
    }
    for handle in handles {
        assert_eq!(handle.result().await.unwrap(), 2);
    }
    assert_eq!(engine.count(&Filter::default()).await.unwrap(), 300);
    shut_down(engine).await;
}

async fn waiting_parents_complete_with_a_max_running_of_one(fixture: &dyn StoreFixture) {
    let child = steps();
    let parent = parent(&child);
    let (engine, _) = open_engine(fixture, |b| {
        b.register(&child).register(&parent).max_running(1).suspend_after(Duration::from_millis(1))
    })
    .await;
    let handles = [engine.start(&parent, 1).await.unwrap(), engine.start(&parent, 2).await.unwrap()];
    for (n, handle) in (1..).zip(handles) {
        assert_eq!(handle.result().await.unwrap(), 2 * n);
    }
    shut_down(engine).await;
}

async fn workflow_id_in_the_form_of_a_key_is_an_id(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let id = stepfast_core::Key::mint(0).to_string();
    let handle = engine.start(&noop, 5).workflow_id(id.clone()).await.unwrap();
    assert_eq!(handle.workflow_id(), id);
    assert_ne!(handle.key().to_string(), id);
    assert_eq!(handle.result().await.unwrap(), 5);
    for id in [id, handle.key().to_string()] {
        assert_eq!(engine.get::<i64>(&id).await.unwrap().key(), handle.key());
    }
    shut_down(engine).await;
}

async fn input_over_the_limit_is_rejected(fixture: &dyn StoreFixture) {
    let length =
        Workflow::new("length", |_cx: Context, text: String| async move { BodyResult::Ok(text.len()) });
    let (engine, store) = open_engine(fixture, |b| b.register(&length).value_limit(1000)).await;
    for error in [
        engine.start(&length, "x".repeat(2000)).await.map(drop).unwrap_err(),
        engine.run(&length, "x".repeat(2000)).await.map(drop).unwrap_err(),
    ] {
        let Error::TooLarge { value, size, limit } = &error else { panic!("{error}") };
        assert!(value.contains("length") && *size > 2000 && *limit == 1000, "{error}");
    }
    assert_eq!((store.committed_writes().len(), engine.running_count()), (0, 0));
    assert_eq!(engine.run(&length, "x".repeat(900)).await.unwrap(), 900);
    shut_down(engine).await;
}

async fn workflow_id_has_one_start_in_flight_after_wait_timeouts(fixture: &dyn StoreFixture) {
    let (noop, steps, count, latch) = (noop(), steps(), Count::new(), Latch::new());
    let stuck = latched_workflow("stuck", &count, &latch);
    for is_full in [false, true] {
        let (engine, store) =
            open_engine(fixture, |b| b.register(&noop).register(&steps).register(&stuck).max_running(1))
                .await;
        if is_full {
            engine.start(&stuck, 1).await.unwrap();
            count.wait_for(1).await;
        }
        store.hold_calls(&[Call::Commit]);
        let short = Duration::from_millis(1);
        for _ in 0..3 {
            for result in [
                engine.run(&noop, 1).workflow_id(format!("a {is_full}")).wait_timeout(short).await.map(drop),
                engine
                    .start(&noop, 1)
                    .workflow_id(format!("b {is_full}"))
                    .wait_timeout(short)
                    .await
                    .map(drop),
                engine.run(&steps, 1).workflow_id(format!("c {is_full}")).wait_timeout(short).await.map(drop),
            ] {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
            }
        }
        // a later Start waits for the outcome of the first
        store.release();
        latch.open();
        for id in ["a", "b"] {
            let repeated = engine.start(&noop, 1).workflow_id(format!("{id} {is_full}")).await.unwrap();
            assert_eq!(repeated.result().await.unwrap(), 1);
        }
        let repeated = engine.start(&steps, 1).workflow_id(format!("c {is_full}")).await.unwrap();
        assert_eq!(repeated.result().await.unwrap().len(), 1);
        let mut committed = store.committed_writes().into_iter();
        for writes in store.flush_sizes() {
            let mut ids = std::collections::HashSet::new();
            for (write, _) in committed.by_ref().take(writes) {
                if let Write::Start(start) = write
                    && let Some(id) = start.workflow_id
                {
                    assert!(ids.insert(id.clone()), "{id} is in a flush twice");
                }
            }
        }
        shut_down(engine).await;
    }
}

async fn keys_contain_the_shard_of_their_store(fixture: &dyn StoreFixture) {
    // the memory store has no shards
    let shard = if fixture.execute("UPDATE shard SET number = 7").await { 7 } else { 0 };
    let noop = noop();
    let parent = {
        let noop = noop.clone();
        Workflow::new("parent", move |mut cx: Context, x: i64| {
            let noop = noop.clone();
            async move {
                let called = cx.child(&noop, x).await?;
                cx.start_child(&noop, x).await?.result(&mut cx).await.map(|started| called + started)
            }
        })
    };
    let (one, _) = open_second_engine(fixture, |b| b.register(&noop).register(&parent)).await;
    let handle = one.start(&parent, 1).workflow_id("x").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 2);
    assert_eq!(one.run(&noop, 3).await.unwrap(), 3);
    let all = one.list(&Filter { limit: 9, ..Filter::default() }).await.unwrap().executions;
    let shards: Vec<u16> = all.iter().map(|execution| execution.key.shard()).collect();
    assert_eq!(shards, [shard; 4]);
    shut_down(one).await;
}
