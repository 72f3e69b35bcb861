//! The messages, events and streams of a store in a random history.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::store::{
    Append, Checkpoint, CheckpointKind, Event, EventQuery, Forward, Message, PendingMessage, Store,
    StreamEntry, StreamQuery, Write,
};

use crate::fixtures::builders::at;
use crate::model::differential::{ChangedRows, key, text, value};
use crate::model::histories::{BATCH, BUNDLES, Draft, EXECUTIONS, TOPICS};
use crate::model::recorded_calls::RecordedCalls;

/// Returns the address at which messages to an execution are kept.
fn address(index: usize) -> Key {
    Key::address_of(&format!("execution {index}"), 0)
}

/// Returns the Write of a draft that concerns messages, events, streams or parts. `message` is the one to receive, and
/// `count` a number that no other Write has. Returns `None` if the Write may not share the flush.
pub(super) fn build_exchange(
    draft: &Draft,
    message: Option<PendingMessage>,
    count: i64,
    changed: &mut ChangedRows,
    recorded: &mut RecordedCalls,
) -> Option<Write> {
    let has_calls = |index: usize| index != BATCH && !BUNDLES.contains(&index);
    let new_message = |execution: Key, address: Option<Key>, topic: usize, id: Option<u8>| {
        Write::Send(Box::new(Message {
            execution,
            address,
            topic: TOPICS[topic].into(),
            id: id.map(|id| format!("id {id}").into()),
            value: value(count),
            sent_at: at(count),
            is_owned: false,
        }))
    };
    Some(match *draft {
        Draft::Send { index, topic, id, keeps } => {
            if id.is_some_and(|id| !changed.rows.insert((index, 100, u32::from(id)))) {
                return None;
            }
            if keeps && id.is_some_and(|id| !changed.rows.insert((index, 101, u32::from(id)))) {
                return None;
            }
            new_message(key(index), keeps.then(|| address(index)), topic, id)
        }
        Draft::Keep { index, topic, id } => {
            if id.is_some_and(|id| !changed.rows.insert((index, 101, u32::from(id)))) {
                return None;
            }
            new_message(address(index), None, topic, id)
        }
        Draft::Forward { index } if index < BATCH => {
            Write::Forward(Forward { address: address(index), execution: key(index) })
        }
        Draft::Receive { index, n, topic } if has_calls(index) => {
            let message = message?;
            let received = recorded.checkpoint(key(index), n, count, "")?;
            Write::Checkpoint(Checkpoint {
                kind: CheckpointKind::Message,
                name: TOPICS[topic].into(),
                outcome: message.value,
                number: Some(message.number),
                ..received
            })
        }
        Draft::SetEvent { index, n, topic } if index < BATCH => {
            // a Wake of the flush may depend on the event
            if !changed.try_change(index, true) {
                return None;
            }
            let set = recorded.checkpoint(key(index), n, count, &text(count))?;
            Write::Checkpoint(Checkpoint { kind: CheckpointKind::Event, name: TOPICS[topic].into(), ..set })
        }
        Draft::Append { index, topic } if has_calls(index) => {
            let entry = StreamEntry {
                offset: count,
                attempt_offset: count / 2,
                step: Path::root().child(1),
                value: value(count),
                written_at: at(count),
            };
            Write::Append(Append { execution: key(index), stream: TOPICS[topic].into(), entry }.into())
        }
        Draft::WriteStream { index, n, topic } if has_calls(index) => {
            let written = recorded.checkpoint(key(index), n, count, &text(count))?;
            Write::Checkpoint(Checkpoint {
                kind: CheckpointKind::StreamWrite,
                name: TOPICS[topic].into(),
                number: Some(count),
                ..written
            })
        }
        Draft::Continue { index } if index < BATCH => {
            Write::Checkpoint(recorded.continue_as_new(key(index), count))
        }
        _ => return None,
    })
}

/// Returns all executions with all topics, which are also the names of events and streams.
pub(super) fn receivers() -> Vec<(Key, Arc<str>)> {
    (0..EXECUTIONS).flat_map(|index| TOPICS.map(|topic| (key(index), topic.into()))).collect()
}

/// Returns the pending messages of all executions and topics, and then the kept ones.
pub(super) async fn pending_messages(store: &dyn Store) -> Vec<Vec<PendingMessage>> {
    let mut all = receivers();
    all.extend((0..EXECUTIONS).flat_map(|index| TOPICS.map(|topic| (address(index), topic.into()))));
    store.messages(&all).await.unwrap()
}

/// Returns the entries of all streams, and the last entry of each.
pub(super) async fn stream_entries(store: &dyn Store) -> Vec<Vec<StreamEntry>> {
    let query = |from| move |(execution, stream)| StreamQuery { execution, stream, from };
    let queries = receivers().into_iter().map(query(Some(0)));
    let queries: Vec<_> = queries.chain(receivers().into_iter().map(query(None))).collect();
    store.stream_entries(&queries).await.unwrap()
}

/// Returns the events of all executions, and the executions that wait for each of them.
pub(super) async fn events_and_waiters(store: &dyn Store) -> (Vec<Vec<Event>>, Vec<Vec<Key>>) {
    let names = receivers();
    let last = names.iter().map(|(key, name)| EventQuery { execution: *key, name: Some(name.clone()) });
    let all = (0..EXECUTIONS).map(|index| EventQuery { execution: key(index), name: None });
    let events = store.events(&last.chain(all).collect::<Vec<_>>()).await.unwrap();
    let mut waiters = store.event_waiters(&names).await.unwrap();
    for waiters in &mut waiters {
        waiters.sort_unstable();
    }
    (events, waiters)
}
