//! The experiments of `stepfast bench`, and their reports.
//!
//! The [`experiments`] drive an engine, from Rust or from [`python`], or start [workers](worker) as separate processes.
//! [`bound`] finds out what bounds a run. The [`report`] of an experiment becomes a table, and its figures go into the
//! READMEs.

pub mod bound;
pub mod experiments;
pub mod measure;
pub mod python;
pub mod report;
pub mod target;
pub mod worker;

pub use report::{Figure, Report, Row};
pub use target::Target;
