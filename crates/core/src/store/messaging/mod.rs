//! Messages, events and streams between executions and the outside, and the waits of suspended executions.

mod event;
mod message;
mod stream;
mod wait;

pub use event::{Event, EventQuery};
pub use message::{Forward, MAX_PENDING_LOADED, Message, PendingMessage};
pub use stream::{Append, MAX_ENTRIES_LOADED, StreamEntry, StreamQuery};
pub use wait::Wait;
