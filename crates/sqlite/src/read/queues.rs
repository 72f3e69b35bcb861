//! Lists of queues.

use std::sync::Arc;

use stepfast_core::queue::QueueRow;
use stepfast_core::store::StoreError;

use crate::database::Database;
use crate::rows::queues::parse_queue;

impl Database {
    /// See [`Store::queues`](stepfast_core::Store::queues).
    pub(crate) fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        self.counters.add_read();
        self.read("listing queues", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../../queries/queues.sql"))?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let row = parse_queue(row)?;
                if names.is_none_or(|names| names.contains(&row.queue.name)) {
                    found.push(row);
                }
            }
            Ok(found)
        })
    }
}
