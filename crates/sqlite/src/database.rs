//! [`Inner`]: the one connection that writes, who may use it, and what is done when it cannot be trusted.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::queue::fairness::FairShare;
use stepfast_core::store::counters::{Counters, Spent};
use stepfast_core::store::{StoreInfo, Durability, StoreError};
use stepfast_core::sync::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::companions::{Counted, Identity, beside};
use crate::conn;
use crate::conn::statements::{Sql, Statements};
use crate::error::{Tried, Trouble};
use crate::file_share::{Shared, Turn};
use crate::fork::{Disconnect, InSqlite};
use crate::notify::Listener;

/// How long a transaction waits in line for those of other processes before it lets the next of this process try.
pub(crate) const IN_LINE: Duration = Duration::from_secs(1);
/// How long it waits outside the line, while it knows of no other process, before it looks whether there is one.
const ALONE: Duration = Duration::from_millis(50);
/// How long it waits in all where a caller gets the error.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Bytes of the log from which on it is not left to SQLite to begin it anew: three times the length at which SQLite tries.
pub(crate) const LONGEST_LOG: u64 = 128 * 1024 * 1024;
/// How long that waits for readers.
const FOLDING: Duration = Duration::from_millis(500);

/// The connection that writes, and the files that it has open.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    /// The database.
    pub(crate) database: Identity,
    /// The log, once a transaction has begun: SQLite makes it then at the latest.
    log: Option<Identity>,
}

impl Writer {
    /// Opens the database; creates the file if there is none.
    pub(crate) fn open(path: &Path, vfs: Option<&str>, durability: Durability) -> Tried<Self> {
        let conn = conn::writer(path, vfs, durability)?;
        let missing = |error: std::io::Error| {
            let reason = format!("opening {}: it cannot be found ({error})", path.display());
            StoreError::Unavailable(reason)
        };
        let database = Identity::at(path).map_err(missing)?;
        Ok(Self { conn, database, log: None })
    }

    /// Refuses files that are not those which the connection has open: what was committed to the others is lost. Returns the
    /// length of the log.
    fn check(&self, path: &Path) -> Result<u64, StoreError> {
        self.database.check(path)?;
        self.log.map_or(Ok(0), |log| log.check(&beside(path, "-wal")))
    }
}

/// The store, shared with the threads that read for it.
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Option<&'static str>,
    pub(crate) about: StoreInfo,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) shared: Arc<Shared>,
    pub(crate) listener: Arc<Listener>,
    /// Registrations of this store that are not closed.
    pub(crate) workers: Mutex<Vec<i64>>,
    /// Renewals so far.
    pub(crate) renewals: AtomicU64,
    /// A takeover has begun and not yet woken what its worker should have.
    pub(crate) owes_wakes: AtomicBool,
    /// `None` after an error that leaves its view of the disk in doubt: the next use opens it anew.
    pub(crate) writer: Mutex<Option<Writer>>,
    /// The file that its connections have open; `None` while none is.
    pub(crate) database: Mutex<Option<Identity>>,
    /// The nonce of the database.
    pub(crate) nonce: i64,
    /// Bytes of the log at which it is to be folded next.
    pub(crate) longest_log: AtomicU64,
    /// When a flush was counted last.
    pub(crate) counted_at: Mutex<Option<Instant>>,
    pub(crate) readers: Mutex<Vec<Connection>>,
    /// All of its registrations are closed: no connection stays open.
    pub(crate) is_at_rest: AtomicBool,
    /// Bounds how many reads for async callers go on at once.
    pub(crate) reading: Arc<Semaphore>,
    /// Whose turn it is at the next claim.
    pub(crate) turns: Mutex<FairShare>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _in_sqlite = InSqlite::enter();
        drop(self.writer.get_mut().take());
        self.readers.get_mut().clear();
        // whoever was not closed is lost, as if the process had died
        for worker in self.workers.lock().drain(..) {
            self.shared.leave(worker);
        }
        self.shared.wakes.forget(self.listener.id);
    }
}

