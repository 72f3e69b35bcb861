//! [`Filter`]: which executions a list or a count is about.

use std::sync::Arc;

use super::{Execution, Status};
use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::key::Key;

/// Which executions to list, newest first. By default the newest [`DEFAULT_LIMIT`] of all.
///
/// The age is that of the key. A child that is called ([`Context::child`](crate::Context::child)) is as old as its parent,
/// whenever the call comes. Called children stand beside the parent, in no order among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Any of these statuses; empty for all.
    pub statuses: Vec<Status>,
    /// Only this workflow.
    pub workflow: Option<Arc<str>>,
    /// Only those that are parked, or only those that are not.
    pub is_parked: Option<bool>,
    /// Only children of this execution.
    pub parent: Option<Key>,
    /// Only those whose id, given or minted, begins with this.
    pub id_prefix: Option<Arc<str>>,
    /// Only those that are pinned to this version of the code.
    pub app_version: Option<Arc<str>>,
    /// Only those that stand in this queue whenever they are queued.
    pub queue: Option<Arc<str>>,
    /// Only those that have all of these.
    pub attributes: Attributes,
    /// Only those created at or after this time.
    pub created_from: Option<Timestamp>,
    /// Only those created before this time.
    pub created_before: Option<Timestamp>,
    /// Only those that sort after this key in the list: the last key of the page before.
    pub after: Option<Key>,
    /// At most this many; 0 returns no rows, only the count. [`Engine::count`](crate::Engine::count) ignores
    /// it.
    pub limit: usize,
}

/// How many executions a [`Filter`] lists unless it says otherwise.
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

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The executions, newest key first, without payloads.
    pub executions: Vec<Execution>,
    /// How many match the filter, whatever `after` and `limit` say; only if `limit` is 0.
    pub total: Option<u64>,
}
