//! Locks for the crates around this one: they do not poison, and a forked child may go on using them. (Those of
//! `parking_lot` keep all threads that wait in one list of the process: in a child it leads to threads that it does
//! not have.)

use std::collections::VecDeque;
use std::sync::{Arc, Condvar as StdCondvar, Mutex as StdMutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A mutex whose data is whole after a panic, or does not matter then.
#[derive(Debug, Default)]
pub struct Mutex<T>(StdMutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(StdMutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it, unless it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets threads wait for a change behind a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(StdCondvar);

impl Condvar {
    /// One that nobody waits for.
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

    /// Waits while `condition` holds, for so long at most.
    pub fn wait_while_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout_while(guard, patience, condition).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Lets threads in one by one, in the order in which they came.
#[derive(Debug, Default)]
pub struct FairLock {
    queue: Mutex<WaitQueue>,
}

#[derive(Debug, Default)]
struct WaitQueue {
    is_locked: bool,
    waiters: VecDeque<Arc<WaitSlot>>,
}

/// Where one thread waits.
#[derive(Debug, Default)]
struct WaitSlot {
    is_next: Mutex<bool>,
    woken: Condvar,
}

/// The turn of a thread, until dropped.
#[derive(Debug)]
pub struct FairLockGuard<'q>(&'q FairLock);

impl FairLock {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for this thread's turn.
    pub fn lock(&self) -> FairLockGuard<'_> {
        let place = {
            let mut line = self.queue.lock();
            if !std::mem::replace(&mut line.is_locked, true) {
                return FairLockGuard(self);
            }
            let place = Arc::new(WaitSlot::default());
            line.waiters.push_back(place.clone());
            place
        };
        drop(place.woken.wait_while(place.is_next.lock(), |is_next| !*is_next));
        FairLockGuard(self)
    }
}

impl Drop for FairLockGuard<'_> {
    fn drop(&mut self) {
        let next = {
            let mut line = self.0.queue.lock();
            let next = line.waiters.pop_front();
            line.is_locked = next.is_some();
            next
        };
        if let Some(place) = next {
            *place.is_next.lock() = true;
            place.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn turns_come_in_the_order_in_which_threads_came() {
        let queue = Arc::new(FairLock::new());
        let (send, receive) = mpsc::channel();
        let turn = queue.lock();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (waiting, send) = (queue.clone(), send.clone());
                let thread = thread::spawn(move || {
                    let _turn = waiting.lock();
                    send.send(n).unwrap();
                });
                while queue.queue.lock().waiters.len() <= n {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(turn);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(!queue.queue.lock().is_locked);
    }

    #[test]
    fn one_thread_at_a_time_has_the_turn() {
        let (queue, count) = (Arc::new(FairLock::new()), Arc::new(Mutex::new(0_u32)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (queue, count) = (queue.clone(), count.clone());
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        let _turn = queue.lock();
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
