//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
//! one acts, and a thousand of them share one flush.
//!
//! This crate is the engine and the [`Store`] contract; it knows no SQL and no network.

mod adopt;
pub mod attributes;
mod branch;
mod builder;
pub mod bulk;
mod call;
mod child;
mod client;
pub mod clock;
mod commit;
mod context;
pub mod counters;
#[cfg(feature = "crash-points")]
#[doc(hidden)]
pub mod crash;
pub mod debounce;
mod definition;
mod delivery;
pub mod depth;
mod disagreement;
mod ear;
mod engine;
pub mod error;
pub mod failure;
pub mod guest;
mod handle;
mod id_claim;
mod inner;
mod inquiry;
pub mod key;
mod known_queues;
mod lease;
mod lifecycle;
#[doc(hidden)]
pub mod lock;
pub mod memory;
mod name;
mod order;
pub mod path;
pub mod payload;
mod put_off;
mod quarantine;
pub mod queue;
mod queues;
pub mod rate;
mod read_ahead;
pub mod record;
mod replay;
mod rest;
mod run;
mod runs;
pub mod schema;
mod shutdown;
mod signals;
mod start;
mod start_options;
mod step;
mod step_call;
pub mod store;
mod store_time;
mod stranded;
mod strays;
pub mod survey;
mod task;
#[doc(hidden)]
pub mod text;
mod thread;
pub mod turns;
mod value;
mod watch;
pub mod weights;
mod worker;
mod worker_signals;
mod workflow;
pub mod write;

/// A point at which tests may kill the process: `STEPFAST_CRASH=name:n` does so at the n-th passage. Without
/// the feature `crash-points` it is nothing at all.
#[cfg(feature = "crash-points")]
#[doc(hidden)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash::pass($name)
    };
}

/// A point at which tests may kill the process; nothing in this build.
#[cfg(not(feature = "crash-points"))]
#[doc(hidden)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {};
}

pub use branch::{Branch, Either, Elapsed};
pub use builder::EngineBuilder;
pub use child::{Child, ChildHandle, StartChild, StartDetached};
pub use client::Client;
pub use commit::LaneLoad;
pub use context::Context;
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use failure::{Failure, IntoFailure};
pub use handle::Handle;
pub use key::Key;
pub use memory::MemoryStore;
pub use name::Name;
pub use path::Path;
pub use payload::Payload;
pub use record::Status;
pub use start::{RunToEnd, Start, StartMany};
pub use start_options::Due;
pub use step::{RetryPolicy, Step, StepOptions};
pub use store::Store;
pub use workflow::Workflow;
