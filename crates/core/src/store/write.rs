//! [`Write`]: one durable fact to record; [`Flush`]: a set of them; [`Outcome`]: what became of each.
//!
//! A flush is a *set of row changes*: no two of its Writes change the same row, and no guard depends on a
//! row that another Write of the flush changes. So a store may apply it grouped by kind, in any order.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{PendingSleep, Attempt, Checkpoint, Parent, RequestKind, Status, WorkerId};
use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;
use crate::queue::Placement;

/// One transaction's worth of Writes from one lane.
#[derive(Clone, Debug)]
pub struct Flush {
    /// Whose flush it is.
    pub worker: WorkerId,
    /// The worker's lane.
    pub lane: u16,
    /// The fencing token: the epoch of the lane's row when the worker registered.
    pub epoch: i64,
    /// The flush's number in its lane: 1, 2, 3, … without gaps.
    pub number: i64,
    /// True when this number was sent before and nobody knows what became of it.
    pub is_resent: bool,
    /// True while the engine looks for an item that is refused or blocked: wait for other people's locks
    /// only briefly.
    pub is_bisecting: bool,
    /// The row changes.
    pub writes: Vec<Write>,
}

/// One durable fact to record.
///
/// *Owned* Writes belong to an execution that this worker runs, and die with its ownership. *Free* ones
/// come from callers and are staged again under a new registration.
#[derive(Clone, Debug)]
pub enum Write {
    /// Creates an execution, in the state it has reached meanwhile.
    Start(Box<Start>),
    /// Records a delivery: the outcome of a step, a timer, a child, or that a call was abandoned.
    Checkpoint(Checkpoint),
    /// Records a failed attempt of a step.
    Attempt(Attempt),
    /// Moves an execution that this worker runs to another state.
    Transition(Move),
    /// Makes a `waiting` execution `queued` if one of its conditions holds; else [`Outcome::NotFound`].
    Wake(Key),
    /// Asks for something to be done with an execution, whoever runs it.
    Request(Request),
    /// Deletes the requests of an execution that its owner has answered.
    ClearRequests(Key),
    /// One piece of a large value.
    Chunk(Chunk),
    /// Deletes pieces that nothing refers to.
    DeleteChunks(DeleteChunks),
}

/// Creates an execution.
///
/// Outcome: [`Applied`](Outcome::Applied), [`Queued`](Outcome::Queued), [`Duplicate`](Outcome::Duplicate) if the key
/// or the workflow_id is there already, else [`Deduplicated`](Outcome::Deduplicated) if another has the dedup_id, else
/// [`Full`](Outcome::Full) if its queue is.
#[derive(Clone, Debug)]
pub struct Start {
    /// Key of the new row.
    pub key: Key,
    /// Key of the root of its tree; its own for a root.
    pub root: Key,
    /// What started it, for a child.
    pub parent: Option<Parent>,
    /// The caller's id, where one was given that is not a key's text.
    pub workflow_id: Option<Arc<str>>,
    /// Registered name of the workflow.
    pub workflow: Arc<str>,
    /// Fingerprint of the input, for ids given by callers.
    pub fingerprint: Option<u64>,
    /// The version of the code that may run it; `None` for any.
    pub app_version: Option<Arc<str>>,
    /// Where it stands whenever it is queued; `None` for the default queue.
    pub placement: Option<Arc<Placement>>,
    /// In its queue there is one at most that has this and has not ended.
    pub dedup_id: Option<Arc<str>>,
    /// It is debounced: if another has its dedup_id, that gets its input, and comes when this would, but not later than so
    /// long after it was accepted. Then the outcome is [`Duplicate`](Outcome::Duplicate). For one that is `Scheduled`, with
    /// nothing else special about it.
    pub debounce_window: Option<Duration>,
    /// The encoded input.
    pub input: Payload,
    /// When its start was called, by the store's clock; it is durable somewhat later.
    pub created_at: Timestamp,
    /// When it is cancelled unless it has ended.
    pub deadline_at: Option<Timestamp>,
    /// So long after the claim that lets it begin, at the latest.
    pub run_timeout: Option<Duration>,
    /// What it is found by.
    pub attributes: Attributes,
    /// True if the key or id may be in the database already: nothing else of the tree may then enter a
    /// flush before the outcome is known.
    pub is_guarded: bool,
    /// True if it has run meanwhile: something may be recorded of it, and when it is queued it is in front of what has not
    /// begun.
    pub has_begun: bool,
    /// True if it runs at once only where its queue has no limits and is not paused; else it is queued, and the outcome
    /// is [`Queued`](Outcome::Queued). For a root with a ticket and nothing else special about it, in the state
    /// `Running`.
    pub self_claims: bool,
    /// The state in which the row is created.
    pub state: State,
}

