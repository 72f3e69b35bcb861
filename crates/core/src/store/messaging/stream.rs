//! [`StreamEntry`]: a value in a stream of an execution; [`Append`]: the Write that appends one; [`StreamQuery`]: the entries
//! to load.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;

/// Maximum number of entries of a stream that a store returns at a time.
pub const MAX_ENTRIES_LOADED: usize = 500;

/// A value in a stream, or the end of a closed stream. A flush inserts the row and never changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEntry {
    /// The place in the stream, from 0. The entries of a stream become durable in the order of their offsets.
    pub offset: i64,
    /// The offset of the first value that the same attempt of the step wrote to the stream. Equal to `offset` if the code of
    /// the workflow wrote the value.
    pub attempt_offset: i64,
    /// The path of the step that wrote the value; the root path if the code of the workflow did.
    pub step: Path,
    /// The value. Empty for the end of the stream: no entry follows.
    pub value: Payload,
    /// The time of the writing.
    pub written_at: Timestamp,
}

impl StreamEntry {
    /// Whether the entry is the end of the stream.
    pub fn is_end(&self) -> bool {
        self.value.is_empty()
    }
}

/// The Write by which a step appends a value to a stream of its execution. A value that the code of a workflow appends is
/// a part of its checkpoint: see [`Checkpoint::entry`](crate::store::Checkpoint::entry).
///
/// The worker that runs the execution gives the entries their offsets. So the only guard is the lane's fence.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    /// The key of the execution.
    pub execution: Key,
    /// The name of the stream.
    pub stream: Arc<str>,
    /// The entry.
    pub entry: StreamEntry,
}

/// The entries of a stream to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamQuery {
    /// The key of the execution.
    pub execution: Key,
    /// The name of the stream.
    pub stream: Arc<str>,
    /// The offset of the first entry to load, with up to [`MAX_ENTRIES_LOADED`] entries in their order; `None` for the last
    /// entry only.
    pub from: Option<i64>,
}
