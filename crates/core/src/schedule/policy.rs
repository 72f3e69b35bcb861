//! The policies of schedules, for instants that meet a running execution, and for instants that were missed.

use serde::{Deserialize, Serialize};

/// The reaction of a schedule to an instant at which an execution that it has started still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The instant is skipped.
    #[default]
    Skip,
    /// The execution of the instant starts after the end of the running one. Further instants are skipped until then.
    BufferOne,
    /// The executions of all such instants start one after the other. At most 1,000 instants wait; further ones are skipped.
    BufferAll,
    /// The running execution is cancelled, and the execution of the instant starts after its end.
    CancelRunning,
    /// The execution of the instant starts at once, beside the running one.
    Allow,
}

/// The reaction of a schedule to instants that have passed while no worker could run the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// The last instant that has passed gets its execution if it is at most a minute late. Others are skipped.
    None,
    /// The last instant that has passed gets its execution, however late. Earlier ones are skipped.
    #[default]
    Last,
    /// All instants that have passed get their executions, in their order, but not more than the last 10,000.
    All,
}

impl Overlap {
    /// All policies.
    pub const ALL: [Self; 5] =
        [Self::Skip, Self::BufferOne, Self::BufferAll, Self::CancelRunning, Self::Allow];

    /// Returns the name of the policy, as in `buffer_one`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::BufferOne => "buffer_one",
            Self::BufferAll => "buffer_all",
            Self::CancelRunning => "cancel_running",
            Self::Allow => "allow",
        }
    }
}

impl CatchUp {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::None, Self::Last, Self::All];

    /// Returns the name of the policy: `none`, `last` or `all`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}
