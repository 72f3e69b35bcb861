//! `stepfast bench messages` and `stepfast bench streams`.

mod messages;
mod streams;

pub(super) use messages::MessagesArgs;
pub(super) use streams::StreamsArgs;
