//! Events: set by executions, and read by clients and by other executions in any state.

use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::store::{CheckpointKind, Status, Write};
use stepfast_core::{Context, Engine, Error, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, is_end_of, is_suspension_of, noop, open_engine, open_second_engine,
    record, row, shut_down, wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    events_are_read_during_and_after_the_execution,
    reader_waits_for_an_event_of_another_engine,
    workflow_reads_an_event,
    suspended_reader_is_woken,
    event_during_the_suspension_wakes_the_reader,
    event_after_the_suspension_of_another_engine_wakes_the_reader,
    wait_ends_at_its_timeout,
    suspended_wait_ends_at_its_timeout,
    read_events_are_recorded,
    end_without_the_event_is_an_error,
    large_values_are_set_and_read,
    wrong_events_are_refused,
    items_of_batches_set_events,
    event_of_a_child_that_is_not_durable_yet_is_read,
    changed_code_is_noticed,
];

const SHORT: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_hours(1);

/// Returns the workflow `setter`, which sets the event `e` to each number, each after a body that waits for the latch.
fn setter(count: &Count, latch: &Latch) -> Workflow<Vec<i64>, ()> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new("setter", move |mut cx: Context, numbers: Vec<i64>| {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            for number in numbers {
                wait_in_step(&mut cx, &count, &latch).await?;
                cx.set_event("e", &number).await?;
            }
            BodyResult::Ok(())
        }
    })
}

/// Returns the workflow `reader`, which returns the event `e` of the execution with this id.
fn reader() -> Workflow<String, i64> {
    Workflow::new("reader", |mut cx: Context, id: String| async move { cx.get_event(id, "e").await })
}

async fn events_are_read_during_and_after_the_execution(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                cx.set_event("progress", &1).await?;
                cx.set_event("address", "here").await?;
                cx.set_event("progress", &2).await?;
                wait_in_step(&mut cx, &count, &latch).await?;
                cx.set_event("progress", &3).await?;
                BodyResult::Ok(())
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    count.wait_for(1).await;
    // the body has begun, so all events before it are durable
    assert_eq!(engine.get_event::<i64>("w", "progress").await.unwrap(), 2);
    assert_eq!(handle.get_event::<String>("address").timeout(Duration::ZERO).await.unwrap().unwrap(), "here");
    assert_eq!(handle.get_event::<i64>("other").timeout(Duration::ZERO).await.unwrap(), None);
    assert_eq!(handle.get_event::<i64>("other").timeout(SHORT).await.unwrap(), None);
    latch.open();
    handle.result().await.unwrap();
    let read = engine.get_event::<i64>("w", "progress").timeout(Duration::MAX).await.unwrap();
    assert_eq!(read, Some(3));
    let events = engine.events("w").await.unwrap();
    let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
    assert_eq!(names, ["progress", "address", "progress", "progress"]);
    let progress = events.iter().filter(|event| &*event.name == "progress");
    let values: Vec<i64> = progress.map(|event| event.value.decode().unwrap()).collect();
    assert_eq!(values, [1, 2, 3]);
    assert!(events.is_sorted_by_key(|event| event.set_at));
    shut_down(engine).await;
}

async fn reader_waits_for_an_event_of_another_engine(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let setter = setter(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&setter)).await;
    let (other, store) = open_second_engine(fixture, |b| b.register(&noop())).await;
    engine.start(&setter, vec![7]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    let read = async {
        let read = other.get_event::<i64>("s", "e").await;
        read.unwrap()
    };
    let set = async {
        // the reader has searched in vain
        store.wait_until_called(Call::Load, 3).await;
        latch.open();
    };
    assert_eq!(tokio::join!(read, set).0, 7);
    shut_down(other).await;
    shut_down(engine).await;
}

