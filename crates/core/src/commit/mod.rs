//! The commit path: group commit of Writes.
//!
//! Callers *stage* Writes on a [`Lane`], where Writes fold into earlier ones. A committer *flushes*
//! everything that was staged during the previous flush. Code waits until an [`Lsn`] is *durable* only before
//! an effect becomes visible outside the execution tree.
//!
//! ```text
//! stage(Write) -> segments (fold, hold) -> committer: take, Store::commit, publish -> waiters
//! ```
//!
//! - `lane.rs`, `staging.rs`, `segment.rs`: what is staged, and where Writes are **folded** and **held**.
//! - `committer.rs`, `flush_sender.rs`: one thread per lane. Flushes are numbered, resent and bisected here,
//!   and a **fenced** flush is handled here.
//! - `slow_lane.rs`: Writes that wait for locks of other transactions.
//! - `watermark.rs`, `durable.rs`: the watermark and its waiters. Writes are **acknowledged** here.

mod committer;
mod durable;
mod fate;
mod flush_sender;
mod lane;
mod segment;
mod slow_lane;
mod staging;
mod watermark;

pub(crate) use durable::{DurableFuture, HasLane};
pub(crate) use fate::Fate;
pub use lane::LaneLoad;
pub(crate) use lane::{DEFAULT_STAGED_BYTES, Lane};
pub(crate) use staging::{FoldTarget, Staged};

use crate::key::Key;
use crate::store::{Outcome, StoreError, WorkerId, Write};

/// A position in a lane. Later Writes of an execution tree have larger positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Lsn(pub(crate) u64);

/// The engine's view of its lanes. A lane calls these methods on its own thread or on its slow lane's thread.
pub(crate) trait CommitObserver: Send + Sync {
    /// Handles a Write whose outcome is not `Applied`.
    fn on_settled(&self, lane: u16, settled: SettledWrite<'_>);
    /// Handles Writes that are durable, whatever their outcomes are.
    fn on_committed(&self, writes: &[Write]);
    /// Handles the fence of a registration: its owned Writes are dropped, and unowned Writes wait for
    /// [`Lane::rebind`].
    fn on_fenced(&self, worker: WorkerId);
    /// Handles a fatal store error: the database is corrupt or has a newer schema. The lane has stopped.
    fn on_poisoned(&self, error: StoreError);
}

/// A Write whose outcome is not `Applied`, and where it was staged.
pub(crate) struct SettledWrite<'a> {
    pub(crate) execution: Key,
    pub(crate) tree: Key,
    pub(crate) lsn: Lsn,
    pub(crate) write: &'a Write,
    pub(crate) outcome: &'a Outcome,
}
