//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
//! acts, and a thousand of them share one flush.
//!
//! This crate is [`SqliteStore`]: one file, no server, any number of processes. Three small files beside the
//! database (`-presence`, `-turnstile`, `-wake`) tell the processes about each other.
//!
//! Do not open the database from a second copy of SQLite in the same process (another library that brings
//! its own): closing a file drops all `fcntl` locks that a process has on it, also those of the first copy.

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
    StoreInfo, Hint, Claim, ClaimReply, DeadLetter, Detail, Durability, ExecutionId, Filter, Flush, Heartbeat,
    Outcome, Page, Record, Registration, HeartbeatReply, Store, StoreError, WorkerOverview, WorkerId, WorkerInfo,
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

/// Longest path of a database, in bytes: no system opens a longer one.
const MAX_PATH_BYTES: usize = 4_096;

/// How long processes of older programs have to end.
const OLDER_ENGINES_TIMEOUT: Duration = Duration::from_secs(30);

/// How long opening waits for another process that opens the same file, or migrates it.
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);

/// How long opening waits for readers that keep the log from being folded into the database.
const OPEN_LOG_TIMEOUT: Duration = Duration::from_millis(100);

/// How a [`SqliteStore`] is opened.
#[derive(Clone, Default)]
pub struct SqliteOptions {
    /// What `Ok` from a commit promises: full (the default), or relaxed, where a crash of the machine may take
    /// back the last moments.
    pub durability: Durability,
    /// Where the time comes from; the machine's clock unless a test sets another.
    pub clock: Option<Arc<dyn Clock>>,
    /// True to refuse a path at which there is no database of ours, where one would be made otherwise.
    pub must_exist: bool,
    /// The registered SQLite VFS that all connections go through, where it is not the default: for tests.
    #[doc(hidden)]
    pub vfs: Option<&'static str>,
}

/// A [`Store`] in a SQLite file.
///
/// Commits on the calling thread: there is one writer at a time, in all processes, and who waits is served
/// in turn. Reads for async callers run on the blocking threads of the tokio runtime that they are awaited
/// in, and never wait for a writer. Dropping
/// the store without closing its workers is like the death of their process: peers take them over.
pub struct SqliteStore {
    database: Arc<Database>,
}

