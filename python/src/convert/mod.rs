//! Conversions between values of Python and those of the engine.

pub(crate) mod dead_letters;
pub(crate) mod durations;
pub(crate) mod filter;
pub(crate) mod graph;
pub(crate) mod outbox;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod schedule;
pub(crate) mod signature;
pub(crate) mod start_options;
pub(crate) mod step_settings;
pub(crate) mod value;
pub(crate) mod workers;
