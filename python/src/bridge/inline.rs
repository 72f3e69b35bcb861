//! Runs an execution's code in the thread that waits for the execution.

use std::cell::RefCell;

use crate::bridge::mailbox::NewRun;

/// The treatment of a new run that begins in this thread.
enum InlineState {
    Inactive,
    /// The code that polls the call takes the new run.
    Accepting,
    Begun(NewRun),
}

thread_local! {
    /// Connects a poll with the new run that begins during it, for calls whose caller runs the code.
    static INLINE_STATE: RefCell<InlineState> = const { RefCell::new(InlineState::Inactive) };
}

/// Takes the new run if this thread is about to run it; otherwise returns it.
pub(crate) fn offer_inline(new_run: NewRun) -> Option<NewRun> {
    INLINE_STATE.with_borrow_mut(|state| match state {
        InlineState::Accepting => {
            *state = InlineState::Begun(new_run);
            None
        }
        InlineState::Inactive | InlineState::Begun(_) => Some(new_run),
    })
}

/// Calls `poll` for a caller that runs the code of an execution itself. Also returns the run that has begun during the
/// poll.
pub(crate) fn poll_inline<T>(poll: impl FnOnce() -> T) -> (T, Option<NewRun>) {
    INLINE_STATE.set(InlineState::Accepting);
    let polled = poll();
    match INLINE_STATE.replace(InlineState::Inactive) {
        InlineState::Begun(new_run) => (polled, Some(new_run)),
        InlineState::Inactive | InlineState::Accepting => (polled, None),
    }
}
