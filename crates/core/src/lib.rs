//! Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next
//! one acts, and a thousand of them share one flush.
//!
//! This crate is the engine and the [`Store`] contract; it knows no SQL and no network.

pub mod clock;
pub mod counters;
pub mod error;
pub mod failure;
pub mod key;
pub mod memory;
pub mod path;
pub mod payload;
pub mod record;
pub mod store;
pub mod write;

pub use error::{Error, ErrorKind};
pub use failure::Failure;
pub use key::Key;
pub use memory::MemoryStore;
pub use path::Path;
pub use payload::Payload;
pub use record::Status;
pub use store::Store;
