//! Random histories: operations of several workers on a database, in a form that can be generated and shrunk.
//!
//! [`differential`](crate::model::differential) applies a history to several stores in parallel. It omits drafts of
//! Writes that break the rule that a flush is a set of row changes.

#![allow(missing_docs)] // fields have the names of those of the Writes that the drafts become

use proptest::collection::vec;
use proptest::prelude::*;
use stepfast_core::store::{RequestKind, Status};

/// Number of executions in a history.
pub const EXECUTIONS: usize = 12;
/// The batch among the executions.
pub const BATCH: usize = 8;
/// The bundles of the batch, of which each has [`BUNDLE_ITEMS`] items.
pub const BUNDLES: [usize; 2] = [9, 10];
/// The number of items in a bundle.
pub const BUNDLE_ITEMS: u32 = 2;
/// The item of the batch that may have a row of its own: the last one of the first bundle.
pub const ITEM: usize = 11;
/// Number of workers that are alive at any time.
pub const WORKERS: usize = 3;
/// The topics of messages, and the names of events and streams.
pub const TOPICS: [&str; 2] = ["one", "two"];
/// The parent of each execution, if it is a child.
pub const PARENTS: [Option<usize>; EXECUTIONS] = [
    None,
    Some(0),
    Some(0),
    Some(1),
    Some(1),
    Some(2),
    None,
    Some(6),
    None,
    Some(BATCH),
    Some(BATCH),
    Some(BATCH),
];

/// One operation of a history.
#[derive(Clone, Debug)]
pub enum HistoryOp {
    /// A worker commits a flush, possibly marked as resent, and possibly twice.
    Flush { worker: usize, drafts: Vec<TargetedDraft>, is_resent: bool, is_repeated: bool },
    /// A worker claims all ready executions of these workflows.
    Claim { worker: usize, workflows: u8 },
    /// A worker sends a heartbeat that watches and holds some executions.
    Heartbeat { worker: usize, watched: u16, held: Option<u16> },
    /// Time passes, and every worker renews its lease.
    Advance { micros: u16 },
    /// A worker dies, another one takes it over, and a new one registers.
    KillWorker { worker: usize },
    /// A worker closes its registration, and a new one registers.
    Close { worker: usize },
    /// The last worker that died or closed sends a flush.
    StaleFlush { drafts: Vec<TargetedDraft> },
}

/// A draft with the way its execution is chosen. If `is_literal`, the draft concerns the execution with its index.
/// Otherwise the index selects one of the executions on which the draft has an effect: for a Transition, one of those
/// that the worker runs.
#[derive(Clone, Debug)]
pub struct TargetedDraft {
    pub is_literal: bool,
    pub draft: Draft,
}

/// A Write before its execution is chosen.
#[derive(Clone, Debug)]
pub enum Draft {
    /// Starts an execution, possibly with the workflow_id of its family.
    Start { index: usize, workflow: u8, has_id: bool, is_detached: bool, state: DraftState },
    /// Records the outcome of a step.
    Checkpoint { index: usize, n: u32 },
    /// Records a failed attempt.
    Attempt { index: usize, n: u32, attempt: u32 },
    /// Changes the state of an execution.
    Transition { index: usize, state: DraftState },
    /// Wakes an execution.
    Wake { index: usize },
    /// Requests the cancellation, resumption or expiry of an execution.
    Request { index: usize, kind: RequestKind },
    /// Deletes the requests of an execution.
    ClearRequests { index: usize },
    /// Records one chunk of a value.
    Chunk { index: usize, value: u64, n: u32 },
    /// Deletes the chunks of all values but one.
    DeleteChunks { index: usize, keep: Option<u64> },
    /// Records outcomes of a bundle's items, from the item with this offset.
    Pack { index: usize, offset: u32, status: Status },
    /// Closes the batch with this number of items.
    CloseBatch { index: usize, item_count: u64 },
    /// Sends a message, possibly with an id. If the sender would keep it, its id is recorded at the address, too.
    Send { index: usize, topic: usize, id: Option<u8>, keeps: bool },
    /// Records the receipt of the first message of a topic.
    Receive { index: usize, n: u32, topic: usize },
    /// Sets the event with the name of a topic.
    SetEvent { index: usize, n: u32, topic: usize },
    /// Keeps a message at the address of an execution, possibly with an id.
    Keep { index: usize, topic: usize, id: Option<u8> },
    /// Moves the kept messages to their execution.
    Forward { index: usize },
    /// Appends a value to the stream with the name of a topic, in a step.
    Append { index: usize, topic: usize },
    /// Writes a value to the stream with the name of a topic, in the code of the workflow.
    WriteStream { index: usize, n: u32, topic: usize },
    /// Continues as new.
    Continue { index: usize },
}

