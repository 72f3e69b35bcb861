//! Turns: whose turn it is, as Python knows it by number (`stepfast.branch`).

/// Not yet: wait.
pub(crate) const PENDING: u8 = 0;
/// The body is to be run, once; then `succeed` or `fail`.
pub(crate) const BODY: u8 = 1;
/// It is over, and went well.
pub(crate) const DONE: u8 = 2;
/// It is over with a failure of the user's code.
pub(crate) const FAILED: u8 = 3;
/// It is over with an error of the engine.
pub(crate) const ERROR: u8 = 4;
/// The code has to unwind.
pub(crate) const STOPPED: u8 = 5;
/// A child begins that this thread is to run: `offered`.
pub(crate) const CHILD: u8 = 6;
