//! [`Inner`]: the one connection that writes, who may use it, and what is done when it cannot be trusted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::{Clock, Timestamp};
use stepfast_core::counters::{Counters, Spent};
use stepfast_core::lock::Mutex;
use stepfast_core::store::{About, StoreError};
use stepfast_core::turns::Turns;
use stepfast_core::write::{Flush, Outcome};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::apply::Apply;
use crate::connect;
use crate::error::{Tried, Trouble};
use crate::forked::InSqlite;
use crate::notify::Listener;
use crate::shared::Shared;
use crate::statements::{Sql, Statements, Tally};

/// The store, shared with the threads that read for it.
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Option<&'static str>,
    pub(crate) about: About,
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
    pub(crate) writer: Mutex<Option<Connection>>,
    pub(crate) readers: Mutex<Vec<Connection>>,
    /// All of its registrations are closed: no connection stays open.
    pub(crate) is_at_rest: AtomicBool,
    /// Bounds how many reads for async callers go on at once.
    pub(crate) reading: Arc<Semaphore>,
    /// Whose turn it is at the next claim.
    pub(crate) turns: Mutex<Turns>,
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

impl Inner {
    /// Closes all connections that are not in use; those that are close when they have been. Until somebody registers
    /// again, each use opens one of its own.
    pub(crate) fn rest(&self) {
        self.is_at_rest.store(true, SeqCst);
        let _in_sqlite = InSqlite::enter();
        drop(self.writer.lock().take());
        self.readers.lock().clear();
    }

    /// Closes all connections, while none is in use; the next use opens others.
    pub(crate) fn disconnect(&self) {
        let writer = self.writer.lock().take();
        let readers = std::mem::take(&mut *self.readers.lock());
        writer.into_iter().chain(readers).for_each(connect::close_for_now);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Applies one flush in one transaction, on the calling thread.
    pub(crate) fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let mut applied = self.apply(flush, false);
        if let Err(Trouble::OneByOne) = applied {
            applied = self.apply(flush, true);
        }
        let (outcomes, tally) =
            applied.map_err(|trouble| trouble.into_store(&self.path, "committing a flush"))?;
        tally.add_to(&self.counters);
        self.counters.flushed(flush.writes.len() as u64);
        stepfast_core::crash_point!("sqlite flush not announced");
        self.shared.announce(self.listener.id);
        Ok(outcomes)
    }

    fn apply(&self, flush: &Flush, is_single: bool) -> Tried<(Vec<(usize, Outcome)>, Tally)> {
        self.try_write(|conn| {
            let mut sql = Statements::new(conn);
            fence(&mut sql, flush.worker.0, flush.lane, flush.epoch)?;
            let mut apply = Apply::new(sql, flush, self.now(), &self.shared, is_single);
            let outcomes = if flush.is_resent { apply.again()? } else { apply.all()? };
            Ok((outcomes, apply.sql.tally))
        })
    }

    /// Does `work` in one durable transaction, when it is this thread's turn. `doing` says what, for errors.
    ///
    /// On an error nothing of it is durable, except that after `Unavailable` nobody knows.
    pub(crate) fn write<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Connection) -> Tried<T>,
    ) -> Result<T, StoreError> {
        self.try_write(work).map_err(|trouble| trouble.into_store(&self.path, doing))
    }

    fn try_write<T>(&self, work: impl FnOnce(&Connection) -> Tried<T>) -> Tried<T> {
        let asked_at = Instant::now();
        let _turn = self.shared.turn();
        let _in_sqlite = InSqlite::enter();
        let begun_at = Instant::now();
        let mut spent = Spent { turn: begun_at - asked_at, ..Spent::default() };
        let done = self.transact(&mut self.writer.lock(), work, &mut spent.commit);
        spent.statements = begun_at.elapsed().saturating_sub(spent.commit);
        self.counters.add_spent(spent);
        done
    }

    fn transact<T>(
        &self,
        slot: &mut Option<Connection>,
        work: impl FnOnce(&Connection) -> Tried<T>,
        committing: &mut Duration,
    ) -> Tried<T> {
        // taken out while in use: work that panics takes its half-done transaction with it
        let conn = match slot.take() {
            Some(conn) => conn,
            None => connect::writer(&self.path, self.vfs, self.about.durability)?,
        };
        let done = match run(&conn, "BEGIN IMMEDIATE").and_then(|()| work(&conn)) {
            Ok(value) => {
                let begun_at = Instant::now();
                let committed = commit(&conn);
                *committing = begun_at.elapsed();
                match committed {
                    Ok(()) => Ok(value),
                    // It may be on disk or not, and another try may report success for what an earlier one
                    // lost. A new connection sees what the disk has.
                    Err(trouble) => return Err(unknown(trouble, &self.path)),
                }
            }
            Err(trouble) if trouble.is_of_disk() => return Err(trouble),
            Err(trouble) => {
                if !conn.is_autocommit() && run(&conn, "ROLLBACK").is_err() {
                    return Err(trouble);
                }
                Err(trouble)
            }
        };
        if !self.is_at_rest.load(SeqCst) {
            *slot = Some(conn);
        }
        done
    }
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
