//! [`Write`]: one durable fact to record; [`Flush`]: a set of Writes; [`Outcome`]: the result of a Write.
//!
//! A flush is a *set of row changes*: no two of its Writes change the same row. No guard depends on a row that another
//! Write of the flush changes, with two exceptions. A Transition ignores requests that a ClearRequests of the flush
//! deletes. Under `max_depth` or a `dedup_id`, a Start's outcome depends on the other Starts of the flush. So a
//! store may apply the Writes grouped by kind. A Wake may or may not find a child's end of the same flush, because
//! another Wake follows that end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Append, Attempt, Checkpoint, Execution, Forward, Message, Pack, Parent, PendingSleep, RequestKind,
    Status, Wait, WorkerId, encode_pending_sleeps,
};
use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;
use crate::queue::Placement;

/// The Writes of one lane that one transaction records.
#[derive(Clone, Debug)]
pub struct Flush {
    /// The worker that sends the flush.
    pub worker: WorkerId,
    /// The lane of the worker.
    pub lane: u16,
    /// The fencing token: the epoch of the lane's row when the worker registered.
    pub epoch: i64,
    /// The number of the flush in its lane: 1, 2, 3, … without gaps.
    pub number: i64,
    /// Whether a flush with this number was sent before, with an unknown outcome.
    pub is_resent: bool,
    /// Whether the engine is searching for a rejected or blocked Write. The store then waits only briefly for locks of
    /// other transactions.
    pub is_bisecting: bool,
    /// The Writes, no two of which change the same row.
    pub writes: Vec<Write>,
}

/// One durable fact to record. Each Write contains its own guard, a precondition that the store checks.
///
/// An *owned* Write belongs to an execution that this worker runs, and is dropped when the worker's registration ends.
/// An *unowned* Write comes from a caller, and is staged again under the worker's next registration.
#[derive(Clone, Debug)]
pub enum Write {
    /// Creates an execution, in the state that it has reached by the time of the flush.
    Start(Box<Start>),
    /// Records the outcome of a durable call: a step, a sleep, a child, or an abandoned call.
    Checkpoint(Checkpoint),
    /// Records a failed attempt of a step.
    Attempt(Attempt),
    /// Moves an execution that this worker runs to another state.
    Transition(Transition),
    /// Makes a `waiting` execution `queued` if one of its wake conditions holds; otherwise the outcome is
    /// [`Outcome::NotFound`]. A resend always returns `Applied` for a Wake, because nothing depends on its outcome.
    ///
    /// A batch has one wake condition: it is closed, all its items are in its bundles, and no bundle and no item with a
    /// row of its own is unfinished. Its Wake ends the batch as `completed` instead, at the store's time, without an
    /// outcome.
    Wake(Key),
    /// Requests that an execution is cancelled, resumed or expired, whether or not a worker runs it.
    Request(Request),
    /// Deletes the requests to an execution after its owner has handled them.
    ClearRequests(Key),
    /// Records one piece of a large value.
    Chunk(Chunk),
    /// Deletes pieces of large values that no row refers to.
    DeleteChunks(DeleteChunks),
    /// Records the outcomes of items of a bundle that this worker runs.
    Pack(Pack),
    /// Closes a batch: no further bundle belongs to it.
    CloseBatch(CloseBatch),
    /// Sends a message to an execution.
    Send(Box<Message>),
    /// Moves kept messages to an execution.
    Forward(Forward),
    /// Appends a value to a stream of an execution.
    Append(Box<Append>),
}