async fn workflow_reads_an_event(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (setter, reader) = (setter(&count, &latch), reader());
    let (engine, store) =
        open_engine(fixture, |b| b.register(&setter).register(&reader).suspend_after(HOUR)).await;
    engine.start(&setter, vec![7, 8]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    let loads = store.call_count(Call::Load);
    let handle = engine.start(&reader, "s".to_owned()).workflow_id("r").await.unwrap();
    store.wait_until_called(Call::Load, loads + 3).await;
    latch.open();
    assert!([7, 8].contains(&handle.result().await.unwrap()));
    assert_eq!(deliveries(&record(&engine, "r").await), [(CheckpointKind::EventRead, "e".to_owned())]);
    engine.get::<()>("s").await.unwrap().result().await.unwrap();
    assert_eq!(engine.run(&reader, "s".to_owned()).await.unwrap(), 8);
    let set: Vec<_> = deliveries(&record(&engine, "s").await);
    assert_eq!(set.iter().filter(|delivery| delivery.0 == CheckpointKind::Event).count(), 2);
    shut_down(engine).await;
}

/// Starts a setter whose body waits for the latch, and a reader that is suspended soon.
async fn start_suspended_reader(engine: &Engine, setter: &Workflow<Vec<i64>, ()>, count: &Count) -> Key {
    engine.start(setter, vec![7]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    engine.start(&reader(), "s".to_owned()).workflow_id("r").await.unwrap().key()
}

async fn suspended_reader_is_woken(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (setter, reader) = (setter(&count, &latch), reader());
    let (engine, store) =
        open_engine(fixture, |b| b.register(&setter).register(&reader).suspend_after(SHORT)).await;
    let key = start_suspended_reader(&engine, &setter, &count).await;
    store.wait_until_committed(is_suspension_of(key)).await;
    assert_eq!(row(&engine, "r").await.status, Status::Waiting);
    // the reader's own Wake has found no event
    store.wait_until_committed(|write| matches!(write, Write::Wake(woken) if *woken == key)).await;
    latch.open();
    assert_eq!(engine.get::<i64>("r").await.unwrap().result().await.unwrap(), 7);
    shut_down(engine).await;
}

/// Suspends a reader, whose suspension hangs in the way that `hold` sets. Meanwhile an execution of another engine sets the
/// event, which must reach the reader.
async fn set_during_suspension(fixture: &dyn StoreFixture, hold: fn(&FaultStore, Key)) {
    let (count, latch) = (Count::new(), Latch::new());
    let (setter, reader) = (setter(&count, &latch), reader());
    let (other, other_store) = open_engine(fixture, |b| b.register(&setter)).await;
    let (engine, store) = open_second_engine(fixture, |b| b.register(&reader).suspend_after(SHORT)).await;
    let setting = other.start(&setter, vec![7]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    let handle = engine.start(&reader, "s".to_owned()).workflow_id("r").await.unwrap();
    hold(&store, handle.key());
    store.wait_until_hanging().await;
    latch.open();
    other_store.wait_until_committed(is_end_of(setting.key())).await;
    store.release();
    assert_eq!(handle.result().await.unwrap(), 7);
    shut_down(engine).await;
    shut_down(other).await;
}

/// The event is durable before the suspension, so no execution waits for the event in the database.
async fn event_during_the_suspension_wakes_the_reader(fixture: &dyn StoreFixture) {
    set_during_suspension(fixture, |store, key| store.hold_writes(is_suspension_of(key))).await;
}

/// The suspension is durable before the event, but the engine that suspends does not know it yet.
async fn event_after_the_suspension_of_another_engine_wakes_the_reader(fixture: &dyn StoreFixture) {
    set_during_suspension(fixture, |store, key| store.hold_write_replies(is_suspension_of(key))).await;
}

/// Returns the workflow `patient`, which waits this many milliseconds for the event `e` of the execution `s`.
fn patient() -> Workflow<u64, Option<i64>> {
    Workflow::new("patient", |mut cx: Context, millis: u64| async move {
        cx.get_event::<i64>("s", "e").timeout(Duration::from_millis(millis)).await
    })
}

async fn wait_ends_at_its_timeout(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (setter, patient) = (setter(&count, &latch), patient());
    let (engine, _) = open_engine(fixture, |b| b.register(&setter).register(&patient)).await;
    engine.start(&setter, vec![7]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    for millis in [0, 20] {
        let before = fixture.now();
        let id = format!("r{millis}");
        assert_eq!(engine.run(&patient, millis).workflow_id(&*id).await.unwrap(), None);
        assert!(fixture.now().since(before) >= Duration::from_millis(millis));
        assert_eq!(deliveries(&record(&engine, &id).await), [(CheckpointKind::Timer, "e".to_owned())]);
    }
    let handle = engine.start(&patient, 3_600_000).await.unwrap();
    latch.open();
    assert_eq!(handle.result().await.unwrap(), Some(7));
    assert_eq!(engine.run(&patient, 0).await.unwrap(), Some(7), "the event was set before");
    shut_down(engine).await;
}

async fn suspended_wait_ends_at_its_timeout(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let (setter, patient) = (setter(&count, &latch), patient());
    let (engine, store) =
        open_engine(fixture, |b| b.register(&setter).register(&patient).suspend_after(SHORT)).await;
    engine.start(&setter, vec![7]).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    let handle = engine.start(&patient, 3_600_000).workflow_id("r").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    fixture.clock().advance(HOUR);
    assert_eq!(handle.result().await.unwrap(), None);
    let waited_ms = record(&engine, "r").await.checkpoints[0].duration_ms;
    assert!(waited_ms >= 3_600_000, "the whole wait counts: {waited_ms}");
    latch.open();
    shut_down(engine).await;
}

async fn read_events_are_recorded(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let reader = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("rereader", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                let before: i64 = cx.get_event("s", "e").await?;
                let none: Option<i64> = cx.get_event("s", "later").timeout(SHORT).await?;
                wait_in_step(&mut cx, &count, &latch).await?;
                let after: i64 = cx.get_event("s", "e").await?;
                BodyResult::Ok((before, none, after))
            }
        })
    };
    let setter = Workflow::new("s", |mut cx: Context, (): ()| async move {
        cx.set_event("e", &1).await?;
        cx.receive::<()>().await?;
        cx.set_event("e", &2).await?;
        cx.set_event("later", &3).await
    });
    let (one, _) = open_engine(fixture, |b| b.register(&reader).register(&setter)).await;
    one.start(&setter, ()).workflow_id("s").await.unwrap();
    one.start(&reader, ()).workflow_id("r").await.unwrap();
    count.wait_for(1).await;
    one.shutdown(Duration::ZERO).await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&reader).register(&setter)).await;
    two.send("s", &()).await.unwrap();
    two.get::<()>("s").await.unwrap().result().await.unwrap();
    latch.open();
    let read = two.get::<(i64, Option<i64>, i64)>("r").await.unwrap().result().await.unwrap();
    assert_eq!(read, (1, None, 2));
    // a replay of the setter sets no event again
    assert_eq!(two.events("s").await.unwrap().len(), 3);
    shut_down(two).await;
}

