//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
//! acts, and a thousand of them share one flush.
//!
//! This crate keeps its executions in Postgres, for any number of workers on any number of machines:
//! [`PostgresStore`] implements the [`Store`] contract. Its rooms: `conn` makes connections, and sends a transaction in
//! one round trip; `flush` turns a flush into one; `claim`, `control` (heartbeats, takeovers, changes of queues), `read`
//! and `admin` (the schema) do the rest; `rows` has the contract's types as columns. The SQL is in `queries/`.

mod admin;
mod claim;
mod conn;
mod control;
mod error;
mod flush;
mod lane;
mod notify;
mod ownership;
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
    StoreInfo, Hint, Claim, ClaimReply, DeadLetter, Detail, ExecutionId, Filter, Finding, Flush, Heartbeat, MigrationReport,
    Outcome, Page, Record, Registration, HeartbeatReply, StoreError, WorkerOverview, WorkerId, WorkerInfo,
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
/// Durable is as durable as the server is configured to be: with the default options an acknowledged flush
/// has been flushed by the server (and by its synchronous standbys, if it has any).
pub struct PostgresStore {
    about: StoreInfo,
    counters: Counters,
    connector: Arc<Connector>,
    background: Arc<Background>,
    lanes: Arc<Lanes>,
    windows: Arc<Ownership>,
    /// Whose turn it is at the next claim.
    turns: Mutex<FairShare>,
    heads: Heads,
    inbox: Inbox,
    depths: Depths,
    control: Control,
    reader: Reader,
    hints: Arc<Hints>,
}

use crate::admin::{check, migrate};
use crate::claim::cursors::Heads;
use crate::claim::{Inbox, Remembered};
use crate::conn::background::Background;
use crate::conn::connector::{Connector, Role};
use crate::conn::dial::Target;
use crate::control::Control;
use crate::flush::depth::Depths;
use crate::lane::Lanes;
use crate::notify::{Hints, READY_HINT};
use crate::ownership::Ownership;
use crate::read::Reader;

