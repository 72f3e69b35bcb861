//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
//! acts, and a thousand of them share one flush.
//!
//! This crate is [`SqliteStore`]: one file, no server, any number of processes. Through three small files beside the
//! database (`-presence`, `-turnstile`, `-wake`) the processes detect each other. The folders are:
//!
//! - `conn`: opens connections, and prepares statements.
//! - `rows`: converts the contract's types to columns and back.
//! - `flush`: turns a flush into a transaction.
//! - `claim`: takes executions to run.
//! - `control`: registrations, heartbeats, takeovers and changes of queues.
//! - `read`: loads records, and lists executions, queues and workers.
//! - `admin`: migrates and checks the schema.
//!
//! The SQL is in `queries/`, except for short statements.
//!
//! Do not open the database from a second copy of SQLite in the same process, such as one inside another library. When
//! that copy closes the file, the system drops all `fcntl` locks of the process on it, including those of this crate.

mod admin;
mod claim;
mod companions;
mod conn;
mod control;
mod database;
mod error;
mod file_share;
mod flush;
#[doc(hidden)]
pub mod fork;
mod notify;
mod read;
mod rows;
mod schema;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use stepfast_core::clock::{Clock, SystemClock};
use stepfast_core::key::Key;
use stepfast_core::payload::ChunkRef;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{
    Assignments, BatchItems, Claim, ClaimReply, DeadLetter, Detail, Durability, Event, EventQuery, Execution,
    ExecutionId, Filter, Flush, GraphRow, Heartbeat, HeartbeatReply, Hint, Maintenance, Outcome, Page,
    PendingMessage, Record, Registration, Renewal, Store, StoreError, StoreInfo, StreamEntry, StreamQuery,
    WorkerId, WorkerInfo, WorkerOverview,
};
use stepfast_core::sync::Mutex;
use stepfast_core::text::abbreviate;
use tokio::sync::Semaphore;
use tokio::time::Instant;

#[doc(hidden)]
pub use crate::schema::add_migration;

use crate::admin::migrate;
use crate::companions::companion_path;
use crate::database::{Database, MAX_LOG_BYTES, Writer};
use crate::file_share::{FORKED_CHILD_REASON, FileShare};
use crate::fork::SqliteUse;

/// Maximum length of a database's path, in bytes: no system opens a longer one.
const MAX_PATH_BYTES: usize = 4_096;

/// Maximum time that a migration waits until the processes of older programs have ended.
const OLDER_ENGINES_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that opening waits for another process that opens or migrates the same file.
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);

/// Time that opening waits for readers that prevent a checkpoint of the write-ahead log.
const OPEN_LOG_TIMEOUT: Duration = Duration::from_millis(100);

/// Options for opening a [`SqliteStore`].
#[derive(Clone, Default)]
pub struct SqliteOptions {
    /// The durability that `Ok` from a commit promises: full (the default) or relaxed. With relaxed, a crash of the
    /// machine may undo the last commits.
    pub durability: Durability,
    /// The source of the current time; the machine's clock unless a test sets another.
    pub clock: Option<Arc<dyn Clock>>,
    /// Whether opening fails if the path has no database of Stepfast, or one with an older schema. Otherwise, opening
    /// creates or migrates the database.
    pub must_exist: bool,
    /// The name of the registered SQLite VFS for all connections; `None` for the default one. For tests.
    #[doc(hidden)]
    pub vfs: Option<&'static str>,
}

/// A [`Store`] in a SQLite file.
///
/// Commits run on the calling thread. One writer at a time is active in all processes together, and waiting writers are
/// served in order. Reads for async callers never wait for a writer. They run on the blocking threads of the tokio
/// runtime in which the caller awaits them. If the store is dropped before its workers are closed, these workers count
/// as dead, and other workers take them over.
pub struct SqliteStore {
    database: Arc<Database>,
}