impl Disconnect for Inner {
    fn disconnect(&self) {
        let writer = self.writer.lock().take().map(|writer| writer.conn);
        let readers = std::mem::take(&mut *self.readers.lock());
        writer.into_iter().chain(readers).for_each(conn::close_for_now);
    }
}

impl Inner {
    /// Closes all connections that are not in use; those that are close when they have been. Until somebody registers
    /// again, each use opens one of its own.
    pub(crate) fn rest(&self) {
        self.is_at_rest.store(true, SeqCst);
        let _in_sqlite = InSqlite::enter();
        drop(self.writer.lock().take());
        self.readers.lock().clear();
        *self.database.lock() = None;
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
        work: impl FnOnce(&Connection) -> Tried<T>,
    ) -> Result<T, StoreError> {
        self.try_write(IN_LINE, work).map_err(|trouble| trouble.into_store(&self.path, doing))
    }

    /// The same for a caller that does not try again: it waits longer.
    pub(crate) fn write_patiently<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Connection) -> Tried<T>,
    ) -> Result<T, StoreError> {
        self.try_write(PATIENCE, work).map_err(|trouble| trouble.into_store(&self.path, doing))
    }

    pub(crate) fn try_write<T>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Connection) -> Tried<T>,
    ) -> Tried<T> {
        let asked_at = Instant::now();
        let last = asked_at + patience;
        let mut alone = ALONE;
        let begun = loop {
            match self.begin(last.min(Instant::now() + IN_LINE), alone) {
                // a process that has come since the last look may keep a line: outside of it there is hardly a gap
                Err(trouble) if trouble.is_busy() && Instant::now() < last => {
                    self.shared.look_for_peers();
                    alone = IN_LINE;
                }
                begun => break begun?,
            }
        };
        let begun_at = begun.at;
        let mut spent = Spent { turn: begun_at - asked_at, ..Spent::default() };
        let done = self.transact(begun, work, &mut spent.commit);
        spent.statements = begun_at.elapsed().saturating_sub(spent.commit);
        self.counters.add_spent(spent);
        done
    }

    /// Waits for this thread's turn, until `deadline` for other processes, and begins a transaction. Where no other process
    /// is known, the wait for one ends after `alone`.
    fn begin(&self, deadline: Instant, alone: Duration) -> Tried<Begun<'_>> {
        let turn = self.shared.turn(deadline).ok_or(Trouble::Busy)?;
        let in_sqlite = InSqlite::enter();
        let at = Instant::now();
        let mut slot = self.writer.lock();
        // taken out while in use: work that panics takes its half-done transaction with it
        let mut writer = match slot.take() {
            Some(writer) => writer,
            None => self.connect(deadline)?,
        };
        let patience = deadline.saturating_duration_since(at);
        writer.conn.busy_timeout(if turn.is_in_line() { patience } else { patience.min(alone) })?;
        match run(&writer.conn, "BEGIN IMMEDIATE") {
            Ok(()) => {
                if writer.log.is_none() {
                    writer.log = Identity::at(&beside(&self.path, "-wal")).ok();
                }
                Ok(Begun { turn, in_sqlite, at, slot, writer })
            }
            Err(trouble) if trouble.is_of_disk() => Err(self.doubted(trouble)),
            Err(trouble) => {
                self.keep(&mut slot, writer);
                Err(trouble)
            }
        }
    }

    /// Notes that the log is doubtful if a sync has failed.
    fn doubted(&self, trouble: Trouble) -> Trouble {
        if trouble.is_of_sync() {
            self.shared.doubt_log();
        }
        trouble
    }

    /// Opens the connection that writes. After a sync that has failed, nothing that the log has is believed before it is in
    /// the database.
    fn connect(&self, deadline: Instant) -> Tried<Writer> {
        let writer = Writer::open(&self.path, self.vfs, self.about.durability)?;
        self.database.lock().get_or_insert(writer.database).check(&self.path)?;
        if self.shared.is_log_doubtful() {
            if !conn::renew_log(&writer.conn, deadline.saturating_duration_since(Instant::now()))? {
                return Err(Trouble::Busy);
            }
            self.shared.trust_log();
            tracing::info!(path = %self.path.display(), "after a sync that failed, the log was renewed");
        }
        Ok(writer)
    }

    fn transact<T>(
        &self,
        begun: Begun<'_>,
        work: impl FnOnce(&Connection) -> Tried<T>,
        committing: &mut Duration,
    ) -> Tried<T> {
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
                    Ok(()) => writer.check(&self.path).map_err(Trouble::Store).map(|log| {
                        self.bound_log(conn, log);
                        value
                    }),
                    // it may be on disk or not, and another try may report success for what an earlier one lost
                    Err(trouble) => return Err(unknown(self.doubted(trouble), &self.path)),
                }
            }
            Err(trouble) if trouble.is_of_disk() => return Err(self.doubted(trouble)),
            Err(trouble) => {
                if !conn.is_autocommit() && run(conn, "ROLLBACK").is_err() {
                    return Err(trouble);
                }
                Err(trouble)
            }
        };
        self.keep(&mut slot, writer);
        done
    }

    /// Folds a log that has become long into the database, and begins it anew. SQLite does so only in a moment in which no
    /// reader needs it; where readers overlap, there is none. Here they find all that is committed in the database while they
    /// come and go. One that stays is not waited for: the next try comes when the log is longer by a half.
    fn bound_log(&self, conn: &Connection, len: u64) {
        if len < self.longest_log.load(SeqCst) {
            return;
        }
        let is_empty = conn::empty_log(conn, FOLDING);
        let is_empty = matches!(is_empty, Ok(true));
        self.longest_log.store(if is_empty { LONGEST_LOG } else { len + len / 2 }, SeqCst);
        if !is_empty {
            tracing::warn!(bytes = len, "the log of SQLite grows: a reader of the database does not end");
        }
    }

    /// Keeps a connection for the next transaction.
    fn keep(&self, slot: &mut Option<Writer>, writer: Writer) {
        if self.is_at_rest.load(SeqCst) {
            *self.database.lock() = None;
        } else {
            *slot = Some(writer);
        }
    }

    /// Refuses files that are not those which this process has open: others may use them in their place.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.shared.companions.check_presence()?;
        self.database.lock().map_or(Ok(()), |database| database.check(&self.path).map(drop))
    }

    /// Refuses a database that has become another one, or has less than was counted.
    pub(crate) fn check_count(&self, copy: Option<Counted>, conn: &Connection) -> Tried<()> {
        let found = conn::counted(conn)?;
        if found.nonce != self.nonce {
            let path = self.path.display();
            return Err(Trouble::damaged(&format!("{path} has become another database")));
        }
        copy.map_or(Ok(()), |copy| found.check(&self.path, copy)).map_err(Trouble::Store)
    }
}

