//! Messages between executions and the outside, and the waits of suspended executions.

mod event;
mod message;
mod wait;

pub use event::{Event, EventQuery};
pub use message::{MAX_PENDING_LOADED, Message, PendingMessage};
pub use wait::Wait;
