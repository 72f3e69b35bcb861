//! [`Deferrals`]: back-off for executions whose code asked the program to exit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::key::Key;

/// First and longest pause before a deferred execution is requeued.
const DEFERRAL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of remembered executions. When it is reached, all executions are forgotten, and their
/// pauses begin with the first one again.
const MAX_REMEMBERED: usize = 10_000;

/// Counts of deferrals by execution, for the executions of this process.
#[derive(Default)]
pub(crate) struct Deferrals {
    counts: Mutex<HashMap<Key, u32>>,
    /// Whether any execution is remembered. This is checked at the end of every execution.
    has_any: AtomicBool,
}

impl Deferrals {
    /// Returns the execution's next pause, which doubles each time.
    pub(crate) fn next_pause(&self, key: Key) -> Duration {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_REMEMBERED {
            counts.clear();
        }
        let count = counts.entry(key).or_default();
        let pause = DEFERRAL_PAUSES.0.saturating_mul(1 << (*count).min(16)).min(DEFERRAL_PAUSES.1);
        *count += 1;
        self.has_any.store(true, SeqCst);
        pause
    }

    /// Forgets an execution that has ended.
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
        let (deferrals, key) = (Deferrals::default(), Key::mint(0));
        let pauses: Vec<u64> = (0..8).map(|_| deferrals.next_pause(key).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(deferrals.next_pause(Key::mint(0)).as_secs(), 1);
        deferrals.forget(key);
        assert_eq!(deferrals.next_pause(key).as_secs(), 1);
    }
}
