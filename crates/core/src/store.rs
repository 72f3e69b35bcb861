//! [`Store`]: the contract between the engine and a database.
//!
//! Data crosses this seam, not methods: everything durable is a [`Write`](crate::write::Write) in a
//! [`Flush`]. A new feature is one variant of `Write`, one apply function per store, and its cases in the
//! conformance suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::Timestamp;
use crate::counters::Counters;
use crate::error::Error;
use crate::key::Key;
use crate::payload::ChunkRef;
use crate::queue::{QueueChange, QueueRow};
use crate::record::{Detail, ExecutionId, Filter, Page, Record};
use crate::survey::{DeadLetter, Survey, WorkerInfo};
use crate::write::{Flush, Outcome, RequestKind, WorkerId};

/// A database that keeps executions.
///
/// Every method is safe to call at any time from any number of tasks, except that a lane commits one flush
/// at a time. `commit`, `register`, `close`, `claim` and `look` are called from threads of the engine's own
/// and may block them; the others must not block.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What it is and what it likes.
    fn about(&self) -> &About;

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
    /// Queues with something ready, and keys within a queue, take [turns](crate::turns::Turns); within a key the
    /// smallest priority comes first, then what has begun before, then the oldest. As many are taken of each queue and
    /// key as their [limits](crate::queue::Limits) allow for, whoever else claims, and none of a queue that is paused.
    ///
    /// Each becomes `running` under the claiming worker, durably, before this returns. Ready rows whose
    /// execution is not claimable are removed. After `Unavailable` the claim may have happened: the next
    /// [`look`](Store::look) with the worker's `holds` shows what it owns.
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// Creates or changes a queue; `None` if it is not as [`seen_version`](QueueChange::seen_version) says. From when
    /// this returns on, every claim heeds it.
    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError>;

    /// The queues that there are, by name; those of `names` where that is given.
    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError>;

    /// Reports what concerns the worker; the look that is a renewal, one per second, renews it and sees whether others
    /// are lost. It waits for no claim, and for no takeover but that of the worker itself. A renewal takes as long as all
    /// that its look searches for.
    async fn look(&self, look: &Look) -> Result<Seen, StoreError>;

    /// Takes over the workers that the last look of `worker` has seen to be lost: makes claimable what they
    /// ran, and returns how many executions that were. May take long, beside looks and claims.
    ///
    /// It also wakes what should have been woken: a lost worker may have died between what it recorded and
    /// the Wake for it. What is interrupted is finished by whoever looks next.
    async fn recover(&self, worker: WorkerId) -> Result<u64, StoreError>;

    /// Loads executions, in the order of `ids`; `None` where there is none.
    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError>;

    /// The bytes of a value that is stored aside; `Corrupt` if pieces are missing.
    async fn value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError>;

    /// Lists executions by their keys, the latest first, or counts them. The key of a child that is called has the time
    /// of its parent.
    async fn list(&self, filter: &Filter) -> Result<Page, StoreError>;

    /// Lists at most `most` dead letters: rows of the inbox that could not become executions, the latest first.
    async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError>;

    /// Who is registered, and what waits for a worker: counts of at most `most` executions. For people; it
    /// decides nothing.
    async fn survey(&self, most: u64) -> Result<Survey, StoreError>;

    /// Which of these workers are lost, as one look from outside can tell: dead, or not registered any more.
    ///
    /// For people; it decides nothing and takes nothing over. Where leases decide who is alive, a worker whose
    /// lease has run out is told, although it may yet renew it.
    async fn lost(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError>;

    /// Returns when another process may have changed something since the last call returned, and what. A hint:
    /// the look once a second stays correct without it. A store without such hints never returns.
    async fn changed(&self) -> Changed;
}

/// What others may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Something may be ready: a claim is worthwhile, without a look before it.
    pub has_ready: bool,
    /// Something else that only a look can tell: an end, a request, a due time.
    pub has_more: bool,
}

/// What a store is and likes.
#[derive(Clone, Debug)]
pub struct About {
    /// `memory`, `sqlite` or `postgres`.
    pub kind: &'static str,
    /// Product and version, for people.
    pub version: String,
    /// Which database it is, for people: no password in it.
    pub place: String,
    /// Identity of the store, as the text of a UUID: copies and restored backups have the same.
    pub store_id: String,
    /// Number of the shard, 0 to 1,023, that the keys of its executions name; 0 for a store alone.
    pub shard: u16,
    /// What `Ok` from `commit` promises.
    pub durability: Durability,
    /// How many lanes commit in parallel best.
    pub lanes: u16,
    /// Most Writes in a flush.
    pub flush_writes: usize,
    /// Most bytes in a flush.
    pub flush_bytes: usize,
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

impl Look {
    /// True if who looks runs executions of this queue.
    pub fn serves(&self, queue: &str) -> bool {
        is_served(self.queues.as_deref(), queue)
    }
}

/// True if the queue is one of these, or they are not given.
pub(crate) fn is_served(served: Option<&[Arc<str>]>, queue: &str) -> bool {
    served.is_none_or(|served| served.iter().any(|name| **name == *queue))
}

/// What a claim has brought.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// What runs from here on.
    pub records: Vec<Record>,
    /// True if there may be more that could be claimed now, had there been places for it.
    pub has_more: bool,
    /// True if more is ready in queues whose limits do not allow for it now: when something of them has ended or
    /// suspended, another claim may bring it.
    pub is_limited: bool,
    /// When the rate of a queue, or of a key, allows for more of what is ready.
    pub again_at: Option<Timestamp>,
}

