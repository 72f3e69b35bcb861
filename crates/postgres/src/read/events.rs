//! The search for events, and for the suspended executions that wait for them.

use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::store::{Event, EventQuery, StoreError};

use crate::conn::pipeline::{Query, column};
use crate::conn::statements::Sql;
use crate::error::corrupt;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::to_uuid;

impl Reader {
    /// Loads events; see [`Store::events`](stepfast_core::Store::events).
    pub(crate) async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        let names: Vec<Option<&str>> = queries.iter().map(|query| query.name.as_deref()).collect();
        let params = vec![column(queries, |query| to_uuid(query.execution)), column(&names, |name| *name)];
        let query = Query { sql: Sql::Events, action: "loading events", params };
        let mut events = vec![Vec::new(); queries.len()];
        for row in self.query(query).await? {
            let mut row = Columns::new(&row);
            let index = usize::try_from(row.next::<i64>()?).ok();
            let name = row.next::<&str>()?.into();
            let event = Event { name, value: row.payload()?, set_at: row.time()? };
            index.and_then(|i| events.get_mut(i)).ok_or_else(|| corrupt("an event"))?.push(event);
        }
        Ok(events)
    }

    /// Finds executions; see [`Store::event_waiters`](stepfast_core::Store::event_waiters).
    pub(crate) async fn event_waiters(
        &self,
        events: &[(Key, Arc<str>)],
    ) -> Result<Vec<Vec<Key>>, StoreError> {
        let names: Vec<&str> = events.iter().map(|(_, name)| &**name).collect();
        let params = vec![column(events, |(setter, _)| to_uuid(*setter)), column(&names, |name| *name)];
        let action = "loading the executions that wait for events";
        let mut waiters = vec![Vec::new(); events.len()];
        for row in self.query(Query { sql: Sql::EventWaiters, action, params }).await? {
            let mut row = Columns::new(&row);
            let index = usize::try_from(row.next::<i64>()?).ok();
            index.and_then(|i| waiters.get_mut(i)).ok_or_else(|| corrupt("a wait"))?.push(row.key()?);
        }
        Ok(waiters)
    }
}
