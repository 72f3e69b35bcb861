//! Messages that are kept for executions that do not exist yet, and messages that steps send.

use std::future::IntoFuture;
use std::time::Duration;

use stepfast_core::store::{CheckpointKind, Status, Write};
use stepfast_core::{Context, Engine, Error, RetryPolicy, Sent, Workflow};

use super::support::{
    BodyResult, Count, Latch, is_suspension_of, noop, open_engine, open_second_engine, record, shut_down,
};
use crate::StoreFixture;
use crate::faults::fault_store::Call;

super::cases![
    kept_messages_are_received_by_a_later_execution,
    message_to_an_existing_execution_follows_its_kept_ones,
    kept_message_with_an_id_is_received_once,
    message_that_is_kept_beside_a_sent_one_with_its_id_is_not_received,
    execution_that_begins_while_a_message_is_kept_receives_it,
    kept_message_whose_sender_has_no_reply_is_received,
    execution_whose_start_is_under_way_receives_a_kept_message,
    executions_that_begin_beside_kept_messages_receive_them,
    workflow_keeps_a_message_once,
    ids_that_no_execution_can_get_later_are_refused,
    step_sends_once_in_all_of_its_attempts,
    step_that_runs_again_after_a_crash_sends_once,
    message_sender_works_in_steps_only,
];

const SHORT: Duration = Duration::from_millis(10);

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

/// Whether the Write keeps a message.
fn is_kept(write: &Write) -> bool {
    matches!(write, Write::Send(message) if message.execution.is_address())
}

async fn keep(engine: &Engine, id: &str, number: i64) -> Sent {
    engine.send(id, &number).topic("t").keep().await.unwrap()
}

async fn kept_messages_are_received_by_a_later_execution(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver)).await;
    for number in 0..250 {
        assert_eq!(keep(&engine, "r", number).await, Sent::Kept);
    }
    keep(&engine, "other", 7).await;
    engine.send("r", &0).topic("other").keep().await.unwrap();
    let handle = engine.start(&receiver, 251).workflow_id("r").await.unwrap();
    assert_eq!(handle.send(&250).topic("t").await.unwrap(), Sent::Now);
    assert_eq!(handle.result().await.unwrap(), (0..251).collect::<Vec<_>>());
    assert_eq!(engine.run(&receiver, 1).workflow_id("other").await.unwrap(), [7]);
    let error = engine.send("r", &1).keep().await.unwrap_err();
    assert!(matches!(error, Error::HasEnded { .. }), "{error}");
    shut_down(engine).await;
}

async fn message_to_an_existing_execution_follows_its_kept_ones(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) =
        open_engine(fixture, |b| b.register(&receiver).queue(stepfast_core::queue::Queue::new("q"))).await;
    engine.pause_queue("q").await.unwrap();
    let send_first = || engine.send("r", &1).topic("t").message_id("first").keep().into_future();
    assert_eq!(send_first().await.unwrap(), Sent::Kept);
    let handle = engine.start(&receiver, 3).workflow_id("r").queue("q").await.unwrap();
    // the execution has not begun, and not looked for kept messages
    assert_eq!(send_first().await.unwrap(), Sent::Before);
    assert_eq!(keep(&engine, "r", 2).await, Sent::Now);
    handle.send(&3).topic("t").await.unwrap();
    engine.resume_queue("q").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [1, 2, 3]);
    shut_down(engine).await;
}

async fn kept_message_with_an_id_is_received_once(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver)).await;
    let send = |number: i64| engine.send("r", &number).topic("t").message_id("one").keep().into_future();
    assert_eq!(send(1).await.unwrap(), Sent::Kept);
    assert_eq!(send(2).await.unwrap(), Sent::Before);
    let handle = engine.start(&receiver, 2).workflow_id("r").await.unwrap();
    assert_eq!(send(3).await.unwrap(), Sent::Before);
    assert_eq!(keep(&engine, "r", 4).await, Sent::Now);
    assert_eq!(handle.result().await.unwrap(), [1, 4]);
    assert_eq!(send(5).await.unwrap(), Sent::Before);
    shut_down(engine).await;
}

