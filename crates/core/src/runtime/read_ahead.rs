//! [`ReadAhead`]: how many executions that hold a thread while they run a worker claims beyond its threads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::time::Instant;

/// The pace is measured over this time: as many as have ended within it are claimed ahead.
const WINDOW: Duration = Duration::from_millis(100);

/// The room for claims of executions that hold a thread: the free threads, and as many executions more as end while a
/// claim is under way. What a worker claims beyond that would wait for its threads while those of others are free.
pub(crate) struct ReadAhead {
    threads: usize,
    /// Claimed executions that have not concluded.
    claimed: AtomicUsize,
    /// A claim has left something for want of room.
    is_wanted: AtomicBool,
    pace: Mutex<Pace>,
}

/// How many have ended in this window and in the one before.
struct Pace {
    begun_at: Instant,
    ended: usize,
    before: usize,
}

impl Pace {
    fn turn(&mut self, now: Instant) {
        let windows = now.duration_since(self.begun_at).as_micros() / WINDOW.as_micros();
        if windows > 0 {
            self.before = if windows == 1 { self.ended } else { 0 };
            self.ended = 0;
            self.begun_at = now;
        }
    }
}

impl ReadAhead {
    /// For a worker with so many threads; `None` for one whose executions hold none.
    pub(crate) fn new(threads: Option<usize>) -> Self {
        Self {
            threads: threads.unwrap_or(usize::MAX),
            claimed: AtomicUsize::new(0),
            is_wanted: AtomicBool::new(false),
            pace: Mutex::new(Pace { begun_at: Instant::now(), ended: 0, before: 0 }),
        }
    }

    /// How many may be claimed now.
    pub(crate) fn room(&self) -> usize {
        if self.threads == usize::MAX {
            return usize::MAX;
        }
        let ahead = {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.turn(Instant::now());
            pace.ended.max(pace.before).max(self.threads)
        };
        (self.threads + ahead).saturating_sub(self.claimed.load(SeqCst))
    }

    /// A claim has left something, or may have: [`ended`](Self::ended) tells when there is room again.
    pub(crate) fn await_room(&self) {
        self.is_wanted.store(true, SeqCst);
    }

    /// One was claimed.
    pub(crate) fn begun(&self) {
        self.claimed.fetch_add(1, SeqCst);
    }

    /// One has concluded; true if a claim waits for that.
    pub(crate) fn ended(&self) -> bool {
        let left = self.claimed.fetch_sub(1, SeqCst) - 1;
        {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.turn(Instant::now());
            pace.ended += 1;
        }
        // as soon as threads are about to be free
        left <= self.threads && self.is_wanted.load(SeqCst) && self.is_wanted.swap(false, SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_to_others_what_its_threads_cannot_run_soon() {
        let room = ReadAhead::new(Some(2));
        assert_eq!(room.room(), 4);
        for left in [3, 2, 1, 0] {
            room.begun();
            assert_eq!(room.room(), left);
        }
        room.await_room();
        assert!(!room.ended(), "all threads have work");
        assert!(room.ended(), "a thread is about to be free");
        assert!(!room.ended(), "once");
        assert_eq!(ReadAhead::new(None).room(), usize::MAX);
    }

    #[test]
    fn it_takes_more_ahead_of_what_ends_soon() {
        let room = ReadAhead::new(Some(2));
        for _ in 0..500 {
            room.begun();
            room.ended();
        }
        let now = Instant::now();
        let mut pace = room.pace.lock().unwrap();
        (pace.ended, pace.begun_at) = (500, now);
        pace.turn(now + WINDOW);
        assert_eq!((pace.ended, pace.before), (0, 500));
        pace.turn(now + WINDOW * 4);
        assert_eq!((pace.ended, pace.before), (0, 0));
    }
}
