//! [`GraphRow`]: a graph as a database keeps it.

use std::sync::Arc;

/// The stored declaration of a graph: that of the program that has opened an engine with the graph last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphRow {
    /// The name of the graph.
    pub name: Arc<str>,
    /// Its tasks, their dependencies and their rules, as JSON.
    pub declaration: Arc<str>,
}
