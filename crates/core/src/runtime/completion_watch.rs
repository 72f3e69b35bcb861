//! [`CompletionWatch`]: the watchers of executions in the database, whichever process runs them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::item_lookup::bundle_of_item;
use crate::store::{Execution, ExecutionId};

/// The pause after a failed load of a watched execution.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of watched executions in a heartbeat. A heartbeat with all of them could take longer than a lease.
const MAX_PORTION: usize = 1_000;

#[derive(Default)]
pub(crate) struct CompletionWatch {
    count: AtomicUsize,
    watched: Mutex<Watched>,
}

/// The watched executions, and the order in which heartbeats ask for them.
#[derive(Default)]
struct Watched {
    /// The executions by the tags of their keys, because hints name executions by tag.
    executions: BTreeMap<(u32, Key), WatchedExecution>,
    /// The executions by turn: those that no heartbeat has asked for the longest come first.
    turns: BTreeMap<u64, Key>,
    next_turn: u64,
    /// The end of the present round: heartbeats ask for the executions with earlier turns.
    round_end: u64,
}

struct WatchedExecution {
    change: Arc<Notify>,
    watchers: usize,
    turn: u64,
}

impl Watched {
    fn take_turn(&mut self, key: Key) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(turn, key);
        turn
    }

    fn is_round_open(&self) -> bool {
        self.turns.first_key_value().is_some_and(|(turn, _)| *turn < self.round_end)
    }
}

/// A registration of a caller that waits for one execution. It ends when this value is dropped.
pub(crate) struct Watcher<'w> {
    watch: &'w CompletionWatch,
    key: Key,
    change: Arc<Notify>,
}

impl CompletionWatch {
    fn lock_watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a watcher of an execution. Call [`Watcher::next_change`] before each load of the execution,
    /// then wait for that change.
    pub(crate) fn watch(&self, key: Key) -> Watcher<'_> {
        let mut watched = self.lock_watched();
        let change = match watched.executions.get_mut(&(key.tag(), key)) {
            Some(entry) => {
                entry.watchers += 1;
                entry.change.clone()
            }
            None => {
                let (change, turn) = (Arc::<Notify>::default(), watched.take_turn(key));
                let entry = WatchedExecution { change: change.clone(), watchers: 1, turn };
                watched.executions.insert((key.tag(), key), entry);
                change
            }
        };
        self.count.store(watched.executions.len(), SeqCst);
        Watcher { watch: self, key, change }
    }

    /// Returns the number of watched executions.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// Whether any execution is watched.
    pub(crate) fn has_watchers(&self) -> bool {
        self.count() > 0
    }

    /// Notifies the watchers of `key`, which then load the execution again.
    pub(crate) fn notify(&self, key: Key) {
        if let Some(watched) = self.lock_watched().executions.get(&(key.tag(), key)) {
            watched.change.notify_waiters();
        }
    }

    /// Notifies the watchers of executions whose keys have these tags.
    pub(crate) fn notify_tagged(&self, tags: &[u32]) {
        if tags.is_empty() || !self.has_watchers() {
            return;
        }
        let watched = self.lock_watched();
        for tag in tags {
            let of_tag = watched.executions.range((*tag, Key::default())..);
            for (_, execution) in of_tag.take_while(|((of, _), _)| of == tag) {
                execution.change.notify_waiters();
            }
        }
    }

    /// Begins a round: the next heartbeats ask for all executions that are watched now, in portions.
    pub(crate) fn begin_round(&self) {
        let mut watched = self.lock_watched();
        watched.round_end = watched.next_turn;
    }

    /// Whether heartbeats of this round have not asked for some watched executions yet.
    pub(crate) fn is_round_open(&self) -> bool {
        self.has_watchers() && self.lock_watched().is_round_open()
    }

    /// Takes the next portion of this round. Begins another round if all watched executions are one portion.
    pub(crate) fn take_portion(&self) -> Vec<Key> {
        if !self.has_watchers() {
            return Vec::new();
        }
        let mut watched = self.lock_watched();
        let watched = &mut *watched;
        if watched.executions.len() <= MAX_PORTION {
            watched.round_end = watched.next_turn;
        }
        let mut portion = Vec::new();
        while portion.len() < MAX_PORTION && watched.is_round_open() {
            let Some((_, key)) = watched.turns.pop_first() else { break };
            let turn = watched.take_turn(key);
            if let Some(entry) = watched.executions.get_mut(&(key.tag(), key)) {
                entry.turn = turn;
            }
            portion.push(key);
        }
        portion
    }

    /// Notifies all watchers.
    pub(crate) fn notify_all(&self) {
        for watched in self.lock_watched().executions.values() {
            watched.change.notify_waiters();
        }
    }
}

impl Watcher<'_> {
    /// Returns a future that resolves at the next notification after this call.
    pub(crate) fn next_change(&self) -> tokio::sync::futures::OwnedNotified {
        self.change.clone().notified_owned()
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut watched = self.watch.lock_watched();
        let place = (self.key.tag(), self.key);
        if let Some(entry) = watched.executions.get_mut(&place) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                let turn = entry.turn;
                watched.executions.remove(&place);
                watched.turns.remove(&turn);
            }
        }
        self.watch.count.store(watched.executions.len(), SeqCst);
    }
}

impl EngineInner {
    /// Waits until the execution, wherever it runs, has ended or is parked.
    pub(crate) async fn wait_ended_or_parked(self: &Arc<Self>, key: Key) -> Result<Execution, Error> {
        self.wait_until(key, |execution| execution.status.is_terminal() || execution.is_parked, &|| {}).await
    }