/// A transaction that has begun, and all that it holds.
struct Begun<'i> {
    turn: Turn<'i>,
    in_sqlite: InSqlite,
    at: Instant,
    slot: MutexGuard<'i, Option<Writer>>,
    writer: Writer,
}

fn run(conn: &Connection, sql: &str) -> Tried<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

fn commit(conn: &Connection) -> Tried<()> {
    stepfast_core::crash_point!("sqlite before commit");
    run(conn, "COMMIT")?;
    stepfast_core::crash_point!("sqlite after commit");
    Ok(())
}

/// A failed COMMIT proves nothing, whatever its code.
fn unknown(trouble: Trouble, path: &Path) -> Trouble {
    let error = match trouble.into_store(path, "committing") {
        error @ StoreError::Corrupt(_) => error,
        StoreError::Unavailable(reason) | StoreError::Rejected(reason) => StoreError::Unavailable(reason),
        error => StoreError::Unavailable(error.to_string()),
    };
    error.into()
}

/// Refuses a lane whose epoch is over. Inside the transaction: nobody can take over between this and COMMIT.
pub(crate) fn fence(sql: &mut Statements<'_>, worker: i64, lane: u16, epoch: i64) -> Tried<()> {
    let found: Option<i64> = sql.get(Sql::Fence)?.query_row((worker, lane), |row| row.get(0)).optional()?;
    if found == Some(epoch) { Ok(()) } else { Err(StoreError::Fenced.into()) }
}
