//! Processes that fork while stores are open.
//!
//! SQLite records in process memory which locks it holds on a file. A forked child inherits that memory, but not the
//! locks. With a connection of its own, the child would read and write without locks. Therefore all connections are
//! closed before a fork, while no thread is inside SQLite. The parent opens connections again at the next use, and the
//! child starts without connections. The child never uses or drops its copies of the parent's stores, because only the
//! parent may close them.
//!
//! After a fork without [`before_fork`], the child cannot open its parent's files, because each `FileShare` contains
//! the id of its process.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::file_share;

/// Maximum time that a fork waits for open transactions.
const MAX_FORK_DELAY: Duration = Duration::from_secs(2);

/// A store that can close its connections.
pub(crate) trait Disconnect: Send + Sync {
    /// Closes all connections, while no connection is in use. The next use opens new ones.
    fn disconnect(&self);
}

static STATE: Mutex<ForkState> =
    Mutex::new(ForkState { active_uses: 0, is_fork_pending: false, stores: Vec::new() });
static CHANGED: Condvar = Condvar::new();
/// Whether this process is a forked child that must not use SQLite: its parent was inside SQLite when it forked.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The pending fork of this thread: set from [`before_fork`] until the thread has forked.
    static FORKING: RefCell<Option<PendingFork>> = const { RefCell::new(None) };
}

/// A fork in progress. The forking thread holds the lock of the state during the fork. A lock that another thread holds
/// would stay locked in the child for ever.
type PendingFork = (MutexGuard<'static, ForkState>, Vec<Arc<dyn Disconnect>>);

/// The uses of SQLite in this process, and the stores to disconnect before a fork.
struct ForkState {
    /// Number of threads that are inside SQLite.
    active_uses: usize,
    /// Whether a thread waits to fork: other threads must not enter SQLite.
    is_fork_pending: bool,
    /// All open stores, and possibly some closed ones.
    stores: Vec<Weak<dyn Disconnect>>,
}

fn lock_state() -> MutexGuard<'static, ForkState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of SQLite: while it exists, its thread may be inside SQLite, and the process does not fork.
pub(crate) struct SqliteUse;

impl SqliteUse {
    /// Begins a use of SQLite. Waits while a fork is pending.
    pub(crate) fn enter() -> Self {
        let mut state = lock_state();
        while state.is_fork_pending {
            state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.active_uses += 1;
        Self
    }
}

impl Drop for SqliteUse {
    fn drop(&mut self) {
        let mut state = lock_state();
        state.active_uses -= 1;
        if state.is_fork_pending {
            CHANGED.notify_all();
        }
    }
}

/// Registers a store, so that its connections are closed before a fork.
pub(crate) fn register_store(store: &Arc<impl Disconnect + 'static>) {
    let store: Weak<dyn Disconnect> = Arc::downgrade(store) as Weak<dyn Disconnect>;
    let mut state = lock_state();
    state.stores.retain(|store| store.strong_count() > 0);
    state.stores.push(store);
}

/// Whether this process is a forked child that must not use SQLite.
pub(crate) fn is_forked_child() -> bool {
    IS_FORKED_CHILD.load(SeqCst)
}

/// Waits until no thread is inside SQLite, and closes all connections. If the wait is longer than 2 s, closes nothing,
/// and the child cannot use SQLite. To be called right before the process forks, in the forking thread.
#[doc(hidden)]
pub fn before_fork() {
    let mut state = lock_state();
    state.is_fork_pending = true;
    let waited = CHANGED.wait_timeout_while(state, MAX_FORK_DELAY, |state| state.active_uses > 0);
    let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    state.is_fork_pending = false;
    if waited.timed_out() {
        drop(state);
        CHANGED.notify_all();
        return;
    }
    let stores: Vec<Arc<dyn Disconnect>> = state.stores.iter().filter_map(Weak::upgrade).collect();
    for store in &stores {
        store.disconnect();
    }
    FORKING.set(Some((state, stores)));
}

/// Ends a fork in the parent. To be called after [`before_fork`].
#[doc(hidden)]
pub fn after_fork_in_parent() {
    let Some((state, stores)) = FORKING.take() else { return };
    drop(state);
    CHANGED.notify_all();
    drop(stores);
}

/// Ends a fork in the child. To be called after [`before_fork`].
#[doc(hidden)]
pub fn after_fork_in_child() {
    let Some((mut state, stores)) = FORKING.take() else {
        IS_FORKED_CHILD.store(true, SeqCst);
        return;
    };
    std::mem::forget((stores, std::mem::take(&mut state.stores)));
    file_share::forget_open_files();
}
