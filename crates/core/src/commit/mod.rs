//! The commit path: Writes are *staged* on a [`Lane`], where they fold as they come in; a committer *flushes*
//! everything that was staged while the last flush was running; and code waits until an [`Lsn`] is *durable*
//! only where the outside world could notice.
//!
//! ```text
//! stage(Write) -> segments (fold, hold) -> committer: take, Store::commit, publish -> waiters
//! ```
//!
//! - `lane.rs`, `staging.rs`, `segment.rs`: what is staged; where Writes are **folded** and **held**.
//! - `committer.rs`, `flush_sender.rs`: one thread per lane; where flushes are numbered, resent and bisected, and what
//!   happens when the store has **fenced** one.
//! - `slow_lane.rs`: Writes that wait for locks of other transactions.
//! - `watermark.rs`, `durable.rs`: the watermark and its waiters; where Writes are **acknowledged**.

mod committer;
mod durable;
mod fate;
mod flush_sender;
mod lane;
mod segment;
mod slow_lane;
mod staging;
mod watermark;

pub(crate) use durable::{Durable, OnLane};
pub(crate) use fate::Fate;
pub use lane::LaneLoad;
pub(crate) use lane::{DEFAULT_STAGED_BYTES, Lane};
pub(crate) use staging::{Slot, Staged};

use crate::key::Key;
use crate::store::{Outcome, StoreError, WorkerId, Write};

/// A position in a lane: later Writes of an execution tree have larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Lsn(pub(crate) u64);

/// What a lane tells the engine, from the lane's own thread.
pub(crate) trait Sink: Send + Sync {
    /// A Write came to something else than `Applied`.
    fn settled(&self, lane: u16, settled: Settled<'_>);
    /// These Writes are durable, whatever their outcomes.
    fn landed(&self, writes: &[Write]);
    /// The lane is fenced under this registration: owned Writes are gone, free ones wait for
    /// [`Lane::rebind`].
    fn fenced(&self, worker: WorkerId);
    /// The database cannot be trusted, or is not for this program; the lane has stopped.
    fn poisoned(&self, error: StoreError);
}

/// A Write that came to something else than `Applied`.
pub(crate) struct Settled<'a> {
    pub(crate) execution: Key,
    pub(crate) tree: Key,
    pub(crate) lsn: Lsn,
    pub(crate) write: &'a Write,
    pub(crate) outcome: &'a Outcome,
}
