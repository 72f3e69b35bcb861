//! [`Inner`]: the one connection that writes, who may use it, and what is done when it cannot be trusted.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::queue::fairness::FairShare;
use stepfast_core::store::counters::{Counters, WriterTime};
use stepfast_core::store::{StoreInfo, Durability, StoreError};
use stepfast_core::sync::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::companions::{FlushCount, FileIdentity, companion_path};
use crate::conn;
use crate::conn::statements::{Sql, Statements};
use crate::error::{DbResult, DbError};
use crate::file_share::{FileShare, WriteTurn};
use crate::fork::{Disconnect, SqliteUse};
use crate::notify::Listener;

/// How long a transaction waits in line for those of other processes before it lets the next of this process try.
pub(crate) const TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it waits outside the line, while it knows of no other process, before it looks whether there is one.
const TIMEOUT_WITHOUT_PEERS: Duration = Duration::from_millis(50);
/// How long it waits in all where a caller gets the error.
pub(crate) const MAX_WRITE_WAIT: Duration = Duration::from_mins(1);

/// Bytes of the log from which on it is not left to SQLite to begin it anew: three times the length at which SQLite tries.
pub(crate) const MAX_LOG_BYTES: u64 = 128 * 1024 * 1024;
/// How long that waits for readers.
const EMPTY_LOG_TIMEOUT: Duration = Duration::from_millis(500);

/// The connection that writes, and the files that it has open.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    /// The database.
    pub(crate) database_file: FileIdentity,
    /// The log, once a transaction has begun: SQLite makes it then at the latest.
    log_file: Option<FileIdentity>,
}

impl Writer {
    /// Opens the database; creates the file if there is none.
    pub(crate) fn open(path: &Path, vfs: Option<&str>, durability: Durability) -> DbResult<Self> {
        let conn = conn::writer(path, vfs, durability)?;
        let missing = |error: std::io::Error| {
            let reason = format!("opening {}: it cannot be found ({error})", path.display());
            StoreError::Unavailable(reason)
        };
        let database = FileIdentity::of_path(path).map_err(missing)?;
        Ok(Self { conn, database_file: database, log_file: None })
    }

    /// Refuses files that are not those which the connection has open: what was committed to the others is lost. Returns the
    /// length of the log.
    fn check(&self, path: &Path) -> Result<u64, StoreError> {
        self.database_file.check(path)?;
        self.log_file.map_or(Ok(0), |log| log.check(&companion_path(path, "-wal")))
    }
}

/// The store, shared with the threads that read for it.
pub(crate) struct Database {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Option<&'static str>,
    pub(crate) about: StoreInfo,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) share: Arc<FileShare>,
    pub(crate) listener: Arc<Listener>,
    /// Registrations of this store that are not closed.
    pub(crate) workers: Mutex<Vec<i64>>,
    /// Renewals so far.
    pub(crate) renewals: AtomicU64,
    /// A takeover has begun and not yet woken what its worker should have.
    pub(crate) is_sweep_due: AtomicBool,
    /// `None` after an error that leaves its view of the disk in doubt: the next use opens it anew.
    pub(crate) writer: Mutex<Option<Writer>>,
    /// The file that its connections have open; `None` while none is.
    pub(crate) database_file: Mutex<Option<FileIdentity>>,
    /// The nonce of the database.
    pub(crate) nonce: i64,
    /// Bytes of the log at which it is to be folded next.
    pub(crate) next_empty_at: AtomicU64,
    /// When a flush was counted last.
    pub(crate) flush_counted_at: Mutex<Option<Instant>>,
    pub(crate) idle_readers: Mutex<Vec<Connection>>,
    /// All of its registrations are closed: no connection stays open.
    pub(crate) is_idle: AtomicBool,
    /// Bounds how many reads for async callers go on at once.
    pub(crate) read_permits: Arc<Semaphore>,
    /// Whose turn it is at the next claim.
    pub(crate) fair_share: Mutex<FairShare>,
}

impl Drop for Database {
    fn drop(&mut self) {
        let _in_sqlite = SqliteUse::enter();
        drop(self.writer.get_mut().take());
        self.idle_readers.get_mut().clear();
        // whoever was not closed is lost, as if the process had died
        for worker in self.workers.lock().drain(..) {
            self.share.release_presence(worker);
        }
        self.share.hints.remove_listener(self.listener.id);
    }
}

impl Disconnect for Database {
    fn disconnect(&self) {
        let writer = self.writer.lock().take().map(|writer| writer.conn);
        let readers = std::mem::take(&mut *self.idle_readers.lock());
        writer.into_iter().chain(readers).for_each(conn::close_for_now);
    }
}

