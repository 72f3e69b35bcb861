//! [`ItemTemplate`]: the values that the rows of a bundle's items have in common.

use std::sync::Arc;

use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;
use crate::queue::Placement;
use crate::store::{Execution, Parent, Start, State};

/// The values of a bundle that an item with a row of its own takes over.
#[derive(Clone, Debug)]
pub(crate) struct ItemTemplate {
    pub(crate) batch: Key,
    root: Key,
    workflow: Arc<str>,
    app_version: Option<Arc<str>>,
    placement: Option<Arc<Placement>>,
    created_at: Timestamp,
}

impl ItemTemplate {
    /// Takes the values from the execution of a bundle; `None` for any other execution.
    pub(crate) fn of(bundle: &Execution) -> Option<Self> {
        Some(Self {
            batch: bundle.key.batch().filter(|_| bundle.key.last_index().is_some())?,
            root: bundle.root,
            workflow: bundle.workflow.clone(),
            app_version: bundle.app_version.clone(),
            placement: bundle.placement.clone(),
            created_at: bundle.created_at,
        })
    }

    /// Returns the Start with which an item that has begun gets a row of its own.
    pub(crate) fn start(&self, index: u32, input: Payload, state: State) -> Start {
        Start {
            key: self.batch.item(index),
            root: self.root,
            parent: Some(Parent { key: self.batch, is_detached: false }),
            workflow_id: None,
            workflow: self.workflow.clone(),
            fingerprint: None,
            app_version: self.app_version.clone(),
            placement: self.placement.clone(),
            dedup_id: None,
            debounce_window: None,
            input,
            created_at: self.created_at,
            deadline_at: None,
            run_timeout: None,
            attributes: Attributes::NONE,
            item_count: None,
            is_guarded: false,
            has_begun: true,
            self_claims: false,
            state,
        }
    }
}
