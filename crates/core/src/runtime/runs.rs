//! [`Runs`]: the executions that run in this process, by key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::{Key, KeyMap};
use crate::runtime::inner::Core;
use crate::runtime::run::Run;

const SHARDS: usize = 16;

type Shard = KeyMap<Arc<Run>>;

#[derive(Default)]
pub(crate) struct Runs {
    shards: [Mutex<Shard>; SHARDS],
    /// Executions whose Start is on its way and whose run begins when that has won; how many wait for it.
    expected: Mutex<KeyMap<usize>>,
}

/// While it lives, nobody adopts the execution: its run will begin by itself.
pub(crate) struct Expected {
    core: Arc<Core>,
    key: Key,
}

impl Expected {
    pub(crate) fn new(core: &Arc<Core>, key: Key) -> Self {
        *core.runs.expected().entry(key).or_default() += 1;
        Self { core: core.clone(), key }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut expected = self.core.runs.expected();
        if let Some(count) = expected.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                expected.remove(&self.key);
            }
        }
    }
}

impl Runs {
    fn expected(&self) -> MutexGuard<'_, KeyMap<usize>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it runs here, or is about to.
    pub(crate) fn holds(&self, key: Key) -> bool {
        // in this order: what is expected no longer has been inserted before
        self.expected().contains_key(&key) || self.get(key).is_some()
    }

    /// All that run here, or are about to.
    pub(crate) fn held(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.expected().keys().copied().collect();
        keys.extend(self.all().iter().map(|run| run.key));
        keys
    }

    /// Of these, the ones that are about to be held no longer, or not yet.
    pub(crate) fn ending(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.expected().keys().copied().collect();
        keys.extend(self.all().iter().filter(|run| !run.is_open()).map(|run| run.key));
        keys
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        // random in all keys
        let shard = usize::from(key.as_bytes()[13]) % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, run: Arc<Run>) {
        self.shard(run.key).insert(run.key, run);
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Run>> {
        self.shard(key).get(&key).cloned()
    }

    /// Removes this run; not another one of the same execution that came after it.
    pub(crate) fn remove(&self, run: &Run) {
        let mut shard = self.shard(run.key);
        if shard.get(&run.key).is_some_and(|other| std::ptr::eq(Arc::as_ptr(other), run)) {
            shard.remove(&run.key);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Run>> {
        let shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().cloned().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(shard).collect()
    }
}
