//! [`Database`]: the only connection that writes, the order in which threads use it, and its replacement after disk
//! errors.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::queue::fairness::FairShare;
use stepfast_core::store::counters::{Counters, WriterTime};
use stepfast_core::store::{Assignments, Durability, StoreError, StoreInfo};
use stepfast_core::sync::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::companions::{FileIdentity, FlushCount, companion_path};
use crate::conn;
use crate::conn::statements::{Sql, Statements};
use crate::error::{DbError, DbResult};
use crate::file_share::{FileShare, WriteTurn};
use crate::fork::{Disconnect, SqliteUse};
use crate::notify::Listener;

/// Maximum time that a transaction waits for other processes, before the next transaction of this process may try.
pub(crate) const TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a transaction waits for SQLite's lock before it checks whether another process has a registration.
const TIMEOUT_WITHOUT_PEERS: Duration = Duration::from_millis(50);
/// Total time that a transaction waits if the caller does not retry.
pub(crate) const MAX_WRITE_WAIT: Duration = Duration::from_mins(1);

/// Length of the write-ahead log, in bytes, at which the store itself empties the log: about three times the length at
/// which SQLite tries to restart the log.
pub(crate) const MAX_LOG_BYTES: u64 = 128 * 1024 * 1024;
/// Time that emptying the log waits for readers.
const EMPTY_LOG_TIMEOUT: Duration = Duration::from_millis(500);

/// The connection that writes, and the identities of the files that it has open.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    /// The main database file.
    pub(crate) database_file: FileIdentity,
    /// The write-ahead log; `None` before the first transaction begins, because SQLite creates the file at that moment.
    log_file: Option<FileIdentity>,
}

impl Writer {
    /// Opens the database, and creates the file if it does not exist.
    pub(crate) fn open(path: &Path, vfs: Option<&str>, durability: Durability) -> DbResult<Self> {
        let conn = conn::open_writer(path, vfs, durability)?;
        let not_found = |error: std::io::Error| {
            let reason = format!("opening {}: it cannot be found ({error})", path.display());
            StoreError::Unavailable(reason)
        };
        let database_file = FileIdentity::of_path(path).map_err(not_found)?;
        Ok(Self { conn, database_file, log_file: None })
    }

    /// Fails if the paths no longer lead to the files that the connection has open, because commits to those files
    /// would be lost. Returns the length of the log.
    fn check(&self, path: &Path) -> Result<u64, StoreError> {
        self.database_file.check(path)?;
        self.log_file.map_or(Ok(0), |log| log.check(&companion_path(path, "-wal")))
    }
}

/// The state of a store, shared with the threads that read for it.
pub(crate) struct Database {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Option<&'static str>,
    pub(crate) info: StoreInfo,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) share: Arc<FileShare>,
    pub(crate) listener: Arc<Listener>,
    /// The worker_ids of this store's registrations that are not closed.
    pub(crate) workers: Mutex<Vec<i64>>,
    /// Number of maintenances so far.
    pub(crate) maintenances: AtomicU64,
    /// Whether a sweep is due. Sweeps are due at regular intervals, and after a takeover, to wake the executions that
    /// the dead worker should have woken.
    pub(crate) is_sweep_due: AtomicBool,
    /// The connection that writes. `None` after an error that leaves the connection's view of the disk in doubt: the
    /// next use opens a new connection.
    pub(crate) writer: Mutex<Option<Writer>>,
    /// The file that the store's connections have open; `None` while no connection is open.
    pub(crate) database_file: Mutex<Option<FileIdentity>>,
    /// The random number that identifies the database in copies of the flush count.
    pub(crate) nonce: i64,
    /// Length of the log, in bytes, at which the store empties the log next.
    pub(crate) log_bytes_limit: AtomicU64,
    /// Time of the store's last flush that incremented the flush count.
    pub(crate) flush_counted_at: Mutex<Option<Instant>>,
    /// Open read connections that are not in use.
    pub(crate) idle_readers: Mutex<Vec<Connection>>,
    /// Whether all registrations are closed, so that no connection stays open.
    pub(crate) is_idle: AtomicBool,
    /// The assignments of this store's workers.
    pub(crate) assignments: Assignments,
    /// Limits the number of concurrent reads for async callers.
    pub(crate) read_permits: Arc<Semaphore>,
    /// The order in which the next claims serve queues and queue keys.
    pub(crate) fair_share: Mutex<FairShare>,
}

impl Drop for Database {
    fn drop(&mut self) {
        let _in_sqlite = SqliteUse::enter();
        drop(self.writer.get_mut().take());
        self.idle_readers.get_mut().clear();
        // workers that were not closed count as dead, as if the process had died
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
        writer.into_iter().chain(readers).for_each(conn::close_without_checkpoint);
    }
}

