//! The messages and events of a store in a random history.

use std::sync::Arc;

use stepfast_core::key::Key;
use stepfast_core::store::{Event, EventQuery, PendingMessage, Store};

use crate::model::differential::key;
use crate::model::histories::{EXECUTIONS, TOPICS};

/// Returns all executions with all topics, which are also the names of events.
pub(super) fn receivers() -> Vec<(Key, Arc<str>)> {
    (0..EXECUTIONS).flat_map(|index| TOPICS.map(|topic| (key(index), topic.into()))).collect()
}

/// Returns the pending messages of all executions and topics.
pub(super) async fn pending_messages(store: &dyn Store) -> Vec<Vec<PendingMessage>> {
    store.messages(&receivers()).await.unwrap()
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
