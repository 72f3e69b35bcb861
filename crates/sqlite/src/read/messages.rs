//! The search for pending messages.

use std::sync::Arc;

use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::payload::Payload;
use stepfast_core::store::{MAX_PENDING_LOADED, PendingMessage, StoreError};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::{key_bytes, payload_of, text};

impl Database {
    pub(crate) fn messages(
        &self,
        receivers: &[(Key, Arc<str>)],
    ) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        self.read("loading messages", |conn| {
            let mut sql = Statements::new(conn);
            receivers.iter().map(|(key, topic)| pending_messages(&mut sql, *key, topic)).collect()
        })
    }

    pub(crate) fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.read("counting messages", |conn| {
            let mut sql = Statements::new(conn);
            let mut rows = sql.get(Sql::PendingTopics)?.query([key_bytes(&receiver)])?;
            let mut topics = Vec::new();
            while let Some(row) = rows.next()? {
                topics.push((text(row, 0)?, row.get::<_, i64>(1)?.unsigned_abs()));
            }
            Ok(topics)
        })
    }
}

fn pending_messages(sql: &mut Statements<'_>, execution: Key, topic: &str) -> DbResult<Vec<PendingMessage>> {
    let mut rows =
        sql.get(Sql::PendingMessages)?.query((key_bytes(&execution), topic, MAX_PENDING_LOADED as i64))?;
    let mut messages = Vec::new();
    while let Some(row) = rows.next()? {
        let value: Payload = payload_of(row, 1)?;
        let sent_at = Timestamp::from_micros(row.get(2)?);
        messages.push(PendingMessage { number: row.get(0)?, value, sent_at });
    }
    Ok(messages)
}