/// The Write that creates an execution.
///
/// The first of these conditions that holds decides the outcome:
/// - The key or the workflow_id exists: [`Duplicate`](Outcome::Duplicate).
/// - An unfinished execution of the queue has the dedup_id: [`Deduplicated`](Outcome::Deduplicated), or `Duplicate`
///   for a [debounced](Self::debounce_window) Start, which is merged into the other execution.
/// - The queue is full, and the Start [obeys](Self::can_be_rejected) that limit: [`Full`](Outcome::Full).
/// - The Start [claims itself](Self::self_claims), but the queue does not allow that: [`Queued`](Outcome::Queued).
/// - A bundle does not fit into its batch: [`NotFound`](Outcome::NotFound).
/// - Otherwise: [`Applied`](Outcome::Applied).
///
/// A bundle fits if its batch is unfinished, and open or large enough, and if its first item follows the last item of the
/// batch's bundles. The Start of the batch, and those of earlier bundles in ascending order, may be in the same flush.
#[derive(Clone, Debug)]
pub struct Start {
    /// The key of the new execution.
    pub key: Key,
    /// The key of the root of its tree: its own key for a root.
    pub root: Key,
    /// The parent; `None` for a root.
    pub parent: Option<Parent>,
    /// The workflow_id that the caller gave; `None` if the workflow_id is the text of the key.
    pub workflow_id: Option<Arc<str>>,
    /// The registered name of the workflow.
    pub workflow: Arc<str>,
    /// The fingerprint of the input; `None` unless the caller gave a workflow_id.
    pub fingerprint: Option<u64>,
    /// The version of the code that may run the execution; `None` for any.
    pub app_version: Option<Arc<str>>,
    /// The execution's position whenever it is queued; `None` for the default queue.
    pub placement: Option<Arc<Placement>>,
    /// An id that at most one unfinished execution of the queue has.
    pub dedup_id: Option<Arc<str>>,
    /// The debounce window: the maximum time from the creation of a debounced execution until it is due.
    ///
    /// If an execution with the same `dedup_id` is still `scheduled`, this Start is merged into it. The execution gets
    /// the input, placement, app_version, run_timeout and due time of this Start. The due time never exceeds the
    /// execution's own `created_at` plus the window. The outcome is then [`Duplicate`](Outcome::Duplicate).
    ///
    /// A debounced Start has the state `Scheduled`, but no parent, workflow_id, deadline or attributes.
    pub debounce_window: Option<Duration>,
    /// The encoded input.
    pub input: Payload,
    /// The time of the caller's start, by the store's clock; the Start is durable slightly later.
    pub created_at: Timestamp,
    /// The time at which the execution is cancelled unless it has ended.
    pub deadline_at: Option<Timestamp>,
    /// The maximum time from the claim with which the execution begins until its end.
    pub run_timeout: Option<Duration>,
    /// The attributes of the execution.
    pub attributes: Attributes,
    /// The number of items in a bundle or in a closed batch; `None` for an open batch. The [key](Key::batch) says whether
    /// the execution is a batch or a bundle. For an item, 1 says that the item is retried: its row overrides a packed
    /// failure. `None` for other items, and for all other executions.
    pub item_count: Option<u64>,
    /// Whether the key or the workflow_id may already exist in the database. If so, no other Write of the tree may
    /// enter a flush before the outcome of the Start is known.
    pub is_guarded: bool,
    /// Whether the execution ran before its Start was flushed. If so, the execution may have checkpoints, and when it
    /// is queued it comes before executions that have not begun.
    pub has_begun: bool,
    /// Whether the Start claims itself: it runs at once if its queue has no limits and is not paused. Otherwise the
    /// execution is queued, and the outcome is [`Queued`](Outcome::Queued).
    ///
    /// Only the Start of a root may claim itself. Such a Start has a placement and the state `Running`, and no
    /// workflow_id, dedup_id or time limits.
    pub self_claims: bool,
    /// The state in which the row is created.
    pub state: State,
}

