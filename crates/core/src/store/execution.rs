//! [`Execution`] and what is recorded of it: the rows that cross the contract.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::failure::Failure;
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::queue::debounce::debounce_id;
use crate::queue::{DEFAULT_QUEUE, Placement};
use crate::text::quote;

/// Why a request comes to nothing whose execution has a number as its status that this version does not know.
pub const UNKNOWN_STATUS_MESSAGE: &str = "the execution has a status that this version of Stepfast does not know: a newer version \
                                  wrote it, or the row is damaged; ask the version that wrote it, or mend the row";

/// The status of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Status {
    /// Not before a time.
    Scheduled = 0,
    /// Ready to be claimed, or parked.
    Queued = 1,
    /// A worker runs it.
    Running = 2,
    /// Suspended on a timer or a child; holds no worker.
    Waiting = 3,
    /// Ended with an output.
    Completed = 4,
    /// Ended with an error.
    Failed = 5,
    /// Ended because somebody cancelled it or its time was up.
    Cancelled = 6,
}

impl Status {
    /// All of them, by number.
    pub const ALL: [Status; 7] = [
        Status::Scheduled,
        Status::Queued,
        Status::Running,
        Status::Waiting,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
    ];

    /// The status with this number, as stored.
    pub fn from_number(number: i64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|n| Self::ALL.get(n).copied())
    }

    /// True for `completed`, `failed` and `cancelled`.
    pub fn is_terminal(self) -> bool {
        self >= Status::Completed
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        ["scheduled", "queued", "running", "waiting", "completed", "failed", "cancelled"][self as usize]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|status| status.as_str()).collect();
            format!("{} is not a status; the statuses are {}", quote(text), words.join(", "))
        })
    }
}

/// When the sleep at `path` is over. Kept in the execution's row, so that a replay goes on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSleep {
    /// Position of the sleep.
    pub path: Path,
    /// When it is over.
    pub due_at: Timestamp,
}

/// Encodes due times for the `armed` column: for each the length of its path (2 bytes, big-endian), the
/// path, and the due time in microseconds (8 bytes, big-endian). Empty for none.
pub fn encode_pending_sleeps(armed: &[PendingSleep]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(armed.len() * 12);
    for PendingSleep { path, due_at } in armed {
        bytes.extend_from_slice(&(path.as_bytes().len() as u16).to_be_bytes());
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(&due_at.as_micros().to_be_bytes());
    }
    bytes
}

/// Decodes the `armed` column; `None` if it is damaged.
pub fn decode_pending_sleeps(mut bytes: &[u8]) -> Option<Vec<PendingSleep>> {
    let mut armed = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let (path, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        let (due_at, rest) = rest.split_first_chunk::<8>()?;
        let due_at = Timestamp::from_micros(i64::from_be_bytes(*due_at));
        armed.push(PendingSleep { path: Path::from_bytes(path)?, due_at });
        bytes = rest;
    }
    bytes.is_empty().then_some(armed)
}

/// An execution's row.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Its key.
    pub key: Key,
    /// Key of the root of its tree.
    pub root: Key,
    /// Its parent, for a child.
    pub parent: Option<Parent>,
    /// The caller's id, where one was given that is not a key's text.
    pub given_id: Option<Arc<str>>,
    /// Registered name of its workflow.
    pub workflow: Arc<str>,
    /// Fingerprint of its input, for ids given by callers.
    pub fingerprint: Option<u64>,
    /// Its status.
    pub status: Status,
    /// True while it is parked.
    pub is_parked: bool,
    /// The encoded input; empty in lists.
    pub input: Payload,
    /// The output, a failure, or why it is parked; empty in lists and while there is none.
    pub outcome: Payload,
    /// Who runs it.
    pub owner: Option<WorkerId>,
    /// How often it was resumed or rewound, plus one.
    pub run_no: u32,
    /// How often it was continued after its worker was lost.
    pub recoveries: u32,
    /// How many of the last recoveries came without a new checkpoint since the one before: from
    /// [`QUARANTINE`](crate::store::QUARANTINE) on it is in quarantine, where only those count that it was tried alone for.
    pub strikes: u32,
    /// The version of the code that it is pinned to.
    pub app_version: Option<Arc<str>>,
    /// Where it stands whenever it is queued; `None` for the default queue.
    pub placement: Option<Arc<Placement>>,
    /// In its queue it is the only one that has this; `None` once it has ended. Of what is debounced it is made of its
    /// [id](Self::debounce_id), and gone when it is due.
    pub dedup_id: Option<Arc<str>>,
    /// When its start was called, by the store's clock; it is durable somewhat later.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// When it is cancelled unless it has ended.
    pub deadline_at: Option<Timestamp>,
    /// So long after it begins, at the latest; `None` once it has begun.
    pub run_timeout: Option<Duration>,
    /// What it is found by; it may be missing in claims, and where only the outcome is loaded.
    pub attributes: Attributes,
    /// Earliest time at which a timer wakes it, while it waits.
    pub wake_at: Option<Timestamp>,
    /// Due times of its sleeps.
    pub pending_sleeps: Vec<PendingSleep>,
    /// Why something that is recorded of it cannot be read: a newer version of the program wrote it, or it is damaged.
    /// Its owner parks it.
    pub unreadable: Option<Arc<str>>,
}

