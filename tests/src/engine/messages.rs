//! Messages: sent by engines, clients and workflows, and received by executions in any state.

use std::future::IntoFuture;
use std::time::Duration;

use stepfast_core::key::Key;
use stepfast_core::queue::Queue;
use stepfast_core::store::{CheckpointKind, Status, Write};
use stepfast_core::{Context, Either, Engine, Error, Failure, Workflow};

use super::support::{
    BodyResult, Count, Latch, deliveries, is_end_of, is_suspension_of, noop, open_engine, open_second_engine,
    record, row, shut_down, wait_in_step,
};
use crate::StoreFixture;
use crate::faults::fault_store::{Call, FaultStore};

super::cases![
    message_reaches_a_waiting_run,
    messages_wait_for_their_receiver,
    topics_are_independent,
    message_of_another_engine_reaches_a_waiting_run,
    suspended_receiver_is_woken,
    message_during_the_suspension_wakes_the_receiver,
    message_after_the_suspension_of_another_engine_wakes_the_receiver,
    queued_receiver_gets_its_messages_when_it_runs,
    wait_ends_at_its_timeout,
    suspended_wait_ends_at_its_timeout,
    received_messages_are_recorded,
    loser_of_a_race_leaves_the_message,
    receivers_of_one_topic_receive_in_their_order,
    workflow_sends_once,
    workflow_that_sends_to_nobody_fails_and_remembers,
    message_to_an_ended_execution_is_refused,
    message_id_makes_sending_idempotent,
    wrong_messages_are_refused,
    message_of_another_type_is_an_error,
    items_of_batches_receive_when_they_wait,
    execution_may_send_to_itself,
    executions_that_are_not_durable_yet_receive_messages,
    messages_at_the_moment_of_the_suspension_wake_their_receivers,
    many_pending_messages_are_received_without_heartbeats,
];

const SHORT: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_hours(1);

/// Returns the workflow `receiver`, which receives this many numbers of the topic `t`, and returns them.
fn receiver() -> Workflow<usize, Vec<i64>> {
    Workflow::new("receiver", |mut cx: Context, count: usize| async move {
        let mut numbers = Vec::new();
        for _ in 0..count {
            numbers.push(cx.receive::<i64>().topic("t").await?);
        }
        BodyResult::Ok(numbers)
    })
}

async fn send(engine: &Engine, id: &str, numbers: impl IntoIterator<Item = i64>) {
    for number in numbers {
        engine.send(id, &number).topic("t").await.unwrap();
    }
}

async fn message_reaches_a_waiting_run(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(HOUR)).await;
    let handle = engine.start(&receiver, 3).workflow_id("r").await.unwrap();
    for number in 0..3 {
        // the run has looked for messages in vain, first for kept ones
        store.wait_until_called(Call::Load, number + 2).await;
        handle.send(&number).topic("t").await.unwrap();
    }
    assert_eq!(handle.result().await.unwrap(), [0, 1, 2]);
    shut_down(engine).await;
}

async fn messages_wait_for_their_receiver(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let late = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("late", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                wait_in_step(&mut cx, &count, &latch).await?;
                let mut numbers = Vec::new();
                for _ in 0..250 {
                    numbers.push(cx.receive::<i64>().topic("t").await?);
                }
                BodyResult::Ok(numbers)
            }
        })
    };
    let (engine, store) = open_engine(fixture, |b| b.register(&late)).await;
    let handle = engine.start(&late, ()).workflow_id("r").await.unwrap();
    count.wait_for(1).await;
    send(&engine, "r", 0..250).await;
    let loads = store.call_count(Call::Load);
    latch.open();
    assert_eq!(handle.result().await.unwrap(), (0..250).collect::<Vec<_>>());
    // a load returns up to 100 messages
    assert!(store.call_count(Call::Load) - loads < 10, "{} loads", store.call_count(Call::Load) - loads);
    shut_down(engine).await;
}

async fn topics_are_independent(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("topics", |mut cx: Context, (): ()| async move {
        let b: i64 = cx.receive().topic("b").await?;
        let default: i64 = cx.receive().await?;
        let a: i64 = cx.receive().topic("a").await?;
        BodyResult::Ok((a, b, default))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("r").await.unwrap();
    engine.send("r", &1).topic("a").await.unwrap();
    engine.send("r", &3).await.unwrap();
    engine.send("r", &2).topic("b").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), (1, 2, 3));
    let record = record(&engine, "r").await;
    let expected = ["b", "default", "a"].map(|topic| (CheckpointKind::Message, topic.to_owned()));
    assert_eq!(deliveries(&record), expected);
    shut_down(engine).await;
}