impl Database {
    /// Closes all connections that are not in use; the others close after their use. Until the next registration, each
    /// use opens a connection of its own.
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

    /// Runs `work` in one durable transaction, when it is this thread's turn. `action` describes the work in errors.
    ///
    /// After `Unavailable` or `Corrupt`, the work may be durable or not. After any other error, no part of the work is
    /// durable. If another process keeps its transaction open, this function fails after a short wait; the caller
    /// retries unless the engine is stopping.
    pub(crate) fn write<T>(
        &self,
        action: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        self.try_write(TURN_TIMEOUT, work).map_err(|error| error.into_store_error(&self.path, action))
    }

    /// Runs `work` as [`write`](Self::write) does, but waits longer, for a caller that does not retry.
    pub(crate) fn write_with_long_wait<T>(
        &self,
        action: &str,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> Result<T, StoreError> {
        self.try_write(MAX_WRITE_WAIT, work).map_err(|error| error.into_store_error(&self.path, action))
    }

    /// Tries to run `work` in one durable transaction. Waits at most `timeout` for other processes.
    pub(crate) fn try_write<T>(
        &self,
        timeout: Duration,
        work: impl FnOnce(&Connection) -> DbResult<T>,
    ) -> DbResult<T> {
        let requested_at = Instant::now();
        let deadline = requested_at + timeout;
        let mut lock_timeout = TIMEOUT_WITHOUT_PEERS;
        let transaction = loop {
            match self.begin(deadline.min(Instant::now() + TURN_TIMEOUT), lock_timeout) {
                // Another process may have registered in the meantime, and may use the turnstile. A process that does
                // not use the turnstile rarely finds a gap between the transactions of a process that does.
                Err(error) if error.is_busy() && Instant::now() < deadline => {
                    self.share.check_for_peers();
                    lock_timeout = TURN_TIMEOUT;
                }
                transaction => break transaction?,
            }
        };
        let began_at = transaction.began_at;
        let mut writer_time = WriterTime { turn_wait: began_at - requested_at, ..WriterTime::default() };
        let result = self.run_transaction(transaction, work, &mut writer_time.commit);
        writer_time.statements = began_at.elapsed().saturating_sub(writer_time.commit);
        self.counters.add_writer_time(writer_time);
        result
    }

    /// Waits for this thread's turn, and begins a transaction. Waits for other processes until `deadline`. While no
    /// other process is known, the wait for SQLite's lock ends after `lock_timeout`.
    fn begin(&self, deadline: Instant, lock_timeout: Duration) -> DbResult<OpenTransaction<'_>> {
        let turn = self.share.wait_for_turn(deadline).ok_or(DbError::Busy)?;
        let in_sqlite = SqliteUse::enter();
        let began_at = Instant::now();
        let mut slot = self.writer.lock();
        // the connection leaves the slot while in use: a panic in the work then drops the connection with its
        // unfinished transaction
        let mut writer = match slot.take() {
            Some(writer) => writer,
            None => self.open_writer(deadline)?,
        };
        let timeout = deadline.saturating_duration_since(began_at);
        writer.conn.busy_timeout(if turn.holds_turnstile() { timeout } else { timeout.min(lock_timeout) })?;
        match run_statement(&writer.conn, "BEGIN IMMEDIATE") {
            Ok(()) => {
                if writer.log_file.is_none() {
                    writer.log_file = FileIdentity::of_path(&companion_path(&self.path, "-wal")).ok();
                }
                Ok(OpenTransaction { turn, in_sqlite, began_at, slot, writer })
            }
            Err(error) if error.needs_new_connection() => Err(self.note_sync_failure(error)),
            Err(error) => {
                self.keep_writer(&mut slot, writer);
                Err(error)
            }
        }
    }

    /// Marks the log as doubtful if the error is a failed sync. Returns the error.
    fn note_sync_failure(&self, error: DbError) -> DbError {
        if error.is_sync_failure() {
            self.share.mark_log_doubtful();
        }
        error
    }

    /// Opens the connection that writes. After a failed sync, the content of the log is trusted only once it has been
    /// written into the database.
    fn open_writer(&self, deadline: Instant) -> DbResult<Writer> {
        let writer = Writer::open(&self.path, self.vfs, self.info.durability)?;
        self.database_file.lock().get_or_insert(writer.database_file).check(&self.path)?;
        if self.share.is_log_doubtful() {
            if !conn::renew_log(&writer.conn, deadline.saturating_duration_since(Instant::now()))? {
                return Err(DbError::Busy);
            }
            self.share.clear_log_doubt();
            tracing::info!(path = %self.path.display(), "renewed the log after a failed sync");
        }
        Ok(writer)
    }

