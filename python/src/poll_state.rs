//! State codes of calls, as in `stepfast._runtime.branch`.

/// The call is not finished: wait.
pub(crate) const PENDING: u8 = 0;
/// The caller has to run the body of the step, or the code of the execution, once. After a body it calls `succeed` or
/// `fail`, after code `code_returned`, `code_failed` or `code_unwound`.
pub(crate) const RUN_BODY: u8 = 1;
/// The call has succeeded.
pub(crate) const DONE: u8 = 2;
/// The call has ended with a failure of the user's code.
pub(crate) const FAILED: u8 = 3;
/// The call has ended with an error of the engine.
pub(crate) const ERROR: u8 = 4;
/// The code has to unwind.
pub(crate) const STOPPED: u8 = 5;
/// A child begins, and this thread is to run its code: call `take_offered_run`.
pub(crate) const RUN_CHILD: u8 = 6;
