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
//! - `pending_wakes.rs`: Wakes of one execution **share** a Write.
//! - `committer.rs`, `flush_sender.rs`: one thread per lane. Flushes are numbered, resent and bisected here,
//!   and a **fenced** flush is handled here.
//! - `slow_lane.rs`: Writes that wait for locks of other transactions.
//! - `observer.rs`: the calls by which a lane reports committed Writes, other outcomes and fences to the
//!   engine.
//! - `watermark.rs`, `durable.rs`: the watermark and its waiters. Writes are **acknowledged** here.

mod committer;
mod durable;
mod fate;
mod flush_sender;
mod lane;
mod lsn;
mod observer;
mod pending_wakes;
mod segment;
mod slow_lane;
mod staging;
#[cfg(test)]
mod staging_tests;
mod watermark;

pub(crate) use durable::{DurableFuture, HasLane};
pub(crate) use fate::Fate;
pub use lane::LaneLoad;
pub(crate) use lane::{DEFAULT_STAGED_BYTES, Lane};
pub(crate) use lsn::Lsn;
pub(crate) use observer::{CommitObserver, SettledWrite};
pub(crate) use staging::{FoldTarget, RejectedExecutions, Staged};
