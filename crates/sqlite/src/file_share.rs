//! [`Shared`]: what all stores of this process on one file have in common, and what several processes share
//! through three files beside the database.
//!
//! - `<database>-presence`: byte `worker_id` is locked for as long as that registration lives. The system
//!   releases it when the process dies, and no forked child inherits it, so whoever finds a byte unlocked
//!   knows at once, and without a clock, that its owner is dead. Its content is a copy of the count of flushes.
//! - `<database>-turnstile`: writers of several processes queue here. It is about fairness only.
//! - `<database>-wake`: written after a COMMIT has returned, watched by the other processes.
//!
//! Of each database there is one [`Shared`] in the process, kept in a registry while any store is open on it.

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
use stepfast_core::sync::{Condvar, Mutex, FairLock, FairLockGuard};
use tokio::time::Instant;

use crate::companions::{Companions, CompanionFiles, OpenCompanions};
use crate::notify::Hints;

/// Bytes of the turnstile: who is next, who is inside, who opens or migrates.
const NEXT_WRITER_BYTE: i64 = 0;
const WRITER_BYTE: i64 = 1;
const OPENER_BYTE: i64 = 2;

/// Time between two tries to be the one who opens.
const OPENER_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// What a child is told that cannot open what its parent has open.
pub(crate) const FORKED_CHILD_REASON: &str =
    "this process was forked while its parent had the database open; start it anew instead (spawn)";

static OPEN_FILES: Mutex<BTreeMap<PathBuf, Arc<FileShare>>> = Mutex::new(BTreeMap::new());

/// One database file, as seen by this process.
pub(crate) struct FileShare {
    /// The process that opened the files: a forked child has them too, but none of the locks.
    process_id: u32,
    pub(crate) companions: Arc<Companions>,
    /// Lets threads of this process in one by one, in the order in which they came.
    thread_order: FairLock,
    /// The thread that waits in line for this process, and the signal that it has come to an end.
    turnstile: Mutex<TurnstileState>,
    turnstile_changed: Condvar,
    /// Registrations of this process; each uses the companions.
    registrations: Mutex<HashMap<i64, OpenCompanions>>,
    /// True if another process has a registration.
    has_peers: AtomicBool,
    /// True if something of the log may not be on the disk although it can be read.
    is_log_doubtful: AtomicBool,
    /// The last position given in `ready`.
    last_seq: AtomicI64,
    pub(crate) hints: Arc<Hints>,
}

/// The turnstile, as seen by this process.
#[derive(Default)]
struct TurnstileState {
    /// A thread waits in line for this process.
    has_waiting_thread: bool,
    /// A writer waits for that thread.
    has_waiting_writer: bool,
    /// The thread has come to an end for the writer: whether it has locked the gate.
    has_locked: Option<bool>,
}

/// In a child: forgets what its parent has open. Nothing is closed: that would drop locks that the child gets on
/// the same files later.
pub(crate) fn forget_open_files() {
    std::mem::forget(std::mem::take(&mut *OPEN_FILES.lock()));
}

impl FileShare {
    /// Joins the stores that have the database at `path` (absolute, links resolved) open. An error says why not.
    pub(crate) fn join(path: &Path) -> Result<Arc<Self>, &'static str> {
        let mut files = OPEN_FILES.lock();
        // what nobody uses is closed here, under the lock, and never while somebody opens it anew
        files.retain(|_, shared| Arc::strong_count(shared) > 1);
        if let Some(shared) = files.get(path) {
            if shared.process_id != std::process::id() {
                return Err(FORKED_CHILD_REASON);
            }
            return Ok(shared.clone());
        }
        let companions = Companions::new(path);
        let shared = Arc::new(FileShare {
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
        files.insert(path.to_owned(), shared.clone());
        Ok(shared)
    }

    /// Waits for this thread's turn to write; for other processes until `deadline`. While the turn is held, no other
    /// thread of this process writes, and other processes queue behind it. `None` if another process kept it for too long.
    pub(crate) fn wait_for_turn(self: &Arc<Self>, deadline: Instant) -> Option<WriteTurn<'_>> {
        let fifo = self.thread_order.lock();
        let mut locked = None;
        if self.has_peers.load(Relaxed)
            && let Ok(used) = self.companions.open()
            && self.pass_turnstile(&used.turnstile, deadline)?
        {
            locked = Some((used, WRITER_BYTE));
        }
        Some(WriteTurn { locked, _thread_order: fifo })
    }

    /// Passes the turnstile; false if the system has no such locks. One thread of this process at a time comes here.
    ///
    /// The turnstile has two locks: the process that holds the turn is next, so a greedy one cannot pass it. The system
    /// wakes those who wait for a lock in their order, but knows no deadline. So a thread waits for this process, and hands
    /// on what it gets; it gives back what comes too late.
    fn pass_turnstile(self: &Arc<Self>, turnstile: &File, deadline: Instant) -> Option<bool> {
        let mut line = self.turnstile.lock();
        if !line.has_waiting_thread {
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
            let shared = self.clone();
            let wait = move || shared.wait_at_turnstile();
            if std::thread::Builder::new().name("stepfast-turn".to_owned()).spawn(wait).is_err() {
                unlock(turnstile, NEXT_WRITER_BYTE);
                return Some(false);
            }
            line.has_waiting_thread = true;
        }
        line.has_waiting_writer = true;
        let patience = deadline.saturating_duration_since(Instant::now());
        let mut line = self.turnstile_changed.wait_while_for(line, patience, |line| line.has_locked.is_none());
        line.has_waiting_writer = false;
        line.has_locked.take()
    }

