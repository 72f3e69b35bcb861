//! The experiments: one file per subcommand of `stepfast bench`.
//!
//! [`workflows`](workflows::run), [`steps`](workflows::run), [`sizes`], [`payload`], [`memory`], [`history`], [`queue`] with
//! `rate` and `backlog`, [`neighbours`], [`sleepers`], [`schedules`],
//! [`messaging`] and [`graphs`] drive an engine. [`flush`] and [`writes`] measure the
//! limits of the device and the database without an engine. [`idle`], [`takeover`], [`messaging`] and [`queue::pauses`]
//! start [workers](crate::worker) as separate processes.

pub mod batching;
pub mod flush;
pub mod graphs;
pub mod history;
pub mod idle;
pub mod large_graph;
pub mod memory;
pub mod messaging;
pub mod neighbours;
pub mod payload;
pub mod queue;
pub mod schedules;
pub mod sizes;
pub mod sleepers;
pub mod takeover;
pub mod workflows;
pub mod writes;
