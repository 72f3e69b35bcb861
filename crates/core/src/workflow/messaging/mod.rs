//! Messages in the code of workflows.

mod receive;
mod send;

pub(crate) use receive::receive;
pub use receive::{Receive, ReceiveWithin};
pub use send::SendFromWorkflow;
pub(crate) use send::send;
