//! The identity of threads.

use std::thread::ThreadId;

thread_local! {
    /// Kept, as every call needs the identity: the standard library counts a reference for each copy of a thread's handle.
    static THREAD: ThreadId = std::thread::current().id();
}

/// Returns the identity of the calling thread.
pub(crate) fn thread_here() -> ThreadId {
    THREAD.with(|thread| *thread)
}
