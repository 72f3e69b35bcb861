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

use crate::companions::{Companions, Files, Used};
use crate::notify::Wakes;

/// Bytes of the turnstile: who is next, who is inside, who opens or migrates.
const TURN: i64 = 0;
const GATE: i64 = 1;
const OPENING: i64 = 2;

/// Time between two tries to be the one who opens.
const OPENING_PAUSE: Duration = Duration::from_millis(10);

/// What a child is told that cannot open what its parent has open.
pub(crate) const FORKED: &str =
    "this process was forked while its parent had the database open; start it anew instead (spawn)";

static FILES: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// One database file, as seen by this process.
pub(crate) struct Shared {
    /// The process that opened the files: a forked child has them too, but none of the locks.
    process: u32,
    pub(crate) companions: Arc<Companions>,
    /// Lets threads of this process in one by one, in the order in which they came.
    fifo: FairLock,
    /// The thread that waits in line for this process, and the signal that it has come to an end.
    line: Mutex<Line>,
    passed: Condvar,
    /// Registrations of this process; each uses the companions.
    present: Mutex<HashMap<i64, Used>>,
    /// True if another process has a registration.
    has_peers: AtomicBool,
    /// True if something of the log may not be on the disk although it can be read.
    is_log_doubtful: AtomicBool,
    /// The last position given in `ready`.
    last_seq: AtomicI64,
    pub(crate) wakes: Arc<Wakes>,
}

/// The turnstile, as seen by this process.
#[derive(Default)]
struct Line {
    /// A thread waits in line for this process.
    has_thread: bool,
    /// A writer waits for that thread.
    is_wanted: bool,
    /// The thread has come to an end for the writer: whether it has locked the gate.
    came: Option<bool>,
}

/// In a child: forgets what its parent has open. Nothing is closed: that would drop locks that the child gets on
/// the same files later.
pub(crate) fn forget_all() {
    std::mem::forget(std::mem::take(&mut *FILES.lock()));
}

