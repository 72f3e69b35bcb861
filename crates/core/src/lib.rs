//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
//! one acts, and a thousand of them share one flush.
//!
//! This crate contains the engine and the [`Store`] contract. It contains no SQL and no network code.

pub mod attributes;
mod canonical;
pub mod clock;
mod commit;
#[cfg(feature = "crash-points")]
#[doc(hidden)]
pub mod crash_point;
mod engine;
pub mod error;
pub mod failure;
pub mod graph;
pub mod guest;
pub mod key;
pub mod memory;
mod name;
mod name_checks;
pub mod path;
pub mod payload;
pub mod queue;
mod runtime;
pub mod schedule;
pub mod store;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod text;
mod thread;
mod worker;
mod workflow;

/// Marks a point at which tests may kill the process: `STEPFAST_CRASH=name:n` kills the process when it passes the
/// point `name` for the n-th time. Without the feature `crash-points` the macro expands to nothing.
#[cfg(feature = "crash-points")]
#[doc(hidden)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash_point::pass($name)
    };
}

/// Marks a point at which tests may kill the process. In this build the macro expands to nothing.
#[cfg(not(feature = "crash-points"))]
#[doc(hidden)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {};
}

pub use attributes::Attributes;
pub use clock::Timestamp;
pub use commit::LaneLoad;
pub use engine::Engine;
pub use engine::batch::{BatchBuilder, BatchHandle, BatchInput, ItemResult, PackInput};
pub use engine::builder::EngineBuilder;
pub use engine::bulk::BulkResult;
pub use engine::client::Client;
pub use engine::handle::Handle;
pub use engine::messaging::ask::{AskBuilder, AskWithinBuilder};
pub use engine::messaging::event::{GetEventBuilder, GetEventWithinBuilder};
pub use engine::messaging::send::{SendBuilder, Sent};
pub use engine::messaging::stream::{ReadStreamBuilder, StreamReader, StreamValue};
pub use engine::start::{RunBuilder, StartBuilder, StartManyBuilder};
pub use error::{Error, ErrorKind};
pub use failure::{Failure, IntoFailure};
pub use key::{Key, MAX_BATCH_ITEMS};
pub use memory::MemoryStore;
pub use name::Name;
pub use path::Path;
pub use payload::Payload;
pub use queue::rate::Rate;
pub use queue::{OnConflict, OnDuplicate, OnFull, Queue};
#[doc(hidden)]
pub use runtime::messaging::shown::find_pending_topics;
#[doc(hidden)]
pub use runtime::run::item_lookup::find_record;
pub use runtime::start::options::Due;
pub use schedule::{CatchUp, Overlap, Schedule, SchedulePause, ScheduleView};
pub use store::{BatchCounts, EndedItems, Filter, Page, RequestResult, Status, Store};
pub use workflow::Workflow;
pub use workflow::branch::{Branch, Either, Elapsed};
pub use workflow::child::{Child, ChildBatch, ChildHandle, StartChild, StartDetached, SubmitBatch};
pub use workflow::context::Context;
pub use workflow::messaging::{
    Ask, AskWithin, CreateToken, GetEvent, GetEventWithin, MessageSender, Question, Receive, ReceiveQuestion,
    ReceiveQuestionWithin, ReceiveWithin, SendFromStep, SendFromWorkflow, SetEvent, StreamWriter, Token,
    TokenResult, TokenResultWithin, WriteStream,
};
#[doc(hidden)]
pub use workflow::messaging::{OutboxMessage, QuestionId, SEND_WORKFLOW, StepScope, TokenAnswer};
pub use workflow::retry::{Pauses, RetryPolicy, StepOptions};
pub use workflow::step::Step;
