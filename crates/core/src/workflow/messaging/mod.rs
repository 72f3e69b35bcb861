//! Messages and events in the code of workflows.

mod change;
mod get_event;
mod lookup;
mod receive;
mod send;
mod set_event;

pub(crate) use get_event::get_event;
pub use get_event::{GetEvent, GetEventWithin};
pub(crate) use receive::receive;
pub use receive::{Receive, ReceiveWithin};
pub use send::SendFromWorkflow;
pub(crate) use send::send;
pub use set_event::SetEvent;
pub(crate) use set_event::set_event;