/// The Write that moves a running execution to another state, or updates its pending sleeps.
///
/// Guard: the row is `running` and owned by the flush's worker; otherwise the outcome is [`Outcome::NotFound`].
///
/// A request may have been recorded since the owner's last heartbeat, so pending requests change the effect, unless
/// the flush [clears](Write::ClearRequests) them:
/// - If a cancel is pending, a Transition to `Waiting` or `Parked` makes the execution `queued` instead. If a pause is
///   pending, a Transition to `Waiting` does so. The next owner handles the requests.
/// - A Transition to `Parked` deletes the pending pauses. If the execution is parked because of a pause, but none is
///   pending, a resume has withdrawn the pause, and the execution becomes `queued` instead.
/// - A Transition to `Ended` deletes the requests. If a cancel is among them, the execution ends as `cancelled`,
///   whatever status the Transition contains. The outcome is then [`Cancelled`](Outcome::Cancelled).
///
/// A Transition to any state but `Running` frees the execution's slot in its queue.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The key of the execution.
    pub key: Key,
    /// The execution's placement, as in its row.
    pub placement: Option<Arc<Placement>>,
    /// The new state.
    pub state: State,
}

/// The state of an execution: its status, and the rows that it has in `ready`, `timers` and `waits`.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The flush's worker runs the execution. A [`Transition`] to this state only updates the pending sleeps.
    Running {
        /// The sleeps that are not over.
        pending_sleeps: Vec<PendingSleep>,
    },
    /// The execution waits for a worker, and has a row in `ready`.
    Queued {
        /// The sleeps that are not over.
        pending_sleeps: Vec<PendingSleep>,
    },
    /// The execution may not begin before its due time: it has a row in `timers`. Only a [`Start`] has this state.
    Scheduled {
        /// The time from which on the execution may begin.
        due_at: Timestamp,
    },
    /// The execution is suspended until one of its wake conditions holds.
    Waiting {
        /// The earliest due time of the sleeps, which is a row in `timers`; `None` if no sleep wakes the execution.
        wake_at: Option<Timestamp>,
        /// The events that wake the execution. Each has a row in `waits`.
        waits: Vec<Wait>,
        /// The sleeps that are not over.
        pending_sleeps: Vec<PendingSleep>,
    },
    /// The execution is parked: `queued`, but not ready.
    Parked {
        /// The reason: an encoded [`Failure`](crate::Failure).
        reason: Payload,
        /// The sleeps that are not over.
        pending_sleeps: Vec<PendingSleep>,
        /// Whether the execution is parked because of a pending pause.
        is_pause: bool,
    },
    /// The execution has ended.
    Ended {
        /// The final status: `completed`, `failed` or `cancelled`.
        status: Status,
        /// The output, or an encoded [`Failure`](crate::Failure).
        outcome: Payload,
        /// The time of the end.
        at: Timestamp,
    },
}

/// The Write that cancels, resumes, expires or pauses an execution.
///
/// A request to an execution that no worker runs takes effect at once. A cancel or pause of a running execution becomes
/// a row in `requests`, and the owner handles it. The outcome is [`Outcome::RequestHandled`] or [`Outcome::NotFound`].
///
/// - [`Cancel`](RequestKind::Cancel) applies to the execution and to all awaited children below it, atomically.
/// - [`Resume`](RequestKind::Resume) makes a parked, `failed` or `cancelled` execution `queued`. For an ended execution
///   it also increments `run_no`, so that children get new keys, and clears the outcome and the deadline. The request
///   deletes pending pauses; a pending cancel stays. For a `failed` execution the request also deletes the failures of
///   steps at the end of the record, with their attempts. These steps are then tried again. For any other execution
///   with a pending pause the request only deletes the pending pauses.
/// - [`Expire`](RequestKind::Expire) ends an execution whose deadline is not after `at`, in the same way as a cancel.
///   Otherwise the request is not applicable. An expiry is never applicable to a running execution, because the owner
///   enforces the deadline.
/// - [`CancelItem`](RequestKind::CancelItem) is recorded for a bundle that has not ended, and stays until the bundle ends.
/// - [`Pause`](RequestKind::Pause) parks a `queued` or `waiting` execution with `reason`, and deletes its pending
///   pauses. A parked execution stays as it is. A pause is not applicable to a `scheduled` execution.
///
/// A pause and a resume are not applicable to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The key of the execution.
    pub execution: Key,
    /// The id of the request, minted by the sender.
    pub id: Key,
    /// The requested action.
    pub kind: RequestKind,
    /// The time of the request.
    pub at: Timestamp,
    /// The outcome of the executions that a cancel ends or a pause parks: an encoded [`Failure`](crate::Failure). Empty
    /// for a resume.
    pub reason: Payload,
}

