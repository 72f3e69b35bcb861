//! [`Renewal`]: the reply to the renewal of a registration. [`Maintenance`]: what a worker does once a second for the
//! store, and finds. [`Heartbeat`]: a worker's report to the store, whose reply
//! contains what concerns the worker.

use std::sync::Arc;
use std::time::Duration;

use super::claim::is_served;
use super::{Record, RequestKind, WorkerId};
use crate::clock::Timestamp;
use crate::key::Key;

/// The reply to the renewal of a registration.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    /// The store's time.
    pub now: Timestamp,
    /// Whether the worker was taken over, and must register again.
    pub is_fenced: bool,
    /// Two schema versions: the version to which the database is being migrated, and the newest one that this program
    /// supports. `None` unless the database's version is newer. The worker then requeues the executions that it runs,
    /// and ends.
    pub newer_schema: Option<(i64, i64)>,
    /// Whether there are requests to executions that the worker runs. The worker then sends a heartbeat.
    pub has_requests: bool,
    /// Whether the store receives hints of all changes by other processes. Heartbeats then may be rare.
    pub receives_hints: bool,
}

/// The findings of a worker's [maintenance](crate::store::Store::maintain).
#[derive(Clone, Copy, Debug, Default)]
pub struct Maintenance {
    /// Whether workers are dead, or a takeover of dead workers is unfinished. The worker then calls
    /// [`take_over`](crate::store::Store::take_over).
    pub has_dead_workers: bool,
    /// The time until another worker counts as dead, unless that worker renews its lease first. A renewal and a
    /// maintenance just after this time detect the death.
    pub next_expiry_in: Option<Duration>,
    /// Whether executions may be ready that no hint has announced. The worker then claims.
    pub has_unannounced: bool,
}

/// A worker's report to the store. The [reply](HeartbeatReply) contains everything that concerns the worker.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The worker that sends the heartbeat.
    pub worker: WorkerId,
    /// The epoch of the worker's registration.
    pub epoch: i64,
    /// Executions whose ends other parts of this process wait for, at most 1,000. The reply lists those that have ended or
    /// are parked.
    pub watched: Vec<Key>,
    /// The executions that this process runs. If given, the reply lists the executions that the worker owns but that
    /// are not in this list.
    pub held: Option<Vec<Key>>,
    /// The workflows that the worker can run.
    pub workflows: Arc<[Arc<str>]>,
    /// The version of the worker's code. If given, the worker runs only executions that are pinned to this version or
    /// to none.
    pub app_version: Option<Arc<str>>,
    /// The queues that the worker serves; `None` for all.
    pub queues: Option<Arc<[Arc<str>]>>,
}

/// The reply to a [`Heartbeat`]: everything that concerns the worker.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatReply {
    /// The store's time.
    pub now: Timestamp,
    /// Whether the worker was taken over, and must register again.
    pub is_fenced: bool,
    /// The pending requests to executions that the worker runs.
    pub requests: Vec<(Key, RequestKind)>,
    /// The executions in [`watched`](Heartbeat::watched) that have ended or are parked.
    pub finished: Vec<Key>,
    /// The executions that the worker owns but that are not in [`held`](Heartbeat::held); empty unless `held` was
    /// given.
    pub unheld: Vec<Record>,
    /// Whether an execution that the worker can run is ready, in a queue that is not paused.
    pub has_ready: bool,
    /// The earliest due time of a timer of an execution that the worker can run.
    pub next_due: Option<Timestamp>,
    /// Executions whose deadline has passed and that do not run, whether or not this worker could run them. The worker
    /// sends an [`Expire`](RequestKind::Expire) request for each. The list contains at most [`MAX_EXPIRED`] executions.
    /// For some seconds, a store may omit executions that it has reported to another worker.
    pub expired: Vec<Key>,
    /// The earliest future deadline of an execution that does not run.
    pub next_deadline: Option<Timestamp>,
    /// The earliest time at which an execution in quarantine that the worker can run may be claimed.
    pub quarantined_until: Option<Timestamp>,
}

/// Maximum number of expired executions in a reply.
pub const MAX_EXPIRED: usize = 500;

impl Heartbeat {
    /// Whether the worker serves this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }
}

/// A notification that another process may have changed something that concerns the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Whether the worker claims because of the hint.
    pub claim: ClaimHint,
    /// Whether slots of queues may have become free. Starts that wait for room in a queue are tried again.
    pub has_free_slots: bool,
    /// Whether anything else may have changed that a heartbeat reports: a request, a due time, or a ready execution that other
    /// workers may claim first.
    pub has_other: bool,
    /// The executions that may have ended or may be parked.
    pub ended: EndedExecutions,
}

impl Hint {
    /// The hint that anything may have changed. A heartbeat shows whether executions are ready, so that a worker without
    /// work claims nothing.
    pub const ANY_CHANGE: Self = Self {
        claim: ClaimHint::IfLimited,
        has_free_slots: true,
        has_other: true,
        ended: EndedExecutions::Any,
    };

    /// Whether the hint announces nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds another hint to this one.
    pub fn merge(&mut self, other: Self) {
        self.claim = self.claim.max(other.claim);
        self.has_free_slots |= other.has_free_slots;
        self.has_other |= other.has_other;
        self.ended.merge(other.ended);
    }
}

/// Whether a worker claims because of a hint. Of many workers that could claim, a store may choose some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimHint {
    /// The worker does not claim.
    #[default]
    None,
    /// Slots of queues may have become free. The worker claims if limits of queues cut its last claim short.
    IfLimited,
    /// An execution may be ready. The worker claims at once, without a heartbeat before the claim.
    AtOnce,
}

/// The executions of a hint that may have ended or may be parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedExecutions {
    /// The executions whose keys have these [tags](Key::tag), in no order.
    Tagged(Vec<u32>),
    /// Any executions.
    Any,
}

impl EndedExecutions {
    /// Maximum number of tags. With more of them, any execution may have ended.
    const MAX_TAGS: usize = 10_000;

    fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Tagged(tags), Self::Tagged(more)) if tags.len() + more.len() <= Self::MAX_TAGS => {
                tags.extend(more);
            }
            _ => *self = Self::Any,
        }
    }
}

impl Default for EndedExecutions {
    fn default() -> Self {
        Self::Tagged(Vec::new())
    }
}
