//! The contract between the engine and a database: trait [`Store`] and the data that crosses it.
//!
//! Everything that running executions record is data: a [`Write`] in a [`Flush`]. No such fact has a method of its own.
//! The section "How to add a Write" of CONTRIBUTING.md lists all places that a new kind of Write concerns. The compiler
//! finds only some of these places.

mod admin;
mod assignments;
mod claim;
pub mod counters;
mod error;
mod execution;
mod filter;
mod graphs;
mod heartbeat;
mod items;
mod kept_outcomes;
mod messaging;
mod quarantine;
mod route;
mod workers;
mod write;

pub use admin::{Finding, MigrationReport};
pub use assignments::{AssignmentId, Assignments, Tidying, started_keys, starting_keys};
pub use claim::{BundleBudget, Claim, ClaimReply, is_served};
pub use error::StoreError;
pub use execution::{
    Attempt, CLAIMED_ROW_BYTES, Checkpoint, CheckpointKind, Detail, Execution, ExecutionId, Parent,
    PendingSleep, Record, RequestKind, Status, UNKNOWN_STATUS_MESSAGE, WorkerId, decode_pending_sleeps,
    encode_pending_sleeps,
};
pub use filter::{DEFAULT_LIMIT, Filter, Page};
pub use graphs::GraphRow;
pub use heartbeat::{
    ClaimHint, EndedExecutions, Heartbeat, HeartbeatReply, Hint, MAX_EXPIRED, Maintenance, Renewal,
};
pub use items::{
    BatchCounts, BatchItems, BundleRecord, BundledItems, CLAIMED_ITEM_BYTES, EndedItems, ItemOutcome, Pack,
    PackBytes, PackedInputs, decode_pack, load_items_by_bundle, search_pack, unpack_inputs, virtual_item,
};
pub(crate) use items::{ItemTemplate, bundle_placement, input_of_item};
pub use kept_outcomes::{
    KeptExecution, KeptKey, decode_outcomes, encode_outcomes, outcomes_to_keep, unreadable_outcomes,
};
pub use messaging::{
    Append, Event, EventQuery, Forward, MAX_ENTRIES_LOADED, MAX_PENDING_LOADED, Message, PendingMessage,
    StreamEntry, StreamQuery, Wait,
};
pub use quarantine::{QUARANTINE_STRIKES, next_strikes, quarantine_delay};
pub use route::Route;
pub(crate) use workers::is_built_in;
pub use workers::{
    DeadLetter, RegisteredWorker, UnclaimableWork, WaitingWork, WorkerInfo, WorkerOverview, is_same_version,
};
pub use write::{
    Chunk, CloseBatch, DeleteChunks, ExistingExecution, Flush, Outcome, Request, RequestResult, Start, State,
    Transition, Write, cancel_outcome, continues_in_place,
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
/// Every method may be called at any time and from any number of tasks, except that a lane commits one flush at a time.
/// The engine calls `commit`, `register`, `close`, `claim` and `heartbeat` from threads of its own, so these methods
/// may block. The other methods must not block.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Returns the static facts about the store, such as its product, location, durability and maximum flush size.
    fn info(&self) -> &StoreInfo;

    /// Returns the running totals of the store's operations.
    fn counters(&self) -> &Counters;

    /// Registers a worker with `lanes` lanes (numbers 0 to `lanes` - 1), under an id that was never used before.
    ///
    /// Each lane gets a row with the registration's epoch, and with 0 as the number of its last flush or claim. The
    /// worker counts as alive until its registration is closed or taken over. The store keeps `info` to show it to
    /// people, and to find executions that no worker can run.
    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError>;

    /// Ends a registration. The executions that the worker still owns become claimable at once.
    ///
    /// Closing a registration that was closed or taken over does nothing.
    async fn close(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Applies one flush in one durable transaction.
    ///
    /// `Ok`: the whole flush is durable. The method returns the outcomes other than `Applied`, with the indexes of
    /// their Writes in ascending order. An `Err` from the first attempt to commit this number means:
    /// - [`Unavailable`](StoreError::Unavailable): the outcome is *unknown*; the flush may be durable now, later or
    ///   never. Send the flush again with `is_resent`. If the flush was applied, the store returns the outcomes that it
    ///   has kept with the flush's number, however the executions have changed since.
    /// - [`Fenced`](StoreError::Fenced): nothing of this flush, or of a later flush of this lane, is or will be
    ///   durable.
    /// - [`Rejected`](StoreError::Rejected), [`Blocked`](StoreError::Blocked): nothing of this flush is durable.
    ///   Another flush may use the same number.
    /// - [`Corrupt`](StoreError::Corrupt): the database cannot be trusted. Stop.
    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError>;

    /// Takes executions to run: first executions whose timer is due, then those in `ready`. A claim [from
    /// quarantine](Claim::from_quarantine) instead takes executions in quarantine whose delay is over, the earliest
    /// first.
    ///
    /// Queues, and the queue keys within a queue, share the claim's capacity
    /// [fairly](crate::queue::fairness::FairShare). Within a queue key, executions are taken by priority, the smallest
    /// first. At equal priority, executions that have begun come first, then older ones. A claim never takes more than
    /// the [limits](crate::queue::Limits) of the queue allow, even if other claims run concurrently. No claim takes
    /// executions from a paused queue.
    ///
    /// The record of an execution that has continued as new begins with the checkpoint of its last continuation.
    ///
    /// Each execution is durably `running` under the claiming worker before the method returns. The store deletes rows
    /// of `ready` whose execution cannot be claimed. After `Unavailable` the claim may have happened. The next
    /// [`heartbeat`](Store::heartbeat) with [`held`](Heartbeat::held) then lists the executions that it took.
    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError>;

    /// Creates or changes a queue; returns `None` if the queue does not have the [expected
    /// version](QueueChange::expected_version). Every claim that begins after this method has returned obeys the new
    /// limits.
    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError>;

    /// Returns the existing queues in the order of their names. If `names` is given, returns only the queues in it.
    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError>;

    /// Stores graphs by name, each in place of the stored graph of this name.
    async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError>;

    /// Returns the stored graphs in the order of their names. If `names` is given, returns only the graphs in it.
    async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError>;

    /// Renews a registration. A worker calls this method once a second.
    ///
    /// The cost does not depend on the rows of the store. The method waits for no other method, except for a takeover of
    /// the worker itself.
    async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError>;

    /// Does a worker's part of the maintenance of the store: detects dead workers, and deletes the worker's records of
    /// executions that it no longer runs. A worker calls this method after each renewal.
    async fn maintain(&self, worker: WorkerId, epoch: i64) -> Result<Maintenance, StoreError>;

    /// Returns everything that concerns the worker. Does not wait for claims.
    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError>;

    /// Takes over the workers that the last maintenance by `worker` found dead: requeues the executions that they ran,
    /// and returns the number of these executions.
    ///
    /// The method may take long; meanwhile renewals, heartbeats and claims continue. The method also wakes executions that a dead
    /// worker should have woken. That worker may have died between the end of a child and the parent's Wake. If a
    /// takeover is interrupted, any later takeover completes it.
    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError>;

    /// Loads executions, in the order of `ids`; `None` for each that does not exist.
    ///
    /// An item without a row of its own does not exist here. The record of a bundle includes its
    /// [items](Record::bundle), with [`Detail::Outcome`] without their checkpoints and attempts.
    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError>;

    /// Loads the bytes of a value that is stored as chunks; fails with `Corrupt` if pieces are missing.
    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError>;

    /// Lists executions by their keys, the latest first, or counts them.
    ///
    /// If a parent starts and awaits a child in one call, the child's key contains the time of the parent's key. Bundles are
    /// not listed.
    async fn list(&self, filter: &Filter) -> Result<Page, StoreError>;

    /// Returns the keys of the executions with an attribute of this name, for each of the values: the newest first, and up to
    /// `limit` for each value.
    async fn find(&self, name: &str, values: &[&str], limit: u64) -> Result<Vec<Vec<Key>>, StoreError>;

    /// Returns the key of the newest batch, or of the newest one that is older than the batch `before`. A batch without items
    /// is found until it ends.
    async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError>;

    /// Returns the keys of up to `limit` bundles of a batch in ascending order, from the bundle that contains the item with
    /// index `first_item`.
    async fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError>;

    /// Loads the executions of items by their keys, which are in ascending order; `None` for each item that does not exist.
    /// The executions have their status and their outcome, and no input.
    ///
    /// An item without a row of its own has the values of its [bundle](virtual_item), and its packed outcome.
    async fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError>;

    /// Returns the pending messages of executions and topics, in the order of `receivers`: up to [`MAX_PENDING_LOADED`] for
    /// each, the earliest first.
    async fn messages(&self, receivers: &[(Key, Arc<str>)]) -> Result<Vec<Vec<PendingMessage>>, StoreError>;

    /// Returns the topics of an execution's pending messages, in ascending order, each with the number of its messages.
    async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError>;

    /// Returns events of executions, in the order of `queries`.
    async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError>;

    /// Returns the suspended executions that wait for an event, for each pair of the execution that sets it and its name.
    async fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError>;

    /// Returns entries of streams, in the order of the queries.
    async fn stream_entries(&self, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError>;

    /// Returns the numbers of a batch's items by state. The cost grows with the number of bundles, not of items.
    async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError>;

    /// Lists up to `limit` dead letters, the latest first: rows of the inbox that could not become executions.
    async fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError>;

    /// Returns the registered workers, and counts of the executions that wait for a worker. Counts up to `limit`
    /// ready and as many due executions of each route, and as many in quarantine, so that no route hides another.
    /// `counts_running` is whether to count what each worker runs, which takes a look-up per execution; otherwise
    /// `running` is 0.
    ///
    /// The overview is for people: no decision depends on it.
    async fn workers(&self, limit: u64, counts_running: bool) -> Result<WorkerOverview, StoreError>;

    /// Returns the members of `workers` that are dead or no longer registered at the time of the call.
    ///
    /// The result is for people: no decision depends on it, and the method takes no worker over. In a store with
    /// leases, the result includes workers whose lease has expired, although they may still renew it.
    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError>;

    /// Waits until another process may have changed something that concerns the worker, since the last return of this
    /// method for the worker.
    ///
    /// A hint only saves time: a regular heartbeat finds the same without it. In a store without hints this method never
    /// returns.
    async fn next_hint(&self, worker: WorkerId) -> Hint;
}

/// Static facts about a store.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// The kind of store: `memory`, `sqlite` or `postgres`.
    pub kind: &'static str,
    /// The product and its version, for people.
    pub version: String,
    /// The location of the database, for people, without a password.
    pub location: String,
    /// The identity of the store, as the text of a UUID. Copies and restored backups have the same identity.
    pub store_id: String,
    /// The number of the store's shard, 0 to 1,023, which is a part of all its keys; 0 for a single store.
    pub shard: u16,
    /// The promise of an `Ok` from `commit`.
    pub durability: Durability,
    /// The preferred number of lanes that commit in parallel.
    pub lanes: u16,
    /// Maximum number of Writes in a flush.
    pub max_flush_writes: usize,
    /// Maximum size of a flush, in bytes.
    pub max_flush_bytes: usize,
    /// The time after a call of `register` or `renew` during which no other worker takes over the calling worker,
    /// whatever happens. After this time the worker begins no further body until a renewal has succeeded. `None` if
    /// liveness does not depend on a clock.
    pub lease: Option<Duration>,
}

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// The data survives a crash of any process and of the machine.
    #[default]
    Full,
    /// The data survives a crash of any process; a crash of the machine may lose the latest changes.
    Relaxed,
    /// The data is lost when the process ends.
    None,
}

impl Durability {
    /// Returns the name of this durability: `full`, `relaxed` or `none`.
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
    /// The id of the worker.
    pub worker: WorkerId,
    /// The epoch of the registration, in the rows of all its lanes.
    pub epoch: i64,
    /// The store's time of the registration.
    pub now: Timestamp,
}
