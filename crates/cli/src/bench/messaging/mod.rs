//! `stepfast bench messages`, `stepfast bench streams` and `stepfast bench waits`.

mod messages;
mod streams;
mod waits;

pub(super) use messages::MessagesArgs;
pub(super) use streams::StreamsArgs;
pub(super) use waits::WaitsArgs;
