//! [`Shared`]: what all stores of this process on one file have in common, and what several processes share
//! through three files beside the database.
//!
//! - `<database>-presence`: byte `worker_id` is locked for as long as that registration lives. The system
//!   releases it when the process dies, and no forked child inherits it, so whoever finds a byte unlocked
//!   knows at once, and without a clock, that its owner is dead.
//! - `<database>-turnstile`: writers of several processes queue here. It is about fairness only.
//! - `<database>-wake`: written after a COMMIT has returned, watched by the other processes.
//!
//! `fcntl` locks do not exclude threads of one process, and closing *any* descriptor of a file drops all the
//! locks that the process has on it. So there is one descriptor per process and file, kept in a registry
//! while any store is open on it, and all are opened and closed under the registry's lock.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use stepfast_core::clock::Timestamp;
use stepfast_core::lock::{Mutex, Queue, QueueGuard};

use crate::notify::Wakes;

/// Bytes of the turnstile: who is next, who is inside, who opens or migrates.
const TURN: i64 = 0;
const GATE: i64 = 1;
const OPENING: i64 = 2;

/// What a child is told that cannot open what its parent has open.
pub(crate) const FORKED: &str =
    "this process was forked while its parent had the database open; start it anew instead (spawn)";

static FILES: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// One database file, as seen by this process.
pub(crate) struct Shared {
    /// The process that opened the files: a forked child has them too, but none of the locks.
    process: u32,
    presence: File,
    turnstile: File,
    /// Lets threads of this process in one by one, in the order in which they came.
    fifo: Queue,
    /// Registrations of this process.
    present: Mutex<HashSet<i64>>,
    /// True if another process has a registration.
    has_peers: AtomicBool,
    /// The last position given in `ready`.
    last_seq: AtomicI64,
    pub(crate) wakes: Arc<Wakes>,
}

/// In a child: forgets what its parent has open. Nothing is closed: that would drop locks that the child gets on
/// the same files later.
pub(crate) fn forget_all() {
    std::mem::forget(std::mem::take(&mut *FILES.lock()));
}

impl Shared {
    /// Joins those who have the database at `path` (absolute, links resolved) open.
    pub(crate) fn join(path: &Path) -> io::Result<Arc<Self>> {
        let mut files = FILES.lock();
        // what nobody uses is closed here, under the lock, and never while somebody opens it anew
        files.retain(|_, shared| Arc::strong_count(shared) > 1);
        if let Some(shared) = files.get(path) {
            if shared.process != std::process::id() {
                return Err(io::Error::other(FORKED));
            }
            return Ok(shared.clone());
        }
        let wake = beside(path, "-wake");
        let shared = Arc::new(Shared {
            process: std::process::id(),
            presence: open(&beside(path, "-presence"))?,
            turnstile: open(&beside(path, "-turnstile"))?,
            fifo: Queue::new(),
            present: Mutex::default(),
            has_peers: AtomicBool::new(false),
            last_seq: AtomicI64::new(0),
            wakes: Arc::new(Wakes::new(open(&wake)?, wake)),
        });
        files.insert(path.to_owned(), shared.clone());
        Ok(shared)
    }

    /// Waits for this thread's turn to write. While it is held no other thread of this process writes, and
    /// other processes queue behind it.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let fifo = self.fifo.lock();
        // two locks: whoever holds the turn is next, so a greedy process cannot come back before it
        let mut has_gate = false;
        if self.has_peers.load(Relaxed) && wait(&self.turnstile, TURN).is_ok() {
            has_gate = wait(&self.turnstile, GATE).is_ok();
            release(&self.turnstile, TURN);
        }
        Turn { shared: self, byte: has_gate.then_some(GATE), _fifo: fifo }
    }

    /// Waits until no other store, of any process, is being opened on the file.
    pub(crate) fn opening(&self) -> Turn<'_> {
        let fifo = self.fifo.lock();
        let is_locked = wait(&self.turnstile, OPENING).is_ok();
        Turn { shared: self, byte: is_locked.then_some(OPENING), _fifo: fifo }
    }

    /// Marks a registration of this process as alive, until [`leave`](Self::leave) or the process's end.
    pub(crate) fn enter(&self, worker: i64) -> io::Result<()> {
        fcntl(&self.presence, FcntlArg::F_SETLK(&range(libc::F_WRLCK, worker, 1)))?;
        self.present.lock().insert(worker);
        self.wakes.sign_as(worker);
        Ok(())
    }

    /// Ends [`enter`](Self::enter).
    pub(crate) fn leave(&self, worker: i64) {
        if self.present.lock().remove(&worker) {
            release(&self.presence, worker);
        }
    }

    /// True if some process holds the presence of this registration. If the system does not tell, true.
    pub(crate) fn is_alive(&self, worker: i64) -> bool {
        self.present.lock().contains(&worker) || is_held(&self.presence, worker, 1)
    }

    /// Looks again whether other processes have registrations.
    pub(crate) fn look_for_peers(&self) {
        self.has_peers.store(is_held(&self.presence, 0, 0), Relaxed);
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
    shared: &'a Shared,
    byte: Option<i64>,
    _fifo: QueueGuard<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(byte) = self.byte {
            release(&self.shared.turnstile, byte);
        }
    }
}

/// The path of a file beside the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
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

fn release(file: &File, byte: i64) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&range(libc::F_UNLCK, byte, 1)));
}

/// True if another process holds a byte of the range (all bytes from `start` on, if `len` is 0).
fn is_held(file: &File, start: i64, len: i64) -> bool {
    let mut found = range(libc::F_WRLCK, start, len);
    fcntl(file, FcntlArg::F_GETLK(&mut found)).is_err() || libc::c_int::from(found.l_type) != libc::F_UNLCK
}
