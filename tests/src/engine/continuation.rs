//! Continuations: an execution continues as new, and a replay begins with its last part.

use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Status};
use stepfast_core::{Context, Either, Error, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, open_engine, open_second_engine, record, row, shut_down, wait_in_step,
};
use crate::StoreFixture;

super::cases![
    execution_continues_as_new,
    messages_events_and_streams_stay,
    replay_begins_with_the_last_part,
    parent_waits_for_a_child_that_continues,
    items_of_batches_continue,
    large_inputs_are_passed_on,
    another_worker_runs_the_next_part,
    abandoned_continuation_is_repeated,
    cancel_ends_an_execution_that_continues,
];

const SHORT: Duration = Duration::from_millis(10);

/// Returns the workflow `count_down`, which runs a step in each part, and returns the number of its parts.
fn count_down(steps: &Count) -> Workflow<(u32, u32), u32> {
    let steps = steps.clone();
    Workflow::new("count_down", move |mut cx: Context, (left, parts): (u32, u32)| {
        let steps = steps.clone();
        async move {
            cx.step("count", async || Ok::<_, Failure>(steps.increment() as u32)).await?;
            if left == 0 {
                return Ok(parts);
            }
            cx.continue_as_new(&(left - 1, parts + 1)).await
        }
    })
}

async fn execution_continues_as_new(fixture: &dyn StoreFixture) {
    let steps = Count::new();
    let count_down = count_down(&steps);
    let (engine, _) = open_engine(fixture, |b| b.register(&count_down)).await;
    let handle = engine.start(&count_down, (4, 1)).workflow_id("c").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 5);
    assert_eq!(steps.get(), 5);
    let record = record(&engine, "c").await;
    // the record keeps all parts, in their order
    let kinds: Vec<_> = record.checkpoints.iter().map(|checkpoint| checkpoint.kind).collect();
    let (step, continued) = (CheckpointKind::Step, CheckpointKind::Continued);
    assert_eq!(kinds, [step, continued, step, continued, step, continued, step, continued, step]);
    assert!(record.checkpoints.is_sorted_by_key(|checkpoint| checkpoint.order));
    assert_eq!(record.execution.input.decode::<(u32, u32)>().unwrap(), (4, 1));
    assert_eq!(engine.run(&count_down, (2, 1)).await.unwrap(), 3);
    shut_down(engine).await;
}

