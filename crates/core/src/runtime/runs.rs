//! [`Runs`]: the executions that run in this process, by key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::key::{Key, KeyMap};
use crate::runtime::inner::EngineInner;
use crate::runtime::run::Run;
use crate::runtime::run::bundle::BundleRun;

const SHARD_COUNT: usize = 16;

type Shard = KeyMap<Arc<Run>>;

#[derive(Default)]
pub(crate) struct Runs {
    shards: [Mutex<Shard>; SHARD_COUNT],
    /// Executions whose run begins here when their staged Start is applied, each with the number of its
    /// [`ExpectedRun`]s.
    expected: Mutex<KeyMap<usize>>,
    /// The bundles that run here, by key.
    bundles: Mutex<KeyMap<Weak<BundleRun>>>,
    /// The runs that have begun to pause. Some of them may have ended since, or continue.
    pausing: Mutex<Vec<Weak<Run>>>,
}

/// A guard for an execution whose run begins here without a claim. While the guard lives, no claim launches
/// the execution.
pub(crate) struct ExpectedRun {
    engine: Arc<EngineInner>,
    key: Key,
}

impl ExpectedRun {
    pub(crate) fn new(engine: &Arc<EngineInner>, key: Key) -> Self {
        *engine.runs.lock_expected().entry(key).or_default() += 1;
        Self { engine: engine.clone(), key }
    }
}

impl Drop for ExpectedRun {
    fn drop(&mut self) {
        let mut expected = self.engine.runs.lock_expected();
        if let Some(count) = expected.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                expected.remove(&self.key);
            }
        }
    }
}

impl Runs {
    fn lock_expected(&self) -> MutexGuard<'_, KeyMap<usize>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the execution runs here, or is about to.
    pub(crate) fn contains(&self, key: Key) -> bool {
        // in this order: an execution leaves `expected` only after its run was inserted
        self.lock_expected().contains_key(&key) || self.get(key).is_some()
    }

    /// Returns the executions that run here, or are about to.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.lock_expected().keys().copied().collect();
        keys.extend(self.all().iter().map(|run| run.key));
        keys
    }

    /// Returns the [`keys`](Self::keys) without those of open runs: the runs of the others have not begun
    /// yet, or are about to end.
    pub(crate) fn transient_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.lock_expected().keys().copied().collect();
        keys.extend(self.all().iter().filter(|run| !run.is_open()).map(|run| run.key));
        keys
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        // this byte is random in all keys
        let shard = usize::from(key.as_bytes()[13]) % SHARD_COUNT;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, run: Arc<Run>) {
        self.shard(run.key).insert(run.key, run);
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Run>> {
        self.shard(key).get(&key).cloned()
    }

    /// Removes this run, but not a later run of the same execution.
    pub(crate) fn remove(&self, run: &Run) {
        let mut shard = self.shard(run.key);
        if shard.get(&run.key).is_some_and(|other| std::ptr::eq(Arc::as_ptr(other), run)) {
            shard.remove(&run.key);
        }
    }

    /// Notes that a bundle runs here.
    pub(crate) fn insert_bundle(&self, key: Key, bundle: &Arc<BundleRun>) {
        self.lock_bundles().insert(key, Arc::downgrade(bundle));
    }

    /// Removes this bundle, but not a later run of the same bundle.
    pub(crate) fn remove_bundle(&self, key: Key, bundle: &Arc<BundleRun>) {
        let mut bundles = self.lock_bundles();
        if bundles.get(&key).is_some_and(|other| other.as_ptr() == Arc::as_ptr(bundle)) {
            bundles.remove(&key);
        }
    }

    /// Returns the bundle with this key if it runs here.
    pub(crate) fn bundle(&self, key: Key) -> Option<Arc<BundleRun>> {
        self.lock_bundles().get(&key).and_then(Weak::upgrade)
    }

    fn lock_bundles(&self) -> MutexGuard<'_, KeyMap<Weak<BundleRun>>> {
        self.bundles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a run begins to pause.
    pub(crate) fn add_pausing(&self, run: Weak<Run>) {
        self.pausing.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    /// Returns the open runs that are pausing.
    pub(crate) fn pausing(&self) -> Vec<Arc<Run>> {
        let mut all = self.pausing.lock().unwrap_or_else(PoisonError::into_inner);
        let pausing: Vec<Arc<Run>> =
            all.iter().filter_map(Weak::upgrade).filter(|run| run.is_pausing() && run.is_open()).collect();
        *all = pausing.iter().map(Arc::downgrade).collect();
        pausing
    }

    pub(crate) fn all(&self) -> Vec<Arc<Run>> {
        let shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().cloned().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(shard).collect()
    }
}
