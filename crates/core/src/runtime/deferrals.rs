//! [`PutOffs`]: how long executions wait whose code has wanted the program to end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::key::Key;

/// The first pause of an execution, and the longest.
const DEFERRAL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// So many executions are remembered; what comes then begins with the first pause again.
const MAX_REMEMBERED: usize = 10_000;

/// How often the executions of this process have been put off.
#[derive(Default)]
pub(crate) struct Deferrals {
    counts: Mutex<HashMap<Key, u32>>,
    /// There are some: whether there are is asked at the end of every execution.
    has_any: AtomicBool,
}

impl Deferrals {
    /// The pause of this execution, longer each time.
    pub(crate) fn next_pause(&self, key: Key) -> Duration {
        let mut times = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() >= MAX_REMEMBERED {
            times.clear();
        }
        let time = times.entry(key).or_default();
        let pause = DEFERRAL_PAUSES.0.saturating_mul(1 << (*time).min(16)).min(DEFERRAL_PAUSES.1);
        *time += 1;
        self.has_any.store(true, SeqCst);
        pause
    }

    /// The execution has ended.
    pub(crate) fn forget(&self, key: Key) {
        if self.has_any.load(SeqCst) {
            self.counts.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_the_execution_has_ended() {
        let (put_offs, key) = (Deferrals::default(), Key::mint(0));
        let pauses: Vec<u64> = (0..8).map(|_| put_offs.next_pause(key).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(put_offs.next_pause(Key::mint(0)).as_secs(), 1);
        put_offs.forget(key);
        assert_eq!(put_offs.next_pause(key).as_secs(), 1);
    }
}
