//! [`ItemTemplate`]: the values of a bundle that its items have in common.

use std::sync::Arc;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::payload::Payload;
use crate::queue::{DEFAULT_QUEUE, Placement};
use crate::store::{Execution, ItemOutcome, Parent, Start, State};

/// Returns the placement of the bundles of a batch with this placement. Bundles without a queue key have the key of their
/// batch as the queue key. So each batch has its turns, and no other execution waits behind all bundles of a batch.
pub(crate) fn bundle_placement(batch: Key, placement: Option<&Placement>) -> Placement {
    let (queue, priority) =
        placement.map_or_else(|| (DEFAULT_QUEUE.into(), 0), |it| (it.queue.clone(), it.priority));
    let key = placement.map(|it| it.key.clone()).filter(|key| !key.is_empty());
    Placement { queue, key: key.unwrap_or_else(|| batch.to_string().into()), priority }
}

/// Returns the placement of the items of a bundle: that of their batch.
fn item_placement(bundle: &Execution) -> Option<Arc<Placement>> {
    let placement = bundle.placement.as_ref()?;
    // a search asks for each item that it finds, so no text is made
    let batch = bundle.key.batch();
    let is_own_key = batch.is_some() && Key::from_text(&placement.key) == batch;
    if !is_own_key {
        return Some(placement.clone());
    }
    let is_default = *placement.queue == *DEFAULT_QUEUE && placement.priority == 0;
    (!is_default).then(|| Arc::new(Placement { key: "".into(), ..Placement::clone(placement) }))
}

/// Returns the execution of an item without a row of its own, without its input. `end` is its packed outcome.
pub fn virtual_item(bundle: &Execution, item: Key, end: Option<ItemOutcome>) -> Execution {
    let (status, outcome) =
        end.map_or_else(|| (bundle.status, bundle.outcome.clone()), |end| (end.status, end.outcome));
    Execution {
        key: item,
        parent: item.batch().map(|key| Parent { key, is_detached: false }),
        fingerprint: None,
        owner: bundle.owner.filter(|_| !status.is_terminal()),
        is_parked: bundle.is_parked && !status.is_terminal(),
        status,
        input: Payload::empty(),
        outcome,
        placement: item_placement(bundle),
        ..bundle.clone()
    }
}

/// The values of a bundle that an item with a row of its own takes over.
#[derive(Clone, Debug)]
pub(crate) struct ItemTemplate {
    pub(crate) batch: Key,
    root: Key,
    workflow: Arc<str>,
    app_version: Option<Arc<str>>,
    pub(crate) placement: Option<Arc<Placement>>,
    created_at: Timestamp,
    /// The time limit of each item, from its beginning to its end.
    run_timeout: Option<Duration>,
}

impl ItemTemplate {
    /// Takes the values from the execution of a bundle; `None` for any other execution.
    pub(crate) fn of(bundle: &Execution) -> Option<Self> {
        Some(Self {
            batch: bundle.key.batch().filter(|_| bundle.key.is_bundle())?,
            root: bundle.root,
            workflow: bundle.workflow.clone(),
            app_version: bundle.app_version.clone(),
            placement: item_placement(bundle),
            created_at: bundle.created_at,
            run_timeout: bundle.run_timeout,
        })
    }

    /// Returns the deadline of an item that begins at this time.
    pub(crate) fn deadline(&self, now: impl FnOnce() -> Timestamp) -> Option<Timestamp> {
        self.run_timeout.map(|timeout| now().plus(timeout))
    }

    /// Returns the Start with which an item that has begun gets a row of its own. Without a deadline, the time limit counts
    /// from the moment at which the row is claimed.
    pub(crate) fn start(
        &self,
        index: u32,
        input: Payload,
        deadline_at: Option<Timestamp>,
        state: State,
    ) -> Start {
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
            deadline_at,
            run_timeout: self.run_timeout.filter(|_| deadline_at.is_none()),
            attributes: Attributes::NONE,
            item_count: None,
            is_guarded: false,
            has_begun: true,
            self_claims: false,
            state,
        }
    }
}
