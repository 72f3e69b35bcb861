//! Random histories: what several workers may do to a database, in a form that can be generated and shrunk.
//!
//! A history is applied to several stores in step (see [`twins`](crate::model::differential)); drafts of Writes that would
//! break the rule that a flush is a set of row changes are left out there.

#![allow(missing_docs)] // fields are named as those of the Writes they become

use proptest::collection::vec;
use proptest::prelude::*;
use stepfast_core::store::{RequestKind, Status};

/// How many executions a history is about.
pub const EXECUTIONS: usize = 8;
/// How many workers are alive at any time.
pub const WORKERS: usize = 3;
/// The parent of each execution, if it is a child.
pub const PARENTS: [Option<usize>; EXECUTIONS] =
    [None, Some(0), Some(0), Some(1), Some(1), Some(2), None, Some(6)];

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum HistoryOp {
    /// A worker commits a flush: perhaps as one sent before whose fate is unknown, perhaps twice.
    Flush { worker: usize, drafts: Vec<TargetedDraft>, is_resent: bool, is_sent_again: bool },
    /// A worker claims all there is of these workflows.
    Claim { worker: usize, workflows: u8 },
    /// A worker looks, watching some executions and holding some.
    Heartbeat { worker: usize, watch: u16, holds: Option<u16> },
    /// Time passes, and every worker renews.
    Advance { micros: u16 },
    /// A worker is lost, another takes it over, and a new one registers.
    KillWorker { worker: usize },
    /// A worker is closed, and a new one registers.
    Close { worker: usize },
    /// The last worker that was lost or closed sends a flush.
    StaleFlush { drafts: Vec<TargetedDraft> },
}

/// A draft, and whether it goes to the slot that it names. Otherwise that only picks one of the executions
/// with which it does something: of those that the worker runs, for a Move.
#[derive(Clone, Debug)]
pub struct TargetedDraft {
    pub is_literal: bool,
    pub draft: Draft,
}

/// A Write to be.
#[derive(Clone, Debug)]
pub enum Draft {
    /// Starts an execution, perhaps under the id of its family.
    Start { slot: usize, workflow: u8, has_id: bool, is_detached: bool, state: DraftState },
    /// Records a step.
    Checkpoint { slot: usize, n: u32 },
    /// Records a failed attempt.
    Attempt { slot: usize, n: u32, attempt: u32 },
    /// Moves an execution.
    Transition { slot: usize, state: DraftState },
    /// Wakes one.
    Wake { slot: usize },
    /// Asks for something to be done with it.
    Request { slot: usize, kind: RequestKind },
    /// Answers what was asked.
    ClearRequests { slot: usize },
    /// A piece of a value.
    Chunk { slot: usize, value: u64, n: u32 },
    /// Discards values but one.
    DeleteChunks { slot: usize, keep: Option<u64> },
}

impl Draft {
    /// The execution that it names.
    pub fn slot(&mut self) -> &mut usize {
        match self {
            Draft::Start { slot, .. }
            | Draft::Checkpoint { slot, .. }
            | Draft::Attempt { slot, .. }
            | Draft::Transition { slot, .. }
            | Draft::Wake { slot }
            | Draft::Request { slot, .. }
            | Draft::ClearRequests { slot }
            | Draft::Chunk { slot, .. }
            | Draft::DeleteChunks { slot, .. } => slot,
        }
    }
}

/// A state to be.
#[derive(Clone, Debug)]
pub enum DraftState {
    /// Running.
    Running { armed: u8 },
    /// Queued.
    Queued { armed: u8 },
    /// Waiting for a time from now, and for some of its children.
    Waiting { due_in: Option<i16>, children: u16, armed: u8 },
    /// Parked.
    Parked { armed: u8 },
    /// Ended.
    Ended { status: Status },
}

fn slot() -> impl Strategy<Value = usize> {
    0..EXECUTIONS
}

fn worker() -> impl Strategy<Value = usize> {
    0..WORKERS
}

fn state(running: u32) -> impl Strategy<Value = DraftState> {
    let status = prop_oneof![Just(Status::Completed), Just(Status::Failed), Just(Status::Cancelled)];
    prop_oneof![
        running => (0..3u8).prop_map(|armed| DraftState::Running { armed }),
        2 => (0..3u8).prop_map(|armed| DraftState::Queued { armed }),
        4 => (any::<Option<i16>>(), any::<u16>(), 0..3u8)
            .prop_map(|(due_in, children, armed)| DraftState::Waiting { due_in, children, armed }),
        1 => (0..3u8).prop_map(|armed| DraftState::Parked { armed }),
        3 => status.prop_map(|status| DraftState::Ended { status }),
    ]
}

fn targeted_draft() -> impl Strategy<Value = TargetedDraft> {
    (proptest::bool::weighted(0.2), draft()).prop_map(|(is_wild, draft)| TargetedDraft { is_literal: is_wild, draft })
}

fn draft() -> impl Strategy<Value = Draft> {
    let value = prop_oneof![Just(0), Just(7), Just(u64::MAX)];
    let kind = prop_oneof![Just(RequestKind::Cancel), Just(RequestKind::Resume), Just(RequestKind::Expire)];
    prop_oneof![
        6 => (slot(), 0..2u8, any::<bool>(), any::<bool>(), state(6)).prop_map(
            |(slot, workflow, has_id, is_detached, state)| {
                // an id now and then
                Draft::Start { slot, workflow, has_id: has_id && slot.is_multiple_of(3), is_detached, state }
            }
        ),
        3 => (slot(), 1..9u32).prop_map(|(slot, n)| Draft::Checkpoint { slot, n }),
        2 => (slot(), 1..4u32, 1..4u32).prop_map(|(slot, n, attempt)| Draft::Attempt { slot, n, attempt }),
        7 => (slot(), state(2)).prop_map(|(slot, state)| Draft::Transition { slot, state }),
        1 => slot().prop_map(|slot| Draft::Wake { slot }),
        4 => (slot(), kind).prop_map(|(slot, kind)| Draft::Request { slot, kind }),
        1 => slot().prop_map(|slot| Draft::ClearRequests { slot }),
        2 => (slot(), value.clone(), 0..3u32).prop_map(|(slot, value, n)| Draft::Chunk { slot, value, n }),
        1 => (slot(), proptest::option::of(value)).prop_map(|(slot, keep)| Draft::DeleteChunks { slot, keep }),
    ]
}

fn op() -> impl Strategy<Value = HistoryOp> {
    prop_oneof![
        12 => (worker(), vec(targeted_draft(), 0..10), any::<bool>(), any::<bool>()).prop_map(
            |(worker, drafts, is_resent, is_sent_again)| HistoryOp::Flush { worker, drafts, is_resent, is_sent_again }
        ),
        6 => (worker(), 1..4u8).prop_map(|(worker, workflows)| HistoryOp::Claim { worker, workflows }),
        3 => (worker(), any::<u16>(), any::<Option<u16>>())
            .prop_map(|(worker, watch, holds)| HistoryOp::Heartbeat { worker, watch, holds }),
        2 => any::<u16>().prop_map(|micros| HistoryOp::Advance { micros }),
        1 => worker().prop_map(|worker| HistoryOp::KillWorker { worker }),
        1 => worker().prop_map(|worker| HistoryOp::Close { worker }),
        1 => vec(targeted_draft(), 0..4).prop_map(|drafts| HistoryOp::StaleFlush { drafts }),
    ]
}

/// Any history.
pub fn histories() -> impl Strategy<Value = Vec<HistoryOp>> {
    vec(op(), 1..50)
}
