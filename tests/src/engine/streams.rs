//! Streams: written by workflows and steps, and read by any process while they grow.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use stepfast_core::store::{CheckpointKind, Status};
use stepfast_core::{Context, Engine, Error, Failure, Handle, StreamReader, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, is_suspension_of, noop, open_engine, open_second_engine, record,
    row, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    stream_of_a_workflow_is_read,
    stream_of_a_step_is_read_while_it_grows,
    stream_of_another_engine_is_read,
    closed_stream_ends_before_the_execution,
    replay_writes_nothing_twice,
    retried_step_appends_again,
    offsets_continue_after_a_suspension,
    reader_begins_at_an_offset,
    reader_of_present_values_does_not_wait,
    writes_after_the_close_are_refused,
    wrong_writes_are_refused,
    writer_outside_of_a_step_is_refused,
    steps_have_attempts_of_their_own,
    parallel_steps_share_a_stream,
    items_of_batches_write_streams,
    streams_of_ended_executions_end,
    long_stream_is_read_in_order,
];

const SHORT: Duration = Duration::from_millis(10);

/// Returns the workflow `writer`, whose step writes these numbers to the stream `s`, each after the latch is open.
fn writer(count: &Count, latch: &Latch) -> Workflow<Vec<i64>, ()> {
    let (count, latch) = (count.clone(), latch.clone());
    Workflow::new("writer", move |mut cx: Context, numbers: Vec<i64>| {
        let (count, latch) = (count.clone(), latch.clone());
        async move {
            let stream = cx.stream_writer("s");
            cx.step("write", async || {
                for (n, number) in numbers.iter().enumerate() {
                    stream.write(number).await?;
                    if n == 0 {
                        count.increment();
                        latch.wait().await;
                    }
                }
                BodyResult::Ok(())
            })
            .await
        }
    })
}

async fn reader(engine: &Engine, id: &str, stream: &str) -> StreamReader<i64> {
    engine.read_stream(id, stream).await.unwrap()
}

/// Returns the values of a stream until its end.
async fn values(engine: &Engine, id: &str, stream: &str) -> Vec<i64> {
    rest(reader(engine, id, stream).await).await
}

async fn rest(reader: StreamReader<i64>) -> Vec<i64> {
    reader.into_stream().map(|value| value.unwrap().value).collect().await
}

async fn stream_of_a_workflow_is_read(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        for number in 0..3_i64 {
            cx.write_stream("s", &number).await?;
        }
        cx.write_stream("other", &7_i64).await?;
        BodyResult::Ok(())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    let mut reader: StreamReader<i64> = handle.read_stream("s").await.unwrap();
    for offset in 0..3 {
        let value = reader.next().await.unwrap().unwrap();
        assert_eq!((value.offset, value.value, value.attempt_offset), (offset, offset, offset));
        assert_eq!(value.step, None);
    }
    assert_eq!(reader.next().await.unwrap(), None);
    assert_eq!(reader.next().await.unwrap(), None);
    handle.result().await.unwrap();
    assert_eq!(values(&engine, "w", "other").await, [7]);
    let kinds: Vec<_> = deliveries(&record(&engine, "w").await);
    assert_eq!(kinds[0], (CheckpointKind::StreamWrite, "s".to_owned()));
    assert_eq!(kinds.len(), 4);
    shut_down(engine).await;
}

async fn stream_of_a_step_is_read_while_it_grows(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let writer = writer(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&writer)).await;
    engine.start(&writer, vec![7, 8, 9]).workflow_id("w").await.unwrap();
    let mut reader = reader(&engine, "w", "s").await;
    let first = reader.next().await.unwrap().unwrap();
    assert_eq!((first.offset, first.value, first.attempt_offset), (0, 7, 0));
    assert_eq!(first.step.unwrap().to_string(), "1");
    latch.open();
    assert_eq!(rest(reader).await, [8, 9]);
    shut_down(engine).await;
}

async fn stream_of_another_engine_is_read(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let writer = writer(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&writer)).await;
    let (other, store) = open_second_engine(fixture, |b| b.register(&noop())).await;
    engine.start(&writer, vec![7, 8, 9]).workflow_id("w").await.unwrap();
    count.wait_for(1).await;
    let mut reader = reader(&other, "w", "s").await;
    assert_eq!(reader.next().await.unwrap().unwrap().value, 7);
    let loads = store.call_count(Call::Load);
    let read = rest(reader);
    let open = async {
        // the reader has searched in vain
        store.wait_until_called(Call::Load, loads + 2).await;
        latch.open();
    };
    assert_eq!(tokio::join!(read, open).0, [8, 9]);
    shut_down(other).await;
    shut_down(engine).await;
}

