//! [`Look`]: the heartbeat of a worker, which renews its registration and reports what concerns it.

use std::sync::Arc;

use super::claim::is_served;
use super::{Record, RequestKind, WorkerId};
use crate::clock::Timestamp;
use crate::key::Key;

/// What a worker tells at its look, and wants to know.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Who looks.
    pub worker: WorkerId,
    /// The registration's epoch.
    pub epoch: i64,
    /// True once a second: renew the registration, and see whether other workers are lost. False for a look because
    /// something may have changed, of which there are many.
    pub renews_lease: bool,
    /// Report which of these have ended, or are parked.
    pub watched: Vec<Key>,
    /// What it holds; where given, report executions that it owns and does not hold.
    pub held: Option<Vec<Key>>,
    /// Workflows it can run.
    pub workflows: Arc<[Arc<str>]>,
    /// Where given, it runs only executions of this version of the code, or of none.
    pub app_version: Option<Arc<str>>,
    /// Where given, it runs only executions of these queues.
    pub queues: Option<Arc<[Arc<str>]>>,
}

/// What a look saw.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatReply {
    /// The store's time.
    pub now: Timestamp,
    /// True if the worker itself was taken over: it must register anew.
    pub is_fenced: bool,
    /// Executions it runs for which something is asked.
    pub requests: Vec<(Key, RequestKind)>,
    /// Those of `watch` that have ended or are parked.
    pub finished: Vec<Key>,
    /// Executions that it owns but does not hold; only if `holds` was given.
    pub unheld: Vec<Record>,
    /// True if something that it can run is ready, in a queue that is not paused.
    pub has_ready: bool,
    /// Earliest time at which a timer wakes something that it can run.
    pub next_due: Option<Timestamp>,
    /// Executions whose deadline has passed and that nobody runs, whoever could: each is to be
    /// [expired](crate::store::RequestKind::Expire). At most [`EXPIRED`] at a time; a store may leave out for some seconds
    /// what it has reported to another worker.
    pub expired: Vec<Key>,
    /// Earliest deadline of what nobody runs, beside those that have passed.
    pub next_deadline: Option<Timestamp>,
    /// Earliest time at which something in quarantine that it can run may be claimed.
    pub quarantined_until: Option<Timestamp>,
    /// True if workers are lost, or something is left of them: [`recover`](crate::store::Store::recover) is wanted.
    pub has_dead_workers: bool,
    /// Where the database is being brought to a schema that this program does not know: that version, and the newest that
    /// it knows. The worker hands on what it runs, and ends.
    pub newer_schema: Option<(i64, i64)>,
    /// When a worker that has not renewed since the last renewal counts as lost: a renewal just after that tells.
    pub next_expiry_at: Option<Timestamp>,
}

/// Most expired executions that a look reports.
pub const MAX_EXPIRED: usize = 500;

impl Heartbeat {
    /// True if who looks runs executions of this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }
}

/// What others may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Something may be ready: a claim is worthwhile, without a look before it.
    pub has_ready: bool,
    /// Something else that only a look can tell: an end, a request, a due time.
    pub has_other: bool,
}