impl Database {
    /// Closes all connections that are not in use; those that are close when they have been. Until somebody registers
    /// again, each use opens one of its own.
    pub(crate) fn close_idle(&self) {
        self.is_idle.store(true, SeqCst);
        let _in_sqlite = SqliteUse::enter();
        drop(self.writer.lock().take());
        self.idle_readers.lock().clear();
        *self.database_file.lock() = None;
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Does `work` in one durable transaction, when it is this thread's turn. `doing` says what, for errors.
    ///
    /// On an error nothing of it is durable, except that after `Unavailable` nobody knows. It waits a short time only for
    /// another process that keeps its transaction open: its caller tries again, unless the engine ends.
    pub(crate) fn write<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        self.try_write(TURN_TIMEOUT, work).map_err(|trouble| trouble.into_store_error(&self.path, doing))
    }

    /// The same for a caller that does not try again: it waits longer.
    pub(crate) fn write_with_long_wait<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        self.try_write(MAX_WRITE_WAIT, work).map_err(|trouble| trouble.into_store_error(&self.path, doing))
    }

    pub(crate) fn try_write<T>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> DbResult<T> {
        let asked_at = Instant::now();
        let last = asked_at + patience;
        let mut alone = TIMEOUT_WITHOUT_PEERS;
        let begun = loop {
            match self.begin(last.min(Instant::now() + TURN_TIMEOUT), alone) {
                // a process that has come since the last look may keep a line: outside of it there is hardly a gap
                Err(trouble) if trouble.is_busy() && Instant::now() < last => {
                    self.share.check_for_peers();
                    alone = TURN_TIMEOUT;
                }
                begun => break begun?,
            }
        };
        let begun_at = begun.began_at;
        let mut spent = WriterTime { turn_wait: begun_at - asked_at, ..WriterTime::default() };
        let done = self.run_transaction(begun, work, &mut spent.commit);
        spent.statements = begun_at.elapsed().saturating_sub(spent.commit);
        self.counters.add_writer_time(spent);
        done
    }

    /// Waits for this thread's turn, until `deadline` for other processes, and begins a transaction. Where no other process
    /// is known, the wait for one ends after `alone`.
    fn begin(&self, deadline: Instant, alone: Duration) -> DbResult<OpenTransaction<'_>> {
        let turn = self.share.wait_for_turn(deadline).ok_or(DbError::Busy)?;
        let in_sqlite = SqliteUse::enter();
        let at = Instant::now();
        let mut slot = self.writer.lock();
        // taken out while in use: work that panics takes its half-done transaction with it
        let mut writer = match slot.take() {
            Some(writer) => writer,
            None => self.open_writer(deadline)?,
        };
        let patience = deadline.saturating_duration_since(at);
        writer.conn.busy_timeout(if turn.holds_turnstile() { patience } else { patience.min(alone) })?;
        match run_statement(&writer.conn, "BEGIN IMMEDIATE") {
            Ok(()) => {
                if writer.log_file.is_none() {
                    writer.log_file = FileIdentity::of_path(&companion_path(&self.path, "-wal")).ok();
                }
                Ok(OpenTransaction { turn, in_sqlite, began_at: at, slot, writer })
            }
            Err(trouble) if trouble.needs_new_connection() => Err(self.note_sync_failure(trouble)),
            Err(trouble) => {
                self.keep_writer(&mut slot, writer);
                Err(trouble)
            }
        }
    }

    /// Notes that the log is doubtful if a sync has failed.
    fn note_sync_failure(&self, trouble: DbError) -> DbError {
        if trouble.is_sync_failure() {
            self.share.mark_log_doubtful();
        }
        trouble
    }

    /// Opens the connection that writes. After a sync that has failed, nothing that the log has is believed before it is in
    /// the database.
    fn open_writer(&self, deadline: Instant) -> DbResult<Writer> {
        let writer = Writer::open(&self.path, self.vfs, self.about.durability)?;
        self.database_file.lock().get_or_insert(writer.database_file).check(&self.path)?;
        if self.share.is_log_doubtful() {
            if !conn::renew_log(&writer.conn, deadline.saturating_duration_since(Instant::now()))? {
                return Err(DbError::Busy);
            }
            self.share.clear_log_doubt();
            tracing::info!(path = %self.path.display(), "after a sync that failed, the log was renewed");
        }
        Ok(writer)
    }

    fn run_transaction<T>(
        &self,
        begun: OpenTransaction<'_>,
        work: impl FnOnce(&Connection) -> DbResult<T>,
        committing: &mut Duration,
    ) -> DbResult<T> {
        // the last one is dropped first
        let _turn = begun.turn;
        let _in_sqlite = begun.in_sqlite;
        let mut slot = begun.slot;
        let writer = begun.writer;
        let conn = &writer.conn;
        let done = match work(conn) {
            Ok(value) => {
                let begun_at = Instant::now();
                let committed = commit(conn);
                *committing = begun_at.elapsed();
                match committed {
                    Ok(()) => writer.check(&self.path).map_err(DbError::Store).map(|log| {
                        self.limit_log(conn, log);
                        value
                    }),
                    // it may be on disk or not, and another try may report success for what an earlier one lost
                    Err(trouble) => return Err(unknown_outcome(self.note_sync_failure(trouble), &self.path)),
                }
            }
            Err(trouble) if trouble.needs_new_connection() => return Err(self.note_sync_failure(trouble)),
            Err(trouble) => {
                if !conn.is_autocommit() && run_statement(conn, "ROLLBACK").is_err() {
                    return Err(trouble);
                }
                Err(trouble)
            }
        };
        self.keep_writer(&mut slot, writer);
        done
    }

    /// Folds a log that has become long into the database, and begins it anew. SQLite does so only in a moment in which no
    /// reader needs it; where readers overlap, there is none. Here they find all that is committed in the database while they
    /// come and go. One that stays is not waited for: the next try comes when the log is longer by a half.
    fn limit_log(&self, conn: &Connection, len: u64) {
        if len < self.next_empty_at.load(SeqCst) {
            return;
        }
        let is_empty = conn::empty_log(conn, EMPTY_LOG_TIMEOUT);
        let is_empty = matches!(is_empty, Ok(true));
        self.next_empty_at.store(if is_empty { MAX_LOG_BYTES } else { len + len / 2 }, SeqCst);
        if !is_empty {
            tracing::warn!(bytes = len, "the log of SQLite grows: a reader of the database does not end");
        }
    }

    /// Keeps a connection for the next transaction.
    fn keep_writer(&self, slot: &mut Option<Writer>, writer: Writer) {
        if self.is_idle.load(SeqCst) {
            *self.database_file.lock() = None;
        } else {
            *slot = Some(writer);
        }
    }

    /// Refuses files that are not those which this process has open: others may use them in their place.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.share.companions.check_presence()?;
        self.database_file.lock().map_or(Ok(()), |database| database.check(&self.path).map(drop))
    }

    /// Refuses a database that has become another one, or has less than was counted.
    pub(crate) fn check_flush_count(&self, copy: Option<FlushCount>, conn: &Connection) -> DbResult<()> {
        let found = conn::counted(conn)?;
        if found.nonce != self.nonce {
            let path = self.path.display();
            return Err(DbError::corrupt(&format!("{path} has become another database")));
        }
        copy.map_or(Ok(()), |copy| found.check(&self.path, copy)).map_err(DbError::Store)
    }
}

