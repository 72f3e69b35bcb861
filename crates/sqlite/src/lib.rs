//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
//! acts, and a thousand of them share one flush.
//!
//! This crate is [`SqliteStore`]: one file, no server, any number of processes. Three small files beside the
//! database (`-presence`, `-turnstile`, `-wake`) tell the processes about each other.
//!
//! Do not open the database from a second copy of SQLite in the same process (another library that brings
//! its own): closing a file drops all `fcntl` locks that a process has on it, also those of the first copy.

mod apply;
mod claim;
mod connect;
mod error;
#[doc(hidden)]
pub mod forked;
mod inbox;
mod look;
mod migrate;
mod notify;
mod queue;
mod read;
mod request;
mod resend;
mod row;
mod rows;
mod schema;
mod shared;
mod statements;
mod survey;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use async_trait::async_trait;
use bytes::Bytes;
use stepfast_core::clock::{Clock, SystemClock};
use stepfast_core::counters::Counters;
use stepfast_core::key::Key;
use stepfast_core::lock::Mutex;
use stepfast_core::payload::ChunkRef;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::record::{Detail, ExecutionId, Filter, Page, Record};
use stepfast_core::store::{
    About, Changed, Claim, Claimed, Durability, Look, Registration, Seen, Store, StoreError,
};
use stepfast_core::survey::{Survey, WorkerInfo};
use stepfast_core::write::{Flush, Outcome, WorkerId};
use tokio::sync::Semaphore;

use crate::forked::InSqlite;
use crate::shared::{FORKED, Shared};
use crate::writer::Inner;

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
    inner: Arc<Inner>,
}

impl SqliteStore {
    /// Opens the database at `path`, creates it if there is none, and brings its schema up to date.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let path = resolve(path.as_ref())?;
        if forked::is_spoilt() {
            return Err(StoreError::Open { store: path.display().to_string(), reason: FORKED.into() });
        }
        let _in_sqlite = InSqlite::enter();
        let refuse = |reason: String| StoreError::Open { store: path.display().to_string(), reason };
        if options.must_exist {
            // before anything is made beside it
            if !path.exists() {
                return Err(refuse("there is no such file; is the path right?".to_owned()));
            }
            let version = connect::reader(&path, options.vfs).and_then(|conn| migrate::version(&conn));
            if version.map_err(|trouble| connect::explain(&path, trouble))? == 0 {
                return Err(refuse(
                    "it has no executions: it belongs to another program, or is empty".to_owned(),
                ));
            }
        }
        let shared = Shared::join(&path).map_err(|error| {
            refuse(match error.kind() {
                std::io::ErrorKind::Other => error.to_string(),
                _ => format!("cannot open its companion files ({error}); make the directory writable"),
            })
        })?;
        let opening = shared.opening();
        let mut writer = connect::writer(&path, options.vfs, options.durability)
            .map_err(|trouble| connect::explain(&path, trouble))?;
        migrate::migrate(&mut writer).map_err(|trouble| connect::explain(&path, trouble))?;
        stepfast_core::crash_point!("sqlite migrated");
        drop(opening);
        let about = About {
            kind: "sqlite",
            version: format!("SQLite {}", rusqlite::version()),
            place: path.display().to_string(),
            durability: options.durability,
            lanes: 1,
            flush_writes: 4_096,
            flush_bytes: 4 * 1024 * 1024,
            lease: None,
        };
        let inner = Inner {
            path,
            vfs: options.vfs,
            about,
            clock: options.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            counters: Counters::default(),
            listener: shared.wakes.listen(),
            shared,
            workers: Mutex::default(),
            renewals: AtomicU64::new(0),
            owes_wakes: AtomicBool::new(false),
            writer: Mutex::new(Some(writer)),
            readers: Mutex::default(),
            is_at_rest: AtomicBool::new(false),
            reading: Arc::new(Semaphore::new(read::READERS)),
            turns: Mutex::default(),
        };
        let inner = Arc::new(inner);
        forked::keep(&inner);
        Ok(Self { inner })
    }

    /// Where the database is: absolute, links resolved.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Makes a worker of this process look lost, as if its process had died: for tests.
    #[doc(hidden)]
    pub fn lose(&self, worker: WorkerId) {
        self.inner.shared.leave(worker.0);
    }

    /// Reads on a blocking thread.
    async fn reading<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let stopped = |_| StoreError::Unavailable("the runtime is shutting down".to_owned());
        let permit = self.inner.reading.clone().acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))?;
        let inner = self.inner.clone();
        // the thread has the permit: it reads on if nobody waits for it any more
        let reading = move || {
            let _permit = permit;
            read(&inner)
        };
        tokio::task::spawn_blocking(reading).await.map_err(stopped)?
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn about(&self) -> &About {
        &self.inner.about
    }

    fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        self.inner.register(lanes, info)
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.inner.close(worker.0)?;
        if self.inner.workers.lock().is_empty() {
            // nothing of the file stays open: another SQLite of this process, which knows nothing of this one, may use it
            // now, and closing it later would take away its locks
            self.inner.rest();
            let nobody_reads = self.inner.reading.acquire_many(read::READERS as u32);
            drop(nobody_reads.await);
        }
        Ok(())
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        self.inner.commit(flush)
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.inner.claim(claim)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        let change = change.clone();
        self.reading(move |inner| inner.change_queue(&change)).await
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let names = names.map(<[_]>::to_vec);
        self.reading(move |inner| inner.queues(names.as_deref())).await
    }

    async fn look(&self, look: &Look) -> Result<Seen, StoreError> {
        self.inner.look(look)
    }

    async fn recover(&self, worker: WorkerId) -> Result<u64, StoreError> {
        self.inner.recover(worker.0)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        let ids = ids.to_vec();
        self.reading(move |inner| inner.load(&ids, detail)).await
    }

    async fn value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        self.reading(move |inner| inner.value(execution, chunks)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let filter = filter.clone();
        self.reading(move |inner| inner.list(&filter)).await
    }

    async fn lost(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        let workers = workers.to_vec();
        self.reading(move |inner| inner.lost(&workers)).await
    }

    async fn survey(&self, most: u64) -> Result<Survey, StoreError> {
        self.reading(move |inner| inner.survey(most)).await
    }

    async fn changed(&self) -> Changed {
        self.inner.shared.wakes.watch();
        self.inner.listener.changed().await;
        Changed { has_ready: false, has_more: true }
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