impl SqliteStore {
    /// Opens the database at `path`, creates it if there is none, and brings its schema up to date. An older schema in more
    /// than 1 GiB is left to [`migrate`](Self::migrate): the error says so.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        Self::open_and_migrate(path.as_ref(), options, false)
    }

    /// Opens a database as `open` does; with `is_asked`, its schema is brought up to date whatever its size.
    fn open_and_migrate(path: &Path, options: SqliteOptions, is_asked: bool) -> Result<Self, StoreError> {
        let path = resolve(path)?;
        if fork::is_forked_child() {
            return Err(StoreError::Open { store: path.display().to_string(), reason: FORKED_CHILD_REASON.into() });
        }
        let _in_sqlite = SqliteUse::enter();
        let refuse = |reason: String| StoreError::Open { store: path.display().to_string(), reason };
        if options.must_exist {
            // before anything is made beside it
            if !path.exists() {
                return Err(refuse("there is no such file; is the path right?".to_owned()));
            }
            let version = conn::reader(&path, options.vfs).and_then(|conn| {
                let version = schema::schema_version(&conn);
                conn::close_for_now(conn);
                version
            });
            let (version, newest) =
                (version.map_err(|trouble| conn::explain(&path, trouble))?, schema::newest_version());
            if version == 0 {
                return Err(refuse(
                    "it has no executions: it belongs to another program, or is empty".to_owned(),
                ));
            }
            if version < newest {
                return Err(refuse(format!(
                    "its schema has version {version}, and this program needs version {newest}; bring it up to date: \
                     stepfast db migrate"
                )));
            }
        }
        let shared = FileShare::join(&path).map_err(|error| refuse(error.to_owned()))?;
        // while it is opened
        let companions = shared.companions.open();
        let companions = companions.map_err(|error| {
            refuse(format!("cannot open its companion files ({error}); make the directory writable"))
        })?;
        let opening = shared.lock_opening(Instant::now() + OPEN_TIMEOUT).ok_or_else(|| {
            refuse("another process keeps opening it; look for a stopped process on this file".to_owned())
        })?;
        let has_log = std::fs::metadata(companion_path(&path, "-wal")).is_ok_and(|log| log.len() > 0);
        let explain = |trouble| conn::explain(&path, trouble);
        let mut writer = Writer::open(&path, options.vfs, options.durability).map_err(explain)?;
        if migrate::is_outdated(&writer.conn).map_err(explain)? {
            if !is_asked && let Some(bytes) = migrate::many_bytes(&writer.conn).map_err(explain)? {
                let (version, newest) = (schema::schema_version(&writer.conn).map_err(explain)?, schema::newest_version());
                return Err(refuse(format!(
                    "its schema has version {version}, this program needs version {newest}, and the database has {:.1} GiB: \
                     an engine brings only a small schema up to date by itself; run stepfast db migrate",
                    bytes as f64 / f64::from(1 << 30)
                )));
            }
            // before the count of processes: a process that comes later reads that it is too old
            let can_be_asked = migrate::announce(&writer.conn).map_err(explain)?;
            wait_for_older_engines(&shared, can_be_asked).map_err(refuse)?;
        }
        let is_migrated = migrate::migrate(&mut writer.conn).map_err(explain)?;
        stepfast_core::crash_point!("sqlite migrated");
        let (store_id, shard) = schema::store_identity(&writer.conn).map_err(explain)?;
        if let Some((found, supported)) = schema::find_newer_version(&writer.conn).map_err(explain)? {
            return Err(StoreError::NewerSchema { found, supported });
        }
        // before the database: the copy is never ahead of it, and other processes go on counting
        let copy = companions.read_flush_count();
        let counted = conn::counted(&writer.conn).map_err(explain)?;
        if let Some(Err(error)) = copy.map(|copy| counted.check(&path, copy)) {
            // what there is stays as it is
            conn::close_for_now(writer.conn);
            return Err(refuse(error.to_string()));
        }
        // Processes that were killed after a failed sync leave a log that can be read and is not on the disk. And a new database
        // says in its own file which one it is: where its log is lost, it is not taken for another.
        if (has_log || is_migrated) && shared.has_no_registrations() {
            conn::renew_log(&writer.conn, OPEN_LOG_TIMEOUT).map_err(explain)?;
        }
        drop(opening);
        let about = StoreInfo {
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
        let inner = Database {
            path,
            vfs: options.vfs,
            about,
            clock: options.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            counters: Counters::default(),
            listener: shared.hints.add_listener(),
            share: shared,
            workers: Mutex::default(),
            renewals: AtomicU64::new(0),
            is_sweep_due: AtomicBool::new(false),
            database_file: Mutex::new(Some(writer.database_file)),
            writer: Mutex::new(Some(writer)),
            nonce: counted.nonce,
            next_empty_at: AtomicU64::new(MAX_LOG_BYTES),
            flush_counted_at: Mutex::default(),
            idle_readers: Mutex::default(),
            is_idle: AtomicBool::new(false),
            read_permits: Arc::new(Semaphore::new(read::READERS)),
            fair_share: Mutex::default(),
        };
        let inner = Arc::new(inner);
        fork::register_store(&inner);
        Ok(Self { database: inner })
    }

    /// Where the database is: absolute, links resolved.
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// Makes a worker of this process look lost, as if its process had died: for tests.
    #[doc(hidden)]
    pub fn simulate_death(&self, worker: WorkerId) {
        self.database.share.release_presence(worker.0);
    }

    /// Reads on a blocking thread.
    async fn read_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let stopped = |_| StoreError::Unavailable("the runtime is shutting down".to_owned());
        let permit = self.database.read_permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?;
        let inner = self.database.clone();
        // the thread has the permit: it reads on if nobody waits for it any more
        let reading = move || {
            let _permit = permit;
            read(&inner)
        };
        tokio::task::spawn_blocking(reading).await.map_err(stopped)?
    }
}

