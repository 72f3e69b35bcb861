//! [`CommitObserver`]: the part of an engine that reacts to flushes of its lanes.

use super::lsn::Lsn;
use crate::key::Key;
use crate::store::{Outcome, StoreError, WorkerId, Write};

/// The part of an engine that reacts to flushes of its lanes. A lane calls these methods on its own thread or
/// on its slow lane's thread.
pub(crate) trait CommitObserver: Send + Sync {
    /// Handles a Write whose outcome is not `Applied`.
    fn on_settled(&self, lane: u16, settled: SettledWrite<'_>);
    /// Handles the Writes of a flush that was committed, and Writes whose outcomes the slow lane has found. A Write of
    /// the slow lane may be rejected, dropped or fenced, and is then not durable. `outcomes` are those outcomes of the
    /// flush that are not `Applied`, by index.
    fn on_committed(&self, writes: &[Write], outcomes: &[(usize, Outcome)]);
    /// Handles the fence of a registration: its owned Writes are dropped, and unowned Writes wait for
    /// [`Lane::rebind`](super::Lane::rebind).
    fn on_fenced(&self, worker: WorkerId);
    /// Handles a fatal store error: the database is corrupt or has a newer schema. The lane has stopped.
    fn on_poisoned(&self, error: StoreError);
}

/// A Write whose outcome is not `Applied`, with its tree and its Lsn.
pub(crate) struct SettledWrite<'a> {
    pub(crate) execution: Key,
    pub(crate) tree: Key,
    pub(crate) lsn: Lsn,
    pub(crate) write: &'a Write,
    pub(crate) outcome: &'a Outcome,
}
