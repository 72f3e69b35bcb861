//! The experiments that `stepfast bench` runs, and what they report.
//!
//! [`workflows`](workflows::run) and [`steps`](workflows::run) drive an engine; [`flush`](flush::run)
//! measures what the device and the database allow without one.

pub mod flush;
pub mod measure;
pub mod memory;
pub mod report;
pub mod target;
pub mod workflows;

pub use report::{Report, Row};
pub use target::Target;
