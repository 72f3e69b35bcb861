//! Messages: sent to executions, pending until they are received, and awaited by suspended executions.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{
    Checkpoint, CheckpointKind, Forward, MAX_PENDING_LOADED, Message, Outcome, PendingMessage, State, Status,
    Wait, Write,
};

use crate::fixtures::builders::{
    at, awaiting, checkpoint, completed, ended, keys, parked, payload, queued, running, scheduled, sleeping,
    start_in, start_running, transition,
};
use crate::{StoreFixture, Worker};

super::cases![
    messages_are_pending_in_the_order_of_their_sending,
    pending_messages_are_loaded_in_portions,
    messages_go_to_all_executions_that_have_not_ended,
    ended_and_missing_receivers_get_no_messages,
    message_with_an_id_is_sent_once,
    received_message_is_deleted_with_its_checkpoint,
    message_wakes_the_execution_that_waits_for_its_topic,
    wake_finds_a_message_that_came_before_the_suspension,
    message_of_another_topic_wakes_nothing,
    takeover_wakes_executions_with_messages,
    flush_with_messages_can_be_resent,
    receiver_may_start_and_end_in_the_flush_of_its_message,
    kept_messages_are_forwarded_with_their_ids,
    id_of_a_sent_message_is_recorded_at_its_address,
    forward_without_messages_reads_no_ids,
    forwarded_messages_are_received_before_later_ones,
    forwarded_message_wakes_its_receiver,
    pending_messages_are_counted_by_topic,
];

/// Returns the message with a value to an execution.
fn message(execution: Key, topic: &str, value: &str) -> Message {
    Message {
        execution,
        address: None,
        topic: topic.into(),
        id: None,
        value: payload(value),
        sent_at: at(7),
        is_owned: false,
    }
}

fn send(execution: Key, topic: &str, value: &str) -> Write {
    Write::Send(message(execution, topic, value).into())
}

fn send_with_id(execution: Key, id: &str, value: &str) -> Write {
    Write::Send(Message { id: Some(id.into()), ..message(execution, "t", value) }.into())
}

/// Returns the state of an execution that waits for a message.
fn awaiting_message(topic: &str) -> State {
    State::Waiting { wake_at: None, waits: vec![Wait::Message(topic.into())], pending_sleeps: Vec::new() }
}

async fn pending(worker: &Worker, execution: Key, topic: &str) -> Vec<PendingMessage> {
    let receivers = [(execution, Arc::from(topic))];
    worker.store.messages(&receivers).await.unwrap().pop().unwrap()
}

async fn values(worker: &Worker, execution: Key, topic: &str) -> Vec<String> {
    let messages = pending(worker, execution, topic).await;
    messages.iter().map(|message| message.value.decode().unwrap()).collect()
}

async fn messages_are_pending_in_the_order_of_their_sending(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    worker
        .apply(vec![send(one, "a", "1"), send(two, "a", "x"), send(one, "b", "2"), send(one, "a", "3")])
        .await;
    worker.apply(vec![send(one, "a", "4"), send(one, "A", "5"), send(one, "", "6")]).await;
    let missing = Key::mint(0);
    let topics: Vec<(Key, Arc<str>)> =
        [(two, "a"), (one, "a"), (missing, "a"), (one, "b"), (one, "none"), (one, "a")]
            .map(|(key, topic)| (key, topic.into()))
            .into();
    let found = worker.store.messages(&topics).await.unwrap();
    let found: Vec<Vec<String>> =
        found.iter().map(|all| all.iter().map(|it| it.value.decode().unwrap()).collect()).collect();
    assert_eq!(found, [vec!["x"], vec!["1", "3", "4"], vec![], vec!["2"], vec![], vec!["1", "3", "4"]]);
    let messages = pending(&worker, one, "a").await;
    assert!(messages.is_sorted_by(|a, b| a.number < b.number), "{messages:?}");
    assert_eq!(messages[0].sent_at, at(7));
    assert!(worker.store.messages(&[]).await.unwrap().is_empty());
}

