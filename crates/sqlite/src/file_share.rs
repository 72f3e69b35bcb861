//! [`FileShare`]: the state that all stores of this process on one file share, and that several processes share
//! through three files beside the database.
//!
//! - `<database>-presence`: byte `worker_id` is locked as long as that registration lives. The system releases the lock
//!   when the process dies, and forked children do not inherit it. An unlocked byte therefore proves at once, and
//!   without a clock, that the worker is dead. The content of the file is a copy of the flush count.
//! - `<database>-turnstile`: the queue for writers of several processes. The queue only provides fairness.
//! - `<database>-wake`: written after a COMMIT has returned, and watched by the other processes.
//!
//! A process has one [`FileShare`] per database, kept in a registry while any store has the database open.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use stepfast_core::clock::Timestamp;
use stepfast_core::sync::{Condvar, FairLock, FairLockGuard, Mutex};
use tokio::time::Instant;

use crate::companions::{CompanionFiles, Companions, OpenCompanions};
use crate::notify::Hints;

/// Bytes of the turnstile file that processes lock: the next writer, the present writer, and a process that opens or
/// migrates the database.
const NEXT_WRITER_BYTE: i64 = 0;
const WRITER_BYTE: i64 = 1;
const OPENER_BYTE: i64 = 2;

/// Time between two attempts to lock the opener's byte.
const OPENER_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The reason why a forked child cannot open its parent's databases.
pub(crate) const FORKED_CHILD_REASON: &str =
    "this process was forked while its parent had the database open; start a new process instead (spawn)";

/// The shared states of all open databases, by path.
static OPEN_SHARES: Mutex<BTreeMap<PathBuf, Arc<FileShare>>> = Mutex::new(BTreeMap::new());

/// The state of one database file in this process.
pub(crate) struct FileShare {
    /// The id of the process that opened the files. A forked child inherits the files, but none of the locks.
    process_id: u32,
    pub(crate) companions: Arc<Companions>,
    /// Admits the threads of this process one at a time, in the order of their arrival.
    thread_order: FairLock,
    /// The state of the turnstile, and the signal that the wait of the helper thread has ended.
    turnstile: Mutex<TurnstileState>,
    turnstile_changed: Condvar,
    /// Registrations of this process by worker_id; each keeps the companions open.
    registrations: Mutex<HashMap<i64, OpenCompanions>>,
    /// Whether another process had a registration at the last check.
    has_peers: AtomicBool,
    /// Whether parts of the log may not be on the disk although they can be read.
    is_log_doubtful: AtomicBool,
    /// The last value given to `ready.seq`.
    last_seq: AtomicI64,
    pub(crate) hints: Arc<Hints>,
}

/// The state of the turnstile in this process.
#[derive(Default)]
struct TurnstileState {
    /// Whether the helper thread waits at the turnstile for this process.
    has_waiting_thread: bool,
    /// Whether a writer waits for the helper thread.
    has_waiting_writer: bool,
    /// Whether the helper thread has locked the writer's byte for that writer; `None` while the helper thread waits.
    has_locked: Option<bool>,
}

/// Forgets, in a forked child, the files that its parent has open. Does not close them: closing them later would drop
/// locks that the child has acquired on the same files.
pub(crate) fn forget_open_files() {
    std::mem::forget(std::mem::take(&mut *OPEN_SHARES.lock()));
}

