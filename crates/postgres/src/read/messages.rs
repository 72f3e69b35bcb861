//! The search for pending messages.

use std::sync::Arc;

use stepfast_core::Key;
use stepfast_core::store::{MAX_PENDING_LOADED, PendingMessage, StoreError};

use crate::conn::pipeline::{Query, column, param};
use crate::conn::statements::Sql;
use crate::error::corrupt;
use crate::read::Reader;
use crate::rows::Columns;
use crate::rows::types::to_uuid;

impl Reader {
    /// Loads messages; see [`Store::messages`](stepfast_core::Store::messages).
    pub(crate) async fn messages(
        &self,
        receivers: &[(Key, Arc<str>)],
    ) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        let topics: Vec<&str> = receivers.iter().map(|(_, topic)| &**topic).collect();
        let params = vec![
            column(receivers, |(key, _)| to_uuid(*key)),
            column(&topics, |topic| *topic),
            param(MAX_PENDING_LOADED as i64),
        ];
        let query = Query { sql: Sql::PendingMessages, action: "loading messages", params };
        let mut messages = vec![Vec::new(); receivers.len()];
        for row in self.query(query).await? {
            let mut row = Columns::new(&row);
            let index = usize::try_from(row.next::<i64>()?).ok();
            let message = PendingMessage { number: row.next()?, value: row.payload()?, sent_at: row.time()? };
            index.and_then(|i| messages.get_mut(i)).ok_or_else(|| corrupt("a message"))?.push(message);
        }
        Ok(messages)
    }

    /// Counts messages; see [`Store::pending_topics`](stepfast_core::Store::pending_topics).
    pub(crate) async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        let (sql, action) = (Sql::PendingTopics, "counting messages");
        let rows = self.query(Query { sql, action, params: vec![param(to_uuid(receiver))] }).await?;
        let read = |row| {
            let mut row = Columns::new(row);
            Ok((row.next::<&str>()?.into(), row.next::<i64>()?.unsigned_abs()))
        };
        rows.iter().map(read).collect()
    }
}
