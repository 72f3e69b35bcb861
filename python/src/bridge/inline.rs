//! Code that begins in the thread which waits for it, and is run there.

use std::cell::RefCell;

use crate::bridge::mailbox::Begin;

/// Where code that begins in this thread is run.
enum Inline {
    Elsewhere,
    /// Here, by whoever polls the call.
    Wanted,
    Begun(Begin),
}

thread_local! {
    /// While a call is polled that runs the code itself: where the code finds its way here.
    static INLINE: RefCell<Inline> = const { RefCell::new(Inline::Elsewhere) };
}

/// Takes what begins, if this thread is about to run it; gives it back otherwise.
pub(crate) fn begin_inline(begin: Begin) -> Option<Begin> {
    INLINE.with_borrow_mut(|inline| match inline {
        Inline::Wanted => {
            *inline = Inline::Begun(begin);
            None
        }
        Inline::Elsewhere | Inline::Begun(_) => Some(begin),
    })
}

/// Runs `poll` for somebody who runs the code himself: what has begun meanwhile.
pub(crate) fn with_inline<T>(poll: impl FnOnce() -> T) -> (T, Option<Begin>) {
    INLINE.set(Inline::Wanted);
    let polled = poll();
    match INLINE.replace(Inline::Elsewhere) {
        Inline::Begun(begin) => (polled, Some(begin)),
        Inline::Elsewhere | Inline::Wanted => (polled, None),
    }
}
