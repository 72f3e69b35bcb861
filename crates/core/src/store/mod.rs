//! [`Store`]: the contract between the engine and a database.
//!
//! Data crosses this seam, not methods: everything durable is a [`Write`] in a
//! [`Flush`]. A new feature is one variant of `Write`, one apply function per store, and its cases in the
//! conformance suite.

mod admin;
mod claim;
pub mod counters;
mod error;
mod execution;
mod filter;
mod heartbeat;
mod quarantine;
mod workers;
mod write;

pub use admin::{Finding, MigrationReport};
pub(crate) use claim::is_served;
pub use claim::{Claim, ClaimReply};
pub use error::StoreError;
pub use execution::{
    PendingSleep, Attempt, Checkpoint, CheckpointKind, Detail, Execution, ExecutionId, Parent, Record, RequestKind,
    Status, UNKNOWN_STATUS_MESSAGE, WorkerId, decode_pending_sleeps, encode_pending_sleeps,
};
pub use filter::{DEFAULT_LIMIT, Filter, Page};
pub use heartbeat::{Hint, MAX_EXPIRED, Heartbeat, HeartbeatReply};
pub use quarantine::{QUARANTINE_STRIKES, quarantine_delay, next_strikes};
pub use workers::{DeadLetter, WorkerOverview, UnclaimableWork, WaitingWork, WorkerInfo, RegisteredWorker, is_same_version};
pub use write::{
    RequestResult, Chunk, DeleteChunks, ExistingExecution, Flush, Move, Outcome, Request, Start, State, Write, cancel_outcome,
};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::ChunkRef;
use crate::queue::{QueueChange, QueueRow};
use crate::store::counters::Counters;

/// A database that keeps executions.
///
/// Every method is safe to call at any time from any number of tasks, except that a lane commits one flush
/// at a time. `commit`, `register`, `close`, `claim` and `look` are called from threads of the engine's own
/// and may block them; the others must not block.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What it is and what it likes.
    fn info(&self) -> &StoreInfo;

    /// What it has done so far.
    fn counters(&self) -> &Counters;

    /// Registers a worker with `lanes` lanes (numbers 0 to `lanes` - 1) under an id never used before.
    ///
    /// Each lane gets a fence row with the registration's epoch and last number 0. The worker counts as
    /// alive until it is closed or taken over. `info` is for people, and for telling what nobody can run.
    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError>;

    /// Ends a registration. Executions that it still owns become claimable at once. Closing a registration
    /// that was taken over, or twice, does nothing.
    async fn close(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Applies one flush in one durable transaction.
    ///
    /// `Ok`: all of it is durable; the outcomes that are not `Applied` come with the index of their Write,
    /// in ascending order. `Err` from a first attempt of this number:
    /// - [`Unavailable`](StoreError::Unavailable): *unknown*; the flush may or may not be, or become,
    ///   durable. Send it again with `is_resent`; the store finds out.
    /// - [`Fenced`](StoreError::Fenced): nothing of it is or will be durable, and nothing of this lane will.
    /// - [`Rejected`](StoreError::Rejected), [`Blocked`](StoreError::Blocked): nothing of it is durable; the
    ///   same number may be used again with other contents.
    /// - [`Corrupt`](StoreError::Corrupt): stop.
    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError>;

    /// Takes executions to run: `waiting` ones whose timer is due, then those in `ready`; or else those in
    /// quarantine whose time has come, longest first.
    ///
    /// Queues with something ready, and keys within a queue, take [turns](crate::queue::fairness::Turns); within a key the
    /// smallest priority comes first, then what has begun before, then the oldest. As many are taken of each queue and
    /// key as their [limits](crate::queue::Limits) allow for, whoever else claims, and none of a queue that is paused.
    ///
    /// Each becomes `running` under the claiming worker, durably, before this returns. Ready rows whose
    /// execution is not claimable are removed. After `Unavailable` the claim may have happened: the next
    /// [`look`](Store::look) with the worker's `holds` shows what it owns.
    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError>;

    /// Creates or changes a queue; `None` if it is not as [`seen_version`](QueueChange::seen_version) says. From when
    /// this returns on, every claim heeds it.
    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError>;

    /// The queues that there are, by name; those of `names` where that is given.
    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError>;

    /// Reports what concerns the worker; the look that is a renewal, one per second, renews it and sees whether others
    /// are lost. It waits for no claim, and for no takeover but that of the worker itself. A renewal takes as long as all
    /// that its look searches for.
    async fn heartbeat(&self, look: &Heartbeat) -> Result<HeartbeatReply, StoreError>;

    /// Takes over the workers that the last look of `worker` has seen to be lost: makes claimable what they
    /// ran, and returns how many executions that were. May take long, beside looks and claims.
    ///
    /// It also wakes what should have been woken: a lost worker may have died between what it recorded and
    /// the Wake for it. What is interrupted is finished by whoever looks next.
    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError>;

    /// Loads executions, in the order of `ids`; `None` where there is none.
    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError>;

    /// The bytes of a value that is stored aside; `Corrupt` if pieces are missing.
    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError>;

    /// Lists executions by their keys, the latest first, or counts them. The key of a child that is called has the time
    /// of its parent.
    async fn list(&self, filter: &Filter) -> Result<Page, StoreError>;

    /// Lists at most `most` dead letters: rows of the inbox that could not become executions, the latest first.
    async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError>;

    /// Who is registered, and what waits for a worker: counts of at most `most` executions. For people; it
    /// decides nothing.
    async fn workers(&self, most: u64) -> Result<WorkerOverview, StoreError>;

    /// Which of these workers are lost, as one look from outside can tell: dead, or not registered any more.
    ///
    /// For people; it decides nothing and takes nothing over. Where leases decide who is alive, a worker whose
    /// lease has run out is told, although it may yet renew it.
    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError>;

    /// Returns when another process may have changed something since the last call returned, and what. A hint:
    /// the look once a second stays correct without it. A store without such hints never returns.
    async fn next_hint(&self) -> Hint;
}

/// What a store is and likes.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// `memory`, `sqlite` or `postgres`.
    pub kind: &'static str,
    /// Product and version, for people.
    pub version: String,
    /// Which database it is, for people: no password in it.
    pub location: String,
    /// Identity of the store, as the text of a UUID: copies and restored backups have the same.
    pub store_id: String,
    /// Number of the shard, 0 to 1,023, that the keys of its executions name; 0 for a store alone.
    pub shard: u16,
    /// What `Ok` from `commit` promises.
    pub durability: Durability,
    /// How many lanes commit in parallel best.
    pub lanes: u16,
    /// Most Writes in a flush.
    pub max_flush_writes: usize,
    /// Most bytes in a flush.
    pub max_flush_bytes: usize,
    /// How long after a `register` or `look` nobody takes over the worker that called it, whatever happens to
    /// it: after that it begins no further body before the next look has succeeded. `None` where no clock
    /// decides who is alive.
    pub lease: Option<Duration>,
}

/// What survives after an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Survives a crash of any process and of the machine.
    #[default]
    Full,
    /// Survives a crash of any process; a crash of the machine may take back the last moments.
    Relaxed,
    /// Survives nothing.
    None,
}

impl Durability {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Relaxed => "relaxed",
            Durability::None => "none",
        }
    }
}

/// A worker's registration.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Its id.
    pub worker: WorkerId,
    /// Its epoch, on all its lanes.
    pub epoch: i64,
    /// The store's time.
    pub now: Timestamp,
}