async fn pending_messages_are_loaded_in_portions(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    worker.apply((0..150).map(|n| send(key, "t", &n.to_string())).collect()).await;
    let found = values(&worker, key, "t").await;
    assert_eq!(found, (0..MAX_PENDING_LOADED).map(|n| n.to_string()).collect::<Vec<_>>());
}

async fn messages_go_to_all_executions_that_have_not_ended(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let states = [running(), queued(), scheduled(at(90)), sleeping(at(90)), awaiting(&[]), parked("why")];
    for state in states {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, state)]).await;
        let before = worker.record(key).await;
        worker.apply(vec![send(key, "t", "x")]).await;
        assert_eq!(worker.record(key).await, before, "a message changes nothing of its receiver");
        assert_eq!(values(&worker, key, "t").await, ["x"]);
    }
}

async fn ended_and_missing_receivers_get_no_messages(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    for status in [Status::Completed, Status::Failed, Status::Cancelled] {
        let key = Key::mint(0);
        worker.apply(vec![start_in(key, ended(status, "x"))]).await;
        let sends = vec![send(key, "t", "x"), send_with_id(key, "id", "x"), send(Key::mint(0), "t", "x")];
        let outcomes = worker.commit(sends).await;
        assert_eq!(outcomes, [Outcome::Ended(status), Outcome::Ended(status), Outcome::NotFound]);
        assert!(pending(&worker, key, "t").await.is_empty());
    }
}

async fn message_with_an_id_is_sent_once(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    let outcomes = worker.commit(vec![
        send_with_id(one, "id", "1"),
        send_with_id(two, "id", "x"),
        send_with_id(one, "ID", "2"),
    ]);
    assert_eq!(outcomes.await, vec![Outcome::Applied; 3]);
    let outcomes = worker.commit(vec![send_with_id(one, "new", "3"), send_with_id(one, "id", "again")]).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::AlreadySent]);
    assert_eq!(values(&worker, one, "t").await, ["1", "2", "3"]);
    // the id outlives the receipt of the message, and the end of the receiver
    let number = pending(&worker, one, "t").await[0].number;
    worker.apply(vec![received(one, 1, "t", number)]).await;
    assert_eq!(worker.commit_one(send_with_id(one, "id", "again")).await, Outcome::AlreadySent);
    worker.apply(vec![transition(one, completed())]).await;
    assert_eq!(worker.commit_one(send_with_id(one, "id", "again")).await, Outcome::AlreadySent);
    assert_eq!(worker.commit_one(send_with_id(one, "newer", "x")).await, Outcome::Ended(Status::Completed));
}

/// Returns the checkpoint that records the receipt of a message.
fn received(execution: Key, n: u32, topic: &str, number: i64) -> Write {
    Write::Checkpoint(Checkpoint {
        kind: CheckpointKind::Message,
        name: Arc::<str>::from(topic).into(),
        number: Some(number),
        ..checkpoint(execution, n, "value")
    })
}

async fn received_message_is_deleted_with_its_checkpoint(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two)]).await;
    worker
        .apply(vec![send(one, "t", "1"), send(two, "t", "x"), send(one, "t", "2"), send(one, "t", "3")])
        .await;
    let messages = pending(&worker, one, "t").await;
    // among other checkpoints, in any order
    let writes = vec![
        Write::Checkpoint(checkpoint(one, 1, "step")),
        received(one, 2, "t", messages[2].number),
        received(one, 3, "t", messages[0].number),
        Write::Checkpoint(checkpoint(two, 1, "step")),
    ];
    worker.apply(writes).await;
    assert_eq!(values(&worker, one, "t").await, ["2"]);
    assert_eq!(values(&worker, two, "t").await, ["x"]);
    let record = worker.record(one).await;
    let kinds: Vec<CheckpointKind> = record.checkpoints.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [CheckpointKind::Step, CheckpointKind::Message, CheckpointKind::Message]);
    assert_eq!(record.checkpoints[1].outcome, payload("value"));
    assert_eq!(record.checkpoints[1].number, None);
    // no later message gets the number of a deleted one
    worker.apply(vec![received(one, 4, "t", messages[1].number)]).await;
    worker.apply(vec![send(one, "t", "4")]).await;
    assert!(pending(&worker, one, "t").await[0].number > messages[2].number);
}