impl SqliteStore {
    /// Opens the database at `path`, creates it if it does not exist, and brings its schema up to date. Fails if the
    /// schema is older and the database has more than 1 GiB: only [`migrate`](Self::migrate) brings such a schema up to
    /// date.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        Self::open_and_migrate(path.as_ref(), options, false)
    }

    /// Opens a database as `open` does. If `is_migration_requested`, migrates a database of any size.
    fn open_and_migrate(
        path: &Path,
        options: SqliteOptions,
        is_migration_requested: bool,
    ) -> Result<Self, StoreError> {
        let path = resolve_path(path)?;
        if fork::is_forked_child() {
            return Err(StoreError::Open {
                store: path.display().to_string(),
                reason: FORKED_CHILD_REASON.into(),
            });
        }
        let _in_sqlite = SqliteUse::enter();
        let open_error = |reason: String| StoreError::Open { store: path.display().to_string(), reason };
        if options.must_exist {
            // checked before any companion file is created
            if !path.exists() {
                return Err(open_error("there is no such file; is the path right?".to_owned()));
            }
            let version = conn::read_once(&path, options.vfs, schema::schema_version);
            let (version, newest) =
                (version.map_err(|error| conn::explain_open_error(&path, error))?, schema::newest_version());
            if version == 0 {
                return Err(open_error(
                    "it has no schema of Stepfast: it belongs to another program, or is empty".to_owned(),
                ));
            }
            if version < newest {
                return Err(open_error(format!(
                    "its schema has version {version}, and this program needs version {newest}; bring it up to date: \
                     stepfast db migrate"
                )));
            }
        }
        let share = FileShare::join(&path).map_err(|error| open_error(error.to_owned()))?;
        // keeps the companions open until the end of this function
        let open_files = share.companions.open();
        let open_files = open_files.map_err(|error| {
            open_error(format!("cannot open its companion files ({error}); make the directory writable"))
        })?;
        let opening = share.lock_opening(Instant::now() + OPEN_TIMEOUT).ok_or_else(|| {
            open_error("another process is opening it; look for a stopped process on this file".to_owned())
        })?;
        let has_log = std::fs::metadata(companion_path(&path, "-wal")).is_ok_and(|log| log.len() > 0);
        let explain = |error| conn::explain_open_error(&path, error);
        let mut writer = Writer::open(&path, options.vfs, options.durability).map_err(explain)?;
        if migrate::is_outdated(&writer.conn).map_err(explain)? {
            if !is_migration_requested
                && let Some(bytes) = migrate::bytes_above_limit(&writer.conn).map_err(explain)?
            {
                let (version, newest) =
                    (schema::schema_version(&writer.conn).map_err(explain)?, schema::newest_version());
                return Err(open_error(format!(
                    "its schema has version {version}, this program needs version {newest}, and the database has {:.1} GiB: \
                     an engine brings only a small schema up to date by itself; run stepfast db migrate",
                    bytes as f64 / f64::from(1 << 30)
                )));
            }
            // the migration is announced before the search for registrations: a process that starts later finds that it
            // is too old
            let can_announce = migrate::announce_migration(&writer.conn).map_err(explain)?;
            wait_for_older_engines(&share, can_announce).map_err(open_error)?;
        }
        let is_migrated = migrate::migrate(&mut writer.conn).map_err(explain)?;
        stepfast_core::crash_point!("sqlite migrated");
        let (store_id, shard) = schema::store_identity(&writer.conn).map_err(explain)?;
        if let Some((found, supported)) = schema::find_newer_version(&writer.conn).map_err(explain)? {
            return Err(StoreError::NewerSchema { found, supported });
        }
        // the copy of the flush count is read before the database: other processes continue to count flushes, and the
        // copy must not be newer
        let copied_count = open_files.read_flush_count();
        let flush_count = conn::read_flush_count(&writer.conn).map_err(explain)?;
        if let Some(Err(error)) = copied_count.map(|copied_count| flush_count.check(&path, copied_count)) {
            // closing must not change the files
            conn::close_without_checkpoint(writer.conn);
            return Err(open_error(error.to_string()));
        }
        // Processes that were killed after a failed sync leave a log that can be read but is not on the disk. In a new
        // database, renewing the log also moves the database's identity to the main file, where the identity survives a
        // loss of the log.
        if (has_log || is_migrated) && share.has_no_registrations() {
            conn::renew_log(&writer.conn, OPEN_LOG_TIMEOUT).map_err(explain)?;
        }
        drop(opening);
        let info = StoreInfo {
            kind: "sqlite",
            version: format!("SQLite {}", rusqlite::version()),
            location: path.display().to_string(),
            store_id,
            shard,
            durability: options.durability,
            lanes: 1,
            max_flush_writes: 4_096,
            max_flush_bytes: 4 * 1024 * 1024,
            lease: None,
        };
        let database = Database {
            path,
            vfs: options.vfs,
            info,
            clock: options.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            counters: Counters::default(),
            listener: share.hints.add_listener(),
            share,
            workers: Mutex::default(),
            maintenances: AtomicU64::new(0),
            is_sweep_due: AtomicBool::new(false),
            database_file: Mutex::new(Some(writer.database_file)),
            writer: Mutex::new(Some(writer)),
            nonce: flush_count.nonce,
            log_bytes_limit: AtomicU64::new(MAX_LOG_BYTES),
            flush_counted_at: Mutex::default(),
            idle_readers: Mutex::default(),
            is_idle: AtomicBool::new(false),
            assignments: Assignments::default(),
            read_permits: Arc::new(Semaphore::new(read::MAX_READERS)),
            fair_share: Mutex::default(),
        };
        let database = Arc::new(database);
        fork::register_store(&database);
        Ok(Self { database })
    }

    /// Returns the path of the database: absolute, with links resolved.
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// Makes a worker of this process appear dead, as if its process had died. For tests.
    #[doc(hidden)]
    pub fn simulate_death(&self, worker: WorkerId) {
        self.database.share.release_presence(worker.0);
    }

    /// Runs `read` on a blocking thread.
    async fn read_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let stopped = |_| StoreError::Unavailable("the runtime is shutting down".to_owned());
        let permit = self.database.read_permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?;
        let database = self.database.clone();
        // the thread owns the permit, because the thread finishes the read even if the caller is dropped
        let read_with_permit = move || {
            let _permit = permit;
            read(&database)
        };
        tokio::task::spawn_blocking(read_with_permit).await.map_err(stopped)?
    }
}

