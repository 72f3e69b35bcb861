//! [`StoreFixture`]: what the suite needs of a store besides the contract.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use stepfast_core::MemoryStore;
use stepfast_postgres::{PostgresOptions, PostgresStore};
use stepfast_sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::clock::TestClock;
use crate::pooler::Pooler;
use crate::postgres_server::PostgresServer;
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::store::{Store, WorkerId};

/// Midnight of the first of January 2026: where the clocks of tests begin.
pub const EPOCH: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// A fresh database of one kind, for one test.
#[async_trait]
pub trait StoreFixture: Send + Sync {
    /// The first handle on the database.
    fn store(&self) -> Arc<dyn Store>;

    /// A second handle, as another process has one.
    async fn second(&self) -> Arc<dyn Store>;

    /// The clock of all its handles.
    fn clock(&self) -> &TestClock;

    /// Makes a worker look lost to all others, as if its process had been killed.
    async fn lose(&self, worker: WorkerId);

    /// Executes SQL past the store; false on a store that has none.
    async fn execute(&self, sql: &str) -> bool {
        self.try_execute(sql).await.map(Result::unwrap).is_some()
    }

    /// Executes SQL past the store, or returns the error of the database; `None` on a store that has no SQL.
    async fn try_execute(&self, sql: &str) -> Option<Result<(), String>>;

    /// True if `changed` tells of changes by other handles.
    fn has_hints(&self) -> bool {
        true
    }

    /// True if a flush whose number does not follow on the last one is found out.
    fn numbers_flushes(&self) -> bool {
        true
    }

    /// Returns the damage of the database itself, where a file can be asked for it.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// The time now.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }
}

/// Makes a fresh database.
pub type Fresh = fn() -> BoxFuture<'static, Box<dyn StoreFixture>>;

/// The stores that there are, by name; the first is the model of the others. Their clocks stand still.
pub const STORES: &[(&str, Fresh)] = &[
    ("memory", || Box::pin(MemoryFixture::fresh(TestClock::standing(EPOCH)))),
    ("sqlite", || Box::pin(SqliteFixture::fresh(TestClock::standing(EPOCH)))),
    ("postgres", || Box::pin(PostgresFixture::fresh(TestClock::standing(EPOCH)))),
];

/// The same stores with clocks that go: for engines.
pub const GOING: &[(&str, Fresh)] = &[
    ("memory", || Box::pin(MemoryFixture::fresh(TestClock::running()))),
    ("sqlite", || Box::pin(SqliteFixture::fresh(TestClock::running()))),
    ("postgres", || Box::pin(PostgresFixture::fresh(TestClock::running()))),
];

/// A [`MemoryStore`]; the second handle is the same store, as engines of one process share it.
pub struct MemoryFixture {
    clock: Arc<TestClock>,
    store: Arc<MemoryStore>,
}

impl MemoryFixture {
    /// A fresh store.
    #[allow(clippy::unused_async)] // others wait for a database
    pub async fn fresh(clock: TestClock) -> Box<dyn StoreFixture> {
        let clock = Arc::new(clock);
        Box::new(Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock })
    }
}

#[async_trait]
impl StoreFixture for MemoryFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn clock(&self) -> &TestClock {
        &self.clock
    }

    async fn lose(&self, worker: WorkerId) {
        self.store.mark_dead(worker);
    }

    async fn try_execute(&self, _: &str) -> Option<Result<(), String>> {
        None
    }
}

/// A [`SqliteStore`] in a directory of its own.
pub struct SqliteFixture {
    clock: Arc<TestClock>,
    directory: TempDir,
    store: Arc<SqliteStore>,
}

impl SqliteFixture {
    /// A fresh database.
    #[allow(clippy::unused_async)] // others wait for theirs
    pub async fn fresh(clock: TestClock) -> Box<dyn StoreFixture> {
        let clock = Arc::new(clock);
        let directory = TempDir::new().unwrap();
        let store = Self::open(&directory, &clock);
        Box::new(Self { clock, directory, store })
    }

    fn open(directory: &TempDir, clock: &Arc<TestClock>) -> Arc<SqliteStore> {
        let options = SqliteOptions { clock: Some(clock.clone()), ..SqliteOptions::default() };
        Arc::new(SqliteStore::open(directory.path().join("test.db"), options).unwrap())
    }
}

#[async_trait]
impl StoreFixture for SqliteFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second(&self) -> Arc<dyn Store> {
        Self::open(&self.directory, &self.clock)
    }

    fn clock(&self) -> &TestClock {
        &self.clock
    }

    async fn lose(&self, worker: WorkerId) {
        self.store.simulate_death(worker);
    }

    async fn try_execute(&self, sql: &str) -> Option<Result<(), String>> {
        let conn = rusqlite::Connection::open(self.directory.path().join("test.db")).unwrap();
        conn.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        Some(conn.execute_batch(sql).map_err(|error| error.to_string()))
    }

    fn damage(&self) -> Vec<String> {
        let path = self.directory.path().join("test.db");
        crate::leftovers::damage(path.to_str().unwrap())
    }

    /// Whether a flush was applied shows in its rows.
    fn numbers_flushes(&self) -> bool {
        false
    }
}

/// The Postgres store through a proxy that pools transactions. Its clock stands still.
pub const POOLED: Fresh = || Box::pin(PostgresFixture::pooled(TestClock::standing(EPOCH)));

/// The same with a clock that goes.
pub const POOLED_GOING: Fresh = || Box::pin(PostgresFixture::pooled(TestClock::running()));

/// A [`PostgresStore`] in a schema of its own, on the server of this test process.
pub struct PostgresFixture {
    url: String,
    clock: Arc<TestClock>,
    options: PostgresOptions,
    store: Arc<PostgresStore>,
}

impl PostgresFixture {
    /// A fresh database.
    pub async fn fresh(clock: TestClock) -> Box<dyn StoreFixture> {
        Self::at(PostgresServer::shared().url().to_owned(), clock).await
    }

    /// A fresh database, reached by way of a pooler, with hints from the server itself.
    pub async fn pooled(clock: TestClock) -> Box<dyn StoreFixture> {
        Self::at(Pooler::shared().store_url(PostgresServer::shared().url(), true), clock).await
    }

    async fn at(url: String, clock: TestClock) -> Box<dyn StoreFixture> {
        let clock = Arc::new(clock);
        let options =
            PostgresOptions::default().schema(PostgresServer::shared().schema()).clock(clock.clone());
        let store = Arc::new(PostgresStore::open_with(&url, options.clone()).await.unwrap());
        Box::new(Self { url, clock, options, store })
    }
}

#[async_trait]
impl StoreFixture for PostgresFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::open_with(&self.url, self.options.clone()).await.unwrap())
    }

    fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// Its lease runs out: nobody has renewed it for long.
    async fn lose(&self, worker: WorkerId) {
        self.execute(&format!(
            "UPDATE workers SET lease_expires_at = '2000-01-01 00:00:00Z' WHERE worker_id = {}",
            worker.0
        ))
        .await;
    }

    async fn try_execute(&self, sql: &str) -> Option<Result<(), String>> {
        let (client, connection) =
            tokio_postgres::connect(PostgresServer::shared().url(), NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let schema = &self.options.schema;
        let done = client.batch_execute(&format!("SET search_path TO \"{schema}\"; {sql}")).await;
        drop(client);
        connection.await.unwrap().unwrap();
        Some(done.map_err(|error| error.to_string()))
    }
}