/// Moves an execution to another state.
///
/// Guard: the row is `running` and owned by the flush's worker; else [`Outcome::NotFound`].
///
/// A request may have been recorded since the owner last looked. So a Move to `Waiting` or `Parked` of an
/// execution with requests that the flush does not [answer](Write::Answer) makes it `queued` instead, and
/// its next owner answers. A Move to `Ended` deletes them, and ends the execution as `cancelled` whatever end it
/// asked for, which its outcome [`Cancelled`](Outcome::Cancelled) says. Whatever it is moved to, if that is not
/// `Running` its slot in its queue is free.
#[derive(Clone, Debug)]
pub struct Move {
    /// The execution.
    pub key: Key,
    /// Where it stands whenever it is queued, as its row says.
    pub ticket: Option<Arc<Placement>>,
    /// Its new state.
    pub state: State,
}

/// The state of an execution's row, with what its role tables hold.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Owned by the flush's worker, with the due times it has promised so far. As a Move: stays running.
    Running {
        /// Due times of sleeps that are going on.
        armed: Vec<PendingSleep>,
    },
    /// Ready to be claimed: a row in `ready`.
    Queued {
        /// Due times of sleeps that are going on.
        armed: Vec<PendingSleep>,
    },
    /// Not before this time: a row in `timers`. Only of a new execution.
    Scheduled {
        /// When it may begin.
        due_at: Timestamp,
    },
    /// Suspended until one of the conditions holds.
    Waiting {
        /// Earliest due time: a row in `timers`.
        wake_at: Option<Timestamp>,
        /// Any of these ending wakes it: rows in `waits`.
        children: Vec<Key>,
        /// Due times of all its sleeps.
        armed: Vec<PendingSleep>,
    },
    /// `queued` and paused, with the reason (an encoded [`Failure`](crate::Failure)); not claimable.
    Parked {
        /// Why.
        reason: Payload,
        /// Due times of sleeps that are going on.
        armed: Vec<PendingSleep>,
    },
    /// Over.
    Ended {
        /// `completed`, `failed` or `cancelled`.
        status: Status,
        /// The output, or an encoded [`Failure`](crate::Failure).
        outcome: Payload,
        /// When.
        at: Timestamp,
    },
}

/// Asks for something to be done with an execution.
///
/// The Write itself moves a target that nobody runs. A running one gets a row in `requests`, and its owner
/// answers. A cancel goes on to all awaited children, atomically. Outcome: [`Outcome::Answered`], or
/// [`Outcome::NotFound`].
///
/// Resume moves a parked execution back to `queued`; a `failed` or `cancelled` one too, and bumps its
/// `run_no` (its children get fresh keys), clears outcome, deadline and requests. Of a failed one it takes back the
/// failures of steps after which nothing else was delivered, with their attempts: those steps are tried again.
///
/// Expire ends a target whose deadline is not after `at`, as a cancel does. It is declined where nothing has expired, and
/// by what runs: its owner heeds the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The execution.
    pub execution: Key,
    /// Number of the request, minted by who asks.
    pub id: Key,
    /// What is asked for.
    pub kind: RequestKind,
    /// When.
    pub at: Timestamp,
    /// The outcome of what a cancel ends: an encoded [`Failure`](crate::Failure); empty for a resume.
    pub reason: Payload,
}

/// Returns the outcome of an execution that ends as cancelled because a request asked for that: an encoded
/// [`Failure`](crate::Failure).
pub fn cancel_outcome() -> Payload {
    static OUTCOME: std::sync::LazyLock<Payload> =
        std::sync::LazyLock::new(|| crate::Payload::from_failure(&crate::Failure::cancelled()));
    OUTCOME.clone()
}

/// How a [`Request`] was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// It is done.
    Done,
    /// It is recorded; the worker that runs the execution will do it.
    Pending,
    /// Too late, or not needed: the execution has this status.
    NotApplicable(Status),
}

/// One piece of a large value. Insert-only; a piece that is there already is left as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The execution.
    pub execution: Key,
    /// Number of the value.
    pub value: u64,
    /// Number of the piece, from 0.
    pub index: u32,
    /// The bytes.
    pub bytes: Bytes,
    /// True for a piece of the input of an execution that a caller starts.
    pub is_unowned: bool,
}

/// Deletes all pieces of an execution's values except those of `keep`: what a lost run of it has left
/// behind. Nothing may store pieces for the execution in the same flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteChunks {
    /// The execution.
    pub execution: Key,
    /// Values that something refers to.
    pub keep: SmallVec<[u64; 4]>,
}

/// What became of a Write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is durable.
    Applied,
    /// A Start that [yields](Start::yields) is durable, and has to wait in its queue.
    Queued,
    /// A Start whose key or workflow_id is there already.
    Duplicate(Box<ExistingExecution>),
    /// A Start whose dedup_id another has that has not ended; `None` if it has ended since.
    Deduplicated(Option<Box<ExistingExecution>>),
    /// A Start whose queue has reached its maximal depth.
    Full,
    /// A request's answer, and the parent of an execution that it ended.
    RequestHandled(RequestResult, Option<Key>),
    /// A Checkpoint or an Attempt is durable, and a cancel of its execution is asked for: the owner answers it
    /// before another body begins.
    CancelRequested,
    /// A Move to an end met a cancel that was not answered: the execution has ended as `cancelled`.
    Cancelled,
    /// Its guard does not hold: there is no such row, or it is not ours.
    NotFound,
    /// Another worker has taken over; nothing of this lane lands any more.
    Fenced,
    /// The database does not accept this item, for the reason given.
    Rejected(Arc<str>),
    /// Something that it depended on was lost, so it was not written.
    Dropped,
}

