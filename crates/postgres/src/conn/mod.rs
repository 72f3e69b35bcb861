//! Connections: connects to the server, configures sessions, and sends statements.

pub(crate) mod background;
pub(crate) mod batches;
pub(crate) mod connector;
pub(crate) mod dial;
pub(crate) mod options;
pub(crate) mod parameters;
pub(crate) mod pipeline;
pub(crate) mod pool;
pub(crate) mod pooler;
pub(crate) mod row_counts;
pub(crate) mod session;
#[doc(hidden)]
pub mod statements;
pub(crate) mod tls;
pub(crate) mod url;
