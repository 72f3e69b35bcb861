//! The identity of threads.

use std::thread::ThreadId;

thread_local! {
    /// The identity of this thread. Every call needs the identity, and reading it from the standard library would count
    /// a reference to the thread's handle each time.
    static THREAD_ID: ThreadId = std::thread::current().id();
}

/// Returns the identity of the calling thread.
pub(crate) fn current_thread_id() -> ThreadId {
    THREAD_ID.with(|thread| *thread)
}