/// One sender has found no execution. Before its message becomes durable, another one finds the execution, and sends the
/// same message.
async fn message_that_is_kept_beside_a_sent_one_with_its_id_is_not_received(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver)).await;
    let (sender, sender_store) = open_second_engine(fixture, |b| b.register(&noop())).await;
    sender_store.hold_writes(is_kept);
    let send = |engine: &Engine, number: i64| {
        engine.send("r", &number).topic("t").message_id("one").keep().into_future()
    };
    let late = tokio::spawn(send(&sender, 2));
    sender_store.wait_until_hanging().await;
    let handle = engine.start(&receiver, 2).workflow_id("r").await.unwrap();
    assert_eq!(send(&engine, 1).await.unwrap(), Sent::Now);
    sender_store.release();
    assert_eq!(late.await.unwrap().unwrap(), Sent::Before);
    handle.send(&3).topic("t").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [1, 3]);
    shut_down(sender).await;
    shut_down(engine).await;
}

/// The sender has found no execution, and its message becomes durable only after the receiver is suspended.
async fn execution_that_begins_while_a_message_is_kept_receives_it(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let (sender, sender_store) = open_second_engine(fixture, |b| b.register(&noop())).await;
    sender_store.hold_writes(is_kept);
    let send = tokio::spawn(sender.send("r", &7).topic("t").keep().into_future());
    sender_store.wait_until_hanging().await;
    let handle = engine.start(&receiver, 1).workflow_id("r").await.unwrap();
    store.wait_until_committed(is_suspension_of(handle.key())).await;
    sender_store.release();
    assert_eq!(send.await.unwrap().unwrap(), Sent::Kept);
    assert_eq!(handle.result().await.unwrap(), [7]);
    shut_down(sender).await;
    shut_down(engine).await;
}

/// The message is durable before the receiver begins, but the sender does not know it yet.
async fn kept_message_whose_sender_has_no_reply_is_received(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let (sender, sender_store) = open_second_engine(fixture, |b| b.register(&noop())).await;
    sender_store.hold_write_replies(is_kept);
    let send = tokio::spawn(sender.send("r", &7).topic("t").keep().into_future());
    sender_store.wait_until_hanging().await;
    let handle = engine.start(&receiver, 1).workflow_id("r").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [7]);
    sender_store.release();
    send.await.unwrap().unwrap();
    shut_down(sender).await;
    shut_down(engine).await;
}

/// The code of the receiver runs before its Start is durable, so the sender does not find the execution.
async fn execution_whose_start_is_under_way_receives_a_kept_message(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).suspend_after(SHORT)).await;
    let (sender, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    store.hold_writes(|write| matches!(write, Write::Start(_)));
    let keep = async {
        store.wait_until_hanging().await;
        assert_eq!(keep(&sender, "r", 7).await, Sent::Kept);
        store.release();
    };
    let (received, ()) = tokio::join!(engine.run(&receiver, 1).workflow_id("r").into_future(), keep);
    assert_eq!(received.unwrap(), [7]);
    shut_down(sender).await;
    shut_down(engine).await;
}

async fn executions_that_begin_beside_kept_messages_receive_them(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (engine, _) = open_engine(fixture, |b| b.register(&receiver).suspend_after(Duration::ZERO)).await;
    let (sender, _) = open_second_engine(fixture, |b| b.register(&noop())).await;
    let exchanges = (0..100).map(|n| {
        let (engine, sender, receiver) = (&engine, &sender, &receiver);
        async move {
            let id = format!("r{n}");
            let run = engine.run(receiver, 3).workflow_id(&*id).into_future();
            let sends = futures_util::future::join_all((0..3).map(|number| keep(sender, &id, number)));
            let (received, _) = tokio::join!(run, sends);
            let mut received = received.unwrap();
            received.sort_unstable();
            assert_eq!(received, [0, 1, 2]);
        }
    });
    futures_util::future::join_all(exchanges).await;
    shut_down(sender).await;
    shut_down(engine).await;
}

async fn workflow_keeps_a_message_once(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let sender = Workflow::new("sender", |mut cx: Context, (): ()| async move {
        cx.send("r", &1).topic("t").keep().await?;
        cx.send("r", &2).topic("t").keep().await
    });
    let (one, store) = open_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    // the message is kept, and the engine ends before it records the sending
    store.hold_writes(|write| matches!(write, Write::Checkpoint(it) if it.kind == CheckpointKind::Sent));
    one.start(&sender, ()).workflow_id("s").await.unwrap();
    store.wait_until_hanging().await;
    store.make_unavailable(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Renew]);
    store.release();
    one.shutdown(Duration::ZERO).await.unwrap();
    let (client, _) = open_second_engine(fixture, |b| b.register(&receiver)).await;
    // the replay of the sender finds this execution
    let handle = client.start(&receiver, 3).workflow_id("r").await.unwrap();
    let (two, _) = open_second_engine(fixture, |b| b.register(&sender)).await;
    two.get::<()>("s").await.unwrap().result().await.unwrap();
    handle.send(&3).topic("t").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [1, 2, 3]);
    shut_down(two).await;
    shut_down(client).await;
}

