//! [`Execution`] and its [`Record`]: the rows that cross the store contract.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{BundleRecord, StreamEntry, Wait};
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

/// The error message for a request to an execution with an unknown status number.
pub const UNKNOWN_STATUS_MESSAGE: &str = "the execution has a status that this version of Stepfast does not \
                                          recognise: a newer version wrote it, or the row is damaged; use the \
                                          version that wrote it, or repair the row";

/// The status of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Status {
    /// The execution may not begin before its due time.
    Scheduled = 0,
    /// The execution waits for a worker, or is parked.
    Queued = 1,
    /// A worker runs the execution.
    Running = 2,
    /// The execution is suspended until a due time or the end of a child; it holds no worker.
    Waiting = 3,
    /// The execution ended with an output.
    Completed = 4,
    /// The execution ended with an error.
    Failed = 5,
    /// The execution was cancelled on request, or ended at its deadline.
    Cancelled = 6,
}

impl Status {
    /// All statuses, by number.
    pub const ALL: [Status; 7] = [
        Status::Scheduled,
        Status::Queued,
        Status::Running,
        Status::Waiting,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
    ];

    /// Returns the status with this stored number; `None` if the number is unknown.
    pub fn from_number(number: i64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|n| Self::ALL.get(n).copied())
    }

    /// Whether the status is `completed`, `failed` or `cancelled`.
    pub fn is_terminal(self) -> bool {
        self >= Status::Completed
    }

    /// Returns the word for the status.
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

/// A sleep that is not over, with its due time. The execution's row contains it, so that a replay continues the sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSleep {
    /// The position of the sleep.
    pub path: Path,
    /// The time at which the sleep is over.
    pub due_at: Timestamp,
}

/// Encodes sleeps for the column `armed`. Each sleep is encoded as the length of its path (2 bytes), the path, and the
/// due time in microseconds (8 bytes), all big-endian. Without sleeps, the result is empty.
pub fn encode_pending_sleeps(sleeps: &[PendingSleep]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sleeps.len() * 12);
    for PendingSleep { path, due_at } in sleeps {
        bytes.extend_from_slice(&(path.as_bytes().len() as u16).to_be_bytes());
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(&due_at.as_micros().to_be_bytes());
    }
    bytes
}

/// Decodes the column `armed`; `None` if it is damaged.
pub fn decode_pending_sleeps(mut bytes: &[u8]) -> Option<Vec<PendingSleep>> {
    let mut sleeps = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let (path, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        let (due_at, rest) = rest.split_first_chunk::<8>()?;
        let due_at = Timestamp::from_micros(i64::from_be_bytes(*due_at));
        sleeps.push(PendingSleep { path: Path::from_bytes(path)?, due_at });
        bytes = rest;
    }
    bytes.is_empty().then_some(sleeps)
}

/// The row of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// The key of the execution.
    pub key: Key,
    /// The key of the root of the execution's tree.
    pub root: Key,
    /// The parent; `None` for a root.
    pub parent: Option<Parent>,
    /// The workflow_id that the caller gave; `None` if the workflow_id is the text of the key.
    pub given_id: Option<Arc<str>>,
    /// The registered name of the workflow.
    pub workflow: Arc<str>,
    /// The fingerprint of the input; `None` unless the caller gave a workflow_id.
    pub fingerprint: Option<u64>,
    /// The status.
    pub status: Status,
    /// Whether the execution is parked.
    pub is_parked: bool,
    /// The encoded input; empty in lists.
    pub input: Payload,
    /// The output, the failure, or the reason for being parked; empty in lists, and as long as the execution has none.
    pub outcome: Payload,
    /// The worker that runs the execution; `None` unless the execution is `running`.
    pub owner: Option<WorkerId>,
    /// The number of times the execution was resumed after its end, plus one.
    pub run_no: u32,
    /// The number of recoveries: how often the execution was continued after its worker died.
    pub recoveries: u32,
    /// The number of strikes: recoveries in a row without a new checkpoint or attempt between them. A recovery after a
    /// new checkpoint or attempt sets the number to 1.
    ///
    /// From [`QUARANTINE_STRIKES`](crate::store::QUARANTINE_STRIKES) on, the execution is in quarantine. There a
    /// recovery is a strike only if the execution was tried alone.
    pub strikes: u32,
    /// The version of the code to which the execution is pinned; `None` for any.
    pub app_version: Option<Arc<str>>,
    /// The execution's position whenever it is queued; `None` for the default queue.
    pub placement: Option<Arc<Placement>>,
    /// An id that no other execution of the queue has; `None` once the execution has ended.
    ///
    /// In a debounced execution, the field contains the debounce key, which contains the [debounce
    /// id](Self::debounce_id). The key is removed when the execution is due.
    pub dedup_id: Option<Arc<str>>,
    /// The time of the call that started the execution, by the store's clock; the Start is durable slightly later.
    pub created_at: Timestamp,
    /// The time at which the execution ended.
    pub ended_at: Option<Timestamp>,
    /// The time at which the execution is cancelled unless it has ended.
    pub deadline_at: Option<Timestamp>,
    /// The maximum time from the beginning of the execution to its end; `None` once the execution has begun, because
    /// `deadline_at` then includes it.
    pub run_timeout: Option<Duration>,
    /// The attributes; they may be missing in the results of claims and of loads with [`Detail::Outcome`].
    pub attributes: Attributes,
    /// The due time of the timer, while the execution is `waiting` or `scheduled`.
    pub wake_at: Option<Timestamp>,
    /// The sleeps that are not over.
    pub pending_sleeps: Vec<PendingSleep>,
    /// The reason why a part of the record cannot be read: a newer version wrote it, or it is damaged. The owner parks
    /// the execution.
    pub unreadable: Option<Arc<str>>,
}

