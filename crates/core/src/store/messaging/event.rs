//! [`Event`]: a named value that an execution has set; [`EventQuery`]: the events to load.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;

/// A named value that an execution has set. The record of the call that set it is its only row: a checkpoint of kind
/// [`Event`](crate::store::CheckpointKind::Event).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The name.
    pub name: Arc<str>,
    /// The value.
    pub value: Payload,
    /// The time at which the event was set.
    pub set_at: Timestamp,
}

/// The events of an execution to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// The key of the execution.
    pub execution: Key,
    /// The name: only the event that was set last under this name is loaded. `None` for all events that the execution has
    /// set, in their order.
    pub name: Option<Arc<str>>,
}
