//! [`Claim`]: a worker takes executions to run.

use std::sync::Arc;

use super::{Record, WorkerId};
use crate::clock::Timestamp;

/// A wish for executions to run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who claims.
    pub worker: WorkerId,
    /// The worker's lane that claims are numbered in.
    pub lane: u16,
    /// The registration's epoch.
    pub epoch: i64,
    /// The claim's number in its lane, from 1.
    pub number: i64,
    /// At most this many.
    pub limit: usize,
    /// Stop adding executions when their inputs and checkpoints exceed this many bytes (at least one comes).
    pub max_bytes: usize,
    /// Only executions of these workflows.
    pub workflows: Arc<[Arc<str>]>,
    /// Where given, only executions of this version of the code, or of none.
    pub app_version: Option<Arc<str>>,
    /// Where given, only executions of these queues.
    pub queues: Option<Arc<[Arc<str>]>>,
    /// False: what is due or ready. True: what is in quarantine and may be tried.
    pub from_quarantine: bool,
}

impl Claim {
    /// True if it takes executions of this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }
}

/// What a claim has brought.
#[derive(Clone, Debug, Default)]
pub struct ClaimReply {
    /// What runs from here on.
    pub records: Vec<Record>,
    /// True if there may be more that could be claimed now, had there been places for it.
    pub has_more: bool,
    /// True if more is ready in queues whose limits do not allow for it now: when something of them has ended or
    /// suspended, another claim may bring it.
    pub is_limited: bool,
    /// When the rate of a queue, or of a key, allows for more of what is ready.
    pub retry_at: Option<Timestamp>,
}

/// True if the queue is one of these, or they are not given.
pub(crate) fn is_served(served: Option<&[Arc<str>]>, queue: &str) -> bool {
    served.is_none_or(|served| served.iter().any(|name| **name == *queue))
}
