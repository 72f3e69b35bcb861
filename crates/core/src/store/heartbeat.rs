//! [`Heartbeat`]: a worker's report to the store, whose reply contains what concerns the worker.

use std::sync::Arc;

use super::claim::is_served;
use super::{Record, RequestKind, WorkerId};
use crate::clock::Timestamp;
use crate::key::Key;

/// A worker's report to the store. The [reply](HeartbeatReply) contains everything that concerns the worker.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The worker that sends the heartbeat.
    pub worker: WorkerId,
    /// The epoch of the worker's registration.
    pub epoch: i64,
    /// Whether the heartbeat renews the registration and checks for dead workers. True once a second; false for the
    /// heartbeats that follow hints.
    pub renews_lease: bool,
    /// The executions whose ends other parts of this process wait for. The reply lists those that have ended or are
    /// parked.
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
    /// Whether workers are dead, or a takeover of dead workers is unfinished. The worker then calls
    /// [`take_over`](crate::store::Store::take_over).
    pub has_dead_workers: bool,
    /// Two schema versions: the version to which the database is being migrated, and the newest one that this program
    /// supports. `None` unless the database's version is newer. The worker then requeues the executions that it runs,
    /// and ends.
    pub newer_schema: Option<(i64, i64)>,
    /// The earliest time at which another worker counts as dead, unless that worker renews its lease first. A
    /// heartbeat just after this time detects the death.
    pub next_expiry_at: Option<Timestamp>,
}

/// Maximum number of expired executions in a reply.
pub const MAX_EXPIRED: usize = 500;

impl Heartbeat {
    /// Whether the worker serves this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }
}

/// A notification that another process may have changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Whether an execution may be ready. If so, the worker claims at once, without a heartbeat before the claim.
    pub has_ready: bool,
    /// Whether anything else may have changed that a heartbeat reports: an end, a request, a due time.
    pub has_other: bool,
}
