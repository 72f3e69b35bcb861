//! The identity of threads.

use std::thread::ThreadId;

thread_local! {
    /// Kept because every call needs the identity, and the standard library counts a reference for each copy of a
    /// thread's handle.
    static THREAD_ID: ThreadId = std::thread::current().id();
}

/// Returns the identity of the calling thread.
pub(crate) fn current_thread_id() -> ThreadId {
    THREAD_ID.with(|thread| *thread)
}