impl Draft {
    /// The index of the execution.
    pub fn index(&mut self) -> &mut usize {
        match self {
            Draft::Start { index, .. }
            | Draft::Checkpoint { index, .. }
            | Draft::Attempt { index, .. }
            | Draft::Transition { index, .. }
            | Draft::Wake { index }
            | Draft::Request { index, .. }
            | Draft::ClearRequests { index }
            | Draft::Chunk { index, .. }
            | Draft::DeleteChunks { index, .. }
            | Draft::Pack { index, .. }
            | Draft::CloseBatch { index, .. }
            | Draft::Send { index, .. }
            | Draft::Receive { index, .. }
            | Draft::SetEvent { index, .. }
            | Draft::Keep { index, .. }
            | Draft::Forward { index }
            | Draft::Append { index, .. }
            | Draft::WriteStream { index, .. }
            | Draft::Continue { index } => index,
        }
    }
}

/// A state before times and keys are known.
#[derive(Clone, Debug)]
pub enum DraftState {
    /// Running.
    Running { sleep_count: u8 },
    /// Queued.
    Queued { sleep_count: u8 },
    /// Waiting until a time relative to now, for some of the children, for messages of some topics (the lowest bits of
    /// `topics`), and for some events of the parent (the next bits).
    Waiting { due_in: Option<i16>, children: u16, topics: u8, sleep_count: u8 },
    /// Parked.
    Parked { sleep_count: u8, is_pause: bool },
    /// Ended.
    Ended { status: Status },
}

fn index() -> impl Strategy<Value = usize> {
    0..EXECUTIONS
}

fn worker() -> impl Strategy<Value = usize> {
    0..WORKERS
}

fn ended_status() -> impl Strategy<Value = Status> {
    prop_oneof![Just(Status::Completed), Just(Status::Failed), Just(Status::Cancelled)]
}

fn state(running: u32) -> impl Strategy<Value = DraftState> {
    prop_oneof![
        running => (0..3u8).prop_map(|sleep_count| DraftState::Running { sleep_count }),
        2 => (0..3u8).prop_map(|sleep_count| DraftState::Queued { sleep_count }),
        4 => (any::<Option<i16>>(), any::<u16>(), any::<u8>(), 0..3u8).prop_map(
            |(due_in, children, topics, sleep_count)| DraftState::Waiting { due_in, children, topics, sleep_count }
        ),
        2 => (0..3u8, any::<bool>())
            .prop_map(|(sleep_count, is_pause)| DraftState::Parked { sleep_count, is_pause }),
        3 => ended_status().prop_map(|status| DraftState::Ended { status }),
    ]
}

fn targeted_draft() -> impl Strategy<Value = TargetedDraft> {
    (proptest::bool::weighted(0.2), draft())
        .prop_map(|(is_literal, draft)| TargetedDraft { is_literal, draft })
}