async fn message_wakes_the_execution_that_waits_for_its_topic(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two, other] = keys();
    let state = State::Waiting {
        wake_at: Some(at(1_000)),
        waits: vec![Wait::Message("a".into()), Wait::Child(other), Wait::Message("b".into())],
        pending_sleeps: Vec::new(),
    };
    worker
        .apply(vec![start_running(other), start_in(one, state), start_in(two, awaiting_message("a"))])
        .await;
    assert_eq!(worker.commit_one(Write::Wake(one)).await, Outcome::NotFound);
    worker.apply(vec![send(one, "b", "x")]).await;
    assert_eq!(
        worker.execution(one).await.status,
        Status::Waiting,
        "a message wakes its receiver with a Wake"
    );
    let outcomes = worker.commit(vec![Write::Wake(one), Write::Wake(two)]).await;
    assert_eq!(outcomes, [Outcome::Applied, Outcome::NotFound]);
    assert_eq!(worker.claim_keys(10).await, [one]);
    assert_eq!(worker.heartbeat().await.next_due, None, "the timer is gone");
    // the message is still pending, but the new suspension does not wait for it
    worker.apply(vec![transition(one, awaiting_message("a"))]).await;
    assert_eq!(worker.commit_one(Write::Wake(one)).await, Outcome::NotFound);
}

async fn wake_finds_a_message_that_came_before_the_suspension(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let key = Key::mint(0);
    worker.apply(vec![start_running(key)]).await;
    worker.apply(vec![send(key, "t", "x")]).await;
    assert_eq!(worker.commit_one(Write::Wake(key)).await, Outcome::NotFound);
    worker.apply(vec![transition(key, awaiting_message("t"))]).await;
    worker.apply(vec![Write::Wake(key)]).await;
    assert_eq!(worker.claim_keys(10).await, [key]);
}

async fn message_of_another_topic_wakes_nothing(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_in(one, awaiting_message("t")), start_in(two, awaiting_message("t"))]).await;
    worker.apply(vec![send(one, "T", "x"), send(one, "", "x"), send(two, "t", "x")]).await;
    let outcomes = worker.commit(vec![Write::Wake(one), Write::Wake(two)]).await;
    assert_eq!(outcomes, [Outcome::NotFound, Outcome::Applied]);
}

async fn takeover_wakes_executions_with_messages(fixture: &dyn StoreFixture) {
    let mut dead = Worker::register(&fixture.store()).await;
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_in(one, awaiting_message("t")), start_in(two, awaiting_message("t"))]).await;
    // the sender dies before its Wake
    dead.apply(vec![send(one, "t", "x"), send(two, "other", "x")]).await;
    worker.store.close(dead.id).await.unwrap();
    assert_eq!(worker.claim_keys(10).await, [one]);
}

async fn flush_with_messages_can_be_resent(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_in(two, completed())]).await;
    let writes = vec![
        send(one, "t", "1"),
        send(two, "t", "x"),
        send_with_id(one, "id", "2"),
        send(Key::mint(0), "t", "x"),
    ];
    let outcomes = worker.commit(writes.clone()).await;
    let mut resent = worker.new_flush(writes);
    resent.number -= 1;
    resent.is_resent = true;
    assert_eq!(worker.send(&resent).await.unwrap(), outcomes);
    assert_eq!(
        outcomes,
        [Outcome::Applied, Outcome::Ended(Status::Completed), Outcome::Applied, Outcome::NotFound]
    );
    assert_eq!(values(&worker, one, "t").await, ["1", "2"]);
}