/// A transaction that has begun, and all that it holds.
struct OpenTransaction<'i> {
    turn: WriteTurn<'i>,
    in_sqlite: SqliteUse,
    began_at: Instant,
    slot: MutexGuard<'i, Option<Writer>>,
    writer: Writer,
}

fn run_statement(conn: &Connection, sql: &str) -> DbResult<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

fn commit(conn: &Connection) -> DbResult<()> {
    stepfast_core::crash_point!("sqlite before commit");
    run_statement(conn, "COMMIT")?;
    stepfast_core::crash_point!("sqlite after commit");
    Ok(())
}

/// A failed COMMIT proves nothing, whatever its code.
fn unknown_outcome(trouble: DbError, path: &Path) -> DbError {
    let error = match trouble.into_store_error(path, "committing") {
        error @ StoreError::Corrupt(_) => error,
        StoreError::Unavailable(reason) | StoreError::Rejected(reason) => StoreError::Unavailable(reason),
        error => StoreError::Unavailable(error.to_string()),
    };
    error.into()
}

/// Refuses a lane whose epoch is over. Inside the transaction: nobody can take over between this and COMMIT.
pub(crate) fn check_fence(sql: &mut Statements<'_>, worker: i64, lane: u16, epoch: i64) -> DbResult<()> {
    let found: Option<i64> = sql.get(Sql::Fence)?.query_row((worker, lane), |row| row.get(0)).optional()?;
    if found == Some(epoch) { Ok(()) } else { Err(StoreError::Fenced.into()) }
}