    /// Waits until the execution, wherever it runs, has ended. Calls `on_unended` after each load that shows
    /// that the execution has not ended.
    pub(crate) async fn wait_ended(
        self: &Arc<Self>,
        key: Key,
        on_unended: &impl Fn(),
    ) -> Result<Execution, Error> {
        self.wait_until(key, |execution| execution.status.is_terminal(), on_unended).await
    }

    /// Returns an execution without its details, also if it is an item without a row of its own.
    pub(crate) async fn load_execution(&self, key: Key) -> Result<Option<Execution>, Error> {
        match self.executions.load(ExecutionId::Key(key)).await? {
            None if key.item_index().is_some() => {
                Ok(Box::pin(self.store.load_items(&[key])).await?.pop().flatten())
            }
            found => Ok(found),
        }
    }

    /// Ends the idleness of a client that has a watcher now: it renews its registration and sends heartbeats like a worker.
    pub(crate) fn leave_idleness(&self) {
        if self.info.is_client {
            self.wakeups.renewal.notify_one();
            self.wakeups.heartbeat.notify_one();
        }
    }

    async fn wait_until(
        self: &Arc<Self>,
        key: Key,
        is_done: impl Fn(&Execution) -> bool,
        on_unended: &impl Fn(),
    ) -> Result<Execution, Error> {
        let watcher = self.completion_watch.watch(key);
        // an item has no row of its own as long as it runs with its bundle
        let bundle = match key.item_index() {
            Some(_) => {
                let find = || async { Ok(bundle_of_item(&*self.store, key).await?) };
                Box::pin(self.query_with_retry(find)).await?
            }
            None => None,
        };
        let bundle_watcher = bundle.map(|bundle| self.completion_watch.watch(bundle));
        self.leave_idleness();
        let mut retry_at = None;
        loop {
            let change = watcher.next_change();
            let bundle_change = bundle_watcher.as_ref().map(Watcher::next_change);
            // a load may hang, which must not delay the engine's end
            let loaded = tokio::select! {
                biased;
                loaded = self.load_execution(key) => loaded,
                () = self.wait_stopped() => return Err(self.closed_error()),
            };
            match loaded {
                Ok(Some(execution)) if is_done(&execution) => return Ok(execution),
                Ok(None) => return Err(Error::NotFound { workflow_id: key.to_string() }),
                Ok(Some(_)) => on_unended(),
                Err(error @ (Error::Unavailable(_) | Error::PermissionDenied(_))) => {
                    tracing::debug!(%error, "cannot load a watched execution; retrying");
                    retry_at = Some(Instant::now() + RETRY_DELAY);
                }
                Err(error) => return Err(error),
            }
            if self.is_poisoned() || *self.wakeups.is_stopped.borrow() {
                return Err(self.closed_error());
            }
            let bundle_change = OptionFuture::from(bundle_change);
            let retry = OptionFuture::from(retry_at.take().map(tokio::time::sleep_until));
            tokio::select! {
                () = change => {}
                Some(()) = bundle_change => {}
                Some(()) = retry => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn heartbeats_of_a_round_ask_for_each_execution_once() {
        let watch = CompletionWatch::default();
        let keys: Vec<Key> = (0..2_500).map(|_| Key::mint(0)).collect();
        let mut watchers: Vec<Watcher<'_>> = keys.iter().map(|key| watch.watch(*key)).collect();
        assert!(watch.take_portion().is_empty(), "no round has begun");
        watch.begin_round();
        assert_eq!(watch.take_portion(), keys[..1_000]);
        // the round continues without executions whose watchers are gone, and without later watchers
        drop(watchers.drain(1_500..1_600));
        let later = watch.watch(Key::mint(0));
        let rest: HashSet<Key> = [watch.take_portion(), watch.take_portion()].concat().into_iter().collect();
        assert_eq!(rest.len(), 1_400);
        assert!(!rest.contains(&keys[0]) && !rest.contains(&keys[1_500]) && !rest.contains(&later.key));
        assert!(!watch.is_round_open() && watch.take_portion().is_empty());
        watch.begin_round();
        assert_eq!(watch.take_portion()[0], keys[0], "the oldest portion comes first");
    }

    #[test]
    fn tags_notify_only_the_watchers_of_their_executions() {
        let watch = CompletionWatch::default();
        let keys: Vec<Key> = (0..100).map(|_| Key::mint(0)).collect();
        let watchers: Vec<Watcher<'_>> = keys.iter().map(|key| watch.watch(*key)).collect();
        let changes: Vec<_> = watchers.iter().map(Watcher::next_change).collect();
        watch.notify_tagged(&[keys[3].tag(), keys[70].tag(), keys[3].tag().wrapping_add(1)]);
        let notified: Vec<usize> =
            (0..).zip(changes).filter_map(|(i, change)| change.now_or_never().map(|()| i)).collect();
        assert_eq!(notified, [3, 70]);
    }

    #[test]
    fn each_heartbeat_asks_for_all_of_a_few_executions() {
        let watch = CompletionWatch::default();
        let watchers: Vec<Watcher<'_>> = (0..10).map(|_| watch.watch(Key::mint(0))).collect();
        assert_eq!((watch.take_portion().len(), watch.take_portion().len()), (10, 10));
        drop(watchers);
        assert!(watch.take_portion().is_empty());
        assert!(watch.lock_watched().turns.is_empty());
    }
}