async fn receiver_may_start_and_end_in_the_flush_of_its_message(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [new, ending] = keys();
    worker.apply(vec![start_running(ending)]).await;
    let writes = vec![
        send(new, "t", "1"),
        send(ending, "t", "x"),
        start_running(new),
        transition(ending, completed()),
    ];
    // messages are sent after all other Writes
    let outcomes = worker.commit(writes).await;
    assert_eq!(outcomes[..2], [Outcome::Applied, Outcome::Ended(Status::Completed)]);
    assert_eq!(values(&worker, new, "t").await, ["1"]);
}

fn forward(address: Key, execution: Key) -> Write {
    Write::Forward(Forward { address, execution })
}

async fn kept_messages_are_forwarded_with_their_ids(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [receiver, other] = keys();
    let (address, other_address) = (Key::address_of("r", 0), Key::address_of("other", 0));
    let outcomes = worker.commit(vec![
        send_with_id(address, "id", "1"),
        send(address, "u", "2"),
        send_with_id(other_address, "id", "x"),
        send(other_address, "t", "y"),
    ]);
    assert_eq!(outcomes.await, vec![Outcome::Applied; 4]);
    assert_eq!(worker.commit_one(send_with_id(address, "id", "again")).await, Outcome::AlreadySent);
    worker.apply(vec![start_running(receiver), start_running(other)]).await;
    // the ids are known before the messages of the flush are sent
    let outcomes = worker.commit(vec![
        send_with_id(receiver, "id", "again"),
        forward(address, receiver),
        send_with_id(address, "id", "late"),
    ]);
    assert_eq!(outcomes.await, [Outcome::AlreadySent, Outcome::Applied, Outcome::AlreadySent]);
    // its sender has not found the execution
    assert_eq!(worker.commit_one(send_with_id(address, "id", "later")).await, Outcome::AlreadySent);
    assert_eq!(values(&worker, receiver, "t").await, ["1"]);
    assert_eq!(values(&worker, receiver, "u").await, ["2"]);
    assert!(values(&worker, address, "u").await.is_empty());
    assert_eq!(values(&worker, other_address, "t").await, ["x", "y"]);
    // the ids that the receiver has by now are no obstacle
    worker.apply(vec![forward(address, receiver), forward(other_address, other)]).await;
    assert_eq!(values(&worker, receiver, "t").await, ["1"]);
    assert_eq!(values(&worker, other, "t").await, ["x", "y"]);
    worker.apply(vec![forward(address, receiver)]).await;
    assert_eq!(worker.commit_one(send_with_id(other, "id", "again")).await, Outcome::AlreadySent);
    assert_eq!(values(&worker, receiver, "t").await, ["1"]);
}

async fn id_of_a_sent_message_is_recorded_at_its_address(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [receiver, ended, missing] = keys();
    let address_of = |name: &str| Key::address_of(name, 0);
    let send_and_record = |execution: Key, name: &str, id: &str, value: &str| {
        let message = Message { address: Some(address_of(name)), ..message(execution, "t", value) };
        Write::Send(Message { id: Some(id.into()), ..message }.into())
    };
    worker.apply(vec![start_running(receiver), start_running(ended)]).await;
    worker.apply(vec![transition(ended, completed())]).await;
    let outcomes = worker.commit(vec![
        send_and_record(receiver, "r", "one", "1"),
        send_and_record(receiver, "r", "two", "2"),
        send_and_record(ended, "e", "one", "x"),
        send_and_record(missing, "m", "one", "x"),
        send_with_id(address_of("r"), "three", "3"),
        send_with_id(receiver, "four", "4"),
    ]);
    let (sent, ended_before) = (Outcome::Applied, Outcome::Ended(Status::Completed));
    assert_eq!(
        outcomes.await,
        [sent.clone(), sent.clone(), ended_before, Outcome::NotFound, sent.clone(), sent.clone()]
    );
    let outcomes = worker.commit(vec![
        send_with_id(address_of("r"), "one", "again"),
        send_with_id(receiver, "two", "again"),
        send_and_record(receiver, "r", "three", "again"),
        send_and_record(receiver, "r", "four", "again"),
        // nothing was recorded for messages that were not sent
        send_with_id(address_of("e"), "one", "5"),
        send_with_id(address_of("m"), "one", "6"),
    ]);
    let before = Outcome::AlreadySent;
    assert_eq!(outcomes.await, [before.clone(), before.clone(), before.clone(), before, sent.clone(), sent]);
    assert_eq!(values(&worker, receiver, "t").await, ["1", "2", "4"]);
    assert_eq!(values(&worker, address_of("r"), "t").await, ["3"]);
    worker.apply(vec![forward(address_of("r"), receiver)]).await;
    assert_eq!(values(&worker, receiver, "t").await, ["1", "2", "3", "4"]);
}

