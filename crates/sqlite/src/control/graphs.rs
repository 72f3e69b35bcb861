//! Declarations of graphs.

use stepfast_core::store::{GraphRow, StoreError};

use crate::database::Database;

impl Database {
    /// See [`Store::store_graphs`](stepfast_core::Store::store_graphs).
    pub(crate) fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        self.write_with_long_wait("storing graphs", |conn| {
            let mut statement = conn.prepare_cached(include_str!("../../queries/set_graph.sql"))?;
            for graph in graphs {
                statement.execute([&graph.name, &graph.declaration])?;
            }
            Ok(())
        })
    }
}