async fn message_of_another_engine_reaches_a_waiting_run(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(HOUR)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    let handle = engine.start(&receiver, 3).workflow_id("r").await.unwrap();
    for number in 0..3 {
        store.wait_until_called(Call::Load, number + 1).await;
        send(&other, "r", [number as i64]).await;
    }
    assert_eq!(handle.result().await.unwrap(), [0, 1, 2]);
    shut_down(other).await;
    shut_down(engine).await;
}

async fn suspended_receiver_is_woken(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    let handle = engine.start(&receiver, 2).workflow_id("r").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    assert_eq!(row(&engine, "r").await.status, Status::Waiting);
    send(&engine, "r", [1]).await;
    store.wait_until_committed_times(2, is_suspension_of(handle.key())).await;
    send(&other, "r", [2]).await;
    assert_eq!(handle.result().await.unwrap(), [1, 2]);
    shut_down(other).await;
    shut_down(engine).await;
}

/// Suspends a receiver, whose suspension hangs in the way that `hold` sets. Meanwhile another engine sends a message, which
/// must reach the receiver.
async fn send_during_suspension(fixture: &dyn StoreFixture, hold: fn(&FaultStore, Key)) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let handle = engine.start(&receiver, 1).workflow_id("r").await.unwrap();
    hold(&store, handle.key());
    store.wait_until_hanging().await;
    let (other, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    send(&other, "r", [7]).await;
    store.release();
    assert_eq!(handle.result().await.unwrap(), [7]);
    shut_down(other).await;
    shut_down(engine).await;
}

/// The message is durable before the suspension, so its sender finds a run.
async fn message_during_the_suspension_wakes_the_receiver(fixture: &dyn StoreFixture) {
    send_during_suspension(fixture, |store, key| store.hold_writes(is_suspension_of(key))).await;
}

/// The suspension is durable before the message, but the engine that suspends does not know it yet.
async fn message_after_the_suspension_of_another_engine_wakes_the_receiver(fixture: &dyn StoreFixture) {
    send_during_suspension(fixture, |store, key| store.hold_write_replies(is_suspension_of(key))).await;
}

async fn queued_receiver_gets_its_messages_when_it_runs(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (client, _) =
        open_engine(fixture, |b| b.register(&receiver).queue(Queue::new("q")).serve_queues(["other"])).await;
    let handle = client.start(&receiver, 2).workflow_id("r").queue("q").await.unwrap();
    send(&client, "r", [1, 2]).await;
    assert_eq!(row(&client, "r").await.status, Status::Queued);
    let (engine, _) = open_second_engine(fixture, |b| b.register(&receiver)).await;
    assert_eq!(handle.result().await.unwrap(), [1, 2]);
    shut_down(client).await;
    shut_down(engine).await;
}

/// Returns the workflow `patient`, which waits this many milliseconds for a number.
fn patient() -> Workflow<u64, Option<i64>> {
    Workflow::new("patient", |mut cx: Context, millis: u64| async move {
        cx.receive::<i64>().topic("t").timeout(Duration::from_millis(millis)).await
    })
}

async fn wait_ends_at_its_timeout(fixture: &dyn StoreFixture) {
    let patient = patient();
    let (engine, _) = open_engine(fixture, |b| b.register(&patient)).await;
    for millis in [0, 20] {
        let before = fixture.now();
        let id = format!("r{millis}");
        assert_eq!(engine.run(&patient, millis).workflow_id(&*id).await.unwrap(), None);
        assert!(fixture.now().since(before) >= Duration::from_millis(millis));
        let record = record(&engine, &id).await;
        assert_eq!(deliveries(&record), [(CheckpointKind::Timer, "t".to_owned())]);
    }
    let handle = engine.start(&patient, 3_600_000).workflow_id("r").await.unwrap();
    send(&engine, "r", [5]).await;
    assert_eq!(handle.result().await.unwrap(), Some(5));
    shut_down(engine).await;
}

