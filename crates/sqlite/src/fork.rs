//! Processes that fork while stores are open.
//!
//! SQLite remembers in the process which locks it has on a file. A forked child has that memory, but not the locks:
//! with a connection of its own it would read and write without them. So before a fork all connections are closed
//! while nobody is in SQLite; the parent opens them again at the next use, and the child begins with nothing. What
//! it has of its parent's stores is never touched, and never dropped: closing them is the parent's.
//!
//! Whoever forks without [`before_fork`] gets a child that refuses its parent's files: `Shared` knows its process.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::file_share;

/// Longest time that a fork waits for transactions that are under way.
const MAX_FORK_DELAY: Duration = Duration::from_secs(2);

/// A store that can close its connections.
pub(crate) trait Disconnect: Send + Sync {
    /// Closes all connections, while none is in use; the next use opens others.
    fn disconnect(&self);
}

static STATE: Mutex<ForkState> = Mutex::new(ForkState { active_uses: 0, is_fork_pending: false, stores: Vec::new() });
static CHANGED: Condvar = Condvar::new();
/// This is a child whose parent was in SQLite when it forked.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// In the thread that forks, until it has.
    static FORKING: RefCell<Option<PendingFork>> = const { RefCell::new(None) };
}

/// The lock is held over the fork, so that the child does not get it from somebody whom it does not have.
type PendingFork = (MutexGuard<'static, ForkState>, Vec<Arc<dyn Disconnect>>);

struct ForkState {
    /// Threads that are in SQLite.
    active_uses: usize,
    is_fork_pending: bool,
    /// All that are open, and some that were.
    stores: Vec<Weak<dyn Disconnect>>,
}

fn lock_state() -> MutexGuard<'static, ForkState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, its thread may be in SQLite, and the process does not fork.
pub(crate) struct SqliteUse;

impl SqliteUse {
    pub(crate) fn enter() -> Self {
        let mut work = lock_state();
        while work.is_fork_pending {
            work = CHANGED.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.active_uses += 1;
        Self
    }
}

impl Drop for SqliteUse {
    fn drop(&mut self) {
        let mut work = lock_state();
        work.active_uses -= 1;
        if work.is_fork_pending {
            CHANGED.notify_all();
        }
    }
}

/// Keeps a store that has connections.
pub(crate) fn register_store(store: &Arc<impl Disconnect + 'static>) {
    let store: Weak<dyn Disconnect> = Arc::downgrade(store) as Weak<dyn Disconnect>;
    let mut work = lock_state();
    work.stores.retain(|store| store.strong_count() > 0);
    work.stores.push(store);
}

/// True in a child that must not use SQLite.
pub(crate) fn is_forked_child() -> bool {
    IS_FORKED_CHILD.load(SeqCst)
}

/// To be called right before the process forks, in the thread that does it: waits until nobody is in SQLite, and
/// closes all connections.
#[doc(hidden)]
pub fn before_fork() {
    let mut work = lock_state();
    work.is_fork_pending = true;
    let waited = CHANGED.wait_timeout_while(work, MAX_FORK_DELAY, |work| work.active_uses > 0);
    let (mut work, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    work.is_fork_pending = false;
    if waited.timed_out() {
        drop(work);
        CHANGED.notify_all();
        return;
    }
    let stores: Vec<Arc<dyn Disconnect>> = work.stores.iter().filter_map(Weak::upgrade).collect();
    for store in &stores {
        store.disconnect();
    }
    FORKING.set(Some((work, stores)));
}

/// To be called after [`before_fork`] in the process that has forked.
#[doc(hidden)]
pub fn after_fork_in_parent() {
    let Some((work, stores)) = FORKING.take() else { return };
    drop(work);
    CHANGED.notify_all();
    drop(stores);
}

/// To be called after [`before_fork`] in the child.
#[doc(hidden)]
pub fn after_fork_in_child() {
    let Some((mut work, stores)) = FORKING.take() else {
        IS_FORKED_CHILD.store(true, SeqCst);
        return;
    };
    std::mem::forget((stores, std::mem::take(&mut work.stores)));
    file_share::forget_open_files();
}