/// What a worker tells at its look, and wants to know.
#[derive(Clone, Debug)]
pub struct Look {
    /// Who looks.
    pub worker: WorkerId,
    /// The registration's epoch.
    pub epoch: i64,
    /// True once a second: renew the registration, and see whether other workers are lost. False for a look because
    /// something may have changed, of which there are many.
    pub is_renewal: bool,
    /// Report which of these have ended, or are parked.
    pub watch: Vec<Key>,
    /// What it holds; where given, report executions that it owns and does not hold.
    pub holds: Option<Vec<Key>>,
    /// Workflows it can run.
    pub workflows: Arc<[Arc<str>]>,
    /// Where given, it runs only executions of this version of the code, or of none.
    pub app_version: Option<Arc<str>>,
    /// Where given, it runs only executions of these queues.
    pub queues: Option<Arc<[Arc<str>]>>,
}

/// What a look saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The store's time.
    pub now: Timestamp,
    /// True if the worker itself was taken over: it must register anew.
    pub is_fenced: bool,
    /// Executions it runs for which something is asked.
    pub requests: Vec<(Key, RequestKind)>,
    /// Those of `watch` that have ended or are parked.
    pub ended: Vec<Key>,
    /// Executions that it owns but does not hold; only if `holds` was given.
    pub strays: Vec<Record>,
    /// True if something that it can run is ready, in a queue that is not paused.
    pub has_ready: bool,
    /// Earliest time at which a timer wakes something that it can run.
    pub next_due: Option<Timestamp>,
    /// Executions whose deadline has passed and that nobody runs, whoever could: each is to be
    /// [expired](crate::write::RequestKind::Expire). At most [`EXPIRED`] at a time; a store may leave out for some seconds
    /// what it has reported to another worker.
    pub expired: Vec<Key>,
    /// Earliest deadline of what nobody runs, beside those that have passed.
    pub next_deadline: Option<Timestamp>,
    /// Earliest time at which something in quarantine that it can run may be claimed.
    pub quarantined_until: Option<Timestamp>,
    /// True if workers are lost, or something is left of them: [`recover`](Store::recover) is wanted.
    pub has_lost: bool,
    /// Where the database is being brought to a schema that this program does not know: that version, and the newest that
    /// it knows. The worker hands on what it runs, and ends.
    pub newer_schema: Option<(i64, i64)>,
    /// When a worker that has not renewed since the last renewal counts as lost: a renewal just after that tells.
    pub judge_at: Option<Timestamp>,
}

/// Most expired executions that a look reports.
pub const EXPIRED: usize = 500;

/// What went wrong in a store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer, or none that can be trusted; what was asked may have happened.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The lane's epoch is over.
    #[error("another worker has taken over")]
    Fenced,
    /// Some item's data is not accepted; nothing was written.
    #[error("the database refuses an item: {0}")]
    Rejected(String),
    /// Some item waits for somebody else's transaction; nothing was written.
    #[error("an item is blocked by another transaction: {0}")]
    Blocked(String),
    /// Who asks may not read that. Nothing has happened.
    #[error("the database does not permit it: {0}")]
    Denied(String),
    /// The database is damaged, or has lost what it acknowledged.
    #[error("the database cannot be trusted: {0}")]
    Corrupt(String),
    /// The schema is newer than this program.
    #[error("the database has schema version {found}, this program knows up to {supported}")]
    NewerSchema {
        /// Version found.
        found: i64,
        /// Newest version known.
        supported: i64,
    },
    /// It cannot be opened.
    #[error("cannot open {store}: {reason}")]
    Open {
        /// Which database.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
    /// It cannot be opened now, and perhaps later: the server is away, or takes no more connections.
    #[error("cannot reach {store}: {reason}")]
    Unreachable {
        /// Which database.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => Error::Unavailable(reason),
            StoreError::NewerSchema { found, supported } => Error::NewerSchema { found, supported },
            StoreError::Denied(reason) => Error::Denied(reason),
            StoreError::Corrupt(reason) => Error::Corrupt(reason),
            StoreError::Open { store, reason } => Error::Open { store, reason },
            StoreError::Unreachable { store, reason } => Error::Unreachable { store, reason },
            error @ (StoreError::Fenced | StoreError::Rejected(_) | StoreError::Blocked(_)) => {
                Error::Unavailable(error.to_string())
            }
        }
    }
}