async fn suspended_wait_ends_at_its_timeout(fixture: &dyn StoreFixture) {
    let patient = patient();
    let (engine, store) = open_engine(fixture, |b| b.register(&patient).suspend_after(SHORT)).await;
    let before = fixture.now();
    let timed_out = engine.start(&patient, 3_600_000).workflow_id("late").await.unwrap();
    let received = engine.start(&patient, 3_600_000).workflow_id("r").await.unwrap();
    store.wait_until_committed(is_suspension_of(timed_out.key())).await;
    store.wait_until_committed(is_suspension_of(received.key())).await;
    assert!(row(&engine, "late").await.wake_at.unwrap() >= before.plus(HOUR));
    send(&engine, "r", [5]).await;
    assert_eq!(received.result().await.unwrap(), Some(5));
    fixture.clock().advance(HOUR);
    assert_eq!(timed_out.result().await.unwrap(), None);
    let waited_ms = record(&engine, "late").await.checkpoints[0].duration_ms;
    assert!(waited_ms >= 3_600_000, "the whole wait counts: {waited_ms}");
    shut_down(engine).await;
}

async fn received_messages_are_recorded(fixture: &dyn StoreFixture) {
    let (count, latch) = (Count::new(), Latch::new());
    let workflow = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("w", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                let first: i64 = cx.receive().topic("t").await?;
                let none: Option<i64> = cx.receive().topic("none").timeout(SHORT).await?;
                wait_in_step(&mut cx, &count, &latch).await?;
                let second: i64 = cx.receive().topic("t").await?;
                BodyResult::Ok((first, none, second))
            }
        })
    };
    let (one, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    one.start(&workflow, ()).workflow_id("r").await.unwrap();
    send(&one, "r", [1, 2]).await;
    count.wait_for(1).await;
    one.shutdown(Duration::ZERO).await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&workflow)).await;
    // a message that comes later does not change the recorded timeout
    two.send("r", &9).topic("none").await.unwrap();
    latch.open();
    let result = two.get::<(i64, Option<i64>, i64)>("r").await.unwrap().result().await.unwrap();
    assert_eq!(result, (1, None, 2));
    shut_down(two).await;
}

async fn loser_of_a_race_leaves_the_message(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let winner = cx
            .race(
                async |mut cx: Context| cx.receive::<i64>().topic("a").await,
                async |mut cx: Context| cx.receive::<i64>().topic("b").await,
            )
            .await;
        let Either::Second(second) = winner else { return Err(Failure::new("the first branch won")) };
        let first: i64 = cx.receive().topic("a").await?;
        BodyResult::Ok((second?, first))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("r").await.unwrap();
    engine.send("r", &2).topic("b").await.unwrap();
    engine.send("r", &1).topic("a").await.unwrap();
    // the first branch wins if both messages have come before the run looks
    match handle.result().await {
        Ok(result) => assert_eq!(result, (2, 1)),
        Err(error) => assert!(error.to_string().contains("the first branch won"), "{error}"),
    }
    shut_down(engine).await;
}

async fn receivers_of_one_topic_receive_in_their_order(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let results = cx.map(0..5, 5, async |mut cx: Context, _| cx.receive::<i64>().topic("t").await).await;
        results.into_iter().collect::<Result<Vec<i64>, Failure>>()
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("r").await.unwrap();
    send(&engine, "r", 0..5).await;
    assert_eq!(handle.result().await.unwrap(), [0, 1, 2, 3, 4]);
    shut_down(engine).await;
}

async fn workflow_sends_once(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (count, latch) = (Count::new(), Latch::new());
    let sender = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("sender", move |mut cx: Context, to: String| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                for number in 0..3_i64 {
                    cx.send(&*to, &number).topic("t").await?;
                }
                wait_in_step(&mut cx, &count, &latch).await?;
                cx.send(to, &3_i64).topic("t").await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    one.start(&receiver, 4).workflow_id("r").await.unwrap();
    // the message is durable, and the engine ends before it records the sending
    store.hold_writes(|write| matches!(write, Write::Checkpoint(it) if it.kind == CheckpointKind::Sent));
    one.start(&sender, "r".to_owned()).workflow_id("s").await.unwrap();
    store.wait_until_hanging().await;
    store.make_unavailable(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Renew]);
    store.release();
    one.shutdown(Duration::ZERO).await.unwrap();
    latch.open();
    let (two, _) = open_second_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    two.get::<()>("s").await.unwrap().result().await.unwrap();
    assert_eq!(two.get::<Vec<i64>>("r").await.unwrap().result().await.unwrap(), [0, 1, 2, 3]);
    shut_down(two).await;
}

