//! The runtime of an open engine: the state that its parts share, and the executions that run in it.
//!
//! [`inner`] and [`run`] refer to each other: each run has a reference to the engine, and the engine has all
//! runs. A second reference-counted object between them would cost an atomic operation on the hottest path.

pub(crate) mod batch;
pub(crate) mod capacity;
pub(crate) mod commit_observer;
pub(crate) mod completion_watch;
pub(crate) mod deferrals;
pub(crate) mod definition;
pub(crate) mod inner;
pub(crate) mod known_queues;
pub(crate) mod lease;
pub(crate) mod lifecycle;
pub(crate) mod messaging;
pub(crate) mod outcome;
pub(crate) mod query_batcher;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod start;
pub(crate) mod store_clock;
pub(crate) mod wakeups;
