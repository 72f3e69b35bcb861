//! Declarations of graphs.

use stepfast_core::store::{GraphRow, StoreError};

use crate::conn::pipeline::{Query, param};
use crate::conn::statements::{HEARTBEAT_STATEMENTS, Sql};
use crate::control::WorkerControl;

impl WorkerControl {
    /// Stores graphs; see [`Store::store_graphs`](stepfast_core::Store::store_graphs).
    pub(crate) async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        let names: Vec<String> = graphs.iter().map(|graph| graph.name.to_string()).collect();
        let declarations: Vec<String> = graphs.iter().map(|graph| graph.declaration.to_string()).collect();
        let params = vec![param(names), param(declarations)];
        let query = Query { sql: Sql::SetGraphs, action: "storing graphs", params };
        self.query_all(&self.heartbeat_session, HEARTBEAT_STATEMENTS, &[query]).await?;
        Ok(())
    }
}
