//! [`Lsn`]: a position in a lane.

/// A position in a lane. Later Writes of an execution tree have larger positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Lsn(pub(crate) u64);
