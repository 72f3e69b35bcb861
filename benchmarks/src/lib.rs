//! The experiments that `stepfast bench` runs, and what they report.
//!
//! [`workflows`](workflows::run), [`steps`](workflows::run), [`payload`] and [`memory`] drive an engine, from Rust or
//! from [`python`]; [`flush`] measures what the device and the database allow without one.

pub mod flush;
pub mod measure;
pub mod memory;
pub mod payload;
pub mod python;
pub mod readme;
pub mod report;
pub mod table;
pub mod target;
pub mod workflows;

pub use report::{Figure, Report, Row};
pub use target::Target;