impl Request {
    /// Decides the request by the present state of its execution. `has_pause` says whether a pause is pending, and
    /// matters for a resume only. Unless the result is [`NotApplicable`](RequestResult::NotApplicable), the request
    /// takes effect.
    pub fn decide(
        &self,
        status: Status,
        is_parked: bool,
        deadline_at: Option<Timestamp>,
        has_pause: bool,
    ) -> RequestResult {
        let is_applicable = match self.kind {
            // the bundles of a batch would continue
            RequestKind::Pause | RequestKind::Resume if self.execution.is_batch() => false,
            RequestKind::Cancel | RequestKind::CancelItem(_) => !status.is_terminal(),
            RequestKind::Expire => {
                let has_expired = deadline_at.is_some_and(|at| at <= self.at);
                has_expired && status != Status::Running && !status.is_terminal()
            }
            RequestKind::Resume => {
                continues_in_place(status, is_parked) || has_pause && !status.is_terminal()
            }
            RequestKind::Pause => matches!(status, Status::Queued | Status::Running | Status::Waiting),
        };
        match status {
            _ if !is_applicable => RequestResult::NotApplicable(status),
            // the worker that runs the bundle next handles the request
            _ if matches!(self.kind, RequestKind::CancelItem(_)) => RequestResult::Pending,
            Status::Running if self.kind != RequestKind::Resume => RequestResult::Pending,
            _ => RequestResult::Done,
        }
    }

    /// Returns the kind with which the request is recorded for a running execution. An expiry of a parent reaches its
    /// running children as a cancel.
    pub fn recorded_kind(&self) -> RequestKind {
        if self.kind == RequestKind::Expire { RequestKind::Cancel } else { self.kind }
    }

    /// Returns the outcome of the request with this result. `parent` is the parent of the execution.
    pub fn outcome(&self, result: RequestResult, parent: Option<Key>) -> Outcome {
        let ends = matches!(self.kind, RequestKind::Cancel | RequestKind::Expire);
        let has_ended_it = result == RequestResult::Done && ends;
        Outcome::RequestHandled(result, parent.filter(|_| has_ended_it))
    }
}

/// Whether a resume continues an execution in this state. Otherwise a resume can only withdraw a pending pause.
pub fn continues_in_place(status: Status, is_parked: bool) -> bool {
    is_parked || matches!(status, Status::Failed | Status::Cancelled)
}

/// Returns the outcome of an execution that was cancelled on request: an encoded [`Failure`](crate::Failure).
pub fn cancel_outcome() -> Payload {
    static OUTCOME: std::sync::LazyLock<Payload> =
        std::sync::LazyLock::new(|| crate::Payload::from_failure(&crate::Failure::cancelled()));
    OUTCOME.clone()
}

/// The result of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// The request has taken effect.
    Done,
    /// The request is recorded, and the worker that runs the execution will handle it.
    Pending,
    /// The request is too late or unnecessary, because the execution has this status.
    NotApplicable(Status),
}

/// The Write that records one piece of a large value. Insert-only: an existing piece stays as it is.
///
/// A chunk without bytes *withdraws* the value, because no row will refer to it: the store deletes all pieces of the
/// value, also those that the same flush inserts.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The key of the execution.
    pub execution: Key,
    /// The number of the value.
    pub value: u64,
    /// The number of the piece, from 0.
    pub index: u32,
    /// The bytes of the piece. Empty to withdraw the value.
    pub bytes: Bytes,
    /// Whether the piece belongs to the input of an execution that a caller starts.
    pub is_unowned: bool,
}