impl Execution {
    /// Notes that a column in the execution's record has a value that this version does not recognise. If several
    /// columns are noted, the first note stays.
    pub fn note_unreadable(&mut self, column: &str) {
        self.unreadable.get_or_insert_with(|| {
            format!(
                "column {column} has a value that this version of Stepfast does not recognise: a newer version wrote \
                 it, or the row is damaged"
            )
            .into()
        });
    }

    /// Notes that this version does not recognise the number of the status. The execution appears as parked, with the
    /// reason, until the row is repaired.
    pub fn note_unknown_status(&mut self) {
        self.note_unreadable("status of executions");
        self.status = Status::Queued;
        self.is_parked = true;
        self.outcome = Payload::from_failure(&Failure::unreadable_record(
            self.unreadable.as_deref().unwrap_or_default(),
        ));
    }
}

impl Execution {
    /// Returns the queue in which the execution waits whenever it is queued.
    pub fn queue(&self) -> &str {
        self.placement.as_ref().map_or(DEFAULT_QUEUE, |placement| &placement.queue)
    }

    /// Moves the [`run_timeout`](Self::run_timeout) into the deadline when the execution first runs, at the time `now`.
    /// Later calls change nothing. A bundle keeps the timeout, which is that of each of its items.
    pub fn begin(&mut self, now: Timestamp) {
        if self.key.is_bundle() {
            return;
        }
        if let Some(timeout) = self.run_timeout.take() {
            let deadline_at = now.plus(timeout);
            self.deadline_at = Some(self.deadline_at.map_or(deadline_at, |at| at.min(deadline_at)));
        }
    }

    /// Returns the workflow_id: the id that the caller gave, or else the text of the key.
    pub fn workflow_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }

    /// Returns the dedup_id that the caller gave; `None` once the execution has ended.
    pub fn given_dedup_id(&self) -> Option<&str> {
        self.dedup_id.as_deref().filter(|id| debounce_id(id).is_none())
    }

    /// Returns the debounce id; `None` once the execution is due.
    pub fn debounce_id(&self) -> Option<&str> {
        self.dedup_id.as_deref().and_then(debounce_id)
    }
}

/// The number of a worker's registration. Two registrations have the same number only if a failover has lost the
/// earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub i64);

/// The parent of a child execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The key of the parent.
    pub key: Key,
    /// Whether the child is detached: the parent does not wait for it, and cancelling the parent does not cancel it.
    pub is_detached: bool,
}