/// The execution that was there first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingExecution {
    /// Its key.
    pub key: Key,
    /// The id that its caller gave.
    pub given_id: Option<Arc<str>>,
    /// Its workflow.
    pub workflow: Arc<str>,
    /// Fingerprint of its input, where it has one.
    pub fingerprint: Option<u64>,
    /// Its parent.
    pub parent: Option<Key>,
    /// Its status when the Start lost.
    pub status: Status,
}

impl ExistingExecution {
    /// Its id for people: what its caller gave, else its key's text.
    pub fn workflow_id(&self) -> String {
        self.key.workflow_id(self.given_id.as_deref())
    }
}

impl Write {
    /// The execution whose rows it changes.
    pub fn execution(&self) -> Key {
        match self {
            Write::Start(start) => start.key,
            Write::Checkpoint(checkpoint) => checkpoint.execution,
            Write::Attempt(attempt) => attempt.execution,
            Write::Transition(change) => change.key,
            Write::Wake(key) | Write::ClearRequests(key) => *key,
            Write::Request(request) => request.execution,
            Write::Chunk(chunk) => chunk.execution,
            Write::DeleteChunks(discard) => discard.execution,
        }
    }

    /// True if it dies with the worker's ownership.
    pub fn is_owned(&self) -> bool {
        match self {
            Write::Checkpoint(_)
            | Write::Attempt(_)
            | Write::Transition(_)
            | Write::ClearRequests(_)
            | Write::DeleteChunks(_) => true,
            Write::Chunk(chunk) => !chunk.is_unowned,
            Write::Start(start) => start.parent.as_ref().is_some(),
            Write::Wake(_) | Write::Request(_) => false,
        }
    }

    /// The room it takes under the bound on a flush, in bytes: its payloads and a share for its row. Attributes do not count.
    pub fn size(&self) -> usize {
        128 + match self {
            Write::Start(start) => {
                start.input.len()
                    + start.workflow_id.as_ref().map_or(0, |id| id.len())
                    + start.placement.as_ref().map_or(0, |ticket| ticket.queue.len() + ticket.key.len())
                    + start.dedup_id.as_ref().map_or(0, |id| id.len())
                    + start.state.size()
            }
            Write::Checkpoint(checkpoint) => checkpoint.outcome.len() + checkpoint.name.len(),
            Write::Attempt(attempt) => attempt.failure.len(),
            Write::Transition(change) => change.state.size(),
            Write::Chunk(chunk) => chunk.bytes.len(),
            Write::Wake(_) | Write::Request(_) | Write::ClearRequests(_) | Write::DeleteChunks(_) => 0,
        }
    }
}

impl Start {
    /// True if its queue decides whether it runs: it [yields](Self::yields), and has not ended meanwhile.
    pub fn is_self_claiming(&self) -> bool {
        self.self_claims && matches!(self.state, State::Running { .. })
    }

    /// Where it waits for its beginning, if it has to.
    pub fn waiting_placement(&self) -> Option<&Placement> {
        let waits = match &self.state {
            State::Queued { .. } => !self.has_begun,
            State::Scheduled { .. } => true,
            _ => self.is_self_claiming(),
        };
        self.placement.as_deref().filter(|_| waits)
    }

    /// True if its queue may [refuse](Outcome::Full) it: what a workflow starts enters a full one too, and what is debounced.
    pub fn can_be_rejected(&self) -> bool {
        self.parent.is_none() && self.debounce_window.is_none()
    }

    /// The dedup_id that nobody else of its queue can have while it is there: none any more if it has ended.
    pub fn active_dedup_id(&self) -> Option<&Arc<str>> {
        self.dedup_id.as_ref().filter(|_| !self.state.status().is_terminal())
    }
}

impl State {
    /// The status that the row shows.
    pub fn status(&self) -> Status {
        match self {
            State::Running { .. } => Status::Running,
            State::Queued { .. } | State::Parked { .. } => Status::Queued,
            State::Scheduled { .. } => Status::Scheduled,
            State::Waiting { .. } => Status::Waiting,
            State::Ended { status, .. } => *status,
        }
    }

    /// The due times the row keeps.
    pub fn armed(&self) -> &[PendingSleep] {
        match self {
            State::Running { armed }
            | State::Queued { armed }
            | State::Waiting { armed, .. }
            | State::Parked { armed, .. } => armed,
            State::Scheduled { .. } | State::Ended { .. } => &[],
        }
    }

    fn size(&self) -> usize {
        match self {
            State::Running { armed } | State::Queued { armed } => armed.len() * 32,
            State::Waiting { children, armed, .. } => (children.len() + armed.len()) * 32,
            State::Parked { reason, .. } => reason.len(),
            State::Scheduled { .. } => 0,
            State::Ended { outcome, .. } => outcome.len(),
        }
    }
}