impl PostgresStore {
    /// Opens the database at `url` (`postgres://user:password@host:5432/database`) with the default options, and
    /// those behind it in the URL: docs/reference/stores.md lists them.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, PostgresOptions::default()).await
    }

    /// Opens the database at `url`, and makes its schema or brings it up to date.
    ///
    /// [`StoreError::Open`] says why it cannot be opened; [`StoreError::NewerSchema`] means that a newer
    /// version of this program has migrated it.
    pub async fn open_with(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(url, options)?);
        let background = Arc::new(Background::start()?);
        let (version, identity, looking) = migrate::open(&connector, &background).await?;
        stepfast_core::crash_point!("postgres migrated");
        let about = StoreInfo {
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
        let (windows, lanes) = (Arc::new(Ownership::default()), Arc::new(Lanes::default()));
        Ok(Self {
            about,
            counters: Counters::default(),
            control: Control::new(
                connector.clone(),
                background.clone(),
                windows.clone(),
                lanes.clone(),
                looking,
            ),
            lanes,
            windows,
            turns: Mutex::default(),
            heads: Heads::default(),
            inbox: Inbox::default(),
            depths: Depths::default(),
            reader: Reader::new(&connector, &background),
            hints: Arc::new(Hints::new(connector.clone())),
            connector,
            background,
        })
    }

    /// A connection to the database at `url`, made as the store makes its own, with nothing set: for tools that look
    /// at the server beside a store. The current runtime drives it.
    #[doc(hidden)]
    pub async fn beside(url: &str, application_name: &str) -> Result<tokio_postgres::Client, StoreError> {
        let (target, _) = Target::new(url, PostgresOptions::default())?;
        let dialled = target.dial(application_name).await;
        let (client, driver) = dialled.map_err(|refusal| refusal.opening(target.name()))?;
        tokio::spawn(driver);
        Ok(client)
    }

    /// Brings the schema of the database at `url` up to date without opening a store, and lets `role`, if given, use
    /// it and change nothing but rows. If `is_dry`, only says what would be executed.
    ///
    /// [`StoreError::Open`] says who has the right to, if the URL's role has not.
    pub async fn migrate(
        url: &str,
        options: PostgresOptions,
        role: Option<&str>,
        is_dry: bool,
    ) -> Result<MigrationReport, StoreError> {
        let connector = Connector::new(url, options)?;
        if let Some(reason) = role.and_then(schema::refused_role) {
            return Err(StoreError::Open { store: connector.name().to_owned(), reason });
        }
        let background = Background::start()?;
        let reached = migrate::reach(&connector, &background).await?;
        migrate::migrate(&connector, &background, &reached.client, is_dry, role, true).await
    }

    /// Ends the engines on a schema as a migration to version `wanted` would, and migrates nothing: for tests.
    #[doc(hidden)]
    pub async fn make_way(url: &str, options: PostgresOptions, wanted: i64) -> Result<(), StoreError> {
        let connector = Connector::new(url, options)?;
        let background = Background::start()?;
        let client = migrate::reach(&connector, &background).await?.client;
        let schema = &connector.options().schema;
        let way = migrate::make_way(&client, schema, schema::newest(), wanted, true).await;
        let open = |reason: String| StoreError::Open { store: connector.name().to_owned(), reason };
        way.map_err(|error| open(error.to_string()))?.map_err(open)
    }

    /// Looks at whether the database at `url` is fit for engines, and changes nothing.
    ///
    /// An error is one of the URL, or of a connection that was lost while it was looked at.
    pub async fn check(url: &str, options: PostgresOptions) -> Result<Vec<Finding>, StoreError> {
        let connector = Connector::new(url, options)?;
        let background = Background::start()?;
        check::check(&connector, &background).await
    }

    /// The first step of a takeover alone, whatever the lease says. True if the worker was there.
    #[doc(hidden)]
    pub async fn end_registration(&self, worker: WorkerId) -> Result<bool, StoreError> {
        self.control.end_registration(worker).await
    }

    /// The second step of a takeover alone, for a worker whose registration has ended.
    #[doc(hidden)]
    pub async fn requeue(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.control.requeue(worker).await
    }

    /// What sets up the connection of a lane.
    #[doc(hidden)]
    pub fn lane_settings(&self) -> String {
        self.connector.session_settings(Role::Lane)
    }

    /// What sets up connections, by what they are for.
    #[doc(hidden)]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        Role::ALL.map(|role| (role.name(), self.connector.session_settings(role))).into()
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
        &self.about
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        self.control.register(lanes, info).await
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let requeued = self.control.close(worker).await?;
        self.lanes.remove_worker(worker);
        if requeued > 0 {
            self.hints.send_and_wait(&self.background, READY_HINT).await;
        }
        Ok(())
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let outcomes =
            flush::commit(&self.connector, &self.lanes, &self.windows, &self.depths, &self.counters, flush)
                .await?;
        self.hints.send(&self.background, notify::hint_for_flush(flush, &outcomes));
        Ok(outcomes)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let Self { connector, lanes, windows, counters, turns, heads, inbox, .. } = self;
        claim::claim(connector, lanes, Remembered { windows, turns, heads, inbox }, counters, claim).await
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let row = self.control.change_queue(change).await?;
        self.hints.send(&self.background, READY_HINT);
        Ok(row)
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        self.counters.add_read();
        self.reader.queues(names).await
    }

    async fn heartbeat(&self, look: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let (seen, has_company) = self.control.look(look, &self.reader).await?;
        self.hints.set_has_peers(has_company);
        if seen.is_fenced {
            // it registers anew, and has no use for these any more
            self.lanes.remove_worker(look.worker);
        }
        Ok(seen)
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let recovered = self.control.recover(worker).await?;
        if recovered > 0 {
            self.hints.send(&self.background, READY_HINT);
        }
        Ok(recovered)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        self.counters.add_read();
        self.reader.load(ids, detail).await
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.counters.add_read();
        self.reader.value(execution, chunks).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.counters.add_read();
        self.reader.list(filter).await
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.reader.lost(workers, self.control.now(), self.control.lease_micros()).await
    }

    async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.reader.dead_letters(most).await
    }

    async fn workers(&self, most: u64) -> Result<WorkerOverview, StoreError> {
        self.counters.add_read();
        self.reader.survey(most, self.control.now(), self.control.lease_micros()).await
    }

    async fn next_hint(&self) -> Hint {
        self.hints.next_hint(&self.background).await
    }
}
