//! The experiments of `stepfast bench`, and their reports.
//!
//! [`workflows`](workflows::run), [`steps`](workflows::run), [`payload`], [`memory`], [`history`], [`queue`], [`rate`] and [`backlog`] drive an engine,
//! from Rust or from [`python`]. [`flush`] and [`writes`] measure the limits of the device and the database without an
//! engine. [`idle`] and [`takeover`] start [workers](worker) as separate processes. [`bound`] finds out what bounds a run.

pub mod backlog;
pub mod bound;
pub mod flush;
pub mod history;
pub mod idle;
pub mod measure;
pub mod memory;
pub mod payload;
pub mod peers;
pub mod python;
pub mod queue;
pub mod rate;
pub mod readme;
pub mod report;
pub mod sizes;
pub mod table;
pub mod takeover;
pub mod target;
pub mod worker;
pub mod workflows;
pub mod writes;

pub use report::{Figure, Report, Row};
pub use target::Target;
