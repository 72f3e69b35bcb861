//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
//! acts, and a thousand of them share one flush.
//!
//! This crate keeps executions in Postgres, for any number of workers on any number of machines: [`PostgresStore`]
//! implements the [`Store`] contract. The folders are:
//!
//! - `conn`: opens connections, and sends a transaction in one round trip.
//! - `rows`: converts the contract's types to columns and back.
//! - `flush`: turns a flush into a transaction.
//! - `claim`: takes executions to run.
//! - `control`: registers workers, handles heartbeats and takeovers, and changes queues.
//! - `read`: loads and lists executions.
//! - `admin`: migrates and checks the schema.
//!
//! The SQL is in `queries/`.

mod admin;
mod changes;
mod claim;
mod conn;
mod control;
mod error;
mod flush;
mod lane;
mod notify;
mod quoting;
mod read;
mod rows;
mod schema;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stepfast_core::payload::ChunkRef;
use stepfast_core::queue::fairness::FairShare;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{
    Assignments, BatchItems, Claim, ClaimReply, DeadLetter, Detail, Event, EventQuery, Execution,
    ExecutionId, Filter, Finding, Flush, GraphRow, Heartbeat, HeartbeatReply, Hint, Maintenance,
    MigrationReport, Outcome, Page, PendingMessage, Record, Registration, Renewal, StoreError, StoreInfo,
    StreamEntry, StreamQuery, WorkerId, WorkerInfo, WorkerOverview, load_items_by_bundle,
};
use stepfast_core::sync::Mutex;
use stepfast_core::{Key, Store};

pub use crate::conn::options::{Pooling, PostgresOptions};
#[doc(hidden)]
pub use crate::conn::statements;
pub use crate::conn::tls::SslMode;
pub use crate::notify::hint_channel;
#[doc(hidden)]
pub use crate::schema::add_migration;

/// A [`Store`] in a Postgres database (13 or newer).
///
/// Flushes are as durable as the server is configured to make them. With the default options, an acknowledged flush is
/// on the server's disk, and on the disks of its synchronous standbys, if it has any.
pub struct PostgresStore {
    info: StoreInfo,
    counters: Counters,
    connector: Arc<Connector>,
    background: Arc<BackgroundRuntime>,
    lanes: Arc<Lanes>,
    assignments: Arc<Assignments>,
    /// The state of the fair share between queues and queue keys, kept from claim to claim.
    fair_share: Mutex<FairShare>,
    cursors: ClaimCursors,
    inbox: InboxState,
    limited_queues: LimitedQueues,
    control: WorkerControl,
    reader: Reader,
    hints: Arc<Hints>,
}

use crate::admin::{check, migrate};
use crate::changes::Changes;
use crate::claim::ClaimMemory;
use crate::claim::InboxState;
use crate::claim::cursors::ClaimCursors;
use crate::conn::background::BackgroundRuntime;
use crate::conn::connector::{Connector, Purpose};
use crate::conn::dial::DialTarget;
use crate::control::WorkerControl;
use crate::flush::depth::LimitedQueues;
use crate::lane::Lanes;
use crate::notify::Hints;
use crate::read::Reader;