impl Execution {
    /// Notes that a column of something that is recorded of it has a value that this version does not know. The first
    /// note is kept.
    pub fn note_unreadable(&mut self, column: &str) {
        self.unreadable.get_or_insert_with(|| {
            format!(
                "column {column} has a value that this version of Stepfast does not know: a newer version wrote it, or the row is damaged"
            )
            .into()
        });
    }

    /// Notes that its status is a number that this version does not know. The execution is shown as parked, with the
    /// reason, until the row is mended.
    pub fn note_unknown_status(&mut self) {
        self.note_unreadable("status of executions");
        self.status = Status::Queued;
        self.is_parked = true;
        self.outcome =
            Payload::from_failure(&Failure::unreadable_record(self.unreadable.as_deref().unwrap_or_default()));
    }
}

impl Execution {
    /// The queue that it stands in whenever it is queued.
    pub fn queue(&self) -> &str {
        self.placement.as_ref().map_or(DEFAULT_QUEUE, |ticket| &ticket.queue)
    }

    /// It begins at this time, if it has not begun before: from here on its deadline stands.
    pub fn begin(&mut self, now: Timestamp) {
        if let Some(timeout) = self.run_timeout.take() {
            let deadline_at = now.plus(timeout);
            self.deadline_at = Some(self.deadline_at.map_or(deadline_at, |at| at.min(deadline_at)));
        }
    }

    /// Its workflow_id: the caller's, or the text of its key.
    pub fn workflow_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }

    /// The dedup_id that its caller gave, unless it has ended.
    pub fn given_dedup_id(&self) -> Option<&str> {
        self.dedup_id.as_deref().filter(|held| debounce_id(held).is_none())
    }

    /// What the starts have in common that it is debounced by, until it is due.
    pub fn debounce_id(&self) -> Option<&str> {
        self.dedup_id.as_deref().and_then(debounce_id)
    }
}

/// The number of one registration of a worker; never used twice in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub i64);

/// The parent of a child execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Key of the parent.
    pub key: Key,
    /// True if the parent does not wait for it, and cancelling the parent does not cancel it.
    pub is_detached: bool,
}

/// What a checkpoint records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CheckpointKind {
    /// A step's value.
    Step = 1,
    /// A step's error, attempts given up.
    Failed = 2,
    /// The workflow stopped waiting for the call.
    Abandoned = 3,
    /// A sleep that is over.
    Timer = 4,
    /// A child that ended; the outcome is its key.
    Child = 5,
    /// A child that was started, to be awaited later or not at all; the outcome is its key.
    Started = 6,
}

impl CheckpointKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Step, Self::Failed, Self::Abandoned, Self::Timer, Self::Child, Self::Started]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
            Self::Timer => "sleep",
            Self::Child => "child",
            Self::Started => "started",
        }
    }
}

/// Records a delivery to a workflow. Insert-only; the lane's fence is its guard.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The execution.
    pub execution: Key,
    /// Position of the call.
    pub path: Path,
    /// The run that recorded it.
    pub run_no: u32,
    /// Position of its delivery among all deliveries to the execution.
    pub order: u32,
    /// What it records.
    pub kind: CheckpointKind,
    /// Name of the step, the child's workflow, or `sleep`.
    pub name: Name,
    /// Fingerprint of the arguments, where they were given.
    pub fingerprint: Option<u64>,
    /// The value, an encoded [`Failure`](crate::Failure), a child's key, or empty.
    pub outcome: Payload,
    /// When it was delivered.
    pub at: Timestamp,
    /// From the call to its delivery, in milliseconds.
    pub took_ms: i64,
}

/// Records a failed attempt of a step. Insert-only.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The execution.
    pub execution: Key,
    /// Position of the step.
    pub path: Path,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// An encoded [`Failure`](crate::Failure).
    pub failure: Payload,
    /// When it failed.
    pub at: Timestamp,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RequestKind {
    /// End it as `cancelled`, with the awaited children below it.
    Cancel = 1,
    /// Continue it: parked, failed or cancelled.
    Resume = 2,
    /// End it as `cancelled`, with the awaited children below it, because its deadline has passed and nobody runs it.
    Expire = 3,
}

impl RequestKind {
    /// The kind of a row of `requests` with this number; `None` if this version does not know it.
    pub fn from_number(number: i64) -> Option<Self> {
        [Self::Cancel, Self::Resume].into_iter().find(|kind| *kind as i64 == number)
    }
}

/// An execution with what was recorded of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its row.
    pub execution: Execution,
    /// Its checkpoints by `order`. Values stored aside come as references.
    pub checkpoints: Vec<Checkpoint>,
    /// Its failed attempts by path and number.
    pub attempts: Vec<Attempt>,
    /// What has been asked for and is not answered.
    pub requests: Vec<RequestKind>,
}

/// How an execution is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionId {
    /// By its key.
    Key(Key),
    /// By the id that the caller gave.
    Given(Arc<str>),
}

/// How much of an execution to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The row, without input.
    Outcome,
    /// The row, checkpoints, attempts and requests.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn armed_round_trips_and_damage_is_seen() {
        let armed: Vec<PendingSleep> = (0..3)
            .map(|i| PendingSleep {
                path: Path::root().child(i * 1000),
                due_at: Timestamp::from_micros(i64::from(i)),
            })
            .collect();
        let bytes = encode_pending_sleeps(&armed);
        assert_eq!(decode_pending_sleeps(&bytes), Some(armed));
        assert_eq!(decode_pending_sleeps(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_pending_sleeps(&[]), Some(Vec::new()));
    }
}
