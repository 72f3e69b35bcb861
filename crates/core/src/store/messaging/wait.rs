//! [`Wait`]: a wake condition of a suspended execution.

use std::sync::Arc;

use crate::key::Key;

/// A wake condition of a suspended execution, other than its timer. Each wait has a row in `waits`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The end of an awaited child.
    Child(Key),
    /// A message to the execution with this topic.
    Message(Arc<str>),
    /// An event of this name, or the end of the execution that sets it.
    Event(Key, Arc<str>),
}

impl Wait {
    /// Returns the waits for the ends of children.
    pub fn for_children(children: impl IntoIterator<Item = Key>) -> Vec<Self> {
        children.into_iter().map(Self::Child).collect()
    }

    /// Returns the wait in the columns of its row: kind, subject and name. `execution` is the one that waits.
    pub fn columns(&self, execution: Key) -> (i16, Key, &str) {
        match self {
            Self::Child(child) => (1, *child, ""),
            Self::Message(topic) => (2, execution, topic),
            Self::Event(setter, name) => (3, *setter, name),
        }
    }

    /// Returns the wait of a row; `None` for a kind of a later version.
    pub fn from_columns(kind: i64, subject: Key, name: &str) -> Option<Self> {
        match kind {
            1 => Some(Self::Child(subject)),
            2 => Some(Self::Message(name.into())),
            3 => Some(Self::Event(subject, name.into())),
            _ => None,
        }
    }

    /// Returns the size in bytes that counts towards the size of a Write.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Child(_) => 32,
            Self::Message(name) | Self::Event(_, name) => 32 + name.len(),
        }
    }
}