/// Waits until the engines of older programs have ended, before the schema changes; the error says why they are still there.
fn wait_for_older_engines(shared: &FileShare, can_be_asked: bool) -> Result<(), String> {
    if shared.has_no_registrations() {
        return Ok(());
    }
    if !can_be_asked {
        let reason = "processes of an older program have it open, and cannot be asked to end: end them, then open it again";
        return Err(reason.to_owned());
    }
    // clients seldom look by themselves
    shared.hints.wake_all_processes();
    tracing::info!("processes of an older program are asked to end");
    let until = Instant::now() + OLDER_ENGINES_TIMEOUT;
    while !shared.has_no_registrations() {
        if Instant::now() > until {
            return Err(format!(
                "processes of an older program were asked to end and still have it open after {} s: end them, then open \
                 it again",
                OLDER_ENGINES_TIMEOUT.as_secs()
            ));
        }
        // another process says nothing when it has ended
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> &StoreInfo {
        &self.database.about
    }

    fn counters(&self) -> &Counters {
        &self.database.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let last = Instant::now() + database::MAX_WRITE_WAIT;
        loop {
            match self.database.register(lanes, info) {
                // an engine that ends meanwhile gives up here
                Err(trouble) if trouble.is_busy() && Instant::now() < last => tokio::task::yield_now().await,
                registered => {
                    return registered
                        .map_err(|trouble| trouble.into_store_error(&self.database.path, "registering a worker"));
                }
            }
        }
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let closed = self.database.close(worker.0);
        if self.database.workers.lock().is_empty() {
            // nothing of the file stays open: another SQLite of this process, which knows nothing of this one, may use it
            // now, and closing it later would take away its locks
            self.database.close_idle();
            let nobody_reads = self.database.read_permits.acquire_many(read::READERS as u32);
            drop(nobody_reads.await);
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
        self.read_blocking(move |inner| inner.change_queue(&change)).await
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names = names.map(<[_]>::to_vec);
        self.read_blocking(move |inner| inner.queues(names.as_deref())).await
    }

    async fn heartbeat(&self, look: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.database.look(look)
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.database.recover(worker.0)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        let ids = ids.to_vec();
        self.read_blocking(move |inner| inner.load(&ids, detail)).await
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.read_blocking(move |inner| inner.value(execution, chunks)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let filter = filter.clone();
        self.read_blocking(move |inner| inner.list(&filter)).await
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        let workers = workers.to_vec();
        self.read_blocking(move |inner| inner.lost(&workers)).await
    }

    async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.read_blocking(move |inner| inner.dead_letters(most)).await
    }

    async fn workers(&self, most: u64) -> Result<WorkerOverview, StoreError> {
        self.read_blocking(move |inner| inner.survey(most)).await
    }

    async fn next_hint(&self) -> Hint {
        self.database.share.hints.watch();
        self.database.listener.wait_for_change().await;
        Hint { has_ready: false, has_other: true }
    }
}

/// The absolute path of a database, links resolved: one file has one name in the process.
fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    // a relative path says little to who does not know where the program was started
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let refuse = |reason: &str| StoreError::Open {
        store: absolute(path).display().to_string(),
        reason: reason.to_owned(),
    };
    let text = path.to_string_lossy();
    if text.len() > MAX_PATH_BYTES || text.contains(char::is_control) {
        let reason = format!("a path has at most {MAX_PATH_BYTES} bytes, and no control characters");
        return Err(StoreError::Open { store: abbreviate(&text), reason });
    }
    let Some(name) = path.file_name() else {
        return Err(refuse("this is not the path of a file; give the path of a database"));
    };
    // never opened here: closing it would drop the locks that SQLite has on it
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err(refuse("it is a directory; give the path of a file in it"));
        }
        Ok(found) if found.permissions().readonly() => {
            return Err(refuse("the file is read-only; make it writable, or copy it"));
        }
        Ok(_) => {
            return path
                .canonicalize()
                .map_err(|error| refuse(&format!("cannot resolve the path ({error})")));
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
            Err(refuse(&format!("there is no directory {}; create it first", parent.display())))
        }
    }
}
