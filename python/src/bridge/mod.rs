//! The classes that Python code holds, and the code of executions that runs in Python.
//!
//! The classes create each other: an engine creates calls and branches, a branch creates calls, a call offers
//! branches, a port provides branches. So the modules of this room may import each other; no other room imports this
//! one.

pub(crate) mod batch;
pub(crate) mod branch;
pub(crate) mod call;
mod caller_code;
mod code_future;
mod coroutine;
pub(crate) mod engine;
pub(crate) mod fork_hooks;
pub(crate) mod handle;
mod inline;
mod mailbox;
pub(crate) mod messaging;
pub(crate) mod port;
mod quiet_watch;
mod reply;
pub(crate) mod scheduling;
pub(crate) mod task_code;
mod waiter;
