//! [`Wakes`]: hints that something may have changed. In a process directly; to other processes by a byte
//! written to `<database>-wake` after COMMIT has returned. (The write-ahead log itself changes too early:
//! before its commit can be seen.)

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use stepfast_core::sync::Mutex;
use tokio::sync::Notify;

use crate::companions::Companions;

/// Bytes of the wake file: a process writes to the one at its first worker_id modulo this, so that it does
/// not wake itself.
const WAKE_SLOTS: usize = 4096;

/// Who listens in this process, and the file between processes.
pub(crate) struct Hints {
    companions: Arc<Companions>,
    /// The byte that this process writes, plus one; 0 before it has registered.
    slot: AtomicU64,
    count: AtomicU8,
    next_listener: AtomicU64,
    listeners: Mutex<Vec<Arc<Listener>>>,
    watch: Mutex<FileWatch>,
}

#[derive(Default)]
struct FileWatch {
    watcher: Option<RecommendedWatcher>,
    is_started: bool,
    last_bytes: Vec<u8>,
}

/// A store that wants to be woken.
pub(crate) struct Listener {
    pub(crate) id: u64,
    /// How many engines share the store.
    engines: AtomicU64,
    changed_notify: Notify,
}

impl Listener {
    /// Returns when something may have changed since the last call returned.
    pub(crate) async fn wait_for_change(&self) {
        self.changed_notify.notified().await;
    }

    /// Counts an engine more.
    pub(crate) fn add_engine(&self) {
        self.engines.fetch_add(1, Relaxed);
    }

    /// Counts an engine less.
    pub(crate) fn remove_engine(&self) {
        self.engines.fetch_sub(1, Relaxed);
    }

    fn wake(&self) {
        for _ in 0..self.engines.load(Relaxed).max(1) {
            self.changed_notify.notify_one();
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

    /// Adds a store.
    pub(crate) fn add_listener(&self) -> Arc<Listener> {
        let id = self.next_listener.fetch_add(1, Relaxed);
        let listener = Arc::new(Listener { id, engines: AtomicU64::new(0), changed_notify: Notify::new() });
        self.listeners.lock().push(listener.clone());
        listener
    }

    /// Removes a store.
    pub(crate) fn remove_listener(&self, id: u64) {
        self.listeners.lock().retain(|listener| listener.id != id);
    }

    /// Chooses the byte that this process writes; only the first choice counts.
    pub(crate) fn choose_slot(&self, worker: i64) {
        let slot = worker as u64 % WAKE_SLOTS as u64 + 1;
        let _ = self.slot.compare_exchange(0, slot, Relaxed, Relaxed);
    }

    /// Wakes all stores but the one that has committed (that one too, if several engines share it).
    pub(crate) fn announce(&self, from: u64, has_peers: bool) {
        for listener in self.listeners.lock().iter() {
            if listener.id != from || listener.engines.load(Relaxed) > 1 {
                listener.wake();
            }
        }
        if has_peers {
            let slot = self.slot.load(Relaxed).saturating_sub(1);
            let count = self.count.fetch_add(1, Relaxed).wrapping_add(1);
            // a hint: the look once a second is the net
            let _ = self.companions.if_open().map(|used| used.wake.write_at(&[count], slot));
        }
    }

    /// Wakes all other processes, before this one has a byte of its own in the file.
    pub(crate) fn wake_all_processes(&self) {
        if let Some(used) = self.companions.if_open() {
            let mut byte = [0];
            let _ = used.wake.read_at(&mut byte, 0);
            let _ = used.wake.write_at(&[byte[0].wrapping_add(1)], 0);
        }
    }

    /// Starts watching the file, once. Without it the look once a second is all there is.
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut watch = self.watch.lock();
        if std::mem::replace(&mut watch.is_started, true) {
            return;
        }
        watch.last_bytes = self.read_other_slots();
        let path = self.companions.path("-wake");
        let wakes = Arc::downgrade(self);
        let watcher = notify::recommended_watcher(move |_| Hints::check_wake_file(&wakes)).and_then(|mut watcher| {
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

    /// Wakes everybody if another process has written.
    fn check_wake_file(wakes: &Weak<Self>) {
        let Some(wakes) = wakes.upgrade() else { return };
        let bytes = wakes.read_other_slots();
        let has_changed = {
            let mut watch = wakes.watch.lock();
            let has_changed = bytes != watch.last_bytes;
            watch.last_bytes = bytes;
            has_changed
        };
        if has_changed {
            wakes.listeners.lock().iter().for_each(|listener| listener.wake());
        }
    }

    /// What the others have written.
    fn read_other_slots(&self) -> Vec<u8> {
        let mut bytes = vec![0; WAKE_SLOTS];
        let mut len = 0;
        if let Some(used) = self.companions.if_open() {
            while let Ok(read @ 1..) = used.wake.read_at(&mut bytes[len..], len as u64) {
                len += read;
            }
        }
        if let Some(own) = self.slot.load(Relaxed).checked_sub(1) {
            bytes[own as usize] = 0;
        }
        bytes
    }
}