/// Waits before a migration until the engines of older programs have ended. The error is the reason why some still run.
/// Without `can_announce`, older engines cannot be asked to end, and the function fails without waiting for them.
fn wait_for_older_engines(share: &FileShare, can_announce: bool) -> Result<(), String> {
    if share.has_no_registrations() {
        return Ok(());
    }
    if !can_announce {
        let reason = "processes of an older program have it open, and cannot be asked to end: end them, then open it again";
        return Err(reason.to_owned());
    }
    // without a hint, clients rarely check the schema
    share.hints.wake_all_processes();
    tracing::info!("asking the processes of an older program to stop");
    let deadline = Instant::now() + OLDER_ENGINES_TIMEOUT;
    while !share.has_no_registrations() {
        if Instant::now() > deadline {
            return Err(format!(
                "processes of an older program were asked to end and still have it open after {} s: end them, then open \
                 it again",
                OLDER_ENGINES_TIMEOUT.as_secs()
            ));
        }
        // the end of another process causes no notification
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> &StoreInfo {
        &self.database.info
    }

    fn counters(&self) -> &Counters {
        &self.database.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let deadline = Instant::now() + database::MAX_WRITE_WAIT;
        loop {
            match self.database.register(lanes, info) {
                // an engine that is stopped in the meantime drops this future here
                Err(error) if error.is_busy() && Instant::now() < deadline => tokio::task::yield_now().await,
                registered => {
                    return registered.map_err(|error| {
                        error.into_store_error(&self.database.path, "registering a worker")
                    });
                }
            }
        }
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let closed = self.database.close(worker.0);
        if self.database.workers.lock().is_empty() {
            // No file stays open, because another copy of SQLite in this process may use the database from now on.
            // Closing a file later would drop that copy's locks.
            self.database.close_idle();
            let all_permits = self.database.read_permits.acquire_many(read::MAX_READERS as u32);
            drop(all_permits.await);
        }
        closed
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        self.database.commit(flush)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        self.database.claim(claim)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let change = change.clone();
        self.read_blocking(move |database| database.change_queue(&change)).await
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names = names.map(<[_]>::to_vec);
        self.read_blocking(move |database| database.queues(names.as_deref())).await
    }

    async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        let graphs = graphs.to_vec();
        self.read_blocking(move |database| database.store_graphs(&graphs)).await
    }

    async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        let names = names.map(<[_]>::to_vec);
        self.read_blocking(move |database| database.graphs(names.as_deref())).await
    }

    async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError> {
        self.database.renew(worker, epoch)
    }

    async fn maintain(&self, worker: WorkerId, epoch: i64) -> Result<Maintenance, StoreError> {
        // another process may hold the lock of writers, and the worker's other loops continue meanwhile
        self.read_blocking(move |database| database.maintain(worker, epoch)).await
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.database.heartbeat(heartbeat)
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        // a sweep reads all waits, and the worker's other loops continue meanwhile
        self.read_blocking(move |database| database.take_over(worker.0)).await
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        let ids = ids.to_vec();
        self.read_blocking(move |database| database.load(&ids, detail)).await
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.read_blocking(move |database| database.load_value(execution, chunks)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let filter = filter.clone();
        self.read_blocking(move |database| database.list(&filter)).await
    }

    async fn find(&self, name: &str, values: &[&str], limit: u64) -> Result<Vec<Vec<Key>>, StoreError> {
        let name = name.to_owned();
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        self.read_blocking(move |database| database.find(&name, &values, limit)).await
    }

    async fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
        let items = items.to_vec();
        self.read_blocking(move |database| database.load_items(&items)).await
    }

    async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        self.read_blocking(move |database| database.newest_batch(before)).await
    }

    async fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError> {
        self.read_blocking(move |database| database.bundles(batch, first_item, limit)).await
    }

    async fn messages(&self, receivers: &[(Key, Arc<str>)]) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        let receivers = receivers.to_vec();
        self.read_blocking(move |database| database.messages(&receivers)).await
    }

    async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.read_blocking(move |database| database.pending_topics(receiver)).await
    }

    async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        let queries = queries.to_vec();
        self.read_blocking(move |database| database.events(&queries)).await
    }

    async fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        let events = events.to_vec();
        self.read_blocking(move |database| database.event_waiters(&events)).await
    }

    async fn stream_entries(&self, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        let queries = queries.to_vec();
        self.read_blocking(move |database| database.stream_entries(&queries)).await
    }

    async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        self.read_blocking(move |database| database.batch_items(batch)).await
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        let workers = workers.to_vec();
        self.read_blocking(move |database| database.dead_workers(&workers)).await
    }

    async fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.read_blocking(move |database| database.dead_letters(limit)).await
    }

    async fn workers(&self, limit: u64, counts_running: bool) -> Result<WorkerOverview, StoreError> {
        self.read_blocking(move |database| database.workers(limit, counts_running)).await
    }

    async fn next_hint(&self, _worker: WorkerId) -> Hint {
        self.database.share.hints.watch();
        self.database.listener.wait_for_change().await;
        Hint::ANY_CHANGE
    }
}