impl Chunk {
    /// Returns the Write that withdraws a value.
    pub fn withdrawal(execution: Key, value: u64) -> Self {
        Self { execution, value, index: u32::MAX, bytes: Bytes::new(), is_unowned: false }
    }

    /// Whether the Write withdraws its value.
    pub fn is_withdrawal(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The Write that deletes pieces of large values that a disowned run of the execution left behind.
///
/// The same flush may not contain a [`Chunk`] of the execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteChunks {
    /// The key of the execution.
    pub execution: Key,
    /// The numbers of the values whose pieces stay, because rows refer to them.
    pub keep: SmallVec<[u64; 4]>,
}

/// The Write that closes a batch.
///
/// Guard: the batch is open and its bundles have this number of items, or it is closed or has ended with this number;
/// otherwise the outcome is [`Outcome::NotFound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseBatch {
    /// The key of the batch.
    pub batch: Key,
    /// The number of items in the batch.
    pub item_count: u64,
}

/// The result of a Write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The Write is durable.
    Applied,
    /// The [self-claiming](Start::self_claims) Start is durable, but its execution waits in the queue.
    Queued,
    /// The Start found an execution with its key or workflow_id, or was merged into a debounced execution.
    Duplicate(Box<ExistingExecution>),
    /// The Start found an unfinished execution of the queue with the Start's dedup_id. `None` if that execution has
    /// ended since.
    Deduplicated(Option<Box<ExistingExecution>>),
    /// The queue of the Start has reached its maximum depth.
    Full,
    /// The result of the request, and the parent of the execution if the request ended it.
    RequestHandled(RequestResult, Option<Key>),
    /// The Checkpoint or the Attempt is durable, and a cancel of its execution is pending. The owner handles the
    /// cancel before another body begins.
    CancelRequested,
    /// The Transition to an end found a pending cancel: the execution has ended as `cancelled`.
    Cancelled,
    /// A message with this id was sent to the execution before.
    AlreadySent,
    /// The message was not sent, because the execution has ended with this status.
    Ended(Status),
    /// The guard of the Write does not hold: the row does not exist, or this worker does not own it.
    NotFound,
    /// Another worker has taken over the sender: its lane records nothing any more.
    Fenced,
    /// The database rejected the Write, for this reason.
    Rejected(Arc<str>),
    /// The Write was not recorded, because it depended on another Write that was not recorded.
    Dropped,
}

/// The execution that a Start found instead of creating its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingExecution {
    /// The key of the execution.
    pub key: Key,
    /// The workflow_id that its caller gave; `None` if the workflow_id is the text of the key.
    pub given_id: Option<Arc<str>>,
    /// The workflow of the execution.
    pub workflow: Arc<str>,
    /// The fingerprint of the execution's input; `None` unless its caller gave a workflow_id.
    pub fingerprint: Option<u64>,
    /// The key of the execution's parent.
    pub parent: Option<Key>,
    /// The status of the execution when the Start found it.
    pub status: Status,
}

impl ExistingExecution {
    /// Returns the workflow_id: the id that the caller gave, or else the text of the key.
    pub fn workflow_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }
}

impl From<&Execution> for ExistingExecution {
    fn from(execution: &Execution) -> Self {
        Self {
            key: execution.key,
            given_id: execution.given_id.clone(),
            workflow: execution.workflow.clone(),
            fingerprint: execution.fingerprint,
            parent: execution.parent.as_ref().map(|parent| parent.key),
            status: execution.status,
        }
    }
}

impl Write {
    /// Returns the key of the execution whose rows the Write changes.
    pub fn execution(&self) -> Key {
        match self {
            Write::Start(start) => start.key,
            Write::Checkpoint(checkpoint) => checkpoint.execution,
            Write::Attempt(attempt) => attempt.execution,
            Write::Transition(transition) => transition.key,
            Write::Wake(key) | Write::ClearRequests(key) => *key,
            Write::Request(request) => request.execution,
            Write::Chunk(chunk) => chunk.execution,
            Write::DeleteChunks(deletion) => deletion.execution,
            Write::Pack(pack) => pack.bundle,
            Write::CloseBatch(close) => close.batch,
            Write::Send(message) => message.execution,
            Write::Forward(forward) => forward.execution,
            Write::Append(append) => append.execution,
        }
    }

