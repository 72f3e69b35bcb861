//! Messages, events, streams, tokens and questions of callers outside of executions.

pub(crate) mod ask;
pub(crate) mod event;
pub(crate) mod send;
pub(crate) mod stream;
mod token;