/// Returns the absolute path of a database with links resolved, so that a file has one name in the process.
fn resolve_path(path: &Path) -> Result<PathBuf, StoreError> {
    // a relative path is ambiguous without the working directory
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let open_error = |reason: &str| StoreError::Open {
        store: absolute(path).display().to_string(),
        reason: reason.to_owned(),
    };
    let text = path.to_string_lossy();
    if text.len() > MAX_PATH_BYTES || text.contains(char::is_control) {
        let reason = format!("a path has at most {MAX_PATH_BYTES} bytes, and no control characters");
        return Err(StoreError::Open { store: abbreviate(&text), reason });
    }
    let Some(name) = path.file_name() else {
        return Err(open_error("this is not the path of a file; give the path of a database"));
    };
    // the file is not opened here: closing it would drop the locks that SQLite has on it
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err(open_error("it is a directory; give the path of a file in it"));
        }
        Ok(found) if found.permissions().readonly() => {
            return Err(open_error("the file is read-only; make it writable, or copy it"));
        }
        Ok(_) => {
            return path
                .canonicalize()
                .map_err(|error| open_error(&format!("cannot resolve the path ({error})")));
        }
        Err(_) => {}
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(parent.join(name)),
        Err(_) => {
            let parent = absolute(parent);
            Err(open_error(&format!("there is no directory {}; create it first", parent.display())))
        }
    }
}