    /// Whether the Write is owned: the lane drops it when the worker's registration ends.
    pub fn is_owned(&self) -> bool {
        match self {
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::Transition(_)
            | Write::ClearRequests(_)
            | Write::DeleteChunks(_)
            | Write::Append(_)
            | Write::Pack(_) => true,
            Write::Chunk(chunk) => !chunk.is_unowned,
            Write::Send(message) => message.is_owned,
            Write::Start(start) => {
                start.parent.is_some() && (start.item_count.is_none() || start.key.is_batch())
            }
            Write::Wake(_) | Write::Request(_) | Write::CloseBatch(_) | Write::Forward(_) => false,
        }
    }

    /// Returns the size in bytes that counts towards the limits of a flush and the budget of a lane: the payloads, the
    /// texts, and a fixed part for each row.
    pub fn size(&self) -> usize {
        ROW_SIZE
            + match self {
                Write::Start(start) => {
                    start.input.len()
                        + start.workflow_id.as_ref().map_or(0, |id| id.len())
                        + start
                            .placement
                            .as_ref()
                            .map_or(0, |placement| placement.queue.len() + placement.key.len())
                        + start.dedup_id.as_ref().map_or(0, |id| id.len())
                        + start.attributes.size()
                        + start.state.size()
                }
                Write::Checkpoint(checkpoint) => {
                    checkpoint.outcome.len() + checkpoint.name.len() + checkpoint.path.as_bytes().len()
                }
                Write::Attempt(attempt) => attempt.failure.len() + attempt.path.as_bytes().len(),
                Write::Transition(transition) => transition.state.size(),
                Write::Chunk(chunk) => chunk.bytes.len(),
                Write::Request(request) => request.reason.len(),
                Write::DeleteChunks(deletion) => deletion.keep.len() * size_of::<u64>(),
                Write::Pack(pack) => pack.size(),
                Write::Send(message) => message.size(),
                Write::Append(append) => append.stream.len() + append.entry.value.len(),
                Write::Wake(_) | Write::ClearRequests(_) | Write::CloseBatch(_) | Write::Forward(_) => 0,
            }
    }
}

/// The part of a Write's [size](Write::size) that does not depend on its contents, in bytes.
const ROW_SIZE: usize = 128;

impl Start {
    /// Whether the execution is a bundle.
    pub fn is_bundle(&self) -> bool {
        self.key.is_bundle()
    }

    /// Whether the execution is an item whose packed failure the new row overrides.
    pub fn is_retried_item(&self) -> bool {
        self.item_count.is_some() && self.key.item_index().is_some()
    }

    /// Returns the index of the first item of this bundle; `None` unless the execution is a bundle with items.
    pub fn first_item(&self) -> Option<u32> {
        self.key.first_index(self.item_count?)
    }

    /// Whether the queue decides if the execution runs: the Start [claims itself](Self::self_claims), and the
    /// execution has not left the state `Running` since.
    pub fn is_self_claiming(&self) -> bool {
        self.self_claims && matches!(self.state, State::Running { .. })
    }

    /// Returns the placement in which the execution waits to begin; `None` if it has begun, or has no placement.
    pub fn waiting_placement(&self) -> Option<&Placement> {
        let waits = match &self.state {
            State::Queued { .. } => !self.has_begun,
            State::Scheduled { .. } => true,
            _ => self.is_self_claiming(),
        };
        self.placement.as_deref().filter(|_| waits)
    }

    /// Whether a [full](Outcome::Full) queue rejects the Start. Starts of children and debounced Starts enter a full
    /// queue.
    pub fn can_be_rejected(&self) -> bool {
        self.parent.is_none() && self.debounce_window.is_none()
    }

