//! [`Claim`]: the transaction in which a worker takes executions to run.

use std::sync::Arc;

use super::{Record, WorkerId};
use crate::clock::Timestamp;
use crate::key::Key;
use crate::queue::QueueKey;

/// The parameters of a claim, the transaction in which a worker takes executions to run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The worker that claims.
    pub worker: WorkerId,
    /// The worker's lane in which claims are numbered.
    pub lane: u16,
    /// The epoch of the worker's registration.
    pub epoch: i64,
    /// The number of the claim in its lane, from 1.
    pub number: i64,
    /// Maximum number of executions to take.
    pub limit: usize,
    /// Maximum [size](super::Record::claim_bytes) of all taken executions, in bytes. The claim takes at least one
    /// execution, however large it is, and may exceed the maximum by the last one.
    pub max_bytes: usize,
    /// Maximum number of bundles of batches to take from each queue key. Other executions of the queue key wait behind a
    /// bundle that is not taken.
    pub max_bundles: usize,
    /// The queues and queue keys with bundles of which the worker has not begun all items. From any other queue key, the
    /// claim may take one bundle also if `max_bundles` is 0.
    pub busy_keys: Vec<QueueKey>,
    /// The workflows that the worker can run. The claim takes only their executions.
    pub workflows: Arc<[Arc<str>]>,
    /// The version of the worker's code. If given, the claim takes only executions that are pinned to this version or
    /// to none.
    pub app_version: Option<Arc<str>>,
    /// The queues that the worker serves; `None` for all. The claim takes only their executions.
    pub queues: Option<Arc<[Arc<str>]>>,
    /// Whether the claim takes executions in quarantine that may be tried; otherwise it takes due and ready executions.
    pub from_quarantine: bool,
}

impl Claim {
    /// Whether the claim takes executions of this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }

    /// Returns the number of bundles that the claim may take from this queue key.
    pub fn bundle_budget(&self, queue: &str, key: &str) -> BundleBudget {
        let is_busy = || self.busy_keys.iter().any(|(of, busy)| **of == *queue && **busy == *key);
        BundleBudget(if self.max_bundles == 0 && !is_busy() { 1 } else { self.max_bundles })
    }

    /// Returns the number of due executions that come before all ready ones: half of the limit. In every other claim the
    /// half is rounded up. So neither kind has to wait behind many of the other, even if each claim takes one execution.
    pub fn due_share(&self) -> usize {
        if self.number % 2 == 1 { self.limit.div_ceil(2) } else { self.limit / 2 }
    }
}

/// The number of further bundles that a [`Claim`] may take from one queue key.
#[derive(Clone, Copy, Debug)]
pub struct BundleBudget(pub usize);

impl BundleBudget {
    /// Whether the claim may take this execution of the queue key. A bundle is taken off the budget.
    pub fn allows(&mut self, execution: Key) -> bool {
        if !execution.is_bundle() {
            return true;
        }
        let is_allowed = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        is_allowed
    }
}

/// The result of a [`Claim`].
#[derive(Clone, Debug, Default)]
pub struct ClaimReply {
    /// The executions that the claim took. They are now `running` under the worker.
    pub records: Vec<Record>,
    /// Whether a claim with a larger limit might have taken more executions.
    pub has_more: bool,
    /// Whether the limits of queues may prevent the claim of ready executions now. Another claim may take them when a
    /// running execution of the queue ends or suspends.
    pub is_limited: bool,
    /// The time at which the rate of a queue, or of a queue key, allows more ready executions to begin.
    pub retry_at: Option<Timestamp>,
}

/// Whether `served` contains the queue; `None` contains all queues.
pub fn is_served(served: Option<&[Arc<str>]>, queue: &str) -> bool {
    served.is_none_or(|served| served.iter().any(|name| **name == *queue))
}
