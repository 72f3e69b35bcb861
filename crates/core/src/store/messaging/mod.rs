//! Messages between executions and the outside, and the waits of suspended executions.

mod message;
mod wait;

pub use message::{MAX_PENDING_LOADED, Message, PendingMessage};
pub use wait::Wait;
