//! Lists of graphs.

use std::sync::Arc;

use stepfast_core::store::{GraphRow, StoreError};

use crate::database::Database;

impl Database {
    /// See [`Store::graphs`](stepfast_core::Store::graphs).
    pub(crate) fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        self.counters.add_read();
        self.read("listing graphs", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../../queries/graphs.sql"))?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let name: Arc<str> = row.get(0)?;
                if names.is_none_or(|names| names.contains(&name)) {
                    found.push(GraphRow { name, declaration: row.get(1)? });
                }
            }
            Ok(found)
        })
    }
}
