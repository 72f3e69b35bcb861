//! [`ReadAhead`]: limits how many thread-holding executions a worker claims beyond its free threads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::Instant;

use super::without_reserved;

/// Length of a window in which concluded executions are counted. The worker claims as many executions ahead
/// as have concluded within one window, and at least as many as it has threads.
const PACE_WINDOW: Duration = Duration::from_millis(100);

/// Capacity for claims of executions that hold a thread: the free threads, plus a read-ahead for threads that
/// become free during a claim. Further executions would wait for this worker's threads while threads of other
/// workers are free.
pub(crate) struct ReadAhead {
    threads: usize,
    /// Number of claimed executions that have not concluded.
    claimed: AtomicUsize,
    /// Whether a claim has left executions behind because of a lack of capacity.
    is_claim_waiting: AtomicBool,
    pace: Mutex<Pace>,
    /// Number of items of bundles among the claimed executions, and their own pace.
    items: AtomicUsize,
    item_pace: Mutex<Pace>,
}

/// Numbers of executions that concluded in the current window and in the previous one.
struct Pace {
    window_start: Instant,
    concluded: usize,
    previous: usize,
}

impl Pace {
    fn new() -> Self {
        Self { window_start: Instant::now(), concluded: 0, previous: 0 }
    }

    fn advance(&mut self, now: Instant) {
        let windows = now.duration_since(self.window_start).as_micros() / PACE_WINDOW.as_micros();
        if windows > 0 {
            self.previous = if windows == 1 { self.concluded } else { 0 };
            self.concluded = 0;
            self.window_start = now;
        }
    }
}

impl ReadAhead {
    /// Creates the read-ahead of a worker with this number of threads; `None` means that the number has no
    /// limit.
    pub(crate) fn new(threads: Option<usize>) -> Self {
        Self {
            threads: threads.unwrap_or(usize::MAX),
            claimed: AtomicUsize::new(0),
            is_claim_waiting: AtomicBool::new(false),
            pace: Mutex::new(Pace::new()),
            items: AtomicUsize::new(0),
            item_pace: Mutex::new(Pace::new()),
        }
    }

    /// Returns how many executions may be claimed now.
    pub(crate) fn capacity(&self) -> usize {
        self.limit().saturating_sub(self.claimed.load(SeqCst))
    }

    /// Whether an item of a bundle may begin now. Some threads are left to other executions.
    pub(crate) fn has_capacity_for_item(&self) -> bool {
        let (threads, items) = (without_reserved(self.threads), self.items.load(SeqCst));
        // the paces, which have locks, matter only while the threads are busy
        (items < threads || items - threads < self.recently_concluded(&self.item_pace))
            && (self.claimed.load(SeqCst) < self.threads || self.capacity() > 0)
    }

    /// Notes that an item of a bundle begins.
    pub(crate) fn note_item_begun(&self) {
        self.items.fetch_add(1, SeqCst);
    }

    /// Notes that items of a bundle have concluded.
    pub(crate) fn note_items_left(&self, count: usize) {
        self.items.fetch_sub(count, SeqCst);
        note_pace(&self.item_pace, count);
    }

    /// Returns how many executions may be claimed and not concluded at a time.
    fn limit(&self) -> usize {
        self.threads.saturating_add(self.recently_concluded(&self.pace).max(self.threads))
    }

    /// Returns the number of executions that concluded in a recent window.
    fn recently_concluded(&self, pace: &Mutex<Pace>) -> usize {
        if self.threads == usize::MAX {
            return 0;
        }
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.advance(Instant::now());
        pace.concluded.max(pace.previous)
    }

    /// Notes that a claim has left executions behind, or may have. [`note_concluded`](Self::note_concluded)
    /// then reports when there is capacity again.
    pub(crate) fn wake_on_conclusion(&self) {
        self.is_claim_waiting.store(true, SeqCst);
    }

    /// Notes that an execution was claimed.
    pub(crate) fn note_claimed(&self) {
        self.claimed.fetch_add(1, SeqCst);
    }

    /// Notes that an execution has concluded. Returns true if a claim waits for capacity and should be made
    /// now.
    pub(crate) fn note_concluded(&self) -> bool {
        let remaining = self.claimed.fetch_sub(1, SeqCst) - 1;
        note_pace(&self.pace, 1);
        // wake the claimer as soon as threads are about to be free
        remaining <= self.threads
            && self.is_claim_waiting.load(SeqCst)
            && self.is_claim_waiting.swap(false, SeqCst)
    }
}

fn note_pace(pace: &Mutex<Pace>, concluded: usize) {
    let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
    pace.advance(Instant::now());
    pace.concluded += concluded;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_claims_only_what_its_threads_run_soon() {
        let read_ahead = ReadAhead::new(Some(2));
        assert_eq!(read_ahead.capacity(), 4);
        for remaining in [3, 2, 1, 0] {
            read_ahead.note_claimed();
            assert_eq!(read_ahead.capacity(), remaining);
        }
        read_ahead.wake_on_conclusion();
        assert!(!read_ahead.note_concluded(), "all threads have work");
        assert!(read_ahead.note_concluded(), "a thread is about to be free");
        assert!(!read_ahead.note_concluded(), "once");
        assert_eq!(ReadAhead::new(None).capacity(), usize::MAX);
    }

    #[test]
    fn items_of_bundles_leave_threads_to_others() {
        let read_ahead = ReadAhead::new(Some(8));
        for _ in 0..6 {
            assert!(read_ahead.has_capacity_for_item());
            read_ahead.note_item_begun();
            read_ahead.note_claimed();
        }
        assert!(!read_ahead.has_capacity_for_item(), "two threads are left");
        read_ahead.note_claimed();
        read_ahead.note_concluded();
        assert!(!read_ahead.has_capacity_for_item(), "another execution has concluded");
        read_ahead.note_items_left(1);
        read_ahead.note_item_begun();
        assert!(read_ahead.has_capacity_for_item(), "one more, because an item has concluded a moment ago");
        assert!(ReadAhead::new(None).has_capacity_for_item());
        assert!(ReadAhead::new(Some(1)).has_capacity_for_item());
    }

    #[test]
    fn short_executions_are_claimed_further_ahead() {
        let read_ahead = ReadAhead::new(Some(2));
        for _ in 0..500 {
            read_ahead.note_claimed();
            read_ahead.note_concluded();
        }
        let now = Instant::now();
        let mut pace = read_ahead.pace.lock().unwrap();
        (pace.concluded, pace.window_start) = (500, now);
        pace.advance(now + PACE_WINDOW);
        assert_eq!((pace.concluded, pace.previous), (0, 500));
        pace.advance(now + PACE_WINDOW * 4);
        assert_eq!((pace.concluded, pace.previous), (0, 0));
    }
}
