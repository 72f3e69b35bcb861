//! Locks for all crates. These locks do not poison, and a forked child process may continue to use them.
//!
//! The locks of `parking_lot` keep all waiting threads of the process in one list. In a forked child this list refers
//! to threads that the child does not have.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar as StdCondvar, Mutex as StdMutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A mutex for data that stays consistent when a thread panics, or whose consistency then does not matter.
#[derive(Debug, Default)]
pub struct Mutex<T>(StdMutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(StdMutex::new(value))
    }

    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex; `None` if it is already locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value without locking: the exclusive reference rules out other users.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable: threads wait at it for a change of the data in a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(StdCondvar);

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self(StdCondvar::new())
    }

    /// Waits while `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` holds, at most for `timeout`.
    pub fn wait_while_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout_while(guard, timeout, condition).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock without data. Threads get the lock in the order in which they call [`lock`](Self::lock).
#[derive(Debug, Default)]
pub struct FairLock {
    queue: Mutex<WaitQueue>,
}

/// The state of a [`FairLock`]: whether a thread holds it, and the waiting threads in their order.
#[derive(Debug, Default)]
struct WaitQueue {
    is_locked: bool,
    waiters: VecDeque<Arc<WaitSlot>>,
}

/// The signal that one waiting thread waits for.
#[derive(Debug, Default)]
struct WaitSlot {
    is_next: Mutex<bool>,
    woken: Condvar,
}

/// A held [`FairLock`]; dropping the guard passes the lock to the next waiter.
#[derive(Debug)]
pub struct FairLockGuard<'q>(&'q FairLock);

impl FairLock {
    /// Creates an unlocked lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until this thread has the lock.
    pub fn lock(&self) -> FairLockGuard<'_> {
        let slot = {
            let mut queue = self.queue.lock();
            if !std::mem::replace(&mut queue.is_locked, true) {
                return FairLockGuard(self);
            }
            let slot = Arc::new(WaitSlot::default());
            queue.waiters.push_back(slot.clone());
            slot
        };
        drop(slot.woken.wait_while(slot.is_next.lock(), |is_next| !*is_next));
        FairLockGuard(self)
    }
}

impl Drop for FairLockGuard<'_> {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue.lock();
            let next = queue.waiters.pop_front();
            queue.is_locked = next.is_some();
            next
        };
        if let Some(slot) = next {
            *slot.is_next.lock() = true;
            slot.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn fair_lock_serves_threads_in_order() {
        let lock = Arc::new(FairLock::new());
        let (send, receive) = mpsc::channel();
        let guard = lock.lock();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (cloned, send) = (lock.clone(), send.clone());
                let thread = thread::spawn(move || {
                    let _guard = cloned.lock();
                    send.send(n).unwrap();
                });
                while lock.queue.lock().waiters.len() <= n {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(guard);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(!lock.queue.lock().is_locked);
    }

    #[test]
    fn fair_lock_admits_one_thread_at_a_time() {
        let (lock, count) = (Arc::new(FairLock::new()), Arc::new(Mutex::new(0_u32)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, count) = (lock.clone(), count.clone());
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        let _guard = lock.lock();
                        let before = *count.lock();
                        thread::yield_now();
                        *count.lock() = before + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*count.lock(), 4_000);
    }
}