impl FileShare {
    /// Returns the shared state of the database at `path` (absolute, links resolved). Fails with the reason in a forked
    /// child whose parent had the database open.
    pub(crate) fn join(path: &Path) -> Result<Arc<Self>, &'static str> {
        let mut shares = OPEN_SHARES.lock();
        // unused files are closed here, under the lock, and never while another thread opens them again
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        if let Some(share) = shares.get(path) {
            if share.process_id != std::process::id() {
                return Err(FORKED_CHILD_REASON);
            }
            return Ok(share.clone());
        }
        let companions = Companions::new(path);
        let share = Arc::new(FileShare {
            process_id: std::process::id(),
            companions: companions.clone(),
            thread_order: FairLock::new(),
            turnstile: Mutex::default(),
            turnstile_changed: Condvar::default(),
            registrations: Mutex::default(),
            has_peers: AtomicBool::new(false),
            is_log_doubtful: AtomicBool::new(false),
            last_seq: AtomicI64::new(0),
            hints: Arc::new(Hints::new(companions)),
        });
        shares.insert(path.to_owned(), share.clone());
        Ok(share)
    }

    /// Waits for this thread's turn to write. Waits for other processes until `deadline`, and returns `None` after it.
    /// During the turn, no other thread of this process writes, and other processes queue behind it.
    pub(crate) fn wait_for_turn(self: &Arc<Self>, deadline: Instant) -> Option<WriteTurn<'_>> {
        let thread_order = self.thread_order.lock();
        let mut locked = None;
        if self.has_peers.load(Relaxed)
            && let Ok(open_files) = self.companions.open()
            && self.pass_turnstile(&open_files.turnstile, deadline)?
        {
            locked = Some((open_files, WRITER_BYTE));
        }
        Some(WriteTurn { locked, _thread_order: thread_order })
    }

    /// Waits at the turnstile, and locks the writer's byte. Returns false if the system cannot provide the lock, and
    /// `None` after the deadline. Only one thread of this process at a time runs this function.
    ///
    /// The turnstile has two locks: the process that holds the first one writes next, so a busy process cannot overtake
    /// other processes. The system grants a lock in the order of the requests, but supports no deadline. Therefore a
    /// helper thread waits for this process, and passes the lock to the writer. If the lock is granted too late, the
    /// helper thread releases it.
    fn pass_turnstile(self: &Arc<Self>, turnstile: &File, deadline: Instant) -> Option<bool> {
        let mut state = self.turnstile.lock();
        if !state.has_waiting_thread {
            match try_lock(turnstile, NEXT_WRITER_BYTE).and_then(|()| try_lock(turnstile, WRITER_BYTE)) {
                Ok(()) => {
                    unlock(turnstile, NEXT_WRITER_BYTE);
                    return Some(true);
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                Err(_) => {
                    unlock(turnstile, NEXT_WRITER_BYTE);
                    return Some(false);
                }
            }
            let share = self.clone();
            let wait_for_locks = move || share.wait_at_turnstile();
            if std::thread::Builder::new().name("stepfast-turn".to_owned()).spawn(wait_for_locks).is_err() {
                unlock(turnstile, NEXT_WRITER_BYTE);
                return Some(false);
            }
            state.has_waiting_thread = true;
        }
        state.has_waiting_writer = true;
        let timeout = deadline.saturating_duration_since(Instant::now());
        let mut state =
            self.turnstile_changed.wait_while_for(state, timeout, |state| state.has_locked.is_none());
        state.has_waiting_writer = false;
        state.has_locked.take()
    }

    /// Runs as the helper thread: waits for the lock of the next writer, then for the lock of the writer. This process
    /// may already hold the lock of the next writer.
    fn wait_at_turnstile(&self) {
        let open_files = self.companions.open();
        let mut has_locked = false;
        if let Ok(CompanionFiles { turnstile, .. }) = open_files.as_deref()
            && lock_and_wait(turnstile, NEXT_WRITER_BYTE).is_ok()
        {
            has_locked = lock_and_wait(turnstile, WRITER_BYTE).is_ok();
            unlock(turnstile, NEXT_WRITER_BYTE);
        }
        let mut state = self.turnstile.lock();
        state.has_waiting_thread = false;
        if state.has_waiting_writer {
            state.has_locked = Some(has_locked);
            self.turnstile_changed.notify_all();
        } else if let (true, Ok(CompanionFiles { turnstile, .. })) = (has_locked, open_files.as_deref()) {
            unlock(turnstile, WRITER_BYTE);
        }
    }

    /// Waits until no other store, of any process, is opening the file. Waits for other processes until `deadline`, and
    /// returns `None` after it.
    pub(crate) fn lock_opening(&self, deadline: Instant) -> Option<WriteTurn<'_>> {
        let thread_order = self.thread_order.lock();
        let open_files = self.companions.open().ok()?;
        let is_locked = loop {
            match try_lock(&open_files.turnstile, OPENER_BYTE) {
                Ok(()) => break true,
                Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => {
                    drop(self.turnstile_changed.wait_while_for(
                        self.turnstile.lock(),
                        OPENER_RETRY_INTERVAL,
                        |_| true,
                    ));
                }
                Err(Errno::EAGAIN | Errno::EACCES) => return None,
                Err(_) => break false,
            }
        };
        Some(WriteTurn {
            locked: is_locked.then_some((open_files, OPENER_BYTE)),
            _thread_order: thread_order,
        })
    }

    /// Marks a registration of this process as alive, until [`release_presence`](Self::release_presence) or the end of
    /// the process.
    pub(crate) fn lock_presence(&self, worker: i64) -> io::Result<()> {
        let open_files = self.companions.open()?;
        fcntl(&open_files.presence, FcntlArg::F_SETLK(&lock_range(libc::F_WRLCK, worker, 1)))?;
        self.registrations.lock().insert(worker, open_files);
        self.hints.choose_slot(worker);
        Ok(())
    }

    /// Reverts [`lock_presence`](Self::lock_presence). After the last registration of the process, the companion files
    /// are closed.
    pub(crate) fn release_presence(&self, worker: i64) {
        let mut registrations = self.registrations.lock();
        if let Some(open_files) = registrations.remove(&worker) {
            unlock(&open_files.presence, worker);
        }
        if registrations.is_empty() {
            self.hints.unwatch();
        }
    }

    /// Whether a process holds the presence lock of this registration; true if the system cannot answer.
    pub(crate) fn is_alive(&self, worker: i64) -> bool {
        self.registrations.lock().contains_key(&worker) || self.is_locked_elsewhere(worker, 1)
    }

    /// Whether another process has locked a byte of the presence file in this range; a `len` of 0 means all bytes from
    /// `start` on. True if the system cannot answer.
    fn is_locked_elsewhere(&self, start: i64, len: i64) -> bool {
        let mut lock = lock_range(libc::F_WRLCK, start, len);
        let result = self
            .companions
            .open()
            .map(|open_files| fcntl(&open_files.presence, FcntlArg::F_GETLK(&mut lock)));
        !matches!(result, Ok(Ok(_))) || libc::c_int::from(lock.l_type) != libc::F_UNLCK
    }

    /// Updates whether other processes have registrations.
    pub(crate) fn check_for_peers(&self) {
        self.has_peers.store(self.is_locked_elsewhere(0, 0), Relaxed);
    }

    /// Whether no process has a registration.
    pub(crate) fn has_no_registrations(&self) -> bool {
        self.registrations.lock().is_empty() && !self.is_locked_elsewhere(0, 0)
    }

    /// Notes that parts of the log may not be on the disk although they can be read.
    pub(crate) fn mark_log_doubtful(&self) {
        self.is_log_doubtful.store(true, SeqCst);
    }

    /// Reverts [`mark_log_doubtful`](Self::mark_log_doubtful).
    pub(crate) fn clear_log_doubt(&self) {
        self.is_log_doubtful.store(false, SeqCst);
    }

    pub(crate) fn is_log_doubtful(&self) -> bool {
        self.is_log_doubtful.load(SeqCst)
    }

    /// Notifies the other stores on this file of a commit. `listener` is the id of the store that committed.
    pub(crate) fn announce_commit(&self, listener: u64) {
        self.hints.announce(listener, self.has_peers.load(Relaxed));
    }

    /// Returns the value of `ready.seq` for an execution that is queued at `now`: the time in microseconds, raised if
    /// this is needed to make it unique in this process.
    pub(crate) fn next_seq(&self, now: Timestamp) -> i64 {
        // only the holder of the write turn gets here, so no other thread changes the value at the same time
        let seq = now.as_micros().max(self.last_seq.load(Relaxed) + 1);
        self.last_seq.store(seq, Relaxed);
        seq
    }
}

/// The right to write. Dropping the value ends the turn.
pub(crate) struct WriteTurn<'a> {
    /// The locked byte of the turnstile; `None` if the turnstile is not in use.
    locked: Option<(OpenCompanions, i64)>,
    _thread_order: FairLockGuard<'a>,
}

impl WriteTurn<'_> {
    /// Whether this turn has locked a byte of the turnstile, so that other processes queue behind it.
    pub(crate) fn holds_turnstile(&self) -> bool {
        self.locked.is_some()
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        if let Some((open_files, byte)) = self.locked.take() {
            unlock(&open_files.turnstile, byte);
        }
    }
}

/// Returns the description of a lock on a range of bytes.
fn lock_range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Locks a byte, and waits for other processes. After an error the byte is not locked.
fn lock_and_wait(file: &File, byte: i64) -> Result<(), Errno> {
    loop {
        match fcntl(file, FcntlArg::F_SETLKW(&lock_range(libc::F_WRLCK, byte, 1))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Locks a byte if no other process has locked it.
fn try_lock(file: &File, byte: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_SETLK(&lock_range(libc::F_WRLCK, byte, 1))).map(drop)
}

fn unlock(file: &File, byte: i64) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&lock_range(libc::F_UNLCK, byte, 1)));
}