async fn workflow_that_sends_to_nobody_fails_and_remembers(fixture: &dyn StoreFixture) {
    let sender = Workflow::new("sender", |mut cx: Context, to: String| async move {
        let sent = cx.send(to, &1).await;
        BodyResult::Ok(sent.err().map(|failure| failure.to_string()))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&sender).register(&noop())).await;
    engine.run(&noop(), 1).workflow_id("ended").await.unwrap();
    for (to, text) in
        [("ended", "has ended with status completed"), ("missing", "no execution has workflow_id")]
    {
        let error = engine.run(&sender, to.to_owned()).workflow_id(format!("to {to}")).await.unwrap();
        assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{error:?}");
        let record = record(&engine, &format!("to {to}")).await;
        assert_eq!(deliveries(&record), [(CheckpointKind::Failed, "default".to_owned())]);
    }
    shut_down(engine).await;
}

async fn message_to_an_ended_execution_is_refused(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).workflow_id("ended").await.unwrap();
    handle.result().await.unwrap();
    let error = engine.send("ended", &1).await.unwrap_err();
    assert!(matches!(error, Error::HasEnded { status: "completed", .. }), "{error}");
    assert!(matches!(handle.send(&1).await, Err(Error::HasEnded { .. })));
    let error = engine.send("missing", &1).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    shut_down(engine.clone()).await;
    assert!(matches!(engine.send("ended", &1).await, Err(Error::Shutdown)));
}

async fn message_id_makes_sending_idempotent(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver)).await;
    let handle = engine.start(&receiver, 3).workflow_id("r").await.unwrap();
    for _ in 0..3 {
        handle.send(&1).topic("t").message_id("one").await.unwrap();
    }
    let sends = (0..10).map(|_| handle.send(&2).topic("t").message_id("two").into_future());
    for sent in futures_util::future::join_all(sends).await {
        sent.unwrap();
    }
    handle.send(&3).topic("t").message_id("three").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [1, 2, 3]);
    // the outcome of the first sending, also after the end
    handle.send(&1).topic("t").message_id("one").await.unwrap();
    shut_down(engine).await;
}

async fn wrong_messages_are_refused(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver)).await;
    let handle = engine.start(&receiver, 1).workflow_id("r").await.unwrap();
    let long = "x".repeat(10 * 1024);
    for topic in ["", "a\0b", "line\n", &long] {
        let error = handle.send(&1).topic(topic).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { input: "topic", .. }), "{error}");
    }
    for id in ["", "a\0b", &long] {
        let error = handle.send(&1).message_id(id).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { input: "message_id", .. }), "{error}");
    }
    let error = handle.send(&"x".repeat(70_000)).topic("t").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { input: "value", .. }), "{error}");
    assert!(error.to_string().contains("the limit is 65536; store the value elsewhere"), "{error}");
    engine.submit_batch(&receiver, []).batch_id("b").await.unwrap();
    let error = engine.send("b", &1).await.unwrap_err();
    assert!(error.to_string().contains("a batch receives no messages"), "{error}");
    assert!(matches!(engine.send("b#7", &1).await, Err(Error::NotFound { .. })));
    handle.send(&1).topic("t").await.unwrap();
    handle.result().await.unwrap();
    let invalid = Workflow::new("invalid", |mut cx: Context, topic: String| async move {
        let received: Result<i64, Failure> = cx.receive().topic(topic).await;
        received
    });
    let (two, _) = open_second_engine(fixture, |b| b.register(&invalid)).await;
    let error = two.run(&invalid, long).await.unwrap_err();
    assert!(error.to_string().contains("topic"), "{error}");
    shut_down(two).await;
    shut_down(engine).await;
}

async fn message_of_another_type_is_an_error(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        let wrong = cx.receive::<i64>().topic("t").await.unwrap_err();
        let right: i64 = cx.receive().topic("t").await?;
        BodyResult::Ok((wrong.to_string(), right))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("r").await.unwrap();
    handle.send("text").topic("t").await.unwrap();
    handle.send(&7).topic("t").await.unwrap();
    let (error, right) = handle.result().await.unwrap();
    assert!(error.contains("a message of topic \"t\"") && right == 7, "{error}");
    shut_down(engine).await;
}