/// The kind of a [`Checkpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CheckpointKind {
    /// The value of a step.
    Step = 1,
    /// The final error of a step, when no attempt is left; or the error of a child that could not be started.
    Failed = 2,
    /// An abandoned call: the workflow stopped waiting for it.
    Abandoned = 3,
    /// The end of a sleep.
    Timer = 4,
    /// The end of a child; the outcome is the child's key.
    Child = 5,
    /// The start of a child that is awaited later or not at all; the outcome is the child's key.
    Started = 6,
    /// A received message; the outcome is its value.
    Message = 7,
    /// A message that the execution has sent.
    Sent = 8,
    /// An event that the execution has set; the outcome is its value.
    Event = 9,
    /// An event of another execution that the execution has read; the outcome is its value.
    EventRead = 10,
    /// A value that the code of the workflow has written to a stream, or the end of a stream. The outcome is empty: the row
    /// of the stream has the value.
    StreamWrite = 11,
    /// The end of a part of the execution: its code continues as new. The outcome is the next input.
    Continued = 12,
}

impl CheckpointKind {
    /// Returns the kind with this stored number; `None` if the number is unknown.
    pub fn from_number(number: u8) -> Option<Self> {
        [
            Self::Step,
            Self::Failed,
            Self::Abandoned,
            Self::Timer,
            Self::Child,
            Self::Started,
            Self::Message,
            Self::Sent,
            Self::Event,
            Self::EventRead,
            Self::StreamWrite,
            Self::Continued,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }

    /// Returns the word for the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
            Self::Timer => "sleep",
            Self::Child => "child",
            Self::Started => "started",
            Self::Message => "message",
            Self::Sent => "sent",
            Self::Event => "event",
            Self::EventRead => "event read",
            Self::StreamWrite => "stream write",
            Self::Continued => "continued",
        }
    }
}

/// The recorded outcome of a durable call. A flush inserts the row and never changes it; its guard is the lane's fence.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The key of the execution.
    pub execution: Key,
    /// The position of the call.
    pub path: Path,
    /// The execution's run_no at the time of the delivery.
    pub run_no: u32,
    /// The position of the delivery among all deliveries of the execution.
    pub order: u32,
    /// The kind of the outcome.
    pub kind: CheckpointKind,
    /// The name of the step, the name of the child's workflow, `sleep`, or the topic of a message.
    pub name: Name,
    /// The fingerprint of the call's arguments; `None` if the call has none to compare.
    pub fingerprint: Option<u64>,
    /// The value, an encoded [`Failure`](crate::Failure), a child's key, or empty.
    pub outcome: Payload,
    /// The time of the delivery.
    pub at: Timestamp,
    /// The time from the call to the delivery, in milliseconds.
    pub duration_ms: i64,
    /// The number of the received message, which the same flush deletes, or the offset of the value that the same flush
    /// appends to a stream. `None` for other outcomes, and in a loaded checkpoint.
    pub number: Option<i64>,
}

impl Checkpoint {
    /// Returns the number of the received message, which the flush deletes.
    pub fn received(&self) -> Option<i64> {
        self.number.filter(|_| self.kind == CheckpointKind::Message)
    }

    /// Returns the offset of the entry that the flush appends to a stream.
    pub fn appended(&self) -> Option<i64> {
        self.number.filter(|_| self.kind == CheckpointKind::StreamWrite)
    }

    /// Returns the entry that the flush appends to the stream with the name of the checkpoint.
    pub fn entry(&self) -> Option<StreamEntry> {
        let offset = self.appended()?;
        Some(StreamEntry {
            offset,
            attempt_offset: offset,
            step: Path::root(),
            value: self.outcome.clone(),
            written_at: self.at,
        })
    }

    /// Returns the outcome in the row of the checkpoint.
    pub fn stored_outcome(&self) -> &Payload {
        static EMPTY: Payload = Payload::empty();
        if self.kind == CheckpointKind::StreamWrite { &EMPTY } else { &self.outcome }
    }
}

/// A recorded failed attempt of a step. A flush inserts the row and never changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The key of the execution.
    pub execution: Key,
    /// The position of the step.
    pub path: Path,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The encoded [`Failure`](crate::Failure).
    pub failure: Payload,
    /// The time of the failure.
    pub at: Timestamp,
}

/// The kind of a [`Request`](crate::store::Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Ends the execution as `cancelled`, together with all awaited children below it.
    Cancel,
    /// Continues a parked, failed or cancelled execution.
    Resume,
    /// Ends the execution as `cancelled`, together with all awaited children below it, because its deadline has passed
    /// and no worker runs it.
    Expire,
    /// Parks the execution: at once if no worker runs it, otherwise as soon as no body runs.
    Pause,
    /// Ends the item with this index of a bundle as `cancelled`, when a worker runs the bundle. The key of the item is the
    /// id of the request, so a bundle has at most one such request for each item.
    CancelItem(u32),
}