fn draft() -> impl Strategy<Value = Draft> {
    let value = prop_oneof![Just(0), Just(7), Just(u64::MAX)];
    let kind = prop_oneof![
        Just(RequestKind::Cancel),
        Just(RequestKind::Resume),
        Just(RequestKind::Expire),
        Just(RequestKind::Pause),
        Just(RequestKind::CancelItem(0))
    ];
    prop_oneof![
        6 => (index(), 0..2u8, any::<bool>(), any::<bool>(), state(6)).prop_map(
            |(index, workflow, has_id, is_detached, state)| {
                // some Starts have a workflow_id
                let has_id = has_id && index.is_multiple_of(3) && index < BATCH;
                Draft::Start { index, workflow, has_id, is_detached, state }
            }
        ),
        3 => (index(), 1..9u32).prop_map(|(index, n)| Draft::Checkpoint { index, n }),
        2 => (index(), 1..4u32, 1..4u32).prop_map(|(index, n, attempt)| Draft::Attempt { index, n, attempt }),
        7 => (index(), state(2)).prop_map(|(index, state)| Draft::Transition { index, state }),
        1 => index().prop_map(|index| Draft::Wake { index }),
        4 => (index(), kind).prop_map(|(index, kind)| Draft::Request { index, kind }),
        1 => index().prop_map(|index| Draft::ClearRequests { index }),
        2 => (index(), value.clone(), 0..3u32).prop_map(|(index, value, n)| Draft::Chunk { index, value, n }),
        1 => (index(), proptest::option::of(value)).prop_map(|(index, keep)| Draft::DeleteChunks { index, keep }),
        2 => (proptest::sample::select(&BUNDLES[..]), 0..BUNDLE_ITEMS, ended_status())
            .prop_map(|(index, offset, status)| Draft::Pack { index, offset, status }),
        1 => (0..6u64).prop_map(|item_count| Draft::CloseBatch { index: BATCH, item_count }),
        4 => (index(), 0..TOPICS.len(), proptest::option::of(0..3u8), proptest::bool::ANY)
            .prop_map(|(index, topic, id, keeps)| Draft::Send { index, topic, id, keeps }),
        2 => (index(), 1..9u32, 0..TOPICS.len()).prop_map(|(index, n, topic)| Draft::Receive { index, n, topic }),
        2 => (index(), 1..9u32, 0..TOPICS.len()).prop_map(|(index, n, topic)| Draft::SetEvent { index, n, topic }),
        2 => (index(), 0..TOPICS.len(), proptest::option::of(0..3u8))
            .prop_map(|(index, topic, id)| Draft::Keep { index, topic, id }),
        2 => index().prop_map(|index| Draft::Forward { index }),
        1 => (index(), 0..TOPICS.len()).prop_map(|(index, topic)| Draft::Append { index, topic }),
        1 => (index(), 1..9u32, 0..TOPICS.len())
            .prop_map(|(index, n, topic)| Draft::WriteStream { index, n, topic }),
        2 => index().prop_map(|index| Draft::Continue { index }),
    ]
}

fn op() -> impl Strategy<Value = HistoryOp> {
    prop_oneof![
        12 => (worker(), vec(targeted_draft(), 0..10), any::<bool>(), any::<bool>()).prop_map(
            |(worker, drafts, is_resent, is_repeated)| HistoryOp::Flush { worker, drafts, is_resent, is_repeated }
        ),
        6 => (worker(), 1..4u8).prop_map(|(worker, workflows)| HistoryOp::Claim { worker, workflows }),
        3 => (worker(), any::<u16>(), any::<Option<u16>>())
            .prop_map(|(worker, watched, held)| HistoryOp::Heartbeat { worker, watched, held }),
        2 => any::<u16>().prop_map(|micros| HistoryOp::Advance { micros }),
        1 => worker().prop_map(|worker| HistoryOp::KillWorker { worker }),
        1 => worker().prop_map(|worker| HistoryOp::Close { worker }),
        1 => vec(targeted_draft(), 0..4).prop_map(|drafts| HistoryOp::StaleFlush { drafts }),
    ]
}

/// Returns a strategy for histories.
pub fn histories() -> impl Strategy<Value = Vec<HistoryOp>> {
    vec(op(), 1..50)
}
