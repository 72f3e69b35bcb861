//! Messages, events and streams between executions and the outside.

pub mod messages;
pub mod streams;
pub mod waits;