impl RequestKind {
    /// Returns the number of the kind in rows of `requests`.
    pub fn number(self) -> u8 {
        match self {
            Self::Cancel => 1,
            Self::Resume => 2,
            Self::Expire => 3,
            Self::Pause => 4,
            Self::CancelItem(_) => 5,
        }
    }

    /// Returns the index of the item that the request cancels; `None` for other kinds.
    pub fn cancelled_item(&self) -> Option<u32> {
        match self {
            Self::CancelItem(index) => Some(*index),
            _ => None,
        }
    }

    /// Returns the kind with this number in a row of `requests` with this id; `None` if the number is unknown. Rows of
    /// `requests` are never of kind [`Expire`](Self::Expire).
    pub fn from_row(number: i64, id: Key) -> Option<Self> {
        match number {
            1 => Some(Self::Cancel),
            2 => Some(Self::Resume),
            4 => Some(Self::Pause),
            5 => id.item_index().map(Self::CancelItem),
            _ => None,
        }
    }
}

/// The memory that a claimed checkpoint or attempt takes beside its outcome or failure, in bytes.
pub const CLAIMED_ROW_BYTES: usize = 300;

/// An execution with everything recorded about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The row of the execution.
    pub execution: Execution,
    /// The checkpoints, sorted by execution and `order`. Values that are stored as chunks are references.
    pub checkpoints: Vec<Checkpoint>,
    /// The failed attempts, sorted by execution, path and number.
    pub attempts: Vec<Attempt>,
    /// The pending requests.
    pub requests: Vec<RequestKind>,
    /// The events that a suspended execution waits for, in their order; empty for other executions.
    pub waits: Vec<Wait>,
    /// The recorded state of the bundle's items; `None` unless the execution is a bundle. The checkpoints and attempts
    /// are then those of the items.
    ///
    /// An item is *promoted* when it gets a row of its own: from then on it is an execution like any other, whose parent
    /// is the batch.
    pub bundle: Option<Box<BundleRecord>>,
}

impl Record {
    /// Creates the record of an execution of which only the row is loaded.
    pub fn without_details(execution: Execution) -> Self {
        Self {
            execution,
            checkpoints: Vec::new(),
            attempts: Vec::new(),
            requests: Vec::new(),
            waits: Vec::new(),
            bundle: None,
        }
    }

    /// Returns the size that counts towards the [`max_bytes`](super::Claim::max_bytes) of a claim: about the memory that
    /// the input, the checkpoints and the attempts take.
    pub fn claim_bytes(&self) -> usize {
        let outcomes = self.checkpoints.iter().map(|checkpoint| checkpoint.outcome.len());
        let failures = self.attempts.iter().map(|attempt| attempt.failure.len());
        let rows = outcomes.chain(failures).map(|bytes| bytes + CLAIMED_ROW_BYTES);
        let bundle = self.bundle.as_ref().map_or(0, |bundle| bundle.claim_bytes());
        self.execution.input.len() + rows.sum::<usize>() + bundle
    }
}

/// The identifier by which an execution is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionId {
    /// The key.
    Key(Key),
    /// The workflow_id that the caller gave.
    Given(Arc<str>),
}

/// The part of an execution's record to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The row without its input.
    Outcome,
    /// The row with its input, the checkpoints, the attempts and the requests.
    Full,
    /// Like [`Full`](Self::Full), but of the checkpoints and attempts only those from the last continuation on.
    LastPart,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_sleeps_round_trip_and_damage_is_detected() {
        let sleeps: Vec<PendingSleep> = (0..3)
            .map(|i| PendingSleep {
                path: Path::root().child(i * 1000),
                due_at: Timestamp::from_micros(i64::from(i)),
            })
            .collect();
        let bytes = encode_pending_sleeps(&sleeps);
        assert_eq!(decode_pending_sleeps(&bytes), Some(sleeps));
        assert_eq!(decode_pending_sleeps(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_pending_sleeps(&[&bytes[..], &[0]].concat()), None, "one byte too many");
        assert_eq!(decode_pending_sleeps(&[]), Some(Vec::new()));
    }
}