async fn end_without_the_event_is_an_error(fixture: &dyn StoreFixture) {
    let reader = Workflow::new("reader", |mut cx: Context, (): ()| async move {
        let read = cx.get_event::<i64>("s", "e").await;
        BodyResult::Ok(read.err().map(|failure| failure.to_string()))
    });
    let (count, latch) = (Count::new(), Latch::new());
    let setter = Workflow::new("s", {
        let (count, latch) = (count.clone(), latch.clone());
        move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move { wait_in_step(&mut cx, &count, &latch).await }
        }
    });
    let (engine, store) =
        open_engine(fixture, |b| b.register(&reader).register(&setter).suspend_after(HOUR)).await;
    engine.start(&setter, ()).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    let loads = store.call_count(Call::Load);
    let handle = engine.start(&reader, ()).workflow_id("r").await.unwrap();
    store.wait_until_called(Call::Load, loads + 3).await;
    let wait = engine.get_event::<i64>("s", "e");
    let (error, ()) = tokio::join!(wait, async { latch.open() });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::HasEnded { .. }), "{error}");
    let text = "execution \"s\" has ended with status completed, and has not set the event \"e\"";
    assert_eq!(error.to_string(), text);
    let error = handle.result().await.unwrap().unwrap();
    assert!(error.contains(text), "{error}");
    assert_eq!(deliveries(&record(&engine, "r").await), [(CheckpointKind::Failed, "e".to_owned())]);
    shut_down(engine).await;
}

async fn large_values_are_set_and_read(fixture: &dyn StoreFixture) {
    let setter = Workflow::new("s", |mut cx: Context, text: String| async move {
        cx.set_event("e", &text).await?;
        cx.set_event("too large", &text.repeat(2)).await
    });
    let reader = Workflow::new("r", |mut cx: Context, (): ()| async move {
        let text: String = cx.get_event("s", "e").await?;
        BodyResult::Ok(text)
    });
    let open = |b: stepfast_core::EngineBuilder| b.register(&setter).register(&reader).value_limit(400_000);
    let (engine, _) = open_engine(fixture, open).await;
    let text = "text ".repeat(50_000);
    let error = engine.run(&setter, text.clone()).workflow_id("s").await.unwrap_err().to_string();
    assert!(error.contains("the value of event \"too large\"") && error.contains("400000"), "{error}");
    assert_eq!(engine.get_event::<String>("s", "e").await.unwrap(), text);
    assert_eq!(engine.run(&reader, ()).workflow_id("r").await.unwrap(), text);
    let events = engine.events("s").await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].value.decode::<String>().unwrap(), text);
    shut_down(engine).await;
}

