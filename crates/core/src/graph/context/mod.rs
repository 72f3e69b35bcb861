//! The context of a graph: values that its tasks share by key.

pub(super) mod changes;
pub(super) mod merge;
pub(super) mod merger;
pub(super) mod shared;
pub(super) mod source;

use std::collections::BTreeMap;

use crate::payload::Payload;

/// The values of a context by key.
pub(super) type ContextValues = BTreeMap<String, Payload>;
