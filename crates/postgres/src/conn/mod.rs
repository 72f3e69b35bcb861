//! Connections: how a server is reached, what a connection is set up for, and how statements are sent on it.

pub(crate) mod background;
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
