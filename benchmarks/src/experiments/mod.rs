//! The experiments: one file per subcommand of `stepfast bench`.
//!
//! [`workflows`](workflows::run), [`steps`](workflows::run), [`sizes`], [`payload`], [`memory`], [`history`], [`queue`],
//! [`rate`], [`backlog`] and [`graphs`] drive an engine. [`flush`] and [`writes`] measure the limits of the device and the database
//! without an engine. [`idle`] and [`takeover`] start [workers](crate::worker) as separate processes.

pub mod backlog;
pub mod flush;
pub mod graphs;
pub mod history;
pub mod idle;
pub mod large_graph;
pub mod memory;
pub mod payload;
pub mod queue;
pub mod rate;
pub mod sizes;
pub mod takeover;
pub mod workflows;
pub mod writes;