impl Shared {
    /// Joins the stores that have the database at `path` (absolute, links resolved) open. An error says why not.
    pub(crate) fn join(path: &Path) -> Result<Arc<Self>, &'static str> {
        let mut files = FILES.lock();
        // what nobody uses is closed here, under the lock, and never while somebody opens it anew
        files.retain(|_, shared| Arc::strong_count(shared) > 1);
        if let Some(shared) = files.get(path) {
            if shared.process != std::process::id() {
                return Err(FORKED);
            }
            return Ok(shared.clone());
        }
        let companions = Companions::of(path);
        let shared = Arc::new(Shared {
            process: std::process::id(),
            companions: companions.clone(),
            fifo: FairLock::new(),
            line: Mutex::default(),
            passed: Condvar::default(),
            present: Mutex::default(),
            has_peers: AtomicBool::new(false),
            is_log_doubtful: AtomicBool::new(false),
            last_seq: AtomicI64::new(0),
            wakes: Arc::new(Wakes::new(companions)),
        });
        files.insert(path.to_owned(), shared.clone());
        Ok(shared)
    }

    /// Waits for this thread's turn to write; for other processes until `deadline`. While the turn is held, no other
    /// thread of this process writes, and other processes queue behind it. `None` if another process kept it for too long.
    pub(crate) fn turn(self: &Arc<Self>, deadline: Instant) -> Option<Turn<'_>> {
        let fifo = self.fifo.lock();
        let mut locked = None;
        if self.has_peers.load(Relaxed)
            && let Ok(used) = self.companions.open()
            && self.pass_turnstile(&used.turnstile, deadline)?
        {
            locked = Some((used, GATE));
        }
        Some(Turn { locked, _fifo: fifo })
    }

    /// Passes the turnstile; false if the system has no such locks. One thread of this process at a time comes here.
    ///
    /// The turnstile has two locks: the process that holds the turn is next, so a greedy one cannot pass it. The system
    /// wakes those who wait for a lock in their order, but knows no deadline. So a thread waits for this process, and hands
    /// on what it gets; it gives back what comes too late.
    fn pass_turnstile(self: &Arc<Self>, turnstile: &File, deadline: Instant) -> Option<bool> {
        let mut line = self.line.lock();
        if !line.has_thread {
            match try_lock(turnstile, TURN).and_then(|()| try_lock(turnstile, GATE)) {
                Ok(()) => {
                    release(turnstile, TURN);
                    return Some(true);
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                Err(_) => {
                    release(turnstile, TURN);
                    return Some(false);
                }
            }
            let shared = self.clone();
            let wait = move || shared.stand_in_line();
            if std::thread::Builder::new().name("stepfast-turn".to_owned()).spawn(wait).is_err() {
                release(turnstile, TURN);
                return Some(false);
            }
            line.has_thread = true;
        }
        line.is_wanted = true;
        let patience = deadline.saturating_duration_since(Instant::now());
        let mut line = self.passed.wait_while_for(line, patience, |line| line.came.is_none());
        line.is_wanted = false;
        line.came.take()
    }

    /// Waits for both locks of the turnstile. This process may hold the turn already.
    fn stand_in_line(&self) {
        let used = self.companions.open();
        let mut has_gate = false;
        if let Ok(Files { turnstile, .. }) = used.as_deref()
            && wait(turnstile, TURN).is_ok()
        {
            has_gate = wait(turnstile, GATE).is_ok();
            release(turnstile, TURN);
        }
        let mut line = self.line.lock();
        line.has_thread = false;
        if line.is_wanted {
            line.came = Some(has_gate);
            self.passed.notify_all();
        } else if let (true, Ok(Files { turnstile, .. })) = (has_gate, used.as_deref()) {
            release(turnstile, GATE);
        }
    }

    /// Waits until no other store, of any process, is being opened on the file; until `deadline` for other processes.
    /// `None` if another process kept it for too long.
    pub(crate) fn opening(&self, deadline: Instant) -> Option<Turn<'_>> {
        let fifo = self.fifo.lock();
        let used = self.companions.open().ok()?;
        let is_locked = loop {
            match try_lock(&used.turnstile, OPENING) {
                Ok(()) => break true,
                Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => {
                    drop(self.passed.wait_while_for(self.line.lock(), OPENING_PAUSE, |_| true));
                }
                Err(Errno::EAGAIN | Errno::EACCES) => return None,
                Err(_) => break false,
            }
        };
        Some(Turn { locked: is_locked.then_some((used, OPENING)), _fifo: fifo })
    }

    /// Marks a registration of this process as alive, until [`leave`](Self::leave) or the process's end.
    pub(crate) fn enter(&self, worker: i64) -> io::Result<()> {
        let used = self.companions.open()?;
        fcntl(&used.presence, FcntlArg::F_SETLK(&range(libc::F_WRLCK, worker, 1)))?;
        self.present.lock().insert(worker, used);
        self.wakes.sign_as(worker);
        Ok(())
    }

    /// Ends [`enter`](Self::enter). With the last registration of the process its companions are closed.
    pub(crate) fn leave(&self, worker: i64) {
        let mut present = self.present.lock();
        if let Some(used) = present.remove(&worker) {
            release(&used.presence, worker);
        }
        if present.is_empty() {
            self.wakes.unwatch();
        }
    }

    /// True if some process holds the presence of this registration. If the system does not tell, true.
    pub(crate) fn is_alive(&self, worker: i64) -> bool {
        self.present.lock().contains_key(&worker) || self.is_held(worker, 1)
    }

    /// True if another process holds a byte of the presence file in this range, all from `start` on if `len` is 0. If the
    /// system does not tell, true.
    fn is_held(&self, start: i64, len: i64) -> bool {
        let mut found = range(libc::F_WRLCK, start, len);
        let asked = self.companions.open().map(|used| fcntl(&used.presence, FcntlArg::F_GETLK(&mut found)));
        !matches!(asked, Ok(Ok(_))) || libc::c_int::from(found.l_type) != libc::F_UNLCK
    }

    /// Looks again whether other processes have registrations.
    pub(crate) fn look_for_peers(&self) {
        self.has_peers.store(self.is_held(0, 0), Relaxed);
    }

    /// True if no process has a registration.
    pub(crate) fn is_nobody_there(&self) -> bool {
        self.present.lock().is_empty() && !self.is_held(0, 0)
    }

    /// Notes that something of the log may not be on the disk although it can be read.
    pub(crate) fn doubt_log(&self) {
        self.is_log_doubtful.store(true, SeqCst);
    }

    /// Ends [`doubt_log`](Self::doubt_log).
    pub(crate) fn trust_log(&self) {
        self.is_log_doubtful.store(false, SeqCst);
    }

    pub(crate) fn is_log_doubtful(&self) -> bool {
        self.is_log_doubtful.load(SeqCst)
    }

    /// Tells the other stores on this file that something was committed. `listener` is who did it.
    pub(crate) fn announce(&self, listener: u64) {
        self.wakes.announce(listener, self.has_peers.load(Relaxed));
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
pub(crate) struct Turn<'a> {
    /// The byte of the turnstile that is locked.
    locked: Option<(Used, i64)>,
    _fifo: FairLockGuard<'a>,
}

impl Turn<'_> {
    /// True if other processes queue behind this turn.
    pub(crate) fn is_in_line(&self) -> bool {
        self.locked.is_some()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((used, byte)) = self.locked.take() {
            release(&used.turnstile, byte);
        }
    }
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Locks a byte, waiting for other processes. An error means that it is not locked.
fn wait(file: &File, byte: i64) -> Result<(), Errno> {
    loop {
        match fcntl(file, FcntlArg::F_SETLKW(&range(libc::F_WRLCK, byte, 1))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Locks a byte if no other process has it.
fn try_lock(file: &File, byte: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_SETLK(&range(libc::F_WRLCK, byte, 1))).map(drop)
}

fn release(file: &File, byte: i64) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&range(libc::F_UNLCK, byte, 1)));
}