    /// Waits for both locks of the turnstile. This process may hold the turn already.
    fn wait_at_turnstile(&self) {
        let used = self.companions.open();
        let mut has_gate = false;
        if let Ok(CompanionFiles { turnstile, .. }) = used.as_deref()
            && lock_and_wait(turnstile, NEXT_WRITER_BYTE).is_ok()
        {
            has_gate = lock_and_wait(turnstile, WRITER_BYTE).is_ok();
            unlock(turnstile, NEXT_WRITER_BYTE);
        }
        let mut line = self.turnstile.lock();
        line.has_waiting_thread = false;
        if line.has_waiting_writer {
            line.has_locked = Some(has_gate);
            self.turnstile_changed.notify_all();
        } else if let (true, Ok(CompanionFiles { turnstile, .. })) = (has_gate, used.as_deref()) {
            unlock(turnstile, WRITER_BYTE);
        }
    }

    /// Waits until no other store, of any process, is being opened on the file; until `deadline` for other processes.
    /// `None` if another process kept it for too long.
    pub(crate) fn lock_opening(&self, deadline: Instant) -> Option<WriteTurn<'_>> {
        let fifo = self.thread_order.lock();
        let used = self.companions.open().ok()?;
        let is_locked = loop {
            match try_lock(&used.turnstile, OPENER_BYTE) {
                Ok(()) => break true,
                Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => {
                    drop(self.turnstile_changed.wait_while_for(self.turnstile.lock(), OPENER_RETRY_INTERVAL, |_| true));
                }
                Err(Errno::EAGAIN | Errno::EACCES) => return None,
                Err(_) => break false,
            }
        };
        Some(WriteTurn { locked: is_locked.then_some((used, OPENER_BYTE)), _thread_order: fifo })
    }

    /// Marks a registration of this process as alive, until [`leave`](Self::leave) or the process's end.
    pub(crate) fn lock_presence(&self, worker: i64) -> io::Result<()> {
        let used = self.companions.open()?;
        fcntl(&used.presence, FcntlArg::F_SETLK(&lock_range(libc::F_WRLCK, worker, 1)))?;
        self.registrations.lock().insert(worker, used);
        self.hints.choose_slot(worker);
        Ok(())
    }

    /// Ends [`enter`](Self::enter). With the last registration of the process its companions are closed.
    pub(crate) fn release_presence(&self, worker: i64) {
        let mut present = self.registrations.lock();
        if let Some(used) = present.remove(&worker) {
            unlock(&used.presence, worker);
        }
        if present.is_empty() {
            self.hints.unwatch();
        }
    }

    /// True if some process holds the presence of this registration. If the system does not tell, true.
    pub(crate) fn is_alive(&self, worker: i64) -> bool {
        self.registrations.lock().contains_key(&worker) || self.is_locked_elsewhere(worker, 1)
    }

    /// True if another process holds a byte of the presence file in this range, all from `start` on if `len` is 0. If the
    /// system does not tell, true.
    fn is_locked_elsewhere(&self, start: i64, len: i64) -> bool {
        let mut found = lock_range(libc::F_WRLCK, start, len);
        let asked = self.companions.open().map(|used| fcntl(&used.presence, FcntlArg::F_GETLK(&mut found)));
        !matches!(asked, Ok(Ok(_))) || libc::c_int::from(found.l_type) != libc::F_UNLCK
    }

    /// Looks again whether other processes have registrations.
    pub(crate) fn check_for_peers(&self) {
        self.has_peers.store(self.is_locked_elsewhere(0, 0), Relaxed);
    }

    /// True if no process has a registration.
    pub(crate) fn has_no_registrations(&self) -> bool {
        self.registrations.lock().is_empty() && !self.is_locked_elsewhere(0, 0)
    }

    /// Notes that something of the log may not be on the disk although it can be read.
    pub(crate) fn mark_log_doubtful(&self) {
        self.is_log_doubtful.store(true, SeqCst);
    }

    /// Ends [`doubt_log`](Self::doubt_log).
    pub(crate) fn clear_log_doubt(&self) {
        self.is_log_doubtful.store(false, SeqCst);
    }

    pub(crate) fn is_log_doubtful(&self) -> bool {
        self.is_log_doubtful.load(SeqCst)
    }

    /// Tells the other stores on this file that something was committed. `listener` is who did it.
    pub(crate) fn announce_commit(&self, listener: u64) {
        self.hints.announce(listener, self.has_peers.load(Relaxed));
    }

    /// The position in `ready` of what is queued now: its time, but never twice the same in this process.
    pub(crate) fn next_seq(&self, now: Timestamp) -> i64 {
        // only who has the turn comes here, so nobody else changes it meanwhile
        let seq = now.as_micros().max(self.last_seq.load(Relaxed) + 1);
        self.last_seq.store(seq, Relaxed);
        seq
    }
}

/// The right to write, until dropped.
pub(crate) struct WriteTurn<'a> {
    /// The byte of the turnstile that is locked.
    locked: Option<(OpenCompanions, i64)>,
    _thread_order: FairLockGuard<'a>,
}

impl WriteTurn<'_> {
    /// True if other processes queue behind this turn.
    pub(crate) fn holds_turnstile(&self) -> bool {
        self.locked.is_some()
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        if let Some((used, byte)) = self.locked.take() {
            unlock(&used.turnstile, byte);
        }
    }
}

fn lock_range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Locks a byte, waiting for other processes. An error means that it is not locked.
fn lock_and_wait(file: &File, byte: i64) -> Result<(), Errno> {
    loop {
        match fcntl(file, FcntlArg::F_SETLKW(&lock_range(libc::F_WRLCK, byte, 1))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Locks a byte if no other process has it.
fn try_lock(file: &File, byte: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_SETLK(&lock_range(libc::F_WRLCK, byte, 1))).map(drop)
}

fn unlock(file: &File, byte: i64) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&lock_range(libc::F_UNLCK, byte, 1)));
}