async fn closed_stream_ends_before_the_execution(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        cx.write_stream("s", &7_i64).await?;
        cx.close_stream("s").await?;
        cx.receive::<()>().await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    assert_eq!(values(&engine, "w", "s").await, [7]);
    for beyond in [1, 2, 100, i64::MAX] {
        let reader: StreamReader<i64> = handle.read_stream("s").from(beyond).await.unwrap();
        assert!(rest(reader).await.is_empty(), "{beyond}");
    }
    assert!(!handle.status().await.unwrap().is_terminal());
    handle.send(&()).await.unwrap();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn replay_writes_nothing_twice(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        for number in 0..3_i64 {
            cx.write_stream("s", &number).await?;
            cx.receive::<()>().await?;
        }
        BodyResult::Ok(())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    for _ in 0..3 {
        while row(&engine, "w").await.status != Status::Waiting {}
        handle.send(&()).await.unwrap();
    }
    handle.result().await.unwrap();
    assert_eq!(values(&engine, "w", "s").await, [0, 1, 2]);
    shut_down(engine).await;
}

async fn retried_step_appends_again(fixture: &dyn StoreFixture) {
    let attempts = Count::new();
    let workflow = {
        let attempts = attempts.clone();
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let attempts = attempts.clone();
            async move {
                let stream = cx.stream_writer("s");
                cx.step("write", async || {
                    let attempt = attempts.increment() as i64;
                    for number in 0..2 {
                        stream.write(&(10 * attempt + number)).await?;
                    }
                    if attempt < 3 { Err(Failure::new("again")) } else { Ok(()) }
                })
                .retries(3)
                .backoff(SHORT, SHORT)
                .timeout(Duration::from_hours(1))
                .await
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    handle.result().await.unwrap();
    let mut reader = reader(&engine, "w", "s").await;
    let mut found = Vec::new();
    while let Some(value) = reader.next().await.unwrap() {
        found.push((value.value, value.attempt_offset));
    }
    assert_eq!(found, [(10, 0), (11, 0), (20, 2), (21, 2), (30, 4), (31, 4)]);
    shut_down(engine).await;
}

async fn offsets_continue_after_a_suspension(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let stream = cx.stream_writer("s");
        for number in 0..3_i64 {
            cx.step("write", async || stream.write(&number).await).await?;
            cx.receive::<()>().await?;
        }
        cx.write_stream("s", &3_i64).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    for _ in 0..3 {
        while row(&engine, "w").await.status != Status::Waiting {}
        handle.send(&()).await.unwrap();
    }
    handle.result().await.unwrap();
    assert_eq!(values(&engine, "w", "s").await, [0, 1, 2, 3]);
    shut_down(engine).await;
}

async fn reader_begins_at_an_offset(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let writer = writer(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&writer)).await;
    let handle: Handle<()> = engine.start(&writer, vec![7, 8, 9]).workflow_id("w").await.unwrap();
    let beyond: StreamReader<i64> = handle.read_stream("s").from(2).await.unwrap();
    let (read, ()) = tokio::join!(rest(beyond), async { latch.open() });
    assert_eq!(read, [9]);
    let negative = engine.read_stream::<i64>("w", "s").from(-1).await.err().unwrap();
    assert!(matches!(negative, Error::Invalid { input: "offset", .. }), "{negative}");
    let far: StreamReader<i64> = handle.read_stream("s").from(100).await.unwrap();
    assert!(rest(far).await.is_empty());
    shut_down(engine).await;
}

async fn reader_of_present_values_does_not_wait(fixture: &dyn StoreFixture) {
    // more values than a reader loads at a time
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let stream = cx.stream_writer("s");
        cx.step("write", async || {
            for number in 0..1_100_i64 {
                stream.write(&number).await?;
            }
            BodyResult::Ok(())
        })
        .await?;
        cx.receive::<()>().await
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    for offset in [0, 1_099, 1_100, 5_000] {
        let present: StreamReader<i64> = handle.read_stream("s").from(offset).present_only().await.unwrap();
        assert!(rest(present).await.into_iter().eq(offset..1_100), "{offset}");
    }
    handle.send(&()).await.unwrap();
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn writes_after_the_close_are_refused(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, is_suspended: bool| async move {
        cx.close_stream("s").await?;
        if is_suspended {
            cx.receive::<()>().await?;
        }
        let stream = cx.stream_writer("s");
        let written = cx.write_stream("s", &1_i64).await.unwrap_err();
        let closed = cx.close_stream("s").await.unwrap_err();
        let step = cx.step("write", async || stream.write(&1_i64).await).await.unwrap_err();
        BodyResult::Ok([written, closed, step].map(|failure| failure.message))
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    for is_suspended in [false, true] {
        let handle = engine.start(&workflow, is_suspended).await.unwrap();
        if is_suspended {
            store.wait_until_committed(is_suspension_of(handle.key())).await;
            handle.send(&()).await.unwrap();
        }
        for message in handle.result().await.unwrap() {
            assert!(message.contains("\"s\" is closed"), "{message}");
        }
        assert!(values(&engine, &handle.workflow_id(), "s").await.is_empty());
    }
    shut_down(engine).await;
}

async fn wrong_writes_are_refused(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let long = "x".repeat(70_000);
        let stream = cx.stream_writer("s");
        let failures = [
            cx.write_stream("s\0", &1_i64).await.unwrap_err(),
            cx.write_stream("s".repeat(10_000), &1_i64).await.unwrap_err(),
            cx.write_stream("s", &long).await.unwrap_err(),
            cx.step("write", async || stream.write(&long).await).await.unwrap_err(),
        ];
        BodyResult::Ok(failures.map(|failure| failure.message))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    let messages = handle.result().await.unwrap();
    assert!(messages[0].contains("control character"), "{messages:?}");
    assert!(messages[1].contains("at most 255"), "{messages:?}");
    assert!(messages[2..].iter().all(|it| it.contains("has 70006 bytes")), "{messages:?}");
    let wrong = engine.read_stream::<i64>("w", "s\0").await.err().unwrap();
    assert!(matches!(wrong, Error::Invalid { input: "stream", .. }), "{wrong}");
    let missing = engine.read_stream::<i64>("missing", "s").await.err().unwrap();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    shut_down(engine).await;
}

async fn writer_outside_of_a_step_is_refused(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let stream = cx.stream_writer("s");
        let outside = stream.write(&1_i64).await.unwrap_err();
        let foreign = stream.clone();
        let spawned = cx
            .step("spawn", async || {
                let foreign = foreign.clone();
                let written = tokio::spawn(async move { foreign.write(&1_i64).await }).await.unwrap();
                Ok::<_, Failure>(written.unwrap_err().message)
            })
            .await?;
        BodyResult::Ok([outside.message, spawned])
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    for message in engine.run(&workflow, ()).await.unwrap() {
        assert!(message.contains("in the code of the workflow, call write_stream"), "{message}");
    }
    shut_down(engine).await;
}

async fn steps_have_attempts_of_their_own(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let stream = cx.stream_writer("s");
        for number in 0..3_i64 {
            cx.step("write", async || {
                stream.write(&number).await?;
                stream.write(&number).await
            })
            .await?;
        }
        BodyResult::Ok(())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    let mut reader = reader(&engine, "w", "s").await;
    let mut found = Vec::new();
    while let Some(value) = reader.next().await.unwrap() {
        found.push((value.value, value.step.unwrap().to_string(), value.attempt_offset));
    }
    let expected = [(0, "1", 0), (0, "1", 0), (1, "2", 2), (1, "2", 2), (2, "3", 4), (2, "3", 4)];
    assert_eq!(found, expected.map(|(value, step, first)| (value, step.to_owned(), first)));
    shut_down(engine).await;
}

async fn parallel_steps_share_a_stream(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let stream = Arc::new(cx.stream_writer("s"));
        let branches = (0..4_i64).map(|branch| {
            let stream = stream.clone();
            async move |mut cx: Context| {
                cx.step("write", async || {
                    for number in 0..10 {
                        stream.write(&(100 * branch + number)).await?;
                        tokio::task::yield_now().await;
                    }
                    BodyResult::Ok(())
                })
                .await
            }
        });
        for end in cx.join_all(branches).await {
            end?;
        }
        BodyResult::Ok(())
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    let mut reader = reader(&engine, "w", "s").await;
    let mut by_step = std::collections::BTreeMap::<_, Vec<_>>::new();
    for offset in 0..40 {
        let value = reader.next().await.unwrap().unwrap();
        assert_eq!(value.offset, offset);
        by_step.entry(value.step).or_default().push((value.value % 100, value.attempt_offset));
    }
    assert_eq!(reader.next().await.unwrap(), None);
    assert_eq!(by_step.len(), 4);
    for written in by_step.values() {
        assert!(written.iter().map(|(number, _)| *number).eq(0..10), "{written:?}");
        assert!(written.iter().all(|(_, first)| first == &written[0].1), "{written:?}");
    }
    handle.result().await.unwrap();
    shut_down(engine).await;
}

async fn items_of_batches_write_streams(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let writer = writer(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&writer)).await;
    let batch = engine.submit_batch(&writer, (0..3).map(|n| vec![n, n + 1])).batch_id("b").await.unwrap();
    batch.wait().await.unwrap();
    for item in 0..3 {
        assert_eq!(values(&engine, &format!("b#{item}"), "s").await, [item, item + 1]);
    }
    shut_down(engine).await;
}

async fn streams_of_ended_executions_end(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        cx.write_stream("s", &7_i64).await?;
        cx.receive::<()>().await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("w").await.unwrap();
    let mut reader = reader(&engine, "w", "s").await;
    assert_eq!(reader.next().await.unwrap().unwrap().value, 7);
    let ended = tokio::join!(rest(reader), values(&engine, "w", "missing"), async {
        handle.cancel().await.unwrap();
    });
    assert_eq!(ended, (vec![], vec![], ()));
    assert_eq!(values(&engine, "w", "s").await, [7]);
    shut_down(engine).await;
}

async fn long_stream_is_read_in_order(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    latch.open();
    let writer = writer(&count, &latch);
    let (engine, _) = open_engine(fixture, |b| b.register(&writer)).await;
    engine.start(&writer, (0..5_000).collect()).workflow_id("w").await.unwrap();
    let (live, again) = tokio::join!(values(&engine, "w", "s"), values(&engine, "w", "s"));
    assert!(live.iter().copied().eq(0..5_000));
    assert_eq!(live, again);
    shut_down(engine).await;
}