async fn items_of_batches_receive_when_they_wait(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let batch = engine.submit_batch(&receiver, [0, 2, 1]).batch_id("b").await.unwrap();
    let key = batch.key().item(1);
    store.wait_until_committed(is_suspension_of(key)).await;
    send(&engine, "b#1", [1, 2]).await;
    send(&engine, "b#2", [3]).await;
    let counts = batch.wait().await.unwrap();
    assert_eq!(counts.ended.completed, 3);
    assert_eq!(engine.get::<Vec<i64>>("b#1").await.unwrap().result().await.unwrap(), [1, 2]);
    shut_down(engine).await;
}

async fn execution_may_send_to_itself(fixture: &dyn StoreFixture) {
    let workflow = Workflow::new("w", |mut cx: Context, (): ()| async move {
        cx.send("r", &1).await?;
        cx.receive::<i64>().await
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&workflow)).await;
    let handle = engine.start(&workflow, ()).workflow_id("r").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), 1);
    store.wait_until_committed(is_end_of(handle.key())).await;
    shut_down(engine).await;
}

/// A tree in which all executions send to each other before any of them is durable.
async fn executions_that_are_not_durable_yet_receive_messages(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let child = Workflow::new("child", |mut cx: Context, parent: String| async move {
        cx.send(parent, &1).topic("from the child").await
    });
    let parent = {
        let (receiver, child) = (receiver.clone(), child.clone());
        Workflow::new("parent", move |mut cx: Context, id: String| {
            let (receiver, child) = (receiver.clone(), child.clone());
            async move {
                cx.send(&*id, &0).topic("from itself").await?;
                let itself: i64 = cx.receive().topic("from itself").await?;
                cx.child(&child, id).await?;
                let from_child: i64 = cx.receive().topic("from the child").await?;
                let started = cx.start_child(&receiver, 1).await?;
                cx.send(started.workflow_id(), &2).topic("t").await?;
                let received = started.result(&mut cx).await?;
                BodyResult::Ok((itself, from_child, received))
            }
        })
    };
    let (engine, _) =
        open_engine(fixture, |b| b.register(&receiver).register(&child).register(&parent)).await;
    for n in 0..20 {
        let id = format!("p{n}");
        let sent = engine.run(&parent, id.clone()).workflow_id(&*id).await.unwrap();
        assert_eq!(sent, (0, 1, vec![2]));
    }
    shut_down(engine).await;
}

/// The message and the receiver's own Wake may share a flush, which sends the message after the Wake.
async fn messages_at_the_moment_of_the_suspension_wake_their_receivers(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(Duration::ZERO)).await;
    let exchanges = (0..200).map(|n| {
        let (engine, store, receiver) = (&engine, &store, &receiver);
        async move {
            let handle = engine.start(receiver, 3).workflow_id(format!("r{n}")).await.unwrap();
            for number in 0..3 {
                store.wait_until_committed_times(number + 1, is_suspension_of(handle.key())).await;
                handle.send(&number).topic("t").await.unwrap();
            }
            assert_eq!(handle.result().await.unwrap(), [0, 1, 2]);
        }
    });
    futures_util::future::join_all(exchanges).await;
    shut_down(engine).await;
}

/// A load may return only messages that were taken: their rows are deleted later.
async fn many_pending_messages_are_received_without_heartbeats(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).queue(Queue::new("q"))).await;
    engine.pause_queue("q").await.unwrap();
    let handle = engine.start(&receiver, 3_000).workflow_id("r").queue("q").await.unwrap();
    let sends = (0..3_000).map(|number| handle.send(&number).topic("t").into_future());
    futures_util::future::try_join_all(sends).await.unwrap();
    let heartbeats = store.call_count(Call::Heartbeat);
    engine.resume_queue("q").await.unwrap();
    assert_eq!(handle.result().await.unwrap().len(), 3_000);
    let heartbeats = store.call_count(Call::Heartbeat) - heartbeats;
    assert!(heartbeats < 15, "{heartbeats} heartbeats for thirty loads");
    shut_down(engine).await;
}
