//! [`Filter`]: the conditions of a list or a count of executions.

use std::sync::Arc;

use super::{Execution, Status};
use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::key::Key;

/// The conditions of a list of executions, newest first. By default a list contains the newest [`DEFAULT_LIMIT`]
/// executions.
///
/// Lists are sorted by the time in the key. If a parent starts and awaits a child in one call
/// ([`Context::child`](crate::Context::child)), the child's key contains the time of the parent's key, however late the
/// call is. In a list, such children are next to their parent, in no defined order among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The statuses to include; empty for all.
    pub statuses: Vec<Status>,
    /// The registered name of the workflow; `None` for all.
    pub workflow: Option<Arc<str>>,
    /// Whether executions must be parked, or must not be parked; `None` for both kinds.
    pub is_parked: Option<bool>,
    /// The key of the parent whose children are listed; `None` for all executions.
    pub parent: Option<Key>,
    /// The beginning of the workflow_id, whether a caller gave it or it is the text of the key; `None` for all.
    pub id_prefix: Option<Arc<str>>,
    /// The version of the code to which executions are pinned; `None` for all.
    pub app_version: Option<Arc<str>>,
    /// The queue of the executions' placements; `None` for all.
    pub queue: Option<Arc<str>>,
    /// The attributes that an execution must have, each with this value.
    pub attributes: Attributes,
    /// The earliest creation time; `None` for no bound.
    pub created_from: Option<Timestamp>,
    /// The time before which executions were created; `None` for no bound.
    pub created_before: Option<Timestamp>,
    /// The last key of the previous page: the list continues after it. `None` for the first page.
    pub after: Option<Key>,
    /// Maximum number of executions. If it is 0, the result is the count instead of rows.
    /// [`Engine::count`](crate::Engine::count) ignores this field.
    pub limit: usize,
}

/// Default of [`Filter::limit`].
pub const DEFAULT_LIMIT: usize = 50;

impl Filter {
    /// Returns an error for attributes that no execution can have.
    pub fn check(&self) -> Result<(), Error> {
        self.attributes.check()
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            statuses: Vec::new(),
            workflow: None,
            is_parked: None,
            parent: None,
            id_prefix: None,
            app_version: None,
            queue: None,
            attributes: Attributes::NONE,
            created_from: None,
            created_before: None,
            after: None,
            limit: DEFAULT_LIMIT,
        }
    }
}

/// A page of a list, or a count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The executions, newest key first, without payloads.
    pub executions: Vec<Execution>,
    /// The number of executions that match the filter, regardless of `after`; `None` unless `limit` is 0.
    pub total: Option<u64>,
}