    /// Returns the dedup_id that no other execution of the queue can have; `None` once the execution has ended.
    pub fn active_dedup_id(&self) -> Option<&Arc<str>> {
        self.dedup_id.as_ref().filter(|_| !self.state.status().is_terminal())
    }
}

impl State {
    /// Returns the status in the execution's row.
    pub fn status(&self) -> Status {
        match self {
            State::Running { .. } => Status::Running,
            State::Queued { .. } | State::Parked { .. } => Status::Queued,
            State::Scheduled { .. } => Status::Scheduled,
            State::Waiting { .. } => Status::Waiting,
            State::Ended { status, .. } => *status,
        }
    }

    /// Returns the pending sleeps in the execution's row.
    pub fn pending_sleeps(&self) -> &[PendingSleep] {
        match self {
            State::Running { pending_sleeps }
            | State::Queued { pending_sleeps }
            | State::Waiting { pending_sleeps, .. }
            | State::Parked { pending_sleeps, .. } => pending_sleeps,
            State::Scheduled { .. } | State::Ended { .. } => &[],
        }
    }

    /// Returns the encoded [pending sleeps](Self::pending_sleeps); `None` if there are none.
    pub fn encoded_sleeps(&self) -> Option<Vec<u8>> {
        let sleeps = self.pending_sleeps();
        (!sleeps.is_empty()).then(|| encode_pending_sleeps(sleeps))
    }

    /// Whether the execution is parked.
    pub fn is_parked(&self) -> bool {
        matches!(self, State::Parked { .. })
    }

    /// Returns the outcome in the execution's row: the outcome of its end, or the reason why it is parked.
    pub fn outcome(&self) -> Option<&Payload> {
        match self {
            State::Parked { reason: outcome, .. } | State::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Returns the time of the execution's end; `None` if it has not ended.
    pub fn ended_at(&self) -> Option<Timestamp> {
        match self {
            State::Ended { at, .. } => Some(*at),
            _ => None,
        }
    }

    fn size(&self) -> usize {
        match self {
            State::Running { pending_sleeps } | State::Queued { pending_sleeps } => pending_sleeps.len() * 32,
            State::Waiting { waits, pending_sleeps, .. } => {
                waits.iter().map(Wait::size).sum::<usize>() + pending_sleeps.len() * 32
            }
            State::Parked { reason, .. } => reason.len(),
            State::Scheduled { .. } => 0,
            State::Ended { outcome, .. } => outcome.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(attributes: Attributes) -> Write {
        Write::Start(Box::new(Start {
            key: Key::mint(0),
            root: Key::mint(0),
            parent: None,
            workflow_id: None,
            workflow: "w".into(),
            fingerprint: None,
            app_version: None,
            placement: None,
            dedup_id: None,
            debounce_window: None,
            input: Payload::empty(),
            created_at: Timestamp::from_micros(0),
            deadline_at: None,
            run_timeout: None,
            attributes,
            item_count: None,
            is_guarded: false,
            has_begun: false,
            self_claims: false,
            state: State::Running { pending_sleeps: Vec::new() },
        }))
    }

    #[test]
    fn attributes_count_towards_the_size() {
        let mut attributes = Attributes::default();
        for n in 0..64 {
            attributes.set(format!("{n:0128}"), "v".repeat(1024));
        }
        let bytes = 64 * (128 + 1024);
        assert!(start(attributes).size() >= start(Attributes::NONE).size() + bytes);
    }

    #[test]
    fn reason_of_a_request_counts_towards_the_size() {
        let request = |reason: Payload| {
            let (execution, id, at) = (Key::mint(0), Key::mint(0), Timestamp::from_micros(0));
            Write::Request(Request { execution, id, kind: RequestKind::Cancel, at, reason })
        };
        let reason = Payload::encode(&"r".repeat(1000)).unwrap();
        assert!(request(reason).size() >= request(Payload::empty()).size() + 1000);
    }
}
