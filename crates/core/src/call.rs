//! Calls: the durable awaits of a run while they are outstanding.

use std::task::Waker;

use crate::clock::Timestamp;
use crate::commit::Lsn;
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::record::Armed;
use crate::replay::CallKind;
use crate::write::CheckpointKind;

/// A call that is outstanding.
pub(crate) struct CallState {
    pub(crate) path: Path,
    pub(crate) name: Name,
    pub(crate) kind: CallKind,
    pub(crate) fingerprint: Option<u64>,
    pub(crate) begun_at: Timestamp,
    pub(crate) phase: Phase,
    /// Its branch waits for it, and for nothing else. A guest may make a call and go on.
    pub(crate) is_awaited: bool,
    pub(crate) waiting_for: Option<WaitingFor>,
    pub(crate) waker: Option<Waker>,
}

impl CallState {
    /// True if its branch waits for it, and nothing has been delivered.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_awaited && !matches!(self.phase, Phase::Delivered(_) | Phase::Heard | Phase::Stuck)
    }
}

pub(crate) enum Phase {
    /// Recorded; its delivery will come.
    Recorded,
    /// Not recorded, while others are: waits for the end of the replay.
    Beyond,
    Live,
    /// Completed, not delivered.
    Completed(CheckpointKind, Payload, u32),
    /// Delivered; whoever made the call has yet to come for it.
    Delivered(Delivery),
    Heard,
    /// Never to be delivered.
    Stuck,
}

/// What a call was handed.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) kind: CheckpointKind,
    /// What was recorded; empty if it was not a replay.
    pub(crate) outcome: Payload,
    pub(crate) lsn: Lsn,
}

/// What a call in a durable wait waits for; none while a body runs.
#[derive(Clone, Debug)]
pub(crate) enum WaitingFor {
    Timer(Timestamp),
    Child(Key),
}

/// What a call may do.
pub(crate) enum Turn {
    Wait,
    Live,
    Delivered(Delivery),
}

/// What a run waits for while nothing can be delivered.
pub(crate) enum Settling {
    /// There is something to do first.
    Interrupted,
    /// For bodies, or for something that is not a durable call.
    Busy,
    /// Some branches are in durable waits; all of them, if `all` says what for. `unarmed` are the sleeps
    /// whose due times the row does not keep.
    Waiting { all: Option<Vec<(Path, WaitingFor, Timestamp)>>, unarmed: Vec<Armed> },
}
