//! [`Hints`]: notifications that the database may have changed. Stores of the same process are notified directly, other
//! processes by a byte written to `<database>-wake` after COMMIT has returned. (The write-ahead log itself changes too
//! early: before its commit is visible.)

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use stepfast_core::sync::Mutex;
use tokio::sync::Notify;

use crate::companions::Companions;

/// Number of bytes of the wake file. A process writes to the byte at its first worker_id modulo this number, and
/// ignores changes of that byte.
const WAKE_SLOTS: usize = 4096;

/// The listeners of this process, and the file that connects processes.
pub(crate) struct Hints {
    companions: Arc<Companions>,
    /// The index of the byte that this process writes, plus one; 0 before the first registration of the process.
    slot: AtomicU64,
    /// The value that this process last wrote to its byte.
    count: AtomicU8,
    next_listener: AtomicU64,
    listeners: Mutex<Vec<Arc<Listener>>>,
    watch: Mutex<FileWatch>,
}

/// The watch of the wake file.
#[derive(Default)]
struct FileWatch {
    watcher: Option<RecommendedWatcher>,
    /// Whether the process has tried to watch the file.
    was_attempted: bool,
    /// The bytes of other processes at the time when the file was read last.
    last_bytes: Vec<u8>,
}

/// A store that is notified of changes.
pub(crate) struct Listener {
    pub(crate) id: u64,
    /// Number of engines that share the store.
    engines: AtomicU64,
    changes: Notify,
}

impl Listener {
    /// Waits until the database may have changed since the last call returned.
    pub(crate) async fn wait_for_change(&self) {
        self.changes.notified().await;
    }

    /// Increments the number of engines.
    pub(crate) fn add_engine(&self) {
        self.engines.fetch_add(1, Relaxed);
    }

    /// Decrements the number of engines.
    pub(crate) fn remove_engine(&self) {
        self.engines.fetch_sub(1, Relaxed);
    }

    fn wake(&self) {
        for _ in 0..self.engines.load(Relaxed).max(1) {
            self.changes.notify_one();
        }
    }
}

impl Hints {
    pub(crate) fn new(companions: Arc<Companions>) -> Self {
        Self {
            companions,
            slot: AtomicU64::new(0),
            count: AtomicU8::new(0),
            next_listener: AtomicU64::new(0),
            listeners: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// Adds a store to the listeners.
    pub(crate) fn add_listener(&self) -> Arc<Listener> {
        let id = self.next_listener.fetch_add(1, Relaxed);
        let listener = Arc::new(Listener { id, engines: AtomicU64::new(0), changes: Notify::new() });
        self.listeners.lock().push(listener.clone());
        listener
    }

    /// Removes a store from the listeners.
    pub(crate) fn remove_listener(&self, id: u64) {
        self.listeners.lock().retain(|listener| listener.id != id);
    }

    /// Chooses the byte that this process writes. Only the first call has an effect.
    pub(crate) fn choose_slot(&self, worker: i64) {
        let slot = worker as u64 % WAKE_SLOTS as u64 + 1;
        let _ = self.slot.compare_exchange(0, slot, Relaxed, Relaxed);
    }

    /// Notifies all stores of this process except the one that committed. If several engines share that store, it is
    /// notified too. If `has_peers`, also notifies other processes.
    pub(crate) fn announce(&self, committer: u64, has_peers: bool) {
        for listener in self.listeners.lock().iter() {
            if listener.id != committer || listener.engines.load(Relaxed) > 1 {
                listener.wake();
            }
        }
        if has_peers {
            let slot = self.slot.load(Relaxed).saturating_sub(1);
            let count = self.count.fetch_add(1, Relaxed).wrapping_add(1);
            // an error is harmless: the heartbeat once a second finds changes without a hint
            let _ = self.companions.if_open().map(|open_files| open_files.wake.write_at(&[count], slot));
        }
    }

    /// Notifies all other processes, even if this process has not chosen its byte yet.
    pub(crate) fn wake_all_processes(&self) {
        if let Some(open_files) = self.companions.if_open() {
            let mut byte = [0];
            let _ = open_files.wake.read_at(&mut byte, 0);
            let _ = open_files.wake.write_at(&[byte[0].wrapping_add(1)], 0);
        }
    }

    /// Starts watching the wake file, unless this was attempted before. If watching fails, only the heartbeat once a
    /// second finds changes.
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut watch = self.watch.lock();
        if std::mem::replace(&mut watch.was_attempted, true) {
            return;
        }
        watch.last_bytes = self.read_other_slots();
        let path = self.companions.path("-wake");
        let hints = Arc::downgrade(self);
        let watcher =
            notify::recommended_watcher(move |_| Hints::check_wake_file(&hints)).and_then(|mut watcher| {
                watcher.watch(&path, RecursiveMode::NonRecursive)?;
                Ok(watcher)
            });
        match watcher {
            Ok(watcher) => watch.watcher = Some(watcher),
            Err(error) => tracing::debug!("cannot watch {}: {error}", path.display()),
        }
    }

    /// Stops watching the file, until the next [`watch`](Self::watch).
    pub(crate) fn unwatch(&self) {
        let watched = std::mem::take(&mut *self.watch.lock());
        drop(watched);
    }

    /// Notifies all listeners if another process has written to the file.
    fn check_wake_file(hints: &Weak<Self>) {
        let Some(hints) = hints.upgrade() else { return };
        let bytes = hints.read_other_slots();
        let has_changed = {
            let mut watch = hints.watch.lock();
            let has_changed = bytes != watch.last_bytes;
            watch.last_bytes = bytes;
            has_changed
        };
        if has_changed {
            hints.listeners.lock().iter().for_each(|listener| listener.wake());
        }
    }

    /// Returns the bytes of the wake file, with this process's own byte set to 0.
    fn read_other_slots(&self) -> Vec<u8> {
        let mut bytes = vec![0; WAKE_SLOTS];
        let mut len = 0;
        if let Some(open_files) = self.companions.if_open() {
            while let Ok(read @ 1..) = open_files.wake.read_at(&mut bytes[len..], len as u64) {
                len += read;
            }
        }
        if let Some(own) = self.slot.load(Relaxed).checked_sub(1) {
            bytes[own as usize] = 0;
        }
        bytes
    }
}