    /// Runs `work` and COMMIT in a transaction that has begun, or rolls it back. Stores the duration of COMMIT in
    /// `commit_time`.
    fn run_transaction<T>(
        &self,
        transaction: OpenTransaction<'_>,
        work: impl FnOnce(&Connection) -> DbResult<T>,
        commit_time: &mut Duration,
    ) -> DbResult<T> {
        // these variables are dropped in reverse order: the turn ends last
        let _turn = transaction.turn;
        let _in_sqlite = transaction.in_sqlite;
        let mut slot = transaction.slot;
        let writer = transaction.writer;
        let conn = &writer.conn;
        let result = match work(conn) {
            Ok(value) => {
                let began_at = Instant::now();
                let committed = commit(conn);
                *commit_time = began_at.elapsed();
                match committed {
                    Ok(()) => writer.check(&self.path).map_err(DbError::Store).map(|log| {
                        self.limit_log(conn, log);
                        value
                    }),
                    // The transaction may be on the disk or not. A second COMMIT could report success for data that the
                    // first one lost.
                    Err(error) => return Err(unknown_outcome(self.note_sync_failure(error), &self.path)),
                }
            }
            Err(error) if error.needs_new_connection() => return Err(self.note_sync_failure(error)),
            Err(error) => {
                if !conn.is_autocommit() && run_statement(conn, "ROLLBACK").is_err() {
                    return Err(error);
                }
                Err(error)
            }
        };
        self.keep_writer(&mut slot, writer);
        result
    }

    /// Writes a long log into the database, and empties the log. By itself, SQLite restarts the log only at a moment at
    /// which no reader needs it, and overlapping readers leave no such moment. After this function has written the log
    /// into the database, new readers do not need the log, and only older snapshots must end. If a reader keeps its
    /// snapshot for too long, the next attempt follows when the log has grown by a half. `len` is the length of the log
    /// in bytes.
    fn limit_log(&self, conn: &Connection, len: u64) {
        if len < self.log_bytes_limit.load(SeqCst) {
            return;
        }
        let is_empty = conn::empty_log(conn, EMPTY_LOG_TIMEOUT);
        let is_empty = matches!(is_empty, Ok(true));
        self.log_bytes_limit.store(if is_empty { MAX_LOG_BYTES } else { len + len / 2 }, SeqCst);
        if !is_empty {
            tracing::warn!(
                bytes = len,
                "the write-ahead log keeps growing: a reader does not end its transaction"
            );
        }
    }

    /// Keeps a connection for the next transaction, unless the store is idle.
    fn keep_writer(&self, slot: &mut Option<Writer>, writer: Writer) {
        if self.is_idle.load(SeqCst) {
            *self.database_file.lock() = None;
        } else {
            *slot = Some(writer);
        }
    }

    /// Fails if a path no longer leads to the file that this process has open: other processes may use the new file.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.share.companions.check_presence()?;
        self.database_file.lock().map_or(Ok(()), |database| database.check(&self.path).map(drop))
    }

    /// Fails if another database has replaced this one, or if the flush count is smaller than its copy.
    pub(crate) fn check_flush_count(
        &self,
        copied_count: Option<FlushCount>,
        conn: &Connection,
    ) -> DbResult<()> {
        let found = conn::read_flush_count(conn)?;
        if found.nonce != self.nonce {
            let path = self.path.display();
            return Err(DbError::corrupt(&format!("{path} has become another database")));
        }
        copied_count
            .map_or(Ok(()), |copied_count| found.check(&self.path, copied_count))
            .map_err(DbError::Store)
    }
}

/// A transaction that has begun, with the locks and the connection that it holds.
struct OpenTransaction<'i> {
    turn: WriteTurn<'i>,
    in_sqlite: SqliteUse,
    /// Time at which the turn began.
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

/// Converts the error of a failed COMMIT to `Unavailable`, because no error code proves that nothing was committed.
/// Only `Corrupt` stays as it is.
fn unknown_outcome(error: DbError, path: &Path) -> DbError {
    let error = match error.into_store_error(path, "committing") {
        error @ StoreError::Corrupt(_) => error,
        StoreError::Unavailable(reason) | StoreError::Rejected(reason) => StoreError::Unavailable(reason),
        error => StoreError::Unavailable(error.to_string()),
    };
    error.into()
}

/// Fails with `Fenced` if a lane's epoch has ended. Runs inside the transaction, so no takeover can happen between this
/// check and COMMIT.
pub(crate) fn check_fence(sql: &mut Statements<'_>, worker: i64, lane: u16, epoch: i64) -> DbResult<()> {
    let found: Option<i64> = sql.get(Sql::Fence)?.query_row((worker, lane), |row| row.get(0)).optional()?;
    if found == Some(epoch) { Ok(()) } else { Err(StoreError::Fenced.into()) }
}