async fn ids_that_no_execution_can_get_later_are_refused(fixture: &dyn StoreFixture) {
    let noop = noop();
    let (engine, _) = open_engine(fixture, |b| b.register(&noop)).await;
    let handle = engine.start(&noop, 1).await.unwrap();
    handle.result().await.unwrap();
    let key = stepfast_core::key::Key::mint(0).to_string();
    for id in [&*key, "batch#7", "", "a\0b", &"x".repeat(10 * 1024)] {
        let error = engine.send(id, &1).keep().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { input: "workflow_id", .. }), "{id:?}: {error}");
    }
    shut_down(engine).await;
}

/// Returns the id of a message that an execution sends.
fn id_of_message(write: &Write) -> Option<&str> {
    let Write::Send(message) = write else { return None };
    message.id.as_deref()
}

async fn step_sends_once_in_all_of_its_attempts(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let sender = Workflow::new("sender", |mut cx: Context, (): ()| async move {
        let messages = cx.message_sender();
        for round in 0..2_i64 {
            let attempts = Count::new();
            let policy = RetryPolicy { retries: 2, ..RetryPolicy::fixed(Duration::ZERO) };
            let body = async || {
                let attempt = attempts.increment();
                messages.send("r", &(10 * round)).topic("t").await?;
                if attempt < 3 {
                    return Err(stepfast_core::Failure::new("again"));
                }
                messages.send("r", &(10 * round + 1)).topic("t").await
            };
            cx.step("send", body).retry(policy).await?;
        }
        BodyResult::Ok(())
    });
    let (engine, store) = open_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    let handle = engine.start(&receiver, 5).workflow_id("r").await.unwrap();
    engine.run(&sender, ()).await.unwrap();
    handle.send(&100).topic("t").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [0, 1, 10, 11, 100]);
    let writes = store.committed_writes();
    // each attempt sends its first message with the same id
    let mut ids: Vec<_> = writes.iter().filter_map(|(write, _)| id_of_message(write)).collect();
    assert_eq!(ids.len(), 8);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
    shut_down(engine).await;
}

async fn step_that_runs_again_after_a_crash_sends_once(fixture: &dyn StoreFixture) {
    let receiver = receiver();
    let (count, latch) = (Count::new(), Latch::new());
    let sender = {
        let (count, latch) = (count.clone(), latch.clone());
        Workflow::new("sender", move |mut cx: Context, (): ()| {
            let (count, latch) = (count.clone(), latch.clone());
            async move {
                let messages = cx.message_sender();
                let body = async || {
                    messages.send("r", &1).topic("t").keep().await?;
                    messages.send("r", &2).topic("t").keep().await?;
                    count.increment();
                    latch.wait().await;
                    messages.send("r", &3).topic("t").await
                };
                cx.step("send", body).await
            }
        })
    };
    let (one, store) = open_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    one.start(&sender, ()).workflow_id("s").await.unwrap();
    count.wait_for(1).await;
    store.make_unavailable(&[Call::Commit, Call::Claim, Call::Heartbeat, Call::Renew]);
    one.shutdown(Duration::ZERO).await.unwrap();
    latch.open();
    let (two, _) = open_second_engine(fixture, |b| b.register(&receiver).register(&sender)).await;
    let handle = two.start(&receiver, 4).workflow_id("r").await.unwrap();
    two.get::<()>("s").await.unwrap().result().await.unwrap();
    handle.send(&4).topic("t").await.unwrap();
    assert_eq!(handle.result().await.unwrap(), [1, 2, 3, 4]);
    assert_eq!(record(&two, "s").await.execution.status, Status::Completed);
    shut_down(two).await;
}

async fn message_sender_works_in_steps_only(fixture: &dyn StoreFixture) {
    let sender = Workflow::new("sender", |mut cx: Context, (): ()| async move {
        let messages = cx.message_sender();
        let outside = messages.send("missing", &1).await.unwrap_err().to_string();
        let body = async || BodyResult::Ok(messages.send("missing", &1).await.unwrap_err().to_string());
        let missing: String = cx.step("send", body).await?;
        BodyResult::Ok((outside, missing))
    });
    let (engine, _) = open_engine(fixture, |b| b.register(&sender)).await;
    let (outside, missing) = engine.run(&sender, ()).await.unwrap();
    assert!(outside.contains("a MessageSender sends in the body of a step"), "{outside}");
    assert!(missing.contains("no execution has workflow_id \"missing\""), "{missing}");
    shut_down(engine).await;
}