/// The ids of all messages to an execution stay at its address, and a sender forwards before each message. So a Forward that
/// read the ids would cost more with each message. This test sees the reading by the ids that another execution gets.
async fn forward_without_messages_reads_no_ids(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [receiver, other] = keys();
    let address = Key::address_of("r", 0);
    worker.apply(vec![start_running(receiver), start_running(other)]).await;
    let message = Message { address: Some(address), id: Some("id".into()), ..message(receiver, "t", "1") };
    worker.apply(vec![Write::Send(message.into())]).await;
    worker.apply(vec![forward(address, other)]).await;
    assert_eq!(worker.commit_one(send_with_id(other, "id", "2")).await, Outcome::Applied);
    assert_eq!(worker.commit_one(send_with_id(address, "id", "3")).await, Outcome::AlreadySent);
}

async fn forwarded_messages_are_received_before_later_ones(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [receiver] = keys();
    let address = Key::address_of("r", 0);
    worker.apply((0..3).map(|n| send(address, "t", &n.to_string())).collect()).await;
    worker.apply(vec![start_running(receiver), send(receiver, "t", "3")]).await;
    worker.apply(vec![forward(address, receiver), send(receiver, "t", "4")]).await;
    assert_eq!(values(&worker, receiver, "t").await, ["0", "1", "2", "3", "4"]);
    let number = pending(&worker, receiver, "t").await[0].number;
    worker.apply(vec![received(receiver, 1, "t", number)]).await;
    assert_eq!(values(&worker, receiver, "t").await, ["1", "2", "3", "4"]);
}

async fn forwarded_message_wakes_its_receiver(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [receiver] = keys();
    let address = Key::address_of("r", 0);
    worker.apply(vec![start_in(receiver, awaiting_message("t"))]).await;
    worker.apply(vec![send(address, "t", "x")]).await;
    assert_eq!(worker.commit_one(Write::Wake(receiver)).await, Outcome::NotFound);
    worker.apply(vec![forward(address, receiver)]).await;
    assert_eq!(worker.commit_one(Write::Wake(receiver)).await, Outcome::Applied);
}

async fn pending_messages_are_counted_by_topic(fixture: &dyn StoreFixture) {
    let mut worker = Worker::register(&fixture.store()).await;
    let [one, two] = keys();
    worker.apply(vec![start_running(one), start_running(two), send(two, "a", "x")]).await;
    worker.apply(["b", "a", "B", "b"].map(|topic| send(one, topic, "x")).into()).await;
    let topics = async |worker: &Worker| worker.store.pending_topics(one).await.unwrap();
    let expected = [("B", 1), ("a", 1), ("b", 2)].map(|(topic, count)| (Arc::from(topic), count));
    assert_eq!(topics(&worker).await, expected);
    let number = pending(&worker, one, "a").await[0].number;
    worker.apply(vec![received(one, 1, "a", number)]).await;
    assert_eq!(topics(&worker).await, [expected[0].clone(), expected[2].clone()]);
    assert!(worker.store.pending_topics(Key::mint(0)).await.unwrap().is_empty());
}
