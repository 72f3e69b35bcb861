//! The search for events, and for the suspended executions that wait for them.

use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::store::{Event, EventQuery, StoreError};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::payloads::fetch_payload;
use crate::rows::{key_bytes, key_of, payload_of, text};

impl Database {
    pub(crate) fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        self.read("loading events", |conn| {
            let mut sql = Statements::new(conn);
            queries.iter().map(|query| events(&mut sql, query)).collect()
        })
    }

    pub(crate) fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        self.read("loading the executions that wait for events", |conn| {
            let mut sql = Statements::new(conn);
            events.iter().map(|(setter, name)| event_waiters(&mut sql, *setter, name)).collect()
        })
    }
}

fn events(sql: &mut Statements<'_>, query: &EventQuery) -> DbResult<Vec<Event>> {
    let execution = key_bytes(&query.execution);
    let mut rows = match &query.name {
        Some(name) => sql.get(Sql::LastEvent)?.query((execution, &**name))?,
        None => sql.get(Sql::Events)?.query((execution,))?,
    };
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let set_at = Timestamp::from_micros(row.get(2)?);
        events.push(Event { name: text(row, 0)?, value: payload_of(row, 1)?, set_at });
    }
    drop(rows);
    for event in &mut events {
        fetch_payload(sql, &mut event.value)?;
    }
    Ok(events)
}

fn event_waiters(sql: &mut Statements<'_>, setter: Key, name: &str) -> DbResult<Vec<Key>> {
    let mut rows = sql.get(Sql::EventWaiters)?.query((key_bytes(&setter), name))?;
    let mut waiters = Vec::new();
    while let Some(row) = rows.next()? {
        waiters.push(key_of(row, 0)?);
    }
    Ok(waiters)
}