impl PostgresStore {
    /// Opens the database at `url` (`postgres://user:password@host:5432/database`) with the default options. Options in
    /// the query of the URL take precedence; docs/reference/stores.md lists them.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, PostgresOptions::default()).await
    }

    /// Opens the database at `url`, and creates or migrates its schema.
    ///
    /// [`StoreError::Open`] says why the database cannot be opened. After [`StoreError::Unreachable`], a later attempt
    /// may succeed. [`StoreError::NewerSchema`] means that a newer version of this program has migrated the schema.
    pub async fn open_with(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(url, options)?);
        let background = Arc::new(BackgroundRuntime::start()?);
        let (version, identity, heartbeat_session) = migrate::open(&connector, &background).await?;
        stepfast_core::crash_point!("postgres migrated");
        let info = StoreInfo {
            kind: "postgres",
            version: format!("PostgreSQL {version}"),
            location: format!("{}, schema {}", connector.name(), connector.options().schema),
            store_id: identity.store_id,
            shard: identity.shard,
            durability: connector.options().durability,
            lanes: 2,
            max_flush_writes: 4096,
            max_flush_bytes: 4 << 20,
            lease: Some(connector.options().lease),
        };
        let (assignments, lanes) = (Arc::new(Assignments::default()), Arc::new(Lanes::default()));
        Ok(Self {
            info,
            counters: Counters::default(),
            control: WorkerControl::new(
                connector.clone(),
                background.clone(),
                assignments.clone(),
                lanes.clone(),
                heartbeat_session,
            ),
            lanes,
            assignments,
            fair_share: Mutex::default(),
            cursors: ClaimCursors::default(),
            inbox: InboxState::default(),
            limited_queues: LimitedQueues::default(),
            reader: Reader::new(&connector, &background),
            hints: Arc::new(Hints::new(connector.clone())),
            connector,
            background,
        })
    }

    /// Opens a connection to the database at `url` as the store does, but without session settings. Tools use the
    /// connection to inspect the server. The current Tokio runtime drives the connection.
    #[doc(hidden)]
    pub async fn raw_client(url: &str, application_name: &str) -> Result<tokio_postgres::Client, StoreError> {
        let (target, _) = DialTarget::new(url, PostgresOptions::default())?;
        let dialed = target.dial(application_name).await;
        let (client, driver) = dialed.map_err(|error| error.into_open_error(target.name()))?;
        tokio::spawn(driver);
        Ok(client)
    }

    /// Migrates the schema of the database at `url` without opening a store. If `role` is given, grants this role the
    /// privileges to run engines, but not to change tables. If `is_dry` is true, only returns the SQL, and does not
    /// execute it.
    ///
    /// If the role in the URL lacks privileges, [`StoreError::Open`] names the role that has them.
    pub async fn migrate(
        url: &str,
        options: PostgresOptions,
        role: Option<&str>,
        is_dry: bool,
    ) -> Result<MigrationReport, StoreError> {
        let connector = Connector::new(url, options)?;
        if let Some(reason) = role.and_then(schema::role_name_error) {
            return Err(StoreError::Open { store: connector.name().to_owned(), reason });
        }
        let background = BackgroundRuntime::start()?;
        let connected = migrate::connect(&connector, &background).await?;
        migrate::migrate(&connector, &background, &connected.client, is_dry, role, true).await
    }

    /// Stops the engines on a schema, as a migration to version `version` does, but migrates nothing. Only tests call
    /// this.
    #[doc(hidden)]
    pub async fn stop_older_workers(
        url: &str,
        options: PostgresOptions,
        version: i64,
    ) -> Result<(), StoreError> {
        let connector = Connector::new(url, options)?;
        let background = BackgroundRuntime::start()?;
        let client = migrate::connect(&connector, &background).await?.client;
        let schema = &connector.options().schema;
        let stopped =
            migrate::stop_older_workers(&client, schema, schema::newest_version(), version, true).await;
        let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
        stopped.map_err(|error| open(error.to_string()))?.map_err(open)
    }

    /// Checks whether engines can run on the database at `url`, and changes nothing.
    ///
    /// Returns an error only for an invalid URL, or for a connection that was lost during the check.
    pub async fn check(url: &str, options: PostgresOptions) -> Result<Vec<Finding>, StoreError> {
        let connector = Connector::new(url, options)?;
        let background = BackgroundRuntime::start()?;
        check::check(&connector, &background).await
    }

    /// Runs the first step of a takeover alone, regardless of the lease. Returns whether the worker was registered.
    #[doc(hidden)]
    pub async fn end_registration(&self, worker: WorkerId) -> Result<bool, StoreError> {
        self.control.fence(worker).await
    }

    /// Runs the second step of a takeover alone, for a worker whose registration has ended. Returns the number of
    /// requeued executions.
    #[doc(hidden)]
    pub async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.control.requeue(worker).await
    }

    /// Returns the statements that set up the connection of a lane.
    #[doc(hidden)]
    pub fn lane_settings(&self) -> String {
        self.connector.session_settings(Purpose::Lane)
    }

    /// Returns the purposes of connections, each with the statements that set up such a connection.
    #[doc(hidden)]
    pub fn session_settings(&self) -> Vec<(&'static str, String)> {
        Purpose::ALL.map(|purpose| (purpose.name(), self.connector.session_settings(purpose))).into()
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("database", &self.connector.name())
            .field("options", self.connector.options())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let registration = self.control.register(lanes, info).await?;
        self.hints.add_worker(registration.worker, info);
        Ok(registration)
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let mut changes = Changes::default();
        let result = self.control.close(worker, &mut changes).await;
        if result.is_ok() {
            self.lanes.remove_worker(worker);
            self.hints.remove_worker(worker);
        }
        if !changes.is_empty() {
            self.hints.send_and_wait(&self.background, changes).await;
        }
        result
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let (outcomes, mut changes) = flush::commit(
            &self.connector,
            &self.lanes,
            &self.assignments,
            &self.limited_queues,
            &self.counters,
            flush,
        )
        .await?;
        let is_client = self.hints.is_client(flush.worker);
        changes.merge(Changes::of_flush(flush, &outcomes, is_client));
        self.hints.send(&self.background, changes);
        Ok(outcomes)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let Self { connector, lanes, assignments, counters, fair_share, cursors, inbox, .. } = self;
        let memory = ClaimMemory { assignments, fair_share, cursors, inbox };
        let (reply, changes) = claim::claim(connector, lanes, memory, counters, claim).await?;
        self.hints.send(&self.background, changes);
        Ok(reply)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let row = self.control.change_queue(change).await?;
        self.hints.send(&self.background, Changes::any_ready());
        Ok(row)
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        self.counters.add_read();
        self.reader.queues(names).await
    }

    async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        self.control.store_graphs(graphs).await
    }

    async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        self.counters.add_read();
        self.reader.graphs(names).await
    }

    async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError> {
        let (renewal, has_peers) = self.control.renew(worker, epoch).await?;
        // a client starts executions for others, and seldom renews
        self.hints.set_has_peers(has_peers || self.hints.is_client(worker));
        if renewal.is_fenced {
            // the worker registers again, and no longer needs these lanes
            self.lanes.remove_worker(worker);
            self.hints.remove_worker(worker);
        }
        Ok(Renewal { receives_hints: self.hints.is_listening(), ..renewal })
    }

    async fn maintain(&self, worker: WorkerId, epoch: i64) -> Result<Maintenance, StoreError> {
        let (maintenance, counts) = self.control.maintain(worker, epoch).await?;
        if let Some((count, peers)) = counts {
            self.hints.set_worker_counts(worker, count, peers);
        }
        Ok(maintenance)
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let reply = self.control.heartbeat(heartbeat, &self.reader).await?;
        if reply.is_fenced {
            self.lanes.remove_worker(heartbeat.worker);
        }
        Ok(reply)
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let mut changes = Changes::default();
        let result = self.control.take_over(worker, &mut changes).await;
        self.hints.send(&self.background, changes);
        result
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        self.counters.add_read();
        self.reader.load(ids, detail).await
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.counters.add_read();
        self.reader.load_value(execution, chunks).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.counters.add_read();
        self.reader.list(filter).await
    }

    async fn find(&self, name: &str, values: &[&str], limit: u64) -> Result<Vec<Vec<Key>>, StoreError> {
        self.counters.add_read();
        self.reader.find(name, values, limit).await
    }

    async fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
        load_items_by_bundle(self, items).await
    }

    async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        self.counters.add_read();
        self.reader.newest_batch(before).await
    }

    async fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError> {
        self.counters.add_read();
        self.reader.bundles(batch, first_item, limit).await
    }

    async fn messages(&self, receivers: &[(Key, Arc<str>)]) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        self.counters.add_read();
        self.reader.messages(receivers).await
    }

    async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.counters.add_read();
        self.reader.pending_topics(receiver).await
    }

    async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        self.counters.add_read();
        self.reader.events(queries).await
    }

    async fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        self.counters.add_read();
        self.reader.event_waiters(events).await
    }

    async fn stream_entries(&self, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        self.counters.add_read();
        self.reader.stream_entries(queries).await
    }

    async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        self.counters.add_read();
        self.reader.batch_items(batch).await
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.reader.dead_workers(workers, self.control.now(), self.control.lease_micros()).await
    }

    async fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.reader.dead_letters(limit).await
    }

    async fn workers(&self, limit: u64, counts_running: bool) -> Result<WorkerOverview, StoreError> {
        self.counters.add_read();
        self.reader.workers((limit, counts_running), self.control.now(), self.control.lease_micros()).await
    }

    async fn next_hint(&self, worker: WorkerId) -> Hint {
        self.hints.next_hint(&self.background, worker).await
    }
}