async fn wrong_events_are_refused(fixture: &dyn StoreFixture) {
    let invalid = Workflow::new("invalid", |mut cx: Context, name: String| async move {
        let set = cx.set_event(&*name, &1).await;
        let read = cx.get_event::<i64>("s", &*name).await;
        BodyResult::Ok([set.unwrap_err().to_string(), read.unwrap_err().to_string()])
    });
    let missing = Workflow::new("missing", |mut cx: Context, (): ()| async move {
        cx.get_event::<i64>("missing", "e").await.map_err(|failure| Failure::new(failure.to_string()))
    });
    let text =
        Workflow::new("text", |mut cx: Context, (): ()| async move { cx.set_event("e", "text").await });
    let (engine, _) = open_engine(fixture, |b| b.register(&invalid).register(&missing).register(&text)).await;
    for name in ["", "a\0b", &"x".repeat(10 * 1024)] {
        for error in engine.run(&invalid, name.to_owned()).await.unwrap() {
            assert!(error.contains("event"), "{error}");
        }
        let error = engine.get_event::<i64>("s", name).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { input: "event", .. }), "{error}");
    }
    let error = engine.run(&missing, ()).await.unwrap_err().to_string();
    assert!(error.contains("no execution has workflow_id \"missing\""), "{error}");
    assert!(matches!(engine.get_event::<i64>("missing", "e").await, Err(Error::NotFound { .. })));
    assert!(matches!(engine.events("missing").await, Err(Error::NotFound { .. })));
    engine.run(&text, ()).workflow_id("t").await.unwrap();
    let error = engine.get_event::<i64>("t", "e").await.unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error}");
    assert!(error.to_string().contains("event \"e\" of execution \"t\""), "{error}");
    shut_down(engine).await;
}

async fn items_of_batches_set_events(fixture: &dyn StoreFixture) {
    let setter = Workflow::new("s", |mut cx: Context, number: i64| async move {
        if number != 2 {
            cx.set_event("e", &number).await?;
        }
        BodyResult::Ok(())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&setter).register(&reader())).await;
    let batch = engine.submit_batch(&setter, [0, 1, 2]).batch_id("b").await.unwrap();
    assert_eq!(engine.get_event::<i64>("b#1", "e").await.unwrap(), 1);
    assert_eq!(engine.run(&reader(), "b#0".to_owned()).await.unwrap(), 0);
    batch.wait().await.unwrap();
    let error = engine.get_event::<i64>("b#2", "e").await.unwrap_err();
    assert!(matches!(error, Error::HasEnded { .. }), "{error}");
    shut_down(engine).await;
}

async fn event_of_a_child_that_is_not_durable_yet_is_read(fixture: &dyn StoreFixture) {
    let child =
        Workflow::new(
            "child",
            |mut cx: Context, number: i64| async move { cx.set_event("e", &number).await },
        );
    let parent = {
        let child = child.clone();
        Workflow::new("parent", move |mut cx: Context, number: i64| {
            let child = child.clone();
            async move {
                let started = cx.start_child(&child, number).await?;
                let read: i64 = cx.get_event(started.workflow_id(), "e").await?;
                started.result(&mut cx).await?;
                BodyResult::Ok(read)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&child).register(&parent)).await;
    for number in 0..20 {
        assert_eq!(engine.run(&parent, number).await.unwrap(), number);
    }
    shut_down(engine).await;
}

async fn changed_code_is_noticed(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = |is_changed: bool| {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                if is_changed {
                    cx.set_event("other", &1).await?;
                } else {
                    cx.set_event("e", &1).await?;
                }
                wait_in_step(&mut cx, &count, &latch).await
            }
        })
    };
    let before = workflow(false);
    let (one, _) = open_engine(fixture, |b| b.register(&before)).await;
    one.start(&before, ()).workflow_id("w").await.unwrap();
    count.wait_for(1).await;
    one.shutdown(Duration::ZERO).await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow(true))).await;
    let error = two.get::<()>("w").await.unwrap().result().await.unwrap_err().to_string();
    let text = "the record has event \"e\", but the code calls event \"other\"";
    assert!(error.contains(text), "{error}");
    shut_down(two).await;
}