async fn messages_events_and_streams_stay(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, received: Vec<i64>| async move {
        let mut received = received;
        received.push(cx.receive().await?);
        cx.set_event("count", &received.len()).await?;
        cx.write_stream("s", &received.len()).await?;
        if received.len() == 5 {
            return BodyResult::Ok(received);
        }
        cx.continue_as_new(&received).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, Vec::new()).workflow_id("w").await.unwrap();
    for number in 0..5_i64 {
        handle.send(&number).await.unwrap();
        if number == 2 {
            while row(&engine, "w").await.status != Status::Waiting {}
        }
    }
    assert_eq!(handle.result().await.unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(engine.get_event::<usize>("w", "count").await.unwrap(), 5);
    assert_eq!(engine.events("w").await.unwrap().len(), 5);
    let mut reader = engine.read_stream::<usize>("w", "s").await.unwrap();
    for offset in 0..5 {
        let value = reader.next().await.unwrap().unwrap();
        assert_eq!((value.offset, value.value), (offset as i64, offset + 1));
    }
    assert_eq!(reader.next().await.unwrap(), None);
    shut_down(engine).await;
}

async fn replay_begins_with_the_last_part(fixture: &dyn StoreFixture) {
    let begun = Count::new();
    let workflow = {
        let begun = begun.clone();
        Workflow::new("w", move |mut cx: Context, part: u32| {
            let begun = begun.clone();
            async move {
                begun.increment();
                if part < 3 {
                    // a replay of an earlier part would not find these calls
                    for n in 0..10 {
                        cx.step(format!("part {part}, {n}"), async || Ok::<_, Failure>(())).await?;
                    }
                    return cx.continue_as_new(&(part + 1)).await;
                }
                cx.step("last", async || Ok::<_, Failure>(())).await?;
                cx.receive::<()>().await?;
                BodyResult::Ok(part)
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, 0).workflow_id("w").await.unwrap();
    while row(&engine, "w").await.status != Status::Waiting {}
    assert_eq!(begun.get(), 4);
    handle.send(&()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 3);
    assert_eq!(begun.get(), 5);
    shut_down(engine).await;
}

async fn parent_waits_for_a_child_that_continues(fixture: &dyn StoreFixture) {
    let count_down = count_down(&Count::new());
    let parent = {
        let child = count_down.clone();
        Workflow::new("parent", move |mut cx: Context, left: u32| {
            let child = child.clone();
            async move {
                let one = cx.start_child(&child, (left, 1)).await?;
                let other = cx.child(&child, (left, 10)).await?;
                BodyResult::Ok((one.result(&mut cx).await?, other))
            }
        })
    };
    let (engine, _) = open_engine(fixture, |b| b.register(&count_down).register(&parent)).await;
    assert_eq!(engine.run(&parent, 3).await.unwrap(), (4, 13));
    shut_down(engine).await;
}

async fn items_of_batches_continue(fixture: &dyn StoreFixture) {
    let count_down = count_down(&Count::new());
    let (engine, _) = open_engine(fixture, |b| b.register(&count_down)).await;
    let batch = engine.submit_batch(&count_down, (0..4).map(|left| (left, 1))).batch_id("b").await.unwrap();
    assert_eq!(batch.wait().await.unwrap().ended.completed, 4);
    for left in 0..4 {
        let handle = engine.get::<u32>(&format!("b#{left}")).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), left + 1);
    }
    shut_down(engine).await;
}

async fn large_inputs_are_passed_on(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, text: String| async move {
        if text.len() > 400_000 {
            cx.sleep(SHORT).await;
            return BodyResult::Ok(text.len());
        }
        let too_large = cx.continue_as_new::<_, usize>(&"x".repeat(2_000_000)).await.unwrap_err();
        if !too_large.message.contains("the input of the next part has 2000006 bytes") {
            return Err(too_large);
        }
        cx.continue_as_new(&text.repeat(2)).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).value_limit(1_000_000)).await;
    assert_eq!(engine.run(&workflow, "x".repeat(60_000)).await.unwrap(), 480_000);
    shut_down(engine).await;
}

async fn another_worker_runs_the_next_part(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, part: u32| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                if part == 0 {
                    wait_in_step(&mut cx, &count, &latch).await?;
                    return cx.continue_as_new(&1).await;
                }
                BodyResult::Ok(part)
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, 0).workflow_id("w").await.unwrap();
    count.wait_for(1).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    let handle = other.get::<u32>("w").await.unwrap();
    latch.open();
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(one).await;
    shut_down(other).await;
}

async fn abandoned_continuation_is_repeated(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, part: u32| async move {
        if part == 0 {
            let raced = cx.race(async |mut cx: Context| cx.continue_as_new::<_, ()>(&7).await, async |_| ());
            // the second branch ends before the first one is delivered
            let Either::Second(()) = raced.await else {
                return Err(Failure::new("the first branch has won"));
            };
            cx.receive::<()>().await?;
            return cx.continue_as_new(&1).await;
        }
        BodyResult::Ok(part)
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow).suspend_after(SHORT)).await;
    let handle = engine.start(&workflow, 0).workflow_id("w").await.unwrap();
    while row(&engine, "w").await.status != Status::Waiting {}
    handle.send(&()).await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1);
    shut_down(engine).await;
}

async fn cancel_ends_an_execution_that_continues(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, part: u32| async move {
        cx.step("one", async || Ok::<_, Failure>(())).await?;
        cx.continue_as_new::<_, ()>(&(part + 1)).await
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, 0).workflow_id("w").await.unwrap();
    while record(&engine, "w").await.checkpoints.len() < 10 {}
    handle.cancel().await.unwrap();
    assert!(matches!(handle.result().await.unwrap_err(), Error::Cancelled(_)));
    shut_down(engine).await;
}
